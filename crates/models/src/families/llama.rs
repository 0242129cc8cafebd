//! Llama 2 and 3.x, arXiv 2307.09288 and 2407.21783.

use meshloom_nn::{Architecture, FeedForwardConfig, LayerConfig, Stack};

use super::common::{activation, epsilon, grouped, head_dim, heads_divide_width, rope};
use super::fields::Fields;
use super::keys::Key;
use super::{Family, FamilyError, Names};

pub(super) const LLAMA: Family = Family { model_type: "llama", keys: KEYS, describe, names: Names::LLAMA };

/// The keys of `LlamaConfig`.
const KEYS: &[Key] = &[
    Key::count("vocab_size", 32_000),
    Key::count("hidden_size", 4096),
    Key::count("intermediate_size", 11_008),
    Key::count("num_hidden_layers", 32),
    Key::count("num_attention_heads", 32),
    Key::nothing("num_key_value_heads"),
    Key::nothing("head_dim"),
    Key::text("hidden_act", "silu"),
    Key::count("max_position_embeddings", 2048),
    Key::number("rms_norm_eps", 1e-6),
    Key::number("rope_theta", 1e4),
    Key::flag("tie_word_embeddings", false),
    Key::flag("attention_bias", false),
    Key::flag("mlp_bias", false),
];

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    heads_divide_width(fields)?;
    fields.refuse_flag("attention_bias")?;
    fields.refuse_flag("mlp_bias")?;
    architecture(fields, Stack::uniform(layer(fields)?, fields.layer_count()?))
}

/// A layer of Llama, which other families change.
pub(super) fn layer(fields: &Fields<'_>) -> Result<LayerConfig, FamilyError> {
    let attention = grouped(fields, rope(fields, head_dim(fields)?)?)?;
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
