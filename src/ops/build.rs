//! Shorthand for pushing common ops, for gradient rules and transforms.

use std::ops::Range;

use super::{
    Binary, BinaryKind, BroadcastInDim, Compare, Convert, Direction, DynamicSlice, Pad, PadDim, Reduce, ReduceKind,
    Reshape, Select, Slice, SliceDim, Splat, Transpose, Unary, UnaryKind,
};
use crate::ir::{DType, Dims, GraphBuilder, OpError, TensorType, Value, Values};

macro_rules! binary_shorthand {
    ($($name:ident $kind:ident),*) => {$(
        pub(crate) fn $name(&mut self, x: Value, y: Value) -> Result<Value, OpError> {
            self.binary(BinaryKind::$kind, x, y)
        }
    )*};
}

impl GraphBuilder {
    pub(crate) fn unary(&mut self, kind: UnaryKind, x: Value) -> Result<Value, OpError> {
        self.push1(Unary(kind), &[x])
    }

    pub(crate) fn binary(&mut self, kind: BinaryKind, x: Value, y: Value) -> Result<Value, OpError> {
        self.push1(Binary(kind), &[x, y])
    }

    binary_shorthand!(add Add, sub Subtract, mul Multiply, div Divide);

    pub(crate) fn neg(&mut self, x: Value) -> Result<Value, OpError> {
        self.unary(UnaryKind::Negate, x)
    }

    /// `x * factor`.
    pub(crate) fn scale(&mut self, x: Value, factor: f64) -> Result<Value, OpError> {
        let factor = self.splat_like(x, factor);
        self.mul(x, factor)
    }

    /// `x + offset`.
    pub(crate) fn shift(&mut self, x: Value, offset: f64) -> Result<Value, OpError> {
        let offset = self.splat_like(x, offset);
        self.add(x, offset)
    }

    /// `number - x`.
    pub(crate) fn reverse_sub(&mut self, number: f64, x: Value) -> Result<Value, OpError> {
        let number = self.splat_like(x, number);
        self.sub(number, x)
    }

    pub(crate) fn compare(&mut self, direction: Direction, x: Value, y: Value) -> Result<Value, OpError> {
        self.push1(Compare(direction), &[x, y])
    }

    /// Converts, or returns `x` itself when it has the type already.
    pub(crate) fn convert(&mut self, x: Value, dtype: DType) -> Result<Value, OpError> {
        if self.ty(x).dtype == dtype { Ok(x) } else { self.push1(Convert(dtype), &[x]) }
    }

    /// A constant of any type.
    pub(crate) fn splat(&mut self, ty: TensorType, number: f64) -> Value {
        self.push_typed(Splat::new(ty.clone(), number).into(), &[], [ty])[0]
    }

    /// A constant of the type of `x`.
    pub(crate) fn splat_like(&mut self, x: Value, number: f64) -> Value {
        self.splat(self.ty(x).clone(), number)
    }

    /// Zeros of the type of `x`.
    pub(crate) fn zeros_like(&mut self, x: Value) -> Value {
        self.splat_like(x, 0.0)
    }

    /// `x` where `chosen`, else zero.
    pub(crate) fn or_zero(&mut self, chosen: Value, x: Value) -> Result<Value, OpError> {
        let zeros = self.zeros_like(x);
        self.push1(Select, &[chosen, x, zeros])
    }

    pub(crate) fn reduce(&mut self, kind: ReduceKind, axes: &[usize], x: Value) -> Result<Value, OpError> {
        if axes.is_empty() { Ok(x) } else { self.push1(Reduce { kind, axes: axes.into() }, &[x]) }
    }

    /// Repeats `x`, whose dimensions become dimensions `mapping` of the result.
    pub(crate) fn broadcast(&mut self, x: Value, dims: &[usize], mapping: &[usize]) -> Result<Value, OpError> {
        if mapping.len() == dims.len() {
            return Ok(x);
        }
        self.push1(BroadcastInDim { dims: Dims::from_slice(dims), mapping: mapping.into() }, &[x])
    }

    /// Reshapes, or returns `x` itself when it has the dimensions already.
    pub(crate) fn reshape(&mut self, x: Value, dims: &[usize]) -> Result<Value, OpError> {
        if self.ty(x).dims.as_slice() == dims {
            return Ok(x);
        }
        self.push1(Reshape { dims: Dims::from_slice(dims) }, &[x])
    }

    /// As [`GraphBuilder::reshape`], to a type that is known to have as many elements.
    pub(crate) fn reshape_to(&mut self, x: Value, ty: TensorType) -> Value {
        if *self.ty(x) == ty { x } else { self.push_typed(Reshape { dims: ty.dims.clone() }.into(), &[x], [ty])[0] }
    }

    /// Transposes, or returns `x` itself when the permutation is the identity.
    pub(crate) fn transpose(&mut self, x: Value, permutation: &[usize]) -> Result<Value, OpError> {
        if permutation.iter().enumerate().all(|(index, &axis)| index == axis) {
            return Ok(x);
        }
        self.push1(Transpose { permutation: permutation.into() }, &[x])
    }

    /// Takes a range of one dimension, or returns `x` itself if that is all of it.
    pub(crate) fn slice_dim(&mut self, x: Value, dim: usize, range: Range<usize>) -> Value {
        let mut ty = self.ty(x).clone();
        if range == (0..ty.dims[dim]) {
            return x;
        }
        let mut ranges: Box<[SliceDim]> = ty.dims.iter().map(|&size| SliceDim::whole(size)).collect();
        ranges[dim] = SliceDim { start: range.start, limit: range.end, stride: 1 };
        ty.dims[dim] = range.len();
        self.push_typed(Slice { ranges }.into(), &[x], [ty])[0]
    }

    /// Adds zeros to a dimension, before and after it.
    pub(crate) fn zeros_around(&mut self, x: Value, dim: usize, low: usize, high: usize) -> Value {
        if low + high == 0 {
            return x;
        }
        let mut ty = self.ty(x).clone();
        let mut padding: Box<[PadDim]> = vec![PadDim::NONE; ty.rank()].into();
        padding[dim] = PadDim { low: low as i64, high: high as i64, interior: 0 };
        ty.dims[dim] += low + high;
        let zero = self.splat(TensorType::scalar(ty.dtype), 0.0);
        self.push_typed(Pad { padding }.into(), &[x, zero], [ty])[0]
    }

    /// Takes `size` elements of one dimension from a computed position (a scalar `s32`) on, and all elements of the
    /// others.
    pub(crate) fn dynamic_slice_dim(
        &mut self,
        x: Value,
        dim: usize,
        start: Value,
        size: usize,
    ) -> Result<Value, OpError> {
        let mut sizes = self.ty(x).dims.clone();
        sizes[dim] = size;
        let zero = self.splat(TensorType::scalar(DType::S32), 0.0);
        let starts = (0..sizes.len()).map(|at| if at == dim { start } else { zero });
        let operands: Values = std::iter::once(x).chain(starts).collect();
        self.push1(DynamicSlice { sizes }, &operands)
    }
}
