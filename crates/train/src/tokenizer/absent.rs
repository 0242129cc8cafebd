//! In place of subword tokenizers where the crate is built without them. None can be made.

pub(super) enum Subword {}

macro_rules! absent {
    ($($name:ident($($argument:ty),*) -> $result:ty,)*) => {
        impl Subword {
            pub(super) fn from_json(_: &[u8]) -> Result<Subword, String> {
                Err("this program is built without subword tokenizers; build it with `--features tokenizers`".to_owned())
            }

            $(pub(super) fn $name(&self $(, _: $argument)*) -> $result {
                match *self {}
            })*
        }
    };
}

absent! {
    last_token() -> Option<u32>,
    encode(&str, bool) -> Result<Vec<u32>, String>,
    decode(&[u32], bool) -> Result<String, String>,
    token(&str) -> Option<u32>,
    text(u32) -> Option<String>,
    is_special(&str) -> bool,
}
