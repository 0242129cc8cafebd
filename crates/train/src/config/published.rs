//! `model.preset` and `model.config`: the shape of a published model in place of the keys of a shape.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::error::{ConfigError, Place, invalid};
use super::{DataConfig, ModelConfig, RunConfig};
use crate::model_folder::{TOKENIZER, is_published, model_folder};
use meshloom_models::families::{Published, preset};
use meshloom_nn::Stack;

/// Keys of `[model]` that are read only where neither a preset nor a folder says what the model is. Four more are
/// filled in from there.
pub(super) const OF_SHAPE: [&str; 16] = [
    "family",
    "heads",
    "kv_heads",
    "head_dim",
    "mlp",
    "experts",
    "experts_per_token",
    "moe_mlp",
    "shared_experts",
    "routed_scaling_factor",
    "q_lora",
    "kv_lora",
    "rope_head_dim",
    "v_head_dim",
    "rope_theta",
    "norm_epsilon",
];

/// A published model, and what of the config it was read for.
#[derive(Clone, Debug)]
pub(super) struct ReadModel {
    preset: String,
    config: String,
    published: Arc<Published>,
}

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
        let of_before = before.filter(|before| !before.config.is_empty()).map(|before| tokenizer_of(&before.config));
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
        let ModelConfig { preset, config, layers, embed, vocab, tied_embeddings, .. } = &self.model;
        let (read, architecture) = match &self.origin.published {
            Some(ReadModel { preset, config, published }) => {
                ((preset.as_str(), config.as_str()), Some(&published.architecture))
            }
            None => (("", ""), None),
        };
        let again = "call RunConfig::read_model behind the change";
        for (key, now, read) in [("model.preset", preset, read.0), ("model.config", config, read.1)] {
            if now != read {
                return Err(invalid(key, now, &format!("it was {read:?} when the model was read; {again}")));
            }
        }
        let Some(architecture) = architecture else { return Ok(()) };
        let sizes = [
            ("model.layers", *layers, architecture.stack.layer_count()),
            ("model.embed", *embed, architecture.embed),
            ("model.vocab", *vocab, architecture.vocab),
        ];
        for (key, now, read) in sizes {
            if now != read {
                return Err(invalid(key, now, &format!("the published model has {read}; leave it as it was read")));
            }
        }
        if *tied_embeddings != architecture.tied_embeddings {
            let reason = format!("the published model has {}; leave it as it was read", architecture.tied_embeddings);
            return Err(invalid("model.tied_embeddings", *tied_embeddings, &reason));
        }
        Ok(())
    }

    /// Reads the published model that the config names, and fills in the keys that say as much of it: the numbers of
    /// layers and token values, the width, and whether the head is tied. Where they are written, they must agree.
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
            (name, "") => ("model.preset", name, preset(name)),
            ("", folder) => ("model.config", folder, Published::open(Path::new(folder))),
            (name, _) => {
                let reason = "model.config says what the model is as well; give one of them";
                return Err(invalid("model.preset", name, reason).because(["model.config"]));
            }
        };
        let published = found.map_err(|error| invalid(key, value, &error.to_string()))?;
        let architecture = &published.architecture;
        let (layers, embed) = (architecture.stack.layer_count(), architecture.embed);
        let filled = [
            ("model.layers", self.model.layers, layers),
            ("model.embed", self.model.embed, embed),
            ("model.vocab", self.model.vocab, architecture.vocab),
        ];
        for (other, written, found) in filled {
            if places.contains_key(other) && written != found {
                let reason = format!("{key} = {value:?} has {found}; leave the key out");
                return Err(invalid(other, written, &reason).because([key]));
            }
        }
        let (written, tied) = (self.model.tied_embeddings, architecture.tied_embeddings);
        if places.contains_key("model.tied_embeddings") && written != tied {
            let reason = format!("{key} = {value:?} has {tied}; leave the key out");
            return Err(invalid("model.tied_embeddings", written, &reason).because([key]));
        }
        (self.model.layers, self.model.embed, self.model.vocab) = (layers, embed, architecture.vocab);
        self.model.tied_embeddings = tied;
        let tokenizer = tokenizer_of(&self.model.config);
        if !self.model.config.is_empty() && !places.contains_key(TOKENIZER_KEY) && Path::new(&tokenizer).is_file() {
            self.data.tokenizer = tokenizer;
        }
        let (preset, config) = (self.model.preset.clone(), self.model.config.clone());
        self.origin.published = Some(ReadModel { preset, config, published: Arc::new(published) });
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
