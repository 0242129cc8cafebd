//! Branches: each has its own residuals, and the conditional returns room for those of any branch.

use std::sync::Arc;

use super::{Recording, cotangents_of, gradients_of, marked};
use crate::autodiff::keep::{spread, unify};
use crate::autodiff::reverse::residual::{Residual, residual_values};
use crate::autodiff::reverse::split::{Joint, JointHalves};
use crate::ir::{Graph, GraphBuilder, InternalError, OpError, PortInfo, TensorType, Value, Values};
use crate::ops::Cond;

#[derive(Debug)]
pub(in crate::autodiff::reverse) struct CondTape {
    backward: Cond,
    /// Operands of the backward branches that come from the forward pass.
    residuals: Vec<Value>,
    /// Operands that get a cotangent.
    inputs: Vec<usize>,
    /// Results whose cotangents are read.
    outputs: Vec<usize>,
}

pub(super) fn record(
    builder: &mut GraphBuilder,
    cond: &Cond,
    recording: &Recording<'_>,
) -> Result<(Values, CondTape), OpError> {
    let Recording { active, wanted, kept, calls, .. } = *recording;
    let joints = cond.branches.iter().enumerate();
    let joints = joints.map(|(index, branch)| Joint::new(branch, index, &active[1..], wanted, kept, calls));
    let mut joints = joints.collect::<Result<Vec<Joint>, OpError>>()?;
    // All branches return the cotangents that any of them has.
    let inputs = marked((0..active.len() - 1).map(|input| joints.iter().any(|joint| joint.gradients[input].is_some())));
    let mut halves: Vec<JointHalves> = Vec::new();
    for joint in &mut joints {
        joint.require(|input| inputs.contains(&input));
        let gradients: Vec<Value> = inputs.iter().filter_map(|&input| joint.gradients[input]).collect();
        halves.push(joint.split(&gradients, |_| true, 0));
    }

    let computed =
        |half: &JointHalves| -> Vec<TensorType> { half.forward.output_types().skip(wanted.len()).cloned().collect() };
    let (slot_types, slots) = unify(&halves.iter().map(computed).collect::<Vec<_>>());
    let forward = halves.iter().zip(&slots).map(|(half, slots)| Arc::new(forward_branch(half, slots, &slot_types)));
    let operands = recording.all_operands();
    let mut results = builder.push(Cond { branches: forward.collect(), often: cond.often.clone() }, &operands)?;

    // The operands and results that any branch reads, then the slots.
    let mut shared: Vec<Residual> = Vec::new();
    for &residual in halves.iter().flat_map(|half| &half.residuals) {
        if !matches!(residual, Residual::Computed(_)) && !shared.contains(&residual) {
            shared.push(residual);
        }
    }
    shared.extend((0..slot_types.len()).map(Residual::Computed));
    let residuals = residual_values(&shared, &operands[1..], &results, wanted.len());
    results.truncate(wanted.len());
    let types: Vec<TensorType> = residuals.iter().map(|&value| builder.ty(value).clone()).collect();
    let backward =
        halves.iter().zip(&slots).map(|(half, slots)| Arc::new(backward_branch(half, slots, &shared, &types)));
    let tape = CondTape {
        backward: Cond { branches: backward.collect(), often: cond.often.clone() },
        residuals,
        inputs,
        outputs: marked(wanted.iter().copied()),
    };
    Ok((results, tape))
}

/// A forward half that returns its residuals in their slots.
fn forward_branch(half: &JointHalves, slots: &[usize], slot_types: &[TensorType]) -> Graph {
    let mut builder = GraphBuilder::new(half.forward.name());
    let inputs = builder.inputs_like(&half.forward);
    let mut outputs = builder.inline(&half.forward, &inputs).to_vec();
    let residuals = outputs.split_off(outputs.len() - slots.len());
    outputs.extend(spread(&mut builder, &residuals, slots, slot_types));
    builder.finish_body(outputs)
}

/// A backward half that takes the residuals of all branches.
fn backward_branch(half: &JointHalves, slots: &[usize], shared: &[Residual], types: &[TensorType]) -> Graph {
    let mut builder = GraphBuilder::new(format!("{}_backward", half.backward.name()));
    let inputs: Vec<Value> = types.iter().map(|ty| builder.input(ty.clone(), PortInfo::default())).collect();
    let own = |residual: &Residual| {
        let wanted = match *residual {
            Residual::Computed(index) => Residual::Computed(slots[index]),
            residual => residual,
        };
        shared.iter().position(|&other| other == wanted).map(|index| inputs[index])
    };
    let mut arguments: Vec<Value> = half.residuals.iter().filter_map(own).collect();
    let cotangents = half.backward.input_types().skip(arguments.len());
    let cotangents: Vec<Value> = cotangents.map(|ty| builder.input(ty.clone(), PortInfo::default())).collect();
    arguments.extend(cotangents);
    let outputs = builder.inline(&half.backward, &arguments);
    builder.finish_body(outputs.to_vec())
}

pub(super) fn pullback(
    builder: &mut GraphBuilder,
    cond: &Cond,
    tape: &CondTape,
    operands: &[Value],
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>, OpError> {
    let branch = cond.branches.first().ok_or_else(|| InternalError::new("cond", "a branch").at(builder.origin()))?;
    let mut arguments = vec![operands[0]];
    arguments.extend(&tape.residuals);
    arguments.extend(cotangents_of(builder, &tape.outputs, cotangents, |output| branch.ty(branch.outputs()[output])));
    let results = builder.push(tape.backward.clone(), &arguments)?;
    // Operand 0 is the selector.
    Ok(gradients_of(operands.len(), tape.inputs.iter().map(|input| input + 1), results))
}
