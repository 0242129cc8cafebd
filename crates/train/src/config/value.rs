//! Values of keys that are no sections: how they are read, written and bounded.

use std::fmt;

use super::error::{self, ConfigError};
use meshloom::compile::PartitionMode;
use meshloom::hlo::PlatformKind;
use meshloom::hlo::suggest::did_you_mean;
use meshloom::ir::{DType, Name};
use meshloom::kernels::{AttentionKernel, ExpertsKernel};
use meshloom::ops::KeyExchange;
use meshloom::pjrt::ProgramFormat;
use meshloom::transform::diloco::Transport;
use meshloom::transform::pipeline::{Schedule, WeightPlan};
use meshloom_nn::{ContextOrder, ExpertExchange};

/// The reason why a value was not taken.
pub(super) enum Refusal {
    /// The value is of another TOML type.
    Type,
    /// The value is of the right type, but not possible. The text, if there is one, follows the values that are.
    Value(String),
}

/// The type of a value that is no section.
pub(super) trait Plain: Sized {
    /// Returns the values that are allowed, in words that follow "must be".
    fn expected() -> String;
    fn from_toml(value: &toml::Value) -> Result<Self, Refusal>;
    fn to_toml(&self) -> toml::Value;
}

/// The bound on a number of a key. All fractions are finite.
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
    /// An even number from 2 to this.
    Even(f64),
    /// At least 0, and of any size: all other fractions are part of the program, which has them as `f32`.
    Seconds,
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
            Bound::Even(most) => format!("an even integer from 2 to {most}"),
            Bound::Seconds => format!("{number} of at least 0"),
        }
    }

    /// Checks the value of a key, `section.key`, which must be as `allowed` says. Not a number is within no bound.
    pub(super) fn check(self, key: &str, value: &toml::Value, allowed: &str) -> Result<(), ConfigError> {
        let Some(number) = value.as_float().or(value.as_integer().map(|integer| integer as f64)) else { return Ok(()) };
        let is_within = match self {
            Bound::None => true,
            Bound::AtLeast(least) => number >= least,
            Bound::MoreThan(limit) => number > limit,
            Bound::Below(least, limit) => (least..limit).contains(&number),
            Bound::UpTo(least, most) => (least..=most).contains(&number),
            Bound::Even(most) => (2.0..=most).contains(&number) && number % 2.0 == 0.0,
            Bound::Seconds => number >= 0.0,
        };
        if !is_within {
            return Err(error::invalid_described(key, value.to_string(), &format!("it must be {allowed}")));
        }
        if value.is_float() && number != 0.0 && self != Bound::Seconds && !(number as f32).is_normal() {
            let (least, most) = (f32::MIN_POSITIVE, f32::MAX);
            let reason = format!("f32 cannot hold it; give a number from {least:e} to {most:e}");
            return Err(error::invalid(key, number, &reason));
        }
        Ok(())
    }
}

/// Defines an enum whose variants are named by strings in the config.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($variants:tt)* }) => {
        meshloom::hlo::words! {
            $(#[$about])*
            pub enum $name { $($variants)* }
        }

        $crate::config::value::named!($name: $name::ALL.map(|choice| (choice.name(), choice)));
    };
}

/// Makes types values of keys, by pairs of a name and a value. These are the choices.
macro_rules! named {
    ($($ty:ty: $choices:expr),* $(,)?) => {$(
        impl $crate::config::value::Plain for $ty {
            fn expected() -> String {
                $crate::config::value::one_of($choices.map(|(name, _)| name))
            }

            fn from_toml(value: &toml::Value) -> Result<$ty, $crate::config::value::Refusal> {
                let index = $crate::config::value::choose(value, &$choices.map(|(name, _)| name))?;
                Ok($choices[index].1)
            }

            fn to_toml(&self) -> toml::Value {
                let name = $choices.into_iter().find(|(_, choice)| choice == self).map_or("", |(name, _)| name);
                toml::Value::String(name.to_owned())
            }
        }
    )*};
}

pub(super) use {choice, named};

named! {
    AttentionKernel: AttentionKernel::ALL.map(|it| (it.name(), it)),
    ContextOrder: ContextOrder::ALL.map(|it| (it.name(), it)),
    // Only floating-point types have gradients, and the 8-bit types are for single products, not for a whole model.
    DType: [DType::BF16, DType::F16, DType::F32, DType::F64].map(|it| (it.name(), it)),
    ExpertExchange: ExpertExchange::ALL.map(|it| (it.name(), it)),
    ExpertsKernel: ExpertsKernel::ALL.map(|it| (it.name(), it)),
    KeyExchange: KeyExchange::ALL.map(|it| (it.name(), it)),
    PartitionMode: PartitionMode::ALL.map(|it| (it.name(), it)),
    PlatformKind: PlatformKind::ALL.map(|it| (it.name(), it)),
    ProgramFormat: [("hlo", ProgramFormat::Hlo), ("stablehlo", ProgramFormat::StableHlo)],
    Schedule: Schedule::ALL.map(|it| (it.name(), it)),
    Transport: Transport::ALL.map(|it| (it.name(), it)),
    WeightPlan: WeightPlan::ALL.map(|it| (it.name(), it)),
}

pub(super) fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    format!("one of {}", names.into_iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", "))
}

/// Returns the index of the name that a value is.
pub(super) fn choose(value: &toml::Value, names: &[&str]) -> Result<usize, Refusal> {
    let text = value.as_str().ok_or(Refusal::Type)?;
    let index = names.iter().position(|name| *name == text);
    index.ok_or_else(|| Refusal::Value(did_you_mean(text, names.iter().copied())))
}

/// A choice, or what suits the rest of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto<T> {
    /// `"auto"`: what suits.
    Auto,
    /// This one.
    Chosen(T),
}

impl<T> Auto<T> {
    /// The choice; `None` for what suits.
    pub fn chosen(self) -> Option<T> {
        match self {
            Auto::Auto => None,
            Auto::Chosen(choice) => Some(choice),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Auto<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Auto::Auto => f.pad("auto"),
            Auto::Chosen(choice) => choice.fmt(f),
        }
    }
}

impl<T: Plain> Plain for Auto<T> {
    fn expected() -> String {
        let choices = T::expected();
        match choices.strip_prefix("one of ") {
            Some(names) => format!("one of \"auto\", {names}"),
            None => format!("\"auto\", {choices}"),
        }
    }

    fn from_toml(value: &toml::Value) -> Result<Auto<T>, Refusal> {
        match value.as_str() {
            Some("auto") => Ok(Auto::Auto),
            _ => T::from_toml(value).map(Auto::Chosen),
        }
    }

    fn to_toml(&self) -> toml::Value {
        match self {
            Auto::Auto => toml::Value::String("auto".to_owned()),
            Auto::Chosen(choice) => choice.to_toml(),
        }
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Plain for $integer {
            fn expected() -> String {
                "an integer of at least 0".to_owned()
            }

            fn from_toml(value: &toml::Value) -> Result<$integer, Refusal> {
                let number = value.as_integer().ok_or(Refusal::Type)?;
                <$integer>::try_from(number).map_err(|_| Refusal::Value(String::new()))
            }

            fn to_toml(&self) -> toml::Value {
                toml::Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
            }
        }
    )*};
}

integers!(u64, usize);

impl Plain for f64 {
    fn expected() -> String {
        "a finite number".to_owned()
    }

    fn from_toml(value: &toml::Value) -> Result<f64, Refusal> {
        let number = match value {
            toml::Value::Float(number) => *number,
            toml::Value::Integer(number) => *number as f64,
            _ => return Err(Refusal::Type),
        };
        number.is_finite().then_some(number).ok_or_else(|| Refusal::Value(String::new()))
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Float(*self)
    }
}

impl Plain for bool {
    fn expected() -> String {
        "true or false".to_owned()
    }

    fn from_toml(value: &toml::Value) -> Result<bool, Refusal> {
        value.as_bool().ok_or(Refusal::Type)
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Boolean(*self)
    }
}

impl Plain for String {
    fn expected() -> String {
        "a string".to_owned()
    }

    fn from_toml(value: &toml::Value) -> Result<String, Refusal> {
        value.as_str().map(str::to_owned).ok_or(Refusal::Type)
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.clone())
    }
}

/// A name of a value.
impl Plain for Name {
    fn expected() -> String {
        String::expected()
    }

    fn from_toml(value: &toml::Value) -> Result<Name, Refusal> {
        value.as_str().map(Name::new).ok_or(Refusal::Type)
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.text())
    }
}

/// A value of a key that takes a list of them.
pub(super) trait Element: Plain {}

impl Element for String {}
impl Element for Name {}
impl Element for f64 {}

impl<T: Element> Plain for Vec<T> {
    fn expected() -> String {
        format!("an array of {}s", T::expected().trim_start_matches("a "))
    }

    fn from_toml(value: &toml::Value) -> Result<Vec<T>, Refusal> {
        value.as_array().ok_or(Refusal::Type)?.iter().map(T::from_toml).collect()
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Array(self.iter().map(Plain::to_toml).collect())
    }
}

impl Plain for Vec<usize> {
    fn expected() -> String {
        "integers with commas between them, as in \"0,1\", or one integer".to_owned()
    }

    fn from_toml(value: &toml::Value) -> Result<Vec<usize>, Refusal> {
        let text = match value {
            // A list of one looks like a number: `--set target.visible_devices=1`.
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::String(text) => text.clone(),
            _ => return Err(Refusal::Type),
        };
        let numbers = text.split(',').map(|number| number.trim().parse());
        let numbers = if text.is_empty() { Ok(Vec::new()) } else { numbers.collect() };
        numbers.map_err(|_: std::num::ParseIntError| Refusal::Value(String::new()))
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
    }
}
