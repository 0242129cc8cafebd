//! The keys that mean the same in several families.

use meshloom_nn::{Activation, GroupedConfig, MoeConfig, Rope, RopePairs, RopeScaling};

use super::FamilyError;
use super::fields::{Fields, fits};

/// The kinds of layers of families that have windows, as `layer_types` names them.
pub(super) const SLIDING: &str = "sliding_attention";
pub(super) const FULL: &str = "full_attention";

/// Grouped attention by the keys that all families have, with Llama's form.
pub(super) fn grouped(fields: &Fields<'_>, rope: Rope) -> Result<GroupedConfig, FamilyError> {
    let heads = fields.count("num_attention_heads")?;
    let kv_heads = fields.count_or_null("num_key_value_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of num_attention_heads, which is {heads}");
        return Err(fields.out_of_range("num_key_value_heads", kv_heads, &expected));
    }
    let head_dim = head_dim(fields)?;
    Ok(GroupedConfig { rope, ..GroupedConfig::llama(heads, kv_heads, head_dim, 1.0) })
}

/// The width of a head: a key of its own, or the share of a head.
pub(super) fn head_dim(fields: &Fields<'_>) -> Result<usize, FamilyError> {
    if let Some(head_dim) = fields.count_or_null("head_dim")? {
        return match head_dim.is_multiple_of(2) {
            true => Ok(head_dim),
            false => Err(fields.out_of_range("head_dim", head_dim, "an even number")),
        };
    }
    let (embed, heads) = (fields.count("hidden_size")?, fields.count("num_attention_heads")?);
    match embed.is_multiple_of(heads) && (embed / heads).is_multiple_of(2) {
        true => Ok(embed / heads),
        false => {
            let expected = format!(
                "an even multiple of num_attention_heads, which is {heads}, where there is no head_dim; give head_dim, \
                 the width of a head"
            );
            Err(fields.out_of_range("hidden_size", embed, &expected))
        }
    }
}

/// Refuses a width that heads do not divide, as some families do though their heads have a width of their own.
pub(super) fn heads_divide_width(fields: &Fields<'_>) -> Result<(), FamilyError> {
    let (embed, heads) = (fields.count("hidden_size")?, fields.count("num_attention_heads")?);
    match embed.is_multiple_of(heads) {
        true => Ok(()),
        false => {
            let expected = format!("a multiple of num_attention_heads, which is {heads}");
            Err(fields.out_of_range("hidden_size", embed, &expected))
        }
    }
}

/// The epsilon of norms.
pub(super) fn epsilon(fields: &Fields<'_>) -> Result<f64, FamilyError> {
    fields.positive("rms_norm_eps")
}

/// The activation of a dense block, by its name under this key.
pub(super) fn activation(fields: &Fields<'_>, key: &str) -> Result<Activation, FamilyError> {
    match fields.text(key)? {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        other => Err(fields.unsupported(key, &format!("{other:?}"), r#""silu" and "gelu_pytorch_tanh""#)),
    }
}

/// Routed experts: how many there are, by this key, and how many of them a token has.
pub(super) fn experts(fields: &Fields<'_>, key: &str) -> Result<MoeConfig, FamilyError> {
    let (experts, experts_per_token) = (fields.count(key)?, fields.count("num_experts_per_tok")?);
    if experts_per_token > experts {
        let expected = format!("at most {key}, which is {experts}");
        return Err(fields.out_of_range("num_experts_per_tok", experts_per_token, &expected));
    }
    Ok(MoeConfig { experts, experts_per_token, ..MoeConfig::default() })
}

/// The window of each layer, none for those that do not slide: by `layer_types`, or else as `is_sliding` says.
pub(super) fn windows(
    fields: &Fields<'_>,
    window: Option<usize>,
    is_sliding: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, FamilyError> {
    let count = fields.layer_count()?;
    let sliding: Vec<bool> = match fields.texts("layer_types")? {
        None => (0..count).map(is_sliding).collect(),
        Some(types) => {
            if types.len() != count {
                let expected = format!("one for each of num_hidden_layers, which is {count}");
                return Err(fields.wrong("layer_types", &format!("a list of {}", types.len()), &expected));
            }
            let of_layer = |kind: &str| match kind {
                SLIDING => Ok(true),
                // The second name is an older one.
                FULL | "attention" => Ok(false),
                other => {
                    Err(fields.unsupported("layer_types", &format!("{other:?}"), &format!("{:?}", [SLIDING, FULL])))
                }
            };
            types.into_iter().map(of_layer).collect::<Result<_, _>>()?
        }
    };
    if window.is_none() && sliding.contains(&true) {
        let expected = "the number of tokens that a layer sees, because some layers slide";
        return Err(fields.wrong("sliding_window", "no value in use", expected));
    }
    Ok(sliding.into_iter().map(|slides| window.filter(|_| slides)).collect())
}

/// How positions turn `dim` numbers of a head: by `rope_parameters` (transformers 5), or by `rope_theta` and
/// `rope_scaling` (published files).
pub(super) fn rope(fields: &Fields<'_>, dim: usize) -> Result<Rope, FamilyError> {
    let section = rope_section(fields)?;
    if let Some(section) = &section
        && let Some(kind) = [SLIDING, FULL].into_iter().find(|kind| section.has(kind))
    {
        let expected = "left out: all layers of this family turn alike, as the keys beside it say";
        return Err(section.wrong(kind, "a section", expected));
    }
    // transformers takes this key before that of the section.
    let outer = fields.has(ORIGINAL).then(|| fields.positive(ORIGINAL)).transpose()?;
    rope_of(fields, section.as_ref(), dim, "rope_theta", outer)
}

const ORIGINAL: &str = "original_max_position_embeddings";

/// How positions turn `dim` numbers of a head by what a section says, with a base from outside for one without.
pub(super) fn rope_of(
    fields: &Fields<'_>,
    section: Option<&Fields<'_>>,
    dim: usize,
    theta_key: &str,
    original: Option<f64>,
) -> Result<Rope, FamilyError> {
    fields.only("partial_rotary_factor", 1.0)?;
    let own = section.filter(|section| section.has("rope_theta"));
    // Both are asked for, so that neither counts as unknown.
    fields.has(theta_key);
    let (of_theta, key) = own.map_or((fields, theta_key), |section| (section, "rope_theta"));
    let theta = of_theta.positive(key)?;
    let scaling = match section {
        Some(section) => scaling_of(fields, section, original)?,
        None => RopeScaling::None,
    };
    let factor = match scaling {
        RopeScaling::None => 1.0,
        RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. } | RopeScaling::Yarn { factor, .. } => {
            factor
        }
    };
    // The frequencies of the first pair and, nearly, of the last.
    if ![1.0, 1.0 / theta, 1.0 / factor, 1.0 / (theta * factor)].into_iter().all(fits) {
        let expected = "a base whose frequencies, also when they are stretched, f32 can hold";
        return Err(of_theta.wrong(key, &format!("{theta:?}"), expected));
    }
    if matches!(scaling, RopeScaling::Yarn { .. }) && theta <= 1.0 {
        return Err(of_theta.wrong(key, &theta.to_string(), "greater than 1 with \"yarn\""));
    }
    Ok(Rope { dim, theta, scaling, pairs: RopePairs::Halves })
}

/// Returns the section on rotary frequencies, for families that have one kind of them. `rope_scaling` takes precedence
/// over `rope_parameters`, as in transformers, `modeling_rope_utils.py`.
pub(super) fn rope_section<'j>(fields: &Fields<'j>) -> Result<Option<Fields<'j>>, FamilyError> {
    let (scaling, parameters) = (fields.section("rope_scaling")?, fields.section("rope_parameters")?);
    Ok(match scaling.filter(|scaling| !scaling.is_empty()) {
        Some(scaling) => {
            if let Some(parameters) = parameters {
                parameters.use_all();
            }
            Some(scaling)
        }
        None => parameters,
    })
}

/// Returns the type of a section: its `rope_type`, or the key `type` of older files.
pub(super) fn rope_type<'j>(section: &Fields<'j>) -> Result<&'j str, FamilyError> {
    let second = section.has("type");
    match (section.has("rope_type"), second) {
        (true, _) => section.text("rope_type"),
        (false, true) => section.text("type"),
        (false, false) => Ok("default"),
    }
}

fn scaling_of(fields: &Fields<'_>, section: &Fields<'_>, original: Option<f64>) -> Result<RopeScaling, FamilyError> {
    section.only("partial_rotary_factor", 1.0)?;
    let original = || match original {
        Some(original) => Ok(original),
        None if section.has(ORIGINAL) => section.positive(ORIGINAL),
        None => fields.positive("max_position_embeddings"),
    };
    match rope_type(section)? {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: section.positive("factor")? }),
        "llama3" => {
            let low_frequency = section.positive("low_freq_factor")?;
            let high_frequency = section.positive("high_freq_factor")?;
            if high_frequency as f32 <= low_frequency as f32 {
                let expected = format!("greater than low_freq_factor, which is {low_frequency}");
                return Err(section.wrong("high_freq_factor", &high_frequency.to_string(), &expected));
            }
            let factor = section.positive("factor")?;
            Ok(RopeScaling::Llama3 { factor, low_frequency, high_frequency, original: original()? })
        }
        "yarn" => yarn(fields, section, original()?),
        other => {
            let known = r#""default", "linear", "llama3" and "yarn""#;
            Err(section.unsupported("rope_type", &format!("{other:?}"), known))
        }
    }
}

fn yarn(fields: &Fields<'_>, section: &Fields<'_>, original: f64) -> Result<RopeScaling, FamilyError> {
    let factor = match section.has("factor") && section.positive_or_null("factor")?.is_none() {
        true => fields.positive("max_position_embeddings")? / original,
        false => section.positive("factor")?,
    };
    let scale = |key: &str| Ok(section.number_or_null(key)?.filter(|&scale| scale != 0.0));
    let scales = (scale("mscale")?, scale("mscale_all_dim")?);
    let (key, magnitude) = match (section.positive_or_null("attention_factor")?, scales) {
        (Some(factor), _) => ("attention_factor", factor),
        (None, (Some(scale), Some(all))) => ("mscale", yarn_magnitude(factor, scale) / yarn_magnitude(factor, all)),
        (None, _) => ("factor", yarn_magnitude(factor, 1.0)),
    };
    if !fits(magnitude) {
        let found = format!("{:?}", section.number_or_null(key)?.unwrap_or(factor));
        return Err(section.wrong(key, &found, "one that scales cosines and sines by a number that f32 can hold"));
    }
    // Zero says nothing, like null.
    let beta = |key: &str, missing: f64| match section.number_or_null(key)? {
        Some(found) if found != 0.0 => section.positive(key),
        _ => Ok(missing),
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: beta("beta_fast", 32.0)?,
        beta_slow: beta("beta_slow", 1.0)?,
        original,
        truncate: !section.has("truncate") || section.flag("truncate")?,
        magnitude,
    })
}

/// YaRN's factor of scores, for a stretch and a weight (arXiv 2309.00071, section 3.4; as in transformers,
/// `modeling_rope_utils.py`).
pub(super) fn yarn_magnitude(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}
