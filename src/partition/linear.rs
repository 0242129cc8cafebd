//! The ops that may be applied to a partial sum: linear ones, whose results are no larger.

use crate::ir::{Graph, NodeRef, Phase, TensorType, Value};
use crate::ops::{Binary, BinaryKind, Class, Effect, Linear, Op};

/// The operands in which an op is best applied to partial sums. If the op is linear in several operands together, all
/// of these must be partial sums over the same axes. If it is linear in each of several operands alone, one of them may
/// be a partial sum, while the others are complete.
///
/// An op with a result of more elements, or one that takes time, is better applied to the sum.
///
/// With fewer bits, the sum of the rounded parts is not the rounded sum. A cotangent is nevertheless rounded part by
/// part: it is to have the bits of its primal, not those of a sum of them, and otherwise a gradient that is added up in
/// a loop would be reduced in every iteration.
///
/// Scaling by a number that is not finite is not linear: zero times infinity is NaN, so that the sum of the scaled
/// parts is NaN where the scaled sum is infinite. This is known of constants only. With a factor that becomes infinite
/// at run time, infinite elements of the result may be NaN; an element that is finite on one device stays as it is.
pub(super) fn linearity(graph: &Graph, node: NodeRef<'_>, operands: &[&TensorType], result: &TensorType) -> Linear {
    let (op, phase) = (node.op(), node.origin().phase);
    if node.operands().iter().enumerate().any(|(index, &value)| is_degenerate(graph, op, index, value)) {
        return Linear::No;
    }
    let facts = op.facts();
    let linear = match facts.linear {
        Linear::OfFloats(which) if result.dtype.is_float() && operands[0].dtype.is_float() => Linear::Together(which),
        // The parts of an integer sum wrap around as the sum does, but the quotients of the parts do not add up to the
        // quotient.
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

/// Whether an operand is a constant that makes numbers infinite, or NaN: one that is not finite, or a divisor of zero.
fn is_degenerate(graph: &Graph, op: &Op, index: usize, value: Value) -> bool {
    let Some(number) = graph.splat(value) else { return false };
    let is_divisor = matches!(op, Op::Binary(Binary(BinaryKind::Divide))) && index == 1;
    !number.is_finite() || is_divisor && number == 0.0
}
