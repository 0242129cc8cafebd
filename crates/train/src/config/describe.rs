//! The run config as data: every key with its value, default and meaning, from the tables that define the sections.

use serde::Serialize;

use super::{RulesConfig, RunConfig, sections::*};

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

impl RunConfig {
    /// Every section with every key.
    pub fn describe(&self) -> Vec<SectionInfo> {
        let section = |name, about: &str, keys: Vec<KeyInfo>, values: Option<Vec<(&'static str, toml::Value)>>| {
            let is_present = values.is_some();
            let values = values.unwrap_or_default();
            let with_value = |key: KeyInfo| {
                let value = values.iter().find(|(name, _)| *name == key.name).map(|(_, value)| value.clone());
                KeyInfo { value, ..key }
            };
            SectionInfo { name, meaning: text(about), is_present, keys: keys.into_iter().map(with_value).collect() }
        };
        macro_rules! sections {
            ($($name:literal: $ty:ident of $value:expr,)*) => {
                vec![$(section($name, $ty::ABOUT, $ty::describe(), $value.map(|section: &$ty| section.write())),)*]
            };
        }
        sections! {
            "model": ModelConfig of Some(&self.model),
            "data": DataConfig of Some(&self.data),
            "train": TrainConfig of Some(&self.train),
            "checkpoint": CheckpointConfig of Some(&self.checkpoint),
            "mesh": MeshConfig of Some(&self.mesh),
            "rules": RulesConfig of Some(&self.rules),
            "remat": RematConfig of Some(&self.remat),
            "pipeline": PipelineConfig of self.pipeline.as_ref(),
            "diloco": DilocoConfig of self.diloco.as_ref(),
            "partition": PartitionConfig of Some(&self.partition),
            "target": TargetConfig of Some(&self.target),
        }
    }
}

/// The text of a doc comment: without the name of the section in front, and its first letter a capital.
pub(super) fn text(doc: &str) -> String {
    let text = doc.trim();
    let text = text.strip_prefix("`[").and_then(|rest| rest.split_once("]`: ")).map_or(text, |(_, text)| text);
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
