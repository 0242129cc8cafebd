//! Printing orders computations by the ids of the instructions that call them, and the text has no ids. So that a text
//! printed by XLA prints again in its order, instructions that call are numbered in the order of their callees.
//!
//! XLA walks the call graph depth first and prints a computation when it leaves it. This order reveals the tree of the
//! walk: the computations that one computation entered are the subtrees just before it whose roots it calls. Its other
//! callees had been visited before.

use rustc_hash::FxHashMap;

use crate::proto::HloComputationProto;
use crate::sort;

/// A subtree of the walk that no caller has claimed yet.
struct Subtree {
    root: usize,
    /// The first computation of the subtree in the text.
    start: usize,
}

/// An instruction that calls, and the place of the first computation that it entered.
struct Caller {
    instruction: usize,
    entered: usize,
}

/// Renumbers instructions that call, if the order of the text says that they had other numbers. `is_hidden` are
/// computations that exist in the text only as a short form; they are not printed, but their callees are.
pub(super) fn keep_order(computations: &mut [HloComputationProto], is_hidden: &[bool]) {
    let mut subtrees: Vec<Subtree> = Vec::new();
    for place in 0..computations.len() {
        if is_hidden[place] {
            continue;
        }
        let calls = calls(computations, is_hidden, place);
        let mut callees: Vec<usize> = calls.iter().flat_map(|(_, callees)| callees).copied().collect();
        callees.sort_unstable();
        let mut entered = Vec::new();
        let mut start = place;
        while let Some(subtree) = subtrees.pop_if(|subtree| callees.binary_search(&subtree.root).is_ok()) {
            entered.push(subtree.root);
            start = subtree.start;
        }
        subtrees.push(Subtree { root: place, start });
        entered.reverse();
        if entered.len() > 1 {
            let callers = callers(&calls, &entered, start);
            if !callers.is_sorted_by_key(|caller| caller.entered) {
                renumber(&mut computations[place], callers);
            }
        }
    }
}

/// The instructions that call, with the printed computations that each calls.
fn calls(computations: &[HloComputationProto], is_hidden: &[bool], place: usize) -> Vec<(usize, Vec<usize>)> {
    let printed = |id: &i64| -> Vec<usize> {
        let Some(callee) = usize::try_from(*id).ok().filter(|&callee| callee < place) else { return Vec::new() };
        if !is_hidden[callee] {
            return vec![callee];
        }
        calls(computations, is_hidden, callee).into_iter().flat_map(|(_, callees)| callees).collect()
    };
    let instructions = computations[place].instructions.iter().enumerate();
    instructions
        .filter(|(_, instruction)| !instruction.called_computation_ids.is_empty())
        .map(|(index, instruction)| (index, instruction.called_computation_ids.iter().flat_map(printed).collect()))
        .collect()
}

/// The callers whose order matters, given the computations that this one entered, ascending. The others call
/// computations that were left before this one was entered.
fn callers(calls: &[(usize, Vec<usize>)], entered: &[usize], start: usize) -> Vec<Caller> {
    let order = |callee: &usize| match entered.binary_search(callee).is_ok() {
        true => Some(*callee),
        // Inside one of the subtrees: it must come after the callee that led to it.
        false if *callee >= start => Some(usize::MAX),
        false => None,
    };
    let first = |callees: &Vec<usize>| callees.iter().filter_map(order).min();
    calls
        .iter()
        .filter_map(|(instruction, callees)| Some(Caller { instruction: *instruction, entered: first(callees)? }))
        .collect()
}

/// Gives the callers' ids to them in the order of what they entered.
fn renumber(computation: &mut HloComputationProto, mut callers: Vec<Caller>) {
    let ids: Vec<i64> = callers.iter().map(|caller| computation.instructions[caller.instruction].id).collect();
    sort::by_key(&mut callers, |caller| caller.entered);
    let mut new_ids = FxHashMap::default();
    for (caller, new_id) in callers.iter().zip(ids) {
        new_ids.insert(computation.instructions[caller.instruction].id, new_id);
    }
    let renumber = |id: &mut i64| *id = new_ids.get(id).copied().unwrap_or(*id);
    for instruction in &mut computation.instructions {
        renumber(&mut instruction.id);
        instruction.operand_ids.iter_mut().for_each(renumber);
        instruction.control_predecessor_ids.iter_mut().for_each(renumber);
    }
    renumber(&mut computation.root_id);
}
