//! The errors of data.

use std::io;
use std::path::{Path, PathBuf};

use crate::tokenizer::TokenizerError;
use meshloom::hlo::message::counted;
use meshloom::ir::TensorType;
use meshloom_nn::TokenOrderError;

/// An error in the data.
#[derive(thiserror::Error)]
pub enum DataError {
    /// A file or folder cannot be read.
    #[error("cannot read the text {path:?}: {source}; {key} names it")]
    Read {
        /// The key of the config that names it.
        key: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The default text is a file of meshloom's repository, and the program runs elsewhere.
    #[error(
        "data.sources is the default, {0:?} of meshloom's repository, and there is no such file below the working \
         directory; name a text by --set 'data.sources=[\"FILE\"]' or in a run config, or start in a clone of the \
         repository"
    )]
    NoDefault(PathBuf),
    /// A file is being written.
    #[error("the text {path:?} changed while it was read; start again when no program writes to it; {key} names it")]
    Changed {
        /// The key of the config that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A glob or folder gives no files.
    #[error("{key} has {pattern:?}, but {reason}")]
    NoFiles {
        /// The key of the config.
        key: &'static str,
        /// The glob or folder.
        pattern: String,
        /// The reason.
        reason: String,
    },
    /// A file that is read as text is not text, by its first bytes.
    #[error("{} is {form}, but is read as text; {advice}; {key} names it", path.display())]
    NotText {
        /// The key of the config.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The format that it has.
        form: &'static str,
        /// The advice to the user.
        advice: &'static str,
    },
    /// The validation set has nothing to judge a model by.
    #[error(
        "the validation set has no token to predict in its first {0} rows; give validation.sources more text, or leave it \
         empty"
    )]
    NoTargets(u64),
    /// A line cannot be used.
    #[error("{}:{line}: {reason}; mend the line, or set data.bad_lines = \"skip\" to leave out such lines", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The fault.
        reason: String,
    },
    /// A file cannot be read to its end.
    #[error("{}:{line}: the file cannot be read from this line on: {source}; it is damaged or cut off: fetch it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line that could not be read, from 1, of the text that is compressed.
        line: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Text without anything to predict: only a document of two tokens has a target.
    #[error(
        "the text {origin:?} has {} in {}, but a document of at least 2 is needed to predict one from another; add to {key}",
        counted(tokens, "token"),
        counted(documents, "document")
    )]
    TooShort {
        /// The key of the config.
        key: &'static str,
        /// Its sources.
        origin: String,
        /// Their tokens.
        tokens: u64,
        /// Their documents.
        documents: u64,
    },
    /// The weights of the sources cannot be followed.
    #[error("the weights of the sources are {weights:?}: {reason}")]
    Weights {
        /// The weights.
        weights: Vec<f64>,
        /// The reason.
        reason: String,
    },
    /// There is no place for the cache.
    #[error("there is no folder for the token cache: {0}; or set data.cache to a folder")]
    NoCacheFolder(String),
    /// The cache cannot be used.
    #[error("cannot {action} {path:?} in the token cache: {source}; set data.cache to a folder that can be written")]
    Cache {
        /// The action that failed.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The tokenizer fails on the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A batch without tokens, or with more than can be addressed.
    #[error(
        "a batch of {batch} sequences of {seq} tokens is not possible; both must be at least 1, and their product fit in memory"
    )]
    BatchSize {
        /// Sequences.
        batch: usize,
        /// Tokens in each.
        seq: usize,
    },
    /// The batches of a dataset do not have as many rows as were asked for.
    #[error(
        "the batches of a call have {found} bytes, which do not fill {expected}: a dataset must give as many rows as it is asked for"
    )]
    Bytes {
        /// The type that they should fill.
        expected: TensorType,
        /// Their bytes.
        found: usize,
    },
    /// The rows of a batch are not of the length that the model's order of tokens needs.
    #[error(transparent)]
    Order(#[from] TokenOrderError),
}

meshloom::hlo::debug_is_message!(DataError);

/// For `map_err`: a [`DataError::Cache`] about a path.
pub(super) fn cache_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> DataError {
    let path = path.to_owned();
    move |source| DataError::Cache { action, path: path.clone(), source }
}
