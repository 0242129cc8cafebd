//! Errors of meshes, specs and rules.

use meshloom_hlo::mesh::MeshError;
use meshloom_hlo::message::counted;

use super::problem::{RuleProblem, SettingNames};
use crate::ir::SpecError;

/// An error in a mesh, a spec or the axis rules. All of them are the user's to fix.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum ShardingError {
    /// An error in the mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// An error in a spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The number of names differs from the number of dimensions.
    #[error(
        "tensor {tensor:?} has {} but {}; give one name, or none, per dimension",
        counted(*.rank, "dimension"), counted(*.names, "logical axis name")
    )]
    NameCount { tensor: String, rank: usize, names: usize },
    /// One logical name on two dimensions.
    #[error(
        "tensor {tensor:?} has logical axis {name:?} on dimensions {first} and {second}; a name may occur once in a tensor"
    )]
    DuplicateName { tensor: String, name: String, first: usize, second: usize },
    /// No such preset.
    #[error("there is no rule preset {name:?}{suggestion}; known presets: {known}")]
    UnknownPreset { name: String, suggestion: String, known: String },
    /// A problem with the rules, in strict mode.
    #[error("{}", .problem.refusal(.settings))]
    Rule { problem: Box<RuleProblem>, settings: SettingNames },
    /// A rule file that cannot be read.
    #[error(transparent)]
    RuleFile { error: Box<RuleFileError> },
    /// One axis twice in one rule.
    #[error("rule {rule} names mesh axis {axis:?} twice; an axis can split a dimension once")]
    RuleAxisTwice { rule: String, axis: String },
}

meshloom_hlo::debug_is_message!(ShardingError);

/// A problem of a rule file, with its place.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {problem}")]
pub struct RuleFileError {
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// The problem.
    pub problem: RuleFileProblem,
}

meshloom_hlo::debug_is_message!(RuleFileError);

/// A problem of a rule file.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum RuleFileProblem {
    /// The text is not YAML.
    #[error("this is not YAML: {0}")]
    Syntax(String),
    /// A key that is nearly one of a rule file, or no name at all.
    #[error("unknown key {key:?}{suggestion}; a rule file has {}", RULE_FILE_KEYS.join(", "))]
    UnknownKey { key: String, suggestion: String },
    /// There are no rules.
    #[error("there is no logical_axis_rules; a rule file needs it, as in logical_axis_rules: [['embed', ['fsdp']]]")]
    NoRules,
    /// A value of the wrong type.
    #[error("{what} is {found}, but must be {expected}")]
    WrongType { what: String, found: String, expected: String },
    /// A mesh axis that `mesh_axes` does not have.
    #[error("{what} names mesh axis {axis:?}, which is not in mesh_axes{suggestion}; mesh_axes has {known}")]
    UnknownAxis { what: String, axis: String, suggestion: String, known: String },
    /// A mesh axis twice in one list.
    #[error("{what} names mesh axis {axis:?} twice; an axis can split a dimension once")]
    AxisTwice { what: String, axis: String },
}

meshloom_hlo::debug_is_message!(RuleFileProblem);

/// The keys of a rule file that say something of rules.
pub(super) const RULE_FILE_KEYS: [&str; 5] =
    ["mesh_axes", "logical_axis_rules", "data_sharding", "context_sharding", "input_data_sharding_logical_axes"];
