//! Propagation: from the specs of ports and constraints to a spec for every value.
//!
//! It sweeps the graph forwards and backwards until nothing changes: first over ops that have the same factors on all
//! their tensors, so that what is certain spreads before anything is decided, then over all ops. Regions take part: a
//! value that enters or leaves a region has one spec on both sides, and a loop's carry has one before, in and after an
//! iteration.
//!
//! Propagation only adds axes to dimensions that have none, and never moves one, so it ends. It leaves partial sums to
//! the partitioner, which knows where they arise. The order of priorities is Shardy's (`docs/propagation.md`):
//! constraints and ports, then ops that pass everything through, then the rest.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::resolve::{resolve, spec_of};
use super::{Axes, Mesh, Spec};
use crate::ir::{Graph, Node, NodeRef, TensorType, Value};
use crate::ops::{AxisList, Edge, FactorKind, FactorRule, ManualBorder, Op, Passage, Port, Scan};

/// The reason for a value's spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecOrigin {
    /// Nothing constrains it, so every device has the whole value.
    #[default]
    Nothing,
    /// It is a port of the program, whose spec the rules gave.
    Port,
    /// A constraint: the `reshard` node that states it.
    Constraint(Node),
    /// A node passed it on.
    Through(Node),
}

/// The specs of a graph's values and of the bodies of its nodes.
#[derive(Clone, Debug, Default)]
pub struct Shardings {
    values: Vec<KnownSpec>,
    nodes: Vec<Visited>,
    bodies: FxHashMap<Node, SmallVec<[Shardings; 2]>>,
}

/// The facts about a node that has been visited.
#[derive(Clone, Debug, Default)]
struct Visited {
    /// Its factor rule, made when it is first looked at.
    rule: Option<FactorRule>,
    /// The time of the last visit. A node has nothing new to say if none of its tensors has changed since.
    time: u32,
}

#[derive(Clone, Debug, Default)]
struct KnownSpec {
    spec: Spec,
    /// Whether the spec is a demand, to which nothing may be added.
    closed: bool,
    /// The dimensions to which nothing may be added, if something may be added to others.
    fixed: AxisList,
    origin: SpecOrigin,
    /// The time of its last change.
    time: u32,
}

impl Shardings {
    fn blank(graph: &Graph) -> Shardings {
        let entry = |value: Value| {
            // Ops that have nothing else in common may share it, and it would carry specs from one to the other.
            let closed = is_made_anywhere(graph, value);
            KnownSpec { spec: Spec::replicated(graph.ty(value).rank()), closed, ..KnownSpec::default() }
        };
        let values = graph.values().map(entry).collect();
        let bodies = graph.nodes().filter(|node| node.op().as_primitive().is_none()).map(|node| {
            let bodies = node.op().regions().map(|body| Shardings::blank(body)).collect();
            (node.id, bodies)
        });
        Shardings { values, nodes: vec![Visited::default(); graph.node_count()], bodies: bodies.collect() }
    }

    /// The spec that a constraint demands of an output, in the graph itself or in a function that it calls.
    fn demand(&self, graph: &Graph, output: usize) -> Option<&KnownSpec> {
        let value = *graph.outputs().get(output)?;
        let entry = &self.values[value.index()];
        if entry.closed && matches!(entry.origin, SpecOrigin::Constraint(_)) {
            return Some(entry);
        }
        let node = graph.defining_node(value)?;
        let Op::Call(call) = node.op() else { return None };
        let result = node.results().position(|result| result == value)?;
        self.bodies.get(&node.id)?.first()?.demand(&call.function, result)
    }

    fn forget_visits(&mut self) {
        self.nodes.iter_mut().for_each(|visited| visited.time = 0);
        self.bodies.values_mut().flatten().for_each(Shardings::forget_visits);
    }

    /// The spec of a value.
    pub fn spec(&self, value: Value) -> &Spec {
        &self.values[value.index()].spec
    }

    /// The spec of a value, if anything said something about it.
    pub(crate) fn known(&self, value: Value) -> Option<&Spec> {
        let entry = &self.values[value.index()];
        (entry.origin != SpecOrigin::Nothing).then_some(&entry.spec)
    }

    pub(crate) fn rule(&self, node: Node) -> Option<&FactorRule> {
        self.nodes.get(node.index())?.rule.as_ref()
    }

    /// The value itself, or the value that it was gathered from: the operand of a constraint that makes its parts
    /// larger.
    pub(crate) fn before_gathering(&self, graph: &Graph, mesh: &Mesh, value: Value) -> Value {
        let parts = |value: Value| self.spec(value).parts(mesh);
        match graph.defining_node(value) {
            Some(node) if matches!(node.op(), Op::Reshard(_)) && parts(node.operands()[0]) > parts(value) => {
                self.before_gathering(graph, mesh, node.operands()[0])
            }
            _ => value,
        }
    }

    /// The reason for its spec.
    pub fn origin(&self, value: Value) -> SpecOrigin {
        self.values[value.index()].origin
    }

    /// The time of the spec's last change, which is later than that of the spec's origin.
    pub(super) fn time(&self, value: Value) -> u32 {
        self.values[value.index()].time
    }

    /// The specs within one body of a node.
    pub fn body(&self, node: Node, index: usize) -> Option<&Shardings> {
        self.bodies.get(&node)?.get(index)
    }
}

/// Whether a value can be made in any spec without moving anything: it is made from no operands, or from scalars alone.
pub(crate) fn is_made_anywhere(graph: &Graph, value: Value) -> bool {
    graph.defining_node(value).is_some_and(|node| {
        node.op().facts().is_made_anywhere && node.operands().iter().all(|&operand| graph.ty(operand).rank() == 0)
    })
}

/// Gives every value a spec. Ports of the graph that have one keep it; a `reshard` keeps its own.
pub fn propagate(graph: &Graph, mesh: &Mesh) -> Shardings {
    let mut shardings = Shardings::blank(graph);
    seed(graph, &mut shardings);
    for (&input, info) in graph.inputs().iter().zip(graph.input_info()) {
        if let Some(spec) = &info.spec {
            shardings.values[input.index()] = KnownSpec {
                spec: spec.clone(),
                closed: true,
                origin: SpecOrigin::Port,
                time: 1,
                ..KnownSpec::default()
            };
        }
    }
    let mut sweeper = Sweeper { mesh, level: Level::PassThrough, changed: false, time: 1 };
    sweeper.offer_outputs(graph, &mut shardings);
    for level in [Level::PassThrough, Level::All] {
        sweeper.level = level;
        shardings.forget_visits();
        loop {
            sweeper.changed = false;
            sweeper.forwards(graph, &mut shardings);
            sweeper.backwards(graph, &mut shardings);
            if !sweeper.changed {
                break;
            }
        }
    }
    shardings
}

/// Enters what `reshard` nodes demand.
fn seed(graph: &Graph, shardings: &mut Shardings) {
    for node in graph.nodes() {
        if let Op::Reshard(reshard) = node.op() {
            let entry = KnownSpec {
                spec: reshard.spec.clone(),
                closed: reshard.open.is_empty(),
                fixed: (0..reshard.spec.rank()).filter(|dim| !reshard.open.contains(dim)).collect(),
                origin: SpecOrigin::Constraint(node.id),
                time: 1,
            };
            shardings.values[node.result().index()] = entry;
        }
        if let Some(bodies) = shardings.bodies.get_mut(&node.id) {
            node.op().regions().zip(bodies.iter_mut()).for_each(|(body, shardings)| seed(body, shardings));
            hold_carries(node, bodies);
        }
    }
}

/// Gives a carry the spec in which the body returns it, where that is a demand. A value from outside is brought into it
/// once, and not in every iteration.
fn hold_carries(node: NodeRef<'_>, bodies: &mut [Shardings]) {
    let graphs: SmallVec<[&Graph; 2]> = node.op().regions().map(|body| &**body).collect();
    for edge in node.op().edges().iter().filter(|edge| edge.is_carried()) {
        let demanded = edge.outputs.iter().find_map(|port| bodies[port.region].demand(graphs[port.region], port.index));
        let Some(demanded) = demanded else { continue };
        let demanded = KnownSpec { origin: SpecOrigin::Through(node.id), ..demanded.clone() };
        for port in &edge.inputs {
            let input = graphs[port.region].inputs()[port.index];
            bodies[port.region].values[input.index()] = demanded.clone();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Only ops all of whose factors are on all their tensors.
    PassThrough,
    All,
}

struct Sweeper<'a> {
    mesh: &'a Mesh,
    level: Level,
    changed: bool,
    /// Counts changes.
    time: u32,
}

/// Two values that have one spec, but for leading dimensions that only the outer one has.
pub(crate) struct Tie {
    pub(crate) outer: Value,
    pub(crate) body: usize,
    pub(crate) inner: Value,
    pub(crate) extra_dims: usize,
}

impl Sweeper<'_> {
    fn offer_outputs(&mut self, graph: &Graph, shardings: &mut Shardings) {
        for (&output, info) in graph.outputs().iter().zip(graph.output_info()) {
            if let Some(spec) = &info.spec {
                self.offer(shardings, output, graph.ty(output), spec.dims(), SpecOrigin::Port);
            }
        }
    }

    fn forwards(&mut self, graph: &Graph, shardings: &mut Shardings) {
        graph.nodes().for_each(|node| self.visit(graph, node, shardings));
    }

    fn backwards(&mut self, graph: &Graph, shardings: &mut Shardings) {
        graph.nodes().rev().for_each(|node| self.visit(graph, node, shardings));
    }

    fn visit(&mut self, graph: &Graph, node: NodeRef<'_>, shardings: &mut Shardings) {
        match node.op() {
            Op::Reshard(reshard) => {
                let spec = shardings.spec(node.result()).clone();
                let (operand, origin) = (node.operands()[0], SpecOrigin::Constraint(node.id));
                self.offer(shardings, operand, graph.ty(operand), spec.dims(), origin);
                if !reshard.open.is_empty() {
                    let found = shardings.spec(operand).clone();
                    self.offer(shardings, node.result(), graph.ty(operand), found.dims(), origin);
                }
            }
            Op::ManualBorder(border) => self.visit_border(graph, node, border, shardings),
            op if op.as_primitive().is_some() => self.visit_primitive(graph, node, shardings),
            _ => self.visit_region(graph, node, shardings),
        }
    }

    fn visit_primitive(&mut self, graph: &Graph, node: NodeRef<'_>, shardings: &mut Shardings) {
        let tensors: SmallVec<[Value; 6]> = node.operands().iter().copied().chain(node.results()).collect();
        let entries = || tensors.iter().map(|value| &shardings.values[value.index()]);
        let last_change = entries().map(|entry| entry.time).max().unwrap_or(0);
        if shardings.nodes[node.id.index()].time >= last_change {
            return;
        }
        let visited = &mut shardings.nodes[node.id.index()];
        visited.time = self.time;
        let Some(rule) = visited.rule.take().or_else(|| FactorRule::of(graph, node)) else { return };
        if self.level == Level::All || passes_through(&rule) {
            self.apply(graph, node, &rule, &tensors, shardings);
        }
        shardings.nodes[node.id.index()].rule = Some(rule);
    }

    /// Offers every tensor of a node what its rule makes of the specs of the others.
    fn apply(
        &mut self,
        graph: &Graph,
        node: NodeRef<'_>,
        rule: &FactorRule,
        tensors: &[Value],
        shardings: &mut Shardings,
    ) {
        let axes = {
            let known = |&value: &Value| shardings.known(value);
            let specs: SmallVec<[Option<&Spec>; 6]> = tensors.iter().map(known).collect();
            let bytes: SmallVec<[u64; 6]> = tensors.iter().map(|&value| graph.ty(value).byte_count() as u64).collect();
            resolve(self.mesh, rule, &specs, &bytes)
        };
        for (&value, dims) in tensors.iter().zip(rule.operands.iter().chain(&rule.results)) {
            let spec = spec_of(dims, &axes);
            self.offer(shardings, value, graph.ty(value), spec.dims(), SpecOrigin::Through(node.id));
        }
    }

    /// Offers axes for dimensions that have none yet; each axis only where it divides and is free.
    fn offer(&mut self, shardings: &mut Shardings, value: Value, ty: &TensorType, dims: &[Axes], origin: SpecOrigin) {
        let entry = &mut shardings.values[value.index()];
        if entry.closed {
            return;
        }
        for (dim, axes) in dims.iter().enumerate() {
            if axes.is_empty() || !entry.spec.dim(dim).is_empty() || entry.fixed.contains(&dim) {
                continue;
            }
            let used: Axes = entry.spec.used_axes().collect();
            let mut parts = 1;
            let fits = |axis: &&super::MeshAxis| {
                parts *= self.mesh.size(**axis);
                !used.contains(axis) && ty.dims[dim].is_multiple_of(parts)
            };
            let free: Axes = axes.iter().take_while(fits).copied().collect();
            if !free.is_empty() {
                entry.spec = std::mem::take(&mut entry.spec).with_dim(dim, free);
                entry.origin = origin;
                self.time += 1;
                entry.time = self.time;
                self.changed = true;
            }
        }
    }

    /// Offers each side of a manual region's border what the other has along axes that are not manual.
    fn visit_border(&mut self, graph: &Graph, node: NodeRef<'_>, border: &ManualBorder, shardings: &mut Shardings) {
        let (whole, part) = match border.passage {
            Passage::Enter => (node.operands()[0], node.result()),
            Passage::Leave => (node.result(), node.operands()[0]),
        };
        let origin = SpecOrigin::Through(node.id);
        let inwards = border.part_of(shardings.spec(whole));
        self.offer(shardings, part, graph.ty(part), inwards.dims(), origin);
        let outwards = border.whole_of(shardings.spec(part));
        self.offer(shardings, whole, graph.ty(whole), outwards.dims(), origin);
    }

    fn visit_region(&mut self, graph: &Graph, node: NodeRef<'_>, shardings: &mut Shardings) {
        let mut ties = ties(node);
        let Some(mut bodies) = shardings.bodies.remove(&node.id) else { return };
        // A loop's results are best stacked in parts.
        let graphs: SmallVec<[&Graph; 2]> = node.op().regions().map(|body| &**body).collect();
        for tie in ties.iter_mut().filter(|tie| tie.extra_dims > 0) {
            tie.inner = bodies[tie.body].before_gathering(graphs[tie.body], self.mesh, tie.inner);
        }
        self.unify(graph, node, &ties, shardings, &mut bodies);
        for (body, inner) in graphs.into_iter().zip(bodies.iter_mut()) {
            self.forwards(body, inner);
            self.backwards(body, inner);
        }
        self.unify(graph, node, &ties, shardings, &mut bodies);
        shardings.bodies.insert(node.id, bodies);
    }

    fn unify(
        &mut self,
        graph: &Graph,
        node: NodeRef<'_>,
        ties: &[Tie],
        shardings: &mut Shardings,
        bodies: &mut [Shardings],
    ) {
        let bodies_of: SmallVec<[&Graph; 2]> = node.op().regions().map(|body| &**body).collect();
        let origin = SpecOrigin::Through(node.id);
        let mut along = Axes::new();
        if let Op::Scan(scan) = node.op() {
            along = parallel_axes(scan, node, |value| shardings.spec(value));
            for value in sliced(scan, node).filter(|_| !along.is_empty()) {
                let mut dims = vec![Axes::new(); graph.ty(value).rank()];
                dims[0] = along.clone();
                self.offer(shardings, value, graph.ty(value), &dims, origin);
            }
        }
        for tie in ties {
            let (outer_ty, inner_ty) = (graph.ty(tie.outer), bodies_of[tie.body].ty(tie.inner));
            let mut inwards = shardings.spec(tie.outer).dims()[tie.extra_dims..].to_vec();
            // Each device has slices of its own: within one, these axes split nothing.
            inwards.iter_mut().for_each(|axes| axes.retain(|axis| !along.contains(axis)));
            self.offer(&mut bodies[tie.body], tie.inner, inner_ty, &inwards, origin);
            let mut outwards = vec![Axes::new(); tie.extra_dims];
            outwards.extend(bodies[tie.body].spec(tie.inner).dims().iter().cloned());
            self.offer(shardings, tie.outer, outer_ty, &outwards, origin);
        }
    }
}

/// Whether every factor of the rule is on every tensor that is no scalar.
fn passes_through(rule: &FactorRule) -> bool {
    let tensors = || rule.operands.iter().chain(&rule.results).filter(|dims| !dims.is_empty());
    (0..rule.factors.len()).all(|factor| {
        rule.factors[factor].kind == FactorKind::Parallel
            && tensors().all(|dims| dims.iter().flatten().any(|&index| index as usize == factor))
    })
}

/// The values that a scan slices and stacks.
fn sliced<'a>(scan: &Scan, node: NodeRef<'a>) -> impl Iterator<Item = Value> + use<'a> {
    let first = scan.invariant_count + scan.carry_count;
    node.operands()[first..].iter().copied().chain(node.results().skip(scan.carry_count))
}

/// The mesh axes along which devices run the iterations of a scan side by side: those that split the leading dimension
/// of the values that it slices and stacks, as far as any of them says so. The list is empty if iterations run one
/// after the other.
pub(crate) fn parallel_axes<'a>(scan: &Scan, node: NodeRef<'_>, spec: impl Fn(Value) -> &'a Spec) -> Axes {
    let axes = |value: Value| Some(spec(value).dim(0).iter().copied().collect()).filter(|axes: &Axes| !axes.is_empty());
    if scan.parallel { sliced(scan, node).find_map(axes).unwrap_or_default() } else { Axes::new() }
}

/// The values that enter and leave the bodies of a node: each end of an edge outside, tied to each one inside. So a
/// carry is one value before, in and after the loop.
pub(crate) fn ties(node: NodeRef<'_>) -> Vec<Tie> {
    let (edges, results): (Vec<Edge>, SmallVec<[Value; 4]>) = (node.op().edges(), node.results().collect());
    let operand = |edge: &Edge| edge.operand().map(|index| node.operands()[index]);
    let result = |edge: &Edge| edge.result().map(|index| results[index]);
    let mut ties = Vec::new();
    for (body, graph) in node.op().running_regions() {
        for sliced in [false, true] {
            let mut tie = |outer: &dyn Fn(&Edge) -> Option<Value>, ports: fn(&Edge) -> &[Port], values: &[Value]| {
                for edge in edges.iter().filter(|edge| edge.sliced == sliced) {
                    let Some(outer) = outer(edge) else { continue };
                    for port in ports(edge).iter().filter(|port| port.region == body) {
                        ties.push(Tie { outer, body, inner: values[port.index], extra_dims: usize::from(sliced) });
                    }
                }
            };
            tie(&operand, |edge| &edge.inputs, graph.inputs());
            tie(&result, |edge| &edge.outputs, graph.outputs());
            tie(&result, |edge| &edge.inputs, graph.inputs());
            tie(&operand, |edge| &edge.outputs, graph.outputs());
        }
    }
    ties
}
