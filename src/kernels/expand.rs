//! Putting implementations in the place of ops.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{AttentionKernel, ExpertsKernel, Kernels, blockwise, grouped};
use crate::ir::{Graph, GraphCopy, NodeRef, TensorType};
use crate::ops::Op;
use crate::trace::TraceError;

/// The graph, the program of one device, with implementations in the place of ops that have several. `tidy` cleans up
/// what an implementation is made of.
///
/// # Errors
/// An implementation refuses its own operands, which is a defect.
pub fn expand(graph: &Graph, kernels: &Kernels, tidy: &dyn Fn(&Graph) -> Graph) -> Result<Graph, TraceError> {
    if !has_any(graph, kernels) {
        return Ok(graph.clone());
    }
    Expansion { kernels, tidy, made: FxHashMap::default(), bodies: FxHashMap::default() }.graph(graph)
}

/// An op on operands of these types.
type Call = (Op, Vec<TensorType>);

struct Expansion<'a> {
    kernels: &'a Kernels,
    tidy: &'a dyn Fn(&Graph) -> Graph,
    /// What calls alike are computed by.
    made: FxHashMap<Call, Arc<Graph>>,
    /// What became of bodies; the originals are held so that their addresses stay their own.
    bodies: FxHashMap<*const Graph, (Arc<Graph>, Arc<Graph>)>,
}

impl Expansion<'_> {
    fn graph(&mut self, graph: &Graph) -> Result<Graph, TraceError> {
        let mut copy = GraphCopy::with_inputs(graph);
        for node in graph.nodes() {
            if let Some(found) = self.implementation(graph, node)? {
                let operands: Vec<_> = node.operands().iter().map(|&value| copy.map.get(value)).collect();
                let results = copy.builder.inline(&found.relocated(node.origin()), &operands);
                node.results().zip(results).for_each(|(old, new)| copy.map.set(old, new));
                continue;
            }
            match node.op().try_map_regions(|_, body| self.body(body))? {
                Some(op) => copy.node_as(node, op),
                None => copy.node(node),
            };
        }
        Ok(copy.finish())
    }

    fn body(&mut self, body: &Arc<Graph>) -> Result<Arc<Graph>, TraceError> {
        if !has_any(body, self.kernels) {
            return Ok(body.clone());
        }
        if let Some((_, done)) = self.bodies.get(&Arc::as_ptr(body)) {
            return Ok(done.clone());
        }
        let done = Arc::new(self.graph(body)?);
        self.bodies.insert(Arc::as_ptr(body), (body.clone(), done.clone()));
        Ok(done)
    }

    fn implementation(&mut self, graph: &Graph, node: NodeRef<'_>) -> Result<Option<Arc<Graph>>, TraceError> {
        if !is_replaced(node.op(), self.kernels) {
            return Ok(None);
        }
        let call = (node.op().clone(), node.operands().iter().map(|&value| graph.ty(value).clone()).collect());
        if let Some(found) = self.made.get(&call) {
            return Ok(Some(found.clone()));
        }
        let found = match &call {
            (Op::Attention(op), types) => blockwise::attention(op, types, self.kernels)?,
            (Op::AttentionGradient(op), types) => blockwise::attention_gradient(op, types, self.kernels)?,
            (Op::RaggedDot(op), types) => grouped::ragged_dot(op, types, self.kernels)?,
            _ => None,
        };
        let Some(found) = found else { return Ok(None) };
        let found = Arc::new((self.tidy)(&found));
        self.made.insert(call, found.clone());
        Ok(Some(found))
    }
}

/// Whether an op has an implementation other than what is emitted for it.
fn is_replaced(op: &Op, kernels: &Kernels) -> bool {
    match op {
        Op::Attention(_) | Op::AttentionGradient(_) => kernels.attention != AttentionKernel::Plain,
        Op::RaggedDot(_) => kernels.experts != ExpertsKernel::Plain,
        _ => false,
    }
}

fn has_any(graph: &Graph, kernels: &Kernels) -> bool {
    graph.nodes().any(|node| is_replaced(node.op(), kernels) || node.op().regions().any(|body| has_any(body, kernels)))
}
