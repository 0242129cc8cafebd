//! A module as a graph of its scopes.
//!
//! A program of ten thousand instructions is a drawing that nobody reads; its layers, attention blocks and optimizer are one.
//! Instructions whose `op_name` begins with the same scopes are one node, and edges say what flows between them. What only
//! carries values about (tuples, parameters, bitcasts, copies) is followed through to what makes the value.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::index::Computation;
use super::size::shape_bytes;
use super::source::scope;
use super::walk::{Step, Walk};
use crate::hlo::proto::HloInstructionProto;

/// Scopes, and what flows between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScopeGraph {
    /// The scopes, in the order in which the program first comes to them.
    pub nodes: Vec<ScopeNode>,
    /// What flows, by position in `nodes`.
    pub edges: Vec<ScopeEdge>,
}

/// A scope, with all that is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScopeNode {
    /// Its path; empty for what has no scope.
    pub path: String,
    /// Instructions, each once however often it runs; a fusion is one.
    pub instructions: usize,
    /// How many there are of each opcode.
    pub opcodes: BTreeMap<String, usize>,
}

/// Values that one scope makes and another reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ScopeEdge {
    /// Who makes them.
    pub from: usize,
    /// Who reads them.
    pub to: usize,
    /// How many there are.
    pub values: usize,
    /// Their bytes on one device, each value once; the part that is known.
    pub bytes: u64,
}

/// The first levels of a scope path.
pub fn levels(path: &str, depth: usize) -> &str {
    match path.match_indices('/').nth(depth.saturating_sub(1)) {
        Some((at, _)) if depth > 0 => &path[..at],
        _ => path,
    }
}

/// The graph of a module's scopes, cut off at so many levels.
pub fn scope_graph(walk: &Walk<'_>, depth: usize) -> ScopeGraph {
    let mut graph = ScopeGraph::default();
    let mut nodes: FxHashMap<&str, usize> = FxHashMap::default();
    let mut edges: FxHashMap<(usize, usize), usize> = FxHashMap::default();
    let mut seen = rustc_hash::FxHashSet::default();
    for Step { place, instruction, .. } in walk.steps() {
        if place.fused || carries(instruction) || !seen.insert(std::ptr::from_ref(instruction)) {
            continue;
        }
        let path = levels(scope(instruction), depth);
        let to = *nodes.entry(path).or_insert_with(|| {
            graph.nodes.push(ScopeNode { path: path.to_owned(), ..ScopeNode::default() });
            graph.nodes.len() - 1
        });
        let node = &mut graph.nodes[to];
        node.instructions += 1;
        *node.opcodes.entry(instruction.opcode.clone()).or_default() += 1;
        let computation = walk.computation(place);
        for operand in computation.operands(instruction).flatten() {
            let Some(maker) = maker(computation, operand) else { continue };
            let Some(&from) = nodes.get(levels(scope(maker), depth)) else { continue };
            if from == to {
                continue;
            }
            let edge = *edges.entry((from, to)).or_insert_with(|| {
                graph.edges.push(ScopeEdge { from, to, values: 0, bytes: 0 });
                graph.edges.len() - 1
            });
            let edge = &mut graph.edges[edge];
            edge.values += 1;
            let bytes = operand.shape.as_ref().and_then(shape_bytes).unwrap_or(0);
            edge.bytes = edge.bytes.saturating_add(bytes);
        }
    }
    graph
}

/// Whether an instruction only carries values about.
fn carries(instruction: &HloInstructionProto) -> bool {
    const CARRIERS: [&str; 8] =
        ["bitcast", "constant", "copy", "get-tuple-element", "optimization-barrier", "parameter", "reshape", "tuple"];
    CARRIERS.contains(&instruction.opcode.as_str())
}

/// What makes the value that an instruction gives; none for constants and what comes from outside the computation.
fn maker<'a>(computation: &Computation<'a>, value: &'a HloInstructionProto) -> Option<&'a HloInstructionProto> {
    /// Longer chains than any compiler makes.
    const LONGEST: usize = 64;
    let mut value = value;
    for _ in 0..LONGEST {
        value = match value.opcode.as_str() {
            "parameter" | "constant" | "tuple" => return None,
            "get-tuple-element" => {
                let tuple = computation.operand(value, 0)?;
                match tuple.opcode.as_str() {
                    "tuple" => computation.operand(tuple, usize::try_from(value.tuple_index).ok()?)?,
                    _ => tuple,
                }
            }
            _ if carries(value) => computation.operand(value, 0)?,
            _ => return Some(value),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::levels;

    #[test]
    fn paths_are_cut() {
        let cases = [("a/b/c", 1, "a"), ("a/b/c", 2, "a/b"), ("a/b/c", 3, "a/b/c"), ("a/b/c", 9, "a/b/c"), ("", 2, "")];
        for (path, depth, expected) in cases {
            assert_eq!(levels(path, depth), expected);
        }
        assert_eq!(levels("a/b/c", 0), "a/b/c");
    }
}
