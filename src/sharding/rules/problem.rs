//! The problems that rules may have: errors when they are strict, warnings with a fallback when they are not.

use std::fmt;

/// Something in the rules that is probably not what was meant.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
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
        "tensor {tensor:?}: dimension {dim} ({name:?}) of size {size} cannot be split {parts} ways by rule {rule} on the mesh {mesh:?}; {}",
        advice(.name)
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
        "mesh axis {axis:?} of size {size} splits no parameter and no activation, so its devices repeat each other's work; name it in a rule or drop it from the mesh {mesh:?}{suggestion}"
    )]
    UnusedMeshAxis {
        /// The axis.
        axis: String,
        /// Its size.
        size: usize,
        /// The mesh.
        mesh: String,
        /// Empty, or a nearby axis that the rules name.
        suggestion: String,
    },
}

meshloom_hlo::debug_is_message!(RuleProblem);

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

/// What to do about a dimension that does not divide.
fn advice(name: &str) -> &'static str {
    match name {
        // Grouped-query attention has few of them, so that a `tensor` axis soon has more devices.
        "kv_heads" | "activation_kv_heads" => {
            "give these axes a size that divides it and the other devices to another axis, or have every device hold all key \
             and value heads, by the rules [\"kv_heads\", []] and [\"activation_kv_heads\", []] before this one"
        }
        _ => "change the size, the mesh or the rule, or allow it to be padded (rules.uneven = true)",
    }
}
