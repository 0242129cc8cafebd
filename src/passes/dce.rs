//! Dead-code elimination.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::ir::{BodyCache, Definition, Graph, GraphCopy, Node, NodeRef, Value};
use crate::ops::{Edge, Op, Port, Target};

/// Drops every node that no output depends on, in every region too. From barriers, loops and branches, it also drops
/// single results, with the carries, slices and operands that served only them. All inputs stay, and so do the names of
/// further results of nodes that stay.
pub fn eliminate_dead_code(graph: &Graph) -> Graph {
    eliminate(graph, &mut BodyCache::default())
}

fn eliminate(graph: &Graph, bodies: &mut BodyCache) -> Graph {
    let liveness = Liveness::of(graph, &vec![true; graph.outputs().len()]);
    let mut copy = GraphCopy::with_inputs(graph);
    liveness.copy_nodes(graph, &mut copy, bodies);
    copy.finish()
}

/// The values of a graph that are needed for some of its outputs.
struct Liveness {
    live: Vec<bool>,
    /// For each node that is needed and is a loop or has branches, the parts of it that are needed.
    regions: Vec<Option<RegionLiveness>>,
}

/// The parts of a loop or of branches that are needed. All ends of an edge stay or go together.
struct RegionLiveness {
    /// For each body, the values that are needed.
    bodies: Vec<Liveness>,
    edges: Vec<Edge>,
    /// For each edge, whether it is needed.
    kept: Vec<bool>,
    operands: Vec<bool>,
    results: Vec<bool>,
}

fn chosen<'a, T>(items: impl IntoIterator<Item = T> + 'a, flags: &'a [bool]) -> impl Iterator<Item = T> + 'a {
    items.into_iter().zip(flags).filter_map(|(item, &flag)| flag.then_some(item))
}

impl Liveness {
    fn of(graph: &Graph, wanted_outputs: &[bool]) -> Liveness {
        let mut live = vec![false; graph.value_count()];
        chosen(graph.outputs(), wanted_outputs).for_each(|output| live[output.index()] = true);
        let mut regions: Vec<Option<RegionLiveness>> = Vec::new();
        regions.resize_with(graph.node_count(), || None);
        // Names of values that no other node reads. A rematerialization policy may keep such a value of an op with
        // several results, as attention's sums.
        let mut names: FxHashMap<Node, SmallVec<[NodeRef<'_>; 1]>> = FxHashMap::default();
        for node in graph.nodes().rev() {
            if node.results().any(|result| live[result.index()]) {
                for name in names.remove(&node.id).into_iter().flatten() {
                    (live[name.result().index()], live[name.operands()[0].index()]) = (true, true);
                }
            }
            if let Op::Named(_) = node.op()
                && let Definition::Result(made_by, _) = graph.definition(node.operands()[0])
            {
                names.entry(made_by).or_default().push(node);
            }
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
                    let results: SmallVec<[bool; 4]> = node.results().map(|result| live[result.index()]).collect();
                    let needed = RegionLiveness::of(op, &results);
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

    /// Whether each input of the graph is live.
    fn inputs(&self, graph: &Graph) -> Vec<bool> {
        graph.inputs().iter().map(|input| self.live[input.index()]).collect()
    }

    fn copy_nodes(&self, graph: &Graph, copy: &mut GraphCopy<'_>, bodies: &mut BodyCache) {
        for node in graph.nodes() {
            let kept: SmallVec<[bool; 4]> = node.results().map(|result| self.live[result.index()]).collect();
            if !kept.contains(&true) && !node.op().has_side_effect() {
                continue;
            }
            let (op, operand_flags, result_flags) = match (node.op(), &self.regions[node.id.index()]) {
                (op, Some(needed)) => (needed.extract(op, bodies), &needed.operands[..], &needed.results[..]),
                (op @ Op::Barrier(_), _) => (op.clone(), &kept[..], &kept[..]),
                _ => {
                    bodies.copy(copy, node, eliminate);
                    continue;
                }
            };
            let operands: SmallVec<[Value; 8]> =
                chosen(node.operands(), operand_flags).map(|&value| copy.map.get(value)).collect();
            let types = chosen(node.results(), result_flags).map(|value| graph.ty(value).clone());
            let results = copy.builder.push_from(node.origin(), op, &operands, types);
            chosen(node.results(), result_flags).zip(results).for_each(|(old, new)| copy.map.set(old, new));
        }
    }
}

impl RegionLiveness {
    /// The parts of a loop or of branches that the wanted results need; `None` for any other op, which needs all its
    /// operands. (An op that runs its body exactly once keeps its ports, since a function is shared by its calls.)
    fn of(op: &Op, wanted: &[bool]) -> Option<RegionLiveness> {
        if op.as_primitive().is_some() || op.is_wrapper() {
            return None;
        }
        let edges = op.edges();
        let is_needed =
            |edge: &Edge| edge.target == Target::Control || edge.result().is_some_and(|index| wanted[index]);
        let mut kept: Vec<bool> = edges.iter().map(is_needed).collect();
        loop {
            let of_body = |(region, body): (usize, &Arc<Graph>)| {
                Liveness::of(body, &ports(&edges, &kept, region, |edge| &edge.outputs, body.outputs().len()))
            };
            let bodies: Vec<Liveness> = op.regions().enumerate().map(of_body).collect();
            let live: Vec<Vec<bool>> = bodies.iter().zip(op.regions()).map(|(live, body)| live.inputs(body)).collect();
            let mut settled = true;
            for (edge, kept) in edges.iter().zip(&mut kept).filter(|(_, kept)| !**kept) {
                *kept = edge.inputs.iter().any(|port| live[port.region][port.index]);
                // A carry that is read must be computed as well, which may read further carries.
                settled &= !*kept || edge.outputs.is_empty();
            }
            if settled {
                let mut operands = vec![false; edges.iter().filter_map(Edge::operand).count()];
                let mut results = vec![false; wanted.len()];
                for (edge, &kept) in edges.iter().zip(&kept) {
                    edge.operand().into_iter().for_each(|index| operands[index] = kept);
                    edge.result().into_iter().for_each(|index| results[index] = kept);
                }
                return Some(RegionLiveness { bodies, edges, kept, operands, results });
            }
        }
    }

    fn extract(&self, op: &Op, bodies: &mut BodyCache) -> Op {
        let mut live = self.bodies.iter().enumerate();
        let extracted = op.map_regions(|body| {
            let Some((region, live)) = live.next() else { return body.clone() };
            let inputs = ports(&self.edges, &self.kept, region, |edge| &edge.inputs, body.inputs().len());
            let outputs = ports(&self.edges, &self.kept, region, |edge| &edge.outputs, body.outputs().len());
            let mut copy = GraphCopy::of_body(body, chosen(body.inputs().iter().copied(), &inputs));
            live.copy_nodes(body, &mut copy, bodies);
            Arc::new(copy.finish_body(chosen(body.outputs().iter().copied(), &outputs)))
        });
        extracted.as_ref().and_then(Op::as_region).map_or_else(|| op.clone(), |op| op.with_operands(&self.operands))
    }
}

/// Whether each input or output of a region is on an edge that is kept.
fn ports(
    edges: &[Edge],
    kept: &[bool],
    region: usize,
    of_edge: impl Fn(&Edge) -> &[Port],
    port_count: usize,
) -> Vec<bool> {
    let mut flags = vec![false; port_count];
    for edge in chosen(edges, kept) {
        of_edge(edge).iter().filter(|port| port.region == region).for_each(|port| flags[port.index] = true);
    }
    flags
}
