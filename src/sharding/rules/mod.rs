//! Logical axis rules: which mesh axes a named dimension is split over.
//!
//! A rule is a logical name and a list of mesh axes. The rules of a list are tried in order, over all dimensions of a
//! tensor at once: a rule applies when its name is on a dimension that has no assignment yet and this tensor uses none
//! of its mesh axes yet. It gives all of its axes or none. So where two names want one mesh axis, the rule that stands
//! first wins, whatever the order of the dimensions. A rule with an empty list settles its name: the name stays
//! unsharded.
//!
//! Mesh axes of size 1 are left out of the spec, but count as used. So do those that a rule file or preset declares and
//! the mesh does not have: they are written for more axes than one mesh needs. These are the semantics of flax's
//! logical partitioning, which MaxText's rule files rely on. Where it falls back silently we report a [`RuleProblem`]:
//! an error when the rules are strict, else its result with a [`Diagnostic`]. Where two names want one mesh axis by
//! rules that are all of presets or files, it is never an error: those are written for that.

mod assign;
mod file;
mod names;
mod presets;

use std::fmt;
use std::panic::Location;

use super::{Diagnostic, Mesh, Role, RuleProblem, SettingNames, ShardingError, Spec};
use meshloom_hlo::suggest::did_you_mean;

pub use assign::Assigned;
pub use file::RuleFile;
pub use names::NamedDim;
pub use presets::{DECODER_RULES, PRESETS, PresetRule};

/// One rule: a logical name and the mesh axes it is split over, major to minor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The logical axis name.
    pub name: String,
    /// The mesh axes; none settles that the name stays unsharded.
    pub axes: Vec<String>,
    /// Where the rule was written, for messages: `rules.list[2]`.
    pub origin: String,
    /// Whether it is one of a preset or a rule file. Those are for many models, so any one model may lack the name.
    pub published: bool,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> ", self.name)?;
        match self.axes.as_slice() {
            [] => f.write_str("nothing")?,
            [axis] => f.write_str(axis)?,
            axes => write!(f, "({})", axes.join(","))?,
        }
        write!(f, " ({})", self.origin)
    }
}

/// An ordered list of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    strict: bool,
    uneven: bool,
    /// Whether axes that do not divide a dimension are left out of it.
    as_divides: bool,
    /// Mesh axes that rules may name though the mesh lacks them: they have size 1 then.
    declared: Vec<String>,
    settings: SettingNames,
    /// Facts that were found when the rules were read.
    notes: Vec<Diagnostic>,
}

impl Rules {
    /// Rules as the user wrote them. Every axis that they name must be the mesh's.
    pub fn new(rules: Vec<Rule>, strict: bool) -> Result<Rules, ShardingError> {
        for rule in &rules {
            if let Some(axis) = (1..rule.axes.len())
                .map(|at| &rule.axes[at])
                .find(|axis| rule.axes.iter().filter(|other| other == axis).count() > 1)
            {
                return Err(ShardingError::RuleAxisTwice { rule: rule.to_string(), axis: axis.clone() });
            }
        }
        Ok(Rules::of(rules, strict, Vec::new()))
    }

    fn of(rules: Vec<Rule>, strict: bool, declared: Vec<String>) -> Rules {
        Rules {
            rules,
            strict,
            uneven: false,
            as_divides: false,
            declared,
            settings: SettingNames::default(),
            notes: Vec::new(),
        }
    }

    /// Strict rules from pairs of a logical name and its mesh axes.
    ///
    /// # Errors
    /// A rule names a mesh axis twice.
    #[track_caller]
    pub fn from_pairs(pairs: &[(&str, &[&str])]) -> Result<Rules, ShardingError> {
        let place = Location::caller();
        let rule = |(index, &(name, axes)): (usize, &(&str, &[&str]))| Rule {
            name: name.to_owned(),
            axes: axes.iter().map(|&axis| axis.to_owned()).collect(),
            origin: format!("rule {index} at {}:{}", place.file(), place.line()),
            published: false,
        };
        Rules::new(pairs.iter().enumerate().map(rule).collect(), true)
    }

    /// A preset by name, see [`PRESETS`], for values that are not optimizer state.
    pub fn preset(name: &str, strict: bool) -> Result<Rules, ShardingError> {
        Rules::preset_for(Role::Compute, name, strict)
    }

    /// The rules of a preset for a role.
    pub fn preset_for(role: Role, name: &str, strict: bool) -> Result<Rules, ShardingError> {
        presets::preset(name, role).map(|(rules, declared)| Rules::of(rules, strict, declared))
    }

    /// The same rules, which may name these mesh axes whether or not a mesh has them.
    #[must_use]
    pub fn with_declared_axes(mut self, axes: impl IntoIterator<Item = String>) -> Rules {
        self.declared.extend(axes);
        self
    }

    /// Other rules before these: where both have a name, the other ones are tried first.
    pub fn with_first(mut self, first: Vec<Rule>) -> Result<Rules, ShardingError> {
        let first = Rules::new(first, self.strict)?;
        self.rules.splice(..0, first.rules);
        Ok(self)
    }

    /// The same rules, whose problems are errors, or warnings with a fallback.
    #[must_use]
    pub fn with_strict(mut self, strict: bool) -> Rules {
        self.strict = strict;
        self
    }

    /// The same rules, with these names of the settings in messages. A caller that reads rules from a file gives
    /// the names of its keys.
    #[must_use]
    pub fn with_settings(mut self, settings: SettingNames) -> Rules {
        self.settings = settings;
        self
    }

    /// The same rules, which may or may not split a dimension that its axes do not divide: into parts; the last
    /// are not full, or empty. By default they may not.
    #[must_use]
    pub fn with_uneven(mut self, uneven: bool) -> Rules {
        self.uneven = uneven;
        self
    }

    /// The same rules, which split a dimension over those of its axes that divide it
    /// ([`WithAxes::as_divides`](crate::ops::WithAxes::as_divides)).
    pub(in crate::sharding) fn with_as_divides(mut self) -> Rules {
        self.as_divides = true;
        self
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The names of the settings in messages.
    pub fn settings(&self) -> SettingNames {
        self.settings
    }

    /// Checks the rules against a mesh, whether or not a tensor ever needs them: every axis that they name must exist.
    /// The result begins with the facts found when the rules were read.
    pub fn check_mesh(&self, mesh: &Mesh) -> Result<Vec<Diagnostic>, ShardingError> {
        let mut diagnostics = self.notes.clone();
        for rule in &self.rules {
            for axis in rule.axes.iter().filter(|axis| !self.knows(mesh, axis)) {
                self.report(unknown_axis(mesh, rule, axis), &mut diagnostics)?;
            }
        }
        Ok(diagnostics)
    }

    fn knows(&self, mesh: &Mesh, axis: &str) -> bool {
        mesh.axis(axis).is_some() || self.declared.iter().any(|declared| declared == axis)
    }

    fn report(&self, problem: RuleProblem, diagnostics: &mut Vec<Diagnostic>) -> Result<(), ShardingError> {
        if self.strict && problem.is_error() {
            return Err(ShardingError::Rule { problem: Box::new(problem), settings: self.settings });
        }
        diagnostics.push(Diagnostic::Fallback { problem, settings: self.settings, others: Vec::new() });
        Ok(())
    }

    /// Checks that every mesh axis of more than one device splits something. `specs` are those of all parameters and
    /// activations.
    pub fn check_axis_use<'a>(
        &self,
        mesh: &Mesh,
        specs: impl IntoIterator<Item = &'a Spec>,
    ) -> Result<Vec<Diagnostic>, ShardingError> {
        let mut used = [false; Mesh::MAX_AXES];
        specs.into_iter().flat_map(Spec::used_axes).for_each(|axis| used[axis.index()] = true);
        let mut diagnostics = Vec::new();
        for axis in mesh.axes().filter(|axis| mesh.size(*axis) > 1 && !used[axis.index()]) {
            let (name, size) = (mesh.name(axis).to_owned(), mesh.size(axis));
            let known = self.rules.iter().flat_map(|rule| &rule.axes).map(String::as_str);
            let suggestion = did_you_mean(&name, known.filter(|other| *other != name));
            let problem = RuleProblem::UnusedMeshAxis { axis: name, size, mesh: mesh.to_string(), suggestion };
            self.report(problem, &mut diagnostics)?;
        }
        Ok(diagnostics)
    }
}

fn unknown_axis(mesh: &Mesh, rule: &Rule, axis: &str) -> RuleProblem {
    RuleProblem::UnknownMeshAxis {
        rule: rule.to_string(),
        axis: axis.to_owned(),
        mesh: mesh.to_string(),
        suggestion: did_you_mean(axis, mesh.axis_names()),
    }
}

const ROLES: [Role; 3] = [Role::Params, Role::Compute, Role::Optimizer];

/// One rule list for each role. By default all are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSets {
    /// For [`Role::Params`].
    pub params: Rules,
    /// For [`Role::Compute`].
    pub compute: Rules,
    /// For [`Role::Optimizer`].
    pub optimizer: Rules,
}

impl RuleSets {
    /// The same rules for every role.
    pub fn uniform(rules: Rules) -> RuleSets {
        RuleSets { params: rules.clone(), compute: rules.clone(), optimizer: rules }
    }

    /// A preset by name, see [`PRESETS`]: optimizer state is split over `replica` too.
    pub fn preset(name: &str, strict: bool) -> Result<RuleSets, ShardingError> {
        let rules = |role| Rules::preset_for(role, name, strict);
        Ok(RuleSets {
            params: rules(Role::Params)?,
            compute: rules(Role::Compute)?,
            optimizer: rules(Role::Optimizer)?,
        })
    }

    /// [`Rules::with_strict`] for every role.
    #[must_use]
    pub fn with_strict(self, strict: bool) -> RuleSets {
        self.map(|rules| rules.with_strict(strict))
    }

    /// [`Rules::with_uneven`] for every role.
    #[must_use]
    pub fn with_uneven(self, uneven: bool) -> RuleSets {
        self.map(|rules| rules.with_uneven(uneven))
    }

    fn map(self, f: impl Fn(Rules) -> Rules) -> RuleSets {
        RuleSets { params: f(self.params), compute: f(self.compute), optimizer: f(self.optimizer) }
    }

    /// The rules of a role.
    pub fn get(&self, role: Role) -> &Rules {
        match role {
            Role::Params => &self.params,
            Role::Compute => &self.compute,
            Role::Optimizer => &self.optimizer,
        }
    }

    /// [`Rules::check_mesh`] for every role. A diagnostic that several roles share is reported once.
    pub fn check_mesh(&self, mesh: &Mesh) -> Result<Vec<Diagnostic>, ShardingError> {
        let mut diagnostics: Vec<Diagnostic> = Vec::new();
        for role in ROLES {
            for diagnostic in self.get(role).check_mesh(mesh)? {
                if !diagnostics.contains(&diagnostic) {
                    diagnostics.push(diagnostic);
                }
            }
        }
        Ok(diagnostics)
    }
}
