//! Arrays and vectors of numbers.

use std::cell::RefCell;
use std::rc::Rc;

use meshloom::hlo::{DType, Dims, TensorType};
use meshloom_mosaic::text::Element;

use crate::number::round;

/// An operand or a result: row-major numbers, each one that its type has.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    ty: TensorType,
    pub(super) data: Vec<f64>,
}

impl Array {
    /// Numbers rounded to `bf16` or `f32`, or integers `s32`.
    pub fn new(dtype: DType, dims: &[usize], data: &[f64]) -> Array {
        let ty = TensorType::new(dtype, dims);
        assert_eq!(ty.element_count(), data.len(), "numbers for an array of {dims:?}");
        Array { ty, data: data.iter().map(|&number| round(dtype, number)).collect() }
    }

    /// Integers `s32` in one dimension: prefetched scalars.
    pub fn scalars(numbers: &[i32]) -> Array {
        let data: Vec<f64> = numbers.iter().map(|&number| f64::from(number)).collect();
        Array::new(DType::S32, &[data.len()], &data)
    }

    /// Nothing but NaN.
    pub(super) fn unwritten(ty: &TensorType) -> Array {
        Array { ty: ty.clone(), data: vec![f64::NAN; ty.element_count()] }
    }

    /// The type.
    pub const fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The numbers, row-major.
    pub fn data(&self) -> &[f64] {
        &self.data
    }
}

/// A vector, the contents of a memory, or a scalar (without dimensions).
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub element: Element,
    pub dims: Dims,
    pub data: Vec<f64>,
}

impl Tensor {
    pub fn unwritten(element: Element, dims: &[usize]) -> Tensor {
        Tensor { element, dims: dims.into(), data: vec![f64::NAN; dims.iter().product()] }
    }

    pub fn is(&self, element: Element, dims: &[usize]) -> bool {
        self.element == element && self.dims[..] == *dims
    }

    /// The elements as a matrix product wants them, exchanged if asked for.
    pub fn matrix(&self, exchanged: bool) -> (usize, usize, Vec<f64>) {
        let (rows, columns) = (self.dims[0], self.dims[1]);
        if !exchanged {
            return (rows, columns, self.data.clone());
        }
        let data = (0..columns).flat_map(|column| (0..rows).map(move |row| self.data[row * columns + column]));
        (columns, rows, data.collect())
    }
}

/// Memory, which ops read and write.
pub(super) type Memory = Rc<RefCell<Tensor>>;

/// An operand or result of an op.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A scalar or a vector.
    Data(Rc<Tensor>),
    Memory(Memory),
}
