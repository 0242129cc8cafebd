//! Published models by name.

use super::{FamilyError, Published};
use meshloom::hlo::suggest::did_you_mean;

macro_rules! named_models {
    ($($name:literal),* $(,)?) => {
        /// The names of the published models that are known by name, with their `config.json` as it was published,
        /// except for keys without effect. For Gemma 3 4B, 12B and 27B, which also see, it is the published
        /// `text_config` alone, completed with the defaults of transformers. Parameters are counted in
        /// `tests/oracle/presets.tsv`.
        pub const NAMED_MODELS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("named_models/", $name, ".json")))),*];
    };
}

named_models!(
    "deepseek-v3",
    "gemma-2-2b",
    "gemma-2-9b",
    "gemma-2-27b",
    "gemma-3-1b",
    "gemma-3-4b",
    "gemma-3-12b",
    "gemma-3-27b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "llama-2-7b",
    "llama-2-70b",
    "llama-3-8b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "llama-3.3-70b",
    "mistral-7b-v0.1",
    "mistral-7b-v0.3",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "qwen2.5-0.5b",
    "qwen2.5-7b",
    "qwen2.5-32b",
    "qwen2.5-72b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-30b-a3b",
    "qwen3-32b",
    "qwen3-235b-a22b",
);

/// The published model of a name, such as `llama-3.1-8b`.
///
/// # Errors
/// There is no model of this name.
pub fn named_model(name: &str) -> Result<Published, FamilyError> {
    match NAMED_MODELS.iter().find(|(known, _)| *known == name) {
        Some((name, text)) => Published::parse(&format!("the model {name}"), text),
        None => {
            let hint = did_you_mean(name, NAMED_MODELS.iter().map(|(known, _)| *known));
            let known = NAMED_MODELS.iter().map(|(known, _)| *known).collect();
            Err(FamilyError::UnknownPreset { found: name.to_owned(), hint, known })
        }
    }
}
