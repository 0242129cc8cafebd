//! Elements of arrays, through the ops that only move them: a row of a table is a slice of a constant.

use meshloom_hlo::proto::{HloInstructionProto, LiteralProto, ShapeProto};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Element {
    /// The element at this position, counted row by row.
    At(u64),
    /// Any element: they are all equal.
    Any,
}

impl Element {
    /// Returns the same element of an array of this shape. An array of one element has only the first.
    pub(super) fn of(self, shape: &ShapeProto) -> Element {
        if shape.dimensions.iter().all(|&size| size == 1) { Element::At(0) } else { self }
    }
}

/// Whether an op only moves elements.
pub(super) fn moves(opcode: &str) -> bool {
    of_one_operand(opcode) || matches!(opcode, "concatenate" | "pad")
}

/// Whether it moves those of its first operand alone.
pub(super) fn of_one_operand(opcode: &str) -> bool {
    matches!(opcode, "broadcast" | "reshape" | "transpose" | "slice" | "dynamic-slice" | "reverse" | "bitcast")
}

/// Returns the operand that an element of a result comes from, and the element's position there; `None` for an op that
/// makes its own elements, and where an offset is not known.
pub(super) fn source(
    it: &HloInstructionProto,
    operands: &[Option<&ShapeProto>],
    mut offset: impl FnMut(usize) -> Option<i128>,
    at: u64,
) -> Option<(usize, u64)> {
    let shape = it.shape.as_ref()?;
    let first = *operands.first()?;
    let from = sizes(first?)?;
    let result = sizes(shape)?;
    let index = indices(at, &result)?;
    let mut source = vec![0u64; from.len()];
    match it.opcode.as_str() {
        "reshape" => return Some((0, at)),
        // Between two orders of bytes, it is a transpose.
        "bitcast" => return (is_row_major(first?) && is_row_major(shape)).then_some((0, at)),
        "broadcast" => {
            for (place, &dim) in source.iter_mut().zip(&it.dimensions) {
                *place = *index.get(usize::try_from(dim).ok()?)?;
            }
        }
        "transpose" => {
            for (&place, &dim) in index.iter().zip(&it.dimensions) {
                *source.get_mut(usize::try_from(dim).ok()?)? = place;
            }
        }
        "reverse" => {
            source = index;
            for &dim in &it.dimensions {
                let dim = usize::try_from(dim).ok()?;
                source[dim] = from.get(dim)?.checked_sub(1 + *source.get(dim)?)?;
            }
        }
        "slice" => {
            for ((place, slice), &index) in source.iter_mut().zip(&it.slice_dimensions).zip(&index) {
                let moved = i64::try_from(index).ok()?.checked_mul(slice.stride)?.checked_add(slice.start)?;
                *place = u64::try_from(moved).ok()?;
            }
        }
        "dynamic-slice" if operands.len() == 1 + from.len() => {
            for (dim, place) in source.iter_mut().enumerate() {
                let last = from[dim].checked_sub(*result.get(dim)?)?;
                let start = offset(1 + dim)?.clamp(0, i128::from(last));
                *place = u64::try_from(start).ok()? + index[dim];
            }
        }
        "pad" => {
            let padding = &it.padding_config.as_ref()?.dimensions;
            for (dim, place) in source.iter_mut().enumerate() {
                let padding = padding.get(dim)?;
                let step = padding.interior_padding.checked_add(1).filter(|&step| step > 0)?;
                let moved = i64::try_from(index[dim]).ok()?.checked_sub(padding.edge_padding_low)?;
                let inside = u64::try_from(moved / step).ok().filter(|&at| moved >= 0 && at < from[dim]);
                match inside.filter(|_| moved % step == 0) {
                    Some(at) => *place = at,
                    None => return Some((1, 0)),
                }
            }
        }
        "concatenate" => {
            let along = usize::try_from(*it.dimensions.first()?).ok()?;
            source = index;
            for (number, operand) in operands.iter().enumerate() {
                let sizes = sizes((*operand)?)?;
                let size = *sizes.get(along)?;
                if *source.get(along)? < size {
                    return Some((number, flat(&source, &sizes)?));
                }
                source[along] -= size;
            }
            return None;
        }
        _ => return None,
    }
    Some((0, flat(&source, &from)?))
}

/// Returns the position of an element of an iota along its dimension.
pub(super) fn counted(it: &HloInstructionProto, element: Element) -> Option<i128> {
    let Element::At(at) = element else { return None };
    let along = usize::try_from(*it.dimensions.first()?).ok()?;
    Some(i128::from(*indices(at, &sizes(it.shape.as_ref()?)?)?.get(along)?))
}

/// Returns a whole number or truth value of a literal; `None` for another type.
pub(super) fn number(literal: &LiteralProto, element: Element) -> Option<i128> {
    let shape = literal.shape.as_ref();
    let at = match element {
        Element::At(0) => 0,
        Element::At(at) if shape.is_none_or(is_row_major) => usize::try_from(at).ok()?,
        Element::At(_) => return None,
        Element::Any => 0,
    };
    // A literal has its numbers in the field of its type.
    let (count, found) = [
        of_field(&literal.preds, at),
        of_field(&literal.s32s, at),
        of_field(&literal.s64s, at),
        of_field(&literal.u32s, at),
        of_field(&literal.u64s, at),
        of_bytes(&literal.s8s, at, i8::from_le_bytes),
        of_bytes(&literal.s16s, at, i16::from_le_bytes),
        of_bytes(&literal.u8s, at, u8::from_le_bytes),
        of_bytes(&literal.u16s, at, u16::from_le_bytes),
    ]
    .into_iter()
    .find(|(count, _)| *count > 0)?;
    found.filter(|_| element != Element::Any || count == 1)
}

/// Returns how many numbers a field of a literal has, and one of them.
fn of_field<T: Copy + Into<i128>>(numbers: &[T], at: usize) -> (usize, Option<i128>) {
    (numbers.len(), numbers.get(at).map(|&number| number.into()))
}

/// Returns the same for a field of bytes, with `N` bytes for each number.
fn of_bytes<const N: usize, T: Into<i128>>(bytes: &[u8], at: usize, number: fn([u8; N]) -> T) -> (usize, Option<i128>) {
    let (numbers, _) = bytes.as_chunks();
    (numbers.len(), numbers.get(at).map(|&bytes| number(bytes).into()))
}

fn sizes(shape: &ShapeProto) -> Option<Vec<u64>> {
    shape.dimensions.iter().map(|&size| u64::try_from(size).ok()).collect()
}

/// Whether the last dimension with more than one place is the fastest, and so on; also if no layout is stated.
fn is_row_major(shape: &ShapeProto) -> bool {
    let Some(layout) = &shape.layout else { return true };
    let long = |dim: &&i64| usize::try_from(**dim).ok().and_then(|dim| shape.dimensions.get(dim)) != Some(&1);
    let order: Vec<i64> = layout.minor_to_major.iter().filter(long).copied().collect();
    order.is_sorted_by(|before, after| before > after)
}

/// Returns the index along each dimension.
fn indices(at: u64, sizes: &[u64]) -> Option<Vec<u64>> {
    let mut rest = at;
    let mut indices = vec![0; sizes.len()];
    for (index, &size) in indices.iter_mut().zip(sizes).rev() {
        *index = rest.checked_rem(size)?;
        rest /= size;
    }
    (rest == 0).then_some(indices)
}

/// Returns the position of indices: the opposite of [`indices`].
fn flat(indices: &[u64], sizes: &[u64]) -> Option<u64> {
    indices.iter().zip(sizes).try_fold(
        0u64,
        |at, (&index, &size)| {
            if index < size { at.checked_mul(size)?.checked_add(index) } else { None }
        },
    )
}
