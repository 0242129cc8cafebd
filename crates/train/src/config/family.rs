//! The parts of a model family: checks of its keys, and the layer that they describe.

use super::error::{ConfigError, invalid};
use super::validate::Checked;
use super::{Auto, ModelFamily, Placement, RunConfig};
use meshloom_nn::{
    Activation, Architecture, AttentionConfig, ExchangeSizes, ExpertExchange, FeedForwardConfig, GroupedConfig,
    LatentConfig, LayerConfig, MoeConfig, RmsNorm, Rope, Scoring, Stack,
};

/// The dimension along which groups of experts are spread over devices.
const GROUPS: &str = "activation_exp";

/// The dimension along which rows are, in the residual stream.
const STREAM_ROWS: &str = "activation_batch";

/// The dimension along which rows are, where experts work on them.
const ROWS: &str = "activation_batch_no_exp_moe";

/// The dimension along which parts of a sequence are, where experts work on them.
const POSITIONS: &str = "activation_norm_length_moe";

/// The inner width of experts.
const INNER: &str = "activation_mlp";

impl RunConfig {
    /// Returns the architecture of the config's decoder, with experts laid out for its mesh and rules.
    ///
    /// # Errors
    /// The mesh or the rules cannot be read.
    pub fn architecture(&self) -> Result<Architecture, ConfigError> {
        Ok(self.architecture_on(&self.placement()?))
    }

    pub(crate) fn architecture_on(&self, placement: &Placement) -> Architecture {
        let mut architecture = self.plain_architecture();
        architecture.for_each_layer(|layer| {
            if let FeedForwardConfig::Routed(routed) = &mut layer.feed_forward {
                *routed = self.laid_out(routed, placement);
            }
        });
        architecture
    }

    /// Returns the architecture of the decoder on any mesh: that of the published model, or that of a family by its
    /// keys.
    pub(super) fn plain_architecture(&self) -> Architecture {
        if let Some(published) = self.published() {
            return published.predicting_further(self.predicts_further()).architecture;
        }
        let model = &self.model;
        let (theta, epsilon) = (model.rope_theta, model.norm_epsilon);
        let grouped =
            || AttentionConfig::Grouped(GroupedConfig::llama(model.heads, model.kv_heads, model.head_dim, theta));
        let routed =
            |experts, experts_per_token, mlp| MoeConfig { experts, experts_per_token, mlp, ..MoeConfig::default() };
        let (attention, feed_forward) = match model.family {
            ModelFamily::Llama {} => {
                (grouped(), FeedForwardConfig::Dense { mlp: model.mlp, activation: Activation::Silu })
            }
            ModelFamily::Mixtral { experts, experts_per_token, moe_mlp } => {
                (grouped(), FeedForwardConfig::Routed(routed(experts, experts_per_token, moe_mlp)))
            }
            ModelFamily::Deepseek {
                experts,
                experts_per_token,
                moe_mlp,
                shared_experts,
                routed_scaling_factor,
                q_lora,
                kv_lora,
                rope_head_dim,
                v_head_dim,
            } => {
                let attention = AttentionConfig::Latent(LatentConfig {
                    heads: model.heads,
                    q_lora,
                    kv_lora,
                    nope_head_dim: model.head_dim,
                    rope_head_dim,
                    v_head_dim,
                    scale: ((model.head_dim + rope_head_dim) as f64).powf(-0.5),
                    rope: Rope::new(rope_head_dim, theta),
                    norm: RmsNorm::llama(epsilon),
                });
                let routed = MoeConfig {
                    shared_experts,
                    scoring: Scoring::Sigmoid,
                    weight_scale: routed_scaling_factor,
                    ..routed(experts, experts_per_token, moe_mlp)
                };
                (attention, FeedForwardConfig::Routed(routed))
            }
        };
        let norm = RmsNorm::llama(epsilon);
        let layer = LayerConfig { attention, feed_forward, norm, norms_behind: false, residual_scale: 1.0 };
        Architecture {
            tied_embeddings: model.tied_embeddings,
            ..Architecture::llama(model.embed, model.vocab, Stack::uniform(layer, model.layers), epsilon)
        }
    }

    /// The number of routed experts of a family's layer.
    pub(super) fn experts(&self) -> usize {
        self.stack().described().find_map(|layer| Some(layer.routed()?.experts)).unwrap_or_default()
    }

    /// Whether layers have routed experts.
    pub(crate) fn has_experts(&self) -> bool {
        self.stack().routed_count() > 0
    }

    /// Whether experts are chosen with a bias.
    pub(crate) fn has_choice_bias(&self) -> bool {
        self.stack().described().any(|layer| layer.routed().is_some_and(|routed| routed.choice_bias))
    }

    /// Whether attention makes keys of narrow vectors, which it gathers where a sequence is split.
    pub(crate) fn has_latent_attention(&self) -> bool {
        self.stack().described().any(|layer| matches!(layer.attention, AttentionConfig::Latent(_)))
    }

    /// Experts with a capacity, and cut as the mesh wants them.
    fn laid_out(&self, routed: &MoeConfig, placement: &Placement) -> MoeConfig {
        let model = &self.model;
        let rows = self.rows_of_half();
        let (batch_parts, sequence_parts) = (placement.parts(ROWS), placement.parts(POSITIONS));
        let config = MoeConfig {
            capacity_factor: (model.expert_capacity > 0.0).then_some(model.expert_capacity),
            exchange: ExpertExchange::Gather,
            expert_groups: placement.parts(GROUPS),
            // Rows that do not divide may be padded: each is a part, as padding cannot divide one.
            batch_parts: if rows.is_multiple_of(batch_parts) { batch_parts } else { rows },
            // A sequence that does not divide is whole on every device.
            sequence_parts: if model.seq.is_multiple_of(sequence_parts) { sequence_parts } else { 1 },
            ..routed.clone()
        };
        MoeConfig { exchange: self.exchange_of(&config, placement), ..config }
    }

    /// How tokens of these experts travel.
    fn exchange_of(&self, experts: &MoeConfig, placement: &Placement) -> ExpertExchange {
        let is_hindered = || {
            // Slots would be all-reduced over the axes that split the inner width, which the formulas do not count.
            self.hinders_all_to_all(placement).is_some() || placement.parts(INNER) > 1
        };
        match self.kernels.experts_exchange {
            Auto::Chosen(exchange) => exchange,
            Auto::Auto if is_hindered() => ExpertExchange::Gather,
            Auto::Auto => experts.cheaper_exchange(self.exchange_sizes(placement)),
        }
    }

    fn exchange_sizes(&self, placement: &Placement) -> ExchangeSizes {
        ExchangeSizes {
            rows: self.rows_of_half() / placement.parts(STREAM_ROWS).max(1),
            length: self.model.seq,
            embed: self.model.embed,
            element_bytes: self.model.compute_dtype.byte_count(),
            devices: placement.parts(GROUPS),
        }
    }

    /// Rows that the experts of a layer work on at once.
    fn rows_of_half(&self) -> usize {
        self.rows_of_layer() / if self.model.batch_split { 2 } else { 1 }
    }

    /// Returns the reason why tokens cannot travel by all-to-all, and the keys to change, if they cannot.
    fn hinders_all_to_all(&self, placement: &Placement) -> Option<(String, &'static [&'static str])> {
        if self.model.expert_capacity == 0.0 {
            let reason = "it needs a capacity, which gives every expert its slots; set model.expert_capacity";
            return Some((reason.to_owned(), &["model.expert_capacity"]));
        }
        let (stream, experts, groups) = (placement.parts(STREAM_ROWS), placement.parts(ROWS), placement.parts(GROUPS));
        if stream != experts * groups {
            let reason = format!(
                "the devices that split the rows of experts ({ROWS}, {experts}) times those that split experts ({GROUPS}, {groups}) \
                 must be those that split the batch ({STREAM_ROWS}, {stream}); change the rules, or take \"gather\""
            );
            return Some((reason, &["mesh.axes"]));
        }
        let rows = self.rows_of_half();
        if !rows.is_multiple_of(stream) {
            let reason = format!(
                "the {rows} rows that a layer works on at once must be a multiple of the {stream} devices that the batch is split \
                 over; change train.batch, or take \"gather\""
            );
            return Some((reason, &["train.batch"]));
        }
        let positions = placement.parts(POSITIONS);
        if positions > 1 {
            let reason = format!(
                "rows must be whole where slots are filled, but the rules split {POSITIONS} over {positions} devices of {}; take \
                 \"gather\"",
                placement.mesh
            );
            return Some((reason, &["mesh.axes"]));
        }
        None
    }

    pub(super) fn validate_family(&self) -> Checked {
        let model = &self.model;
        if model.batch_split {
            let batch = self.rows_of_layer();
            if !batch.is_multiple_of(2) {
                let reason = format!(
                    "the rows of a microbatch (train.batch over train.microbatches and pipeline.microbatches) must be even to be \
                     split in two, but there are {batch}"
                );
                let parts = ["train.batch", "train.microbatches", "pipeline.microbatches"];
                return Err(invalid("model.batch_split", true, &reason).because(parts));
            }
        }
        if let ModelFamily::Mixtral { experts, experts_per_token, .. }
        | ModelFamily::Deepseek { experts, experts_per_token, .. } = model.family
            && experts_per_token > experts
            && self.published().is_none()
        {
            let reason = format!("it must be at most model.family.experts, which is {experts}");
            let wrong = invalid("model.family.experts_per_token", experts_per_token, &reason);
            return Err(wrong.because(["model.family.experts"]));
        }
        self.validate_further()
    }

    /// Checks that the mesh can hold equal groups of experts, and that tokens can travel to them as they are to.
    pub(super) fn validate_experts(&self, placement: &Placement) -> Checked {
        let groups = placement.parts(GROUPS);
        let stack = self.stack();
        let Some(routed) = stack.described().find_map(|layer| layer.routed()) else { return Ok(()) };
        if routed.experts.is_multiple_of(groups) {
            let choice = self.kernels.experts_exchange;
            if choice == Auto::Chosen(ExpertExchange::AllToAll)
                && let Some((reason, keys)) = self.hinders_all_to_all(placement)
            {
                return Err(
                    invalid("kernels.experts_exchange", choice.to_string(), &reason).because(keys.iter().copied())
                );
            }
            return Ok(());
        }
        let (mesh, count) = (&placement.mesh, routed.experts);
        let spread = format!("the rules spread experts over so many devices of {mesh}");
        if self.published().is_some() {
            let reason = format!("the model's {count} experts must be a multiple of {groups}: {spread}");
            return Err(invalid("mesh.axes", &self.mesh.axes, &reason).because(["model.preset", "model.config"]));
        }
        Err(invalid("model.family.experts", count, &format!("it must be a multiple of {groups}: {spread}")))
    }
}
