//! Other pipelines for the same model, mesh and batch.

use meshloom::ops::RematPolicy;
use meshloom::transform::pipeline::{Schedule, WeightPlan};
use meshloom_train::config::{ConfigError, PipelineConfig, RunConfig};

use super::Variant;
use super::plan::schedules_of;

/// The pipelines that a config could have, and whether it has them: the configured one with every plan for gathering
/// weights, then every other split of the layers into repeats and layers per stage, with every schedule that fits.
/// Where full rematerialization keeps a backward pass whole that the schedule would cut, there is also the pipeline
/// that keeps everything and cuts it. Empty without a section `[pipeline]`.
pub(super) fn variants(config: &RunConfig) -> Result<Vec<(Variant, bool)>, ConfigError> {
    let (Some(own), Some(_)) = (&config.pipeline, config.pipeline_options()?) else { return Ok(Vec::new()) };
    let others = splits(own, own.repeats * own.chunks * own.layers_per_stage);
    let is_full = |it: &PipelineConfig| it.remat.as_ref().unwrap_or(&config.remat) == &RematPolicy::Full;
    let is_whole = |it: &&PipelineConfig| it.schedule.cuts_backward() && is_full(it);
    let uncut = others.iter().chain([own]).filter(is_whole);
    let cut = uncut.map(|other| PipelineConfig { remat: Some(RematPolicy::None), ..other.clone() });
    let cut: Vec<PipelineConfig> = cut.collect();
    let all = plans(own).into_iter().chain(others).chain(cut);
    Ok(all.map(|it| (it == *own, it)).map(|(is_own, it)| (Variant::Pipeline(Box::new(it)), is_own)).collect())
}

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
            // Where stages branch, they overlap transfers by themselves.
            let delay_forwarding = own.delay_forwarding && !schedule.branches();
            found.push(PipelineConfig {
                repeats,
                chunks,
                layers_per_stage,
                schedule,
                weights,
                delay_forwarding,
                ..own.clone()
            });
        }
    }
    found
}
