//! Qwen3, dense and with routed experts, arXiv 2505.09388: Llama with norms of queries and keys.

use meshloom::nn::{Architecture, FeedForwardConfig, GroupedConfig, LayerConfig, MoeConfig, RmsNorm, Scoring, Stack};

use super::common::epsilon;
use super::fields::Fields;
use super::qwen2::{windowed, with_attention};
use super::{Family, FamilyError, Names, llama};

pub(super) const QWEN3: Family = Family { model_type: "qwen3", describe, names: Names::LLAMA };

pub(super) const QWEN3_MOE: Family =
    Family { model_type: "qwen3_moe", describe: describe_routed, names: Names { router: "mlp.gate", ..Names::LLAMA } };

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let layers = windowed(fields, &layer(fields)?)?;
    llama::architecture(fields, Stack::of_layers(&layers), false)
}

fn layer(fields: &Fields<'_>) -> Result<LayerConfig, FamilyError> {
    fields.refuse_flag("attention_bias")?;
    let norm = RmsNorm::llama(epsilon(fields)?);
    let layer = llama::layer(fields)?;
    Ok(with_attention(&layer, |grouped| GroupedConfig { head_norms: Some(norm), ..grouped }))
}

fn describe_routed(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    // Here all layers have the window, if windows are used.
    let window = fields.count("sliding_window")?;
    let window = if fields.flag("use_sliding_window", false)? { window } else { None };
    fields.number_of("max_window_layers")?;
    let dense = with_attention(&layer(fields)?, |grouped| GroupedConfig { window, ..grouped });
    let routed = MoeConfig {
        // transformers 5 writes the second name.
        experts: match fields.count("num_experts")? {
            Some(count) => count,
            None => fields.needed_count("num_local_experts")?,
        },
        experts_per_token: fields.needed_count("num_experts_per_tok")?,
        mlp: fields.needed_count("moe_intermediate_size")?,
        scoring: Scoring::Softmax,
        normalize_weights: fields.flag("norm_topk_prob", false)?,
        ..MoeConfig::default()
    };
    let routed = LayerConfig { feed_forward: FeedForwardConfig::Routed(routed), ..dense.clone() };
    let (step, without) = (fields.count("decoder_sparse_step")?.unwrap_or(1), fields.numbers("mlp_only_layers")?);
    let of_layer = |number: usize| {
        let is_routed = !without.contains(&number) && (number + 1).is_multiple_of(step);
        if is_routed { routed.clone() } else { dense.clone() }
    };
    let layers: Vec<LayerConfig> = (0..fields.layer_count()?).map(of_layer).collect();
    llama::architecture(fields, Stack::of_layers(&layers), false)
}
