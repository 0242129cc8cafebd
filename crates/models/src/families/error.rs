//! The errors in the description of a published model.

use std::path::PathBuf;

/// A published model that cannot be taken as it is.
#[derive(thiserror::Error)]
pub enum FamilyError {
    /// The file cannot be read.
    #[error("cannot read {path:?}: {source}; give a folder that has a config.json of transformers")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file says something that cannot be taken.
    #[error("{file} {fault}")]
    File {
        /// The file.
        file: String,
        /// The fault of the file.
        fault: ConfigFault,
    },
    /// No model has this name.
    #[error("there is no model {found:?}{hint}; there are {}", known.join(", "))]
    UnknownPreset {
        /// The name.
        found: String,
        /// A name like it.
        hint: String,
        /// All names.
        known: Vec<&'static str>,
    },
}

/// A fault of a `config.json`. Keys are named with the sections that they are in.
#[derive(thiserror::Error)]
pub enum ConfigFault {
    /// The file is no JSON object.
    #[error("is not a JSON object that can be read: {0}")]
    Json(String),
    /// A key is missing.
    #[error("has no {0:?}, which its other keys make necessary; give it")]
    Missing(String),
    /// A value has the wrong type, or is out of range.
    #[error("has {key:?} = {found}, but it must be {expected}")]
    Wrong {
        /// The key.
        key: String,
        /// The value.
        found: String,
        /// The values that are possible.
        expected: String,
    },
    /// A value that transformers knows, and meshloom does not.
    #[error("has {key:?} = {found}, which meshloom does not compute; it knows {known}")]
    Unsupported {
        /// The key.
        key: String,
        /// The value.
        found: String,
        /// The values that meshloom knows.
        known: String,
    },
    /// There is no `model_type`. The model types that are known.
    #[error("has no \"model_type\", which says how its keys are meant; give one of {}", .0.join(", "))]
    NoType(Vec<&'static str>),
    /// No family has this `model_type`.
    #[error("has model_type {found:?}, which no family here has{hint}; there are {}", known.join(", "))]
    UnknownType {
        /// The `model_type`.
        found: String,
        /// A type like it.
        hint: String,
        /// The model types that are known.
        known: Vec<&'static str>,
    },
    /// The file is of a model that does not only read text, and of no known type.
    #[error(
        "has a \"text_config\" and the model_type {found:?}; with one, meshloom knows {}; for another model, give its \
         text_config as a config.json of its own", known.join(", ")
    )]
    UnknownOuterType {
        /// The `model_type` beside `text_config`.
        found: String,
        /// The model types that are known.
        known: Vec<&'static str>,
    },
    /// The sizes make a model that cannot be, of so many parameters.
    #[error(
        "describes a model of {0} parameters, which are more than can be counted; check hidden_size, vocab_size, \
         num_hidden_layers, and the sizes of heads and of blocks"
    )]
    TooLarge(u128),
}

meshloom::hlo::debug_is_message!(FamilyError);
meshloom::hlo::debug_is_message!(ConfigFault);
