//! Grouped products by XLA's instruction `ragged-dot`, which libtpu makes a kernel of its own.
//!
//! The instruction has one list of groups, so rows that are divided into groups in parts are multiplied part by part.
//! Libtpu goes through the rows in tiles of the largest power of two that divides their number, so they are padded; it
//! does not visit rows of no group, and leaves their results unwritten, so these results are masked.
//!
//! Measured with libtpu 0.0.51: if 8 does not divide the number of rows, the instruction becomes a dot over masked
//! rows; sizes must be of 32 bits; operands of type f16 are refused on v5e.

use super::ExpertsKernel;
use super::pad::pad;
use super::traced::traced;
use crate::ir::{DType, TensorType, TypeError};
use crate::ops::{KernelImplementation, RaggedDot, RaggedForm, RaggedMode, RaggedSizes};
use crate::trace::{Tensor, TraceError, arange, concatenate, ragged_dot_by, stack, zeros};
use meshloom_hlo::PlatformKind;

/// The number of rows is padded to a multiple of this, which is the largest tile of any chip.
const TILE: usize = 256;

/// The most parts. More would be as many instructions.
const MOST_PARTS: usize = 32;

/// Refuses a platform that has no kernel for the instruction: CPU plugins do not run it, and the CUDA plugin makes it a
/// dot over masked rows.
pub(super) fn check(platform: PlatformKind) -> Result<(), TypeError> {
    if platform == PlatformKind::Tpu {
        return Ok(());
    }
    let (key, chosen) = ("kernels.experts", ExpertsKernel::RaggedDot.name());
    let reason = format!("the program is for {platform}, and the instruction is a kernel on tpu alone");
    Err(TypeError::Attribute(format!("{key} = \"{chosen}\": {reason}; choose {key} = \"auto\"")))
}

/// The implementation of a grouped product. Returns `None` if the instruction does not compute this one.
pub(super) fn ragged_dot(op: &RaggedDot, types: &[TensorType]) -> Result<Option<KernelImplementation>, TraceError> {
    let Some(call) = RaggedCall::new(op, types) else { return Ok(None) };
    let parts = call.batch * call.parts;
    let how = match parts {
        1 => format!("{} rows at once", call.padded()),
        _ => format!("{} rows at once, part by part", call.padded()),
    };
    let found = traced(ExpertsKernel::RaggedDot.name(), "ragged_dot", how, types, |operands| {
        vec![match op.mode {
            RaggedMode::Rows | RaggedMode::Transposed => call.by_rows(operands),
            RaggedMode::Contracted => call.contracted(operands),
        }]
    })?;
    Ok(Some(found))
}

/// A grouped product as the instruction takes it. Rows that share matrices are called parts here.
struct RaggedCall {
    /// The instruction.
    op: RaggedDot,
    sizes: RaggedSizes,
    /// The product of the leading dimensions that matrices have.
    batch: usize,
    /// The product of the leading dimensions that matrices do not have.
    parts: usize,
}

impl RaggedCall {
    /// Returns `None` if the instruction does not compute this one.
    fn new(op: &RaggedDot, types: &[TensorType]) -> Option<RaggedCall> {
        let takes = |dtype| matches!(dtype, DType::BF16 | DType::F32);
        if !takes(op.dtype) || !takes(types[0].dtype) || types.iter().any(|ty| ty.element_count() == 0) {
            return None;
        }
        let sizes = op.sizes(&types.iter().collect::<Vec<_>>());
        let (batch, parts) = (sizes.batch.iter().product::<usize>(), sizes.blocks.iter().product::<usize>());
        let op = RaggedDot { batch_count: 0, block_count: 0, form: RaggedForm::Instruction, ..op.clone() };
        (batch * parts <= MOST_PARTS).then_some(RaggedCall { op, sizes, batch, parts })
    }

    /// Rows of a part, in whole tiles.
    fn padded(&self) -> usize {
        self.sizes.rows.next_multiple_of(TILE)
    }

    /// The rows of each part, `[padded, width]`.
    fn rows(&self, x: Tensor) -> Vec<Tensor> {
        let all = pad(x.reshape([self.batch * self.parts, self.sizes.rows, x.dim(-1)]), 1, self.padded(), 0.0);
        (0..self.batch * self.parts).map(|part| all.slice(0, part..part + 1).reshape(&all.dims()[1..])).collect()
    }

    /// For each part the sizes of its groups, which end at the last row, and the number of rows that are in one: `s32`
    /// `[groups]` and `s32` `[]`.
    fn groups(&self, sizes: Tensor) -> Vec<(Tensor, Tensor)> {
        let (parts, groups) = (self.batch * self.parts, self.sizes.groups);
        let reach = sizes.convert(DType::S32).reshape([parts, groups]).cumsum(-1).minimum(self.sizes.rows as f64);
        let before = concatenate(&[zeros(DType::S32, [parts, 1]), reach], -1).slice(1, ..groups);
        let own = reach - before;
        let of_part = |part: usize| {
            let count = reach.slice(0, part..part + 1).slice(1, groups - 1..groups);
            (own.slice(0, part..part + 1).reshape([groups]), count.reshape([0usize; 0]))
        };
        (0..parts).map(of_part).collect()
    }

    fn by_rows(&self, operands: &[Tensor]) -> Tensor {
        let own = &operands[1].dims()[operands[1].rank() - 3..];
        let matrices = operands[1].reshape([&[self.batch], own].concat());
        let parts = self.rows(operands[0]).into_iter().zip(self.groups(operands[2])).enumerate();
        let products = parts.map(|(part, (rows, (sizes, count)))| {
            let batch = part / self.parts;
            let matrices = matrices.slice(0, batch..batch + 1).reshape(own);
            let product = ragged_dot_by(self.op.clone(), [rows, matrices, sizes]).slice(0, ..self.sizes.rows);
            // Values that are not written may be NaN, so they are replaced, not multiplied by zero.
            let is_written = arange(DType::S32, self.sizes.rows).less(count.broadcast_to([self.sizes.rows]));
            is_written.expand(-1).broadcast_to(product.dims()).select(product, 0.0)
        });
        let products: Vec<Tensor> = products.collect();
        let leading = &operands[0].dims()[..operands[0].rank() - 1];
        stack(&products, 0).reshape([leading, &[self.sizes.columns]].concat())
    }

    fn contracted(&self, operands: &[Tensor]) -> Tensor {
        let rows = self.rows(operands[0]).into_iter().zip(self.rows(operands[1]));
        // Sums over parts are made in f32 and rounded once.
        let op = RaggedDot { dtype: if self.parts > 1 { DType::F32 } else { self.op.dtype }, ..self.op.clone() };
        let parts: Vec<Tensor> = rows
            .zip(self.groups(operands[2]))
            .map(|((left, right), (sizes, _))| ragged_dot_by(op.clone(), [left, right, sizes]))
            .collect();
        let sums = parts.chunks(self.parts).map(|parts| {
            let sum = parts[1..].iter().fold(parts[0], |sum, &part| sum + part);
            sum.convert(self.op.dtype)
        });
        let own = [self.sizes.groups, self.sizes.inner, self.sizes.columns];
        stack(&sums.collect::<Vec<_>>(), 0).reshape([&self.sizes.batch[..], &own].concat())
    }
}
