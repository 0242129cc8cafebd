//! The problems that rules may have: errors when they are strict, warnings with a fallback when they are not.

use std::fmt;

use meshloom_hlo::message::{counted, human_bytes, listed};

/// The names of settings in the messages that advise to change them: names that the reader of the message knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingNames {
    /// Makes problems of rules warnings.
    pub lenient: &'static str,
    /// Lets a dimension be split that its axes do not divide.
    pub uneven: &'static str,
    /// Lets every device hold a value whole, if an op cannot work on its parts.
    pub replication: &'static str,
}

/// The names in Rust.
impl Default for SettingNames {
    fn default() -> SettingNames {
        SettingNames {
            lenient: "`Rules::with_strict(false)`",
            uneven: "`Rules::with_uneven(true)`",
            replication: "`LowerOptions::deny_replication = false`",
        }
    }
}

/// A probable mistake in the rules.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum RuleProblem {
    /// A rule names an axis that the mesh does not have.
    #[error("rule {rule} names mesh axis {axis:?}, which the mesh {mesh:?} does not have{suggestion}")]
    UnknownMeshAxis { rule: String, axis: String, mesh: String, suggestion: String },
    /// A dimension that its axes do not divide.
    #[error(
        "tensor {tensor:?}: dimension {dim} ({name:?}) of size {size} cannot be split {parts} ways by rule {rule} on the mesh {mesh:?}"
    )]
    NotDivisible {
        tensor: String,
        dim: usize,
        name: String,
        size: usize,
        parts: usize,
        rule: String,
        mesh: String,
        /// The axes that remain in lenient mode.
        kept: String,
    },
    /// Two rules wanted one mesh axis for one tensor, and the later one had nothing else.
    #[error(
        "tensor {tensor:?}: dimension {dim} ({name:?}) stays unsplit, because rule {rule} wants mesh axis {axis:?}, which dimension {taken_dim} already has by rule {taken_rule}; add a rule for {name:?} with other axes, or with none"
    )]
    Clash {
        tensor: String,
        dim: usize,
        name: String,
        rule: String,
        axis: String,
        taken_dim: usize,
        taken_rule: String,
        /// Whether both rules are of presets or rule files. Such rules are written for this case, so it is not an
        /// error.
        published: bool,
    },
    /// A mesh axis that splits nothing.
    #[error(
        "mesh axis {axis:?} of size {size} splits no parameter and no activation, so its devices repeat each other's work; name it in a rule or drop it from the mesh {mesh:?}{suggestion}"
    )]
    UnusedMeshAxis { axis: String, size: usize, mesh: String, suggestion: String },
    /// The user's own rule has a name that no tensor has, but a tensor has nearly the same one.
    #[error("no tensor has the logical axis of rule {rule}; did you mean {meant:?}, as {tensor:?} has it?")]
    MisspelledRule { rule: String, meant: String, tensor: String },
    /// A tensor has a name that no rule has, but a rule has nearly the same one.
    #[error(
        "tensor {tensor:?} has logical axis {name:?}, which no rule names; did you mean {meant:?}, as rule {rule} has it?"
    )]
    MisspelledAxis { tensor: String, name: String, meant: String, rule: String },
}

meshloom_hlo::debug_is_message!(RuleProblem);

impl RuleProblem {
    /// The problem as an error: what to do about it, and what lenient rules would do.
    pub(super) fn refusal(&self, settings: &SettingNames) -> String {
        format!("{self}{}; or use {} to {}", self.advice(settings), settings.lenient, self.fallback())
    }

    /// The advice to change a setting, if a setting helps.
    fn advice(&self, settings: &SettingNames) -> String {
        match self {
            // Grouped-query attention has few of them, so that a `tensor` axis soon has more devices.
            RuleProblem::NotDivisible { name, .. } if name == "kv_heads" || name == "activation_kv_heads" => {
                "; give these axes a size that divides it and the other devices to another axis, or have every device hold all \
                 key and value heads, by the rules [\"kv_heads\", []] and [\"activation_kv_heads\", []] before this one"
                    .to_owned()
            }
            RuleProblem::NotDivisible { .. } => {
                format!("; change the size, the mesh or the rule, or allow it to be padded ({})", settings.uneven)
            }
            _ => String::new(),
        }
    }

    /// Whether strict rules refuse it.
    pub(super) fn is_error(&self) -> bool {
        !matches!(self, RuleProblem::Clash { published: true, .. })
    }

    /// The tensor whose problem it is, where others may have the same.
    fn tensor(&self) -> Option<&str> {
        match self {
            RuleProblem::NotDivisible { tensor, .. } | RuleProblem::Clash { tensor, .. } => Some(tensor),
            _ => None,
        }
    }

    /// Whether this is the same problem of another tensor.
    fn is_alike(&self, other: &RuleProblem) -> bool {
        let (Some(_), Some(name)) = (self.tensor(), other.tensor()) else { return false };
        // A published rule that gives way does so in many tensors, to rules of several names.
        if let (
            RuleProblem::Clash { rule, axis, published: true, .. },
            RuleProblem::Clash { rule: other, axis: wanted, published: true, .. },
        ) = (self, other)
        {
            return (rule, axis) == (other, wanted);
        }
        let mut renamed = self.clone();
        if let RuleProblem::NotDivisible { tensor, .. } | RuleProblem::Clash { tensor, .. } = &mut renamed {
            name.clone_into(tensor);
        }
        renamed == *other
    }

    /// The action of lenient mode instead, as a verb phrase.
    pub fn fallback(&self) -> String {
        match self {
            RuleProblem::UnknownMeshAxis { axis, .. } => format!("ignore {axis:?}"),
            RuleProblem::NotDivisible { kept, .. } if kept.is_empty() => "leave the dimension unsplit".to_owned(),
            RuleProblem::NotDivisible { kept, .. } => format!("split it over {kept} alone"),
            RuleProblem::Clash { .. } => "leave the dimension unsplit".to_owned(),
            RuleProblem::UnusedMeshAxis { .. } => "let them".to_owned(),
            RuleProblem::MisspelledRule { .. } => "let the rule split nothing".to_owned(),
            RuleProblem::MisspelledAxis { .. } => "leave the dimension unsplit".to_owned(),
        }
    }
}

/// A fact about the rules that the user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum Diagnostic {
    /// A problem and its fallback: either the rules are not strict, or published rules make it harmless.
    Fallback {
        problem: RuleProblem,
        settings: SettingNames,
        /// Other tensors that have the same problem.
        others: Vec<String>,
    },
    /// Rules of the user's own whose names no tensor has.
    UnusedRules { rules: Vec<String> },
    /// Names of tensors that no rule has, where all rules are the user's own.
    AxesWithoutRule { names: Vec<String> },
    /// A name of a large parameter that no rule has.
    LargeWithoutRule {
        name: String,
        /// The path of the first such parameter.
        parameter: String,
        bytes: usize,
    },
    /// Keys of a rule file that do not concern rules.
    SkippedKeys { file: String, keys: Vec<String> },
}

impl Diagnostic {
    /// Merges diagnostics that several tensors have in common: each is reported once, for the first tensor.
    pub(super) fn merged(all: Vec<Diagnostic>) -> Vec<Diagnostic> {
        let mut merged: Vec<Diagnostic> = Vec::new();
        for diagnostic in all {
            let alike = merged.iter_mut().find_map(|earlier| match (earlier, &diagnostic) {
                (Diagnostic::Fallback { problem, others, .. }, Diagnostic::Fallback { problem: next, .. }) => {
                    problem.is_alike(next).then_some((problem.tensor()?, others, next.tensor()?))
                }
                _ => None,
            });
            if let Some((first, others, tensor)) = alike {
                if first != tensor && !others.iter().any(|other| other == tensor) {
                    others.push(tensor.to_owned());
                }
            } else if !merged.contains(&diagnostic) {
                merged.push(diagnostic);
            }
        }
        merged
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Diagnostic::Fallback { problem, settings, others } => {
                let (advice, fallback) = (problem.advice(settings), problem.fallback());
                let reason = match problem.is_error() {
                    true => "the rules are not strict",
                    false => "published rules may clash",
                };
                write!(f, "{problem}{advice}; {reason}, so meshloom will {fallback}")?;
                match others.len() {
                    0 => Ok(()),
                    count => write!(f, " (also of {})", counted(count, "other tensor")),
                }
            }
            Diagnostic::UnusedRules { rules } => {
                write!(f, "no tensor of this program has the logical axis of {}", listed("rule", rules))
            }
            Diagnostic::AxesWithoutRule { names } => {
                write!(f, "no rule names {}, so dimensions of that name stay unsplit", listed("logical axis", names))
            }
            Diagnostic::LargeWithoutRule { name, parameter, bytes } => {
                write!(
                    f,
                    "parameter {parameter:?} of {} has logical axis {name:?}, which no rule names, so it is not split along it; \
                     add a rule for {name:?} with mesh axes, or with none if it is to stay whole",
                    human_bytes(*bytes as u64)
                )
            }
            Diagnostic::SkippedKeys { file, keys } => {
                write!(f, "{file} has more than rules and mesh axes; skipped: {}", listed("key", keys))
            }
        }
    }
}
