//! The errors of configs, and their places.

use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;

use super::RunConfig;
use meshloom::hlo::suggest::did_you_mean;

/// Where a part of the config was written: a file with line and column, or an override.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file, or the override as given; empty when there is neither.
    pub origin: String,
    /// Line and column, both from 1, when known.
    pub line_column: Option<(usize, usize)>,
}

impl Place {
    pub(crate) fn file(origin: &str) -> Place {
        Place { origin: origin.to_owned(), line_column: None }
    }

    pub(crate) fn in_text(origin: &str, text: &str, offset: usize) -> Place {
        Lines::of(origin, text).place(offset)
    }
}

/// The lines of a text, in which places are found.
pub(crate) struct Lines<'a> {
    origin: &'a str,
    text: &'a str,
    /// Where each line begins.
    starts: Vec<usize>,
    /// The last place that was asked for, by its offset: most follow each other, and a line may be long.
    last: Cell<(usize, (usize, usize))>,
}

impl<'a> Lines<'a> {
    pub(crate) fn of(origin: &'a str, text: &'a str) -> Lines<'a> {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        Lines { origin, text, starts: std::iter::once(0).chain(ends).collect(), last: Cell::new((0, (1, 1))) }
    }

    pub(crate) fn place(&self, offset: usize) -> Place {
        let line = self.starts.partition_point(|&start| start <= offset);
        let (known, (known_line, known_column)) = self.last.get();
        let (from, column) = match known_line == line && known <= offset {
            true => (known, known_column),
            false => (self.starts.get(line.saturating_sub(1)).copied().unwrap_or_default(), 1),
        };
        let column = column + self.text.get(from..offset).unwrap_or_default().chars().count();
        self.last.set((offset, (line, column)));
        Place { origin: self.origin.to_owned(), line_column: Some((line, column)) }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.origin.as_str(), self.line_column) {
            ("", None) => Ok(()),
            ("", Some((line, column))) => write!(f, "line {line}, column {column}: "),
            (origin, None) => write!(f, "{origin}: "),
            (origin, Some((line, column))) => write!(f, "{origin}:{line}:{column}: "),
        }
    }
}

/// An error in the run config: what is wrong, and where it was written.
#[derive(thiserror::Error)]
#[error("{place}{kind}")]
pub struct ConfigError {
    /// The place of the error.
    pub place: Place,
    /// The kind of error.
    pub kind: Box<ConfigErrorKind>,
    /// Other keys that have a part in the error, the likeliest first. If the key at fault has its default, one of these
    /// is at fault.
    pub because: Vec<String>,
}

meshloom::hlo::debug_is_message!(ConfigError);

impl ConfigError {
    /// The key at fault, with its section, where one key is.
    pub fn key(&self) -> Option<&str> {
        match &*self.kind {
            ConfigErrorKind::UnknownKey { key, .. }
            | ConfigErrorKind::WrongType { key, .. }
            | ConfigErrorKind::Invalid { key, .. } => Some(key),
            ConfigErrorKind::Read { .. } | ConfigErrorKind::Syntax { .. } | ConfigErrorKind::Override { .. } => None,
        }
    }
}

/// An error in a config.
#[derive(thiserror::Error)]
pub enum ConfigErrorKind {
    /// The file cannot be read.
    #[error("cannot read the config {path:?}: {source}; give the path of a TOML file")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The text is not TOML.
    #[error("{message}")]
    Syntax {
        /// The parser's message.
        message: String,
    },
    /// An override is not `section.key=value`.
    #[error("{text:?} is not an override: {reason}; write section.key=value, as in train.steps=100")]
    Override {
        /// The override.
        text: String,
        /// The fault.
        reason: String,
    },
    /// A key or section that does not exist.
    #[error("unknown key {key}{suggestion}; allowed: {allowed}")]
    UnknownKey {
        /// The key with its section.
        key: String,
        /// Empty, or a nearby name.
        suggestion: String,
        /// The names allowed there.
        allowed: String,
    },
    /// A value of the wrong type.
    #[error("{key} is {found}, but must be {expected}")]
    WrongType {
        /// The key with its section.
        key: String,
        /// The value and its type.
        found: String,
        /// The values that are allowed.
        expected: String,
    },
    /// A value of the right type that is not possible.
    #[error("{key} is {value}: {reason}")]
    Invalid {
        /// The key with its section.
        key: String,
        /// The value.
        value: String,
        /// The reason why it is not possible, and the values that are.
        reason: String,
    },
}

meshloom::hlo::debug_is_message!(ConfigErrorKind);

impl ConfigError {
    /// Adds other keys that have a part in it.
    pub(crate) fn because<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> ConfigError {
        self.because.extend(keys.into_iter().map(Into::into));
        self
    }
}

impl ConfigErrorKind {
    pub(super) fn at(self, place: Place) -> ConfigError {
        ConfigError { place, kind: Box::new(self), because: Vec::new() }
    }
}

impl From<ConfigErrorKind> for ConfigError {
    fn from(kind: ConfigErrorKind) -> ConfigError {
        kind.at(Place::default())
    }
}

/// Returns the error of an impossible value. The caller that knows where the key was written fills in the place.
pub(crate) fn invalid(key: &str, value: impl fmt::Debug, reason: &str) -> ConfigError {
    ConfigErrorKind::Invalid { key: key.to_owned(), value: format!("{value:?}"), reason: reason.to_owned() }.into()
}

/// As [`invalid`], with a value that is described rather than quoted.
pub(super) fn invalid_described(key: &str, value: String, reason: &str) -> ConfigError {
    ConfigErrorKind::Invalid { key: key.to_owned(), value, reason: reason.to_owned() }.into()
}

/// Keys of before, and what to write in place of them.
const RENAMED: [(&str, &str); 1] = [("data.text", "it is data.sources now, a list: data.sources = [\"file.txt\"]")];

/// `key` is the full path, and `allowed` are the names possible in its last place. `why` follows the key.
pub(super) fn unknown_key(place: &Place, key: &str, allowed: &[&str], why: Option<String>) -> ConfigError {
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let advice = RENAMED.iter().find(|(before, _)| *before == key).map(|(_, advice)| format!(" ({advice})"));
    let near = || Some(did_you_mean(name, allowed.iter().copied())).filter(|near| !near.is_empty());
    // Right name, wrong section: `train.layers`.
    let elsewhere = || {
        let sections = RunConfig::default().describe();
        let mut others = sections.iter().filter(|other| other.name != section);
        let other = others.find(|other| other.keys.iter().any(|key| key.name == name))?;
        Some(format!(" (did you mean \"{}.{name}\"?)", other.name))
    };
    let suggestion = why.or(advice).or_else(near).or_else(elsewhere).unwrap_or_default();
    let (key, allowed) = (key.to_owned(), allowed.join(", "));
    ConfigErrorKind::UnknownKey { key, suggestion, allowed }.at(place.clone())
}
