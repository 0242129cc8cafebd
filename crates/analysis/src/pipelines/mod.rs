//! Pipelines in any program: loops that hand values from device to device, and the work of each stage in each
//! iteration.
//!
//! | a loop | what is known |
//! |---|---|
//! | stages branch | the selectors of conditionals, for each stage and iteration, say who computes when |
//! | stages pick weights by repeat, or inputs one by one | the indices say how many microbatches there are |
//! | values are handed along an open line | it fills and drains: what the last stage hands on leaves |
//! | anything else | only the sender and receiver of each value, and the number of times |
//!
//! Names: GPipe (arXiv 1811.06965), 1F1B and interleaved 1F1B (Megatron-LM, arXiv 2104.04473), circular (MaxText,
//! praxis), zero bubble (arXiv 2401.10241, 2405.15362).

mod indices;
pub(crate) mod device_chain;
mod branching_stages;

use std::fmt;

use rustc_hash::FxHashSet;

use super::collectives::{ModuleCollective, ModuleCollectives};
use super::devices::Devices;
use super::index::Computation;
use super::values::Values;
use super::walk::{Via, Walk};
use device_chain::DeviceChain;
use indices::Rounds;
use meshloom_hlo::proto::ShapeProto;

/// The most iterations of a loop that are looked at one by one.
const MOST_ITERATIONS: usize = 1 << 12;

/// Loops that hand values on along one mesh axis, in the order of the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// The axis; `device` where no mesh names it.
    pub axis: String,
    /// The number of devices along it.
    pub stages: usize,
    /// Its loops.
    pub loops: Vec<PipelineLoop>,
}

/// A loop that hands values from stage to stage.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineLoop {
    /// Name of the loop.
    pub name: String,
    /// The number of its iterations.
    pub iterations: usize,
    /// The values handed on in an iteration, at most one in each direction.
    pub handed: Vec<Handed>,
    /// The schedule of the stages, or the reason why it is not known.
    pub schedule: Result<LoopSchedule, &'static str>,
}

/// The value that a stage hands on to a neighbour in each iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handed {
    /// Whether it goes to the stage before.
    pub backward: bool,
    /// Whether the last stage hands on to the first, or the first to the last.
    pub closed: bool,
    /// Bytes that a device hands on.
    pub bytes: Option<u64>,
    /// The source line of the permute.
    pub source: String,
}

/// The schedule of the stages in a loop's iterations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopSchedule {
    /// The order of the work.
    pub order: Order,
    /// The number of microbatches; `None` if only the work of each stage is known.
    pub microbatches: Option<usize>,
    /// Forward and backward passes, as far as they are in this loop.
    pub rows: Vec<Row>,
}

/// The order in which stages work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All microbatches enter one after the other and leave, forwards and then backwards.
    FillDrain,
    /// Microbatches go round several times, one after the other.
    Circular {
        /// The number of rounds, R.
        repeats: usize,
    },
    /// A stage begins backward passes as soon as it can.
    OneForwardOneBackward,
    /// The same, with several chunks of layers on each stage.
    Interleaved {
        /// The number of chunks on each stage, v.
        chunks: usize,
    },
    /// Each stage has one chunk, with the backward pass in two parts.
    ZeroBubble,
    /// Each stage has two chunks: the way through the stages turns back at the last one.
    ZeroBubbleVee,
    /// Any other order.
    Unnamed,
}

/// The work of the stages in one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The pass.
    pub pass: Pass,
    /// The items of work, by stage and iteration.
    pub cells: Vec<Vec<Vec<Item>>>,
}

/// A piece of the work of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The number of the microbatch. Where stages branch, it is counted in the order in which the stage works on it;
    /// without the chunk, it is counted through all chunks.
    pub number: usize,
    /// The repeat or chunk, if there are several and it is known.
    pub part: Option<usize>,
}

/// The part of a step that a stage does for a microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The forward pass.
    Forward,
    /// The backward pass; of inputs alone if there are [`Pass::Weights`].
    Backward,
    /// The gradients of weights.
    Weights,
}

/// The usual name of the order.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::FillDrain => write!(f, "GPipe: it fills and drains"),
            Order::Circular { repeats } => write!(f, "circular, {repeats} repeats"),
            Order::OneForwardOneBackward => write!(f, "1F1B"),
            Order::Interleaved { chunks } => write!(f, "interleaved 1F1B, {chunks} chunks on each stage"),
            Order::ZeroBubble => write!(f, "zero bubble, one chunk on each stage"),
            Order::ZeroBubbleVee => write!(f, "zero bubble, two chunks on each stage"),
            Order::Unnamed => write!(f, "an order without a name"),
        }
    }
}

impl Pipeline {
    /// Returns the part of the iterations of all stages in which a stage does nothing for any microbatch, as far as
    /// schedules are known.
    pub fn bubble(&self) -> Option<f64> {
        let known = || self.loops.iter().filter_map(|it| Some((it, it.schedule.as_ref().ok()?)));
        let slots: usize = known().map(|(it, _)| it.iterations * self.stages).sum();
        let is_idle = |schedule: &LoopSchedule, stage: usize, iteration: usize| {
            schedule.rows.iter().all(|row| row.cells[stage][iteration].is_empty())
        };
        let idle = |(it, schedule): (&PipelineLoop, &LoopSchedule)| {
            let of_stage = |stage| (0..it.iterations).filter(|&iteration| is_idle(schedule, stage, iteration)).count();
            (0..self.stages).map(of_stage).sum::<usize>()
        };
        (slots > 0).then(|| known().map(idle).sum::<usize>() as f64 / slots as f64)
    }
}

/// A loop with the permutes in it.
struct PermuteLoop {
    /// The place of its body.
    body: usize,
    /// The number of loops around it. Their first iterations stand for all.
    around: usize,
    axis: String,
    /// The device of each stage.
    devices: Vec<u64>,
    it: PipelineLoop,
}

impl PermuteLoop {
    /// Whether the last stage hands on to the first.
    fn closed(&self) -> bool {
        self.it.handed.iter().any(|it| it.closed)
    }

    /// Whether all values go to the stage before.
    fn is_backward(&self) -> bool {
        self.it.handed.iter().all(|it| it.backward)
    }

    /// Returns the numbers of an iteration of it, and of the first iteration of each loop around it.
    fn inside(&self, iteration: usize) -> Vec<u64> {
        std::iter::repeat_n(0, self.around).chain([iteration as u64]).collect()
    }
}

/// Returns the pipelines of a program: loops in whose body a permute goes one step along one axis, and hands on the
/// input of the next iteration. Loops of the same axis that follow each other are one pipeline. `collectives` are those
/// of the walk.
pub fn pipelines(walk: &Walk<'_>, collectives: &ModuleCollectives, devices: Devices) -> Vec<Pipeline> {
    let mut values = Values::new(walk, 1);
    let mut pipelines: Vec<Pipeline> = Vec::new();
    for mut found in loops(walk, collectives) {
        found.it.schedule = schedule(walk, &mut values, devices, &found);
        let stages = found.devices.len();
        match pipelines.last_mut().filter(|last| last.axis == found.axis && last.stages == stages) {
            Some(last) => last.loops.push(found.it),
            None => pipelines.push(Pipeline { axis: found.axis, stages, loops: vec![found.it] }),
        }
    }
    pipelines.iter_mut().for_each(complete);
    pipelines
}

/// Returns the loops that hand values on, in the order of the program.
fn loops(walk: &Walk<'_>, collectives: &ModuleCollectives) -> Vec<PermuteLoop> {
    let mut found: Vec<PermuteLoop> = Vec::new();
    for entry in &collectives.entries {
        let Some((axis, line)) = single_axis(entry).zip(DeviceChain::of(&entry.pairs)) else { continue };
        let Some((body, name, iterations)) = loop_of(walk, entry) else { continue };
        // A ring that turns once for each of its devices hands every part to every device: that is a gather in steps,
        // not a pipeline.
        if iterations <= line.devices.len() {
            continue;
        }
        let handed = Handed {
            backward: line.backward,
            closed: line.closed,
            bytes: entry.bytes,
            source: entry.source.clone().unwrap_or_default(),
        };
        let is_same = |it: &&mut PermuteLoop| it.body == body && it.axis == axis && it.devices == line.devices;
        match found.iter_mut().find(is_same) {
            // If a loop sends several values the same way, the first represents all.
            Some(known) if known.it.handed.iter().any(|it| it.backward == handed.backward) => {}
            Some(known) => known.it.handed.push(handed),
            None => found.push(PermuteLoop {
                body,
                around: walk.places()[body].loop_depth - 1,
                axis: axis.to_owned(),
                devices: line.devices,
                it: PipelineLoop { name: name.to_owned(), iterations, handed: vec![handed], schedule: Err("") },
            }),
        }
    }
    found
}

/// Returns the axis along which a permute goes, by name; `device` if no mesh states it.
fn single_axis(entry: &ModuleCollective) -> Option<&str> {
    match entry.axes.as_deref() {
        Some([axis]) if axis.part.is_none() => Some(&axis.name),
        None if !entry.pairs.is_empty() => Some("device"),
        _ => None,
    }
}

/// Returns the loop in which a permute hands values on in every iteration: the place of its body, its name, and its
/// number of iterations.
fn loop_of<'a>(walk: &Walk<'a>, entry: &ModuleCollective) -> Option<(usize, &'a str, usize)> {
    let place = walk.places().get(entry.place)?;
    let number = place.innermost_loop?;
    let body = walk.places().get(number).filter(|body| body.branches == place.branches)?;
    let caller = body.caller.filter(|caller| caller.via == Via::LoopBody)?;
    let iterations = usize::try_from(walk.trip_count(number)?).ok()?;
    is_carried(walk.computation(place), &entry.name).then_some((number, &caller.instruction.name, iterations))
}

/// Whether an operation passes on single elements as they are.
fn carries(opcode: &str) -> bool {
    match opcode {
        "bitcast" | "convert" | "copy" | "copy-done" | "copy-start" | "get-tuple-element" | "opt-barrier"
        | "reshape" | "transpose" | "tuple" => true,
        _ => opcode == "collective-permute-done",
    }
}

/// Whether a permute carries values between iterations: its result leaves the body, or its operand was given to the
/// body, as it is or after operations on single elements. A value may also be put into one of several slots. Neighbours
/// that exchange values for an operation across the border between them put them beside other elements first, and so
/// carry nothing.
fn is_carried(body: &Computation<'_>, name: &str) -> bool {
    let Some(permute) = body.instructions().iter().find(|it| it.name == name) else { return false };
    let dims =
        |shape: &ShapeProto| -> Vec<i64> { shape.dimensions.iter().copied().filter(|&size| size != 1).collect() };
    // The start of an asynchronous permute gives a tuple of its operand and its result.
    let given = permute.shape.as_ref().map(|shape| dims(shape.tuple_shapes.get(1).unwrap_or(shape)));
    let mut carried: FxHashSet<i64> = std::iter::once(permute.id).collect();
    for it in body.instructions() {
        let carries = carries(&it.opcode) || it.shape.as_ref().map(dims) == given;
        let read = match it.opcode.as_str() {
            "dynamic-update-slice" => it.operand_ids.get(1..2).unwrap_or_default(),
            _ if carries => &it.operand_ids,
            _ => &[],
        };
        if read.iter().any(|id| carried.contains(id)) {
            carried.insert(it.id);
        }
    }
    if body.root().is_some_and(|root| carried.contains(&root.id)) {
        return true;
    }
    let mut taken = body.operand(permute, 0);
    while let Some(it) = taken.filter(|it| carries(&it.opcode)) {
        taken = body.operand(it, 0);
    }
    taken.is_some_and(|it| it.opcode == "parameter")
}

fn schedule(
    walk: &Walk<'_>,
    values: &mut Values<'_, '_>,
    devices: Devices,
    found: &PermuteLoop,
) -> Result<LoopSchedule, &'static str> {
    let PermuteLoop { devices: of_stages, it: PipelineLoop { iterations, handed, .. }, .. } = found;
    if walk.is_merged() || *iterations > MOST_ITERATIONS {
        return Err("the program is too large to be followed by stage and iteration");
    }
    if let Some(of_branches) = branching_stages::of(walk, values, devices, found) {
        return of_branches;
    }
    let stages = of_stages.len();
    let rounds = match handed.as_slice() {
        [one] if !one.closed => {
            Some(Rounds { microbatches: iterations + 1 - stages, repeats: 1, delay: 1, is_backward: one.backward })
        }
        _ => indices::rounds(walk, values, devices, found),
    };
    rounds.map(|rounds| even(rounds, (stages, *iterations))).ok_or(NOT_SAID)
}

const NOT_SAID: &str = "all stages do the same in every iteration, and no index says on which microbatch";

/// Returns the schedule of stages that all do the same in every iteration.
fn even(rounds: Rounds, (stages, iterations): (usize, usize)) -> LoopSchedule {
    let cell = |stage, iteration| {
        let item = |item: usize| Item {
            number: item % rounds.microbatches,
            part: (rounds.repeats > 1).then_some(item / rounds.microbatches),
        };
        rounds.item(iterations, stage, iteration).map(item).into_iter().collect()
    };
    let cells = (0..stages).map(|stage| (0..iterations).map(|iteration| cell(stage, iteration)).collect()).collect();
    let order = match rounds.repeats {
        1 => Order::FillDrain,
        repeats => Order::Circular { repeats },
    };
    let pass = if rounds.is_backward { Pass::Backward } else { Pass::Forward };
    LoopSchedule { order, microbatches: Some(rounds.microbatches), rows: vec![Row { pass, cells }] }
}

/// Completes a pipeline: a loop without indices of its own that goes around as often as one before it, and hands on the
/// other way, is its backward pass.
fn complete(pipeline: &mut Pipeline) {
    let directions = |it: &PipelineLoop| -> Vec<bool> {
        let mut all: Vec<bool> = it.handed.iter().map(|it| it.backward).collect();
        all.sort_unstable();
        all
    };
    for number in 1..pipeline.loops.len() {
        let (before, rest) = pipeline.loops.split_at_mut(number);
        let Some(this) = rest.first_mut().filter(|this| this.schedule == Err(NOT_SAID)) else { continue };
        let turned: Vec<bool> = directions(this).iter().rev().map(|backward| !backward).collect();
        let is_its_forward_pass =
            |it: &&PipelineLoop| it.iterations == this.iterations && (pipeline.stages == 2 || directions(it) == turned);
        let forward = before.iter().rev().find(is_its_forward_pass).and_then(|it| it.schedule.as_ref().ok());
        let Some(LoopSchedule { order, microbatches, rows }) = forward else { continue };
        let [Row { pass: Pass::Forward, cells }] = rows.as_slice() else { continue };
        let cells = cells.iter().map(|stage| stage.iter().rev().cloned().collect()).collect();
        let rows = vec![Row { pass: Pass::Backward, cells }];
        this.schedule = Ok(LoopSchedule { order: *order, microbatches: *microbatches, rows });
    }
}
