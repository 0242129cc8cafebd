//! Products of matrices over groups of rows: what routed experts need.
//!
//! Rows lie sorted by group. Groups may be empty, need not be made of whole blocks, and rows between them may be in
//! none.
//!
//! # Which blocks are computed
//! A kernel goes through a list of visits, in scalar memory: a block of rows and a group, with the rows from `start` to
//! `end` that the group has, in this block or others. The list is an operand, and so is the number of its visits that
//! count. So it may be computed on the device from the sizes of the groups; [`Grouped::visit_count`] is a length that
//! is enough for all sizes. The rest of the list is not read.
//!
//! | flag | [`Grouped::by_rows`] | [`Grouped::by_groups`] |
//! |---|---|---|
//! | [`FIRST`] | the first visit of a block of rows: its result becomes zero | the first visit of a group: its sum becomes zero |
//! | [`COMPUTE`] | the group's rows of the block are computed | the group's rows of the block are added |
//! | [`LAST`] | | the last visit of a group: its result is written |
//!
//! Visits of [`Grouped::by_rows`] are sorted by block. Every block must be visited: one without rows of any group has a
//! visit with [`FIRST`] alone, so that **rows of no group are zero**. Visits of [`Grouped::by_groups`] are sorted by
//! group. Every group must be visited: an empty one has a visit with [`FIRST`] and [`LAST`], so that its matrix is
//! zero. A group may have rows in several places: each has visits of its own.
//!
//! # Operands and results
//! All are row-major.
//!
//! | operand | type | of |
//! |---|---|---|
//! | `count` | `s32[]`, at least 1 | both |
//! | `row_block`, `group`, `start`, `end`, `flags` | `s32[visits]` | both |
//! | `lhs` | `[rows, inner]` | both |
//! | `matrices` | `[groups, inner, columns]`, or `[groups, columns, inner]` if transposed | by rows |
//! | `rhs` | `[rows, columns]` | by groups |
//!
//! The result is `[rows, columns]` by rows and `[groups, inner, columns]` by groups, of the operands' type; sums are
//! `f32`. The gradient of the product by rows is a product by rows with the matrices transposed, and a product by
//! groups.
//!
//! Source: Gale et al., "MegaBlocks", arXiv 2211.15841.

use meshloom_hlo::DType;

use crate::text::{
    Argument, Axis, Body, Comparison, Element, GridPosition, Product, Program, Refs, SCALAR_LIMIT, Value, Window,
};
use crate::{Cost, Kernel, KernelError};

/// Flag of the first visit of what the list is sorted by.
pub const FIRST: i32 = 1;
/// Flag of the last visit of what the list is sorted by.
pub const LAST: i32 = 2;
/// Flag of a visit in which there is something to compute.
pub const COMPUTE: i32 = 4;

/// The sizes of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupedBlocks {
    /// Rows: a multiple of 16 (8 for `f32`), or all.
    pub rows: usize,
    /// The inner dimension: a multiple of 128, or all.
    pub inner: usize,
    /// Columns: a multiple of 128, or all.
    pub columns: usize,
}

impl GroupedBlocks {
    /// Blocks that both kernels compile with for every TPU from v4 on. Rows must be padded to whole blocks. Matrices
    /// are not: that would copy them. So there are none where a width is large and not a multiple of 128.
    pub fn new(dtype: DType, rows: usize, inner: usize, columns: usize, groups: usize) -> Option<GroupedBlocks> {
        let limit = if dtype == DType::BF16 { 512 } else { 256 };
        let of_block = rows_of_block(limit, rows / groups.max(1)).min(rows);
        Some(GroupedBlocks { rows: of_block, inner: block(limit, inner)?, columns: block(limit, columns)? })
    }
}

/// The rows of a block: 128, or a larger power of two up to a limit, if groups have at least ten such blocks on
/// average. A group's last block is computed whole, so with ten blocks the rows beyond the group are at most a tenth.
pub fn rows_of_block(limit: usize, rows_of_group: usize) -> usize {
    [512, 256].into_iter().find(|&size| size <= limit && 10 * size <= rows_of_group).unwrap_or(128)
}

/// A whole dimension, if it is small; else the greatest multiple of 128 that divides it.
fn block(limit: usize, size: usize) -> Option<usize> {
    if size <= limit {
        return Some(size);
    }
    (128..=limit).rev().find(|block| block % 128 == 0 && size.is_multiple_of(*block))
}

/// Products over groups of rows whose kernels can be written. See the [module](self) for operands and results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouped {
    /// The type of operands and result: `bf16` or `f32`.
    pub dtype: DType,
    /// Rows, a multiple of the block's.
    pub rows: usize,
    /// The width of the left operand, a multiple of the block's.
    pub inner: usize,
    /// The width of the result or of the right operand, a multiple of the block's.
    pub columns: usize,
    /// Number of groups.
    pub groups: usize,
    /// The sizes of blocks.
    pub blocks: GroupedBlocks,
}

/// The prefetched scalars.
#[derive(Clone, Copy)]
struct Lists {
    row_block: Argument,
    group: Argument,
    start: Argument,
    end: Argument,
    flags: Argument,
}

impl Lists {
    fn new(program: &mut Program, visits: usize) -> Lists {
        Lists {
            row_block: program.scalars("row_block", visits),
            group: program.scalars("group", visits),
            start: program.scalars("start", visits),
            end: program.scalars("end", visits),
            flags: program.scalars("flags", visits),
        }
    }
}

/// Gives the index of a block along one dimension.
#[derive(Clone, Copy)]
enum BlockOf {
    /// The index is an entry of a list, at the visit, which is an axis of the grid.
    List(Argument, usize),
    /// The index is that of an axis of the grid.
    Axis(usize),
}

fn window(name: &'static str, element: Element, dims: &[usize], block: &[usize], indices: &[BlockOf]) -> Window {
    let indices = indices.to_vec();
    Window::new(name, element, dims, block, move |b, grid: &GridPosition| {
        let index = |of: &BlockOf| match of {
            BlockOf::List(list, axis) => b.scalar(&grid[*list], &grid.axes[*axis]),
            BlockOf::Axis(axis) => grid.axes[*axis].clone(),
        };
        indices.iter().map(index).collect()
    })
}

impl Grouped {
    /// The longest list of visits that scalar memory holds.
    pub const MOST_VISITS: usize = SCALAR_LIMIT / 5;

    /// A length of lists that is enough for groups of any sizes.
    pub fn visit_count(&self) -> usize {
        // Each end of a group inside a block makes that block one more visit; rows of no group may stand at both ends.
        self.rows / self.blocks.rows.max(1) + self.groups + 1
    }

    fn check(&self) -> Result<(), KernelError> {
        let GroupedBlocks { rows, inner, columns } = self.blocks;
        if self.groups == 0 || [rows, inner, columns].contains(&0) {
            let what = if self.groups == 0 { "the number of groups" } else { "a block" };
            return Err(KernelError::Range { what, actual: "0".into(), expected: "at least 1" });
        }
        Ok(())
    }

    /// The kernel of `[rows, inner] x [groups, inner, columns] -> [rows, columns]`: each row times the matrix of its
    /// group. With `transposed`, matrices are `[groups, columns, inner]`. `visits` is the length of the list.
    ///
    /// # Errors
    /// [`KernelError`] where shapes and blocks do not fit.
    pub fn by_rows(&self, visits: usize, transposed: bool) -> Result<Kernel, KernelError> {
        self.check()?;
        let (element, GroupedBlocks { rows, inner, columns }) = (Element::of(self.dtype)?, self.blocks);
        let (steps, column_blocks) = (self.inner / inner, self.columns / columns);
        let grid = [Axis::Parallel(column_blocks), Axis::Counted(visits), Axis::Sequential(steps)];
        let mut program = Program::new("grouped_by_rows", &grid);
        let lists = Lists::new(&mut program, visits);
        let (row, group) = (BlockOf::List(lists.row_block, 1), BlockOf::List(lists.group, 1));
        let (column, step) = (BlockOf::Axis(0), BlockOf::Axis(2));
        let lhs = program.input(window("lhs", element, &[self.rows, self.inner], &[rows, inner], &[row, step]));
        let matrices = program.input(if transposed {
            let dims = [self.groups, self.columns, self.inner];
            window("matrices", element, &dims, &[1, columns, inner], &[group, column, step])
        } else {
            let dims = [self.groups, self.inner, self.columns];
            window("matrices", element, &dims, &[1, inner, columns], &[group, step, column])
        });
        let result = window("result", element, &[self.rows, self.columns], &[rows, columns], &[row, column]);
        let result = program.output(result);
        let sum = program.scratch(&[rows, columns]);
        let product = if transposed { Product::RightTransposed } else { Product::Plain };
        let fetched = column_blocks * visits * (rows * self.inner + self.inner * columns);
        program.write(self.cost(fetched, self.rows * self.columns), |b, refs| {
            let flags = b.scalar(&refs[lists.flags], &refs.grid.axes[1]);
            let is_start = at(b, refs, 2, 0);
            let is_first = b.has_bits(&flags, FIRST);
            let clears = b.and(&is_first, &is_start);
            b.when(&clears, |b| b.clear(&refs[result]));
            let computes = b.has_bits(&flags, COMPUTE);
            b.when(&computes, |b| {
                b.when(&is_start, |b| b.clear(&refs[sum]));
                let (left, matrix, so_far) = (b.load(&refs[lhs]), b.load(&refs[matrices]), b.load(&refs[sum]));
                let so_far = b.product(product, &left, &matrix, &so_far);
                b.store(&so_far, &refs[sum]);
                let is_end = at(b, refs, 2, steps - 1);
                b.when(&is_end, |b| {
                    let (own, of_others) = (b.load(&refs[sum]), b.load(&refs[result]));
                    let of_others = b.convert(&of_others, Element::F32);
                    let is_own = self.own_rows(b, refs, lists, 1, columns);
                    let both = b.select(&is_own, &own, &of_others);
                    let both = b.convert(&both, element);
                    b.store(&both, &refs[result]);
                });
            });
        })
    }

    /// The kernel of `[rows, inner], [rows, columns] -> [groups, inner, columns]`: for each group, the sum of the outer
    /// products of its rows. `visits` is the length of the list.
    ///
    /// # Errors
    /// [`KernelError`] where shapes and blocks do not fit.
    pub fn by_groups(&self, visits: usize) -> Result<Kernel, KernelError> {
        self.check()?;
        let (element, GroupedBlocks { rows, inner, columns }) = (Element::of(self.dtype)?, self.blocks);
        let (inner_blocks, column_blocks) = (self.inner / inner, self.columns / columns);
        let grid = [Axis::Parallel(inner_blocks), Axis::Parallel(column_blocks), Axis::Counted(visits)];
        let mut program = Program::new("grouped_by_groups", &grid);
        let lists = Lists::new(&mut program, visits);
        let (row, group) = (BlockOf::List(lists.row_block, 2), BlockOf::List(lists.group, 2));
        let (of_inner, column) = (BlockOf::Axis(0), BlockOf::Axis(1));
        let lhs = program.input(window("lhs", element, &[self.rows, self.inner], &[rows, inner], &[row, of_inner]));
        let rhs = program.input(window("rhs", element, &[self.rows, self.columns], &[rows, columns], &[row, column]));
        let dims = [self.groups, self.inner, self.columns];
        let result = window("result", element, &dims, &[1, inner, columns], &[group, of_inner, column]);
        let result = program.output(result);
        let sum = program.scratch(&[inner, columns]);
        let fetched = inner_blocks * column_blocks * visits * rows * (inner + columns);
        program.write(self.cost(fetched, self.groups * self.inner * self.columns), |b, refs| {
            let flags = b.scalar(&refs[lists.flags], &refs.grid.axes[2]);
            let is_first = b.has_bits(&flags, FIRST);
            b.when(&is_first, |b| b.clear(&refs[sum]));
            let computes = b.has_bits(&flags, COMPUTE);
            b.when(&computes, |b| {
                let left = self.only_own(b, refs, lists, lhs, inner);
                let right = self.only_own(b, refs, lists, rhs, columns);
                let so_far = b.load(&refs[sum]);
                let so_far = b.product(Product::LeftTransposed, &left, &right, &so_far);
                b.store(&so_far, &refs[sum]);
            });
            let is_last = b.has_bits(&flags, LAST);
            b.when(&is_last, |b| {
                let total = b.load(&refs[sum]);
                let total = b.convert(&total, element);
                b.store(&total, &refs[result]);
            });
        })
    }

    /// The rows of a block that belong to the visit's group, as `i1[rows, width]`. `axis` is the grid's axis of visits.
    fn own_rows(&self, b: &mut Body, refs: &Refs, lists: Lists, axis: usize, width: usize) -> Value {
        let visit = &refs.grid.axes[axis];
        let [block, start, end] = [lists.row_block, lists.start, lists.end].map(|list| b.scalar(&refs[list], visit));
        let size = b.int(self.blocks.rows as i32);
        let first = b.mul(&block, &size);
        let (start, end) = (b.sub(&start, &first), b.sub(&end, &first));
        let row = b.iota(&[self.blocks.rows, width], 0);
        let (from, below) = (b.compare(Comparison::AtLeast, &row, &start), b.compare(Comparison::Less, &row, &end));
        b.and(&from, &below)
    }

    /// A block of rows with zeros for those of other groups. They must go from both factors: what they hold may be NaN.
    fn only_own(&self, b: &mut Body, refs: &Refs, lists: Lists, rows: Argument, width: usize) -> Value {
        let block = b.load(&refs[rows]);
        // Not every chip selects bf16.
        let wide = b.convert(&block, Element::F32);
        let is_own = self.own_rows(b, refs, lists, 2, width);
        let zero = b.float(0.0);
        let own = b.select(&is_own, &wide, &zero);
        b.convert(&own, block.element())
    }

    /// The cost of a kernel that fetches and stores these numbers of elements.
    fn cost(&self, fetched: usize, stored: usize) -> Cost {
        let flops = 2 * (self.rows * self.inner) as u64 * self.columns as u64;
        let bytes = ((fetched + stored) * self.dtype.byte_count()) as u64;
        Cost { flops, transcendentals: 0, bytes }
    }
}

/// Whether the step has an index along an axis.
fn at(b: &mut Body, refs: &Refs, axis: usize, index: usize) -> Value {
    let index = b.int(index as i32);
    b.compare(Comparison::Equal, &refs.grid.axes[axis], &index)
}
