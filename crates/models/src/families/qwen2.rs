//! Qwen2 and Qwen2.5, arXiv 2407.10671: Llama with biases of queries, keys and values, and windows in later layers.

use meshloom_nn::{Architecture, AttentionConfig, GroupedConfig, LayerConfig, Stack};

use super::common::windows;
use super::fields::Fields;
use super::keys::Key;
use super::{Family, FamilyError, Names, llama};

pub(super) const QWEN2: Family = Family { model_type: "qwen2", keys: KEYS, describe, names: Names::LLAMA };

/// The keys of `Qwen2Config`.
const KEYS: &[Key] = &[
    Key::count("vocab_size", 151_936),
    Key::count("hidden_size", 4096),
    Key::count("intermediate_size", 22_016),
    Key::count("num_hidden_layers", 32),
    Key::count("num_attention_heads", 32),
    Key::count("num_key_value_heads", 32).or_null(),
    Key::nothing("head_dim"),
    Key::text("hidden_act", "silu"),
    Key::count("max_position_embeddings", 32_768),
    Key::number("rms_norm_eps", 1e-6),
    Key::number("rope_theta", 1e4),
    Key::flag("tie_word_embeddings", false),
    Key::flag("use_sliding_window", false),
    Key::count("sliding_window", 4096).or_null(),
    Key::count("max_window_layers", 28),
    Key::nothing("layer_types"),
];

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let layer = llama::layer(fields)?;
    let biased = |grouped: GroupedConfig| GroupedConfig { bias: true, ..grouped };
    llama::architecture(fields, Stack::of_layers(&windowed(fields, &with_attention(&layer, biased))?))
}

/// The layer with its attention changed.
pub(super) fn with_attention(layer: &LayerConfig, change: impl Fn(GroupedConfig) -> GroupedConfig) -> LayerConfig {
    let attention = match &layer.attention {
        AttentionConfig::Grouped(grouped) => AttentionConfig::Grouped(change(grouped.clone())),
        latent => latent.clone(),
    };
    LayerConfig { attention, ..layer.clone() }
}

/// The window of Qwen's layers, if windows are used.
pub(super) fn window(fields: &Fields<'_>) -> Result<Option<usize>, FamilyError> {
    let window = fields.count_or_null("sliding_window")?;
    Ok(if fields.flag("use_sliding_window")? { window } else { None })
}

/// The layers of Qwen's dense models: those from `max_window_layers` on have a window, if windows are used at all.
pub(super) fn windowed(fields: &Fields<'_>, layer: &LayerConfig) -> Result<Vec<LayerConfig>, FamilyError> {
    let (window, first) = (window(fields)?, fields.number_of("max_window_layers")?);
    let windows = windows(fields, window, |number| window.is_some() && number >= first)?;
    let of_layer = |window| with_attention(layer, |grouped| GroupedConfig { window, ..grouped });
    Ok(windows.into_iter().map(of_layer).collect())
}
