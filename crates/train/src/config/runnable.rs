//! What a run needs that a config alone does not say.

use super::RunConfig;
use super::error::{ConfigError, invalid};

impl RunConfig {
    /// Refuses what can be compiled ahead of time, but not run.
    ///
    /// # Errors
    /// A topology: it is hardware that is not there.
    pub fn check_runnable(&self) -> Result<(), ConfigError> {
        let topology = &self.target.topology;
        let reason = "a topology is compiled for, not run on; use `StepAhead::compile`, or target.topology = \"\"";
        if topology.is_empty() { Ok(()) } else { Err(invalid("target.topology", topology, reason)) }
    }

    /// Refuses evaluations without a validation set.
    pub(crate) fn check_evaluation(&self, has_validation: bool) -> Result<(), ConfigError> {
        let every = self.train.eval_every;
        let reason = "there is nothing to evaluate on; set data.validation to files that are not trained on";
        if every == 0 || has_validation { Ok(()) } else { Err(invalid("train.eval_every", every, reason)) }
    }
}
