//! Batching (`vmap`): a graph over examples becomes a graph over a batch of them.
//!
//! A batched value has the batch as its leading dimension; a value that is the same for all examples stays as it is,
//! and so does every value that is computed from such values alone. Each op states how it is batched in its
//! [`batch`](crate::ops::Primitive::batch) rule; for most the batch is one more parallel factor of the op's [factor
//! rule](crate::ops::FactorRule). Ops with regions are treated in `regions.rs`: their bodies are batched.
//!
//! ```
//! use meshloom::batching::{BatchAxis, vmap};
//! use meshloom::ir::DType::F32;
//! use meshloom::trace::{Function, TensorSpec};
//!
//! let specs = (TensorSpec::new(F32, [3]), TensorSpec::new(F32, [3, 5]));
//! let function = Function::trace("layer", specs, |(x, w)| x.expand(0).matmul(w).tanh())?;
//! // A batch of seven vectors, one matrix for all.
//! let (graph, batched) = vmap(function.graph(), &[true, false], BatchAxis::new(7))?;
//! assert_eq!(graph.output_types().next().unwrap().to_string(), "f32[7,1,5]");
//! assert_eq!(batched, [true]);
//! # Ok::<(), meshloom::Error>(())
//! ```

mod regions;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::ir::{
    Graph, GraphBuilder, InternalError, Memo, Name, NodeRef, OpError, PortInfo, TensorType, Value, ValueMap,
};
use crate::ops::{BatchContext, Batched, ReduceKind, aligned, batched_dims};

/// The dimension that a batch runs along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchAxis {
    /// Number of examples.
    pub size: usize,
    /// Its logical axis name, by which batched values with declared axes are sharded; the empty name for none.
    pub name: Name,
}

impl BatchAxis {
    /// An axis without a name.
    pub fn new(size: usize) -> BatchAxis {
        BatchAxis { size, name: Name::default() }
    }
}

/// Returns the graph over a batch of examples, and whether each of its outputs differs between examples. The inputs
/// marked differ between examples. Paths and roles of inputs and outputs stay the same; declared axis names get that of
/// the batch in front.
///
/// # Errors
/// An op has no batching rule, or the batch has more bytes than can be addressed.
pub fn vmap(graph: &Graph, batched: &[bool], axis: BatchAxis) -> Result<(Graph, Vec<bool>), OpError> {
    let mut builder = GraphBuilder::new(format!("{}_batched", graph.name()));
    let port = |info: &PortInfo, batched: bool| {
        let mut info = info.clone();
        if batched && !info.axes.is_empty() {
            info.axes.insert(0, axis.name);
        }
        info
    };
    let arguments = batched_inputs(&mut builder, graph, batched, axis, port);
    let outputs = inline(&mut builder, graph, &arguments, axis)?;
    let flags: Vec<bool> = outputs.iter().map(|output| output.batched).collect();
    let info = graph.output_info().iter().zip(&flags).map(|(info, &batched)| port(info, batched)).collect();
    Ok((builder.finish(outputs.iter().map(|output| output.value).collect(), info), flags))
}

/// Copies `graph` into `builder`, over the batch of examples that `arguments` hold; returns the values of its outputs.
///
/// # Errors
/// As [`vmap`].
pub fn inline(
    builder: &mut GraphBuilder,
    graph: &Graph,
    arguments: &[Batched],
    axis: BatchAxis,
) -> Result<Vec<Batched>, OpError> {
    walk(builder, graph, arguments, &Mapping { axis, bodies: Memo::default() })
}

/// Adds the inputs of `graph`, with the batch in front of those marked.
fn batched_inputs(
    builder: &mut GraphBuilder,
    graph: &Graph,
    batched: &[bool],
    axis: BatchAxis,
    port: impl Fn(&PortInfo, bool) -> PortInfo,
) -> Vec<Batched> {
    let inputs = graph.input_types().zip(graph.input_info()).zip(batched);
    let input = |((ty, info), &batched): ((&TensorType, &PortInfo), &bool)| {
        let mut ty = ty.clone();
        if batched {
            ty.dims = batched_dims(axis.size, &ty.dims);
        }
        Batched { value: builder.input(ty, port(info, batched)), batched }
    };
    inputs.map(input).collect()
}

/// One application of `vmap`.
struct Mapping {
    axis: BatchAxis,
    /// Bodies batched so far: calls of one function with the same operands batched share one batched function.
    bodies: Memo<(Vec<bool>, Vec<Demand>), BatchedBody>,
}

/// A batched body, and whether each of its outputs is batched.
type BatchedBody = (Arc<Graph>, Arc<[bool]>);

/// The form in which the op that runs a body needs one of its outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Demand {
    /// The output as it comes, batched or not.
    Any,
    /// A value for each example, even if they are all the same.
    Batched,
    /// The sum over all examples.
    Sum,
}

impl Mapping {
    /// Returns a body with the inputs marked batched, and its outputs as demanded.
    fn body(&self, body: &Arc<Graph>, batched: &[bool], demands: &[Demand]) -> Result<BatchedBody, OpError> {
        self.bodies.of(body, (batched.to_vec(), demands.to_vec()), || {
            let mut builder = GraphBuilder::new(format!("{}_batched", body.name()));
            let inputs = batched_inputs(&mut builder, body, batched, self.axis, |_, _| PortInfo::default());
            let mut outputs = walk(&mut builder, body, &inputs, self)?;
            for (output, &demand) in outputs.iter_mut().zip(demands) {
                *output = self.meet(&mut builder, *output, demand)?;
            }
            let flags = outputs.iter().map(|output| output.batched).collect();
            let graph = builder.finish_body(outputs.iter().map(|output| output.value).collect());
            Ok((Arc::new(graph), flags))
        })
    }

    fn meet(&self, builder: &mut GraphBuilder, output: Batched, demand: Demand) -> Result<Batched, OpError> {
        Ok(match (demand, output.batched) {
            (Demand::Any, _) => output,
            (Demand::Batched, _) => Batched { value: aligned(builder, output, self.axis.size)?, batched: true },
            (Demand::Sum, true) => {
                Batched { value: builder.reduce(ReduceKind::Sum, &[0], output.value)?, batched: false }
            }
            (Demand::Sum, false) => {
                Batched { value: builder.scale(output.value, self.axis.size as f64)?, batched: false }
            }
        })
    }
}

/// Copies a graph node by node, each by its batching rule if one of its operands is batched.
fn walk(
    builder: &mut GraphBuilder,
    graph: &Graph,
    arguments: &[Batched],
    mapping: &Mapping,
) -> Result<Vec<Batched>, OpError> {
    let mut map = ValueMap::new(graph);
    let mut batched = vec![false; graph.value_count()];
    for (&input, argument) in graph.inputs().iter().zip(arguments) {
        map.set(input, argument.value);
        batched[input.index()] = argument.batched;
    }
    for node in graph.nodes() {
        if !node.operands().iter().any(|value| batched[value.index()]) {
            builder.copy_node(graph, node, &mut map);
            continue;
        }
        let operand = |value: &Value| Batched { value: map.get(*value), batched: batched[value.index()] };
        let operands: SmallVec<[Batched; 4]> = node.operands().iter().map(operand).collect();
        let outer = builder.origin();
        builder.set_origin(node.origin().copied_in(outer.phase));
        let results = batch_node(builder, node, &operands, mapping)?;
        builder.set_origin(outer);
        if results.len() != node.results().len() {
            let expected = format!("{} results of its batching rule, not {}", node.results().len(), results.len());
            return Err(InternalError::new(node.op().name(), expected).at(node.origin()).into());
        }
        for (old, new) in node.results().zip(results) {
            map.set(old, new.value);
            batched[old.index()] = new.batched;
        }
    }
    let output = |value: &Value| Batched { value: map.get(*value), batched: batched[value.index()] };
    Ok(graph.outputs().iter().map(output).collect())
}

fn batch_node(
    builder: &mut GraphBuilder,
    node: NodeRef<'_>,
    operands: &[Batched],
    mapping: &Mapping,
) -> Result<SmallVec<[Batched; 2]>, OpError> {
    if let Some(op) = node.op().region_kind() {
        return regions::batch(builder, op, operands, mapping);
    }
    let BatchAxis { size, name } = mapping.axis;
    let definition =
        |builder: &mut GraphBuilder, graph: &Graph, operands: &[Batched]| walk(builder, graph, operands, mapping);
    let results = SmallVec::new();
    let mut context = BatchContext { builder, size, axis_name: name, operands, results, definition: &definition };
    if let Some(primitive) = node.op().as_primitive() {
        primitive.batch(&mut context)?;
    }
    Ok(context.results)
}
