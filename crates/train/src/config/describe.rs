//! The run config as data: every key with its value, default and meaning, from the tables that define the sections.

use std::collections::HashMap;

use serde::Serialize;

use super::value::{KeyInfo, Keys, text};

/// A section of the run config.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionInfo {
    /// The name of the section, such as `model`.
    pub name: &'static str,
    /// The subject of the section.
    pub meaning: String,
    /// Whether the config has it: `[pipeline]` and `[diloco]` may be absent.
    pub is_present: bool,
    /// The keys of the section, in the order of the file.
    pub keys: Vec<KeyInfo>,
}

/// A section with every key.
pub(super) fn section<S: Keys>(name: &'static str, section: &S) -> SectionInfo {
    let written = section.write();
    let is_present = written.is_some();
    let mut values: HashMap<&str, toml::Value> = written.into_iter().flatten().collect();
    let keys = S::describe().into_iter().map(|key| KeyInfo { value: values.remove(key.name), ..key });
    SectionInfo { name, meaning: text(S::ABOUT), is_present, keys: keys.collect() }
}
