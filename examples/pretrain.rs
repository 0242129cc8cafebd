//! The main job: trains a Llama-style decoder on real text over 8 virtual CPU devices.
//!
//! ```text
//! cargo run --release --example pretrain
//! cargo run --release --example pretrain -- --config examples/configs/fsdp8.toml --set train.steps=50
//! ```
//!
//! Where everything lies, and why, without running anything:
//!
//! ```text
//! cargo run --release --example pretrain -- --debug-sharding --set mesh.axes=fsdp=2,tensor=4
//! ```
//!
//! With checkpoints, and going on from the newest of them after whatever stopped the run:
//!
//! ```text
//! cargo run --release --example pretrain -- --checkpoint checkpoints --checkpoint-every 20
//! cargo run --release --example pretrain -- --checkpoint checkpoints --checkpoint-every 20 --resume checkpoints
//! ```
//!
//! With a target it compiles the train step for that hardware instead, which need not be there, and says what it needs:
//!
//! ```text
//! cargo run --release --example pretrain -- --target v5e:2x4
//! cargo run --release --example pretrain -- --target h100:1x1x8
//! cargo run --release --example pretrain -- --target tpu7x:2x2x1:slices=2 --set mesh.axes=data=4,fsdp=4
//! cargo run --release --example pretrain -- --target v5p:8x8x8 --config examples/configs/512-devices.toml
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom::pjrt::{Client, ClientOptions, PjrtError, Plugin, Topology, worker};
use meshloom_train::Error;
use meshloom_train::checkpoint::{self, Checkpoint, Checkpointer, Fallback, Found, Start};
use meshloom_train::config::RunConfig;
use meshloom_train::metrics::{MetricsWriter, Progress};
use meshloom_train::parameters::LoadOptions;
use meshloom_train::{StepAhead, Trainer};

/// Trains a decoder on text.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Run config (TOML); without it every key has its default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Overrides one key of the config; may be given more than once
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Steps to run, at least 1, those before a checkpoint included; as --set train.steps=N, but the learning-rate
    /// schedule keeps its length
    #[arg(long, value_name = "N", value_parser = parse_steps, allow_hyphen_values = true)]
    steps: Option<u64>,
    /// Seed of parameters and data; short for --set train.seed=N
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Writes one JSON line for each step
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Tokens to sample at the end
    #[arg(long, value_name = "N", default_value_t = 160)]
    sample: usize,
    /// Compiles the train step for this hardware and prints what it needs, instead of running it; short for
    /// --set target.topology=TOPOLOGY
    #[arg(long, value_name = "TOPOLOGY")]
    target: Option<String>,
    /// Prints how every parameter and named activation is sharded, and by which rule, instead of running
    #[arg(long)]
    debug_sharding: bool,
    /// The most time that the plugin may take to compile for a target
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..))]
    time_limit: u64,
    /// Writes the program as XLA optimized it for the target, a serialized HLO module
    #[arg(long, value_name = "FILE", requires = "target")]
    write_hlo: Option<PathBuf>,
    /// Starts from the parameters in a safetensors file, or of a checkpoint, instead of drawing them
    #[arg(long, value_name = "FILE")]
    load_parameters: Option<PathBuf>,
    /// With --load-parameters: converts between floating-point types
    #[arg(long, requires = "load_parameters")]
    convert: bool,
    /// Writes the last parameters to a safetensors file
    #[arg(long, value_name = "FILE")]
    save_parameters: Option<PathBuf>,
    /// Writes checkpoints there, the last after the last step; short for --set checkpoint.dir=DIR
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<String>,
    /// Steps between checkpoints; short for --set checkpoint.every=N
    #[arg(long, value_name = "N")]
    checkpoint_every: Option<u64>,
    /// Goes on from the newest checkpoint there, or from this one, up to step --steps
    #[arg(long, value_name = "DIR", conflicts_with = "load_parameters")]
    resume: Option<PathBuf>,
    /// With --resume: where the newest checkpoint is damaged, takes the newest that is not
    #[arg(long, requires = "resume")]
    resume_fallback: bool,
}

fn parse_steps(text: &str) -> Result<u64, String> {
    let steps = text.parse().ok().filter(|&steps| steps > 0);
    steps.ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

impl Arguments {
    /// The config file's overrides: those of `--set`, and the flags that are short for one.
    fn overrides(&self) -> Vec<String> {
        let quoted = |key: &str, text: &String| format!("{key}={}", toml::Value::String(text.clone()));
        let flags = [
            self.seed.map(|seed| format!("train.seed={seed}")),
            self.target.as_ref().map(|target| format!("target.topology={target}")),
            self.checkpoint.as_ref().map(|directory| quoted("checkpoint.dir", directory)),
            self.checkpoint_every.map(|steps| format!("checkpoint.every={steps}")),
        ];
        self.set.iter().cloned().chain(flags.into_iter().flatten()).collect()
    }

    /// The checkpoint to go on from.
    fn find_checkpoint(&self) -> Result<Option<Checkpoint>, Error> {
        let Some(path) = &self.resume else { return Ok(None) };
        let fallback = if self.resume_fallback { Fallback::Older } else { Fallback::Refuse };
        let Found { checkpoint, skipped } = checkpoint::find(path, fallback)?;
        for error in skipped {
            eprintln!("warning: {error}; an older checkpoint is taken");
        }
        eprintln!("resumed after step {} from {}", checkpoint.about().step, checkpoint.folder().display());
        Ok(Some(checkpoint))
    }
}

fn main() -> ExitCode {
    // For --target: the compiler runs in a child process, which is this program again.
    worker::run_if_asked();
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn,meshloom=info".into());
    tracing_subscriber::fmt().with_env_filter(filter).without_time().with_writer(std::io::stderr).init();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Error> {
    let overrides = arguments.overrides();
    let config = match &arguments.config {
        Some(path) => RunConfig::load(path, &overrides)?,
        None => RunConfig::from_overrides(&overrides)?,
    };
    config.check_supported()?;
    let settings = Settings { time_limit: Duration::from_secs(arguments.time_limit), ..Settings::default() };
    if arguments.debug_sharding {
        return print_sharding(&config, &settings);
    }
    if !config.target.topology.is_empty() {
        return compile_ahead(&config, &settings, arguments.write_hlo.as_deref());
    }
    let steps = arguments.steps.unwrap_or(config.train.steps as u64);
    let checkpoint = arguments.find_checkpoint()?;
    let mut checkpointer = open_checkpointer(&config, checkpoint.as_ref())?;
    let mut metrics_file = match (&arguments.metrics, &checkpoint) {
        (None, _) => None,
        (Some(path), None) => Some(MetricsWriter::create(path)?),
        (Some(path), Some(checkpoint)) => Some(MetricsWriter::resume(path, checkpoint.about().step)?),
    };

    let plugin = Plugin::find(config.target.platform.name())?;
    let device_count = Trainer::device_count(&config)?;
    let client = Client::new(&plugin, &ClientOptions { device_count: Some(device_count), ..ClientOptions::default() })?;
    let mut trainer = match &checkpoint {
        Some(checkpoint) => Trainer::resume(&config, &client, checkpoint)?,
        None => Trainer::new(&config, &client)?,
    };
    for warning in trainer.warnings() {
        eprintln!("warning: {warning}");
    }
    if let Some(directory) = arguments.load_parameters.as_ref().filter(|path| path.is_dir()) {
        trainer.load_parameters_of(&checkpoint::find(directory, Fallback::Refuse)?.checkpoint)?;
    } else if let Some(file) = &arguments.load_parameters {
        trainer.load_parameters(file, LoadOptions { convert: arguments.convert, ..LoadOptions::default() })?;
    }
    let entropy = trainer.dataset().unigram_entropy();
    let (token, single) = if trainer.tokenizer().is_bytes() { ("byte", "letter") } else { ("token", "token") };
    eprintln!(
        "{} parameters on {device_count} devices ({}); lowered in {:.1} ms, compiled in {:.1} s",
        trainer.parameter_count(),
        config.mesh.axes,
        1e3 * trainer.lower_seconds(),
        trainer.compile_seconds(),
    );
    let count = trainer.dataset().token_count();
    eprintln!("{count} {token}s of text, {entropy:.4} nats per {token} as single {single}s");

    let mut progress = Progress::new(steps);
    let start = Instant::now();
    let mut last = None;
    while trainer.steps_done() < steps {
        for metrics in trainer.steps(steps - trainer.steps_done())? {
            if let Some(file) = &mut metrics_file {
                file.write(&metrics)?;
            }
            progress.update(&metrics);
            last = Some(metrics);
        }
        let done = trainer.steps_done();
        if let Some(checkpointer) = checkpointer.as_mut().filter(|each| each.is_due(done) || done == steps) {
            trainer.save_checkpoint(checkpointer)?;
        }
    }
    progress.finish();
    checkpointer.map(Checkpointer::finish).transpose()?;
    let Some(last) = last else {
        eprintln!("all {steps} steps were done before; give more with --steps");
        return Ok(());
    };
    println!(
        "step {}: loss {:.4} nats per {token}, {:.4} below the entropy of single {single}s, after {:.0} s",
        last.step,
        last.loss,
        entropy - last.loss,
        start.elapsed().as_secs_f64(),
    );
    if let Some(file) = &arguments.save_parameters {
        trainer.save_parameters(file)?;
    }
    if arguments.sample > 0 {
        let prompt = "It was ";
        let tokens = trainer.tokenizer().encode(prompt)?;
        let text = trainer.sampler()?.continue_text(&tokens, arguments.sample, 0.8, config.train.seed)?;
        println!("\n{prompt}{}", trainer.tokenizer().decode(&text));
    }
    Ok(())
}

/// Where the config wants checkpoints, if it does.
fn open_checkpointer(config: &RunConfig, checkpoint: Option<&Checkpoint>) -> Result<Option<Checkpointer>, Error> {
    if config.checkpoint.dir.is_empty() {
        return Ok(None);
    }
    let checkpointer = Checkpointer::new(&config.checkpoint, checkpoint.map_or(Start::Fresh, Start::After))?;
    for folder in checkpointer.set_aside() {
        eprintln!("warning: a checkpoint of a later step is now {}", folder.display());
    }
    Ok(Some(checkpointer))
}

/// Prints what the rules make of the train step.
fn print_sharding(config: &RunConfig, settings: &Settings) -> Result<(), Error> {
    let table = match config.target.topology.as_str() {
        "" => config.debug_sharding()?,
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

/// Compiles the train step for hardware that need not be there, and prints what XLA says of it. Sizes are of each
/// device.
fn compile_ahead(config: &RunConfig, settings: &Settings, write_hlo: Option<&Path>) -> Result<(), Error> {
    let ahead = StepAhead::compile(config, settings)?;
    for warning in ahead.lowered.warnings() {
        eprintln!("warning: {warning}");
    }
    let compiled = &ahead.compiled;
    let kind = ahead.devices.first().map_or("", |device| device.kind.as_str());
    println!("{} parameters on {} devices ({}) of {kind}", ahead.parameter_count, ahead.devices.len(), ahead.mesh);
    println!(
        "lowered in {:.1} ms to {} bytes, compiled for {} in {:.1} s",
        1e3 * ahead.lower_time.as_secs_f64(),
        ahead.lowered.module.bytes.len(),
        compiled.topology,
        compiled.compile_time.as_secs_f64(),
    );
    print_memory(&ahead)?;
    print_costs(&ahead)?;
    let optimized = compiled.optimized_hlo()?;
    let module = optimized.decode()?;
    let instructions: usize = module.computations.iter().map(|computation| computation.instructions.len()).sum();
    println!("optimized program: {instructions} instructions, {} bytes as {}", optimized.bytes.len(), optimized.format);
    match compiled.serialized() {
        Ok(bytes) => println!("serialized executable: {} bytes", bytes.len()),
        Err(error) => println!("serialized executable: {error}"),
    }
    if let Some(path) = write_hlo {
        let write = std::fs::write(path, prost::Message::encode_to_vec(&module));
        write.map_err(|source| PjrtError::Io { action: "write", path: path.to_owned(), source })?;
    }
    Ok(())
}

fn print_memory(ahead: &StepAhead) -> Result<(), Error> {
    let memory = ahead.compiled.memory_stats()?;
    println!("memory of each device, in bytes:");
    let rows = [
        ("arguments", memory.arguments),
        ("outputs", memory.outputs),
        ("of these in the arguments' place", memory.aliased),
        ("temporaries", memory.temporary),
        ("code", memory.generated_code),
        ("peak", memory.peak),
    ];
    for (name, bytes) in rows {
        println!("  {name:<33}{bytes:>16}");
    }
    if let Some(limit) = ahead.devices.first().and_then(|device| device.memory_limit()) {
        println!("  {:<33}{limit:>16}", "there is");
    }
    Ok(())
}

fn print_costs(ahead: &StepAhead) -> Result<(), Error> {
    match ahead.compiled.cost_analysis() {
        Ok(costs) => {
            println!("XLA's cost analysis of one step on each device, loop bodies counted once:");
            let rows = [
                ("floating-point operations", costs.flops()),
                ("bytes accessed", costs.bytes_accessed()),
                // Some plugins say less than nothing, which is to say that they do not know.
                ("seconds at best", costs.optimal_seconds().filter(|seconds| *seconds > 0.0)),
            ];
            for (name, value) in rows.into_iter().filter_map(|(name, value)| Some((name, value?))) {
                println!("  {name:<33}{value:>16.4e}");
            }
            Ok(())
        }
        Err(error @ PjrtError::Unimplemented { .. }) => {
            println!("{error}");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
