//! `model.preset` and `model.config`: the shape of a published model in place of the keys of a shape.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::error::{ConfigError, Place, invalid, invalid_described};
use super::section::write_section;
use super::{DataConfig, ModelConfig, RunConfig};
use crate::model_folder::{TOKENIZER, is_published, model_folder};
use meshloom_models::families::{Published, named_model};
use meshloom_nn::Stack;

/// A published model, and the section `[model]` as it was when the model was read.
#[derive(Clone, Debug)]
pub(super) struct ReadModel {
    section: ModelConfig,
    published: Arc<Published>,
}

/// The keys of `[model]` that say as much as the published model, which fills them in.
const FILLED: [&str; 4] = ["layers", "embed", "vocab", "tied_embeddings"];

const TOKENIZER_KEY: &str = "data.tokenizer";

/// The tokenizer of a folder with a published model.
fn tokenizer_of(folder: &str) -> String {
    Path::new(folder).join(TOKENIZER).display().to_string()
}

impl RunConfig {
    /// Reads the published model that `model.preset` or `model.config` names, for a config in which code has set one of
    /// them. Reading a file does this as well. The keys that say as much of the model follow it.
    ///
    /// # Errors
    /// There is no such model, or it does not fit the rest of the config.
    pub fn read_model(&mut self) -> Result<(), ConfigError> {
        let before = self.origin.published.take();
        let of_before = before.map(|before| before.section.config).filter(|config| !config.is_empty());
        let of_before = of_before.map(|config| tokenizer_of(&config));
        let is_written = self.origin.places.contains_key(TOKENIZER_KEY);
        if !is_written && of_before.is_some_and(|of_before| of_before == self.data.tokenizer) {
            self.data.tokenizer = DataConfig::default().tokenizer;
        }
        // A tokenizer that code has set stays.
        let is_set = is_written || self.data.tokenizer != DataConfig::default().tokenizer;
        let places = is_set.then(|| (TOKENIZER_KEY.to_owned(), Place::default()));
        self.read_published(&places.into_iter().collect())?;
        self.validate()
    }

    /// Refuses a config whose keys code has changed since the published model was read.
    pub(super) fn check_published(&self) -> Result<(), ConfigError> {
        let read = self.origin.published.as_ref();
        let [now, then] = [&self.model, read.map_or(&ModelConfig::default(), |read| &read.section)].map(write_section);
        let filled = FILLED.into_iter().filter(|_| read.is_some());
        let Some(key) = ["preset", "config"].into_iter().chain(filled).find(|&key| now.get(key) != then.get(key))
        else {
            return Ok(());
        };
        let text = |section: &toml::Table| section.get(key).map(ToString::to_string).unwrap_or_default();
        let reason =
            format!("it was {} when the model was read; call RunConfig::read_model behind the change", text(&then));
        Err(invalid_described(&format!("model.{key}"), text(&now), &reason))
    }

    /// Reads the published model that the config names, and fills in the keys that say as much of it. Where they are
    /// written, they must agree.
    pub(super) fn read_published(&mut self, places: &HashMap<String, Place>) -> Result<(), ConfigError> {
        let is_said = !self.model.preset.is_empty() || !self.model.config.is_empty();
        if !is_said && !self.train.init.is_empty() && !places.contains_key("model.config") {
            // The model that a run starts from describes the run's model, unless the config names one.
            let init = Path::new(&self.train.init);
            let folder = if is_published(init) { Some(init.to_owned()) } else { model_folder(init) };
            self.model.config = folder.map_or(String::new(), |folder| folder.display().to_string());
        }
        let ModelConfig { preset: name, config: folder, .. } = &self.model;
        let (key, value, found) = match (name.as_str(), folder.as_str()) {
            ("", "") => return Ok(()),
            (name, "") => ("model.preset", name, named_model(name)),
            ("", folder) => ("model.config", folder, Published::open(Path::new(folder))),
            (name, _) => {
                let reason = "model.config says what the model is as well; give one of them";
                return Err(invalid("model.preset", name, reason).because(["model.config"]));
            }
        };
        let published = found.map_err(|error| invalid(key, value, &error.to_string()))?;
        let architecture = &published.architecture;
        let filled = ModelConfig {
            layers: architecture.stack.layer_count(),
            embed: architecture.embed,
            vocab: architecture.vocab,
            tied_embeddings: architecture.tied_embeddings,
            ..self.model.clone()
        };
        let [written, found] = [&self.model, &filled].map(write_section);
        for name in FILLED {
            let other = format!("model.{name}");
            if let (Some(written), Some(found)) = (written.get(name), found.get(name))
                && places.contains_key(&other)
                && written != found
            {
                let reason = format!("{key} = {value:?} has {found}; leave the key out");
                return Err(invalid_described(&other, written.to_string(), &reason).because([key]));
            }
        }
        self.model = filled;
        let tokenizer = tokenizer_of(&self.model.config);
        if !self.model.config.is_empty() && !places.contains_key(TOKENIZER_KEY) && Path::new(&tokenizer).is_file() {
            self.data.tokenizer = tokenizer;
        }
        self.origin.published = Some(ReadModel { section: self.model.clone(), published: Arc::new(published) });
        Ok(())
    }

    /// The published model that `model.preset` or `model.config` names.
    pub fn published(&self) -> Option<&Published> {
        self.origin.published.as_ref().map(|read| &*read.published)
    }

    /// Whether the loss asks for further tokens.
    pub(crate) fn predicts_further(&self) -> bool {
        self.train.further_token_weight > 0.0
    }

    /// The published model as the run trains it: with the layers that predict further tokens if its loss asks for them.
    pub(crate) fn published_in_use(&self) -> Option<Published> {
        self.published().map(|published| published.predicting_further(self.predicts_further()))
    }

    /// Refuses a loss of further tokens that no layer predicts.
    pub(super) fn validate_further(&self) -> Result<(), ConfigError> {
        if !self.predicts_further() || self.published().is_some_and(|published| !published.further.is_empty()) {
            return Ok(());
        }
        let reason = "the model has no layers that predict further tokens; published ones do whose config.json has \
                      num_nextn_predict_layers";
        let wrong = invalid("train.further_token_weight", self.train.further_token_weight, reason);
        Err(wrong.because(["model.preset", "model.config"]))
    }

    /// Keys of the published model's file that may say what is not computed.
    pub(crate) fn unknown_keys_of_model(&self) -> Option<String> {
        let keys = &self.published()?.unknown_keys;
        let by = self.published_by()?;
        (!keys.is_empty()).then(|| format!("{by}, whose config.json has keys that are not known: {}", keys.join(", ")))
    }

    /// Returns a warning if sequences are longer than the published model was made for.
    pub(crate) fn longer_than_made_for(&self) -> Option<String> {
        let (seq, most) = (self.model.seq, self.published()?.max_length?);
        let by = self.published_by()?;
        (seq > most).then(|| format!("model.seq is {seq}, but {by}, which was made for at most {most} tokens"))
    }

    /// Returns the key that names the published model, which takes the place of the keys of a shape.
    pub(super) fn published_by(&self) -> Option<String> {
        let ModelConfig { preset, config, .. } = &self.model;
        self.published().map(|_| match preset.as_str() {
            "" => format!("model.config is {config:?}"),
            preset => format!("model.preset is {preset:?}"),
        })
    }

    /// The layers of the model; of another than the decoder `model.layers` that are alike.
    pub(super) fn stack(&self) -> Stack {
        self.plain_architecture().stack
    }
}
