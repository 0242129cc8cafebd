//! The meaning of `[diloco]`, and warnings of a config.

use super::section::without_effect;
use super::{DilocoConfig, RunConfig};
use meshloom::hlo::message::counted;
use meshloom::transform::diloco::{DilocoOptions, LayerOrder, Streaming, SyncSchedule};

impl RunConfig {
    /// The form of DiLoCo that the config describes, if it does.
    pub fn diloco_options(&self) -> Option<DilocoOptions> {
        let config: &DilocoConfig = self.diloco.as_ref()?;
        let order = if config.sequential_layers { LayerOrder::Sequential } else { LayerOrder::Interleaved };
        let streaming = Streaming {
            fragments: config.fragments,
            order,
            uneven: config.uneven_fragments,
            overlap_steps: config.overlap_steps,
            overlap_alpha: config.overlap_alpha,
        };
        Some(DilocoOptions {
            // Programs of a replica apart know no others.
            replicas: if self.is_apart() { 1 } else { config.replicas },
            apart: self.is_apart(),
            sync_period: config.sync_period,
            outer_rate: config.outer_lr,
            outer_momentum: config.outer_momentum,
            streaming: config.streaming.then_some(streaming),
            transport: config.transport,
            block: config.block,
        })
    }

    /// Returns the schedule by which fragments are sent and used, if the config has a valid one; `validate` reports the
    /// fault of an invalid one.
    fn diloco_schedule(&self) -> Option<SyncSchedule> {
        self.diloco_options()?.schedule().ok()
    }

    /// The steps per call that a config has if it does not say: the fewest with which transfers of fragments overlap
    /// with steps, if they are to and the run is long enough for one such call, else one.
    pub(crate) fn fitting_steps_per_call(&self) -> usize {
        let overlapping =
            self.diloco_schedule().filter(|schedule| why_no_overlap(schedule, self.train.steps).is_none());
        overlapping
            .filter(|schedule| schedule.overlap() > 0 && !self.is_apart())
            .map_or(1, |schedule| schedule.period())
    }

    /// Warnings of each thing that the config asks for and does not get, with the reason.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings_with(!self.validation.sources.is_empty())
    }

    /// As [`RunConfig::warnings`], where the dataset says whether there is a validation set.
    pub(crate) fn warnings_with(&self, has_validation: bool) -> Vec<String> {
        // As it was written, not as the devices have settled it since.
        let sections = RunConfig { target: self.origin.target.clone(), ..self.clone() }.describe();
        let others =
            [self.unknown_keys_of_model(), self.longer_than_made_for(), self.endless_warmup(), self.no_overlap()];
        let unused = without_effect(&sections, &self.unused_keys(has_validation));
        unused.into_iter().chain(others.into_iter().flatten()).collect()
    }

    /// Returns a warning if fragments are used late, but no transfer overlaps with a step.
    fn no_overlap(&self) -> Option<String> {
        let (calls, steps) = (self.train.steps_per_call, self.train.steps);
        // The transfers of replicas that are apart are not part of a program.
        let schedule = self.diloco_schedule().filter(|schedule| schedule.overlap() > 0 && !self.is_apart())?;
        let period = schedule.period();
        let of_call = (!calls.is_multiple_of(period))
            .then(|| format!("train.steps_per_call must be {period}, or a multiple of it, not {calls}"));
        let why = why_no_overlap(&schedule, steps).or(of_call)?;
        let overlap = counted(schedule.overlap(), "step");
        Some(format!("fragments are used {overlap} late, but no transfer overlaps with a step: {why}"))
    }

    /// Returns a warning if the warm-up leaves no step after it.
    fn endless_warmup(&self) -> Option<String> {
        let (warmup, steps) = (self.train.warmup, self.train.steps);
        let percent = 100.0 * steps as f64 / warmup as f64;
        (warmup >= steps).then(|| {
            format!(
                "train.warmup is {warmup}, but train.steps is {steps}: the learning rate rises until the last step, to \
                 {percent:.0} % of train.learning_rate"
            )
        })
    }
}

/// Says why no program of several steps has transfers overlap with steps, if none has.
fn why_no_overlap(schedule: &SyncSchedule, steps: usize) -> Option<String> {
    let (overlap, every) = (schedule.overlap(), schedule.every());
    if overlap >= every {
        return Some(format!(
            "diloco.overlap_steps must be less than the {} from sync to sync, not {overlap}",
            counted(every, "step")
        ));
    }
    let least = overlap + schedule.period();
    (steps < least).then(|| format!("train.steps must be at least {least}, not {steps}"))
}
