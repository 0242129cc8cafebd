//! How ops state their attributes: in which order, under which keys, and with which defaults.

use std::sync::Arc;

use super::reader::Result;
use super::{Attribute, GraphTextError, Printer, Reader};
use crate::ir::{DType, Dims, Graph, TensorType};

/// Several attributes with keys of their own: those of an op, or a part of them. See [`attributes`].
pub(crate) trait Attributes: Sized {
    fn write_attributes(&self, out: &mut Printer<'_>);

    fn read_attributes(reader: &mut OpReader<'_>) -> Result<Self>;
}

/// The name of an op. The op's `op_text!` states it, with the attributes.
pub trait OpName {
    /// The name in text forms and messages: HLO's opcode where there is one.
    fn name(&self) -> &'static str;
}

/// An op as text. See [`op_text`].
pub(crate) trait OpText: Attributes {
    /// The names that the op may have: one for each kind of it.
    fn names() -> impl Iterator<Item = &'static str>;
}

/// States the attributes of a struct: for each field a method of [`Printer`] and [`OpReader`], and its arguments.
macro_rules! attributes {
    ($owner:ty { $($field:tt: $method:ident $(($($argument:expr),*))?),* $(,)? }) => {
        impl $crate::ir::Attributes for $owner {
            #[allow(unused_variables, reason = "an op may have no attributes")]
            fn write_attributes(&self, out: &mut $crate::ir::Printer<'_>) {
                $(out.$method(&self.$field $($(, $argument)*)?);)*
            }

            #[allow(unused_variables, reason = "an op may have no attributes")]
            fn read_attributes(
                reader: &mut $crate::ir::OpReader<'_>,
            ) -> std::result::Result<Self, $crate::ir::GraphTextError> {
                Ok(Self { $($field: reader.$method($($($argument),*)?)?),* })
            }
        }
    };
}
pub(crate) use attributes;

/// States an op's name and [`attributes`]; the name alone, if the attributes take code of their own. For an op of
/// several kinds, `Kind { Value = name, .. } =>` or `name of VALUES, |kind| name =>` stands in place of the name, and
/// the first field is the one that holds the kind.
macro_rules! op_text {
    ($op:ty = $name:literal { $($fields:tt)* }) => {
        $crate::ir::attributes!($op { $($fields)* });
        $crate::ir::op_text!($op = $name);
    };
    ($op:ty = $name:literal) => {
        impl $crate::ir::OpName for $op {
            fn name(&self) -> &'static str {
                $name
            }
        }

        impl $crate::ir::OpText for $op {
            fn names() -> impl Iterator<Item = &'static str> {
                std::iter::once($name)
            }
        }
    };
    ($op:ty = $kinds:ident { $($kind:ident = $name:literal),* $(,)? } => { $($fields:tt)* }) => {
        $crate::ir::op_text!($op = name of [$($kinds::$kind),*], |kind| match kind {
            $($kinds::$kind => $name,)*
        } => { $($fields)* });
    };
    ($op:ty = name of $kinds:expr, |$kind:ident| $name:expr => { $field:tt $($fields:tt)* }) => {
        $crate::ir::attributes!($op { $field: kind(&$kinds, |$kind| $name) $($fields)* });

        impl $crate::ir::OpName for $op {
            fn name(&self) -> &'static str {
                let $kind = self.$field;
                $name
            }
        }

        impl $crate::ir::OpText for $op {
            fn names() -> impl Iterator<Item = &'static str> {
                $kinds.iter().map(|&$kind| $name)
            }
        }
    };
}
pub(crate) use op_text;

impl<T: Attributes> Attributes for Box<T> {
    fn write_attributes(&self, out: &mut Printer<'_>) {
        T::write_attributes(self, out);
    }

    fn read_attributes(reader: &mut OpReader<'_>) -> Result<Box<T>> {
        T::read_attributes(reader).map(Box::new)
    }
}

/// An attribute that the result types determine.
pub(crate) trait FromResults: Sized {
    fn from_results(types: &[TensorType]) -> Option<Self>;
}

macro_rules! from_first_result {
    ($($attribute:ty: $of:expr),* $(,)?) => {$(
        impl FromResults for $attribute {
            fn from_results(types: &[TensorType]) -> Option<$attribute> {
                types.first().map($of)
            }
        }
    )*};
}
from_first_result!(DType: |ty| ty.dtype, Dims: |ty| ty.dims.clone(), TensorType: TensorType::clone);

impl FromResults for Box<[TensorType]> {
    fn from_results(types: &[TensorType]) -> Option<Box<[TensorType]>> {
        Some(types.into())
    }
}

pub(crate) trait BodiesText: Sized {
    fn take(bodies: &mut Vec<Arc<Graph>>) -> Option<Self>;
}

impl BodiesText for Arc<Graph> {
    fn take(bodies: &mut Vec<Arc<Graph>>) -> Option<Arc<Graph>> {
        (!bodies.is_empty()).then(|| bodies.remove(0))
    }
}

impl BodiesText for Vec<Arc<Graph>> {
    fn take(bodies: &mut Vec<Arc<Graph>>) -> Option<Vec<Arc<Graph>>> {
        Some(std::mem::take(bodies))
    }
}

// The methods that `attributes!` calls: each has a counterpart of the same name in `OpReader`.
impl Printer<'_> {
    /// Prints a value in front of the braces.
    pub(crate) fn lead(&mut self, value: &impl Attribute) {
        self.push(" ");
        value.write(self);
    }

    /// Prints a value in braces, without a key.
    pub(crate) fn bare(&mut self, value: &impl Attribute) {
        self.begin();
        value.write(self);
    }

    /// Prints a list that takes all of the braces.
    pub(crate) fn whole<T: Attribute>(&mut self, value: &[T]) {
        if !value.is_empty() {
            self.begin();
            self.joined(value);
        }
    }

    /// Prints `key=value`.
    pub(crate) fn key(&mut self, value: &impl Attribute, key: &str) {
        self.begin();
        self.push(key);
        self.push("=");
        value.write(self);
    }

    /// Prints `key=value`, unless the value is the default.
    pub(crate) fn optional<T: Attribute + PartialEq>(&mut self, value: &T, key: &str, default: T) {
        if *value != default {
            self.key(value, key);
        }
    }

    /// Prints words if the value is true.
    pub(crate) fn flag(&mut self, value: &bool, words: &str) {
        if *value {
            self.begin();
            self.push(words);
        }
    }

    /// Prints attributes with keys of their own.
    pub(crate) fn several(&mut self, value: &impl Attributes) {
        value.write_attributes(self);
    }

    /// Prints nothing: the op's name says it.
    pub(crate) fn kind<T>(&mut self, _: &T, _: &[T], _: impl Fn(T) -> &'static str) {}

    /// Prints nothing: the result types say it.
    pub(crate) fn result<T>(&mut self, _: &T) {}

    /// Prints nothing: bodies stand behind the braces.
    pub(crate) fn body<T>(&mut self, _: &T) {}
}

/// The attributes of one node, which are being read.
pub(crate) struct OpReader<'t> {
    pub(super) place: Reader<'t>,
    pub(super) name: &'t str,
    pub(super) lead: Reader<'t>,
    /// The texts between commas in the braces, without those that have been read.
    pub(super) items: Vec<Reader<'t>>,
    pub(super) bodies: Vec<Arc<Graph>>,
    pub(super) types: &'t [TensorType],
    /// The keys that have been asked for.
    pub(super) keys: Vec<&'static str>,
}

fn read_all<T: Attribute>(mut reader: Reader<'_>) -> Result<T> {
    let value = T::read(&mut reader)?;
    reader.expect_end()?;
    Ok(value)
}

impl<'t> OpReader<'t> {
    /// The op's name.
    pub(crate) fn name(&self) -> &'t str {
        self.name
    }

    fn missing(&self, what: &str) -> GraphTextError {
        self.place.fail(format!("`{}` needs {what}", self.name))
    }

    /// Reads a value in front of the braces.
    pub(super) fn lead_with<T>(&mut self, read: impl FnOnce(&mut Reader<'t>) -> Result<T>) -> Result<T> {
        if self.lead.is_at_end() {
            return Err(self.missing("a value in front of its attributes"));
        }
        read(&mut self.lead)
    }

    /// Takes the item that begins with a key, behind the key.
    fn take(&mut self, key: &'static str) -> Option<Reader<'t>> {
        self.keys.push(key);
        let matching = |item: &Reader<'t>| {
            let mut item = *item;
            (item.eat_word(key) && item.eat("=")).then_some(item)
        };
        let index = self.items.iter().position(|item| matching(item).is_some())?;
        matching(&self.items.remove(index))
    }
}

// The methods that `attributes!` calls: see `Printer`.
impl OpReader<'_> {
    pub(crate) fn lead<T: Attribute>(&mut self) -> Result<T> {
        self.lead_with(|reader| T::read(reader))
    }

    pub(crate) fn bare<T: Attribute>(&mut self) -> Result<T> {
        let has_key = |item: &Reader<'_>| {
            let mut item = *item;
            item.word("").is_ok() && item.sees("=")
        };
        match self.items.iter().position(|item| !has_key(item)) {
            Some(index) => read_all(self.items.remove(index)),
            None => Err(self.missing("an attribute in braces")),
        }
    }

    pub(crate) fn whole<T: Attribute>(&mut self) -> Result<Box<[T]>> {
        self.items.drain(..).map(read_all).collect()
    }

    pub(crate) fn key<T: Attribute>(&mut self, key: &'static str) -> Result<T> {
        match self.take(key) {
            Some(value) => read_all(value),
            None => Err(self.missing(&format!("the attribute `{key}`"))),
        }
    }

    pub(crate) fn optional<T: Attribute>(&mut self, key: &'static str, default: T) -> Result<T> {
        self.take(key).map_or(Ok(default), read_all)
    }

    pub(crate) fn flag(&mut self, words: &'static str) -> Result<bool> {
        self.keys.push(words);
        let found = self.items.iter().position(|item| item.rest().trim() == words);
        Ok(found.map(|index| self.items.remove(index)).is_some())
    }

    pub(crate) fn several<T: Attributes>(&mut self) -> Result<T> {
        T::read_attributes(self)
    }

    pub(crate) fn kind<T: Copy>(&mut self, kinds: &[T], name: impl Fn(T) -> &'static str) -> Result<T> {
        let found = kinds.iter().copied().find(|&kind| name(kind) == self.name);
        found.ok_or_else(|| self.missing("another name"))
    }

    pub(crate) fn result<T: FromResults>(&mut self) -> Result<T> {
        T::from_results(self.types).ok_or_else(|| self.missing("a result"))
    }

    pub(crate) fn body<T: BodiesText>(&mut self) -> Result<T> {
        T::take(&mut self.bodies).ok_or_else(|| self.missing("one more body, such as `@0`"))
    }
}
