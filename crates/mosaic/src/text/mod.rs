//! Mosaic as text: types and values, the ops of a function's body, and the module of a kernel.
//!
//! The text is MLIR in its generic form. Every op has the prefix `stable_mosaic.`, and the module says which version of
//! the dialect it is in ([`VERSION`]); libtpu upgrades old versions, so the text outlives updates of libtpu.
//!
//! [`Program`] describes a kernel: its grid, and windows on arrays that go with it. [`Program::write`] calls a closure
//! that writes the body with the methods of [`Body`]. A mistake in a body, such as operands of two types, is kept and
//! returned when the text is complete, so a body reads as the computation that it is.

mod body;
mod program;

use std::fmt;

use meshloom_hlo::{DType, Dims};

use crate::KernelError;

pub use body::{Body, Comparison, Product, Reduction, Value};
pub(crate) use program::SCALAR_LIMIT;
pub use program::{Argument, Axis, GridPosition, Program, Refs, Window};

/// The version of the dialect that is written: that of JAX for a TPU of unknown libtpu.
pub const VERSION: u32 = 11;

meshloom_hlo::words! {
    /// The type of an element, by its name in MLIR.
    #[derive(PartialOrd, Ord)]
    pub enum Element {
        /// A truth value.
        I1 = "i1",
        /// A signed integer of 32 bits.
        I32 = "i32",
        /// An index into memory.
        Index = "index",
        /// Brain floating point.
        Bf16 = "bf16",
        /// IEEE 754 single precision.
        F32 = "f32",
    }
}

impl Element {
    /// The type in HLO; `None` for what no array of HLO has.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Element::I1 => Some(DType::Pred),
            Element::I32 => Some(DType::S32),
            Element::Index => None,
            Element::Bf16 => Some(DType::BF16),
            Element::F32 => Some(DType::F32),
        }
    }

    /// The type of an element of HLO that kernels multiply: `bf16` or `f32`.
    ///
    /// # Errors
    /// [`KernelError::Element`] for any other.
    pub fn of(dtype: DType) -> Result<Element, KernelError> {
        let found = Element::ALL.into_iter().find(|element| element.is_float() && element.dtype() == Some(dtype));
        found.ok_or(KernelError::Element { element: dtype.name() })
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Element::Bf16 | Element::F32)
    }
}

/// The memory that a block lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// Vector memory: blocks of arrays, and scratch.
    Vmem,
    /// Scalar memory: prefetched scalars.
    Smem,
}

impl Space {
    /// The name in Mosaic.
    pub const fn name(self) -> &'static str {
        match self {
            Space::Vmem => "vmem",
            Space::Smem => "smem",
        }
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// One element.
    Scalar(Element),
    /// Elements that are computed with at once.
    Vector(Element, Dims),
    /// Elements in memory, row-major.
    Memref(Element, Dims, Space),
}

impl Type {
    /// The type of the elements.
    pub const fn element(&self) -> Element {
        match self {
            Type::Scalar(element) | Type::Vector(element, _) | Type::Memref(element, ..) => *element,
        }
    }

    /// The sizes of the dimensions. A scalar has none.
    pub fn dims(&self) -> &[usize] {
        match self {
            Type::Scalar(_) => &[],
            Type::Vector(_, dims) | Type::Memref(_, dims, _) => dims,
        }
    }

    /// The name by which text refers to the type: an alias such as `!vmem_1x128xf32`, or a scalar's own.
    fn reference(&self) -> String {
        let shape = |dims: &[usize]| dims.iter().map(|size| format!("{size}x")).collect::<String>();
        match self {
            Type::Scalar(element) => element.name().to_owned(),
            Type::Vector(element, dims) => format!("!v{}{}", shape(dims), element.name()),
            Type::Memref(element, dims, space) => format!("!{}_{}{}", space.name(), shape(dims), element.name()),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: String = self.dims().iter().map(|size| format!("{size}x")).collect();
        let element = self.element().name();
        match self {
            Type::Scalar(_) => f.write_str(element),
            Type::Vector(..) => write!(f, "vector<{shape}{element}>"),
            Type::Memref(.., space) => write!(f, "memref<{shape}{element}, #tpu.memory_space<{}>>", space.name()),
        }
    }
}
