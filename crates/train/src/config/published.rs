//! `model.preset` and `model.config`: the shape of a published model in place of the keys of a shape.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::error::{ConfigError, Place, invalid};
use super::{ModelConfig, RunConfig};
use crate::checkpoint::model_folder;
use crate::families::{Published, preset};
use crate::published::{TOKENIZER, is_published};
use meshloom::nn::Stack;

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

impl RunConfig {
    /// Reads the published model that the config names, and fills in the keys that say as much of it: the numbers of
    /// layers and token values, the width, and whether the head is tied. Where they are written, they must agree.
    pub(super) fn read_published(&mut self, places: &HashMap<String, Place>) -> Result<(), ConfigError> {
        if self.model.preset.is_empty() && self.model.config.is_empty() && !places.contains_key("model.config") {
            // What a run starts from says what it is, unless that is said.
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
        let tokenizer = Path::new(&self.model.config).join(TOKENIZER);
        if !self.model.config.is_empty() && !places.contains_key("data.tokenizer") && tokenizer.is_file() {
            self.data.tokenizer = tokenizer.display().to_string();
        }
        self.origin.published = Some(Arc::new(published));
        Ok(())
    }

    /// The published model that `model.preset` or `model.config` names.
    pub fn published(&self) -> Option<&Published> {
        self.origin.published.as_deref()
    }

    /// Keys of the published model's file that may say what is not computed.
    pub(crate) fn unknown_keys_of_model(&self) -> Option<String> {
        let keys = &self.published()?.unknown_keys;
        let by = self.published_by()?;
        (!keys.is_empty()).then(|| format!("{by}, whose config.json has keys that are not known: {}", keys.join(", ")))
    }

    /// What says what the model is, in place of the keys of a shape.
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
