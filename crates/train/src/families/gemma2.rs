//! Gemma 2, arXiv 2408.00118: norms before and behind each block, capped scores and logits, every other layer slides.

use meshloom::nn::{
    Activation, Architecture, AttentionConfig, FeedForwardConfig, GroupedConfig, LayerConfig, RmsNorm, Stack,
};

use super::common::{activation, epsilon, grouped, head_dim, rope, sliding_layers};
use super::fields::Fields;
use super::{Family, FamilyError, Names, llama};

pub(super) const GEMMA2: Family = Family { model_type: "gemma2", describe, names: Names::GEMMA };

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let window = fields.count("sliding_window")?.unwrap_or(4096);
    let rope = rope(fields, None, head_dim(fields)?, 1e4)?;
    let softcap = fields.positive("attn_logit_softcapping")?;
    let attention = GroupedConfig { softcap, scale: score_scale(fields)?, ..grouped(fields, rope)? };
    let of_layer =
        |slides: bool| layer(fields, GroupedConfig { window: slides.then_some(window), ..attention.clone() });
    let sliding = sliding_layers(fields, |number| number.is_multiple_of(2))?;
    let layers: Vec<LayerConfig> = sliding.into_iter().map(of_layer).collect::<Result<_, _>>()?;
    Ok(Architecture { logit_cap: fields.positive("final_logit_softcapping")?, ..architecture(fields, &layers)? })
}

/// What scores are multiplied by.
pub(super) fn score_scale(fields: &Fields<'_>) -> Result<f64, FamilyError> {
    Ok(fields.positive("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5))
}

/// A layer of Gemma with this attention.
pub(super) fn layer(fields: &Fields<'_>, attention: GroupedConfig) -> Result<LayerConfig, FamilyError> {
    fields.refuse_flag("attention_bias")?;
    fields.refuse_flag("use_bidirectional_attention")?;
    // transformers does not read `hidden_act`.
    fields.text("hidden_act")?;
    let activation = activation(fields, "hidden_activation", Activation::GeluTanh)?;
    Ok(LayerConfig {
        attention: AttentionConfig::Grouped(attention),
        feed_forward: FeedForwardConfig::Dense { mlp: fields.needed_count("intermediate_size")?, activation },
        norm: RmsNorm::gemma(epsilon(fields)?),
        norms_behind: true,
        residual_scale: 1.0,
    })
}

/// What stands around the layers of Gemma.
pub(super) fn architecture(fields: &Fields<'_>, layers: &[LayerConfig]) -> Result<Architecture, FamilyError> {
    let plain = llama::architecture(fields, Stack::of_layers(layers), true)?;
    Ok(Architecture {
        embedding_scale: (plain.embed as f64).sqrt(),
        final_norm: RmsNorm::gemma(epsilon(fields)?),
        ..plain
    })
}
