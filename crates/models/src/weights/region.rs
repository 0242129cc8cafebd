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

/// The indices of an element of a box, which is the `number`-th in row-major order.
pub fn index(region: &[Range<usize>], number: usize) -> Vec<usize> {
    let mut rest = number;
    let mut index: Vec<usize> = region.iter().map(|range| range.start).collect();
    for (at, range) in index.iter_mut().zip(region).rev() {
        *at += rest % range.len();
        rest /= range.len();
    }
    index
}

/// The runs of elements that are beside one another in the row-major order of the shape and make up the box, in that
/// order, as long as they can be. The numbers count elements from the start of the tensor.
pub fn runs(shape: &[usize], region: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> {
    let mut length = 1;
    for (size, range) in shape.iter().zip(region).rev() {
        length *= range.len();
        if range.len() < *size {
            break;
        }
    }
    let count = elements(region).checked_div(length).unwrap_or(0);
    (0..count).map(move |run| {
        let start = position(shape, region, run * length);
        start..start + length
    })
}

/// The position in the shape of the element that is the `number`-th of the box.
fn position(shape: &[usize], region: &[Range<usize>], number: usize) -> usize {
    let (mut rest, mut stride, mut position) = (number, 1, 0);
    for (size, range) in shape.iter().zip(region).rev() {
        position += (range.start + rest % range.len()) * stride;
        rest /= range.len();
        stride *= size;
    }
    position
}
