//! How large a described model is, before anything multiplies its sizes.

use meshloom_nn::{Architecture, AttentionConfig, FeedForwardConfig, LayerConfig};

use super::fields::Fields;
use super::{ConfigFault, FamilyError};

/// So many parameters of eight bytes, with two moments each, have sizes in bytes that fit in 63 bits. Far more than any
/// model has.
pub const MOST_PARAMETERS: u128 = 1 << 56;

/// The most experts, of all layers together: each has tensors of its own. The largest models have some 25,000.
pub const MOST_EXPERTS: usize = 1 << 20;

/// The widest head: positions turn it by a table of as many numbers. Real ones have some hundreds.
pub const MOST_HEAD_DIM: usize = 1 << 16;

/// Refuses a model whose sizes have products that overflow. Each size is below 2^31, so products of four fit here.
pub(super) fn check(fields: &Fields<'_>, architecture: &Architecture) -> Result<(), FamilyError> {
    let turned = architecture.stack.layers().chain(&architecture.further).map(|layer| match &layer.attention {
        AttentionConfig::Grouped(grouped) => ("head_dim", grouped.head_dim),
        AttentionConfig::Latent(latent) => ("qk_rope_head_dim", latent.rope_head_dim),
    });
    if let Some((key, width)) = turned.into_iter().find(|(_, width)| *width > MOST_HEAD_DIM) {
        return Err(fields.out_of_range(key, width, &format!("at most {MOST_HEAD_DIM}")));
    }
    let experts = expert_count(architecture);
    if experts > MOST_EXPERTS {
        let keys = ["num_local_experts", "n_routed_experts", "num_experts"];
        let key = keys.into_iter().find(|key| fields.has(key)).unwrap_or("num_experts");
        return Err(fields.out_of_range(key, experts, &format!("at most {MOST_EXPERTS} in all layers together")));
    }
    let parameters = parameter_bound(architecture);
    if parameters > MOST_PARAMETERS { Err(fields.fault(ConfigFault::TooLarge(parameters))) } else { Ok(()) }
}

/// The experts of all layers.
pub fn expert_count(architecture: &Architecture) -> usize {
    let of = |layer: &LayerConfig| layer.routed().map_or(0, |routed| routed.experts);
    let layers = architecture.stack.layers().chain(&architecture.further);
    layers.fold(0, |sum: usize, layer| sum.saturating_add(of(layer)))
}

/// The elements of a model's matrices, at most.
pub fn parameter_bound(architecture: &Architecture) -> u128 {
    let embed = architecture.embed as u128;
    let layers: u128 = architecture.stack.layers().map(|layer| of_layer(layer, embed)).sum();
    let further: u128 = architecture.further.iter().map(|layer| of_layer(layer, embed) + 2 * embed * embed).sum();
    layers + further + 2 * embed * architecture.vocab as u128
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
