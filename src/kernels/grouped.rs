//! Grouped products that multiply each row once: a loop over blocks of rows, each with the matrix of its group.
//!
//! Rows are sorted by group and stay where they are: no group is padded. A group's blocks begin with the tile of rows
//! that its first row is in, and follow each other to its last row; rows of a block that belong to others are masked.
//! The number of blocks follows from the group sizes when the program runs, so empty groups and rows of no group cost
//! nothing.
//!
//! With tiles of one row, at most `rows / block + groups - 1` blocks are visited, rounded up.
//!
//! Source of the idea: Gale et al., "MegaBlocks", arXiv 2211.15841 (there as a sparse product).

use super::nonzero::nonzero;
use super::traced::traced;
use super::{ExpertsKernel, Kernels};
use crate::ir::{DType, TensorType};
use crate::ops::{KernelImplementation, Often, RaggedDot, RaggedMode, RaggedSizes};
use crate::trace::{DotOptions, Tensor, TensorTree, TraceError, arange, einsum_with, full, while_at_most, zeros};

/// The implementation of a grouped product. Returns `None` if the plain form is asked for, or is faster.
pub(super) fn ragged_dot(
    op: &RaggedDot,
    types: &[TensorType],
    kernels: &Kernels,
) -> Result<Option<KernelImplementation>, TraceError> {
    let Some(cut) = GroupedCut::new(op, types, kernels) else { return Ok(None) };
    let how = format!("blocks of {} rows, as many as the groups have", cut.block);
    let found = traced(ExpertsKernel::Blockwise.name(), "ragged_dot", how, types, |operands| {
        let groups = cut.groups(operands[2]);
        vec![match op.mode {
            RaggedMode::Rows => cut.rows_product("mk,kn->mn", operands[0], operands[1], &groups),
            RaggedMode::Transposed => cut.rows_product("mk,nk->mn", operands[0], operands[1], &groups),
            RaggedMode::Contracted => cut.contracted_product(operands[0], operands[1], &groups),
        }]
    })?;
    Ok(Some(found))
}

/// The groups of all parts, in the order of their matrices: `[batch, group, part]` as one dimension.
struct Groups {
    /// The first row of each: `s32` `[groups]`.
    start: Tensor,
    /// The row after the last row of each: `s32` `[groups]`.
    end: Tensor,
    /// The places of groups that have rows, in order, and then zeros: `s32` `[groups]`.
    filled: Tensor,
    /// The number of groups that have rows: a scalar `s32`.
    count: Tensor,
}

/// One block of rows with one group.
struct Visit {
    /// The index of the part that the rows are in, if they are in parts: a scalar `s32`.
    part: Tensor,
    /// The index of the matrix: a scalar `s32`.
    matrix: Tensor,
    /// The first row of the block, which reading and writing moves back if the block reaches beyond the last row: a
    /// scalar `s32`.
    first: Tensor,
    /// Whether each row of the block is the group's: `pred` `[block]`.
    is_own: Tensor,
}

/// How a grouped product is cut into blocks. Rows that share matrices are called parts here: a block is what a loop
/// works on.
struct GroupedCut {
    sizes: RaggedSizes,
    /// The product of the leading dimensions that matrices have.
    batch: usize,
    /// The product of the leading dimensions that matrices do not have.
    parts: usize,
    /// The number of rows of a block.
    block: usize,
    /// Blocks start at multiples of this, a divisor of their size.
    tile: usize,
    dtype: DType,
    options: DotOptions,
}

impl GroupedCut {
    fn new(op: &RaggedDot, types: &[TensorType], kernels: &Kernels) -> Option<GroupedCut> {
        let sizes = op.sizes(&types.iter().collect::<Vec<_>>());
        if kernels.experts == ExpertsKernel::Plain || types.iter().any(|ty| ty.element_count() == 0) {
            return None;
        }
        let block = kernels.rows_of(&sizes)?;
        Some(GroupedCut {
            batch: sizes.batch.iter().product(),
            parts: sizes.blocks.iter().product(),
            sizes,
            block,
            tile: kernels.tile_of(block),
            dtype: op.dtype,
            options: DotOptions { dtype: Some(op.dtype), precision: op.precision },
        })
    }

    /// All rows, `[batch * parts, rows, width]`.
    fn rows(&self, x: Tensor) -> Tensor {
        x.reshape([self.batch * self.parts, self.sizes.rows, x.dim(-1)])
    }

    /// All matrices, `[batch * groups, inner, columns]`.
    fn matrices(&self) -> [usize; 3] {
        [self.batch * self.sizes.groups, self.sizes.inner, self.sizes.columns]
    }

    fn groups(&self, sizes: Tensor) -> Groups {
        let (count, rows) = (self.sizes.groups, self.sizes.rows as f64);
        let sizes = sizes.convert(DType::S32).reshape([self.batch, self.parts, count]);
        let reach = sizes.cumsum(-1);
        let all = self.batch * self.parts * count;
        let [start, end] = [reach - sizes, reach].map(|x| x.minimum(rows).transpose([0, 2, 1]).reshape([all]));
        let has_rows = start.less(end);
        let (filled, count) = nonzero(has_rows);
        Groups { start, end, filled, count }
    }

    /// Runs `step` for each visit, in the order of matrices.
    fn run<C: TensorTree>(&self, groups: &Groups, carry: C, step: impl FnOnce(C, Visit) -> C) -> C {
        let zero = zeros(DType::S32, []);
        // Each block of rows is visited, and once more for each other group that begins in it.
        let RaggedSizes { rows, groups: count, .. } = self.sizes;
        let most = self.batch * self.parts * (rows.div_ceil(self.block) + count);
        let (_, _, carry) = while_at_most(
            (most, Often::default()),
            (zero, zero, carry),
            |(index, _, _)| index.less(groups.count),
            |(index, turn, carry)| {
                let place = groups.filled.dynamic_index(0, index);
                let [start, end] = [groups.start, groups.end].map(|x| x.dynamic_index(0, place));
                // The product is written in this order, so that a compiler sees that it is a multiple.
                let tiles = start / self.tile as f64 + turn * (self.block / self.tile) as f64;
                let first = tiles * self.tile as f64;
                let behind = first + self.block as f64;
                let is_last = behind.greater_equal(end);
                let next = is_last.select(index + 1.0, index);
                let next_turn = is_last.select(zero, turn + 1.0);
                let visit = self.visit(place, [first.maximum(start), behind.minimum(end)], first);
                (next, next_turn, step(carry, visit))
            },
        );
        carry
    }

    /// The visit of a block from row `first` on. The rows from `own[0]` to `own[1]` are the group's.
    fn visit(&self, place: Tensor, own: [Tensor; 2], first: Tensor) -> Visit {
        // In a block that is moved back, rows that another visit has are masked.
        let at = first.minimum((self.sizes.rows - self.block) as f64);
        let row = arange(DType::S32, self.block) + at.broadcast_to([self.block]);
        let [from, to] = own.map(|x| x.broadcast_to([self.block]));
        let matrix = place / self.parts as f64;
        let part = (matrix / self.sizes.groups as f64) * self.parts as f64 + place % self.parts as f64;
        Visit { part, matrix, first, is_own: row.greater_equal(from) & row.less(to) }
    }

    /// A visit's block of rows `[.., rows, width]`: `[block, width]`.
    fn block_of(&self, rows: Tensor, visit: &Visit) -> Tensor {
        let starts = [visit.part, visit.first, zeros(DType::S32, [])];
        let width = rows.dim(2);
        rows.dynamic_slice(&starts, [1, self.block, width]).reshape([self.block, width])
    }

    /// Rows times the matrix of their group, by the einsum of one product.
    fn rows_product(&self, product: &str, lhs: Tensor, rhs: Tensor, groups: &Groups) -> Tensor {
        let own = &rhs.dims()[rhs.rank() - 2..];
        let matrices = rhs.reshape([&[self.batch * self.sizes.groups], own].concat());
        let rows = self.rows(lhs);
        let columns = self.sizes.columns;
        let start = zeros(self.dtype, [self.batch * self.parts, self.sizes.rows, columns]);
        let result = self.run(groups, start, |result, visit| {
            let matrix = matrices.dynamic_index(0, visit.matrix);
            let product = einsum_with(product, &[self.block_of(rows, &visit), matrix], self.options);
            let is_own = visit.is_own.broadcast_like(product, [0]);
            let block = is_own.select(product, self.block_of(result, &visit)).expand(0);
            result.dynamic_update_slice(block, &[visit.part, visit.first, zeros(DType::S32, [])])
        });
        result.reshape([&lhs.dims()[..lhs.rank() - 1], &[columns]].concat())
    }

    /// For each group the sum of its rows' outer products, in at least `f32`.
    fn contracted_product(&self, lhs: Tensor, rhs: Tensor, groups: &Groups) -> Tensor {
        let (left, right) = (self.rows(lhs), self.rows(rhs));
        let wide = self.dtype.at_least_f32();
        let options = DotOptions { dtype: Some(wide), ..self.options };
        let outer = |visit: &Visit| {
            let left = self.block_of(left, visit);
            let own = visit.is_own.broadcast_like(left, [0]).select(left, 0.0);
            einsum_with("mk,mn->kn", &[own, self.block_of(right, visit)], options)
        };
        let [_, inner, columns] = self.matrices();
        let start = zeros(self.dtype, self.matrices());
        let result = if wide == self.dtype {
            self.run(groups, start, |result, visit| {
                let sum = result.dynamic_index(0, visit.matrix) + outer(&visit);
                result.dynamic_update_along(0, sum.expand(0), visit.matrix)
            })
        } else {
            // The sum of one group is kept in the wider type, and rounded after each visit. The last visit's value
            // stays.
            let start = (full(DType::S32, [], -1.0), zeros(wide, [inner, columns]), start);
            let (_, _, result) = self.run(groups, start, |(before, sum, result), visit| {
                let is_same = before.equal(visit.matrix).broadcast_to([inner, columns]);
                let sum = is_same.select(sum, 0.0) + outer(&visit);
                let rounded = sum.convert(self.dtype).expand(0);
                (visit.matrix, sum, result.dynamic_update_along(0, rounded, visit.matrix))
            });
            result
        };
        let own = [self.sizes.groups, inner, columns];
        result.reshape([&self.sizes.batch[..], &own].concat())
    }
}
