//! Experts that work on slots: each has as many for a row as its capacity says, filled with the row's tokens in their
//! order.
//!
//! All experts have as many slots, so a tensor of them, `[rows, experts, capacity, embed]`, can be split by rows where
//! the tokens are and by experts where the experts are. To go from the one to the other is an all-to-all. The
//! token of a slot is an index, so filling slots and reading them are lookups.
//!
//! Source: Lepikhin et al., "GShard", arXiv 2006.16668; Fedus et al., "Switch Transformers", arXiv 2101.03961.

use std::panic::Location;

use meshloom::ir::DType;
use meshloom::trace::{Tensor, VmapOptions, arange, custom_vjp, einsum, full, vmap_with};

use super::{Moe, MoeConfig, Routing};
use crate::layout::{EXPERT_SLOTS, ROUTED_CHOICES, ROW_CHOICES, ROW_TOKENS, STREAM, TOKEN_SLOTS, lying_as};
use crate::mlp::hidden;

/// Slots where the experts are, and what brings their results back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// `[batch, experts, capacity, embed]`, zero where a slot is empty.
    tokens: Tensor,
    /// `f32` `[batch, experts, capacity]`, zero where a slot is empty.
    weights: Tensor,
    /// `s32` `[batch, length, experts_per_token]`.
    experts: Tensor,
    /// The slots of those, of the same dimensions: out of range for what was dropped.
    places: Tensor,
}

/// Fills `capacity` slots of each expert with the tokens of each row, and sends them to the experts.
#[track_caller]
pub(super) fn fill(x: Tensor, routing: &Routing, places: Tensor, capacity: usize, config: &MoeConfig) -> Slots {
    let x = x.with_axes_each_way(&ROW_TOKENS, &STREAM);
    let weights = routing.weights.with_axes_each_way(&ROW_CHOICES, &ROUTED_CHOICES);
    let [experts, places] = [routing.experts, places].map(|choices| choices.with_axes(ROW_CHOICES));
    let (count, per_token) = (config.experts, config.experts_per_token);
    let by_row = VmapOptions::default().named(ROW_TOKENS[0]);
    let (tokens, slot_weights) = vmap_with(by_row, (x, weights, experts, places), |(x, weights, experts, places)| {
        let choices = weights.dim(0) * per_token;
        let [weights, experts, places] = [weights, experts, places].map(|each| each.reshape([choices]));
        // The choice that is in each slot: none of them in an empty one.
        let empty = full(DType::S32, [count, capacity], choices as f64);
        let choice = empty.at(&[experts, places]).unique().set(arange(DType::S32, choices));
        let token = choice / per_token.max(1) as f64;
        (x.at(&[token]).fill(0.0).get(), weights.at(&[choice]).fill(0.0).get())
    });
    let weights = exchanged(slot_weights, &TOKEN_SLOTS[..3], &EXPERT_SLOTS[..3]);
    Slots { tokens: exchanged(tokens, &TOKEN_SLOTS, &EXPERT_SLOTS), weights, experts, places }
}

/// The weighted results of the experts for their slots: `[batch, experts, capacity, embed]`, zero for empty slots.
#[track_caller]
pub(super) fn run(slots: &Slots, params: &Moe<Tensor>, config: &MoeConfig) -> Tensor {
    let dtype = slots.tokens.dtype();
    let [gate, up, down] = [params.gate, params.up, params.down].map(|weight| weight.convert(dtype));
    // Experts first, as the products have them.
    let tokens = slots.tokens.transpose([1, 0, 2, 3]);
    let weights = slots.weights.transpose([1, 0, 2]).convert(dtype);
    let product = |weight: Tensor, bias: Option<Tensor>| {
        let product = einsum("xbce,xem->xbcm", &[tokens, weight]);
        bias.map_or(product, |bias| product + bias.convert(dtype).broadcast_like(product, [0, 3]))
    };
    let biases = params.biases.as_ref();
    let (gate, up) = (product(gate, biases.map(|all| all.gate)), product(up, biases.map(|all| all.up)));
    let hidden = hidden(config.activation, gate, up);
    // Weighted before the last product, which is linear: so its result is not needed again for the gradient of the
    // weights.
    let weighted = hidden * weights.broadcast_like(hidden, [0, 1, 2]);
    einsum("xbcm,xme->xbce", &[weighted, down]).transpose([1, 0, 2, 3])
}

/// Sends results back to where the tokens are, and adds up those of each token: `[batch, length, embed]`, split as the
/// residual stream.
#[track_caller]
pub(super) fn collect(results: Tensor, slots: &Slots) -> Tensor {
    let results = exchanged(results, &EXPERT_SLOTS, &TOKEN_SLOTS);
    let by_row = VmapOptions::default().named(ROW_TOKENS[0]);
    let sums = vmap_with(by_row, (results, slots.experts, slots.places), |(results, experts, places)| {
        results.at(&[experts, places]).fill(0.0).get().sum(1)
    });
    sums.with_axes_each_way(&STREAM, &ROW_TOKENS)
}

/// Slots that are split as `from` says, split as `to` says; their cotangent the other way round. Partial sums stay
/// such.
#[track_caller]
fn exchanged(x: Tensor, from: &[&'static str], to: &[&'static str]) -> Tensor {
    let place = Location::caller();
    let sent = |x: Tensor, from: &[&'static str], to: &[&'static str]| lying_as(lying_as(x, from, place), to, place);
    custom_vjp(x, |x| sent(x, from, to), |x| (sent(x, from, to), ()), |(), ct| sent(ct, to, from))
}
