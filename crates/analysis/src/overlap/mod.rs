//! The transfers that a compiled schedule hides: the work that runs beside each collective, in estimated time.
//!
//! The order of a scheduled module's instructions is a time line. Compute moves its clock: an instruction takes its
//! time by roofline ([`cost`](mod@super::cost)), and a loop its body times its trip count. A collective in two halves
//! starts a transfer, and its second half waits for what is left of it. A collective in one piece waits for all of it.
//!
//! | | |
//! |---|---|
//! | transfer time | The time of the bytes sent, over the bandwidth of one ring of links, in all executions. |
//! | exposed | The part of it during which the device waits, for this transfer or another. |
//! | waited for | The time that the device waits at its end, and so for it and no other. |
//! | hidden share | (transfer time - exposed) / transfer time. |
//! | waiting | All the device's waiting time. Transfers over different axes that it waits for at once count once. |
//!
//! - Transfers over the links of one axis queue, first come, first served, so compute hides one of them at a time. A
//!   permute that shifts along an axis takes its links one way, half of them, for each place that it shifts by; all
//!   others go both ways round. A collective over several axes takes the links of all. Collectives whose axes are not
//!   known take those of every axis. On GPUs all axes share the links of the switch. Transfers across slices share the
//!   network.
//! - Second halves that lie beyond the end of the computation are taken to stand at its end.
//! - Each branch of a conditional is followed, and its collectives count as if it were taken each time. The
//!   instructions after the conditional, and transfers beside it, see the branch that computes least.
//! - Copies to and from the host's memory queue for the link to the host, each direction for itself. Where its rate is
//!   not published, as for TPUs, they take no time.
//! - Other copies between memories that run asynchronously, and other asynchronous compute, take no time: they hide
//!   nothing.
//! - A loop with an unknown trip count runs once.
//!
//! The following forms of asynchronous collectives are known. XLA has its own pairs (`all-gather-start`,
//! `async-start`); on GPUs, those whose backend config has `is_sync` are in one piece. libtpu's offload to SparseCores
//! starts without operands and gets them by an update, at which the transfer begins. libtpu's asynchronous collective
//! fusions repeat one collective in a fusion that starts it (`AsyncCollectiveStart`), in those that compute meanwhile,
//! and in one that ends it. These are forms that libtpu 0.0.51 and XLA's GPU plugin were seen to write; they are
//! undocumented.
//!
//! Rates are peak rates, of compute and of links, so times are lower bounds, and the share is an estimate.

mod device_clock;
pub mod events;
mod wiring;

use serde::Serialize;

use super::async_collectives::Sites;
use super::collectives::{ModuleCollective, collectives_at};
use super::cost::CostOptions;
use super::device_walk::DeviceWalk;
use super::estimate::{FROM_HOST, TO_HOST};
use super::host_transfers::{HostCopy, Move};
use super::walk::{Place, Via, Walk};
use crate::Amount;
use device_clock::Simulation;
use events::ScheduleEvents;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto};
use meshloom_hlo::source::{Sources, op_name};

/// More levels of calls than any compiler makes.
const DEPTH_LIMIT: usize = 256;

/// Transfer time, and the part of it that is exposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hidden {
    /// The time of the transfers, in seconds.
    pub seconds: f64,
    /// The part of that time in which the device waits, in seconds.
    pub exposed_seconds: f64,
    /// The time that the device waits for this, in seconds. The sum over all transfers is the time that it waits.
    pub waited_seconds: f64,
}

impl Hidden {
    /// Returns the sum of parts.
    pub fn sum(parts: impl IntoIterator<Item = Hidden>) -> Hidden {
        parts.into_iter().fold(Hidden::default(), |sum, part| Hidden {
            seconds: sum.seconds + part.seconds,
            exposed_seconds: sum.exposed_seconds + part.exposed_seconds,
            waited_seconds: sum.waited_seconds + part.waited_seconds,
        })
    }

    /// Whether something is sent, or waited for: a receiver sends nothing, and waits for its links.
    pub(crate) fn takes_time(&self) -> bool {
        self.seconds > 0.0 || self.waited_seconds > 0.0
    }

    /// Returns the hidden share, from 0 to 1; `None` if nothing is sent.
    pub fn share(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| (1.0 - self.exposed_seconds / self.seconds).clamp(0.0, 1.0))
    }
}

/// An instruction that runs while a transfer is under way.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Beside {
    /// Its name.
    pub name: String,
    /// Its opcode.
    pub op: String,
    /// The time of one execution, in seconds; for a loop, of all its iterations.
    pub seconds: f64,
}

/// A collective on the time line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CollectiveOverlap {
    /// The collective; one in several parts is represented by its first part.
    #[serde(flatten)]
    pub collective: ModuleCollective,
    /// Whether the device waits for all of it.
    pub synchronous: bool,
    /// The times of all its executions.
    #[serde(flatten)]
    pub hidden: Hidden,
    /// The time that the device computes between its start and its end, in all executions, in seconds.
    pub beside_seconds: f64,
    /// The largest instruction between start and end.
    pub largest_beside: Option<Beside>,
}

/// A copy to or from the host's memory on the time line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostCopyOverlap {
    /// [`TO_HOST`] or [`FROM_HOST`].
    pub direction: &'static str,
    /// The bytes of one execution.
    pub bytes: u64,
    /// How often it runs in one run of the program.
    pub executions: Amount,
    /// Whether the device waits for all of it.
    pub synchronous: bool,
    /// The times of all its executions; 0 where the rate of the link to the host is not published.
    #[serde(flatten)]
    pub hidden: Hidden,
    /// The name of the instruction.
    pub name: String,
    /// The name of the computation that it is in.
    pub computation: String,
    /// The scopes and the op of its metadata.
    pub op_name: String,
    /// The line of its source, as `file:line`.
    pub source: Option<String>,
}

impl HostCopyOverlap {
    fn of(
        module: &HloModuleProto,
        (place, instruction, copy): (&Place<'_>, &HloInstructionProto, HostCopy),
        synchronous: bool,
        hidden: Hidden,
    ) -> HostCopyOverlap {
        HostCopyOverlap {
            direction: if copy.direction == Move::ToHost { TO_HOST } else { FROM_HOST },
            bytes: copy.bytes,
            executions: place.executions,
            synchronous,
            hidden,
            name: instruction.name.clone(),
            computation: place.computation.name.clone(),
            op_name: op_name(instruction).to_owned(),
            source: Sources::of(module).line(instruction).map(|line| line.to_string()),
        }
    }
}

/// The time line of a module.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModuleOverlap {
    /// The chip whose rates it has.
    pub chip: &'static str,
    /// The collectives that send something, or that the device waits for, in the order of the program.
    pub transfers: Vec<CollectiveOverlap>,
    /// The sum of all of them.
    pub total: Hidden,
    /// The copies to and from the host's memory.
    pub host_copies: Vec<HostCopyOverlap>,
    /// The time that the device computes, in seconds.
    pub computing_seconds: f64,
    /// The time that it waits for transfers, in seconds.
    pub waiting_seconds: f64,
    /// Whether a loop has an unknown trip count, and counts once.
    pub loops_counted_once: bool,
}

/// The reason why a module has no time line.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverlapError {
    /// The module is not compiled.
    #[error(
        "the module has no schedule, so nothing says what runs beside a collective; compile it first, as by \
         `meshloom compile INPUT --target v5p:2x2x1 -o compiled.txt`, or in JAX by `lowered.compile()`, whose `as_text()` \
         is the compiled module; of an XLA dump, take the module after optimizations"
    )]
    NotScheduled,
    /// No chip was given, or no rates are published for it.
    #[error("no rates are published for {chip}, so transfers have no times; take another chip, such as v5p or h100")]
    NoRates {
        /// Its name.
        chip: String,
    },
    /// Computations are called in too many ways, or too deep.
    #[error("the module's calls are nested too deep, or in too many ways, to follow its schedule")]
    TooManyWays,
}

meshloom_hlo::debug_is_message!(OverlapError);

/// Returns the time line of a scheduled module over a mesh; without one, every collective takes the links of all axes.
///
/// # Errors
/// The module has no schedule, the options have no chip with published rates, or the module cannot be followed.
pub fn overlap(
    module: &HloModuleProto,
    mesh: Option<&Mesh>,
    options: &CostOptions,
) -> Result<ModuleOverlap, OverlapError> {
    Ok(follow(module, mesh, options, None)?.0)
}

/// Returns the same, and at most `most` events of the time line: transfers and waits first, then what computes longest.
///
/// # Errors
/// The errors are those of [`overlap`].
pub fn overlap_with_events(
    module: &HloModuleProto,
    mesh: Option<&Mesh>,
    options: &CostOptions,
    most: usize,
) -> Result<(ModuleOverlap, ScheduleEvents), OverlapError> {
    follow(module, mesh, options, Some(most))
}

fn follow(
    module: &HloModuleProto,
    mesh: Option<&Mesh>,
    options: &CostOptions,
    most: Option<usize>,
) -> Result<(ModuleOverlap, ScheduleEvents), OverlapError> {
    if module.schedule.is_none() {
        return Err(OverlapError::NotScheduled);
    }
    let no_rates =
        || OverlapError::NoRates { chip: options.chip.map_or("an unknown chip", |chip| chip.name).to_owned() };
    let chip = options.chip.filter(|chip| chip.memory_bandwidth.is_some()).ok_or_else(no_rates)?;
    let walk = Walk::of(module);
    if walk.is_merged() || is_deep(&walk) {
        return Err(OverlapError::TooManyWays);
    }
    let device_walk = DeviceWalk::undecided(walk, options.devices);
    let walk = device_walk.walk();
    let sites = Sites::of(walk);
    let found = collectives_at(&sites, &device_walk, Sources::of(module));
    let entries = match mesh {
        Some(mesh) => found.along(mesh).entries,
        None => found.entries,
    };
    let mut simulation = Simulation::new(module, walk, sites, entries, options).ok_or_else(no_rates)?;
    if most.is_some() {
        simulation.record();
    }
    simulation.run();
    let (computing_seconds, waiting_seconds) = simulation.seconds();
    let events = most.map(|most| simulation.events(most)).unwrap_or_default();
    let (mut transfers, host_copies) = simulation.finish();
    transfers.retain(|transfer| transfer.hidden.takes_time());
    let total = Hidden::sum(transfers.iter().map(|transfer| transfer.hidden));
    let is_loop = |place: usize| walk.places()[place].caller.is_some_and(|caller| caller.via == Via::LoopBody);
    let loops_counted_once = (0..walk.places().len()).any(|place| is_loop(place) && walk.trip_count(place).is_none());
    let found = ModuleOverlap {
        chip: chip.name,
        transfers,
        total,
        host_copies,
        computing_seconds,
        waiting_seconds,
        loops_counted_once,
    };
    Ok((found, events))
}

fn is_deep(walk: &Walk<'_>) -> bool {
    let mut depths = Vec::with_capacity(walk.places().len());
    // A place follows its caller.
    for place in walk.places() {
        depths.push(place.caller.map_or(0, |caller| depths[caller.place] + 1));
    }
    depths.into_iter().any(|depth: usize| depth > DEPTH_LIMIT)
}
