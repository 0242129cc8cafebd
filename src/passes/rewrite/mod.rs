//! One walk that does the work of all passes but the last.
//!
//! The walk goes forwards through the nodes of a graph and writes a new one. It offers each node to the rules of the
//! passes that take part; the replacement that a rule makes is offered again before it is kept. A node that is kept is
//! merged with an equal one. So a rule sees operands that no rule changes any more, and equal operands are one value.
//! One walk reaches the fixed point of all rules that look at a node and at the nodes that make its operands, in time
//! linear in the nodes.
//!
//! At a scan, the walk first makes the body smaller from outside, then walks the body, and then takes out of it the
//! values that need not be there. It repeats this as long as it finds any, and takes a port or a node out of the body
//! each time.

mod hoist;
mod loops;
mod merge;

pub(super) use hoist::Bound;
pub(crate) use hoist::{HOIST, HOIST_SMALL};
pub(crate) use loops::{SCAN_CARRIES, SCAN_OPERANDS};
pub(crate) use merge::MERGE;

use std::hash::BuildHasher;
use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use crate::ir::{
    BodyCache, DType, Graph, GraphBuilder, GraphCopy, Node, NodeRef, Origin, TensorType, Value, ValueMap, Values,
};
use crate::ops::{Effect, Op, Reshape, ResultTypes, Scan, Splat};
use hoist::hoist;
use loops::Loop;
use merge::{Distinct, first_of_equal_operands, first_of_equal_results, refine_carries};

/// The most elements that a folded constant has. A larger constant would cost more, in the module and in the device's
/// memory, than the computation costs the program.
pub const LARGEST_FOLDED: usize = 1024;

/// Replaces a node with one result by a value that is equal in every bit (NaN payloads aside), or declines.
pub struct RewriteRule {
    /// The form that the rule replaces, and its replacement.
    pub name: &'static str,
    /// The reason why the result is the same.
    pub argument: &'static str,
    pub(super) apply: fn(&mut Match<'_, '_>) -> Option<Value>,
}

/// The rules that one pass has for an op.
pub(super) type RuleTable = fn(&Op) -> &'static [RewriteRule];

/// The work of one walk.
#[derive(Clone, Copy)]
pub(crate) struct Rewrite {
    /// Whether operands and results of scans are rewritten.
    pub(super) loops: bool,
    /// Whether carries of scans lose the dimensions that bodies take off.
    pub(super) carries: bool,
    /// The bound on values that are moved in front of a scan, because its iterations compute them alike.
    pub(super) hoist: Option<Bound>,
    /// Whether equal nodes and bodies become one.
    pub(super) merge: bool,
    /// With markers, checkpoints and custom VJPs are written in place too.
    pub(super) markers: Option<RuleTable>,
    pub(super) folding: Option<RuleTable>,
    pub(super) algebra: Option<RuleTable>,
}

impl Rewrite {
    /// A walk that changes nothing.
    pub(super) const NOTHING: Rewrite = Rewrite {
        loops: false,
        carries: false,
        hoist: None,
        merge: false,
        markers: None,
        folding: None,
        algebra: None,
    };

    /// Combines the work of both walks.
    pub(crate) fn and(self, other: Rewrite) -> Rewrite {
        Rewrite {
            loops: self.loops || other.loops,
            carries: self.carries || other.carries,
            hoist: self.hoist.or(other.hoist),
            merge: self.merge || other.merge,
            markers: self.markers.or(other.markers),
            folding: self.folding.or(other.folding),
            algebra: self.algebra.or(other.algebra),
        }
    }

    /// Walks a graph and every region in it.
    pub(crate) fn run(self, graph: &Graph) -> Graph {
        let mut context = Context { rewrite: self, bodies: BodyCache::default(), distinct: Distinct::default() };
        context.graph(graph, &[])
    }
}

/// The state that a walk keeps from graph to graph.
struct Context {
    rewrite: Rewrite,
    bodies: BodyCache,
    distinct: Distinct,
}

impl Context {
    /// Walks a graph, in which `same` gives for each input the first that is equal to it; it is empty where no two are
    /// equal.
    fn graph(&mut self, graph: &Graph, same: &[usize]) -> Graph {
        let GraphCopy { builder, mut map, .. } = GraphCopy::with_inputs(graph);
        let capacity = if self.rewrite.merge { graph.node_count() } else { 0 };
        let seen = FxHashMap::with_capacity_and_hasher(capacity, FxBuildHasher);
        let mut walk = Rewriting { context: self, builder, seen };
        for (&input, &first) in graph.inputs().iter().zip(same) {
            map.set(input, walk.builder.graph().inputs()[first]);
        }
        for node in graph.nodes() {
            walk.node(graph, node, &mut map);
        }
        GraphCopy { source: graph, builder: walk.builder, map }.finish()
    }

    /// Walks a body. It does so only once for all ops that share the body.
    fn body(&mut self, body: &Arc<Graph>) -> Arc<Graph> {
        if let Some(known) = self.bodies.find(body) {
            return known;
        }
        let done = self.graph(body, &[]);
        let done = self.shared(done);
        self.bodies.insert(body, done)
    }

    /// The body itself, or an equal one that has been met before.
    fn shared(&mut self, body: Graph) -> Arc<Graph> {
        if self.rewrite.merge { self.distinct.first(body) } else { Arc::new(body) }
    }
}

/// A graph on its way.
pub(super) struct Rewriting<'c> {
    context: &'c mut Context,
    builder: GraphBuilder,
    /// The nodes of the new graph by the hash of op and operands.
    seen: FxHashMap<u64, SmallVec<[Node; 1]>>,
}

impl Rewriting<'_> {
    /// The new graph so far.
    #[inline]
    pub(super) fn graph(&self) -> &Graph {
        self.builder.graph()
    }

    fn node(&mut self, graph: &Graph, node: NodeRef<'_>, map: &mut ValueMap) {
        let operands = map.operands(node);
        let (outer, rewrite) = (self.builder.origin(), self.context.rewrite);
        // Inlined nodes that the user wrote belong to the phase that the body runs in.
        self.builder.set_origin(node.origin().inside(outer.phase));
        match node.op() {
            op if op.as_primitive().is_some() => {
                if node.results().len() == 1 {
                    map.set(node.result(), self.offer(op, &operands, graph.ty(node.result()), 0));
                } else {
                    self.copy(graph, node, op, &operands, map);
                }
            }
            Op::Checkpoint(op) if rewrite.markers.is_some() => self.inline(&op.body, node, &operands, map),
            Op::CustomVjp(op) if rewrite.markers.is_some() => self.inline(&op.primal, node, &operands, map),
            Op::Scan(scan) => {
                let results = self.scan(scan, &operands);
                node.results().zip(results).for_each(|(old, new)| map.set(old, new));
            }
            op => {
                let op = op.map_regions(|body| self.context.body(body));
                self.copy(graph, node, op.as_ref().unwrap_or(node.op()), &operands, map);
            }
        }
        self.builder.set_origin(outer);
    }

    fn copy(&mut self, graph: &Graph, node: NodeRef<'_>, op: &Op, operands: &[Value], map: &mut ValueMap) {
        let results = self.push(op, operands, node.results().map(|value| graph.ty(value).clone()));
        node.results().zip(results).for_each(|(old, new)| map.set(old, new));
    }

    /// Writes a body in place of the op that has it. In a program that is not differentiated any more, the op means no
    /// more than its body.
    fn inline(&mut self, body: &Arc<Graph>, node: NodeRef<'_>, operands: &[Value], map: &mut ValueMap) {
        let mut inner = ValueMap::for_inputs(body, operands);
        for node in body.nodes() {
            self.node(body, node, &mut inner);
        }
        node.results().zip(body.outputs()).for_each(|(result, &output)| map.set(result, inner.get(output)));
    }

    fn scan(&mut self, scan: &Scan, operands: &[Value]) -> Values {
        let rewrite = self.context.rewrite;
        let mut current = Loop::new(scan, operands);
        loop {
            if rewrite.loops {
                current.sink(self.graph());
            }
            current.scan.body = self.scan_body(&current.scan, &current.operands);
            let mut changed = rewrite.loops && current.lift(self);
            changed |= rewrite.carries && current.squeeze(self);
            if let Some(bound) = rewrite.hoist
                && let Some(rest) =
                    hoist(&current.scan, &mut current.operands, bound, &mut |origin, op, operands, types| {
                        self.push_from(origin, op, operands, types)
                    })
            {
                current.scan = rest;
                // If the walk does nothing but this, no work is left to be done.
                changed |= rewrite.loops || rewrite.merge;
            }
            if !changed {
                break;
            }
        }
        current.finish(self)
    }

    fn scan_body(&mut self, scan: &Scan, operands: &[Value]) -> Arc<Graph> {
        if !self.context.rewrite.merge {
            return self.context.body(&scan.body);
        }
        let mut same = first_of_equal_operands(scan, operands);
        while !same.iter().enumerate().all(|(index, &first)| index == first) {
            let body = self.context.graph(&scan.body, &same);
            let refined = refine_carries(scan, &body, &same);
            if refined == same {
                return self.context.shared(body);
            }
            same = refined;
        }
        self.context.body(&scan.body)
    }

    /// The results of a node with these operands, which is new, or an equal one that is there already. Barriers are
    /// never merged: the values they guard are meant to be computed again.
    pub(super) fn push(&mut self, op: &Op, operands: &[Value], types: impl IntoIterator<Item = TensorType>) -> Values {
        if !self.context.rewrite.merge || op.facts().effect != Effect::None {
            return self.builder.push_typed(op.clone(), operands, types);
        }
        let hash = FxBuildHasher.hash_one((op, operands));
        let candidates = self.seen.entry(hash).or_default();
        let graph = self.builder.graph();
        let equal = |&&node: &&Node| graph.node(node).op() == op && graph.node(node).operands() == operands;
        if let Some(&node) = candidates.iter().find(equal) {
            return graph.node(node).results().collect();
        }
        candidates.push(self.builder.next_node());
        self.builder.push_typed(op.clone(), operands, types)
    }

    /// As [`Rewriting::push`], for a scan. Equal results of the scan become one.
    pub(super) fn push_scan(&mut self, scan: Scan, operands: &[Value], types: ResultTypes) -> Values {
        let op = scan.into();
        let results = self.push(&op, operands, types);
        match &op {
            Op::Scan(scan) if self.context.rewrite.merge && !op.has_side_effect() => {
                first_of_equal_results(scan, operands, results)
            }
            _ => results,
        }
    }

    /// A value in the shape of this type, which has as many elements.
    pub(super) fn reshaped(&mut self, value: Value, ty: &TensorType) -> Value {
        if self.builder.ty(value) == ty {
            return value;
        }
        self.offer(&Reshape { dims: ty.dims.clone() }.into(), &[value], ty, 0)
    }

    /// As [`Rewriting::push`], for a node whose origin is another one.
    fn push_from(
        &mut self,
        origin: Origin,
        op: &Op,
        operands: &[Value],
        types: impl IntoIterator<Item = TensorType>,
    ) -> Values {
        let outer = self.builder.origin();
        self.builder.set_origin(origin.inside(outer.phase));
        let results = self.push(op, operands, types);
        self.builder.set_origin(outer);
        results
    }

    /// Offers a node with one result to the rules, and returns the replacement; if all rules decline, it returns the
    /// node's own result. `depth` counts the rules that have answered one another.
    fn offer(&mut self, op: &Op, operands: &[Value], ty: &TensorType, depth: usize) -> Value {
        let rewrite = self.context.rewrite;
        if depth < DEPTH_LIMIT {
            for table in [rewrite.markers, rewrite.folding, rewrite.algebra].into_iter().flatten() {
                for rule in table(op) {
                    let found = (rule.apply)(&mut Match { walk: self, op, operands, ty, depth });
                    // A value of another type is no replacement.
                    if let Some(value) = found.filter(|&value| self.builder.ty(value) == ty) {
                        return value;
                    }
                }
            }
        }
        self.push(op, operands, [ty.clone()])[0]
    }
}

/// A node that is offered to rules.
pub(super) struct Match<'m, 'w> {
    walk: &'m mut Rewriting<'w>,
    /// The node's op.
    pub(super) op: &'m Op,
    operands: &'m [Value],
    /// The type of its result.
    pub(super) ty: &'m TensorType,
    depth: usize,
}

/// Rules may answer one another this often in place of one node. Every rule makes its node smaller, so chains end by
/// themselves; this bound only keeps a defect from recursing without end.
const DEPTH_LIMIT: usize = 32;

impl Match<'_, '_> {
    #[inline]
    pub(super) fn operands(&self) -> &[Value] {
        self.operands
    }

    #[inline]
    pub(super) fn operand(&self, index: usize) -> Value {
        self.operands[index]
    }

    #[inline]
    pub(super) fn ty_of(&self, value: Value) -> &TensorType {
        self.walk.builder.ty(value)
    }

    /// The op whose only result a value is, with its operands.
    #[inline]
    pub(super) fn made_by(&self, value: Value) -> Option<(&Op, &[Value])> {
        let node = self.walk.graph().defining_node(value)?;
        (node.results().len() == 1).then(|| (node.op(), node.operands()))
    }

    pub(super) fn splat(&self, value: Value) -> Option<&Splat> {
        match self.made_by(value)?.0 {
            Op::Splat(splat) => Some(splat),
            _ => None,
        }
    }

    /// Whether every element of a value is this number, which tells 0 from -0.
    #[inline]
    pub(super) fn is(&self, value: Value, number: f64) -> bool {
        self.splat(value).is_some_and(|splat| {
            splat.element_bytes() == Splat::new(TensorType::scalar(splat.ty.dtype), number).element_bytes()
        })
    }

    /// The element type of the result.
    pub(super) fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Pushes a node in place of the one offered. It is offered to the rules in turn.
    pub(super) fn push(&mut self, op: impl Into<Op>, operands: &[Value]) -> Option<Value> {
        let op = op.into();
        let ty = {
            let types: SmallVec<[&TensorType; 8]> = operands.iter().map(|&value| self.ty_of(value)).collect();
            op.infer(&types).ok()?.into_iter().next()?
        };
        Some(self.walk.offer(&op, operands, &ty, self.depth + 1))
    }

    /// Pushes a constant of the result's type.
    pub(super) fn push_splat(&mut self, number: f64) -> Value {
        let splat = Splat::new(self.ty.clone(), number);
        self.walk.push(&splat.into(), &[], [self.ty.clone()])[0]
    }
}
