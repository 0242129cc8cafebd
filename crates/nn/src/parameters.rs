//! The parameters of a decoder, and their declarations.

use meshloom::ir::DType;
use meshloom::trace::{Init, MapTree, MatrixDims, Param, Update};

use super::architecture::Architecture;
use super::attention::{Attention, AttentionBias, GroupedConfig, HeadNorms};
use super::config::DecoderConfig;
use super::latent::{LatentAttention, LatentConfig, LatentQuery};
use super::layer::{AttentionBlock, AttentionConfig, DecoderLayer, FeedForward, FeedForwardConfig, LayerConfig};
use super::mlp::Mlp;
use super::moe::{ExpertBiases, Moe, MoeConfig};
use super::norm::RmsNorm;
use super::runs::{LayerRun, Layers, RunForm, RunWeights};

meshloom::tree! {
    /// Parameters of a decoder.
    pub struct Decoder<T> {
        /// `[vocab, embed]`.
        pub embedding: T,
        /// The layer stack.
        pub layers: Layers<T>,
        /// `[embed]`.
        pub final_norm: T,
        /// `[embed, vocab]`; none when tied to the embedding.
        pub head: Option<T>,
        /// The layers that predict further tokens.
        pub further: Vec<FurtherToken<T>>,
    }

    /// Parameters of a layer that predicts a further token.
    pub struct FurtherToken<T> {
        /// Over the embedded token: `[embed]`.
        pub embedding_norm: T,
        /// Over the stream: `[embed]`.
        pub stream_norm: T,
        /// From both, the token first, to the layer's stream: `[2 * embed, embed]`.
        pub projection: T,
        /// The layer.
        pub layer: DecoderLayer<T>,
        /// Behind the layer: `[embed]`.
        pub norm: T,
    }
}

impl DecoderConfig {
    /// The parameters.
    ///
    /// Matrices start normally distributed with variance one over the fan-in; those that write into the residual stream
    /// with that divided by twice the number of layers, so that the stream's variance does not grow with depth.
    pub fn parameters(&self) -> Decoder<Param> {
        let &Architecture { embed, vocab, tied_embeddings, .. } = &self.architecture;
        // A tied embedding is the head as well, for which the fan-in is the width.
        let fan_in = if tied_embeddings { embed } else { 1 };
        // Tables over the vocabulary are no matrices to optimizers: rows are seldom used, or classes of their own.
        let head = || self.matrix(&[embed, vocab], &["embed", "vocab"], embed, 1.0).with_matrix(None);
        Decoder {
            embedding: self.matrix(&[vocab, embed], &["vocab", "embed"], fan_in, 1.0).with_matrix(None),
            layers: self.layers_parameters(),
            final_norm: self.norm_parameter(embed, self.architecture.final_norm),
            head: (!tied_embeddings).then(head),
            further: self.further_parameters(),
        }
    }

    /// The type in which a weight is used: what decays, the matrices, in that of activations, which may have fewer
    /// bits, so less is gathered. Vectors, biases and the router are used as they are.
    pub fn dtype_in_use(&self, path: &str, param: &Param) -> DType {
        let is_converted = param.decays && !path.ends_with("router");
        if is_converted { self.compute_dtype } else { param.spec.ty.dtype }
    }

    /// Declares the parameters of the layers.
    fn layers_parameters(&self) -> Layers<Param> {
        // Behind a pipeline's name for them, the rules would split these over its stages.
        let name = if self.pipeline.is_some() { "layers_outside_pipeline" } else { "layers" };
        let of_run = |run: LayerRun| {
            let declared = run.cycle.iter().map(|layer| self.layer_parameters(layer));
            let layers = match (run.form, &self.pipeline) {
                (RunForm::Apart, _) | (RunForm::Pipelined, None) => declared.collect(),
                (RunForm::Scanned(count), _) => {
                    declared.map(|layer| layer.map(|_, param| param.clone().stacked_over(&[(count, name)]))).collect()
                }
                (RunForm::Pipelined, Some(pipeline)) => {
                    let dims = pipeline.leading_dims();
                    declared.map(|layer| layer.map(|_, param| param.clone().stacked_over(&dims))).collect()
                }
            };
            RunWeights { numbers: run.numbers(), layers }
        };
        Layers(self.runs().into_iter().map(of_run).collect())
    }

    /// Declares the parameters of the layers that predict further tokens.
    fn further_parameters(&self) -> Vec<FurtherToken<Param>> {
        let embed = self.architecture.embed;
        let norm = || self.norm_parameter(embed, self.architecture.final_norm);
        let of_layer = |layer: &LayerConfig| FurtherToken {
            embedding_norm: norm(),
            stream_norm: norm(),
            projection: self.matrix(&[2 * embed, embed], &["embed", "mlp"], 2 * embed, 1.0),
            layer: self.layer_parameters(layer),
            norm: norm(),
        };
        self.architecture.further.iter().map(of_layer).collect()
    }

    /// Declares one layer's parameters. Matrices that write into the residual stream start smaller with depth.
    fn layer_parameters(&self, layer: &LayerConfig) -> DecoderLayer<Param> {
        let norm = || self.norm_parameter(self.architecture.embed, layer.norm);
        DecoderLayer {
            attention_norm: norm(),
            attention: match &layer.attention {
                AttentionConfig::Grouped(grouped) => AttentionBlock::Grouped(Box::new(self.grouped(grouped))),
                AttentionConfig::Latent(latent) => AttentionBlock::Latent(Box::new(self.latent(latent))),
            },
            post_attention_norm: layer.norms_behind.then(norm),
            mlp_norm: norm(),
            mlp: match &layer.feed_forward {
                FeedForwardConfig::Dense { mlp, .. } => FeedForward::Dense(Box::new(self.dense(*mlp))),
                FeedForwardConfig::Routed(routed) => FeedForward::Routed(Box::new(self.experts(routed))),
            },
            post_mlp_norm: layer.norms_behind.then(norm),
        }
    }

    /// Normally distributed with variance `gain^2` over the fan-in.
    fn matrix(&self, dims: &[usize], axes: &[&str], fan_in: usize, gain: f64) -> Param {
        Param::new(self.param_dtype, dims, axes, Init::Normal(gain * (fan_in as f64).powf(-0.5)))
    }

    /// The weight of a norm.
    fn norm_parameter(&self, width: usize, form: RmsNorm) -> Param {
        Param::new(self.param_dtype, [width], &["norm"], Init::Constant(form.first_weight()))
    }

    /// A bias, which is no matrix to optimizers and does not decay, whatever dimensions it has.
    fn bias(&self, dims: &[usize], axes: &[&str]) -> Param {
        Param::new(self.param_dtype, dims, axes, Init::Constant(0.0)).with_matrix(None).with_decay(false)
    }

    /// The gain of what writes into the residual stream, whose variance then does not grow with depth.
    fn residual_gain(&self) -> f64 {
        (2.0 * self.architecture.stack.layer_count() as f64).powf(-0.5)
    }

    fn grouped(&self, config: &GroupedConfig) -> Attention<Param> {
        let &GroupedConfig { heads, kv_heads, head_dim, .. } = config;
        let embed = self.architecture.embed;
        let of_keys = || self.matrix(&[embed, kv_heads, head_dim], &["embed", "kv_heads", "kv"], embed, 1.0);
        let bias_of_keys = || self.bias(&[kv_heads, head_dim], &["kv_heads", "kv"]);
        Attention {
            wq: self.matrix(&[embed, heads, head_dim], &["embed", "heads", "kv"], embed, 1.0),
            wk: of_keys(),
            wv: of_keys(),
            wo: self.output_matrix(heads, head_dim),
            bias: config.bias.then(|| AttentionBias {
                query: self.bias(&[heads, head_dim], &["heads", "kv"]),
                key: bias_of_keys(),
                value: bias_of_keys(),
            }),
            output_bias: config.output_bias.then(|| self.bias(&[embed], &["norm"])),
            head_norms: config.head_norms.map(|form| HeadNorms {
                query: self.norm_parameter(head_dim, form),
                key: self.norm_parameter(head_dim, form),
            }),
            sinks: config.sinks.then(|| self.bias(&[heads], &["heads"])),
        }
    }

    fn output_matrix(&self, heads: usize, width: usize) -> Param {
        let dims = [heads, width, self.architecture.embed];
        let matrix = self.matrix(&dims, &["heads", "kv", "embed"], heads * width, self.residual_gain());
        matrix.with_matrix(Some(MatrixDims { batch: 0, inputs: 2 }))
    }

    fn latent(&self, latent: &LatentConfig) -> LatentAttention<Param> {
        let &LatentConfig { heads, q_lora, kv_lora, nope_head_dim, rope_head_dim, v_head_dim, .. } = latent;
        let embed = self.architecture.embed;
        let down = |width: usize, name: &str| self.matrix(&[embed, width], &["embed", name], embed, 1.0);
        let up = |from: usize, name: &str, width: usize| {
            self.matrix(&[from, heads, width], &[name, "heads", "kv"], from, 1.0)
        };
        let (source, source_name) = if q_lora > 0 { (q_lora, "q_lora") } else { (embed, "embed") };
        LatentAttention {
            query: LatentQuery {
                wq_a: (q_lora > 0).then(|| down(q_lora, "q_lora")),
                q_norm: (q_lora > 0).then(|| self.norm_parameter(q_lora, latent.norm)),
                wq_b: up(source, source_name, nope_head_dim + rope_head_dim),
            },
            wkv_a: down(kv_lora, "kv_lora"),
            wk_rope: down(rope_head_dim, "kv"),
            kv_norm: self.norm_parameter(kv_lora, latent.norm),
            wkv_b: up(kv_lora, "kv_lora", nope_head_dim + v_head_dim),
            wo: self.output_matrix(heads, v_head_dim),
        }
    }

    fn dense(&self, hidden: usize) -> Mlp<Param> {
        let embed = self.architecture.embed;
        let up = || self.matrix(&[embed, hidden], &["embed", "mlp"], embed, 1.0);
        Mlp {
            gate: up(),
            up: up(),
            down: self.matrix(&[hidden, embed], &["mlp", "embed"], hidden, self.residual_gain()),
        }
    }

    fn experts(&self, routed: &MoeConfig) -> Moe<Param> {
        let (embed, experts, hidden) = (self.architecture.embed, routed.experts, routed.mlp);
        let of_experts = Some(MatrixDims { batch: 1, inputs: 1 });
        let up = || {
            let dims = [experts, embed, hidden];
            self.matrix(&dims, &["exp", "embed_no_exp_moe", "mlp"], embed, 1.0).with_matrix(of_experts)
        };
        let shared = routed.shared_experts * hidden;
        // In f32 whatever the type of parameters: it moves in small steps.
        let choice_bias = || {
            let bias = Param::new(DType::F32, [experts], &[""], Init::Constant(0.0));
            bias.with_decay(false).with_update(Update::AgainstSign)
        };
        let bias_of_inner = || self.bias(&[experts, hidden], &["exp", "mlp"]);
        Moe {
            router: self.matrix(&[embed, experts], &["embed", ""], embed, 1.0),
            gate: up(),
            up: up(),
            down: self
                .matrix(&[experts, hidden, embed], &["exp", "mlp", "embed_no_exp_moe"], hidden, self.residual_gain())
                .with_matrix(of_experts),
            router_bias: routed.router_bias.then(|| self.bias(&[experts], &[""])),
            choice_bias: routed.choice_bias.then(choice_bias),
            biases: routed.biases.then(|| ExpertBiases {
                gate: bias_of_inner(),
                up: bias_of_inner(),
                down: self.bias(&[experts, embed], &["exp", "embed_no_exp_moe"]),
            }),
            shared: (shared > 0).then(|| self.dense(shared)),
        }
    }
}
