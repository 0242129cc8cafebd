//! Clamping between two bounds.

use super::rules::*;
use super::{BinaryKind, Direction, OperandClass, Operands, ReduceKind, Select};

/// `clamp(low, operand, high)`: `min(max(operand, low), high)`, so where the bounds cross, `high` wins; NaN stays.
///
/// Each bound has the operand's dimensions, or none. The operand's slope is 1 strictly between the bounds and 0
/// elsewhere; beyond a bound, the bound has the slope that the operand loses. Exactly at a bound neither has a slope,
/// as in JAX.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Clamp;

crate::ir::op_text!(Clamp = "clamp" {});

/// Operand numbers.
const LOW: usize = 0;
const OPERAND: usize = 1;
const HIGH: usize = 2;

impl Clamp {
    /// Whether operand number `index` is the result, as `pred`, from bounds that have the operand's dimensions.
    fn chosen(builder: &mut GraphBuilder, [low, x, high]: [Value; 3], index: usize) -> Result<Value, OpError> {
        let (first, second, combine) = match index {
            LOW => {
                (builder.compare(Direction::Gt, low, x)?, builder.compare(Direction::Lt, low, high)?, BinaryKind::And)
            }
            HIGH => {
                (builder.compare(Direction::Lt, high, x)?, builder.compare(Direction::Lt, high, low)?, BinaryKind::Or)
            }
            _ => (builder.compare(Direction::Gt, x, low)?, builder.compare(Direction::Lt, x, high)?, BinaryKind::And),
        };
        builder.binary(combine, first, second)
    }

    /// The three operands with the dimensions of the middle one.
    fn aligned(builder: &mut GraphBuilder, operands: [Value; 3]) -> Result<[Value; 3], OpError> {
        let dims = builder.ty(operands[OPERAND]).dims.clone();
        let mut aligned = operands;
        for bound in [LOW, HIGH] {
            if builder.ty(aligned[bound]).rank() == 0 {
                aligned[bound] = builder.broadcast(aligned[bound], &dims, &[])?;
            }
        }
        Ok(aligned)
    }
}

impl Primitive for Clamp {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 3)?;
        let ty = operands[OPERAND];
        OperandClass::Numeric.check(OPERAND, ty)?;
        for bound in [LOW, HIGH] {
            expect_dtype(bound, operands[bound], ty.dtype)?;
            if operands[bound].rank() > 0 {
                expect_dims(bound, operands[bound], &ty.dims)?;
            }
        }
        Ok(one(ty.clone()))
    }

    rules!(facts = Facts::ELEMENTWISE.zero_of(Operands::All));
    rules!(factors: pointwise, partition: unchanged);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let operands = [LOW, OPERAND, HIGH].map(|index| context.operand(index));
        let aligned = Clamp::aligned(context.builder, operands)?;
        let zero = context.builder.zeros_like(ct);
        for (index, &operand) in operands.iter().enumerate() {
            if context.needs(index) {
                let builder = &mut *context.builder;
                let chosen = Clamp::chosen(builder, aligned, index)?;
                let mut gradient = builder.push1(Select, &[chosen, ct, zero])?;
                if builder.ty(operand).rank() == 0 {
                    let all: super::AxisList = (0..builder.ty(gradient).rank()).collect();
                    gradient = builder.reduce(ReduceKind::Sum, &all, gradient)?;
                }
                context.set(index, gradient);
            }
        }
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        let operands = [LOW, OPERAND, HIGH].map(|index| context.operand(index));
        let aligned = Clamp::aligned(context.builder, operands)?;
        let dims = context.operand_type(OPERAND).dims.clone();
        for index in [LOW, OPERAND, HIGH] {
            let Some(mut tangent) = context.tangent(index) else { continue };
            let builder = &mut *context.builder;
            let chosen = Clamp::chosen(builder, aligned, index)?;
            if builder.ty(tangent).rank() == 0 {
                tangent = builder.broadcast(tangent, &dims, &[])?;
            }
            let tangent = builder.or_zero(chosen, tangent)?;
            context.add(0, tangent)?;
        }
        Ok(())
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        let x = context.aligned(OPERAND)?;
        let dims = context.builder.ty(x).dims.clone();
        let mut operands = Values::from_slice(&[x, x, x]);
        for bound in [LOW, HIGH] {
            let is_scalar = context.example_type(bound).rank() == 0;
            operands[bound] = match (is_scalar, context.is_batched(bound)) {
                (true, false) => context.operand(bound),
                // One bound for each example.
                (true, true) => {
                    let bounds = context.operand(bound);
                    context.builder.broadcast(bounds, &dims, &[0])?
                }
                (false, _) => context.aligned(bound)?,
            };
        }
        context.apply(Clamp, &operands)
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        // HLO's clamp takes scalars for bounds, but XLA's CPU backend fails to compile one that stands alone.
        let ty = context.operand_type(OPERAND).clone();
        let operands = [LOW, OPERAND, HIGH].map(|index| {
            if context.operand_type(index).rank() == ty.rank() {
                return context.operand_id(index);
            }
            let bound = context.operand_id(index);
            context.repeat(&ty, bound)
        });
        context.begin_with(self.name(), 0, &operands);
        context.finish();
    }
}

import!(Clamp: "clamp" => |_| Some(Clamp));
