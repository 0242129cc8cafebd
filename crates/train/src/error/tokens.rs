//! Tokens that a model cannot take.

use std::io;

/// A fault of the tokens that a model is given.
#[derive(thiserror::Error)]
pub enum TokensError {
    /// There are no tokens.
    #[error("there are no tokens; give at least one row with at least one token")]
    None,
    /// One is not in the vocabulary.
    #[error("token {token} at place {place} of row {row} is not in the vocabulary; values are from 0 to {}", vocab - 1)]
    OutOfVocabulary {
        /// Its row, from 0.
        row: usize,
        /// Its place in the row, from 0.
        place: usize,
        /// The token.
        token: i32,
        /// Number of token values.
        vocab: usize,
    },
    /// The logits cannot be written.
    #[error("the logits cannot be written: {source}; give a place that can be written and has room")]
    Write {
        /// The system's error.
        source: io::Error,
    },
}

meshloom::hlo::debug_is_message!(TokensError);
