//! Reading and writing at computed positions.

use std::panic::Location;

use super::context::{self, CallSite, apply, composite};
use super::operators::Operand;
use super::tensor::splat;
use super::{Tensor, TraceErrorKind, concatenate, iota, zeros};
use crate::ir::{DType, Dims, TensorType};
use crate::ops::{
    AxisList, DynamicSlice, DynamicUpdateSlice, Gather, GatherDims, IndexPromise, Roll, Scatter, ScatterKind,
    complement,
};
use meshloom_hlo::message::counted;

/// The treatment of an index that is out of range. Negative indices are out of range: they do not count from the back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OutOfRange {
    /// Reads take the nearest element; writes are dropped.
    Usual,
    /// The nearest element is meant.
    Clip,
    /// Reads give this number; writes are dropped.
    Fill(f64),
}

/// Places in a tensor, made by [`Tensor::at`]. The operation on them comes last.
///
/// ```
/// # use meshloom::ir::DType::{F32, S32};
/// # use meshloom::trace::{Function, TensorSpec};
/// # fn main() -> Result<(), meshloom::Error> {
/// let specs = (TensorSpec::new(F32, [5, 2]), TensorSpec::new(S32, [3]), TensorSpec::new(F32, [3, 2]));
/// Function::trace("rows", specs, |(table, rows, updates)| {
///     let read = table.at(&[rows]).fill(0.0).get();
///     (read, table.at(&[rows]).add(updates), table.at(&[rows]).unique().set(1.0))
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct At<'i> {
    target: Tensor,
    indices: &'i [Tensor],
    out_of_range: OutOfRange,
    promise: IndexPromise,
}

impl Tensor {
    /// The places that lists of indices name: one tensor of integers for each of the leading dimensions, all of the
    /// same dimensions `i`. Values there have the dimensions `i` followed by those not indexed.
    pub fn at<'i>(self, indices: &'i [Tensor]) -> At<'i> {
        At { target: self, indices, out_of_range: OutOfRange::Usual, promise: IndexPromise::default() }
    }

    /// Elements along one dimension by index: `result[.., i, ..] = self[.., indices[.., i, ..], ..]`. `indices` has
    /// this tensor's dimensions, but for the size along `axis`. An index out of range takes the nearest element.
    #[track_caller]
    pub fn take_along_axis(self, axis: i32, indices: Tensor) -> Tensor {
        let place = Location::caller();
        let (Some(axis), rank) = (self.axis(axis, place), self.rank()) else { return self };
        if indices.rank() != rank {
            let expected = format!("indices with {}", counted(rank, "dimension"));
            return self.mismatch("take_along_axis", expected, indices.ty().to_string(), place);
        }
        let batch = complement(&[axis], rank);
        let dims = GatherDims {
            collapsed_dims: AxisList::from_slice(&[axis]),
            operand_batch_dims: batch.clone(),
            indices_batch_dims: batch,
            start_index_map: AxisList::from_slice(&[axis]),
            index_vector_dim: rank,
            ..GatherDims::default()
        };
        let (slice_sizes, promise) = (Dims::from_elem(1, rank), IndexPromise::default());
        apply(Gather { dims: Box::new(dims), slice_sizes, promise }, &[self, indices], place)
    }

    /// Each integer as a row of `depth` numbers that are 0 but for a 1 at its position; all 0 for one out of range.
    #[track_caller]
    pub fn one_hot(self, depth: usize, dtype: DType) -> Tensor {
        let place = Location::caller();
        composite(place, || {
            let (rank, mut dims) = (self.rank(), self.dims());
            dims.push(depth);
            let repeated = self.broadcast_at(&dims, (0..rank).collect(), place);
            repeated.equal(iota(self.dtype(), &dims, -1)).convert(dtype)
        })
    }

    /// Elements moved `shift` places on along a dimension; those that leave it come in again at the other end.
    #[track_caller]
    pub fn roll(self, axis: i32, shift: i64) -> Tensor {
        let place = Location::caller();
        let Some(axis) = self.axis(axis, place) else { return self };
        apply(Roll { axis, shift }, &[self], place)
    }

    /// `size` elements of one dimension from a computed position, a scalar, that is moved back until they fit.
    #[track_caller]
    pub fn dynamic_slice_along(self, axis: i32, start: Tensor, size: usize) -> Tensor {
        let place = Location::caller();
        let Some((axis, starts)) = self.starts_along(axis, start, place) else { return self };
        let mut sizes = self.dims();
        sizes[axis] = size;
        apply(DynamicSlice { sizes }, &[&[self], &starts[..]].concat(), place)
    }

    /// One element of a dimension, which is removed, at a computed position: the nearest if that is out of range.
    #[track_caller]
    pub fn dynamic_index(self, axis: i32, index: Tensor) -> Tensor {
        let place = Location::caller();
        let Some((axis, starts)) = self.starts_along(axis, index, place) else { return self };
        let mut sizes = self.dims();
        sizes[axis] = 1;
        let slice = apply(DynamicSlice { sizes: sizes.clone() }, &[&[self], &starts[..]].concat(), place);
        sizes.remove(axis);
        slice.reshape_at(&sizes, place)
    }

    /// This tensor with elements of one dimension replaced from a computed position on, which is moved back until they
    /// fit.
    #[track_caller]
    pub fn dynamic_update_along(self, axis: i32, update: Tensor, start: Tensor) -> Tensor {
        let place = Location::caller();
        let Some((_, starts)) = self.starts_along(axis, start, place) else { return self };
        apply(DynamicUpdateSlice, &[&[self, update], &starts[..]].concat(), place)
    }

    /// The axis, and start indices that are zero except along it.
    #[track_caller]
    fn starts_along(self, axis: i32, start: Tensor, place: CallSite) -> Option<(usize, Vec<Tensor>)> {
        let axis = self.axis(axis, place)?;
        let zero = splat(TensorType::scalar(start.dtype()), 0.0, place);
        let mut starts = vec![zero; self.rank()];
        starts[axis] = start;
        Some((axis, starts))
    }
}

impl At<'_> {
    /// An index out of range means the nearest one, for reads and writes.
    pub fn clip(mut self) -> Self {
        self.out_of_range = OutOfRange::Clip;
        self
    }

    /// At an index out of range a read gives `number` and a write is dropped.
    pub fn fill(mut self, number: f64) -> Self {
        self.out_of_range = OutOfRange::Fill(number);
        self
    }

    /// Promises that no index is out of range, which lets gradients skip the check. A broken promise gives any result.
    pub fn in_bounds(mut self) -> Self {
        self.promise.in_bounds = true;
        self
    }

    /// Promises that no place is named twice, which lets the backend write in parallel. A broken promise gives any
    /// result.
    pub fn unique(mut self) -> Self {
        self.promise.unique = true;
        self
    }

    /// Promises that places come in increasing order. A broken promise gives any result.
    pub fn sorted(mut self) -> Self {
        self.promise.sorted = true;
        self
    }

    /// The values at these places. Out of range it is the nearest element, unless [`At::fill`] says otherwise.
    #[track_caller]
    pub fn get(self) -> Tensor {
        let place = Location::caller();
        composite(place, || {
            let Some((indices, dims)) = self.combined(place) else { return self.target };
            let mut slice_sizes = self.target.dims();
            slice_sizes[..self.indices.len()].fill(1);
            let gather = Gather { dims: Box::new(dims), slice_sizes, promise: self.promise };
            let found = apply(gather, &[self.target, indices], place);
            match self.out_of_range {
                OutOfRange::Fill(number) => self.fill_outside(found, number, place),
                OutOfRange::Usual | OutOfRange::Clip => found,
            }
        })
    }

    /// The tensor with values written there, a tensor or one number. Out of range they are dropped, unless [`At::clip`]
    /// says otherwise. If there are several values for one place, the backend keeps one of them.
    #[track_caller]
    pub fn set(self, values: impl Operand) -> Tensor {
        self.scatter(ScatterKind::Set, values)
    }

    /// As [`At::set`], with values added to the elements that are there.
    // The name stands beside `set`, `max` and `min`, and cannot be taken for the operator, which [`At`] does not have.
    #[allow(clippy::should_implement_trait)]
    #[track_caller]
    pub fn add(self, values: impl Operand) -> Tensor {
        self.scatter(ScatterKind::Add, values)
    }

    /// As [`At::set`], with values multiplied by the elements that are there. Values have a gradient where indices are
    /// promised [unique](At::unique).
    #[track_caller]
    pub fn multiply(self, values: impl Operand) -> Tensor {
        self.scatter(ScatterKind::Multiply, values)
    }

    /// As [`At::set`], with the larger of a value and the element that is there.
    #[track_caller]
    pub fn max(self, values: impl Operand) -> Tensor {
        self.scatter(ScatterKind::Max, values)
    }

    /// As [`At::set`], with the smaller of a value and the element that is there.
    #[track_caller]
    pub fn min(self, values: impl Operand) -> Tensor {
        self.scatter(ScatterKind::Min, values)
    }

    #[track_caller]
    fn scatter(self, kind: ScatterKind, values: impl Operand) -> Tensor {
        let place = Location::caller();
        composite(place, || {
            let Some((indices, dims)) = self.combined(place) else { return self.target };
            let target = self.target.dims();
            let window = &target[self.indices.len()..];
            let expected: Dims = self.indices[0].dims().iter().chain(window).copied().collect();
            let values = values.tensor(zeros(self.target.dtype(), &expected), place);
            let scalar = values.rank() == 0;
            let values = if scalar { values.broadcast_at(&expected, AxisList::new(), place) } else { values };
            let scatter = Scatter { dims: Box::new(dims), kind, promise: self.promise };
            apply(scatter, &[self.target, indices, values], place)
        })
    }

    /// All index tensors in one, with the matching dimension numbers; `None` if they do not fit each other.
    #[track_caller]
    fn combined(self, place: CallSite) -> Option<(Tensor, GatherDims)> {
        let (rank, count) = (self.target.rank(), self.indices.len());
        if std::iter::once(&self.target).chain(self.indices).any(|tensor| tensor.value == context::POISON) {
            context::fail(TraceErrorKind::Other("an index has no value".to_owned()), place);
            return None;
        }
        let fit = self.indices.iter().all(|index| index.ty() == self.indices[0].ty());
        if count == 0 || count > rank || !fit {
            let types: Vec<String> = self.indices.iter().map(|index| index.ty().to_string()).collect();
            let dimensions = counted(rank, "dimension");
            let expected = format!("index tensors of one type, one for each of the leading of {dimensions}");
            self.target.mismatch("indexing", expected, format!("[{}]", types.join(", ")), place);
            return None;
        }
        let clipped = |(axis, &index): (usize, &Tensor)| match self.out_of_range {
            OutOfRange::Clip => index.clamp(0.0, self.last(axis)),
            OutOfRange::Usual | OutOfRange::Fill(_) => index,
        };
        let indices: Vec<Tensor> = self.indices.iter().enumerate().map(clipped).collect();
        let indices_rank = indices[0].rank();
        let combined = match indices[..] {
            [index] => index,
            _ => concatenate(&indices.iter().map(|index| index.expand(-1)).collect::<Vec<_>>(), -1),
        };
        let all: AxisList = (0..count).collect();
        let dims = GatherDims {
            offset_dims: (indices_rank..indices_rank + rank - count).collect(),
            collapsed_dims: all.clone(),
            start_index_map: all,
            index_vector_dim: indices_rank,
            ..GatherDims::default()
        };
        Some((combined, dims))
    }

    /// The last index of a dimension, or of the indices' type, if that is less.
    #[track_caller]
    fn last(self, axis: usize) -> f64 {
        (self.target.dims()[axis] as f64 - 1.0).min(self.indices[axis].dtype().highest())
    }

    #[track_caller]
    fn fill_outside(self, found: Tensor, number: f64, place: CallSite) -> Tensor {
        let within = |(axis, &index): (usize, &Tensor)| index.greater_equal(0.0) & index.less_equal(self.last(axis));
        let inside = self.indices.iter().enumerate().map(within).reduce(|left, right| left & right);
        let Some(inside) = inside else { return found };
        let mapping = (0..inside.rank()).collect();
        inside.broadcast_at(&found.dims(), mapping, place).select(found, number)
    }
}
