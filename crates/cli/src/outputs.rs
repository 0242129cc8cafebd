//! The files that a run writes while it trains.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use meshloom::pjrt::Client;
use meshloom_train::Trainer;
use meshloom_train::checkpoint::{Checkpoint, Checkpointer, Start};
use meshloom_train::config::RunConfig;
use meshloom_train::peers::Peers;
use meshloom_train::report::{Evaluation, EventWriter, MetricsWriter, StepMetrics, StepProfile};

use crate::arguments::Train;
use crate::progress::Progress;

/// The outputs that the user asks for: metrics, TensorBoard's events, a profile, checkpoints, and the last parameters.
pub struct Outputs {
    metrics: Option<MetricsWriter>,
    events: Option<EventWriter>,
    profile: Option<StepProfile>,
    checkpointer: Option<Checkpointer>,
    parameters: Option<PathBuf>,
}

impl Outputs {
    pub fn open(
        arguments: &Train,
        config: &RunConfig,
        checkpoint: Option<&Checkpoint>,
        profile: Option<StepProfile>,
        peers: Option<Arc<dyn Peers>>,
    ) -> Result<Outputs> {
        let is_first = peers.as_ref().is_none_or(|peers| peers.number() == 0);
        let done = checkpoint.map_or(0, |checkpoint| checkpoint.about().step);
        let checkpointer = open_checkpointer(config, checkpoint, peers)?;
        if !is_first {
            return Ok(Outputs { checkpointer, events: None, metrics: None, profile, parameters: None });
        }
        let events =
            arguments.tensorboard.as_ref().map(|directory| EventWriter::create(directory, done)).transpose()?;
        // Last, because it empties a file: that of another run is left where this one cannot begin.
        let metrics = arguments.metrics.as_ref().map(|path| match checkpoint {
            None => MetricsWriter::create(path),
            Some(_) => MetricsWriter::resume(path, done),
        });
        let (metrics, parameters) = (metrics.transpose()?, arguments.save_parameters.clone());
        Ok(Outputs { checkpointer, events, metrics, profile, parameters })
    }

    /// Is called before a call of the program, after `done` steps.
    pub fn before_call(&mut self, done: u64, client: &Client, progress: &mut Progress) -> Result<()> {
        if let Some(profile) = &mut self.profile
            && let Some(missing) = profile.before_call(done, client)?
        {
            progress.note(&format!("warning: the profile has the times of whole steps only: {missing}"));
        }
        Ok(())
    }

    /// Is called after a call of the program that began after `before` steps.
    pub fn after_call(&mut self, before: u64, trainer: &Trainer, progress: &mut Progress) -> Result<()> {
        let done = trainer.steps_done();
        if let Some(profile) = &mut self.profile
            && let Some(file) = profile.after_call(before, done, trainer.program_of((done - before) as usize))?
        {
            progress.note(&format!("profile: {}", file.display()));
        }
        Ok(())
    }

    pub fn step(&mut self, metrics: &StepMetrics) -> Result<()> {
        if let Some(file) = &mut self.metrics {
            file.write(metrics)?;
        }
        if let Some(events) = &mut self.events {
            events.write(metrics.step, &metrics.named())?;
        }
        Ok(())
    }

    pub fn evaluation(&mut self, evaluation: &Evaluation) -> Result<()> {
        if let Some(file) = &mut self.metrics {
            file.write_evaluation(evaluation)?;
        }
        if let Some(events) = &mut self.events {
            events.write(evaluation.step, &evaluation.named())?;
        }
        Ok(())
    }

    pub fn saves_after(&self, done: u64, steps: u64) -> bool {
        done == steps || self.checkpointer.as_ref().is_some_and(|each| each.is_due(done))
    }

    /// A checkpoint, if one is due; and the parameters after the last step.
    pub fn save(&mut self, trainer: &Trainer, steps: u64) -> Result<()> {
        let done = trainer.steps_done();
        if !self.saves_after(done, steps) {
            return Ok(());
        }
        if let Some(checkpointer) = &mut self.checkpointer {
            trainer.save_checkpoint(checkpointer)?;
        }
        if let Some(file) = self.parameters.as_ref().filter(|_| done == steps) {
            trainer.save_parameters(file)?;
        }
        Ok(())
    }

    /// Writes a checkpoint of a run that ends before its last step. Returns its path; `None` without a directory, or
    /// before the first step.
    pub fn save_early(&mut self, trainer: &Trainer) -> Result<Option<PathBuf>> {
        let Some(checkpointer) = self.checkpointer.as_mut().filter(|_| trainer.steps_done() > 0) else {
            return Ok(None);
        };
        trainer.save_checkpoint(checkpointer)?;
        Ok(Some(checkpointer.folder_of(trainer.steps_done())))
    }

    pub fn finish(&mut self) -> Result<()> {
        self.checkpointer.take().map(Checkpointer::finish).transpose()?;
        Ok(())
    }
}

fn open_checkpointer(
    config: &RunConfig,
    checkpoint: Option<&Checkpoint>,
    peers: Option<Arc<dyn Peers>>,
) -> Result<Option<Checkpointer>> {
    if config.checkpoint.dir.is_empty() {
        return Ok(None);
    }
    let start = checkpoint.map_or(Start::Fresh, Start::After);
    let checkpointer = Checkpointer::with_peers(&config.checkpoint, start, peers)?;
    for folder in checkpointer.set_aside() {
        eprintln!("warning: a checkpoint of a later step is now {}", folder.display());
    }
    Ok(Some(checkpointer))
}
