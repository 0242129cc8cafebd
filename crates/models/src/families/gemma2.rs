//! Gemma 2, arXiv 2408.00118: norms before and behind each block, capped scores and logits, every other layer slides.

use meshloom_nn::{Architecture, AttentionConfig, FeedForwardConfig, GroupedConfig, LayerConfig, RmsNorm, Rope, Stack};

use super::common::{activation, epsilon, grouped, head_dim, heads_divide_width, rope, windows};
use super::fields::Fields;
use super::keys::Key;
use super::{Family, FamilyError, Names, llama};

pub(super) const GEMMA2: Family = Family { model_type: "gemma2", keys: KEYS, describe, names: Names::GEMMA };

/// The keys of `Gemma2Config`.
const KEYS: &[Key] = &[
    Key::count("vocab_size", 256_000),
    Key::count("hidden_size", 2304),
    Key::count("intermediate_size", 9216),
    Key::count("num_hidden_layers", 26),
    Key::count("num_attention_heads", 8),
    Key::count("num_key_value_heads", 4),
    Key::count("head_dim", 256),
    Key::text("hidden_activation", "gelu_pytorch_tanh"),
    Key::count("max_position_embeddings", 8192),
    Key::number("rms_norm_eps", 1e-6),
    Key::number("rope_theta", 1e4),
    Key::flag("tie_word_embeddings", true),
    Key::flag("attention_bias", false),
    Key::number("query_pre_attn_scalar", 256.0),
    Key::count("sliding_window", 4096),
    Key::nothing("layer_types"),
    Key::number("final_logit_softcapping", 30.0).or_null(),
    Key::number("attn_logit_softcapping", 50.0).or_null(),
    Key::nothing("use_bidirectional_attention"),
];

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let attention = attention(fields, rope(fields, head_dim(fields)?)?)?;
    let windows = windows(fields, Some(fields.count("sliding_window")?), |number| number.is_multiple_of(2))?;
    let of_layer = |window| layer(fields, GroupedConfig { window, ..attention.clone() });
    let layers: Vec<LayerConfig> = windows.into_iter().map(of_layer).collect::<Result<_, _>>()?;
    architecture(fields, &layers)
}

/// Attention of Gemma: scores have a scale of their own, and may have a cap.
pub(super) fn attention(fields: &Fields<'_>, rope: Rope) -> Result<GroupedConfig, FamilyError> {
    heads_divide_width(fields)?;
    Ok(GroupedConfig {
        softcap: fields.positive_or_null("attn_logit_softcapping")?,
        scale: fields.positive("query_pre_attn_scalar")?.powf(-0.5),
        ..grouped(fields, rope)?
    })
}

/// A layer of Gemma with this attention.
pub(super) fn layer(fields: &Fields<'_>, attention: GroupedConfig) -> Result<LayerConfig, FamilyError> {
    fields.refuse_flag("attention_bias")?;
    fields.refuse_flag("use_bidirectional_attention")?;
    let activation = activation(fields, "hidden_activation")?;
    Ok(LayerConfig {
        attention: AttentionConfig::Grouped(attention),
        feed_forward: FeedForwardConfig::Dense { mlp: fields.count("intermediate_size")?, activation },
        norm: RmsNorm::gemma(epsilon(fields)?),
        norms_behind: true,
        residual_scale: 1.0,
    })
}

/// Returns the architecture with the embedding and the head that surround the layers of Gemma.
pub(super) fn architecture(fields: &Fields<'_>, layers: &[LayerConfig]) -> Result<Architecture, FamilyError> {
    let plain = llama::architecture(fields, Stack::of_layers(layers))?;
    Ok(Architecture {
        embedding_scale: (plain.embed as f64).sqrt(),
        logit_cap: fields.positive_or_null("final_logit_softcapping")?,
        final_norm: RmsNorm::gemma(epsilon(fields)?),
        ..plain
    })
}
