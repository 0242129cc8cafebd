//! The config as a tree in which every key and value knows where it was written.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

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
            return Err(wrong("its key has no section"));
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
        match self.entries.iter_mut().find(|(other, _)| other == name) {
            Some((_, slot)) => *slot = entry,
            None => self.entries.push((name.to_owned(), entry)),
        }
    }

    /// Runs `change` on the table of that name, which is made if it does not exist. A value in its place is replaced:
    /// the override wins.
    fn change_subtable(&mut self, path: &[&str], place: &Place, change: impl FnOnce(&mut Table)) {
        let [name, rest @ ..] = path else { return change(self) };
        let at = self.entries.iter().position(|(other, _)| other == name);
        let mut table = match at.map(|at| self.entries[at].1.node.clone()) {
            Some(Node::Table(table)) => table,
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

type PlaceOf<'a> = &'a dyn Fn(usize) -> Place;

fn convert_table(table: DeTable<'_>, place_of: PlaceOf<'_>) -> Result<Table, ConfigError> {
    let mut entries: Vec<_> = table.into_iter().collect();
    // The parser keeps keys sorted by name; errors are to come in the order of the file.
    entries.sort_by_key(|(key, _)| key.span().start);
    let entry = |(key, value): (Spanned<Cow<'_, str>>, Spanned<DeValue<'_>>)| {
        let (key_place, place) = (place_of(key.span().start), place_of(value.span().start));
        Ok((key.into_inner().into_owned(), Entry { key_place, place, node: convert(value, place_of)? }))
    };
    Ok(Table { entries: entries.into_iter().map(entry).collect::<Result<_, ConfigError>>()? })
}

fn convert(value: Spanned<DeValue<'_>>, place_of: PlaceOf<'_>) -> Result<Node, ConfigError> {
    let place = place_of(value.span().start);
    match value.into_inner() {
        DeValue::Table(table) => Ok(Node::Table(convert_table(table, place_of)?)),
        other => Ok(Node::Value(plain(&other, &place)?)),
    }
}

fn plain(value: &DeValue<'_>, place: &Place) -> Result<toml::Value, ConfigError> {
    let out_of_range = |text: &str| {
        ConfigErrorKind::Syntax { message: format!("the number {text} is too large: integers have 64 bits") }
            .at(place.clone())
    };
    Ok(match value {
        DeValue::String(text) => toml::Value::String(text.to_string()),
        DeValue::Integer(number) => toml::Value::Integer(
            i64::from_str_radix(number.as_str(), number.radix()).map_err(|_| out_of_range(number.as_str()))?,
        ),
        DeValue::Float(number) => {
            toml::Value::Float(number.as_str().parse().map_err(|_| out_of_range(number.as_str()))?)
        }
        DeValue::Boolean(value) => toml::Value::Boolean(*value),
        DeValue::Datetime(value) => toml::Value::Datetime(*value),
        DeValue::Array(values) => {
            toml::Value::Array(values.iter().map(|value| plain(value.get_ref(), place)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => {
            let entry = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
                Ok((key.get_ref().to_string(), plain(value.get_ref(), place)?))
            };
            toml::Value::Table(table.iter().map(entry).collect::<Result<_, ConfigError>>()?)
        }
    })
}

/// The error of a value that is of another type than its key.
pub(super) fn wrong_type(place: &Place, key: &str, found: &Node, expected: &str) -> ConfigError {
    let found = match found {
        Node::Table(_) => "a table".to_owned(),
        Node::Value(value) => format!("{value} ({})", type_name(value)),
    };
    ConfigErrorKind::WrongType { key: key.to_owned(), found, expected: expected.to_owned() }.at(place.clone())
}

fn type_name(value: &toml::Value) -> &'static str {
    match value {
        toml::Value::String(_) => "a string",
        toml::Value::Integer(_) => "an integer",
        toml::Value::Float(_) => "a float",
        toml::Value::Boolean(_) => "a boolean",
        toml::Value::Datetime(_) => "a date",
        toml::Value::Array(_) => "an array",
        toml::Value::Table(_) => "a table",
    }
}
