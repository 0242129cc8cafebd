//! Other pipelines for the same model, mesh and batch.

use crate::Error;
use crate::config::{ConfigError, PartitionMode, PipelineConfig, RunConfig};
use meshloom::analysis::ModuleMemory;
use meshloom::ops::RematPolicy;
use meshloom::partition::Ledger;
use meshloom::transform::pipeline::{Counts, PipelineOptions, Schedule, Timeline, WeightPlan};

/// A pipeline that a config could have.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// Its form.
    pub options: PipelineOptions,
    /// True for the pipeline that the config has.
    pub configured: bool,
    /// Iterations, bubbles, gathers.
    pub counts: Counts,
    /// Microbatches whose activations a stage holds at most: the largest of [`Timeline::held`].
    pub held: f64,
    /// The collectives of the lowered train step.
    pub collectives: Ledger,
    /// The memory that the train step needs.
    pub memory: ModuleMemory,
}

/// A pipeline that a config cannot have.
#[derive(Debug)]
pub struct RefusedAlternative {
    /// Its repeats.
    pub repeats: usize,
    /// Its layers per stage.
    pub layers_per_stage: usize,
    /// The reason.
    pub reason: ConfigError,
}

impl RunConfig {
    /// The pipelines that this config could have for its layers, mesh and batch: the configured one with every plan for
    /// gathering weights, then every other split of the layers into repeats and layers per stage, with every schedule
    /// that fits. Where full rematerialization keeps a backward pass whole that the schedule would cut, there is also
    /// the pipeline that keeps everything and cuts it. For a topology, the devices must be known
    /// ([`RunConfig::on_devices`]). Empty without a section `[pipeline]`.
    ///
    /// # Errors
    /// Model, mesh and rules do not fit together.
    pub fn pipeline_alternatives(&self) -> Result<(Vec<Alternative>, Vec<RefusedAlternative>), Error> {
        let (mut possible, mut refused) = (Vec::new(), Vec::new());
        let (Some(own), Some(_)) = (&self.pipeline, self.pipeline_options()?) else {
            return Ok((possible, refused));
        };
        let others = splits(own, own.repeats * own.chunks * own.layers_per_stage);
        let uncut = others.iter().chain([own]).filter(|other| self.keeps_weights_at_once(other));
        let cut = uncut.map(|other| PipelineConfig { remat: Some(RematPolicy::None), ..other.clone() });
        let cut: Vec<PipelineConfig> = cut.collect();
        for pipeline in plans(own).into_iter().chain(others).chain(cut) {
            let configured = pipeline == *own;
            let (repeats, layers_per_stage) = (pipeline.repeats, pipeline.layers_per_stage);
            let other = RunConfig { pipeline: Some(pipeline), ..self.clone() };
            match other.on_devices(self.device_total()) {
                Ok(other) => possible.extend(other.alternative(configured)?),
                Err(reason) => refused.push(RefusedAlternative { repeats, layers_per_stage, reason }),
            }
        }
        Ok((possible, refused))
    }

    /// Says whether the schedule would cut the backward pass in two, but the remat policy keeps it whole.
    fn keeps_weights_at_once(&self, pipeline: &PipelineConfig) -> bool {
        pipeline.schedule.cuts_backward() && self.remat_of(pipeline) == RematPolicy::Full
    }

    /// The pipeline of this config, and what its lowered train step moves and needs.
    fn alternative(mut self, configured: bool) -> Result<Option<Alternative>, Error> {
        let Some(options) = self.pipeline_options()? else { return Ok(None) };
        // The figures are known only for our own partitioner.
        self.partition.mode = PartitionMode::Explicit;
        let (_, lowered) = self.lower_train_step()?;
        let Timeline { counts, held, .. } = Timeline::of(&options);
        let held = held.into_iter().fold(0.0, f64::max);
        let (collectives, memory) = (lowered.collectives(), lowered.memory()?);
        Ok(Some(Alternative { options, configured, counts, held, collectives, memory }))
    }
}

/// The same pipeline with every plan for its weights.
fn plans(own: &PipelineConfig) -> Vec<PipelineConfig> {
    let with = |weights, keep_gathered| PipelineConfig { weights, keep_gathered, ..own.clone() };
    let keeps = |weights: WeightPlan| {
        // If every iteration gathers, there is nothing to keep; if both passes share a loop, weights are kept anyway.
        let never = weights == WeightPlan::PerIteration && !own.keep_gathered;
        let both = !own.schedule.branches() && weights != WeightPlan::PerIteration;
        if both { vec![false, true] } else { vec![own.keep_gathered && !never] }
    };
    let goes = |weights: &WeightPlan| !own.schedule.branches() || *weights != WeightPlan::PerIteration;
    WeightPlan::ALL
        .into_iter()
        .filter(goes)
        .flat_map(|weights| keeps(weights).into_iter().map(move |keep| with(weights, keep)))
        .collect()
}

/// The orders of work for layers in so many repeats, or chunks.
pub(crate) fn schedules_of(parts: usize) -> &'static [Schedule] {
    match parts {
        1 => &[Schedule::Gpipe, Schedule::OneForwardOneBackward, Schedule::ZeroBubbleOne],
        2 => &[Schedule::Circular, Schedule::Interleaved, Schedule::ZeroBubbleVee],
        _ => &[Schedule::Circular, Schedule::Interleaved],
    }
}

/// Every other way to spread the layers of a stage over repeats or chunks, and the other orders of work.
fn splits(own: &PipelineConfig, layers_of_stage: usize) -> Vec<PipelineConfig> {
    let mut found = Vec::new();
    // Gpipe is the circular schedule with one repeat.
    let alike = |schedule: Schedule| if schedule == Schedule::Gpipe { Schedule::Circular } else { schedule };
    for parts in (1..=layers_of_stage).filter(|parts| layers_of_stage.is_multiple_of(*parts)) {
        for &schedule in schedules_of(parts) {
            if parts == own.repeats * own.chunks && alike(schedule) == alike(own.schedule) {
                continue;
            }
            let weights = match own.weights {
                WeightPlan::PerIteration if schedule.branches() => WeightPlan::SlidingWindow,
                weights => weights,
            };
            let (repeats, chunks) = if schedule.has_chunks() { (1, parts) } else { (parts, 1) };
            let layers_per_stage = layers_of_stage / parts;
            // Where stages branch, they skip bubbles and overlap transfers by themselves.
            let [delay_forwarding, skip_bubbles] =
                [own.delay_forwarding, own.skip_bubbles].map(|asked| asked && !schedule.branches());
            found.push(PipelineConfig {
                repeats,
                chunks,
                layers_per_stage,
                schedule,
                weights,
                delay_forwarding,
                skip_bubbles,
                ..own.clone()
            });
        }
    }
    found
}
