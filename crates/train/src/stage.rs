//! The train step of a config at each stage on its way to a plugin.

use std::fmt;
use std::str::FromStr;

use super::config::RunConfig;
use super::step::{TrainStep, aliases};
use crate::Error;
use meshloom::compile::{LOCAL_PASSES, LowerOptions, Lowered, PASSES, lower};
use meshloom::emit::GroupFormat;
use meshloom::hlo::suggest::did_you_mean;

/// A stage of a program. Each adds one thing to the stage before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The forward pass, as the closure was recorded: of one replica, if there are several.
    Traced,
    /// Forward pass, backward pass and update.
    Differentiated,
    /// After the graph-to-graph passes.
    Transformed,
    /// Global shapes, with the specs of the rules as annotations.
    Sharded,
    /// The program of one device, with its collectives.
    Partitioned,
    /// What the plugin made of it.
    Compiled,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 6] =
        [Stage::Traced, Stage::Differentiated, Stage::Transformed, Stage::Sharded, Stage::Partitioned, Stage::Compiled];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Traced => "traced",
            Stage::Differentiated => "differentiated",
            Stage::Transformed => "transformed",
            Stage::Sharded => "sharded",
            Stage::Partitioned => "partitioned",
            Stage::Compiled => "compiled",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Stage, String> {
        let names = || Stage::ALL.iter().map(|stage| stage.name());
        Stage::ALL.into_iter().find(|stage| stage.name() == text).ok_or_else(|| {
            let all = names().collect::<Vec<_>>().join(", ");
            format!("there is no stage \"{text}\"{}; there are {all}", did_you_mean(text, names()))
        })
    }
}

impl RunConfig {
    /// The program that the config describes, of `train.steps_per_call` steps, at a stage. [`Stage::Compiled`] is what
    /// a plugin gets, as [`Stage::Partitioned`] is (or [`Stage::Sharded`], where the config lets XLA partition): only a
    /// plugin goes further.
    ///
    /// # Errors
    /// The config asks for something that is not built yet, or model, mesh and rules do not fit together.
    pub fn at_stage(&self, stage: Stage) -> Result<Lowered, Error> {
        self.check_supported()?;
        let none: Vec<&str> = PASSES.iter().chain(LOCAL_PASSES).map(|pass| pass.name).collect();
        let as_it_is = LowerOptions { without: &none, explicit: false, ..self.lower_options() };
        match stage {
            Stage::Traced => {
                let step = TrainStep { batch: self.rows_of_replica(), ..self.train_step() };
                Ok(lower(step.trace_loss()?.graph(), &as_it_is)?)
            }
            Stage::Differentiated => {
                let function = self.trace_run(self.calls())?;
                Ok(lower(function.graph(), &LowerOptions { aliases: aliases(&function), ..as_it_is })?)
            }
            Stage::Transformed => {
                let function = self.trace_run(self.calls())?;
                let options = LowerOptions { aliases: aliases(&function), explicit: false, ..self.lower_options() };
                Ok(lower(function.graph(), &options)?)
            }
            Stage::Sharded => {
                let function = self.trace_run(self.calls())?;
                let (mesh, rules) = (self.mesh()?, self.rule_sets()?);
                let sharding = (mesh.device_count() > 1).then_some((&mesh, &rules));
                let aliases = aliases(&function);
                let options = LowerOptions { sharding, aliases, explicit: false, ..self.lower_options() };
                Ok(lower(function.graph(), &options)?)
            }
            Stage::Partitioned | Stage::Compiled => Ok(self.lower_run(self.calls(), GroupFormat::Lists)?.1),
        }
    }
}
