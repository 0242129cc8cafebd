//! Several collectives as one.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::MIB;
use crate::ir::{BodyCache, DType, Graph, GraphCopy, Node, NodeRef, Phase, Value};
use crate::ops::{Class, Op};

/// A collective of several operands copies them side by side and apart again (see their emission), which costs more
/// than it saves once they take longer to copy than a collective takes to start.
const LARGEST_COPIED: u64 = MIB;

/// The number of later collectives of a kind that are looked at for each: as many as a large layer has.
const LOOKED_AT: usize = 64;

/// The number of nodes that may be done earlier for the sake of an operand.
const MOVED: usize = 16;

/// Makes one collective of several that have the same kind, group, dimension, combiner, element type and phase, in
/// every region by itself.
///
/// The first of them, where it stands, is joined by later ones that could run there as well: their operands are known
/// there, or made of known values by ops that only compute elementwise or move elements. So no result is ever delayed,
/// and no member depends on another. The price is that results are there earlier than needed, `limit` bytes of them at
/// most. A gather of the backward pass never joins one of the forward pass, so neither is held for the other.
///
/// Only small collectives are combined, as they are copied together: all-reduces of the backward pass of at most
/// `all_reduces` bytes, as XLA also combines those, without copies. The operands must be live: dead code comes first.
pub fn combine_collectives(graph: &Graph, limit: u64, all_reduces: u64) -> Graph {
    combine(graph, [limit, all_reduces], &mut BodyCache::default())
}

fn combine(graph: &Graph, [limit, all_reduces]: [u64; 2], bodies: &mut BodyCache) -> Graph {
    let mut walk = Combining { graph, copy: GraphCopy::with_inputs(graph), done: vec![false; graph.node_count()] };
    let alike = alike(graph, all_reduces);
    for node in graph.nodes() {
        if walk.done[node.id.index()] {
            continue;
        }
        let key = CombineKey::of(graph, node, all_reduces);
        match key.and_then(|key| alike.get(&key)).filter(|nodes| nodes.len() > 1) {
            Some(nodes) => walk.join(node, nodes, limit),
            None => bodies.copy(&mut walk.copy, node, |body, bodies| combine(body, [limit, all_reduces], bodies)),
        }
    }
    walk.copy.finish()
}

/// The properties that collectives must share to be combined.
#[derive(PartialEq, Eq, Hash)]
struct CombineKey<'g> {
    op: &'g Op,
    dtype: DType,
    phase: Phase,
}

impl<'g> CombineKey<'g> {
    fn of(graph: &'g Graph, node: NodeRef<'g>, all_reduces: u64) -> Option<CombineKey<'g>> {
        let phase = node.origin().phase;
        let largest = match node.op() {
            Op::AllReduce(_) if phase != Phase::Forward => all_reduces.min(LARGEST_COPIED),
            Op::AllReduce(_) | Op::AllGather(_) | Op::ReduceScatter(_) => LARGEST_COPIED,
            _ => return None,
        };
        let &operand = node.operands().first()?;
        (bytes(graph, node) <= largest).then(|| CombineKey { op: node.op(), dtype: graph.ty(operand).dtype, phase })
    }
}

/// The collectives that could be combined if they were ready together, in their order.
fn alike(graph: &Graph, all_reduces: u64) -> FxHashMap<CombineKey<'_>, Vec<Node>> {
    let mut found: FxHashMap<CombineKey<'_>, Vec<Node>> = FxHashMap::default();
    for node in graph.nodes() {
        if let Some(key) = CombineKey::of(graph, node, all_reduces) {
            found.entry(key).or_default().push(node.id);
        }
    }
    found
}

/// The bytes of the operands or of the results, whichever is more.
fn bytes(graph: &Graph, node: NodeRef<'_>) -> u64 {
    let size = |value: Value| graph.ty(value).byte_count() as u64;
    let operands: u64 = node.operands().iter().map(|&value| size(value)).sum();
    operands.max(node.results().map(size).sum())
}

struct Combining<'g> {
    graph: &'g Graph,
    copy: GraphCopy<'g>,
    /// The nodes that have been copied.
    done: Vec<bool>,
}

impl Combining<'_> {
    /// Pushes a collective together with those of `alike` that can join it.
    fn join(&mut self, first: NodeRef<'_>, alike: &[Node], limit: u64) {
        let mut members: SmallVec<[Node; 8]> = SmallVec::from_slice(&[first.id]);
        let mut total = bytes(self.graph, first);
        let later = alike.partition_point(|&node| node <= first.id);
        let open: SmallVec<[Node; 8]> =
            alike[later..].iter().copied().filter(|node| !self.done[node.index()]).take(LOOKED_AT).collect();
        for other in open {
            let other = self.graph.node(other);
            let size = bytes(self.graph, other);
            if total.saturating_add(size) > limit {
                break;
            }
            let Some(needed) = self.needed(other) else { continue };
            for node in needed {
                self.done[node.index()] = true;
                self.copy.node(self.graph.node(node));
            }
            self.done[other.id.index()] = true;
            total += size;
            members.push(other.id);
        }
        self.done[first.id.index()] = true;
        let graph = self.graph;
        let nodes = || members.iter().map(|&member| graph.node(member));
        let operands: Vec<Value> =
            nodes().flat_map(|node| node.operands()).map(|&value| self.copy.map.get(value)).collect();
        let types = nodes().flat_map(|node| node.results()).map(|value| graph.ty(value).clone());
        let results = self.copy.builder.push_from(first.origin(), first.op().clone(), &operands, types);
        nodes().flat_map(|node| node.results()).zip(results).for_each(|(old, new)| self.copy.map.set(old, new));
    }

    /// The nodes that must be done for a collective's operands to be known here, in their order; `None` if these do
    /// more than move known values about.
    fn needed(&self, collective: NodeRef<'_>) -> Option<Vec<Node>> {
        let mut open: SmallVec<[Value; 8]> = collective.operands().into();
        let mut needed: FxHashSet<Node> = FxHashSet::default();
        while let Some(value) = open.pop() {
            if self.copy.map.find(value).is_some() {
                continue;
            }
            let node = self.graph.defining_node(value)?;
            let class = node.op().facts().class;
            // Doing these nodes earlier costs no more than their place in memory.
            if !(class.is_fused() || class == Class::Source) || needed.len() == MOVED {
                return None;
            }
            if needed.insert(node.id) {
                open.extend_from_slice(node.operands());
            }
        }
        let mut needed: Vec<Node> = needed.into_iter().collect();
        needed.sort_unstable();
        Some(needed)
    }
}
