//! A training run of the program: how it begins, its steps, and how it ends.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use meshloom::hlo::message::counted;
use meshloom::pjrt::{CacheUse, Client, ProcessPlace};
use meshloom_models::parameters::{self, LoadOptions};
use meshloom_train::checkpoint::{self, Checkpoint, Fallback, FoundCheckpoint};
use meshloom_train::config::RunConfig;
use meshloom_train::data::{SkippedLines, TextDataset, Tokenized};
use meshloom_train::generate::{GenerateOptions, SamplingOptions};
use meshloom_train::peers::{Peers, ReplicaLink};
use meshloom_train::report::{MetricsWriter, StepMetrics, StepProfile, Summary, beside_entropy};
use meshloom_train::{Devices, Error, NotFinite, Run, Text, Trainer};

use crate::arguments::{PROMPT, TEMPERATURE, Train};
use crate::generate::Texts;
use crate::interrupts::{ASKED_EVERY, Training, metadata_host};
use crate::outputs::Outputs;
use crate::processes::Membership;
use crate::progress::Progress;
use crate::train_plan::Opened;
use crate::{Ended, Interrupt, Interrupts};

/// Tokens that are generated at the end, unless the user says how many.
const SAMPLE: usize = 160;

/// Trains from the first step to the last, or until an interrupt. `opened` are the devices, if they are open already.
pub fn train(
    arguments: &Train,
    config: &RunConfig,
    (opened, part): (Option<Opened>, Option<Membership>),
    interrupts: &Interrupts,
) -> Result<()> {
    let begun = TrainingRun::begin(arguments, config, opened, Member::of(part), interrupts)?;
    let Some(mut run) = begun else { return Ok(()) };
    let mut training = interrupts.training(arguments.grace.map(Duration::from_secs));
    if let Some(interrupt) = run.steps(&mut training)? {
        // Further signals count until the state is saved.
        return run.end_early(interrupt);
    }
    drop(training);
    run.end()
}

/// This process among those of a run, and its replica among those that live apart.
struct Member {
    peers: Option<Arc<dyn Peers>>,
    process: Option<ProcessPlace>,
    link: Option<Arc<dyn ReplicaLink>>,
    /// Makes programs of a client call the collectives between processes.
    prepare: Option<fn(&Client) -> Result<()>>,
}

impl Member {
    /// The member that has a part of a run; without a part it is alone.
    fn of(part: Option<Membership>) -> Member {
        let Some(Membership { process, link, prepare }) = part else {
            return Member { peers: None, process: None, link: None, prepare: None };
        };
        let (peers, process) = process.unzip();
        Member { peers, process, link, prepare: Some(prepare) }
    }

    /// Whether this process speaks for all.
    fn is_first(&self) -> bool {
        self.process.as_ref().is_none_or(|process| process.number == 0)
    }

    /// Tells the user something, unless another process does.
    fn say(&self, text: &str) {
        if self.is_first() {
            eprintln!("{text}");
        }
    }

    /// Checks that all processes go on from the same step.
    fn agree_on(&self, checkpoint: Option<&Checkpoint>) -> Result<()> {
        let Some(peers) = &self.peers else { return Ok(()) };
        let found = checkpoint.map_or("none".to_owned(), |found| found.about().step.to_string());
        let advice = "give all processes the same --resume, on a shared file system";
        Ok(peers.agree("the step of the checkpoint", &found, advice)?)
    }

    /// Refuses flags that the run cannot follow, and files that cannot be written.
    fn check(&self, arguments: &Train, config: &RunConfig) -> Result<()> {
        config.check_validation()?;
        if arguments.load_parameters.is_some() && self.link.is_some() {
            bail!("--load-parameters is not for replicas apart, which begin alike: set train.init for all of them");
        }
        if arguments.find_nan && config.diloco.is_some() && self.peers.is_some() {
            bail!(
                "--find-nan is not for replicas of one program in several processes: run that replica's step in one process"
            );
        }
        if arguments.save_parameters.is_some() && self.peers.is_some() {
            bail!("--save-parameters is for one process: give --checkpoint, and `meshloom export` the checkpoint");
        }
        if self.is_first() {
            arguments.metrics.as_ref().map(MetricsWriter::check).transpose()?;
            arguments.save_parameters.as_ref().map(parameters::check_writable).transpose()?;
        }
        Ok(())
    }

    /// Opens the devices of the config, or takes those that are open already.
    fn devices(&self, config: &RunConfig, opened: Option<Opened>) -> Result<Devices> {
        let devices = match opened {
            Some((client, notes)) => config.with_client(client, notes)?,
            None => config.open_as(self.process.as_ref())?,
        };
        if let Some(prepare) = self.prepare.filter(|_| self.process.is_some()) {
            prepare(&devices.client)?;
        }
        Ok(devices)
    }

    fn trainer(&self, run: Run, text: Text, client: &Client, checkpoint: Option<&Checkpoint>) -> Result<Trainer> {
        let run = match &self.peers {
            Some(peers) => run.with_peers(peers.clone()),
            None => run,
        };
        let run = match &self.link {
            Some(link) => run.with_replica_link(link.clone()),
            None => run,
        };
        let trainer = match checkpoint {
            Some(checkpoint) => {
                let trainer = Trainer::resume_run(run, text, client, checkpoint)?;
                let folder = checkpoint.folder().display();
                self.say(&format!("resumed after step {} from {folder}", trainer.steps_done()));
                trainer
            }
            None => Trainer::of(run, text, client)?,
        };
        if trainer.steps_done() > steps_of(checkpoint) {
            self.say(&format!("goes on with the other replicas after step {}", trainer.steps_done()));
        }
        Ok(trainer)
    }

    fn leave(&self) -> Result<()> {
        Ok(self.link.as_ref().map_or(Ok(()), |link| link.leave())?)
    }
}

/// A run that has begun, with everything that it writes.
struct TrainingRun<'a> {
    arguments: &'a Train,
    config: RunConfig,
    member: Member,
    client: Client,
    trainer: Trainer,
    /// The steps after which the run ends.
    last_step: u64,
    outputs: Outputs,
    summary: Summary,
    progress: Progress,
    start: Instant,
    /// The metrics of the newest step.
    last: Option<StepMetrics>,
}

impl<'a> TrainingRun<'a> {
    /// Begins a run. Returns none if its checkpoint has all steps already.
    fn begin(
        arguments: &'a Train,
        config: &RunConfig,
        opened: Option<Opened>,
        member: Member,
        interrupts: &Interrupts,
    ) -> Result<Option<TrainingRun<'a>>> {
        let last_step = arguments.steps.unwrap_or(config.train.steps as u64);
        let checkpoint = find_checkpoint(arguments)?;
        member.agree_on(checkpoint.as_ref())?;
        let done = steps_of(checkpoint.as_ref());
        if done >= last_step {
            member.say(&format!("the run has done {}; give more with --steps", counted(done as usize, "step")));
            return Ok(None);
        }
        member.check(arguments, config)?;
        // Before anything is written: without devices, nothing is half done.
        let Devices { config, client, notes } = member.devices(config, opened)?;
        let text = load_text(&config)?;
        let calls = config.train.steps_per_call as u64;
        let profile = member.is_first().then(|| profile(arguments, done..last_step, calls)).transpose()?.flatten();
        let mut trainer = member.trainer(config.resolve()?, text, &client, checkpoint.as_ref())?;
        for warning in notes.iter().chain(trainer.warnings()) {
            member.say(&format!("warning: {warning}"));
        }
        if member.is_first() {
            trainer.on_slow_step(|slow| eprintln!("warning: {slow}"));
        }
        load_parameters(arguments, &mut trainer)?;
        described(&config, &trainer).iter().for_each(|line| member.say(line));
        if arguments.notices.is_some() {
            interrupts.heed_google(&metadata_host(), ASKED_EVERY)?;
        }
        // Last, so that a run that does not begin leaves what an earlier one wrote.
        let outputs = Outputs::open(arguments, &config, checkpoint.as_ref(), profile, member.peers.clone())?;
        let summary = trainer.summary();
        let progress = Progress::new(last_step, member.is_first());
        let (start, last) = (Instant::now(), None);
        let run = TrainingRun {
            arguments,
            config,
            member,
            client,
            trainer,
            last_step,
            outputs,
            summary,
            progress,
            start,
            last,
        };
        Ok(Some(run))
    }

    /// Does all steps. Returns what ends the run before the last of them, if something does.
    fn steps(&mut self, training: &mut Training<'_>) -> Result<Option<Interrupt>> {
        while self.trainer.steps_done() < self.last_step {
            let before = self.trainer.steps_done();
            let interrupt = training.ends_after(before, self.member.peers.as_deref())?;
            if interrupt.is_some() {
                return Ok(interrupt);
            }
            if let Some(error) = self.call(before)?
                && let Some(interrupt) = self.interrupt_of(&error, training)?
            {
                return Ok(Some(interrupt));
            }
            self.outputs.after_call(before, &self.trainer, &mut self.progress)?;
            self.evaluate_and_save(before)?;
        }
        Ok(None)
    }

    /// Does the steps of one call, and reports each. Returns an error if too many of them changed nothing.
    fn call(&mut self, before: u64) -> Result<Option<Box<NotFinite>>> {
        self.outputs.before_call(before, &self.client, &mut self.progress)?;
        let (called, failed) = match self.trainer.steps(self.last_step - before) {
            Ok(called) => (called, None),
            Err(Error::NotFinite(error)) => (error.metrics.clone(), Some(error)),
            Err(error) => return Err(error.into()),
        };
        for metrics in called {
            self.outputs.step(&metrics)?;
            if !metrics.is_finite() {
                let StepMetrics { step, loss, grad_norm, .. } = metrics;
                self.progress.note(&format!(
                    "warning: step {step} changed nothing: its loss is {loss}, its gradient norm {grad_norm}"
                ));
            }
            self.summary.add(&metrics);
            self.progress.update(&metrics);
            self.last = Some(metrics);
        }
        Ok(failed)
    }

    /// The interrupt of a run whose steps change nothing. Where other processes must end as well, they are told, and
    /// this one ends with them.
    fn interrupt_of(&mut self, error: &NotFinite, training: &mut Training<'_>) -> Result<Option<Interrupt>> {
        let maker = match self.arguments.find_nan {
            true => self
                .trainer
                .find_nan(error.first.step)?
                .map_or("it is finite when the step is run again".to_owned(), |first| {
                    format!("the first number that is not finite: {first}")
                }),
            false => "--find-nan with --resume names the op that makes it".to_owned(),
        };
        let interrupt = Interrupt { code: 1, reason: format!("error: {error}; {maker}") };
        match &self.member.peers {
            // Each process sees the losses of its own replicas only.
            Some(peers) if self.config.diloco.is_some() => {
                training.tell(&interrupt, peers.as_ref())?;
                Ok(None)
            }
            _ => Ok(Some(interrupt)),
        }
    }

    /// Evaluates and saves the state, each if it is due. Before the call, `before` steps were done.
    fn evaluate_and_save(&mut self, before: u64) -> Result<()> {
        let evaluates = self.trainer.evaluation_is_due(before, self.last_step);
        if evaluates || self.outputs.saves_after(self.trainer.steps_done(), self.last_step) {
            self.trainer.complete()?;
        }
        let evaluated = match evaluates {
            true => self.trainer.evaluate(),
            false => Ok(None),
        };
        // Before the checkpoint: a run that goes on from there has its line.
        if let Ok(Some(evaluation)) = &evaluated {
            self.outputs.evaluation(evaluation)?;
            self.progress.note(&evaluation.to_string());
        }
        self.outputs.save(&self.trainer, self.last_step)?;
        // After it: a run whose evaluation fails has its state.
        if let Err(error) = evaluated {
            self.outputs.finish()?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Ends a run before its last step: its state is saved.
    fn end_early(mut self, Interrupt { code, reason }: Interrupt) -> Result<()> {
        self.progress.finish();
        self.trainer.complete()?;
        let saved = self.outputs.save_early(&self.trainer)?;
        self.outputs.finish()?;
        self.member.leave()?;
        let step = self.trainer.steps_done();
        let state = match saved {
            Some(folder) => format!("the state after step {step} is in {}", folder.display()),
            None if step == 0 => "no step was done".to_owned(),
            None => format!("the state after step {step} is lost, because checkpoint.dir is empty"),
        };
        let message = if code == 1 { format!("{reason}\n{state}") } else { format!("{reason}: {state}") };
        Err(Ended { code, message }.into())
    }

    /// Ends a run after its last step: the program prints a summary and a text by the model.
    fn end(mut self) -> Result<()> {
        self.progress.finish();
        self.outputs.finish()?;
        self.member.leave()?;
        let Some(last) = self.last.filter(|_| self.member.is_first()) else { return Ok(()) };
        let (token, single) = token_words(&self.trainer);
        println!(
            "step {}: loss {:.4} nats per {token}, {}, after {:.0} s",
            last.step,
            last.loss,
            beside_entropy(last.loss, self.trainer.dataset().unigram_entropy(), single),
            self.start.elapsed().as_secs_f64(),
        );
        self.summary.memory = self.trainer.memory_use();
        eprintln!("{}", self.summary);
        let length = self.arguments.sample.unwrap_or(SAMPLE);
        if self.member.process.is_some() {
            // No process has all parameters.
            if self.arguments.sample.is_some_and(|length| length > 0) {
                eprintln!("warning: several processes generate no text; `meshloom generate` does from a checkpoint");
            }
        } else if length > 0 {
            generate_sample(&self.trainer, length, self.config.train.seed)?;
        }
        Ok(())
    }
}

fn steps_of(checkpoint: Option<&Checkpoint>) -> u64 {
    checkpoint.map_or(0, |checkpoint| checkpoint.about().step)
}

fn find_checkpoint(arguments: &Train) -> Result<Option<Checkpoint>> {
    let Some(path) = &arguments.resume else { return Ok(None) };
    let fallback = if arguments.resume_fallback { Fallback::Older } else { Fallback::Refuse };
    let FoundCheckpoint { checkpoint, skipped } = checkpoint::find(path, fallback)?;
    for error in skipped {
        eprintln!("warning: {error}; an older checkpoint is taken");
    }
    Ok(Some(checkpoint))
}

fn load_text(config: &RunConfig) -> Result<Text> {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("tokenizing {bar:24} {bytes}/{total_bytes}  ETA {eta}") {
        bar.set_style(style);
    }
    let text = Text::load_with(config, &|Tokenized { done, total }| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let text = text?;
    for SkippedLines { path, count, line, reason } in text.datasets().flat_map(TextDataset::skipped_lines) {
        let lines = counted(*count as usize, "line");
        eprintln!("warning: {}: {lines} left out, the first of them line {line}: {reason}", path.display());
    }
    Ok(text)
}

/// The profile of some of a run's steps, if the user wants one: by default of three after the first three.
fn profile(arguments: &Train, steps: Range<u64>, steps_per_call: u64) -> Result<Option<StepProfile>> {
    let Some(directory) = &arguments.profile else { return Ok(None) };
    let default = ((steps.start + 3).min(steps.end), (steps.start + 5).min(steps.end));
    let range = arguments.profile_steps.unwrap_or(default);
    Ok(Some(StepProfile::create(directory, range, steps, steps_per_call)?))
}

/// Replaces the parameters of a trainer by those of a file or a checkpoint, if the user names one.
fn load_parameters(arguments: &Train, trainer: &mut Trainer) -> Result<()> {
    match &arguments.load_parameters {
        None => Ok(()),
        Some(path) if path.is_dir() => {
            Ok(trainer.load_parameters_of(&checkpoint::find(path, Fallback::Refuse)?.checkpoint)?)
        }
        Some(file) => {
            let options = LoadOptions { convert: arguments.convert, ..LoadOptions::default() };
            Ok(trainer.load_parameters(file, options)?)
        }
    }
}

/// The words for a token of the trainer's text, and for one alone.
fn token_words(trainer: &Trainer) -> (&'static str, &'static str) {
    if trainer.tokenizer().is_bytes() { ("byte", "letter") } else { ("token", "token") }
}

/// Returns two lines about the run: the model, its devices, and the amount of text.
fn described(config: &RunConfig, trainer: &Trainer) -> [String; 2] {
    let processes = match config.target.processes {
        1 => String::new(),
        count => format!(" in {count} processes"),
    };
    let cache = match trainer.compile_cache() {
        Some(CacheUse::Hit) => ", compile cache hit",
        Some(CacheUse::Miss) => ", compile cache miss",
        Some(CacheUse::Bypassed) => " (anew: programs of several CPU devices are not cached)",
        None => "",
    };
    let ((token, single), text) = (token_words(trainer), trainer.dataset());
    let built = format!(
        "{} parameters on {}{processes} of {} ({}); lowered in {:.1} ms, compiled in {:.1} s{cache}",
        trainer.parameter_count(),
        counted(config.device_total(), "device"),
        config.target.platform,
        trainer.run().mesh(),
        1e3 * trainer.lower_seconds(),
        trainer.compile_seconds(),
    );
    let (count, entropy) = (text.token_count(), text.unigram_entropy());
    [built, format!("{count} {token}s of text, {entropy:.4} nats per {token} as single {single}s")]
}

fn generate_sample(trainer: &Trainer, length: usize, seed: u64) -> Result<()> {
    let sampling = SamplingOptions { temperature: TEMPERATURE, ..SamplingOptions::default() };
    let options = GenerateOptions { length, sampling, stop_tokens: Vec::new() };
    let texts = Texts { prompts: &[PROMPT.to_owned()], seed, stops: &[], with_special: false, options };
    let requests = texts.requests(trainer.tokenizer())?;
    let mut generator = trainer.generator(texts.room(&requests))?;
    println!();
    texts.print(&requests, &mut generator, trainer.tokenizer())
}
