//! The run config: one TOML file that says everything about a run.
//!
//! `sections.rs` is the table of all keys with type, default and meaning; reading, writing and the list of allowed
//! names all come from it. Errors name the key with its section (`model.head_dim`), where it was written, the value
//! found and what is allowed. Reading checks everything that can be checked without a model.

mod context;
mod describe;
mod diloco;
mod error;
mod family;
mod loss;
mod mixture;
mod pipeline;
mod placement;
mod published;
mod rules;
mod sections;
mod runnable;
mod target;
mod tree;
mod unused;
mod validate;
mod value;

use meshloom::hlo::files;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

pub use describe::SectionInfo;
pub(crate) use error::invalid;
pub use error::{ConfigError, ConfigErrorKind, Place};
pub(crate) use mixture::Mixture;
pub(crate) use placement::Placement;
pub use rules::{RoleRules, RuleEntry, RuleSource, RulesConfig};
pub use sections::{
    AttentionChoice, BadLines, CheckpointConfig, CompilerPreset, DataConfig, DilocoConfig, Documents, ExchangeChoice,
    ExpertsChoice, KernelsConfig, MatmulChoice, MeshConfig, ModelConfig, ModelFamily, OptimizerKind, PartitionConfig,
    PartitionMode, PipelineConfig, PipelineRemat, PlatformChoice, Preallocate, ProgramLanguage, RateSchedule,
    RematConfig, Replication, TargetConfig, TrainConfig,
};

use published::ReadModel;
use tree::Table;
pub use value::KeyInfo;
use value::{Keys, Section, Written};

/// Defines the run config from the table of its sections: the struct, and how it is read, written and described.
macro_rules! run_config {
    ($(#[$about:meta])* RunConfig { $($(#[$doc:meta])* $section:ident: $ty:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct RunConfig {
            $($(#[$doc])* pub $section: $ty,)*
            /// The facts about it that reading has recorded.
            pub(crate) origin: Origin,
        }

        /// Every section with its keys, in the order of the file.
        const SECTIONS: &[(&str, &[&str])] = &[$((stringify!($section), <$ty as Keys>::KEYS),)*];

        impl RunConfig {
            fn read(root: Table, places: &mut HashMap<String, Place>) -> Result<RunConfig, ConfigError> {
                let mut config = RunConfig::default();
                for (name, entry) in root.into_entries() {
                    let expected = format!("a section, [{name}]");
                    match name.as_str() {
                        $(stringify!($section) => {
                            config.$section = Keys::read(Section::of(&name, entry, places, &expected)?)?;
                        })*
                        _ => {
                            let known = SECTIONS.iter().map(|(section, _)| *section);
                            return Err(error::unknown_key(&entry.key_place, &name, known));
                        }
                    }
                }
                Ok(config)
            }

            /// Checks each number by the bound of its key.
            fn check_bounds(&self) -> Result<(), ConfigError> {
                $(self.$section.check(stringify!($section))?;)*
                Ok(())
            }

            fn write_sections(&self) -> Vec<(&'static str, Written)> {
                [$(self.$section.write_sections(stringify!($section)),)*].concat()
            }

            /// Every section with every key.
            pub fn describe(&self) -> Vec<SectionInfo> {
                vec![$(describe::section(stringify!($section), &self.$section),)*]
            }
        }
    };
}

run_config! {
    /// Everything about a run. Every key has a default that works; see `examples/configs/default.toml`.
    RunConfig {
        /// `[model]`
        model: ModelConfig,
        /// `[data]`
        data: DataConfig,
        /// `[train]`
        train: TrainConfig,
        /// `[checkpoint]`
        checkpoint: CheckpointConfig,
        /// `[mesh]`
        mesh: MeshConfig,
        /// `[rules]`
        rules: RulesConfig,
        /// `[remat]`
        remat: RematConfig,
        /// `[kernels]`
        kernels: KernelsConfig,
        /// `[pipeline]`, when there is one
        pipeline: Option<PipelineConfig>,
        /// `[diloco]`, when there is one
        diloco: Option<DilocoConfig>,
        /// `[partition]`
        partition: PartitionConfig,
        /// `[target]`
        target: TargetConfig,
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
        let mut config = RunConfig::read(root, &mut places)?;
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
        let section = |(name, keys): &(&str, Written)| {
            let lines = keys.iter().map(|(key, value)| format!("{key} = {value}\n"));
            format!("[{name}]\n{}", lines.collect::<String>())
        };
        self.write_sections().iter().map(section).collect::<Vec<_>>().join("\n")
    }
}
