//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use meshloom::hlo::files;
use meshloom_models::published::ExportOptions;
use meshloom_train::config::RunConfig;

use crate::bisect::Bisect;
use crate::compile::Compile;
use crate::doctor::Doctor;
use crate::plan::Plan;
use crate::processes::{CertificateFlags, ProcessFlags, parse_count};

/// The prompt that is continued unless the user gives another.
pub const PROMPT: &str = "It was ";

/// The temperature of drawing unless the user gives another.
pub const TEMPERATURE: f64 = 0.8;

/// Trains decoders on text, over any mesh of devices that a PJRT plugin has.
#[derive(Parser)]
#[command(name = "meshloom", version, max_term_width = 110)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Train(Box<Train>),
    Generate(Generate),
    Import(Import),
    Export(Export),
    Logits(Logits),
    Config(Config),
    /// Lists the pipelines that a run config could have, with a picture, and the ways to split a sequence; with
    /// --search, finds the fastest plan on given hardware
    Plan(Common<Plan>),
    /// Compiles a run config or HLO for hardware that you need not have
    Compile(Common<Compile>),
    /// Finds what makes a program go wrong, and shrinks it
    Bisect(Common<Bisect>),
    /// Lists the plugins found, what each can do, and how to get what is missing
    Doctor(Common<Doctor>),
    Certificates(CertificateFlags),
}

/// A command that prints an answer, as those of `hlo-dump` do.
#[derive(Args)]
#[command(after_help = "Exit status: 0 done; 2 an error. Of `bisect`: 0 no symptom; 1 a symptom.")]
pub struct Common<C: Args> {
    #[command(flatten)]
    pub command: C,
    #[command(flatten)]
    pub common: hlo_dump::arguments::Common,
}

/// The run config and its overrides.
#[derive(Args)]
pub struct ConfigArguments {
    /// Run config (TOML); without it, every key has its default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Overrides one key of the config; may be given more than once. `meshloom config` lists the keys
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

impl ConfigArguments {
    /// Reads the config. `flags` are the overrides that other flags are short for. Each of them sets a key once.
    pub fn load(&self, flags: impl IntoIterator<Item = (&'static str, String)>) -> Result<RunConfig> {
        let mut overrides = self.set.clone();
        for (flag, text) in flags {
            let key = |text: &str| text.split_once('=').map(|(key, _)| key.trim().to_owned());
            if let Some(other) = self.set.iter().find(|other| key(other) == key(&text)) {
                bail!("{flag} is short for --set {text}, which contradicts --set {other}; give one of them");
            }
            overrides.push(text);
        }
        Ok(match &self.config {
            Some(path) => RunConfig::load(path, &overrides)?,
            None => RunConfig::from_overrides(&overrides)?,
        })
    }
}

/// Trains a model
#[derive(Args)]
#[command(after_help = "\
Examples:
  meshloom train
      Trains the default model: 200 steps over 8 virtual CPU devices
  meshloom train --config examples/configs/fsdp8.toml --set train.steps=50
      Trains what a config describes, with one key changed
  meshloom train --checkpoint checkpoints --checkpoint-every 20
  meshloom train --checkpoint checkpoints --checkpoint-every 20 --resume checkpoints
      Saves checkpoints; continues from the newest of them after whatever stopped the run
  meshloom train --debug-sharding --set mesh.axes=fsdp=2,tensor=4
      Prints where every value lies and why, without running anything
  meshloom train --plan auto --hardware cpu.toml
      Trains with the mesh, pipeline and rematerialization that are best on the devices that a file describes")]
pub struct Train {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Number of the last step, at least 1; steps before a checkpoint count. As --set train.steps=N, but the
    /// learning-rate schedule keeps its length
    #[arg(long, value_name = "N", value_parser = parse_steps, allow_hyphen_values = true)]
    pub steps: Option<u64>,
    /// Seed of parameters and data; short for --set train.seed=N
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Writes one JSON line for each step
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// Writes the numbers of each step to an event file in this directory, for TensorBoard
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Writes a profile of some steps under this directory, for TensorBoard, XProf and `hlo-dump report`: of the
    /// devices where the plugin has a profiler, of the steps alone elsewhere
    #[arg(long, value_name = "DIR")]
    pub profile: Option<PathBuf>,
    /// With --profile: the first and the last step to record, both included; calls of several steps are recorded whole.
    /// By default the third to the fifth step of this run, as far as it has them
    #[arg(long, value_name = "A..B", requires = "profile", value_parser = parse_range)]
    pub profile_steps: Option<(u64, u64)>,
    /// Tokens to generate at the end [default: 160]
    #[arg(long, value_name = "N")]
    pub sample: Option<usize>,
    /// Searches the plan with the shortest estimated step first, and takes it in place of the config's: mesh, pipeline,
    /// accumulation, rematerialization. docs/plan.md explains the search
    #[arg(long, value_parser = ["auto"])]
    pub plan: Option<String>,
    /// With --plan: a TOML file that describes the devices. By default they are those that are here; no rates of CPUs
    /// are published, and `cargo bench --bench estimate -- --write FILE` measures them
    #[arg(long, value_name = "FILE", requires = "plan")]
    pub hardware: Option<PathBuf>,
    /// Prints how every parameter and named activation is sharded, and by which rule, instead of running
    #[arg(long)]
    pub debug_sharding: bool,
    /// Starts from the parameters in a safetensors file or a checkpoint, instead of drawing them
    #[arg(long, value_name = "FILE")]
    pub load_parameters: Option<PathBuf>,
    /// With --load-parameters: converts between floating-point types
    #[arg(long, requires = "load_parameters")]
    pub convert: bool,
    /// Writes the last parameters to a safetensors file
    #[arg(long, value_name = "FILE")]
    pub save_parameters: Option<PathBuf>,
    /// Writes checkpoints to this directory, the last one after the last step; short for --set checkpoint.dir=DIR
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<String>,
    /// Steps between checkpoints; short for --set checkpoint.every=N
    #[arg(long, value_name = "N")]
    pub checkpoint_every: Option<u64>,
    /// Continues from the newest checkpoint in this directory, or from this checkpoint, up to step --steps
    #[arg(long, value_name = "DIR", conflicts_with = "load_parameters")]
    pub resume: Option<PathBuf>,
    /// With --resume: if the newest checkpoint is damaged, takes the newest one that is not
    #[arg(long, requires = "resume")]
    pub resume_fallback: bool,
    /// If loss or gradient norm of a step are not finite, runs it again to name the op that made the first such number
    #[arg(long)]
    pub find_nan: bool,
    /// Longest time from SIGTERM, SIGINT or SIGHUP until the process ends, whether or not its state is saved by then
    /// [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub grace: Option<u64>,
    /// Whose notices end the run as SIGTERM does: those of Google's metadata server, of maintenance and preemption
    #[arg(long, value_parser = ["google"], value_name = "WHOSE")]
    pub notices: Option<String>,
    #[command(flatten)]
    pub processes: ProcessFlags,
}

fn parse_steps(text: &str) -> Result<u64, String> {
    let steps = text.parse().ok().filter(|&steps| steps > 0);
    steps.ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

/// `3..5`.
fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let read = || {
        let (first, last) = text.split_once("..")?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    let range = read().filter(|&(first, last)| 1 <= first && first <= last);
    range.ok_or_else(|| "write A..B, the first and the last step, as 3..5; steps count from 1".to_owned())
}

impl Train {
    /// A flag that only a run reads.
    pub fn flag_of_run(&self) -> Option<&'static str> {
        let flags = [
            (self.steps.is_some(), "--steps"),
            (self.metrics.is_some(), "--metrics"),
            (self.tensorboard.is_some(), "--tensorboard"),
            (self.profile.is_some(), "--profile"),
            (self.sample.is_some(), "--sample"),
            (self.load_parameters.is_some(), "--load-parameters"),
            (self.save_parameters.is_some(), "--save-parameters"),
            (self.checkpoint.is_some(), "--checkpoint"),
            (self.checkpoint_every.is_some(), "--checkpoint-every"),
            (self.resume.is_some(), "--resume"),
            (self.find_nan, "--find-nan"),
            (self.grace.is_some(), "--grace"),
            (self.notices.is_some(), "--notices"),
            (self.is_one_of_several(), "--processes"),
        ];
        flags.into_iter().find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Whether this is one of several processes.
    pub fn is_one_of_several(&self) -> bool {
        self.processes.is_one_of_several()
    }

    /// The number of this replica, where it is apart from others.
    pub fn replica(&self) -> Option<usize> {
        self.processes.replica
    }

    /// The overrides that flags are short for.
    pub fn overrides(&self) -> impl Iterator<Item = (&'static str, String)> {
        let quoted = |key: &str, text: &String| format!("{key}={}", toml::Value::String(text.clone()));
        let flags = [
            self.seed.map(|seed| ("--seed", format!("train.seed={seed}"))),
            self.checkpoint.as_ref().map(|directory| ("--checkpoint", quoted("checkpoint.dir", directory))),
            self.checkpoint_every.map(|steps| ("--checkpoint-every", format!("checkpoint.every={steps}"))),
        ];
        flags.into_iter().flatten()
    }
}

/// Continues texts with a model
#[derive(Args)]
#[command(after_help = "\
Examples:
  meshloom generate checkpoints
      Continues \"It was \" with the model of the newest checkpoint, and prints the text as it comes
  meshloom generate checkpoints/step-00000120 --prompt \"She had \" --length 40 --seed 7
  meshloom generate checkpoints --prompt \"She had \" --prompt \"He had \" --greedy
      Continues both at once, always by the likeliest token
  meshloom generate checkpoints --count 4 --top-p 0.9 --stop \"\n\"
      Four texts with seeds that follow each other, each up to the end of its line
  meshloom generate checkpoints --set mesh.axes=fsdp=2,tensor=2
      Spreads parameters and cache over devices, by the rules of the run
  meshloom generate Llama-3.2-1B --prompt \"The capital of France is\" --set model.compute_dtype=bf16")]
pub struct Generate {
    /// The folder of a published model, a checkpoint, or a directory of checkpoints: the newest is taken
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// A text to continue; may be given more than once [default: "It was "]
    #[arg(long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// A file with a text to continue; may be given more than once
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Vec<PathBuf>,
    /// How often each text is continued, with other seeds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_count)]
    pub count: usize,
    /// The most tokens to add
    #[arg(long, value_name = "N", default_value_t = 160)]
    pub length: usize,
    /// Seed of the first text; each other has the next. Without it, that of the run
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How freely tokens are drawn: 1 is the model's own distribution, 0 always the likeliest token
    #[arg(long, value_name = "T", default_value_t = TEMPERATURE, allow_hyphen_values = true)]
    pub temperature: f64,
    /// Always takes the likeliest token; short for --temperature 0
    #[arg(long, conflicts_with = "temperature")]
    pub greedy: bool,
    /// Draws among so many of the likeliest tokens
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Draws among the likeliest tokens whose probabilities add up to this
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub top_p: Option<f64>,
    /// Draws among tokens at least so likely as this times the likeliest
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub min_p: Option<f64>,
    /// Ends a text in front of this; may be given more than once
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Ends a text in front of the token with this number, as in front of those that a published model says; may be
    /// given more than once
    #[arg(long, value_name = "N")]
    pub stop_token: Vec<i32>,
    /// Overrides one key of the model's config, such as data.tokenizer if that file has moved, or mesh.axes: everything
    /// is on one device unless it is set
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

impl Generate {
    /// The texts to continue, each as often as is asked for.
    pub fn prompts(&self) -> Result<Vec<String>> {
        let mut prompts = self.prompt.clone();
        for file in &self.prompt_file {
            let text = files::read_text(file, files::SETTINGS_BYTES);
            prompts.push(text.with_context(|| format!("cannot read the prompt {}", file.display()))?);
        }
        if prompts.is_empty() {
            prompts.push(PROMPT.to_owned());
        }
        let each = |prompt: String| std::iter::repeat_n(prompt, self.count);
        Ok(prompts.into_iter().flat_map(each).collect())
    }
}

/// Makes a checkpoint of the weights of a published model
#[derive(Args)]
#[command(after_help = "\
Example:
  meshloom import Llama-3.2-1B imported
  meshloom train --set train.init=imported --set 'data.sources=[\"text/*.txt\"]'
      Imports a model, and continues training it. `train.init` takes the folder of a published model as well")]
pub struct Import {
    /// The folder of the published model: config.json, and safetensors in one file or several
    #[arg(value_name = "MODEL_DIR")]
    pub model: PathBuf,
    /// The directory of checkpoints to write to; it must have none
    #[arg(value_name = "CHECKPOINT_DIR")]
    pub checkpoint: PathBuf,
    /// Overrides one key of the config that the checkpoint says; may be given more than once
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// Writes the model of a checkpoint as transformers reads it
#[derive(Args)]
#[command(after_help = "\
Examples:
  meshloom export checkpoints exported
      Writes config.json, safetensors and the files of the published model that the run started from
  meshloom export checkpoints/step-00000120 exported --dtype f32")]
pub struct Export {
    /// A checkpoint, or a directory of checkpoints: the newest is taken
    #[arg(value_name = "CHECKPOINT_DIR")]
    pub checkpoint: PathBuf,
    /// The folder to write to; it must have no weights
    #[arg(value_name = "MODEL_DIR")]
    pub model: PathBuf,
    /// Element type of all tensors; without it, as they were published
    #[arg(long, value_parser = ["f32", "bf16", "f16"], value_name = "DTYPE")]
    pub dtype: Option<String>,
    /// The most bytes of tensors in a file
    #[arg(long, value_name = "BYTES", default_value_t = ExportOptions::default().max_shard_bytes)]
    pub max_shard_bytes: u64,
    /// Overrides one key of the config in the checkpoint; may be given more than once
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// Writes the logits of a model for given tokens, to be compared with those of another program
#[derive(Args)]
#[command(after_help = "\
Examples:
  meshloom logits Llama-3.2-1B --tokens tokens.json -o logits.npy
      Writes f32 [rows, length, vocab] for a file such as [[1, 5, 3], [2, 4]]; places behind the end of a row are NaN
  meshloom logits checkpoints --tokens tokens.json -o logits.npy --set model.compute_dtype=bf16
  meshloom logits DIR --tokens tokens.json -o logits.npy --set mesh.axes=fsdp=4,tensor=2 --set target.devices=8
      The model is on one device unless mesh.axes is set")]
pub struct Logits {
    /// The folder of a published model, a checkpoint, or a directory of checkpoints
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// A JSON file with a list of lists of tokens
    #[arg(long, value_name = "TOKENS.json")]
    pub tokens: PathBuf,
    /// The NumPy file to write
    #[arg(short, long, value_name = "LOGITS.npy")]
    pub output: PathBuf,
    /// Overrides one key of the model's config, such as model.compute_dtype or mesh.axes; may be given more than once
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// Prints every key of the run config: its value, its default, what it allows and what it means
#[derive(Args)]
#[command(after_help = "\
Examples:
  meshloom config
      Prints every key with its default and its meaning
  meshloom config --config examples/configs/psdp.toml
      Prints what a config says, and where it differs from the defaults
  meshloom config --resolved --set target.topology=v5p:2x2x2
      Prints the config with what follows from the chip: its compiler options; each can be changed
  meshloom config --defaults --format toml > run.toml
      Writes a config of all defaults, with comments, to start from")]
pub struct Config {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Prints the defaults
    #[arg(long, conflicts_with_all = ["config", "set"])]
    pub defaults: bool,
    /// Asks the platform's plugin, and prints the config as it is run: the platform, the mesh, and every compiler
    /// option
    #[arg(long, conflicts_with = "defaults")]
    pub resolved: bool,
    /// The form of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people
    Text,
    /// A config that can be read again, with comments
    Toml,
    /// For programs
    Json,
}
