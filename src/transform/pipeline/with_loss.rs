//! A pipeline and the loss behind it, under any schedule.

use std::panic::Location;

use super::by_table::in_one_loop;
use super::input::penalized;
use super::lock_step::pipeline;
use super::{LayerPlace, PipelineInput, PipelineLoss, PipelineOptions, StackedWeights};
use crate::trace::{Tensor, Tree, refill};

/// As [`pipeline`], with a loss of the results: `loss` gets activations, its weights, and their rows, and returns a
/// scalar. It is a sum over rows, so it may be computed microbatch by microbatch. Returns the loss with all penalties,
/// and the auxiliary values, through which only the gradient of the penalties flows.
///
/// Where stages [branch](super::Schedule::branches), the loss of a microbatch and its gradient are computed while
/// others are on their way; otherwise the loss is that of the whole batch.
#[track_caller]
pub fn pipeline_with_loss<W, X, A, H>(
    options: &PipelineOptions,
    stacked: StackedWeights<W>,
    input: PipelineInput<X>,
    layer: impl Fn(Tensor, W, X, LayerPlace) -> (Tensor, A),
    head: PipelineLoss<H>,
    loss: impl FnOnce(Tensor, H, X) -> Tensor,
) -> (Tensor, A)
where
    W: Tree<Leaf = Tensor> + Clone,
    X: Tree<Leaf = Tensor> + Clone,
    A: Tree<Leaf = Tensor>,
    H: Tree<Leaf = Tensor>,
{
    let place = Location::caller();
    if options.schedule.branches() {
        return in_one_loop(options, &stacked, &input, layer, (&head, loss), place);
    }
    let rows = input.rows.clone();
    let (x, aux) = pipeline(options, stacked, input, layer);
    let leaves = aux.leaves();
    let value = loss(x, head.weights.weights, rows);
    let value = penalized(value, &head.penalties, &leaves);
    let mut seen = leaves.iter().map(|aux| aux.stop_gradient());
    (value, refill(&aux, &mut seen))
}
