//! Collectives that undo each other, and reductions that can be one.

use smallvec::SmallVec;

use super::varying::{Sets, Varying, is_same_within, of_inputs};
use crate::ir::{Axes, AxisSet, Graph, GraphBuilder, GraphCopy, NodeRef, Origin, Value, ValueMap, Values};
use crate::ops::{
    AllGather, AllReduce, Analysis, Binary, BinaryKind, DynamicSlice, Group, Op, ReduceKind, ReduceScatter,
};

/// Takes out communication that is not needed, in every region too:
///
/// - this device's slice of a value that was gathered along the same axes is the part it had before; along the first of
///   these axes, it is a gather along the rest;
/// - slices that are gathered again are the value they were cut from, if that is the same on all devices of the group;
/// - this device's slice of an all-reduced sum that nothing else reads is reduce-scattered instead;
/// - the sum or difference of two all-reduced (or reduce-scattered) sums that nothing else reads is reduced once, also
///   where another value is added in between.
pub fn cancel_collectives(graph: &Graph) -> Graph {
    rewrite(graph, &of_inputs(graph.input_info()))
}

fn rewrite(graph: &Graph, inputs: &[AxisSet]) -> Graph {
    let GraphCopy { builder, mut map, .. } = GraphCopy::with_inputs(graph);
    let mut walk = Cancelling { builder, sets: inputs.to_vec(), readers: vec![0; inputs.len()] };
    let readers = live_readers(graph);
    for (&input, new) in graph.inputs().iter().zip(0..) {
        walk.readers[new] = readers[input.index()];
    }
    for node in graph.nodes() {
        walk.builder.set_origin(node.origin());
        let results = walk.node(graph, node, &map);
        for (old, new) in node.results().zip(results) {
            walk.readers[new.index()] += readers[old.index()];
            map.set(old, new);
        }
    }
    GraphCopy { source: graph, builder: walk.builder, map }.finish()
}

/// The number of times that each value is read by nodes that an output depends on.
fn live_readers(graph: &Graph) -> Vec<u32> {
    let mut readers = vec![0; graph.value_count()];
    graph.outputs().iter().for_each(|output| readers[output.index()] += 1);
    for node in graph.nodes().rev() {
        if node.op().has_side_effect() || node.results().any(|result| readers[result.index()] > 0) {
            node.operands().iter().for_each(|operand| readers[operand.index()] += 1);
        }
    }
    readers
}

/// The new graph, and the analysis of its values.
struct Cancelling {
    builder: GraphBuilder,
    /// The axes along which each value may differ.
    sets: Vec<AxisSet>,
    /// The number of times that each value is read, by nodes that are there and by those still to come.
    readers: Vec<u32>,
}

impl Cancelling {
    fn node(&mut self, graph: &Graph, node: NodeRef<'_>, map: &ValueMap) -> Values {
        let operands = map.operands(node);
        let replaced = match node.op() {
            Op::DynamicSlice(_) => self.slice(node.op(), &operands),
            Op::AllGather(gather) => self.gather(gather, &operands),
            Op::Binary(op) => self.combine(op, &operands),
            _ => None,
        };
        // A value of another type is no replacement.
        if let Some(value) = replaced.filter(|&value| self.builder.ty(value) == graph.ty(node.result())) {
            return Values::from_slice(&[value]);
        }
        let sets = self.sets_of(&operands);
        let op = Varying.map_bodies(node.op(), &sets, |body, inputs| rewrite(body, &inputs).into());
        let op = op.unwrap_or_else(|| node.op().clone());
        let types = node.results().map(|value| graph.ty(value).clone());
        self.sets.extend(Varying.results(&op, &sets, node.results().len()));
        self.readers.resize(self.sets.len(), 0);
        self.builder.push_typed(op, &operands, types)
    }

    fn sets_of(&self, values: &[Value]) -> Sets {
        values.iter().map(|value| self.sets[value.index()]).collect()
    }

    /// A new node with one result.
    fn push(&mut self, op: impl Into<Op>, operands: &[Value]) -> Option<Value> {
        let op = op.into();
        let sets = Varying.results(&op, &self.sets_of(operands), 1);
        let value = self.builder.push1(op, operands).ok()?;
        self.sets.extend(sets);
        self.readers.push(0);
        Some(value)
    }

    /// The op that makes a value, if it has one operand.
    fn made_by(&self, value: Value) -> Option<(&Op, Value)> {
        let node = self.builder.graph().defining_node(value)?;
        match node.operands() {
            &[operand] => Some((node.op(), operand)),
            _ => None,
        }
    }

    /// Another way to make this device's slice, if there is one.
    fn slice(&mut self, op: &Op, operands: &[Value]) -> Option<Value> {
        let (dim, group) = own_part(self.builder.graph(), op, operands)?;
        let (group, value) = (group.clone(), operands[0]);
        match self.made_by(value)? {
            (Op::AllGather(gather), part) if gather.dim == dim && gather.group.axes.starts_with(&group.axes) => {
                let rest = rest_of(&gather.group, &group);
                if rest.axes.is_empty() { Some(part) } else { self.push(AllGather { group: rest, dim }, &[part]) }
            }
            (Op::AllReduce(reduce), part)
                if reduce.kind == ReduceKind::Sum
                    && self.readers[value.index()] == 1
                    && group.axes.iter().all(|axis| reduce.group.axes.contains(axis)) =>
            {
                let rest = rest_of(&reduce.group, &group);
                let scatter = ReduceScatter { group, dim };
                if rest.axes.is_empty() {
                    return self.push(scatter, &[part]);
                }
                let scattered = self.push_read(scatter, &[part])?;
                self.push(AllReduce { group: rest, kind: ReduceKind::Sum }, &[scattered])
            }
            _ => None,
        }
    }

    /// The value that the gathered slices were cut from, if it is known.
    fn gather(&self, gather: &AllGather, operands: &[Value]) -> Option<Value> {
        let &[part] = operands else { return None };
        let node = self.builder.graph().defining_node(part)?;
        let (dim, group) = own_part(self.builder.graph(), node.op(), node.operands())?;
        let whole = *node.operands().first()?;
        let undone = dim == gather.dim && *group == gather.group;
        (undone && is_same_within(self.sets[whole.index()], group)).then_some(whole)
    }

    /// One reduction in place of two that are added.
    fn combine(&mut self, op: &Binary, operands: &[Value]) -> Option<Value> {
        let &[left, right] = operands else { return None };
        let is_sum = op.0 == BinaryKind::Add;
        if left == right || !is_sum && op.0 != BinaryKind::Subtract {
            return None;
        }
        let (one, other) = (self.term(left)?, self.term(right)?);
        let rests: SmallVec<[Value; 2]> = one.rest.into_iter().chain(other.rest).collect();
        if one.reduction != other.reduction || !is_sum && !rests.is_empty() {
            return None;
        }
        let origin = self.builder.origin();
        let sum = self.push_read(op.clone(), &[one.operand, other.operand])?;
        // The replacement of a reduction keeps the origin of that reduction.
        self.builder.set_origin(one.origin);
        let reduced = self.push(one.reduction, &[sum])?;
        self.builder.set_origin(origin);
        // The reduction stays outermost, where the next one that is added finds it.
        let rest = match rests[..] {
            [] => return Some(reduced),
            [rest] => rest,
            _ => self.push_read(Binary(BinaryKind::Add), &rests)?,
        };
        self.readers[reduced.index()] = 1;
        self.push(Binary(BinaryKind::Add), &[rest, reduced])
    }

    /// A value that no other node reads, which is a reduced sum, or another value plus a reduced sum.
    fn term(&self, value: Value) -> Option<CancelTerm> {
        let graph = self.builder.graph();
        let node = graph.defining_node(value).filter(|_| self.readers[value.index()] == 1)?;
        match (node.op(), node.operands()) {
            (op, &[operand]) if adds_over_devices(op) => {
                Some(CancelTerm { rest: None, reduction: op.clone(), operand, origin: node.origin() })
            }
            (Op::Binary(Binary(BinaryKind::Add)), &[x, y]) if x != y => {
                let found = [(x, y), (y, x)].into_iter().find(|&(reduced, _)| {
                    let node = graph.defining_node(reduced).filter(|_| self.readers[reduced.index()] == 1);
                    node.is_some_and(|node| adds_over_devices(node.op()) && node.operands().len() == 1)
                });
                let (reduced, rest) = found?;
                Some(CancelTerm { rest: Some(rest), ..self.term(reduced)? })
            }
            _ => None,
        }
    }

    /// As [`Cancelling::push`], for a value that one node of this rewrite reads.
    fn push_read(&mut self, op: impl Into<Op>, operands: &[Value]) -> Option<Value> {
        let value = self.push(op, operands)?;
        self.readers[value.index()] = 1;
        Some(value)
    }
}

/// `rest + reduction(operand)`.
struct CancelTerm {
    rest: Option<Value>,
    reduction: Op,
    operand: Value,
    origin: Origin,
}

/// Whether an op is linear in the values that the devices of a group have.
fn adds_over_devices(op: &Op) -> bool {
    match op {
        Op::AllReduce(reduce) => reduce.kind == ReduceKind::Sum,
        Op::ReduceScatter(_) => true,
        _ => false,
    }
}

/// The dimension and the group of a slice that takes this device's part of the parts that a dimension has for the
/// devices of a group.
fn own_part<'g>(graph: &'g Graph, op: &Op, operands: &[Value]) -> Option<(usize, &'g Group)> {
    let (Op::DynamicSlice(DynamicSlice { sizes }), Some((&value, starts))) = (op, operands.split_first()) else {
        return None;
    };
    let dims = &graph.ty(value).dims;
    let cut: SmallVec<[usize; 2]> = (0..sizes.len()).filter(|&dim| sizes[dim] != dims[dim]).collect();
    let &[dim] = &cut[..] else { return None };
    // XLA moves a slice that would not fit, so if the slice is the whole dimension, any start is 0.
    let group = start_of_part(graph, starts[dim], sizes[dim])?;
    (sizes[dim].checked_mul(group.size) == Some(dims[dim])).then_some((dim, group))
}

/// The group by whose rank a start counts parts of this size.
fn start_of_part(graph: &Graph, start: Value, size: usize) -> Option<&Group> {
    let rank = |value: Value| match graph.defining_node(value)?.op() {
        Op::AxisIndex(index) => Some(&index.group),
        _ => None,
    };
    if size == 1
        && let Some(group) = rank(start)
    {
        return Some(group);
    }
    let node = graph.defining_node(start)?;
    let is_size = |value: Value| graph.splat(value) == Some(size as f64);
    match (node.op(), node.operands()) {
        (Op::Binary(Binary(BinaryKind::Multiply)), &[x, y]) if is_size(y) => rank(x),
        (Op::Binary(Binary(BinaryKind::Multiply)), &[x, y]) if is_size(x) => rank(y),
        _ => None,
    }
}

/// The group along the axes that are not the other's.
fn rest_of(group: &Group, other: &Group) -> Group {
    let axes: Axes = group.axes.iter().copied().filter(|axis| !other.axes.contains(axis)).collect();
    Group { axes, size: group.size / other.size.max(1) }
}
