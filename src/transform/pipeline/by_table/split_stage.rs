//! The backward pass of a stage cut in two: B, the cotangents of activations, for which the stage before waits, and W,
//! those of weights, which can wait.

use super::{Iteration, StageFunction, StageHalves, StageInputs, gradient_among};
use crate::autodiff::{Halves, Read, SplitBackward};
use crate::ir::TensorType;
use crate::trace::{self, Tensor, fail_internal};

/// The kind of an argument of the backward half.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Argument {
    /// An input of the stage's function.
    Input,
    /// One of [`Iteration::residuals`].
    Residual(usize),
    /// The cotangent of a result: of the activations first, then of auxiliary values.
    Cotangent(usize),
}

/// The backward half of a stage's function, cut in two.
pub(in crate::transform::pipeline) struct SplitStage {
    cut: SplitBackward,
    /// For each of [`Iteration::residuals`], whether it waits for W, not only for B.
    pub(in crate::transform::pipeline) waits: Vec<bool>,
    /// Whether W reads the cotangent of the activations too.
    keeps_cotangent: bool,
    /// Whether W reads weights. The W of linear layers does not.
    pub(in crate::transform::pipeline) reads_weights: bool,
    /// For each weight, whether its cotangent is W's. The cotangents of vectors, such as the scale of a norm, are B's:
    /// each is a sum over rows, which takes less memory than the rows.
    pub(in crate::transform::pipeline) waiting_weights: Vec<bool>,
}

impl StageFunction {
    /// Cuts the backward half. Returns `None` after an error, which has been noted.
    pub(in crate::transform::pipeline) fn split(&self, halves: &Halves) -> Option<SplitStage> {
        let weights = self.weight_inputs();
        let waiting_weights: Vec<bool> = self.weight_ranks().map(|rank| rank > 1).collect();
        let waits = |input: usize| weights.contains(&input) && waiting_weights[input - weights.start];
        let cut = trace::split_backward(halves, waits)?;
        let residual_count = halves.residual_types().count();
        // The activations that the stage began with are kept among the residuals.
        let x = weights.end;
        let inputs: Vec<(usize, Argument)> = (0..self.input_count())
            .map(|input| (input, if input == x { Argument::Residual(residual_count) } else { Argument::Input }))
            .collect();
        let no_input = usize::MAX;
        let residuals: Vec<_> = (0..residual_count).map(|index| (no_input, Argument::Residual(index))).collect();
        let cotangents: Vec<_> = (0..self.output_count()).map(|index| (no_input, Argument::Cotangent(index))).collect();
        let arguments = halves.arguments(&inputs, &residuals, &cotangents);
        let read: Vec<(usize, Argument)> = cut
            .reads()
            .iter()
            .filter_map(|read| match *read {
                Read::Argument(index) => Some(arguments[index]),
                Read::Between(_) => None,
            })
            .collect();
        let is_read = |wanted: Argument| read.iter().any(|(_, argument)| *argument == wanted);
        Some(SplitStage {
            waits: (0..=residual_count).map(|index| is_read(Argument::Residual(index))).collect(),
            keeps_cotangent: is_read(Argument::Cotangent(0)),
            reads_weights: read.iter().any(|(input, _)| weights.contains(input)),
            waiting_weights,
            cut,
        })
    }

    /// The types of the values that B leaves for W.
    pub(in crate::transform::pipeline) fn between_types(&self, split: &SplitStage) -> Vec<TensorType> {
        let left = split.cut.inputs_half().output_types().skip(split.cut.inputs().len());
        left.chain(self.output_type().filter(|_| split.keeps_cotangent)).cloned().collect()
    }

    /// B: the cotangents of the weights that are its own, that of the activations that an iteration began with, and the
    /// values that W needs. The arguments are those of [`StageFunction::run_back`].
    pub(in crate::transform::pipeline) fn run_inputs_back(
        &self,
        (halves, split): (&StageHalves, &SplitStage),
        captured: &[Tensor],
        inputs: StageInputs,
        iteration: Iteration,
    ) -> (Vec<Tensor>, Tensor, Vec<Tensor>) {
        let (y, weights) = (iteration.y, inputs.weights.clone());
        let (arguments, x) = self.backward_arguments(halves, captured, inputs, iteration);
        let mut results = trace::inline(split.cut.inputs_half(), &arguments, self.place);
        let mut between = results.split_off(split.cut.inputs().len());
        between.extend(split.keeps_cotangent.then_some(y));
        let of_x = gradient_among(split.cut.inputs(), &results, self.weight_inputs().end);
        let own = |index: usize| !split.waiting_weights[index];
        let of_weights = self.weight_gradients(split.cut.inputs(), &results, &weights, own);
        (of_weights, of_x.unwrap_or_else(|| x.zeros_like()), between)
    }

    /// W: the cotangents of the weights that are its own. It reads only those `inputs` and residuals that
    /// [wait](SplitStage::waits) or are not activations.
    pub(in crate::transform::pipeline) fn run_weights_back(
        &self,
        (halves, split): (&StageHalves, &SplitStage),
        captured: &[Tensor],
        inputs: StageInputs,
        (residuals, mut between, aux): (Vec<Tensor>, Vec<Tensor>, Vec<Tensor>),
    ) -> Vec<Tensor> {
        let (weights, unread) = (inputs.weights.clone(), inputs.x);
        let missing = || fail_internal("W of a stage of a pipeline", "the cotangent that B has left");
        let y = if split.keeps_cotangent { between.pop().unwrap_or_else(missing) } else { unread };
        let iteration = Iteration { y, aux, residuals };
        let (arguments, _) = self.backward_arguments(halves, captured, inputs, iteration);
        let of_inputs = vec![unread; split.cut.inputs().len()];
        let arguments = split.cut.arguments(&arguments, &[of_inputs, between].concat());
        let results = trace::inline(split.cut.weights_half(), &arguments, self.place);
        self.weight_gradients(split.cut.weights(), &results, &weights, |index| split.waiting_weights[index])
    }
}
