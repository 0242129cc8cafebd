//! Rings in place of all-gathers and reduce-scatters.

use rustc_hash::FxHashMap;

use super::plan::{Replacement, Replacements};
use crate::ir::{DType, Graph, GraphCopy, Node, NodeRef, TensorType, Value, Values};
use crate::ops::{
    AllGather, AxisIndex, Binary, BinaryKind, CollectivePermute, DynamicSlice, DynamicUpdateSlice, Group, Op,
    ReduceScatter, Splat,
};

/// The new graph, and the values that have been made for it.
pub(super) struct RingCopy<'g> {
    copy: GraphCopy<'g>,
    plan: &'g Replacements,
    /// The parts of each all-gather. Each has the distance of its owner from this device's rank.
    parts: FxHashMap<Node, Vec<(usize, Value)>>,
    /// The position at which the part of the device at some distance begins, by group, distance and size of the parts.
    starts: FxHashMap<(Group, usize, usize), Value>,
}

/// The number of places that parts travel to the right and to the left: one part comes from every other device.
fn hops(size: usize) -> [usize; 2] {
    [size / 2, (size - 1) / 2]
}

impl<'g> RingCopy<'g> {
    pub(super) fn new(copy: GraphCopy<'g>, plan: &'g Replacements) -> RingCopy<'g> {
        RingCopy { copy, plan, parts: FxHashMap::default(), starts: FxHashMap::default() }
    }

    pub(super) fn finish(self) -> Graph {
        self.copy.finish()
    }

    /// Writes a node of the old graph, with another op of the same type if one is given.
    pub(super) fn node(&mut self, node: NodeRef<'g>, op: Option<Op>) {
        let outer = self.copy.builder.origin();
        self.copy.builder.set_origin(node.origin());
        match (node.op(), self.plan.part(node.id)) {
            (Op::AllGather(gather), Some(Replacement::Gather { is_read_whole })) => {
                self.gather(node, gather, is_read_whole)
            }
            (_, Some(Replacement::Product { gather, side, place })) => self.products(node, gather, side, place),
            (Op::ReduceScatter(scatter), Some(Replacement::Scatter)) => self.scatter(node, scatter),
            (_, Some(Replacement::Term { .. })) => {}
            _ => {
                self.copy.node_as(node, op.unwrap_or_else(|| node.op().clone()));
            }
        }
        self.copy.builder.set_origin(outer);
    }

    fn push(&mut self, op: impl Into<Op>, operands: &[Value], ty: TensorType) -> Value {
        self.copy.builder.push_typed(op.into(), operands, [ty])[0]
    }

    fn ty(&self, value: Value) -> TensorType {
        self.copy.builder.ty(value).clone()
    }

    fn number(&mut self, number: usize) -> Value {
        self.copy.builder.splat(TensorType::scalar(DType::S32), number as f64)
    }

    fn integers(&mut self, kind: BinaryKind, x: Value, y: usize) -> Value {
        let y = self.number(y);
        self.push(Binary(kind), &[x, y], TensorType::scalar(DType::S32))
    }

    /// The position at which the part of the device `distance` ranks further begins, if parts have `size` elements.
    fn start(&mut self, group: &Group, distance: usize, size: usize) -> Value {
        let key = (group.clone(), distance, size);
        if let Some(&known) = self.starts.get(&key) {
            return known;
        }
        let index = AxisIndex { group: group.clone() };
        let mut rank = self.push(index, &[], TensorType::scalar(DType::S32));
        if distance > 0 {
            let further = self.integers(BinaryKind::Add, rank, distance);
            rank = self.integers(BinaryKind::Remainder, further, group.size);
        }
        let start = self.integers(BinaryKind::Multiply, rank, size);
        self.starts.insert(key, start);
        start
    }

    /// Sends a value to the device that is `distance` ranks further.
    fn send(&mut self, group: &Group, value: Value, distance: usize) -> Value {
        let size = group.size as u32;
        let pairs = (0..size).map(|rank| (rank, (rank + distance as u32) % size)).collect();
        let ty = self.ty(value);
        self.push(CollectivePermute { group: group.clone(), pairs }, &[value], ty)
    }

    /// Makes the parts of all devices: this device's, then those of its neighbours on both sides, and so on.
    fn gather(&mut self, node: NodeRef<'g>, gather: &AllGather, is_read_whole: bool) {
        let own = self.copy.map.get(node.operands()[0]);
        let (group, size) = (&gather.group, gather.group.size);
        let (mut parts, mut travelling) = (vec![(0, own)], [own; 2]);
        for round in 1..=hops(size)[0] {
            for (side, step) in [1, size - 1].into_iter().enumerate() {
                if round <= hops(size)[side] {
                    travelling[side] = self.send(group, travelling[side], step);
                    // A part that has gone one rank further comes from one rank before.
                    parts.push(((size - step) * round % size, travelling[side]));
                }
            }
        }
        if is_read_whole {
            let whole = self.assembled(&parts, gather, gather.dim, self.copy.source.ty(node.result()).clone());
            self.copy.map.set(node.result(), whole);
        }
        self.parts.insert(node.id, parts);
    }

    /// A value of this type. Each part along a dimension is put in the place of the device that it belongs to.
    fn assembled(&mut self, parts: &[(usize, Value)], gather: &AllGather, dim: usize, ty: TensorType) -> Value {
        let mut whole = self.push(Splat::new(ty.clone(), 0.0), &[], ty.clone());
        let zero = self.number(0);
        for &(distance, part) in parts {
            let size = self.copy.builder.ty(part).dims[dim];
            let start = self.start(&gather.group, distance, size);
            let starts = (0..ty.rank()).map(|at| if at == dim { start } else { zero });
            let operands: Values = [whole, part].into_iter().chain(starts).collect();
            whole = self.push(DynamicUpdateSlice, &operands, ty.clone());
        }
        whole
    }

    /// Writes a dot of an all-gather's result as a dot of each part.
    fn products(&mut self, node: NodeRef<'g>, gather: Node, side: usize, place: usize) {
        let source = self.copy.source;
        let (Op::AllGather(op), Some(parts)) = (source.node(gather).op(), self.parts.get(&gather).cloned()) else {
            return;
        };
        let other = self.copy.map.get(node.operands()[1 - side]);
        let ty = source.ty(node.result()).clone();
        let mut part_ty = ty.clone();
        part_ty.dims[place] /= op.group.size;
        let product = |&(distance, part): &(usize, Value)| {
            let operands = if side == 0 { [part, other] } else { [other, part] };
            (distance, self.push(node.op().clone(), &operands, part_ty.clone()))
        };
        let products: Vec<(usize, Value)> = parts.iter().map(product).collect();
        let whole = self.assembled(&products, op, place, ty);
        self.copy.map.set(node.result(), whole);
    }

    /// Sends sums to the device whose part they are, from both sides.
    fn scatter(&mut self, node: NodeRef<'g>, scatter: &ReduceScatter) {
        let (sum, group, size) = (node.operands()[0], &scatter.group, scatter.group.size);
        let mut arriving: [Option<Value>; 2] = [None; 2];
        // The longer way begins first, so that both end together.
        for left in (1..=hops(size)[0]).rev() {
            for (side, step) in [1, size - 1].into_iter().enumerate() {
                if left <= hops(size)[side] {
                    let part = self.part(sum, scatter, left * step % size);
                    let total = self.sum(arriving[side], part);
                    arriving[side] = Some(self.send(group, total, step));
                }
            }
        }
        let own = self.part(sum, scatter, 0);
        let total = arriving.into_iter().flatten().fold(own, |total, arrived| self.sum(Some(arrived), total));
        self.copy.map.set(node.result(), total);
    }

    fn sum(&mut self, before: Option<Value>, part: Value) -> Value {
        let Some(before) = before else { return part };
        let ty = self.ty(part);
        self.push(Binary(BinaryKind::Add), &[before, part], ty)
    }

    /// The part of a sum of the old graph that the device at some distance gets.
    fn part(&mut self, value: Value, scatter: &ReduceScatter, distance: usize) -> Value {
        let source = self.copy.source;
        let Some(node) = source.defining_node(value) else { return self.copy.map.get(value) };
        let mut operands: Values = match self.plan.part(node.id) {
            Some(Replacement::Term { cut: None }) => {
                node.operands().iter().map(|&operand| self.part(operand, scatter, distance)).collect()
            }
            _ => self.copy.operands(node),
        };
        let mut ty = source.ty(value).clone();
        ty.dims[scatter.dim] /= scatter.group.size;
        let outer = self.copy.builder.origin();
        self.copy.builder.set_origin(node.origin());
        if let Some(Replacement::Term { cut: Some((side, dim)) }) = self.plan.part(node.id) {
            operands[side] = self.slice(operands[side], dim, &scatter.group, distance);
        }
        let part = self.push(node.op().clone(), &operands, ty);
        self.copy.builder.set_origin(outer);
        part
    }

    /// The part of a value along a dimension that belongs to the device at some distance.
    fn slice(&mut self, value: Value, dim: usize, group: &Group, distance: usize) -> Value {
        let mut ty = self.ty(value);
        ty.dims[dim] /= group.size;
        let start = self.start(group, distance, ty.dims[dim]);
        let zero = self.number(0);
        let starts = (0..ty.rank()).map(|at| if at == dim { start } else { zero });
        let operands: Values = std::iter::once(value).chain(starts).collect();
        self.push(DynamicSlice { sizes: ty.dims.clone() }, &operands, ty)
    }
}
