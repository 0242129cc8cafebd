//! Forward mode through ops with regions: the same op over bodies that take and return tangents too.
//!
//! Tangents stand after the values they belong to, within each group of an op's operands and results (a scan's invariants,
//! carries, slices). Nothing is stacked: a loop carries its tangents along.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::activity::region_activity;
use super::linear;
use crate::ir::{Graph, GraphBuilder, InternalError, OpError, PortInfo, Value, Values};
use crate::ops::{Call, Checkpoint, Cond, CustomVjp, RegionKind, Scan, While};

/// Results, and their tangents where there are any.
type Outcome = (Values, Vec<Option<Value>>);

/// Called functions with tangents, for each activity of their inputs; the originals are held so that their addresses stay
/// theirs.
#[derive(Clone, Debug)]
pub(super) struct JvpCache {
    /// The walk over a body (`forward.rs`), which hands itself down to the ops that it meets.
    walk: Walk,
    functions: Rc<RefCell<FxHashMap<Key, Known>>>,
}

type Walk = fn(&mut GraphBuilder, &Graph, &[Value], &[Option<Value>], &JvpCache) -> Result<Outcome, OpError>;

type Key = (*const Graph, Vec<bool>);
type Known = (Arc<Graph>, Pushed);

/// A body with tangents, and which of its outputs have one.
#[derive(Clone, Debug)]
struct Pushed {
    graph: Arc<Graph>,
    active: Vec<bool>,
}

impl JvpCache {
    /// Of no function yet.
    pub(super) fn new(walk: Walk) -> JvpCache {
        JvpCache { walk, functions: Rc::default() }
    }
}

/// The results of an op with regions, and their tangents.
pub(super) fn jvp(
    builder: &mut GraphBuilder,
    op: RegionKind<'_>,
    operands: &[Value],
    tangents: &[Option<Value>],
    cache: &JvpCache,
) -> Result<Outcome, OpError> {
    match op {
        RegionKind::Call(call) => jvp_call(builder, call, operands, tangents, cache),
        RegionKind::Checkpoint(checkpoint) => {
            let all = whole(operands.len());
            let pushed = push_body(&checkpoint.body, &flags(tangents), |_| false, (&all, None), cache)?;
            let op = Checkpoint { body: pushed.graph, policy: checkpoint.policy.clone() };
            let results = builder.push(op, &grouped(operands, tangents, &all))?;
            ungrouped(&results, &pushed.active, &whole(pushed.active.len()))
        }
        RegionKind::Cond(cond) => jvp_cond(builder, cond, operands, tangents, cache),
        RegionKind::CustomVjp(custom) => jvp_custom(builder, custom, operands, tangents),
        RegionKind::Scan(scan) => jvp_scan(builder, scan, operands, tangents, cache),
        RegionKind::While(op) => jvp_while(builder, op, operands, tangents, cache),
    }
}

fn flags(tangents: &[Option<Value>]) -> Vec<bool> {
    tangents.iter().map(Option::is_some).collect()
}

/// One group of all.
fn whole(count: usize) -> Vec<Range<usize>> {
    std::iter::once(0..count).collect()
}

/// Values and tangents in the order of a body's ports: group by group, in each the values, then their tangents.
fn grouped(values: &[Value], tangents: &[Option<Value>], groups: &[Range<usize>]) -> Vec<Value> {
    let group = |group: &Range<usize>| {
        let (values, tangents) = (&values[group.clone()], &tangents[group.clone()]);
        values.iter().copied().chain(tangents.iter().copied().flatten()).collect::<Vec<_>>()
    };
    groups.iter().flat_map(group).collect()
}

/// The reverse of [`grouped`], where the marked values have tangents.
fn ungrouped(ports: &[Value], active: &[bool], groups: &[Range<usize>]) -> Result<Outcome, OpError> {
    let mut ports = ports.iter().copied();
    let missing = || InternalError::new("a body with tangents", "a port for each value and each tangent");
    let mut next = || ports.next().ok_or_else(missing);
    let (mut values, mut tangents) = (Values::new(), Vec::new());
    for group in groups {
        for _ in group.clone() {
            values.push(next()?);
        }
        for &active in &active[group.clone()] {
            tangents.push(active.then(&mut next).transpose()?);
        }
    }
    Ok((values, tangents))
}

/// Inputs for a body's values and, where active, their tangents, in the order of [`grouped`].
fn declare(
    builder: &mut GraphBuilder,
    body: &Graph,
    active: &[bool],
    groups: &[Range<usize>],
) -> (Values, Vec<Option<Value>>) {
    let (mut values, mut tangents) = (Values::new(), Vec::new());
    let mut input = |index: usize| builder.input(body.ty(body.inputs()[index]).clone(), PortInfo::default());
    for group in groups {
        values.extend(group.clone().map(&mut input));
        tangents.extend(group.clone().map(|index| active[index].then(|| input(index))));
    }
    (values, tangents)
}

/// A body that takes and returns tangents. Required outputs have one even if it is zero. The groups are those of inputs
/// and of outputs; `None` for one group of all outputs.
fn push_body(
    body: &Graph,
    active: &[bool],
    required: impl Fn(usize) -> bool,
    (inputs, outputs): (&[Range<usize>], Option<&[Range<usize>]>),
    cache: &JvpCache,
) -> Result<Pushed, OpError> {
    let mut builder = GraphBuilder::new(format!("{}_jvp", body.name()));
    let (arguments, tangents) = declare(&mut builder, body, active, inputs);
    let (values, mut tangents) = (cache.walk)(&mut builder, body, &arguments, &tangents, cache)?;
    for (index, tangent) in tangents.iter_mut().enumerate() {
        if required(index) && tangent.is_none() {
            *tangent = Some(builder.zeros_like(values[index]));
        }
    }
    let all = whole(values.len());
    let ports = grouped(&values, &tangents, outputs.unwrap_or(&all));
    Ok(Pushed { graph: Arc::new(builder.finish_body(ports)), active: flags(&tangents) })
}

fn jvp_call(
    builder: &mut GraphBuilder,
    call: &Call,
    operands: &[Value],
    tangents: &[Option<Value>],
    cache: &JvpCache,
) -> Result<Outcome, OpError> {
    let key = (Arc::as_ptr(&call.function), flags(tangents));
    let known = cache.functions.borrow().get(&key).map(|(_, pushed)| pushed.clone());
    let all = whole(operands.len());
    let pushed = match known {
        Some(pushed) => pushed,
        None => {
            let pushed = push_body(&call.function, &key.1, |_| false, (&all, None), cache)?;
            cache.functions.borrow_mut().insert(key, (call.function.clone(), pushed.clone()));
            pushed
        }
    };
    let results = builder.push(Call { function: pushed.graph }, &grouped(operands, tangents, &all))?;
    ungrouped(&results, &pushed.active, &whole(pushed.active.len()))
}

fn jvp_cond(
    builder: &mut GraphBuilder,
    cond: &Cond,
    operands: &[Value],
    tangents: &[Option<Value>],
    cache: &JvpCache,
) -> Result<Outcome, OpError> {
    let active = region_activity(cond.clone(), &flags(tangents)).results;
    let all = whole(operands.len() - 1);
    let branches = cond.branches.iter().map(|branch| {
        Ok(push_body(branch, &flags(&tangents[1..]), |output| active[output], (&all, None), cache)?.graph)
    });
    let op = Cond { branches: branches.collect::<Result<_, OpError>>()? };
    let mut ports = vec![operands[0]];
    ports.extend(grouped(&operands[1..], &tangents[1..], &all));
    let results = builder.push(op, &ports)?;
    ungrouped(&results, &active, &whole(active.len()))
}

fn jvp_scan(
    builder: &mut GraphBuilder,
    scan: &Scan,
    operands: &[Value],
    tangents: &[Option<Value>],
    cache: &JvpCache,
) -> Result<Outcome, OpError> {
    let active = region_activity(scan.clone(), &flags(tangents)).inputs.swap_remove(0);
    let (invariants, carries) = (scan.invariant_count, scan.carry_count);
    let inputs = [0..invariants, invariants..invariants + carries, invariants + carries..operands.len()];
    let outputs = [0..carries, carries..scan.body.outputs().len()];
    let required = |output: usize| output < carries && active[invariants + output];
    let pushed = push_body(&scan.body, &active, required, (&inputs, Some(&outputs)), cache)?;
    let tangents = with_zeros(builder, operands, tangents, &active);
    let op = Scan {
        invariant_count: invariants + count(&active[inputs[0].clone()]),
        carry_count: carries + count(&active[inputs[1].clone()]),
        body: pushed.graph,
        ..scan.clone()
    };
    let results = builder.push(op, &grouped(operands, &tangents, &inputs))?;
    ungrouped(&results, &pushed.active, &outputs)
}

fn jvp_while(
    builder: &mut GraphBuilder,
    op: &While,
    operands: &[Value],
    tangents: &[Option<Value>],
    cache: &JvpCache,
) -> Result<Outcome, OpError> {
    let active = region_activity(op.clone(), &flags(tangents)).inputs.swap_remove(0);
    let invariants = op.invariant_count;
    let groups = [0..invariants, invariants..operands.len()];
    let pushed = push_body(&op.body, &active, |output| active[invariants + output], (&groups, None), cache)?;
    let mut condition = GraphBuilder::new(op.condition.name());
    let (arguments, _) = declare(&mut condition, &op.condition, &active, &groups);
    let goes_on = condition.inline(&op.condition, &arguments).to_vec();
    let tangents = with_zeros(builder, operands, tangents, &active);
    let op = While {
        condition: Arc::new(condition.finish_body(goes_on)),
        body: pushed.graph,
        invariant_count: invariants + count(&active[groups[0].clone()]),
    };
    let results = builder.push(op, &grouped(operands, &tangents, &groups))?;
    ungrouped(&results, &pushed.active, &whole(pushed.active.len()))
}

fn count(flags: &[bool]) -> usize {
    flags.iter().filter(|&&flag| flag).count()
}

/// Tangents of the operands marked, zero where none is given: that of a carry may come in a later iteration only.
fn with_zeros(
    builder: &mut GraphBuilder,
    operands: &[Value],
    tangents: &[Option<Value>],
    active: &[bool],
) -> Vec<Option<Value>> {
    let tangent =
        |index: usize| active[index].then(|| tangents[index].unwrap_or_else(|| builder.zeros_like(operands[index])));
    (0..operands.len()).map(tangent).collect()
}

/// A hand-written backward rule maps cotangents linearly to cotangents, so its transpose maps tangents to tangents.
fn jvp_custom(
    builder: &mut GraphBuilder,
    custom: &CustomVjp,
    operands: &[Value],
    tangents: &[Option<Value>],
) -> Result<Outcome, OpError> {
    let mut results = builder.inline(&custom.forward, operands);
    let residuals = results.drain(custom.primal.outputs().len()..);
    let mut arguments: Vec<Option<Value>> = residuals.map(Some).collect();
    let residual_count = arguments.len();
    arguments.resize(custom.backward.inputs().len(), None);
    let differentiable = |value: &Value| custom.primal.ty(*value).dtype.is_float();
    let inputs = custom.primal.inputs().iter().zip(tangents).filter(|(input, _)| differentiable(input));
    let incoming: Vec<Option<Value>> = inputs.map(|(_, &tangent)| tangent).collect();
    let found = linear::transpose(builder, &custom.backward, &arguments, &incoming)?;
    let mut found = found.into_iter().skip(residual_count);
    let outputs = custom.primal.outputs().iter();
    let tangents = outputs.map(|output| if differentiable(output) { found.next().flatten() } else { None }).collect();
    Ok((results, tangents))
}
