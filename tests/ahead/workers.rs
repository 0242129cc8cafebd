//! Workers that the tests start, and their counts. The worker is the test program itself.

use std::fmt::Display;

use meshloom::pjrt::ahead_of_time::{self, CompiledAhead, Settings};
use meshloom::pjrt::{CompileOptions, PjrtError};
use meshloom_train::config::RunConfig;
use meshloom_train::run::StepAhead;
use support::ahead_of_time::topology;
use support::counts;

pub fn compile(target: &str, module: &[u8], options: &CompileOptions) -> Result<CompiledAhead, PjrtError> {
    counts::started(1);
    ahead_of_time::compile(&topology(target), module, options, &Settings::default())
}

/// Compiles the train step of a config; `what` names it in messages.
pub fn step(what: impl Display, config: &RunConfig) -> StepAhead {
    // One worker describes the topology, and one compiles.
    counts::started(2);
    let step = StepAhead::compile(config, &Settings::default());
    step.unwrap_or_else(|error| panic!("{}, {what}: {error}", config.target.topology))
}
