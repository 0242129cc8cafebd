//! Boxes in tensors: a range of indices for each dimension.

use std::ops::Range;

/// The box that is the whole of a shape.
///
/// ```
/// assert_eq!(meshloom_models::weights::whole(&[2, 3]), [0..2, 0..3]);
/// ```
pub fn whole(shape: &[usize]) -> Vec<Range<usize>> {
    shape.iter().map(|size| 0..*size).collect()
}

/// Whether the box lies in the shape.
pub fn fits(shape: &[usize], region: &[Range<usize>]) -> bool {
    let ranges = || shape.iter().zip(region);
    shape.len() == region.len() && ranges().all(|(size, range)| range.start <= range.end && range.end <= *size)
}

/// The number of elements in a box.
pub fn elements(region: &[Range<usize>]) -> usize {
    // A box is no larger than its tensor, and the sizes of a tensor can be multiplied: `byte_count` has checked it.
    region.iter().map(Range::len).product()
}
