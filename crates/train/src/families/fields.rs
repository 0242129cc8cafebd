//! Reads keys of a `config.json`, and remembers which.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::FamilyError;

const LAYERS: &str = "num_hidden_layers";

/// More layers than any model has.
pub(super) const MOST_LAYERS: usize = 1000;

/// The keys of a `config.json`, or of a section in it.
#[derive(Clone, Debug)]
pub(super) struct Fields<'j> {
    file: &'j str,
    /// The sections that it is in, each with a dot behind it.
    within: String,
    object: &'j Map<String, Value>,
    used: RefCell<BTreeSet<&'j str>>,
}

impl<'j> Fields<'j> {
    pub(super) fn new(file: &'j str, object: &'j Map<String, Value>) -> Fields<'j> {
        Fields { file, within: String::new(), object, used: RefCell::default() }
    }

    /// The keys that nobody asked for.
    pub(super) fn unused(&self) -> Vec<String> {
        let used = self.used.borrow();
        self.object.keys().filter(|key| !used.contains(key.as_str())).cloned().collect()
    }

    /// The value of a key; none where it is missing or null.
    fn value(&self, key: &str) -> Option<&'j Value> {
        let (name, value) = self.object.get_key_value(key)?;
        self.used.borrow_mut().insert(name);
        Some(value).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&'j Value) -> Option<T>,
    ) -> Result<Option<T>, FamilyError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(key, value, expected))
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.within)
    }

    fn wrong(&self, key: &str, found: &Value, expected: &str) -> FamilyError {
        let (file, found, expected) = (self.file.to_owned(), found.to_string(), expected.to_owned());
        FamilyError::Wrong { file, key: self.key(key), found, expected }
    }

    fn needed<T>(&self, key: &str, found: Option<T>) -> Result<T, FamilyError> {
        found.ok_or_else(|| FamilyError::Missing { file: self.file.to_owned(), key: self.key(key) })
    }

    /// A section; none where it is missing or null.
    pub(super) fn section(&self, key: &str) -> Result<Option<Fields<'j>>, FamilyError> {
        let object = self.typed(key, "an object", Value::as_object)?;
        let within = format!("{}.", self.key(key));
        Ok(object.map(|object| Fields { file: self.file, within, object, used: RefCell::default() }))
    }

    /// A count of at least one; none where it is missing or null.
    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, FamilyError> {
        let read =
            |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|&count| count > 0);
        self.typed(key, "an integer of at least 1", read)
    }

    /// As [`Fields::count`], of a key that must be there.
    pub(super) fn needed_count(&self, key: &str) -> Result<usize, FamilyError> {
        self.needed(key, self.count(key)?)
    }

    /// The number of layers, which must not be absurd: each is described by itself.
    pub(super) fn layer_count(&self) -> Result<usize, FamilyError> {
        let count = self.needed_count(LAYERS)?;
        match count <= MOST_LAYERS {
            true => Ok(count),
            false => Err(self.out_of_range(LAYERS, count, format!("at most {MOST_LAYERS}"))),
        }
    }

    /// A count that may be zero.
    pub(super) fn number_of(&self, key: &str) -> Result<Option<usize>, FamilyError> {
        let read = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        self.typed(key, "an integer of at least 0", read)
    }

    /// Numbers that count from zero.
    pub(super) fn numbers(&self, key: &str) -> Result<Vec<usize>, FamilyError> {
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        let read = |value: &Value| value.as_array()?.iter().map(number).collect();
        Ok(self.typed(key, "a list of integers of at least 0", read)?.unwrap_or_default())
    }

    /// A finite number; none where it is missing or null.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, FamilyError> {
        self.typed(key, "a finite number", |value| value.as_f64().filter(|number| number.is_finite()))
    }

    /// A number greater than zero.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>, FamilyError> {
        self.typed(key, "a number greater than 0", |value| {
            value.as_f64().filter(|&number| number > 0.0 && number.is_finite())
        })
    }

    /// As [`Fields::positive`], of a key that must be there.
    pub(super) fn needed_positive(&self, key: &str) -> Result<f64, FamilyError> {
        self.needed(key, self.positive(key)?)
    }

    /// A flag.
    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, FamilyError> {
        Ok(self.typed(key, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'j str>, FamilyError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// Texts.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'j str>>, FamilyError> {
        let read = |value: &'j Value| value.as_array()?.iter().map(Value::as_str).collect();
        self.typed(key, "a list of strings", read)
    }

    /// Refuses a flag that is set.
    pub(super) fn refuse_flag(&self, key: &str) -> Result<(), FamilyError> {
        if self.flag(key, false)? { Err(self.unsupported(key, "true", "false")) } else { Ok(()) }
    }

    /// Refuses a text that is none of these; a missing one is the default of the family.
    pub(super) fn one_of(&self, key: &str, known: &[&str]) -> Result<(), FamilyError> {
        match self.text(key)? {
            Some(found) if !known.contains(&found) => {
                Err(self.unsupported(key, &format!("{found:?}"), &format!("{known:?}")))
            }
            _ => Ok(()),
        }
    }

    /// A value that cannot be computed here.
    pub(super) fn unsupported(&self, key: &str, found: &str, known: &str) -> FamilyError {
        let [found, known] = [found, known].map(str::to_owned);
        FamilyError::Unsupported { file: self.file.to_owned(), key: self.key(key), found, known }
    }

    /// A number that must be another.
    pub(super) fn out_of_range(&self, key: &str, found: usize, expected: String) -> FamilyError {
        FamilyError::Wrong { file: self.file.to_owned(), key: self.key(key), found: found.to_string(), expected }
    }
}
