//! The values of constants: `5`, `{1, 2}`, `{ { 1, 2 }, { 3, 4 } }`, `{...}`, and `f32[2]{0} {1, 2}` with its shape.

use half::{bf16, f16};
use smallvec::SmallVec;

use super::Parser;
use super::error::{Result, fault};
use super::shape::{literal_shape, tuple};
use crate::narrow::to_odd;
use crate::proto::{LiteralProto, ShapeProto};
use crate::shape::{element_count, element_strides, is_tuple};

/// A floating-point number as written: no `f64` operation reliably keeps the sign and bits of a NaN.
#[derive(Clone, Copy)]
pub(crate) enum Real {
    Number(f64),
    Nan { negative: bool, payload: Option<u64> },
}

/// The bits of a NaN of an IEEE 754 type; none if the payload is too large. Without one it is the quiet NaN.
fn nan(bits: u32, mantissa_bits: u32, negative: bool, payload: Option<u64>) -> Option<u64> {
    let payload = payload.unwrap_or(1 << (mantissa_bits - 1));
    if payload == 0 || payload >> mantissa_bits != 0 {
        return None;
    }
    let exponent = ((1u64 << (bits - 1 - mantissa_bits)) - 1) << mantissa_bits;
    Some((u64::from(negative) << (bits - 1)) | exponent | payload)
}

impl Parser<'_> {
    /// A literal of a shape that is known.
    pub(super) fn literal(&mut self, shape: &ShapeProto) -> Result<LiteralProto> {
        let here = self.lexer.here();
        self.memory.take(size_of::<LiteralProto>(), here)?;
        self.memory.take_shape(shape, here)?;
        let mut literal = LiteralProto { shape: Some(literal_shape(shape)), ..Default::default() };
        if is_tuple(shape) {
            let mut shapes = shape.tuple_shapes.iter();
            let start = self.lexer.here();
            literal.tuple_literals = self.tuple_elements(|parser| match shapes.next() {
                Some(shape) => parser.literal(shape),
                None => parser.lexer.unexpected("no more elements of the tuple"),
            })?;
            if shapes.next().is_some() {
                return fault(start, "the tuple has more elements than are written here");
            }
            return Ok(literal);
        }
        self.elements(shape, &mut literal)?;
        Ok(literal)
    }

    /// A literal preceded by its shape; a tuple has those of its elements.
    pub(crate) fn literal_with_shape(&mut self) -> Result<LiteralProto> {
        if self.lexer.peek() != Some(b'(') {
            let shape = self.shape()?;
            return self.literal(&shape);
        }
        let tuple_literals = self.tuple_elements(Self::literal_with_shape)?;
        let shapes = tuple_literals.iter().filter_map(|literal| literal.shape.clone()).collect();
        Ok(LiteralProto { shape: Some(tuple(shapes)), tuple_literals, ..Default::default() })
    }

    fn tuple_elements(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<LiteralProto>,
    ) -> Result<Vec<LiteralProto>> {
        let mut elements = Vec::new();
        self.nested(|parser| {
            parser.list(b'(', b')', |parser| {
                elements.push(element(parser)?);
                Ok(())
            })
        })?;
        Ok(elements)
    }

    fn is_elided_next(&mut self) -> bool {
        self.lexer.peek() == Some(b'{') && self.lexer.peek_second() == Some(b'.')
    }

    /// `{...}`.
    pub(crate) fn eat_elided(&mut self) -> bool {
        self.is_elided_next() && self.lexer.eat(b'{') && self.lexer.eat_symbol("...") && self.lexer.eat(b'}')
    }

    /// The elements of an array in the order of its layout; none if they are elided. An element without braces is that
    /// of an array of one. XLA takes it for the first of any array, and does not say what it takes for the others.
    pub(crate) fn array<T: Copy + Default>(
        &mut self,
        shape: &ShapeProto,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        if self.eat_elided() {
            return Ok(Vec::new());
        }
        let sizes = &shape.dimensions;
        let rank = sizes.len();
        // The number of parts of each dimension since the brace that opened it.
        let mut seen: SmallVec<[i64; 8]> = SmallVec::from_elem(0, rank);
        let mut depth = 0;
        let mut values = Vec::new();
        let mut is_elided = false;
        loop {
            let start = self.lexer.here();
            match self.lexer.peek() {
                Some(b'{') => {
                    if depth == rank {
                        return fault(start, format!("expected an element: the constant has {rank} dimensions"));
                    }
                    if depth > 0 {
                        count_part(&mut seen, sizes, depth - 1, start)?;
                    }
                    depth += 1;
                    self.lexer.eat(b'{');
                }
                Some(b'}') if depth > 0 => {
                    depth -= 1;
                    if seen[depth] != sizes[depth] {
                        let (expected, found) = (sizes[depth], seen[depth]);
                        return fault(start, format!("dimension {depth} has size {expected}, found {found} parts"));
                    }
                    seen[depth] = 0;
                    self.lexer.eat(b'}');
                }
                Some(b',') if depth > 0 => {
                    self.lexer.eat(b',');
                }
                Some(b'.') if depth == 1 && self.lexer.eat_symbol("...") => {
                    is_elided = true;
                    seen[0] = sizes[0];
                }
                _ if depth == 0 && rank > 0 => {
                    let value = read(self)?;
                    return Ok(if element_count(shape) == Some(1) { vec![value] } else { Vec::new() });
                }
                _ => {
                    if depth != rank {
                        return self.lexer.unexpected(&format!("'{{' of dimension {depth} of the constant"));
                    }
                    if rank > 0 {
                        count_part(&mut seen, sizes, rank - 1, start)?;
                    }
                    if values.len() == self.limits.literal_elements {
                        return fault(start, format!("the constant has more than {} elements", values.len()));
                    }
                    values.push(read(self)?);
                }
            }
            if depth == 0 {
                break;
            }
        }
        values.shrink_to_fit();
        Ok(if is_elided { Vec::new() } else { in_layout_order(values, shape) })
    }

    pub(crate) fn signed(&mut self, bits: u32) -> Result<i64> {
        let start = self.lexer.here();
        let value = self.lexer.integer()?;
        let bound = 1i64 << (bits - 1);
        match value {
            _ if (-bound..bound).contains(&value) => Ok(value),
            _ => fault(start, format!("{value} does not fit a signed integer of {bits} bits")),
        }
    }

    pub(crate) fn unsigned(&mut self, bits: u32) -> Result<i64> {
        let start = self.lexer.here();
        let value = self.lexer.integer()?;
        match value {
            _ if (0..1i64 << bits).contains(&value) => Ok(value),
            _ => fault(start, format!("{value} does not fit an unsigned integer of {bits} bits")),
        }
    }

    pub(crate) fn half(&mut self) -> Result<f16> {
        self.ieee(16, 10, |value| f16::from_f32(to_odd(value)), f16::is_finite, |bits| f16::from_bits(bits as u16))
    }

    pub(crate) fn brain(&mut self) -> Result<bf16> {
        self.ieee(16, 7, |value| bf16::from_f32(to_odd(value)), bf16::is_finite, |bits| bf16::from_bits(bits as u16))
    }

    pub(crate) fn single(&mut self) -> Result<f32> {
        self.ieee(32, 23, |value| value as f32, f32::is_finite, |bits| f32::from_bits(bits as u32))
    }

    pub(crate) fn double(&mut self) -> Result<f64> {
        self.ieee(64, 52, |value| value, f64::is_finite, f64::from_bits)
    }

    /// A number in an IEEE 754 type of this number of bits.
    fn ieee<T: Copy>(
        &mut self,
        bits: u32,
        mantissa_bits: u32,
        convert: impl Fn(f64) -> T,
        is_finite: impl Fn(T) -> bool,
        from_bits: impl Fn(u64) -> T,
    ) -> Result<T> {
        let start = self.lexer.here();
        match self.real()? {
            Real::Number(value) => match convert(value) {
                number if is_finite(number) || value.is_infinite() => Ok(number),
                _ => fault(start, format!("{value:e} is too large for the type of the constant")),
            },
            Real::Nan { negative, payload } => match nan(bits, mantissa_bits, negative, payload) {
                Some(bits) => Ok(from_bits(bits)),
                None => fault(start, "the type of the constant has no NaN with these bits"),
            },
        }
    }

    /// A number where there are no NaNs.
    pub(crate) fn number(&mut self) -> Result<f64> {
        let start = self.lexer.here();
        match self.real()? {
            Real::Number(value) => Ok(value),
            Real::Nan { .. } => fault(start, "expected a number, found NaN"),
        }
    }

    /// `1`, `-2.5e-3`, `inf`, `-nan(0x1)`.
    pub(crate) fn real(&mut self) -> Result<Real> {
        let start = self.lexer.here();
        let text = self.lexer.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+'));
        match text {
            "inf" => return Ok(Real::Number(f64::INFINITY)),
            "-inf" => return Ok(Real::Number(f64::NEG_INFINITY)),
            "nan" | "-nan" => {
                let negative = text.starts_with('-');
                return Ok(Real::Nan { negative, payload: self.payload()? });
            }
            _ => {}
        }
        // Rust reads "infinity" and "+1" too, C does not print them.
        let is_number = text.bytes().any(|byte| byte.is_ascii_digit());
        match text.parse::<f64>() {
            Ok(value) if is_number && value.is_finite() => Ok(Real::Number(value)),
            Ok(_) if is_number => fault(start, format!("{text} is too large")),
            _ => fault(start, format!("expected a number, found \"{text}\"")),
        }
    }

    /// `(0x1)` after `nan`.
    fn payload(&mut self) -> Result<Option<u64>> {
        if self.lexer.peek_adjacent() != Some(b'(') {
            return Ok(None);
        }
        self.lexer.eat(b'(');
        let start = self.lexer.here();
        let text = self.lexer.take_while(|byte| byte.is_ascii_alphanumeric());
        let Some(payload) = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()) else {
            return fault(start, format!("expected the bits of a NaN, like 0x1, found \"{text}\""));
        };
        self.lexer.expect(b')', "after the bits of a NaN")?;
        Ok(Some(payload))
    }
}

fn count_part(seen: &mut [i64], sizes: &[i64], dimension: usize, start: usize) -> Result<()> {
    if seen[dimension] >= sizes[dimension] {
        return fault(start, format!("dimension {dimension} has size {}, found more", sizes[dimension]));
    }
    seen[dimension] += 1;
    Ok(())
}

/// Row-major values in the order in which the layout has them in memory.
fn in_layout_order<T: Copy + Default>(values: Vec<T>, shape: &ShapeProto) -> Vec<T> {
    let order = shape.layout.as_ref().map(|layout| layout.minor_to_major.as_slice()).unwrap_or_default();
    if values.len() < 2 || order.windows(2).all(|pair| pair[0] > pair[1]) {
        return values;
    }
    let strides = element_strides(shape);
    let mut ordered = vec![T::default(); values.len()];
    let mut index: SmallVec<[i64; 8]> = SmallVec::from_elem(0, strides.len());
    for value in values {
        // A malformed layout gives any strides; then some elements find no place.
        let position = index
            .iter()
            .zip(&strides)
            .fold(0usize, |position, (&index, &stride)| position.wrapping_add((index as usize).wrapping_mul(stride)));
        if let Some(slot) = ordered.get_mut(position) {
            *slot = value;
        }
        for (index, &size) in index.iter_mut().zip(&shape.dimensions).rev() {
            *index += 1;
            if *index < size {
                break;
            }
            *index = 0;
        }
    }
    ordered
}
