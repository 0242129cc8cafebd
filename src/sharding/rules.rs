//! Logical axis rules: which mesh axes a named dimension is split over.
//!
//! A rule is a logical name and a list of mesh axes. The rules of a list are tried in order, over all dimensions of a tensor
//! at once: a rule applies when its name is on a dimension that has no assignment yet and none of its mesh axes is used in
//! this tensor yet. It gives all of its axes or none. So where two names want one mesh axis, the rule that stands first wins,
//! whatever the order of the dimensions. A rule with an empty list settles its name: it stays unsharded.
//!
//! Mesh axes of size 1 are left out of the spec, but count as used. These are the semantics of flax's logical partitioning,
//! which MaxText's rule files rely on. Where it falls back silently we report a [`RuleProblem`]: an error when the rules are
//! strict, else its result with a [`Diagnostic`].

use std::fmt;
use std::panic::Location;

use super::{Axes, Mesh, ShardingError, Spec};
use crate::suggest::did_you_mean;

/// One rule: a logical name and the mesh axes it is split over, major to minor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The logical axis name.
    pub name: String,
    /// The mesh axes; none settles that the name stays unsharded.
    pub axes: Vec<String>,
    /// Where the rule was written, for messages: `rules.list[2]`.
    pub origin: String,
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

/// Something in the rules that is probably not what was meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleProblem {
    /// A rule names an axis that the mesh does not have.
    #[error("rule {rule} names mesh axis {axis:?}, which the mesh {mesh:?} does not have{suggestion}")]
    UnknownMeshAxis {
        /// The rule.
        rule: String,
        /// The axis it names.
        axis: String,
        /// The mesh.
        mesh: String,
        /// Empty, or a nearby axis.
        suggestion: String,
    },
    /// A dimension that its axes do not divide.
    #[error(
        "tensor {tensor:?}: dimension {dim} ({name:?}) of size {size} cannot be split {parts} ways by rule {rule} on the mesh {mesh:?}; change the size, the mesh or the rule"
    )]
    NotDivisible {
        /// The tensor.
        tensor: String,
        /// The dimension.
        dim: usize,
        /// Its logical name.
        name: String,
        /// Its size.
        size: usize,
        /// Parts that the rule asks for.
        parts: usize,
        /// The rule.
        rule: String,
        /// The mesh.
        mesh: String,
        /// The axes that remain in lenient mode.
        kept: String,
    },
    /// Two rules wanted one mesh axis for one tensor, and the later one had nothing else.
    #[error(
        "tensor {tensor:?}: dimension {dim} ({name:?}) stays unsplit, because rule {rule} wants mesh axis {axis:?}, which dimension {taken_dim} already has by rule {taken_rule}; add a rule for {name:?} with other axes, or with none"
    )]
    Clash {
        /// The tensor.
        tensor: String,
        /// The dimension left without axes.
        dim: usize,
        /// Its logical name.
        name: String,
        /// The rule that could not apply.
        rule: String,
        /// The axis both rules want.
        axis: String,
        /// The dimension that has it.
        taken_dim: usize,
        /// The rule that gave it.
        taken_rule: String,
    },
    /// A mesh axis that splits nothing.
    #[error(
        "mesh axis {axis:?} of size {size} splits no parameter and no activation, so its devices repeat each other's work; name it in a rule or drop it from the mesh {mesh:?}"
    )]
    UnusedMeshAxis {
        /// The axis.
        axis: String,
        /// Its size.
        size: usize,
        /// The mesh.
        mesh: String,
    },
}

impl RuleProblem {
    /// What lenient mode does instead, as a verb phrase.
    pub fn fallback(&self) -> String {
        match self {
            RuleProblem::UnknownMeshAxis { axis, .. } => format!("ignore {axis:?}"),
            RuleProblem::NotDivisible { kept, .. } if kept.is_empty() => "leave the dimension unsplit".to_owned(),
            RuleProblem::NotDivisible { kept, .. } => format!("split it over {kept} alone"),
            RuleProblem::Clash { .. } => "leave the dimension unsplit".to_owned(),
            RuleProblem::UnusedMeshAxis { .. } => "let them".to_owned(),
        }
    }
}

/// A warning: a problem, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The problem.
    pub problem: RuleProblem,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; rules.strict is false, so meshloom will {}", self.problem, self.problem.fallback())
    }
}

/// An ordered list of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    strict: bool,
    // A preset is written for more mesh axes than a given mesh has: those that it lacks are dropped without complaint.
    preset: bool,
}

/// The names of the rule presets.
pub const PRESETS: &[&str] = &["decoder"];

/// The `decoder` preset, for meshes with any of the axes `data`, `fsdp` and `tensor`: parameters are split over `fsdp` and
/// `tensor`, the batch over `data` and `fsdp`, and heads, mlp and vocab of activations over `tensor`.
pub const DECODER_RULES: &[(&str, &[&str])] = &[
    ("activation_batch", &["data", "fsdp"]),
    ("activation_embed_and_logits_batch", &["data", "fsdp"]),
    ("activation_length", &[]),
    ("activation_norm_length", &[]),
    ("activation_embed", &[]),
    ("activation_heads", &["tensor"]),
    ("activation_kv_heads", &["tensor"]),
    ("activation_kv", &[]),
    ("activation_mlp", &["tensor"]),
    ("activation_vocab", &["tensor"]),
    ("activation_exp", &[]),
    ("embed", &["fsdp"]),
    ("heads", &["tensor"]),
    ("kv_heads", &["tensor"]),
    ("kv", &[]),
    ("mlp", &["tensor"]),
    ("vocab", &["tensor"]),
    ("norm", &[]),
    ("layers", &[]),
    ("q_lora", &[]),
    ("kv_lora", &[]),
    ("exp", &[]),
];

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
        Ok(Rules { rules, strict, preset: false })
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
        };
        Rules::new(pairs.iter().enumerate().map(rule).collect(), true)
    }

    /// A preset by name; see [`PRESETS`].
    pub fn preset(name: &str, strict: bool) -> Result<Rules, ShardingError> {
        if name != "decoder" {
            return Err(ShardingError::UnknownPreset {
                name: name.to_owned(),
                suggestion: did_you_mean(name, PRESETS.iter().copied()),
                known: PRESETS.join(", "),
            });
        }
        let rule = |&(name, axes): &(&str, &[&str])| Rule {
            name: name.to_owned(),
            axes: axes.iter().map(|&axis| axis.to_owned()).collect(),
            origin: "preset decoder".to_owned(),
        };
        Ok(Rules { rules: DECODER_RULES.iter().map(rule).collect(), strict, preset: true })
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether problems are errors.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Checks the rules against a mesh, whether or not a tensor ever needs them: every axis that they name must be there.
    pub fn check_mesh(&self, mesh: &Mesh) -> Result<Vec<Diagnostic>, ShardingError> {
        let mut diagnostics = Vec::new();
        for rule in self.rules.iter().filter(|_| !self.preset) {
            for axis in rule.axes.iter().filter(|axis| mesh.axis(axis).is_none()) {
                self.report(unknown_axis(mesh, rule, axis), &mut diagnostics)?;
            }
        }
        Ok(diagnostics)
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
            let problem = RuleProblem::UnusedMeshAxis { axis: name, size, mesh: mesh.to_string() };
            self.report(problem, &mut diagnostics)?;
        }
        Ok(diagnostics)
    }

    /// The spec of a tensor by the names on its dimensions. In lenient mode problems are added to `diagnostics`.
    pub fn resolve(
        &self,
        mesh: &Mesh,
        tensor: &str,
        names: &[Option<&str>],
        dims: &[usize],
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Result<Spec, ShardingError> {
        check_names(tensor, names, dims)?;
        // For each dimension the rule that settled it, and the first that could not apply because of a taken axis.
        let mut settled: Vec<Option<(&Rule, Vec<&str>)>> = vec![None; dims.len()];
        let mut skipped: Vec<Option<RuleProblem>> = vec![None; dims.len()];
        for rule in &self.rules {
            let Some(dim) = names.iter().position(|name| *name == Some(rule.name.as_str())) else { continue };
            if settled[dim].is_some() {
                continue;
            }
            let mut axes: Vec<&str> = rule.axes.iter().map(String::as_str).collect();
            if self.preset {
                axes.retain(|axis| mesh.axis(axis).is_some());
                if axes.is_empty() && !rule.axes.is_empty() {
                    continue;
                }
            }
            for axis in axes.iter().filter(|axis| mesh.axis(axis).is_none()) {
                self.report(unknown_axis(mesh, rule, axis), diagnostics)?;
            }
            let size_of = |axis: &str| mesh.axis(axis).map_or(1, |axis| mesh.size(axis));
            let holder = |axis: &&str| {
                let has =
                    |slot: &Option<(&Rule, Vec<&str>)>| slot.as_ref().is_some_and(|(_, taken)| taken.contains(axis));
                settled.iter().position(has)
            };
            match axes.iter().find_map(|axis| Some((*axis, holder(axis)?))) {
                None => settled[dim] = Some((rule, axes)),
                // A rule all of whose axes have size 1 would have split nothing: no loss, no complaint.
                Some((axis, taken_dim)) if skipped[dim].is_none() && axes.iter().any(|axis| size_of(axis) > 1) => {
                    skipped[dim] = Some(RuleProblem::Clash {
                        tensor: tensor.to_owned(),
                        dim,
                        name: rule.name.clone(),
                        rule: rule.to_string(),
                        axis: axis.to_owned(),
                        taken_dim,
                        taken_rule: settled[taken_dim].as_ref().map(|(rule, _)| rule.to_string()).unwrap_or_default(),
                    });
                }
                Some(_) => {}
            }
        }
        let mut spec = Spec::replicated(dims.len());
        for (dim, (settled, skipped)) in settled.into_iter().zip(skipped).enumerate() {
            match (settled, skipped) {
                // A later rule of the same name is a stated fallback, so what was skipped before it is no problem.
                (Some((rule, axes)), _) => {
                    let axes = axes.into_iter().filter_map(|axis| mesh.axis(axis)).filter(|axis| mesh.size(*axis) > 1);
                    let axes = self.divide(mesh, tensor, rule, (dim, dims[dim]), axes.collect(), diagnostics)?;
                    spec = spec.with_dim(dim, axes);
                }
                (None, Some(problem)) => self.report(problem, diagnostics)?,
                (None, None) => {}
            }
        }
        Ok(spec)
    }

    /// The axes as they are when they divide the dimension; else the problem, or those that do, taken in order.
    fn divide(
        &self,
        mesh: &Mesh,
        tensor: &str,
        rule: &Rule,
        (dim, size): (usize, usize),
        axes: Axes,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Result<Axes, ShardingError> {
        let parts: usize = axes.iter().map(|axis| mesh.size(*axis)).product();
        if size.is_multiple_of(parts) {
            return Ok(axes);
        }
        let mut kept = Axes::new();
        let mut kept_parts = 1;
        for axis in axes {
            if size.is_multiple_of(kept_parts * mesh.size(axis)) {
                kept_parts *= mesh.size(axis);
                kept.push(axis);
            }
        }
        let problem = RuleProblem::NotDivisible {
            tensor: tensor.to_owned(),
            dim,
            name: rule.name.clone(),
            size,
            parts,
            rule: rule.to_string(),
            mesh: mesh.to_string(),
            kept: kept.iter().map(|axis| mesh.name(*axis)).collect::<Vec<_>>().join(","),
        };
        self.report(problem, diagnostics)?;
        Ok(kept)
    }

    fn report(&self, problem: RuleProblem, diagnostics: &mut Vec<Diagnostic>) -> Result<(), ShardingError> {
        if self.strict {
            return Err(ShardingError::Rule { problem: Box::new(problem) });
        }
        diagnostics.push(Diagnostic { problem });
        Ok(())
    }
}

fn check_names(tensor: &str, names: &[Option<&str>], dims: &[usize]) -> Result<(), ShardingError> {
    let tensor = || tensor.to_owned();
    if names.len() != dims.len() {
        return Err(ShardingError::NameCount { tensor: tensor(), rank: dims.len(), names: names.len() });
    }
    for (second, name) in names.iter().enumerate() {
        if let Some(name) = name
            && let Some(first) = names[..second].iter().position(|earlier| *earlier == Some(name))
        {
            return Err(ShardingError::DuplicateName { tensor: tensor(), name: (*name).to_owned(), first, second });
        }
    }
    Ok(())
}

fn unknown_axis(mesh: &Mesh, rule: &Rule, axis: &str) -> RuleProblem {
    RuleProblem::UnknownMeshAxis {
        rule: rule.to_string(),
        axis: axis.to_owned(),
        mesh: mesh.to_string(),
        suggestion: did_you_mean(axis, mesh.axis_names()),
    }
}

/// What a value is, for the choice of its rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Parameters as they are stored between steps.
    Params,
    /// Parameters and activations as the forward and backward pass use them.
    #[default]
    Compute,
    /// Optimizer state.
    Optimizer,
}

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

    /// The rules of a role.
    pub fn get(&self, role: Role) -> &Rules {
        match role {
            Role::Params => &self.params,
            Role::Compute => &self.compute,
            Role::Optimizer => &self.optimizer,
        }
    }

    /// [`Rules::check_mesh`] for every role. What several roles share is reported once.
    pub fn check_mesh(&self, mesh: &Mesh) -> Result<Vec<Diagnostic>, ShardingError> {
        let mut diagnostics: Vec<Diagnostic> = Vec::new();
        for role in [Role::Params, Role::Compute, Role::Optimizer] {
            for diagnostic in self.get(role).check_mesh(mesh)? {
                if !diagnostics.contains(&diagnostic) {
                    diagnostics.push(diagnostic);
                }
            }
        }
        Ok(diagnostics)
    }
}
