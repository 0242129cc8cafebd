//! Names that only rules have, or only tensors.

use std::collections::BTreeMap;

use meshloom_hlo::suggest::misspelled;

use super::{Diagnostic, ROLES, Role, Rule, RuleProblem, RuleSets, Rules, ShardingError};

/// Bytes above which a parameter is worth a line if no rule has a name of it.
const LARGE: usize = 1 << 20;

/// A logical name on a dimension of a tensor: the first tensor of a program that has it, under the rules of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDim {
    /// The role whose rules split the tensor.
    pub role: Role,
    /// The name.
    pub name: String,
    /// The tensor, for messages.
    pub tensor: String,
}

impl RuleSets {
    /// Compares the names of rules with those of all tensors of a program. Two names that nearly agree are a problem: a
    /// rule of the user's own whose name no tensor has (also where another rule serves the tensor that was meant), or a
    /// name of a tensor that no rule has. Any other name that only one side has is worth a line, unless presets or rule
    /// files are involved: those have, and lack, names of many models.
    ///
    /// # Errors
    /// Such a problem, under strict rules.
    pub fn check_names(&self, dims: &[NamedDim]) -> Result<Vec<Diagnostic>, ShardingError> {
        let mut diagnostics = Vec::new();
        let mut tensors: [BTreeMap<&str, &str>; ROLES.len()] = Default::default();
        for dim in dims {
            tensors[dim.role as usize].entry(&dim.name).or_insert(&dim.tensor);
        }
        let (mut unused, mut misspelled_rules): (Vec<String>, Vec<&str>) = Default::default();
        for rule in self.own_rules() {
            let of_roles = || ROLES.into_iter().filter(|role| self.get(*role).rules().contains(rule));
            let named = || of_roles().flat_map(|role| &tensors[role as usize]);
            if named().any(|(name, _)| *name == rule.name) {
                continue;
            }
            let near = misspelled(&rule.name, named().map(|(name, _)| *name));
            match named().find(|(name, _)| Some(**name) == near) {
                None => unused.push(rule.to_string()),
                Some((meant, tensor)) => {
                    misspelled_rules.push(&rule.name);
                    let (rule, meant, tensor) = (rule.to_string(), (*meant).to_owned(), (*tensor).to_owned());
                    self.compute.report(RuleProblem::MisspelledRule { rule, meant, tensor }, &mut diagnostics)?;
                }
            }
        }
        let mut without: Vec<String> = Vec::new();
        for role in ROLES {
            let rules = self.get(role);
            for (&name, &tensor) in &tensors[role as usize] {
                if rules.first_for(name).is_some() {
                    continue;
                }
                let names = rules.rules().iter().map(|rule| rule.name.as_str());
                if let Some(rule) = misspelled(name, names).and_then(|meant| rules.first_for(meant)) {
                    // A slip is reported for one side only.
                    if misspelled_rules.contains(&rule.name.as_str()) {
                        continue;
                    }
                    let (meant, rule) = (rule.name.clone(), rule.to_string());
                    let (tensor, name) = (tensor.to_owned(), name.to_owned());
                    rules.report(RuleProblem::MisspelledAxis { tensor, name, meant, rule }, &mut diagnostics)?;
                } else if !rules.rules().iter().any(|rule| rule.published) && !without.iter().any(|other| other == name)
                {
                    without.push(name.to_owned());
                }
            }
        }
        diagnostics.extend((!unused.is_empty()).then_some(Diagnostic::UnusedRules { rules: unused }));
        diagnostics.extend((!without.is_empty()).then_some(Diagnostic::AxesWithoutRule { names: without }));
        Ok(diagnostics)
    }

    /// Adds a line for each name of a large parameter that no rule has: without a rule, every device may hold the whole
    /// dimension. `said` is the result of [`RuleSets::check_names`]. A misspelled name is reported there; a name in its
    /// list of names without rules leaves the list. `parameters` are the names, path and bytes of each.
    pub(in crate::sharding) fn note_large_without_rule(
        &self,
        parameters: impl Iterator<Item = (Vec<String>, String, usize)>,
        said: &mut Vec<Diagnostic>,
    ) {
        let mut found: Vec<(String, String, usize)> = Vec::new();
        for (names, parameter, bytes) in parameters.filter(|(.., bytes)| *bytes > LARGE) {
            for name in names.into_iter().filter(|name| !name.is_empty() && self.params.first_for(name).is_none()) {
                let is_misspelled = said.iter().any(|diagnostic| match diagnostic {
                    Diagnostic::Fallback { problem: RuleProblem::MisspelledAxis { name: other, .. }, .. } => {
                        *other == name
                    }
                    Diagnostic::Fallback { problem: RuleProblem::MisspelledRule { meant, .. }, .. } => *meant == name,
                    _ => false,
                });
                if !is_misspelled && !found.iter().any(|(other, ..)| *other == name) {
                    found.push((name, parameter.clone(), bytes));
                }
            }
        }
        for diagnostic in said.iter_mut() {
            if let Diagnostic::AxesWithoutRule { names } = diagnostic {
                names.retain(|name| !found.iter().any(|(other, ..)| other == name));
            }
        }
        said.retain(|diagnostic| !matches!(diagnostic, Diagnostic::AxesWithoutRule { names } if names.is_empty()));
        let line = |(name, parameter, bytes)| Diagnostic::LargeWithoutRule { name, parameter, bytes };
        said.extend(found.into_iter().map(line));
    }

    /// The rules that the user wrote, each once.
    fn own_rules(&self) -> Vec<&Rule> {
        let mut own: Vec<&Rule> = Vec::new();
        for rule in ROLES.into_iter().flat_map(|role| self.get(role).rules()).filter(|rule| !rule.published) {
            if !own.contains(&rule) {
                own.push(rule);
            }
        }
        own
    }
}

impl Rules {
    /// The first rule of a name.
    pub(in crate::sharding) fn first_for(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.name == name)
    }
}
