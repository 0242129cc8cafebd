//! `[rules]`: where the logical axis rules come from.

use super::RunConfig;
use super::error::{self, ConfigError};
use super::section::{Given, Places, section};
use super::value::{Plain, Refusal, choose, one_of};
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

/// The name of a preset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePreset(pub String);

section! {
    /// `[rules]`: which mesh axes split which named dimension.
    RulesConfig {
        /// The rules of this name.
        preset: Given<RulePreset> = Given(Some(RulePreset("decoder".to_owned()))),
        /// A rule file (YAML, as MaxText has them), in place of a preset.
        file: Given<String> = Given(None),
        /// The rules themselves, in place of a preset.
        list: Given<Vec<RuleEntry>> = Given(None),
        /// Rules of every role that are tried before those of the preset, file or list.
        overrides as "override": Vec<RuleEntry> = Vec::new(),
        /// Whether problems in the rules are errors, or warnings with a fallback.
        strict: bool = true,
        /// Whether a dimension may be split that its axes do not divide: it is padded.
        uneven: bool = false,
        /// Rules for parameters alone.
        params: RoleRules = RoleRules::default(),
        /// Rules for the forward and backward pass alone.
        compute: RoleRules = RoleRules::default(),
        /// Rules for the optimizer's state alone.
        optimizer: RoleRules = RoleRules::default(),
    }
}

section! {
    /// The rules that one role has of its own.
    RoleRules {
        /// The rules of this name.
        preset: Given<RulePreset> = Given(None),
        /// A rule file, in place of a preset.
        file: Given<String> = Given(None),
        /// The rules themselves, in place of a preset.
        list: Given<Vec<RuleEntry>> = Given(None),
        /// Rules that are tried first, before those that come first for all roles.
        overrides as "override": Vec<RuleEntry> = Vec::new(),
    }
}

impl RoleRules {
    /// The role's own source of rules, if it has one.
    pub fn source(&self) -> Option<RuleSource> {
        source(self.preset.0.as_ref(), &self.file, &self.list)
    }
}

fn source(preset: Option<&RulePreset>, file: &Given<String>, list: &Given<Vec<RuleEntry>>) -> Option<RuleSource> {
    match (&file.0, &list.0) {
        (_, Some(list)) => Some(RuleSource::List(list.clone())),
        (Some(file), None) => Some(RuleSource::File(file.clone())),
        (None, None) => Some(RuleSource::Preset(preset?.0.clone())),
    }
}

/// The keys of settings that messages about rules advise to change.
pub(super) const SETTINGS: SettingNames = SettingNames {
    lenient: "rules.strict = false",
    uneven: "rules.uneven = true",
    replication: "partition.replication = \"warn\"",
};

impl RulesConfig {
    /// The source of the rules of every role without its own.
    pub fn source(&self) -> RuleSource {
        let none = || RuleSource::List(Vec::new());
        source(self.preset.0.as_ref(), &self.file, &self.list).unwrap_or_else(none)
    }

    /// Takes the rules of a preset for every role without its own.
    pub fn set_preset(&mut self, name: &str) {
        (self.preset, self.file, self.list) = (Given(Some(RulePreset(name.to_owned()))), Given(None), Given(None));
    }

    /// Leaves out the preset that is the default beside a file or a list.
    pub(super) fn settle(&mut self, places: &Places) {
        if !places.contains_key("rules.preset") && (self.file.0.is_some() || self.list.0.is_some()) {
            self.preset = Given(None);
        }
    }

    /// The rules themselves.
    pub(super) fn rule_sets(&self) -> Result<RuleSets, ConfigError> {
        let rules = |(role, name, own): (Role, &str, &RoleRules)| {
            let rules = match own.source() {
                Some(source) => source.rules(name, role, self.strict)?,
                None => self.source().rules("rules", role, self.strict)?,
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
    fn sources(&self) -> impl Iterator<Item = (&'static str, RuleSource)> {
        let roles = self.roles().into_iter().filter_map(|(_, name, role)| Some((name, role.source()?)));
        std::iter::once(("rules", self.source())).chain(roles)
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

impl RunConfig {
    /// Refuses two sources of rules in one section, and a file without a name.
    pub(super) fn validate_sources(&self) -> Result<(), ConfigError> {
        for (section, source) in self.rules.sources() {
            let key = format!("{section}.{}", source.key());
            let is_given = |other: &&str| self.origin.places.contains_key(&format!("{section}.{other}"));
            let mut others = ["preset", "file", "list"].into_iter().filter(|other| *other != source.key());
            if let Some(other) = others.find(is_given) {
                let reason = format!("{section}.{other} is given too; rules come from one of preset, file, list");
                return Err(error::invalid_described(&key, source.describe(), &reason));
            }
            if source == RuleSource::File(String::new()) {
                return Err(error::invalid(&key, "", "it must not be empty; give the path of a rule file"));
            }
        }
        Ok(())
    }
}

fn preset_names() -> Vec<&'static str> {
    PRESETS.iter().map(|(name, _)| *name).collect()
}

impl Plain for RulePreset {
    fn expected() -> String {
        one_of(preset_names())
    }

    fn from_toml(value: &toml::Value) -> Result<RulePreset, Refusal> {
        let names = preset_names();
        choose(value, &names).map(|index| RulePreset(names[index].to_owned()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.to_toml()
    }
}

impl Plain for Vec<RuleEntry> {
    fn expected() -> String {
        "an array of rules, each a logical name and its mesh axes, as in [[\"embed\", [\"fsdp\"]], [\"norm\", []]]"
            .to_owned()
    }

    fn from_toml(value: &toml::Value) -> Result<Vec<RuleEntry>, Refusal> {
        let unlike = |index, entry| Refusal::Value(format!("; rule {index} is {entry}"));
        let entries = value.as_array().ok_or(Refusal::Type)?.iter().enumerate();
        entries.map(|(index, entry)| read_entry(entry).ok_or_else(|| unlike(index, entry))).collect()
    }

    fn to_toml(&self) -> toml::Value {
        let entry = |entry: &RuleEntry| toml::Value::Array(vec![entry.name.to_toml(), entry.axes.to_toml()]);
        toml::Value::Array(self.iter().map(entry).collect())
    }
}

/// `["embed", ["fsdp"]]`, `["embed", "fsdp"]`, `["norm", []]` or `["norm"]`: MaxText's forms, less YAML's null.
fn read_entry(value: &toml::Value) -> Option<RuleEntry> {
    let (name, axes) = match value.as_array()?.as_slice() {
        [name] => (name, Vec::new()),
        [name, toml::Value::String(axis)] => (name, vec![axis.clone()]),
        [name, axes] => (name, Vec::<String>::from_toml(axes).ok()?),
        _ => return None,
    };
    Some(RuleEntry { name: name.as_str().filter(|name| !name.is_empty())?.to_owned(), axes })
}
