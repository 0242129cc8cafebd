//! Attributes: how each type of them prints and reads.

use meshloom_hlo::mesh::MeshAxis;
use meshloom_hlo::suggest::did_you_mean;
use smallvec::SmallVec;

use super::reader::Result;
use super::{Printer, Reader};
use crate::ir::{Axes, Name, Role, Spec};

/// A type of attribute: how it prints and reads.
pub(crate) trait Attribute: Sized {
    fn write(&self, out: &mut Printer<'_>);

    fn read(reader: &mut Reader<'_>) -> Result<Self>;
}

/// States the words that the values of a type are.
macro_rules! word_attribute {
    ($ty:ty { $($value:ident = $word:literal),* $(,)? }) => {
        $crate::ir::word_attribute!($ty, [$(<$ty>::$value),*], |value| match value { $(<$ty>::$value => $word),* });
    };
    ($ty:ty) => {
        $crate::ir::word_attribute!($ty, <$ty>::ALL, |value| value.name());
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

/// An `Option` is an attribute that may be left out: [`Printer::optional`] with the default `None` writes the value
/// that is there.
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

// Parts that the attributes of several ops are made of.
impl Reader<'_> {
    /// Reads one of these words.
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

// The counterparts for printing.
impl Printer<'_> {
    /// Items with commas between them.
    pub(crate) fn joined<T: Attribute>(&mut self, items: &[T]) {
        for (index, item) in items.iter().enumerate() {
            self.push(if index > 0 { ", " } else { "" });
            item.write(self);
        }
    }

    pub(crate) fn words(&mut self, words: &[(&str, usize)]) {
        // The first word stays, so that an entry is never empty.
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
