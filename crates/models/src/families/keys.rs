//! The values of a `config.json`'s keys where a file does not have them: each family states them in a table.

use serde_json::{Map, Value};

/// A key of a family, as the class of the family's config in transformers has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    missing: Missing,
    pub(super) null: Null,
}

/// A value of a missing key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Missing {
    Count(u32),
    Number(f64),
    Text(&'static str),
    Flag(bool),
    Object(&'static [(&'static str, Missing)]),
}

/// The meaning of null as the value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Null {
    /// Null is not a value of the key.
    Refused,
    /// The key's thing is absent: there is no window, for example.
    Nothing,
    /// Null means the same as a missing key.
    Missing,
}

impl Key {
    const fn new(name: &'static str, missing: Missing) -> Key {
        Key { name, missing, null: Null::Refused }
    }

    pub(super) const fn count(name: &'static str, missing: u32) -> Key {
        Key::new(name, Missing::Count(missing))
    }

    pub(super) const fn number(name: &'static str, missing: f64) -> Key {
        Key::new(name, Missing::Number(missing))
    }

    pub(super) const fn text(name: &'static str, missing: &'static str) -> Key {
        Key::new(name, Missing::Text(missing))
    }

    pub(super) const fn flag(name: &'static str, missing: bool) -> Key {
        Key::new(name, Missing::Flag(missing))
    }

    /// A section, which is this one where it is missing or null.
    pub(super) const fn section(name: &'static str, missing: &'static [(&'static str, Missing)]) -> Key {
        Key { name, missing: Missing::Object(missing), null: Null::Missing }
    }

    /// Returns the key with null as the value that says that its thing is absent.
    pub(super) const fn or_null(self) -> Key {
        Key { null: Null::Nothing, ..self }
    }
}

impl Missing {
    fn value(self) -> Value {
        match self {
            Missing::Count(count) => count.into(),
            Missing::Number(number) => number.into(),
            Missing::Text(text) => text.into(),
            Missing::Flag(flag) => flag.into(),
            Missing::Object(keys) => {
                keys.iter().map(|(name, missing)| ((*name).to_owned(), missing.value())).collect::<Map<_, _>>().into()
            }
        }
    }
}

/// The values of the keys that all families have.
#[derive(Debug)]
pub(super) struct Shared {
    sizes: [u32; 6],
    epsilon: f64,
    theta: f64,
    is_tied: bool,
}

/// The keys of [`Shared::sizes`].
const SIZES: [&str; 6] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
];

impl Shared {
    /// The sizes of `SIZES`, `rms_norm_eps`, `rope_theta` and `tie_word_embeddings`.
    pub(super) const fn new(sizes: [u32; 6], epsilon: f64, theta: f64, is_tied: bool) -> Shared {
        Shared { sizes, epsilon, theta, is_tied }
    }

    /// These keys and those of one family.
    pub(super) fn with(&self, own: &[Key]) -> Vec<Key> {
        let sizes = SIZES.into_iter().zip(self.sizes).map(|(name, size)| Key::count(name, size));
        let others = [
            Key::number("rms_norm_eps", self.epsilon),
            Key::number("rope_theta", self.theta),
            Key::flag("tie_word_embeddings", self.is_tied),
        ];
        sizes.chain(others).chain(own.iter().copied()).collect()
    }
}

/// The object of a file that has none of these keys.
pub(super) fn missing(keys: &[Key]) -> Map<String, Value> {
    keys.iter().map(|key| (key.name.to_owned(), key.missing.value())).collect()
}
