//! Declarations of tensors, shape operations of tensors, and tensors made from nothing.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeTo};
use std::panic::Location;

use smallvec::SmallVec;

use super::context::{self, CallSite, apply, composite};
use super::error::TraceErrorKind;
use super::handle::Tensor;
use crate::ir::{AxisNames, DType, Dims, Literal, Name, Role, Spec, TensorType};
use crate::ops::{
    AxisList, BitcastConvert, BroadcastInDim, Concatenate, Constant, Convert, DynamicSlice, DynamicUpdateSlice, Gather,
    GatherDims, IndexPromise, Iota, Named, Pad, PadDim, Reshape, Reshard, Reverse, Slice, SliceDim, Splat,
    StopGradient, Transpose, WithAxes, complement,
};
use meshloom_hlo::message::counted;

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match context::known_type(*self) {
            Some(ty) => write!(f, "{}: {ty}", self.value),
            None => f.write_str("a tensor without a value in this trace"),
        }
    }
}

/// A traced function's declaration of one input: type, logical axis names and role.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// Element type and dimensions.
    pub ty: TensorType,
    /// Logical axis names, one for each dimension; empty when none are declared.
    pub axes: AxisNames,
    /// The role whose axis rules shard it.
    pub role: Role,
}

impl TensorSpec {
    /// A spec without axis names.
    pub fn new(dtype: DType, dims: impl AsRef<[usize]>) -> TensorSpec {
        TensorSpec::of(TensorType::new(dtype, dims.as_ref()))
    }

    pub(super) fn of(ty: TensorType) -> TensorSpec {
        TensorSpec { ty, axes: AxisNames::new(), role: Role::Compute }
    }

    /// The same with logical axis names, one for each dimension; `""` for a dimension without a name.
    #[must_use]
    pub fn with_axes(mut self, names: &[&str]) -> TensorSpec {
        self.axes = names.iter().map(|name| Name::new(name)).collect();
        self
    }
}

impl From<Param> for TensorSpec {
    fn from(param: Param) -> TensorSpec {
        param.spec
    }
}

/// How a parameter's first value is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All elements are this number.
    Constant(f64),
    /// Normally distributed with this standard deviation, cut off at three deviations.
    Normal(f64),
}

/// A parameter's declaration: type, logical axis names and first value.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Type and axis names.
    pub spec: TensorSpec,
    /// First value.
    pub init: Init,
    /// Number of leading dimensions that run over layers, the last fastest, whose parameters are drawn one by one.
    pub stacked_dims: usize,
    /// The dimensions that make matrices, for optimizers of matrices; `None` if the parameter is not a matrix.
    pub matrix: Option<MatrixDims>,
    /// Whether weight decay shrinks it.
    pub decays: bool,
    /// How a train step moves it.
    pub update: Update,
}

/// How a train step moves a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Update {
    /// As the optimizer says.
    #[default]
    Optimizer,
    /// By a fixed amount against the sign of each element of its gradient. This gradient is not one of the loss and
    /// does not count for the gradient's norm. Biases by which experts are balanced move in this way.
    AgainstSign,
}

/// The dimensions of a parameter that make matrices: first `batch` dimensions that run over matrices, as one over
/// experts does, then `inputs` dimensions that a product with activations sums over, the rows; all others are columns.
/// Dimensions over stacked layers stand before these, and are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixDims {
    /// Dimensions that run over matrices.
    pub batch: usize,
    /// Dimensions of a matrix's inputs.
    pub inputs: usize,
}

impl Param {
    /// A parameter with one axis name for each dimension. With two or more dimensions it is a matrix, whose inputs are
    /// the first one, and decays.
    pub fn new(dtype: DType, dims: impl AsRef<[usize]>, axes: &[&str], init: Init) -> Param {
        let spec = TensorSpec { role: Role::Params, ..TensorSpec::new(dtype, dims).with_axes(axes) };
        let decays = spec.ty.rank() >= 2;
        let matrix = decays.then_some(MatrixDims { batch: 0, inputs: 1 });
        Param { spec, init, stacked_dims: 0, matrix, decays, update: Update::Optimizer }
    }

    /// This parameter of `count` layers in one tensor, with a leading dimension named `layers`.
    #[must_use]
    pub fn stacked(self, count: usize) -> Param {
        self.stacked_over(&[(count, "layers")])
    }

    /// As [`Param::stacked`], with several leading dimensions of these sizes and names.
    #[must_use]
    pub fn stacked_over(mut self, dims: &[(usize, &str)]) -> Param {
        if self.spec.axes.is_empty() {
            self.spec.axes = self.spec.ty.dims.iter().map(|_| Name::default()).collect();
        }
        for &(size, name) in dims.iter().rev() {
            self.spec.ty.dims.insert(0, size);
            self.spec.axes.insert(0, Name::new(name));
        }
        self.stacked_dims += dims.len();
        self
    }

    /// This parameter, with these dimensions as those of matrices.
    #[must_use]
    pub fn with_matrix(self, matrix: Option<MatrixDims>) -> Param {
        Param { matrix, ..self }
    }

    /// This parameter, which a train step moves like this.
    #[must_use]
    pub fn with_update(self, update: Update) -> Param {
        Param { update, ..self }
    }

    /// This parameter, which weight decay shrinks or leaves alone.
    #[must_use]
    pub fn with_decay(self, decays: bool) -> Param {
        Param { decays, ..self }
    }
}

/// Axis numbers, from the front (0, 1, ..) or the back (-1, -2, ..): one number, an array, a slice, or `..` for all.
pub trait Axes {
    /// The axes as positions from the front; the offending number when one is out of range or repeated.
    ///
    /// # Errors
    /// The number that is out of range or repeated.
    fn resolve(&self, rank: usize) -> Result<AxisList, i64>;
}

fn resolve_axes(axes: impl IntoIterator<Item = i32>, rank: usize) -> Result<AxisList, i64> {
    let mut resolved = AxisList::new();
    for axis in axes {
        let position = if axis < 0 { i64::from(axis) + rank as i64 } else { i64::from(axis) };
        match usize::try_from(position) {
            Ok(position) if position < rank && !resolved.contains(&position) => resolved.push(position),
            _ => return Err(axis.into()),
        }
    }
    Ok(resolved)
}

impl Axes for i32 {
    fn resolve(&self, rank: usize) -> Result<AxisList, i64> {
        resolve_axes([*self], rank)
    }
}

impl<const N: usize> Axes for [i32; N] {
    fn resolve(&self, rank: usize) -> Result<AxisList, i64> {
        resolve_axes(*self, rank)
    }
}

impl Axes for &[i32] {
    fn resolve(&self, rank: usize) -> Result<AxisList, i64> {
        resolve_axes(self.iter().copied(), rank)
    }
}

impl Axes for RangeFull {
    fn resolve(&self, rank: usize) -> Result<AxisList, i64> {
        Ok((0..rank).collect())
    }
}

/// The operation of [`Tensor::index`] on one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Keeps `start..end`; `None` is the dimension's size.
    Range(usize, Option<usize>),
    /// Takes one element and removes the dimension. Negative numbers count from the back.
    At(i64),
}

macro_rules! indices_from {
    ($($from:ty: |$value:ident| $index:expr;)*) => {$(
        impl From<$from> for Index {
            fn from($value: $from) -> Index {
                $index
            }
        }

        impl Indices for $from {
            fn indices(self) -> SmallVec<[Index; 6]> {
                [self.into()].into_iter().collect()
            }
        }
    )*};
}

/// The argument of [`Tensor::index`]: one index, or a tuple or array of them, as in `x.index((.., 0, 2..5))`.
pub trait Indices {
    /// One entry for each of the leading dimensions.
    fn indices(self) -> SmallVec<[Index; 6]>;
}

indices_from! {
    i32: |at| Index::At(at.into());
    i64: |at| Index::At(at);
    RangeFull: |_all| Index::Range(0, None);
    Range<usize>: |range| Index::Range(range.start, Some(range.end));
    RangeFrom<usize>: |range| Index::Range(range.start, None);
    RangeTo<usize>: |range| Index::Range(0, Some(range.end));
}

impl<const N: usize> Indices for [Index; N] {
    fn indices(self) -> SmallVec<[Index; 6]> {
        self.into_iter().collect()
    }
}

impl<const N: usize> Indices for [i64; N] {
    fn indices(self) -> SmallVec<[Index; 6]> {
        self.map(Index::At).into_iter().collect()
    }
}

macro_rules! indices_of_tuples {
    ($(($($index:ident)*);)*) => {$(
        impl<$($index: Into<Index>),*> Indices for ($($index,)*) {
            #[expect(non_snake_case, reason = "types and values of a tuple share their names")]
            fn indices(self) -> SmallVec<[Index; 6]> {
                let ($($index,)*) = self;
                [$($index.into()),*].into_iter().collect()
            }
        }
    )*};
}

indices_of_tuples! {
    (A);
    (A B);
    (A B C);
    (A B C D);
    (A B C D E);
    (A B C D E F);
}

impl Tensor {
    /// The tensor that stands for one that an error has prevented.
    pub(super) const POISONED: Tensor = Tensor { frame: 0, value: context::POISON };

    /// Element type and dimensions. A tensor that stands for an error has the type of a scalar `f32`. So has a tensor
    /// of a trace that is over, and then an error is noted.
    #[track_caller]
    pub fn ty(self) -> TensorType {
        context::type_of(self, Location::caller())
    }

    /// Element type.
    #[track_caller]
    pub fn dtype(self) -> DType {
        self.ty().dtype
    }

    /// Number of dimensions.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.ty().rank()
    }

    /// Dimension sizes.
    #[track_caller]
    pub fn dims(self) -> Dims {
        self.ty().dims
    }

    /// Dimension sizes as an array, for `let [batch, length] = x.shape();`. With another number of dimensions, an
    /// error is noted and the sizes are 1.
    #[track_caller]
    pub fn shape<const N: usize>(self) -> [usize; N] {
        let dims = self.dims();
        match dims.as_slice().try_into() {
            Ok(sizes) => sizes,
            Err(_) => {
                if self.value != context::POISON {
                    let what = "number of dimensions".to_owned();
                    let (expected, found) = (N.to_string(), format!("{} in {}", dims.len(), self.ty()));
                    context::fail(TraceErrorKind::Mismatch { what, expected, found }, Location::caller());
                }
                [1; N]
            }
        }
    }

    /// The size of one dimension. For an axis that does not exist, an error is noted and the size is 1.
    #[track_caller]
    pub fn dim(self, axis: i32) -> usize {
        self.axis(axis, Location::caller()).and_then(|axis| self.dims().get(axis).copied()).unwrap_or(1)
    }

    /// Resolves axis numbers; notes an error and returns no axes if they do not fit.
    #[track_caller]
    pub(super) fn axes(self, axes: impl Axes, place: CallSite) -> AxisList {
        let rank = self.rank();
        axes.resolve(rank).unwrap_or_else(|axis| {
            if self.value != context::POISON {
                let message = format!("axis {axis} is out of range or repeated for a tensor of type {}", self.ty());
                context::fail(TraceErrorKind::Other(message), place);
            }
            AxisList::new()
        })
    }

    /// Resolves one axis number, as [`Tensor::axes`] does.
    #[track_caller]
    pub(super) fn axis(self, axis: i32, place: CallSite) -> Option<usize> {
        self.axes(axis, place).first().copied()
    }

    /// The same elements as another type.
    #[track_caller]
    pub fn convert(self, dtype: DType) -> Tensor {
        if self.dtype() == dtype { self } else { apply(Convert(dtype), &[self], Location::caller()) }
    }

    /// The same bits as another type of the same width.
    #[track_caller]
    pub fn bitcast_convert(self, dtype: DType) -> Tensor {
        apply(BitcastConvert(dtype), &[self], Location::caller())
    }

    /// The same elements in row-major order with other dimensions.
    #[track_caller]
    pub fn reshape(self, dims: impl AsRef<[usize]>) -> Tensor {
        self.reshape_at(dims.as_ref(), Location::caller())
    }

    /// The same elements with these dimensions in place of the first one: `[6, 5]` becomes `[2, 3, 5]` by `&[2, 3]`.
    /// The product of `dims` is the size of the first dimension.
    #[track_caller]
    pub fn reshape_first(self, dims: &[usize]) -> Tensor {
        let rest = self.dims();
        self.reshape([dims, rest.get(1..).unwrap_or_default()].concat())
    }

    #[track_caller]
    pub(super) fn reshape_at(self, dims: &[usize], place: CallSite) -> Tensor {
        if self.value != context::POISON && self.dims().as_slice() == dims {
            return self;
        }
        apply(Reshape { dims: Dims::from_slice(dims) }, &[self], place)
    }

    /// Adds a dimension of size 1 at `axis` of the result.
    #[track_caller]
    pub fn expand(self, axis: i32) -> Tensor {
        let mut dims = self.dims();
        let Ok(axes) = resolve_axes([axis], dims.len() + 1) else {
            self.axes(axis, Location::caller());
            return self;
        };
        dims.insert(axes[0], 1);
        self.reshape_at(&dims, Location::caller())
    }

    /// Permutes dimensions: result dimension `i` is dimension `axes[i]`.
    #[track_caller]
    pub fn transpose(self, axes: impl Axes) -> Tensor {
        let permutation = self.axes(axes, Location::caller());
        if permutation.len() != self.rank() {
            let expected = format!("one for each of {}", counted(self.rank(), "dimension"));
            return self.mismatch(
                "the axes of a transpose",
                expected,
                permutation.len().to_string(),
                Location::caller(),
            );
        }
        if self.value != context::POISON && permutation.len() == self.rank() && permutation.is_sorted() {
            return self;
        }
        apply(Transpose { permutation }, &[self], Location::caller())
    }

    /// Repeats to `dims`: dimensions are matched from the back, missing ones and those of size 1 are repeated.
    #[track_caller]
    pub fn broadcast_to(self, dims: impl AsRef<[usize]>) -> Tensor {
        self.broadcast_to_at(dims.as_ref(), Location::caller())
    }

    #[track_caller]
    pub(super) fn broadcast_to_at(self, dims: &[usize], place: CallSite) -> Tensor {
        let own = self.dims();
        let offset = dims.len().saturating_sub(own.len());
        // Dimensions of size 1 that grow are dropped first, since a broadcast never changes a size.
        let kept: AxisList = (0..own.len()).filter(|&dim| Some(&own[dim]) == dims.get(offset + dim)).collect();
        let dropped = complement(&kept, own.len());
        if dims.len() < own.len() || dropped.iter().any(|&dim| own[dim] != 1) {
            let (expected, found) = (format!("a shape that repeats to {dims:?}"), self.ty().to_string());
            return self.mismatch("broadcast", expected, found, place);
        }
        let squeezed: Dims = kept.iter().map(|&dim| own[dim]).collect();
        let mapping: AxisList = kept.iter().map(|&dim| offset + dim).collect();
        self.reshape_at(&squeezed, place).broadcast_at(dims, mapping, place)
    }

    /// Repeats to the dimensions of `other`: own dimension `i` becomes dimension `axes[i]` there; all others repeat.
    #[track_caller]
    pub fn broadcast_like(self, other: Tensor, axes: impl Axes) -> Tensor {
        let place = Location::caller();
        let mapping = other.axes(axes, place);
        self.broadcast_at(&other.dims(), mapping, place)
    }

    #[track_caller]
    pub(super) fn broadcast_at(self, dims: &[usize], mapping: AxisList, place: CallSite) -> Tensor {
        if self.value != context::POISON && mapping.len() == dims.len() && self.dims().as_slice() == dims {
            return self;
        }
        apply(BroadcastInDim { dims: Dims::from_slice(dims), mapping }, &[self], place)
    }

    /// Notes the error that this tensor does not fit, as [`TraceErrorKind::Mismatch`] at `place`, and returns what
    /// stands for the result. It is how a function of tensors refuses an operand: `what` names the operand, `expected`
    /// and `found` say how it had to be and how it is. A tensor that already stands for an earlier error is returned
    /// without a new one.
    pub fn mismatch(self, what: &str, expected: String, found: String, place: &'static Location<'static>) -> Tensor {
        if self.value == context::POISON {
            return self;
        }
        context::fail(TraceErrorKind::Mismatch { what: what.to_owned(), expected, found }, place)
    }

    /// The elements `range` of one dimension.
    #[track_caller]
    pub fn slice(self, axis: i32, range: impl RangeBounds<usize>) -> Tensor {
        let place = Location::caller();
        let Some(axis) = self.axis(axis, place) else { return self };
        let dims = self.dims();
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let limit = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => dims[axis],
        };
        let mut ranges: Vec<SliceDim> = dims.iter().map(|&size| SliceDim::whole(size)).collect();
        ranges[axis] = SliceDim { start, limit, stride: 1 };
        apply(Slice { ranges: ranges.into() }, &[self], place)
    }

    /// Selects along the leading dimensions: a range keeps a dimension, a number removes it; later dimensions stay.
    /// Negative numbers count from the back.
    ///
    /// ```
    /// # use meshloom::prelude::*;
    /// let function = Function::trace("last", TensorSpec::new(F32, [4, 8, 3]), |x| (x.index((.., -1)), x.index(2)))?;
    /// assert_eq!(function.outputs().0.ty.to_string(), "f32[4,3]");
    /// assert_eq!(function.outputs().1.ty.to_string(), "f32[8,3]");
    /// # Ok::<(), meshloom::Error>(())
    /// ```
    #[track_caller]
    pub fn index(self, indices: impl Indices) -> Tensor {
        let (dims, place, indices) = (self.dims(), Location::caller(), indices.indices());
        if indices.len() > dims.len() {
            let expected = format!("indices for {}", counted(dims.len(), "dimension"));
            return self.mismatch("indexing", expected, indices.len().to_string(), place);
        }
        let mut ranges: Vec<SliceDim> = Vec::new();
        let mut kept = Dims::new();
        for (dim, &size) in dims.iter().enumerate() {
            let (start, limit, keep) = match indices.get(dim) {
                None => (0, size, true),
                Some(&Index::Range(start, end)) => (start, end.unwrap_or(size), true),
                Some(&Index::At(at)) => {
                    let position = if at < 0 { at + size as i64 } else { at };
                    let Some(start) = usize::try_from(position).ok().filter(|&start| start < size) else {
                        let expected = format!("an index into dimension {dim} of size {size}");
                        return self.mismatch("indexing", expected, at.to_string(), place);
                    };
                    (start, start + 1, false)
                }
            };
            ranges.push(SliceDim { start, limit, stride: 1 });
            if keep {
                kept.push(limit.saturating_sub(start));
            }
        }
        apply(Slice { ranges: ranges.into() }, &[self], place).reshape_at(&kept, place)
    }

    /// Adds `low` elements before and `high` elements after one dimension, all equal to `value`.
    #[track_caller]
    pub fn pad(self, axis: i32, low: i64, high: i64, value: f64) -> Tensor {
        let place = Location::caller();
        let Some(axis) = self.axis(axis, place) else { return self };
        let mut padding = vec![PadDim::NONE; self.rank()];
        padding[axis] = PadDim { low, high, interior: 0 };
        let value = splat(TensorType::scalar(self.dtype()), value, place);
        apply(Pad { padding: padding.into() }, &[self, value], place)
    }

    /// Reverses the order along dimensions.
    #[track_caller]
    pub fn reverse(self, axes: impl Axes) -> Tensor {
        let axes = self.axes(axes, Location::caller());
        apply(Reverse { axes }, &[self], Location::caller())
    }

    /// A sub-tensor of fixed sizes at a computed position: one integer scalar for each dimension. A position that does
    /// not fit is moved back until it does.
    #[track_caller]
    pub fn dynamic_slice(self, starts: &[Tensor], sizes: impl AsRef<[usize]>) -> Tensor {
        let operands = [&[self], starts].concat();
        apply(DynamicSlice { sizes: Dims::from_slice(sizes.as_ref()) }, &operands, Location::caller())
    }

    /// This tensor with a sub-tensor replaced at a computed position, which is moved back until it fits.
    #[track_caller]
    pub fn dynamic_update_slice(self, update: Tensor, starts: &[Tensor]) -> Tensor {
        let operands = [&[self, update], starts].concat();
        apply(DynamicUpdateSlice, &operands, Location::caller())
    }

    /// Takes rows by index along dimension `axis`, which is replaced by the dimensions of `indices` (integers). An
    /// index out of range takes the nearest row. This is an embedding lookup when `axis` is 0.
    #[track_caller]
    pub fn take(self, axis: i32, indices: Tensor) -> Tensor {
        let place = Location::caller();
        let Some(axis) = self.axis(axis, place) else { return self };
        let (rank, indices_rank) = (self.rank(), indices.rank());
        let mut slice_sizes = self.dims();
        slice_sizes[axis] = 1;
        let dims = GatherDims {
            offset_dims: (0..rank - 1).map(|dim| if dim < axis { dim } else { dim + indices_rank }).collect(),
            collapsed_dims: AxisList::from_slice(&[axis]),
            start_index_map: AxisList::from_slice(&[axis]),
            index_vector_dim: indices_rank,
            ..GatherDims::default()
        };
        apply(Gather { dims: Box::new(dims), slice_sizes, promise: IndexPromise::default() }, &[self, indices], place)
    }

    /// The same value through which no gradient flows.
    #[track_caller]
    pub fn stop_gradient(self) -> Tensor {
        apply(StopGradient, &[self], Location::caller())
    }

    /// The same value under a name that [`RematPolicy::Save`](crate::ops::RematPolicy::Save) refers to.
    #[track_caller]
    pub fn named(self, name: &str) -> Tensor {
        apply(Named(Name::new(name)), &[self], Location::caller())
    }

    /// The same value with logical axis names, one for each dimension (`""` for none), by which it is sharded.
    #[track_caller]
    pub fn with_axes(self, names: impl AsRef<[&'static str]>) -> Tensor {
        let names = names.as_ref().iter().map(|name| Name::new(name)).collect();
        self.with_logical_axes(WithAxes::new(names))
    }

    /// The same value with logical axis names and all that [`WithAxes`] can say beside them, such as that a partial sum
    /// stays one, or on which rows a weight is used.
    #[track_caller]
    pub fn with_logical_axes(self, axes: WithAxes) -> Tensor {
        apply(axes, &[self], Location::caller())
    }

    /// The same value, sharded by `spec` from here on.
    #[track_caller]
    pub fn reshard(self, spec: Spec) -> Tensor {
        apply(Reshard::new(spec), &[self], Location::caller())
    }

    /// A tensor of this type whose elements are all `number`, which the type must hold.
    #[track_caller]
    pub fn full_like(self, number: f64) -> Tensor {
        splat(self.ty(), number, Location::caller())
    }

    /// Zeros of this type.
    #[track_caller]
    pub fn zeros_like(self) -> Tensor {
        splat(self.ty(), 0.0, Location::caller())
    }
}

/// A number as every element of a tensor: Rust numbers enter a trace here. Nothing is rounded to an integer.
pub(super) fn splat(ty: TensorType, number: f64, place: CallSite) -> Tensor {
    if !ty.dtype.holds(number) {
        return context::fail(TraceErrorKind::Number { number, dtype: ty.dtype }, place);
    }
    apply(Splat::new(ty, number), &[], place)
}

/// A tensor whose elements are all `number`, which the type must hold.
#[track_caller]
pub fn full(dtype: DType, dims: impl AsRef<[usize]>, number: f64) -> Tensor {
    splat(TensorType::new(dtype, dims.as_ref()), number, Location::caller())
}

/// Zeros.
#[track_caller]
pub fn zeros(dtype: DType, dims: impl AsRef<[usize]>) -> Tensor {
    splat(TensorType::new(dtype, dims.as_ref()), 0.0, Location::caller())
}

/// A dense constant.
#[track_caller]
pub fn constant(value: Literal) -> Tensor {
    apply(Constant(Box::new(value)), &[], Location::caller())
}

/// Positions along dimension `axis` of a tensor, which an integer type must hold; floating-point types round them.
#[track_caller]
pub fn iota(dtype: DType, dims: impl AsRef<[usize]>, axis: i32) -> Tensor {
    let (ty, place) = (TensorType::new(dtype, dims.as_ref()), Location::caller());
    let axis = match resolve_axes([axis], ty.rank()) {
        Ok(axes) => axes[0],
        Err(axis) => {
            let message = format!("axis {axis} is out of range for an iota of type {ty}");
            return context::fail(TraceErrorKind::Other(message), place);
        }
    };
    let last = ty.dims[axis].saturating_sub(1) as f64;
    if !dtype.is_float() && !dtype.holds(last) {
        return context::fail(TraceErrorKind::Number { number: last, dtype }, place);
    }
    apply(Iota { ty, axis }, &[], place)
}

/// 0, 1, .. below `count`. As [`iota`] of one dimension.
#[track_caller]
pub fn arange(dtype: DType, count: usize) -> Tensor {
    iota(dtype, [count], 0)
}

/// Joins tensors along a dimension.
#[track_caller]
pub fn concatenate(tensors: &[Tensor], axis: i32) -> Tensor {
    let place = Location::caller();
    let Some(first) = tensors.first() else {
        return context::fail(TraceErrorKind::Other("cannot concatenate no tensors".to_owned()), place);
    };
    let Some(axis) = first.axis(axis, place) else { return *first };
    apply(Concatenate { axis }, tensors, place)
}

/// Joins tensors of one type along a new dimension.
#[track_caller]
pub fn stack(tensors: &[Tensor], axis: i32) -> Tensor {
    composite(Location::caller(), || {
        let expanded: SmallVec<[Tensor; 8]> = tensors.iter().map(|tensor| tensor.expand(axis)).collect();
        concatenate(&expanded, axis)
    })
}

/// Runs `f` with one more name on the scope path, which every node carries down to HLO metadata.
pub fn scope<R>(name: &str, f: impl FnOnce() -> R) -> R {
    context::in_scope(name, f)
}
