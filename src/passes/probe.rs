//! Graphs that say which values have numbers that are not finite.
//!
//! A probe of a graph judges the values of one level: those of the graph itself, or of a body within it. A search for
//! the op that made the first such number probes level by level, and goes into the op that the level before has named.
//! So no program judges the values of more than one body.

use std::sync::Arc;

use crate::ir::{DType, Graph, GraphCopy, Node, NodeRef, OpError, PortInfo, TensorType, Value};
use crate::ops::{Compare, Convert, Direction, Op, Reduce, ReduceKind, Select, Splat, Unary, UnaryKind};

/// All numbers of a value are finite.
pub const FINITE: f64 = 0.0;
/// A number of a value is infinite, and none is NaN.
pub const INFINITE: f64 = 1.0;
/// A number of a value is NaN.
pub const NAN: f64 = 2.0;

/// A graph that has the inputs of another and returns a verdict on its values.
#[derive(Debug)]
pub struct Probe {
    /// The graph. For each of [`Probe::values`] it returns [`FINITE`], [`INFINITE`] or [`NAN`] as an `f32`, with a
    /// leading dimension for each of [`Probe::loops`].
    pub graph: Graph,
    /// The values that are judged, those of floating-point types of the [level].
    pub values: Vec<Value>,
    /// The loops around the level, the outermost first.
    pub loops: Vec<ProbedLoop>,
}

/// A loop around a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbedLoop {
    /// Iterations.
    pub length: usize,
    /// Whether the last slice comes first.
    pub reverse: bool,
}

/// The regions that lead to a level: for each, the node and the index of the body.
pub type Way = [(Node, usize)];

/// The graph at the end of a way, or `None` if the way leads to no body.
pub fn level<'g>(graph: &'g Graph, way: &Way) -> Option<&'g Graph> {
    way.iter().try_fold(graph, |graph, &(node, region)| graph.node(node).op().regions().nth(region).map(|body| &**body))
}

/// Whether the values in a body of this op can be judged: those of open loops cannot.
pub fn can_probe(op: &Op) -> bool {
    matches!(op, Op::Scan(_) | Op::Cond(_) | Op::Call(_))
}

/// A graph that judges the values of a level. Inputs are judged at the first level only: at deeper levels, they are
/// values of the level before.
///
/// # Errors
/// The way leads through an op that [cannot be probed](can_probe), since it refuses further results.
pub fn probe(graph: &Graph, way: &Way) -> Result<Probe, OpError> {
    let (mut copy, mut values) = (GraphCopy::with_inputs(graph), Vec::new());
    let mut found = Vec::new();
    if way.is_empty() {
        for &input in graph.inputs() {
            judge(&mut copy, input, &mut values, &mut found)?;
        }
    }
    found.extend(judged(&mut copy, way, &mut values)?);
    let info = vec![PortInfo::default(); found.len()];
    let loops = loops(graph, way);
    Ok(Probe { graph: copy.builder.finish(found, info), values, loops })
}

fn loops(graph: &Graph, way: &Way) -> Vec<ProbedLoop> {
    let mut loops = Vec::new();
    let mut graph = graph;
    for &(node, region) in way {
        let op = graph.node(node).op();
        if let Op::Scan(scan) = op {
            loops.push(ProbedLoop { length: scan.length, reverse: scan.reverse });
        }
        let Some(body) = op.regions().nth(region) else { break };
        graph = body;
    }
    loops
}

/// Copies the nodes, and returns the verdicts on the values of the level.
fn judged(copy: &mut GraphCopy<'_>, way: &Way, values: &mut Vec<Value>) -> Result<Vec<Value>, OpError> {
    let source = copy.source;
    let mut found = Vec::new();
    for node in source.nodes() {
        match way {
            [] => {
                copy.node(node);
                for result in node.results() {
                    judge(copy, result, values, &mut found)?;
                }
            }
            [(into, region), rest @ ..] if *into == node.id => {
                found = node_with_judged(copy, node, (*region, rest), values)?;
            }
            _ => drop(copy.node(node)),
        }
    }
    Ok(found)
}

/// Copies a node, whose further results are the verdicts on the values in one of its bodies. Returns these.
fn node_with_judged(
    copy: &mut GraphCopy<'_>,
    node: NodeRef<'_>,
    (region, rest): (usize, &Way),
    values: &mut Vec<Value>,
) -> Result<Vec<Value>, OpError> {
    let mut failed = None;
    let mut types: Vec<TensorType> = Vec::new();
    let bodies: Vec<&Arc<Graph>> = node.op().regions().collect();
    let probed = bodies.get(region).map(|body| -> Result<Graph, OpError> {
        let mut inner = GraphCopy::with_inputs(body);
        let found = judged(&mut inner, rest, values)?;
        types = found.iter().map(|&value| inner.builder.ty(value).clone()).collect();
        Ok(finished(inner, body, found))
    });
    let probed = probed.transpose()?.map(Arc::new);
    let mut index = 0;
    let op = node.op().map_regions(|body| {
        index += 1;
        match &probed {
            Some(probed) if index - 1 == region => probed.clone(),
            // A branch that does not run reports finite values.
            _ if matches!(node.op(), Op::Cond(_)) => {
                let mut inner = GraphCopy::with_inputs(body);
                inner.all_nodes();
                let zero = |ty: &TensorType| inner.builder.push1(Splat::new(ty.clone(), 0.0), &[]);
                match types.iter().map(zero).collect::<Result<Vec<_>, _>>() {
                    Ok(zeros) => Arc::new(finished(inner, body, zeros)),
                    Err(error) => {
                        failed = Some(error);
                        body.clone()
                    }
                }
            }
            _ => body.clone(),
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let operands = copy.operands(node);
    let results = copy.builder.push(op.unwrap_or_else(|| node.op().clone()), &operands)?;
    for (old, &new) in node.results().zip(&results) {
        copy.map.set(old, new);
    }
    Ok(results[node.results().len()..].to_vec())
}

fn finished(copy: GraphCopy<'_>, body: &Graph, more: Vec<Value>) -> Graph {
    let outputs = body.outputs().iter().map(|&output| copy.map.get(output)).chain(more).collect();
    copy.builder.finish_body(outputs)
}

/// Judges a value of the source, if its numbers can be infinite or NaN.
fn judge(
    copy: &mut GraphCopy<'_>,
    value: Value,
    values: &mut Vec<Value>,
    found: &mut Vec<Value>,
) -> Result<(), OpError> {
    let ty = copy.source.ty(value);
    if !ty.dtype.is_float() {
        return Ok(());
    }
    values.push(value);
    let builder = &mut copy.builder;
    let wide = ty.dtype.at_least_f32();
    let x = builder.push1(Convert(wide), &[copy.map.get(value)])?;
    let finite = builder.push1(Unary(UnaryKind::IsFinite), &[x])?;
    let infinity = builder.push1(Splat::new(ty.with_dtype(wide), f64::INFINITY), &[])?;
    let size = builder.push1(Unary(UnaryKind::Abs), &[x])?;
    let infinite = builder.push1(Compare(Direction::Eq), &[size, infinity])?;
    let [zero, one, two] = [FINITE, INFINITE, NAN].map(|number| Splat::new(ty.with_dtype(DType::F32), number));
    let (zero, one, two) = (builder.push1(zero, &[])?, builder.push1(one, &[])?, builder.push1(two, &[])?);
    let other = builder.push1(Select, &[infinite, one, two])?;
    let worst = builder.push1(Select, &[finite, zero, other])?;
    let axes = (0..ty.rank()).collect();
    found.push(builder.push1(Reduce { kind: ReduceKind::Max, axes }, &[worst])?);
    Ok(())
}
