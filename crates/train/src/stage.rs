//! The train step of a config at each stage on its way to a plugin.

use super::config::RunConfig;
use super::step::{TrainStep, aliases};
use crate::Error;
use meshloom::compile::{LOCAL_PASSES, LowerOptions, Lowered, PASSES, lower};
use meshloom::emit::GroupFormat;
use meshloom::hlo::Stage;

impl RunConfig {
    /// The program that the config describes, of `train.steps_per_call` steps, at a stage. [`Stage::Compiled`] is what a plugin gets, as [`Stage::Partitioned`] is
    /// (or [`Stage::Sharded`], where the config lets XLA partition): only a plugin goes further.
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
