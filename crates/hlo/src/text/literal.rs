//! Constants: `5`, `{1, 2}`, `{ { 1, 2 }, { 3, 4 } }`.

use half::{bf16, f16};

use super::small_float::SmallFloat;
use super::{Printer, number};
use crate::proto::{LiteralProto, PrimitiveType, ShapeProto};

/// Rows printed of an array without elements; a malformed shape may claim any number of them.
const MAX_EMPTY_ROWS: u64 = 1 << 16;

/// Far above the rank of any real array; a malformed one must not exhaust the stack.
const MAX_RANK: usize = 64;

/// The elements of a literal, by position in memory order.
enum Elements<'a> {
    Pred(&'a [bool]),
    /// Whole bytes, little-endian, with a signed reading or not.
    Integer {
        bytes: &'a [u8],
        width: usize,
        signed: bool,
    },
    /// Fewer than 8 bits each, one a byte in the low bits.
    Narrow {
        bytes: &'a [u8],
        bits: usize,
        signed: bool,
    },
    S32(&'a [i32]),
    S64(&'a [i64]),
    U32(&'a [u32]),
    U64(&'a [u64]),
    F16(&'a [u8]),
    Bf16(&'a [u8]),
    F32(&'a [f32]),
    F64(&'a [f64]),
    C64(&'a [f32]),
    C128(&'a [f64]),
    /// At most 8 bits, always one a byte.
    Small {
        bytes: &'a [u8],
        float: SmallFloat,
    },
}

impl<'a> Elements<'a> {
    /// None if the type has no elements to print or if the literal does not hold `count` of them.
    fn of(literal: &'a LiteralProto, element_type: i32, count: usize) -> Option<Self> {
        use PrimitiveType as T;
        let bytes = |bytes: &'a [u8], width, signed| Elements::Integer { bytes, width, signed };
        let narrow = |bytes, bits, signed| Elements::Narrow { bytes, bits, signed };
        let element_type = T::try_from(element_type).ok()?;
        let small = |bytes| Some(Elements::Small { bytes, float: SmallFloat::of(element_type)? });
        let elements = match element_type {
            T::Pred => Elements::Pred(&literal.preds),
            T::S1 => narrow(&literal.s1s, 1, true),
            T::S2 => narrow(&literal.s2s, 2, true),
            T::S4 => narrow(&literal.s4s, 4, true),
            T::U1 => narrow(&literal.u1s, 1, false),
            T::U2 => narrow(&literal.u2s, 2, false),
            T::U4 => narrow(&literal.u4s, 4, false),
            T::S8 => bytes(&literal.s8s, 1, true),
            T::U8 => bytes(&literal.u8s, 1, false),
            T::S16 => bytes(&literal.s16s, 2, true),
            T::U16 => bytes(&literal.u16s, 2, false),
            T::S32 => Elements::S32(&literal.s32s),
            T::S64 => Elements::S64(&literal.s64s),
            T::U32 => Elements::U32(&literal.u32s),
            T::U64 => Elements::U64(&literal.u64s),
            T::F16 => Elements::F16(&literal.f16s),
            T::Bf16 => Elements::Bf16(&literal.bf16s),
            T::F32 => Elements::F32(&literal.f32s),
            T::F64 => Elements::F64(&literal.f64s),
            T::C64 => Elements::C64(&literal.c64s),
            T::C128 => Elements::C128(&literal.c128s),
            T::F8e5m2 => small(&literal.f8e5m2s)?,
            T::F8e4m3 => small(&literal.f8e4m3s)?,
            T::F8e4m3fn => small(&literal.f8e4m3fns)?,
            T::F8e4m3b11fnuz => small(&literal.f8e4m3b11fnuzs)?,
            T::F8e3m4 => small(&literal.f8e3m4s)?,
            T::F8e5m2fnuz => small(&literal.f8e5m2fnuzs)?,
            T::F8e4m3fnuz => small(&literal.f8e4m3fnuzs)?,
            T::F4e2m1fn => small(&literal.f4e2m1fns)?,
            T::F6e3m2fn => small(&literal.f6e3m2fns)?,
            T::F6e2m3fn => small(&literal.f6e2m3fns)?,
            T::F8e8m0fnu => small(&literal.f8e8m0fnus)?,
            T::Invalid | T::Tuple | T::OpaqueType | T::Token | T::Buffer => return None,
        };
        (elements.len() >= count).then_some(elements)
    }

    fn len(&self) -> usize {
        match self {
            Elements::Pred(values) => values.len(),
            Elements::Integer { bytes, width, .. } => bytes.len() / width,
            Elements::Narrow { bytes, .. } => bytes.len(),
            Elements::S32(values) => values.len(),
            Elements::S64(values) => values.len(),
            Elements::U32(values) => values.len(),
            Elements::U64(values) => values.len(),
            Elements::F16(bytes) | Elements::Bf16(bytes) => bytes.len() / 2,
            Elements::F32(values) => values.len(),
            Elements::F64(values) => values.len(),
            Elements::C64(values) => values.len() / 2,
            Elements::C128(values) => values.len() / 2,
            Elements::Small { bytes, .. } => bytes.len(),
        }
    }
}

/// Appends one complex number.
fn complex<T: Copy>(printer: &mut Printer<'_>, parts: &[T], index: usize, write: fn(&mut String, T)) {
    if let Some(&[real, imaginary]) = parts.get(2 * index..2 * index + 2) {
        printer.text("(");
        write(&mut printer.out, real);
        printer.text(", ");
        write(&mut printer.out, imaginary);
        printer.text(")");
    }
}

/// Where each logical index lies in memory, and what has been walked so far.
struct Walk<'a> {
    dimensions: &'a [i64],
    strides: Vec<usize>,
    elements: Elements<'a>,
    indices: Vec<i64>,
}

impl Printer<'_> {
    /// Appends the elements of a literal on one line, or `{...}` for what has no such form.
    pub(super) fn literal(&mut self, literal: &LiteralProto) {
        if literal.shape.as_ref().is_some_and(is_tuple) {
            self.tuple_literal(literal, Self::literal);
            return;
        }
        if self.try_literal(literal).is_none() {
            self.text("{...}");
        }
    }

    /// Like `literal`, preceded by the shape, or those of the elements of a tuple.
    pub(super) fn literal_with_shape(&mut self, literal: &LiteralProto) {
        match &literal.shape {
            Some(shape) if is_tuple(shape) => self.tuple_literal(literal, Self::literal_with_shape),
            Some(shape) => {
                self.shape_with(shape, super::Layouts::All);
                self.text(" ");
                self.literal(literal);
            }
            None => self.text("{...}"),
        }
    }

    fn tuple_literal(&mut self, literal: &LiteralProto, element: fn(&mut Self, &LiteralProto)) {
        self.text("( ");
        for (index, value) in literal.tuple_literals.iter().enumerate() {
            if index > 0 {
                self.text(", ");
            }
            element(self, value);
        }
        self.text(" )");
    }

    fn try_literal(&mut self, literal: &LiteralProto) -> Option<()> {
        let shape = literal.shape.as_ref()?;
        if shape.dimensions.len() > MAX_RANK {
            return None;
        }
        let count = element_count(shape)?;
        let elements = Elements::of(literal, shape.element_type, count)?;
        if self.options.constant_limit.is_some_and(|limit| count > limit) {
            return None;
        }
        if count == 0 {
            let mut rows = shape.dimensions.iter().take_while(|&&size| size != 0);
            rows.try_fold(1u64, |product, &size| product.checked_mul(u64::try_from(size).ok()?))
                .filter(|&rows| rows <= MAX_EMPTY_ROWS)?;
        }
        let mut walk = Walk {
            dimensions: &shape.dimensions,
            strides: strides(shape),
            elements,
            indices: Vec::with_capacity(shape.dimensions.len()),
        };
        self.literal_level(&mut walk, 0);
        Some(())
    }

    /// Prints the dimension at the depth that `walk.indices` has reached.
    fn literal_level(&mut self, walk: &mut Walk<'_>, position: usize) {
        let rank = walk.dimensions.len();
        let depth = walk.indices.len();
        let Some(&size) = walk.dimensions.get(depth) else {
            self.element(&walk.elements, position, rank);
            return;
        };
        let innermost = depth + 1 == rank;
        let padded = innermost && rank > 1 && size > 1;
        self.text("{");
        if padded {
            self.text(" ");
        }
        if !innermost {
            if rank > 3 && depth > 0 {
                self.text(" /*i");
                self.number(depth as i64 - 1);
                self.text("=");
                self.number(walk.indices[depth - 1]);
                self.text("*/");
            }
            self.text(" ");
        }
        let stride = walk.strides[depth];
        for index in 0..size {
            if index > 0 {
                self.text(", ");
            }
            walk.indices.push(index);
            // In range when there are elements; the position of an array without any is never used.
            self.literal_level(walk, position.wrapping_add((index as usize).wrapping_mul(stride)));
            walk.indices.pop();
        }
        if padded || !innermost {
            self.text(" ");
        }
        self.text("}");
    }

    fn element(&mut self, elements: &Elements<'_>, index: usize, rank: usize) {
        match elements {
            Elements::Pred(values) => {
                let value = values.get(index).copied().unwrap_or(false);
                self.text(match (rank, value) {
                    (0, true) => "true",
                    (0, false) => "false",
                    (_, true) => "1",
                    (_, false) => "0",
                });
            }
            Elements::Integer { bytes, width, signed } => {
                let slice = bytes.get(index * width..(index + 1) * width).unwrap_or(&[]);
                let value = slice.iter().rev().fold(0i64, |value, &byte| (value << 8) | i64::from(byte));
                self.number(if *signed { sign_extend(value, width * 8) } else { value });
            }
            Elements::Narrow { bytes, bits, signed } => {
                let value = i64::from(bytes.get(index).copied().unwrap_or(0)) & ((1 << bits) - 1);
                self.number(if *signed { sign_extend(value, *bits) } else { value });
            }
            Elements::S32(values) => self.number(values.get(index).map_or(0, |&value| i64::from(value))),
            Elements::S64(values) => self.number(values.get(index).copied().unwrap_or(0)),
            Elements::U32(values) => self.number(values.get(index).map_or(0, |&value| i64::from(value))),
            Elements::U64(values) => self.unsigned(values.get(index).copied().unwrap_or(0)),
            Elements::F16(bytes) => number::write_f16(&mut self.out, f16::from_le_bytes(pair(bytes, index))),
            Elements::Bf16(bytes) => number::write_bf16(&mut self.out, bf16::from_le_bytes(pair(bytes, index))),
            Elements::F32(values) => number::write_f32(&mut self.out, values.get(index).copied().unwrap_or(0.0)),
            Elements::F64(values) => number::write_f64(&mut self.out, values.get(index).copied().unwrap_or(0.0)),
            Elements::C64(parts) => complex(self, parts, index, number::write_f32),
            Elements::C128(parts) => complex(self, parts, index, number::write_f64),
            Elements::Small { bytes, float } => {
                float.write(&mut self.out, bytes.get(index).copied().unwrap_or(0));
            }
        }
    }
}

fn is_tuple(shape: &ShapeProto) -> bool {
    shape.element_type == PrimitiveType::Tuple as i32
}

fn sign_extend(value: i64, bits: usize) -> i64 {
    let shift = 64 - bits as u32;
    (value << shift) >> shift
}

fn pair(bytes: &[u8], index: usize) -> [u8; 2] {
    match bytes.get(2 * index..2 * index + 2) {
        Some(&[low, high]) => [low, high],
        _ => [0, 0],
    }
}

/// None for a negative or overflowing size.
pub(super) fn element_count(shape: &ShapeProto) -> Option<usize> {
    if shape.dimensions.contains(&0) {
        return Some(0);
    }
    shape.dimensions.iter().try_fold(1usize, |count, &size| count.checked_mul(usize::try_from(size).ok()?))
}

/// Distance in memory of neighbours along each dimension.
pub(crate) fn strides(shape: &ShapeProto) -> Vec<usize> {
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
