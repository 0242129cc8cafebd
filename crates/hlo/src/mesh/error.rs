//! The errors of meshes.

use crate::message::counted;

/// An error in a mesh, or in how it fits the devices. All of them are the user's to fix.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum MeshError {
    /// A part of the mesh text is not `name=size`.
    #[error(
        "mesh {text:?}: {part:?} is not an axis; write name=size with a size of at least 1, or -1 to fill up, as in \"data=2,fsdp=4\""
    )]
    MeshSyntax { text: String, part: String },
    /// Two axes of one name.
    #[error("mesh {text:?}: axis {axis:?} occurs twice; axis names must be unique")]
    DuplicateAxis { text: String, axis: String },
    /// More than one size of -1.
    #[error("mesh {text:?}: {first:?} and {second:?} both have size -1; only one axis can fill up the devices")]
    TwoFills { text: String, first: String, second: String },
    /// The sizes given do not divide the devices, so -1 has no value.
    #[error(
        "mesh {text:?}: axis {axis:?} of size -1 cannot fill up, because the other axes take {} and {devices} is not a multiple of that",
        counted(*.others, "device")
    )]
    FillDoesNotDivide { text: String, axis: String, others: usize, devices: usize },
    /// The product of the sizes is not the number of devices.
    #[error(
        "mesh {text:?} has {product} {}, but there are {devices}; change a size, or give one axis -1 to fill up",
        if *product == 1 { "device" } else { "devices" }
    )]
    DeviceCount { text: String, product: usize, devices: usize },
    /// More axes or devices than a mesh can have.
    #[error(
        "mesh {text:?} is too large: at most {} axes, and a device count that fits in 32 bits",
        super::Mesh::MAX_AXES
    )]
    MeshTooLarge { text: String },
    /// A part of the DCN text is not `name=size`.
    #[error("dcn {text:?}: {part:?} is not name=size with a size of at least 1, as in \"diloco=2\"")]
    DcnSyntax { text: String, part: String },
    /// An axis cannot be cut into the number of parts that are to cross slices.
    #[error(
        "dcn {text:?}: axis {axis:?} has size {size}, which {parts} does not divide; a part of an axis crosses slices"
    )]
    DcnDoesNotDivide { text: String, axis: String, size: usize, parts: usize },
    /// The axes cross another number of slices than there are.
    #[error(
        "mesh {mesh:?} with dcn {dcn:?} crosses {crossed} slices, but the devices are in {slices}; give mesh.dcn axes, or factors of them, whose product is {slices}"
    )]
    DcnSlices { mesh: String, dcn: String, crossed: usize, slices: usize },
    /// Slices with different numbers of devices.
    #[error(
        "slice {} has {} devices, but slice {} has {}; a mesh needs as many of every slice",
        .first.0, .first.1, .other.0, .other.1
    )]
    UnequalSlices {
        /// A slice and its number of devices.
        first: (i64, usize),
        other: (i64, usize),
    },
    /// Fewer devices than the mesh has places.
    #[error("mesh {mesh:?} needs {needed} devices, but there are {devices}; use a smaller mesh or more devices")]
    TooFewDevices { mesh: String, needed: usize, devices: usize },
    /// The devices of a process are no part of the mesh.
    #[error("mesh {mesh:?} cannot lie in {processes} processes: {}", why_not(*.processes, *.devices, .axis.as_ref()))]
    Processes {
        mesh: String,
        processes: usize,
        devices: usize,
        /// The axis, and its size, that would lie neither within a process nor across; none where processes would have
        /// different numbers of devices.
        axis: Option<(String, usize)>,
    },
    /// No axis of that name.
    #[error("the mesh {mesh:?} has no axis {axis:?}{suggestion}")]
    UnknownAxis {
        mesh: String,
        axis: String,
        /// Empty, or a nearby name.
        suggestion: String,
    },
}

crate::debug_is_message!(MeshError);

fn why_not(processes: usize, devices: usize, axis: Option<&(String, usize)>) -> String {
    match axis {
        Some((axis, size)) => format!(
            "of axis {axis:?} of size {size}, {} devices of a process would be a part that does not divide it; change the order or the sizes of the axes",
            devices / processes.max(1)
        ),
        None => format!("they would not have equal parts of its {}", counted(devices, "device")),
    }
}
