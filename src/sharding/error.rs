//! What can be wrong with a mesh, a spec or a rule.

use super::rules::{RuleFileError, RuleProblem};

/// An error in a mesh, a spec or the axis rules. All of them are the user's to fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardingError {
    /// A part of the mesh text is not `name=size`.
    #[error(
        "mesh {text:?}: {part:?} is not an axis; write name=size with a size of at least 1, or -1 to fill up, as in \"data=2,fsdp=4\""
    )]
    MeshSyntax {
        /// The whole text.
        text: String,
        /// The part that does not parse.
        part: String,
    },
    /// Two axes of one name.
    #[error("mesh {text:?}: axis {axis:?} occurs twice; axis names must be unique")]
    DuplicateAxis {
        /// The mesh as text.
        text: String,
        /// The repeated name.
        axis: String,
    },
    /// More than one size of -1.
    #[error("mesh {text:?}: {first:?} and {second:?} both have size -1; only one axis can fill up the devices")]
    TwoFills {
        /// The mesh as text.
        text: String,
        /// The first axis with -1.
        first: String,
        /// The second axis with -1.
        second: String,
    },
    /// The sizes given do not divide the devices, so -1 has no value.
    #[error(
        "mesh {text:?}: axis {axis:?} of size -1 cannot fill up, because the other axes take {others} devices and {devices} is not a multiple of that"
    )]
    FillDoesNotDivide {
        /// The mesh as text.
        text: String,
        /// The axis with -1.
        axis: String,
        /// Product of the other sizes.
        others: usize,
        /// Devices there are.
        devices: usize,
    },
    /// The product of the sizes is not the number of devices.
    #[error(
        "mesh {text:?} has {product} devices, but there are {devices}; change a size, or give one axis -1 to fill up"
    )]
    DeviceCount {
        /// The mesh as text.
        text: String,
        /// Product of the sizes.
        product: usize,
        /// Devices there are.
        devices: usize,
    },
    /// More axes or devices than a mesh can have.
    #[error(
        "mesh {text:?} is too large: at most {} axes, and a device count that fits in 32 bits",
        super::Mesh::MAX_AXES
    )]
    MeshTooLarge {
        /// The mesh as text.
        text: String,
    },
    /// A part of the DCN text is not `name=size`.
    #[error("dcn {text:?}: {part:?} is not name=size with a size of at least 1, as in \"diloco=2\"")]
    DcnSyntax {
        /// The whole text.
        text: String,
        /// The part that does not parse.
        part: String,
    },
    /// An axis cannot be cut into as many parts as are to cross slices.
    #[error(
        "dcn {text:?}: axis {axis:?} has size {size}, which {parts} does not divide; a part of an axis crosses slices"
    )]
    DcnDoesNotDivide {
        /// The DCN text.
        text: String,
        /// The axis.
        axis: String,
        /// Its size.
        size: usize,
        /// Parts it is to be cut into.
        parts: usize,
    },
    /// The axes cross another number of slices than there are.
    #[error(
        "mesh {mesh:?} with dcn {dcn:?} crosses {crossed} slices, but the devices are in {slices}; give mesh.dcn axes, or factors of them, whose product is {slices}"
    )]
    DcnSlices {
        /// The mesh as text.
        mesh: String,
        /// The DCN text.
        dcn: String,
        /// Slices that the mesh crosses.
        crossed: usize,
        /// Slices there are.
        slices: usize,
    },
    /// Slices with different numbers of devices.
    #[error(
        "slice {} has {} devices, but slice {} has {}; a mesh needs as many of every slice",
        .first.0, .first.1, .other.0, .other.1
    )]
    UnequalSlices {
        /// A slice and its number of devices.
        first: (i64, usize),
        /// Another.
        other: (i64, usize),
    },
    /// Fewer devices than the mesh has places.
    #[error("mesh {mesh:?} needs {needed} devices, but there are {devices}; use a smaller mesh or more devices")]
    TooFewDevices {
        /// The mesh as text.
        mesh: String,
        /// Devices it needs.
        needed: usize,
        /// Devices there are.
        devices: usize,
    },
    /// No axis of that name.
    #[error("the mesh {mesh:?} has no axis {axis:?}{suggestion}")]
    UnknownAxis {
        /// The mesh as text.
        mesh: String,
        /// The name asked for.
        axis: String,
        /// Empty, or a nearby name.
        suggestion: String,
    },
    /// A mesh axis occurs twice in one spec.
    #[error("spec {spec} uses mesh axis {axis:?} twice; an axis can split one dimension, or be unreduced, once")]
    AxisTwice {
        /// The spec as text.
        spec: String,
        /// The repeated axis.
        axis: String,
    },
    /// A spec holds an axis number that its mesh does not have.
    #[error("spec {spec} refers to mesh axis number {axis}, but the mesh {mesh:?} has {count}")]
    AxisOutOfRange {
        /// The spec as text.
        spec: String,
        /// The axis number.
        axis: usize,
        /// The mesh as text.
        mesh: String,
        /// Axes there are.
        count: usize,
    },
    /// The spec has another rank than the value.
    #[error("spec {spec} has {spec_rank} dimensions, but the value has {rank}")]
    Rank {
        /// The spec as text.
        spec: String,
        /// Dimensions of the spec.
        spec_rank: usize,
        /// Dimensions of the value.
        rank: usize,
    },
    /// A dimension is not a multiple of the devices that it is split over.
    #[error("dimension {dim} of size {size} cannot be split by {spec} into {parts} equal parts")]
    NotDivisible {
        /// The spec as text.
        spec: String,
        /// The dimension.
        dim: usize,
        /// Its size.
        size: usize,
        /// Parts it is to be split into.
        parts: usize,
    },
    /// As many names as dimensions are needed.
    #[error(
        "tensor {tensor:?} has {rank} dimensions but {names} logical axis names; give one name, or none, per dimension"
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
    #[error("{problem}; or set rules.strict = false to {}", .problem.fallback())]
    Rule {
        /// The problem.
        problem: Box<RuleProblem>,
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
