//! Element types and shapes as HLO's messages have them.

use crate::proto::{self, ShapeProto};
use crate::types::{DType, TensorType};

/// Size of an unbounded dynamic dimension in a ShapeProto.
pub(crate) const UNBOUNDED: i64 = i64::MIN;

/// A tile dimension that is merged with the next more minor one.
pub(crate) const COMBINED_TILE: i64 = i64::MIN;

/// The kinds of a layout's levels, each at its number.
pub(crate) const LEVELS: [&str; 4] = ["D", "C", "S", "H"];

/// Whether a shape is that of a tuple.
pub fn is_tuple(shape: &ShapeProto) -> bool {
    shape.element_type == proto::PrimitiveType::Tuple as i32
}

/// XLA's number for an element type (`PrimitiveType` in xla_data.proto).
pub fn element_type(dtype: DType) -> i32 {
    dtype.element().into()
}

/// A dense row-major shape.
pub fn shape(ty: &TensorType) -> ShapeProto {
    ShapeProto {
        element_type: element_type(ty.dtype),
        dimensions: ty.dims.iter().map(|&size| size as i64).collect(),
        is_dynamic_dimension: vec![false; ty.rank()],
        layout: Some(
            proto::LayoutProto {
                minor_to_major: (0..ty.rank() as i64).rev().collect(),
                ..proto::LayoutProto::default()
            }
            .into(),
        ),
        ..ShapeProto::default()
    }
}

/// The type of a dense array whose elements have a form on the host, at its bounds where sizes are dynamic; `None` for
/// any other shape.
pub fn tensor_type(shape: &ShapeProto) -> Option<TensorType> {
    let dtype = DType::ALL.into_iter().find(|&dtype| element_type(dtype) == shape.element_type)?;
    let dims = shape.dimensions.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>()?;
    Some(TensorType { dtype, dims })
}

/// Whether the elements of an array are in row-major order, as they are without a layout.
pub fn is_row_major(shape: &ShapeProto) -> bool {
    shape.layout.as_ref().is_none_or(|layout| {
        let order = &layout.minor_to_major;
        order.is_empty() || order.iter().rev().copied().eq(0..order.len() as i64)
    })
}

/// The shape of a tuple of dense tensors.
pub fn tuple_shape<'t>(types: impl IntoIterator<Item = &'t TensorType>) -> ShapeProto {
    ShapeProto {
        element_type: proto::PrimitiveType::Tuple.into(),
        tuple_shapes: types.into_iter().map(shape).collect(),
        ..ShapeProto::default()
    }
}

/// The number of elements of an array, or `None` for a negative or overflowing size.
pub(crate) fn element_count(shape: &ShapeProto) -> Option<usize> {
    if shape.dimensions.contains(&0) {
        return Some(0);
    }
    shape.dimensions.iter().try_fold(1usize, |count, &size| count.checked_mul(usize::try_from(size).ok()?))
}

/// The distance in memory of neighbours along each dimension, in elements.
pub(crate) fn element_strides(shape: &ShapeProto) -> Vec<usize> {
    let rank = shape.dimensions.len();
    let mut strides = vec![0; rank];
    let mut stride = 1usize;
    let minor_to_major = shape.layout.as_ref().map(|layout| layout.minor_to_major.as_slice()).unwrap_or_default();
    let mut place = |dimension: usize| {
        if let Some(slot) = strides.get_mut(dimension) {
            *slot = stride;
            stride = stride.saturating_mul(shape.dimensions[dimension].max(0) as usize);
        }
    };
    if minor_to_major.len() == rank {
        minor_to_major.iter().for_each(|&dimension| place(usize::try_from(dimension).unwrap_or(usize::MAX)));
    } else {
        (0..rank).rev().for_each(&mut place);
    }
    strides
}
