//! Checkpoints: the backward pass records the body again, from the operands and the values that the policy has kept.

use std::rc::Rc;

use super::Recording;
use crate::autodiff::keep::{self, Keeping, Kept};
use crate::autodiff::reverse::Tape;
use crate::autodiff::reverse::calls::CallCache;
use crate::ir::{GraphBuilder, OpError, Phase, Value, ValueMap, Values};
use crate::ops::{Barrier, Checkpoint};

/// The values of a checkpoint's body that its policy and those of the checkpoints around it have kept.
#[derive(Debug)]
pub(in crate::autodiff::reverse) struct CheckpointTape(Vec<Kept>);

pub(super) fn record(
    builder: &mut GraphBuilder,
    checkpoint: &Checkpoint,
    recording: &Recording<'_>,
) -> Result<(Values, CheckpointTape), OpError> {
    let body = &*checkpoint.body;
    let mut map = ValueMap::for_inputs(body, recording.operands);
    let mut kept: Vec<Kept> = recording.kept.iter().map(|kept| kept.inside(0, &kept.values)).collect();
    let plan = Rc::new(Keeping::of(body, &checkpoint.policy));
    let values = keep::copy(builder, body, &mut map, &kept, &plan, &recording.calls.copies)?;
    // Where both keep a value, the inner policy decides, so its values come last.
    kept.push(Kept { plan, values });
    let results = body.outputs().iter().map(|&value| map.get(value)).collect();
    Ok((results, CheckpointTape(kept)))
}

pub(super) fn pullback(
    builder: &mut GraphBuilder,
    checkpoint: &Checkpoint,
    tape: &CheckpointTape,
    operands: &[Value],
    needs: &[bool],
    cotangents: &[Option<Value>],
    calls: &CallCache,
) -> Result<Vec<Option<Value>>, OpError> {
    let backward = builder.origin();
    builder.set_origin(backward.in_phase(Phase::Recompute));
    // Everything the recomputation reads passes one barrier together with the cotangents: it cannot be merged with the
    // forward pass, and it cannot start before the backward pass gets here.
    let kept_values = tape.0.iter().flat_map(|kept| &kept.values);
    let guarded: Vec<Value> =
        operands.iter().chain(kept_values).copied().chain(cotangents.iter().copied().flatten()).collect();
    let guarded = builder.push(Barrier, &guarded)?;
    let (operands, rest) = guarded.split_at(operands.len());
    let mut rest = rest.iter().copied();
    let mut again =
        |kept: &Kept| Kept { plan: kept.plan.clone(), values: rest.by_ref().take(kept.values.len()).collect() };
    let kept: Vec<Kept> = tape.0.iter().map(&mut again).collect();
    let cotangents: Vec<Option<Value>> = cotangents.iter().map(|ct| ct.and_then(|_| rest.next())).collect();
    let wanted: Vec<bool> = cotangents.iter().map(Option::is_some).collect();
    let body = &*checkpoint.body;
    let map = ValueMap::for_inputs(body, operands);
    let inner = Tape::record_onto(builder, body, map, needs, &wanted, &kept, calls)?;
    builder.set_origin(backward);
    inner.pullback(builder, &cotangents)
}
