//! The run config: one TOML file that says everything about a run.
//!
//! `sections.rs` is the table of all keys with type, default and meaning; reading, writing and the list of allowed
//! names all come from it. Errors name the key with its section (`model.head_dim`), where it was written, the value
//! found and what is allowed. Reading checks everything that can be checked without a model;
//! [`RunConfig::check_supported`] says which of it this version can run.

mod describe;
mod error;
mod family;
mod pipeline;
mod rows;
mod rules;
mod sections;
mod supported;
mod tree;
mod validate;
mod value;

use std::collections::HashMap;
use std::path::Path;

pub use describe::{KeyInfo, SectionInfo};
pub use error::{ConfigError, ConfigErrorKind, Place};
pub use rules::{RoleRules, RuleEntry, RuleSource, RulesConfig};
pub use sections::{
    CheckpointConfig, DataConfig, DilocoConfig, DilocoTransport, MeshConfig, ModelConfig, ModelFamily, PartitionConfig,
    PartitionMode, PipelineConfig, PipelineSchedule, PipelineWeights, Platform, RematConfig, RematPolicy, Replication,
    TargetConfig, TrainConfig,
};

use meshloom::sharding::{Mesh, RuleSets};
use tree::{Node, Table};
use value::Section;

/// Everything about a run. Every key has a default that works; see `examples/configs/default.toml`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunConfig {
    /// `[model]`
    pub model: ModelConfig,
    /// `[data]`
    pub data: DataConfig,
    /// `[train]`
    pub train: TrainConfig,
    /// `[checkpoint]`
    pub checkpoint: CheckpointConfig,
    /// `[mesh]`
    pub mesh: MeshConfig,
    /// `[rules]`
    pub rules: RulesConfig,
    /// `[remat]`
    pub remat: RematConfig,
    /// `[pipeline]`, when there is one
    pub pipeline: Option<PipelineConfig>,
    /// `[diloco]`, when there is one
    pub diloco: Option<DilocoConfig>,
    /// `[partition]`
    pub partition: PartitionConfig,
    /// `[target]`
    pub target: TargetConfig,
}

/// Every section with its keys, in the order of the file.
const SECTIONS: &[(&str, &[&str])] = &[
    ("model", ModelConfig::KEYS),
    ("data", DataConfig::KEYS),
    ("train", TrainConfig::KEYS),
    ("checkpoint", CheckpointConfig::KEYS),
    ("mesh", MeshConfig::KEYS),
    ("rules", RulesConfig::KEYS),
    ("remat", RematConfig::KEYS),
    ("pipeline", PipelineConfig::KEYS),
    ("diloco", DilocoConfig::KEYS),
    ("partition", PartitionConfig::KEYS),
    ("target", TargetConfig::KEYS),
];

impl RunConfig {
    /// Reads and checks a config file. Each override is `section.key=value` and wins over the file.
    pub fn load(path: impl AsRef<Path>, overrides: &[String]) -> Result<RunConfig, ConfigError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigErrorKind::Read { path: path.to_owned(), source }.at(Place::default()))?;
        RunConfig::from_toml_with(&text, &path.display().to_string(), overrides)
    }

    /// Reads and checks a config from text. `origin` is what messages call it.
    pub fn from_toml(text: &str, origin: &str) -> Result<RunConfig, ConfigError> {
        RunConfig::from_toml_with(text, origin, &[])
    }

    /// The default config with overrides.
    pub fn from_overrides(overrides: &[String]) -> Result<RunConfig, ConfigError> {
        RunConfig::from_toml_with("", "", overrides)
    }

    /// [`RunConfig::from_toml`] with overrides, as for [`RunConfig::load`].
    pub fn from_toml_with(text: &str, origin: &str, overrides: &[String]) -> Result<RunConfig, ConfigError> {
        let mut root = Table::parse(text, origin)?;
        for text in overrides {
            root.set(text)?;
        }
        let mut places = HashMap::new();
        let config = RunConfig::read(root, &mut places)?;
        config.validate().map_err(|error| {
            // The key at fault may have its default, which another key contradicts: then that one is where to look.
            let mut keys = error.key().into_iter().chain(error.because.iter().map(String::as_str));
            let place = keys.find_map(|key| places.get(key)).cloned().unwrap_or_else(|| Place::file(origin));
            ConfigError { place, ..error }
        })?;
        Ok(config)
    }

    fn read(root: Table, places: &mut HashMap<String, Place>) -> Result<RunConfig, ConfigError> {
        let mut config = RunConfig::default();
        for (name, entry) in root.into_entries() {
            if !SECTIONS.iter().any(|(section, _)| *section == name) {
                return Err(error::unknown_key(&entry.key_place, &name, SECTIONS.iter().map(|(section, _)| *section)));
            }
            let Node::Table(table) = entry.node else {
                return Err(error::wrong_type(&entry.place, &name, &entry.node, &format!("a section, [{name}]")));
            };
            let mut section = Section { name: &name, table, places };
            match name.as_str() {
                "model" => config.model = ModelConfig::read(&mut section)?,
                "data" => config.data = DataConfig::read(&mut section)?,
                "train" => config.train = TrainConfig::read(&mut section)?,
                "checkpoint" => config.checkpoint = CheckpointConfig::read(&mut section)?,
                "mesh" => config.mesh = MeshConfig::read(&mut section)?,
                "rules" => config.rules = RulesConfig::read(&mut section)?,
                "remat" => config.remat = RematConfig::read(&mut section)?,
                "pipeline" => config.pipeline = Some(PipelineConfig::read(&mut section)?),
                "diloco" => config.diloco = Some(DilocoConfig::read(&mut section)?),
                "partition" => config.partition = PartitionConfig::read(&mut section)?,
                _ => config.target = TargetConfig::read(&mut section)?,
            }
        }
        Ok(config)
    }

    /// The config as TOML, with every key. Reading it gives the same config.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut add = |name: &str, keys: Vec<(&'static str, toml::Value)>| {
            text += if text.is_empty() { "" } else { "\n" };
            text += &format!("[{name}]\n");
            text.extend(keys.iter().map(|(key, value)| format!("{key} = {value}\n")));
        };
        add("model", self.model.write());
        add("data", self.data.write());
        add("train", self.train.write());
        add("checkpoint", self.checkpoint.write());
        add("mesh", self.mesh.write());
        for (name, keys) in self.rules.write_sections() {
            add(name, keys);
        }
        add("remat", self.remat.write());
        if let Some(pipeline) = &self.pipeline {
            add("pipeline", pipeline.write());
        }
        if let Some(diloco) = &self.diloco {
            add("diloco", diloco.write());
        }
        add("partition", self.partition.write());
        add("target", self.target.write());
        text
    }

    /// The device mesh that the config asks for.
    pub fn mesh(&self) -> Result<Mesh, ConfigError> {
        let MeshConfig { axes, dcn } = &self.mesh;
        let mesh = Mesh::parse(axes, self.target.devices).map_err(|error| {
            let target = &self.target;
            let hint = match target.topology.as_str() {
                "" => format!("{error} (target.devices is {})", target.devices),
                topology => {
                    format!("{error} ({topology} has {} devices; --set mesh.axes=data=-1 takes all)", target.devices)
                }
            };
            let devices = target.topology.is_empty().then_some("target.devices");
            error::invalid("mesh.axes", axes, &hint).because(devices)
        })?;
        mesh.with_dcn(dcn).map_err(|error| error::invalid("mesh.dcn", dcn, &error.to_string()))
    }

    /// The axis rules that the config asks for.
    pub fn rule_sets(&self) -> Result<RuleSets, ConfigError> {
        self.rules.rule_sets()
    }
}
