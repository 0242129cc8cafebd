//! The memory that a compiler has assigned.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{BufferKind, LiveBuffer, MemoryForm, ModuleMemory, OtherSpace, curve};
use crate::host_transfers::HOST;
use crate::size::padding;
use meshloom_hlo::proto::heap_simulator_trace::Event;
use meshloom_hlo::proto::heap_simulator_trace::event::Kind;
use meshloom_hlo::proto::{
    BufferAllocationProto, BufferAssignmentProto, HloInstructionProto, HloModuleProto, LogicalBufferProto, ShapeProto,
};
use meshloom_hlo::source::{Sources, op_name};
use meshloom_hlo::text::{Layouts, print_shape};

/// Returns the memory of a module as its compiler assigned it.
pub fn memory_of_assignment(module: &HloModuleProto, assignment: &BufferAssignmentProto) -> ModuleMemory {
    let is_tpu = has_tiles(module);
    let is_elsewhere = |color: i64| color == HOST || color != 0 && is_tpu;
    let of = |is: fn(&BufferAllocationProto) -> bool| {
        let here = assignment.buffer_allocations.iter().filter(|allocation| !is_elsewhere(allocation.color));
        let allocations = here.filter(|allocation| is(allocation));
        allocations.fold(0u64, |sum, allocation| sum.saturating_add(size(allocation)))
    };
    let arguments = of(|allocation| allocation.is_entry_computation_parameter);
    let outputs = of(|allocation| allocation.maybe_live_out);
    let aliased = of(|allocation| allocation.is_entry_computation_parameter && allocation.maybe_live_out);
    let temporaries = of(is_temporary);
    let mut spaces: BTreeMap<i64, u64> = BTreeMap::new();
    for allocation in assignment.buffer_allocations.iter().filter(|allocation| is_elsewhere(allocation.color)) {
        let bytes = spaces.entry(allocation.color).or_default();
        *bytes = bytes.saturating_add(size(allocation));
    }
    let held = arguments.saturating_add(outputs).saturating_sub(aliased);
    let buffers = Buffers::of(module, assignment);
    let events: Vec<&Event> = assignment.heap_simulator_traces.iter().flat_map(|trace| &trace.events).collect();
    let (steps, at_peak) = replay(&events, &buffers);
    let mut live = buffers.static_ones(assignment);
    live.extend(at_peak.into_iter().filter_map(|id| buffers.describe(id, BufferKind::Temporary)));
    live.retain(|buffer| buffer.bytes > 0);
    live.sort_by_key(|buffer| Reverse(buffer.bytes));
    ModuleMemory {
        form: MemoryForm::Assignment,
        arguments,
        outputs,
        aliased,
        temporaries,
        live_temporaries: steps.iter().copied().max().unwrap_or(0).min(temporaries),
        placed: true,
        constants: of(|allocation| allocation.is_constant),
        peak: held.saturating_add(temporaries),
        other_spaces: spaces.into_iter().map(|(space, bytes)| OtherSpace::new(space, bytes)).collect(),
        in_tiles: None,
        live_at_peak: live,
        curve: curve(&steps, held, |at| &events[at].instruction_name),
    }
}

/// Whether layouts have tiles, as those of TPUs do, whose memories besides the main one are on the chip.
pub(super) fn has_tiles(module: &HloModuleProto) -> bool {
    let is_tiled = |shape: &ShapeProto| shape.layout.as_ref().is_some_and(|layout| !layout.tiles.is_empty());
    let mut shapes = module.computations.iter().flat_map(|it| &it.instructions).filter_map(|it| it.shape.as_ref());
    shapes.any(|shape| is_tiled(shape) || shape.tuple_shapes.iter().any(is_tiled))
}

fn size(allocation: &BufferAllocationProto) -> u64 {
    u64::try_from(allocation.size).unwrap_or(0)
}

/// Returns a part of a tuple.
fn part<'s>(shape: &'s ShapeProto, index: &[i64]) -> Option<&'s ShapeProto> {
    let mut found = shape;
    for &index in index {
        found = found.tuple_shapes.get(usize::try_from(index).ok()?)?;
    }
    Some(found)
}

/// Whether an allocation is what XLA calls a preallocated temporary buffer.
fn is_temporary(allocation: &BufferAllocationProto) -> bool {
    !allocation.is_entry_computation_parameter
        && !allocation.maybe_live_out
        && !allocation.is_thread_local
        && !allocation.is_constant
}

/// The values of an assignment, and the instructions that make them.
struct Buffers<'a> {
    sources: Sources<'a>,
    buffers: FxHashMap<i64, &'a LogicalBufferProto>,
    by_id: FxHashMap<i64, (&'a str, &'a HloInstructionProto)>,
    by_name: FxHashMap<&'a str, (&'a str, &'a HloInstructionProto)>,
}

impl<'a> Buffers<'a> {
    fn of(module: &'a HloModuleProto, assignment: &'a BufferAssignmentProto) -> Buffers<'a> {
        let instructions = || {
            module.computations.iter().flat_map(|computation| {
                computation.instructions.iter().map(move |instruction| (computation.name.as_str(), instruction))
            })
        };
        Buffers {
            sources: Sources::of(module),
            buffers: assignment.logical_buffers.iter().map(|buffer| (buffer.id, buffer)).collect(),
            by_id: instructions().map(|found| (found.1.id, found)).collect(),
            by_name: instructions().map(|found| (found.1.name.as_str(), found)).collect(),
        }
    }

    fn bytes(&self, id: i64) -> u64 {
        self.buffers.get(&id).map_or(0, |buffer| u64::try_from(buffer.size).unwrap_or(0))
    }

    /// Describes the instruction that makes a value: older compilers name it, newer ones number it.
    fn describe(&self, id: i64, kind: BufferKind) -> Option<LiveBuffer> {
        let location = self.buffers.get(&id)?.defined_at.as_ref();
        let found = location.and_then(|location| {
            self.by_name.get(location.instruction_name.as_str()).or_else(|| self.by_id.get(&location.instruction_id))
        });
        let instruction = found.map(|(_, instruction)| *instruction);
        let shape = instruction.and_then(|found| part(found.shape.as_ref()?, &location?.shape_index));
        Some(LiveBuffer {
            name: instruction.map_or_else(|| format!("buffer {id}"), |instruction| instruction.name.clone()),
            kind,
            bytes: self.bytes(id),
            padding: shape.map_or(0, padding),
            shape: shape.map(|shape| print_shape(shape, Layouts::None)).unwrap_or_default(),
            computation: found.map(|(computation, _)| (*computation).to_owned()).unwrap_or_default(),
            op_name: instruction.map(|instruction| op_name(instruction).to_owned()).unwrap_or_default(),
            source: instruction.and_then(|found| self.sources.line(found)).map(|line| line.to_string()),
        })
    }

    /// Returns the arguments, and the outputs that are not in them, by their largest value.
    fn static_ones(&self, assignment: &BufferAssignmentProto) -> Vec<LiveBuffer> {
        let kind = |allocation: &BufferAllocationProto| match allocation {
            BufferAllocationProto { is_entry_computation_parameter: true, .. } => Some(BufferKind::Argument),
            BufferAllocationProto { maybe_live_out: true, .. } => Some(BufferKind::Output),
            _ => None,
        };
        let largest = |allocation: &BufferAllocationProto| {
            let kind = kind(allocation)?;
            let first = allocation
                .assigned
                .iter()
                .max_by_key(|assigned| (assigned.size, Reverse(assigned.logical_buffer_id)))?;
            Some(LiveBuffer { bytes: size(allocation), ..self.describe(first.logical_buffer_id, kind)? })
        };
        assignment.buffer_allocations.iter().filter_map(largest).collect()
    }
}

/// Replays the compiler's heap. Returns the bytes that are live after each event, and the values at the first peak.
fn replay(events: &[&Event], buffers: &Buffers<'_>) -> (Vec<u64>, Vec<i64>) {
    let mut heap = Heap::default();
    let step = |event: &&Event| {
        heap.apply(event, buffers);
        heap.live
    };
    let steps: Vec<u64> = events.iter().map(step).collect();
    let most = steps.iter().copied().max().unwrap_or(0);
    let until = if most > 0 { steps.iter().position(|&live| live == most).map_or(0, |at| at + 1) } else { 0 };
    let mut heap = Heap::default();
    events[..until].iter().for_each(|event| heap.apply(event, buffers));
    let readers = heap.readers.into_iter().filter(|(_, count)| *count > 0);
    let mut at_peak: Vec<i64> = readers.map(|(id, _)| id).collect();
    at_peak.sort_unstable();
    (steps, at_peak)
}

/// The values in a heap. A value that shares another's memory counts as that one.
#[derive(Default)]
struct Heap {
    live: u64,
    shares: FxHashMap<i64, i64>,
    readers: FxHashMap<i64, u64>,
}

impl Heap {
    fn apply(&mut self, event: &Event, buffers: &Buffers<'_>) {
        let id = event.buffer_id;
        match event.kind() {
            Kind::Alloc => self.add(id, buffers),
            Kind::ShareWith => {
                let canonical = self.canonical(event.share_with_canonical_id);
                if canonical != id {
                    self.shares.insert(id, canonical);
                }
                self.add(canonical, buffers);
            }
            Kind::Free => {
                let id = self.shares.remove(&id).unwrap_or(id);
                if let Some(count) = self.readers.get_mut(&id).filter(|count| **count > 0) {
                    *count -= 1;
                    if *count == 0 {
                        self.live = self.live.saturating_sub(buffers.bytes(id));
                    }
                }
            }
        }
    }

    fn add(&mut self, id: i64, buffers: &Buffers<'_>) {
        let count = self.readers.entry(id).or_default();
        *count += 1;
        if *count == 1 {
            self.live = self.live.saturating_add(buffers.bytes(id));
        }
    }

    fn canonical(&self, id: i64) -> i64 {
        let mut seen = FxHashSet::default();
        let mut id = id;
        while let Some(&next) = self.shares.get(&id).filter(|_| seen.insert(id)) {
            id = next;
        }
        id
    }
}
