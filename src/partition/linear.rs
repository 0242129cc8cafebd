//! Which ops may be applied to a partial sum: linear ones, whose results are no larger.

use smallvec::SmallVec;

use crate::ir::{Graph, Phase, TensorType, Value};
use crate::ops::{BinaryKind, Op, ReduceKind, ScatterKind, UnaryKind};

/// Operands that an op is linear in.
pub(super) enum Linear {
    /// None: every operand has to be complete.
    No,
    /// In all of these together: each must be a partial sum over the same axes.
    Together(SmallVec<[usize; 4]>),
    /// In each of these alone, while the others are complete.
    Either(SmallVec<[usize; 2]>),
}

/// What an op does to partial sums. An op with a result of more elements is better applied to the sum.
///
/// To fewer bits, the sum of the rounded parts is not the rounded sum. A cotangent is rounded part by part all the same: it is to have the
/// bits of its primal, not those of a sum of them, and a gradient that is added up in a loop would else be reduced in every iteration.
pub(super) fn linearity(op: &Op, operands: &[&TensorType], phase: Phase) -> Linear {
    let together = |list: &[usize]| Linear::Together(SmallVec::from_slice(list));
    // The parts of an integer sum wrap around as the sum does, but a quotient of parts is none of the sum.
    match op {
        Op::Unary(op) if op.0 == UnaryKind::Negate => together(&[0]),
        Op::Binary(op) => match op.0 {
            BinaryKind::Add | BinaryKind::Subtract => together(&[0, 1]),
            BinaryKind::Multiply => Linear::Either(SmallVec::from_slice(&[0, 1])),
            BinaryKind::Divide if operands[0].dtype.is_float() => together(&[0]),
            _ => Linear::No,
        },
        Op::Reduce(op) if op.kind == ReduceKind::Sum => together(&[0]),
        Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice(_)
        | Op::Reverse(_)
        | Op::Roll(_)
        | Op::Named(_)
        | Op::StopGradient(_)
        | Op::DynamicSlice(_) => together(&[0]),
        Op::Select(_) => together(&[1, 2]),
        // Rows that come together: routed tokens, or gradients of a gather.
        Op::Scatter(op)
            if op.kind == ScatterKind::Add && operands[2].element_count() >= operands[0].element_count() =>
        {
            together(&[0, 2])
        }
        Op::Concatenate(_) => Linear::Together((0..operands.len()).collect()),
        Op::Convert(op) if is_widening(operands[0], op.0) => together(&[0]),
        Op::Convert(op) if phase == Phase::Backward && op.0.is_float() && operands[0].dtype.is_float() => {
            together(&[0])
        }
        _ => Linear::No,
    }
}

/// Whether every number of the operand's type is one of `dtype`, which is of floats.
pub(super) fn is_widening(operand: &TensorType, dtype: crate::ir::DType) -> bool {
    dtype.is_float() && operand.dtype.is_float() && dtype.byte_count() > operand.dtype.byte_count()
}

/// Whether a value is zero everywhere, which is a partial sum over any axes.
pub(super) fn is_zero(graph: &Graph, value: Value) -> bool {
    let node = graph.defining_node(value);
    node.is_some_and(|node| matches!(node.op(), Op::Splat(splat) if splat.number() == 0.0))
}
