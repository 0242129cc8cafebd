//! What this version can run. Each feature that lands drops its line here.

use super::error::{ConfigError, ConfigErrorKind, invalid};
use super::{ModelFamily, Platform, RunConfig};

impl RunConfig {
    /// Refuses what the config may ask for but this version cannot run yet. Call it before running; printing, checking
    /// and converting configs need not.
    pub fn check_supported(&self) -> Result<(), ConfigError> {
        let quoted = |text: &str| format!("{text:?}");
        let checks: [(&str, bool, String, &str); 2] = [
            (
                "model.family",
                self.model.family == ModelFamily::Gemma2,
                quoted(self.model.family.name()),
                "use model.family = \"llama\", \"mixtral\" or \"deepseek\"",
            ),
            (
                "target.platform",
                self.target.platform != Platform::Cpu && self.target.topology.is_empty(),
                quoted(self.target.platform.name()),
                "use target.platform = \"cpu\"",
            ),
        ];
        for (key, unsupported, value, instead) in checks {
            if unsupported {
                return Err(not_built(key, value, instead));
            }
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
}

fn not_built(key: &str, value: String, instead: &str) -> ConfigError {
    ConfigErrorKind::NotBuilt { key: key.to_owned(), value, instead: instead.to_owned() }.into()
}
