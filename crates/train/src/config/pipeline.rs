//! The section `[pipeline]`: from its keys and the mesh to the form of a pipeline, or to an error that names the key.

use super::error::{ConfigError, invalid, invalid_described};
use super::section::write_section;
use super::validate::{Checked, needs_section};
use super::{PipelineConfig, RunConfig};
use meshloom::ops::RematPolicy;
use meshloom::transform::pipeline::{Cost, Costs, PipelineError, PipelineOptions, ScheduleError};

impl RunConfig {
    /// The form of the pipeline that the config describes; `None` without a section `[pipeline]`. The stages are the
    /// mesh axis `stage`, whole: also what of it crosses slices.
    ///
    /// # Errors
    /// `mesh.axes` does not fit the devices (those of a topology are known to [`RunConfig::on_devices`]), or the keys
    /// of `[pipeline]` exclude each other.
    pub fn pipeline_options(&self) -> Result<Option<PipelineOptions>, ConfigError> {
        match &self.pipeline {
            None => Ok(None),
            Some(_) => self.pipeline_of(self.placement()?.axis_size("stage")),
        }
    }

    /// As [`RunConfig::pipeline_options`], with so many stages.
    pub(crate) fn pipeline_of(&self, stages: usize) -> Result<Option<PipelineOptions>, ConfigError> {
        let Some(pipeline) = &self.pipeline else { return Ok(None) };
        let options = self.unchecked_options(pipeline, stages);
        options.validate().map_err(|error| refusal(pipeline, &error))?;
        Ok(Some(options))
    }

    fn unchecked_options(&self, pipeline: &PipelineConfig, stages: usize) -> PipelineOptions {
        PipelineOptions {
            stages,
            repeats: pipeline.repeats,
            chunks: pipeline.chunks,
            microbatches: pipeline.microbatches,
            layers_per_stage: pipeline.layers_per_stage / self.stack().cycle.len().max(1),
            weights: pipeline.weights,
            schedule: pipeline.schedule,
            delay_forwarding: pipeline.delay_forwarding,
            scan_iterations: pipeline.scan_iterations,
            scan_repeats: pipeline.scan_repeats,
            scan_layers: self.model.scan_layers,
            keep_gathered: pipeline.keep_gathered,
            remat: self.remat_of(pipeline),
            costs: costs(&pipeline.costs),
        }
    }

    /// Returns the policy for the layers of a pipeline.
    pub(crate) fn remat_of(&self, pipeline: &PipelineConfig) -> RematPolicy {
        pipeline.remat.as_ref().unwrap_or(&self.remat).clone()
    }

    /// Checks that there can be such a pipeline, and that model and batch divide into it.
    pub(super) fn validate_pipeline(&self, stages: usize) -> Checked {
        let Some(pipeline) = &self.pipeline else {
            return match stages {
                1 => Ok(()),
                _ => Err(needs_section(&self.mesh.axes, "stage", "a section [pipeline]; add one, or give")),
            };
        };
        let PipelineConfig { microbatches, repeats, .. } = *pipeline;
        if stages == 1 && repeats == 1 {
            let reason = "a pipeline needs a mesh axis \"stage\" of more than one device, or more than one repeat; \
                          give one of them, or drop the section [pipeline]";
            return Err(invalid("pipeline.repeats", repeats, reason));
        }
        if !pipeline.costs.len().is_multiple_of(3) {
            let reason = "it must have three numbers, or three for each chunk of each stage";
            return Err(invalid("pipeline.costs", &pipeline.costs, reason));
        }
        self.validate_cycles_of_stage(pipeline)?;
        self.unchecked_options(pipeline, stages).validate().map_err(|error| refusal(pipeline, &error))?;
        self.validate_layers_of_pipeline(pipeline, stages)?;
        let batch = self.rows_at_once();
        if !batch.is_multiple_of(microbatches) {
            let of = if self.replicas() > 1 { " of each replica" } else { "" };
            let reason = format!("it must divide train.batch / train.microbatches{of}, which is {batch}");
            let wrong = invalid("pipeline.microbatches", microbatches, &reason);
            return Err(wrong.because(["train.batch", "train.microbatches"]));
        }
        Ok(())
    }
}

impl RunConfig {
    /// Checks that stages hold whole cycles.
    fn validate_cycles_of_stage(&self, &PipelineConfig { layers_per_stage, .. }: &PipelineConfig) -> Checked {
        let cycle = self.stack().cycle.len().max(1);
        if layers_per_stage.is_multiple_of(cycle) {
            return Ok(());
        }
        let reason = format!("it must be a multiple of the {cycle} layers of a cycle, which a stage holds whole");
        Err(invalid("pipeline.layers_per_stage", layers_per_stage, &reason))
    }

    /// Refuses what only the decoder knows how to run: layers around a pipeline, and a published model.
    pub(crate) fn check_for_another_model(&self) -> Checked {
        if self.published().is_some() {
            let (key, value) = match self.model.preset.as_str() {
                "" => ("model.config", &self.model.config),
                _ => ("model.preset", &self.model.preset),
            };
            let reason = "it is a decoder, but the run is of a model that code describes; leave the key out";
            return Err(self.placed(invalid(key, value, reason)));
        }
        let Some(&PipelineConfig { layers, .. }) = self.pipeline.as_ref() else { return Ok(()) };
        let all = self.model.layers;
        if layers == 0 || layers == all {
            return Ok(());
        }
        let reason = format!(
            "model.layers is {all}, and only the decoder runs layers around its pipeline; leave pipeline.layers out, and have \
             the stages hold all layers"
        );
        Err(self.placed(invalid("pipeline.layers", layers, &reason).because(["model.layers"])))
    }

    /// Checks that the layers of a pipeline are those that its stages hold.
    fn validate_layers_of_pipeline(&self, pipeline: &PipelineConfig, stages: usize) -> Checked {
        let &PipelineConfig { repeats, chunks, layers, layers_per_stage, .. } = pipeline;
        let stack = self.stack();
        let cycle = stack.cycle.len().max(1);
        let (key, parts) =
            if pipeline.schedule.has_chunks() { ("pipeline.chunks", chunks) } else { ("pipeline.repeats", repeats) };
        let (all, factors) = (cycle * stack.cycles, [key, "pipeline.layers_per_stage"]);
        let held = stages.saturating_mul(parts).saturating_mul(layers_per_stage);
        let product = format!(
            "stages * {key} * pipeline.layers_per_stage, which is {stages} * {parts} * {layers_per_stage} = {held}"
        );
        if layers > 0 && layers != held {
            let reason = format!("it must be {product}");
            return Err(invalid("pipeline.layers", layers, &reason).because(factors));
        }
        if held > all || (layers == 0 && held != all) {
            let instead = match held {
                1.. if held < all => format!("; or give pipeline.layers = {held}, and the other layers run around it"),
                _ => String::new(),
            };
            if all == self.model.layers {
                let reason = format!("it must be {product}{instead}");
                return Err(invalid("model.layers", all, &reason).because(factors));
            }
            let reason = format!("the model has {all} layers in whole cycles, which must be {product}{instead}");
            return Err(invalid(key, parts, &reason).because(factors));
        }
        if pipeline.schedule.branches() && !stack.suffix.is_empty() {
            let behind = stack.suffix.len();
            let reason = format!("it has the loss in its loop, and the model has {behind} layers behind the pipeline");
            return Err(invalid("pipeline.schedule", pipeline.schedule.name(), &reason));
        }
        Ok(())
    }
}

/// Three numbers each: of all stages, or of each virtual stage.
fn costs(numbers: &[f64]) -> Option<Costs> {
    let of = |&[forward, backward, weights]: &[f64; 3]| Cost { forward, backward, weights };
    match numbers.as_chunks().0 {
        [] => None,
        [all] => Some(Costs::Even(of(all))),
        each => Some(Costs::PerVirtualStage(each.iter().map(of).collect())),
    }
}

/// An impossible pipeline, by the key that is to be changed.
fn refusal(pipeline: &PipelineConfig, error: &PipelineError) -> ConfigError {
    let is_cost = |table: &ScheduleError| matches!(table, ScheduleError::Costs { .. } | ScheduleError::Cost { .. });
    let key = match error {
        PipelineError::Repeats { .. } | PipelineError::NeedsLoss { .. } => "schedule",
        PipelineError::Branches { .. } if pipeline.delay_forwarding => "delay_forwarding",
        PipelineError::Branches { .. } => "weights",
        PipelineError::Chunks { .. } | PipelineError::VeeChunks { .. } | PipelineError::Zero { what: "chunks" } => {
            "chunks"
        }
        PipelineError::Zero { what: "repeats" } => "repeats",
        PipelineError::Zero { what: "layers per stage" } => "layers_per_stage",
        PipelineError::Table(table) if is_cost(table) => "costs",
        // Errors of a batch or a weight do not come from the options alone.
        PipelineError::Zero { .. }
        | PipelineError::Microbatches { .. }
        | PipelineError::TooFewMicrobatches { .. }
        | PipelineError::TooFewToFill { .. }
        | PipelineError::Table(_)
        | PipelineError::Batch { .. }
        | PipelineError::Weight { .. } => "microbatches",
    };
    let value = write_section(pipeline).get(key).map(ToString::to_string).unwrap_or_default();
    invalid_described(&format!("pipeline.{key}"), value, &error.to_string())
}
