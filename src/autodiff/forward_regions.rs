//! Forward mode through ops with regions: the same op over bodies that take and return tangents too.
//!
//! Tangents stand after the values they belong to, within each group of an op's operands and results (a scan's
//! invariants, carries, slices). Nothing is stacked: a loop carries its tangents along.

use std::ops::Range;
use std::sync::Arc;

use super::activity::region_activity;
use super::linear;
use crate::ir::{Graph, GraphBuilder, InternalError, Memo, OpError, PortInfo, Value, Values};
use crate::ops::{Call, Checkpoint, Cond, CustomVjp, Op, RegionKind, Scan, While};

/// Results, and their tangents where they have any; or the error of an op that has none.
type Outcome = Result<(Values, Vec<Option<Value>>), OpError>;

/// Called functions with tangents, for each activity of their inputs.
#[derive(Debug)]
pub(super) struct JvpCache {
    /// The walk over a body (`forward.rs`), which hands itself down to the ops that it meets.
    walk: PushBody,
    functions: Memo<Vec<bool>, Pushed>,
}

type PushBody = fn(&mut GraphBuilder, &Graph, &[Value], &[Option<Value>], &JvpCache) -> Outcome;

/// A body with tangents, and whether each output has one.
#[derive(Clone, Debug)]
struct Pushed {
    graph: Arc<Graph>,
    active: Vec<bool>,
}

impl JvpCache {
    pub(super) fn new(walk: PushBody) -> JvpCache {
        JvpCache { walk, functions: Memo::default() }
    }
}

/// The results of an op with regions, and their tangents.
pub(super) fn jvp(
    builder: &mut GraphBuilder,
    op: RegionKind<'_>,
    operands: &[Value],
    tangents: &[Option<Value>],
    cache: &JvpCache,
) -> Outcome {
    let incoming = Incoming { operands, tangents, cache };
    match op {
        RegionKind::Call(call) => {
            let make = || incoming.push_whole(&call.function);
            let pushed = cache.functions.of(&call.function, flags(tangents), make)?;
            incoming.apply(builder, Call { function: pushed.graph }, &pushed.active)
        }
        RegionKind::Checkpoint(checkpoint) => {
            let pushed = incoming.push_whole(&checkpoint.body)?;
            let op = Checkpoint { body: pushed.graph, policy: checkpoint.policy.clone() };
            incoming.apply(builder, op, &pushed.active)
        }
        RegionKind::Cond(cond) => jvp_cond(builder, cond, incoming),
        RegionKind::CustomVjp(custom) => jvp_custom(builder, custom, operands, tangents),
        RegionKind::Scan(scan) => jvp_scan(builder, scan, incoming),
        RegionKind::While(op) => jvp_while(builder, op, incoming),
    }
}

/// The operands and tangents that an op with regions gets.
#[derive(Clone, Copy)]
struct Incoming<'a> {
    operands: &'a [Value],
    tangents: &'a [Option<Value>],
    cache: &'a JvpCache,
}

impl Incoming<'_> {
    /// Pushes tangents through the only body of an op, which takes the operands and returns the results.
    fn push_whole(&self, body: &Graph) -> Result<Pushed, OpError> {
        push_body(body, &flags(self.tangents), |_| false, (&whole(self.operands.len()), None), self.cache)
    }

    /// Pushes an op with such a body. The results marked have tangents.
    fn apply(&self, builder: &mut GraphBuilder, op: impl Into<Op>, active: &[bool]) -> Outcome {
        let results = builder.push(op, &grouped(self.operands, self.tangents, &whole(self.operands.len())))?;
        ungrouped(&results, active, &whole(active.len()))
    }
}

fn flags(tangents: &[Option<Value>]) -> Vec<bool> {
    tangents.iter().map(Option::is_some).collect()
}

/// Returns one group that holds all values.
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
fn ungrouped(ports: &[Value], active: &[bool], groups: &[Range<usize>]) -> Outcome {
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

fn jvp_cond(builder: &mut GraphBuilder, cond: &Cond, incoming: Incoming<'_>) -> Outcome {
    let Incoming { operands, tangents, cache } = incoming;
    let active = region_activity(cond.clone(), &flags(tangents)).results;
    let all = whole(operands.len() - 1);
    let branches = cond.branches.iter().map(|branch| {
        Ok(push_body(branch, &flags(&tangents[1..]), |output| active[output], (&all, None), cache)?.graph)
    });
    let op = Cond { branches: branches.collect::<Result<_, OpError>>()?, often: cond.often.clone() };
    let mut ports = vec![operands[0]];
    ports.extend(grouped(&operands[1..], &tangents[1..], &all));
    let results = builder.push(op, &ports)?;
    ungrouped(&results, &active, &whole(active.len()))
}

fn jvp_scan(builder: &mut GraphBuilder, scan: &Scan, incoming: Incoming<'_>) -> Outcome {
    let Incoming { operands, tangents, cache } = incoming;
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

fn jvp_while(builder: &mut GraphBuilder, op: &While, incoming: Incoming<'_>) -> Outcome {
    let Incoming { operands, tangents, cache } = incoming;
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
        ..op.clone()
    };
    let results = builder.push(op, &grouped(operands, &tangents, &groups))?;
    ungrouped(&results, &pushed.active, &whole(pushed.active.len()))
}

fn count(flags: &[bool]) -> usize {
    flags.iter().filter(|&&flag| flag).count()
}

/// Returns the tangents of the operands marked, and zero where none is given: a carry may get its tangent in a later
/// iteration.
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
) -> Outcome {
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
