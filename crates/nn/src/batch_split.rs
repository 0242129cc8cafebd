//! A decoder layer in two halves of the batch, whose steps alternate in the program.
//!
//! The exchanges of one half depend on nothing that the other computes. So a plugin that overlaps collectives with
//! products can hide them:
//!
//! | first half | second half |
//! |---|---|
//! | attention | |
//! | **dispatch** | attention |
//! | experts | **dispatch** |
//! | **combine** | experts |
//! | shared experts | **combine** |
//!
//! In the backward pass the halves are just as independent, but it runs one after the other. There an exchange stands
//! beside products of the other half for a scheduler that moves it, as those of GPU and TPU do. A half takes every
//! second row: neighbouring rows lie on one device, so no row moves. Both halves use the same weights, which are
//! gathered once. The load-balance loss is the mean over both halves, which equals the layer's, since it is a mean over
//! rows. Source of the idea: DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 3.2.1; MaxText's
//! `deepseek_batchsplit`.

use meshloom::trace::{Tensor, scope, stack};

use super::dropout::Dropout;
use super::kv_cache::Keys;
use super::layer::{Angles, FeedForward, FeedForwardConfig, Layer, LayerLoss, RowInputs, added};
use super::moe::{Moe, MoeConfig, add_shared, combine, dispatch, route, run_experts};
use super::token_places::TokenPlaces;

/// One half of what a layer reads.
struct BatchHalf {
    x: Tensor,
    angles: Angles,
    tokens: TokenPlaces,
    /// The dropout of these rows.
    dropout: Option<Dropout>,
}

/// See [`DecoderConfig::layer`](super::DecoderConfig::layer).
pub(super) fn run(layer: Layer<'_>, x: Tensor, rows: RowInputs<'_>, dropout: Option<Dropout>) -> (Tensor, LayerLoss) {
    let halves = cut(x, rows, dropout);
    match (&layer.params.mlp, &layer.config.feed_forward) {
        (FeedForward::Routed(experts), FeedForwardConfig::Routed(routed)) => {
            routed_layer(layer, &halves, experts, routed)
        }
        _ => {
            let attended = halves.each_ref().map(|half| half.attention(layer));
            let [first, second] = [0, 1].map(|half| layer.feed_forward_block(attended[half], halves[half].dropout).0);
            (joined(first, second), None)
        }
    }
}

/// The steps of a layer with routed experts, in the order of the table above.
fn routed_layer(
    layer: Layer<'_>,
    [first, second]: &[BatchHalf; 2],
    experts: &Moe<Tensor>,
    routed: &MoeConfig,
) -> (Tensor, LayerLoss) {
    let send = |x: Tensor| {
        let normal = layer.enter_feed_forward(x);
        let routing = route(normal, experts, routed);
        (normal, dispatch(normal, &routing, routed), routing)
    };
    let x = first.attention(layer);
    let (normal, sent, routing) = scope("mlp", || send(x));
    let other_x = second.attention(layer);
    scope("mlp", || {
        let (other_normal, other_sent, other_routing) = send(other_x);
        let made = combine(run_experts(&sent, experts, routed), &sent);
        let other_made = combine(run_experts(&other_sent, experts, routed), &other_sent);
        let made = add_shared(normal, made, &routing, experts, routed);
        let done = layer.leave_feed_forward(x, made, first.dropout);
        let other_made = add_shared(other_normal, other_made, &other_routing, experts, routed);
        let other_done = layer.leave_feed_forward(other_x, other_made, second.dropout);
        let loss = added(layer.loss.of(&routing), layer.loss.of(&other_routing));
        (joined(done, other_done), loss.map(|loss| loss * 0.5))
    })
}

impl BatchHalf {
    fn attention(&self, layer: Layer<'_>) -> Tensor {
        layer.attention_block(self.x, &self.angles, &mut Keys::of_rows(self.tokens), self.dropout)
    }
}

/// Cuts the inputs of a layer into halves. Dropout goes by the numbers of rows, so the same elements drop as in a layer
/// that is not cut.
fn cut(x: Tensor, rows: RowInputs<'_>, dropout: Option<Dropout>) -> [BatchHalf; 2] {
    [0, 1].map(|half| BatchHalf {
        x: every_second(x, half),
        angles: rows.angles.map(|angles| every_second(angles, half)),
        tokens: rows.tokens.map(|x| every_second(x, half)),
        dropout: dropout.map(|dropout| Dropout { rows: every_second(dropout.rows, half), ..dropout }),
    })
}

/// Every second row from `first` on.
fn every_second(x: Tensor, first: usize) -> Tensor {
    let half = x.dim(0) / 2;
    let pairs = x.reshape_first(&[half, 2]);
    pairs.slice(1, first..first + 1).reshape([&[half], x.dims().get(1..).unwrap_or_default()].concat())
}

/// Rows in turns from one and the other.
fn joined(first: Tensor, second: Tensor) -> Tensor {
    let rest = first.dims();
    let rest = rest.get(1..).unwrap_or_default();
    stack(&[first, second], 1).reshape([&[2 * first.dim(0)], rest].concat())
}
