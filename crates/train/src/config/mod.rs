//! The run config: one TOML file that says everything about a run.
//!
//! `sections.rs` is the table of all keys with type, default and meaning; reading, writing and the list of allowed
//! names all come from it. Errors name the key with its section (`model.head_dim`), where it was written, the value
//! found and what is allowed. Reading checks everything that can be checked without a model.

mod context;
mod diloco;
mod error;
mod family;
mod loss;
mod mixture;
mod pipeline;
mod placement;
mod published;
mod rules;
mod runnable;
mod section;
mod sections;
mod target;
mod tree;
mod unused;
mod validate;
mod value;

use meshloom::hlo::files;
use meshloom::ops::RematPolicy;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

pub(crate) use error::invalid;
pub use error::{ConfigError, ConfigErrorKind, Place};
pub use meshloom::compile::PartitionMode;
pub(crate) use mixture::Mixture;
pub(crate) use placement::Placement;
pub use rules::{RoleRules, RuleEntry, RulePreset, RuleSource, RulesConfig};
pub use section::{Given, KeyInfo, SectionInfo};
pub use sections::{
    ApartConfig, BadLines, CheckpointConfig, DataConfig, DilocoConfig, Documents, KernelsConfig, MeshConfig,
    ModelConfig, ModelFamily, OptimizerConfig, PartitionConfig, PipelineConfig, RateSchedule, Replication,
    TargetConfig, TrainConfig, ValidationConfig,
};
pub use value::Auto;

use published::ReadModel;
use section::{describe, read_section, section, write_section};
use tree::{Entry, Node, Table};

section! {
    /// Everything about a run. Every key has a default that works; see `examples/configs/default.toml`.
    RunConfig {
        /// `[model]`
        model: ModelConfig = ModelConfig::default(),
        /// `[data]`
        data: DataConfig = DataConfig::default(),
        /// `[train]`
        train: TrainConfig = TrainConfig::default(),
        /// `[validation]`
        validation: ValidationConfig = ValidationConfig::default(),
        /// `[checkpoint]`
        checkpoint: CheckpointConfig = CheckpointConfig::default(),
        /// `[mesh]`
        mesh: MeshConfig = MeshConfig::default(),
        /// `[rules]`
        rules: RulesConfig = RulesConfig::default(),
        /// `[remat]`
        remat: RematPolicy = RematPolicy::None,
        /// `[kernels]`
        kernels: KernelsConfig = KernelsConfig::default(),
        /// `[pipeline]`, when there is one
        pipeline: Option<PipelineConfig> = None,
        /// `[diloco]`, when there is one
        diloco: Option<DilocoConfig> = None,
        /// `[partition]`
        partition: PartitionConfig = PartitionConfig::default(),
        /// `[target]`
        target: TargetConfig = TargetConfig::default(),
    } beside {
        /// The facts about it that reading has recorded.
        origin: Origin
    }
}

/// The facts about a config that reading records besides its values. All of them compare as equal, because a config is
/// what it says, wherever that was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// The name of the file in messages; empty if there is none.
    name: String,
    /// Where each key was written.
    places: Arc<HashMap<String, Place>>,
    /// The section `[target]` before platform and devices were settled.
    target: TargetConfig,
    /// The published model that the section `[model]` names.
    published: Option<ReadModel>,
}

impl PartialEq for Origin {
    fn eq(&self, _: &Origin) -> bool {
        true
    }
}

impl RunConfig {
    /// Reads and checks a config file. Each override is `section.key=value` and wins over the file.
    pub fn load(path: impl AsRef<Path>, overrides: &[String]) -> Result<RunConfig, ConfigError> {
        let path = path.as_ref();
        let text = files::read_text(path, files::WRITTEN_BYTES)
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
        let place = Place::file(origin);
        let root = Entry { key_place: place.clone(), place, node: Node::Table(root) };
        let mut config: RunConfig = read_section(&mut places, "", root)?;
        config.rules.settle(&places);
        if !places.contains_key("train.steps_per_call") {
            config.train.steps_per_call = config.fitting_steps_per_call();
        }
        let found = config.read_published(&places);
        config.origin = Origin {
            name: origin.to_owned(),
            places: Arc::new(places),
            target: config.target.clone(),
            published: config.origin.published.take(),
        };
        found.map_err(|error| config.placed(error))?;
        config.validate().map_err(|error| config.placed(error))?;
        Ok(config)
    }

    /// An error of this config's values, with the place where the key at fault was written.
    pub(crate) fn placed(&self, error: ConfigError) -> ConfigError {
        let Origin { name, places, .. } = &self.origin;
        // The key at fault may have its default, which another key contradicts: then that one is where to look.
        let mut keys = error.key().into_iter().chain(error.because.iter().map(String::as_str));
        let place = keys.find_map(|key| places.get(key)).cloned().unwrap_or_else(|| Place::file(name));
        ConfigError { place, ..error }
    }

    /// The config as TOML, with every key. Reading it gives the same config.
    pub fn to_toml(&self) -> String {
        write_section(self).to_string()
    }

    /// Every section with every key.
    pub fn describe(&self) -> Vec<SectionInfo> {
        describe(self)
    }
}
