//! Gemma 2, arXiv 2408.00118: norms before and behind each block, capped scores and logits, every other layer slides.
//! Gemma 3, its text part, arXiv 2503.19786: five layers with a window to one without, each kind with its own rotary
//! frequencies, and norms of queries and keys.

use meshloom_nn::{Architecture, AttentionConfig, FeedForwardConfig, GroupedConfig, LayerConfig, RmsNorm, Rope, Stack};

use super::common::{
    FULL, SLIDING, activation, epsilon, grouped, head_dim, heads_divide_width, rope, rope_of, windows,
};
use super::fields::Fields;
use super::keys::{Key, Missing, Shared};
use super::{Family, FamilyError, LayerNames, llama};

pub(super) const GEMMA2: Family = Family {
    model_type: "gemma2",
    shared: Shared::new([256_000, 2304, 9216, 26, 8, 8192], 1e-6, 1e4, true),
    keys: &[
        Key::count("num_key_value_heads", 4),
        Key::count("head_dim", 256),
        Key::text("hidden_activation", "gelu_pytorch_tanh"),
        Key::flag("attention_bias", false),
        Key::number("query_pre_attn_scalar", 256.0),
        Key::count("sliding_window", 4096),
        Key::number("final_logit_softcapping", 30.0).or_null(),
        Key::number("attn_logit_softcapping", 50.0).or_null(),
    ],
    describe: gemma2,
    names: LayerNames::GEMMA,
};

pub(super) const GEMMA3: Family = Family {
    model_type: "gemma3_text",
    shared: Shared::new([262_208, 2304, 9216, 26, 8, 131_072], 1e-6, 1e6, true),
    keys: &[
        Key::count("num_key_value_heads", 4),
        Key::count("head_dim", 256),
        Key::text("hidden_activation", "gelu_pytorch_tanh"),
        Key::number("rope_local_base_freq", 1e4),
        Key::section("rope_parameters", &[(SLIDING, PLAIN), (FULL, PLAIN)]),
        Key::flag("attention_bias", false),
        Key::number("query_pre_attn_scalar", 256.0),
        Key::count("sliding_window", 4096),
        Key::count("sliding_window_pattern", 6),
        Key::flag("use_bidirectional_attention", false).or_null(),
    ],
    describe: gemma3,
    names: LayerNames::GEMMA,
};

/// Frequencies that are not stretched.
const PLAIN: Missing = Missing::Object(&[("rope_type", Missing::Text("default"))]);

fn gemma2(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let rope = rope(fields, head_dim(fields)?)?;
    let windows = windows(fields, Some(fields.count("sliding_window")?), |number| number.is_multiple_of(2))?;
    let of_layer = |window| layer(fields, GroupedConfig { window, ..attention(fields, rope.clone())? });
    architecture(fields, windows.into_iter().map(of_layer))
}

fn gemma3(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let (window, pattern) = (Some(fields.count("sliding_window")?), fields.count("sliding_window_pattern")?);
    // Transformers 5 writes the value of the key before it under this name, and does not read it.
    fields.has("_sliding_window_pattern");
    let [global, local] = ropes(fields)?;
    let windows = windows(fields, window, |number| !(number + 1).is_multiple_of(pattern))?;
    let of_layer = |window: Option<usize>| {
        let rope = if window.is_some() { &local } else { &global };
        let head_norms = Some(RmsNorm::gemma(epsilon(fields)?));
        layer(fields, GroupedConfig { window, head_norms, ..attention(fields, rope.clone())? })
    };
    architecture(fields, windows.into_iter().map(of_layer))
}

/// Attention of Gemma: scores have a scale of their own, and may have a cap.
fn attention(fields: &Fields<'_>, rope: Rope) -> Result<GroupedConfig, FamilyError> {
    heads_divide_width(fields)?;
    Ok(GroupedConfig {
        softcap: fields.positive_or_null("attn_logit_softcapping")?,
        scale: fields.positive("query_pre_attn_scalar")?.powf(-0.5),
        ..grouped(fields, rope)?
    })
}

/// A layer of Gemma with this attention.
fn layer(fields: &Fields<'_>, attention: GroupedConfig) -> Result<LayerConfig, FamilyError> {
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
fn architecture(
    fields: &Fields<'_>,
    layers: impl Iterator<Item = Result<LayerConfig, FamilyError>>,
) -> Result<Architecture, FamilyError> {
    let plain = llama::architecture(fields, Stack::of_layers(&layers.collect::<Result<Vec<_>, _>>()?))?;
    Ok(Architecture {
        embedding_scale: (plain.embed as f64).sqrt(),
        logit_cap: fields.positive_or_null("final_logit_softcapping")?,
        final_norm: RmsNorm::gemma(epsilon(fields)?),
        ..plain
    })
}

/// How layers without a window and those with one turn heads. Published files have a base for each kind, and stretch
/// the first.
fn ropes(fields: &Fields<'_>) -> Result<[Rope; 2], FamilyError> {
    let dim = head_dim(fields)?;
    let parameters = fields.section("rope_parameters")?;
    let of_kind = |kind: &str| match &parameters {
        Some(parameters) => parameters.section(kind),
        None => Ok(None),
    };
    let (full, sliding) = (of_kind(FULL)?, of_kind(SLIDING)?);
    let global = match (fields.section("rope_scaling")?, full) {
        (Some(_), None) => {
            let expected = format!("left out beside rope_parameters that has no {FULL}");
            return Err(fields.wrong("rope_scaling", "an object", &expected));
        }
        // transformers writes the keys of the older section over those of the newer one.
        (Some(scaling), full) => Some(scaling.over(full.as_ref())),
        (None, full) => full,
    };
    Ok([
        rope_of(fields, global.as_ref(), dim, "rope_theta", None)?,
        rope_of(fields, sliding.as_ref(), dim, "rope_local_base_freq", None)?,
    ])
}
