//! Reads keys of a `config.json`, and remembers which.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::keys::{Key, Null};
use super::{ConfigFault, FamilyError};

const LAYERS: &str = "num_hidden_layers";

/// More layers than any model has.
pub const MOST_LAYERS: usize = 1000;

/// The keys of a `config.json`, or of a section in it.
#[derive(Clone, Debug)]
pub(super) struct Fields<'j> {
    file: &'j str,
    /// Where values are looked for, the first first.
    sources: Vec<FieldsOf<'j>>,
    /// The keys that the family knows; those of sections are not among them.
    keys: &'j [Key],
    used: Rc<RefCell<BTreeSet<String>>>,
}

/// An object that has values of keys.
#[derive(Clone, Debug)]
struct FieldsOf<'j> {
    /// The sections that it is in, each with a dot behind it.
    within: String,
    object: &'j Map<String, Value>,
    /// Whether the file has it, and not the family.
    is_written: bool,
}

impl<'j> Fields<'j> {
    /// The keys of an object of a file, and what a family has for those that are missing. `within` is the section that
    /// the object is in, with a dot behind it, or nothing.
    pub(super) fn new(
        file: &'j str,
        within: &str,
        object: &'j Map<String, Value>,
        keys: &'j [Key],
        missing: &'j Map<String, Value>,
    ) -> Fields<'j> {
        let within = within.to_owned();
        let written = FieldsOf { within: within.clone(), object, is_written: true };
        let sources = vec![written, FieldsOf { within, object: missing, is_written: false }];
        Fields { file, sources, keys, used: Rc::default() }
    }

    /// Returns the keys that were not read, with their sections. A section that was not read counts as a key.
    pub(super) fn unused(&self) -> Vec<String> {
        let used = self.used.borrow();
        let mut unused = Vec::new();
        for source in self.sources.iter().filter(|source| source.is_written) {
            unused_keys(&used, &source.within, source.object, &mut unused);
        }
        unused
    }

    /// Counts all keys of a section as asked for.
    pub(super) fn use_all(&self) {
        for source in &self.sources {
            self.used.borrow_mut().extend(source.object.keys().map(|key| format!("{}{key}", source.within)));
        }
    }

    /// Whether the file or the family has the key, be it null. It counts as asked for.
    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Whether the file has the key, be it null. It counts as asked for.
    pub(super) fn is_written(&self, key: &str) -> bool {
        self.find(key).is_some_and(|(source, _)| source.is_written)
    }

    /// Whether there is neither a key in the file nor a value for a missing one.
    pub(super) fn is_empty(&self) -> bool {
        self.sources.iter().all(|source| source.object.is_empty())
    }

    /// These keys; those that are missing are looked for in others.
    pub(super) fn over(&self, others: Option<&Fields<'j>>) -> Fields<'j> {
        let mut all = self.clone();
        all.sources.extend(others.iter().flat_map(|others| others.sources.iter().cloned()));
        all
    }

    /// The name of a key by its second name, if the file has that.
    pub(super) fn named(&self, key: &'static str, second: &'static str) -> &'static str {
        self.find(key);
        if self.has(second) { second } else { key }
    }

    fn find(&self, key: &str) -> Option<(&FieldsOf<'j>, &'j Value)> {
        let mut first = None;
        for source in &self.sources {
            let Some(value) = source.object.get(key) else { continue };
            self.used.borrow_mut().insert(format!("{}{key}", source.within));
            let is_missing = value.is_null() && source.is_written && self.null(key) == Null::Missing;
            if !is_missing && first.is_none() {
                first = Some((source, value));
            }
        }
        first
    }

    fn null(&self, key: &str) -> Null {
        self.keys.iter().find(|known| known.name == key).map_or(Null::Nothing, |known| known.null)
    }

    /// Returns the value of a key; `None` where it is null, or where it is missing and the family has nothing for it.
    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&'j Value) -> Option<T>,
    ) -> Result<Option<T>, FamilyError> {
        match self.find(key) {
            None => Ok(None),
            Some((_, Value::Null)) if self.null(key) == Null::Refused => Err(self.wrong(key, "null", expected)),
            Some((_, Value::Null)) => Ok(None),
            Some((_, value)) => read(value).map(Some).ok_or_else(|| self.wrong(key, &value.to_string(), expected)),
        }
    }

    /// As [`Fields::typed`], of a key that must have a value.
    fn needed<T>(&self, key: &str, expected: &str, read: impl Fn(&'j Value) -> Option<T>) -> Result<T, FamilyError> {
        match self.typed(key, expected, read)? {
            Some(value) => Ok(value),
            None if self.has(key) => Err(self.wrong(key, "null", expected)),
            None => Err(self.missing(key)),
        }
    }

    /// A key that must be there.
    pub(super) fn missing(&self, key: &str) -> FamilyError {
        self.fault(ConfigFault::Missing(self.path(key)))
    }

    /// The name of a key with its sections.
    fn path(&self, key: &str) -> String {
        let within = self.find(key).map(|(source, _)| source).or(self.sources.first());
        format!("{}{key}", within.map_or("", |source| &source.within))
    }

    /// A value that must be another.
    pub(super) fn wrong(&self, key: &str, found: &str, expected: &str) -> FamilyError {
        let found = match self.is_written(key) || !self.has(key) {
            true => found.to_owned(),
            false => format!("{found} (the default, as the file does not have the key)"),
        };
        self.fault(ConfigFault::Wrong { key: self.path(key), found, expected: expected.to_owned() })
    }

    /// Returns a section; `None` where it is missing or null.
    pub(super) fn section(&self, key: &str) -> Result<Option<Fields<'j>>, FamilyError> {
        let Some(object) = self.typed(key, "an object", Value::as_object)? else { return Ok(None) };
        let is_written = self.is_written(key);
        let sources = vec![FieldsOf { within: format!("{}.", self.path(key)), object, is_written }];
        // So that keys in it count one by one.
        let path = format!("{}.", self.path(key));
        self.used.borrow_mut().insert(path);
        Ok(Some(Fields { file: self.file, sources, keys: &[], used: self.used.clone() }))
    }

    /// Returns a count of at least one; `None` where it is null.
    pub(super) fn count_or_null(&self, key: &str) -> Result<Option<usize>, FamilyError> {
        self.typed(key, COUNT, count)
    }

    /// A count of at least one.
    pub(super) fn count(&self, key: &str) -> Result<usize, FamilyError> {
        self.needed(key, COUNT, count)
    }

    /// The number of layers, which must not be absurd: each is described by itself.
    pub(super) fn layer_count(&self) -> Result<usize, FamilyError> {
        let count = self.count(LAYERS)?;
        match count <= MOST_LAYERS {
            true => Ok(count),
            false => Err(self.wrong(LAYERS, &count.to_string(), &format!("at most {MOST_LAYERS}"))),
        }
    }

    /// Returns a count that may be zero; `None` where it is null.
    pub(super) fn number_of_or_null(&self, key: &str) -> Result<Option<usize>, FamilyError> {
        self.typed(key, "an integer of at least 0", number_of)
    }

    /// A count that may be zero.
    pub(super) fn number_of(&self, key: &str) -> Result<usize, FamilyError> {
        self.needed(key, "an integer of at least 0", number_of)
    }

    /// Returns numbers that count from zero; none where they are null.
    pub(super) fn numbers(&self, key: &str) -> Result<Vec<usize>, FamilyError> {
        let read = |value: &Value| value.as_array()?.iter().map(number_of).collect();
        Ok(self.typed(key, "a list of integers of at least 0", read)?.unwrap_or_default())
    }

    /// Returns a number; `None` where it is null.
    pub(super) fn number_or_null(&self, key: &str) -> Result<Option<f64>, FamilyError> {
        self.typed(key, "a number that f32 can hold", |value| {
            value.as_f64().filter(|&number| number == 0.0 || fits(number))
        })
    }

    /// Returns a number greater than zero; `None` where it is null.
    pub(super) fn positive_or_null(&self, key: &str) -> Result<Option<f64>, FamilyError> {
        self.typed(key, POSITIVE, positive)
    }

    /// A number greater than zero.
    pub(super) fn positive(&self, key: &str) -> Result<f64, FamilyError> {
        self.needed(key, POSITIVE, positive)
    }

    /// A flag; false where it is null.
    pub(super) fn flag(&self, key: &str) -> Result<bool, FamilyError> {
        Ok(self.typed(key, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// Returns a text; `None` where it is null.
    pub(super) fn text_or_null(&self, key: &str) -> Result<Option<&'j str>, FamilyError> {
        self.typed(key, TEXT, Value::as_str)
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<&'j str, FamilyError> {
        self.needed(key, TEXT, Value::as_str)
    }

    /// Returns texts; `None` where they are null.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'j str>>, FamilyError> {
        let read = |value: &'j Value| value.as_array()?.iter().map(Value::as_str).collect();
        self.typed(key, "a list of strings", read)
    }

    /// Refuses a flag that is set.
    pub(super) fn refuse_flag(&self, key: &str) -> Result<(), FamilyError> {
        if self.flag(key)? { Err(self.unsupported(key, "true", "false")) } else { Ok(()) }
    }

    /// Refuses a text that is not one of these, if there is one.
    pub(super) fn one_of(&self, key: &str, known: &[&str]) -> Result<(), FamilyError> {
        match self.text_or_null(key)? {
            Some(found) if !known.contains(&found) => {
                Err(self.unsupported(key, &format!("{found:?}"), &format!("{known:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a number that is not this one, if there is one.
    pub(super) fn only(&self, key: &str, known: f64) -> Result<(), FamilyError> {
        match self.number_or_null(key)? {
            Some(found) if found != known => Err(self.unsupported(key, &found.to_string(), &known.to_string())),
            _ => Ok(()),
        }
    }

    /// Refuses a key that says something.
    pub(super) fn refuse(&self, key: &str) -> Result<(), FamilyError> {
        match self.find(key) {
            Some((_, value)) if !value.is_null() => Err(self.unsupported(key, &value.to_string(), "null")),
            _ => Ok(()),
        }
    }

    /// A value that cannot be computed here.
    pub(super) fn unsupported(&self, key: &str, found: &str, known: &str) -> FamilyError {
        let [found, known] = [found, known].map(str::to_owned);
        self.fault(ConfigFault::Unsupported { key: self.path(key), found, known })
    }

    /// A number that must be another.
    pub(super) fn out_of_range(&self, key: &str, found: usize, expected: &str) -> FamilyError {
        self.wrong(key, &found.to_string(), expected)
    }

    /// A fault of the file.
    pub(super) fn fault(&self, fault: ConfigFault) -> FamilyError {
        FamilyError::File { file: self.file.to_owned(), fault }
    }
}

const COUNT: &str = "an integer from 1 to 2147483647";
const POSITIVE: &str = "a number greater than 0 that f32 can hold";
const TEXT: &str = "a string";

fn number_of(value: &Value) -> Option<usize> {
    // Four of them have a product in 128 bits.
    i32::try_from(value.as_u64()?).ok()?.try_into().ok()
}

fn count(value: &Value) -> Option<usize> {
    number_of(value).filter(|&count| count > 0)
}

fn positive(value: &Value) -> Option<f64> {
    value.as_f64().filter(|&number| number > 0.0 && fits(number))
}

/// Whether f32 has a number near this one that is neither zero nor infinite.
pub(super) fn fits(number: f64) -> bool {
    (number as f32).is_normal()
}

fn unused_keys(used: &BTreeSet<String>, within: &str, object: &Map<String, Value>, unused: &mut Vec<String>) {
    for (key, value) in object {
        let path = format!("{within}{key}");
        let section = format!("{path}.");
        match value {
            Value::Object(inner) if used.contains(&section) => unused_keys(used, &section, inner, unused),
            _ if used.contains(&path) => {}
            _ => unused.push(path),
        }
    }
}
