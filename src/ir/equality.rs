//! Equality of graphs.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::GraphBuilder;
use super::graph::{Graph, NodeRef};
use crate::ops::Op;

/// Graphs are equal if they have the same text, whatever the origins of their nodes are, and whether or not bodies are
/// the same in memory. But a body that several nodes share in one graph must be shared in the other.
impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        let empty = Arc::new(GraphBuilder::new("").finish_body(Vec::new()));
        EqualBodies { forth: FxHashMap::default(), back: FxHashMap::default(), empty }.graphs(self, other)
    }
}

/// Bodies that have been found to be equal, by their addresses.
struct EqualBodies {
    forth: FxHashMap<*const Graph, *const Graph>,
    back: FxHashMap<*const Graph, *const Graph>,
    /// A body to put in place of all others, where the rest of an op is compared.
    empty: Arc<Graph>,
}

impl EqualBodies {
    fn graphs(&mut self, one: &Graph, other: &Graph) -> bool {
        one.name == other.name
            && one.values.len() == other.values.len()
            && one.values().all(|at| one.ty(at) == other.ty(at) && one.definition(at) == other.definition(at))
            && one.inputs == other.inputs
            && one.input_info == other.input_info
            && one.outputs == other.outputs
            && one.output_info == other.output_info
            && one.nodes.len() == other.nodes.len()
            && one.nodes().zip(other.nodes()).all(|(one, other)| self.nodes(one, other))
    }

    fn nodes(&mut self, one: NodeRef<'_>, other: NodeRef<'_>) -> bool {
        let alone = |op: &Op| op.map_regions(|_| self.empty.clone()).unwrap_or_else(|| op.clone());
        let same_op = one.op() == other.op() || alone(one.op()) == alone(other.op());
        same_op
            && one.operands() == other.operands()
            && one.results().eq(other.results())
            && one.op().regions().zip(other.op().regions()).all(|(one, other)| self.bodies(one, other))
    }

    fn bodies(&mut self, one: &Arc<Graph>, other: &Arc<Graph>) -> bool {
        let (one_at, other_at) = (Arc::as_ptr(one), Arc::as_ptr(other));
        match (self.forth.get(&one_at), self.back.get(&other_at)) {
            (None, None) => {
                self.forth.insert(one_at, other_at);
                self.back.insert(other_at, one_at);
                one_at == other_at || self.graphs(one, other)
            }
            (known, known_back) => known == Some(&other_at) && known_back == Some(&one_at),
        }
    }
}
