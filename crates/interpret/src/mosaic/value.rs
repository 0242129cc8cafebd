//! Arrays and vectors of numbers.

use std::cell::RefCell;
use std::rc::Rc;

use meshloom::hlo::{DType, Dims, TensorType};
use meshloom_mosaic::text::Element;

use super::{InterpretError, rounded};

/// An operand or a result: row-major numbers, each one that its type has.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    ty: TensorType,
    data: Vec<f64>,
}

impl Array {
    /// Numbers rounded to `bf16` or `f32`, or integers `s32`.
    ///
    /// # Errors
    /// [`InterpretError::Call`] if there are not as many numbers as elements.
    pub fn new(dtype: DType, dims: &[usize], data: &[f64]) -> Result<Array, InterpretError> {
        let ty = TensorType::new(dtype, dims);
        if ty.element_count() != data.len() {
            return Err(InterpretError::Call(format!("{} numbers for an array of {dims:?}", data.len())));
        }
        Ok(Array { ty, data: data.iter().map(|&number| rounded(dtype, number)).collect() })
    }

    /// Integers `s32` in one dimension: prefetched scalars.
    pub fn scalars(numbers: &[i32]) -> Array {
        let ty = TensorType::new(DType::S32, &[numbers.len()]);
        Array { ty, data: numbers.iter().map(|&number| f64::from(number)).collect() }
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

    /// Copies a block out of the array, or into it.
    pub(super) fn copy_block(&mut self, block: &mut Tensor, index: &[usize], into: bool) {
        let mut position = vec![0; block.dims.len()];
        for number in &mut block.data {
            let place = (0..position.len())
                .fold(0, |place, axis| place * self.ty.dims[axis] + index[axis] * block.dims[axis] + position[axis]);
            if into {
                self.data[place] = *number;
            } else {
                *number = self.data[place];
            }
            advance(&mut position, &block.dims);
        }
    }
}

/// The next position in row-major order; false after the last.
pub(super) fn advance(position: &mut [usize], dims: &[usize]) -> bool {
    for axis in (0..position.len()).rev() {
        position[axis] += 1;
        if position[axis] < dims[axis] {
            return true;
        }
        position[axis] = 0;
    }
    false
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

    pub fn scalar(element: Element, number: f64) -> Tensor {
        Tensor { element, dims: Dims::new(), data: vec![number] }
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

/// An operand or result of an op.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A scalar or a vector.
    Data(Rc<Tensor>),
    /// Memory, which ops read and write.
    Memory(Rc<RefCell<Tensor>>),
}

impl Value {
    pub fn of(tensor: Tensor) -> Value {
        Value::Data(Rc::new(tensor))
    }

    pub fn memory(tensor: Tensor) -> (Value, Rc<RefCell<Tensor>>) {
        let memory = Rc::new(RefCell::new(tensor));
        (Value::Memory(memory.clone()), memory)
    }
}
