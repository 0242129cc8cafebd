//! `[rules]`: where the logical axis rules come from.

use super::error::{self, ConfigError, ConfigErrorKind};
use super::tree::{Entry, Node, Table};
use super::value::{Refusal, Section, Value};
use crate::sharding::{PRESETS, Rule, RuleSets, Rules};

/// One rule of a list: a logical name and the mesh axes it is split over, major to minor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleEntry {
    /// The logical axis name.
    pub name: String,
    /// The mesh axes; none settles that the name stays unsharded.
    pub axes: Vec<String>,
}

/// Where a list of rules comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleSource {
    /// `preset = "decoder"`
    Preset(String),
    /// `file = "rules.yml"`
    File(String),
    /// `list = [["embed", ["fsdp"]], ...]`
    List(Vec<RuleEntry>),
}

impl Default for RuleSource {
    fn default() -> RuleSource {
        RuleSource::Preset("decoder".to_owned())
    }
}

/// `[rules]`: where the logical axis rules come from, for all roles or by role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesConfig {
    /// `rules.preset`, `rules.file` or `rules.list`: for every role without its own.
    pub source: RuleSource,
    /// Whether problems in the rules are errors, or warnings with a fallback.
    pub strict: bool,
    /// `[rules.params]`
    pub params: Option<RuleSource>,
    /// `[rules.compute]`
    pub compute: Option<RuleSource>,
    /// `[rules.optimizer]`
    pub optimizer: Option<RuleSource>,
}

impl Default for RulesConfig {
    fn default() -> RulesConfig {
        RulesConfig { source: RuleSource::default(), strict: true, params: None, compute: None, optimizer: None }
    }
}

const SOURCE_KEYS: &[&str] = &["preset", "file", "list"];

impl RulesConfig {
    /// The keys of the section.
    pub const KEYS: &[&str] = &["preset", "file", "list", "strict", "params", "compute", "optimizer"];

    pub(super) fn read(section: &mut Section<'_>) -> Result<RulesConfig, ConfigError> {
        let mut read = RulesConfig::default();
        let mut sources = Vec::new();
        for (key, entry) in section.entries(RulesConfig::KEYS)? {
            let role = match key.as_str() {
                "strict" => {
                    read.strict = section.value(&key, &entry)?;
                    continue;
                }
                "params" => &mut read.params,
                "compute" => &mut read.compute,
                "optimizer" => &mut read.optimizer,
                _ => {
                    sources.push((key, entry));
                    continue;
                }
            };
            let name = format!("rules.{key}");
            let Node::Table(table) = entry.node else {
                let expected = format!("a section, [{name}], with one of preset, file, list");
                return Err(error::wrong_type(&entry.place, &name, &entry.node, &expected));
            };
            let mut section = Section { name: &name, table, places: section.places };
            let entries = section.entries(SOURCE_KEYS)?;
            *role = read_source(&section, entries)?;
        }
        if let Some(source) = read_source(section, sources)? {
            read.source = source;
        }
        Ok(read)
    }

    /// The section and the sections below it, each with its keys.
    pub(super) fn write(&self) -> Vec<(&'static str, Vec<(&'static str, toml::Value)>)> {
        let mut sections = vec![("rules", vec![write_source(&self.source), ("strict", self.strict.write())])];
        for (name, source) in
            [("rules.params", &self.params), ("rules.compute", &self.compute), ("rules.optimizer", &self.optimizer)]
        {
            sections.extend(source.as_ref().map(|source| (name, vec![write_source(source)])));
        }
        sections
    }

    /// The rules themselves.
    pub(super) fn rule_sets(&self) -> Result<RuleSets, ConfigError> {
        let rules = |name: &str, source: &Option<RuleSource>| match source {
            Some(source) => source.rules(name, self.strict),
            None => self.source.rules("rules", self.strict),
        };
        Ok(RuleSets {
            params: rules("rules.params", &self.params)?,
            compute: rules("rules.compute", &self.compute)?,
            optimizer: rules("rules.optimizer", &self.optimizer)?,
        })
    }

    /// Every source with the section it stands in.
    pub(super) fn sources(&self) -> impl Iterator<Item = (&'static str, &RuleSource)> {
        let roles =
            [("rules.params", &self.params), ("rules.compute", &self.compute), ("rules.optimizer", &self.optimizer)];
        let roles = roles.into_iter().filter_map(|(name, source)| Some((name, source.as_ref()?)));
        std::iter::once(("rules", &self.source)).chain(roles)
    }
}

impl RuleSource {
    /// The key that the source is written under.
    pub(super) fn key(&self) -> &'static str {
        match self {
            RuleSource::Preset(_) => "preset",
            RuleSource::File(_) => "file",
            RuleSource::List(_) => "list",
        }
    }

    /// The value for messages: a list may be long.
    pub(super) fn describe(&self) -> String {
        match self {
            RuleSource::Preset(name) | RuleSource::File(name) => format!("{name:?}"),
            RuleSource::List(entries) if entries.len() == 1 => "a list of one rule".to_owned(),
            RuleSource::List(entries) => format!("a list of {} rules", entries.len()),
        }
    }

    pub(super) fn rules(&self, section: &str, strict: bool) -> Result<Rules, ConfigError> {
        let key = format!("{section}.{}", self.key());
        match self {
            RuleSource::Preset(name) => {
                Rules::preset(name, strict).map_err(|error| error::invalid(&key, name, &error.to_string()))
            }
            RuleSource::List(entries) => {
                let rule = |(index, entry): (usize, &RuleEntry)| Rule {
                    name: entry.name.clone(),
                    axes: entry.axes.clone(),
                    origin: format!("{key}[{index}]"),
                };
                let rules = entries.iter().enumerate().map(rule).collect();
                Rules::new(rules, strict)
                    .map_err(|error| error::invalid_described(&key, self.describe(), &error.to_string()))
            }
            RuleSource::File(path) => {
                let instead = format!("write the rules as {section}.list, or use {section}.preset = \"decoder\"");
                Err(ConfigErrorKind::NotBuilt { key, value: format!("{path:?}"), instead }.into())
            }
        }
    }
}

fn read_source(section: &Section<'_>, entries: Vec<(String, Entry)>) -> Result<Option<RuleSource>, ConfigError> {
    if let [(first, _), (second, entry), ..] = entries.as_slice() {
        let key = format!("{}.{second}", section.name);
        let reason = format!("{}.{first} is given too; rules come from one of preset, file, list", section.name);
        let value = match &entry.node {
            Node::Value(value) => value.to_string(),
            Node::Table(Table { .. }) => "a table".to_owned(),
        };
        return Err(ConfigErrorKind::Invalid { key, value, reason }.at(entry.place.clone()));
    }
    let Some((key, entry)) = entries.first() else { return Ok(None) };
    Ok(Some(match key.as_str() {
        "preset" => RuleSource::Preset(section.value::<Preset>(key, entry)?.0),
        "file" => RuleSource::File(section.value(key, entry)?),
        _ => RuleSource::List(section.value(key, entry)?),
    }))
}

fn write_source(source: &RuleSource) -> (&'static str, toml::Value) {
    let value = match source {
        RuleSource::Preset(name) | RuleSource::File(name) => name.write(),
        RuleSource::List(entries) => entries.write(),
    };
    (source.key(), value)
}

struct Preset(String);

impl Value for Preset {
    fn expected() -> String {
        super::value::one_of(PRESETS.iter().copied())
    }

    fn read(value: &toml::Value) -> Result<Preset, Refusal> {
        super::value::choose(value, PRESETS.iter().copied()).map(|index| Preset(PRESETS[index].to_owned()))
    }

    fn write(&self) -> toml::Value {
        self.0.write()
    }
}

impl Value for Vec<RuleEntry> {
    fn expected() -> String {
        "an array of rules, each a logical name and its mesh axes, as in [[\"embed\", [\"fsdp\"]], [\"norm\", []]]"
            .to_owned()
    }

    fn read(value: &toml::Value) -> Result<Vec<RuleEntry>, Refusal> {
        let entries = value.as_array().ok_or(Refusal::Type)?;
        let entry = |(index, entry): (usize, &toml::Value)| {
            read_entry(entry).ok_or_else(|| {
                Refusal::Value(format!("rule {index} is {entry}; it must be {}", Vec::<RuleEntry>::expected()))
            })
        };
        entries.iter().enumerate().map(entry).collect()
    }

    fn write(&self) -> toml::Value {
        let entry = |entry: &RuleEntry| toml::Value::Array(vec![entry.name.write(), entry.axes.write()]);
        toml::Value::Array(self.iter().map(entry).collect())
    }
}

/// `["embed", ["fsdp"]]`, `["embed", "fsdp"]`, `["norm", []]` or `["norm"]`: MaxText's forms, less YAML's null.
fn read_entry(value: &toml::Value) -> Option<RuleEntry> {
    let (name, axes) = match value.as_array()?.as_slice() {
        [name] => (name, Vec::new()),
        [name, toml::Value::String(axis)] => (name, vec![axis.clone()]),
        [name, axes] => (name, Vec::<String>::read(axes).ok()?),
        _ => return None,
    };
    Some(RuleEntry { name: name.as_str().filter(|name| !name.is_empty())?.to_owned(), axes })
}
