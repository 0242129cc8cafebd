//! The errors of kernels that cannot be written.

/// An error of a kernel that cannot be written.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Kernels have no elements of that type.
    #[error("kernels for TPUs have no elements of type {element} there, only bf16 and f32")]
    Element {
        /// The name of the type.
        element: &'static str,
    },
    /// Blocks do not divide an array.
    #[error("blocks of {block:?} do not divide {operand} of {dims:?}: pad it to whole blocks")]
    Blocks {
        /// The operand or result.
        operand: &'static str,
        /// Its dimensions.
        dims: Vec<usize>,
        /// The dimensions of a block.
        block: Vec<usize>,
    },
    /// A block is not made of whole tiles.
    #[error(
        "blocks of {operand} have size {size} along dimension {axis}, not a multiple of {tile} or the whole dimension"
    )]
    Tiles {
        /// The operand or result.
        operand: &'static str,
        /// The dimension.
        axis: usize,
        /// The size of a block there.
        size: usize,
        /// The number that must divide it.
        tile: usize,
    },
    /// There are more prefetched numbers than scalar memory holds.
    #[error("{kernel} needs {count} numbers in scalar memory, which holds {limit}: choose larger blocks")]
    Scalars {
        /// The kernel.
        kernel: &'static str,
        /// The count of numbers.
        count: usize,
        /// The most that fit.
        limit: usize,
    },
    /// The grid has no step.
    #[error("the grid of {kernel} has no steps")]
    Empty {
        /// The kernel.
        kernel: &'static str,
    },
    /// Query heads cannot be divided among key heads.
    #[error("{heads} query heads cannot share {kv_heads} key heads evenly")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key heads.
        kv_heads: usize,
    },
    /// A list of numbers has another length than the kernel's.
    #[error("{what} has {actual} numbers, expected {expected}")]
    Count {
        /// The list.
        what: &'static str,
        /// Its length.
        actual: usize,
        /// The length that it must have.
        expected: usize,
    },
    /// A number is out of range.
    #[error("{what} is {actual}, expected {expected}")]
    Range {
        /// The number.
        what: &'static str,
        /// Its value.
        actual: String,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// A body is wrong: a defect of this crate, not of its user.
    #[error("internal error in the body of {kernel}: {problem}")]
    Body {
        /// The kernel.
        kernel: &'static str,
        /// The defect.
        problem: String,
    },
}

meshloom_hlo::debug_is_message!(KernelError);
