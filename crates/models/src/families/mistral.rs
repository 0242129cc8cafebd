//! Mistral and Mixtral, arXiv 2310.06825 and 2401.04088: Llama with a window, and with routed experts.

use meshloom_nn::{Architecture, FeedForwardConfig, GroupedConfig, LayerConfig, MoeConfig, Scoring, Stack};

use super::common::{activation, experts};
use super::fields::Fields;
use super::keys::Key;
use super::qwen2::with_attention;
use super::{ExpertNames, Family, FamilyError, Names, llama};

pub(super) const MISTRAL: Family = Family { model_type: "mistral", keys: MISTRAL_KEYS, describe, names: Names::LLAMA };

pub(super) const MIXTRAL: Family = Family {
    model_type: "mixtral",
    keys: MIXTRAL_KEYS,
    describe: describe_routed,
    names: Names {
        router: "block_sparse_moe.gate",
        experts: ExpertNames::Each { within: "block_sparse_moe.experts", gate: "w1", up: "w3", down: "w2" },
        ..Names::LLAMA
    },
};

/// The keys of `MistralConfig`.
const MISTRAL_KEYS: &[Key] = &[
    Key::count("vocab_size", 32_000),
    Key::count("hidden_size", 4096),
    Key::count("intermediate_size", 14_336),
    Key::count("num_hidden_layers", 32),
    Key::count("num_attention_heads", 32),
    Key::count("num_key_value_heads", 8),
    Key::nothing("head_dim"),
    Key::text("hidden_act", "silu"),
    Key::count("max_position_embeddings", 4096 * 32),
    Key::number("rms_norm_eps", 1e-6),
    Key::number("rope_theta", 1e4),
    Key::flag("tie_word_embeddings", false),
    Key::count("sliding_window", 4096).or_null(),
];

/// The keys of `MixtralConfig`.
const MIXTRAL_KEYS: &[Key] = &[
    Key::count("vocab_size", 32_000),
    Key::count("hidden_size", 4096),
    Key::count("intermediate_size", 14_336),
    Key::count("num_hidden_layers", 32),
    Key::count("num_attention_heads", 32),
    Key::count("num_key_value_heads", 8),
    Key::nothing("head_dim"),
    Key::text("hidden_act", "silu"),
    Key::count("max_position_embeddings", 4096 * 32),
    Key::number("rms_norm_eps", 1e-5),
    Key::number("rope_theta", 1e6),
    Key::flag("tie_word_embeddings", false),
    Key::nothing("sliding_window"),
    Key::count("num_experts_per_tok", 2),
    Key::count("num_local_experts", 8),
];

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    llama::architecture(fields, Stack::uniform(layer(fields)?, fields.layer_count()?))
}

fn layer(fields: &Fields<'_>) -> Result<LayerConfig, FamilyError> {
    let window = fields.count_or_null("sliding_window")?;
    Ok(with_attention(&llama::layer(fields)?, |grouped| GroupedConfig { window, ..grouped }))
}

fn describe_routed(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let routed = MoeConfig {
        mlp: fields.count("intermediate_size")?,
        activation: activation(fields, "hidden_act")?,
        scoring: Scoring::Softmax,
        normalize_weights: true,
        ..experts(fields, fields.named("num_local_experts", "num_experts"))?
    };
    let layer = LayerConfig { feed_forward: FeedForwardConfig::Routed(routed), ..layer(fields)? };
    llama::architecture(fields, Stack::uniform(layer, fields.layer_count()?))
}
