//! The figures of a variant whose train step was lowered.

use indexmap::IndexMap;
use meshloom::analysis::memory::upper;
use meshloom::analysis::{DeviceWalk, Devices, ModuleMemory, StepTime, estimate_walk, memory_of_walk};
use meshloom::hlo::source::Sources;
use meshloom::partition::{CollectiveKind, Ledger};
use meshloom::transform::pipeline::{Counts, Timeline};
use meshloom_train::Error;
use meshloom_train::config::{PartitionMode, RunConfig};
use serde::Serialize;

use super::sequences::DeviceScores;
use super::{Hardware, SearchError, Variant};

/// A variant of a config whose train step was lowered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoweredPlan {
    /// The variant.
    #[serde(flatten)]
    pub plan: Variant,
    /// True for what the config says.
    #[serde(rename = "configured")]
    pub is_configured: bool,
    /// Its step, by the estimate; `None` where the hardware is not known.
    #[serde(flatten)]
    pub time: Option<StepTime>,
    /// The upper bound of the bytes that a device needs: see [`upper`](meshloom::analysis::memory::upper()).
    pub bytes: u64,
    /// Whether that is within the device's memory.
    pub fits: bool,
    /// The memory of a device.
    pub memory: Memory,
    /// The collectives of a step.
    pub traffic: Vec<Traffic>,
    /// The figures of a pipeline, where only that is another.
    #[serde(flatten)]
    pub pipeline: Option<PipelineFigures>,
    /// The scores of attention, where only the split of the sequence is another.
    pub scores: Option<DeviceScores>,
}

/// The estimated memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// State and batch.
    pub arguments: u64,
    /// Results, including those in donated arguments.
    pub outputs: u64,
    /// All other values.
    pub temporaries: u64,
    /// Everything that a device holds for the program.
    pub peak: u64,
}

/// Collectives of one kind over the same mesh axes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// The kind.
    pub kind: &'static str,
    /// The mesh axes, major to minor.
    pub axes: Vec<String>,
    /// Bytes of the operands on one device, in all executions of one step.
    pub bytes: u64,
    /// Bytes that one device sends.
    pub moved_bytes: u64,
}

/// The figures of a pipeline's schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipelineFigures {
    /// Iterations, bubbles, gathers.
    pub counts: Counts,
    /// Microbatches whose activations a stage holds at most: the largest of [`Timeline::held`].
    pub held: f64,
}

impl LoweredPlan {
    /// Seconds of a step by the estimate; infinite where the hardware is not known.
    pub fn seconds(&self) -> f64 {
        self.time.as_ref().map_or(f64::INFINITY, |time| time.seconds)
    }
}

/// Lowers the train step of a variant of a config, and returns what it moves and needs; with hardware, also how long it
/// takes. `memory` is that of a device, in bytes. Without hardware, the config's devices must be known
/// ([`RunConfig::on_devices`]).
///
/// # Errors
/// The config cannot have the variant, or no time can be estimated.
pub fn evaluate(
    base: &RunConfig,
    plan: &Variant,
    hardware: Option<&Hardware>,
    memory: u64,
) -> Result<LoweredPlan, SearchError> {
    let devices = hardware.map_or_else(|| base.device_total(), Hardware::device_count);
    let mut config = plan.apply(base).on_devices(devices)?;
    // The figures are known only for our own partitioner.
    config.partition.mode = PartitionMode::Explicit;
    let (_, lowered) = config.lower_train_step()?;
    let module = lowered.module.decode().map_err(|error| Error::Compiler(error.into()))?;
    let mesh = lowered.emitted_mesh().cloned().unwrap_or_default();
    let walk = DeviceWalk::of(&module, Devices::partitioned(mesh.device_count()));
    let needed =
        memory_of_walk(&module, walk.walk(), Sources::of(&module)).map_err(|error| Error::Compiler(error.into()))?;
    let (bytes, temporaries) = upper(&needed, hardware.map(|hardware| hardware.chip.backend))
        .map_or((needed.peak, needed.temporaries), |upper| (upper.peak, upper.temporaries));
    let time = |hardware: &Hardware| -> Result<StepTime, SearchError> {
        let mut time = estimate_walk(&walk, &module, &mesh, hardware)?;
        let fresh = (temporaries + needed.outputs.saturating_sub(needed.aliased)) as f64 * hardware.reached.fresh;
        time.seconds += fresh;
        time.computing += fresh;
        Ok(time)
    };
    let options = if matches!(plan, Variant::Pipeline(_)) { config.pipeline_options()? } else { None };
    let of_sequence = matches!(plan, Variant::Sequence(..));
    let &ModuleMemory { arguments, outputs, temporaries, peak, .. } = &needed;
    Ok(LoweredPlan {
        plan: plan.clone(),
        is_configured: false,
        time: hardware.map(time).transpose()?,
        bytes,
        fits: bytes <= memory,
        memory: Memory { arguments, outputs, temporaries, peak },
        // A search looks at thousands of plans, and shows the traffic of none.
        traffic: if plan.plan().is_some() { Vec::new() } else { traffic(&lowered.collectives())? },
        pipeline: options.map(|options| {
            let Timeline { counts, held, .. } = Timeline::of(&options);
            PipelineFigures { counts, held: held.into_iter().fold(0.0, f64::max) }
        }),
        scores: if of_sequence { DeviceScores::of_config(&config, &lowered)? } else { None },
    })
}

/// Adds up the collectives of a step by kind and axes. Code that may not run counts as if it did.
fn traffic(collectives: &Ledger) -> Result<Vec<Traffic>, SearchError> {
    let mut by_axes: IndexMap<(CollectiveKind, &[String]), Traffic> = IndexMap::new();
    for it in collectives.iter().map_err(|error| Error::Compiler(error.into()))? {
        let unknown = || SearchError::NoPlan(format!("the number of executions of {} is not known", it.name));
        let times = it.executions.bound().ok_or_else(unknown)?;
        let nothing = Traffic { kind: it.kind.name(), axes: it.axes.clone(), bytes: 0, moved_bytes: 0 };
        let entry = by_axes.entry((it.kind, &it.axes)).or_insert(nothing);
        entry.bytes += it.bytes * times;
        entry.moved_bytes += it.moved_bytes * times;
    }
    Ok(by_axes.into_values().collect())
}
