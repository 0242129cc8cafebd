//! The loss on a validation set.

use super::token_order::arranged;
use crate::Error;
use crate::data::DataError;
use crate::run::{Dataset, Model, Params, laid_out_for};
use meshloom::compile::Program;
use meshloom::ir::InternalError;
use meshloom::pjrt::Array;
use meshloom::trace::Tree;
use meshloom_nn::TokenOrder;

/// A compiled forward pass, on the same mesh as the train step.
pub(super) struct Evaluator {
    rows: usize,
    program: Program,
}

impl Evaluator {
    /// A program of parameters and so many rows.
    pub(super) fn new(rows: usize, program: Program) -> Evaluator {
        Evaluator { rows, program }
    }

    /// The compiled forward pass.
    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    /// The mean loss over the first `rows` rows of the set, or all if there are fewer: each call's mean, weighted by
    /// what its batch counts for. Programs take the tokens of a row in this order. `call` runs a program.
    pub(super) fn loss<M: Model, D: Dataset<M>>(
        &self,
        (data, order): (&D, TokenOrder),
        params: &Params<M, Array>,
        rows: u64,
        call: impl Fn(&Program, &[&Array]) -> Result<Vec<Array>, Error>,
    ) -> Result<f64, Error> {
        let params = laid_out_for(&self.program, params.leaves())?;
        let (mut sum, mut total) = (0.0, 0.0);
        for first in (0..rows).step_by(self.rows) {
            let Some(batch) = data.validation(first..first + self.rows as u64)? else { break };
            let weight = data.weight(&batch);
            let batch = self.program.put(params.len(), &arranged(order, batch.leaves())?)?;
            let outputs = call(&self.program, &params.iter().chain(&batch).collect::<Vec<_>>())?;
            let loss = outputs.first().map(Array::get).transpose()?.and_then(|loss| loss.to_f64_vec().first().copied());
            sum += weight * loss.ok_or_else(|| InternalError::new("a forward pass", "a loss for its output"))?;
            total += weight;
        }
        if total == 0.0 {
            return Err(DataError::NoTargets(rows).into());
        }
        Ok(sum / total)
    }
}
