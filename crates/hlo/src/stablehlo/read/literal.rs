//! The values of constants: `dense<1.0>`, `dense<[[1, 2], [3, 4]]>`, `dense<"0x0000803F">`.

use std::borrow::Cow;

use half::{bf16, f16};

use super::lexer::{Lexer, Span, integer};
use crate::narrow::to_odd;
use crate::parse::{Memory, Result, fault};
use crate::proto::{LiteralProto, PrimitiveType, ShapeProto};
use crate::shape::element_count;
use crate::small_float::SmallFloat;
use crate::syntax::elements::set_element_bytes;

/// The value of a constant: its elements as little-endian bytes, row-major; 4-bit integers have a byte each.
pub(in crate::stablehlo) struct Elements<'a> {
    pub(in crate::stablehlo) element: PrimitiveType,
    pub(in crate::stablehlo) bytes: Cow<'a, [u8]>,
    /// Whether one element stands for all.
    pub(in crate::stablehlo) is_splat: bool,
}

/// Where the elements of a constant are.
#[derive(Clone, Copy, Debug)]
pub(in crate::stablehlo) enum DenseBody<'a> {
    /// Between angle brackets in the text.
    Text(Span),
    /// Bytes as MLIR keeps them, at a place of the file that they are from.
    Bytes { bytes: &'a [u8], position: usize },
}

/// The format of an element.
struct Format {
    element: PrimitiveType,
    /// Bytes of an element.
    size: usize,
    /// Numbers in an element: a complex number has two.
    parts: usize,
}

impl Format {
    fn of(element: PrimitiveType) -> Format {
        let bits = element.bits().unwrap_or(8).max(8) as usize;
        let parts = if matches!(element, PrimitiveType::C64 | PrimitiveType::C128) { 2 } else { 1 };
        Format { element, size: bits / 8, parts }
    }

    /// The number type of a part.
    fn part(&self) -> PrimitiveType {
        match self.element {
            PrimitiveType::C64 => PrimitiveType::F32,
            PrimitiveType::C128 => PrimitiveType::F64,
            element => element,
        }
    }
}

/// Elements of a constant at most: the bound of the reader of HLO text.
const MOST: usize = 1 << 30;

/// Reads the elements of a constant; `None` if they were left out.
pub(in crate::stablehlo) fn elements<'a>(
    lexer: Lexer<'a>,
    body: DenseBody<'a>,
    shape: &ShapeProto,
) -> Result<Option<Elements<'a>>> {
    let element = PrimitiveType::try_from(shape.element_type).unwrap_or_default();
    let format = Format::of(element);
    let (mut lexer, start) = match body {
        DenseBody::Text(span) => {
            let mut lexer = lexer.part(span);
            (lexer, lexer.here())
        }
        DenseBody::Bytes { position, .. } => (lexer, position),
    };
    let is_text = matches!(body, DenseBody::Text(_));
    if is_text && lexer.peek_word() == Some("__elided__") {
        return Ok(None);
    }
    let may_repeat = !is_text || lexer.peek() != Some(b'[');
    let Some(count) = element_count(shape).filter(|count| *count <= MOST || may_repeat) else {
        return fault(start, format!("the constant has more than {MOST} elements"));
    };
    if let DenseBody::Bytes { bytes, .. } = body {
        return stored(&format, Cow::Borrowed(bytes), count, start).map(Some);
    }
    let mut bytes = Vec::new();
    let mut is_splat = false;
    match lexer.peek() {
        Some(b'"') => return stored(&format, Cow::Owned(hexadecimal(&mut lexer)?), count, start).map(Some),
        Some(b'[') => list(&mut lexer, &format, &shape.dimensions, &mut bytes)?,
        None if count == 0 => {}
        _ => {
            one(&mut lexer, &format, &mut bytes)?;
            is_splat = true;
        }
    }
    if !lexer.is_at_end() {
        return lexer.unexpected("the end of the constant");
    }
    Ok(Some(Elements { element, bytes: bytes.into(), is_splat }))
}

/// Elements as MLIR keeps them: one for all, or each.
fn stored<'a>(format: &Format, data: Cow<'a, [u8]>, count: usize, start: usize) -> Result<Elements<'a>> {
    let element = format.element;
    // MLIR packs truth values eight a byte, in newer versions it does not.
    let packed = element == PrimitiveType::Pred && data.len() == count.div_ceil(8);
    let is_splat = data.len() == format.size && count != 1 && !packed;
    if packed {
        let bytes = (0..count).map(|at| data[at / 8] >> (at % 8) & 1).collect();
        return Ok(Elements { element, bytes, is_splat });
    }
    if !is_splat && count.checked_mul(format.size) != Some(data.len()) {
        return fault(start, format!("the constant has {} bytes for {count} elements", data.len()));
    }
    // A truth value for all has every bit.
    let bytes =
        if element == PrimitiveType::Pred { data.iter().map(|&byte| (byte != 0).into()).collect() } else { data };
    Ok(Elements { element, bytes, is_splat })
}

/// Reads the elements of a resource, `"0x040000000000803F"`: after the four bytes of an alignment.
pub(super) fn resource(lexer: Lexer<'_>, text: Span, shape: &ShapeProto) -> Result<Elements<'static>> {
    let format = Format::of(PrimitiveType::try_from(shape.element_type).unwrap_or_default());
    let Some(count) = element_count(shape).filter(|count| *count <= MOST) else {
        return fault(text.start, format!("the constant has more than {MOST} elements"));
    };
    let data = hexadecimal(&mut lexer.part(text))?;
    match data.get(4..) {
        Some(data) => stored(&format, Cow::Owned(data.to_vec()), count, text.start),
        None => fault(text.start, "a resource begins with the four bytes of its alignment"),
    }
}

/// `"0x0000803F"`
fn hexadecimal(lexer: &mut Lexer<'_>) -> Result<Vec<u8>> {
    let start = lexer.here();
    let text = lexer.bytes()?;
    let digits = text.strip_prefix(b"0x").unwrap_or(&text);
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    match digits.chunks(2).map(byte).collect() {
        Some(bytes) => Ok(bytes),
        None => fault(start, "expected pairs of hexadecimal digits after \"0x\""),
    }
}

/// Nested lists, whose lengths are the sizes.
fn list(lexer: &mut Lexer<'_>, format: &Format, sizes: &[i64], bytes: &mut Vec<u8>) -> Result<()> {
    let start = lexer.here();
    let Some((&size, inner)) = sizes.split_first() else { return one(lexer, format, bytes) };
    lexer.expect("[", "before the elements of a dimension")?;
    let mut count = 0;
    while !lexer.eat("]") {
        list(lexer, format, inner, bytes)?;
        count += 1;
        lexer.separator(']', "after an element")?;
    }
    if count != size {
        return fault(start, format!("a dimension has size {size}, found {count} elements"));
    }
    Ok(())
}

fn one(lexer: &mut Lexer<'_>, format: &Format, bytes: &mut Vec<u8>) -> Result<()> {
    if format.parts == 1 {
        return number(lexer, format.element, bytes);
    }
    lexer.expect("(", "before a complex number")?;
    number(lexer, format.part(), bytes)?;
    lexer.expect(",", "between the parts of a complex number")?;
    number(lexer, format.part(), bytes)?;
    lexer.expect(")", "after a complex number")
}

fn number(lexer: &mut Lexer<'_>, element: PrimitiveType, bytes: &mut Vec<u8>) -> Result<()> {
    use PrimitiveType as T;
    let start = lexer.here();
    if let Some(word @ ("true" | "false")) = lexer.peek_word() {
        lexer.eat_word(word);
        return match element {
            T::Pred | T::U1 | T::S1 => {
                bytes.push(u8::from(word == "true"));
                Ok(())
            }
            _ => fault(start, format!("expected a number, found {word}")),
        };
    }
    let Some(text) = lexer.number() else { return lexer.unexpected("an element of the constant") };
    let too_large = || fault(start, format!("{text} does not fit the type of the constant"));
    let bits = element.bits().unwrap_or(8);
    let float = SmallFloat::of(element.into());
    if matches!(element, T::F64 | T::F32 | T::F16 | T::Bf16) || float.is_some() {
        // As hexadecimal, a number is given by its bits.
        if text.contains("0x") {
            let Some(value) = integer(text).map(|value| value as u64) else { return too_large() };
            if bits < 64 && value >> bits != 0 {
                return too_large();
            }
            bytes.extend_from_slice(&value.to_le_bytes()[..Format::of(element).size]);
            return Ok(());
        }
        let Ok(value) = text.parse::<f64>() else { return fault(start, format!("expected a number, found {text}")) };
        match element {
            T::F64 => bytes.extend(value.to_le_bytes()),
            T::F32 => bytes.extend((value as f32).to_le_bytes()),
            T::F16 => bytes.extend(f16::from_f32(to_odd(value)).to_le_bytes()),
            T::Bf16 => bytes.extend(bf16::from_f32(to_odd(value)).to_le_bytes()),
            _ => match float.and_then(|float| float.bits_near(value)) {
                Some(bits) => bytes.push(bits),
                None => return too_large(),
            },
        }
        return Ok(());
    }
    let Some(value) = integer(text) else { return fault(start, format!("expected an integer, found {text}")) };
    let is_signed = matches!(element, T::S1 | T::S2 | T::S4 | T::S8 | T::S16 | T::S32 | T::S64);
    let fits = match (bits, element) {
        (64, _) => true,
        (_, T::Pred) => (0..2).contains(&value),
        (bits, _) if is_signed => (-(1i64 << (bits - 1))..1i64 << (bits - 1)).contains(&value),
        (bits, _) => (0..1i64 << bits).contains(&value),
    };
    if !fits {
        return too_large();
    }
    // The low bits of narrow integers are kept, also of negative ones.
    let mask = if bits < 8 { (1u8 << bits) - 1 } else { u8::MAX };
    let size = Format::of(element).size;
    bytes.extend(value.to_le_bytes()[..size].iter().map(|byte| byte & mask));
    Ok(())
}

/// The literal of a shape; every element, if there is one for all.
pub(super) fn literal(
    elements: &Elements<'_>,
    shape: &ShapeProto,
    memory: &Memory,
    position: usize,
) -> Result<LiteralProto> {
    let mut literal = LiteralProto { shape: Some(shape.clone()), ..LiteralProto::default() };
    let count = shape.dimensions.iter().fold(1usize, |count, &size| count.saturating_mul(size.max(0) as usize));
    // The limit counts the bytes and the numbers that they become: narrow numbers are stored as wider ones.
    let bytes = if elements.is_splat { elements.bytes.len().saturating_mul(count) } else { elements.bytes.len() };
    memory.take(bytes.saturating_mul(if elements.bytes.len() == count { 5 } else { 2 }), position)?;
    let bytes = match elements.is_splat {
        true => Cow::Owned(elements.bytes.repeat(count)),
        false => Cow::Borrowed(elements.bytes.as_ref()),
    };
    set_element_bytes(&mut literal, elements.element, &bytes);
    Ok(literal)
}
