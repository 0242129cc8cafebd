//! Cyclic shifts.

use super::rules::*;
use super::{SliceDim, Stretch, slice_dimensions};

/// Moves the elements of one dimension `shift` places on. Elements that leave it at the end come in again at the start,
/// so `result[i] = operand[(i - shift) mod size]`.
///
/// HLO has no such op, so it becomes two slices and a concatenate. It is an op of its own because a dimension that is
/// split over devices stays split: every device sends its last elements to the next one, which the factor's kind says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Roll {
    /// The dimension shifted.
    pub axis: usize,
    /// The number of places; negative towards the front.
    pub shift: i64,
}

crate::ir::op_text!(Roll = "roll" { axis: key("axis"), shift: key("shift") });

impl Primitive for Roll {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        expect_axes(&[self.axis], operands[0].rank())?;
        refuse_if!(self.shift == i64::MIN, "the shift has no opposite");
        Ok(one(operands[0].clone()))
    }

    rules!(facts: MOVEMENT, jvp: linear, batch: axis);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        context.pull_back(|builder, ct| builder.push1(Roll { axis: self.axis, shift: -self.shift }, &[ct]))
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        FactorRule::aligned(operands, results, |dim| {
            if dim == self.axis { FactorKind::Permutation } else { FactorKind::Parallel }
        })
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

    fn emit(&self, context: &mut dyn EmitContext) {
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
            let mut ranges: Vec<SliceDim> = ty.dims.iter().map(|&size| SliceDim::whole(size)).collect();
            ranges[self.axis] = SliceDim { start, limit, stride: 1 };
            context.begin_typed("slice", &part, &[operand]).slice_dimensions.extend(slice_dimensions(&ranges));
            context.commit()
        });
        context.begin_with("concatenate", 0, &parts).dimensions.push(self.axis as i64);
        context.finish();
    }
}

import!(Roll: in_parts);
