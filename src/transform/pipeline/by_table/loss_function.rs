//! The loss of a microbatch, traced.

use super::super::stage::gradient_among;
use crate::autodiff::Halves;
use crate::ir::{AxisNames, DType, Graph};
use crate::ops::WithAxes;
use crate::trace::{self, Tensor, full};

/// The loss of a microbatch: a traced function of activations `[mb, ..]`, its own weights and rows `[mb, ..]`.
pub(super) struct LossFunction {
    pub(super) graph: Graph,
    /// The element type of the loss.
    pub(super) dtype: DType,
    pub(super) captured: Vec<Tensor>,
    pub(super) weight_count: usize,
    /// The logical names of the activations that it gets.
    pub(super) names: AxisNames,
}

impl LossFunction {
    /// Differentiates it, with respect to activations and weights.
    pub(super) fn differentiate(&self) -> Option<Halves> {
        let first = self.captured.len();
        let active: Vec<bool> =
            (0..self.graph.inputs().len()).map(|input| (first..=first + self.weight_count).contains(&input)).collect();
        trace::differentiate(&self.graph, &active)
    }

    /// The loss alone.
    pub(super) fn value(&self, captured: &[Tensor], x: Tensor, weights: &[Tensor], rows: &[Tensor]) -> Tensor {
        trace::inline(&self.graph, &[captured, &[self.named(x)], weights, rows].concat())[0]
    }

    /// The loss, the cotangent of the activations and those of the weights.
    pub(super) fn with_gradients(
        &self,
        halves: &Halves,
        captured: &[Tensor],
        (x, weights, rows): (Tensor, &[Tensor], &[Tensor]),
    ) -> (Tensor, Tensor, Vec<Tensor>) {
        let inputs = [captured, &[self.named(x)], weights, rows].concat();
        let results = trace::inline(halves.forward(), &inputs);
        let one = full(results[0].dtype(), [], 1.0);
        let arguments = halves.arguments(&inputs, &results[1..], &[one]);
        let gradients = trace::inline(halves.backward(), &arguments);
        let of = |input: usize, like: Tensor| {
            let found = gradient_among(halves.active(), &gradients, captured.len() + input);
            found.unwrap_or_else(|| like.zeros_like())
        };
        let of_x = of(0, x);
        let of_weights = weights.iter().enumerate().map(|(index, &weight)| of(1 + index, weight));
        (results[0], self.named(of_x), of_weights.collect())
    }

    fn named(&self, x: Tensor) -> Tensor {
        x.with_logical_axes(WithAxes::new(self.names.clone()))
    }
}
