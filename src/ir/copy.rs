//! Copying graphs node by node, which is what most passes do.

use std::cell::RefCell;
use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::builder::{GraphBuilder, ValueMap, Values};
use super::graph::{Graph, NodeRef, PortInfo};
use super::{TensorType, Value};
use crate::ops::Op;

/// A graph that is copied node by node, with changes on the way: nodes may be left out, replaced or added.
pub(crate) struct GraphCopy<'g> {
    pub(crate) source: &'g Graph,
    /// The copy so far.
    pub(crate) builder: GraphBuilder,
    pub(crate) map: ValueMap,
}

impl<'g> GraphCopy<'g> {
    /// A copy without inputs.
    pub(crate) fn new(source: &'g Graph) -> GraphCopy<'g> {
        GraphCopy { source, builder: GraphBuilder::like(source), map: ValueMap::new(source) }
    }

    /// A copy with the inputs of the source.
    pub(crate) fn with_inputs(source: &'g Graph) -> GraphCopy<'g> {
        let mut copy = GraphCopy::new(source);
        source.inputs().iter().zip(source.input_info()).for_each(|(&input, info)| copy.input(input, info.clone()));
        copy
    }

    /// A copy of a body, with inputs for these values.
    pub(crate) fn of_body(source: &'g Graph, inputs: impl IntoIterator<Item = Value>) -> GraphCopy<'g> {
        let mut copy = GraphCopy::new(source);
        inputs.into_iter().for_each(|input| copy.input(input, PortInfo::default()));
        copy
    }

    /// Adds an input that stands for a value of the source.
    pub(crate) fn input(&mut self, value: Value, info: PortInfo) {
        self.input_as(value, self.source.ty(value).clone(), info);
    }

    /// As [`GraphCopy::input`], but with another type.
    pub(crate) fn input_as(&mut self, value: Value, ty: TensorType, info: PortInfo) {
        let input = self.builder.input(ty, info);
        self.map.set(value, input);
    }

    /// The values in the copy that a node of the source reads.
    pub(crate) fn operands(&self, node: NodeRef<'_>) -> Values {
        self.map.operands(node)
    }

    /// Writes a graph in the place of a node.
    pub(crate) fn inline(&mut self, node: NodeRef<'_>, graph: &Graph) {
        let results = self.builder.inline(graph, &self.operands(node));
        node.results().zip(results).for_each(|(old, new)| self.map.set(old, new));
    }

    pub(crate) fn node(&mut self, node: NodeRef<'_>) -> Values {
        self.builder.copy_node(self.source, node, &mut self.map)
    }

    /// Copies all nodes.
    pub(crate) fn all_nodes(&mut self) {
        let source = self.source;
        for node in source.nodes() {
            self.node(node);
        }
    }

    /// Copies a node with another op of the same type.
    pub(crate) fn node_as(&mut self, node: NodeRef<'_>, op: Op) -> Values {
        self.builder.copy_node_as(self.source, node, op, &mut self.map)
    }

    pub(crate) fn finish(self) -> Graph {
        let source = self.source;
        self.finish_with(source.outputs().iter().copied().zip(source.output_info().iter().cloned()))
    }

    /// Ends the copy with the copies of these values as outputs.
    pub(crate) fn finish_with(self, outputs: impl IntoIterator<Item = (Value, PortInfo)>) -> Graph {
        let (outputs, info) = outputs.into_iter().map(|(value, info)| (self.map.get(value), info)).unzip();
        self.builder.finish(outputs, info)
    }

    /// Ends the copy of a body with the copies of these values as outputs.
    pub(crate) fn finish_body(self, outputs: impl IntoIterator<Item = Value>) -> Graph {
        self.finish_with(outputs.into_iter().map(|value| (value, PortInfo::default())))
    }
}

/// The results of a pass for the bodies it has met: a body that is used twice is transformed once and stays shared.
#[derive(Default)]
pub(crate) struct BodyCache(FxHashMap<*const Graph, (Arc<Graph>, Arc<Graph>)>);

impl BodyCache {
    /// The result for a body that has been met before.
    pub(crate) fn find(&self, body: &Arc<Graph>) -> Option<Arc<Graph>> {
        self.0.get(&Arc::as_ptr(body)).map(|(_, done)| done.clone())
    }

    /// Notes the result for a body, and returns it.
    pub(crate) fn insert(&mut self, body: &Arc<Graph>, done: Arc<Graph>) -> Arc<Graph> {
        // The original is held so that its address stays its own.
        self.0.insert(Arc::as_ptr(body), (body.clone(), done.clone()));
        done
    }

    /// Returns a body with a pass run over it.
    pub(crate) fn transform(
        &mut self,
        body: &Arc<Graph>,
        pass: impl FnOnce(&Graph, &mut BodyCache) -> Graph,
    ) -> Arc<Graph> {
        self.find(body).unwrap_or_else(|| {
            let done = Arc::new(pass(body, self));
            self.insert(body, done)
        })
    }

    /// Copies a node, with the pass run over its bodies.
    pub(crate) fn copy(
        &mut self,
        copy: &mut GraphCopy<'_>,
        node: NodeRef<'_>,
        pass: impl Fn(&Graph, &mut BodyCache) -> Graph,
    ) {
        match node.op().map_regions(|body| self.transform(body, &pass)) {
            Some(op) => copy.node_as(node, op),
            None => copy.node(node),
        };
    }
}

/// Results that were made from bodies. The key says what else each result depends on. A body that is met again under an
/// equal key is not transformed again, so users that shared a body share its result.
#[derive(Debug)]
pub(crate) struct Memo<K, V>(RefCell<MadeBodies<K, V>>);

/// The originals, each with the result made from it.
type MadeBodies<K, V> = FxHashMap<(*const Graph, K), (Arc<Graph>, V)>;

impl<K, V> Default for Memo<K, V> {
    fn default() -> Memo<K, V> {
        Memo(RefCell::default())
    }
}

impl<K: Eq + Hash, V: Clone> Memo<K, V> {
    /// Returns the result of `make` for a body. It runs once for each key.
    pub(crate) fn of<E>(&self, body: &Arc<Graph>, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        let key = (Arc::as_ptr(body), key);
        if let Some((_, done)) = self.0.borrow().get(&key) {
            return Ok(done.clone());
        }
        let done = make()?;
        // The original is held so that its address stays its own.
        self.0.borrow_mut().insert(key, (body.clone(), done.clone()));
        Ok(done)
    }
}
