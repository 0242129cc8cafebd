//! What families have in common: keys that mean the same in each.

use meshloom::nn::{Activation, GroupedConfig, Rope, RopePairs, RopeScaling};

use super::FamilyError;
use super::fields::Fields;

/// The kinds of layers of families that have windows, as `layer_types` names them.
pub(super) const SLIDING: &str = "sliding_attention";
pub(super) const FULL: &str = "full_attention";

/// Grouped attention by the keys that all families have, with Llama's form.
pub(super) fn grouped(fields: &Fields<'_>, rope: Rope) -> Result<GroupedConfig, FamilyError> {
    let heads = fields.needed_count("num_attention_heads")?;
    let kv_heads = fields.count("num_key_value_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of num_attention_heads, which is {heads}");
        return Err(fields.out_of_range("num_key_value_heads", kv_heads, expected));
    }
    let head_dim = head_dim(fields)?;
    Ok(GroupedConfig { rope, ..GroupedConfig::llama(heads, kv_heads, head_dim, 1.0) })
}

/// The width of a head: a key of its own, or the share of a head.
pub(super) fn head_dim(fields: &Fields<'_>) -> Result<usize, FamilyError> {
    let (embed, heads) = (fields.needed_count("hidden_size")?, fields.needed_count("num_attention_heads")?);
    let head_dim = fields.count("head_dim")?.unwrap_or(embed / heads);
    match head_dim.is_multiple_of(2) && head_dim > 0 {
        true => Ok(head_dim),
        false => Err(fields.out_of_range("head_dim", head_dim, "an even number".to_owned())),
    }
}

/// The epsilon of norms.
pub(super) fn epsilon(fields: &Fields<'_>) -> Result<f64, FamilyError> {
    Ok(fields.positive("rms_norm_eps")?.unwrap_or(1e-6))
}

/// The activation of a dense block, by its name under this key.
pub(super) fn activation(fields: &Fields<'_>, key: &str, default: Activation) -> Result<Activation, FamilyError> {
    match fields.text(key)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some(other) => Err(fields.unsupported(key, &format!("{other:?}"), r#""silu" and "gelu_pytorch_tanh""#)),
    }
}

/// Which layers slide, of families of which every layer is of a kind: by `layer_types`, or else as `is_sliding` says.
pub(super) fn sliding_layers(
    fields: &Fields<'_>,
    is_sliding: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, FamilyError> {
    let count = fields.layer_count()?;
    let Some(types) = fields.texts("layer_types")? else { return Ok((0..count).map(is_sliding).collect()) };
    if types.len() != count {
        let expected = format!("one for each of num_hidden_layers, which is {count}");
        return Err(fields.out_of_range("layer_types", types.len(), expected));
    }
    let of_layer = |kind: &str| match kind {
        SLIDING => Ok(true),
        FULL => Ok(false),
        other => Err(fields.unsupported("layer_types", &format!("{other:?}"), &format!("{:?}", [SLIDING, FULL]))),
    };
    types.into_iter().map(of_layer).collect()
}

/// How positions turn `dim` numbers of a head: by `rope_parameters` (transformers 5), or by `rope_theta` and
/// `rope_scaling` (published files). `kind` is the layers' kind, where they have parameters of their own.
pub(super) fn rope(
    fields: &Fields<'_>,
    kind: Option<&str>,
    dim: usize,
    default_theta: f64,
) -> Result<Rope, FamilyError> {
    let own_theta = fields.positive("rope_theta")?;
    let (theta, scaling) = match rope_section(fields, kind)? {
        Some(section) => (section.positive("rope_theta")?, scaling_of(fields, &section)?),
        None => (None, RopeScaling::None),
    };
    Ok(Rope { dim, theta: theta.or(own_theta).unwrap_or(default_theta), scaling, pairs: RopePairs::Halves })
}

/// What a file says of the rotary frequencies of layers of a kind.
pub(super) fn rope_section<'j>(fields: &Fields<'j>, kind: Option<&str>) -> Result<Option<Fields<'j>>, FamilyError> {
    // Both are asked for, so that neither counts as unknown.
    let (scaling, parameters) = (fields.section("rope_scaling")?, fields.section("rope_parameters")?);
    Ok(match (parameters, kind) {
        (Some(all), Some(kind)) => all.section(kind)?.or(Some(all)),
        (parameters, _) => parameters.or(scaling),
    })
}

fn scaling_of(fields: &Fields<'_>, section: &Fields<'_>) -> Result<RopeScaling, FamilyError> {
    // Older files say `type`.
    let kind = match section.text("rope_type")? {
        Some(kind) => kind,
        None => section.text("type")?.unwrap_or("default"),
    };
    if let Some(partial) = section.number("partial_rotary_factor")?.filter(|&partial| partial != 1.0) {
        return Err(section.unsupported("partial_rotary_factor", &partial.to_string(), "1.0"));
    }
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: section.needed_positive("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: section.needed_positive("factor")?,
            low_frequency: section.needed_positive("low_freq_factor")?,
            high_frequency: section.needed_positive("high_freq_factor")?,
            original: section.needed_positive("original_max_position_embeddings")?,
        }),
        "yarn" => {
            let original = match section.positive("original_max_position_embeddings")? {
                Some(original) => original,
                None => fields.needed_positive("max_position_embeddings")?,
            };
            let factor = match section.positive("factor")? {
                Some(factor) => factor,
                None => fields.needed_positive("max_position_embeddings")? / original,
            };
            let scales = section.number("mscale")?.zip(section.number("mscale_all_dim")?);
            let magnitude = match (section.number("attention_factor")?, scales) {
                (Some(factor), _) => factor,
                (None, Some((scale, all))) if scale != 0.0 && all != 0.0 => {
                    yarn_magnitude(factor, scale) / yarn_magnitude(factor, all)
                }
                (None, _) => yarn_magnitude(factor, 1.0),
            };
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: section.positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: section.positive("beta_slow")?.unwrap_or(1.0),
                original,
                truncate: section.flag("truncate", true)?,
                magnitude,
            })
        }
        other => {
            let known = r#""default", "linear", "llama3" and "yarn""#;
            Err(section.unsupported("rope_type", &format!("{other:?}"), known))
        }
    }
}

/// YaRN's factor of scores, for a stretch and a weight (arXiv 2309.00071, section 3.4; as in transformers,
/// `modeling_rope_utils.py`).
pub(super) fn yarn_magnitude(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}
