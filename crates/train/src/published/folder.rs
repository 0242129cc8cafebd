//! A model in a folder: a checkpoint of a run, or one of transformers.

use std::io;
use std::path::{Path, PathBuf};

use meshloom::trace::{Param, Tree};

use super::parameter_source::ParameterSource;
use crate::Error;
use crate::checkpoint::{self, Checkpoint, CheckpointError, Fallback};
use crate::config::{ConfigError, RunConfig, invalid};
use crate::model_folder::{TOKENIZER, is_published};
use meshloom_models::families::Published;
use meshloom_models::published::{ModelFiles, PublishedWeights};
use meshloom_models::weights::WeightsError;

/// The keys of one device, on which a model is used unless the caller gives a mesh.
const ONE_DEVICE: [&str; 3] = ["mesh.axes=data=1", "target.devices=1", "target.processes=1"];

/// A model whose parameters are in a folder.
#[derive(Debug)]
pub struct StoredModel {
    /// The description of the model and of the devices it uses: one device, unless the caller has given `mesh.axes`.
    pub config: RunConfig,
    stored: ModelFolder,
}

/// A folder that has the parameters of a model.
#[derive(Debug)]
pub(crate) enum ModelFolder {
    Checkpoint(Box<Checkpoint>),
    Published(PathBuf),
}

impl ModelFolder {
    /// Finds out what is in a folder: a published model, a checkpoint, or checkpoints: the newest is taken.
    pub(crate) fn find(folder: &Path) -> Result<ModelFolder, Error> {
        match is_published(folder) {
            true => Ok(ModelFolder::Published(folder.to_owned())),
            false => Ok(ModelFolder::Checkpoint(Box::new(newest_checkpoint(folder)?))),
        }
    }

    /// The parameters of the config's model, to be read.
    pub(crate) fn source(
        &self,
        config: &RunConfig,
        declared: &impl Tree<Leaf = Param>,
    ) -> Result<ParameterSource<'_>, Error> {
        match self {
            ModelFolder::Checkpoint(checkpoint) => Ok(ParameterSource::Checkpoint(checkpoint.parameters(declared)?)),
            ModelFolder::Published(folder) => published_source(folder, config),
        }
    }
}

impl StoredModel {
    /// Opens a checkpoint, the newest one in a directory of checkpoints, or the folder of a published model. Each
    /// override is `section.key=value`, and wins over what the folder says. The folder says what the model is, and
    /// nothing else of a run: the folder may be anybody's ([`RecordedConfig`](crate::checkpoint::RecordedConfig)).
    ///
    /// # Errors
    /// The folder has no model, its checkpoint is damaged, or the config cannot be used.
    pub fn open(folder: impl AsRef<Path>, overrides: &[String]) -> Result<StoredModel, Error> {
        let folder = folder.as_ref();
        let own = |key: &str, value: &Path| format!("{key}={}", toml::Value::String(value.display().to_string()));
        let stored = ModelFolder::find(folder)?;
        let (text, mut base) = match &stored {
            // Whether it has a tokenizer shows when one is needed.
            ModelFolder::Published(folder) => {
                (String::new(), vec![own("model.config", folder), own("data.tokenizer", &folder.join(TOKENIZER))])
            }
            ModelFolder::Checkpoint(checkpoint) => (facts_of(checkpoint, overrides)?, Vec::new()),
        };
        let has_mesh = overrides.iter().any(|text| text.trim_start().starts_with("mesh.axes"));
        if !has_mesh {
            base.extend(ONE_DEVICE.map(str::to_owned));
        }
        base.extend_from_slice(overrides);
        let name = folder.display().to_string();
        let config = RunConfig::from_toml_with(&text, &name, &base)?;
        config.check_runnable()?;
        Ok(StoredModel { config, stored })
    }

    /// The checkpoint, if it is one.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        match &self.stored {
            ModelFolder::Checkpoint(checkpoint) => Some(checkpoint),
            ModelFolder::Published(_) => None,
        }
    }

    /// The folder of the published model, or what a checkpoint keeps of it.
    pub(crate) fn model_folder(&self) -> Option<PathBuf> {
        match &self.stored {
            ModelFolder::Checkpoint(checkpoint) => checkpoint.model_folder(),
            ModelFolder::Published(folder) => Some(folder.clone()),
        }
    }

    /// The parameters of the model in this form, to be read.
    ///
    /// # Errors
    /// The folder has not the parameters of the model.
    pub(crate) fn source(&self, declared: &impl Tree<Leaf = Param>) -> Result<ParameterSource<'_>, Error> {
        self.stored.source(&self.config, declared)
    }
}

/// The weights of a folder, which must be those of the config's published model.
pub(crate) fn published_source<'a>(folder: &Path, config: &RunConfig) -> Result<ParameterSource<'a>, Error> {
    let own = Published::open(folder).map_err(|error| invalid_folder(folder, &error.to_string()))?;
    let same = config.published().is_some_and(|published| published.architecture == own.architecture);
    if !same {
        let reason = "it is of another model than [model] says; set model.config to the same folder";
        return Err(invalid_folder(folder, reason).because(["model.config", "model.preset"]).into());
    }
    Ok(ParameterSource::Published(PublishedWeights::open(folder, &own.predicting_further(config.predicts_further()))?))
}

fn invalid_folder(folder: &Path, reason: &str) -> ConfigError {
    invalid("train.init", folder.display().to_string(), reason)
}

/// The checkpoint that a path means.
fn newest_checkpoint(folder: &Path) -> Result<Checkpoint, Error> {
    match checkpoint::find(folder, Fallback::Refuse) {
        Ok(found) => Ok(found.checkpoint),
        Err(CheckpointError::None(directory)) => Err(Error::NoModel(directory)),
        Err(CheckpointError::Read { path, source }) if path == folder && source.kind() == io::ErrorKind::NotFound => {
            Err(Error::NoModel(path))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the keys that a checkpoint records of its model, as the text of a config.
fn facts_of(checkpoint: &Checkpoint, overrides: &[String]) -> Result<String, Error> {
    let (recorded, copy) = (&checkpoint.about().config, checkpoint.model_folder());
    let is_given = || overrides.iter().any(|text| text.trim_start().starts_with("model.config"));
    if copy.is_none()
        && !is_given()
        && let Some(folder) = recorded.published_folder()
    {
        let reason = "the checkpoint is of a run of this published model, and has no copy of its config.json; give a \
                      folder that has one by --set model.config=FOLDER";
        return Err(invalid("model.config", folder.display(), reason).into());
    }
    let damaged = |error: toml::de::Error| CheckpointError::Damaged {
        path: checkpoint.folder().to_owned(),
        reason: format!("the run config that it records is not TOML: {}", error.message()),
    };
    Ok(recorded.facts(copy.as_deref()).map_err(damaged)?)
}

impl RunConfig {
    /// The files of `model.config` beside the weights, which checkpoints of the run keep.
    pub(crate) fn model_files(&self) -> Result<ModelFiles, WeightsError> {
        match self.model.config.as_str() {
            "" => Ok(ModelFiles::default()),
            folder => ModelFiles::read(Path::new(folder)),
        }
    }

    /// Returns the folder that `train.init` names, if it names one.
    pub(crate) fn initial_parameters(&self) -> Result<Option<ModelFolder>, Error> {
        match self.train.init.as_str() {
            "" => Ok(None),
            folder => ModelFolder::find(Path::new(folder)).map(Some),
        }
    }
}
