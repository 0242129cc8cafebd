//! Checks of a run that a config alone does not decide.

use super::RunConfig;
use super::error::{ConfigError, invalid};
use meshloom::hlo::suggest::{did_you_mean, nearest};

impl RunConfig {
    /// Refuses what can be compiled ahead of time, but not run.
    ///
    /// # Errors
    /// A topology: it is hardware that is not there.
    pub fn check_runnable(&self) -> Result<(), ConfigError> {
        let topology = &self.target.topology;
        let reason = "a topology is compiled for, not run on; use `meshloom compile`, or target.topology = \"\"";
        if topology.is_empty() { Ok(()) } else { Err(invalid("target.topology", topology, reason)) }
    }

    /// Refuses evaluations without `validation.sources`, for runs on the config's own text. Others have their own
    /// validation set, which the config does not know.
    ///
    /// # Errors
    /// There is nothing to evaluate on.
    pub fn check_validation(&self) -> Result<(), ConfigError> {
        self.check_evaluation(!self.validation.sources.is_empty())
    }

    /// Refuses patterns that match no parameter. `unmatched` is one of `train.no_decay`, `paths` are the parameters'.
    pub(crate) fn no_such_path(&self, unmatched: &str, paths: &[String]) -> ConfigError {
        let reason = format!("no parameter has a path like this{}", near_pattern(unmatched, paths));
        self.placed(invalid("train.no_decay", unmatched, &reason))
    }

    /// Refuses evaluations without a validation set.
    pub(crate) fn check_evaluation(&self, has_validation: bool) -> Result<(), ConfigError> {
        let every = self.validation.every;
        let reason = "there is nothing to evaluate on; set validation.sources to files that are not trained on";
        match every == 0 || has_validation {
            true => Ok(()),
            false => Err(self.placed(invalid("validation.every", every, reason))),
        }
    }
}

/// ` (did you mean "x"?)`, or nothing: the pattern with the first name that no path has changed to one that some have,
/// or a path near to it.
fn near_pattern(pattern: &str, paths: &[String]) -> String {
    let names = paths.iter().flat_map(|path| path.split('.'));
    let words = names.clone().flat_map(|name| name.split('_'));
    let written = pattern.split(['.', '*', '?']).filter(|name| !name.is_empty());
    let mut unknown = written.filter(|name| !paths.iter().any(|path| path.contains(name)));
    let near = unknown.find_map(|name| Some((name, nearest(name, names.clone().chain(words.clone()))?)));
    match near {
        Some((name, near)) => format!(" (did you mean {:?}?)", pattern.replacen(name, near, 1)),
        None => did_you_mean(pattern, paths.iter().map(String::as_str)),
    }
}
