//! Qwen2 and Qwen2.5, arXiv 2407.10671: Llama with biases of queries, keys and values, and windows in later layers.

use meshloom::nn::{Architecture, AttentionConfig, GroupedConfig, LayerConfig, Stack};

use super::common::sliding_layers;
use super::fields::Fields;
use super::{Family, FamilyError, Names, llama};

pub(super) const QWEN2: Family = Family { model_type: "qwen2", describe, names: Names::LLAMA };

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let layer = llama::layer(fields)?;
    let biased = |grouped: GroupedConfig| GroupedConfig { bias: true, ..grouped };
    llama::architecture(fields, Stack::of_layers(&windowed(fields, &with_attention(&layer, biased))?), false)
}

/// The layer with its attention changed.
pub(super) fn with_attention(layer: &LayerConfig, change: impl Fn(GroupedConfig) -> GroupedConfig) -> LayerConfig {
    let attention = match &layer.attention {
        AttentionConfig::Grouped(grouped) => AttentionConfig::Grouped(change(grouped.clone())),
        latent => latent.clone(),
    };
    LayerConfig { attention, ..layer.clone() }
}

/// The layers of Qwen's dense models: those from `max_window_layers` on have a window, if windows are used at all.
pub(super) fn windowed(fields: &Fields<'_>, layer: &LayerConfig) -> Result<Vec<LayerConfig>, FamilyError> {
    let window = fields.count("sliding_window")?;
    let window = if fields.flag("use_sliding_window", false)? { window } else { None };
    let first = fields.number_of("max_window_layers")?.unwrap_or(28);
    let sliding = sliding_layers(fields, |number| window.is_some() && number >= first)?;
    let of_layer = |slides: bool| {
        let window = if slides { window } else { None };
        with_attention(layer, |grouped| GroupedConfig { window, ..grouped })
    };
    Ok(sliding.into_iter().map(of_layer).collect())
}
