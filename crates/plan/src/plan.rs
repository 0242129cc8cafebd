//! Plans: what a search may choose of a run config, and all of them for some devices.

use std::fmt;
use std::sync::LazyLock;

use meshloom::ir::Name;
use meshloom::ops::RematPolicy;
use meshloom::transform::pipeline::{Schedule, WeightPlan};
use meshloom_train::config::{PipelineConfig, RuleSource, RunConfig};

/// The mesh axes of the rule presets that a search splits devices over, major to minor: the last runs along the fastest
/// links.
const AXES: [&str; 6] = ["stage", "replica", "fsdp", "expert", "context", "tensor"];

/// The axes that split a row. They are the last axes, so a mesh has them along the same links whatever the other axes
/// are.
pub(super) const WITHIN_ROWS: [&str; 3] = ["expert", "context", "tensor"];

const MOST_CHUNKS: usize = 4;

/// Values of a layer that `save` and `offload` keep.
static NAMES: LazyLock<[Name; 7]> = LazyLock::new(|| {
    [
        "attention_mixed",
        "attention_log_total",
        "attention_queries",
        "attention_keys",
        "attention_values",
        "mlp_gate",
        "mlp_up",
    ]
    .map(Name::new)
});

/// How many of these names are kept at a time, and what they are called together.
const LISTS: [(&str, usize); 3] = [("mixed", 2), ("attention", 5), ("products", 7)];

fn names(count: usize) -> Vec<Name> {
    NAMES[..count].to_vec()
}

fn texts(names: &[Name]) -> Vec<String> {
    names.iter().map(|name| name.text()).collect()
}

fn policies(offloads: bool) -> Vec<RematPolicy> {
    let mut all = vec![RematPolicy::None, RematPolicy::Dots, RematPolicy::Full];
    all.extend(LISTS.map(|(_, count)| RematPolicy::Save(names(count))));
    if offloads {
        all.extend(LISTS.map(|(_, count)| RematPolicy::Offload(names(count))));
    }
    all
}

/// The [rank](Plan::rank) of `dots`, which all lists of names come behind.
pub(super) const DOTS: usize = 1;

/// The [rank](Plan::rank) of full rematerialization.
pub(super) const MOST_RECOMPUTED: usize = DOTS + LISTS.len() + 1;

/// The most microbatches for each stage of a pipeline; more shorten bubbles that are short already.
const MOST_FOR_EACH_STAGE: usize = 8;

/// The sharding of the residual stream between products that `tensor` splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residual {
    /// Split along the sequence: sequence parallelism.
    Split,
    /// Whole on every device.
    Whole,
}

impl Residual {
    /// The preset of rules.
    pub fn preset(self) -> &'static str {
        match self {
            Residual::Split => "decoder",
            Residual::Whole => "decoder-all-reduce",
        }
    }
}

/// A way to run a model on devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Devices along `stage`, `replica`, `fsdp`, `expert`, `context`, `tensor`.
    pub sizes: [usize; AXES.len()],
    /// The axes of the mesh, major to minor, by their places in `sizes`: where each lies in the hardware.
    pub order: [usize; AXES.len()],
    /// The values that the backward pass recomputes.
    pub remat: RematPolicy,
    /// Parts of the batch whose gradients are added up one after the other.
    pub accumulate: usize,
    /// Between products over `tensor`.
    pub residual: Residual,
    /// The pipeline, where there are several stages.
    pub pipeline: Option<PipelineConfig>,
}

impl Plan {
    /// Devices along an axis.
    pub fn size(&self, axis: &str) -> usize {
        AXES.iter().position(|name| *name == axis).map_or(1, |index| self.sizes[index])
    }

    /// The mesh, `fsdp=8,tensor=2`.
    pub fn mesh(&self) -> String {
        let axes = self.order.iter().filter(|&&axis| self.sizes[axis] > 1);
        let text = axes.map(|&axis| format!("{}={}", AXES[axis], self.sizes[axis])).collect::<Vec<_>>().join(",");
        if text.is_empty() { "fsdp=1".to_owned() } else { text }
    }

    /// Returns the number of parts that the rows of a batch are split into.
    pub fn rows_split(&self) -> usize {
        self.size("replica") * self.size("fsdp") * self.size("expert")
    }

    /// Returns the rank of the plan by how much it recomputes.
    pub(super) fn rank(&self) -> usize {
        match &self.remat {
            RematPolicy::None => 0,
            RematPolicy::Dots => DOTS,
            _ => self.list().map_or(MOST_RECOMPUTED, |list| MOST_RECOMPUTED - 1 - list),
        }
    }

    /// Returns the rank of the plan by how much the device does not keep. Values that are kept on the host are not on
    /// the device.
    pub(super) fn rank_of_memory(&self) -> usize {
        if self.offloads() { MOST_RECOMPUTED } else { self.rank() }
    }

    pub(super) fn offloads(&self) -> bool {
        matches!(self.remat, RematPolicy::Offload(_))
    }

    /// Returns the index of the list of [`LISTS`] that the plan keeps, on the device or on the host.
    fn list(&self) -> Option<usize> {
        let (RematPolicy::Save(kept) | RematPolicy::Offload(kept)) = &self.remat else { return None };
        LISTS.iter().position(|&(_, count)| NAMES[..count] == **kept)
    }

    /// Whether it keeps the results of all products that the backward pass needs.
    pub(super) fn keeps_products(&self) -> bool {
        self.list().is_some_and(|list| list + 1 == LISTS.len())
    }

    /// Returns the number of parts that a device's rows are cut into. They are computed one after the other.
    pub(super) fn parts(&self) -> usize {
        self.pipeline.as_ref().map_or(self.accumulate, |pipeline| pipeline.microbatches)
    }

    /// Returns the key that is equal for plans that differ only in how much they recompute and into how many parts they
    /// cut rows.
    pub(super) fn remat_class(&self) -> RematClass {
        let pipeline = self.pipeline.as_ref().map(|it| {
            let numbers = [it.repeats, it.chunks, usize::from(it.keep_gathered)];
            (it.schedule.name(), it.weights.name(), numbers)
        });
        (self.sizes, self.order, self.residual, pipeline)
    }

    /// Returns the key that is equal for plans that keep as much of the same rows.
    pub(super) fn memory_class(&self) -> MemoryClass {
        let keeping = match &self.pipeline {
            None => Keeping::Part,
            Some(pipeline) if pipeline.schedule.branches() => Keeping::Table(pipeline.schedule.name(), pipeline.chunks),
            Some(_) => Keeping::All,
        };
        (self.sizes, self.residual, keeping)
    }

    /// Returns the key of how a plan splits a row, and of what is computed of it.
    pub(super) fn split(&self) -> Split {
        (WITHIN_ROWS.map(|axis| self.size(axis)), self.order, self.residual)
    }

    /// The axes that split something, major to minor.
    pub(super) fn axes(&self) -> Vec<usize> {
        self.order.into_iter().filter(|&axis| self.sizes[axis] > 1).collect()
    }

    /// The plan with [its axes](Plan::axes) in another order; in that of [`AXES`] if none is given.
    pub(super) fn in_order(&self, axes: &[usize]) -> Plan {
        Plan { order: order(&self.sizes, axes), ..self.clone() }
    }

    /// Returns the number of pieces that the rows of a batch are cut into and that are computed at once.
    pub(super) fn pieces(&self) -> usize {
        self.rows_split() * self.parts()
    }

    /// The plan of a config whose devices are known, if a search could choose it.
    pub(super) fn of(config: &RunConfig) -> Option<Plan> {
        let mesh = config.mesh().ok()?;
        let sizes = AXES.map(|name| mesh.axis(name).map_or(1, |axis| mesh.size(axis)));
        let residual = match config.rules.source() {
            RuleSource::Preset(name) if name == Residual::Whole.preset() => Residual::Whole,
            RuleSource::Preset(name) if name != Residual::Split.preset() => return None,
            _ => Residual::Split,
        };
        // A value that plans do not choose must be the default.
        let is_plain = |it: &PipelineConfig| {
            let &PipelineConfig { microbatches, repeats, chunks, layers_per_stage, weights, schedule, .. } = it;
            let chosen =
                PipelineConfig { microbatches, repeats, chunks, layers_per_stage, ..PipelineConfig::default() };
            let chosen = PipelineConfig { weights, schedule, keep_gathered: it.keep_gathered, ..chosen };
            *it == chosen && config.train.microbatches == 1
        };
        let is_one = sizes.iter().product::<usize>() == mesh.device_count()
            && config.mesh.dcn.is_empty()
            && config.pipeline.as_ref().is_none_or(is_plain);
        let mut chosen = config.remat.clone();
        if let RematPolicy::Save(kept) | RematPolicy::Offload(kept) = &mut chosen {
            // In whatever order.
            kept.sort_by_key(|kept| NAMES.iter().position(|name| kept == name));
        }
        let remat = policies(true).into_iter().find(|policy| *policy == chosen)?;
        let axes: Vec<usize> =
            mesh.axes().filter_map(|axis| AXES.iter().position(|name| *name == mesh.name(axis))).collect();
        let RunConfig { train, pipeline, .. } = config.clone();
        let order = order(&sizes, &axes);
        is_one.then_some(Plan { sizes, order, remat, accumulate: train.microbatches, residual, pipeline })
    }

    /// A config with this plan.
    pub fn apply(&self, base: &RunConfig) -> RunConfig {
        let mut config = base.clone();
        config.mesh.axes = self.mesh();
        config.mesh.dcn = String::new();
        config.remat.clone_from(&self.remat);
        config.train.microbatches = self.accumulate;
        config.pipeline.clone_from(&self.pipeline);
        if let RuleSource::Preset(_) = config.rules.source() {
            config.rules.set_preset(self.residual.preset());
        }
        config
    }

    /// The keys that it sets, as `--set` takes them.
    pub fn settings(&self) -> Vec<String> {
        let mut all = vec![format!("mesh.axes={}", self.mesh()), format!("remat.policy={}", self.remat.name())];
        if let RematPolicy::Save(kept) | RematPolicy::Offload(kept) = &self.remat {
            let quoted: Vec<String> = texts(kept).iter().map(|name| format!("\"{name}\"")).collect();
            all.push(format!("remat.names=[{}]", quoted.join(",")));
        }
        if self.accumulate > 1 {
            all.push(format!("train.microbatches={}", self.accumulate));
        }
        if self.residual == Residual::Whole {
            all.push(format!("rules.preset={}", self.residual.preset()));
        }
        all.extend(self.pipeline.iter().flat_map(pipeline_settings));
        all
    }
}

/// The keys of a pipeline that a search chooses, as `--set` takes them.
pub(super) fn pipeline_settings(pipeline: &PipelineConfig) -> Vec<String> {
    let PipelineConfig { microbatches, repeats, chunks, layers_per_stage, schedule, weights, keep_gathered, .. } =
        pipeline;
    vec![
        format!("pipeline.schedule={}", schedule.name()),
        format!("pipeline.microbatches={microbatches}"),
        format!("pipeline.repeats={repeats}"),
        format!("pipeline.chunks={chunks}"),
        format!("pipeline.layers_per_stage={layers_per_stage}"),
        format!("pipeline.weights={}", weights.name()),
        format!("pipeline.keep_gathered={keep_gathered}"),
    ]
}

/// Writes `circular, M 4, R 2, bsw, kept`. The plan for weights is left out where none is to be chosen, unless `whole`.
pub(super) fn write_pipeline(f: &mut fmt::Formatter<'_>, pipeline: &PipelineConfig, whole: bool) -> fmt::Result {
    write!(f, "{}, M {}", pipeline.schedule.name(), pipeline.microbatches)?;
    if pipeline.repeats > 1 {
        write!(f, ", R {}", pipeline.repeats)?;
    }
    if pipeline.chunks > 1 {
        write!(f, ", chunks {}", pipeline.chunks)?;
    }
    // Schedules that branch have gathered weights throughout.
    if whole || !pipeline.schedule.branches() {
        write!(f, ", {}{}", pipeline.weights.name(), if pipeline.keep_gathered { ", kept" } else { "" })?;
    }
    Ok(())
}

/// In short: `stage=2,fsdp=4, remat none, 1f1b, M 8`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, remat {}", self.mesh(), self.remat.name())?;
        if let Some((label, _)) = self.list().and_then(|list| LISTS.get(list)) {
            write!(f, " {label}")?;
        }
        if self.accumulate > 1 {
            write!(f, ", accumulate {}", self.accumulate)?;
        }
        if self.residual == Residual::Whole {
            write!(f, ", {}", self.residual.preset())?;
        }
        let Some(pipeline) = &self.pipeline else { return Ok(()) };
        write!(f, ", ")?;
        write_pipeline(f, pipeline, false)
    }
}

/// An order of the axes: those that split something as in `axes`, the others where they are by default.
fn order(sizes: &[usize; AXES.len()], axes: &[usize]) -> [usize; AXES.len()] {
    let mut axes = axes.iter().filter(|&&axis| sizes[axis] > 1);
    std::array::from_fn(|place| if sizes[place] > 1 { *axes.next().unwrap_or(&place) } else { place })
}

/// A number for each axis.
type OfAxes = [usize; AXES.len()];

/// The plans of a mesh with the same pipeline.
pub(super) type RematClass = (OfAxes, OfAxes, Residual, Option<(&'static str, &'static str, [usize; 3])>);

/// The parts of a device's rows that are kept for the backward pass at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Keeping {
    /// One.
    Part,
    /// All: the backward pass begins when the forward pass has ended.
    All,
    /// As many as the table of a pipeline that branches says, by schedule and chunks.
    Table(&'static str, usize),
}

/// The plans of a mesh that keep as much.
pub(super) type MemoryClass = (OfAxes, Residual, Keeping);

/// The plans that split a row in the same way.
pub(super) type Split = ([usize; WITHIN_ROWS.len()], OfAxes, Residual);

/// The facts about a model and its devices that limit the plans.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) devices: usize,
    /// Devices that links join which are faster than the network: those of a host of GPUs, of a slice of TPUs.
    pub(super) near: usize,
    pub(super) rows: usize,
    /// The number of parts that a layer cuts the rows into that it works on.
    pub(super) parts_of_rows: usize,
    pub(super) length: usize,
    pub(super) cycles: usize,
    pub(super) cycle: usize,
    /// The number of heads of each kind of layer, of queries and of keys and values.
    pub(super) heads: Vec<[usize; 2]>,
    pub(super) width: usize,
    /// The number of routed experts in the layers that have some.
    pub(super) experts: Vec<usize>,
    /// Whether hosts have memory, over links whose rate is known.
    pub(super) can_offload: bool,
    /// Whether the rules are those of a preset, so that sequence parallelism is a choice.
    pub(super) chooses_residual: bool,
}

impl Shape {
    /// Returns the numbers of parts that a device's rows can be cut into. The parts are computed one after the other.
    fn parts(&self, rows_split: usize) -> Vec<usize> {
        let rows = self.rows / rows_split;
        if rows.is_multiple_of(self.parts_of_rows) { divisors(rows / self.parts_of_rows) } else { Vec::new() }
    }
}

pub(super) fn plans(shape: &Shape) -> Vec<Plan> {
    let mut found = Vec::new();
    for sizes in factorizations(shape.devices) {
        let [stage, replica, fsdp, expert, context, tensor] = sizes;
        let splits = |size: usize, whole: usize| whole.is_multiple_of(size);
        let rows_split = replica * fsdp * expert;
        let splits_all = |size: usize, all: &[usize]| all.iter().all(|&whole| splits(size, whole));
        let fits = splits_all(tensor, shape.heads.as_flattened())
            && tensor <= shape.near
            && (expert == 1 || !shape.experts.is_empty() && splits_all(expert, &shape.experts))
            && splits(fsdp * expert * replica, shape.width)
            && splits(stage * rows_split, shape.rows)
            && splits(stage, shape.cycles)
            && splits(context * tensor, shape.length)
            // Shorter parts of rows leave attention too little to do.
            && (context == 1 || shape.length / context >= 2048);
        if !fits {
            continue;
        }
        let residuals: &[Residual] = match tensor > 1 && shape.chooses_residual {
            true => &[Residual::Split, Residual::Whole],
            false => &[Residual::Split],
        };
        for &residual in residuals {
            // A stage that branches keeps its values in slots of its table, on the device.
            for remat in &policies(shape.can_offload && stage == 1) {
                let order = std::array::from_fn(|axis| axis);
                let plan =
                    |accumulate, pipeline| Plan { sizes, order, remat: remat.clone(), accumulate, residual, pipeline };
                if stage == 1 {
                    found.extend(shape.parts(rows_split).into_iter().map(|parts| plan(parts, None)));
                } else {
                    found.extend(pipelines(shape, stage, rows_split, remat).into_iter().map(|it| plan(1, Some(it))));
                }
            }
        }
    }
    found
}

/// The orders of work for layers in so many repeats, or chunks.
pub(super) fn schedules_of(parts: usize) -> &'static [Schedule] {
    match parts {
        1 => &[Schedule::Gpipe, Schedule::OneForwardOneBackward, Schedule::ZeroBubbleOne],
        2 => &[Schedule::Circular, Schedule::Interleaved, Schedule::ZeroBubbleVee],
        _ => &[Schedule::Circular, Schedule::Interleaved],
    }
}

fn pipelines(shape: &Shape, stages: usize, rows_split: usize, remat: &RematPolicy) -> Vec<PipelineConfig> {
    let of_stage = shape.cycles / stages;
    let mut found = Vec::new();
    for microbatches in shape.parts(rows_split) {
        if microbatches < stages || microbatches > MOST_FOR_EACH_STAGE * stages {
            continue;
        }
        let base = PipelineConfig { microbatches, repeats: 1, chunks: 1, ..PipelineConfig::default() };
        for parts in divisors(of_stage) {
            let layers_per_stage = of_stage / parts * shape.cycle;
            for &schedule in schedules_of(parts) {
                let (repeats, chunks) = if schedule.has_chunks() { (1, parts) } else { (parts, 1) };
                let plan = |weights, keep_gathered| PipelineConfig {
                    repeats,
                    chunks,
                    layers_per_stage,
                    schedule,
                    weights,
                    keep_gathered,
                    ..base.clone()
                };
                match schedule {
                    Schedule::Circular if microbatches.is_multiple_of(stages) => {
                        found.extend([false, true].map(|keep| plan(WeightPlan::SlidingWindow, keep)));
                    }
                    // `1f1b` has the same bubbles, and holds fewer microbatches.
                    Schedule::Circular | Schedule::Gpipe => {}
                    // Full rematerialization leaves nothing to cut.
                    _ if schedule.cuts_backward() && *remat == RematPolicy::Full => {}
                    // Bubbles are short enough, and each chunk is one more transfer.
                    Schedule::Interleaved if parts > MOST_CHUNKS || !parts.is_power_of_two() => {}
                    _ => found.push(plan(WeightPlan::GatherOnce, false)),
                }
            }
        }
    }
    found
}

/// All ways to write a number of devices as a product of the sizes of the axes.
pub fn factorizations(devices: usize) -> Vec<[usize; AXES.len()]> {
    fn fill(left: usize, axis: usize, sizes: [usize; AXES.len()], found: &mut Vec<[usize; AXES.len()]>) {
        if axis + 1 == AXES.len() {
            let mut sizes = sizes;
            sizes[axis] = left;
            return found.push(sizes);
        }
        for size in divisors(left) {
            let mut sizes = sizes;
            sizes[axis] = size;
            fill(left / size, axis + 1, sizes, found);
        }
    }
    let mut found = Vec::new();
    fill(devices, 0, [1; AXES.len()], &mut found);
    found
}

fn divisors(number: usize) -> Vec<usize> {
    (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect()
}
