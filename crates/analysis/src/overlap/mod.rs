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
//! - Copies between memories that run asynchronously, and other asynchronous compute, take no time: they hide nothing.
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

use serde::Serialize;

use super::async_collectives::Sites;
use super::collectives::{ModuleCollective, collectives_at};
use super::cost::CostOptions;
use super::device_walk::DeviceWalk;
use super::walk::{Via, Walk};
use device_clock::Simulation;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProto;
use meshloom_hlo::source::Sources;

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

/// The time line of a module.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModuleOverlap {
    /// The chip whose rates it has.
    pub chip: &'static str,
    /// The collectives that send something, in the order of the program.
    pub transfers: Vec<CollectiveOverlap>,
    /// The sum of all of them.
    pub total: Hidden,
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
         `meshloom compile INPUT --target v5p:2x2x1 -o compiled.txt`"
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
    simulation.run();
    let (mut transfers, computing_seconds, waiting_seconds) = simulation.finish();
    transfers.retain(|transfer| transfer.hidden.seconds > 0.0);
    let total = Hidden::sum(transfers.iter().map(|transfer| transfer.hidden));
    let is_loop = |place: usize| walk.places()[place].caller.is_some_and(|caller| caller.via == Via::LoopBody);
    let loops_counted_once = (0..walk.places().len()).any(|place| is_loop(place) && walk.trip_count(place).is_none());
    Ok(ModuleOverlap { chip: chip.name, transfers, total, computing_seconds, waiting_seconds, loops_counted_once })
}

fn is_deep(walk: &Walk<'_>) -> bool {
    let mut depths = Vec::with_capacity(walk.places().len());
    // A place follows its caller.
    for place in walk.places() {
        depths.push(place.caller.map_or(0, |caller| depths[caller.place] + 1));
    }
    depths.into_iter().any(|depth: usize| depth > DEPTH_LIMIT)
}
