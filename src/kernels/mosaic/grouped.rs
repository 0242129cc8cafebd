//! Grouped products by kernels of ours on TPU.
//!
//! A kernel goes through a list of visits in scalar memory: a block of rows with a group that has rows in it. Each
//! device makes the list from the sizes of its groups when the program runs, and the number of visits is the length of
//! the kernel's grid. Rows stay where they are: no group is padded. Element types that the kernels do not have, widths
//! that cannot be cut into blocks, and lists longer than scalar memory are computed otherwise.

use meshloom_mosaic::grouped::{COMPUTE, FIRST, Grouped, GroupedBlocks, LAST};

use super::super::pad::pad;
use super::super::table::TILE;
use super::super::traced::traced;
use super::super::{ExpertsKernel, Kernels};
use super::{refused, run};
use crate::ir::{DType, TensorType};
use crate::ops::{KernelImplementation, RaggedDot, RaggedMode, RaggedSizes};
use crate::trace::{Tensor, TraceError, arange, concatenate, full, zeros};

/// The implementation of a grouped product. Returns `None` if the kernels do not compute this one.
pub(in super::super) fn ragged_dot(
    op: &RaggedDot,
    types: &[TensorType],
    kernels: &Kernels,
) -> Result<Option<KernelImplementation>, TraceError> {
    let Some(call) = GroupedCall::new(op, types, kernels) else { return Ok(None) };
    let visits = call.visit_count();
    let kernel = match op.mode {
        RaggedMode::Rows => call.shape.by_rows(visits, false),
        RaggedMode::Transposed => call.shape.by_rows(visits, true),
        RaggedMode::Contracted => call.shape.by_groups(visits),
    };
    let kernel = kernel.map_err(|error| refused("kernels.experts", &error))?;
    let GroupedBlocks { rows, inner, columns } = call.shape.blocks;
    let how = format!("blocks of {rows} rows, {inner} wide, by {columns} columns; as many as the groups have");
    let found = traced(ExpertsKernel::Mosaic.name(), "ragged_dot", how, types, |operands| {
        let lists = if op.mode == RaggedMode::Contracted {
            call.group_visits(operands[2])
        } else {
            call.row_visits(operands[2])
        };
        let right = if op.mode == RaggedMode::Contracted {
            call.rows(operands[1])
        } else {
            let own = &operands[1].dims()[operands[1].rank() - 2..];
            operands[1].reshape([&[call.shape.groups], own].concat())
        };
        let result = run(&kernel, &[lists, vec![call.rows(operands[0]), right]].concat())[0];
        vec![match op.mode {
            RaggedMode::Contracted => {
                let own = [call.sizes.groups, call.sizes.inner, call.sizes.columns];
                result.reshape([&call.sizes.batch[..], &own].concat())
            }
            RaggedMode::Rows | RaggedMode::Transposed => {
                let leading = &operands[0].dims()[..operands[0].rank() - 1];
                result.slice(0, ..call.row_count()).reshape([leading, &[call.sizes.columns]].concat())
            }
        }]
    })?;
    Ok(Some(found))
}

/// A grouped product as the kernels take it. Rows that share matrices are called parts here. The rows of all parts
/// follow each other, and so do the matrices of the whole batch.
struct GroupedCall {
    shape: Grouped,
    sizes: RaggedSizes,
    /// The product of the leading dimensions that matrices have.
    batch: usize,
    /// The product of the leading dimensions that matrices do not have.
    parts: usize,
}

impl GroupedCall {
    /// Returns `None` if the kernels do not compute this one.
    fn new(op: &RaggedDot, types: &[TensorType], kernels: &Kernels) -> Option<GroupedCall> {
        let dtype = op.dtype;
        let is_one = kernels.experts == ExpertsKernel::Mosaic
            && matches!(dtype, DType::BF16 | DType::F32)
            && types[0].dtype == dtype
            && types.iter().all(|ty| ty.element_count() > 0);
        if !is_one {
            return None;
        }
        let sizes = op.sizes(&types.iter().collect::<Vec<_>>());
        let (batch, parts) = (sizes.batch.iter().product::<usize>(), sizes.blocks.iter().product::<usize>());
        let (rows, groups) = ((batch * parts * sizes.rows).next_multiple_of(TILE), batch * sizes.groups);
        let blocks = GroupedBlocks::new(dtype, rows, sizes.inner, sizes.columns, groups * parts)?;
        let shape = Grouped {
            dtype,
            rows: rows.next_multiple_of(blocks.rows),
            inner: sizes.inner,
            columns: sizes.columns,
            groups,
            blocks,
        };
        let call = GroupedCall { shape, sizes, batch, parts };
        (call.visit_count() <= Grouped::MOST_VISITS).then_some(call)
    }

    fn row_count(&self) -> usize {
        self.batch * self.parts * self.sizes.rows
    }

    /// All rows in whole blocks, `[rows, width]`.
    fn rows(&self, x: Tensor) -> Tensor {
        pad(x.reshape([self.row_count(), x.dim(-1)]), 0, self.shape.rows, 0.0)
    }

    fn block_count(&self) -> usize {
        self.shape.rows / self.shape.blocks.rows
    }

    /// A length of lists that is enough for groups of any sizes: each range of rows begins at most one visit inside a
    /// block, and an empty range has at most one visit.
    fn visit_count(&self) -> usize {
        self.block_count() + self.batch * self.parts * (self.sizes.groups + 1)
    }

    /// For each group, the row after its last, among the rows of its part: `s32` `[batch, parts, groups]`.
    fn reach(&self, sizes: Tensor) -> Tensor {
        let dims = [self.batch, self.parts, self.sizes.groups];
        sizes.convert(DType::S32).reshape(dims).cumsum(-1).minimum(self.sizes.rows as f64)
    }

    /// Numbers rows among those of all parts: `s32` `[batch, parts, ..]`.
    fn among_all(&self, rows: Tensor) -> Tensor {
        let part = arange(DType::S32, self.batch * self.parts) * self.sizes.rows as f64;
        rows + part.reshape([self.batch, self.parts, 1]).broadcast_to(rows.dims())
    }

    /// The lists of a product by rows. The rows of each part that are in no group are one more range: their blocks are
    /// visited if no group is in them, and become zero.
    fn row_visits(&self, sizes: Tensor) -> Vec<Tensor> {
        let own = [self.batch, self.parts, 1];
        let reach = self.reach(sizes);
        let start = concatenate(&[zeros(DType::S32, own), reach], -1);
        let end = concatenate(&[reach, full(DType::S32, own, self.sizes.rows as f64)], -1);
        let count = self.batch * self.parts * (self.sizes.groups + 1);
        let [start, end] = [start, end].map(|rows| self.among_all(rows).reshape([count]));
        let visits = self.visits(start, end, 0.0);
        let ranges = (self.sizes.groups + 1) as f64;
        let group = visits.range % ranges;
        // Rows of no group go with any matrix that is at hand.
        let last = (self.sizes.groups - 1) as f64;
        let batch = visits.range / (ranges * self.parts as f64);
        let matrix = batch * self.sizes.groups as f64 + group.minimum(last);
        // Ranges cover all rows, so the first visit of a block is the one with the block's first row.
        let is_first = visits.start.less_equal(visits.block * self.shape.blocks.rows as f64);
        let flags = bit(is_first, FIRST) + bit(group.less_equal(last), COMPUTE);
        visits.lists(matrix, flags)
    }

    /// The lists of a product by groups, in the order of matrices. A group has rows in each part.
    fn group_visits(&self, sizes: Tensor) -> Vec<Tensor> {
        let reach = self.reach(sizes);
        let before = concatenate(&[zeros(DType::S32, [self.batch, self.parts, 1]), reach], -1);
        let before = before.slice(2, ..self.sizes.groups);
        let count = self.batch * self.parts * self.sizes.groups;
        let by_matrix = |rows: Tensor| self.among_all(rows).transpose([0, 2, 1]).reshape([count]);
        // Sums begin and end with a visit, also where a group has no rows.
        let visits = self.visits(by_matrix(before), by_matrix(reach), 1.0);
        let matrix = visits.range / self.parts as f64;
        let part = visits.range % self.parts as f64;
        let is_first = part.equal(0.0) & visits.turn.equal(0.0);
        let is_last = part.equal((self.parts - 1) as f64) & (visits.turn + 1.0).equal(visits.turns);
        let flags = bit(is_first, FIRST) + bit(is_last, LAST) + bit(visits.start.less(visits.end), COMPUTE);
        visits.lists(matrix, flags)
    }

    /// The visits of ranges of rows, `s32` `[ranges]`, in their order: one for each block that a range has rows of. An
    /// empty range has `least`.
    fn visits(&self, start: Tensor, end: Tensor, least: f64) -> Visits {
        let (size, ranges) = (self.shape.blocks.rows as f64, start.dim(0));
        let first = start / size;
        let spanned = (end - 1.0) / size - first + 1.0;
        let turns = start.less(end).select(spanned, least);
        let reach = turns.cumsum(0);
        let visit = arange(DType::S32, self.visit_count());
        // The range of a visit is the one behind all ranges that end before it.
        let dims = [self.visit_count(), ranges];
        let is_behind = reach.expand(0).broadcast_to(dims).less_equal(visit.expand(1).broadcast_to(dims));
        let range = is_behind.convert(DType::S32).sum(-1).minimum((ranges - 1) as f64);
        let of = |x: Tensor| x.take(0, range);
        let turn = visit - of(reach - turns);
        let block = (of(first) + turn).minimum((self.block_count() - 1) as f64);
        Visits { count: reach.max(..), range, turn, turns: of(turns), block, start: of(start), end: of(end) }
    }
}

/// Visits, `s32` `[visits]`.
struct Visits {
    /// The number of visits that count: a scalar `s32`.
    count: Tensor,
    range: Tensor,
    /// The index of each visit among those of its range, and the number of visits that the range has.
    turn: Tensor,
    turns: Tensor,
    block: Tensor,
    /// The first row of each range, and the one after its last.
    start: Tensor,
    end: Tensor,
}

impl Visits {
    /// The lists that a kernel takes first.
    fn lists(&self, matrix: Tensor, flags: Tensor) -> Vec<Tensor> {
        vec![self.count, self.block, matrix, self.start, self.end, flags]
    }
}

/// Returns a flag where a condition holds, else 0: `s32`.
fn bit(holds: Tensor, flag: i32) -> Tensor {
    holds.convert(DType::S32) * f64::from(flag)
}
