//! A module as a graph of its scopes.
//!
//! A drawing of ten thousand instructions is unreadable, but one of layers, attention blocks and an optimizer is clear.
//! Instructions whose `op_name` begins with the same scopes are one node, and edges show the values that flow between
//! nodes. Instructions that only carry values (tuples, parameters, bitcasts, copies) are followed to the instruction
//! that makes the value.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::size::shape_bytes;
use super::walk::{Step, Via, Walk};
use meshloom_hlo::proto::HloInstructionProto;
use meshloom_hlo::source::scope;

/// Scopes, and the values that flow between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScopeGraph {
    /// The scopes, in the order in which the program first comes to them.
    pub nodes: Vec<ScopeNode>,
    /// The flows, by position in `nodes`.
    pub edges: Vec<ScopeEdge>,
}

/// A scope, with everything in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScopeNode {
    /// Its path; empty for instructions without a scope.
    pub path: String,
    /// The number of instructions other than those that only carry values. Each counts once, however often it runs; a
    /// fusion is one.
    pub instructions: usize,
    /// The number of instructions of each opcode.
    pub opcodes: BTreeMap<String, usize>,
}

/// Values that one scope makes and another reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ScopeEdge {
    /// The scope that makes them.
    pub from: usize,
    /// The scope that reads them.
    pub to: usize,
    /// The number of values.
    pub values: usize,
    /// Their bytes on one device, each value once, as far as sizes are known.
    pub bytes: u64,
}

/// Returns the first `depth` levels of a scope path; the whole path if `depth` is 0.
pub fn first_levels(path: &str, depth: usize) -> &str {
    match path.match_indices('/').nth(depth.saturating_sub(1)) {
        Some((at, _)) if depth > 0 => &path[..at],
        _ => path,
    }
}

/// Returns the graph of a module's scopes, cut off at `depth` levels.
pub fn scope_graph(walk: &Walk<'_>, depth: usize) -> ScopeGraph {
    let mut graph = ScopeGraph::default();
    let mut nodes: FxHashMap<&str, usize> = FxHashMap::default();
    let mut edges: FxHashMap<(usize, usize), usize> = FxHashMap::default();
    let (mut seen, mut read) = (FxHashSet::default(), FxHashSet::default());
    for Step { place, place_number, instruction, .. } in walk.steps() {
        if place.fused || carries(instruction) || !seen.insert(std::ptr::from_ref(instruction)) {
            continue;
        }
        let path = first_levels(scope(instruction), depth);
        let to = *nodes.entry(path).or_insert_with(|| {
            graph.nodes.push(ScopeNode { path: path.to_owned(), ..ScopeNode::default() });
            graph.nodes.len() - 1
        });
        let node = &mut graph.nodes[to];
        node.instructions += 1;
        *node.opcodes.entry(instruction.opcode.clone()).or_default() += 1;
        let computation = walk.computation(place);
        let operands = computation.operands(instruction).flatten();
        for maker in operands.flat_map(|operand| makers(walk, place_number, operand)) {
            let Some(&from) = nodes.get(first_levels(scope(maker), depth)).filter(|&&from| from != to) else {
                continue;
            };
            let edge = *edges.entry((from, to)).or_insert_with(|| {
                graph.edges.push(ScopeEdge { from, to, values: 0, bytes: 0 });
                graph.edges.len() - 1
            });
            // A value that several instructions read is counted once.
            if !read.insert((edge, std::ptr::from_ref(maker))) {
                continue;
            }
            let edge = &mut graph.edges[edge];
            edge.values += 1;
            let bytes = maker.shape.as_ref().and_then(shape_bytes).unwrap_or(0);
            edge.bytes = edge.bytes.saturating_add(bytes);
        }
    }
    graph
}

/// Whether an instruction only carries values about.
fn carries(instruction: &HloInstructionProto) -> bool {
    const CARRIERS: [&str; 8] =
        ["bitcast", "constant", "copy", "get-tuple-element", "opt-barrier", "parameter", "reshape", "tuple"];
    CARRIERS.contains(&instruction.opcode.as_str())
}

/// A value in a place, or one of its elements if it is a tuple.
struct Asked<'a> {
    place: usize,
    value: &'a HloInstructionProto,
    /// Positions in tuples, the outermost last.
    elements: Vec<i64>,
}

/// Returns the instructions that make a value, followed out of loops and calls: several for a tuple of several, and
/// none for constants and the program's parameters.
fn makers<'a>(walk: &Walk<'a>, place: usize, value: &'a HloInstructionProto) -> Vec<&'a HloInstructionProto> {
    /// No value needs more steps: a tuple of all of a program's parameters has thousands of elements.
    const MOST_STEPS: usize = 4096;
    let mut found = Vec::new();
    let mut asked = vec![Asked { place, value, elements: Vec::new() }];
    for _ in 0..MOST_STEPS {
        let Some(mut at) = asked.pop() else { break };
        let place = &walk.places()[at.place];
        let computation = walk.computation(place);
        let next = match at.value.opcode.as_str() {
            "constant" => None,
            "parameter" => {
                let outside = place.caller.and_then(|caller| {
                    let position = operand_of_parameter(caller.via, at.value.parameter_number)?;
                    let around = walk.computation(&walk.places()[caller.place]);
                    Some((caller.place, around.operand(caller.instruction, position)?))
                });
                outside.map(|(place, value)| {
                    at.place = place;
                    value
                })
            }
            "get-tuple-element" => {
                at.elements.push(at.value.tuple_index);
                computation.operand(at.value, 0)
            }
            "tuple" => match at.elements.pop() {
                Some(index) => usize::try_from(index).ok().and_then(|index| computation.operand(at.value, index)),
                None => {
                    let place = at.place;
                    let all = computation.operands(at.value).flatten();
                    asked.extend(all.map(|value| Asked { place, value, elements: Vec::new() }));
                    None
                }
            },
            _ if carries(at.value) => computation.operand(at.value, 0),
            _ => {
                found.push(at.value);
                None
            }
        };
        if let Some(value) = next {
            asked.push(Asked { value, ..at });
        }
    }
    found
}

/// Returns the operand of the caller that a computation's parameter stands for.
fn operand_of_parameter(via: Via, parameter: i64) -> Option<usize> {
    match via {
        Via::LoopBody | Via::LoopCondition => Some(0),
        Via::Branch(branch) => Some(branch + 1),
        Via::Fusion | Via::Call | Via::Async => usize::try_from(parameter).ok(),
        Via::CustomCall => None,
    }
}
