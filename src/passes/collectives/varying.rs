//! Along which mesh axes a value of a local graph may differ from device to device.
//!
//! Shapes of a local graph do not say whether devices hold parts of a value or copies. This analysis does: from the specs of
//! the inputs through every op, loops to a fixed point. It errs on one side: an axis that is not in the set is one along which
//! all devices hold the same bits.

use smallvec::SmallVec;

use crate::ir::{Graph, NodeRef, PortInfo};
use crate::ops::{Group, Op};
use meshloom_hlo::mesh::{Mesh, MeshAxis};

/// A set of mesh axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AxisSet(u32);

// An axis is a bit.
const _: () = assert!(Mesh::MAX_AXES <= u32::BITS as usize);

impl AxisSet {
    const ALL: AxisSet = AxisSet(u32::MAX);

    pub(super) fn of(axes: impl IntoIterator<Item = MeshAxis>) -> AxisSet {
        AxisSet(axes.into_iter().fold(0, |set, axis| set | 1 << axis.index()))
    }

    fn along(group: &Group) -> AxisSet {
        AxisSet::of(group.axes.iter().copied())
    }

    pub(super) fn or(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 | other.0)
    }

    fn without(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 & !other.0)
    }

    /// Whether no axis of a group is in the set.
    pub(super) fn is_same_within(self, group: &Group) -> bool {
        self.0 & AxisSet::along(group).0 == 0
    }

    fn union(sets: &[AxisSet]) -> AxisSet {
        sets.iter().fold(AxisSet::default(), |all, &set| all.or(set))
    }
}

/// One set for each result or input.
pub(super) type Sets = SmallVec<[AxisSet; 4]>;

/// Of a program's inputs: the axes that split them. Those without a spec are copies.
pub(super) fn of_inputs(info: &[PortInfo]) -> Sets {
    let set = |info: &PortInfo| match &info.spec {
        Some(spec) => AxisSet::of(spec.used_axes().chain(spec.unreduced().iter().copied())),
        None => AxisSet::default(),
    };
    info.iter().map(set).collect()
}

/// Of a node's results, from those of its operands.
pub(super) fn of_results(op: &Op, result_count: usize, operands: &[AxisSet]) -> Sets {
    let all = AxisSet::union(operands);
    match op {
        Op::AllGather(op) => each(operands, |set| set.without(AxisSet::along(&op.group))),
        Op::AllReduce(op) => each(operands, |set| set.without(AxisSet::along(&op.group))),
        Op::AllToAll(op) => each(operands, |set| set.or(AxisSet::along(&op.group))),
        Op::AxisIndex(op) => SmallVec::from_elem(AxisSet::along(&op.group), 1),
        Op::Barrier(_) => operands.into(),
        Op::Call(op) => of_outputs(&op.function, operands),
        Op::Checkpoint(op) => of_outputs(&op.body, operands),
        Op::CollectivePermute(op) => each(operands, |set| set.or(AxisSet::along(&op.group))),
        Op::Cond(op) => {
            let mut results: Sets = SmallVec::from_elem(operands[0], result_count);
            for branch in &op.branches {
                join(&mut results, &of_outputs(branch, &operands[1..]));
            }
            results
        }
        // Foreign code may ask which device it is on.
        Op::CustomCall(_) => SmallVec::from_elem(AxisSet::ALL, result_count),
        Op::CustomVjp(op) => of_outputs(&op.primal, operands),
        Op::ReduceScatter(op) => each(operands, |set| set.or(AxisSet::along(&op.group))),
        Op::Scan(op) => {
            let body = body_inputs(&op.body, op.invariant_count, op.carry_count, operands);
            of_outputs(&op.body, &body)
        }
        Op::While(op) => {
            let count = op.body.outputs().len();
            let mut inputs: Sets = operands.into();
            loop {
                // Where devices take different numbers of turns, all that comes out differs.
                let turns = of_outputs(&op.condition, &inputs)[0];
                let outputs = each(&of_outputs(&op.body, &inputs), |set| set.or(turns));
                let before = inputs.clone();
                join(&mut inputs[op.invariant_count..op.invariant_count + count], &outputs);
                if inputs == before {
                    return inputs[op.invariant_count..].into();
                }
            }
        }
        _ => SmallVec::from_elem(all, result_count),
    }
}

/// Of the inputs of a scan's body in any iteration.
fn body_inputs(body: &Graph, invariants: usize, carries: usize, operands: &[AxisSet]) -> Sets {
    let mut inputs: Sets = operands.into();
    loop {
        let outputs = of_outputs(body, &inputs);
        let before = inputs.clone();
        join(&mut inputs[invariants..invariants + carries], &outputs[..carries]);
        if inputs == before {
            return inputs;
        }
    }
}

/// Of the inputs of an op's body, from those of its operands, in the order of [`Op::regions`].
pub(super) fn of_bodies(op: &Op, operands: &[AxisSet]) -> SmallVec<[Sets; 2]> {
    match op {
        Op::Cond(op) => op.branches.iter().map(|_| Sets::from_slice(&operands[1..])).collect(),
        Op::Scan(op) => SmallVec::from_elem(body_inputs(&op.body, op.invariant_count, op.carry_count, operands), 1),
        Op::While(while_loop) => {
            let mut inputs: Sets = operands.into();
            let results = of_results(op, while_loop.body.outputs().len(), operands);
            join(&mut inputs[while_loop.invariant_count..], &results);
            SmallVec::from_elem(inputs, 2)
        }
        // Of a hand-written rule, which has three bodies, the primal alone runs.
        op => op
            .regions()
            .enumerate()
            .map(|(index, body)| match index {
                0 => operands.into(),
                _ => SmallVec::from_elem(AxisSet::ALL, body.inputs().len()),
            })
            .collect(),
    }
}

fn of_outputs(graph: &Graph, inputs: &[AxisSet]) -> Sets {
    let mut sets = vec![AxisSet::default(); graph.value_count()];
    graph.inputs().iter().zip(inputs).for_each(|(input, &set)| sets[input.index()] = set);
    for node in graph.nodes() {
        let results = of_node(node, &sets);
        node.results().zip(results).for_each(|(result, set)| sets[result.index()] = set);
    }
    graph.outputs().iter().map(|output| sets[output.index()]).collect()
}

fn of_node(node: NodeRef<'_>, sets: &[AxisSet]) -> Sets {
    let operands: Sets = node.operands().iter().map(|value| sets[value.index()]).collect();
    of_results(node.op(), node.results().len(), &operands)
}

fn each(sets: &[AxisSet], f: impl Fn(AxisSet) -> AxisSet) -> Sets {
    sets.iter().map(|&set| f(set)).collect()
}

fn join(sets: &mut [AxisSet], others: &[AxisSet]) {
    sets.iter_mut().zip(others).for_each(|(set, &other)| *set = set.or(other));
}
