//! The backward pass of a stage cut in two: B, the cotangents of activations, for which the stage before waits, and W,
//! those of weights, which can wait.

use super::super::stage::{Iteration, StageFunction, StageHalves, StageInputs, gradient_among};
use crate::autodiff::{HeldRead, SplitBackward};
use crate::ir::TensorType;
use crate::trace::{self, Tensor, fail_internal};

/// The backward half of a stage's function, cut in two.
pub(super) struct SplitStage {
    cut: SplitBackward,
    /// For each of [`Iteration::residuals`], whether it waits for W, not only for B.
    pub(super) waits: Vec<bool>,
    /// Whether W reads the cotangent of the activations too.
    keeps_cotangent: bool,
    /// Whether W reads weights. The W of linear layers does not.
    pub(super) reads_weights: bool,
    /// For each weight, whether its cotangent is W's. The cotangents of vectors, such as the scale of a norm, are B's:
    /// each is a sum over rows, which takes less memory than the rows.
    pub(super) waiting_weights: Vec<bool>,
}

impl SplitStage {
    /// Cuts the backward half. Returns `None` after an error, which has been noted.
    pub(super) fn of(stage: &StageFunction, StageHalves { halves, .. }: &StageHalves) -> Option<SplitStage> {
        let weights = stage.weight_inputs();
        let (one, layer_dims) = stage.of_one();
        let types: Vec<&TensorType> = one.input_types().collect();
        let waiting_weights: Vec<bool> = types[weights.clone()].iter().map(|ty| ty.rank() > layer_dims + 1).collect();
        let waits = |input: usize| weights.contains(&input) && waiting_weights[input - weights.start];
        let cut = trace::split_backward(halves, waits)?;
        // Arguments by numbers: inputs, then residuals with the activations that the stage began with as the last, then
        // cotangents of results.
        let (inputs, residuals) = (types.len(), halves.residual_types().count());
        let residual = |index: usize| inputs + index;
        let cotangent = |index: usize| residual(residuals + 1) + index;
        let input = |input: usize| if input == weights.end { residual(residuals) } else { input };
        let arguments = halves.arguments(
            &(0..inputs).map(input).collect::<Vec<_>>(),
            &(0..residuals).map(residual).collect::<Vec<_>>(),
            &(0..one.outputs().len()).map(cotangent).collect::<Vec<_>>(),
        );
        let is_read = |wanted: usize| {
            cut.reads().iter().any(|read| matches!(*read, HeldRead::Argument(index) if arguments[index] == wanted))
        };
        Some(SplitStage {
            waits: (0..=residuals).map(|index| is_read(residual(index))).collect(),
            keeps_cotangent: is_read(cotangent(0)),
            reads_weights: weights.clone().any(is_read),
            waiting_weights,
            cut,
        })
    }

    /// The types of the values that B leaves for W.
    pub(super) fn between_types(&self, stage: &StageFunction) -> Vec<TensorType> {
        let left = self.cut.inputs_half().output_types().skip(self.cut.inputs().len());
        left.chain(stage.output_type().filter(|_| self.keeps_cotangent)).cloned().collect()
    }

    /// B: the cotangents of the weights that are its own, that of the activations that an iteration began with, and the
    /// values that W needs. The arguments are those of [`StageFunction::run_back`].
    pub(super) fn inputs_back(
        &self,
        (stage, halves): (&StageFunction, &StageHalves),
        captured: &[Tensor],
        inputs: StageInputs,
        iteration: Iteration,
    ) -> (Vec<Tensor>, Tensor, Vec<Tensor>) {
        let (y, weights) = (iteration.y, inputs.weights.clone());
        let (arguments, x) = stage.backward_arguments(halves, captured, inputs, iteration);
        let mut results = trace::inline(self.cut.inputs_half(), &arguments);
        let mut between = results.split_off(self.cut.inputs().len());
        between.extend(self.keeps_cotangent.then_some(y));
        let of_x = gradient_among(self.cut.inputs(), &results, stage.weight_inputs().end);
        let own = |index: usize| !self.waiting_weights[index];
        let of_weights = stage.weight_gradients(self.cut.inputs(), &results, &weights, own);
        (of_weights, of_x.unwrap_or_else(|| x.zeros_like()), between)
    }

    /// W: the cotangents of the weights that are its own. It reads only those `inputs` and residuals that
    /// [wait](SplitStage::waits) or are not activations.
    pub(super) fn weights_back(
        &self,
        (stage, halves): (&StageFunction, &StageHalves),
        captured: &[Tensor],
        inputs: StageInputs,
        (residuals, mut between, aux): (Vec<Tensor>, Vec<Tensor>, Vec<Tensor>),
    ) -> Vec<Tensor> {
        let (weights, unread) = (inputs.weights.clone(), inputs.x);
        let missing = || fail_internal("W of a stage of a pipeline", "the cotangent that B has left");
        let y = if self.keeps_cotangent { between.pop().unwrap_or_else(missing) } else { unread };
        let iteration = Iteration { y, aux, residuals };
        let (arguments, _) = stage.backward_arguments(halves, captured, inputs, iteration);
        let of_inputs = vec![unread; self.cut.inputs().len()];
        let arguments = self.cut.arguments(&arguments, &[of_inputs, between].concat());
        let results = trace::inline(self.cut.weights_half(), &arguments);
        stage.weight_gradients(self.cut.weights(), &results, &weights, |index| self.waiting_weights[index])
    }
}
