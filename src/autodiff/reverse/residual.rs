//! Residuals: the values that a backward half reads from the forward half.

use crate::ir::Value;

/// A value that the backward half reads from the forward half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residual {
    /// An input of the body: the caller of the backward half still has it.
    Input(usize),
    /// An output that the body returns anyway.
    Output(usize),
    /// A value the forward half computes: its extra output with this index.
    Computed(usize),
}

/// The residuals in the builder, from the op's operands and the results of its forward half; the last of them are the
/// computed residuals.
pub(super) fn residual_values(
    residuals: &[Residual],
    operands: &[Value],
    results: &[Value],
    output_count: usize,
) -> Vec<Value> {
    let value = |residual: &Residual| match *residual {
        Residual::Input(index) => operands[index],
        Residual::Output(index) => results[index],
        Residual::Computed(index) => results[output_count + index],
    };
    residuals.iter().map(value).collect()
}
