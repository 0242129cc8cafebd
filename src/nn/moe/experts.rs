//! Dispatches tokens to experts, runs the experts, and returns their results.
//!
//! Tokens keep their rows: choices are sorted by expert within a row, so rows may lie on different devices. Experts are
//! divided into groups, which are one more dimension. Each group looks at all tokens, sorts those that chose one of its
//! experts to the front, and works on as many as there could be at most. A partitioner that splits this dimension only
//! has to gather tokens before and sum results after.

use std::panic::Location;

use super::{Moe, MoeConfig, Routing};
use crate::ir::DType;
use crate::nn::layout::{GATHERED_CHOICES, GATHERED_TOKENS, ROUTED_CHOICES, STREAM};
use crate::nn::mlp::swiglu;
use crate::trace::{Tensor, VmapOptions, arange, ragged_dot, sort_together, vmap_with, zeros};

/// Tokens where the experts are: whole along the axes that experts are split over.
#[derive(Clone, Copy, Debug)]
pub struct Dispatched {
    /// `[batch, length, embed]`.
    tokens: Tensor,
    /// `s32` `[batch, length, experts_per_token]`.
    experts: Tensor,
    /// `f32`, of the same dimensions.
    weights: Tensor,
}

/// Brings tokens `x` `[batch, length, embed]` and their routing to the experts.
#[track_caller]
pub fn dispatch(x: Tensor, routing: &Routing) -> Dispatched {
    Dispatched {
        tokens: x.with_axes_each_way(&GATHERED_TOKENS, &STREAM),
        experts: routing.experts.with_axes(GATHERED_CHOICES),
        weights: routing.weights.with_axes_each_way(&GATHERED_CHOICES, &ROUTED_CHOICES),
    }
}

/// Brings results `[batch, length, embed]` back to the residual stream.
#[track_caller]
pub fn combine(results: Tensor) -> Tensor {
    results.with_axes_each_way(&STREAM, &GATHERED_TOKENS)
}

/// One group of experts.
#[derive(Clone, Copy)]
struct Group {
    /// `[experts, embed, mlp]`.
    gate: Tensor,
    /// `[experts, embed, mlp]`.
    up: Tensor,
    /// `[experts, mlp, embed]`.
    down: Tensor,
}

/// One row's tokens, or a part of them.
#[derive(Clone, Copy)]
struct Row {
    /// `[length, embed]`.
    tokens: Tensor,
    /// Which expert of the group each choice is, in the order of tokens; out of range for those of other groups. `s32`
    /// `[choices]`.
    experts: Tensor,
    /// `[choices]`.
    weights: Tensor,
}

/// The weighted sum over the experts of each token: `[batch, length, embed]`, a sum over the groups of experts.
///
/// # Errors
/// The groups do not divide the experts, or the parts the length.
#[track_caller]
pub fn run_experts(dispatched: &Dispatched, params: &Moe<Tensor>, config: &MoeConfig) -> Tensor {
    let dtype = dispatched.tokens.dtype();
    let [gate, up, down] = [params.gate, params.up, params.down].map(|weight| weight.convert(dtype));
    let [batch, length, embed] = dispatched.tokens.shape();
    let (groups, parts) = (config.expert_groups.max(1), config.sequence_parts.max(1));
    if let Some(wrong) = misfit(config.experts, "experts", groups).or_else(|| misfit(length, "tokens", parts)) {
        let (expected, found) = wrong;
        return dispatched.tokens.mismatch("run_experts", expected, found, Location::caller());
    }
    let part = length / parts;
    let choices = part * config.experts_per_token;
    let tokens = dispatched.tokens.reshape([batch, parts, part, embed]);
    let [experts, weights] = [dispatched.experts, dispatched.weights].map(|x| x.reshape([batch, parts, choices]));
    let run = |group: Group, rows: (Tensor, Tensor, Tensor)| {
        let by_batch = VmapOptions::default().named(GATHERED_TOKENS[0]);
        vmap_with(by_batch, rows, |rows| {
            let by_part = VmapOptions::default().named(GATHERED_TOKENS[1]);
            vmap_with(by_part, rows, |(tokens, experts, weights)| run_group(group, Row { tokens, experts, weights }))
        })
    };
    let results = if groups == 1 {
        run(Group { gate, up, down }, (tokens, experts, weights))
    } else {
        let per_group = config.experts / groups;
        let cut = |weight: Tensor| {
            let [_, rows, columns] = weight.shape();
            weight.reshape([groups, per_group, rows, columns])
        };
        // Each group has its own copy, which is none where each device has one group. libtpu (0.0.51) fails over some
        // lookups in a tensor that only the positions have one more dimension than.
        let copied = |x: Tensor| x.expand(0).broadcast_to([&[groups][..], &x.dims()].concat());
        let first = arange(DType::S32, groups) * per_group as f64;
        let by_group = VmapOptions::default().named("activation_exp");
        let inputs = ((cut(gate), cut(up), cut(down), first), (copied(tokens), copied(weights)));
        let results = vmap_with(by_group, inputs, |((gate, up, down, first), (tokens, weights))| {
            run(Group { gate, up, down }, (tokens, experts - first.broadcast_to(experts.dims()), weights))
        });
        results.sum(0)
    };
    results.reshape([batch, length, embed])
}

/// What is expected and found, if a number of things cannot be cut into equal parts.
fn misfit(count: usize, what: &str, parts: usize) -> Option<(String, String)> {
    let wrong = (format!("a divisor of the {count} {what}"), parts.to_string());
    (!count.is_multiple_of(parts)).then_some(wrong)
}

/// What a group of experts makes of a row: `[length, embed]`, zero for tokens that chose none of them.
fn run_group(group: Group, row: Row) -> Tensor {
    let [length, embed] = row.tokens.shape();
    let [count, _, _] = group.gate.shape();
    let [choices] = row.experts.shape();
    let per_token = choices / length.max(1);
    let own = row.experts.greater_equal(0.0) & row.experts.less(count as f64);
    let key = own.select(row.experts, count as f64);
    let sizes = key.one_hot(count, DType::S32).sum(0);
    // A token chooses different experts, so no more of its choices than there are experts in the group can be of the
    // group.
    let most = length * per_token.min(count);
    let sorted = sort_together(&[key, arange(DType::S32, choices)], 0, 1);
    let choice = sorted[1].slice(0, ..most);
    let token = choice / per_token.max(1) as f64;
    let tokens = row.tokens.at(&[token]).in_bounds().get();
    let weights = row.weights.at(&[choice]).in_bounds().unique().get().convert(tokens.dtype());
    let hidden = swiglu(ragged_dot(tokens, group.gate, sizes), ragged_dot(tokens, group.up, sizes)).named("mlp_hidden");
    // Weighted before the last product, which is linear: so its result is not needed again for the gradient of the
    // weights.
    let weighted = hidden * weights.broadcast_like(hidden, [0]);
    let results = ragged_dot(weighted, group.down, sizes);
    zeros(results.dtype(), [length, embed]).at(&[token]).in_bounds().add(results)
}
