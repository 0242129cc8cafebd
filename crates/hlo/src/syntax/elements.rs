//! The elements of literals: the field in which the proto has those of a type, the ways to store, print and read them,
//! and their bytes.

use half::{bf16, f16};

use crate::number;
use crate::parse::{Parser, Real, Result, fault};
use crate::proto::{LiteralProto, PrimitiveType, ShapeProto};
use crate::small_float::SmallFloat;
use crate::text::Printer;

/// The type of a field's elements: a number of a type that Rust has, or a truth value.
trait Stored: Copy + Default {
    const WIDTH: usize;

    /// Appends its bytes, the low one first.
    fn write(self, bytes: &mut Vec<u8>);

    /// Reads the value from `WIDTH` bytes.
    fn of(bytes: &[u8]) -> Self;
}

macro_rules! stored {
    ($($number:ty)*) => {$(
        impl Stored for $number {
            const WIDTH: usize = size_of::<$number>();

            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }

            fn of(bytes: &[u8]) -> $number {
                <$number>::from_le_bytes(std::array::from_fn(|index| bytes.get(index).copied().unwrap_or_default()))
            }
        }
    )*};
}

stored! { u8 i16 i32 i64 u16 u32 u64 f16 bf16 f32 f64 }

impl Stored for bool {
    const WIDTH: usize = 1;

    fn write(self, bytes: &mut Vec<u8>) {
        bytes.push(self.into());
    }

    fn of(bytes: &[u8]) -> bool {
        bytes.iter().any(|&byte| byte != 0)
    }
}

fn to_bytes<T: Stored>(stored: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(stored.len() * T::WIDTH);
    stored.iter().for_each(|value| value.write(&mut bytes));
    bytes
}

fn from_bytes<T: Stored>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(T::WIDTH).map(T::of).collect()
}

/// A type of number that Rust has.
trait Number: Stored {
    fn print(self, printer: &mut Printer<'_>);

    fn read(parser: &mut Parser<'_>) -> Result<Self>;
}

macro_rules! numbers {
    ($($number:ty: |$printer:ident, $value:ident| $print:expr, |$parser:ident| $read:expr;)*) => {$(
        impl Number for $number {
            fn print(self, $printer: &mut Printer<'_>) {
                let $value = self;
                $print
            }

            fn read($parser: &mut Parser<'_>) -> Result<$number> {
                $read
            }
        }
    )*};
}

numbers! {
    i16: |printer, value| printer.number(value.into()), |parser| parser.signed(16).map(|value| value as i16);
    i32: |printer, value| printer.number(value.into()), |parser| parser.signed(32).map(|value| value as i32);
    i64: |printer, value| printer.number(value), |parser| parser.lexer.integer();
    u16: |printer, value| printer.number(value.into()), |parser| parser.unsigned(16).map(|value| value as u16);
    u32: |printer, value| printer.number(value.into()), |parser| parser.unsigned(32).map(|value| value as u32);
    u64: |printer, value| printer.unsigned(value), |parser| parser.lexer.integer().map(|value| value as u64);
    f16: |printer, value| number::write_f16(&mut printer.out, value), |parser| parser.half();
    bf16: |printer, value| number::write_bf16(&mut printer.out, value), |parser| parser.brain();
    f32: |printer, value| number::write_f32(&mut printer.out, value), |parser| parser.single();
    f64: |printer, value| number::write_f64(&mut printer.out, value), |parser| parser.double();
}

/// The way in which a field stores its elements, in memory order.
trait Codec {
    type Stored: Stored;

    /// How many stored values make an element.
    const PARTS: usize = 1;

    /// Prints the element that these parts make up; missing parts are 0.
    fn print(printer: &mut Printer<'_>, part: impl Fn(usize) -> Self::Stored, shape: &ShapeProto);

    fn read(parser: &mut Parser<'_>, shape: &ShapeProto) -> Result<Vec<Self::Stored>>;
}

/// A truth value that stands alone is a word.
struct Truth;

impl Codec for Truth {
    type Stored = bool;

    fn print(printer: &mut Printer<'_>, part: impl Fn(usize) -> bool, shape: &ShapeProto) {
        printer.text(match (shape.dimensions.is_empty(), part(0)) {
            (true, true) => "true",
            (true, false) => "false",
            (false, true) => "1",
            (false, false) => "0",
        });
    }

    fn read(parser: &mut Parser<'_>, shape: &ShapeProto) -> Result<Vec<bool>> {
        parser.array(shape, |parser| match parser.lexer.peek() {
            Some(b't' | b'f') => parser.lexer.boolean(),
            _ => Ok(parser.lexer.integer()? != 0),
        })
    }
}

/// Numbers as they are.
impl<T: Number> Codec for T {
    type Stored = T;

    fn print(printer: &mut Printer<'_>, part: impl Fn(usize) -> T, _: &ShapeProto) {
        part(0).print(printer);
    }

    fn read(parser: &mut Parser<'_>, shape: &ShapeProto) -> Result<Vec<T>> {
        parser.array(shape, T::read)
    }
}

/// Integers of at most 8 bits, one a byte. Negative ones too are in the low bits alone.
struct Narrow<const BITS: u32, const IS_SIGNED: bool>;

impl<const BITS: u32, const IS_SIGNED: bool> Codec for Narrow<BITS, IS_SIGNED> {
    type Stored = u8;

    fn print(printer: &mut Printer<'_>, part: impl Fn(usize) -> u8, _: &ShapeProto) {
        // The highest of the bits comes to the place of the sign.
        let shifted = part(0) << (8 - BITS);
        printer.number(if IS_SIGNED { (shifted as i8 >> (8 - BITS)).into() } else { (shifted >> (8 - BITS)).into() });
    }

    fn read(parser: &mut Parser<'_>, shape: &ShapeProto) -> Result<Vec<u8>> {
        parser.array(shape, |parser| {
            let value = if IS_SIGNED { parser.signed(BITS)? } else { parser.unsigned(BITS)? };
            Ok(value as u8 & (u8::MAX >> (8 - BITS)))
        })
    }
}

/// Values of 16 bits as bytes, the low one first.
struct Pairs<T>(T);

impl<T: Number + bytemuck::Pod> Codec for Pairs<T> {
    type Stored = u8;
    const PARTS: usize = 2;

    fn print(printer: &mut Printer<'_>, part: impl Fn(usize) -> u8, _: &ShapeProto) {
        bytemuck::cast::<u16, T>(u16::from_le_bytes([part(0), part(1)])).print(printer);
    }

    fn read(parser: &mut Parser<'_>, shape: &ShapeProto) -> Result<Vec<u8>> {
        let values = parser.array(shape, T::read)?;
        Ok(values.into_iter().flat_map(|value| bytemuck::cast::<T, u16>(value).to_le_bytes()).collect())
    }
}

/// `(real, imaginary)` each; or a real number alone, as XLA takes it.
struct Complex<T>(T);

impl<T: Number> Codec for Complex<T> {
    type Stored = T;
    const PARTS: usize = 2;

    fn print(printer: &mut Printer<'_>, part: impl Fn(usize) -> T, _: &ShapeProto) {
        printer.text("(");
        part(0).print(printer);
        printer.text(", ");
        part(1).print(printer);
        printer.text(")");
    }

    fn read(parser: &mut Parser<'_>, shape: &ShapeProto) -> Result<Vec<T>> {
        let values = parser.array(shape, |parser| {
            parser.lexer.expect(b'(', "before a complex number")?;
            let real = T::read(parser)?;
            parser.lexer.expect(b',', "between the parts of a complex number")?;
            let imaginary = T::read(parser)?;
            parser.lexer.expect(b')', "after a complex number")?;
            Ok([real, imaginary])
        })?;
        Ok(values.into_iter().flatten().collect())
    }
}

/// Floating-point numbers of at most 8 bits, one a byte.
struct Small;

impl Codec for Small {
    type Stored = u8;

    fn print(printer: &mut Printer<'_>, part: impl Fn(usize) -> u8, shape: &ShapeProto) {
        if let Some(float) = SmallFloat::of(shape.element_type) {
            float.write(&mut printer.out, part(0));
        }
    }

    fn read(parser: &mut Parser<'_>, shape: &ShapeProto) -> Result<Vec<u8>> {
        let Some(float) = SmallFloat::of(shape.element_type) else {
            return fault(parser.lexer.here(), "values of this type cannot be written");
        };
        parser.array(shape, |parser| {
            let start = parser.lexer.here();
            let bits = match parser.real()? {
                Real::Number(value) => float.bits_near(value),
                Real::Nan { negative, payload } => float.nan(negative, payload),
            };
            bits.map_or_else(|| fault(start, "the type of the constant does not have this value"), Ok)
        })
    }
}

/// A function that prints the element at a position in memory.
pub(crate) type PrintElement<'l> = dyn Fn(&mut Printer<'_>, usize) + 'l;

fn with_stored<C: Codec>(
    stored: &[C::Stored],
    shape: &ShapeProto,
    count: usize,
    print: impl FnOnce(&PrintElement<'_>),
) -> Option<()> {
    if stored.len() / C::PARTS < count {
        return None;
    }
    print(&|printer, index| {
        // A malformed layout leads anywhere.
        let place = |part| C::PARTS.saturating_mul(index).saturating_add(part);
        C::print(printer, |part| stored.get(place(part)).copied().unwrap_or_default(), shape);
    });
    Some(())
}

macro_rules! elements {
    ($($type:ident $field:ident $codec:ty;)*) => {
        /// Gives `print` what prints the elements of a literal; None if the type has no elements to print, or if the
        /// literal does not hold `count` of them.
        pub(crate) fn with_elements(
            literal: &LiteralProto,
            shape: &ShapeProto,
            count: usize,
            print: impl FnOnce(&PrintElement<'_>),
        ) -> Option<()> {
            match PrimitiveType::try_from(shape.element_type).ok()? {
                $(PrimitiveType::$type => with_stored::<$codec>(&literal.$field, shape, count, print),)*
                _ => None,
            }
        }

        /// The elements of a literal in memory order, as bytes, the low one of each number first; and how many bytes an
        /// element has. The result is `None` for a type without elements.
        pub(crate) fn element_bytes(literal: &LiteralProto, element: PrimitiveType) -> Option<(Vec<u8>, usize)> {
            match element {
                $(PrimitiveType::$type => {
                    let width = <$codec as Codec>::PARTS * <<$codec as Codec>::Stored as Stored>::WIDTH;
                    Some((to_bytes(&literal.$field), width))
                })*
                _ => None,
            }
        }

        /// Gives a literal the elements that [`element_bytes`] gives; nothing for a type without elements.
        pub(crate) fn set_element_bytes(literal: &mut LiteralProto, element: PrimitiveType, bytes: &[u8]) {
            match element {
                $(PrimitiveType::$type => literal.$field = from_bytes(bytes),)*
                _ => {}
            }
        }

        impl Parser<'_> {
            /// Reads the elements of an array into the field of its element type.
            pub(crate) fn elements(&mut self, shape: &ShapeProto, literal: &mut LiteralProto) -> Result<()> {
                let start = self.lexer.here();
                match PrimitiveType::try_from(shape.element_type).unwrap_or_default() {
                    $(PrimitiveType::$type => literal.$field = <$codec as Codec>::read(self, shape)?,)*
                    _ if self.eat_elided() => {}
                    _ => return fault(start, "values of this type cannot be written"),
                }
                Ok(())
            }
        }
    };
}

elements! {
    Pred preds Truth;
    S1 s1s Narrow<1, true>;
    S2 s2s Narrow<2, true>;
    S4 s4s Narrow<4, true>;
    S8 s8s Narrow<8, true>;
    S16 s16s Pairs<i16>;
    S32 s32s i32;
    S64 s64s i64;
    U1 u1s Narrow<1, false>;
    U2 u2s Narrow<2, false>;
    U4 u4s Narrow<4, false>;
    U8 u8s Narrow<8, false>;
    U16 u16s Pairs<u16>;
    U32 u32s u32;
    U64 u64s u64;
    F16 f16s Pairs<f16>;
    Bf16 bf16s Pairs<bf16>;
    F32 f32s f32;
    F64 f64s f64;
    C64 c64s Complex<f32>;
    C128 c128s Complex<f64>;
    F8e5m2 f8e5m2s Small;
    F8e4m3 f8e4m3s Small;
    F8e4m3fn f8e4m3fns Small;
    F8e4m3b11fnuz f8e4m3b11fnuzs Small;
    F8e3m4 f8e3m4s Small;
    F8e5m2fnuz f8e5m2fnuzs Small;
    F8e4m3fnuz f8e4m3fnuzs Small;
    F4e2m1fn f4e2m1fns Small;
    F6e3m2fn f6e3m2fns Small;
    F6e2m3fn f6e2m3fns Small;
    F8e8m0fnu f8e8m0fnus Small;
}
