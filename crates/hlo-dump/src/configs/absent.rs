//! Takes the place of run configs if the program is built without them. There is no [`Run`] then, and a command that
//! asks for one gets an error that says how to get it.

use anyhow::Result;
use meshloom_hlo::Stage;
use meshloom_hlo::proto::HloModuleProtoWithConfig;

use crate::run::Run;

/// Runs before everything else.
pub fn start() {}

/// Returns the error of a part of the program that needs run configs or plugins.
pub fn missing(what: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{what} needs the feature `configs`, which this hlo-dump is built without; `cargo install hlo-dump` builds one that has it"
    )
}

/// Returns false: without a parser of TOML, the name alone says that a file is a run config.
pub fn is_config(_: &str) -> bool {
    false
}

pub fn read(_: &str, _: &str, _: Stage, _: &[String]) -> Result<(Box<dyn Run>, HloModuleProtoWithConfig)> {
    Err(missing("a run config"))
}
