//! Rules that work out of the box.

use super::{Role, Rule};
use crate::sharding::ShardingError;
use meshloom_hlo::suggest::did_you_mean;

/// A rule of a preset: a logical name and the mesh axes it is split over, major to minor.
pub type PresetRule = (&'static str, &'static [&'static str]);

/// The names of the presets, each with its purpose.
pub const PRESETS: &[(&str, &str)] = &[
    (
        "decoder",
        "any of the axes diloco, replica, data, stage, fsdp, expert, context and tensor, with sequence-parallel norms over tensor",
    ),
    ("decoder-all-reduce", "as decoder, but with the residual stream whole on every device of tensor"),
];

/// The mesh axes that presets know. An axis that a mesh lacks counts as of size 1.
const AXES: &[&str] = &["diloco", "replica", "data", "stage", "fsdp", "expert", "context", "tensor"];

/// The `decoder` preset.
///
/// - `diloco` splits the replicas of DiLoCo (`src/transform/diloco`).
/// - `replica` splits the batch, and optimizer state where `fsdp` does: as the minor part, so that a gradient that is
///   added up over `replica` is scattered where it stands. Parameters are whole along it.
/// - `data` splits the batch.
/// - `fsdp` splits the batch, and the width of every matrix: weights are gathered where they are used.
/// - `tensor` splits heads, mlp and vocabulary of weights and activations (Shoeybi et al., "Megatron-LM", arXiv
///   1909.08053), and the residual stream along the sequence (Korthikanti et al., "Reducing Activation Recomputation in
///   Large Transformer Models", arXiv 2205.05198).
/// - `context` splits activations along the sequence; keys and values are gathered for attention.
/// - `expert` splits experts; in a dense model it does what `fsdp` does.
/// - `stage` splits stacked layers into the stages of a pipeline. Around the pipeline it splits the batch, before all
///   other axes, as pipelines want it (`src/transform/pipeline`).
pub const DECODER_RULES: &[PresetRule] = &[
    ("diloco", &["diloco"]),
    ("activation_stage", &["stage"]),
    ("activation_batch", &["replica", "data", "fsdp", "expert"]),
    ("activation_embed_and_logits_batch", &["stage", "replica", "data", "fsdp", "expert"]),
    ("activation_length", &["context"]),
    ("activation_kv_length", &[]),
    // A pipeline's loss, microbatch by microbatch.
    ("activation_logits_length", &["context", "stage"]),
    ("activation_norm_length", &["context", "tensor"]),
    ("activation_embed", &[]),
    ("activation_heads", &["tensor"]),
    ("activation_kv_heads", &["tensor"]),
    ("activation_kv", &[]),
    ("activation_mlp", &["tensor"]),
    ("activation_vocab", &["tensor"]),
    ("activation_exp", &["expert"]),
    // Where routed experts work, the tokens of all devices along `expert` come together.
    ("activation_batch_no_exp_moe", &["replica", "data", "fsdp"]),
    ("activation_norm_length_moe", &["context"]),
    ("activation_embed_moe", &[]),
    ("exp", &["expert"]),
    ("embed_no_exp_moe", &["fsdp"]),
    ("embed", &["fsdp", "expert"]),
    // The compressed widths of latent attention: where the other dimension of a matrix has the axes already, it is
    // whole.
    ("q_lora", &["fsdp", "expert"]),
    ("q_lora", &[]),
    ("kv_lora", &["fsdp", "expert"]),
    ("kv_lora", &[]),
    // The weights of experts have `expert` on another dimension.
    ("embed", &["fsdp"]),
    ("heads", &["tensor"]),
    ("kv_heads", &["tensor"]),
    ("kv", &[]),
    ("mlp", &["tensor"]),
    ("vocab", &["tensor"]),
    ("norm", &[]),
    // Stacked layers, while an optimizer needs their matrices whole.
    ("matrices", &["stage", "fsdp", "expert", "replica", "tensor"]),
    // The matrices of experts are split over `expert` already.
    ("matrices", &["stage", "fsdp", "replica", "tensor"]),
    ("layers", &["stage"]),
    ("layers_per_stage", &[]),
    ("circular_repeats", &[]),
];

/// The rules that `decoder-all-reduce` has before [`DECODER_RULES`].
const ALL_REDUCE: &[PresetRule] = &[("activation_norm_length", &["context"])];

/// The axis that splits optimizer state further than parameters, and the names that it does not split where they are
/// parameters.
const REPLICA: &str = "replica";
const WIDTHS: &[&str] = &["embed_no_exp_moe", "embed", "q_lora", "kv_lora", "norm"];

/// The rules of a preset for a role, and the mesh axes that it knows.
pub(super) fn preset(name: &str, role: Role) -> Result<(Vec<Rule>, Vec<String>), ShardingError> {
    let names = || PRESETS.iter().map(|(name, _)| *name);
    let Some(name) = names().find(|known| *known == name) else {
        let suggestion = did_you_mean(name, names());
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(ShardingError::UnknownPreset { name: name.to_owned(), suggestion, known });
    };
    let first = if name == "decoder-all-reduce" { ALL_REDUCE } else { &[] };
    let rule = |&(logical, axes): &PresetRule| {
        // A rule of a width without axes applies where the other axes of the width are taken: then `replica` is taken
        // too.
        let is_split_further =
            role == Role::Optimizer && WIDTHS.contains(&logical) && (!axes.is_empty() || logical == "norm");
        let further = is_split_further.then_some(&REPLICA);
        Rule {
            name: logical.to_owned(),
            axes: axes.iter().chain(further).map(|&axis| axis.to_owned()).collect(),
            origin: format!("preset {name}"),
            published: true,
        }
    };
    let rules = first.iter().chain(DECODER_RULES).map(rule).collect();
    Ok((rules, AXES.iter().map(|&axis| axis.to_owned()).collect()))
}
