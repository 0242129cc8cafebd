//! The device memory that a module needs.
//!
//! # The model
//!
//! The model does what XLA's buffer assignment does (buffer_assignment.cc, heap_simulator.cc), from the module alone:
//!
//! - Instructions run in the order of the module's schedule; without one, in the order in which they stand. The
//!   contents of a loop, branch or call run before it. A fusion is one instruction.
//! - A value is in memory from the instruction that makes it to the last instruction that reads it. A tuple element,
//!   bitcast or barrier is the value it refers to. An asynchronous operation holds its operands until it is done.
//! - The carry of a loop is in one buffer before, in and after the loop: the initial value, the values that an
//!   iteration receives and returns, and the result. If its initial value must survive, the loop has a copy. The
//!   results of branches are in the buffer of their conditional. While none of its values is live, such a buffer is
//!   free for others.
//! - An update in place takes over the memory of an operand, if it is the last to read it. An elementwise op may do so,
//!   if the operand is in the memory of a result, or is a value of the heap that is alone in its buffer.
//! - Arguments and results keep their memory from start to end. A result that is aliased with a donated argument lies
//!   in it. Temporary values use the memory of results and of donated arguments while it is free, but on TPUs.
//! - All other temporary values lie in one heap: the largest first, each in the tightest gap that is free while it is
//!   live. The pointers of tuples have memory of their own. The scratch memory that a custom call states, besides
//!   operands and results, is such a value while the call runs.
//!
//! Arrays have the padding that the tiles of their layouts need, as on TPUs. Values that lie elsewhere than in the
//! device's main memory do not count there: in the host's memory (`S(5)` in a layout), or on a TPU in memories on the
//! chip (`S(1)` is VMEM). [`ModuleMemory::other_spaces`] has the most that is live in each of those.
//!
//! A module without a schedule and without fusions has not been compiled. A model (`fused.rs`) then predicts the
//! compiler's fusions, and [`upper`] the most memory that it may need; [`ModuleMemory::form`] states the form of the
//! module. A module that XLA has yet to partition has global shapes: it counts as if one device held everything.
//!
//! An `HloProto` from a compiler's dump may contain the assignment itself ([`memory_of_assignment`]), which is exact.

mod assignment;
mod dataflow;
mod fused;
mod host;
mod out_of_memory;
pub(crate) mod placement;
mod remat;
mod remedies;
mod schedule;
mod sharing;
mod upper;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::cost::scratch_bytes;
use super::host_transfers::HOST;
use super::size::padding;
use super::walk::Walk;
use dataflow::{Class, Flow};
use meshloom_hlo::proto::{HloModuleProto, HloProto};
use meshloom_hlo::sort;
use meshloom_hlo::source::{Sources, op_name};
use meshloom_hlo::table::Table;
use meshloom_hlo::text::{Layouts, print_shape};
use placement::{Lifetime, Reusable, Takeover};
use remedies::Pairing;
use schedule::Schedule;
use sharing::Handover;

pub(super) use schedule::order;

pub use assignment::memory_of_assignment;
pub use out_of_memory::{
    OutOfMemory, RanOutWhile, StatedBytes, may_be_out_of_memory, out_of_memory, remedies_of_message,
};
pub use remedies::{Remedy, RemedyKind, folded, remedies};
pub use upper::{InTiles, Margin, UpperMemory, upper};

/// The form of a module from which its memory was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MemoryForm {
    /// A compiler's own assignment.
    Assignment,
    /// A compiled module with its schedule.
    Scheduled,
    /// A module with fusions and no schedule: its instructions in the order in which they stand.
    Unscheduled,
    /// A module that has not been compiled: the compiler's fusions are predicted.
    Uncompiled,
}

/// The kind of a value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BufferKind {
    /// An argument of the program.
    Argument,
    /// A result of the program that is not in a donated argument.
    Output,
    /// Anything else.
    Temporary,
}

impl BufferKind {
    /// Returns the kind in a word.
    pub fn name(self) -> &'static str {
        match self {
            BufferKind::Argument => "argument",
            BufferKind::Output => "output",
            BufferKind::Temporary => "temporary",
        }
    }
}

/// A value that is in memory at the peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LiveBuffer {
    /// Name of the instruction that makes it.
    pub name: String,
    /// Its kind.
    pub kind: BufferKind,
    /// Its bytes.
    pub bytes: u64,
    /// The bytes of it that are padding, because its layout has tiles.
    pub padding: u64,
    /// Its type, as HLO text has it, without a layout.
    pub shape: String,
    /// Name of the computation that it is made in.
    pub computation: String,
    /// The scopes and the op of its metadata.
    pub op_name: String,
    /// The source line as `file:line`, if the module has it.
    pub source: Option<String>,
}

impl LiveBuffer {
    /// Returns the path of an argument or the scopes and op of a value; the name of the instruction if the module
    /// states neither.
    pub fn label(&self) -> &str {
        if self.op_name.is_empty() { &self.name } else { &self.op_name }
    }
}

/// The amount of memory that is in use at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CurvePoint {
    /// The number of instructions that have run.
    pub position: u64,
    /// The bytes of everything in memory: arguments, results and the values that are live.
    pub bytes: u64,
    /// The instruction that runs.
    pub instruction: String,
}

/// A memory besides the device's main one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OtherSpace {
    /// Its number in layouts: `S(1)`.
    pub space: i64,
    /// The kind of memory.
    pub name: &'static str,
    /// The most bytes of values that are live in it at once.
    pub bytes: u64,
}

impl OtherSpace {
    fn new(space: i64, bytes: u64) -> OtherSpace {
        let name = match space {
            1 => "VMEM on the chip",
            HOST => "the host's memory",
            _ => "a memory on the chip",
        };
        OtherSpace { space, name, bytes }
    }
}

/// The device memory that a module needs, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModuleMemory {
    /// The form of the module from which the figures come.
    #[serde(rename = "memory_form")]
    pub form: MemoryForm,
    /// The bytes of all arguments.
    pub arguments: u64,
    /// The bytes of all outputs, including those in donated arguments, with the pointers of their tuple.
    pub outputs: u64,
    /// The bytes of the outputs that lie in donated arguments.
    pub aliased: u64,
    /// The memory of all other values.
    pub temporaries: u64,
    /// The most bytes of these values that are live at once: the size of their memory if it had no gaps.
    pub live_temporaries: u64,
    /// Whether the values were placed in a heap. More than a few thousand values are not placed; the heap is then
    /// assumed to have no gaps.
    pub placed: bool,
    /// The bytes of constants, which a program has besides.
    pub constants: u64,
    /// The bytes of everything that a device holds for the program: arguments, outputs that are not in them,
    /// temporaries.
    pub peak: u64,
    /// The memories besides the device's main one in which values lie; they are in none of the figures above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_spaces: Vec<OtherSpace>,
    /// Arguments and outputs with a TPU's padding; `None` if layouts already include it.
    #[serde(skip)]
    pub in_tiles: Option<InTiles>,
    /// The values in memory at the peak, largest first.
    pub live_at_peak: Vec<LiveBuffer>,
    /// The live bytes over time, in at most [`CURVE_POINTS`] steps, each with the most that is live in it.
    pub curve: Vec<CurvePoint>,
}

/// The most steps of a curve.
pub const CURVE_POINTS: usize = 2048;

/// The reason why the memory of a module cannot be computed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Calls multiply its values beyond the largest number.
    #[error("the module's values cannot be counted: with every call written out it has more than 67 million")]
    TooLarge,
    /// A dump has no module.
    #[error("the message has no HLO module")]
    NoModule,
}

meshloom_hlo::debug_is_message!(MemoryError);

/// Returns the memory of a module.
///
/// # Errors
/// It is too large.
pub fn memory(module: &HloModuleProto) -> Result<ModuleMemory, MemoryError> {
    let walk = Walk::of(module);
    memory_of_walk(module, &walk, Sources::of(module))
}

/// Returns the memory of a compiler's dump: its assignment if it has one, else the result of [`memory`].
///
/// # Errors
/// It has no module, or one that is too large.
pub fn memory_of_dump(dump: &HloProto) -> Result<ModuleMemory, MemoryError> {
    let module = dump.hlo_module.as_ref().ok_or(MemoryError::NoModule)?;
    match &dump.buffer_assignment {
        Some(assignment) if !assignment.buffer_allocations.is_empty() => Ok(memory_of_assignment(module, assignment)),
        _ => memory(module),
    }
}

/// Returns the memory of a module that has been walked.
///
/// # Errors
/// It is too large.
pub fn memory_of_walk(
    module: &HloModuleProto,
    walk: &Walk<'_>,
    sources: Sources<'_>,
) -> Result<ModuleMemory, MemoryError> {
    Ok(Settled::of(module, walk, &[])?.memory(sources))
}

/// The values of a module, when it is known which of them are one and lie together.
struct Settled<'w, 'a> {
    flow: Flow<'w, 'a>,
    ports: Ports,
    handovers: Vec<Handover>,
    form: MemoryForm,
}

impl<'w, 'a> Settled<'w, 'a> {
    /// Settles the values of a module in which more outputs lie in arguments than it states.
    fn of(module: &'a HloModuleProto, walk: &'w Walk<'a>, donated: &[Pairing]) -> Result<Settled<'w, 'a>, MemoryError> {
        let schedule = Schedule::of(module, walk).ok_or(MemoryError::TooLarge)?;
        let form = form(module);
        let mut flow = Flow::of(walk, schedule);
        let mut ports = Ports::of(module, &mut flow, donated);
        flow.pass_on(form == MemoryForm::Uncompiled);
        if form == MemoryForm::Uncompiled {
            fused::fuse(&mut flow);
        }
        let donated = ports.donated(&mut flow);
        for (a, b) in flow.settle(|class| donated.contains(&class)) {
            flow.put_together(a, b);
        }
        host::take_out(&mut flow);
        let donated = ports.donated(&mut flow);
        let handovers = sharing::update(&mut flow, |class| donated.contains(&class));
        Ok(Settled { flow, ports, handovers, form })
    }

    fn memory(self, sources: Sources<'_>) -> ModuleMemory {
        let Settled { mut flow, ports, handovers, form } = self;
        ports.memory(&mut flow, &handovers, form, sources)
    }
}

/// The values that lie neither in arguments nor in results.
struct HeapValues {
    /// The values that share a heap.
    values: Vec<Lifetime>,
    /// The scratch memory of custom calls, in the same heap.
    scratch: Vec<Lifetime>,
    /// The pointers of tuples, which stay where they are.
    fixed: Vec<Lifetime>,
    constants: u64,
}

fn form(module: &HloModuleProto) -> MemoryForm {
    let is_compiled = || {
        let mut instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
        instructions.any(|instruction| instruction.opcode == "fusion")
    };
    match &module.schedule {
        Some(schedule) if !schedule.sequences.is_empty() => MemoryForm::Scheduled,
        _ if is_compiled() => MemoryForm::Unscheduled,
        _ => MemoryForm::Uncompiled,
    }
}

/// The nodes of a program's arguments and results.
struct Ports {
    arguments: Vec<u32>,
    outputs: Vec<u32>,
    /// The outputs with the arguments that they lie in.
    aliases: Vec<(u32, u32)>,
    /// Whether the module is compiled for a TPU, whose compiler keeps the memory of results for results alone.
    keeps_results: bool,
}

impl Ports {
    /// Marks arguments and results.
    fn of(module: &HloModuleProto, flow: &mut Flow<'_, '_>, donated: &[Pairing]) -> Ports {
        if flow.walk.places().is_empty() {
            return Ports { arguments: Vec::new(), outputs: Vec::new(), aliases: Vec::new(), keeps_results: false };
        }
        let parameters: FxHashMap<i64, usize> = flow.parameters(0).into_iter().collect();
        let root = flow.root(0);
        let node = |flow: &mut Flow<'_, '_>, point: Option<usize>, index: &[i64]| {
            let point = point?;
            match *index {
                [] => Some(flow.nodes(point).start),
                [element] => Some(flow.element(point, element).start).filter(|node| flow.nodes(point).contains(node)),
                // Tuples of tuples at the border of a program are not donated in parts.
                _ => None,
            }
        };
        let entries = module.input_output_alias.iter().flat_map(|alias| &alias.entries);
        let aliases = entries.filter_map(|entry| {
            let parameter = parameters.get(&entry.parameter_number).copied();
            Some((node(flow, root, &entry.output_shape_index)?, node(flow, parameter, &entry.parameter_shape_index)?))
        });
        let mut aliases: Vec<(u32, u32)> = aliases.collect();
        let is_one = root.is_some_and(|root| flow.nodes(root).len() == 1);
        for (output, parameter) in donated {
            let output = node(flow, root, if is_one { &[] } else { std::slice::from_ref(output) });
            aliases.extend(output.zip(node(flow, parameters.get(parameter).copied(), &[])));
        }
        let mut arguments: Vec<u32> = parameters.values().flat_map(|&point| flow.nodes(point)).collect();
        arguments.sort_unstable();
        let outputs: Vec<u32> = root.map(|root| flow.nodes(root).collect()).unwrap_or_default();
        let last = flow.schedule.point_count() as u32;
        for &node in &arguments {
            let class = flow.class(node);
            (class.is_argument, class.start) = (true, 0);
        }
        for &node in &outputs {
            let class = flow.class(node);
            (class.is_output, class.end) = (true, last);
        }
        for &(output, argument) in &aliases {
            flow.class(output).argument = Some(argument);
        }
        Ports { arguments, outputs, aliases, keeps_results: assignment::has_tiles(module) }
    }

    /// Returns the classes of arguments whose memory a result is in.
    fn donated(&mut self, flow: &mut Flow<'_, '_>) -> FxHashSet<u32> {
        self.aliases.iter().map(|&(_, argument)| flow.find(argument)).collect()
    }

    /// Returns the values of the heap: those that no argument or result has room for, with those that took over.
    fn heap(&self, flow: &mut Flow<'_, '_>, handovers: &[Handover]) -> HeapValues {
        let reusable = if self.keeps_results { Vec::new() } else { self.reusable(flow) };
        let mut constants = 0u64;
        let (mut heap, mut fixed) = (Vec::new(), Vec::new());
        let classes: Vec<(u32, Class)> = flow.classes().collect();
        for (node, class) in classes {
            let lifetime = |flow: &mut Flow<'_, '_>| Lifetime::new(node, class.bytes, flow.ranges(node));
            match class {
                Class { bytes: 0, .. } | Class { is_virtual: true, .. } => {}
                Class { is_argument: true, .. } | Class { is_output: true, .. } => {}
                Class { is_constant: true, bytes, .. } => constants = constants.saturating_add(bytes),
                // The pointers of a tuple stay where they are.
                Class { is_tuple: true, .. } => fixed.push(lifetime(flow)),
                _ => heap.push(lifetime(flow)),
            }
        }
        let heap = placement::reuse(heap, reusable, &by_class(flow, handovers));
        let classes: FxHashSet<u32> = heap.iter().map(|value| value.class).collect();
        sharing::share(flow, handovers, |class| classes.contains(&class));
        let mut heap =
            heap.into_iter().map(|value| value.class).filter(|&class| flow.find(class) == class).collect::<Vec<u32>>();
        heap.sort_unstable();
        let values =
            heap.into_iter().map(|class| Lifetime::new(class, flow.class(class).bytes, flow.ranges(class))).collect();
        HeapValues { values, scratch: scratch(flow), fixed, constants }
    }

    fn memory(
        self,
        flow: &mut Flow<'_, '_>,
        handovers: &[Handover],
        form: MemoryForm,
        sources: Sources<'_>,
    ) -> ModuleMemory {
        let times = flow.schedule.point_count();
        let sum = |flow: &mut Flow<'_, '_>, nodes: &mut dyn Iterator<Item = u32>| {
            nodes.fold(0u64, |sum, node| sum.saturating_add(flow.class(node).bytes))
        };
        let arguments = sum(flow, &mut self.arguments.iter().copied());
        let outputs = sum(flow, &mut self.outputs.iter().copied());
        let aliased = sum(flow, &mut self.aliases.iter().map(|&(output, _)| output));
        let HeapValues { values, scratch, fixed, constants } = self.heap(flow, handovers);
        let is_scratch = values.len();
        let heap: Vec<Lifetime> = values.into_iter().chain(scratch).collect();
        let fixed_bytes = fixed.iter().fold(0u64, |sum, value| sum.saturating_add(value.bytes));
        let live = placement::live_bytes(&heap, times);
        let most = live.iter().copied().max().unwrap_or(0);
        let at = live.iter().position(|&bytes| bytes == most).unwrap_or(0);
        let heap_size = placement::heap_size(&heap);
        let temporaries = fixed.iter().fold(heap_size.unwrap_or(most), |size, value| {
            size.checked_next_multiple_of(placement::ALIGNMENT).unwrap_or(size).saturating_add(value.bytes)
        });
        let in_tiles = (form == MemoryForm::Uncompiled).then(|| self.in_tiles(flow));
        let other_spaces = other_spaces(flow);
        let always = arguments.saturating_add(outputs).saturating_sub(aliased).saturating_add(fixed_bytes);
        let is_live = |value: &&Lifetime| value.is_live(at as u32);
        let at_peak: Vec<Lifetime> = heap[..is_scratch].iter().chain(&fixed).filter(is_live).cloned().collect();
        let scratch_at_peak: Vec<Lifetime> = heap[is_scratch..].iter().filter(is_live).cloned().collect();
        ModuleMemory {
            form,
            arguments,
            outputs,
            aliased,
            temporaries,
            live_temporaries: most.saturating_add(fixed_bytes),
            placed: heap_size.is_some(),
            constants,
            peak: arguments.saturating_add(outputs).saturating_sub(aliased).saturating_add(temporaries),
            other_spaces,
            in_tiles,
            live_at_peak: self.live_at_peak(flow, &at_peak, &scratch_at_peak, sources),
            curve: curve(&live, always, |time| &flow.instruction(flow.schedule.point_at(time)).name),
        }
    }

    fn in_tiles(&self, flow: &mut Flow<'_, '_>) -> InTiles {
        let mut sum = |nodes: &mut dyn Iterator<Item = u32>| {
            nodes.fold(0u64, |sum, node| sum.saturating_add(flow.part_shape(node).map_or(0, upper::tiled_bytes)))
        };
        InTiles {
            arguments: sum(&mut self.arguments.iter().copied()),
            outputs: sum(&mut self.outputs.iter().copied()),
            aliased: sum(&mut self.aliases.iter().map(|&(output, _)| output)),
        }
    }

    /// Returns the memory of results, with the classes in it and their times.
    fn reusable(&self, flow: &mut Flow<'_, '_>) -> Vec<Reusable> {
        // By class: ties are in the order of the program, not of a table.
        let mut reusable: BTreeMap<u32, Reusable> = BTreeMap::new();
        let mut put = |flow: &mut Flow<'_, '_>, memory: u32, class: u32| {
            let bytes = flow.class(memory).bytes;
            reusable.entry(memory).or_insert_with(|| Reusable::new(bytes)).put(class, &flow.ranges(class));
        };
        let mut is_aliased = FxHashSet::default();
        for &(output, argument) in &self.aliases {
            let (output, argument) = (flow.find(output), flow.find(argument));
            is_aliased.insert(output);
            put(flow, argument, argument);
            put(flow, argument, output);
        }
        for &output in &self.outputs {
            let (node, class) = (flow.find(output), *flow.class(output));
            if !is_aliased.contains(&node) && !class.is_argument && !class.is_tuple {
                put(flow, node, node);
            }
        }
        reusable.into_values().collect()
    }

    fn live_at_peak(
        &self,
        flow: &mut Flow<'_, '_>,
        values: &[Lifetime],
        scratch: &[Lifetime],
        sources: Sources<'_>,
    ) -> Vec<LiveBuffer> {
        let aliased: FxHashSet<u32> = self.aliases.iter().map(|&(output, _)| output).collect();
        let mut live: Vec<LiveBuffer> = Vec::new();
        let mut add = |flow: &mut Flow<'_, '_>, node: u32, kind: BufferKind| {
            let class = *flow.class(node);
            if class.bytes > 0 {
                live.push(buffer(flow, node, &class, kind, sources));
            }
        };
        self.arguments.iter().for_each(|&node| add(flow, node, BufferKind::Argument));
        for &node in self.outputs.iter().filter(|node| !aliased.contains(node)) {
            add(flow, node, BufferKind::Output);
        }
        values.iter().for_each(|value| add(flow, value.class, BufferKind::Temporary));
        for value in scratch {
            let class = *flow.class(value.class);
            let made = buffer(flow, value.class, &class, BufferKind::Temporary, sources);
            live.push(LiveBuffer { bytes: value.bytes, padding: 0, shape: format!("u8[{}]", value.bytes), ..made });
        }
        sort::by_key(&mut live, |buffer| Reverse(buffer.bytes));
        live
    }
}

/// Returns the most that is live in each memory besides the main one.
fn other_spaces(flow: &mut Flow<'_, '_>) -> Vec<OtherSpace> {
    let mut spaces: BTreeMap<i64, Vec<Lifetime>> = BTreeMap::new();
    let classes: Vec<(u32, Class)> = flow.classes().filter(|(_, class)| !class.is_virtual).collect();
    for (node, class) in classes {
        if let Some((space, bytes)) = class.elsewhere.filter(|&(_, bytes)| bytes > 0) {
            spaces.entry(space).or_default().push(Lifetime::new(node, bytes, flow.ranges(node)));
        }
    }
    let times = flow.schedule.point_count();
    let most = |values: &[Lifetime]| placement::live_bytes(values, times).into_iter().max().unwrap_or(0);
    spaces.into_iter().map(|(space, values)| OtherSpace::new(space, most(&values))).collect()
}

/// Returns the scratch memory that custom calls state, each by the first value that the call makes.
fn scratch(flow: &mut Flow<'_, '_>) -> Vec<Lifetime> {
    let mut found = Vec::new();
    for point in 0..flow.schedule.point_count() {
        let bytes = scratch_bytes(flow.instruction(point));
        if bytes > 0 {
            let time = flow.schedule.time(point);
            let node = flow.nodes(point).start;
            found.push(Lifetime::new(node, bytes, std::iter::once((time, time)).collect()));
        }
    }
    found
}

/// Returns for each class the classes that it may take over from, or give its memory to.
fn by_class(flow: &mut Flow<'_, '_>, handovers: &[Handover]) -> FxHashMap<u32, Vec<Takeover>> {
    let mut found: FxHashMap<u32, Vec<Takeover>> = FxHashMap::default();
    for &Handover { time, operand, result } in handovers {
        let (operand, result) = (flow.find(operand), flow.find(result));
        found.entry(result).or_default().push(Takeover { time, other: operand, is_result: true });
        found.entry(operand).or_default().push(Takeover { time, other: result, is_result: false });
    }
    found
}

fn buffer(flow: &mut Flow<'_, '_>, node: u32, class: &Class, kind: BufferKind, sources: Sources<'_>) -> LiveBuffer {
    let shape = flow.shape(node);
    let padding = shape.map_or(0, padding);
    let shape = shape.map(|shape| print_shape(shape, Layouts::None)).unwrap_or_default();
    let point = class.definer as usize;
    let instruction = flow.instruction(point);
    let (place, _) = flow.schedule.instruction(point);
    LiveBuffer {
        name: instruction.name.clone(),
        kind,
        bytes: class.bytes,
        padding,
        shape,
        computation: flow.walk.places()[place].computation.name.clone(),
        op_name: op_name(instruction).to_owned(),
        source: sources.line(instruction).map(|line| line.to_string()),
    }
}

/// Returns the most that is live in each of a number of steps, with what is live all the time.
fn curve<'n>(live: &[u64], always: u64, instruction: impl Fn(usize) -> &'n str) -> Vec<CurvePoint> {
    let width = live.len().div_ceil(CURVE_POINTS).max(1);
    let step = |(nth, step): (usize, &[u64])| {
        let most = (0..step.len()).max_by_key(|&index| (step[index], Reverse(index))).unwrap_or(0);
        let time = nth * width + most;
        CurvePoint {
            position: time as u64,
            bytes: always.saturating_add(step[most]),
            instruction: instruction(time).to_owned(),
        }
    };
    live.chunks(width).enumerate().map(step).collect()
}

/// Rows of the table; the rest is small.
const SHOWN: usize = 20;

/// The sums, and a table of the largest values at the peak.
impl fmt::Display for ModuleMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModuleMemory { arguments, outputs, aliased, temporaries, peak, .. } = self;
        writeln!(
            f,
            "arguments {arguments}, outputs {outputs} ({aliased} of them in arguments), temporaries {temporaries}"
        )?;
        writeln!(f, "peak {peak}; its largest:")?;
        let table = Table::of(self.live_at_peak.iter().take(SHOWN))
            .text("value", |value| value.label())
            .number("bytes", |value| value.bytes)
            .text("source", |value| value.source.as_deref().unwrap_or_default());
        write!(f, "{table}")
    }
}
