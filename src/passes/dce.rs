//! Dead-code elimination.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Bodies;
use crate::ir::{Graph, GraphBuilder, PortInfo, Value, ValueMap};
use crate::ops::{Cond, Op, Scan, While};

/// Drops every node that no output depends on, in every region too; from barriers, loops and branches, also single results,
/// with the carries, slices and operands that served only them. Inputs stay, used or not.
pub fn eliminate_dead_code(graph: &Graph) -> Graph {
    eliminate(graph, &mut Bodies::default())
}

fn eliminate(graph: &Graph, bodies: &mut Bodies) -> Graph {
    let liveness = Liveness::of(graph, &vec![true; graph.outputs().len()]);
    let inputs: Vec<(Value, PortInfo)> =
        graph.inputs().iter().copied().zip(graph.input_info().iter().cloned()).collect();
    let outputs: Vec<(Value, PortInfo)> =
        graph.outputs().iter().copied().zip(graph.output_info().iter().cloned()).collect();
    liveness.extract(graph, inputs, outputs, bodies)
}

/// Which values of a graph are needed for some of its outputs.
struct Liveness {
    live: Vec<bool>,
    /// For each node, what is needed of it if it is a loop or has branches, and is needed at all.
    regions: Vec<Option<RegionLiveness>>,
}

/// What is needed of a loop or of branches.
struct RegionLiveness {
    /// For each body, which of its values.
    bodies: Vec<Liveness>,
    operands: Vec<bool>,
    results: Vec<bool>,
}

/// The items whose flag is set.
fn chosen<'a, T>(items: impl IntoIterator<Item = T> + 'a, flags: &'a [bool]) -> impl Iterator<Item = T> + 'a {
    items.into_iter().zip(flags).filter_map(|(item, &flag)| flag.then_some(item))
}

fn count(flags: &[bool]) -> usize {
    flags.iter().filter(|&&flag| flag).count()
}

impl Liveness {
    fn of(graph: &Graph, wanted_outputs: &[bool]) -> Liveness {
        let mut live = vec![false; graph.value_count()];
        chosen(graph.outputs(), wanted_outputs).for_each(|output| live[output.index()] = true);
        let mut regions: Vec<Option<RegionLiveness>> = Vec::new();
        regions.resize_with(graph.node_count(), || None);
        for node in graph.nodes().rev() {
            if !node.results().any(|result| live[result.index()]) && !node.op().has_side_effect() {
                continue;
            }
            match node.op() {
                Op::Barrier(_) => {
                    for (result, operand) in node.results().zip(node.operands()) {
                        live[operand.index()] |= live[result.index()];
                    }
                }
                op => {
                    let results = node.results().map(|result| live[result.index()]).collect();
                    let needed = RegionLiveness::of(op, results);
                    match &needed {
                        Some(needed) => {
                            chosen(node.operands(), &needed.operands).for_each(|operand| live[operand.index()] = true);
                        }
                        None => node.operands().iter().for_each(|operand| live[operand.index()] = true),
                    }
                    regions[node.id.index()] = needed;
                }
            }
        }
        Liveness { live, regions }
    }

    /// Which inputs of the graph are live.
    fn inputs(&self, graph: &Graph) -> Vec<bool> {
        graph.inputs().iter().map(|input| self.live[input.index()]).collect()
    }

    /// A graph of what is live, with these inputs and outputs.
    fn extract(
        &self,
        graph: &Graph,
        inputs: impl IntoIterator<Item = (Value, PortInfo)>,
        outputs: impl IntoIterator<Item = (Value, PortInfo)>,
        bodies: &mut Bodies,
    ) -> Graph {
        let mut builder = GraphBuilder::new(graph.name());
        let mut map = ValueMap::new(graph);
        for (input, info) in inputs {
            let value = builder.input(graph.ty(input).clone(), info);
            map.set(input, value);
        }
        for node in graph.nodes() {
            let kept: SmallVec<[bool; 4]> = node.results().map(|result| self.live[result.index()]).collect();
            if !kept.contains(&true) && !node.op().has_side_effect() {
                continue;
            }
            let (op, operand_flags, result_flags) = match (node.op(), &self.regions[node.id.index()]) {
                (op, Some(needed)) => (needed.extract(op, bodies), &needed.operands[..], &needed.results[..]),
                (op @ Op::Barrier(_), _) => (op.clone(), &kept[..], &kept[..]),
                (op, _) => {
                    let op = bodies.transform_op(op, eliminate).unwrap_or_else(|| op.clone());
                    builder.copy_node_as(graph, node, op, &mut map);
                    continue;
                }
            };
            let operands: SmallVec<[Value; 8]> =
                chosen(node.operands(), operand_flags).map(|&value| map.get(value)).collect();
            let types = chosen(node.results(), result_flags).map(|value| graph.ty(value).clone());
            let results = builder.push_from(node.origin(), op, &operands, types);
            chosen(node.results(), result_flags).zip(results).for_each(|(old, new)| map.set(old, new));
        }
        let (outputs, info) = outputs.into_iter().map(|(value, info)| (map.get(value), info)).unzip();
        builder.finish(outputs, info)
    }
}

impl RegionLiveness {
    /// What a loop or branches need for the results wanted; `None` for any other op, which needs all its operands.
    fn of(op: &Op, wanted: Vec<bool>) -> Option<RegionLiveness> {
        match op {
            Op::Cond(cond) => Some(RegionLiveness::of_cond(cond, wanted)),
            Op::Scan(scan) => Some(RegionLiveness::of_scan(scan, wanted)),
            Op::While(op) => Some(RegionLiveness::of_while(op, wanted)),
            _ => None,
        }
    }

    fn of_cond(cond: &Cond, results: Vec<bool>) -> RegionLiveness {
        let bodies: Vec<Liveness> = cond.branches.iter().map(|branch| Liveness::of(branch, &results)).collect();
        let mut operands = vec![false; 1 + cond.branches.first().map_or(0, |branch| branch.inputs().len())];
        operands[0] = true;
        for (branch, live) in cond.branches.iter().zip(&bodies) {
            operands[1..].iter_mut().zip(live.inputs(branch)).for_each(|(needed, live)| *needed |= live);
        }
        RegionLiveness { bodies, operands, results }
    }

    fn of_scan(scan: &Scan, mut results: Vec<bool>) -> RegionLiveness {
        let (body, operands) = needed_of_loop(&scan.body, scan.invariant_count, scan.carry_count, &[], &mut results);
        RegionLiveness { bodies: vec![body], operands, results }
    }

    fn of_while(op: &While, mut results: Vec<bool>) -> RegionLiveness {
        let condition = Liveness::of(&op.condition, &[true]);
        let asked = condition.inputs(&op.condition);
        let carry_count = op.body.outputs().len();
        let (body, operands) = needed_of_loop(&op.body, op.invariant_count, carry_count, &asked, &mut results);
        RegionLiveness { bodies: vec![condition, body], operands, results }
    }

    /// The op with bodies of what is needed.
    fn extract(&self, op: &Op, bodies: &mut Bodies) -> Op {
        let port = |&value: &Value| (value, PortInfo::default());
        let mut extract = |index: usize, body: &Graph, inputs: &[bool], outputs: &[bool]| {
            let inputs = chosen(body.inputs(), inputs).map(port);
            let outputs = chosen(body.outputs(), outputs).map(port);
            Arc::new(self.bodies[index].extract(body, inputs, outputs, bodies))
        };
        match op {
            Op::Cond(cond) => {
                let mut branch =
                    |(index, body): (usize, &Arc<Graph>)| extract(index, body, &self.operands[1..], &self.results);
                Cond { branches: cond.branches.iter().enumerate().map(&mut branch).collect() }.into()
            }
            Op::Scan(scan) => Scan {
                body: extract(0, &scan.body, &self.operands, &self.results),
                invariant_count: count(&self.operands[..scan.invariant_count]),
                carry_count: count(&self.results[..scan.carry_count]),
                ..scan.clone()
            }
            .into(),
            Op::While(op) => While {
                condition: extract(0, &op.condition, &self.operands, &[true]),
                body: extract(1, &op.body, &self.operands, &self.results),
                invariant_count: count(&self.operands[..op.invariant_count]),
            }
            .into(),
            op => op.clone(),
        }
    }
}

/// What is live in a loop's body, and which of its inputs are needed, for the outputs wanted and for the inputs `asked`,
/// which something besides the body reads. Carries that turn out to be needed are marked in `wanted`.
fn needed_of_loop(
    body: &Graph,
    invariant_count: usize,
    carry_count: usize,
    asked: &[bool],
    wanted: &mut [bool],
) -> (Liveness, Vec<bool>) {
    let carries = invariant_count..invariant_count + carry_count;
    chosen(0.., asked).filter(|input| carries.contains(input)).for_each(|input| wanted[input - invariant_count] = true);
    loop {
        let live = Liveness::of(body, wanted);
        let mut inputs = live.inputs(body);
        inputs.iter_mut().zip(asked).for_each(|(needed, &asked)| *needed |= asked);
        // A carry that is read by something wanted must be computed as well, which may read further carries.
        let read = &inputs[carries.clone()];
        if read.iter().zip(&*wanted).all(|(&read, &wanted)| wanted || !read) {
            // A carry that is returned enters the loop too, even if its first value is never read.
            inputs[carries].copy_from_slice(&wanted[..carry_count]);
            return (live, inputs);
        }
        read.iter().zip(&mut *wanted).for_each(|(&read, wanted)| *wanted |= read);
    }
}
