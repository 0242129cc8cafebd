//! The most collectives that a device can be in at once, on XLA's CPU runtime.
//!
//! The thunk executor (`thunk_executor.cc`) starts collectives, and instructions that contain some, in the order of the
//! schedule. In a collective it waits until all devices of its group are there. But it goes on when a `while`, a
//! `conditional` or a call has been launched, unless the next instruction needs its result. So a device can be in one
//! collective of each of several loops that do not need each other's results, and in one beside them.

use rustc_hash::FxHashMap;

use super::communication::communication;
use super::index::{Computation, Module};
use meshloom_hlo::proto::HloModuleProto;

/// Returns the most collectives that a device can be in at once, in the order of the module's schedule. A module
/// without a schedule is taken in the order of its instructions. It counts up to `enough`, and no further: the time
/// that it takes may grow with the number of loops to that power.
///
/// A module that XLA has yet to partition lacks collectives, and counts as having few.
pub fn collectives_at_once(module: &HloModuleProto, enough: usize) -> usize {
    let index = Module::new(module);
    let sequences = module.schedule.as_ref().map(|schedule| &schedule.sequences);
    let sequence = |id: i64| Some(sequences?.get(&id)?.instruction_ids.as_slice());
    let count = |within: &[usize]| {
        let computations = index.computations().iter();
        let most = computations.map(|each| {
            let stand: Vec<i64> = each.instructions().iter().map(|instruction| instruction.id).collect();
            let order = sequence(each.proto().id).unwrap_or(&stand);
            most_at_once(&actives(&index, each, order, within), enough)
        });
        most.collect::<Vec<_>>()
    };
    // By number: what a computation has within depends on those that it calls.
    let mut within = vec![0; index.computations().len()];
    loop {
        let found = count(&within);
        if found == within {
            return index.entry().map_or(0, |entry| within[entry]);
        }
        within = found;
    }
}

/// A collective, or an instruction that runs some.
struct Active {
    /// The most collectives inside it that a device is in at once.
    inside: usize,
    /// Whether instructions that do not need its result run meanwhile.
    is_launched: bool,
    /// The earlier entries that it needs, one bit each.
    needed: Vec<u64>,
}

/// Returns the collectives of a computation and the instructions that contain some, in order.
fn actives(module: &Module<'_>, computation: &Computation<'_>, order: &[i64], within: &[usize]) -> Vec<Active> {
    let mut actives: Vec<Active> = Vec::new();
    // For each instruction, the entries that it needs, with its own entry.
    let mut until: FxHashMap<i64, Vec<u64>> = FxHashMap::default();
    for instruction in order.iter().filter_map(|&id| computation.instruction(id)) {
        let mut needed = Vec::new();
        for set in instruction.operand_ids.iter().filter_map(|id| until.get(id)) {
            unite(&mut needed, set);
        }
        let callees = instruction.called_computation_ids.iter().filter_map(|&id| module.number(id));
        let is_launched = communication(&instruction.opcode).is_none();
        let inside = if is_launched { callees.map(|callee| within[callee]).max().unwrap_or(0) } else { 1 };
        let mut set = needed.clone();
        if inside > 0 {
            unite(&mut set, &bit(actives.len()));
            actives.push(Active { inside, is_launched, needed });
        }
        until.insert(instruction.id, set);
    }
    actives
}

/// Returns the most collectives at once: one that starts, and those that have been launched before and may not be done.
fn most_at_once(actives: &[Active], enough: usize) -> usize {
    let mut most = 0;
    for (last, Active { inside, needed, .. }) in actives.iter().enumerate() {
        if most >= enough {
            break;
        }
        let beside = (0..last).filter(|&other| actives[other].is_launched && !contains(needed, other));
        let beside: Vec<usize> = beside.collect();
        most = most.max(inside + most_of(actives, &beside, enough.saturating_sub(*inside)));
    }
    most.min(enough)
}

/// Returns the largest sum over entries that do not need each other, if it is less than `enough`.
fn most_of(actives: &[Active], some: &[usize], enough: usize) -> usize {
    let Some((&last, earlier)) = some.split_last() else { return 0 };
    let Active { inside, needed, .. } = &actives[last];
    let beside: Vec<usize> = earlier.iter().copied().filter(|&other| !contains(needed, other)).collect();
    let with = inside + most_of(actives, &beside, enough.saturating_sub(*inside));
    if with >= enough { with } else { with.max(most_of(actives, earlier, enough)) }
}

fn contains(set: &[u64], nth: usize) -> bool {
    set.get(nth / 64).is_some_and(|word| word >> (nth % 64) & 1 == 1)
}

fn bit(nth: usize) -> Vec<u64> {
    let mut set = vec![0; nth / 64 + 1];
    set[nth / 64] = 1 << (nth % 64);
    set
}

fn unite(set: &mut Vec<u64>, other: &[u64]) {
    set.resize(set.len().max(other.len()), 0);
    set.iter_mut().zip(other).for_each(|(word, also)| *word |= also);
}
