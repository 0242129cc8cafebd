//! The plans of a model on devices, and the best of them.
//!
//! [`search`] chooses freely. [`compare`] is the same with all but one thing held: it lowers each other pipeline, and
//! each other way to split a sequence, that the config could have. Both find the same figures.
//!
//! A plan chooses the mesh, the schedule of a pipeline, what is recomputed, how often gradients are accumulated and
//! what `tensor` splits ([`Plan`]). A search lists all that the model's sizes allow and bounds each from below: by its
//! products, its state and what must go over its wires, and by the plans of its mesh that were lowered and recompute no
//! more in no more parts. It lowers and partitions the train step of the plan with the smallest bound, estimates time
//! ([`estimate_walk`](meshloom::analysis::estimate_walk)) and memory, and ends when no plan that is left can be faster
//! than the best that fits. Then it goes on with other places of the mesh in the hardware, for the plans that might be
//! the best there.

mod blocks;
mod bounds;
mod found;
mod hardware;
#[doc(hidden)]
pub mod internals;
mod pipelines;
mod placement;
mod plan;
mod queue;
mod report;
mod sequences;
mod variant;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use blocks::AttentionBlocks;
pub use bounds::Bounds;
use bounds::{Kept, Model};
pub use found::{LoweredPlan, Memory, PipelineFigures, Traffic, evaluate};
pub use hardware::{
    HardwareError, hardware, hardware_from_toml, hardware_of_devices, hardware_to_toml, read_hardware, write_hardware,
};
pub use meshloom::analysis::Hardware;
use meshloom::analysis::{Arithmetic, EstimateError, UnknownChip, UnknownRate};
use meshloom::hlo::message::{counted, human_bytes, seconds};
use meshloom::ir::DType;
use meshloom::kernels::Kernels;
use meshloom::pjrt::Platform;
use meshloom::trace::Tree;
use meshloom_nn::{AttentionConfig, DecoderConfig, FeedForwardConfig};
use meshloom_train::Error;
use meshloom_train::config::{Auto, ConfigError, OptimizerConfig, RuleSource, RunConfig};
use placement::other_placements;
pub use plan::{Plan, Residual};
use plan::{Shape, plans};
use queue::Queue;
pub use report::{Advice, what_it_would_need};
pub use sequences::DeviceScores;
use serde::Serialize;
pub use variant::Variant;

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

/// A variant that cannot be lowered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refused {
    /// The variant.
    #[serde(flatten)]
    pub plan: Variant,
    /// The reason.
    pub reason: String,
}

/// The result of a search.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Search {
    /// The config as it stands, or why it cannot be lowered; `None` if its mesh is one for other devices. Where a
    /// search could choose its plan, that is among what was found.
    #[serde(skip)]
    pub configured: Option<Result<LoweredPlan, String>>,
    /// Plans that the model's sizes allow, and other placements of those that might be the best there.
    pub considered: usize,
    /// Plans left out because they need more memory than there is, whatever else they do.
    pub too_large: usize,
    /// The plan among these whose bound is smallest, and that bound in bytes.
    #[serde(skip)]
    pub least_too_large: Option<(Plan, u64)>,
    /// Plans that were lowered.
    pub lowered: usize,
    /// Plans left out because they cannot be faster than the best.
    pub too_slow: usize,
    /// Plans that were to be lowered and cannot be.
    pub refused: Vec<Refused>,
    /// Whether plans were left that might be faster.
    pub ended_early: bool,
    /// The plans that were lowered. Plans of [`search`] have their axes where they are best; they are in order of time,
    /// those that fit first.
    #[serde(skip)]
    pub found: Vec<LoweredPlan>,
    /// Operations of a step, of products alone, on each device.
    #[serde(skip)]
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
    /// A plan was lowered, and cannot be estimated.
    #[error(transparent)]
    Estimate(#[from] EstimateError),
    /// There is no plan, or none that is possible; or something is not known that plans need.
    #[error("{0}")]
    NoPlan(String),
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
    let estimated = |config: &RunConfig| {
        let found = evaluate(config, &Variant::Configured, Some(hardware), memory);
        found.map(|found| LoweredPlan { is_configured: true, ..found }).map_err(|error| error.to_string())
    };
    let configured = on_devices.as_ref().map(estimated);
    // A plan of the config that would not be listed is one more.
    candidates.retain(|(listed, _)| Some(listed) != plan.as_ref());
    let mut considered = candidates.len() + usize::from(plan.is_some());
    let (left, larger): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|(_, bounds)| bounds.bytes <= memory as f64);
    let least = larger.iter().min_by(|(_, a), (_, b)| a.bytes.total_cmp(&b.bytes));
    let least_too_large = least.map(|(plan, bounds)| (plan.clone(), bounds.bytes as u64));
    let mut shared =
        Shared { queue: Queue::new(left, hardware, memory, blocks), search: Search::default(), best: None };
    if let (Some(plan), Some(estimated)) = (&plan, &configured) {
        shared.add(plan, estimated.clone());
    }
    let run = Searching { base: &base, hardware, memory, most: options.most, shared: Mutex::new(shared) };
    run.to_the_end(options.threads, progress);
    considered += run.add_placements();
    run.to_the_end(options.threads, progress);
    let Shared { queue, mut search, .. } = run.shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    search.found.sort_by(|a, b| b.fits.cmp(&a.fits).then_with(|| a.seconds().total_cmp(&b.seconds())));
    let (lowered, too_large) = (search.found.len(), larger.len() + queue.too_large);
    let too_slow = considered - too_large - lowered - search.refused.len();
    let found = in_best_placement(std::mem::take(&mut search.found));
    Ok(Search { configured, considered, too_large, least_too_large, lowered, too_slow, found, flops, ..search })
}

/// Lowers every pipeline that a config could have for its layers, mesh and batch, and every way in which queries could
/// meet keys of other devices where its rules split the sequence; all else stays. For a topology, the devices must be
/// known ([`RunConfig::on_devices`]). Without hardware no time is estimated; `memory` is that of a device, in bytes.
///
/// # Errors
/// Model, mesh and rules do not fit together.
pub fn compare(config: &RunConfig, hardware: Option<&Hardware>, memory: u64) -> Result<Search, SearchError> {
    let variants: Vec<(Variant, bool)> =
        pipelines::variants(config)?.into_iter().chain(sequences::variants(config)?).collect();
    let flops = flops_of_step(config, &config.decoder()?) / config.device_total() as f64;
    let mut search = Search { considered: variants.len(), flops, ..Search::default() };
    for (plan, is_configured) in variants {
        match evaluate(config, &plan, hardware, memory) {
            Ok(found) => {
                let found = LoweredPlan { is_configured, ..found };
                if is_configured {
                    search.configured = Some(Ok(found.clone()));
                }
                search.found.push(found);
            }
            Err(error) if is_configured => return Err(error),
            Err(error) => search.refused.push(Refused { plan, reason: error.to_string() }),
        }
    }
    search.lowered = search.found.len();
    Ok(search)
}

/// Returns the first of each group of plans that differ only in the order of their axes.
fn in_best_placement(mut found: Vec<LoweredPlan>) -> Vec<LoweredPlan> {
    let mut known: Vec<Option<Plan>> = Vec::new();
    found.retain(|found| {
        let plan = found.plan.plan().map(|plan| plan.in_order(&[]));
        let is_new = !known.contains(&plan);
        if is_new {
            known.push(plan);
        }
        is_new
    });
    found
}

/// Returns all plans of a config's model on hardware, each with its lower bounds.
///
/// # Errors
/// The errors are those of [`search`].
pub fn bounded(base: &RunConfig, hardware: &Hardware) -> Result<Vec<(Plan, Bounds)>, SearchError> {
    Ok(list(base, hardware)?.candidates)
}

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
        return Err(SearchError::NoPlan(format!(
            "the rate at which {} multiplies {} is not known; give {key} in a file of hardware, or set \
             model.compute_dtype to a type whose rate is known",
            hardware.chip.name, decoder.compute_dtype
        )));
    }
    let bounds = |plan: Plan| {
        let bounds = model.bounds(&plan, hardware);
        (plan, bounds)
    };
    // Without a plugin, no plan is lowered.
    let platform = base.platform_kind().ok().map(Platform::of_any_plugin);
    let has_host_memory = platform.as_ref().is_some_and(|platform| platform.has_host_memory());
    let shape = shape(&base, &decoder, hardware, has_host_memory);
    let candidates: Vec<(Plan, Bounds)> = plans(&shape).into_iter().map(bounds).collect();
    if candidates.is_empty() {
        return Err(SearchError::NoPlan(format!(
            "no plan is possible: {devices} devices, {} rows a step and {} layers do not divide into one another; change \
             train.batch, or the number of devices",
            base.train.batch, base.model.layers
        )));
    }
    let kernels = base.chosen_kernels(platform.map_or_else(Kernels::default, |platform| Kernels::on(&platform)));
    let blocks = AttentionBlocks { kernels, shape };
    Ok(Listed { base, flops: model.flops / devices as f64, blocks, candidates })
}

impl Search {
    /// The best plan that fits.
    pub fn best(&self) -> Option<&LoweredPlan> {
        self.found.first().filter(|found| found.fits)
    }

    /// The best plan that fits the memory of the hardware that was searched for.
    ///
    /// # Errors
    /// None does.
    pub fn best_on(&self, hardware: &Hardware) -> Result<&LoweredPlan, SearchError> {
        self.best().ok_or_else(|| self.why_none(hardware))
    }

    /// Returns the reason why no plan fits, if none does.
    pub fn why_none(&self, hardware: &Hardware) -> SearchError {
        let lowered =
            self.found.iter().map(|found| (found.plan.settings(), found.bytes)).min_by_key(|(_, bytes)| *bytes);
        let nearest = lowered.or(self.least_too_large.as_ref().map(|(plan, bytes)| (plan.settings(), *bytes)));
        SearchError::NoPlan(match (nearest, hardware.chip.device_memory()) {
            (Some((settings, needed)), Some(there_is)) => format!(
                "no plan fits the memory of a device: the nearest, {}, is estimated to need {}, and there is {}; take more \
                 devices, or lower train.batch or model.seq",
                settings.join(" "),
                human_bytes(needed),
                human_bytes(there_is)
            ),
            _ => format!(
                "none of {} is possible: {} do not fit by their bounds, {} cannot be lowered{}",
                counted(self.considered, "plan"),
                self.too_large,
                self.refused.len(),
                self.first_refusal().map_or(String::new(), |reason| format!("; the first: {reason}"))
            ),
        })
    }

    /// The first plan that cannot be lowered, with its reason.
    pub fn first_refusal(&self) -> Option<String> {
        self.refused.first().map(|Refused { plan, reason }| format!("{}: {reason}", plan.settings().join(" ")))
    }

    /// The plans that no other beats in both time and memory, the fastest first.
    pub fn front(&self) -> Vec<&LoweredPlan> {
        let mut by_time: Vec<&LoweredPlan> = self.found.iter().collect();
        by_time.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()).then_with(|| a.bytes.cmp(&b.bytes)));
        let mut least = u64::MAX;
        by_time.retain(|found| {
            let is_less = found.bytes < least;
            least = least.min(found.bytes);
            is_less
        });
        by_time
    }
}

struct Searching<'a> {
    base: &'a RunConfig,
    hardware: &'a Hardware,
    memory: u64,
    most: usize,
    shared: Mutex<Shared>,
}

struct Shared {
    queue: Queue,
    search: Search,
    /// Seconds of the best step that fits.
    best: Option<f64>,
}

impl Shared {
    /// A plan that was lowered, or why it cannot be.
    fn add(&mut self, plan: &Plan, evaluated: Result<LoweredPlan, String>) {
        match evaluated {
            Ok(found) => {
                self.queue.learn(plan, &found);
                if found.fits {
                    self.best = Some(self.best.unwrap_or(f64::INFINITY).min(found.seconds()));
                }
                self.search.found.push(LoweredPlan { plan: plan.clone().into(), ..found });
            }
            Err(reason) => self.search.refused.push(Refused { plan: plan.clone().into(), reason }),
        }
    }
}

impl Searching<'_> {
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
        let best = shared.best.unwrap_or(0.0);
        let found = &shared.search.found;
        let mut others: Vec<(Plan, Bounds)> = Vec::new();
        for (each, time) in found.iter().filter(|found| found.fits).filter_map(|it| Some((it, it.time.as_ref()?))) {
            let bounds = Bounds { seconds: time.seconds - time.waiting, bytes: each.bytes as f64 };
            let Some(plan) = each.plan.plan().filter(|_| bounds.seconds < best) else { continue };
            for other in other_placements(plan, self.hardware) {
                let mut known = found.iter().filter_map(|it| it.plan.plan()).chain(others.iter().map(|(plan, _)| plan));
                if known.all(|known| *known != other) {
                    others.push((other, bounds));
                }
            }
        }
        let count = others.len();
        shared.queue.extend(others);
        count
    }

    fn work(&self, progress: &(dyn Fn(Progress) + Sync)) {
        while let Some(plan) = self.next(progress) {
            let evaluated = evaluate(self.base, &plan.clone().into(), Some(self.hardware), self.memory);
            let Ok(mut shared) = self.shared.lock() else { return };
            shared.add(&plan, evaluated.map_err(|error| error.to_string()));
        }
    }

    /// The next plan to lower, unless none that is left can be the best.
    fn next(&self, progress: &(dyn Fn(Progress) + Sync)) -> Option<Plan> {
        let mut shared = self.shared.lock().ok()?;
        let (plan, seconds) = shared.queue.pop()?;
        if shared.best.is_some_and(|best| seconds >= best) {
            return None;
        }
        let lowered = shared.search.found.len();
        if lowered + shared.search.refused.len() >= self.most {
            shared.search.ended_early = true;
            return None;
        }
        progress(Progress { lowered: (lowered, self.most), best: shared.best });
        Some(plan)
    }
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

/// Returns the operations of a step, of products alone, on all devices.
fn flops_of_step(config: &RunConfig, decoder: &DecoderConfig) -> f64 {
    decoder.flops_per_token(config.model.seq) * (config.train.batch * config.model.seq) as f64
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
    Model {
        flops: flops_of_step(base, decoder),
        parameters,
        of_experts,
        parameter_bytes: bytes(decoder.param_dtype),
        moment_bytes: moments,
        compute_bytes: bytes(decoder.compute_dtype),
        tokens: (base.train.batch * base.model.seq) as f64,
        width: decoder.architecture.embed as f64,
        layers: (stack.prefix.len() + stack.cycle.len() * stack.cycles + stack.suffix.len()) as f64,
        kept: kept(decoder),
        arithmetic: Arithmetic::of(decoder.compute_dtype),
    }
}
