//! The choice of the nodes of a graph that become rings.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::pays::{CollectiveMatmul, Ring, operations_and_rows};
use crate::ir::{Graph, Node, NodeRef, Value};
use crate::ops::{AllGather, Binary, BinaryKind, Op, ReduceScatter};

/// The replacement of a node that is not copied as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replacement {
    /// An all-gather whose parts travel; the whole is assembled too, if another node reads it.
    Gather { is_read_whole: bool },
    /// A dot of each part of this all-gather, which is operand `side`; the results stand along dimension `place`.
    Product { gather: Node, side: usize, place: usize },
    /// A reduce-scatter whose sums travel.
    Scatter,
    /// A term of the sum of such a reduce-scatter, which is made for each part of it. For a dot, `cut` is the operand's
    /// side and the dimension along which it is cut; for a sum or a conversion, it is `None`.
    Term { cut: Option<(usize, usize)> },
}

/// The replacements of a graph's nodes.
#[derive(Default)]
pub(super) struct Replacements(FxHashMap<Node, Replacement>);

impl Replacements {
    pub(super) fn of(graph: &Graph, computed: &[bool], choice: CollectiveMatmul) -> Replacements {
        let mut found =
            MatmulSearch { graph, computed, choice, readers: readers(graph), plan: Replacements::default() };
        for node in graph.nodes() {
            match node.op() {
                Op::AllGather(gather) => found.gather(node, gather),
                Op::ReduceScatter(scatter) => found.scatter(node, scatter),
                _ => {}
            }
        }
        found.plan
    }

    pub(super) fn part(&self, node: Node) -> Option<Replacement> {
        self.0.get(&node).copied()
    }
}

/// The nodes that read a value, and whether it is an output.
#[derive(Default, Clone)]
struct Readers {
    nodes: SmallVec<[Node; 4]>,
    is_output: bool,
}

fn readers(graph: &Graph) -> Vec<Readers> {
    let mut readers = vec![Readers::default(); graph.value_count()];
    graph.outputs().iter().for_each(|output| readers[output.index()].is_output = true);
    for node in graph.nodes() {
        node.operands().iter().for_each(|operand| readers[operand.index()].nodes.push(node.id));
    }
    readers
}

struct MatmulSearch<'g> {
    graph: &'g Graph,
    computed: &'g [bool],
    choice: CollectiveMatmul,
    readers: Vec<Readers>,
    plan: Replacements,
}

impl MatmulSearch<'_> {
    fn gather(&mut self, node: NodeRef<'_>, gather: &AllGather) {
        let &[part] = node.operands() else { return };
        if gather.group.size < 2 || !self.computed[part.index()] {
            return;
        }
        let (whole, readers) = (node.result(), self.readers[node.result().index()].clone());
        let mut products: SmallVec<[(Node, Replacement); 4]> = SmallVec::new();
        let (mut operations, mut rows) = (0.0, usize::MAX);
        for &reader in &readers.nodes {
            let reader = self.graph.node(reader);
            let Some((side, place)) =
                self.product(reader, |side, dim| reader.operands()[side] == whole && dim == gather.dim)
            else {
                continue;
            };
            let (of_dot, rows_of_dot) = operations_and_rows(self.graph, reader, side);
            (operations, rows) = (operations + of_dot, rows.min(rows_of_dot / gather.group.size));
            products.push((reader.id, Replacement::Product { gather: node.id, side, place }));
        }
        let ty = self.graph.ty(part);
        let (size, part_bytes, part_size) = (gather.group.size, ty.byte_count(), ty.dims[gather.dim]);
        let ring = Ring { size, part_bytes, part_size, rows, operations };
        if products.is_empty() || !self.choice.takes(&ring) {
            return;
        }
        let is_read_whole = readers.is_output || readers.nodes.len() > products.len();
        self.plan.0.insert(node.id, Replacement::Gather { is_read_whole });
        self.plan.0.extend(products);
    }

    /// For a dot of a computed value and one that is not computed: the side of the first, and the place in the result
    /// of its dimension for which `is_meant` holds, if the dot neither sums over it nor has it as a batch dimension.
    fn product(&self, node: NodeRef<'_>, is_meant: impl Fn(usize, usize) -> bool) -> Option<(usize, usize)> {
        self.free_dims(node)?.enumerate().find_map(|(place, (side, dim))| is_meant(side, dim).then_some((side, place)))
    }

    /// For a dot of a computed value and one that is not computed: the side and the dimension of the first that each
    /// dimension of the result is. Other dimensions of the result get a dimension that no value has.
    fn free_dims(&self, node: NodeRef<'_>) -> Option<impl Iterator<Item = (usize, usize)>> {
        let (Op::DotGeneral(dot), &[left, right]) = (node.op(), node.operands()) else { return None };
        let computed = [left, right].map(|operand| self.computed[operand.index()]);
        let side = match computed {
            [true, false] => 0,
            [false, true] => 1,
            _ => return None,
        };
        let ranks = [left, right].map(|operand| self.graph.ty(operand).rank());
        let own = dot.dims.free_dims(ranks).map(move |found| found.filter(|found| found.0 == side));
        Some(own.map(move |found| found.unwrap_or((side, usize::MAX))))
    }

    fn scatter(&mut self, node: NodeRef<'_>, scatter: &ReduceScatter) {
        let &[sum] = node.operands() else { return };
        if scatter.group.size < 2 {
            return;
        }
        let mut terms: SmallVec<[(Node, Replacement); 8]> = SmallVec::new();
        let (mut operations, mut rows) = (0.0, usize::MAX);
        let mut open: SmallVec<[Value; 4]> = SmallVec::from_slice(&[sum]);
        while let Some(value) = open.pop() {
            let Some((term, cut)) = self.term(value, scatter.dim) else { return };
            match cut {
                Some((side, _)) => {
                    let (of_dot, rows_of_dot) = operations_and_rows(self.graph, term, side);
                    (operations, rows) = (operations + of_dot, rows.min(rows_of_dot / scatter.group.size));
                }
                None => open.extend_from_slice(term.operands()),
            }
            terms.push((term.id, Replacement::Term { cut }));
        }
        let ty = self.graph.ty(node.result());
        let (size, part_bytes, part_size) = (scatter.group.size, ty.byte_count(), ty.dims[scatter.dim]);
        if self.choice.takes(&Ring { size, part_bytes, part_size, rows, operations }) {
            self.plan.0.insert(node.id, Replacement::Scatter);
            self.plan.0.extend(terms);
        }
    }

    /// The node that makes a value with no other reader, if parts of the value along a dimension can be made by
    /// themselves: a dot with the operand and dimension to cut, or a sum or conversion of such values.
    fn term(&self, value: Value, dim: usize) -> Option<(NodeRef<'_>, Option<(usize, usize)>)> {
        let readers = &self.readers[value.index()];
        let node = self.graph.defining_node(value)?;
        // A dot that is made part by part as the parts come by is not cut another way.
        if readers.is_output || readers.nodes.len() != 1 || self.plan.part(node.id).is_some() {
            return None;
        }
        match node.op() {
            Op::DotGeneral(_) => {
                let cut = self.free_dims(node)?.nth(dim).filter(|&(_, dim)| dim != usize::MAX)?;
                Some((node, Some(cut)))
            }
            Op::Convert(_) => Some((node, None)),
            Op::Binary(Binary(BinaryKind::Add)) => {
                let has_all = |&operand: &Value| self.graph.ty(operand).dims == self.graph.ty(value).dims;
                node.operands().iter().all(has_all).then_some((node, None))
            }
            _ => None,
        }
    }
}
