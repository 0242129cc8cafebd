//! Gemma 3, its text part, arXiv 2503.19786: five layers with a window to one without, each kind with its own rotary
//! frequencies, and norms of queries and keys.

use meshloom_nn::{Architecture, GroupedConfig, LayerConfig, RmsNorm, Rope};

use super::common::{FULL, SLIDING, epsilon, head_dim, rope_of, windows};
use super::fields::Fields;
use super::gemma2::{architecture, attention, layer};
use super::keys::{Key, Missing};
use super::{Family, FamilyError, Names};

pub(super) const GEMMA3: Family = Family { model_type: "gemma3_text", keys: KEYS, describe, names: Names::GEMMA };

/// The keys of `Gemma3TextConfig`.
const KEYS: &[Key] = &[
    Key::count("vocab_size", 262_208),
    Key::count("hidden_size", 2304),
    Key::count("intermediate_size", 9216),
    Key::count("num_hidden_layers", 26),
    Key::count("num_attention_heads", 8),
    Key::count("num_key_value_heads", 4),
    Key::count("head_dim", 256),
    Key::text("hidden_activation", "gelu_pytorch_tanh"),
    Key::count("max_position_embeddings", 131_072),
    Key::number("rms_norm_eps", 1e-6),
    Key::number("rope_theta", 1e6),
    Key::number("rope_local_base_freq", 1e4),
    Key::section("rope_parameters", &[(SLIDING, PLAIN), (FULL, PLAIN)]),
    Key::flag("tie_word_embeddings", true),
    Key::flag("attention_bias", false),
    Key::number("query_pre_attn_scalar", 256.0),
    Key::count("sliding_window", 4096),
    Key::count("sliding_window_pattern", 6),
    Key::nothing("layer_types"),
    Key::nothing("final_logit_softcapping"),
    Key::nothing("attn_logit_softcapping"),
    Key::flag("use_bidirectional_attention", false).or_null(),
];

/// Frequencies that are not stretched.
const PLAIN: Missing = Missing::Object(&[("rope_type", Missing::Text("default"))]);

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    let (window, pattern) = (Some(fields.count("sliding_window")?), fields.count("sliding_window_pattern")?);
    // Transformers 5 writes the value of the key before it under this name, and does not read it.
    fields.has("_sliding_window_pattern");
    let [global, local] = ropes(fields)?;
    let layers = windows(fields, window, |number| !(number + 1).is_multiple_of(pattern))?;
    let of_layer = |window: Option<usize>| {
        let rope = if window.is_some() { &local } else { &global };
        let head_norms = Some(RmsNorm::gemma(epsilon(fields)?));
        layer(fields, GroupedConfig { window, head_norms, ..attention(fields, rope.clone())? })
    };
    let layers: Vec<LayerConfig> = layers.into_iter().map(of_layer).collect::<Result<_, _>>()?;
    architecture(fields, &layers)
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
