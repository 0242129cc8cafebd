//! The mesh axes along which values of manual regions differ.
//!
//! A value of a global graph is one value, whichever device holds it: the partitioner may leave it to one device and
//! add up. In a manual region a value is another one on each device along the manual axes, and no such choice is open.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::ir::{AxisSet, Graph, Value};
use crate::ops::{Analysis, Devices, Op, Passage, ValueFacts};
use meshloom_hlo::mesh::MeshAxis;

/// The axes along which each value of a program and of its bodies differs.
#[derive(Default)]
pub(super) struct ManualAxes(FxHashMap<*const Graph, Vec<AxisSet>>);

impl ManualAxes {
    /// Nothing is kept of a program without manual regions.
    pub(super) fn of(graph: &Graph) -> ManualAxes {
        let mut known = ManualAxes::default();
        if has_regions(graph) {
            known.visit(graph, &vec![AxisSet::default(); graph.inputs().len()]);
        }
        known
    }

    /// Whether a value is another one on devices that differ along an axis.
    pub(super) fn differs(&self, graph: &Graph, value: Value, axis: MeshAxis) -> bool {
        let sets = self.0.get(&std::ptr::from_ref(graph));
        sets.is_some_and(|sets| sets[value.index()].contains(axis))
    }

    fn visit(&mut self, graph: &Graph, inputs: &[AxisSet]) {
        let key = std::ptr::from_ref(graph);
        let mut inputs = inputs.to_vec();
        if let Some(known) = self.0.get(&key) {
            // A body that is called in several places gets what holds for all of them.
            let before: Vec<AxisSet> = graph.inputs().iter().map(|input| known[input.index()]).collect();
            inputs.iter_mut().zip(&before).for_each(|(input, before)| *input |= *before);
            if inputs == before {
                return;
            }
        }
        let sets = Differing.values(graph, &inputs);
        for node in graph.nodes().filter(|node| node.op().as_region().is_some()) {
            let operands: ValueFacts<AxisSet> = node.operands().iter().map(|value| sets[value.index()]).collect();
            let bodies: Vec<&Arc<Graph>> = node.op().regions().collect();
            let entering = Differing.through(node.op(), &operands).inputs;
            // A body that does not run has no facts.
            let running = bodies.into_iter().zip(entering).filter(|(body, sets)| sets.len() == body.inputs().len());
            running.for_each(|(body, sets)| self.visit(body, &sets));
        }
        self.0.insert(key, sets);
    }
}

fn has_regions(graph: &Graph) -> bool {
    graph
        .nodes()
        .any(|node| matches!(node.op(), Op::ManualBorder(_)) || node.op().regions().any(|body| has_regions(body)))
}

struct Differing;

impl Analysis for Differing {
    type Fact = AxisSet;

    const CARRY_IS_ONE: bool = true;

    fn join(&self, one: AxisSet, other: &AxisSet) -> AxisSet {
        one | *other
    }

    fn controlled(&self, set: AxisSet, control: &AxisSet) -> AxisSet {
        set | *control
    }

    fn transfer(&self, op: &Op, operands: &[AxisSet], result_count: usize) -> ValueFacts<AxisSet> {
        let all = AxisSet::union(operands);
        let set = match (op, op.facts().devices) {
            (Op::ManualBorder(border), _) => match border.passage {
                Passage::Enter => all | AxisSet::of(border.axes.iter().copied()),
                Passage::Leave => all.without(AxisSet::of(border.axes.iter().copied())),
            },
            (_, Devices::Rank(group) | Devices::Exchange(_, group)) => all | group.axis_set(),
            (_, Devices::Alone | Devices::Unknown) => all,
        };
        ValueFacts::from_elem(set, result_count)
    }
}
