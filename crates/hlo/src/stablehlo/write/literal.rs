//! Constants: `dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>`.
//!
//! A constant of equal elements is written as one element, a long one of others as its bytes in hexadecimal.

use std::fmt::{self, Write};

use half::{bf16, f16};

use super::attributes::Decimal;
use super::error::{Result, malformed, no_form};
use super::types::{self, Type};
use crate::proto::{LiteralProto, PrimitiveType, ShapeProto};
use crate::shape::{element_count, element_strides};
use crate::stablehlo::names;
use crate::syntax::elements::element_bytes;

/// More elements are written as bytes: they are long, and people do not read them.
const LISTED: usize = 100;

/// Far above the rank of any real array; a malformed one must not exhaust the stack.
const MAX_RANK: usize = 64;

/// The elements of a constant in row-major order, each as its bytes, the low one first.
#[derive(Clone)]
struct Elements {
    element: PrimitiveType,
    bytes: Vec<u8>,
    width: usize,
}

/// An array of elements with its type.
#[derive(Clone)]
pub(super) struct Dense {
    pub(super) ty: Type,
    dimensions: Vec<i64>,
    elements: Elements,
    /// Whether there are elements, and all are the same.
    is_splat: bool,
}

impl Dense {
    /// The value of a constant.
    pub(super) fn of(literal: &LiteralProto, shape: &ShapeProto) -> Result<Dense> {
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
        let elements = match count {
            0 => Elements { element: types::element(shape), bytes: Vec::new(), width: 1 },
            count => Elements::of(literal, shape, count)?,
        };
        Ok(Dense::new(ty, shape.dimensions.clone(), elements))
    }

    fn new(ty: Type, dimensions: Vec<i64>, elements: Elements) -> Dense {
        let mut all = elements.bytes.chunks_exact(elements.width);
        let first = elements.at(0);
        let is_splat = first.is_some() && all.all(|element| Some(element) == first);
        Dense { ty, dimensions, elements, is_splat }
    }

    /// A list of numbers of 64 bits.
    pub(super) fn numbers(numbers: &[i64]) -> Dense {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let elements = Elements { element: PrimitiveType::S64, bytes, width: size_of::<i64>() };
        let ty = format!("tensor<{}xi64>", numbers.len()).into();
        Dense { ty, dimensions: vec![numbers.len() as i64], elements, is_splat: false }
    }

    fn count(&self) -> usize {
        self.elements.bytes.len() / self.elements.width
    }

    /// The element of a large constant of equal ones.
    pub(super) fn large_splat(&self) -> Option<Dense> {
        let element = self.elements.at(0).filter(|_| self.is_splat && self.count() as i64 >= names::LARGE_SPLAT)?;
        let elements = Elements { bytes: element.to_vec(), ..self.elements.clone() };
        let ty = format!("tensor<{}>", names::element_name(self.elements.element)?);
        Some(Dense::new(ty.into(), Vec::new(), elements))
    }

    /// Whether each region that uses it has one of its own.
    pub(super) fn is_repeated(&self) -> bool {
        self.count() as i64 <= names::REPEATED
    }

    /// The bytes that MLIR's bytecode has for it.
    pub(super) fn stored(&self) -> Vec<u8> {
        let Elements { element, bytes, width } = &self.elements;
        let is_one = self.is_splat && self.count() > 1;
        stored(*element, if is_one { bytes.get(..*width).unwrap_or_default() } else { bytes }, is_one)
    }
}

/// Elements as MLIR's bytecode has them: one for all that are equal, truth values eight a byte.
pub(super) fn stored(element: PrimitiveType, bytes: &[u8], is_one_for_all: bool) -> Vec<u8> {
    match (element, element.bits()) {
        (PrimitiveType::Pred, _) if is_one_for_all => {
            vec![if bytes.first().is_some_and(|&byte| byte != 0) { u8::MAX } else { 0 }]
        }
        (PrimitiveType::Pred, _) => {
            let packed = |part: &[u8]| part.iter().rev().fold(0, |all, &byte| all << 1 | u8::from(byte != 0));
            bytes.chunks(8).map(packed).collect()
        }
        (_, Some(bits @ 1..8)) => bytes.iter().map(|byte| byte & ((1 << bits) - 1)).collect(),
        _ => bytes.to_vec(),
    }
}

/// `dense<1.0> : tensor<4xf32>`.
impl fmt::Display for Dense {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::from("dense<");
        if self.is_splat {
            self.elements.write(&mut text, 0);
        } else if self.count() > LISTED && self.elements.are_bytes() {
            text.push_str("\"0x");
            for byte in &self.elements.bytes {
                let _ = write!(text, "{byte:02X}");
            }
            text.push('"');
        } else if self.count() > 0 {
            self.elements.write_level(&mut text, &self.dimensions, &mut 0);
        }
        write!(formatter, "{text}> : {}", self.ty)
    }
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
