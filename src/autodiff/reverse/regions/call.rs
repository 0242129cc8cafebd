//! Calls: a function is differentiated once for all calls that ask the same of it.

use std::rc::Rc;
use std::sync::Arc;

use super::{Recording, cotangents_of, gradients_of, marked};
use crate::autodiff::keep::policies;
use crate::autodiff::reverse::calls::{CallCache, CallHalves};
use crate::autodiff::reverse::residual::residual_values;
use crate::autodiff::reverse::split::{Joint, JointHalves};
use crate::ir::{Graph, GraphBuilder, OpError, Value, Values};
use crate::ops::Call;

#[derive(Debug)]
pub(in crate::autodiff::reverse) struct CallTape {
    halves: Rc<CallHalves>,
    /// Operands of the backward half that come from the forward pass.
    residuals: Vec<Value>,
    /// Results whose cotangents are read.
    outputs: Vec<usize>,
}

impl CallCache {
    fn halves(&self, function: &Arc<Graph>, recording: &Recording<'_>) -> Result<Rc<CallHalves>, OpError> {
        let Recording { active, wanted, kept, .. } = *recording;
        self.halves.of(function, (active.to_vec(), wanted.to_vec(), policies(kept)), || {
            let joint = Joint::new(function, 0, active, wanted, kept, self)?;
            let inputs = marked(joint.gradients.iter().map(Option::is_some));
            let gradients: Vec<Value> = joint.gradients.iter().copied().flatten().collect();
            let JointHalves { forward, backward, residuals, .. } = joint.split(&gradients, |_| true, 0);
            let backward = backward.renamed(format!("{}_backward", function.name()));
            let (forward, backward) = (Arc::new(forward), Arc::new(backward));
            Ok(Rc::new(CallHalves { forward, backward, residuals, inputs }))
        })
    }
}

pub(super) fn record(
    builder: &mut GraphBuilder,
    call: &Call,
    recording: &Recording<'_>,
) -> Result<(Values, CallTape), OpError> {
    let halves = recording.calls.halves(&call.function, recording)?;
    let operands = recording.all_operands();
    let mut results = builder.push(Call { function: halves.forward.clone() }, &operands)?;
    let output_count = call.function.outputs().len();
    let residuals = residual_values(&halves.residuals, &operands, &results, output_count);
    results.truncate(output_count);
    Ok((results, CallTape { halves, residuals, outputs: marked(recording.wanted.iter().copied()) }))
}

pub(super) fn pullback(
    builder: &mut GraphBuilder,
    call: &Call,
    tape: &CallTape,
    operand_count: usize,
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>, OpError> {
    let function = &call.function;
    let mut arguments = tape.residuals.clone();
    arguments
        .extend(cotangents_of(builder, &tape.outputs, cotangents, |output| function.ty(function.outputs()[output])));
    let results = builder.push(Call { function: tape.halves.backward.clone() }, &arguments)?;
    Ok(gradients_of(operand_count, tape.halves.inputs.iter().copied(), results))
}
