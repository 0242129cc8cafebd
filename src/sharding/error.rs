//! Errors of meshes, specs and rules.

use meshloom_hlo::mesh::MeshError;
use meshloom_hlo::message::counted;

use super::rules::{RuleFileError, RuleProblem, SettingNames};
use crate::ir::SpecError;

/// An error in a mesh, a spec or the axis rules. All of them are the user's to fix.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardingError {
    /// What is wrong with the mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// What is wrong with a spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// As many names as dimensions are needed.
    #[error(
        "tensor {tensor:?} has {} but {}; give one name, or none, per dimension",
        counted(*.rank, "dimension"), counted(*.names, "logical axis name")
    )]
    NameCount {
        /// The tensor.
        tensor: String,
        /// Its rank.
        rank: usize,
        /// Names given.
        names: usize,
    },
    /// One logical name on two dimensions.
    #[error(
        "tensor {tensor:?} has logical axis {name:?} on dimensions {first} and {second}; a name may occur once in a tensor"
    )]
    DuplicateName {
        /// The tensor.
        tensor: String,
        /// The repeated name.
        name: String,
        /// The first dimension.
        first: usize,
        /// The second dimension.
        second: usize,
    },
    /// No such preset.
    #[error("there is no rule preset {name:?}{suggestion}; known presets: {known}")]
    UnknownPreset {
        /// The name asked for.
        name: String,
        /// Empty, or a nearby name.
        suggestion: String,
        /// The presets there are.
        known: String,
    },
    /// A problem with the rules, in strict mode.
    #[error("{}", .problem.refusal(.settings))]
    Rule {
        /// The problem.
        problem: Box<RuleProblem>,
        /// What the message calls the settings.
        settings: SettingNames,
    },
    /// A rule file that cannot be read.
    #[error(transparent)]
    RuleFile {
        /// What is wrong with it, and where.
        error: Box<RuleFileError>,
    },
    /// One axis twice in one rule.
    #[error("rule {rule} names mesh axis {axis:?} twice; an axis can split a dimension once")]
    RuleAxisTwice {
        /// The rule.
        rule: String,
        /// The repeated axis.
        axis: String,
    },
}

meshloom_hlo::debug_is_message!(ShardingError);
