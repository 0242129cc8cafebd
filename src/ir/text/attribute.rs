//! How ops state their attributes: in which order, under which keys, and with which defaults.

use std::sync::Arc;

use meshloom_hlo::mesh::MeshAxis;
use meshloom_hlo::suggest::did_you_mean;
use smallvec::SmallVec;

use super::reader::Result;
use super::{OpReader, Printer, Reader};
use crate::ir::{Axes, DType, Dims, Graph, Name, Role, Spec, TensorType};

/// A type of attribute: how it prints and reads.
pub(crate) trait Attribute: Sized {
    fn write(&self, out: &mut Printer<'_>);

    fn read(reader: &mut Reader<'_>) -> Result<Self>;
}

/// Several attributes with keys of their own: those of an op, or a part of them. See [`attributes`].
pub(crate) trait Attributes: Sized {
    fn write_attributes(&self, out: &mut Printer<'_>);

    fn read_attributes(reader: &mut OpReader<'_>) -> Result<Self>;
}

/// An op has a name. Its line `op_text!` states it, with the attributes.
pub trait OpName {
    /// The name in text forms and messages: HLO's opcode where there is one.
    fn name(&self) -> &'static str;
}

/// An op as text. See [`op_text`].
pub(crate) trait OpText: Attributes {
    /// The names that it may have: one for each kind of it.
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

/// States the words that the values of a type are.
macro_rules! word_attribute {
    ($ty:ty { $($value:ident = $word:literal),* $(,)? }) => {
        $crate::ir::word_attribute!($ty, [$(<$ty>::$value),*], |value| match value { $(<$ty>::$value => $word),* });
    };
    ($ty:ty, $all:expr, |$value:ident| $word:expr) => {
        impl $crate::ir::Attribute for $ty {
            fn write(&self, out: &mut $crate::ir::Printer<'_>) {
                let $value = *self;
                out.push($word);
            }

            fn read(reader: &mut $crate::ir::Reader<'_>) -> std::result::Result<Self, $crate::ir::GraphTextError> {
                reader.one_of($all.iter().map(|&$value| ($word, $value)))
            }
        }
    };
}
pub(crate) use word_attribute;

word_attribute!(Role { Params = "params", Compute = "compute", Optimizer = "optimizer" });

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Attribute for $integer {
            fn write(&self, out: &mut Printer<'_>) {
                out.push(&self.to_string());
            }

            fn read(reader: &mut Reader<'_>) -> Result<$integer> {
                reader.integer("a whole number")
            }
        }
    )*};
}
integers!(usize, u32, i64);

impl Attribute for Name {
    fn write(&self, out: &mut Printer<'_>) {
        out.push(&format!("{self:?}"));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Name> {
        reader.string().map(|text| Name::new(&text))
    }
}

impl Attribute for String {
    fn write(&self, out: &mut Printer<'_>) {
        out.push(&format!("{self:?}"));
    }

    fn read(reader: &mut Reader<'_>) -> Result<String> {
        reader.string()
    }
}

/// What may be left out: [`Printer::optional`] with the default `None` writes what is there.
impl<T: Attribute> Attribute for Option<T> {
    fn write(&self, out: &mut Printer<'_>) {
        if let Some(value) = self {
            value.write(out);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Option<T>> {
        T::read(reader).map(Some)
    }
}

impl<T: Attribute> Attribute for (T, T) {
    fn write(&self, out: &mut Printer<'_>) {
        self.0.write(out);
        out.push("->");
        self.1.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<(T, T)> {
        let first = T::read(reader)?;
        reader.expect("->")?;
        Ok((first, T::read(reader)?))
    }
}

macro_rules! lists {
    ($($list:ty where [$($parameters:tt)*]),*) => {$(
        impl<$($parameters)*> Attribute for $list {
            fn write(&self, out: &mut Printer<'_>) {
                out.push("[");
                out.joined(self);
                out.push("]");
            }

            fn read(reader: &mut Reader<'_>) -> Result<Self> {
                Ok(reader.list("[", "]", Attribute::read)?.into_iter().collect())
            }
        }
    )*};
}
lists!(
    SmallVec<A> where [A: smallvec::Array<Item: Attribute>],
    Box<[T]> where [T: Attribute],
    Vec<T> where [T: Attribute]
);

impl Attribute for MeshAxis {
    fn write(&self, out: &mut Printer<'_>) {
        out.mesh_axis(*self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<MeshAxis> {
        let start = reader.clone_after_blanks();
        let mut ahead = *reader;
        if reader.sees("\"") || ahead.word("").is_ok() {
            let name = reader.name("a mesh axis")?;
            let Some(mesh) = reader.mesh else {
                let message = format!(
                    "there is no mesh that could have an axis `{name}`; begin the text with one: mesh \"{name}=2\""
                );
                return Err(start.fail(message));
            };
            return mesh.require_axis(&name).map_err(|error| start.fail(error.to_string()));
        }
        let number = reader.integer("a mesh axis: its name or number")?;
        MeshAxis::new(number).ok_or_else(|| start.fail(format!("no mesh has an axis {number}")))
    }
}

impl Attribute for Spec {
    fn write(&self, out: &mut Printer<'_>) {
        out.push("[");
        for (dim, axes) in self.dims().iter().enumerate() {
            out.push(if dim > 0 { ", " } else { "" });
            match axes.as_slice() {
                [] => out.push("_"),
                [axis] => axis.write(out),
                _ => {
                    out.push("(");
                    out.joined(axes);
                    out.push(")");
                }
            }
        }
        out.push("]");
        if !self.unreduced().is_empty() {
            out.push("{unreduced: ");
            out.joined(self.unreduced());
            out.push("}");
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Spec> {
        let start = reader.clone_after_blanks();
        let dims = reader.list("[", "]", |reader| {
            if reader.eat_word("_") {
                return Ok(Axes::new());
            }
            match reader.sees("(") {
                true => Ok(reader.list("(", ")", MeshAxis::read)?.into_iter().collect()),
                false => Ok(std::iter::once(MeshAxis::read(reader)?).collect()),
            }
        })?;
        let mut spec = Spec::new(dims);
        if reader.eat("{") {
            if !reader.eat_word("unreduced") {
                return Err(reader.expected("`unreduced`"));
            }
            spec = spec.with_unreduced(reader.list(":", "}", MeshAxis::read)?);
        }
        if let Some(mesh) = reader.mesh {
            spec.check(mesh).map_err(|error| start.fail(error.to_string()))?;
        }
        Ok(spec)
    }
}

impl<T: Attributes> Attributes for Box<T> {
    fn write_attributes(&self, out: &mut Printer<'_>) {
        T::write_attributes(self, out);
    }

    fn read_attributes(reader: &mut OpReader<'_>) -> Result<Box<T>> {
        T::read_attributes(reader).map(Box::new)
    }
}

/// An attribute that the result types say.
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

/// The bodies of an op.
pub(crate) trait Bodies: Sized {
    fn take(bodies: &mut Vec<Arc<Graph>>) -> Option<Self>;
}

impl Bodies for Arc<Graph> {
    fn take(bodies: &mut Vec<Arc<Graph>>) -> Option<Arc<Graph>> {
        (!bodies.is_empty()).then(|| bodies.remove(0))
    }
}

impl Bodies for Vec<Arc<Graph>> {
    fn take(bodies: &mut Vec<Arc<Graph>>) -> Option<Vec<Arc<Graph>>> {
        Some(std::mem::take(bodies))
    }
}

// What several ops' attributes are made of.
impl Reader<'_> {
    /// One of these words.
    pub(crate) fn one_of<T>(&mut self, words: impl Iterator<Item = (&'static str, T)>) -> Result<T> {
        let start = self.clone_after_blanks();
        let found = self.word("a word")?;
        let mut others = Vec::new();
        for (word, value) in words {
            if word == found {
                return Ok(value);
            }
            others.push(word);
        }
        let suggestion = did_you_mean(found, others.iter().copied());
        Err(start.fail(format!("expected one of {}, found `{found}`{suggestion}", others.join(", "))))
    }

    /// Numbers with a separator between them.
    pub(crate) fn separated<const N: usize>(&mut self, separator: &str) -> Result<[usize; N]> {
        let mut numbers = [0; N];
        for (index, number) in numbers.iter_mut().enumerate() {
            if index > 0 {
                self.expect(separator)?;
            }
            *number = self.integer("a whole number")?;
        }
        Ok(numbers)
    }

    /// `key=number` for each of these keys; 1 for those that are left out.
    pub(crate) fn words<const N: usize>(&mut self, keys: [&str; N]) -> Result<[usize; N]> {
        let mut numbers = [1; N];
        for (key, number) in keys.iter().zip(&mut numbers) {
            if self.eat_word(key) {
                self.expect("=")?;
                *number = self.integer("a whole number")?;
            }
        }
        Ok(numbers)
    }

    /// `pad=low_high`; zeros if it is left out.
    pub(crate) fn padding(&mut self) -> Result<(i64, i64)> {
        if !self.eat_word("pad") {
            return Ok((0, 0));
        }
        self.expect("=")?;
        let low = self.integer("a whole number")?;
        self.expect("_")?;
        Ok((low, self.integer("a whole number")?))
    }
}

// The counterparts.
impl Printer<'_> {
    pub(crate) fn words(&mut self, words: &[(&str, usize)]) {
        // The first stays, so that an entry is never empty.
        let (first, rest) = words.split_at(1);
        let others = rest.iter().filter(|(_, number)| *number != 1);
        let texts: Vec<String> = first.iter().chain(others).map(|(word, number)| format!("{word}={number}")).collect();
        self.push(&texts.join(" "));
    }

    pub(crate) fn padding(&mut self, low: i64, high: i64) {
        if (low, high) != (0, 0) {
            self.push(&format!(" pad={low}_{high}"));
        }
    }

    /// `word(item, item)`.
    pub(crate) fn call<T: Attribute>(&mut self, word: &str, items: &[T]) {
        self.push(word);
        self.push("(");
        self.joined(items);
        self.push(")");
    }
}
