//! The config as a tree in which every key and value knows where it was written.

use std::borrow::Cow;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::error::{ConfigError, ConfigErrorKind, Lines, Place};

/// A key's value.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Table(Table),
    Value(toml::Value),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub key_place: Place,
    pub place: Place,
    pub node: Node,
}

/// Entries in the order in which they were written.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    entries: Vec<(String, Entry)>,
}

impl Table {
    pub(super) fn parse(text: &str, origin: &str) -> Result<Table, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| syntax_error(&error, text, origin))?;
        let lines = Lines::of(origin, text);
        convert_table(table.into_inner(), &|offset| lines.place(offset))
    }

    /// Applies one override, `section.key=value`.
    pub(super) fn set(&mut self, text: &str) -> Result<(), ConfigError> {
        let wrong = |reason: &str| {
            ConfigError::from(ConfigErrorKind::Override { text: text.to_owned(), reason: reason.to_owned() })
        };
        let (path, value) = text.split_once('=').ok_or_else(|| wrong("it has no \"=\""))?;
        let path: Vec<&str> = path.split('.').map(str::trim).collect();
        if path.len() < 2 {
            return Err(wrong("its key has no section (of a section with kinds, name the key: remat.policy=save)"));
        }
        if path.iter().any(|name| name.is_empty()) {
            return Err(wrong("a part of its key is empty"));
        }
        let place = Place::file(&format!("--set {text}"));
        let node = parse_value(value.trim(), &place).map_err(|message| wrong(&message))?;
        let name = path[path.len() - 1];
        let entry = Entry { key_place: place.clone(), place: place.clone(), node };
        self.change_subtable(&path[..path.len() - 1], &place, |table| {
            // These three name the same thing, so the override replaces whichever the file has.
            const RULE_SOURCES: [&str; 3] = ["preset", "file", "list"];
            if path[0] == "rules" && RULE_SOURCES.contains(&name) {
                table.entries.retain(|(other, _)| !RULE_SOURCES.contains(&other.as_str()));
            }
            table.insert(name, entry);
        });
        Ok(())
    }

    pub(super) fn into_entries(self) -> Vec<(String, Entry)> {
        self.entries
    }

    fn insert(&mut self, name: &str, entry: Entry) {
        match self.entries.iter_mut().find(|(other, _)| other == name).map(|(_, slot)| slot) {
            // The word of a section, in place of what the file says of it: other overrides of its keys stay.
            Some(Entry { node: Node::Table(table), .. })
                if matches!(entry.node, Node::Value(toml::Value::String(_))) =>
            {
                table.entries.retain(|(_, entry)| entry.place.origin.starts_with("--set "));
                table.entries.push((String::new(), entry));
            }
            // The section is there.
            Some(Entry { node: Node::Table(_), .. })
                if matches!(entry.node, Node::Value(toml::Value::Boolean(true))) => {}
            Some(slot) => *slot = entry,
            None => self.entries.push((name.to_owned(), entry)),
        }
    }

    /// Runs `change` on the table of that name, which is made if it does not exist. A value in its place is replaced:
    /// the override wins.
    fn change_subtable(&mut self, path: &[&str], place: &Place, change: impl FnOnce(&mut Table)) {
        let [name, rest @ ..] = path else { return change(self) };
        let at = self.entries.iter().position(|(other, _)| other == name);
        let mut table = match at.map(|at| self.entries[at].1.clone()) {
            Some(Entry { node: Node::Table(table), .. }) => table,
            // The word of a section that may have keys: it stays, without a name.
            Some(entry @ Entry { node: Node::Value(toml::Value::String(_)), .. }) => {
                Table { entries: vec![(String::new(), entry)] }
            }
            _ => Table::default(),
        };
        table.change_subtable(rest, place, change);
        let node = Node::Table(table);
        match at {
            Some(at) => self.entries[at].1.node = node,
            None => self.insert(name, Entry { key_place: place.clone(), place: place.clone(), node }),
        }
    }
}

/// The value of an override: TOML, or a bare word or phrase as a string.
fn parse_value(text: &str, place: &Place) -> Result<Node, String> {
    match DeValue::parse(text) {
        Ok(value) => convert(value, &|_| place.clone()).map_err(|error| error.kind.to_string()),
        Err(error) if text.starts_with(['[', '{', '"', '\'']) => Err(error.message().to_owned()),
        Err(_) => Ok(Node::Value(toml::Value::String(text.to_owned()))),
    }
}

fn syntax_error(error: &toml::de::Error, text: &str, origin: &str) -> ConfigError {
    let place = match error.span() {
        Some(span) => Place::in_text(origin, text, span.start),
        None => Place::file(origin),
    };
    ConfigErrorKind::Syntax { message: format!("this is not TOML: {}", error.message()) }.at(place)
}

const NUMBER_TOO_LARGE: &str = "this number is too large: integers have 64 bits";

type PlaceOf<'a> = &'a dyn Fn(usize) -> Place;

fn convert_table(table: DeTable<'_>, place_of: PlaceOf<'_>) -> Result<Table, ConfigError> {
    let entry = |(key, value): (Spanned<Cow<'_, str>>, Spanned<DeValue<'_>>)| {
        let (key_place, place) = (place_of(key.span().start), place_of(value.span().start));
        Ok((key.into_inner().into_owned(), Entry { key_place, place, node: convert(value, place_of)? }))
    };
    Ok(Table { entries: table.into_iter().map(entry).collect::<Result<_, ConfigError>>()? })
}

fn convert(value: Spanned<DeValue<'_>>, place_of: PlaceOf<'_>) -> Result<Node, ConfigError> {
    let (span, place) = (value.span(), place_of(value.span().start));
    match value.into_inner() {
        DeValue::Table(table) => Ok(Node::Table(convert_table(table, place_of)?)),
        other => {
            // The reader of values knows no other fault than a number that no 64 bits hold.
            let too_large = |_| ConfigErrorKind::Syntax { message: NUMBER_TOO_LARGE.to_owned() }.at(place);
            let value = toml::Value::deserialize(ValueDeserializer::from(Spanned::new(span, other)));
            value.map(Node::Value).map_err(too_large)
        }
    }
}

/// The error of a value that is of another type than its key.
pub(super) fn wrong_type(place: &Place, key: &str, found: &Node, expected: &str) -> ConfigError {
    let found = match found {
        Node::Table(_) => "a table".to_owned(),
        Node::Value(value) => {
            let article = if matches!(value, toml::Value::Integer(_) | toml::Value::Array(_)) { "an" } else { "a" };
            format!("{value} ({article} {})", value.type_str())
        }
    };
    ConfigErrorKind::WrongType { key: key.to_owned(), found, expected: expected.to_owned() }.at(place.clone())
}
