//! Dispatches tokens to experts, runs the experts, and returns their results.
//!
//! Tokens are cut into parts by rows and by positions: a part has some positions of some rows, and its choices are
//! sorted by expert together. So parts may lie on different devices, and a device that has one part sorts all its
//! tokens at once, which gives each expert as many neighbouring rows as there can be. Experts are divided into groups,
//! which are one more dimension. Each group looks at all tokens, sorts those that chose one of its experts to the
//! front, and works on as many as there could be at most. A partitioner that splits these dimensions only has to gather
//! tokens before and sum results after.
//!
//! With [`ExpertExchange::AllToAll`], experts work on slots instead (`slots.rs`).

use std::panic::Location;

use meshloom::ir::DType;
use meshloom::trace::{Tensor, VmapOptions, arange, ragged_dot, sort_together, vmap_with, zeros};

use super::slots::{self, Slots};
use super::{ExpertExchange, Moe, MoeConfig, Routing};
use crate::layout::{GATHERED_CHOICES, GATHERED_TOKENS, ROUTED_CHOICES, STREAM, lying_as};
use crate::mlp::{Activation, hidden};

/// Tokens where the experts are.
#[derive(Clone, Copy, Debug)]
pub struct Dispatched(Form);

#[derive(Clone, Copy, Debug)]
enum Form {
    Gathered(Gathered),
    InSlots(Slots),
}

/// Tokens that are whole along the axes that experts are split over.
#[derive(Clone, Copy, Debug)]
struct Gathered {
    /// `[batch, length, embed]`.
    tokens: Tensor,
    /// `s32` `[batch, length, experts_per_token]`: the number of experts where a choice was dropped.
    experts: Tensor,
    /// `f32`, of the same dimensions.
    weights: Tensor,
}

/// Brings tokens `x` `[batch, length, embed]` and their routing to the experts.
///
/// # Errors
/// An all-to-all without a capacity.
#[track_caller]
pub fn dispatch(x: Tensor, routing: &Routing, config: &MoeConfig) -> Dispatched {
    let places = routing.places.zip(config.capacity(x.dim(1)));
    let gathered = |x: Tensor, experts: Tensor| {
        Dispatched(Form::Gathered(Gathered {
            tokens: x.with_axes_each_way(&GATHERED_TOKENS, &STREAM),
            experts: experts.with_axes(GATHERED_CHOICES),
            weights: routing.weights.with_axes_each_way(&GATHERED_CHOICES, &ROUTED_CHOICES),
        }))
    };
    match (config.exchange, places) {
        (ExpertExchange::AllToAll, Some((places, capacity))) => {
            Dispatched(Form::InSlots(slots::fill(x, routing, places, capacity, config)))
        }
        (ExpertExchange::AllToAll, None) => {
            let expected = "a capacity factor, which gives an all-to-all its slots".to_owned();
            gathered(x.mismatch("dispatch", expected, "none".to_owned(), Location::caller()), routing.experts)
        }
        (ExpertExchange::Gather, Some((places, capacity))) => {
            // No group has an expert of this number.
            gathered(x, places.less(capacity as f64).select(routing.experts, config.experts as f64))
        }
        (ExpertExchange::Gather, None) => gathered(x, routing.experts),
    }
}

/// Brings what [`run_experts`] made of `dispatched` back to the residual stream: `[batch, length, embed]`.
#[track_caller]
pub fn combine(results: Tensor, dispatched: &Dispatched) -> Tensor {
    match &dispatched.0 {
        Form::Gathered(_) => results.with_axes_each_way(&STREAM, &GATHERED_TOKENS),
        Form::InSlots(slots) => slots::collect(results, slots),
    }
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
    /// The biases of gate and up, if they have any: `[experts, mlp]`.
    biases: Option<(Tensor, Tensor)>,
}

/// Some positions of some rows.
#[derive(Clone, Copy)]
struct TokenPart {
    /// `[tokens, embed]`.
    tokens: Tensor,
    /// The expert of the group that each choice is, in the order of tokens; out of range for experts of other groups.
    /// `s32` `[choices]`.
    experts: Tensor,
    /// `[choices]`.
    weights: Tensor,
}

/// The weighted results of the experts, where the experts are: the sum over the experts of each token
/// `[batch, length, embed]`, which is a sum over the groups of experts; or the results of slots
/// `[batch, experts, capacity, embed]`. For [`combine`].
///
/// # Errors
/// Tokens are gathered, and the groups do not divide the experts, or the parts the batch or the length.
#[track_caller]
pub fn run_experts(dispatched: &Dispatched, params: &Moe<Tensor>, config: &MoeConfig) -> Tensor {
    match &dispatched.0 {
        Form::Gathered(gathered) => run_groups(gathered, params, config),
        Form::InSlots(slots) => slots::run(slots, params, config),
    }
}

/// See [`run_experts`].
#[track_caller]
fn run_groups(dispatched: &Gathered, params: &Moe<Tensor>, config: &MoeConfig) -> Tensor {
    let place = Location::caller();
    let dtype = dispatched.tokens.dtype();
    let [gate, up, down] = [params.gate, params.up, params.down].map(|weight| weight.convert(dtype));
    let biases = params.biases.as_ref().map(|biases| (biases.gate.convert(dtype), biases.up.convert(dtype)));
    let [batch, length, embed] = dispatched.tokens.shape();
    let groups = config.expert_groups.max(1);
    let parts = [config.batch_parts.max(1), config.sequence_parts.max(1)];
    let wrong = misfit(config.experts, "experts", groups)
        .or_else(|| misfit(batch, "rows", parts[0]))
        .or_else(|| misfit(length, "tokens", parts[1]));
    if let Some((expected, found)) = wrong {
        return dispatched.tokens.mismatch("run_experts", expected, found, place);
    }
    let tokens = in_parts(lying_as(dispatched.tokens, &GATHERED_TOKENS, place), parts);
    let experts = in_parts(dispatched.experts, parts);
    let weights = in_parts(lying_as(dispatched.weights, &GATHERED_CHOICES, place), parts);
    let run = |group: Group, parts: (Tensor, Tensor, Tensor)| {
        let by_batch = VmapOptions::default().named(GATHERED_TOKENS[0]);
        vmap_with(by_batch, parts, |parts| {
            let by_length = VmapOptions::default().named(GATHERED_TOKENS[1]);
            vmap_with(by_length, parts, |(tokens, experts, weights)| {
                let [experts, weights] = [experts, weights].map(|x| x.reshape([x.dim(0) * x.dim(1)]));
                run_group(group, TokenPart { tokens, experts, weights }, config.activation)
            })
        })
    };
    let results = if groups == 1 {
        run(Group { gate, up, down, biases }, (tokens, experts, weights))
    } else {
        let per_group = config.experts / groups;
        let cut = |weight: Tensor| weight.reshape_first(&[groups, per_group]);
        // Each group has its own copy; where each device has one group, nothing is copied. libtpu (0.0.51) fails over
        // some lookups whose positions have one more dimension than the tensor.
        let copied = |x: Tensor| x.expand(0).broadcast_to([&[groups][..], &x.dims()].concat());
        let first = arange(DType::S32, groups) * per_group as f64;
        let by_group = VmapOptions::default().named("activation_exp");
        let biases = biases.map(|(gate, up)| (cut(gate), cut(up)));
        let inputs = ((cut(gate), cut(up), cut(down), biases, first), (copied(tokens), copied(weights)));
        let results = vmap_with(by_group, inputs, |((gate, up, down, biases, first), (tokens, weights))| {
            let group = Group { gate, up, down, biases };
            run(group, (tokens, experts - first.broadcast_to(experts.dims()), weights))
        });
        results.sum(0)
    };
    let [rows, positions] = [batch / parts[0], length / parts[1]];
    let results = results.reshape([parts[0], parts[1], rows, positions, embed]);
    let results = results.transpose([0, 2, 1, 3, 4]).reshape([batch, length, embed]);
    lying_as(results, &GATHERED_TOKENS, place)
}

/// Tokens `[batch, length, width]` by parts of the batch and of the length, `[parts, parts, tokens of a part, width]`.
fn in_parts(x: Tensor, [batch_parts, sequence_parts]: [usize; 2]) -> Tensor {
    let [batch, length, width] = x.shape();
    let [rows, positions] = [batch / batch_parts, length / sequence_parts];
    let cut = x.reshape([batch_parts, rows, sequence_parts, positions, width]).transpose([0, 2, 1, 3, 4]);
    cut.reshape([batch_parts, sequence_parts, rows * positions, width])
}

/// The expected and the found number, if a number of things cannot be cut into equal parts.
fn misfit(count: usize, what: &str, parts: usize) -> Option<(String, String)> {
    let wrong = (format!("a divisor of the {count} {what}"), parts.to_string());
    (!count.is_multiple_of(parts)).then_some(wrong)
}

/// The results of a group of experts for a part: `[tokens, embed]`, zero for tokens that chose none of them.
fn run_group(group: Group, part: TokenPart, activation: Activation) -> Tensor {
    let [token_count, embed] = part.tokens.shape();
    let [count, _, _] = group.gate.shape();
    let [choices] = part.experts.shape();
    let per_token = choices / token_count.max(1);
    let own = part.experts.greater_equal(0.0) & part.experts.less(count as f64);
    let key = own.select(part.experts, count as f64);
    let sizes = key.one_hot(count, DType::S32).sum(0);
    // A token chooses different experts, so no more of its choices than there are experts in the group can be of the
    // group.
    let most = token_count * per_token.min(count);
    let sorted = sort_together(&[key, arange(DType::S32, choices)], 0, 1);
    let choice = sorted[1].slice(0, ..most);
    let token = choice / per_token.max(1) as f64;
    let tokens = part.tokens.at(&[token]).in_bounds().get();
    let weights = part.weights.at(&[choice]).in_bounds().unique().get().convert(tokens.dtype());
    let product = |matrices: Tensor, bias: Option<Tensor>| {
        let product = ragged_dot(tokens, matrices, sizes);
        match bias {
            // Rows behind those of the group have an expert out of range.
            Some(bias) => product + bias.at(&[sorted[0].slice(0, ..most)]).fill(0.0).get(),
            None => product,
        }
    };
    let gate = product(group.gate, group.biases.map(|(gate, _)| gate));
    let up = product(group.up, group.biases.map(|(_, up)| up));
    let hidden = hidden(activation, gate, up);
    // Weighted before the last product, which is linear: so its result is not needed again for the gradient of the
    // weights.
    let weighted = hidden * weights.broadcast_like(hidden, [0]);
    let results = ragged_dot(weighted, group.down, sizes);
    zeros(results.dtype(), [token_count, embed]).at(&[token]).in_bounds().add(results)
}
