//! The cost of a module: operations, bytes, and the time that a chip would need for them.
//!
//! # What is counted
//!
//! Operations are counted as in XLA's `HloCostAnalysis`, except that a loop body counts as often as it runs: XLA counts
//! it once (jax#20184). A multiplication and an addition are two operations; transcendental functions are counted
//! separately. A fusion has the operations of everything in it, reads what it uses of its operands, and writes its
//! results; its intermediate values need no memory. Collectives send the bytes that the formulas of the
//! ledger of a partitioned program give.
//!
//! - A loop with an unknown trip count counts once and is listed in [`Assumptions::loops_counted_once`].
//! - Each branch of a conditional has its own cost; a sum takes the largest branch for each figure.
//! - A custom call that states what it takes counts as it says. An unknown one has no operations and is listed in
//!   [`Assumptions::unknown_calls`].
//! - In a module without fusions, every op reads and writes memory. So the bytes of an uncompiled module are an upper
//!   bound.
//!
//! # The estimate of time
//!
//! An op takes the longer of two times: its operations at the chip's peak rate, and its bytes at the memory's rate
//! (Williams, Waterman and Patterson, "Roofline", 2009). A collective takes its bytes along one ring of links in both
//! directions. A collective whose groups cross slices ([`CostOptions::slice_devices`]) uses the data center's network.
//! Nothing reaches these rates, so the estimate is a lower bound. Operations outside of matrix products are counted at
//! the rate of the matrix units as well, since memory bounds them on every chip listed. A step takes between
//! [`Roofline::overlapped_seconds`], if everything overlaps, and [`Roofline::serial_seconds`], if nothing does.
//!
//! A module that libtpu compiled has the compiler's own estimate for most kernels, in cycles ([`Work::cycles`]).

mod convolution;
mod custom_call;
mod cycles;
mod operands;
mod roofline;
mod work;

use std::fmt;

use indexmap::IndexMap;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::async_collectives::Sites;
use super::chips::{Arithmetic, Chip};
use super::collectives::collectives_at;
use super::device_walk::DeviceWalk;
use super::devices::Devices;
use super::walk::{Place, Via, Walk};
use crate::{Amount, Bounds};
use meshloom_hlo::proto::HloModuleProto;
use meshloom_hlo::sort;
use meshloom_hlo::source::{Sources, op_name, scope};
use meshloom_hlo::table::Table;

pub(super) use roofline::{Link, Timer, transfer};
pub(super) use work::{Counter, is_by_element};

pub(crate) use custom_call::scratch_bytes;
pub use custom_call::{STATED_BYTES, STATED_OPERATIONS, STATED_SCRATCH, STATED_TRANSCENDENTALS};
pub use roofline::{Bound, Roofline, Seconds};

/// Operations and bytes. Numbers that are too large stay at the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Work {
    /// Arithmetic operations, without transcendental functions.
    pub flops: u64,
    /// Transcendental functions: exponentials, logarithms, roots, powers.
    pub transcendentals: u64,
    /// Bytes read from memory.
    pub bytes_read: u64,
    /// Bytes written to memory.
    pub bytes_written: u64,
    /// Bytes that one device sends to others.
    pub link_bytes: u64,
    /// The compiler's estimate, in cycles of the chip's clock; 0 without an estimate.
    #[serde(skip_serializing_if = "is_zero")]
    pub cycles: u64,
    /// Whether it is, or contains, a custom call for which only the bytes are known.
    pub unknown: bool,
    /// The arithmetic of most operations.
    #[serde(skip)]
    arithmetic: Option<Arithmetic>,
    /// The number of operations in that arithmetic.
    #[serde(skip)]
    in_arithmetic: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Work {
    fn flops(flops: u64, arithmetic: Arithmetic) -> Work {
        Work { flops, arithmetic: (flops > 0).then_some(arithmetic), in_arithmetic: flops, ..Work::default() }
    }

    fn with_bytes(self, (bytes_read, bytes_written): (u64, u64)) -> Work {
        Work { bytes_read, bytes_written, ..self }
    }

    fn computed_only(self) -> Work {
        Work { bytes_read: 0, bytes_written: 0, link_bytes: 0, ..self }
    }

    fn combine(self, other: Work, combine: impl Fn(u64, u64) -> u64) -> Work {
        let most = if other.in_arithmetic > self.in_arithmetic { other } else { self };
        Work {
            flops: combine(self.flops, other.flops),
            transcendentals: combine(self.transcendentals, other.transcendentals),
            bytes_read: combine(self.bytes_read, other.bytes_read),
            bytes_written: combine(self.bytes_written, other.bytes_written),
            link_bytes: combine(self.link_bytes, other.link_bytes),
            cycles: combine(self.cycles, other.cycles),
            unknown: self.unknown || other.unknown,
            ..most
        }
    }

    /// Returns the sum.
    pub fn plus(self, other: Work) -> Work {
        self.combine(other, u64::saturating_add)
    }

    /// Returns the larger of each figure.
    pub fn max(self, other: Work) -> Work {
        self.combine(other, u64::max)
    }

    /// Returns the work of this many repetitions.
    pub fn times(self, times: u64) -> Work {
        let in_arithmetic = self.in_arithmetic.saturating_mul(times);
        Work { in_arithmetic, ..self.combine(self, |figure, _| figure.saturating_mul(times)) }
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.bytes_read.saturating_add(self.bytes_written)
    }

    /// Returns the operations for each byte; `None` if no byte is moved.
    pub fn intensity(&self) -> Option<f64> {
        (self.bytes() > 0).then(|| self.flops as f64 / self.bytes() as f64)
    }

    /// Returns the arithmetic of most of its operations; `None` if it has none.
    pub fn arithmetic(&self) -> Option<Arithmetic> {
        self.arithmetic
    }

    fn is_nothing(&self) -> bool {
        let Work { flops, transcendentals, bytes_read, bytes_written, link_bytes, cycles, unknown, .. } = *self;
        !unknown && [flops, transcendentals, bytes_read, bytes_written, link_bytes, cycles] == [0; 6]
    }
}

/// The cost of an instruction in a place.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InstructionCost {
    /// Its name.
    pub name: String,
    /// Its opcode, or the target of a custom call.
    pub op: String,
    /// Name of the computation it is in.
    pub computation: String,
    /// The work of one execution.
    pub work: Work,
    /// How often it runs in one run of the program.
    pub executions: Amount,
    /// The work of all executions, as many as are assumed.
    pub total: Work,
    /// The number of loops around it.
    pub loop_depth: usize,
    /// The resource that limits it; `None` if too little is known of the chip.
    pub bound: Option<Bound>,
    /// The time of all its executions.
    pub seconds: Option<Seconds>,
    /// Scopes of its metadata, joined by `/`.
    pub scope: String,
    /// The scopes and the op of its metadata.
    pub op_name: String,
    /// The source line as `file:line`, if the module has it.
    pub source: Option<String>,
}

/// The cost of a loop, with the loops in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoopCost {
    /// Name of the `while`.
    pub name: String,
    /// Name of its body.
    pub body: String,
    /// Its iterations, each time it is run; `None` if they are not known, or not always the same.
    pub trip_count: Option<u64>,
    /// The fewest and the most of them, on any device.
    #[serde(skip)]
    pub trips: Bounds,
    /// How often the body runs in one run of the program, all loops around it multiplied.
    pub executions: Amount,
    /// The number of loops around the body, with this one.
    pub depth: usize,
    /// The work of all executions of body and condition, as many as are assumed.
    pub total: Work,
    /// The time of all executions, one op after the other.
    pub seconds: Option<Seconds>,
    /// The source line as `file:line`, if the module has it.
    pub source: Option<String>,
}

/// The cost of the instructions of one scope, without those of scopes in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScopeCost {
    /// Names of nested scopes, joined by `/`.
    pub scope: String,
    /// The work of all executions of all its instructions.
    pub total: Work,
    /// The time of all executions, one op after the other.
    pub seconds: Option<Seconds>,
}

/// A custom call that computes something unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnknownCall {
    /// Its target.
    pub target: String,
    /// How many instructions call it.
    pub instructions: u64,
    /// Bytes of their operands and results, in all executions.
    pub bytes: u64,
}

/// The assumptions that the sums rest on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Assumptions {
    /// Names of the loops whose trip count is not known, counted as if they ran once.
    pub loops_counted_once: Vec<String>,
    /// Whether the module has branches: sums count the largest one.
    pub branches: bool,
    /// Whether the module had too many ways to keep apart ([`Walk::is_merged`]): an entry then represents all
    /// executions of an instruction, and sums include all branches.
    pub merged: bool,
    /// Custom calls whose bytes alone are counted.
    pub unknown_calls: Vec<UnknownCall>,
}

/// The cost of a module on each device.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModuleCost {
    /// Instructions that do something, in the order of the program.
    pub instructions: Vec<InstructionCost>,
    /// Loops, in the order of the program.
    pub loops: Vec<LoopCost>,
    /// Scopes, in the order in which the program first has them.
    pub scopes: Vec<ScopeCost>,
    /// The work of one run of the program.
    pub total: Work,
    /// The time that the program takes on the chip.
    pub roofline: Option<Roofline>,
    /// The assumptions that the sums rest on.
    pub assumptions: Assumptions,
}

/// How a module is costed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostOptions {
    /// How many devices the program runs on.
    pub devices: Devices,
    /// The chip whose time is estimated.
    pub chip: Option<Chip>,
    /// Devices of one slice, or of one host of GPUs: a group with devices of several slices or hosts uses the network
    /// between them. It is `None` if links join all devices.
    pub slice_devices: Option<u64>,
}

impl CostOptions {
    /// Returns options for these devices, without an estimate of time.
    pub fn devices(devices: Devices) -> CostOptions {
        CostOptions { devices, chip: None, slice_devices: None }
    }

    /// Returns the options with an estimate of time for a chip.
    pub fn on(self, chip: &Chip) -> CostOptions {
        CostOptions { chip: Some(*chip), ..self }
    }
}

/// Returns the cost of a module.
pub fn cost(module: &HloModuleProto, options: &CostOptions) -> ModuleCost {
    cost_of_walk(&DeviceWalk::of(module, options.devices), Sources::of(module), options)
}

/// Returns the cost of a module that has been walked.
pub fn cost_of_walk(device_walk: &DeviceWalk<'_>, sources: Sources<'_>, options: &CostOptions) -> ModuleCost {
    let walk = device_walk.walk();
    let instructions = instructions(device_walk, sources, options);
    let mut sums = vec![Sum::default(); walk.places().len()];
    let mut scopes: IndexMap<&str, Sum> = IndexMap::new();
    let mut unknown: IndexMap<&str, UnknownCall> = IndexMap::new();
    for (place, entry) in &instructions {
        let sum = Sum { work: entry.total, seconds: entry.seconds };
        sums[*place].add(sum);
        scopes.entry(&entry.scope).or_default().add(sum);
        if entry.work.unknown {
            let call = unknown.entry(&entry.op).or_insert_with(|| UnknownCall {
                target: entry.op.clone(),
                instructions: 0,
                bytes: 0,
            });
            call.instructions += 1;
            call.bytes = call.bytes.saturating_add(entry.total.bytes());
        }
    }
    let whole = with_callees(sums, walk);
    let loops = loops(device_walk, sources, &whole);
    let assumptions = Assumptions {
        loops_counted_once: loops_counted_once(walk),
        branches: walk.places().iter().any(|place| matches!(via(place), Some(Via::Branch(_))) && !place.is_decided()),
        merged: walk.is_merged(),
        unknown_calls: unknown.into_values().collect(),
    };
    let scope =
        |(scope, sum): (&str, Sum)| ScopeCost { scope: scope.to_owned(), total: sum.work, seconds: sum.seconds };
    let scopes = scopes.into_iter().map(scope).collect();
    let total = whole.first().copied().unwrap_or_default();
    let roofline = options.chip.zip(total.seconds).map(|(chip, seconds)| Roofline::of(&chip, seconds));
    let instructions = instructions.into_iter().map(|(_, entry)| entry).collect();
    ModuleCost { instructions, loops, scopes, total: total.work, roofline, assumptions }
}

fn via(place: &Place<'_>) -> Option<Via> {
    place.caller.map(|caller| caller.via)
}

/// The instructions that do something, with the number of their place.
fn instructions(
    device_walk: &DeviceWalk<'_>,
    sources: Sources<'_>,
    options: &CostOptions,
) -> Vec<(usize, InstructionCost)> {
    let walk = device_walk.walk();
    let counter = Counter::new(walk.module());
    let sites = Sites::of(walk);
    let collectives = collectives_at(&sites, device_walk, sources).entries;
    let mut found = Vec::new();
    for step in walk.steps() {
        let instruction = step.instruction;
        let collective = sites.starting(step).and_then(|site| collectives.get(site.collective));
        // Its fusion answers for what is in it, but not for what it sends.
        let mut work = match step.place.fused {
            true if collective.is_none() => continue,
            true => Work::default(),
            false => counter.work(walk.computation(step.place), instruction),
        };
        work.link_bytes = collective.and_then(|collective| collective.moved_bytes).unwrap_or(0);
        work.cycles = cycles::estimated(instruction).unwrap_or(0);
        if work.is_nothing() {
            continue;
        }
        let total = work.times(step.place.assumed_executions);
        let link = collective.map(|collective| roofline::link(collective, options));
        let rated = options.chip.and_then(|chip| {
            let once = Seconds::of(&chip, &work, link)?;
            Some((once.bound(), once.times(step.place.assumed_executions)))
        });
        let op =
            if instruction.opcode == "custom-call" { &instruction.custom_call_target } else { &instruction.opcode };
        let entry = InstructionCost {
            name: instruction.name.clone(),
            op: op.clone(),
            computation: step.place.computation.name.clone(),
            work,
            executions: step.place.executions,
            total,
            loop_depth: step.place.loop_depth,
            bound: rated.map(|(bound, _)| bound),
            seconds: rated.map(|(_, seconds)| seconds),
            scope: scope(instruction).to_owned(),
            op_name: op_name(instruction).to_owned(),
            source: sources.line(instruction).map(|line| line.to_string()),
        };
        found.push((step.place_number, entry));
    }
    found
}

/// Work with the time that it takes, if a chip is known.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    work: Work,
    seconds: Option<Seconds>,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        *self = Sum {
            work: self.work.plus(other.work),
            seconds: Seconds::combine(self.seconds, other.seconds, |a, b| a + b),
        };
    }

    fn max(self, other: Sum) -> Sum {
        Sum { work: self.work.max(other.work), seconds: Seconds::combine(self.seconds, other.seconds, f64::max) }
    }
}

/// Returns the sum of each place with all that it calls.
fn with_callees(mut sums: Vec<Sum>, walk: &Walk<'_>) -> Vec<Sum> {
    // A place follows its caller.
    for (number, place) in walk.places().iter().enumerate().rev() {
        let mut branches: FxHashMap<i64, Sum> = FxHashMap::default();
        for callee in place.callees.clone() {
            let (sum, Some(caller)) = (sums[callee], walk.places()[callee].caller) else { continue };
            let is_branch = matches!(caller.via, Via::Branch(_)) && !walk.is_merged();
            if is_branch && !walk.places()[callee].is_decided() {
                let largest = branches.entry(caller.instruction.id).or_default();
                *largest = largest.max(sum);
            } else {
                sums[number].add(sum);
            }
        }
        // Sums of floating point are the same each time if they are added in the same order.
        let mut branches: Vec<(i64, Sum)> = branches.into_iter().collect();
        sort::by_key(&mut branches, |(id, _)| *id);
        branches.into_iter().for_each(|(_, sum)| sums[number].add(sum));
    }
    sums
}

/// The loops in the order of the program. A body's condition has the same caller.
fn loops(device_walk: &DeviceWalk<'_>, sources: Sources<'_>, whole: &[Sum]) -> Vec<LoopCost> {
    let walk = device_walk.walk();
    let mut loops: Vec<LoopCost> = Vec::new();
    let mut by_caller: FxHashMap<(usize, i64), usize> = FxHashMap::default();
    for (number, place) in walk.places().iter().enumerate() {
        let Some(caller) = place.caller else { continue };
        let sum = whole[number];
        match caller.via {
            Via::LoopBody => {
                by_caller.insert((caller.place, caller.instruction.id), loops.len());
                let trips = trips(device_walk, number);
                loops.push(LoopCost {
                    name: caller.instruction.name.clone(),
                    body: place.computation.name.clone(),
                    trip_count: trips.most.filter(|&most| most == trips.least),
                    trips,
                    executions: place.executions,
                    depth: place.loop_depth,
                    total: sum.work,
                    seconds: sum.seconds,
                    source: sources.line(caller.instruction).map(|line| line.to_string()),
                });
            }
            Via::LoopCondition => {
                if let Some(&index) = by_caller.get(&(caller.place, caller.instruction.id)) {
                    let mut both = Sum { work: loops[index].total, seconds: loops[index].seconds };
                    both.add(sum);
                    (loops[index].total, loops[index].seconds) = (both.work, both.seconds);
                }
            }
            _ => {}
        }
    }
    loops
}

/// The iterations of the loop whose body is a place, each time it is run.
fn trips(device_walk: &DeviceWalk<'_>, body: usize) -> Bounds {
    device_walk.executions().iterations(body).unwrap_or_else(|| {
        let count = device_walk.walk().trip_count(body);
        Bounds { least: count.unwrap_or(0), most: count }
    })
}

fn loops_counted_once(walk: &Walk<'_>) -> Vec<String> {
    let unknown = |(number, place): (usize, &Place<'_>)| {
        let caller = place.caller.filter(|caller| caller.via == Via::LoopBody)?;
        (place.executions == Amount::Unknown && walk.trip_count(number).is_none())
            .then(|| caller.instruction.name.clone())
    };
    let mut names: Vec<String> = walk.places().iter().enumerate().filter_map(unknown).collect();
    names.sort();
    names.dedup();
    names
}

/// Rows of the table; the rest is small.
const SHOWN: usize = 20;

/// The sums, and a table of the instructions that take longest, or compute most.
impl fmt::Display for ModuleCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = &self.total;
        writeln!(
            f,
            "flops {}, transcendentals {}, bytes {}, sent {}",
            total.flops,
            total.transcendentals,
            total.bytes(),
            total.link_bytes
        )?;
        if let Some(roofline) = &self.roofline {
            writeln!(
                f,
                "{}: {:.3e} s if everything overlaps, {:.3e} s if nothing does; {} bound",
                roofline.chip, roofline.overlapped_seconds, roofline.serial_seconds, roofline.bound
            )?;
        }
        let mut entries: Vec<&InstructionCost> = self.instructions.iter().collect();
        let weight = |entry: &InstructionCost| entry.seconds.map_or(entry.total.flops as f64, |seconds| seconds.serial);
        sort::by(&mut entries, |a, b| weight(b).total_cmp(&weight(a)));
        let table = Table::of(entries.into_iter().take(SHOWN))
            .text("instruction", |entry| &entry.name)
            .number("flops", |entry| entry.work.flops)
            .number("bytes", |entry| entry.work.bytes())
            .number("sent", |entry| entry.work.link_bytes)
            .number("times", |entry| entry.executions)
            .text("bound", |entry| entry.bound.map(|bound| bound.to_string()).unwrap_or_default())
            .text("source", |entry| entry.source.as_deref().unwrap_or_default());
        write!(f, "{table}")
    }
}
