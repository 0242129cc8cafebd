//! Keys that a config sets, but that nothing reads beside its other keys.

use super::ModelFamily::{self, Deepseek, Llama, Mixtral};
use super::{DilocoConfig, OptimizerKind, PipelineConfig, RunConfig};
use meshloom::ir::DType;
use meshloom::transform::diloco::Transport;
use meshloom::transform::pipeline::WeightPlan;

/// Keys of `[model]` that are not every family's, and the families that read them.
const OF_FAMILIES: [(&str, &[ModelFamily]); 12] = [
    ("mlp", &[Llama]),
    ("experts", &[Mixtral, Deepseek]),
    ("experts_per_token", &[Mixtral, Deepseek]),
    ("moe_mlp", &[Mixtral, Deepseek]),
    ("load_balance_weight", &[Mixtral, Deepseek]),
    ("shared_experts", &[Deepseek]),
    ("routed_scaling_factor", &[Deepseek]),
    ("q_lora", &[Deepseek]),
    ("kv_lora", &[Deepseek]),
    ("rope_head_dim", &[Deepseek]),
    ("v_head_dim", &[Deepseek]),
    ("kv_heads", &[Llama, Mixtral]),
];

/// Keys of `[diloco]` that only streaming reads.
const OF_STREAMING: [&str; 5] =
    ["fragments", "sequential_layers", "overlap_steps", "overlap_alpha", "uneven_fragments"];

impl RunConfig {
    /// A line for each key that is not as by default and has no effect.
    pub(crate) fn unused_keys(&self) -> Vec<String> {
        let is = |key: &str, value: &str| format!("{key} is {value:?}");
        let families = OF_FAMILIES.iter().filter(|(_, families)| !families.contains(&self.model.family));
        let mut unused: Vec<(&str, &str, String)> =
            families.map(|&(key, _)| ("model", key, is("model.family", self.model.family.name()))).collect();
        let optimizer = self.train.optimizer;
        if optimizer == OptimizerKind::AdamW {
            unused.extend(
                ["muon_momentum", "muon_rms"].map(|key| ("train", key, is("train.optimizer", optimizer.name()))),
            );
        }
        if self.model.param_dtype.byte_count() >= DType::F32.byte_count() {
            unused.push(("train", "master_copies", is("model.param_dtype", self.model.param_dtype.name())));
        }
        if let Some(DilocoConfig { streaming, transport, .. }) = &self.diloco {
            if !streaming {
                unused.extend(OF_STREAMING.map(|key| ("diloco", key, "diloco.streaming is false".to_owned())));
            }
            if matches!(transport, Transport::F32 | Transport::Bf16) {
                unused.push(("diloco", "block", is("diloco.transport", transport.name())));
            }
        }
        if let Some(PipelineConfig { weights: WeightPlan::PerIteration, .. }) = &self.pipeline {
            unused.push(("pipeline", "keep_gathered", is("pipeline.weights", WeightPlan::PerIteration.name())));
        }
        let sections = self.describe();
        let changed = |section: &str, name: &str| {
            let key = sections.iter().find(|info| info.name == section)?.keys.iter().find(|key| key.name == name)?;
            key.value.clone().filter(|value| key.default.as_ref() != Some(value))
        };
        let line = |(section, key, why): (&str, &str, String)| {
            changed(section, key).map(|value| format!("{section}.{key} = {value} has no effect, because {why}"))
        };
        unused.into_iter().filter_map(line).collect()
    }
}
