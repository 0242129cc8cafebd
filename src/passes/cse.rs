//! Common-subexpression elimination.

use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use crate::ir::{Graph, GraphBuilder, Node, Value, ValueMap};
use crate::ops::Op;

/// Merges nodes with equal ops and operands into the first of them, in every region too. Barriers are never merged: what
/// they guard is meant to be computed again.
pub fn eliminate_common_subexpressions(graph: &Graph) -> Graph {
    let mut bodies = FxHashMap::default();
    merge(graph, &mut bodies)
}

/// Bodies done already; the originals are held so that their addresses stay theirs.
type Bodies = FxHashMap<*const Graph, (Arc<Graph>, Arc<Graph>)>;

fn merged_body(body: &Arc<Graph>, bodies: &mut Bodies) -> Arc<Graph> {
    if let Some((_, merged)) = bodies.get(&Arc::as_ptr(body)) {
        return merged.clone();
    }
    let merged = Arc::new(merge(body, bodies));
    bodies.insert(Arc::as_ptr(body), (body.clone(), merged.clone()));
    merged
}

fn merge(graph: &Graph, bodies: &mut Bodies) -> Graph {
    let hasher = BuildHasherDefault::<FxHasher>::default();
    let mut builder = GraphBuilder::new(graph.name());
    let mut map = ValueMap::new(graph);
    for (&input, info) in graph.inputs().iter().zip(graph.input_info()) {
        let value = builder.input(graph.ty(input).clone(), info.clone());
        map.set(input, value);
    }
    let mut seen: FxHashMap<u64, SmallVec<[Node; 1]>> = FxHashMap::default();
    for node in graph.nodes() {
        let op = match node.op() {
            Op::Barrier(_) => {
                builder.copy_node(graph, node, &mut map);
                continue;
            }
            Op::Scan(op) => {
                let mut op = op.clone();
                op.body = merged_body(&op.body, bodies);
                Some(Op::Scan(op))
            }
            Op::Call(op) => {
                let mut op = op.clone();
                op.function = merged_body(&op.function, bodies);
                Some(Op::Call(op))
            }
            Op::Checkpoint(op) => {
                let mut op = op.clone();
                op.body = merged_body(&op.body, bodies);
                Some(Op::Checkpoint(op))
            }
            _ => None,
        };
        let op = op.as_ref().unwrap_or(node.op());
        let operands: SmallVec<[Value; 8]> = node.operands().iter().map(|&value| map.get(value)).collect();
        let candidates = seen.entry(hasher.hash_one((op, operands.as_slice()))).or_default();
        let same = |&&earlier: &&Node| {
            let earlier = builder.graph().node(earlier);
            earlier.op() == op && earlier.operands() == operands.as_slice()
        };
        if let Some(&earlier) = candidates.iter().find(same) {
            for (old, new) in node.results().zip(builder.graph().node(earlier).results()) {
                map.set(old, new);
            }
        } else {
            candidates.push(builder.next_node());
            builder.copy_node_as(graph, node, op.clone(), &mut map);
        }
    }
    let outputs = graph.outputs().iter().map(|&value| map.get(value)).collect();
    builder.finish(outputs, graph.output_info().to_vec())
}
