//! The graph: an arena of typed nodes in topological order.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::entities::{Name, Node, Origin, Value};
use super::{Role, Spec, TensorType};
use crate::ops::Op;

/// Logical axis names, one for each dimension; the empty name where a dimension has none.
pub type AxisNames = SmallVec<[Name; 6]>;

/// The properties of one graph input or output besides its type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortInfo {
    /// The path in the caller's tree, such as `params.layers.attention.wq`.
    pub path: Arc<str>,
    /// Logical axis names; empty when none were declared.
    pub axes: AxisNames,
    /// The role, which selects the axis rules that shard the value.
    pub role: Role,
    /// The sharding of the value, once the sharding pass has decided it.
    pub spec: Option<Spec>,
}

impl PortInfo {
    /// Creates a port with a path and nothing else.
    pub fn named(path: impl Into<Arc<str>>) -> PortInfo {
        PortInfo { path: path.into(), ..PortInfo::default() }
    }
}

/// The definition of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// The graph input with this index.
    Input(u32),
    /// A result of a node.
    Result(Node, u32),
}

#[derive(Clone, Debug)]
pub(crate) struct ValueData {
    pub(crate) ty: TensorType,
    pub(crate) definition: Definition,
}

#[derive(Clone, Debug)]
pub(crate) struct NodeData {
    pub(crate) op: Op,
    pub(crate) operands: (u32, u32),
    pub(crate) results: (u32, u32),
    pub(crate) origin: Origin,
}

/// A pure function over tensors.
///
/// Nodes stand in topological order; every operand is defined before its use; nothing is captured from outside: the
/// body of a region op is a graph of its own, whose inputs are fed by the op's operands. Graphs are built once (by
/// [`GraphBuilder`](super::GraphBuilder)) and never changed: a pass makes a new one.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(crate) name: Arc<str>,
    pub(crate) values: Vec<ValueData>,
    pub(crate) nodes: Vec<NodeData>,
    pub(crate) operand_pool: Vec<Value>,
    pub(crate) inputs: Vec<Value>,
    pub(crate) input_info: Vec<PortInfo>,
    pub(crate) outputs: Vec<Value>,
    pub(crate) output_info: Vec<PortInfo>,
    /// Whether a node does something besides giving results.
    pub(crate) has_side_effect: bool,
}

/// A node seen through its graph.
#[derive(Clone, Copy)]
pub struct NodeRef<'a> {
    graph: &'a Graph,
    data: &'a NodeData,
    /// Whether a node does something besides giving results.
    pub id: Node,
}

impl<'a> NodeRef<'a> {
    /// The operation.
    #[inline]
    pub fn op(&self) -> &'a Op {
        &self.data.op
    }

    /// The values that the node reads.
    #[inline]
    pub fn operands(&self) -> &'a [Value] {
        let (start, count) = self.data.operands;
        &self.graph.operand_pool[start as usize..(start + count) as usize]
    }

    /// The values that the node defines.
    #[inline]
    pub fn results(&self) -> impl ExactSizeIterator<Item = Value> + Clone + use<'a> {
        let (start, count) = self.data.results;
        (start..start + count).map(Value)
    }

    /// The only (or first) value that the node defines.
    #[inline]
    pub fn result(&self) -> Value {
        Value(self.data.results.0)
    }

    /// The node's origin.
    #[inline]
    pub fn origin(&self) -> Origin {
        self.data.origin
    }
}

impl Graph {
    /// The function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same graph with one origin for all nodes, those of bodies included.
    pub(crate) fn relocated(&self, origin: Origin) -> Graph {
        let mut graph = self.clone();
        for node in &mut graph.nodes {
            node.origin = origin;
            if let Some(op) = node.op.map_regions(|body| Arc::new(body.relocated(origin))) {
                node.op = op;
            }
        }
        graph
    }

    /// The same graph under another name.
    pub(crate) fn renamed(self, name: impl Into<Arc<str>>) -> Graph {
        Graph { name: name.into(), ..self }
    }

    /// The input values, in order.
    #[inline]
    pub fn inputs(&self) -> &[Value] {
        &self.inputs
    }

    /// Path and axes of each input.
    pub fn input_info(&self) -> &[PortInfo] {
        &self.input_info
    }

    /// The output values, in order; a value may occur more than once.
    #[inline]
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// Path and axes of each output.
    pub fn output_info(&self) -> &[PortInfo] {
        &self.output_info
    }

    /// Replaces the descriptions of the outputs. The verifier refuses a number of descriptions that differs from the
    /// number of outputs.
    pub(crate) fn set_output_info(&mut self, info: Vec<PortInfo>) {
        self.output_info = info;
    }

    pub(crate) fn set_input_info(&mut self, info: Vec<PortInfo>) {
        self.input_info = info;
    }

    /// Number of values: inputs and results.
    #[inline]
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// All values: inputs and results.
    pub fn values(&self) -> impl ExactSizeIterator<Item = Value> + use<> {
        (0..self.values.len() as u32).map(Value)
    }

    /// Number of nodes, not counting those inside regions.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Number of nodes, with those of every region body counted once each.
    pub fn total_node_count(&self) -> usize {
        let mut count = self.nodes.len();
        for node in self.nodes() {
            for body in node.op().regions() {
                count += body.total_node_count();
            }
        }
        count
    }

    /// All nodes in topological order.
    #[inline]
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeRef<'_>> + ExactSizeIterator {
        self.nodes.iter().enumerate().map(move |(index, data)| NodeRef { graph: self, data, id: Node(index as u32) })
    }

    /// The names that values are given, those in regions included, each once.
    pub fn value_names(&self) -> Vec<Name> {
        let (mut names, mut graphs, mut seen) = (Vec::new(), vec![self], FxHashSet::default());
        while let Some(graph) = graphs.pop() {
            for node in graph.nodes() {
                match node.op() {
                    Op::Named(named) if !names.contains(&named.0) => names.push(named.0),
                    op => graphs
                        .extend(op.regions().map(|body| &**body).filter(|body| seen.insert(std::ptr::from_ref(*body)))),
                }
            }
        }
        names
    }

    /// One node.
    #[inline]
    pub fn node(&self, id: Node) -> NodeRef<'_> {
        NodeRef { graph: self, data: &self.nodes[id.index()], id }
    }

    /// Whether running the graph does something besides giving results.
    pub(crate) fn has_side_effect(&self) -> bool {
        self.has_side_effect
    }

    /// The type of a value.
    #[inline]
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.values[value.index()].ty
    }

    /// The definition of a value.
    #[inline]
    pub fn definition(&self, value: Value) -> Definition {
        self.values[value.index()].definition
    }

    /// The node that defines a value; `None` for an input.
    #[inline]
    pub fn defining_node(&self, value: Value) -> Option<NodeRef<'_>> {
        match self.definition(value) {
            Definition::Input(_) => None,
            Definition::Result(node, _) => Some(self.node(node)),
        }
    }

    /// Types of the inputs.
    pub fn input_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.inputs.iter().map(|&value| self.ty(value))
    }

    /// Types of the outputs.
    pub fn output_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.outputs.iter().map(|&value| self.ty(value))
    }
}
