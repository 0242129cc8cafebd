//! Uneven dimensions: a dimension that its axes do not divide is made larger, until they do.
//!
//! Where the rules allow it ([`Rules::with_uneven`](crate::sharding::Rules::with_uneven)), a spec may split ten rows
//! over eight devices. Such a dimension is padded, and with it every dimension that runs over the same loops: of all
//! ops that compute element by element, of contractions, reductions, lookups. The elements beyond the true size may
//! have any value, as long as nothing reads them: the operand of a reduction is masked with the reduction's identity,
//! positions are clamped to the true size, and an op that needs the true size (a reshape that splits the dimension, a
//! sort along it) gets a slice. The result is an ordinary graph of global shapes, for any partitioner; the host pads
//! the inputs and cuts the outputs.

use meshloom_hlo::mesh::common_divisor;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use meshloom_hlo::mesh::Mesh;

use crate::ir::{
    BodyCache, DType, Dims, Graph, GraphBuilder, GraphCopy, InternalError, NodeRef, OpError, Spec, TensorType, Value,
    ValueMap,
};
use crate::ops::{
    BinaryKind, Direction, Edge, FactorKind, FactorRule, Iota, Op, Pad, PadDim, PartitionContext, PartitionPorts,
    ReduceKind, Select, Slice, SliceDim, TensorFactors,
};
use crate::sharding::ties;

/// The graph with its uneven dimensions padded; `None` if it has no such dimension. An output that shares a buffer with
/// an input (`aliases` of (output, input)) is padded as that input is. With `exact_ports` the graph itself pads inputs
/// and cuts outputs.
///
/// # Errors
/// A padded value has more bytes than can be addressed.
pub fn pad_uneven(
    graph: &Graph,
    mesh: &Mesh,
    aliases: &[(usize, usize)],
    exact_ports: bool,
) -> Result<Option<Graph>, OpError> {
    if !has_uneven_spec(graph, mesh) {
        return Ok(None);
    }
    let mut classes = Classes::default();
    classes.enter(graph);
    classes.link(graph);
    for &(output, input) in aliases {
        if let (Some(&output), Some(&input)) = (graph.outputs().get(output), graph.inputs().get(input)) {
            classes.unify_values((graph, output, 0), (graph, input, 0));
        }
    }
    classes.demand(graph, mesh);
    let mut rewriter = Rewriter { classes, bodies: BodyCache::default() };
    Ok(Some(rewriter.graph(graph, exact_ports)?))
}

/// The specs that a graph itself states, without those of its bodies, each with the value that has it.
fn stated(graph: &Graph) -> impl Iterator<Item = (Value, &Spec)> {
    let inputs = graph.inputs().iter().zip(graph.input_info());
    let ports = inputs.chain(graph.outputs().iter().zip(graph.output_info()));
    let ports = ports.filter_map(|(&value, info)| Some((value, info.spec.as_ref()?)));
    let constraints = graph.nodes().filter_map(|node| match node.op() {
        Op::Reshard(reshard) => Some((node.result(), &reshard.spec)),
        _ => None,
    });
    ports.chain(constraints)
}

fn has_uneven_spec(graph: &Graph, mesh: &Mesh) -> bool {
    let is_uneven = |(value, spec): (Value, &Spec)| {
        let mut dims = graph.ty(value).dims.iter().take(spec.rank()).enumerate();
        dims.any(|(dim, size)| !size.is_multiple_of(spec.part_count(mesh, dim)))
    };
    stated(graph).any(is_uneven)
        || graph.nodes().any(|node| node.op().regions().any(|body| has_uneven_spec(body, mesh)))
}

/// Dimensions that run over the same loops, as sets; each is padded to one size.
#[derive(Default)]
struct Classes {
    /// For each graph, the number of each value's first dimension.
    first: FxHashMap<*const Graph, Vec<usize>>,
    parent: Vec<usize>,
    /// The number that divides the padded size.
    multiple: Vec<usize>,
    /// Whether any spec splits it unevenly.
    uneven: Vec<bool>,
}

/// A dimension of a value of a graph.
type ValueDim<'g> = (&'g Graph, Value, usize);

impl Classes {
    /// Gives every dimension of a graph and its bodies a number.
    fn enter(&mut self, graph: &Graph) {
        let Entry::Vacant(entry) = self.first.entry(std::ptr::from_ref(graph)) else { return };
        let mut next = self.parent.len();
        let first = graph.values().map(|value| {
            let own = next;
            next += graph.ty(value).rank();
            own
        });
        entry.insert(first.collect());
        self.parent.extend(self.parent.len()..next);
        self.multiple.resize(next, 1);
        self.uneven.resize(next, false);
        graph.nodes().flat_map(|node| node.op().regions()).for_each(|body| self.enter(body));
    }

    fn find(&self, (graph, value, dim): ValueDim<'_>) -> usize {
        let mut at = self.first[&std::ptr::from_ref(graph)][value.index()] + dim;
        while self.parent[at] != at {
            at = self.parent[at];
        }
        at
    }

    fn unify(&mut self, left: ValueDim<'_>, right: ValueDim<'_>) {
        let (left, right) = (self.find(left), self.find(right));
        self.parent[left.max(right)] = left.min(right);
    }

    /// Unifies all dimensions of two values, those of the first from dimension `.2` on.
    fn unify_values(&mut self, outer: ValueDim<'_>, inner: ValueDim<'_>) {
        for dim in 0..inner.0.ty(inner.1).rank() {
            self.unify((outer.0, outer.1, outer.2 + dim), (inner.0, inner.1, dim));
        }
    }

    /// Unifies the dimensions that ops treat alike, and those that enter and leave bodies.
    fn link(&mut self, graph: &Graph) {
        for node in graph.nodes() {
            if let Some(rule) = FactorRule::of(graph, node) {
                for factor in (0..rule.factors.len()).filter(|&factor| can_grow(node.op(), &rule, factor)) {
                    let mut places = dims_over(&rule, factor, node).map(|(value, dim)| (graph, value, dim));
                    if let Some(first) = places.next() {
                        places.for_each(|place| self.unify(first, place));
                    }
                }
                continue;
            }
            let bodies: SmallVec<[&Arc<Graph>; 2]> = node.op().regions().collect();
            for tie in ties(node) {
                self.unify_values((graph, tie.outer, tie.extra_dims), (bodies[tie.body], tie.inner, 0));
            }
            bodies.into_iter().for_each(|body| self.link(body));
        }
    }

    /// Enters the numbers of parts into which specs split dimensions.
    fn demand(&mut self, graph: &Graph, mesh: &Mesh) {
        for (value, spec) in stated(graph) {
            for dim in 0..spec.rank() {
                let class = self.find((graph, value, dim));
                let parts = spec.part_count(mesh, dim);
                self.multiple[class] *= parts / common_divisor(self.multiple[class], parts).max(1);
                self.uneven[class] |= !graph.ty(value).dims[dim].is_multiple_of(parts);
            }
        }
        graph.nodes().flat_map(|node| node.op().regions()).for_each(|body| self.demand(body, mesh));
    }

    fn is_padded(&self, place: ValueDim<'_>) -> bool {
        self.uneven[self.find(place)]
    }

    /// The sizes of a value, padded.
    fn dims(&self, graph: &Graph, value: Value) -> Dims {
        let padded = |(dim, &size): (usize, &usize)| {
            let class = self.find((graph, value, dim));
            if self.uneven[class] { size.next_multiple_of(self.multiple[class]) } else { size }
        };
        graph.ty(value).dims.iter().enumerate().map(padded).collect()
    }
}

/// The dimensions of a node's operands and results that run over a factor.
fn dims_over<'n>(rule: &'n FactorRule, factor: usize, node: NodeRef<'n>) -> impl Iterator<Item = (Value, usize)> + 'n {
    let values = node.operands().iter().copied().chain(node.results());
    rule.operands.iter().chain(&rule.results).zip(values).flat_map(move |(dims, value)| {
        let runs = dims.iter().enumerate().filter(move |(_, factors)| factors.contains(&(factor as u32)));
        runs.map(move |(dim, _)| (value, dim))
    })
}

/// Whether an op works with a larger factor: it is alone on its dimensions, and nothing depends on where they end. It
/// is unknown what a user's own kernel makes of the elements that fill up a sum.
fn can_grow(op: &Op, rule: &FactorRule, factor: usize) -> bool {
    let kind = rule.factors[factor].kind;
    if matches!((op, kind), (Op::KernelCall(_), FactorKind::Reduction(_))) {
        return false;
    }
    let shares = |dims: &TensorFactors| dims.iter().any(|own| own.len() > 1 && own.contains(&(factor as u32)));
    !matches!(kind, FactorKind::Replicated | FactorKind::Gathered | FactorKind::Permutation)
        && !rule.operands.iter().chain(&rule.results).any(shares)
}

struct Rewriter {
    classes: Classes,
    bodies: BodyCache,
}

impl Rewriter {
    fn graph(&mut self, graph: &Graph, exact_ports: bool) -> Result<Graph, OpError> {
        let mut copy = GraphCopy::new(graph);
        for (&input, info) in graph.inputs().iter().zip(graph.input_info()) {
            if exact_ports {
                copy.input(input, info.clone());
                continue;
            }
            let ty = TensorType { dtype: graph.ty(input).dtype, dims: self.classes.dims(graph, input) };
            copy.input_as(input, ty, info.clone());
        }
        for &input in graph.inputs() {
            let padded = resize(&mut copy.builder, copy.map.get(input), &self.classes.dims(graph, input))?;
            copy.map.set(input, padded);
        }
        for node in graph.nodes() {
            copy.builder.set_origin(node.origin());
            let results = match FactorRule::of(graph, node) {
                Some(rule) => self.primitive(&mut copy.builder, graph, node, &rule, &copy.map)?,
                None => self.region(&mut copy.builder, graph, node, &copy.map)?,
            };
            for (old, new) in node.results().zip(results) {
                let padded = resize(&mut copy.builder, new, &self.classes.dims(graph, old))?;
                copy.map.set(old, padded);
            }
        }
        if exact_ports {
            for &output in graph.outputs() {
                let cut = resize(&mut copy.builder, copy.map.get(output), &graph.ty(output).dims)?;
                copy.map.set(output, cut);
            }
        }
        Ok(copy.finish())
    }

    /// A node on padded operands, as far as it can do with them.
    fn primitive(
        &self,
        builder: &mut GraphBuilder,
        graph: &Graph,
        node: NodeRef<'_>,
        rule: &FactorRule,
        map: &ValueMap,
    ) -> Result<SmallVec<[Value; 2]>, OpError> {
        let classes = &self.classes;
        let grown = |factor: usize| {
            can_grow(node.op(), rule, factor)
                && dims_over(rule, factor, node).any(|(value, dim)| classes.is_padded((graph, value, dim)))
        };
        let grown: SmallVec<[bool; 8]> = (0..rule.factors.len()).map(grown).collect();
        // The dimensions as the op takes or gives them: padded if their factors are, else of their true sizes.
        let dims_of = |value: Value, factors: &TensorFactors| -> Dims {
            let (padded, ty) = (classes.dims(graph, value), graph.ty(value));
            let size = |(dim, own): (usize, &crate::ops::DimFactors)| {
                if own.iter().any(|&factor| grown[factor as usize]) { padded[dim] } else { ty.dims[dim] }
            };
            factors.iter().enumerate().map(size).collect()
        };
        let mut operands: SmallVec<[Value; 4]> = SmallVec::new();
        for (index, (&value, factors)) in node.operands().iter().zip(&rule.operands).enumerate() {
            let mut operand = resize(builder, map.get(value), &dims_of(value, factors))?;
            for (dim, own) in factors.iter().enumerate() {
                let Some(&factor) = own.iter().find(|&&factor| grown[factor as usize]) else { continue };
                if let FactorKind::Reduction(kind) = rule.factors[factor as usize].kind {
                    operand = mask(builder, operand, dim, graph.ty(value).dims[dim], kind)?;
                }
            }
            if let (Op::Gather(gather), 1) = (node.op(), index) {
                // Elements beyond the true size must not be found.
                let dims = &graph.ty(node.operands()[0]).dims;
                operand = gather.dims.clamp(builder, operand, dims, &gather.slice_sizes)?;
            }
            operands.push(operand);
        }
        if !grown.contains(&true) {
            return Ok(builder.push(node.op().clone(), &operands)?.into_iter().collect());
        }
        let Some(primitive) = node.op().as_primitive() else {
            return Err(InternalError::new(node.op().name(), "a partitioning rule").at(node.origin()).into());
        };
        let operand_types: SmallVec<[&TensorType; 4]> = node.operands().iter().map(|&value| graph.ty(value)).collect();
        let result_types: SmallVec<[&TensorType; 2]> = node.results().map(|value| graph.ty(value)).collect();
        let whole = |types: &[&TensorType]| -> SmallVec<[Spec; 4]> {
            types.iter().map(|ty| Spec::replicated(ty.rank())).collect()
        };
        let result_dims: SmallVec<[Dims; 2]> =
            node.results().zip(&rule.results).map(|(value, factors)| dims_of(value, factors)).collect();
        // On a mesh of one device, the partitioning rule gives the op other sizes.
        let ports = PartitionPorts {
            operands: &operands,
            operand_types: &operand_types,
            operand_specs: &whole(&operand_types),
            result_types: &result_types,
            result_specs: &whole(&result_types),
            result_dims: &result_dims,
        };
        PartitionContext::results(builder, &Mesh::default(), primitive, ports)
    }

    /// A node with bodies: the values that enter and leave them are padded alike on both sides.
    fn region(
        &mut self,
        builder: &mut GraphBuilder,
        graph: &Graph,
        node: NodeRef<'_>,
        map: &ValueMap,
    ) -> Result<SmallVec<[Value; 2]>, OpError> {
        let op = node.op().try_map_regions(|_, body| self.body(body))?;
        let mut operands = map.operands(node);
        // A loop runs over the true elements.
        for index in node.op().edges().iter().filter(|edge| edge.sliced).filter_map(Edge::operand) {
            let operand = node.operands()[index];
            let mut dims = self.classes.dims(graph, operand);
            dims[0] = graph.ty(operand).dims[0];
            operands[index] = resize(builder, operands[index], &dims)?;
        }
        Ok(builder.push(op.unwrap_or_else(|| node.op().clone()), &operands)?.into_iter().collect())
    }

    fn body(&mut self, body: &Arc<Graph>) -> Result<Arc<Graph>, OpError> {
        if let Some(done) = self.bodies.find(body) {
            return Ok(done);
        }
        let done = Arc::new(self.graph(body, false)?);
        Ok(self.bodies.insert(body, done))
    }
}

/// A value with dimensions of other sizes: cut, or zeros added, at the end of each.
fn resize(builder: &mut GraphBuilder, value: Value, dims: &[usize]) -> Result<Value, OpError> {
    let mut value = value;
    let have = builder.ty(value).dims.clone();
    if have.iter().zip(dims).any(|(have, want)| have > want) {
        let ranges =
            have.iter().zip(dims).map(|(&have, &want)| SliceDim { start: 0, limit: have.min(want), stride: 1 });
        value = builder.push1(Slice { ranges: ranges.collect() }, &[value])?;
    }
    let have = builder.ty(value).dims.clone();
    if have.iter().zip(dims).any(|(have, want)| have < want) {
        let padding =
            have.iter().zip(dims).map(|(&have, &want)| PadDim { low: 0, high: (want - have) as i64, interior: 0 });
        let zero = builder.splat(TensorType::scalar(builder.ty(value).dtype), 0.0);
        value = builder.push1(Pad { padding: padding.collect() }, &[value, zero])?;
    }
    Ok(value)
}

/// A value that from position `size` of a dimension on has the identity of a reduction.
fn mask(builder: &mut GraphBuilder, value: Value, dim: usize, size: usize, kind: ReduceKind) -> Result<Value, OpError> {
    let ty = builder.ty(value).clone();
    if ty.dims[dim] == size {
        return Ok(value);
    }
    let positions = builder.push1(Iota { ty: ty.with_dtype(DType::S32), axis: dim }, &[])?;
    let end = builder.splat_like(positions, size as f64);
    let exists = builder.compare(Direction::Lt, positions, end)?;
    if ty.dtype == DType::Pred && matches!(kind, ReduceKind::Or | ReduceKind::Sum) {
        return builder.binary(BinaryKind::And, value, exists);
    }
    let identity = builder.splat_like(value, kind.identity(ty.dtype));
    builder.push1(Select, &[exists, value, identity])
}
