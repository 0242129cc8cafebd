//! Loops: a scan stacks its residuals, and a scan in the other direction reads them.

use std::sync::Arc;

use super::{Recording, cotangents_of, gradients_of};
use crate::autodiff::activity::region_activity;
use crate::autodiff::reverse::residual::residual_values;
use crate::autodiff::reverse::split::{Joint, JointHalves};
use crate::ir::{Graph, GraphBuilder, OpError, Origin, Phase, PortInfo, Value, Values};
use crate::ops::{ReduceKind, Scan};

#[derive(Debug)]
pub(in crate::autodiff::reverse) struct ScanTape {
    backward: Scan,
    /// Invariant operands of the backward scan.
    invariants: Vec<Value>,
    stacked: Vec<Value>,
    /// Operands (carries) whose cotangents are carried.
    carries: Vec<usize>,
    /// Operands (invariants) whose cotangents are accumulated.
    accumulated: Vec<usize>,
    /// Operands whose cotangents are stacked: stacked ones; where iterations run side by side, invariants too, whose
    /// cotangents are then added up.
    slices: Vec<usize>,
    /// Results (stacked outputs) whose cotangents are read.
    outputs: Vec<usize>,
}

pub(super) fn record(
    builder: &mut GraphBuilder,
    scan: &Scan,
    recording: &Recording<'_>,
) -> Result<(Values, ScanTape), OpError> {
    let flow = region_activity(scan.clone(), recording.active);
    let (inputs, results) = (&flow.inputs[0], &flow.results);
    let first_slice = scan.invariant_count + scan.carry_count;
    let is_invariant = |input: usize| input < scan.invariant_count;
    let is_carry = |input: usize| !is_invariant(input) && input < first_slice;
    // A carry's cotangent flows from iteration to iteration, so it is wanted whenever the carry is active.
    let wanted: Vec<bool> = results
        .iter()
        .enumerate()
        .map(|(index, &active)| active && (index < scan.carry_count || recording.wanted[index]))
        .collect();
    let mut joint = Joint::new(&scan.body, 0, inputs, &wanted, recording.kept, recording.calls)?;
    joint.require(|input| is_carry(input) && inputs[input]);
    let flowing = |input: &usize| joint.gradients[*input].is_some();
    let carries: Vec<usize> = (scan.invariant_count..first_slice).filter(flowing).collect();
    let accumulated: Vec<usize> = (0..scan.invariant_count).filter(flowing).collect();
    let slices: Vec<usize> = (first_slice..inputs.len()).filter(flowing).collect();
    // Iterations side by side carry no sums: what each adds to the cotangent of an invariant is stacked.
    let (accumulated, added) = if scan.parallel { (Vec::new(), accumulated) } else { (accumulated, Vec::new()) };
    let slices = [slices, added].concat();
    let returned: Vec<Value> =
        [&carries[..], &accumulated, &slices].concat().iter().filter_map(|&input| joint.gradients[input]).collect();
    let JointHalves { forward, backward, residuals, saved } =
        joint.split(&returned, |input| !is_carry(input), scan.carry_count);

    let op = Scan { body: Arc::new(forward), ..scan.clone() };
    let operands = recording.all_operands();
    let mut outputs = builder.push(op, &operands)?;
    let mut values = residual_values(&residuals, &operands, &outputs, scan.body.outputs().len());
    outputs.truncate(scan.body.outputs().len());
    // Values that a hand-written forward rule computes from invariants are the same in every iteration: once is enough.
    let (invariant, once) = joint.part_of_inputs(scan.invariant_count, &saved);
    let once = builder.inline(&once, &operands[..scan.invariant_count]);
    let places = values.iter_mut().zip(&invariant).filter(|(_, invariant)| **invariant);
    places.zip(once).for_each(|((place, _), value)| *place = value);
    let chosen = |wanted: bool| {
        values.iter().zip(&invariant).filter_map(move |(&value, &invariant)| (invariant == wanted).then_some(value))
    };
    let (invariants, stacked): (Vec<Value>, Vec<Value>) = (chosen(true).collect(), chosen(false).collect());
    let origin = builder.origin().in_phase(Phase::Backward);
    let body = backward_body(&backward, &invariant, &carries, &accumulated, origin)?;
    let tape = ScanTape {
        backward: Scan {
            body: Arc::new(body),
            invariant_count: invariants.len(),
            carry_count: carries.len() + accumulated.len(),
            reverse: !scan.reverse,
            ..scan.clone()
        },
        invariants,
        stacked,
        carries,
        accumulated,
        slices,
        outputs: (scan.carry_count..wanted.len()).filter(|&index| wanted[index]).collect(),
    };
    Ok((outputs, tape))
}

/// Turns a backward half (residuals, then cotangents of carries and of stacked outputs) into the body of a scan:
/// invariant residuals, carried cotangents, accumulators, then stacked residuals and cotangents of stacked outputs.
fn backward_body(
    backward: &Graph,
    invariant: &[bool],
    carries: &[usize],
    accumulated: &[usize],
    origin: Origin,
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
    builder.set_origin(origin);
    for (output, sum) in outputs[carries.len()..].iter_mut().zip(sums) {
        *output = builder.add(sum, *output)?;
    }
    Ok(builder.finish_body(outputs.to_vec()))
}

pub(super) fn pullback(
    builder: &mut GraphBuilder,
    scan: &Scan,
    tape: &ScanTape,
    operands: &[Value],
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>, OpError> {
    let mut arguments = tape.invariants.clone();
    for &carry in &tape.carries {
        let ct = cotangents[carry - scan.invariant_count];
        arguments.push(ct.unwrap_or_else(|| builder.zeros_like(operands[carry])));
    }
    for &input in &tape.accumulated {
        arguments.push(builder.zeros_like(operands[input]));
    }
    arguments.extend(&tape.stacked);
    let types = scan.result_types();
    arguments.extend(cotangents_of(builder, &tape.outputs, cotangents, |output| &types[output]));
    let mut results = builder.push(tape.backward.clone(), &arguments)?;
    let stacked = results[tape.carries.len() + tape.accumulated.len()..].iter_mut();
    for (_, result) in tape.slices.iter().zip(stacked).filter(|(input, _)| **input < scan.invariant_count) {
        *result = builder.reduce(ReduceKind::Sum, &[0], *result)?;
    }
    let inputs = tape.carries.iter().chain(&tape.accumulated).chain(&tape.slices).copied();
    Ok(gradients_of(operands.len(), inputs, results))
}
