//! Ragged dots as XLA's own instruction, `ragged-dot`, which computes the products of each row's own group and no others.
//!
//! Of the plugins at hand, that for TPU takes it (others write it as a dot over masked rows, as we do, or refuse it), with sizes of
//! one dimension. So each block of rows gets an instruction of its own; on one device there are few.

use super::{RaggedDot, RaggedMode};
use crate::hlo::{EmitContext, InstructionId, proto};
use crate::ir::{DType, TensorType};

/// More blocks than this are not written one by one.
const MOST_BLOCKS: usize = 64;

/// An operand, whose leading dimension counts its parts.
struct Parts {
    id: InstructionId,
    ty: TensorType,
}

impl RaggedDot {
    /// The number of instructions that the op would be, if that is a good form for the plugin at hand.
    pub(super) fn instruction_count(&self, context: &EmitContext<'_>) -> Option<usize> {
        let count = context.operand_type(0).dims[..self.leading_count()].iter().product();
        (context.has_ragged_dot() && (1..=MOST_BLOCKS).contains(&count)).then_some(count)
    }

    /// One instruction for each of `count` blocks of rows.
    pub(super) fn emit_instructions(&self, context: &mut EmitContext<'_>, count: usize) {
        let own = |operand: usize| {
            let is_matrices = operand == 1 && self.mode == RaggedMode::Rows;
            if is_matrices { self.batch_count } else { self.leading_count() }
        };
        let [lhs, rhs, sizes] = [0, 1, 2].map(|operand| parts(context, operand, own(operand)));
        let result = context.result_type(0).clone();
        let kept = if self.mode == RaggedMode::Rows { self.leading_count() } else { self.batch_count };
        let ty = TensorType::new(self.dtype, &result.dims[kept..]);
        let batches: usize = result.dims[..self.batch_count].iter().product();
        let blocks = count / batches.max(1);
        let mut results: Vec<InstructionId> = Vec::new();
        for index in 0..count {
            let left = part(context, &lhs, index);
            let right = part(context, &rhs, if self.mode == RaggedMode::Rows { index / blocks } else { index });
            let sizes = part(context, &sizes, index);
            let product = self.emit_one(context, &ty, [left, right, sizes]);
            match results.last_mut() {
                // Matrices are sums over the blocks of a batch.
                Some(sum) if self.mode == RaggedMode::Contracted && index % blocks > 0 => {
                    *sum = context.instruction("add", &ty, &[*sum, product]);
                }
                _ => results.push(product),
            }
        }
        let id = joined(context, &results, &ty, &result);
        context.set_result(0, id);
    }

    fn emit_one(&self, context: &mut EmitContext<'_>, ty: &TensorType, operands: [InstructionId; 3]) -> InstructionId {
        let (contracted, groups) = match self.mode {
            RaggedMode::Rows => ((1, 1), vec![0]),
            RaggedMode::Contracted => ((0, 0), Vec::new()),
        };
        let dot_dimension_numbers = Some(proto::DotDimensionNumbers {
            lhs_contracting_dimensions: vec![contracted.0],
            rhs_contracting_dimensions: vec![contracted.1],
            ..Default::default()
        });
        let numbers = proto::RaggedDotDimensionNumbers {
            dot_dimension_numbers,
            lhs_ragged_dimensions: vec![0],
            rhs_group_dimensions: groups,
        };
        let precision = self.precision.config();
        let instruction = context.begin_typed("ragged-dot", ty, &operands);
        instruction.ragged_dot_dimension_numbers = Some(numbers.into());
        instruction.precision_config = precision.map(Into::into);
        context.commit()
    }
}

/// An operand with its first `leading` dimensions as one.
fn parts(context: &mut EmitContext<'_>, operand: usize, leading: usize) -> Parts {
    let mut ty = context.operand_type(operand).clone();
    if operand == 2 {
        ty.dtype = DType::S32;
    }
    let count = ty.dims.drain(..leading).product();
    ty.dims.insert(0, count);
    let mut id = context.operand_id(operand);
    if context.operand_type(operand).dtype != ty.dtype {
        let narrow = context.operand_type(operand).with_dtype(ty.dtype);
        id = context.instruction("convert", &narrow, &[id]);
    }
    Parts { id: context.instruction("reshape", &ty, &[id]), ty }
}

/// One part, without the dimension that counts them.
fn part(context: &mut EmitContext<'_>, parts: &Parts, index: usize) -> InstructionId {
    let mut ty = parts.ty.clone();
    let mut id = parts.id;
    if ty.dims[0] > 1 {
        ty.dims[0] = 1;
        let slice = context.begin_typed("slice", &ty, &[id]);
        let range = |(dim, &size): (usize, &usize)| {
            let start = if dim == 0 { index as i64 } else { 0 };
            proto::hlo_instruction_proto::SliceDimensions { start, limit: start + size as i64, stride: 1 }
        };
        slice.slice_dimensions.extend(ty.dims.iter().enumerate().map(range));
        id = context.commit();
    }
    ty.dims.remove(0);
    context.instruction("reshape", &ty, &[id])
}

/// Parts of type `ty` side by side, as `result`.
fn joined(
    context: &mut EmitContext<'_>,
    parts: &[InstructionId],
    ty: &TensorType,
    result: &TensorType,
) -> InstructionId {
    if let [only] = parts {
        return context.instruction("reshape", result, &[*only]);
    }
    let mut row = ty.clone();
    row.dims.insert(0, 1);
    let rows: Vec<InstructionId> = parts.iter().map(|&part| context.instruction("reshape", &row, &[part])).collect();
    row.dims[0] = parts.len();
    context.begin_typed("concatenate", &row, &rows).dimensions.push(0);
    let all = context.commit();
    context.instruction("reshape", result, &[all])
}
