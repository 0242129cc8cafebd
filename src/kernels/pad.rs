//! Filling tensors up to whole blocks.

use crate::trace::Tensor;

/// The segment of queries that only fill a block. Keys that only fill a block have the next one. No token is in either
/// segment, so the two do not see each other.
const NO_SEGMENT: f64 = i32::MIN as f64;

pub(super) fn pad(x: Tensor, axis: i32, length: usize, filling: f64) -> Tensor {
    let missing = length - x.dim(axis);
    if missing == 0 { x } else { x.pad(axis, 0, missing as i64, filling) }
}

/// Pads the segments of queries and of keys, `[batch, ..]`, to these lengths.
pub(super) fn pad_segments([of_queries, of_keys]: [Tensor; 2], [queries, keys]: [usize; 2]) -> [Tensor; 2] {
    [pad(of_queries, 1, queries, NO_SEGMENT), pad(of_keys, 1, keys, NO_SEGMENT + 1.0)]
}

/// Whether each element is a token, by the segments. Other elements only fill a block.
pub(super) fn is_token(segments: Tensor) -> Tensor {
    segments.greater(NO_SEGMENT + 1.0)
}
