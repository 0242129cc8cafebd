//! Subword tokenizers by the crate tokenizers.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A tokenizer that a `tokenizer.json` describes.
pub(super) struct Subword(Box<tokenizers::Tokenizer>);

/// Runs the tokenizers crate, which panics on some files that its parser lets through.
fn guarded<R>(f: impl FnOnce() -> tokenizers::Result<R>) -> Result<R, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the tokenizers crate panicked over it".to_owned()),
    }
}

impl Subword {
    pub(super) fn from_json(json: &[u8]) -> Result<Subword, String> {
        let mut tokenizer = guarded(|| tokenizers::Tokenizer::from_bytes(json))?;
        tokenizer.with_padding(None);
        guarded(|| tokenizer.with_truncation(None).map(drop))?;
        Ok(Subword(Box::new(tokenizer)))
    }

    pub(super) fn last_token(&self) -> Option<u32> {
        self.0.get_vocab(true).into_values().max()
    }

    pub(super) fn encode(&self, text: &str, with_special: bool) -> Result<Vec<u32>, String> {
        Ok(guarded(|| self.0.encode_fast(text, with_special))?.get_ids().to_vec())
    }

    pub(super) fn decode(&self, tokens: &[u32], with_special: bool) -> Result<String, String> {
        guarded(|| self.0.decode(tokens, !with_special))
    }

    pub(super) fn token(&self, text: &str) -> Option<u32> {
        self.0.token_to_id(text)
    }

    pub(super) fn text(&self, token: u32) -> Option<String> {
        self.0.id_to_token(token)
    }

    pub(super) fn is_special(&self, text: &str) -> bool {
        self.0.get_added_vocabulary().is_special_token(text)
    }
}
