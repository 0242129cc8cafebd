//! Batching of ops with regions: their bodies are batched, and their operands brought into the form that these expect.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Demand, Mapping, walk};
use crate::ir::{Graph, GraphBuilder, InternalError, OpError, TensorType, Value};
use crate::ops::{
    Analysis, Batched, Call, Checkpoint, Cond, CustomVjp, Direction, Often, Op, ReduceKind, RegionKind, Scan, Select,
    ValueFacts, While, aligned, batch_in_front,
};

type Results = Result<SmallVec<[Batched; 2]>, OpError>;

pub(super) fn batch(
    builder: &mut GraphBuilder,
    op: RegionKind<'_>,
    operands: &[Batched],
    mapping: &Mapping,
) -> Results {
    match op {
        RegionKind::Call(call) => {
            let any = vec![Demand::Any; call.function.outputs().len()];
            let (function, flags) = mapping.body(&call.function, &flags(operands), &any)?;
            push(builder, Call { function }, &values(operands), &flags)
        }
        RegionKind::Checkpoint(checkpoint) => {
            let any = vec![Demand::Any; checkpoint.body.outputs().len()];
            let (body, flags) = mapping.body(&checkpoint.body, &flags(operands), &any)?;
            push(builder, Checkpoint { body, policy: checkpoint.policy.clone() }, &values(operands), &flags)
        }
        RegionKind::Cond(cond) => batch_cond(builder, cond, operands, mapping),
        RegionKind::CustomVjp(custom) => batch_custom_vjp(builder, custom, operands, mapping),
        RegionKind::Scan(scan) => batch_scan(builder, scan, operands, mapping),
        RegionKind::While(op) => batch_while(builder, op, operands, mapping),
    }
}

fn flags(operands: &[Batched]) -> Vec<bool> {
    operands.iter().map(|operand| operand.batched).collect()
}

fn values(operands: &[Batched]) -> Vec<Value> {
    operands.iter().map(|operand| operand.value).collect()
}

fn push(builder: &mut GraphBuilder, op: impl Into<Op>, operands: &[Value], flags: &[bool]) -> Results {
    let results = builder.push(op, operands)?;
    Ok(results.into_iter().zip(flags).map(|(value, &batched)| Batched { value, batched }).collect())
}

/// The analysis of the values that may differ between examples.
struct Differs;

impl Analysis for Differs {
    type Fact = bool;

    /// A carry is batched as soon as it is in any iteration.
    const CARRY_IS_ONE: bool = true;

    fn join(&self, one: bool, other: &bool) -> bool {
        one | other
    }

    fn controlled(&self, differs: bool, control: &bool) -> bool {
        differs | control
    }

    /// A hand-written rule needs its results batched together.
    fn looks_into(&self, op: &Op) -> bool {
        !matches!(op, Op::CustomVjp(_))
    }

    fn transfer(&self, op: &Op, operands: &[bool], result_count: usize) -> ValueFacts<bool> {
        match op {
            Op::Barrier(_) => operands.into(),
            _ => ValueFacts::from_elem(operands.contains(&true), result_count),
        }
    }

    fn of_type(&self, differs: bool, _ty: &TensorType) -> bool {
        differs
    }
}

fn demands(flags: &[bool]) -> Vec<Demand> {
    flags.iter().map(|&batched| if batched { Demand::Batched } else { Demand::Any }).collect()
}

/// The loop runs once for all examples. Invariants and slices that are the same for all stay so. In stacked values, the
/// loop's dimension comes first and the batch second.
fn batch_scan(builder: &mut GraphBuilder, scan: &Scan, operands: &[Batched], mapping: &Mapping) -> Results {
    let first_slice = scan.invariant_count + scan.carry_count;
    let op = Op::from(scan.clone());
    let inputs = &Differs.through(&op, &flags(operands)).inputs[0];
    let mut demands = demands(&inputs[scan.invariant_count..first_slice]);
    demands.resize(scan.body.outputs().len(), Demand::Any);
    let (body, outputs) = mapping.body(&scan.body, inputs, &demands)?;
    let mut arguments = values(operands);
    for (index, argument) in arguments.iter_mut().enumerate().skip(scan.invariant_count) {
        if index >= first_slice && inputs[index] {
            *argument = batch_in_front(builder, *argument, 1)?;
        } else if inputs[index] {
            *argument = aligned(builder, operands[index], mapping.axis.size)?;
        }
    }
    let mut results = push(builder, Scan { body, ..scan.clone() }, &arguments, &outputs)?;
    for result in results.iter_mut().skip(scan.carry_count).filter(|result| result.batched) {
        result.value = batch_in_front(builder, result.value, 1)?;
    }
    Ok(results)
}

/// The loop runs until it has ended for every example. Where each example ends by itself, the ended ones keep their
/// carries.
fn batch_while(builder: &mut GraphBuilder, op: &While, operands: &[Batched], mapping: &Mapping) -> Results {
    let inputs = Differs.through(&op.clone().into(), &flags(operands)).inputs.swap_remove(0);
    let carries = &inputs[op.invariant_count..];
    // Where the condition differs, each example stops by itself.
    let differs = Differs.outputs(&op.condition, &inputs).contains(&true);
    let (mut condition, _) = mapping.body(&op.condition, &inputs, &[Demand::Any])?;
    let (mut body, _) = mapping.body(&op.body, &inputs, &demands(carries))?;
    if differs {
        body = Arc::new(guarded_body(&condition, &body, op.invariant_count)?);
        condition = Arc::new(any_example(&condition)?);
    }
    let mut arguments = values(operands);
    for (index, argument) in arguments.iter_mut().enumerate().skip(op.invariant_count) {
        if inputs[index] {
            *argument = aligned(builder, operands[index], mapping.axis.size)?;
        }
    }
    push(builder, While { condition, body, often: Often::default(), ..*op }, &arguments, carries)
}

/// Whether a condition over a batch holds for any example.
fn any_example(condition: &Graph) -> Result<Graph, OpError> {
    let mut builder = GraphBuilder::new(condition.name());
    let inputs = builder.inputs_like(condition);
    let outputs = builder.inline(condition, &inputs);
    let any = builder.reduce(ReduceKind::Or, &[0], outputs[0])?;
    Ok(builder.finish_body(vec![any]))
}

/// A body over a batch. It leaves the carries of examples alone for which the condition does not hold.
fn guarded_body(condition: &Graph, body: &Graph, invariant_count: usize) -> Result<Graph, OpError> {
    let mut builder = GraphBuilder::new(body.name());
    let inputs = builder.inputs_like(body);
    let goes_on = builder.inline(condition, &inputs)[0];
    let next = builder.inline(body, &inputs);
    let carries = inputs[invariant_count..].iter().zip(next);
    let chosen = carries.map(|(&old, new)| choose(&mut builder, goes_on, new, old)).collect::<Result<_, _>>()?;
    Ok(builder.finish_body(chosen))
}

/// Chooses between batches of tensors by one `pred` for each example.
fn choose(builder: &mut GraphBuilder, chosen: Value, on_true: Value, on_false: Value) -> Result<Value, OpError> {
    let dims = builder.ty(on_true).dims.clone();
    let chosen = builder.broadcast(chosen, &dims, &[0])?;
    builder.push1(Select, &[chosen, on_true, on_false])
}

/// With one choice for all examples, one branch runs. With a choice for each, all branches run for all examples, and
/// each example takes its results. The gradient of a result that is not taken is zero times the branch's slope: a
/// branch that is not defined for an example must be made so, or its NaN gets through.
fn batch_cond(builder: &mut GraphBuilder, cond: &Cond, operands: &[Batched], mapping: &Mapping) -> Results {
    let (selector, arguments) = (operands[0], &operands[1..]);
    if !selector.batched {
        let results = Differs.through(&cond.clone().into(), &flags(operands)).results;
        let batch = |branch| Ok(mapping.body(branch, &flags(arguments), &demands(&results))?.0);
        let branches = cond.branches.iter().map(batch).collect::<Result<Vec<_>, OpError>>()?;
        return push(builder, Cond { branches, often: cond.often.clone() }, &values(operands), &results);
    }
    let mut branches = Vec::new();
    for branch in &cond.branches {
        let results = walk(builder, branch, arguments, mapping)?;
        let size = mapping.axis.size;
        let results = results.into_iter().map(|result| aligned(builder, result, size));
        branches.push(results.collect::<Result<Vec<Value>, _>>()?);
    }
    // Every choice that is no other branch's goes to the last branch.
    let last = branches.pop();
    let mut results = last.ok_or_else(|| InternalError::new("cond", "a branch").at(builder.origin()))?;
    for (index, branch) in branches.into_iter().enumerate() {
        let index = builder.splat_like(selector.value, index as f64);
        let chosen = builder.compare(Direction::Eq, selector.value, index)?;
        for (result, value) in results.iter_mut().zip(branch) {
            *result = choose(builder, chosen, value, *result)?;
        }
    }
    Ok(results.into_iter().map(|value| Batched { value, batched: true }).collect())
}

/// All three graphs are batched so that they still fit each other.
///
/// All floating-point outputs are batched, even one that is the same for all examples: its cotangent then has a part
/// for each example, and the hand-written rule, which runs once for each, gets that example's part. Given the whole
/// cotangent of a shared output, each run would count it again. The cotangent of an operand that all examples share is
/// the sum of the cotangents that they return.
fn batch_custom_vjp(
    builder: &mut GraphBuilder,
    custom: &CustomVjp,
    operands: &[Batched],
    mapping: &Mapping,
) -> Results {
    let batched = flags(operands);
    let is_float = |graph: &Graph, value: &Value| graph.ty(*value).dtype.is_float();
    let differs = Differs.outputs(&custom.primal, &batched);
    let differs_forward = Differs.outputs(&custom.forward, &batched);
    let demand = |index: usize, output: &Value| {
        let needed = is_float(&custom.primal, output) || differs[index] || differs_forward[index];
        if needed { Demand::Batched } else { Demand::Any }
    };
    let mut demands: Vec<Demand> =
        custom.primal.outputs().iter().enumerate().map(|(index, output)| demand(index, output)).collect();
    let (primal, outputs) = mapping.body(&custom.primal, &batched, &demands)?;
    demands.resize(custom.forward.outputs().len(), Demand::Any);
    let (forward, forward_outputs) = mapping.body(&custom.forward, &batched, &demands)?;

    let mut backward_inputs = forward_outputs[outputs.len()..].to_vec();
    backward_inputs.resize(custom.backward.inputs().len(), true);
    let inputs = custom.primal.inputs().iter().zip(&batched);
    let gradients: Vec<Demand> = inputs
        .filter(|(input, _)| is_float(&custom.primal, input))
        .map(|(_, &batched)| if batched { Demand::Batched } else { Demand::Sum })
        .collect();
    let (backward, _) = mapping.body(&custom.backward, &backward_inputs, &gradients)?;
    push(builder, CustomVjp { primal, forward, backward }, &values(operands), &outputs)
}
