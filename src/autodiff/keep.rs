//! The values of its body that a checkpoint keeps for its backward pass, and how they get there.
//!
//! [`Keeping`] lists the values that a policy keeps of a graph, those in regions included. Each has a slot. [`copy`]
//! copies a graph so that it also returns the slots: a scan stacks them, branches share them, a call returns them. When
//! the body is recorded again for the backward pass, [`Kept`] puts the slots' values in the place of what computed
//! them, in the same way from the outside in.

use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::ir::{
    Graph, GraphBuilder, Memo, Name, Node, NodeRef, OpError, PortInfo, TensorType, Value, ValueMap, Values,
};
use crate::ops::{Call, Memory, MoveTo, Op, RematPolicy};

/// The values of a graph that are kept. The slots are its own values, then those of nodes with regions, in node order.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) policy: RematPolicy,
    own: Vec<(Value, Memory)>,
    nested: FxHashMap<Node, Rc<Nested>>,
    types: Vec<TensorType>,
}

/// The values that are kept in the regions of one node.
#[derive(Debug)]
pub(super) struct Nested {
    bodies: Vec<Rc<Keeping>>,
    /// For each body, which of the node's slots each of the body's slots is.
    slots: Vec<Vec<usize>>,
    /// The slots' types inside the bodies.
    inner_types: Vec<TensorType>,
    /// The first of the node's slots among the graph's.
    start: usize,
}

/// The slots of a graph with their values in the builder.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) plan: Rc<Keeping>,
    pub(super) values: Vec<Value>,
}

/// The slots of a node with their values in the builder.
#[derive(Clone, Debug)]
pub(super) struct NodeKept {
    plan: Rc<Nested>,
    pub(super) values: Vec<Value>,
}

/// The regions of an op that policies look into: those that run again in the backward pass.
fn looked_into(op: &Op) -> SmallVec<[&Arc<Graph>; 2]> {
    match op {
        // Differentiation runs the forward rule.
        Op::CustomVjp(op) => SmallVec::from_slice(&[&op.forward]),
        // A loop whose trip count is unknown has no room for values that it would keep.
        op if op.executions(0).is_open() => SmallVec::new(),
        op => op.regions().collect(),
    }
}

/// One list of types that has room for any of several lists, and where the elements of each list go.
pub(super) fn unify(lists: &[Vec<TensorType>]) -> (Vec<TensorType>, Vec<Vec<usize>>) {
    let mut types: Vec<TensorType> = Vec::new();
    let place = |list: &Vec<TensorType>| {
        let mut taken = vec![false; types.len()];
        let slot = |ty: &TensorType| {
            let free = (0..types.len()).find(|&slot| !taken[slot] && types[slot] == *ty);
            let slot = free.unwrap_or_else(|| {
                types.push(ty.clone());
                taken.push(false);
                types.len() - 1
            });
            taken[slot] = true;
            slot
        };
        list.iter().map(slot).collect()
    };
    let slots = lists.iter().map(place).collect();
    (types, slots)
}

impl Nested {
    /// The policy that keeps them.
    fn policy(&self) -> Option<&RematPolicy> {
        self.bodies.first().map(|body| &body.policy)
    }
}

impl Keeping {
    pub(super) fn nothing() -> Keeping {
        Keeping { policy: RematPolicy::Full, own: Vec::new(), nested: FxHashMap::default(), types: Vec::new() }
    }

    /// Lists the values that `policy` keeps of `graph`.
    pub(super) fn of(graph: &Graph, policy: &RematPolicy) -> Keeping {
        let mut keeping = Keeping { policy: policy.clone(), ..Keeping::nothing() };
        if policy.keeps_nothing() {
            return keeping;
        }
        let mut names: FxHashMap<Value, SmallVec<[Name; 1]>> = FxHashMap::default();
        for node in graph.nodes() {
            if let Op::Named(named) = node.op() {
                names.entry(node.operands()[0]).or_default().push(named.0);
            }
        }
        let mut inside = Vec::new();
        for node in graph.nodes() {
            // A name is an alias of the op that computed the value. The result of that op is kept instead, since its
            // own gradient may read it too.
            let is_alias = matches!(node.op(), Op::Named(_)) && graph.defining_node(node.operands()[0]).is_some();
            for result in node.results().filter(|_| !is_alias) {
                let names = names.get(&result).map_or(&[][..], |names| names);
                if let Some(memory) = policy.keeps(node.op(), names) {
                    keeping.own.push((result, memory));
                    keeping.types.push(graph.ty(result).clone());
                }
            }
            let bodies: Vec<Rc<Keeping>> =
                looked_into(node.op()).into_iter().map(|body| Rc::new(Keeping::of(body, policy))).collect();
            if bodies.iter().any(|body| !body.types.is_empty()) {
                inside.push((node, bodies));
            }
        }
        for (node, bodies) in inside {
            let (inner_types, slots) = unify(&bodies.iter().map(|body| body.types.clone()).collect::<Vec<_>>());
            let start = keeping.types.len();
            keeping.types.extend(inner_types.iter().map(|ty| node.op().type_outside(ty)));
            keeping.nested.insert(node.id, Rc::new(Nested { bodies, slots, inner_types, start }));
        }
        keeping
    }
}

impl Kept {
    /// Puts the values of the graph's own slots in the place of what computed them.
    pub(super) fn fill_slots(&self, builder: &mut GraphBuilder, map: &mut ValueMap) -> Result<(), OpError> {
        for (&(inner, memory), &value) in self.plan.own.iter().zip(&self.values) {
            let value = match memory {
                Memory::Device => value,
                Memory::Host => builder.push1(MoveTo(Memory::Device), &[value])?,
            };
            map.set(inner, value);
        }
        Ok(())
    }
}

/// The slots of one node among those of its graph.
pub(super) fn at_node(kept: &[Kept], node: Node) -> Vec<NodeKept> {
    let slots = |kept: &Kept| {
        let plan = kept.plan.nested.get(&node)?.clone();
        let values = kept.values[plan.start..plan.start + plan.inner_types.len()].to_vec();
        Some(NodeKept { plan, values })
    };
    kept.iter().filter_map(slots).collect()
}

impl NodeKept {
    /// The policy that keeps them.
    fn policy(&self) -> Option<&RematPolicy> {
        self.plan.policy()
    }

    /// Adds an input for each slot to a body.
    pub(super) fn declare(&self, builder: &mut GraphBuilder) -> Vec<Value> {
        self.plan.inner_types.iter().map(|ty| builder.input(ty.clone(), PortInfo::default())).collect()
    }

    /// The slots of one body, where the node's are `values`.
    pub(super) fn inside(&self, body: usize, values: &[Value]) -> Kept {
        let values = self.plan.slots[body].iter().map(|&slot| values[slot]).collect();
        Kept { plan: self.plan.bodies[body].clone(), values }
    }
}

/// Copies the nodes of `graph` that `map` does not know yet, with the slots `kept` in the place of what computed them;
/// returns the slots of `export`.
pub(super) fn copy(
    builder: &mut GraphBuilder,
    graph: &Graph,
    map: &mut ValueMap,
    kept: &[Kept],
    export: &Keeping,
    copies: &Copies,
) -> Result<Vec<Value>, OpError> {
    for kept in kept {
        kept.fill_slots(builder, map)?;
    }
    let mut inner: Vec<Value> = Vec::new();
    for node in graph.nodes() {
        let nested = export.nested.get(&node.id);
        if nested.is_none() && node.results().all(|result| map.find(result).is_some()) {
            continue;
        }
        inner.extend(copy_node(
            builder,
            graph,
            node,
            map,
            &at_node(kept, node.id),
            nested.map(|nested| &**nested),
            copies,
        )?);
    }
    let own = export.own.iter().map(|&(value, memory)| match memory {
        Memory::Device => Ok(map.get(value)),
        Memory::Host => builder.push1(MoveTo(Memory::Host), &[map.get(value)]),
    });
    let mut slots = own.collect::<Result<Vec<Value>, OpError>>()?;
    slots.extend(inner);
    Ok(slots)
}

/// As [`copy`], for one node. Results that are known already stay the same.
pub(super) fn copy_node(
    builder: &mut GraphBuilder,
    graph: &Graph,
    node: NodeRef<'_>,
    map: &mut ValueMap,
    kept: &[NodeKept],
    export: Option<&Nested>,
    copies: &Copies,
) -> Result<Vec<Value>, OpError> {
    if kept.is_empty() && export.is_none() {
        builder.copy_node(graph, node, map);
        return Ok(Vec::new());
    }
    let mut operands: Vec<Value> = node.operands().iter().map(|&value| map.get(value)).collect();
    operands.extend(kept.iter().flat_map(|kept| &kept.values));
    let outer = builder.origin();
    builder.set_origin(node.origin().copied_in(outer.phase));
    let body = |index: usize, body: &Arc<Graph>| copy_body(index, body, kept, export, copies).map(Arc::new);
    let results: Values = match node.op() {
        Op::Call(call) => {
            let key = (policies(kept), export.and_then(Nested::policy).cloned());
            let function = copies.of(&call.function, key, || body(0, &call.function))?;
            builder.push(Call { function }, &operands)?
        }
        op => match (op.is_wrapper(), &looked_into(op)[..]) {
            (true, &[inner]) => builder.inline(&*body(0, inner)?, &operands),
            (_, bodies) if !bodies.is_empty() => {
                let op = op.try_map_regions(body)?;
                builder.push(op.unwrap_or_else(|| node.op().clone()), &operands)?
            }
            // Policies look into no other op.
            _ => builder.push(op.clone(), &operands)?,
        },
    };
    builder.set_origin(outer);
    for (old, &new) in node.results().zip(&results) {
        if map.find(old).is_none() {
            map.set(old, new);
        }
    }
    let slot_count = export.map_or(0, |export| export.inner_types.len());
    Ok(results[results.len() - slot_count..].to_vec())
}

/// A body that takes the slots of `kept` after its inputs, and returns those of `export` after its outputs.
fn copy_body(
    index: usize,
    body: &Graph,
    kept: &[NodeKept],
    export: Option<&Nested>,
    copies: &Copies,
) -> Result<Graph, OpError> {
    let mut builder = GraphBuilder::new(body.name());
    let mut map = ValueMap::for_inputs(body, &builder.inputs_like(body));
    let kept = inside_body(&mut builder, index, kept);
    let nothing = Keeping::nothing();
    let plan = export.map_or(&nothing, |export| &*export.bodies[index]);
    let slots = copy(&mut builder, body, &mut map, &kept, plan, copies)?;
    let mut outputs: Vec<Value> = body.outputs().iter().map(|&value| map.get(value)).collect();
    if let Some(export) = export {
        outputs.extend(spread(&mut builder, &slots, &export.slots[index], &export.inner_types));
    }
    Ok(builder.finish_body(outputs))
}

/// Functions copied so far, by the policies by which values inside have been kept and the one by which they are to be
/// kept.
pub(super) type Copies = Rc<Memo<(Vec<RematPolicy>, Option<RematPolicy>), Arc<Graph>>>;

/// The policies that have kept something.
pub(super) fn policies(kept: &[NodeKept]) -> Vec<RematPolicy> {
    kept.iter().filter_map(NodeKept::policy).cloned().collect()
}

/// Adds inputs for the slots of a node to one of its bodies.
pub(super) fn inside_body(builder: &mut GraphBuilder, body: usize, kept: &[NodeKept]) -> Vec<Kept> {
    let inside = |kept: &NodeKept| {
        let values = kept.declare(builder);
        kept.inside(body, &values)
    };
    kept.iter().map(inside).collect()
}

/// Returns a value for each of `types`: `values` in the places of `slots`, zeros elsewhere.
pub(super) fn spread(
    builder: &mut GraphBuilder,
    values: &[Value],
    slots: &[usize],
    types: &[TensorType],
) -> Vec<Value> {
    let value = |(slot, ty): (usize, &TensorType)| match slots.iter().position(|&taken| taken == slot) {
        Some(index) => values[index],
        None => builder.splat(ty.clone(), 0.0),
    };
    types.iter().enumerate().map(value).collect()
}
