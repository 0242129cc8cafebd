//! Loop-invariant code motion.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::ir::{Graph, GraphBuilder, NodeRef, PortInfo, Value, ValueMap};
use crate::ops::{Op, Scan};

/// Moves nodes of scan bodies that depend on invariants alone in front of the scan, innermost scans first. Constants
/// and positions, which cost nothing, stay.
pub fn hoist_invariants(graph: &Graph) -> Graph {
    if !graph.nodes().any(|node| node.op().regions().next().is_some()) {
        return graph.clone();
    }
    let mut builder = GraphBuilder::new(graph.name());
    let mut map = ValueMap::new(graph);
    for (&input, info) in graph.inputs().iter().zip(graph.input_info()) {
        let value = builder.input(graph.ty(input).clone(), info.clone());
        map.set(input, value);
    }
    for node in graph.nodes() {
        match node.op() {
            Op::Scan(scan) => {
                let scan = Scan { body: Arc::new(hoist_invariants(&scan.body)), ..scan.clone() };
                hoist_from(&mut builder, graph, node, scan, &mut map);
            }
            Op::Checkpoint(checkpoint) => {
                let mut op = checkpoint.clone();
                op.body = Arc::new(hoist_invariants(&op.body));
                builder.copy_node_as(graph, node, op.into(), &mut map);
            }
            _ => {
                builder.copy_node(graph, node, &mut map);
            }
        }
    }
    let outputs = graph.outputs().iter().map(|&value| map.get(value)).collect();
    builder.finish(outputs, graph.output_info().to_vec())
}

/// Copies one scan with the invariant part of its body in front of it.
fn hoist_from(builder: &mut GraphBuilder, graph: &Graph, node: NodeRef<'_>, scan: Scan, map: &mut ValueMap) {
    let body = scan.body.clone();
    let mut invariant = vec![false; body.value_count()];
    let mut trivial = vec![false; body.value_count()];
    for &input in &body.inputs()[..scan.invariant_count] {
        invariant[input.index()] = true;
    }
    for inner in body.nodes() {
        let all = |flags: &[bool]| inner.operands().iter().all(|value| flags[value.index()]);
        let is_invariant = all(&invariant) && !matches!(inner.op(), Op::Barrier(_));
        let is_trivial = match inner.op() {
            Op::Splat(_) | Op::Constant(_) | Op::Iota(_) => true,
            Op::BroadcastInDim(_) | Op::Convert(_) | Op::Reshape(_) => all(&trivial),
            _ => false,
        };
        for result in inner.results() {
            invariant[result.index()] = is_invariant;
            trivial[result.index()] = is_trivial;
        }
    }
    // Values that the rest of the body, or its outputs, read.
    let mut hoisted: Vec<Value> = Vec::new();
    let read = |value: Value, hoisted: &mut Vec<Value>| {
        let worthwhile = invariant[value.index()] && !trivial[value.index()] && body.defining_node(value).is_some();
        if worthwhile && !hoisted.contains(&value) {
            hoisted.push(value);
        }
    };
    let stays = |inner: &NodeRef<'_>| !inner.results().all(|result| invariant[result.index()]);
    for inner in body.nodes().filter(stays) {
        inner.operands().iter().for_each(|&value| read(value, &mut hoisted));
    }
    body.outputs().iter().for_each(|&value| read(value, &mut hoisted));
    if hoisted.is_empty() {
        builder.copy_node_as(graph, node, scan.into(), map);
        return;
    }

    let operands: Vec<Value> = node.operands().iter().map(|&value| map.get(value)).collect();
    let (invariants, rest) = operands.split_at(scan.invariant_count);
    let mut outside: FxHashMap<Value, Value> =
        body.inputs()[..scan.invariant_count].iter().copied().zip(invariants.iter().copied()).collect();
    let outer = builder.origin();
    for inner in body.nodes().filter(|inner| !stays(inner)) {
        let operands: Vec<Value> = inner.operands().iter().filter_map(|value| outside.get(value).copied()).collect();
        builder.set_origin(inner.origin());
        let types = inner.results().map(|value| body.ty(value).clone());
        let results = builder.push_typed(inner.op().clone(), &operands, types);
        outside.extend(inner.results().zip(results));
    }

    let mut inside = GraphBuilder::new(body.name());
    let mut inner_map = ValueMap::new(&body);
    let (old_invariants, old_rest) = body.inputs().split_at(scan.invariant_count);
    for &value in old_invariants.iter().chain(&hoisted).chain(old_rest) {
        let input = inside.input(body.ty(value).clone(), PortInfo::default());
        inner_map.set(value, input);
    }
    for inner in body.nodes() {
        // Trivial invariants stay inside, where they cost nothing; hoisted values have been mapped to inputs.
        if !inner.results().all(|result| inner_map.find(result).is_some())
            && inner.operands().iter().all(|&value| inner_map.find(value).is_some())
        {
            inside.copy_node(&body, inner, &mut inner_map);
        }
    }
    let outputs = body.outputs().iter().map(|&value| inner_map.get(value)).collect();
    let invariant_count = scan.invariant_count + hoisted.len();
    let op = Scan { body: Arc::new(inside.finish_body(outputs)), invariant_count, ..scan };
    let added: Vec<Value> = hoisted.iter().filter_map(|value| outside.get(value).copied()).collect();
    let operands = [invariants, &added, rest].concat();
    builder.set_origin(node.origin());
    let results = builder.push_typed(op.into(), &operands, node.results().map(|value| graph.ty(value).clone()));
    // A phase left behind would be taken for that of the nodes copied next.
    builder.set_origin(outer);
    for (old, new) in node.results().zip(results) {
        map.set(old, new);
    }
}
