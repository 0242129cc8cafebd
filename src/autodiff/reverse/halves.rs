//! The forward and backward halves of a function, for callers that run them separately.

use super::calls::CallCache;
use super::residual::Residual;
use super::split::{Joint, JointHalves};
use crate::autodiff::activity::output_activity;
use crate::ir::{Graph, OpError, TensorType, Value};

/// A function cut into a forward and a backward half. The caller that runs the backward half has the function's inputs
/// at hand. The other values that the backward half needs are residuals, which the forward half returns.
#[derive(Clone, Debug)]
pub struct Halves {
    /// Takes the inputs; returns the outputs, then the residuals.
    forward: Graph,
    /// Takes the values that `reads` lists, then the cotangents of the `wanted` outputs; returns those of the `active`
    /// inputs.
    backward: Graph,
    reads: Vec<Residual>,
    /// Number of the function's outputs.
    output_count: usize,
    /// Outputs that have a cotangent.
    wanted: Vec<bool>,
    /// Inputs that have a cotangent.
    active: Vec<usize>,
}

impl Halves {
    /// Differentiates `graph` with respect to the floating-point inputs marked active.
    ///
    /// # Errors
    /// A cotangent reaches an op that is not differentiable.
    pub fn of(graph: &Graph, active: &[bool]) -> Result<Halves, OpError> {
        let float = graph.input_types().map(|ty| ty.dtype.is_float());
        let active: Vec<bool> = active.iter().zip(float).map(|(&active, float)| active && float).collect();
        let wanted = output_activity(graph, &active);
        let mut joint = Joint::new(graph, 0, &active, &wanted, &[], &CallCache::default())?;
        joint.require(|input| active[input]);
        let gradients: Vec<Value> = joint.gradients.iter().copied().flatten().collect();
        let active = (0..active.len()).filter(|&input| joint.gradients[input].is_some()).collect();
        let output_count = graph.outputs().len();
        let JointHalves { forward, backward, residuals, .. } = joint.split(&gradients, |_| true, output_count);
        Ok(Halves { forward, backward, reads: residuals, output_count, wanted, active })
    }

    /// The forward half. It takes the inputs and returns the outputs, then the residuals.
    pub fn forward(&self) -> &Graph {
        &self.forward
    }

    /// The backward half. It is applied to [`Halves::arguments`].
    pub fn backward(&self) -> &Graph {
        &self.backward
    }

    /// For each argument of the backward half, the input of the function that it is, if it is one.
    pub(in crate::autodiff) fn argument_inputs(&self) -> impl Iterator<Item = Option<usize>> {
        let input = |read: &Residual| match *read {
            Residual::Input(index) => Some(index),
            Residual::Computed(_) | Residual::Output(_) => None,
        };
        let cotangents = self.backward.inputs().len() - self.reads.len();
        self.reads.iter().map(input).chain(std::iter::repeat_n(None, cotangents))
    }

    /// The inputs whose cotangents the backward half returns, in order.
    pub fn active(&self) -> &[usize] {
        &self.active
    }

    /// Whether the backward half reads an input.
    pub fn reads_input(&self, input: usize) -> bool {
        self.reads.contains(&Residual::Input(input))
    }

    /// The types of the residuals.
    pub fn residual_types(&self) -> impl Iterator<Item = &TensorType> {
        self.forward.output_types().skip(self.output_count)
    }

    /// The arguments of the backward half, taken from the function's inputs, the residuals, and the cotangents of all
    /// outputs.
    pub fn arguments<T: Copy>(&self, inputs: &[T], residuals: &[T], cotangents: &[T]) -> Vec<T> {
        let read = self.reads.iter().map(|read| match *read {
            Residual::Input(index) => inputs[index],
            // Outputs are not kept for the backward half, so it never asks for one as such.
            Residual::Computed(index) | Residual::Output(index) => residuals[index],
        });
        let wanted = cotangents.iter().zip(&self.wanted).filter(|(_, wanted)| **wanted).map(|(&ct, _)| ct);
        read.chain(wanted).collect()
    }
}
