//! Building graphs, and copying nodes from one into another.

use std::sync::Arc;

use smallvec::SmallVec;

use super::OpError;
use super::TensorType;
use super::entities::{Node, Origin, Value};
use super::graph::{Definition, Graph, NodeData, NodeRef, PortInfo, ValueData};
use crate::ops::Op;

/// The results of one node.
pub type Values = SmallVec<[Value; 4]>;

/// Builds a [`Graph`] node by node. Every pushed op is type-checked by its own `infer` rule.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    origin: Origin,
}

impl GraphBuilder {
    /// Creates an empty graph under construction.
    pub fn new(name: impl Into<Arc<str>>) -> GraphBuilder {
        GraphBuilder {
            graph: Graph {
                name: name.into(),
                values: Vec::new(),
                nodes: Vec::new(),
                operand_pool: Vec::new(),
                inputs: Vec::new(),
                input_info: Vec::new(),
                outputs: Vec::new(),
                output_info: Vec::new(),
                has_side_effect: false,
            },
            origin: Origin::default(),
        }
    }

    /// As [`GraphBuilder::new`], for a graph of about the same size as another, under its name.
    pub(crate) fn like(other: &Graph) -> GraphBuilder {
        let mut builder = GraphBuilder::new(other.name.clone());
        builder.graph.values.reserve(other.values.len());
        builder.graph.nodes.reserve(other.nodes.len());
        builder.graph.operand_pool.reserve(other.operand_pool.len());
        builder
    }

    /// Sets the origin of the nodes pushed from now on.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// The origin of the nodes pushed now.
    #[inline]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The id that the next pushed node gets.
    pub(crate) fn next_node(&self) -> Node {
        Node(self.graph.nodes.len() as u32)
    }

    /// The graph so far.
    #[inline]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The type of a value.
    #[inline]
    pub fn ty(&self, value: Value) -> &TensorType {
        self.graph.ty(value)
    }

    /// Adds an input.
    pub fn input(&mut self, ty: TensorType, info: PortInfo) -> Value {
        let value = Value(self.graph.values.len() as u32);
        let definition = Definition::Input(self.graph.inputs.len() as u32);
        self.graph.values.push(ValueData { ty, definition });
        self.graph.inputs.push(value);
        self.graph.input_info.push(info);
        value
    }

    /// Adds an input for each of another graph's, without descriptions.
    pub(crate) fn inputs_like(&mut self, other: &Graph) -> Vec<Value> {
        other.input_types().map(|ty| self.input(ty.clone(), PortInfo::default())).collect()
    }

    /// Adds a node and infers its result types.
    ///
    /// # Errors
    /// The op's own typing rule refuses the operands.
    pub fn push(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<Values, OpError> {
        let op = op.into();
        let inferred = {
            let types: SmallVec<[&TensorType; 8]> = operands.iter().map(|&value| self.ty(value)).collect();
            op.infer(&types)
        };
        match inferred {
            Ok(result_types) => Ok(self.push_typed(op, operands, result_types)),
            Err(error) => {
                let types = operands.iter().map(|&value| self.ty(value).clone()).collect();
                Err(OpError::new(op.name(), error, types, self.origin))
            }
        }
    }

    /// Adds a node with one result.
    ///
    /// # Errors
    /// As [`GraphBuilder::push`].
    pub fn push1(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<Value, OpError> {
        Ok(self.push(op, operands)?[0])
    }

    /// Adds a node whose result types are already known to be right, as when a checked node is copied.
    pub(crate) fn push_typed(
        &mut self,
        op: Op,
        operands: &[Value],
        result_types: impl IntoIterator<Item = TensorType>,
    ) -> Values {
        let node = Node(self.graph.nodes.len() as u32);
        let operand_start = self.graph.operand_pool.len() as u32;
        self.graph.operand_pool.extend_from_slice(operands);
        let result_start = self.graph.values.len() as u32;
        for (index, ty) in result_types.into_iter().enumerate() {
            self.graph.values.push(ValueData { ty, definition: Definition::Result(node, index as u32) });
        }
        let result_count = self.graph.values.len() as u32 - result_start;
        self.graph.has_side_effect |= op.has_side_effect();
        self.graph.nodes.push(NodeData {
            op,
            operands: (operand_start, operands.len() as u32),
            results: (result_start, result_count),
            origin: self.origin,
        });
        (result_start..result_start + result_count).map(Value).collect()
    }

    /// As [`GraphBuilder::push_typed`], for a node whose origin differs from that of the nodes pushed around it.
    pub(crate) fn push_from(
        &mut self,
        origin: Origin,
        op: Op,
        operands: &[Value],
        result_types: impl IntoIterator<Item = TensorType>,
    ) -> Values {
        let outer = std::mem::replace(&mut self.origin, origin);
        let results = self.push_typed(op, operands, result_types);
        self.origin = outer;
        results
    }

    /// Copies a node of another graph, reading its operands through `map` and recording its results there.
    pub(crate) fn copy_node(&mut self, source: &Graph, node: NodeRef<'_>, map: &mut ValueMap) -> Values {
        let op = node.op().clone();
        self.copy_node_as(source, node, op, map)
    }

    /// As [`GraphBuilder::copy_node`], with another op of the same type.
    pub(crate) fn copy_node_as(&mut self, source: &Graph, node: NodeRef<'_>, op: Op, map: &mut ValueMap) -> Values {
        let operands = map.operands(node);
        let (origin, types) =
            (node.origin().copied_in(self.origin.phase), node.results().map(|value| source.ty(value).clone()));
        let results = self.push_from(origin, op, &operands, types);
        for (old, &new) in node.results().zip(&results) {
            map.set(old, new);
        }
        results
    }

    /// Copies all nodes of `source`, with `arguments` in the place of its inputs; returns the copies of its outputs.
    pub(crate) fn inline(&mut self, source: &Graph, arguments: &[Value]) -> Values {
        let mut map = ValueMap::for_inputs(source, arguments);
        for node in source.nodes() {
            self.copy_node(source, node, &mut map);
        }
        source.outputs().iter().map(|&value| map.get(value)).collect()
    }

    /// Builds the graph of a function of values of these types. All its nodes have one origin.
    pub(crate) fn definition(
        origin: Origin,
        types: impl IntoIterator<Item = TensorType>,
        define: impl FnOnce(&mut GraphBuilder, &[Value]) -> Result<Values, OpError>,
    ) -> Result<Graph, OpError> {
        let mut builder = GraphBuilder::new("definition");
        builder.set_origin(origin);
        let inputs: Values = types.into_iter().map(|ty| builder.input(ty, PortInfo::default())).collect();
        let results = define(&mut builder, &inputs)?;
        Ok(builder.finish_body(results.to_vec()))
    }

    /// Ends construction. Each output has a description: the [verifier](super::verify()) refuses a graph with an output
    /// that has none.
    pub fn finish(mut self, outputs: Vec<Value>, output_info: Vec<PortInfo>) -> Graph {
        self.graph.outputs = outputs;
        self.graph.output_info = output_info;
        self.graph
    }

    /// Ends construction of a region body with its inputs in another order.
    pub(crate) fn finish_ordered(mut self, inputs: Vec<Value>, outputs: Vec<Value>) -> Graph {
        // Paths served the messages of the trace; a body's ports have no meaning outside it.
        self.graph.input_info = vec![PortInfo::default(); inputs.len()];
        for (index, &input) in inputs.iter().enumerate() {
            self.graph.values[input.index()].definition = Definition::Input(index as u32);
        }
        self.graph.inputs = inputs;
        self.finish_body(outputs)
    }

    /// Ends construction of a region body, whose ports need no description.
    pub(crate) fn finish_body(self, outputs: Vec<Value>) -> Graph {
        let info = vec![PortInfo::default(); outputs.len()];
        self.finish(outputs, info)
    }
}

/// A map from the values of an old graph to those of a new one.
#[derive(Debug, Clone)]
pub(crate) struct ValueMap(Vec<u32>);

const UNMAPPED: u32 = u32::MAX;

impl ValueMap {
    /// Creates an empty map.
    pub(crate) fn new(source: &Graph) -> ValueMap {
        ValueMap(vec![UNMAPPED; source.value_count()])
    }

    /// Creates a map from the inputs of `source` to `arguments`.
    pub(crate) fn for_inputs(source: &Graph, arguments: &[Value]) -> ValueMap {
        let mut map = ValueMap::new(source);
        for (&input, &argument) in source.inputs().iter().zip(arguments) {
            map.set(input, argument);
        }
        map
    }

    /// The value that `value` is mapped to. Architecture invariant: callers walk in topological order, so it has been
    /// set. If it has not, the result is a value that no graph has, which the verifier refuses as used before it is
    /// defined.
    #[inline]
    pub(crate) fn get(&self, value: Value) -> Value {
        Value(self.0[value.index()])
    }

    /// The values that a node's operands are mapped to.
    pub(crate) fn operands(&self, node: NodeRef<'_>) -> Values {
        node.operands().iter().map(|&value| self.get(value)).collect()
    }

    /// The value that `value` is mapped to, if it has been set.
    #[inline]
    pub(crate) fn find(&self, value: Value) -> Option<Value> {
        let mapped = self.0[value.index()];
        (mapped != UNMAPPED).then_some(Value(mapped))
    }

    /// Maps `old` to `new`.
    #[inline]
    pub(crate) fn set(&mut self, old: Value, new: Value) {
        self.0[old.index()] = new.0;
    }
}
