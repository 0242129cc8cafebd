//! Llama 2 and 3.x, arXiv 2307.09288 and 2407.21783.

use meshloom::nn::{Activation, Architecture, FeedForwardConfig, LayerConfig, Stack};

use super::common::{activation, epsilon, grouped, head_dim, rope};
use super::fields::Fields;
use super::{Family, FamilyError, Names};

pub(super) const LLAMA: Family = Family { model_type: "llama", describe, names: Names::LLAMA };

fn describe(fields: &Fields<'_>) -> Result<Architecture, FamilyError> {
    fields.refuse_flag("attention_bias")?;
    let layer = layer(fields)?;
    architecture(fields, Stack::uniform(layer, fields.layer_count()?), false)
}

/// A layer of Llama, which other families change.
pub(super) fn layer(fields: &Fields<'_>) -> Result<LayerConfig, FamilyError> {
    fields.refuse_flag("mlp_bias")?;
    let attention = grouped(fields, rope(fields, None, head_dim(fields)?, 1e4)?)?;
    let activation = activation(fields, "hidden_act", Activation::Silu)?;
    let mlp = fields.needed_count("intermediate_size")?;
    let layer = LayerConfig::llama(attention, mlp, epsilon(fields)?);
    Ok(LayerConfig { feed_forward: FeedForwardConfig::Dense { mlp, activation }, ..layer })
}

/// What stands around the layers of most families.
pub(super) fn architecture(fields: &Fields<'_>, stack: Stack, tied: bool) -> Result<Architecture, FamilyError> {
    let (embed, vocab) = (fields.needed_count("hidden_size")?, fields.needed_count("vocab_size")?);
    Ok(Architecture {
        tied_embeddings: fields.flag("tie_word_embeddings", tied)?,
        ..Architecture::llama(embed, vocab, stack, epsilon(fields)?)
    })
}
