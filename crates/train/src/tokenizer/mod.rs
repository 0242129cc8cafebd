//! Text to tokens and back: bytes, or a Hugging Face `tokenizer.json`.

#[cfg(not(feature = "tokenizers"))]
#[path = "absent.rs"]
mod subword;
mod rules;
mod special;
mod stream;
#[cfg(feature = "tokenizers")]
mod subword;

use std::path::{Path, PathBuf};

use meshloom::hlo::files;
use sha2::{Digest, Sha256};
pub use special::stop_tokens;
pub use stream::TextStream;
use subword::Subword;

/// Bytes of a `tokenizer.json`, at most. The largest have some 40 MB.
const MAX_BYTES: u64 = 64 << 20;

/// A fault of a tokenizer, or of what it is given.
#[derive(thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error(
        "cannot read the tokenizer {file:?}: {source}; set data.tokenizer to \"bytes\" or the path of a tokenizer.json"
    )]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not a tokenizer file, or this version does not read it.
    #[error("{origin:?} is not a tokenizer.json that can be read: {reason}")]
    Format {
        /// The file.
        origin: String,
        /// The fault.
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
    /// A file beside the tokenizer cannot be read.
    #[error("cannot read {file:?}: {source}; make it readable, or take it away")]
    ReadSettings {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file beside the tokenizer is no JSON object.
    #[error("{file:?} is not a JSON object that can be read: {reason}")]
    Settings {
        /// The file.
        file: String,
        /// The fault.
        reason: String,
    },
    /// A file beside the tokenizer has a wrong value.
    #[error("{file:?} has {key:?} = {found}, but it must be {expected}")]
    Setting {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// The value.
        found: String,
        /// The values that are possible.
        expected: &'static str,
    },
    /// A file beside the tokenizer names a token that the tokenizer does not have.
    #[error(
        "{file:?} has {key:?} = {token:?}, but the tokenizer has no such token; take the tokenizer.json beside the file"
    )]
    NoSuchToken {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// The text of the token.
        token: String,
    },
    /// The tokenizer fails on a text.
    #[error("the tokenizer {origin:?} cannot take the text apart: {reason}")]
    Encode {
        /// The file.
        origin: String,
        /// The tokenizer's error.
        reason: String,
    },
}

meshloom::hlo::debug_is_message!(TokenizerError);

/// Text to tokens and back.
pub struct Tokenizer(TokenizerKind);

enum TokenizerKind {
    Bytes,
    File { origin: String, tokenizer: Subword, last: u32, digest: [u8; 32] },
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            TokenizerKind::Bytes => f.write_str("Tokenizer(bytes)"),
            TokenizerKind::File { origin, .. } => write!(f, "Tokenizer({origin:?})"),
        }
    }
}

impl Tokenizer {
    /// Every byte is a token.
    pub fn bytes() -> Tokenizer {
        Tokenizer(TokenizerKind::Bytes)
    }

    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// The file cannot be read, or is no tokenizer.
    pub fn load(file: impl AsRef<Path>) -> Result<Tokenizer, TokenizerError> {
        let file = file.as_ref();
        let bytes =
            files::read(file, MAX_BYTES).map_err(|source| TokenizerError::Read { file: file.to_owned(), source })?;
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
        rules::check(json).map_err(refused)?;
        let last = tokenizer.last_token();
        let last = last.ok_or_else(|| refused("it has no tokens".to_owned()))?;
        if i32::try_from(last).is_err() {
            return Err(refused(format!("it has the token value {last}, but values above {} do not fit", i32::MAX)));
        }
        let digest = Sha256::digest(json).into();
        Ok(Tokenizer(TokenizerKind::File { origin: origin.to_owned(), tokenizer, last, digest }))
    }

    /// Returns the digest that distinguishes tokenizers: the SHA-256 of the file, or zeros for the byte tokenizer.
    pub(crate) fn digest(&self) -> [u8; 32] {
        match &self.0 {
            TokenizerKind::Bytes => [0; 32],
            TokenizerKind::File { digest, .. } => *digest,
        }
    }

    /// Whether every byte is a token.
    pub fn is_bytes(&self) -> bool {
        matches!(self.0, TokenizerKind::Bytes)
    }

    /// The largest token value and one: the least vocabulary of a model for it.
    pub fn vocabulary_size(&self) -> usize {
        match &self.0 {
            TokenizerKind::Bytes => 256,
            TokenizerKind::File { last, .. } => *last as usize + 1,
        }
    }

    /// The tokens of a text, without special ones around it.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, TokenizerError> {
        self.encoded(text, false)
    }

    /// The tokens of a text, with those that the file's post-processor puts around it, such as the first of a text.
    /// Generation starts from them.
    ///
    /// # Errors
    /// The errors are those of [`Tokenizer::encode`].
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<i32>, TokenizerError> {
        self.encoded(text, true)
    }

    fn encoded(&self, text: &str, with_special: bool) -> Result<Vec<i32>, TokenizerError> {
        let TokenizerKind::File { origin, tokenizer, .. } = &self.0 else {
            return Ok(text.bytes().map(i32::from).collect());
        };
        let encoding = tokenizer.encode(text, with_special);
        let refused = |reason: String| TokenizerError::Encode { origin: origin.clone(), reason };
        // The constructor has seen that all tokens fit; a post-processor may name others.
        let fitting = |&id: &u32| {
            i32::try_from(id)
                .map_err(|_| refused(format!("its post-processor adds the token {id}, which does not fit")))
        };
        encoding.map_err(refused)?.iter().map(fitting).collect()
    }

    /// Returns the text of tokens, without special ones. A number that is no token, or half a character, becomes a
    /// replacement character or is left out.
    pub fn decode(&self, tokens: &[i32]) -> String {
        self.decoded(tokens, false)
    }

    /// As [`Tokenizer::decode`], with the texts of special tokens.
    pub fn decode_with_special(&self, tokens: &[i32]) -> String {
        self.decoded(tokens, true)
    }

    /// The text of tokens that come one at a time, without special ones.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(self)
    }

    /// The value of the token that is this text, if there is one: of a special one such as `<|eot_id|>`, say.
    pub fn token(&self, text: &str) -> Option<i32> {
        match &self.0 {
            TokenizerKind::Bytes => match text.as_bytes() {
                &[byte] => Some(byte.into()),
                _ => None,
            },
            // The constructor has seen that all values fit.
            TokenizerKind::File { tokenizer, .. } => tokenizer.token(text).map(|id| id as i32),
        }
    }

    /// Returns whether a token leaves no trace in a text: it is not a token, or it is a special one.
    fn is_left_out(&self, token: i32) -> bool {
        let TokenizerKind::File { tokenizer, .. } = &self.0 else { return false };
        let text = u32::try_from(token).ok().and_then(|id| tokenizer.text(id));
        text.is_none_or(|text| tokenizer.is_special(&text))
    }

    /// Whether a token may be one byte of a run that only counts as a whole.
    fn is_byte_of_run(&self, token: i32) -> bool {
        let TokenizerKind::File { tokenizer, .. } = &self.0 else { return false };
        let text = u32::try_from(token).ok().and_then(|id| tokenizer.text(id)).unwrap_or_default();
        let digits = text.strip_prefix("<0x").and_then(|text| text.strip_suffix('>'));
        digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
    }

    fn decoded(&self, tokens: &[i32], with_special: bool) -> String {
        let TokenizerKind::File { tokenizer, .. } = &self.0 else { return decode_bytes(tokens) };
        let ids: Vec<u32> = tokens.iter().filter_map(|&token| u32::try_from(token).ok()).collect();
        tokenizer.decode(&ids, with_special).unwrap_or_else(|_| "\u{fffd}".to_owned())
    }
}

/// Turns byte tokens back into text. A token that is not a byte, or bytes that are not UTF-8, become a replacement
/// character.
pub fn decode_bytes(tokens: &[i32]) -> String {
    // 0xff occurs in no UTF-8 text, so it decodes to the replacement character.
    let bytes: Vec<u8> = tokens.iter().map(|&token| u8::try_from(token).unwrap_or(0xff)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
