//! Numbers, bit for bit.

use meshloom_hlo::number_bytes;

use super::reader::Result;
use super::{Attribute, OpReader, Printer, Reader};
use crate::ir::{DType, Literal, TensorType};

/// Constants of more elements are printed as a hash by default.
const LARGEST_PRINTED: usize = 16;

/// FNV-1a: the same in every release, and on every machine.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The bytes of a number of an element type: rounded, or saturated.
fn encode(dtype: DType, number: f64) -> Vec<u8> {
    number_bytes(dtype, number)[..dtype.byte_count()].to_vec()
}

/// The text of an element, or its bits where no number stands for them.
fn element_text(dtype: DType, bytes: &[u8], number: f64) -> String {
    // All NaNs print alike, so only one of them may stand for itself.
    let number = if number.is_nan() { f64::NAN } else { number };
    match (dtype, bytes.try_into()) {
        (DType::S64, Ok(bytes)) => i64::from_le_bytes(bytes).to_string(),
        (DType::U64, Ok(bytes)) => u64::from_le_bytes(bytes).to_string(),
        _ if encode(dtype, number) != bytes => {
            let digits: Vec<String> = bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{}", digits.concat())
        }
        _ if dtype.is_float() => format!("{number:?}"),
        _ => number.to_string(),
    }
}

/// The bytes of the element that [`element_text`] prints as `text`, or `None` if the type has no number with this text.
fn element_bytes(dtype: DType, text: &str) -> Option<Vec<u8>> {
    if let Some(digits) = text.strip_prefix("0x") {
        let count = dtype.byte_count();
        let bits = u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2 * count)?;
        return Some(bits.to_le_bytes()[..count].to_vec());
    }
    match dtype {
        DType::S64 => Some(text.parse::<i64>().ok()?.to_le_bytes().to_vec()),
        DType::U64 => Some(text.parse::<u64>().ok()?.to_le_bytes().to_vec()),
        dtype if dtype.is_float() => Some(encode(dtype, text.parse().ok()?)),
        dtype => {
            let number: f64 = text.parse::<i64>().ok()? as f64;
            let bytes = encode(dtype, number);
            let is_exact = Literal::from_bytes(TensorType::scalar(dtype), bytes.clone()).ok()?.to_f64_vec() == [number];
            is_exact.then_some(bytes)
        }
    }
}

impl Attribute for f64 {
    fn write(&self, out: &mut Printer<'_>) {
        if self.is_nan() && self.to_bits() != f64::NAN.to_bits() {
            out.push(&format!("{:#018x}", self.to_bits()));
        } else {
            out.push(&self.to_string());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<f64> {
        let start = reader.clone_after_blanks();
        let text = reader.number()?;
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(f64::from_bits),
            None => text.parse().ok(),
        };
        number.ok_or_else(|| start.fail(format!("`{text}` is no number")))
    }
}

impl Printer<'_> {
    /// The elements of a constant, in front of the braces.
    pub(crate) fn constant(&mut self, literal: &Literal) {
        let (ty, bytes) = (literal.ty(), literal.bytes());
        if ty.element_count() > LARGEST_PRINTED && !self.options.whole_constants {
            return self.push(&format!(" elided({:#018x})", hash(bytes)));
        }
        self.push(" [");
        let elements = bytes.chunks(ty.dtype.byte_count()).zip(literal.to_f64_vec());
        for (index, (bytes, number)) in elements.enumerate() {
            self.push(if index > 0 { ", " } else { "" });
            self.push(&element_text(ty.dtype, bytes, number));
        }
        self.push("]");
    }
}

impl OpReader<'_> {
    /// The elements of a constant, in front of the braces.
    pub(crate) fn constant(&mut self) -> Result<Literal> {
        let ty: TensorType = self.result()?;
        self.lead_with(|reader| {
            let start = reader.clone_after_blanks();
            if reader.eat_word("elided") {
                return Err(start.fail(
                    "the elements of this constant were left out of the text; print the graph with `whole_constants`",
                ));
            }
            let elements = reader.list("[", "]", |reader| {
                let start = reader.clone_after_blanks();
                let text = reader.number()?;
                element_bytes(ty.dtype, text).ok_or_else(|| start.fail(format!("`{text}` is no {}", ty.dtype)))
            })?;
            let (found, expected) = (elements.len(), ty.element_count());
            Literal::from_bytes(ty, elements.concat())
                .map_err(|_| start.fail(format!("expected {expected} elements, found {found}")))
        })
    }
}
