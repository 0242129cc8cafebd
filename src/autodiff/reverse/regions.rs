//! Differentiation of ops with regions.
//!
//! [`record`] pushes one such op in a form that keeps the values its backward pass reads. [`pullback`] pushes the
//! backward pass. Bodies of loops, branches and calls are differentiated as joint graphs that are cut in two
//! (`split.rs`).

mod call;
mod checkpoint;
mod cond;
mod scan;

use super::Tape;
use super::calls::CallCache;
use crate::autodiff::keep::{self, NodeKept};
use crate::ir::{GraphBuilder, OpError, OpName, TypeError, Value, ValueMap, Values};
use crate::ops::{Call, Checkpoint, Cond, CustomVjp, RegionKind, Scan};

/// The record of a region op that its backward pass reads.
#[derive(Debug)]
pub(super) enum RegionTape<'g> {
    Call(&'g Call, call::CallTape),
    Checkpoint(&'g Checkpoint, checkpoint::CheckpointTape),
    Cond(&'g Cond, cond::CondTape),
    /// Residuals of the hand-written forward rule.
    CustomVjp(&'g CustomVjp, Vec<Value>),
    /// The body of a checkpoint that keeps everything.
    Inline(Box<Tape<'g>>),
    Scan(&'g Scan, scan::ScanTape),
}

/// One region op that is being recorded.
#[derive(Clone, Copy)]
pub(super) struct Recording<'a> {
    pub(super) operands: &'a [Value],
    pub(super) active: &'a [bool],
    /// Whether each result may get a cotangent.
    pub(super) wanted: &'a [bool],
    /// The values in the op's regions that checkpoints around it have kept.
    pub(super) kept: &'a [NodeKept],
    pub(super) calls: &'a CallCache,
}

impl Recording<'_> {
    /// The operands of the op that is pushed in the place of this one: its own, then the values that have been kept.
    fn all_operands(&self) -> Vec<Value> {
        self.operands.iter().chain(self.kept.iter().flat_map(|kept| &kept.values)).copied().collect()
    }
}

fn marked(flags: impl IntoIterator<Item = bool>) -> Vec<usize> {
    flags.into_iter().enumerate().filter_map(|(index, flag)| flag.then_some(index)).collect()
}

/// The forward walk of one region op: pushes it in a form that keeps residuals; returns its results.
pub(super) fn record<'g>(
    builder: &mut GraphBuilder,
    op: RegionKind<'g>,
    recording: &Recording<'_>,
) -> Result<(Values, RegionTape<'g>), OpError> {
    let Recording { operands, active, wanted, kept, calls } = *recording;
    Ok(match op {
        RegionKind::Call(op) => taped(call::record(builder, op, recording)?, |tape| RegionTape::Call(op, tape)),
        RegionKind::Checkpoint(checkpoint) if checkpoint.policy.keeps_all() => {
            let map = ValueMap::for_inputs(&checkpoint.body, operands);
            let kept: Vec<_> = kept.iter().map(|kept| kept.inside(0, &kept.values)).collect();
            let tape = Tape::record_onto(builder, &checkpoint.body, map, active, wanted, &kept, calls)?;
            (tape.outputs().into(), RegionTape::Inline(Box::new(tape)))
        }
        RegionKind::Checkpoint(op) => {
            taped(checkpoint::record(builder, op, recording)?, |tape| RegionTape::Checkpoint(op, tape))
        }
        RegionKind::Cond(op) => taped(cond::record(builder, op, recording)?, |tape| RegionTape::Cond(op, tape)),
        RegionKind::CustomVjp(op) => {
            taped(record_custom(builder, op, recording)?, |residuals| RegionTape::CustomVjp(op, residuals))
        }
        RegionKind::Scan(op) => taped(scan::record(builder, op, recording)?, |tape| RegionTape::Scan(op, tape)),
        RegionKind::While(op) => {
            let types = operands.iter().map(|&value| builder.ty(value).clone()).collect();
            return Err(OpError::new(op.name(), TypeError::NotReversible, types, builder.origin()));
        }
    })
}

fn taped<'g, T>((results, tape): (Values, T), kind: impl FnOnce(T) -> RegionTape<'g>) -> (Values, RegionTape<'g>) {
    (results, kind(tape))
}

/// Runs the hand-written forward rule; returns the results and its residuals.
fn record_custom(
    builder: &mut GraphBuilder,
    custom: &CustomVjp,
    recording: &Recording<'_>,
) -> Result<(Values, Vec<Value>), OpError> {
    let forward = &*custom.forward;
    let mut map = ValueMap::for_inputs(forward, recording.operands);
    let kept: Vec<_> = recording.kept.iter().map(|kept| kept.inside(0, &kept.values)).collect();
    keep::copy(builder, forward, &mut map, &kept, &keep::Keeping::nothing(), &recording.calls.copies)?;
    let mut results: Values = forward.outputs().iter().map(|&value| map.get(value)).collect();
    let residuals = results.drain(custom.primal.outputs().len()..).collect();
    Ok((results, residuals))
}

/// The backward walk of one region op: pushes the cotangents of its operands, from those of its results.
pub(super) fn pullback(
    builder: &mut GraphBuilder,
    tape: &RegionTape<'_>,
    operands: &[Value],
    needs: &[bool],
    cotangents: &[Option<Value>],
    calls: &CallCache,
) -> Result<Vec<Option<Value>>, OpError> {
    match tape {
        RegionTape::Call(call, tape) => call::pullback(builder, call, tape, operands.len(), cotangents),
        RegionTape::Checkpoint(checkpoint, tape) => {
            checkpoint::pullback(builder, checkpoint, tape, operands, needs, cotangents, calls)
        }
        RegionTape::Cond(cond, tape) => cond::pullback(builder, cond, tape, operands, cotangents),
        RegionTape::CustomVjp(custom, residuals) => Ok(pull_back_custom(builder, custom, residuals, cotangents)),
        RegionTape::Inline(tape) => tape.pullback(builder, cotangents),
        RegionTape::Scan(scan, tape) => scan::pullback(builder, scan, tape, operands, cotangents),
    }
}

fn pull_back_custom(
    builder: &mut GraphBuilder,
    custom: &CustomVjp,
    residuals: &[Value],
    cotangents: &[Option<Value>],
) -> Vec<Option<Value>> {
    let mut arguments = residuals.to_vec();
    for (ty, ct) in custom.primal.output_types().zip(cotangents).filter(|(ty, _)| ty.dtype.is_float()) {
        arguments.push(ct.unwrap_or_else(|| builder.splat(ty.clone(), 0.0)));
    }
    let mut results = builder.inline(&custom.backward, &arguments).into_iter();
    custom.primal.input_types().map(|ty| if ty.dtype.is_float() { results.next() } else { None }).collect()
}

/// The cotangents of the results listed, with zeros of these types where there are none.
fn cotangents_of<'t>(
    builder: &mut GraphBuilder,
    outputs: &[usize],
    cotangents: &[Option<Value>],
    ty: impl Fn(usize) -> &'t crate::ir::TensorType,
) -> Vec<Value> {
    outputs.iter().map(|&output| cotangents[output].unwrap_or_else(|| builder.splat(ty(output).clone(), 0.0))).collect()
}

/// One gradient for each operand: `results` for those listed.
fn gradients_of(operand_count: usize, inputs: impl IntoIterator<Item = usize>, results: Values) -> Vec<Option<Value>> {
    let mut gradients = vec![None; operand_count];
    inputs.into_iter().zip(results).for_each(|(input, result)| gradients[input] = Some(result));
    gradients
}
