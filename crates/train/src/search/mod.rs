//! The plans of a model on devices, and the best of them.
//!
//! A plan chooses the mesh, the schedule of a pipeline, what is recomputed, how often gradients are accumulated and
//! what `tensor` splits ([`Plan`]). A search lists all that the model's sizes allow and bounds each from below: by its
//! products, its state and what must go over its wires, and by the plans of its mesh that were lowered and recompute no
//! more in no more parts. It lowers and partitions the train step of the plan with the smallest bound, estimates time
//! ([`estimate_walk`]) and memory, and ends when no plan that is left can be faster than the best that fits. Then it
//! goes on with other places of the mesh in the hardware, for the plans that might be the best there.

mod blocks;
mod bounds;
mod hardware;
pub(crate) mod placement;
pub(crate) mod plan;
mod queue;
mod report;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::Error;
use crate::config::{Auto, ConfigError, OptimizerConfig, PartitionMode, RuleSource, RunConfig};
use blocks::AttentionBlocks;
pub use bounds::Bounds;
use bounds::{Kept, Model};
pub use hardware::{
    HardwareError, hardware, hardware_from_toml, hardware_of_devices, hardware_to_toml, read_hardware, write_hardware,
};
pub use meshloom::analysis::Hardware;
use meshloom::analysis::memory::upper;
use meshloom::analysis::{
    Arithmetic, DeviceWalk, Devices, EstimateError, StepTime, UnknownChip, UnknownRate, estimate_walk, memory_of_walk,
};
use meshloom::hlo::message::{counted, human_bytes, seconds};
use meshloom::hlo::source::Sources;
use meshloom::ir::DType;
use meshloom::kernels::Kernels;
use meshloom::trace::Tree;
use meshloom_nn::{AttentionConfig, DecoderConfig, FeedForwardConfig};
use placement::other_placements;
pub use plan::{Plan, Residual};
use plan::{Shape, plans};
use queue::Queue;
pub use report::{Advice, what_it_would_need};

/// The most plans that a search lowers, unless more or fewer are asked for.
pub const MOST_LOWERED: usize = 4000;

/// The devices to search plans for, and the limits of the search.
#[derive(Clone, Debug)]
pub struct SearchOptions {
    /// The devices.
    pub hardware: Hardware,
    /// The most plans that are lowered; the search says so where plans are left that might be faster.
    pub most: usize,
    /// Threads.
    pub threads: usize,
}

impl SearchOptions {
    /// A search of usual length on all cores.
    pub fn new(hardware: Hardware) -> SearchOptions {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        SearchOptions { hardware, most: MOST_LOWERED, threads }
    }
}

/// A plan whose train step was lowered.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The plan.
    pub plan: Plan,
    /// Its step, by the estimate.
    pub time: StepTime,
    /// The upper bound of the bytes that a device needs: see [`upper`](meshloom::analysis::memory::upper()).
    pub bytes: u64,
    /// Whether that is within the chip's memory.
    pub fits: bool,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The step of the config as it stands and the bytes that a device needs, or why it cannot be lowered; `None` if
    /// its mesh is one for other devices. Where a search could choose its plan, that is among what was found.
    pub configured: Option<Result<(StepTime, u64), String>>,
    /// The plan of the config as it stands, where a search could choose it.
    pub configured_plan: Option<Plan>,
    /// Plans that the model's sizes allow, and other placements of those that might be the best there.
    pub considered: usize,
    /// Plans left out because they need more memory than there is, whatever else they do.
    pub too_large: usize,
    /// The plan among these whose bound is smallest, and that bound in bytes.
    pub least_too_large: Option<(Plan, u64)>,
    /// Plans that were lowered.
    pub lowered: usize,
    /// Plans left out because they cannot be faster than the best.
    pub too_slow: usize,
    /// Plans that were to be lowered and cannot be, with the reason of one of them.
    pub refused: usize,
    /// The reason why the first of them is not possible.
    pub first_refusal: Option<String>,
    /// Whether plans were left that might be faster.
    pub ended_early: bool,
    /// The plans that were lowered, each with its axes where they are best, those that fit first, each by time.
    pub found: Vec<Found>,
    /// Operations of a step, of products alone, on each device.
    pub flops: f64,
}

/// A search that cannot be made.
#[derive(thiserror::Error)]
pub enum SearchError {
    /// The train step of a plan cannot be lowered.
    #[error(transparent)]
    Training(Box<Error>),
    /// The config's fault.
    #[error(transparent)]
    Config(#[from] Box<ConfigError>),
    /// The chip is not known.
    #[error(transparent)]
    Chip(#[from] UnknownChip),
    /// Too little is known of the chip.
    #[error(transparent)]
    Rate(#[from] UnknownRate),
    /// The hardware is not named as it must be.
    #[error(transparent)]
    Topology(#[from] meshloom::pjrt::PjrtError),
    /// The sizes of model, batch and devices leave no plan.
    #[error(
        "no plan is possible: {devices} devices, {rows} rows a step and {layers} layers do not divide into one another; \
         change train.batch, or the number of devices"
    )]
    Nothing {
        /// Devices.
        devices: usize,
        /// Rows of a batch.
        rows: usize,
        /// Layers.
        layers: usize,
    },
    /// The rate at which the hardware multiplies numbers of the model's type is not known.
    #[error(
        "the rate at which {chip} multiplies {dtype} is not known; give {key} in a file of hardware, or set \
         model.compute_dtype to a type whose rate is known"
    )]
    NoRate {
        /// The chip.
        chip: &'static str,
        /// The element type.
        dtype: DType,
        /// The key of the rate.
        key: &'static str,
    },
    /// The client's devices are not known.
    #[error(
        "the rates and links of {} of kind \"{kind}\" are not known; describe them in a TOML file, as docs/plan.md \
         says, and give it by --hardware FILE",
        counted(*count, "device")
    )]
    Devices {
        /// The kind of the devices, as the plugin names it.
        kind: String,
        /// The number of devices.
        count: usize,
    },
    /// A plan was lowered, and cannot be estimated.
    #[error(transparent)]
    Estimate(#[from] EstimateError),
    /// No plan was lowered.
    #[error(
        "none of {} is possible: {too_large} do not fit by their bounds, {refused} cannot be lowered{}",
        counted(*considered, "plan"),
        first_refusal.as_deref().map_or(String::new(), |reason| format!("; the first: {reason}"))
    )]
    NonePossible {
        /// Plans that the model's sizes allow.
        considered: usize,
        /// Plans that need more memory than there is.
        too_large: usize,
        /// Plans that cannot be lowered.
        refused: usize,
        /// The reason why the first of them is not possible.
        first_refusal: Option<String>,
    },
    /// No plan fits.
    #[error(
        "no plan fits the memory of a device: the nearest, {plan}, is estimated to need {}, and there is {}; take more \
         devices, or lower train.batch or model.seq",
        human_bytes(*needed),
        human_bytes(*there_is)
    )]
    NoneFits {
        /// The plan that needs least.
        plan: String,
        /// Bytes that a device needs.
        needed: u64,
        /// Bytes that it has.
        there_is: u64,
    },
}

meshloom::hlo::debug_is_message!(SearchError);

impl From<Error> for SearchError {
    fn from(error: Error) -> SearchError {
        SearchError::Training(Box::new(error))
    }
}

impl From<ConfigError> for SearchError {
    fn from(error: ConfigError) -> SearchError {
        Box::new(error).into()
    }
}

/// A config on hardware that no topology names: on the platform of its chip, on all devices.
pub fn on_hardware(config: &RunConfig, hardware: &Hardware) -> RunConfig {
    let mut config = config.clone();
    config.target.topology.clear();
    config.target.platform = Auto::Chosen(hardware.chip.backend);
    config.target.devices = hardware.device_count();
    config
}

/// How far a search is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Plans that were lowered, and that will be at most.
    pub lowered: (usize, usize),
    /// Seconds of the best step so far.
    pub best: Option<f64>,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lowered, most) = self.lowered;
        write!(f, "lowering plans: {lowered} of at most {most}")?;
        self.best.map_or(Ok(()), |best| write!(f, ", best step {}", seconds(best)))
    }
}

/// Searches the plans of a config's model. Its mesh, pipeline, rematerialization, accumulation and preset of rules are
/// the first plan, if they are one for this hardware; all else stays.
///
/// # Errors
/// The config is wrong whatever the plan, or leaves none.
pub fn search(
    config: &RunConfig,
    options: &SearchOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Search, SearchError> {
    let hardware = &options.hardware;
    let Listed { base, flops, blocks, mut candidates } = list(config, hardware)?;
    let memory = hardware.chip.device_memory().unwrap_or(u64::MAX);
    let on_devices = config.on_devices(hardware.device_count()).ok();
    let plan = on_devices.as_ref().and_then(Plan::of);
    let estimated = |config: &RunConfig| estimate_step(config, hardware).map_err(|error| error.to_string());
    let configured = on_devices.as_ref().map(estimated);
    let mut outcome = Outcome::default();
    // A plan of the config that would not be listed is one more.
    let mut considered = match &plan {
        Some(plan) => {
            candidates.retain(|(listed, _)| listed != plan);
            candidates.len() + 1
        }
        None => candidates.len(),
    };
    let (left, larger): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|(_, bounds)| bounds.bytes <= memory as f64);
    let least = larger.iter().min_by(|(_, a), (_, b)| a.bytes.total_cmp(&b.bytes));
    let least_too_large = least.map(|(plan, bounds)| (plan.clone(), bounds.bytes as u64));
    let mut too_large = larger.len();
    let mut queue = Queue::new(left, hardware, memory, blocks);
    if let (Some(plan), Some(estimated)) = (&plan, &configured) {
        let found = |(time, bytes)| Found { plan: plan.clone(), time, bytes, fits: bytes <= memory };
        outcome.add(plan, estimated.clone().map(found), &mut queue);
    }
    let run = Run { base: &base, hardware, memory, most: options.most, shared: Mutex::new(Shared { queue, outcome }) };
    run.to_the_end(options.threads, progress);
    considered += run.add_placements();
    run.to_the_end(options.threads, progress);
    let Shared { queue, outcome, .. } = run.shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    too_large += queue.too_large;
    let Outcome { mut found, refused, first_refusal, ended_early, .. } = outcome;
    found.sort_by(|a, b| b.fits.cmp(&a.fits).then_with(|| a.time.seconds.total_cmp(&b.time.seconds)));
    let lowered = found.len();
    let found = in_best_placement(found);
    let too_slow = considered - too_large - lowered - refused;
    Ok(Search {
        configured,
        configured_plan: plan,
        considered,
        too_large,
        least_too_large,
        lowered,
        too_slow,
        refused,
        first_refusal,
        ended_early,
        found,
        flops,
    })
}

/// Returns the first of each group of plans that differ only in the order of their axes.
fn in_best_placement(found: Vec<Found>) -> Vec<Found> {
    let mut known: Vec<Plan> = Vec::new();
    let mut is_new = |plan: Plan| {
        let is_new = !known.contains(&plan);
        if is_new {
            known.push(plan);
        }
        is_new
    };
    found.into_iter().filter(|found| is_new(found.plan.in_order(&[]))).collect()
}

/// Returns all plans of a config's model on hardware, each with its lower bounds.
///
/// # Errors
/// The errors are those of [`search`].
pub fn bounded(base: &RunConfig, hardware: &Hardware) -> Result<Vec<(Plan, Bounds)>, SearchError> {
    Ok(list(base, hardware)?.candidates)
}

/// The plans of a model, before anything is lowered.
struct Listed {
    /// The config without what plans choose.
    base: RunConfig,
    /// Operations of a step on each device.
    flops: f64,
    blocks: AttentionBlocks,
    candidates: Vec<(Plan, Bounds)>,
}

fn list(base: &RunConfig, hardware: &Hardware) -> Result<Listed, SearchError> {
    let devices = hardware.device_count();
    let mut base = base.clone();
    base.target.devices = devices;
    base.target.processes = 1;
    base.mesh.dcn = String::new();
    base.pipeline = None;
    base.mesh.axes = format!("fsdp={devices}");
    let decoder = base.decoder()?;
    let model = model(&base, &decoder);
    if hardware.chip.matrix_rate(model.arithmetic).is_none() {
        let key = match model.arithmetic {
            Arithmetic::F64 => "f64_flops",
            Arithmetic::F32 => "f32_flops",
            _ => "bf16_flops",
        };
        return Err(SearchError::NoRate { chip: hardware.chip.name, dtype: decoder.compute_dtype, key });
    }
    let bounds = |plan: Plan| {
        let bounds = model.bounds(&plan, hardware);
        (plan, bounds)
    };
    // Without a plugin, no plan is lowered.
    let platform = base.any_plugin().ok();
    let has_host_memory = platform.as_ref().is_some_and(|platform| platform.has_host_memory());
    let shape = shape(&base, &decoder, hardware, has_host_memory);
    let candidates: Vec<(Plan, Bounds)> = plans(&shape).into_iter().map(bounds).collect();
    if candidates.is_empty() {
        return Err(SearchError::Nothing { devices, rows: base.train.batch, layers: base.model.layers });
    }
    let kernels = base.chosen_kernels(platform.map_or_else(Kernels::default, |platform| Kernels::on(&platform)));
    let blocks = AttentionBlocks { kernels, shape };
    Ok(Listed { base, flops: model.flops / devices as f64, blocks, candidates })
}

impl Search {
    /// The best plan that fits.
    pub fn best(&self) -> Option<&Found> {
        self.found.first().filter(|found| found.fits)
    }

    /// The best plan that fits the memory of the hardware that was searched for.
    ///
    /// # Errors
    /// None does.
    pub fn best_on(&self, hardware: &Hardware) -> Result<&Found, SearchError> {
        self.best().ok_or_else(|| self.why_none(hardware))
    }

    /// Returns the reason why no plan fits, if none does.
    pub fn why_none(&self, hardware: &Hardware) -> SearchError {
        let lowered = self.found.iter().map(|found| (&found.plan, found.bytes)).min_by_key(|(_, bytes)| *bytes);
        let nearest = lowered.or(self.least_too_large.as_ref().map(|(plan, bytes)| (plan, *bytes)));
        match (nearest, hardware.chip.device_memory()) {
            (Some((plan, needed)), Some(there_is)) => {
                SearchError::NoneFits { plan: plan.settings().join(" "), needed, there_is }
            }
            _ => SearchError::NonePossible {
                considered: self.considered,
                too_large: self.too_large,
                refused: self.refused,
                first_refusal: self.first_refusal.clone(),
            },
        }
    }

    /// The plans that no other beats in both time and memory, the fastest first.
    pub fn front(&self) -> Vec<&Found> {
        let mut by_time: Vec<&Found> = self.found.iter().collect();
        by_time.sort_by(|a, b| a.time.seconds.total_cmp(&b.time.seconds).then_with(|| a.bytes.cmp(&b.bytes)));
        let mut least = u64::MAX;
        by_time.retain(|found| {
            let is_less = found.bytes < least;
            least = least.min(found.bytes);
            is_less
        });
        by_time
    }
}

/// A search that goes on, in several threads.
struct Run<'a> {
    base: &'a RunConfig,
    hardware: &'a Hardware,
    memory: u64,
    most: usize,
    shared: Mutex<Shared>,
}

struct Shared {
    queue: Queue,
    outcome: Outcome,
}

#[derive(Default)]
struct Outcome {
    found: Vec<Found>,
    refused: usize,
    first_refusal: Option<String>,
    /// Seconds of the best step that fits.
    best: Option<f64>,
    ended_early: bool,
}

impl Outcome {
    /// A plan that was lowered, or why it cannot be.
    fn add(&mut self, plan: &Plan, evaluated: Result<Found, String>, queue: &mut Queue) {
        match evaluated {
            Ok(found) => {
                queue.learn(&found);
                if found.fits {
                    self.best = Some(self.best.unwrap_or(f64::INFINITY).min(found.time.seconds));
                }
                self.found.push(found);
            }
            Err(reason) => {
                self.refused += 1;
                self.first_refusal.get_or_insert_with(|| format!("{}: {reason}", plan.settings().join(" ")));
            }
        }
    }
}

impl Run<'_> {
    /// Lowers plans until none that is left can be the best.
    fn to_the_end(&self, threads: usize, progress: &(dyn Fn(Progress) + Sync)) {
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| self.work(progress));
            }
        });
    }

    /// Lets other placements follow of the plans that were lowered, and says how many these are. At best they never
    /// wait.
    fn add_placements(&self) -> usize {
        let Ok(mut shared) = self.shared.lock() else { return 0 };
        let Shared { queue, outcome } = &mut *shared;
        let best = outcome.best.unwrap_or(0.0);
        let mut others: Vec<(Plan, Bounds)> = Vec::new();
        for found in outcome.found.iter().filter(|found| found.fits) {
            let bounds = Bounds { seconds: found.time.seconds - found.time.waiting, bytes: found.bytes as f64 };
            if bounds.seconds >= best {
                continue;
            }
            for other in other_placements(&found.plan, self.hardware) {
                let mut known =
                    outcome.found.iter().map(|found| &found.plan).chain(others.iter().map(|(plan, _)| plan));
                if known.all(|known| *known != other) {
                    others.push((other, bounds));
                }
            }
        }
        let count = others.len();
        queue.extend(others);
        count
    }

    fn work(&self, progress: &(dyn Fn(Progress) + Sync)) {
        while let Some(plan) = self.next(progress) {
            let evaluated = evaluate(self.base, &plan, self.hardware, self.memory);
            let Ok(mut shared) = self.shared.lock() else { return };
            let Shared { queue, outcome } = &mut *shared;
            outcome.add(&plan, evaluated.map_err(|error| error.to_string()), queue);
        }
    }

    /// The next plan to lower, unless none that is left can be the best.
    fn next(&self, progress: &(dyn Fn(Progress) + Sync)) -> Option<Plan> {
        let mut shared = self.shared.lock().ok()?;
        let Shared { queue, outcome } = &mut *shared;
        let (plan, seconds) = queue.pop()?;
        if outcome.best.is_some_and(|best| seconds >= best) {
            return None;
        }
        let lowered = outcome.found.len();
        if lowered + outcome.refused >= self.most {
            outcome.ended_early = true;
            return None;
        }
        progress(Progress { lowered: (lowered, self.most), best: outcome.best });
        Some(plan)
    }
}

/// Lowers the train step of a plan, and estimates it.
///
/// # Errors
/// The config cannot have the plan, or no time can be estimated.
pub fn evaluate(base: &RunConfig, plan: &Plan, hardware: &Hardware, memory: u64) -> Result<Found, SearchError> {
    let config = plan.apply(base).on_devices(hardware.device_count())?;
    let (time, bytes) = estimate_step(&config, hardware)?;
    Ok(Found { plan: plan.clone(), time, bytes, fits: bytes <= memory })
}

/// The time of a config's train step on hardware, and the bytes that a device needs at most. The config's devices must
/// be known ([`RunConfig::on_devices`]).
///
/// # Errors
/// Model, mesh and rules do not fit together; or the mesh does not fit the hardware.
pub fn estimate_step(config: &RunConfig, hardware: &Hardware) -> Result<(StepTime, u64), SearchError> {
    let mut config = config.clone();
    // The figures are known only for our own partitioner.
    config.partition.mode = PartitionMode::Explicit;
    let (_, lowered) = config.lower_train_step()?;
    let module = lowered.module.decode().map_err(|error| Error::Compiler(error.into()))?;
    let mesh = lowered.emitted_mesh().cloned().unwrap_or_default();
    let walk = DeviceWalk::of(&module, Devices::partitioned(mesh.device_count()));
    let mut time = estimate_walk(&walk, &module, &mesh, hardware)?;
    let memory =
        memory_of_walk(&module, walk.walk(), Sources::of(&module)).map_err(|error| Error::Compiler(error.into()))?;
    let (peak, temporaries) = upper(&memory, Some(hardware.chip.backend))
        .map_or((memory.peak, memory.temporaries), |upper| (upper.peak, upper.temporaries));
    let fresh = (temporaries + memory.outputs.saturating_sub(memory.aliased)) as f64 * hardware.reached.fresh;
    time.seconds += fresh;
    time.computing += fresh;
    Ok((time, peak))
}

fn shape(base: &RunConfig, decoder: &DecoderConfig, hardware: &Hardware, has_host_memory: bool) -> Shape {
    let stack = &decoder.architecture.stack;
    let heads = |attention: &AttentionConfig| match attention {
        AttentionConfig::Grouped(grouped) => [grouped.heads, grouped.kv_heads],
        AttentionConfig::Latent(latent) => [latent.heads, latent.heads],
    };
    let layers = stack.prefix.iter().chain(&stack.cycle).chain(&stack.suffix);
    let mut heads: Vec<[usize; 2]> = layers.clone().map(|layer| heads(&layer.attention)).collect();
    heads.sort_unstable();
    heads.dedup();
    let experts = layers.filter_map(|layer| layer.routed()).map(|routed| routed.experts).collect();
    Shape {
        devices: hardware.device_count(),
        near: hardware.near_count(),
        rows: base.train.batch,
        parts_of_rows: if base.model.batch_split { 2 } else { 1 },
        length: base.model.seq,
        cycles: stack.cycles,
        cycle: stack.cycle.len().max(1),
        heads,
        width: decoder.architecture.embed,
        experts,
        can_offload: hardware.host_rate().is_some() && has_host_memory,
        chooses_residual: matches!(base.rules.source(), RuleSource::Preset(_)),
    }
}

/// Returns the values that the backward pass needs for a token, over all layers.
fn kept(decoder: &DecoderConfig) -> Kept {
    let stack = &decoder.architecture.stack;
    let once = stack.prefix.iter().chain(&stack.suffix).map(|layer| (layer, 1));
    let mut kept = Kept::default();
    for (layer, times) in once.chain(stack.cycle.iter().map(|layer| (layer, stack.cycles))) {
        let (products, attention) = match &layer.attention {
            AttentionConfig::Grouped(it) => ((it.heads + 2 * it.kv_heads) * it.head_dim, it.heads * it.head_dim),
            AttentionConfig::Latent(it) => (it.heads * it.nope_head_dim, it.heads * it.v_head_dim),
        };
        let gated = match &layer.feed_forward {
            FeedForwardConfig::Dense { mlp, .. } => 2 * mlp,
            // How many rows an expert has depends on data.
            FeedForwardConfig::Routed(_) => 0,
        };
        kept.of_products += ((products + gated) * times) as f64;
        kept.of_attention += (attention * times) as f64;
    }
    kept
}

fn model(base: &RunConfig, decoder: &DecoderConfig) -> Model {
    let declared = decoder.parameters();
    let (mut parameters, mut of_experts) = (0.0, 0.0);
    for param in declared.leaves() {
        let count = param.spec.ty.element_count() as f64;
        parameters += count;
        if param.spec.axes.iter().any(|name| name.text() == "exp") {
            of_experts += count;
        }
    }
    let bytes = |dtype: DType| dtype.bit_count() as f64 / 8.0;
    let moments = match base.train.optimizer {
        OptimizerConfig::AdamW { .. } => 8.0,
        OptimizerConfig::Muon { .. } => 4.0,
    };
    let stack = &decoder.architecture.stack;
    let tokens = (base.train.batch * base.model.seq) as f64;
    Model {
        flops: decoder.flops_per_token(base.model.seq) * tokens,
        parameters,
        of_experts,
        parameter_bytes: bytes(decoder.param_dtype),
        moment_bytes: moments,
        compute_bytes: bytes(decoder.compute_dtype),
        tokens,
        width: decoder.architecture.embed as f64,
        layers: (stack.prefix.len() + stack.cycle.len() * stack.cycles + stack.suffix.len()) as f64,
        kept: kept(decoder),
        arithmetic: Arithmetic::of(decoder.compute_dtype),
    }
}
