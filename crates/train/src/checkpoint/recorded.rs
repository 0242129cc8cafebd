//! The run config that a checkpoint records.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::RunConfig;
use crate::model_folder::TOKENIZER;

/// The run config of the run that wrote a checkpoint, as TOML.
///
/// A checkpoint may come from anybody, so this is data. It says what the model is, and it can be compared with another
/// run's config. It cannot become the config of a run: that says where files go, what the compiler is told, and which
/// plugin and caches are used, and comes from the person who runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecordedConfig(String);

/// The keys that say what a model is and how its text becomes tokens. `model.config` is not among them, which is a
/// folder of the machine that wrote the checkpoint: the files that a run took from there lie in the checkpoint.
const FACTS: [(&str, Option<&[&str]>); 3] =
    [("model", None), ("data", Some(&["tokenizer"])), ("train", Some(&["seed", "further_token_weight"]))];

/// The sections whose keys decide what is computed. Another value there makes another run.
const SECTIONS: [&str; 4] = ["model", "data", "train", "diloco"];

/// Their keys that say only how it is computed.
const FREE_KEYS: [&str; 10] = [
    "model.scan_layers",
    "model.batch_split",
    "data.cache",
    "train.microbatches",
    "train.steps_per_call",
    "train.time_limit",
    "train.init",
    "train.skip_bad_steps",
    "diloco.check_replicas",
    "diloco.apart.min_replicas",
];

impl RecordedConfig {
    /// The record of a run's config.
    pub fn of(config: &RunConfig) -> RecordedConfig {
        RecordedConfig(config.to_toml())
    }

    /// The text, to be shown.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns the keys of the model alone, as the text of a config. The files of a published model come from `copy`,
    /// the folder that the checkpoint has of them.
    ///
    /// # Errors
    /// The text is not TOML.
    pub(crate) fn facts(&self, copy: Option<&Path>) -> Result<String, toml::de::Error> {
        let mut table: toml::Table = self.0.parse()?;
        let had_tokenizer = folder_of(&table).is_some_and(|folder| {
            let tokenizer = table.get("data").and_then(|data| data.get("tokenizer")?.as_str());
            tokenizer.is_some_and(|tokenizer| Path::new(tokenizer) == folder.join(TOKENIZER))
        });
        for (section, names) in FACTS {
            let Some(keys) = table.get_mut(section).and_then(toml::Value::as_table_mut) else { continue };
            keys.retain(|key, _| names.is_none_or(|names| names.contains(&key)));
        }
        table.retain(|section, _| FACTS.iter().any(|(name, _)| *name == section));
        let mut set = |section: &str, key: &str, path: Option<PathBuf>| {
            let Some(keys) = table.get_mut(section).and_then(toml::Value::as_table_mut) else { return };
            match path {
                Some(path) => drop(keys.insert(key.to_owned(), path.display().to_string().into())),
                None => drop(keys.remove(key)),
            }
        };
        set("model", "config", copy.map(Path::to_owned));
        if had_tokenizer {
            set("data", "tokenizer", copy.map(|folder| folder.join(TOKENIZER)));
        }
        Ok(table.to_string())
    }

    /// The folder of a published model, as the machine that wrote the checkpoint had it, if the run was of one.
    pub(crate) fn published_folder(&self) -> Option<PathBuf> {
        folder_of(&self.0.parse().ok()?)
    }

    /// Returns the keys that decide what is computed.
    ///
    /// # Errors
    /// The text is not TOML.
    pub(crate) fn computed(&self) -> Result<BTreeMap<String, toml::Value>, toml::de::Error> {
        let table: toml::Table = self.0.parse()?;
        let mut found = BTreeMap::new();
        for section in SECTIONS {
            table.get(section).into_iter().for_each(|value| add_keys(section, value, &mut found));
        }
        Ok(found)
    }
}

/// Adds the keys of a section and of those below it, but for [`FREE_KEYS`].
fn add_keys(path: &str, value: &toml::Value, found: &mut BTreeMap<String, toml::Value>) {
    match value {
        _ if FREE_KEYS.contains(&path) => {}
        toml::Value::Table(keys) => {
            keys.iter().for_each(|(key, value)| add_keys(&format!("{path}.{key}"), value, found))
        }
        _ => drop(found.insert(path.to_owned(), value.clone())),
    }
}

/// The folder of a published model, by a run config.
fn folder_of(table: &toml::Table) -> Option<PathBuf> {
    let folder = table.get("model")?.get("config")?.as_str()?;
    (!folder.is_empty()).then(|| folder.into())
}
