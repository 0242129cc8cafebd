//! Trainers that go on from a checkpoint, and what they save.

use std::collections::BTreeSet;

use super::Trainer;
use crate::Error;
use crate::checkpoint::{
    About, Checkpoint, CheckpointError, Checkpointer, Contents, DataPosition, MANIFEST, RecordedConfig,
};
use crate::config::RunConfig;
use crate::data::DataDigest;
use crate::published::ParameterSource;
use crate::run::{Dataset, Model, Run, RunState, Text};
use meshloom::hlo::message::counted;
use meshloom::pjrt::{Array, Client};

impl Trainer {
    /// Does the same as [`Trainer::resume_run`], for the decoder and text of a config.
    ///
    /// # Errors
    /// The errors are those of [`Trainer::resume_run`] and of [`Trainer::new`].
    pub fn resume(config: &RunConfig, client: &Client, checkpoint: &Checkpoint) -> Result<Trainer, Error> {
        config.check_runnable()?;
        let config = &config.on_client(client)?;
        let run = config.resolve()?;
        // Before anything is read or compiled.
        checkpoint.check(&run.state())?;
        Trainer::resume_run(run, Text::load(config)?, client, checkpoint)
    }
}

impl<M: Model, D: Dataset<M>> Trainer<M, D> {
    /// Does the same as [`Trainer::of`], but starts from the state of a checkpoint and goes on after its step. Mesh,
    /// devices, pipeline and microbatches may differ from those of the run that wrote it. Other differences in the
    /// configs, or in the files of a text, are among the [warnings](Trainer::warnings).
    ///
    /// # Errors
    /// The errors are those of [`Trainer::of`]. It is also an error if the checkpoint's values are not those of the
    /// model; the error names the first.
    pub fn resume_run(run: Run<M>, data: D, client: &Client, checkpoint: &Checkpoint) -> Result<Trainer<M, D>, Error> {
        // Before anything is compiled.
        checkpoint.check(&run.state())?;
        let differences = differences(&checkpoint.about().config, run.config());
        let mut trainer = Trainer::start(run, data, client, Some(checkpoint))?;
        let step = checkpoint.about().step;
        check_step(checkpoint, &trainer.state)?;
        trainer.steps_done = step;
        trainer.skipped_steps = checkpoint.about().skipped_steps;
        trainer.warnings.extend(differences);
        trainer.warnings.extend(not_finite(checkpoint));
        trainer.warnings.extend(changed_data(checkpoint.data_digests(), &trainer.data().digests()));
        trainer.begin()?;
        Ok(trainer)
    }

    /// Replaces the present parameters by those of a checkpoint, whatever the number of replicas there and here: of
    /// several, those that they agree on. The optimizer's state and the step stay.
    ///
    /// # Errors
    /// The checkpoint's parameters are not those of the model, or the plugin fails.
    pub fn load_parameters_of(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let declared = self.run.model().parameters();
        self.assign_parameters(&ParameterSource::Checkpoint(checkpoint.parameters(&declared)?))
    }

    /// Steps done so far, those before a checkpoint included.
    pub fn steps_done(&self) -> u64 {
        self.steps_done
    }

    /// Saves the present state. [`Checkpointer::save`] describes what the call waits for.
    ///
    /// # Errors
    /// The errors are those of [`Checkpointer::save`].
    pub fn save_checkpoint(&self, checkpointer: &mut Checkpointer) -> Result<(), Error> {
        self.check_complete()?;
        let contents =
            Contents { about: self.about(), digests: self.data().digests(), model: self.model_files.clone() };
        Ok(checkpointer.save_with(contents, &self.run.state(), &self.state)?)
    }

    pub(super) fn about(&self) -> About {
        let config = self.run.config();
        let (batch, seq) = (config.train.batch, config.model.seq);
        let evaluation = self.evaluation.get().filter(|evaluation| evaluation.step == self.steps_done);
        About {
            step: self.steps_done,
            skipped_steps: self.skipped_steps,
            validation_loss: evaluation.map(|evaluation| evaluation.loss),
            seed: config.train.seed,
            data: DataPosition { next_batch: self.steps_done, batch, seq },
            mesh: config.mesh.axes.clone(),
            devices: self.program.executable().device_count(),
            config: RecordedConfig::of(config),
        }
    }
}

/// A checkpoint from which nothing can be trained, as a warning.
fn not_finite(checkpoint: &Checkpoint) -> Option<String> {
    let first = checkpoint.not_finite().first()?;
    let count = counted(checkpoint.not_finite().len(), "value");
    let folder = checkpoint.folder().display();
    Some(format!(
        "{folder} has {count} with numbers that are not finite, the first of them {first}: resume from an older \
         checkpoint"
    ))
}

/// The state counts its steps as well, those of one replica without what was skipped: both must say the same.
fn check_step<P>(checkpoint: &Checkpoint, state: &RunState<Array, P>) -> Result<(), Error> {
    let found = state.step().get()?.to_f64_vec().first().copied();
    let About { step, skipped_steps, .. } = *checkpoint.about();
    let skipped = if matches!(state, RunState::Single(_)) { skipped_steps } else { 0 };
    if found.is_some_and(|found| found + skipped as f64 == step as f64) {
        return Ok(());
    }
    let reason = format!("it is of step {step} with {skipped} skipped steps, but the value `step` is {found:?}");
    Err(CheckpointError::Damaged { path: checkpoint.folder().join(MANIFEST), reason }.into())
}

/// Returns a warning for each file that has the name that it had in the run that wrote the checkpoint, but other
/// contents. Changed names are found by [`differences`].
fn changed_data(saved: &[DataDigest], own: &[DataDigest]) -> Vec<String> {
    let changed = own.iter().filter(|own| {
        let mut same_name = saved.iter().filter(|saved| (&saved.key, &saved.name) == (&own.key, &own.name));
        same_name.any(|saved| saved.sha256 != own.sha256)
    });
    let warning = |DataDigest { key, name, .. }: &DataDigest| {
        format!(
            "{key} has {name:?}, but what it names has changed since the run that wrote the checkpoint: this run \
             continues with what is there now"
        )
    };
    changed.map(warning).collect()
}

/// A warning for each key by which this run computes otherwise than the run that wrote the checkpoint.
fn differences(saved: &RecordedConfig, config: &RunConfig) -> Vec<String> {
    let (saved, own) = match (saved.computed(), RecordedConfig::of(config).computed()) {
        (Ok(saved), Ok(own)) => (saved, own),
        (Err(error), _) | (_, Err(error)) => {
            return vec![format!("the config in the checkpoint cannot be read, and is not compared: {error}")];
        }
    };
    // Replicas in one run and replicas apart compute the same, so the keys of the latter alone are no difference.
    let is_of_apart = |key: &str| key.starts_with("diloco.apart.");
    let both_apart = [&saved, &own].iter().all(|keys| keys.keys().any(|key| is_of_apart(key)));
    let names: BTreeSet<&String> = saved.keys().chain(own.keys()).collect();
    let differ = names.into_iter().filter(|key| saved.get(*key) != own.get(*key) && (both_apart || !is_of_apart(key)));
    let warning = |key: &String| {
        let text = |value: Option<&toml::Value>| value.map_or("not given".to_owned(), ToString::to_string);
        format!(
            "{key} is {}, but was {} in the run that wrote the checkpoint: this run continues with the new value",
            text(own.get(key)),
            text(saved.get(key)),
        )
    };
    differ.map(warning).collect()
}

/// Returns the facts that must be alike in replicas that are apart, one in each line: the keys that decide what is
/// computed, the way in which a pipeline stacks its layers, and the contents of messages.
pub(super) fn form_of_replicas(config: &RunConfig, messages: &[String]) -> String {
    let mut lines: Vec<String> = match RecordedConfig::of(config).computed() {
        Ok(keys) => keys.into_iter().map(|(key, value)| format!("{key} = {value}")).collect(),
        Err(error) => vec![error.to_string()],
    };
    if let Some(pipeline) = &config.pipeline {
        let (repeats, chunks, layers) = (pipeline.repeats, pipeline.chunks, pipeline.layers_per_stage);
        lines.push(format!("pipeline = {repeats} repeats, {chunks} chunks, {layers} layers per stage"));
    }
    lines.push(format!("train.init = {:?}", config.train.init));
    lines.extend(messages.iter().map(|message| format!("the message of {message}")));
    lines.join("\n")
}
