//! Cyclic shifts.

use super::{
    FactorKind, FactorRule, Facts, Primitive, ResultTypes, SliceDim, expect_axes, expect_operands, one,
    slice_dimensions,
};
use crate::autodiff::{JvpContext, VjpContext};
use crate::batching::BatchContext;
use crate::emit::EmitContext;
use crate::ir::{OpError, TensorType, TypeError};
use crate::partition::{PartitionContext, Stretch};

/// Moves the elements of one dimension `shift` places on; those that leave it at the end come in again at the start, so
/// `result[i] = operand[(i - shift) mod size]`.
///
/// HLO has no such op: two slices and a concatenate do it. It is an op of its own because a dimension that is split over
/// devices stays split: every device sends its last elements to the next one, which the factor's kind says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Roll {
    /// The dimension shifted.
    pub axis: usize,
    /// How far; negative towards the front.
    pub shift: i64,
}

crate::ir::op_text!(Roll = "roll" { axis: key("axis"), shift: key("shift") });

impl Primitive for Roll {
    fn name(&self) -> &'static str {
        "roll"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        expect_axes(&[self.axis], operands[0].rank())?;
        if self.shift == i64::MIN {
            return Err(TypeError::Attribute("the shift has no opposite".to_owned()));
        }
        Ok(one(operands[0].clone()))
    }

    fn facts(&self) -> Facts<'_> {
        Facts::MOVEMENT
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let gradient = context.builder.push1(Roll { axis: self.axis, shift: -self.shift }, &[ct])?;
        context.set(0, gradient);
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        context.linear_in(self.clone(), &[0])
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (dim, &size) in operands[0].dims.iter().enumerate() {
            let kind = if dim == self.axis { FactorKind::Permutation } else { FactorKind::Parallel };
            rule.add(size, kind, &[(0, dim)], &[(0, dim)]);
        }
        rule
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        context.all(Roll { axis: self.axis + 1, shift: self.shift })
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let axes = context.operand_axes(0, self.axis);
        if axes.is_empty() {
            return context.apply(self.clone());
        }
        let (whole, size) = (context.operand_type(0).dims[self.axis] as i64, context.operand_dims(0)[self.axis]);
        let stretch = Stretch { first: -self.shift.rem_euclid(whole), step: size as i64, size, wraps: true };
        let result = context.stretch(context.operand(0), self.axis, &axes, stretch)?;
        context.push_result(result);
        Ok(())
    }

    fn emit(&self, context: &mut EmitContext<'_>) {
        let ty = context.operand_type(0).clone();
        let size = ty.dims[self.axis];
        let distance = if size == 0 { 0 } else { self.shift.rem_euclid(size as i64) as usize };
        if distance == 0 {
            return context.forward_operand();
        }
        let operand = context.operand_id(0);
        let parts = [(size - distance, size), (0, size - distance)].map(|(start, limit)| {
            let mut part = ty.clone();
            part.dims[self.axis] = limit - start;
            let mut ranges: Vec<SliceDim> =
                ty.dims.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
            ranges[self.axis] = SliceDim { start, limit, stride: 1 };
            context.begin_typed("slice", &part, &[operand]).slice_dimensions.extend(slice_dimensions(&ranges));
            context.commit()
        });
        context.begin_with("concatenate", 0, &parts).dimensions.push(self.axis as i64);
        context.finish();
    }
}
