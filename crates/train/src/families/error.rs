//! What can be wrong with the description of a published model.

use std::path::PathBuf;

use meshloom::hlo::message::listed;

/// A published model that cannot be taken as it is.
#[derive(thiserror::Error)]
pub enum FamilyError {
    /// The file cannot be read.
    #[error("cannot read {path:?}: {source}; give a folder that has a config.json of transformers")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is no JSON object.
    #[error("{file} is no JSON object: {reason}")]
    Json {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A key is missing.
    #[error("{file} has no {key:?}, which this family needs")]
    Missing {
        /// The file.
        file: String,
        /// The key, with the sections that it is in.
        key: String,
    },
    /// A value has the wrong type, or is out of range.
    #[error("{file} has {key:?} = {found}, but it must be {expected}")]
    Wrong {
        /// The file.
        file: String,
        /// The key, with the sections that it is in.
        key: String,
        /// The value.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A value that transformers knows, and meshloom does not.
    #[error("{file} has {key:?} = {found}, which meshloom does not compute; it knows {known}")]
    Unsupported {
        /// The file.
        file: String,
        /// The key, with the sections that it is in.
        key: String,
        /// The value.
        found: String,
        /// What it knows.
        known: String,
    },
    /// No family has this `model_type`.
    #[error("{file} has model_type {found:?}, which no family here has; known: {}", listed("type", known))]
    UnknownType {
        /// The file.
        file: String,
        /// The `model_type`.
        found: String,
        /// Those that are known.
        known: Vec<String>,
    },
    /// No preset has this name.
    #[error("there is no preset {found:?}{hint}; there are {}", known.join(", "))]
    UnknownPreset {
        /// The name.
        found: String,
        /// A name like it.
        hint: String,
        /// All names.
        known: Vec<&'static str>,
    },
}

meshloom::hlo::debug_is_message!(FamilyError);
