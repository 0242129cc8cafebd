//! Qwen3, dense and with routed experts, arXiv 2505.09388: Llama with norms of queries and keys.

use meshloom_nn::{Architecture, FeedForwardConfig, GroupedConfig, LayerConfig, MoeConfig, RmsNorm, Scoring, Stack};

use super::common::{activation, epsilon, experts};
use super::fields::Fields;
use super::keys::Key;
use super::qwen2::{window, windowed, with_attention};
use super::{Family, FamilyError, Names, llama};

pub(super) const QWEN3: Family = Family { model_type: "qwen3", keys: KEYS, describe, names: Names::LLAMA };

pub(super) const QWEN3_MOE: Family = Family {
    model_type: "qwen3_moe",
    keys: MOE_KEYS,
    describe: describe_routed,
    names: Names { router: "mlp.gate", ..Names::LLAMA },
};

/// The keys of `Qwen3Config`.
const KEYS: &[Key] = &[
    Key::count("vocab_size", 151_936),
    Key::count("hidden_size", 4096),
    Key::count("intermediate_size", 22_016),
    Key::count("num_hidden_layers", 32),
    Key::count("num_attention_heads", 32),
    Key::count("num_key_value_heads", 32).or_null(),
    Key::count("head_dim", 128),
    Key::text("hidden_act", "silu"),
    Key::count("max_position_embeddings", 32_768),
    Key::number("rms_norm_eps", 1e-6),
    Key::number("rope_theta", 1e4),
    Key::flag("tie_word_embeddings", false),
    Key::flag("attention_bias", false),
    Key::flag("use_sliding_window", false),
    Key::count("sliding_window", 4096).or_null(),
    Key::count("max_window_layers", 28),
    Key::nothing("layer_types"),
];

/// The keys of `Qwen3MoeConfig`, and `head_dim`, which that class lacks and published files have.
const MOE_KEYS: &[Key] = &[
    Key::count("vocab_size", 151_936),
    Key::count("hidden_size", 2048),
    Key::count("intermediate_size", 6144),
    Key::count("num_hidden_layers", 24),
    Key::count("num_attention_heads", 32),
    Key::count("num_key_value_heads", 4),
    Key::nothing("head_dim"),
    Key::text("hidden_act", "silu"),
    Key::count("max_position_embeddings", 32_768),
    Key::number("rms_norm_eps", 1e-6),
    Key::number("rope_theta", 1e4),
    Key::flag("tie_word_embeddings", false),
    Key::flag("attention_bias", false),
    Key::flag("use_sliding_window", false),
    Key::count("sliding_window", 4096).or_null(),
    Key::count("decoder_sparse_step", 1),
    Key::count("moe_intermediate_size", 768),
    Key::count("num_experts_per_tok", 8),
    Key::count("num_experts", 128),
    Key::flag("norm_topk_prob", false),
    Key::nothing("mlp_only_layers"),
];

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    llama::architecture(fields, Stack::of_layers(&windowed(fields, &layer(fields)?)?))
}

fn layer(fields: &Fields<'_>) -> Result<LayerConfig, FamilyError> {
    fields.refuse_flag("attention_bias")?;
    let norm = RmsNorm::llama(epsilon(fields)?);
    let layer = llama::layer(fields)?;
    Ok(with_attention(&layer, |grouped| GroupedConfig { head_norms: Some(norm), ..grouped }))
}

fn describe_routed(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    // Here all layers have the window, if windows are used.
    let window = window(fields)?;
    let dense = with_attention(&layer(fields)?, |grouped| GroupedConfig { window, ..grouped });
    let routed = MoeConfig {
        mlp: fields.count("moe_intermediate_size")?,
        activation: activation(fields, "hidden_act")?,
        scoring: Scoring::Softmax,
        normalize_weights: fields.flag("norm_topk_prob")?,
        // transformers 5 writes the second name.
        ..experts(fields, fields.named("num_experts", "num_local_experts"))?
    };
    let routed = LayerConfig { feed_forward: FeedForwardConfig::Routed(routed), ..dense.clone() };
    let (step, without) = (fields.count("decoder_sparse_step")?, fields.numbers("mlp_only_layers")?);
    let of_layer = |number: usize| {
        let is_routed = !without.contains(&number) && (number + 1).is_multiple_of(step);
        if is_routed { routed.clone() } else { dense.clone() }
    };
    let layers: Vec<LayerConfig> = (0..fields.layer_count()?).map(of_layer).collect();
    llama::architecture(fields, Stack::of_layers(&layers))
}
