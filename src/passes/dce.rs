//! Dead-code elimination.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::ir::{Graph, GraphBuilder, NodeRef, PortInfo, Value, ValueMap};
use crate::ops::{Barrier, Op, Scan};

/// Drops every node that no output depends on; from barriers and scans, also single results, with the carries and slices
/// that served only them. Inputs stay, used or not.
pub fn eliminate_dead_code(graph: &Graph) -> Graph {
    let mut live = vec![false; graph.value_count()];
    graph.outputs().iter().for_each(|output| live[output.index()] = true);
    // What becomes of each scan that loses something, found on the way back and needed on the way forth.
    let mut pruned: Vec<Option<PrunedScan>> = Vec::new();
    pruned.resize_with(graph.node_count(), || None);
    for node in graph.nodes().rev() {
        if !node.results().any(|result| live[result.index()]) {
            continue;
        }
        match node.op() {
            Op::Barrier(_) => {
                for (result, operand) in node.results().zip(node.operands()) {
                    live[operand.index()] |= live[result.index()];
                }
            }
            Op::Scan(scan) => {
                let results: Vec<bool> = node.results().map(|result| live[result.index()]).collect();
                let scan = prune(scan, &results);
                for (&operand, &kept) in node.operands().iter().zip(&scan.kept_inputs) {
                    live[operand.index()] |= kept;
                }
                pruned[node.id.index()] = Some(scan);
            }
            _ => node.operands().iter().for_each(|operand| live[operand.index()] = true),
        }
    }

    let mut builder = GraphBuilder::new(graph.name());
    let mut map = ValueMap::new(graph);
    for (&input, info) in graph.inputs().iter().zip(graph.input_info()) {
        let value = builder.input(graph.ty(input).clone(), info.clone());
        map.set(input, value);
    }
    for node in graph.nodes() {
        if !node.results().any(|result| live[result.index()]) {
            continue;
        }
        match (node.op(), pruned[node.id.index()].take()) {
            (_, Some(scan)) => {
                copy_subset(&mut builder, graph, node, scan.op.into(), &scan.kept_inputs, &scan.kept_outputs, &mut map);
            }
            (Op::Barrier(_), None) => {
                let kept: Vec<bool> = node.results().map(|result| live[result.index()]).collect();
                copy_subset(&mut builder, graph, node, Barrier.into(), &kept, &kept, &mut map);
            }
            _ => {
                builder.copy_node(graph, node, &mut map);
            }
        }
    }
    let outputs = graph.outputs().iter().map(|&value| map.get(value)).collect();
    builder.finish(outputs, graph.output_info().to_vec())
}

/// Copies a node with only some of its operands and results.
fn copy_subset(
    builder: &mut GraphBuilder,
    graph: &Graph,
    node: NodeRef<'_>,
    op: Op,
    operands: &[bool],
    results: &[bool],
    map: &mut ValueMap,
) {
    fn chosen<'a>(values: impl Iterator<Item = Value> + 'a, flags: &'a [bool]) -> impl Iterator<Item = Value> + 'a {
        values.zip(flags).filter_map(|(value, &flag)| flag.then_some(value))
    }
    // What is not chosen may be gone already, so the choice comes first.
    let operands: SmallVec<[Value; 8]> =
        chosen(node.operands().iter().copied(), operands).map(|value| map.get(value)).collect();
    let outer = builder.origin();
    builder.set_origin(node.origin());
    let types = chosen(node.results(), results).map(|value| graph.ty(value).clone());
    let new = builder.push_typed(op, &operands, types);
    // A phase left behind would be taken for that of the nodes copied next.
    builder.set_origin(outer);
    for (old, new) in chosen(node.results(), results).zip(new) {
        map.set(old, new);
    }
}

struct PrunedScan {
    op: Scan,
    kept_inputs: Vec<bool>,
    kept_outputs: Vec<bool>,
}

/// A scan without the carries, slices and outputs that the wanted results do not need.
fn prune(scan: &Scan, wanted: &[bool]) -> PrunedScan {
    let body = &*scan.body;
    let mut outputs = wanted.to_vec();
    let mut inputs;
    // A carry that is wanted may read another carry, whose computation is then wanted as well.
    loop {
        let live = live_values(body, &outputs);
        inputs = body.inputs().iter().map(|input| live[input.index()]).collect::<Vec<bool>>();
        let mut changed = false;
        for carry in 0..scan.carry_count {
            if inputs[scan.invariant_count + carry] && !outputs[carry] {
                outputs[carry] = true;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    for carry in 0..scan.carry_count {
        inputs[scan.invariant_count + carry] = outputs[carry];
    }

    let mut builder = GraphBuilder::new(body.name());
    let mut map = ValueMap::new(body);
    for (&input, _) in body.inputs().iter().zip(&inputs).filter(|&(_, &kept)| kept) {
        let value = builder.input(body.ty(input).clone(), PortInfo::default());
        map.set(input, value);
    }
    let live = live_values(body, &outputs);
    for node in body.nodes().filter(|node| node.results().any(|result| live[result.index()])) {
        match node.op() {
            Op::Barrier(_) => {
                let kept: Vec<bool> = node.results().map(|result| live[result.index()]).collect();
                copy_subset(&mut builder, body, node, Barrier.into(), &kept, &kept, &mut map);
            }
            _ => {
                builder.copy_node(body, node, &mut map);
            }
        }
    }
    let results: Vec<Value> =
        body.outputs().iter().zip(&outputs).filter(|&(_, &kept)| kept).map(|(&value, _)| map.get(value)).collect();
    let body = eliminate_dead_code(&builder.finish_body(results));
    let count = |flags: &[bool]| flags.iter().filter(|&&flag| flag).count();
    let op = Scan {
        body: Arc::new(body),
        invariant_count: count(&inputs[..scan.invariant_count]),
        carry_count: count(&outputs[..scan.carry_count]),
        ..scan.clone()
    };
    PrunedScan { op, kept_inputs: inputs, kept_outputs: outputs }
}

/// The values that the chosen outputs depend on. A barrier passes each of its values on by itself: what a checkpoint
/// guards but never reads must not keep an input of the loop alive. Other nodes are taken whole.
fn live_values(body: &Graph, outputs: &[bool]) -> Vec<bool> {
    let mut live = vec![false; body.value_count()];
    for (output, _) in body.outputs().iter().zip(outputs).filter(|&(_, &wanted)| wanted) {
        live[output.index()] = true;
    }
    for node in body.nodes().rev() {
        match node.op() {
            Op::Barrier(_) => {
                for (result, operand) in node.results().zip(node.operands()) {
                    live[operand.index()] |= live[result.index()];
                }
            }
            _ if node.results().any(|result| live[result.index()]) => {
                node.operands().iter().for_each(|operand| live[operand.index()] = true);
            }
            _ => {}
        }
    }
    live
}
