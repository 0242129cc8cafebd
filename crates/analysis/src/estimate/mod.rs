//! The time that a step takes, estimated before anything is compiled.
//!
//! The program of one device, as meshloom lowers it, has every collective and every product, but no fusions and no
//! schedule. The estimate makes both as a compiler would:
//!
//! - A value that is computed inside its readers costs no memory traffic (the model of the [memory](super::memory())
//!   analysis). A kernel takes the longer of its operations and its bytes, at the parts of the peak rates that programs
//!   reach ([`Reached`]), and products fill the tiles of the matrix unit.
//! - A collective takes its bytes along the wires that join its group: the mesh is cut out of the hardware as
//!   [`device_order`](meshloom_hlo::mesh::device_order) does, so a group lies along a ring, a line, a switch, or the
//!   network between hosts or slices. Groups that lie between one another share links.
//! - Collectives run beside instructions that do not need their results. Collectives over the same axes take turns.
//! - Moves to and from the host's memory take turns as well, where the rate of the link to the host is known.
//! - Where stages of a pipeline branch, an iteration takes as long as on the stage with most to do: bubbles are the
//!   waiting times of the others.
//!
//! docs/plan.md compares the estimates with published runs and with measured steps.

mod hardware;
mod kernels;
mod timeline;
mod wires;

use indexmap::IndexSet;
use serde::Serialize;

use super::async_collectives::Sites;
use super::collectives::{ModuleCollective, collectives_at};
use super::device_walk::DeviceWalk;
use super::devices::Devices;
use super::host_transfers::{Move, move_of};
use super::size::shape_bytes;
pub use hardware::{Cache, Dimension, Hardware, Reached, UnknownRate, Wire};
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProto;
use meshloom_hlo::sort;
use meshloom_hlo::source::Sources;
use timeline::{Timeline, Transfer, Transfers};
use wires::Wires;

/// The estimated time of a step, and what it is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// The time from start to end, in seconds.
    pub seconds: f64,
    /// The time of computing, on the device that does most.
    pub computing: f64,
    /// The time of waiting for collectives.
    pub waiting: f64,
    /// The time of waiting for other stages: bubbles.
    pub idle: f64,
    /// The collectives over the same axes, those that the device waits for longest first.
    pub transfers: Vec<TransferTime>,
    /// The kernels that take longest, in all executions.
    pub largest: Vec<KernelTime>,
}

/// The time of an instruction with everything that is fused into it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelTime {
    /// The instruction.
    pub name: String,
    /// Its opcode.
    pub op: String,
    /// The scopes and the op of its metadata.
    pub op_name: String,
    /// How often it runs, as far as that is known.
    pub executions: u64,
    /// The time of all executions, in seconds.
    pub seconds: f64,
}

/// The name of moves to the host's memory among the transfers.
pub const TO_HOST: &str = "to the host";

/// The name of moves from the host's memory among the transfers.
pub const FROM_HOST: &str = "from the host";

/// The collectives over the same mesh axes, or the moves of one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferTime {
    /// The axes, joined by commas; `?` where devices do not lie along axes; [`TO_HOST`] and [`FROM_HOST`] for moves.
    pub axes: String,
    /// The time of the transfers, in seconds.
    pub seconds: f64,
    /// The part of that time during which the device waits.
    pub waiting: f64,
}

/// The reason why the time of a module cannot be estimated.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum EstimateError {
    /// The mesh does not fill the hardware.
    #[error(
        "the mesh {mesh} has {found} devices in an arrangement that the hardware does not have: {expected} devices"
    )]
    Arrangement {
        /// The mesh.
        mesh: String,
        /// The number of its devices.
        found: usize,
        /// The number of devices that the hardware has.
        expected: usize,
    },
    /// Computations are called in too many ways.
    #[error("the module's calls are nested in too many ways to follow them")]
    TooManyWays,
}

meshloom_hlo::debug_is_message!(EstimateError);

/// Returns where a mesh lies in the hardware: for each axis the number of its devices in each dimension, and along a
/// torus the distance of neighbours (elsewhere 1). A program takes the same time on meshes whose axes lie in the same
/// place. The result is `None` if the mesh does not fill the hardware.
pub fn placement(mesh: &Mesh, hardware: &Hardware) -> Option<Vec<Vec<(usize, usize)>>> {
    Some(Wires::new(mesh, hardware)?.placement())
}

/// Estimates the time of one run of an uncompiled module that is partitioned over a mesh.
///
/// # Errors
/// The mesh does not fit the hardware, or the module cannot be followed.
pub fn estimate(module: &HloModuleProto, mesh: &Mesh, hardware: &Hardware) -> Result<StepTime, EstimateError> {
    let devices = Devices::partitioned(mesh.device_count());
    estimate_walk(&DeviceWalk::of(module, devices), module, mesh, hardware)
}

/// Estimates the same for a module that has been [walked on](DeviceWalk::of) the devices of the mesh.
///
/// # Errors
/// The errors are those of [`estimate`].
pub fn estimate_walk(
    device_walk: &DeviceWalk<'_>,
    module: &HloModuleProto,
    mesh: &Mesh,
    hardware: &Hardware,
) -> Result<StepTime, EstimateError> {
    let devices = Devices::partitioned(mesh.device_count());
    let walk = device_walk.walk();
    if walk.is_merged() {
        return Err(EstimateError::TooManyWays);
    }
    let arrangement = || EstimateError::Arrangement {
        mesh: mesh.to_string(),
        found: mesh.device_count(),
        expected: hardware.device_count(),
    };
    let wires = Wires::new(mesh, hardware).ok_or_else(arrangement)?;
    let sites = Sites::of(walk);
    let entries = collectives_at(&sites, device_walk, Sources::of(module)).along(mesh).entries;
    let mut names: IndexSet<String> = IndexSet::new();
    let mut class = |name: String| names.insert_full(name).0;
    let axes = |entry: &ModuleCollective| match &entry.axes {
        Some(axes) => axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        None => "?".to_owned(),
    };
    let classes: Vec<usize> = entries.iter().map(|entry| class(axes(entry))).collect();
    let mut transfers = Transfers::default();
    for step in walk.steps() {
        let of_collective = sites.starting(step).and_then(|site| {
            let seconds = wires.seconds(entries.get(site.collective)?);
            Some(Transfer { class: *classes.get(site.collective)?, seconds })
        });
        let transfer = of_collective.or_else(|| {
            let name = if move_of(step.instruction)? == Move::ToHost { TO_HOST } else { FROM_HOST };
            let bytes = shape_bytes(step.instruction.shape.as_ref()?)?;
            let seconds = hardware.launch + bytes as f64 / hardware.host_rate()?;
            Some(Transfer { class: class(name.to_owned()), seconds })
        });
        transfers.extend(transfer.map(|transfer| ((step.place_number, step.position), transfer)));
    }
    let mut line = Timeline::new(device_walk, transfers, (hardware, devices));
    let stretch = line.run();
    let largest = line.largest();
    let of = |values: &[f64], class: usize| values.get(class).copied().unwrap_or(0.0);
    let transfer = |(class, axes): (usize, String)| TransferTime {
        axes,
        seconds: of(&stretch.sending, class),
        waiting: of(&stretch.waiting, class),
    };
    let mut transfers: Vec<TransferTime> = names.into_iter().enumerate().map(transfer).collect();
    transfers.retain(|transfer| transfer.seconds > 0.0);
    sort::by(&mut transfers, |a, b| b.waiting.total_cmp(&a.waiting).then_with(|| b.seconds.total_cmp(&a.seconds)));
    let waiting = transfers.iter().map(|transfer| transfer.waiting).sum();
    Ok(StepTime {
        seconds: stretch.seconds,
        computing: stretch.computing,
        waiting,
        idle: stretch.idle,
        transfers,
        largest,
    })
}
