//! `meshloom train`: a training run, from the config to the last checkpoint.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use crate::checkpoint::{self, Checkpoint, Fallback, Found};
use crate::config::RunConfig;
use crate::data::{SkippedLines, TextDataset, Tokenized};
use crate::generate::{GenerateOptions, SamplingOptions};
use crate::parameters::{self, LoadOptions};
use crate::report::{MetricsWriter, Progress, StepMetrics, StepProfile, beside_entropy};
use crate::{Devices, Error, Text, Trainer};
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use meshloom::hlo::message::counted;
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom::pjrt::{CacheUse, Topology};

use super::arguments::{Notices, PROMPT, PlanChoice, TEMPERATURE, Train};
use super::generate::Texts;
use super::interrupts::{ASKED_EVERY, metadata_host};
use super::outputs::Outputs;
use super::processes::{Part, Start};
use super::{Ended, Interrupt, Interrupts, ahead, plan};

pub fn run(arguments: &Train, words: &[OsString], start: Start, interrupts: &Interrupts) -> Result<()> {
    let is_part = arguments.is_one_of_several() || arguments.replica().is_some();
    let several = is_part.then(|| (start.join)(&arguments.processes, words)).transpose()?;
    let place = several.as_ref().and_then(|several| several.place());
    let processes = place.map(|(_, count)| ("--processes", format!("target.processes={count}")));
    let apart = arguments.replica().map(|_| ("--replica", "diloco.apart=true".to_owned()));
    let config = arguments.config.load(arguments.overrides().chain(processes).chain(apart))?;
    let mut settings = Settings::default();
    settings.time_limit = arguments.time_limit.map_or(settings.time_limit, Duration::from_secs);
    let topology = &config.target.topology;
    if let Some(flag) = arguments.flag_of_run().filter(|_| arguments.debug_sharding || !topology.is_empty()) {
        let instead = if topology.is_empty() { "--debug-sharding" } else { "target.topology, which --target sets" };
        bail!("{flag} is for a run, and nothing is run with {instead}: leave out one of them");
    }
    if let Some(flag) = arguments.flag_of_target().filter(|_| !arguments.debug_sharding && topology.is_empty()) {
        bail!("{flag} is for compiling: give the hardware by --target, or by target.topology");
    }
    let (config, opened) = match arguments.plan {
        Some(PlanChoice::Auto) => plan::search_for(arguments, config)?,
        None => (config, None),
    };
    if arguments.debug_sharding {
        return print_sharding(&config, &settings);
    }
    if !config.target.topology.is_empty() {
        return ahead::run(&config, &settings, arguments.write_hlo.as_deref());
    }
    if let Some(several) = several {
        return several.train(&config, &|part| train(arguments, &config, (None, Some(part)), interrupts));
    }
    if config.target.processes > 1 {
        let count = config.target.processes;
        bail!("target.processes is {count}: start as many processes, each with --processes auto or with --process-id");
    }
    train(arguments, &config, (opened, None), interrupts)
}

fn train(
    arguments: &Train,
    config: &RunConfig,
    (opened, part): (Option<plan::Opened>, Option<Part>),
    interrupts: &Interrupts,
) -> Result<()> {
    let (process, link, prepare) = match part {
        Some(Part { process, link, prepare }) => (process, link, Some(prepare)),
        None => (None, None, None),
    };
    let (peers, process) = process.unzip();
    // One of several processes speaks for all.
    let is_first = process.as_ref().is_none_or(|process| process.number == 0);
    let say = |text: &str| {
        if is_first {
            eprintln!("{text}");
        }
    };
    let steps = arguments.steps.unwrap_or(config.train.steps as u64);
    let checkpoint = find_checkpoint(arguments)?;
    if let Some(peers) = &peers {
        let found = checkpoint.as_ref().map_or("none".to_owned(), |found| found.about().step.to_string());
        peers.agree(
            "the step of the checkpoint",
            &found,
            "give all processes the same --resume, on a shared file system",
        )?;
    }
    let done = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.about().step);
    if done >= steps {
        say(&format!("the run has done {}; give more with --steps", counted(done as usize, "step")));
        return Ok(());
    }
    config.check_validation()?;
    if arguments.load_parameters.is_some() && link.is_some() {
        bail!("--load-parameters is not for replicas apart, which begin alike: set train.init for all of them");
    }
    if arguments.find_nan && config.diloco.is_some() && peers.is_some() {
        bail!(
            "--find-nan is not for replicas of one program in several processes: run that replica's step in one process"
        );
    }
    if arguments.save_parameters.is_some() && peers.is_some() {
        bail!("--save-parameters is for one process: give --checkpoint, and `meshloom export` the checkpoint");
    }
    if is_first {
        arguments.metrics.as_ref().map(MetricsWriter::check).transpose()?;
        arguments.save_parameters.as_ref().map(parameters::check_writable).transpose()?;
    }
    // Before anything is written: without devices, nothing is half done.
    let Devices { config, client, notes } = match opened {
        Some((client, notes)) => config.with_client(client, notes)?,
        None => config.open_as(process.as_ref())?,
    };
    if let Some(prepare) = prepare.filter(|_| process.is_some()) {
        prepare(&client)?;
    }
    let text = load_text(&config)?;
    let profile = arguments.profile.as_ref().filter(|_| is_first).map(|directory| {
        let range = arguments.profile_steps.unwrap_or(((done + 3).min(steps), (done + 5).min(steps)));
        StepProfile::create(directory, range, done..steps, config.train.steps_per_call as u64)
    });
    let profile = profile.transpose()?;

    let run = config.resolve()?;
    let run = match &peers {
        Some(peers) => run.with_peers(peers.clone()),
        None => run,
    };
    let run = match &link {
        Some(link) => run.with_replica_link(link.clone()),
        None => run,
    };
    let mut trainer = match &checkpoint {
        Some(checkpoint) => {
            let trainer = Trainer::resume_run(run, text, &client, checkpoint)?;
            say(&format!("resumed after step {} from {}", trainer.steps_done(), checkpoint.folder().display()));
            trainer
        }
        None => Trainer::of(run, text, &client)?,
    };
    if trainer.steps_done() > done {
        say(&format!("goes on with the other replicas after step {}", trainer.steps_done()));
    }
    for warning in notes.iter().chain(trainer.warnings()) {
        say(&format!("warning: {warning}"));
    }
    if is_first {
        trainer.on_slow_step(|slow| eprintln!("warning: {slow}"));
    }
    if let Some(directory) = arguments.load_parameters.as_ref().filter(|path| path.is_dir()) {
        trainer.load_parameters_of(&checkpoint::find(directory, Fallback::Refuse)?.checkpoint)?;
    } else if let Some(file) = &arguments.load_parameters {
        trainer.load_parameters(file, LoadOptions { convert: arguments.convert, ..LoadOptions::default() })?;
    }
    let entropy = trainer.dataset().unigram_entropy();
    let (token, single) = if trainer.tokenizer().is_bytes() { ("byte", "letter") } else { ("token", "token") };
    let processes = match config.target.processes {
        1 => String::new(),
        count => format!(" in {count} processes"),
    };
    say(&format!(
        "{} parameters on {}{processes} of {} ({}); lowered in {:.1} ms, compiled in {:.1} s{}",
        trainer.parameter_count(),
        counted(config.device_total(), "device"),
        config.target.platform,
        trainer.run().mesh(),
        1e3 * trainer.lower_seconds(),
        trainer.compile_seconds(),
        match trainer.compile_cache() {
            Some(CacheUse::Hit) => ", compile cache hit",
            Some(CacheUse::Miss) => ", compile cache miss",
            Some(CacheUse::Bypassed) => " (anew: programs of several CPU devices are not cached)",
            None => "",
        },
    ));
    let count = trainer.dataset().token_count();
    say(&format!("{count} {token}s of text, {entropy:.4} nats per {token} as single {single}s"));

    if let Some(Notices::Google) = arguments.notices {
        interrupts.heed_google(&metadata_host(), ASKED_EVERY)?;
    }
    // Last, so that a run that does not begin leaves what an earlier one wrote.
    let mut outputs = Outputs::open(arguments, &config, checkpoint.as_ref(), profile, peers.clone())?;
    let mut summary = trainer.summary();
    let mut progress = if is_first { Progress::new(steps) } else { Progress::hidden() };
    let start = Instant::now();
    let mut last = None;
    let mut training = interrupts.training(arguments.grace.map(Duration::from_secs));
    let mut early = None;
    while trainer.steps_done() < steps {
        let before = trainer.steps_done();
        early = training.ends_after(before, peers.as_deref())?;
        if early.is_some() {
            break;
        }
        outputs.before_call(before, &client, &mut progress)?;
        let (called, failed) = match trainer.steps(steps - before) {
            Ok(called) => (called, None),
            Err(Error::NotFinite(error)) => (error.metrics.clone(), Some(error)),
            Err(error) => return Err(error.into()),
        };
        for metrics in called {
            outputs.step(&metrics)?;
            if !metrics.is_finite() {
                let StepMetrics { step, loss, grad_norm, .. } = metrics;
                progress.note(&format!(
                    "warning: step {step} changed nothing: its loss is {loss}, its gradient norm {grad_norm}"
                ));
            }
            summary.add(&metrics);
            progress.update(&metrics);
            last = Some(metrics);
        }
        if let Some(error) = failed {
            let maker = match arguments.find_nan {
                true => trainer
                    .find_nan(error.first.step)?
                    .map_or("it is finite when the step is run again".to_owned(), |first| {
                        format!("the first number that is not finite: {first}")
                    }),
                false => "--find-nan with --resume names the op that makes it".to_owned(),
            };
            let interrupt = Interrupt { code: 1, reason: format!("error: {error}; {maker}") };
            match &peers {
                // Each process sees the losses of its own replicas only.
                Some(peers) if config.diloco.is_some() => training.tell(&interrupt, peers.as_ref())?,
                _ => {
                    early = Some(interrupt);
                    break;
                }
            }
        }
        outputs.after_call(before, &trainer, &mut progress)?;
        let evaluates = trainer.evaluation_is_due(before, steps);
        if evaluates || outputs.saves_after(trainer.steps_done(), steps) {
            trainer.complete()?;
        }
        let evaluated = match evaluates {
            true => trainer.evaluate(),
            false => Ok(None),
        };
        // Before the checkpoint: a run that goes on from there has its line.
        if let Ok(Some(evaluation)) = &evaluated {
            outputs.evaluation(evaluation)?;
            progress.note(&evaluation.to_string());
        }
        outputs.save(&trainer, steps)?;
        // After it: a run whose evaluation fails has its state.
        if let Err(error) = evaluated {
            outputs.finish()?;
            return Err(error.into());
        }
    }
    if let Some(Interrupt { code, reason }) = early {
        progress.finish();
        trainer.complete()?;
        let saved = outputs.save_early(&trainer)?;
        outputs.finish()?;
        if let Some(link) = &link {
            link.leave()?;
        }
        let step = trainer.steps_done();
        let state = match saved {
            Some(folder) => format!("the state after step {step} is in {}", folder.display()),
            None if step == 0 => "no step was done".to_owned(),
            None => format!("the state after step {step} is lost, because checkpoint.dir is empty"),
        };
        let message = if code == 1 { format!("{reason}\n{state}") } else { format!("{reason}: {state}") };
        return Err(Ended { code, message }.into());
    }
    drop(training);
    progress.finish();
    outputs.finish()?;
    if let Some(link) = &link {
        link.leave()?;
    }
    let Some(last) = last.filter(|_| is_first) else { return Ok(()) };
    println!(
        "step {}: loss {:.4} nats per {token}, {}, after {:.0} s",
        last.step,
        last.loss,
        beside_entropy(last.loss, entropy, single),
        start.elapsed().as_secs_f64(),
    );
    summary.memory = trainer.memory_use();
    eprintln!("{summary}");
    let length = arguments.sample.unwrap_or(SAMPLE);
    if process.is_some() {
        // No process has all parameters.
        if arguments.sample.is_some_and(|length| length > 0) {
            eprintln!("warning: several processes generate no text; `meshloom generate` does from a checkpoint");
        }
    } else if length > 0 {
        generate_sample(&trainer, length, config.train.seed)?;
    }
    Ok(())
}

/// Prints a text by the model that has been trained.
fn generate_sample(trainer: &Trainer, length: usize, seed: u64) -> Result<()> {
    let sampling = SamplingOptions { temperature: TEMPERATURE, ..SamplingOptions::default() };
    let options = GenerateOptions { length, sampling, stop_tokens: Vec::new() };
    let texts = Texts { prompts: &[PROMPT.to_owned()], seed, stops: &[], with_special: false, options };
    let requests = texts.requests(trainer.tokenizer())?;
    let mut generator = trainer.generator(texts.room(&requests))?;
    println!();
    texts.print(&requests, &mut generator, trainer.tokenizer())
}

/// Tokens that are generated at the end, unless the user says how many.
const SAMPLE: usize = 160;

/// The text of a config, with a bar while it is taken apart, and a warning for each file that lacks lines.
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

/// Prints what the rules make of the train step.
fn print_sharding(config: &RunConfig, settings: &Settings) -> Result<()> {
    let table = match config.target.topology.as_str() {
        "" => config.on_stated_devices()?.debug_sharding()?,
        topology => {
            let devices = ahead_of_time::describe(&Topology::parse(topology)?, settings)?.devices;
            config.on_devices(devices.len())?.debug_sharding()?
        }
    };
    match table {
        Some(table) => println!("{table}"),
        None => println!("one device: nothing is sharded"),
    }
    Ok(())
}

/// The checkpoint to go on from.
fn find_checkpoint(arguments: &Train) -> Result<Option<Checkpoint>> {
    let Some(path) = &arguments.resume else { return Ok(None) };
    let fallback = if arguments.resume_fallback { Fallback::Older } else { Fallback::Refuse };
    let Found { checkpoint, skipped } = checkpoint::find(path, fallback)?;
    for error in skipped {
        eprintln!("warning: {error}; an older checkpoint is taken");
    }
    Ok(Some(checkpoint))
}
