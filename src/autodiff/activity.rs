//! The values that a derivative flows through: forwards, those that depend differentiably on an input; backwards, those
//! that get a cotangent when an output gets one.

use smallvec::SmallVec;

use crate::ir::{Graph, TensorType};
use crate::ops::{Analysis, Flow, Op, ValueFacts};

/// Whether a value depends differentiably on an active input.
struct Activity;

impl Analysis for Activity {
    type Fact = bool;

    /// A carry is active as soon as it is in any iteration.
    const CARRY_IS_ONE: bool = true;

    fn join(&self, one: bool, other: &bool) -> bool {
        one | other
    }

    /// An op that runs its body exactly once is differentiated as a whole.
    fn looks_into(&self, op: &Op) -> bool {
        !op.is_wrapper()
    }

    fn transfer(&self, op: &Op, operands: &[bool], result_count: usize) -> ValueFacts<bool> {
        let active = !matches!(op, Op::StopGradient(_)) && operands.contains(&true);
        ValueFacts::from_elem(active, result_count)
    }

    fn of_type(&self, active: bool, ty: &TensorType) -> bool {
        active && ty.dtype.is_float()
    }
}

/// For each value of `graph`, whether it depends differentiably on an input marked active.
pub(super) fn activity(graph: &Graph, active_inputs: &[bool]) -> Vec<bool> {
    let inputs = active_inputs.iter().zip(graph.input_types());
    let inputs: SmallVec<[bool; 8]> = inputs.map(|(&active, ty)| Activity.of_type(active, ty)).collect();
    Activity.values(graph, &inputs)
}

/// For each output of `body`, whether it depends differentiably on an input marked active.
pub(super) fn output_activity(body: &Graph, active_inputs: &[bool]) -> Vec<bool> {
    let active = activity(body, active_inputs);
    body.outputs().iter().map(|output| active[output.index()]).collect()
}

/// Activity inside a loop or branches, and of the results, from that of the operands.
pub(super) fn region_activity(op: impl Into<Op>, operands: &[bool]) -> Flow<bool> {
    Activity.through(&op.into(), operands)
}

/// For each value of `graph`, whether a cotangent may flow into it when one flows into the outputs marked: it is
/// active, and so is every value on some path from it to such an output.
pub(super) fn demand(graph: &Graph, active: &[bool], wanted_outputs: &[bool]) -> Vec<bool> {
    let mut wanted = vec![false; graph.value_count()];
    for (&output, &is_wanted) in graph.outputs().iter().zip(wanted_outputs) {
        wanted[output.index()] |= is_wanted && active[output.index()];
    }
    for node in graph.nodes().rev() {
        if node.results().any(|result| wanted[result.index()]) {
            for operand in node.operands() {
                wanted[operand.index()] |= active[operand.index()];
            }
        }
    }
    wanted
}
