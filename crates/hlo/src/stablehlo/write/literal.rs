//! Constants: `dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>`.
//!
//! A constant of equal elements is written as one element, a long one of others as its bytes in hexadecimal.

use std::fmt::Write;

use half::{bf16, f16};

use super::attributes::Decimal;
use super::error::{Result, malformed, no_form};
use super::types;
use crate::proto::{LiteralProto, PrimitiveType, ShapeProto};
use crate::shape::{element_count, element_strides};
use crate::syntax::elements::element_bytes;

/// More elements are written as bytes: they are long, and people do not read them.
const LISTED: usize = 100;

/// Far above the rank of any real array; a malformed one must not exhaust the stack.
const MAX_RANK: usize = 64;

/// The elements of a constant in row-major order, each as its bytes, the low one first.
struct Elements {
    element: PrimitiveType,
    bytes: Vec<u8>,
    width: usize,
}

/// The attribute of a constant, with its type.
pub(super) fn dense(literal: &LiteralProto, shape: &ShapeProto) -> Result<String> {
    let ty = types::leaf(shape)?;
    let has_negative = shape.dimensions.iter().any(|&size| size < 0);
    let Some(count) = element_count(shape).filter(|_| !has_negative) else {
        return malformed("a constant has a size that is negative or too large to count");
    };
    if shape.dimensions.len() > MAX_RANK {
        return malformed(format!("a constant has {} dimensions", shape.dimensions.len()));
    }
    if shape.is_dynamic_dimension.contains(&true) {
        return no_form("a constant has a dynamic dimension; pad it to its bound");
    }
    if count == 0 {
        return Ok(format!("dense<> : {ty}"));
    }
    let elements = Elements::of(literal, shape, count)?;
    let mut text = String::from("dense<");
    let is_one = elements.bytes.chunks_exact(elements.width).all(|element| Some(element) == elements.at(0));
    if is_one {
        elements.write(&mut text, 0);
    } else if count > LISTED && elements.are_bytes() {
        text.push_str("\"0x");
        for byte in &elements.bytes {
            let _ = write!(text, "{byte:02X}");
        }
        text.push('"');
    } else {
        elements.write_level(&mut text, &shape.dimensions, &mut 0);
    }
    let _ = write!(text, "> : {ty}");
    Ok(text)
}

/// The part `dense<1.0>` of an attribute of a constant of some elements that are all the same.
pub(super) fn splat(dense: &str) -> Option<&str> {
    let (value, _) = dense.rsplit_once(" : ")?;
    (!value.starts_with("dense<[") && !value.starts_with("dense<\"")).then_some(value)
}

impl Elements {
    fn of(literal: &LiteralProto, shape: &ShapeProto, count: usize) -> Result<Elements> {
        let element = PrimitiveType::try_from(shape.element_type).unwrap_or_default();
        let Some((stored, width)) = element_bytes(literal, element) else {
            return malformed("a constant is no array");
        };
        if stored.len() / width != count {
            return malformed(match stored.len() / width {
                0 => {
                    format!("the text has the {count} elements of a constant left out, as {{...}}: print it with them")
                }
                found => format!("a constant of {count} elements has {found}"),
            });
        }
        let bytes = row_major(stored, width, shape, count);
        Ok(Elements { element, bytes, width })
    }

    fn at(&self, index: usize) -> Option<&[u8]> {
        let start = index.checked_mul(self.width)?;
        self.bytes.get(start..start + self.width)
    }

    /// Whether MLIR keeps the elements as the bytes that they are here.
    fn are_bytes(&self) -> bool {
        use PrimitiveType as T;
        let is_complex = matches!(self.element, T::C64 | T::C128);
        self.element != T::Pred && !is_complex && self.element.bits() == Some(8 * self.width as u64)
    }

    /// A dimension, and those inside of it.
    fn write_level(&self, text: &mut String, dimensions: &[i64], next: &mut usize) {
        let Some((&size, inner)) = dimensions.split_first() else {
            self.write(text, *next);
            *next += 1;
            return;
        };
        text.push('[');
        for index in 0..size {
            if index > 0 {
                text.push_str(", ");
            }
            self.write_level(text, inner, next);
        }
        text.push(']');
    }

    fn write(&self, text: &mut String, index: usize) {
        use PrimitiveType as T;
        let bytes = self.at(index).unwrap_or_default();
        let bits = unsigned(bytes);
        let signed = |width: usize| {
            let shift = 64 - width as u32;
            ((bits << shift) as i64) >> shift
        };
        let _ = match self.element {
            T::Pred => write!(text, "{}", bits != 0),
            T::S1 => write!(text, "{}", signed(1)),
            T::S2 => write!(text, "{}", signed(2)),
            T::S4 => write!(text, "{}", signed(4)),
            T::S8 | T::S16 | T::S32 | T::S64 => write!(text, "{}", signed(8 * self.width)),
            T::U1 => write!(text, "{}", bits & 1),
            T::U2 => write!(text, "{}", bits & 3),
            T::U4 => write!(text, "{}", bits & 15),
            T::U8 | T::U16 | T::U32 | T::U64 => write!(text, "{bits}"),
            T::F16 | T::Bf16 | T::F32 | T::F64 => {
                write_float(text, self.element, bytes);
                Ok(())
            }
            T::C64 | T::C128 => {
                let part = if self.element == T::C64 { T::F32 } else { T::F64 };
                let (real, imaginary) = bytes.split_at(bytes.len() / 2);
                text.push('(');
                write_float(text, part, real);
                text.push_str(", ");
                write_float(text, part, imaginary);
                text.push(')');
                Ok(())
            }
            // A small float by its bits: those that count, as MLIR asks for no more.
            _ => write!(text, "0x{bits:02X}"),
        };
    }
}

/// A finite number in decimal, anything else by its bits.
fn write_float(text: &mut String, element: PrimitiveType, bytes: &[u8]) {
    let bits = unsigned(bytes);
    let (value, plain) = match element {
        PrimitiveType::F16 => (f16::from_bits(bits as u16).to_f64(), None),
        PrimitiveType::Bf16 => (bf16::from_bits(bits as u16).to_f64(), None),
        PrimitiveType::F32 => {
            let value = f32::from_bits(bits as u32);
            (f64::from(value), Some(format!("{value:?}")))
        }
        _ => (f64::from_bits(bits), None),
    };
    if !value.is_finite() {
        let _ = write!(text, "0x{bits:0digits$X}", digits = 2 * bytes.len());
        return;
    }
    // The shortest digits that tell the number from its neighbours; MLIR asks for a point among them.
    let plain = plain.unwrap_or_else(|| format!("{value:?}"));
    if plain.contains('e') {
        let read = plain.parse().unwrap_or(value);
        let _ = write!(text, "{:e}", Decimal(read));
    } else {
        text.push_str(&plain);
    }
}

fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
}

/// Elements in the order of their layout, brought into row-major order.
fn row_major(stored: Vec<u8>, width: usize, shape: &ShapeProto, count: usize) -> Vec<u8> {
    let order = shape.layout.as_ref().map_or(&[][..], |layout| &layout.minor_to_major);
    if order.is_empty() || order.windows(2).all(|pair| pair[0] > pair[1]) {
        return stored;
    }
    let strides = element_strides(shape);
    let mut bytes = Vec::with_capacity(stored.len());
    for index in 0..count {
        let (mut rest, mut place) = (index, 0usize);
        for (&size, &stride) in shape.dimensions.iter().zip(&strides).rev() {
            let size = usize::try_from(size).unwrap_or(1).max(1);
            place = place.saturating_add((rest % size).saturating_mul(stride));
            rest /= size;
        }
        // A malformed layout leads anywhere.
        let start = place.saturating_mul(width);
        match stored.get(start..start.saturating_add(width)) {
            Some(element) => bytes.extend_from_slice(element),
            None => bytes.resize(bytes.len() + width, 0),
        }
    }
    bytes
}
