//! Loop unrolling.

use std::ops::Range;
use std::sync::Arc;

use crate::ir::{BodyCache, Graph, GraphBuilder, GraphCopy, NodeRef, PortInfo, TensorType, Value, ValueMap};
use crate::ops::{Concatenate, Op, Scan};

/// Writes out scans with an unroll factor: a loop whose rounds run that many iterations each, then the remaining
/// iterations without a loop. A factor of the length or more leaves no loop.
///
/// Differentiation and the other passes come before, so that they meet one copy of the body.
pub fn unroll(graph: &Graph) -> Graph {
    unroll_in(graph, &mut BodyCache::default())
}

fn has_unrolled(graph: &Graph) -> bool {
    graph
        .nodes()
        .map(|node| node.op())
        .any(|op| matches!(op, Op::Scan(scan) if scan.unroll > 1) || op.regions().any(|body| has_unrolled(body)))
}

fn unroll_in(graph: &Graph, bodies: &mut BodyCache) -> Graph {
    if !has_unrolled(graph) {
        return graph.clone();
    }
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let by_body =
            |body: &Arc<Graph>| if has_unrolled(body) { bodies.transform(body, unroll_in) } else { body.clone() };
        match node.op().map_regions(by_body) {
            Some(Op::Scan(scan)) if scan.unroll > 1 => write_out(&mut copy.builder, node, scan, &mut copy.map),
            Some(op) => drop(copy.node_as(node, op)),
            None => drop(copy.node(node)),
        }
    }
    copy.finish()
}

/// Copies one scan as a loop over blocks, with the iterations left over after it.
fn write_out(builder: &mut GraphBuilder, node: NodeRef<'_>, scan: Scan, map: &mut ValueMap) {
    let operands: Vec<Value> = node.operands().iter().map(|&value| map.get(value)).collect();
    let (invariants, rest) = operands.split_at(scan.invariant_count);
    let (carries, stacked) = rest.split_at(scan.carry_count);
    let outer = builder.origin();
    builder.set_origin(node.origin());
    let factor = scan.unroll.min(scan.length.max(1));
    let looped = if factor < scan.length { scan.length / factor * factor } else { 0 };
    // The loop runs over the slices at the beginning, and the tail over those at the end; in reverse, these are the
    // last and the first slices.
    let (body, tail) = match scan.reverse {
        false => (0..looped, looped..scan.length),
        true => (scan.length - looped..scan.length, 0..scan.length - looped),
    };
    let mut carries = carries.to_vec();
    let mut parts: Vec<Vec<Value>> = Vec::new();
    if looped > 0 {
        let results = run_loop(builder, &scan, factor, invariants, &carries, stacked, body);
        carries = results[..scan.carry_count].to_vec();
        parts.push(results[scan.carry_count..].to_vec());
    }
    if !tail.is_empty() || looped == 0 {
        let (last, outputs) = run_steps(builder, &scan, invariants, carries, stacked, tail);
        carries = last;
        parts.push(outputs);
    }
    if scan.reverse {
        parts.reverse();
    }
    let outputs = (0..scan.body.outputs().len() - scan.carry_count).map(|index| {
        let parts: Vec<Value> = parts.iter().map(|part| part[index]).collect();
        concatenate(builder, &parts)
    });
    let results: Vec<Value> = carries.into_iter().chain(outputs.collect::<Vec<_>>()).collect();
    node.results().zip(results).for_each(|(old, new)| map.set(old, new));
    builder.set_origin(outer);
}

/// A scan whose rounds run `factor` iterations each, over a range of the slices that `factor` divides.
fn run_loop(
    builder: &mut GraphBuilder,
    scan: &Scan,
    factor: usize,
    invariants: &[Value],
    carries: &[Value],
    stacked: &[Value],
    range: Range<usize>,
) -> Vec<Value> {
    let rounds = range.len() / factor;
    let mut block = GraphBuilder::new(scan.body.name());
    block.set_origin(builder.origin());
    let mut port = |ty: TensorType| block.input(ty, PortInfo::default());
    let first_slice = scan.invariant_count + scan.carry_count;
    let inputs: Vec<Value> = scan
        .body
        .input_types()
        .enumerate()
        .map(|(index, ty)| port(if index < first_slice { ty.clone() } else { with_leading(ty, &[factor]) }))
        .collect();
    let (inner_invariants, rest) = inputs.split_at(scan.invariant_count);
    let (inner_carries, blocks) = rest.split_at(scan.carry_count);
    let (last, rows) = run_steps(&mut block, scan, inner_invariants, inner_carries.to_vec(), blocks, 0..factor);
    let body = Arc::new(block.finish_body([last, rows].concat()));
    let in_blocks = stacked.iter().map(|&value| {
        let part = builder.slice_dim(value, 0, range.clone());
        let element = without_leading(builder.ty(part));
        builder.reshape_to(part, with_leading(&element, &[rounds, factor]))
    });
    let operands = [invariants, carries, &in_blocks.collect::<Vec<_>>()].concat();
    let types: Vec<TensorType> = scan
        .body
        .output_types()
        .enumerate()
        .map(|(index, ty)| if index < scan.carry_count { ty.clone() } else { with_leading(ty, &[rounds, factor]) })
        .collect();
    let op = Scan { body, length: rounds, unroll: 1, ..scan.clone() };
    let mut results = builder.push_typed(op.into(), &operands, types).to_vec();
    for (result, ty) in results.iter_mut().zip(scan.body.output_types()).skip(scan.carry_count) {
        *result = builder.reshape_to(*result, with_leading(ty, &[range.len()]));
    }
    results
}

/// The iterations of a range of slices, one after the other; returns the last carries and the stacked outputs.
fn run_steps(
    builder: &mut GraphBuilder,
    scan: &Scan,
    invariants: &[Value],
    mut carries: Vec<Value>,
    stacked: &[Value],
    range: Range<usize>,
) -> (Vec<Value>, Vec<Value>) {
    let output_types: Vec<TensorType> = scan.body.output_types().skip(scan.carry_count).cloned().collect();
    let mut rows: Vec<Vec<Value>> = vec![Vec::new(); output_types.len()];
    let mut order: Vec<usize> = range.collect();
    if scan.reverse {
        order.reverse();
    }
    for position in order {
        let slices = stacked.iter().map(|&value| {
            let row = builder.slice_dim(value, 0, position..position + 1);
            let element = without_leading(builder.ty(row));
            builder.reshape_to(row, element)
        });
        let slices: Vec<Value> = slices.collect();
        let results = builder.inline(&scan.body, &[invariants, &carries, &slices].concat());
        carries = results[..scan.carry_count].to_vec();
        for ((rows, &row), ty) in rows.iter_mut().zip(&results[scan.carry_count..]).zip(&output_types) {
            rows.push(builder.reshape_to(row, with_leading(ty, &[1])));
        }
    }
    if scan.reverse {
        rows.iter_mut().for_each(|rows| rows.reverse());
    }
    let outputs = rows.iter().zip(&output_types).map(|(rows, ty)| match &rows[..] {
        [] => builder.splat(with_leading(ty, &[0]), 0.0),
        rows => concatenate(builder, rows),
    });
    (carries, outputs.collect())
}

fn with_leading(ty: &TensorType, sizes: &[usize]) -> TensorType {
    let dims: Vec<usize> = sizes.iter().chain(&ty.dims).copied().collect();
    TensorType::new(ty.dtype, &dims)
}

fn without_leading(ty: &TensorType) -> TensorType {
    TensorType::new(ty.dtype, &ty.dims[1..])
}

/// Joins values along the leading dimension.
fn concatenate(builder: &mut GraphBuilder, values: &[Value]) -> Value {
    if let &[value] = values {
        return value;
    }
    let mut ty = builder.ty(values[0]).clone();
    ty.dims[0] = values.iter().map(|&value| builder.ty(value).dims[0]).sum();
    builder.push_typed(Concatenate { axis: 0 }.into(), values, [ty])[0]
}
