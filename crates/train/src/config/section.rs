//! Sections: how they are read, written and described, and the macros that make them from tables of keys.

use std::collections::HashMap;

use serde::Serialize;

use super::error::{self, ConfigError, ConfigErrorKind, Place};
use super::tree::{Entry, Node, wrong_type};
use super::value::{Bound, Plain, Refusal, choose, one_of};

/// Other keys, each with the values that it may have; without values, it must not be empty, 0 or false.
pub(super) type Needs = &'static [(&'static str, &'static [&'static str])];

/// A key of the run config.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyInfo {
    /// Its name, `layers`.
    pub name: &'static str,
    /// The value; `None` for a key that is not given and has no default.
    pub value: Option<toml::Value>,
    /// Its default, if it has one.
    pub default: Option<toml::Value>,
    /// The values that it may have, to follow "must be".
    pub allowed: String,
    /// Its meaning.
    pub meaning: String,
    /// The keys without which it has no effect, each with the values that it may have; without values, it must not be
    /// empty, 0 or false.
    pub needs: &'static [(&'static str, &'static [&'static str])],
    #[serde(skip)]
    pub(super) bound: Bound,
}

/// A section of the run config.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionInfo {
    /// The name of the section, such as `model` or `train.optimizer`.
    pub name: String,
    /// The subject of the section.
    pub meaning: String,
    /// Whether the config has it: `[pipeline]`, `[diloco]` and `[diloco.apart]` may be absent.
    pub is_present: bool,
    /// The keys of the section, in the order of the file.
    pub keys: Vec<KeyInfo>,
}

/// The keys that have a value, be it given or the default, each with its path.
pub(super) fn keys_with_value(sections: &[SectionInfo]) -> impl Iterator<Item = (String, &KeyInfo, &toml::Value)> {
    sections.iter().flat_map(|section| {
        let keys = section.keys.iter();
        keys.filter_map(|key| Some((join(&section.name, key.name), key, key.value.as_ref()?)))
    })
}

/// A line for each key that is not as by default and has no effect: its row says what it needs, and `others` are keys
/// with another reason.
pub(super) fn without_effect(sections: &[SectionInfo], others: &[(&str, String)]) -> Vec<String> {
    let values: HashMap<String, &toml::Value> =
        keys_with_value(sections).map(|(path, _, value)| (path, value)).collect();
    let unmet = |&(needed, allowed): &(&str, &[&str])| {
        let value = values.get(needed)?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let is_met = match allowed {
            [] => !["", "[]", "0", "0.0", "false"].contains(&text.as_str()),
            allowed => allowed.contains(&text.as_str()),
        };
        (!is_met).then(|| format!("{needed} is {value}"))
    };
    let line = |(path, key, value): (String, &KeyInfo, &toml::Value)| {
        let other = || others.iter().find(|(other, _)| *other == path).map(|(_, why)| why.clone());
        let why = key.needs.iter().find_map(unmet).or_else(other)?;
        Some(format!("{path} = {value} has no effect, because {why}"))
    };
    keys_with_value(sections).filter(|(_, key, value)| key.default.as_ref() != Some(value)).filter_map(line).collect()
}

/// Where each key was written, for checks that come later.
pub(super) type Places = HashMap<String, Place>;

/// The value of a key: a plain one, or a section below it.
pub(super) trait Value {
    fn read(&mut self, places: &mut Places, key: &str, entry: Entry, bound: Bound) -> Result<(), ConfigError>;
    /// Returns the value as it is written; `None` if it is absent.
    fn write(&self) -> Option<toml::Value>;
    /// Adds a key to the section with this index, or a section behind the others.
    fn describe(&self, default: Option<toml::Value>, row: KeyContext, found: &mut Vec<SectionInfo>, section: usize);
}

/// A row of a section's table.
pub(super) struct KeyRow<'a> {
    pub name: &'static str,
    pub about: &'static str,
    pub bound: Bound,
    pub needs: Needs,
    pub value: &'a mut dyn Value,
}

/// The place of a row in the config.
pub(super) struct KeyContext {
    name: &'static str,
    /// The key with its section.
    path: String,
    about: &'static str,
    bound: Bound,
    needs: Needs,
    /// Whether the config has the section.
    is_present: bool,
}

/// A kind of a tagged section: its word, its meaning, and the section with the defaults of its keys.
pub(super) struct Kind<S> {
    pub word: &'static str,
    pub about: &'static str,
    pub first: S,
}

impl<S: Section> Kind<S> {
    fn keys(&self) -> Vec<&'static str> {
        self.first.clone().rows().iter().map(|field| field.name).collect()
    }
}

/// A section of the file, or one below it. A tagged section has keys that depend on its kind.
pub(super) trait Section: Clone + Default {
    /// The subject of the section.
    const ABOUT: &'static str;
    /// The key that says the kind. Its word may stand for the whole section.
    const TAG: Option<&'static str> = None;

    /// The kinds, if it has some.
    fn kinds() -> Vec<Kind<Self>> {
        Vec::new()
    }

    /// The word of its kind.
    fn word(&self) -> &'static str {
        ""
    }

    /// Its keys with their values, in the order of the file.
    fn rows(&mut self) -> Vec<KeyRow<'_>>;
}

impl<T: Plain> Value for T {
    fn read(&mut self, _: &mut Places, key: &str, entry: Entry, bound: Bound) -> Result<(), ConfigError> {
        *self = read_plain(key, &entry, &bound.expected(T::expected()), T::from_toml)?;
        Ok(())
    }

    fn write(&self) -> Option<toml::Value> {
        Some(self.to_toml())
    }

    fn describe(&self, default: Option<toml::Value>, row: KeyContext, found: &mut Vec<SectionInfo>, section: usize) {
        let value = row.is_present.then(|| self.to_toml());
        row.describe_plain((value, default), T::expected(), &mut found[section]);
    }
}

impl KeyContext {
    fn describe_plain(
        self,
        (value, default): (Option<toml::Value>, Option<toml::Value>),
        expected: String,
        section: &mut SectionInfo,
    ) {
        let KeyContext { name, about, bound, needs, .. } = self;
        let (allowed, meaning) = (bound.expected(expected), text(about));
        section.keys.push(KeyInfo { name, value, default, allowed, meaning, needs, bound });
    }
}

/// A value that may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given<T>(pub Option<T>);

impl<T: Plain> Value for Given<T> {
    fn read(&mut self, _: &mut Places, key: &str, entry: Entry, bound: Bound) -> Result<(), ConfigError> {
        self.0 = Some(read_plain(key, &entry, &bound.expected(T::expected()), T::from_toml)?);
        Ok(())
    }

    fn write(&self) -> Option<toml::Value> {
        self.0.as_ref().map(T::to_toml)
    }

    fn describe(&self, default: Option<toml::Value>, row: KeyContext, found: &mut Vec<SectionInfo>, section: usize) {
        let value = self.write().filter(|_| row.is_present);
        row.describe_plain((value, default), T::expected(), &mut found[section]);
    }
}

/// Reads a value that is no section; `expected` says which values it may have.
pub(super) fn read_plain<T>(
    key: &str,
    entry: &Entry,
    expected: &str,
    from_toml: impl FnOnce(&toml::Value) -> Result<T, Refusal>,
) -> Result<T, ConfigError> {
    let wrong_type = || wrong_type(&entry.place, key, &entry.node, expected);
    let Node::Value(value) = &entry.node else { return Err(wrong_type()) };
    from_toml(value).map_err(|refusal| match refusal {
        Refusal::Type => wrong_type(),
        Refusal::Value(note) => {
            let (key, value, reason) = (key.to_owned(), value.to_string(), format!("it must be {expected}{note}"));
            ConfigErrorKind::Invalid { key, value, reason }.at(entry.place.clone())
        }
    })
}

/// `true` stands for the section with its defaults, `false` for none.
impl<S: Section + Value> Value for Option<S> {
    fn read(&mut self, places: &mut Places, key: &str, entry: Entry, bound: Bound) -> Result<(), ConfigError> {
        *self = match entry.node {
            Node::Value(toml::Value::Boolean(is_present)) => is_present.then(S::default),
            ref node @ Node::Value(_) if S::TAG.is_none() => {
                return Err(wrong_type(&entry.place, key, node, &format!("true, false, or a section, [{key}]")));
            }
            _ => {
                let mut read = S::default();
                read.read(places, key, entry, bound)?;
                Some(read)
            }
        };
        Ok(())
    }

    fn write(&self) -> Option<toml::Value> {
        self.as_ref()?.write()
    }

    fn describe(&self, default: Option<toml::Value>, row: KeyContext, found: &mut Vec<SectionInfo>, section: usize) {
        let is_present = row.is_present && self.is_some();
        self.clone().unwrap_or_default().describe(default, KeyContext { is_present, ..row }, found, section);
    }
}

/// Reads a section, with the defaults of its kind for keys that are not given.
pub(super) fn read_section<S: Section>(places: &mut Places, path: &str, entry: Entry) -> Result<S, ConfigError> {
    let kinds = S::kinds();
    let words: Vec<&str> = kinds.iter().map(|kind| kind.word).collect();
    let entries = match entry.node {
        Node::Table(table) => table.into_entries(),
        // A word stands for the kind with its defaults.
        node @ Node::Value(toml::Value::String(_)) if S::TAG.is_some() => {
            vec![(String::new(), Entry { node, ..entry })]
        }
        node => {
            let words = if words.is_empty() { String::new() } else { format!("{}, or ", one_of(words)) };
            return Err(wrong_type(&entry.place, path, &node, &format!("{words}a section, [{path}]")));
        }
    };
    let is_tag = |key: &str| S::TAG.is_some_and(|tag| key == tag || key.is_empty());
    let mut section = S::default();
    if let Some((key, entry)) = entries.iter().rfind(|(key, _)| is_tag(key)) {
        let index = read_plain(&join(path, key), entry, &one_of(words.iter().copied()), |value| choose(value, &words))?;
        section = kinds[index].first.clone();
    }
    let word = section.word();
    let mut rows = section.rows();
    for (key, entry) in entries {
        let path = join(path, &key);
        places.insert(path.clone(), entry.place.clone());
        match rows.iter_mut().find(|row| row.name == key) {
            Some(row) => row.value.read(places, &path, entry, row.bound)?,
            None if is_tag(&key) => {}
            None => {
                let allowed: Vec<&str> = S::TAG.into_iter().chain(rows.iter().map(|row| row.name)).collect();
                let others = kinds.iter().filter(|kind| kind.keys().contains(&key.as_str())).map(|kind| kind.word);
                let others: Vec<String> = others.map(|word| format!("{word:?}")).collect();
                let (tag, others) = (S::TAG.unwrap_or_default(), others.join(" or "));
                let foreign = format!(" (it is a key of {tag} {others}, and the {tag} here is {word:?})");
                let why = Some(foreign).filter(|_| !others.is_empty());
                return Err(error::unknown_key(&entry.key_place, &path, &allowed, why));
            }
        }
    }
    Ok(section)
}

/// The keys of a section that are given or have a default.
pub(super) fn write_section<S: Section>(section: &S) -> toml::Table {
    let mut section = section.clone();
    let tag = S::TAG.map(|tag| (tag.to_owned(), section.word().into()));
    let rows = section.rows();
    let keys = rows.iter().filter_map(|row| Some((row.name.to_owned(), row.value.write()?)));
    tag.into_iter().chain(keys).collect()
}

/// Adds a section with its keys: first those of its kind, then those of other kinds, without a value.
pub(super) fn describe_section<S: Section>(section: &S, row: &KeyContext, found: &mut Vec<SectionInfo>) {
    let at = found.len();
    let (name, is_present) = (row.path.clone(), row.is_present);
    // A row that only names the section leaves it to the section to say what it is.
    let meaning = text(if row.about.trim().starts_with("`[") { S::ABOUT } else { row.about });
    found.push(SectionInfo { name, meaning, is_present, keys: Vec::new() });
    let kinds = S::kinds();
    if let Some(name) = S::TAG {
        let about = |kind: &Kind<S>| format!("`{}`: {}", kind.word, text(kind.about));
        found[at].keys.push(KeyInfo {
            name,
            value: is_present.then(|| section.word().into()),
            default: Some(S::default().word().into()),
            allowed: one_of(kinds.iter().map(|kind| kind.word)),
            meaning: kinds.iter().map(about).collect::<Vec<_>>().join(" "),
            needs: row.needs,
            bound: Bound::None,
        });
    }
    let default =
        kinds.iter().find(|kind| kind.word == section.word()).map_or_else(S::default, |kind| kind.first.clone());
    let others = kinds.iter().map(|kind| (kind.first.clone(), kind.first.clone(), false));
    for (mut section, mut default, is_present) in [(section.clone(), default, is_present)].into_iter().chain(others) {
        for (field, default) in section.rows().into_iter().zip(default.rows()) {
            if found[at].keys.iter().any(|key| key.name == field.name) {
                continue;
            }
            let KeyRow { name, about, bound, needs, value } = field;
            let needs = if needs.is_empty() { row.needs } else { needs };
            let below = KeyContext { name, path: join(&row.path, name), about, bound, needs, is_present };
            value.describe(default.value.write(), below, found, at);
        }
    }
    for key in found[at].keys.iter_mut().filter(|key| S::TAG != Some(key.name)) {
        let own: Vec<&str> =
            kinds.iter().filter(|kind| kind.keys().contains(&key.name)).map(|kind| kind.word).collect();
        if own.len() < kinds.len() {
            key.meaning = format!("With {}: {}", own.join(", "), key.meaning);
        }
    }
}

/// The whole config as sections with their keys.
pub(super) fn describe<S: Section>(root: &S) -> Vec<SectionInfo> {
    let mut found = Vec::new();
    let row = KeyContext { name: "", path: String::new(), about: "", bound: Bound::None, needs: &[], is_present: true };
    describe_section(root, &row, &mut found);
    // The first is the config itself, which has no keys.
    found.split_off(1)
}

/// A key with its section.
fn join(section: &str, key: &str) -> String {
    let dot = if section.is_empty() || key.is_empty() { "" } else { "." };
    format!("{section}{dot}{key}")
}

/// Makes a section a value of a key.
macro_rules! section_value {
    ($name:ident) => {
        impl $crate::config::section::Value for $name {
            fn read(
                &mut self,
                places: &mut $crate::config::section::Places,
                path: &str,
                entry: $crate::config::tree::Entry,
                _: $crate::config::value::Bound,
            ) -> Result<(), $crate::config::ConfigError> {
                *self = $crate::config::section::read_section(places, path, entry)?;
                Ok(())
            }

            fn write(&self) -> Option<toml::Value> {
                Some($crate::config::section::write_section(self).into())
            }

            fn describe(
                &self,
                _: Option<toml::Value>,
                row: $crate::config::section::KeyContext,
                found: &mut Vec<$crate::config::SectionInfo>,
                _: usize,
            ) {
                $crate::config::section::describe_section(self, &row, found);
            }
        }
    };
}

/// Defines a section: its struct, defaults and rows, from one table. A row is `key: type = default => bound; needs`;
/// the last two may be left out. `key as "name"` is a key of another name than its field, and a field behind `beside`
/// is no key.
macro_rules! section {
    ($(#[doc = $about:literal])* $name:ident {
        $($(#[doc = $doc:literal])* $key:ident $(as $name_of_key:literal)?: $ty:ty = $default:expr
            $(=> $bound:expr)? $(; $needs:expr)?,)*
    } $(beside { $(#[$beside_doc:meta])* $beside:ident: $beside_ty:ty })?) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[doc = $doc])* pub $key: $ty,)*
            $($(#[$beside_doc])* pub(crate) $beside: $beside_ty,)?
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($key: $default,)* $($beside: Default::default(),)? }
            }
        }

        impl $crate::config::section::Section for $name {
            const ABOUT: &'static str = concat!($($about),*);

            fn rows(&mut self) -> Vec<$crate::config::section::KeyRow<'_>> {
                vec![$($crate::config::section::KeyRow {
                    name: [$($name_of_key,)? stringify!($key)][0],
                    about: concat!($($doc),*),
                    bound: [$($bound,)? $crate::config::value::Bound::None][0],
                    needs: {
                        const NEEDS: &[$crate::config::section::Needs] = &[$($needs,)? &[]];
                        NEEDS[0]
                    },
                    value: &mut self.$key,
                }),*]
            }
        }

        $crate::config::section::section_value!($name);
    };
}

/// Defines a tagged section: an enum whose variants have the keys of a kind each. With `impl`, the enum is another
/// crate's, `key @ field` names the field of a key, and variants that are left out cannot be written.
macro_rules! tagged {
    ($(#[doc = $about:literal])* $name:ident by $tag:ident {
        $($(#[doc = $kind_doc:literal])* $kind:ident = $word:literal {
            $($(#[doc = $doc:literal])* $key:ident: $ty:ty = $default:expr $(=> $bound:expr)?,)*
        },)*
    }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name { $($(#[doc = $kind_doc])* $kind { $($(#[doc = $doc])* $key: $ty,)* },)* }

        impl $name {
            /// The word of its kind.
            pub fn name(&self) -> &'static str {
                match self { $($name::$kind { .. } => $word,)* }
            }
        }

        impl Default for $name {
            fn default() -> $name {
                let [first, ..] = [$($name::$kind { $($key: $default,)* }),*];
                first
            }
        }

        $crate::config::section::tagged! { impl $(#[doc = $about])* $name by $tag {
            $($(#[doc = $kind_doc])* $kind = $word {
                $($(#[doc = $doc])* $key @ $key = $default $(=> $bound)?,)*
            },)*
        } }
    };
    (impl $(#[doc = $about:literal])* $name:ident by $tag:ident {
        $($(#[doc = $kind_doc:literal])* $kind:ident = $word:literal {
            $($(#[doc = $doc:literal])* $key:ident @ $field:tt = $default:expr $(=> $bound:expr)?,)*
        },)*
    }) => {
        impl $crate::config::section::Section for $name {
            const ABOUT: &'static str = concat!($($about),*);
            const TAG: Option<&'static str> = Some(stringify!($tag));

            fn kinds() -> Vec<$crate::config::section::Kind<$name>> {
                vec![$($crate::config::section::Kind {
                    word: $word,
                    about: concat!($($kind_doc),*),
                    first: $name::$kind { $($field: $default),* },
                }),*]
            }

            fn word(&self) -> &'static str {
                self.name()
            }

            #[allow(unreachable_patterns)]
            fn rows(&mut self) -> Vec<$crate::config::section::KeyRow<'_>> {
                match self {
                    $($name::$kind { $($field: $key),* } => vec![$($crate::config::section::KeyRow {
                        name: stringify!($key),
                        about: concat!($($doc),*),
                        bound: [$($bound,)? $crate::config::value::Bound::None][0],
                        needs: &[],
                        value: $key,
                    }),*],)*
                    _ => Vec::new(),
                }
            }
        }

        $crate::config::section::section_value!($name);
    };
}

pub(super) use {section, section_value, tagged};

/// The text of a doc comment: without the name of the section in front, and its first letter a capital.
pub(super) fn text(doc: &str) -> String {
    let text = doc.trim();
    let text = text.strip_prefix("`[").and_then(|rest| rest.split_once("]`: ")).map_or(text, |(_, text)| text);
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
