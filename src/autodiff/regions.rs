//! Differentiation of ops with regions.

use std::sync::Arc;

use super::split::{Halves, Joint, Residual, output_activity};
use super::tape::Tape;
use crate::error::OpError;
use crate::ir::{Graph, GraphBuilder, Origin, Phase, PortInfo, TensorType, Value, ValueMap, Values};
use crate::ops::{Barrier, Call, Op, RematPolicy, Scan};

/// What a region op leaves behind for its backward pass.
#[derive(Debug)]
pub(super) enum RegionTape {
    Scan(ScanTape),
    Call(CallTape),
    /// Values of the checkpoint's body that the policy keeps, and what they are in the builder.
    Checkpoint(Vec<(Value, Value)>),
    /// Residuals of the hand-written forward rule.
    CustomVjp(Vec<Value>),
}

#[derive(Debug)]
pub(super) struct ScanTape {
    backward: Scan,
    /// Invariant operands of the backward scan.
    invariants: Vec<Value>,
    /// Stacked residuals.
    stacked: Vec<Value>,
    /// Operands (carries) whose cotangents are carried.
    carries: Vec<usize>,
    /// Operands (invariants) whose cotangents are accumulated.
    accumulated: Vec<usize>,
    /// Operands (stacked) whose cotangents are stacked.
    slices: Vec<usize>,
    /// Results (stacked outputs) whose cotangents are read.
    outputs: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct CallTape {
    backward: Arc<Graph>,
    residuals: Vec<Value>,
    /// Results whose cotangents are read.
    outputs: Vec<usize>,
    /// Operands that get a cotangent.
    inputs: Vec<usize>,
}

fn marked(flags: impl IntoIterator<Item = bool>) -> Vec<usize> {
    flags.into_iter().enumerate().filter_map(|(index, flag)| flag.then_some(index)).collect()
}

/// Activity of a scan's body inputs and of its results. A carry is active as soon as it is in any iteration.
pub(super) fn scan_activity(scan: &Scan, operands: &[bool]) -> (Vec<bool>, Vec<bool>) {
    let mut inputs: Vec<bool> =
        operands.iter().zip(scan.body.input_types()).map(|(&active, ty)| active && ty.dtype.is_float()).collect();
    loop {
        let outputs = output_activity(&scan.body, &inputs);
        let carries = scan.invariant_count..scan.invariant_count + scan.carry_count;
        let mut changed = false;
        for (input, &output) in carries.zip(&outputs) {
            changed |= output && !inputs[input];
            inputs[input] |= output;
        }
        if !changed {
            let mut results = outputs;
            for carry in 0..scan.carry_count {
                results[carry] = inputs[scan.invariant_count + carry];
            }
            return (inputs, results);
        }
    }
}

/// The forward walk of one region op: pushes it in a form that keeps residuals; returns its results.
pub(super) fn record(
    builder: &mut GraphBuilder,
    op: &Op,
    operands: &[Value],
    active: &[bool],
    wanted: &[bool],
) -> Result<(Values, RegionTape), OpError> {
    match op {
        Op::Scan(scan) => record_scan(builder, scan, operands, active, wanted),
        Op::Call(call) => {
            let joint = Joint::new(&call.function, active, wanted, &vec![false; operands.len()])?;
            let inputs = marked(joint.gradients.iter().map(Option::is_some));
            let gradients: Vec<Value> = joint.gradients.iter().copied().flatten().collect();
            let Halves { forward, backward, residuals } = joint.split(&gradients, &vec![true; operands.len()]);
            let mut results = builder.push(Call { function: Arc::new(forward) }, operands)?;
            let computed: Values = results.drain(call.function.outputs().len()..).collect();
            let residuals = residuals
                .into_iter()
                .map(|residual| match residual {
                    Residual::Input(index) => operands[index],
                    Residual::Computed(index) => computed[index],
                })
                .collect();
            let outputs = marked(wanted.iter().copied());
            Ok((results, RegionTape::Call(CallTape { backward: Arc::new(backward), residuals, outputs, inputs })))
        }
        Op::Checkpoint(checkpoint) => {
            let body = &*checkpoint.body;
            let mut map = ValueMap::for_inputs(body, operands);
            let mut kept = Vec::new();
            for node in body.nodes() {
                builder.copy_node(body, node, &mut map);
                if keeps(&checkpoint.policy, node.op()) {
                    kept.extend(node.results().map(|value| (value, map.get(value))));
                }
            }
            let results = body.outputs().iter().map(|&value| map.get(value)).collect();
            Ok((results, RegionTape::Checkpoint(kept)))
        }
        Op::CustomVjp(custom) => {
            let mut results = builder.inline(&custom.forward, operands);
            let residuals = results.drain(custom.primal.outputs().len()..).collect();
            Ok((results, RegionTape::CustomVjp(residuals)))
        }
        // Every other op is a primitive, which never comes here.
        _ => Ok((builder.push(op.clone(), operands)?, RegionTape::CustomVjp(Vec::new()))),
    }
}

fn keeps(policy: &RematPolicy, op: &Op) -> bool {
    match (policy, op) {
        // What a loop or call leaves for its backward pass is made when it is recorded, so it is recorded again there.
        (RematPolicy::None, op) => op.as_primitive().is_some(),
        (RematPolicy::Full, _) => false,
        (RematPolicy::Dots, op) => matches!(op, Op::DotGeneral(_)),
        (RematPolicy::Save(names), Op::Named(named)) => names.contains(&named.0),
        (RematPolicy::Save(_), _) => false,
    }
}

fn record_scan(
    builder: &mut GraphBuilder,
    scan: &Scan,
    operands: &[Value],
    active: &[bool],
    wanted: &[bool],
) -> Result<(Values, RegionTape), OpError> {
    let (inputs, results) = scan_activity(scan, active);
    let first_slice = scan.invariant_count + scan.carry_count;
    let is_invariant = |input: usize| input < scan.invariant_count;
    let is_carry = |input: usize| !is_invariant(input) && input < first_slice;
    // A carry's cotangent flows from iteration to iteration, so it is wanted whenever the carry is active.
    let wanted: Vec<bool> = results
        .iter()
        .enumerate()
        .map(|(index, &active)| active && (index < scan.carry_count || wanted[index]))
        .collect();
    let required: Vec<bool> = (0..inputs.len()).map(|input| is_carry(input) && inputs[input]).collect();
    let joint = Joint::new(&scan.body, &inputs, &wanted, &required)?;
    let flowing = |input: &usize| joint.gradients[*input].is_some();
    let carries: Vec<usize> = (scan.invariant_count..first_slice).filter(flowing).collect();
    let accumulated: Vec<usize> = (0..scan.invariant_count).filter(flowing).collect();
    let slices: Vec<usize> = (first_slice..inputs.len()).filter(flowing).collect();
    let returned: Vec<Value> =
        [&carries[..], &accumulated, &slices].concat().iter().filter_map(|&input| joint.gradients[input]).collect();
    let kept: Vec<bool> = (0..inputs.len()).map(|input| !is_carry(input)).collect();
    let Halves { forward, backward, residuals } = joint.split(&returned, &kept);

    let op = Scan { body: Arc::new(forward), ..scan.clone() };
    let mut outputs = builder.push(op, operands)?;
    let computed: Values = outputs.drain(scan.body.outputs().len()..).collect();

    let invariant = |residual: &Residual| matches!(*residual, Residual::Input(input) if is_invariant(input));
    let source = |residual: &Residual| match *residual {
        Residual::Input(input) => operands[input],
        Residual::Computed(index) => computed[index],
    };
    let invariants: Vec<Value> = residuals.iter().filter(|residual| invariant(residual)).map(source).collect();
    let stacked: Vec<Value> = residuals.iter().filter(|residual| !invariant(residual)).map(source).collect();
    let body =
        backward_scan_body(&backward, &residuals.iter().map(invariant).collect::<Vec<_>>(), &carries, &accumulated)?;
    let tape = ScanTape {
        backward: Scan {
            body: Arc::new(body),
            length: scan.length,
            invariant_count: invariants.len(),
            carry_count: carries.len() + accumulated.len(),
            reverse: !scan.reverse,
        },
        invariants,
        stacked,
        carries,
        accumulated,
        slices,
        outputs: (scan.carry_count..wanted.len()).filter(|&index| wanted[index]).collect(),
    };
    Ok((outputs, RegionTape::Scan(tape)))
}

/// Turns a backward half (residuals, then cotangents of carries and of stacked outputs) into the body of a scan:
/// invariant residuals, carried cotangents, accumulators, then stacked residuals and cotangents of stacked outputs.
fn backward_scan_body(
    backward: &Graph,
    invariant: &[bool],
    carries: &[usize],
    accumulated: &[usize],
) -> Result<Graph, OpError> {
    let mut builder = GraphBuilder::new(format!("{}_backward", backward.name()));
    let mut arguments: Vec<Option<Value>> = vec![None; backward.inputs().len()];
    let types: Vec<_> = backward.input_types().cloned().collect();
    let results: Vec<_> = backward.output_types().cloned().collect();
    let mut input = |builder: &mut GraphBuilder, index: usize| {
        arguments[index] = Some(builder.input(types[index].clone(), PortInfo::default()));
    };
    let residual_count = invariant.len();
    (0..residual_count).filter(|&index| invariant[index]).for_each(|index| input(&mut builder, index));
    (residual_count..residual_count + carries.len()).for_each(|index| input(&mut builder, index));
    let sums: Vec<Value> = (carries.len()..carries.len() + accumulated.len())
        .map(|index| builder.input(results[index].clone(), PortInfo::default()))
        .collect();
    (0..residual_count).filter(|&index| !invariant[index]).for_each(|index| input(&mut builder, index));
    (residual_count + carries.len()..types.len()).for_each(|index| input(&mut builder, index));
    let arguments: Vec<Value> = arguments.into_iter().flatten().collect();
    let mut outputs = builder.inline(backward, &arguments);
    builder.set_origin(Origin { phase: Phase::Backward, ..Origin::default() });
    for (output, sum) in outputs[carries.len()..].iter_mut().zip(sums) {
        *output = builder.add(sum, *output)?;
    }
    Ok(builder.finish_body(outputs.to_vec()))
}

/// The backward walk of one region op: cotangents of its operands from those of its results.
pub(super) fn pullback(
    builder: &mut GraphBuilder,
    op: &Op,
    tape: &RegionTape,
    operands: &[Value],
    needs: &[bool],
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>, OpError> {
    let mut gradients = vec![None; operands.len()];
    match (op, tape) {
        (Op::Scan(scan), RegionTape::Scan(tape)) => {
            let mut arguments = tape.invariants.clone();
            for &carry in &tape.carries {
                let ct = cotangents[carry - scan.invariant_count];
                arguments.push(ct.unwrap_or_else(|| builder.zeros_like(operands[carry])));
            }
            for &input in &tape.accumulated {
                arguments.push(builder.zeros_like(operands[input]));
            }
            arguments.extend(&tape.stacked);
            let results: Vec<_> = scan_result_types(builder, scan, operands)?;
            for &output in &tape.outputs {
                arguments.push(match cotangents[output] {
                    Some(ct) => ct,
                    None => builder.splat(results[output].clone(), 0.0),
                });
            }
            let results = builder.push(tape.backward.clone(), &arguments)?;
            let inputs = tape.carries.iter().chain(&tape.accumulated).chain(&tape.slices);
            for (&input, result) in inputs.zip(results) {
                gradients[input] = Some(result);
            }
        }
        (Op::Call(call), RegionTape::Call(tape)) => {
            let mut arguments = tape.residuals.clone();
            for &output in &tape.outputs {
                let ty = call.function.ty(call.function.outputs()[output]).clone();
                arguments.push(cotangents[output].unwrap_or_else(|| builder.splat(ty, 0.0)));
            }
            let results = builder.push(Call { function: tape.backward.clone() }, &arguments)?;
            for (&input, result) in tape.inputs.iter().zip(results) {
                gradients[input] = Some(result);
            }
        }
        (Op::Checkpoint(checkpoint), RegionTape::Checkpoint(kept)) => {
            let backward = builder.origin();
            builder.set_origin(backward.in_phase(Phase::Recompute));
            // Everything the recomputation reads passes one barrier together with the cotangents: it cannot be merged
            // with the forward pass, and it cannot start before the backward pass gets here.
            let flowing: Vec<Value> = cotangents.iter().copied().flatten().collect();
            let mut guarded = operands.to_vec();
            guarded.extend(kept.iter().map(|&(_, value)| value));
            guarded.extend(&flowing);
            let guarded = builder.push(Barrier, &guarded)?;
            let body = &*checkpoint.body;
            let mut map = ValueMap::for_inputs(body, &guarded[..operands.len()]);
            for (&(inner, _), &value) in kept.iter().zip(&guarded[operands.len()..]) {
                map.set(inner, value);
            }
            let mut fresh = guarded[operands.len() + kept.len()..].iter().copied();
            let cotangents: Vec<Option<Value>> = cotangents.iter().map(|ct| ct.and_then(|_| fresh.next())).collect();
            let wanted: Vec<bool> = cotangents.iter().map(Option::is_some).collect();
            let inner = Tape::record_onto(builder, body, map, needs, &wanted)?;
            builder.set_origin(backward);
            gradients = inner.pullback(builder, &cotangents)?;
        }
        (Op::CustomVjp(custom), RegionTape::CustomVjp(residuals)) => {
            let mut arguments = residuals.clone();
            for (index, &output) in custom.primal.outputs().iter().enumerate() {
                let ty = custom.primal.ty(output);
                if ty.dtype.is_float() {
                    arguments.push(cotangents[index].unwrap_or_else(|| builder.splat(ty.clone(), 0.0)));
                }
            }
            let results = builder.inline(&custom.backward, &arguments);
            let differentiable =
                (0..operands.len()).filter(|&index| custom.primal.ty(custom.primal.inputs()[index]).dtype.is_float());
            for (index, result) in differentiable.zip(results) {
                gradients[index] = Some(result);
            }
        }
        // A tape is always the one its own op left behind.
        _ => {}
    }
    Ok(gradients)
}

/// The types of a scan's results.
fn scan_result_types(builder: &GraphBuilder, scan: &Scan, operands: &[Value]) -> Result<Vec<TensorType>, OpError> {
    let types: Vec<&TensorType> = operands.iter().map(|&value| builder.ty(value)).collect();
    let result = scan.infer(&types);
    let owned = || types.iter().map(|&ty| ty.clone()).collect();
    result.map(|types| types.to_vec()).map_err(|error| OpError::new(scan.name(), error, owned(), builder.origin()))
}
