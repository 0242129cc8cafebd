//! What this version can run. Each feature that lands drops its line here.

use super::error::{ConfigError, ConfigErrorKind, invalid};
use super::{ModelFamily, RunConfig};

impl RunConfig {
    /// Refuses what the config may ask for but this version cannot run yet. Call it before running; printing, checking
    /// and converting configs need not.
    pub fn check_supported(&self) -> Result<(), ConfigError> {
        if self.model.family == ModelFamily::Gemma2 {
            let instead = "use model.family = \"llama\", \"mixtral\" or \"deepseek\"";
            return Err(not_built("model.family", self.model.family.name(), instead));
        }
        Ok(())
    }

    /// As [`RunConfig::check_supported`], for what is to run rather than to be compiled ahead of time.
    ///
    /// # Errors
    /// Also for a topology: it is hardware that is not there.
    pub fn check_runnable(&self) -> Result<(), ConfigError> {
        self.check_supported()?;
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

fn not_built(key: &str, value: &str, instead: &str) -> ConfigError {
    let (key, value, instead) = (key.to_owned(), format!("{value:?}"), instead.to_owned());
    ConfigErrorKind::NotBuilt { key, value, instead }.into()
}
