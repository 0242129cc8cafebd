//! The bytes of a shape.

use meshloom_hlo::proto::{PrimitiveType, ShapeProto};

/// Returns the bytes of an array's elements, without padding, or of all elements of a tuple; `None` if they are not
/// known, as for an opaque type or an unbounded dimension.
pub(super) fn shape_bytes(shape: &ShapeProto) -> Option<u64> {
    match PrimitiveType::try_from(shape.element_type).ok()? {
        PrimitiveType::Token => Some(0),
        PrimitiveType::Tuple => {
            shape.tuple_shapes.iter().try_fold(0u64, |sum, part| Some(sum.saturating_add(shape_bytes(part)?)))
        }
        _ => array_bytes(shape.element_type, &shape.dimensions),
    }
}

/// Returns the bytes of an array in memory, with the padding that its layout's tiles need. A TPU pads the two fastest
/// dimensions to tiles of 8 by 128. Other layouts have none.
pub(super) fn padded_bytes(shape: &ShapeProto) -> Option<u64> {
    let layout = shape.layout.as_ref();
    let Some((layout, tile)) = layout.and_then(|layout| Some((layout, layout.tiles.first()?))) else {
        return shape_bytes(shape);
    };
    let mut sizes = shape.dimensions.clone();
    // A tile with more dimensions than the array counts as one with the array's fastest dimensions.
    for (&dimension, &tile) in layout.minor_to_major.iter().zip(tile.dimensions.iter().rev()) {
        let size = usize::try_from(dimension).ok().and_then(|dimension| sizes.get_mut(dimension));
        if let (Some(size), Ok(tile)) = (size, u64::try_from(tile)) {
            let padded = u64::try_from(*size).ok()?.checked_next_multiple_of(tile.max(1))?;
            *size = i64::try_from(padded).ok()?;
        }
    }
    array_bytes(shape.element_type, &sizes)
}

/// Returns the bytes of an array in memory that are padding; 0 for a tuple.
pub(super) fn padding(shape: &ShapeProto) -> u64 {
    let bytes = padded_bytes(shape).zip(shape_bytes(shape));
    bytes.map_or(0, |(padded, plain)| padded.saturating_sub(plain))
}

/// Returns the number of elements of an array; for a tuple, of all its arrays; 0 for a shape without any.
pub(super) fn elements(shape: &ShapeProto) -> u64 {
    match PrimitiveType::try_from(shape.element_type) {
        Ok(PrimitiveType::Tuple) => shape.tuple_shapes.iter().fold(0, |sum, part| sum.saturating_add(elements(part))),
        Ok(PrimitiveType::Token | PrimitiveType::OpaqueType | PrimitiveType::Invalid) | Err(_) => 0,
        Ok(_) => product(shape.dimensions.iter().copied()),
    }
}

/// Returns the product of sizes; a negative one counts as 0.
pub(super) fn product(sizes: impl IntoIterator<Item = i64>) -> u64 {
    sizes.into_iter().fold(1, |product, size| product.saturating_mul(u64::try_from(size).unwrap_or(0)))
}

pub(super) fn array_bytes(element_type: i32, dimensions: &[i64]) -> Option<u64> {
    let elements =
        dimensions.iter().try_fold(1u64, |count, &size| Some(count.saturating_mul(u64::try_from(size).ok()?)));
    Some(elements?.saturating_mul(PrimitiveType::try_from(element_type).ok()?.bits()?).div_ceil(8))
}
