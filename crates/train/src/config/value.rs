//! Reading and writing of single keys, and the macros that make a section from its table of keys.

use std::collections::HashMap;

use serde::Serialize;

use super::error::{self, ConfigError, ConfigErrorKind, Place};
use super::tree::{Entry, Node, Table, wrong_type};
use meshloom::hlo::suggest::did_you_mean;
use meshloom::ir::DType;
use meshloom::ops::{KeyExchange, RematPolicy};
use meshloom::transform::diloco::Transport;
use meshloom::transform::pipeline::{Schedule, WeightPlan};
use meshloom_nn::ContextOrder;

/// A key of the run config.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyInfo {
    /// Its name, `layers`.
    pub name: &'static str,
    /// The value; `None` for a key that is not given and has no default.
    pub value: Option<toml::Value>,
    /// Its default, if it has one.
    pub default: Option<toml::Value>,
    /// The values that it may have, to follow "must be".
    pub allowed: String,
    /// Its meaning.
    pub meaning: String,
}

/// The reason why a value was not taken.
pub(super) enum Refusal {
    /// The value is of another TOML type.
    Type,
    /// The value is of the right type, but not possible. The text gives the reason and the possible values.
    Value(String),
    /// The value is a number that the type does not take.
    Number,
}

/// A type that a key can have.
pub(super) trait Value: Sized {
    /// Returns the values that are allowed, in words that follow "must be".
    fn expected() -> String;
    fn read(value: &toml::Value) -> Result<Self, Refusal>;
    fn write(&self) -> toml::Value;
}

/// The bound on a number of a key, besides being finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    /// Any number that the type takes.
    None,
    /// This or more.
    AtLeast(f64),
    /// More than this.
    MoreThan(f64),
    /// The first or more, less than the second.
    Below(f64, f64),
    /// From the first to the second.
    UpTo(f64, f64),
    /// An even number of at least 2.
    Even,
}

impl Bound {
    /// Returns the values that are allowed, in words that follow "must be", for a type that allows `expected`.
    pub(super) fn expected(self, expected: String) -> String {
        let number = expected.trim_end_matches(" of at least 0").replace("a finite number", "a number");
        match self {
            Bound::None => expected,
            Bound::AtLeast(least) => format!("{number} of at least {least}"),
            Bound::MoreThan(limit) => format!("{number} greater than {limit}"),
            Bound::Below(least, limit) => format!("{number} of at least {least} and less than {limit}"),
            Bound::UpTo(least, most) => format!("{number} from {least} to {most}"),
            Bound::Even => "an even integer of at least 2".to_owned(),
        }
    }

    /// Checks the value of a key, `section.key`. Not a number is within no bound.
    pub(super) fn check<T: Value>(self, key: &str, value: &T) -> Result<(), ConfigError> {
        let value = value.write();
        let Some(number) = value.as_float().or(value.as_integer().map(|integer| integer as f64)) else { return Ok(()) };
        let is_within = match self {
            Bound::None => true,
            Bound::AtLeast(least) => number >= least,
            Bound::MoreThan(limit) => number > limit,
            Bound::Below(least, limit) => (least..limit).contains(&number),
            Bound::UpTo(least, most) => (least..=most).contains(&number),
            Bound::Even => number >= 2.0 && number % 2.0 == 0.0,
        };
        let reason = || format!("it must be {}", self.expected(T::expected()));
        if is_within { Ok(()) } else { Err(error::invalid_described(key, value.to_string(), &reason())) }
    }
}

/// One section while it is read.
pub(super) struct Section<'a> {
    name: &'a str,
    table: Table,
    /// Where each key was written, for checks that come later.
    places: &'a mut HashMap<String, Place>,
}

/// A section as it is written: every key with its value.
pub(super) type Written = Vec<(&'static str, toml::Value)>;

/// A section of the file.
pub(super) trait Keys: Sized {
    /// Its keys, in the order of the file.
    const KEYS: &'static [&'static str];
    /// The subject of the section.
    const ABOUT: &'static str;

    fn read(section: Section<'_>) -> Result<Self, ConfigError>;

    /// Checks each number by the bound of its row.
    fn check(&self, name: &'static str) -> Result<(), ConfigError>;

    /// Returns the section as it is written; `None` if it is absent.
    fn write(&self) -> Option<Written>;

    /// The section and the sections below it, each with its keys.
    fn write_sections(&self, name: &'static str) -> Vec<(&'static str, Written)> {
        self.write().into_iter().map(|keys| (name, keys)).collect()
    }

    /// Every key, without a value.
    fn describe() -> Vec<KeyInfo>;
}

impl<S: Keys> Keys for Option<S> {
    const KEYS: &'static [&'static str] = S::KEYS;
    const ABOUT: &'static str = S::ABOUT;

    fn read(section: Section<'_>) -> Result<Option<S>, ConfigError> {
        S::read(section).map(Some)
    }

    fn check(&self, name: &'static str) -> Result<(), ConfigError> {
        self.as_ref().map_or(Ok(()), |section| section.check(name))
    }

    fn write(&self) -> Option<Written> {
        self.as_ref()?.write()
    }

    fn describe() -> Vec<KeyInfo> {
        S::describe()
    }
}

impl<'a> Section<'a> {
    /// Opens the section of this name; `expected` says which values it may have.
    pub(super) fn of(
        name: &'a str,
        entry: Entry,
        places: &'a mut HashMap<String, Place>,
        expected: &str,
    ) -> Result<Section<'a>, ConfigError> {
        match entry.node {
            Node::Table(table) => Ok(Section { name, table, places }),
            node => Err(wrong_type(&entry.place, name, &node, expected)),
        }
    }

    /// A section below this one.
    pub(super) fn below<'b>(
        &'b mut self,
        name: &'b str,
        entry: Entry,
        expected: &str,
    ) -> Result<Section<'b>, ConfigError> {
        Section::of(name, entry, self.places, expected)
    }

    pub(super) fn name(&self) -> &str {
        self.name
    }

    /// The entries, after a check that their keys exist. `allowed` are the keys of the section.
    pub(super) fn entries(&mut self, allowed: &[&str]) -> Result<Vec<(String, Entry)>, ConfigError> {
        let entries = std::mem::take(&mut self.table).into_entries();
        for (key, entry) in &entries {
            let path = format!("{}.{key}", self.name);
            if !allowed.contains(&key.as_str()) {
                return Err(error::unknown_key(&entry.key_place, &path, allowed.iter().copied()));
            }
            self.places.insert(path, entry.place.clone());
        }
        Ok(entries)
    }

    /// The value of one key.
    pub(super) fn value<T: Value>(&self, key: &str, entry: &Entry, bound: Bound) -> Result<T, ConfigError> {
        let key = format!("{}.{key}", self.name);
        let expected = bound.expected(T::expected());
        let Node::Value(value) = &entry.node else {
            return Err(wrong_type(&entry.place, &key, &entry.node, &expected));
        };
        let impossible = |reason| {
            ConfigErrorKind::Invalid { key: key.clone(), value: value.to_string(), reason }.at(entry.place.clone())
        };
        match T::read(value) {
            Err(Refusal::Type) => Err(wrong_type(&entry.place, &key, &entry.node, &expected)),
            Err(Refusal::Value(reason)) => Err(impossible(reason)),
            Err(Refusal::Number) => Err(impossible(format!("it must be {expected}"))),
            Ok(read) => Ok(read),
        }
    }
}

/// Defines a section: its struct, defaults, bounds, keys, reader and writer, from one table.
macro_rules! section {
    ($(#[doc = $about:literal])* $name:ident {
        $($(#[doc = $doc:literal])* $key:ident: $ty:ty = $default:expr $(=> $bound:expr)?,)*
    }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $($(#[doc = $doc])* pub $key: $ty,)* }

        impl Default for $name {
            fn default() -> $name {
                $name { $($key: $default,)* }
            }
        }

        impl $crate::config::value::Keys for $name {
            const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];
            const ABOUT: &'static str = concat!($($about),*);

            fn read(
                mut section: $crate::config::value::Section<'_>,
            ) -> Result<$name, $crate::config::ConfigError> {
                let mut read = $name::default();
                for (key, entry) in section.entries($name::KEYS)? {
                    match key.as_str() {
                        $(stringify!($key) => {
                            read.$key = section.value(&key, &entry, $crate::config::value::bound!($($bound)?))?;
                        })*
                        // `entries` has refused every other key.
                        _ => {}
                    }
                }
                Ok(read)
            }

            fn check(&self, name: &'static str) -> Result<(), $crate::config::ConfigError> {
                $($crate::config::value::bound!($($bound)?)
                    .check(&format!("{name}.{}", stringify!($key)), &self.$key)?;)*
                Ok(())
            }

            fn write(&self) -> Option<$crate::config::value::Written> {
                Some(vec![$((stringify!($key), $crate::config::value::Value::write(&self.$key)),)*])
            }

            fn describe() -> Vec<$crate::config::KeyInfo> {
                use $crate::config::value::Value;
                let defaults = $name::default();
                vec![$($crate::config::KeyInfo {
                    name: stringify!($key),
                    value: None,
                    default: Some(defaults.$key.write()),
                    allowed: $crate::config::value::bound!($($bound)?).expected(<$ty as Value>::expected()),
                    meaning: $crate::config::value::text(concat!($($doc),*)),
                },)*]
            }
        }
    };
}

/// The bound of a row, if it has one.
macro_rules! bound {
    () => {
        $crate::config::value::Bound::None
    };
    ($bound:expr) => {
        $bound
    };
}

/// Defines an enum whose variants are named by strings in the config.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($variants:tt)* }) => {
        meshloom::hlo::words! {
            $(#[$about])*
            pub enum $name { $($variants)* }
        }

        $crate::config::value::named!($name: $name::ALL.into_iter());
    };
}

/// Makes types whose values have names, `name()`, values of keys. These are the choices.
macro_rules! named {
    ($($ty:ty: $choices:expr),* $(,)?) => {$(
        impl $crate::config::value::Value for $ty {
            fn expected() -> String {
                $crate::config::value::one_of($choices.map(|choice| choice.name()))
            }

            fn read(value: &toml::Value) -> Result<$ty, $crate::config::value::Refusal> {
                let index = $crate::config::value::choose(value, $choices.map(|choice| choice.name()))?;
                $choices.nth(index).ok_or($crate::config::value::Refusal::Type)
            }

            fn write(&self) -> toml::Value {
                toml::Value::String(self.name().to_owned())
            }
        }
    )*};
}

pub(super) use {bound, choice, named, section};

named! {
    ContextOrder: ContextOrder::ALL.into_iter(),
    DType: float_types(),
    KeyExchange: KeyExchange::ALL.into_iter(),
    RematPolicy: policies(),
    Schedule: Schedule::ALL.into_iter(),
    Transport: Transport::ALL.into_iter(),
    WeightPlan: WeightPlan::ALL.into_iter(),
}

pub(super) fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    format!("one of {}", names.into_iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", "))
}

/// Returns the index of the name that a value is.
pub(super) fn choose<'a>(
    value: &toml::Value,
    names: impl IntoIterator<Item = &'a str> + Clone,
) -> Result<usize, Refusal> {
    let text = value.as_str().ok_or(Refusal::Type)?;
    names
        .clone()
        .into_iter()
        .position(|name| name == text)
        .ok_or_else(|| Refusal::Value(format!("it must be {}{}", one_of(names.clone()), did_you_mean(text, names))))
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Value for $integer {
            fn expected() -> String {
                "an integer of at least 0".to_owned()
            }

            fn read(value: &toml::Value) -> Result<$integer, Refusal> {
                let number = value.as_integer().ok_or(Refusal::Type)?;
                <$integer>::try_from(number).map_err(|_| Refusal::Number)
            }

            fn write(&self) -> toml::Value {
                toml::Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
            }
        }
    )*};
}

integers!(u64, usize);

impl Value for f64 {
    fn expected() -> String {
        "a finite number".to_owned()
    }

    fn read(value: &toml::Value) -> Result<f64, Refusal> {
        let number = match value {
            toml::Value::Float(number) => *number,
            toml::Value::Integer(number) => *number as f64,
            _ => return Err(Refusal::Type),
        };
        number.is_finite().then_some(number).ok_or(Refusal::Number)
    }

    fn write(&self) -> toml::Value {
        toml::Value::Float(*self)
    }
}

impl Value for bool {
    fn expected() -> String {
        "true or false".to_owned()
    }

    fn read(value: &toml::Value) -> Result<bool, Refusal> {
        value.as_bool().ok_or(Refusal::Type)
    }

    fn write(&self) -> toml::Value {
        toml::Value::Boolean(*self)
    }
}

impl Value for String {
    fn expected() -> String {
        "a string".to_owned()
    }

    fn read(value: &toml::Value) -> Result<String, Refusal> {
        value.as_str().map(str::to_owned).ok_or(Refusal::Type)
    }

    fn write(&self) -> toml::Value {
        toml::Value::String(self.clone())
    }
}

impl Value for Vec<String> {
    fn expected() -> String {
        "an array of strings".to_owned()
    }

    fn read(value: &toml::Value) -> Result<Vec<String>, Refusal> {
        let values = value.as_array().ok_or(Refusal::Type)?;
        values.iter().map(String::read).collect()
    }

    fn write(&self) -> toml::Value {
        toml::Value::Array(self.iter().map(Value::write).collect())
    }
}

impl Value for Vec<f64> {
    fn expected() -> String {
        "an array of finite numbers".to_owned()
    }

    fn read(value: &toml::Value) -> Result<Vec<f64>, Refusal> {
        let values = value.as_array().ok_or(Refusal::Type)?;
        values.iter().map(f64::read).collect()
    }

    fn write(&self) -> toml::Value {
        toml::Value::Array(self.iter().map(Value::write).collect())
    }
}

impl Value for Vec<usize> {
    fn expected() -> String {
        "integers with commas between them, as in \"0,1\", or one integer".to_owned()
    }

    fn read(value: &toml::Value) -> Result<Vec<usize>, Refusal> {
        let text = match value {
            // A list of one looks like a number: `--set target.visible_devices=1`.
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::String(text) => text.clone(),
            _ => return Err(Refusal::Type),
        };
        let numbers = text.split(',').map(|number| number.trim().parse());
        if text.is_empty() { Ok(Vec::new()) } else { numbers.collect::<Result<_, _>>().map_err(|_| Refusal::Number) }
    }

    fn write(&self) -> toml::Value {
        toml::Value::String(self.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
    }
}

/// The policies that have no list, or one of the names in `remat.names`, which the value is without.
pub(super) fn policies() -> impl Iterator<Item = RematPolicy> + Clone {
    use RematPolicy::{Dots, Full, None, Offload, Save};
    [None, Full, Dots, Save(Vec::new()), Offload(Vec::new())].into_iter()
}

/// Returns the types that parameters and computation can have: only floating-point types, because they have gradients.
/// The 8-bit types are for single products, not for a whole model.
fn float_types() -> impl Iterator<Item = DType> + Clone {
    DType::ALL.into_iter().filter(|dtype| dtype.is_float() && dtype.byte_count() >= 2)
}

/// The text of a doc comment: without the name of the section in front, and its first letter a capital.
pub(super) fn text(doc: &str) -> String {
    let text = doc.trim();
    let text = text.strip_prefix("`[").and_then(|rest| rest.split_once("]`: ")).map_or(text, |(_, text)| text);
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
