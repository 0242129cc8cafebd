//! In place of subword tokenizers where the crate is built without them. None can be made.

pub(super) enum Subword {}

impl Subword {
    pub(super) fn from_json(_: &[u8]) -> Result<Subword, String> {
        Err("this program is built without subword tokenizers; build it with `--features tokenizers`".to_owned())
    }

    pub(super) fn last_token(&self) -> Option<u32> {
        match *self {}
    }

    pub(super) fn encode(&self, _: &str, _: bool) -> Result<Vec<u32>, String> {
        match *self {}
    }

    pub(super) fn decode(&self, _: &[u32], _: bool) -> Result<String, String> {
        match *self {}
    }

    pub(super) fn token(&self, _: &str) -> Option<u32> {
        match *self {}
    }

    pub(super) fn text(&self, _: u32) -> Option<String> {
        match *self {}
    }

    pub(super) fn is_special(&self, _: &str) -> bool {
        match *self {}
    }
}
