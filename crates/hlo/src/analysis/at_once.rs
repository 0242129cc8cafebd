//! In how many collectives a device can be at once, on XLA's CPU runtime.
//!
//! The thunk executor (`thunk_executor.cc`) waits in a collective until all devices of its group are there. But it
//! counts a `while`, a `conditional` or a call as under way when it has been launched, and goes on to whatever does not
//! need its result, which may be another collective. So a device can be in one collective of each of several loops that
//! do not need each other's results, and in one beside them.

use super::collectives::communication;
use super::index::{Computation, Module};
use crate::proto::HloModuleProto;

/// The most collectives that a device can be in at once, whatever the order that its instructions run in, as far as
/// their operands and control dependencies allow. It counts up to `enough`, and no further: the time that it takes may
/// grow with the number of loops to that power.
///
/// A module that XLA has yet to partition lacks collectives, and counts as having few.
pub fn collectives_at_once(module: &HloModuleProto, enough: usize) -> usize {
    let index = Module::new(module);
    let count = |within: &[usize]| {
        let computations = index.computations().iter();
        computations.map(|each| most_at_once(&actives(&index, each, within), enough)).collect::<Vec<_>>()
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
    /// The most of them that a device is in at once.
    inside: usize,
    /// Whether what does not need its result runs meanwhile.
    is_launched: bool,
    /// Those before it that it needs, one bit each.
    needed: Vec<u64>,
}

fn actives(module: &Module<'_>, computation: &Computation<'_>, within: &[usize]) -> Vec<Active> {
    let instructions = computation.instructions();
    let mut actives: Vec<Active> = Vec::new();
    // Those that each instruction needs or is.
    let mut until: Vec<Vec<u64>> = Vec::with_capacity(instructions.len());
    for instruction in instructions {
        let before = instruction.operand_ids.iter().chain(&instruction.control_predecessor_ids);
        let mut needed = Vec::new();
        for set in before.filter_map(|&id| until.get(computation.position(id)?)) {
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
        until.push(set);
    }
    actives
}

fn most_at_once(actives: &[Active], enough: usize) -> usize {
    let (launched, waiting): (Vec<usize>, Vec<usize>) = (0..actives.len()).partition(|&nth| actives[nth].is_launched);
    let mut most = most_of(actives, &launched, enough);
    for one in waiting {
        if most >= enough {
            break;
        }
        let beside: Vec<usize> = launched.iter().copied().filter(|&other| are_apart(actives, one, other)).collect();
        most = most.max(1 + most_of(actives, &beside, enough.saturating_sub(1)));
    }
    most.min(enough)
}

/// The largest sum over some of which none needs another, if it is less than `enough`.
fn most_of(actives: &[Active], some: &[usize], enough: usize) -> usize {
    let Some((&last, earlier)) = some.split_last() else { return 0 };
    let inside = actives[last].inside;
    let beside: Vec<usize> = earlier.iter().copied().filter(|&other| are_apart(actives, last, other)).collect();
    let with = inside + most_of(actives, &beside, enough.saturating_sub(inside));
    if with >= enough { with } else { with.max(most_of(actives, earlier, enough)) }
}

/// Whether neither needs the other.
fn are_apart(actives: &[Active], a: usize, b: usize) -> bool {
    let needs = |reader: usize, other: usize| {
        actives[reader].needed.get(other / 64).is_some_and(|word| word >> (other % 64) & 1 == 1)
    };
    a != b && !needs(a, b) && !needs(b, a)
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
