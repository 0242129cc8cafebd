//! The grammar of HLO text, each part stated once for both directions: how it prints and how it reads.
//!
//! [`opcodes`] says what each opcode carries, [`attributes`] where an attribute is in the proto and what kind of value
//! it has. The other files have the values. The printer ([`text`](super::text)) and the parser
//! ([`parse`](super::parse)) add the parts without a counterpart in the other: names and computations.

pub(crate) mod attributes;
mod convolution;
pub(crate) mod elements;
mod groups;
pub(crate) mod metadata;
pub(crate) mod opcodes;
pub(crate) mod ranges;
mod sharding;
mod special;
mod window;
mod words;

use smallvec::SmallVec;
pub(crate) use special::{default_comparison, implied_order};

use crate::number;
use crate::parse::{FIELD, Parser, Result};
use crate::text::Printer;

/// A value that prints and reads in the same way in all places.
pub(crate) trait Value: Sized {
    /// The separator between several values.
    const SEPARATOR: &'static str = ",";

    fn print(&self, printer: &mut Printer<'_>);

    fn read(parser: &mut Parser<'_>) -> Result<Self>;

    /// Whether an attribute with this value is not printed, if it is one that may be left out.
    fn is_omitted(&self, is_optional: bool) -> bool {
        let _ = is_optional;
        false
    }
}

/// A way in which fields of a type print and read, for types that have several.
pub(crate) trait Kind<T> {
    fn print(value: &T, printer: &mut Printer<'_>);

    fn read(parser: &mut Parser<'_>) -> Result<T>;

    fn is_omitted(value: &T, is_optional: bool) -> bool {
        let _ = (value, is_optional);
        false
    }
}

/// The only way of a type that has one.
pub(crate) struct Plain;

impl<T: Value> Kind<T> for Plain {
    fn print(value: &T, printer: &mut Printer<'_>) {
        value.print(printer);
    }

    fn read(parser: &mut Parser<'_>) -> Result<T> {
        T::read(parser)
    }

    fn is_omitted(value: &T, is_optional: bool) -> bool {
        value.is_omitted(is_optional)
    }
}

/// Prints text and values one after another.
macro_rules! emit {
    ($printer:expr $(, $part:expr)* $(,)?) => {{
        $( $crate::syntax::Emit::emit($part, $printer); )*
    }};
}
pub(crate) use emit;

/// A part of what [`emit`] prints.
pub(crate) trait Emit {
    fn emit(self, printer: &mut Printer<'_>);
}

/// Text as it is.
impl Emit for &str {
    fn emit(self, printer: &mut Printer<'_>) {
        printer.text(self);
    }
}

impl<T: Value> Emit for &T {
    fn emit(self, printer: &mut Printer<'_>) {
        self.print(printer);
    }
}

/// States how types print and read, and which of their values say nothing.
macro_rules! values {
    ($($type:ty: |$value:ident, $printer:ident| $print:expr, |$parser:ident| $read:expr, $is_empty:expr;)*) => {$(
        impl Value for $type {
            fn print(&self, $printer: &mut Printer<'_>) {
                let $value = self;
                $print
            }

            fn read($parser: &mut Parser<'_>) -> Result<$type> {
                $read
            }

            fn is_omitted(&self, is_optional: bool) -> bool {
                let is_empty: fn(&$type) -> bool = $is_empty;
                is_optional && is_empty(self)
            }
        }
    )*};
}

values! {
    i64: |value, printer| printer.number(*value), |parser| parser.lexer.integer(), |_| false;
    i32: |value, printer| printer.number((*value).into()), |parser| parser.lexer.small_integer(), |value| *value == 0;
    f64: |value, printer| number::write_short(&mut printer.out, *value), |parser| parser.number(), |_| false;
    f32: |value, printer| f64::from(*value).print(printer), |parser| Ok(parser.number()? as f32), |_| false;
    bool: |value, printer| printer.text(if *value { "true" } else { "false" }), |parser| parser.lexer.boolean(),
        |value| !value;
    String: |value, printer| printer.quoted(value.as_bytes()), |parser| parser.lexer.string(), String::is_empty;
    // A string of any bytes.
    Vec<u8>: |value, printer| printer.quoted(value), |parser| parser.lexer.quoted(), Vec::is_empty;
}

/// `{a,b}`.
impl<T: Value> Value for Vec<T> {
    fn print(&self, printer: &mut Printer<'_>) {
        emit!(printer, "{", &List(self), "}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<Vec<T>> {
        parser.items(b'{', b'}')
    }

    fn is_omitted(&self, is_optional: bool) -> bool {
        is_optional && self.is_empty()
    }
}

/// Several values without brackets around them.
pub(crate) struct List<'l, T>(pub(crate) &'l [T]);

impl<T: Value> Emit for &List<'_, T> {
    fn emit(self, printer: &mut Printer<'_>) {
        printer.separated(self.0, T::SEPARATOR, |printer, value| value.print(printer));
    }
}

/// A field that is not there prints as nothing, and its attribute not at all.
impl<T: Value> Value for Option<T> {
    fn print(&self, printer: &mut Printer<'_>) {
        if let Some(value) = self {
            value.print(printer);
        }
    }

    fn read(parser: &mut Parser<'_>) -> Result<Option<T>> {
        T::read(parser).map(Some)
    }

    fn is_omitted(&self, is_optional: bool) -> bool {
        self.as_ref().is_none_or(|value| value.is_omitted(is_optional))
    }
}

impl<T: Value> Value for Box<T> {
    fn print(&self, printer: &mut Printer<'_>) {
        (**self).print(printer);
    }

    fn read(parser: &mut Parser<'_>) -> Result<Box<T>> {
        parser.memory.take(size_of::<T>(), parser.lexer.here())?;
        T::read(parser).map(Box::new)
    }

    fn is_omitted(&self, is_optional: bool) -> bool {
        (**self).is_omitted(is_optional)
    }
}

impl Printer<'_> {
    /// Prints items with `separator` between them.
    pub(crate) fn separated<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        separator: &str,
        mut print: impl FnMut(&mut Self, T),
    ) {
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                self.text(separator);
            }
            print(self, item);
        }
    }
}

impl Parser<'_> {
    /// Values between two brackets, separated by commas.
    pub(crate) fn items<T: Value>(&mut self, open: u8, close: u8) -> Result<Vec<T>> {
        self.list_of(open, close, T::read)
    }

    /// The values that `item` reads between two brackets, separated by commas.
    pub(crate) fn list_of<T>(
        &mut self,
        open: u8,
        close: u8,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        // Most lists are short; this way their memory is exactly as large as they are.
        let mut values = SmallVec::<[T; 8]>::new();
        self.list(open, close, |parser| {
            parser.memory.take(size_of::<T>(), parser.lexer.here())?;
            values.push(item(parser)?);
            Ok(())
        })?;
        Ok(values.into_vec())
    }

    /// `{name=value other=value}`, with commas or without, which is `what`: `field` reads the value of a name, and
    /// says whether it is one of `known`. Others are passed over.
    pub(crate) fn fields(
        &mut self,
        what: &str,
        known: &[&'static str],
        mut field: impl FnMut(&mut Self, &str) -> Result<bool>,
    ) -> Result<()> {
        self.lexer.expect(b'{', &format!("before {what}"))?;
        while !self.lexer.eat(b'}') {
            self.lexer.eat(b',');
            let start = self.lexer.here();
            let name = self.lexer.attribute_name()?;
            if !field(self, name)? {
                self.pass_over(start, (FIELD, what), name, known.iter().copied())?;
            }
        }
        Ok(())
    }
}

/// States a message of the form `{name=value other=value}` by its fields, in the order in which they print. Before them
/// stands what separates them, whether those that say nothing are left out, and what the message is; after them, when
/// an attribute with such a message is left out.
macro_rules! record {
    (
        $message:ty, $separator:literal, $is_optional:literal, $what:literal,
        { $($field:ident $(: $kind:ty)?),* $(,)? }
        $(, |$value:ident| $is_omitted:expr)?
    ) => {
        impl $crate::syntax::Value for $message {
            const SEPARATOR: &'static str = ", ";

            fn print(&self, printer: &mut $crate::text::Printer<'_>) {
                use $crate::syntax::Kind as _;
                printer.text("{");
                let start = printer.out.len();
                $({
                    type FieldKind = $crate::syntax::kind!($($kind)?);
                    if !FieldKind::is_omitted(&self.$field, $is_optional) {
                        if printer.out.len() > start {
                            printer.text($separator);
                        }
                        printer.text(concat!(stringify!($field), "="));
                        FieldKind::print(&self.$field, printer);
                    }
                })*
                printer.text("}");
            }

            fn read(parser: &mut $crate::parse::Parser<'_>) -> $crate::parse::Result<Self> {
                let mut message = Self::default();
                let field = |parser: &mut $crate::parse::Parser<'_>, name: &str| {
                    match name {
                        $(stringify!($field) => {
                            message.$field = <$crate::syntax::kind!($($kind)?) as $crate::syntax::Kind<_>>::read(parser)?;
                        })*
                        _ => return Ok(false),
                    }
                    Ok(true)
                };
                parser.fields($what, &[$(stringify!($field)),*], field)?;
                Ok(message)
            }

            $(fn is_omitted(&self, _: bool) -> bool {
                let $value = self;
                $is_omitted
            })?
        }
    };
}
pub(crate) use record;

/// The kind of a field; where none is stated, its type has one.
macro_rules! kind {
    () => {
        $crate::syntax::Plain
    };
    ($kind:ty) => {
        $kind
    };
}
pub(crate) use kind;
