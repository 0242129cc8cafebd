//! The run config as data: every key with its value, default and meaning, from the tables that define the sections.

use std::collections::HashMap;

use serde::Serialize;

use super::value::Keys;

/// A section of the run config.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionInfo {
    /// Its name, `model`.
    pub name: &'static str,
    /// What it is about.
    pub meaning: String,
    /// Whether the config has it: `[pipeline]` and `[diloco]` may be absent.
    pub is_present: bool,
    /// Its keys, in the order of the file.
    pub keys: Vec<KeyInfo>,
}

/// A key of the run config.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyInfo {
    /// Its name, `layers`.
    pub name: &'static str,
    /// Its value; none for a key that is not given and has no default.
    pub value: Option<toml::Value>,
    /// Its default, if it has one.
    pub default: Option<toml::Value>,
    /// What it may be, to follow "must be".
    pub allowed: String,
    /// What it means.
    pub meaning: String,
}

/// A section with every key.
pub(super) fn section<S: Keys>(name: &'static str, section: &S) -> SectionInfo {
    let written = section.write();
    let is_present = written.is_some();
    let mut values: HashMap<&str, toml::Value> = written.into_iter().flatten().collect();
    let keys = S::describe().into_iter().map(|key| KeyInfo { value: values.remove(key.name), ..key });
    SectionInfo { name, meaning: text(S::ABOUT), is_present, keys: keys.collect() }
}

/// The text of a doc comment: without the name of the section in front, and its first letter a capital.
pub(super) fn text(doc: &str) -> String {
    let text = doc.trim();
    let text = text.strip_prefix("`[").and_then(|rest| rest.split_once("]`: ")).map_or(text, |(_, text)| text);
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
