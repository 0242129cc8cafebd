//! Which ops may be applied to a partial sum: linear ones, whose results are no larger.

use crate::ir::{Graph, Phase, TensorType, Value};
use crate::ops::{Class, Effect, Linear, Op};

/// The operands in which an op is best applied to partial sums. Those that the op is linear in together must be partial
/// sums over the same axes; of those that it is linear in alone, one may be, while the others are complete.
///
/// An op with a result of more elements, or one that takes time, is better applied to the sum.
///
/// To fewer bits, the sum of the rounded parts is not the rounded sum. A cotangent is rounded part by part all the
/// same: it is to have the bits of its primal, not those of a sum of them, and a gradient that is added up in a loop
/// would else be reduced in every iteration.
pub(super) fn linearity(op: &Op, operands: &[&TensorType], result: &TensorType, phase: Phase) -> Linear {
    let facts = op.facts();
    let linear = match facts.linear {
        Linear::OfFloats(which) if result.dtype.is_float() && operands[0].dtype.is_float() => Linear::Together(which),
        // The parts of an integer sum wrap around as the sum does, but a quotient of parts is none of the sum.
        Linear::OfFloats(_) => Linear::No,
        linear => linear,
    };
    let is_light = match facts.class {
        Class::Elementwise | Class::Fold | Class::Identity | Class::Movement | Class::Reshape => true,
        // Rows that come together: routed tokens, or gradients of a gather.
        Class::Kernel => facts.is_in_place,
        Class::Broadcast | Class::Source => false,
    };
    if !is_light || facts.effect != Effect::None {
        return Linear::No;
    }
    match (op, linear) {
        (Op::Convert(to), _) if phase != Phase::Backward && !is_widening(operands[0], to.0) => Linear::No,
        (_, Linear::Together(which)) => {
            let read = which.of(operands.len()).into_iter().skip(usize::from(facts.is_in_place));
            let count: usize = read.map(|index| operands[index].element_count()).sum();
            if count >= result.element_count() { linear } else { Linear::No }
        }
        (_, linear) => linear,
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
