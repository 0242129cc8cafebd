//! Llama 2 and 3.x, arXiv 2307.09288 and 2407.21783, and the families that change it: Mistral and Mixtral, arXiv
//! 2310.06825 and 2401.04088, have a window, or routed experts; Qwen2 and Qwen2.5, arXiv 2407.10671, have biases of
//! queries, keys and values, and windows in later layers; Qwen3, dense and with routed experts, arXiv 2505.09388, has
//! norms of queries and keys.

use meshloom_nn::{Architecture, FeedForwardConfig, GroupedConfig, LayerConfig, MoeConfig, RmsNorm, Scoring, Stack};

use super::common::{activation, epsilon, experts, grouped, head_dim, heads_divide_width, rope, windows};
use super::fields::Fields;
use super::keys::{Key, Shared};
use super::{ExpertNames, Family, FamilyError, LayerNames};

const ACTIVATION: Key = Key::text("hidden_act", "silu");

pub(super) const LLAMA: Family = Family {
    model_type: "llama",
    shared: Shared::new([32_000, 4096, 11_008, 32, 32, 2048], 1e-6, 1e4, false),
    keys: &[ACTIVATION, Key::flag("attention_bias", false), Key::flag("mlp_bias", false)],
    describe: |fields| {
        heads_divide_width(fields)?;
        fields.refuse_flag("attention_bias")?;
        fields.refuse_flag("mlp_bias")?;
        architecture(fields, Stack::uniform(layer(fields, |grouped| grouped)?, fields.layer_count()?))
    },
    names: LayerNames::LLAMA,
};

pub(super) const MISTRAL: Family = Family {
    model_type: "mistral",
    shared: Shared::new([32_000, 4096, 14_336, 32, 32, 4096 * 32], 1e-6, 1e4, false),
    keys: &[ACTIVATION, Key::count("num_key_value_heads", 8), Key::count("sliding_window", 4096).or_null()],
    describe: |fields| architecture(fields, Stack::uniform(mistral(fields)?, fields.layer_count()?)),
    names: LayerNames::LLAMA,
};

pub(super) const MIXTRAL: Family = Family {
    model_type: "mixtral",
    shared: Shared::new([32_000, 4096, 14_336, 32, 32, 4096 * 32], 1e-5, 1e6, false),
    keys: &[
        ACTIVATION,
        Key::count("num_key_value_heads", 8),
        Key::count("num_experts_per_tok", 2),
        Key::count("num_local_experts", 8),
    ],
    describe: |fields| {
        let routed = MoeConfig {
            mlp: fields.count("intermediate_size")?,
            activation: activation(fields, "hidden_act")?,
            scoring: Scoring::Softmax,
            normalize_weights: true,
            ..experts(fields, fields.named("num_local_experts", "num_experts"))?
        };
        let layer = LayerConfig { feed_forward: FeedForwardConfig::Routed(routed), ..mistral(fields)? };
        architecture(fields, Stack::uniform(layer, fields.layer_count()?))
    },
    names: LayerNames {
        router: "block_sparse_moe.gate",
        experts: ExpertNames::Each { within: "block_sparse_moe.experts", gate: "w1", up: "w3", down: "w2" },
        ..LayerNames::LLAMA
    },
};

pub(super) const QWEN2: Family = Family {
    model_type: "qwen2",
    shared: Shared::new([151_936, 4096, 22_016, 32, 32, 32_768], 1e-6, 1e4, false),
    keys: &[
        ACTIVATION,
        Key::count("num_key_value_heads", 32).or_null(),
        Key::flag("use_sliding_window", false),
        Key::count("sliding_window", 4096).or_null(),
        Key::count("max_window_layers", 28),
    ],
    describe: |fields| windowed(fields, |grouped| GroupedConfig { bias: true, ..grouped }),
    names: LayerNames::LLAMA,
};

pub(super) const QWEN3: Family = Family {
    model_type: "qwen3",
    shared: Shared::new([151_936, 4096, 22_016, 32, 32, 32_768], 1e-6, 1e4, false),
    keys: &[
        ACTIVATION,
        Key::count("num_key_value_heads", 32).or_null(),
        Key::count("head_dim", 128),
        Key::flag("attention_bias", false),
        Key::flag("use_sliding_window", false),
        Key::count("sliding_window", 4096).or_null(),
        Key::count("max_window_layers", 28),
    ],
    describe: |fields| {
        let norm = head_norm(fields)?;
        windowed(fields, |grouped| GroupedConfig { head_norms: Some(norm), ..grouped })
    },
    names: LayerNames::LLAMA,
};

pub(super) const QWEN3_MOE: Family = Family {
    model_type: "qwen3_moe",
    shared: Shared::new([151_936, 2048, 6144, 24, 32, 32_768], 1e-6, 1e4, false),
    keys: &[
        ACTIVATION,
        Key::count("num_key_value_heads", 4),
        Key::flag("attention_bias", false),
        Key::flag("use_sliding_window", false),
        Key::count("sliding_window", 4096).or_null(),
        Key::count("decoder_sparse_step", 1),
        Key::count("moe_intermediate_size", 768),
        Key::count("num_experts_per_tok", 8),
        Key::count("num_experts", 128),
        Key::flag("norm_topk_prob", false),
    ],
    describe: qwen3_moe,
    names: LayerNames { router: "mlp.gate", ..LayerNames::LLAMA },
};

/// A layer of Llama with its attention changed.
fn layer(fields: &Fields<'_>, change: impl Fn(GroupedConfig) -> GroupedConfig) -> Result<LayerConfig, FamilyError> {
    let attention = change(grouped(fields, rope(fields, head_dim(fields)?)?)?);
    let activation = activation(fields, "hidden_act")?;
    let mlp = fields.count("intermediate_size")?;
    let layer = LayerConfig::llama(attention, mlp, epsilon(fields)?);
    Ok(LayerConfig { feed_forward: FeedForwardConfig::Dense { mlp, activation }, ..layer })
}

/// Returns the architecture with the embedding and the head that surround the layers of most families.
pub(super) fn architecture(fields: &Fields<'_>, stack: Stack) -> Result<Architecture, FamilyError> {
    let (embed, vocab) = (fields.count("hidden_size")?, fields.count("vocab_size")?);
    Ok(Architecture {
        tied_embeddings: fields.flag("tie_word_embeddings")?,
        ..Architecture::llama(embed, vocab, stack, epsilon(fields)?)
    })
}

fn mistral(fields: &Fields<'_>) -> Result<LayerConfig, FamilyError> {
    let window = fields.count_or_null("sliding_window")?;
    layer(fields, |grouped| GroupedConfig { window, ..grouped })
}

/// The norm of Qwen3's queries and keys.
fn head_norm(fields: &Fields<'_>) -> Result<RmsNorm, FamilyError> {
    fields.refuse_flag("attention_bias")?;
    Ok(RmsNorm::llama(epsilon(fields)?))
}

/// The window of Qwen's layers, if windows are used.
fn window(fields: &Fields<'_>) -> Result<Option<usize>, FamilyError> {
    let window = fields.count_or_null("sliding_window")?;
    Ok(if fields.flag("use_sliding_window")? { window } else { None })
}

/// Qwen's dense models: the layers from `max_window_layers` on have a window, if windows are used at all.
fn windowed(fields: &Fields<'_>, change: impl Fn(GroupedConfig) -> GroupedConfig) -> Result<Architecture, FamilyError> {
    let (window, first) = (window(fields)?, fields.number_of("max_window_layers")?);
    let windows = windows(fields, window, |number| window.is_some() && number >= first)?;
    let of_layer = |window| layer(fields, |grouped| change(GroupedConfig { window, ..grouped }));
    let layers: Vec<LayerConfig> = windows.into_iter().map(of_layer).collect::<Result<_, _>>()?;
    architecture(fields, Stack::of_layers(&layers))
}

fn qwen3_moe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    // Here all layers have the window, if windows are used.
    let (window, norm) = (window(fields)?, head_norm(fields)?);
    let dense = layer(fields, |grouped| GroupedConfig { window, head_norms: Some(norm), ..grouped })?;
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
    architecture(fields, Stack::of_layers(&layers))
}
