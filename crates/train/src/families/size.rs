//! How large a described model is, before anything multiplies its sizes.

use meshloom::nn::{Architecture, AttentionConfig, FeedForwardConfig, LayerConfig};

use super::FamilyError;
use super::fields::Fields;

/// So many parameters of eight bytes, with two moments each, have sizes in bytes that fit in 63 bits. Far more than any
/// model has.
const MOST_PARAMETERS: u128 = 1 << 56;

/// Refuses a model whose sizes have products that overflow. Each size is below 2^31, so products of four fit here.
pub(super) fn check(fields: &Fields<'_>, architecture: &Architecture) -> Result<(), FamilyError> {
    let embed = architecture.embed as u128;
    let layers: u128 = architecture.stack.layers().map(|layer| of_layer(layer, embed)).sum();
    let further: u128 = architecture.further.iter().map(|layer| of_layer(layer, embed) + 2 * embed * embed).sum();
    let tables = 2 * embed * architecture.vocab as u128;
    let parameters = layers + further + tables;
    if parameters > MOST_PARAMETERS { Err(fields.too_large(parameters)) } else { Ok(()) }
}

/// The elements of a layer's matrices.
fn of_layer(layer: &LayerConfig, embed: u128) -> u128 {
    let attention = match &layer.attention {
        AttentionConfig::Grouped(grouped) => {
            2 * (grouped.heads + grouped.kv_heads) as u128 * grouped.head_dim as u128 * embed
        }
        AttentionConfig::Latent(latent) => {
            let [heads, narrow] = [latent.heads, latent.kv_lora].map(|size| size as u128);
            let [nope, turned, value] =
                [latent.nope_head_dim, latent.rope_head_dim, latent.v_head_dim].map(|size| size as u128);
            let queries = match latent.q_lora as u128 {
                0 => embed * heads * (nope + turned),
                narrow => narrow * (embed + heads * (nope + turned)),
            };
            queries + embed * (narrow + turned) + narrow * heads * (nope + value) + heads * value * embed
        }
    };
    let feed_forward = match &layer.feed_forward {
        FeedForwardConfig::Dense { mlp, .. } => 3 * embed * *mlp as u128,
        FeedForwardConfig::Routed(routed) => {
            let blocks = (routed.experts + routed.shared_experts) as u128;
            3 * embed * blocks * routed.mlp as u128 + embed * routed.experts as u128
        }
    };
    attention + feed_forward
}
