//! Keys that a config sets, but that nothing reads beside its other keys.

use super::ModelFamily::{self, Deepseek, Llama, Mixtral};
use super::published::OF_SHAPE;
use super::{DilocoConfig, OptimizerKind, PartitionMode, PipelineConfig, PipelineRemat, RateSchedule, RunConfig};
use meshloom::hlo::PlatformKind;
use meshloom::ir::DType;
use meshloom::transform::diloco::Transport;
use meshloom::transform::pipeline::{Schedule, WeightPlan};

/// Keys of `[model]` that are not every family's, and the families that read them.
const OF_FAMILIES: [(&str, &[ModelFamily]); 13] = [
    ("mlp", &[Llama]),
    ("experts", &[Mixtral, Deepseek]),
    ("experts_per_token", &[Mixtral, Deepseek]),
    ("moe_mlp", &[Mixtral, Deepseek]),
    ("load_balance_weight", &[Mixtral, Deepseek]),
    ("expert_capacity", &[Mixtral, Deepseek]),
    ("shared_experts", &[Deepseek]),
    ("routed_scaling_factor", &[Deepseek]),
    ("q_lora", &[Deepseek]),
    ("kv_lora", &[Deepseek]),
    ("rope_head_dim", &[Deepseek]),
    ("v_head_dim", &[Deepseek]),
    ("kv_heads", &[Llama, Mixtral]),
];

/// Keys of `[model]` that are read wherever there are routed experts.
const OF_EXPERTS: [&str; 2] = ["load_balance_weight", "expert_capacity"];

/// Keys of `[diloco]` that only streaming reads.
const OF_STREAMING: [&str; 5] =
    ["fragments", "sequential_layers", "overlap_steps", "overlap_alpha", "uneven_fragments"];

impl RunConfig {
    /// A line for each key that is not as by default and has no effect. `has_validation` says of another model's own
    /// dataset what `data.validation` does not.
    pub(crate) fn unused_keys(&self, has_validation: bool) -> Vec<String> {
        let is = |key: &str, value: &str| format!("{key} is {value:?}");
        let mut unused: Vec<(&str, &str, String)> = match self.published_by() {
            Some(why) => {
                let of_shape = OF_SHAPE.iter().map(|&key| ("model", key, why.clone()));
                let of_experts = OF_EXPERTS.iter().map(|&key| ("model", key, why.clone()));
                let without_experts = !self.has_experts();
                of_shape.chain(of_experts.filter(|_| without_experts)).collect()
            }
            None => {
                let families = OF_FAMILIES.iter().filter(|(_, families)| !families.contains(&self.model.family));
                families.map(|&(key, _)| ("model", key, is("model.family", self.model.family.name()))).collect()
            }
        };
        let kind = || self.published_by().unwrap_or_else(|| is("model.family", self.model.family.name()));
        let optimizer = self.train.optimizer;
        if optimizer == OptimizerKind::AdamW {
            unused.extend(
                ["muon_momentum", "muon_rms"].map(|key| ("train", key, is("train.optimizer", optimizer.name()))),
            );
        }
        if !self.has_choice_bias() {
            unused.push(("train", "choice_bias_rate", format!("{}, without biases of choices", kind())));
        }
        if self.model.param_dtype.byte_count() >= DType::F32.byte_count() {
            unused.push(("train", "master_copies", is("model.param_dtype", self.model.param_dtype.name())));
        }
        if let Some(DilocoConfig { streaming, transport, apart, .. }) = &self.diloco {
            if !streaming {
                unused.extend(OF_STREAMING.map(|key| ("diloco", key, "diloco.streaming is false".to_owned())));
            }
            if *apart {
                unused.push(("diloco", "check_replicas", "diloco.apart is true".to_owned()));
            } else {
                let apart = "diloco.apart is false".to_owned();
                unused.extend(["min_replicas", "max_norm"].map(|key| ("diloco", key, apart.clone())));
            }
            if matches!(transport, Transport::F32 | Transport::Bf16) {
                unused.push(("diloco", "block", is("diloco.transport", transport.name())));
            }
        }
        if let Some(PipelineConfig { weights: WeightPlan::PerIteration, .. }) = &self.pipeline {
            unused.push(("pipeline", "keep_gathered", is("pipeline.weights", WeightPlan::PerIteration.name())));
        }
        if let Some(pipeline) = self.pipeline.as_ref().filter(|pipeline| pipeline.schedule.branches()) {
            let key = is("pipeline.schedule", pipeline.schedule.name());
            unused.push(("kernels", "context", format!("{key}: layers in its branches gather keys")));
        }
        if let Some(PipelineConfig { schedule, .. }) = &self.pipeline
            && matches!(schedule, Schedule::Gpipe | Schedule::Circular | Schedule::OneForwardOneBackward)
        {
            unused.push(("pipeline", "costs", is("pipeline.schedule", schedule.name())));
        }
        if let Some(remat) = self.own_remat_of_all_layers() {
            unused.extend(["policy", "names"].map(|key| ("remat", key, is("pipeline.remat", remat.name()))));
        }
        if self.train.schedule == RateSchedule::Constant {
            unused.push(("train", "floor", is("train.schedule", RateSchedule::Constant.name())));
        }
        if self.train.weight_decay == 0.0 {
            unused.push(("train", "no_decay", "train.weight_decay is 0".to_owned()));
        }
        if !has_validation {
            unused.extend(
                [("train", "eval_batches"), ("checkpoint", "keep_best")]
                    .map(|(section, key)| (section, key, "there is no validation set".to_owned())),
            );
        }
        if self.checkpoint.dir.is_empty() {
            unused.extend(["keep", "keep_best"].map(|key| ("checkpoint", key, is("checkpoint.dir", ""))));
        }
        let data = &self.data;
        if data.sources.iter().chain(&data.validation).all(|source| is_plain_text(source)) {
            let why = "no name in data.sources and data.validation is one of JSON Lines";
            unused.push(("data", "field", why.to_owned()));
            // Bytes may be any; a tokenizer's text must be UTF-8.
            if data.tokenizer == "bytes" {
                unused.push(("data", "bad_lines", format!("{why} and {}", is("data.tokenizer", "bytes"))));
            }
        }
        if self.partition.mode != PartitionMode::Explicit {
            unused.push(("partition", "replication", is("partition.mode", self.partition.mode.name())));
        }
        if self.partition.mode != PartitionMode::Explicit {
            let why = || format!("{}: XLA partitions plain forms", is("partition.mode", self.partition.mode.name()));
            unused.extend(["attention", "experts", "collective_matmul"].map(|key| ("kernels", key, why())));
        } else if !self.has_experts() {
            unused.push(("kernels", "experts", kind()));
        }
        if !self.has_experts() {
            unused.push(("kernels", "experts_exchange", kind()));
        }
        if self.has_latent_attention() {
            unused.push(("kernels", "context", kind()));
        }
        if let Some(why) = self.rows_are_whole() {
            unused.push(("kernels", "context_order", why.clone()));
            if !self.has_latent_attention() {
                unused.push(("kernels", "context", why));
            }
        }
        if self.kernels.attention == super::AttentionChoice::Mosaic && self.model.attention_dropout > 0.0 {
            let rate = self.model.attention_dropout;
            let why =
                format!("its kernels drop no weights and model.attention_dropout is {rate}: attention is blockwise");
            unused.push(("kernels", "attention", why));
        }
        let platform = self.target.platform;
        // With `auto`, they are for the case that it is the CPU.
        if platform.kind().is_some_and(|kind| kind != PlatformKind::Cpu)
            && platform == self.origin.target.platform
            && self.target.topology.is_empty()
        {
            unused.push(("target", "devices", is("target.platform", platform.name())));
        }
        // As it was written, not as the devices have settled it since.
        let sections = RunConfig { target: self.origin.target.clone(), ..self.clone() }.describe();
        let changed = |section: &str, name: &str| {
            let key = sections.iter().find(|info| info.name == section)?.keys.iter().find(|key| key.name == name)?;
            key.value.clone().filter(|value| key.default.as_ref() != Some(value))
        };
        let line = |(section, key, why): (&str, &str, String)| {
            changed(section, key).map(|value| format!("{section}.{key} = {value} has no effect, because {why}"))
        };
        unused.into_iter().filter_map(line).collect()
    }

    /// The policy of a pipeline's own, if no layer runs outside of the pipeline.
    fn own_remat_of_all_layers(&self) -> Option<&PipelineRemat> {
        let PipelineConfig { layers, remat, .. } = self.pipeline.as_ref()?;
        let stack = self.stack();
        let in_cycles = stack.cycle.len() * stack.cycles;
        let are_all = (*layers == 0 || *layers == in_cycles) && stack.prefix.is_empty() && stack.suffix.is_empty();
        (are_all && !self.predicts_further() && *remat != PipelineRemat::Same).then_some(remat)
    }

    /// Returns a warning if the warm-up leaves no step after it.
    pub(crate) fn endless_warmup(&self) -> Option<String> {
        let (warmup, steps) = (self.train.warmup, self.train.steps);
        let percent = 100.0 * steps as f64 / warmup as f64;
        (warmup >= steps).then(|| {
            format!(
                "train.warmup is {warmup}, but train.steps is {steps}: the learning rate rises until the last step, to \
                 {percent:.0} % of train.learning_rate"
            )
        })
    }
}

/// Returns whether files of this name, or files that match it as a glob, are text and not JSON Lines. The contents of a
/// folder are not known.
fn is_plain_text(source: &str) -> bool {
    let name = source.to_ascii_lowercase();
    let name = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    name.ends_with(".txt") || name.ends_with(".md")
}
