//! `[rules]`: where the logical axis rules come from.

use super::KeyInfo;
use super::error::{self, ConfigError, ConfigErrorKind};
use super::tree::{Entry, Node, Table};
use super::value::{Bound, Keys, Refusal, Section, Value, Written};
use meshloom::hlo::files;
use meshloom::sharding::{Mesh, PRESETS, Role, Rule, RuleFile, RuleSets, Rules, SettingNames, ShardingError};

/// One rule of a list: a logical name and the mesh axes it is split over, major to minor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleEntry {
    /// The logical axis name.
    pub name: String,
    /// The mesh axes; if empty, the name stays unsharded.
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
    /// `rules.override`: rules of every role that are tried before those of the source.
    pub overrides: Vec<RuleEntry>,
    /// Whether problems in the rules are errors, or warnings with a fallback.
    pub strict: bool,
    /// Whether a dimension may be split that its axes do not divide: it is padded.
    pub uneven: bool,
    /// `[rules.params]`
    pub params: RoleRules,
    /// `[rules.compute]`
    pub compute: RoleRules,
    /// `[rules.optimizer]`
    pub optimizer: RoleRules,
}

/// `[rules.params]`, `[rules.compute]` or `[rules.optimizer]`: what one role has of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleRules {
    /// `preset`, `file` or `list`, if any.
    pub source: Option<RuleSource>,
    /// `override`: rules that are tried first.
    pub overrides: Vec<RuleEntry>,
}

impl Default for RulesConfig {
    fn default() -> RulesConfig {
        let none = RoleRules::default;
        let source = RuleSource::default();
        RulesConfig {
            source,
            overrides: Vec::new(),
            strict: true,
            uneven: false,
            params: none(),
            compute: none(),
            optimizer: none(),
        }
    }
}

/// The keys of settings that messages about rules advise to change.
pub(super) const SETTINGS: SettingNames = SettingNames {
    lenient: "rules.strict = false",
    uneven: "rules.uneven = true",
    replication: "partition.replication = \"warn\"",
};

const ROLE_KEYS: &[&str] = &["preset", "file", "list", "override"];

/// A key, its meaning, and the values that it may have.
type TableRow = (&'static str, &'static str, fn() -> String);

/// The keys of the section.
const TABLE: [TableRow; 9] = [
    ("preset", "The rules of this name.", Preset::expected),
    ("file", "A rule file (YAML, as MaxText has them), in place of a preset.", String::expected),
    ("list", "The rules themselves, in place of a preset.", Vec::<RuleEntry>::expected),
    (
        "override",
        "Rules of every role that are tried before those of the preset, file or list.",
        Vec::<RuleEntry>::expected,
    ),
    ("strict", "Whether problems in the rules are errors, or warnings with a fallback.", bool::expected),
    ("uneven", "Whether a dimension may be split that its axes do not divide: it is padded.", bool::expected),
    ("params", "Rules for parameters alone.", of_role),
    ("compute", "Rules for the forward and backward pass alone.", of_role),
    ("optimizer", "Rules for the optimizer's state alone.", of_role),
];

fn of_role() -> String {
    "a section with one of preset, file, list, or with override".to_owned()
}

impl Keys for RulesConfig {
    const KEYS: &'static [&'static str] = &{
        let mut keys = [""; TABLE.len()];
        let mut index = 0;
        while index < TABLE.len() {
            keys[index] = TABLE[index].0;
            index += 1;
        }
        keys
    };

    const ABOUT: &'static str = "`[rules]`: which mesh axes split which named dimension.";

    fn check(&self, _: &'static str) -> Result<(), ConfigError> {
        Ok(())
    }

    fn describe() -> Vec<KeyInfo> {
        let defaults = RulesConfig::default().own_keys();
        let default = |key: &str| defaults.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
        let info = |(name, meaning, allowed): TableRow| KeyInfo {
            name,
            value: None,
            default: default(name),
            allowed: allowed(),
            meaning: meaning.to_owned(),
        };
        TABLE.into_iter().map(info).collect()
    }

    fn read(mut section: Section<'_>) -> Result<RulesConfig, ConfigError> {
        let mut read = RulesConfig::default();
        let mut own = Vec::new();
        for (key, entry) in section.entries(RulesConfig::KEYS)? {
            let role = match key.as_str() {
                "strict" => {
                    read.strict = section.value(&key, &entry, Bound::None)?;
                    continue;
                }
                "uneven" => {
                    read.uneven = section.value(&key, &entry, Bound::None)?;
                    continue;
                }
                "params" => &mut read.params,
                "compute" => &mut read.compute,
                "optimizer" => &mut read.optimizer,
                _ => {
                    own.push((key, entry));
                    continue;
                }
            };
            let name = format!("rules.{key}");
            let expected = format!("a section, [{name}], with one of preset, file, list, or with override");
            let mut section = section.below(&name, entry, &expected)?;
            let entries = section.entries(ROLE_KEYS)?;
            *role = read_role(&section, entries)?;
        }
        let RoleRules { source, overrides } = read_role(&section, own)?;
        read.overrides = overrides;
        read.source = source.unwrap_or_default();
        Ok(read)
    }

    /// Roles that have rules of their own are tables.
    fn write(&self) -> Option<Written> {
        let table = |(name, keys): (&'static str, Written)| {
            let table = keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            (name.trim_start_matches("rules."), toml::Value::Table(table))
        };
        Some(self.own_keys().into_iter().chain(self.write_roles().map(table)).collect())
    }

    fn write_sections(&self, name: &'static str) -> Vec<(&'static str, Written)> {
        std::iter::once((name, self.own_keys())).chain(self.write_roles()).collect()
    }
}

impl RulesConfig {
    /// The keys of the section itself.
    fn own_keys(&self) -> Written {
        vec![
            write_source(&self.source),
            ("override", self.overrides.write()),
            ("strict", self.strict.write()),
            ("uneven", self.uneven.write()),
        ]
    }

    /// The sections of roles that have rules of their own.
    fn write_roles(&self) -> impl Iterator<Item = (&'static str, Written)> {
        let keys = |(_, name, role): (Role, &'static str, &RoleRules)| {
            let first = (!role.overrides.is_empty()).then(|| ("override", role.overrides.write()));
            (name, role.source.iter().map(write_source).chain(first).collect())
        };
        self.roles().into_iter().map(keys).filter(|(_, keys): &(_, Written)| !keys.is_empty())
    }

    /// The rules themselves.
    pub(super) fn rule_sets(&self) -> Result<RuleSets, ConfigError> {
        let rules = |(role, name, own): (Role, &str, &RoleRules)| {
            let rules = match &own.source {
                Some(source) => source.rules(name, role, self.strict)?,
                None => self.source.rules("rules", role, self.strict)?,
            };
            let rules = first(rules, "rules", &self.overrides)?;
            first(rules, name, &own.overrides).map(|rules| rules.with_uneven(self.uneven))
        };
        let [params, compute, optimizer] = self.roles();
        Ok(RuleSets { params: rules(params)?, compute: rules(compute)?, optimizer: rules(optimizer)? })
    }

    fn roles(&self) -> [(Role, &'static str, &RoleRules); 3] {
        [
            (Role::Params, "rules.params", &self.params),
            (Role::Compute, "rules.compute", &self.compute),
            (Role::Optimizer, "rules.optimizer", &self.optimizer),
        ]
    }

    /// Every source with the section it stands in.
    pub(super) fn sources(&self) -> impl Iterator<Item = (&'static str, &RuleSource)> {
        let roles = self.roles().into_iter().filter_map(|(_, name, role)| Some((name, role.source.as_ref()?)));
        std::iter::once(("rules", &self.source)).chain(roles)
    }

    /// The keys that rules come from.
    pub(super) fn given_keys(&self) -> impl Iterator<Item = String> {
        let sources = self.sources().map(|(section, source)| format!("{section}.{}", source.key()));
        sources.chain(self.all_overrides().map(|(section, _)| format!("{section}.override")))
    }

    /// Every list of overrides with the section it stands in.
    fn all_overrides(&self) -> impl Iterator<Item = (&'static str, &Vec<RuleEntry>)> {
        let roles = self.roles().into_iter().map(|(_, name, role)| (name, &role.overrides));
        std::iter::once(("rules", &self.overrides)).chain(roles)
    }

    /// The first key whose rules fail against the mesh in the same way, and what to call its value.
    pub(super) fn faulty_key(&self, mesh: &Mesh, error: &ShardingError) -> (String, String) {
        let fails = |rules: Rules| rules.check_mesh(mesh).err().as_ref() == Some(error);
        let source =
            self.sources().find(|(name, source)| source.rules(name, Role::Compute, self.strict).is_ok_and(fails));
        if let Some((name, source)) = source {
            return (format!("{name}.{}", source.key()), source.describe());
        }
        let own = |name: &str, entries: &[RuleEntry]| {
            Rules::new(rules_of(&format!("{name}.override"), entries), self.strict)
                .map(|rules| rules.with_settings(SETTINGS))
        };
        let found = self.all_overrides().find(|(name, entries)| own(name, entries).is_ok_and(fails));
        let (name, entries) = found.unwrap_or(("rules", &self.overrides));
        (format!("{name}.override"), describe_list(entries))
    }
}

/// Rules with those of an `override` before them.
fn first(rules: Rules, section: &str, entries: &[RuleEntry]) -> Result<Rules, ConfigError> {
    let key = format!("{section}.override");
    let refused = |error: ShardingError| error::invalid_described(&key, describe_list(entries), &error.to_string());
    rules.with_first(rules_of(&key, entries)).map_err(refused)
}

fn rules_of(key: &str, entries: &[RuleEntry]) -> Vec<Rule> {
    let rule = |(index, entry): (usize, &RuleEntry)| Rule {
        name: entry.name.clone(),
        axes: entry.axes.clone(),
        origin: format!("{key}[{index}]"),
        published: false,
    };
    entries.iter().enumerate().map(rule).collect()
}

/// A list for messages: it may be long.
fn describe_list(entries: &[RuleEntry]) -> String {
    match entries.len() {
        1 => "a list of one rule".to_owned(),
        count => format!("a list of {count} rules"),
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
            RuleSource::List(entries) => describe_list(entries),
        }
    }

    pub(super) fn rules(&self, section: &str, role: Role, strict: bool) -> Result<Rules, ConfigError> {
        let key = format!("{section}.{}", self.key());
        let rules = match self {
            RuleSource::Preset(name) => {
                Rules::preset_for(role, name, strict).map_err(|error| error::invalid(&key, name, &error.to_string()))
            }
            RuleSource::List(entries) => Rules::new(rules_of(&key, entries), strict)
                .map_err(|error| error::invalid_described(&key, self.describe(), &error.to_string())),
            RuleSource::File(path) => {
                let refused = |reason: String| error::invalid(&key, path, &reason);
                let text = files::read_text(path.as_ref(), files::WRITTEN_BYTES).map_err(|error| {
                    let advice = "give the path of a rule file, from the working directory on, or an absolute one";
                    refused(format!("it cannot be read: {error}; {advice}"))
                })?;
                let file = RuleFile::parse(&text, path).and_then(|file| file.into_rules(strict));
                file.map_err(|error| refused(error.to_string()))
            }
        }?;
        Ok(rules.with_settings(SETTINGS))
    }
}

fn read_role(section: &Section<'_>, mut entries: Vec<(String, Entry)>) -> Result<RoleRules, ConfigError> {
    let overrides = match entries.iter().position(|(key, _)| key == "override") {
        Some(at) => {
            let (key, entry) = entries.remove(at);
            section.value(&key, &entry, Bound::None)?
        }
        None => Vec::new(),
    };
    Ok(RoleRules { source: read_source(section, entries)?, overrides })
}

fn read_source(section: &Section<'_>, entries: Vec<(String, Entry)>) -> Result<Option<RuleSource>, ConfigError> {
    if let [(first, _), (second, entry), ..] = entries.as_slice() {
        let name = section.name();
        let key = format!("{name}.{second}");
        let reason = format!("{name}.{first} is given too; rules come from one of preset, file, list");
        let value = match &entry.node {
            Node::Value(value) => value.to_string(),
            Node::Table(Table { .. }) => "a table".to_owned(),
        };
        return Err(ConfigErrorKind::Invalid { key, value, reason }.at(entry.place.clone()));
    }
    let Some((key, entry)) = entries.first() else { return Ok(None) };
    Ok(Some(match key.as_str() {
        "preset" => RuleSource::Preset(section.value::<Preset>(key, entry, Bound::None)?.0),
        "file" => RuleSource::File(section.value(key, entry, Bound::None)?),
        _ => RuleSource::List(section.value(key, entry, Bound::None)?),
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

fn preset_names() -> impl Iterator<Item = &'static str> + Clone {
    PRESETS.iter().map(|(name, _)| *name)
}

impl Value for Preset {
    fn expected() -> String {
        super::value::one_of(preset_names())
    }

    fn read(value: &toml::Value) -> Result<Preset, Refusal> {
        super::value::choose(value, preset_names()).map(|index| Preset(PRESETS[index].0.to_owned()))
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
