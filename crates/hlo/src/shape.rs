//! Element types, shapes and literals as HLO's messages have them.

use crate::proto::{self, ShapeProto};
use crate::types::{DType, TensorType};

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

/// The shape of a tuple of dense tensors.
pub fn tuple_shape<'t>(types: impl IntoIterator<Item = &'t TensorType>) -> ShapeProto {
    ShapeProto {
        element_type: proto::PrimitiveType::Tuple.into(),
        tuple_shapes: types.into_iter().map(shape).collect(),
        ..ShapeProto::default()
    }
}

/// A dense literal.
pub fn literal_proto(ty: &TensorType, bytes: &[u8]) -> proto::LiteralProto {
    let mut literal = proto::LiteralProto { shape: Some(shape(ty)), ..proto::LiteralProto::default() };
    fn each<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.as_chunks().0.iter().map(|&chunk| convert(chunk)).collect()
    }
    match ty.dtype {
        DType::Pred => literal.preds = bytes.iter().map(|&byte| byte != 0).collect(),
        // One a byte, in its low bits.
        DType::S4 => literal.s4s = bytes.iter().map(|byte| byte & 15).collect(),
        DType::U4 => literal.u4s = bytes.iter().map(|byte| byte & 15).collect(),
        DType::F8E4M3FN => literal.f8e4m3fns = bytes.to_vec(),
        DType::F8E5M2 => literal.f8e5m2s = bytes.to_vec(),
        DType::S8 => literal.s8s = bytes.to_vec(),
        DType::U8 => literal.u8s = bytes.to_vec(),
        DType::S16 => literal.s16s = bytes.to_vec(),
        DType::U16 => literal.u16s = bytes.to_vec(),
        DType::BF16 => literal.bf16s = bytes.to_vec(),
        DType::F16 => literal.f16s = bytes.to_vec(),
        DType::S32 => literal.s32s = each(bytes, i32::from_le_bytes),
        DType::U32 => literal.u32s = each(bytes, u32::from_le_bytes),
        DType::S64 => literal.s64s = each(bytes, i64::from_le_bytes),
        DType::U64 => literal.u64s = each(bytes, u64::from_le_bytes),
        DType::F32 => literal.f32s = each(bytes, f32::from_le_bytes),
        DType::F64 => literal.f64s = each(bytes, f64::from_le_bytes),
    }
    literal
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
