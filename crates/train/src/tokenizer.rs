//! Text to tokens and back: bytes, or a Hugging Face `tokenizer.json`.

#[cfg(not(feature = "tokenizers"))]
#[path = "tokenizer/absent.rs"]
mod subword;
#[cfg(feature = "tokenizers")]
mod subword;

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use subword::Subword;

use super::config::RunConfig;
use crate::Error;

/// What is wrong with a tokenizer, or with what it is given.
#[derive(thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error(
        "cannot read the tokenizer {file:?}: {source}; set data.tokenizer to \"bytes\" or the path of a tokenizer.json"
    )]
    Read {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It is no tokenizer file, or one that this version does not read.
    #[error("{origin:?} is not a tokenizer.json that can be read: {reason}")]
    Format {
        /// The file.
        origin: String,
        /// What is wrong.
        reason: String,
    },
    /// The model has fewer token values than the tokenizer.
    #[error("the tokenizer {origin:?} has token values up to {last}, but model.vocab is {vocab}; set model.vocab to at least {}", last + 1)]
    Vocabulary {
        /// The file.
        origin: String,
        /// Its largest token value.
        last: u32,
        /// The model's number of token values.
        vocab: usize,
    },
    /// The tokenizer fails on a text.
    #[error("the tokenizer {origin:?} cannot take the text apart: {reason}")]
    Encode {
        /// The file.
        origin: String,
        /// What it says.
        reason: String,
    },
}

meshloom::hlo::debug_is_message!(TokenizerError);

/// Text to tokens and back.
pub struct Tokenizer(Kind);

enum Kind {
    Bytes,
    File { origin: String, tokenizer: Subword, last: u32, digest: [u8; 32] },
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Kind::Bytes => f.write_str("Tokenizer(bytes)"),
            Kind::File { origin, .. } => write!(f, "Tokenizer({origin:?})"),
        }
    }
}

impl Tokenizer {
    /// Every byte is a token.
    pub fn bytes() -> Tokenizer {
        Tokenizer(Kind::Bytes)
    }

    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// The file cannot be read, or is no tokenizer.
    pub fn load(file: impl AsRef<Path>) -> Result<Tokenizer, TokenizerError> {
        let file = file.as_ref();
        let bytes = std::fs::read(file).map_err(|source| TokenizerError::Read { file: file.to_owned(), source })?;
        Tokenizer::from_json(&bytes, &file.display().to_string())
    }

    /// A tokenizer from the text of a `tokenizer.json`. `origin` is what messages call it. Padding and truncation that
    /// the file asks for are left out: rows are packed.
    ///
    /// # Errors
    /// The text is no tokenizer.
    pub fn from_json(json: &[u8], origin: &str) -> Result<Tokenizer, TokenizerError> {
        let refused = |reason: String| TokenizerError::Format { origin: origin.to_owned(), reason };
        let tokenizer = Subword::from_json(json).map_err(refused)?;
        let last = tokenizer.last_token();
        let last = last.ok_or_else(|| refused("it has no tokens".to_owned()))?;
        if i32::try_from(last).is_err() {
            return Err(refused(format!("it has the token value {last}, but values above {} do not fit", i32::MAX)));
        }
        let digest = Sha256::digest(json).into();
        Ok(Tokenizer(Kind::File { origin: origin.to_owned(), tokenizer, last, digest }))
    }

    /// What tells tokenizers apart: the SHA-256 of the file, or zeros for bytes.
    pub(crate) fn digest(&self) -> [u8; 32] {
        match &self.0 {
            Kind::Bytes => [0; 32],
            Kind::File { digest, .. } => *digest,
        }
    }

    /// Whether every byte is a token.
    pub fn is_bytes(&self) -> bool {
        matches!(self.0, Kind::Bytes)
    }

    /// The largest token value and one: the least vocabulary of a model for it.
    pub fn vocabulary_size(&self) -> usize {
        match &self.0 {
            Kind::Bytes => 256,
            Kind::File { last, .. } => *last as usize + 1,
        }
    }

    /// The tokens of a text, without special ones around it.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, TokenizerError> {
        let Kind::File { origin, tokenizer, .. } = &self.0 else { return Ok(text.bytes().map(i32::from).collect()) };
        let encoding = tokenizer.encode(text);
        let encoding = encoding.map_err(|reason| TokenizerError::Encode { origin: origin.clone(), reason })?;
        // The constructor has seen that all values fit.
        Ok(encoding.iter().map(|&id| id as i32).collect())
    }

    /// The text of tokens. What is no token, or half a character, becomes a replacement character or is left out.
    pub fn decode(&self, tokens: &[i32]) -> String {
        let Kind::File { tokenizer, .. } = &self.0 else { return super::data::decode_bytes(tokens) };
        let ids: Vec<u32> = tokens.iter().filter_map(|&token| u32::try_from(token).ok()).collect();
        tokenizer.decode(&ids).unwrap_or_else(|_| "\u{fffd}".to_owned())
    }
}

impl RunConfig {
    /// The tokenizer that `data.tokenizer` names.
    ///
    /// # Errors
    /// The file cannot be read, is no tokenizer, or has more token values than the model.
    pub fn load_tokenizer(&self) -> Result<Tokenizer, Error> {
        if self.data.tokenizer == "bytes" {
            return Ok(Tokenizer::bytes());
        }
        let tokenizer = Tokenizer::load(&self.data.tokenizer)?;
        if tokenizer.vocabulary_size() > self.model.vocab {
            let last = tokenizer.vocabulary_size().saturating_sub(1) as u32;
            let (origin, vocab) = (self.data.tokenizer.clone(), self.model.vocab);
            return Err(TokenizerError::Vocabulary { origin, last, vocab }.into());
        }
        Ok(tokenizer)
    }
}
