//! Train steps of a GPT-2 with 124 million parameters and a Llama with 1.24 billion, in bf16 on one GPU, beside the
//! same mathematics in JAX (benches/jax/gpu.py) with one plugin: tokens per second and model FLOPs utilization (MFU).
//!
//! ```text
//! MESHLOOM_BENCH_PYTHON=python3 cargo bench --bench gpu -- [CASES] [OPTIONS]
//!
//! CASES              gpt2-124m-1024, gpt2-124m-4096, llama-1b-1024, llama-1b-4096; by default all
//! --rounds N         processes of each side (3)
//! --steps N          timed steps of each process (10)
//! --platform cpu     instead of cuda
//! --small            tiny models, for a machine without a GPU
//! --f32              with --platform cpu: in f32, which shows that the mathematics are the same
//! --ahead            compiles both sides for an H100 and prints their memory; needs no GPU
//! ```
//!
//! Each round is a process of each side, one after the other, so that each has the GPU for itself; which is first
//! changes. Programs are compiled once: both sides cache them. Both start from the same parameters, draw the same rows
//! and count the same operations; the bench ends if the losses of the first three steps differ by more than a part in a
//! thousand, the bound that docs/training.md has for bf16 (with `--f32`: 1e-5). On a GPU, our side takes JAX's CUDA
//! plugin, unless `MESHLOOM_CUDA_PLUGIN` names one, and JAX gets our compiler options.
//!
//! MFU is `6 N + 12 L H Q T` (PaLM, arXiv 2204.02311, appendix B) for each token of a step, by the median seconds of a
//! step, by the bf16 rate that the chip's maker states. Rematerialization does not count. Attention is plain on both
//! sides: a layer's scores are `T` by `T` in f32. JAX could call cuDNN's fused attention; that is not compared here.

mod gpt2;
mod rows;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use gpt2::Gpt2;
use meshloom::analysis::{Arithmetic, Chip};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::table::Table;
use meshloom::ir::{DType, Literal};
use meshloom::ops::RematPolicy;
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom::pjrt::{Client, CompileOptions, Topology, check_present, worker};
use meshloom_benches::jax::python;
use meshloom_benches::median;
use meshloom_nn::Batch;
use meshloom_train::config::{OptimizerConfig, RunConfig};
use meshloom_train::run::Calls;
use meshloom_train::{Devices, Model, Run, Trainer};
use rows::Rows;
use serde::{Deserialize, Serialize};

/// Steps of a process before those that are timed.
const WARMUP: usize = 3;

/// The largest relative difference of the first losses from JAX's: in bf16, and in f32.
const BOUNDS: [f64; 2] = [1e-3, 1e-5];

const TARGET: &str = "h100:1x1x1";

/// The part of a GPU's memory that either side takes.
const MEMORY_FRACTION: f64 = 0.9;

const CUDA_PLUGIN: &str = "MESHLOOM_CUDA_PLUGIN";

/// Sizes for a machine without a GPU.
const SMALL: [&str; 7] = [
    "model.layers=2",
    "model.embed=64",
    "model.heads=4",
    "model.head_dim=16",
    "model.mlp=192",
    "model.vocab=512",
    "train.learning_rate=1e-2",
];

/// A model, what it is trained on, and which parts of it fit into 80 GB at a time.
struct Case {
    name: &'static str,
    is_gpt2: bool,
    seq: usize,
    batch: usize,
    microbatches: usize,
    remat: &'static str,
}

const CASES: [Case; 4] = [
    Case { name: "gpt2-124m-1024", is_gpt2: true, seq: 1024, batch: 64, microbatches: 4, remat: "none" },
    Case { name: "gpt2-124m-4096", is_gpt2: true, seq: 4096, batch: 16, microbatches: 4, remat: "full" },
    Case { name: "llama-1b-1024", is_gpt2: false, seq: 1024, batch: 32, microbatches: 2, remat: "full" },
    Case { name: "llama-1b-4096", is_gpt2: false, seq: 4096, batch: 8, microbatches: 2, remat: "full" },
];

/// The arguments of the command line.
struct Arguments {
    cases: Vec<String>,
    platform: String,
    is_small: bool,
    is_f32: bool,
    is_ahead: bool,
    rounds: usize,
    steps: usize,
    /// Whether this is a process of our side.
    is_own_side: bool,
    /// Where its first parameters go.
    parameters: Option<String>,
}

impl Arguments {
    fn read() -> anyhow::Result<Arguments> {
        let mut read = Arguments {
            cases: Vec::new(),
            platform: "cuda".to_owned(),
            is_small: false,
            is_f32: false,
            is_ahead: false,
            rounds: 3,
            steps: 10,
            is_own_side: false,
            parameters: None,
        };
        // `cargo bench` adds `--bench`.
        let mut given = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = given.next() {
            let mut value = || given.next().with_context(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--platform" => read.platform = value()?,
                "--small" => read.is_small = true,
                "--f32" => read.is_f32 = true,
                "--ahead" => read.is_ahead = true,
                "--rounds" => read.rounds = value()?.parse().context("--rounds needs a number")?,
                "--steps" => read.steps = value()?.parse().context("--steps needs a number")?,
                "--own-side" => read.is_own_side = true,
                "--parameters" => read.parameters = Some(value()?),
                name if CASES.iter().any(|case| case.name == name) => read.cases.push(argument),
                _ => bail!(
                    "{argument} is neither an option (--rounds N, --steps N, --platform cpu|cuda, --small, --f32, \
                     --ahead) nor a case ({})",
                    CASES.map(|case| case.name).join(", ")
                ),
            }
        }
        ensure!(read.rounds > 0 && read.steps > 0, "--rounds and --steps must be at least 1");
        ensure!(["cpu", "cuda"].contains(&read.platform.as_str()), "--platform is cpu or cuda");
        ensure!(!read.is_f32 || read.platform == "cpu", "--f32 is for --platform cpu: a GPU rounds products to TF32");
        Ok(read)
    }

    fn cases(&self) -> impl Iterator<Item = &'static Case> {
        CASES.iter().filter(|case| self.cases.is_empty() || self.cases.iter().any(|name| name == case.name))
    }
}

/// The report that a process of one side prints.
#[derive(Serialize, Deserialize)]
struct Report {
    device: String,
    version: String,
    /// The tokens of a step; `flops` are of a step, too.
    tokens: f64,
    flops: f64,
    compile_seconds: f64,
    /// The losses of all steps.
    losses: Vec<f64>,
    /// The seconds of the timed steps.
    seconds: Vec<f64>,
    /// The options that the plugin's compiler was given, on meshloom's side.
    #[serde(default)]
    compiler_options: Vec<String>,
}

impl Case {
    fn config(&self, arguments: &Arguments) -> anyhow::Result<RunConfig> {
        let scale = if arguments.is_small { 32 } else { 1 };
        let mut settings = vec![
            format!("model.seq={}", self.seq / scale),
            format!("train.batch={}", self.batch),
            format!("train.microbatches={}", self.microbatches),
            format!("remat.policy={}", self.remat),
        ];
        if arguments.is_small {
            let kv_heads = if self.is_gpt2 { 4 } else { 2 };
            settings.extend(SMALL.map(str::to_owned));
            settings.push(format!("model.kv_heads={kv_heads}"));
        }
        settings.extend(arguments.is_f32.then(|| "model.compute_dtype=f32".to_owned()));
        match (arguments.is_ahead, arguments.platform.as_str()) {
            (true, _) => settings.push(format!("target.topology={TARGET}")),
            (_, "cuda") => settings
                .extend(["target.platform=cuda".to_owned(), format!("target.memory_fraction={MEMORY_FRACTION}")]),
            _ => (),
        }
        let file = if self.is_gpt2 { "gpt2-124m.toml" } else { "llama-1b.toml" };
        Ok(RunConfig::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu").join(file), &settings)?)
    }

    fn gpt2(&self, config: &RunConfig) -> Gpt2 {
        let remat = if self.remat == "full" { RematPolicy::Full } else { RematPolicy::None };
        let model = &config.model;
        let (layers, embed, heads) = (model.layers, model.embed, model.heads);
        Gpt2 { layers, embed, heads, vocab: model.vocab, seq: model.seq, dtype: model.compute_dtype, remat }
    }

    /// Returns the case as JSON for JAX's script.
    fn for_jax(&self, config: &RunConfig, compiler_options: &[String]) -> String {
        let (model, train) = (&config.model, &config.train);
        let (OptimizerConfig::AdamW { beta1, beta2, epsilon } | OptimizerConfig::Muon { beta1, beta2, epsilon, .. }) =
            train.optimizer;
        serde_json::json!({
            "model": if self.is_gpt2 { "gpt2" } else { "llama" },
            "layers": model.layers, "embed": model.embed, "heads": model.heads, "kv_heads": model.kv_heads,
            "head_dim": model.head_dim, "mlp": model.mlp, "vocab": model.vocab, "seq": model.seq,
            "rope_theta": model.rope_theta, "batch": train.batch, "microbatches": train.microbatches,
            "compute_dtype": if model.compute_dtype == DType::F32 { "float32" } else { "bfloat16" },
            "remat": self.remat, "learning_rate": train.learning_rate, "beta1": beta1, "beta2": beta2,
            "epsilon": epsilon, "weight_decay": train.weight_decay, "clip_norm": train.clip_norm,
            "compiler_options": compiler_options,
        })
        .to_string()
    }
}

/// Our side, in a process of its own.
fn measure<M>(run: Run<M>, flops_per_token: f64, arguments: &Arguments, client: &Client) -> anyhow::Result<()>
where
    M: Model<Batch<Literal> = Batch<Literal>>,
{
    let config = run.config().clone();
    let (tokens, vocab, seq) = (config.train.batch * config.model.seq, config.model.vocab, config.model.seq);
    let mut trainer = Trainer::of(run, Rows { vocab, seq }, client)?;
    trainer.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    if let Some(file) = &arguments.parameters {
        trainer.save_parameters(file)?;
    }
    let steps = (0..WARMUP + arguments.steps).map(|_| trainer.step()).collect::<Result<Vec<_>, _>>()?;
    let report = Report {
        device: client.devices().first().map(|device| device.kind.clone()).unwrap_or_default(),
        version: format!("plugin {}", client.plugin().path().display()),
        tokens: tokens as f64,
        flops: flops_per_token * tokens as f64,
        compile_seconds: trainer.compile_seconds(),
        losses: steps.iter().map(|step| step.loss).collect(),
        seconds: steps.iter().skip(WARMUP).map(|step| step.step_seconds).collect(),
        compiler_options: config.resolved_on(client.platform())?.target.compiler_options,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn own_side(case: &Case, arguments: &Arguments) -> anyhow::Result<()> {
    let Devices { config, client, .. } = case.config(arguments)?.open()?;
    if case.is_gpt2 {
        let model = case.gpt2(&config);
        let flops = model.flops_per_token();
        return measure(config.resolve_for(model)?, flops, arguments, &client);
    }
    let run = config.resolve()?;
    let flops = run.model().flops_per_token(config.model.seq);
    measure(run, flops, arguments, &client)
}

/// The versions that gpu.py reports of its JAX.
#[derive(Deserialize)]
struct About {
    jax: String,
    cuda_plugin: Option<String>,
}

/// A command's output, if it ends well.
fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{} ended with {}", command.get_program().display(), output.status);
    Ok(output.stdout)
}

fn report(command: &mut Command) -> anyhow::Result<Report> {
    let printed = String::from_utf8(output(command)?)?;
    serde_json::from_str(printed.lines().last().unwrap_or_default()).context("a process printed no report")
}

/// Returns the versions of JAX here; `None` if it is not installed.
fn about() -> Option<About> {
    let output = python("gpu.py").arg("--about").stderr(Stdio::null()).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// A case, and what its processes need.
struct Comparison<'a> {
    case: &'a Case,
    arguments: &'a Arguments,
    about: Option<&'a About>,
    folder: &'a Path,
}

impl Comparison<'_> {
    fn ours(&self, is_first: bool) -> anyhow::Result<Report> {
        let arguments = self.arguments;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--own-side", self.case.name, "--platform", &arguments.platform]);
        command.args(["--steps", &arguments.steps.to_string()]).args(arguments.is_small.then_some("--small"));
        command.args(arguments.is_f32.then_some("--f32"));
        if is_first {
            command.arg("--parameters").arg(self.parameters());
        }
        let plugin = self.about.and_then(|about| about.cuda_plugin.as_ref());
        if let Some(plugin) = plugin.filter(|_| std::env::var_os(CUDA_PLUGIN).is_none()) {
            command.env(CUDA_PLUGIN, plugin);
        }
        report(&mut command)
    }

    fn theirs(&self, compiler_options: &[String]) -> anyhow::Result<Report> {
        let case = self.case.for_jax(&self.case.config(self.arguments)?, compiler_options);
        let mut command = python("gpu.py");
        command.args(["--case", &case, "--warmup", &WARMUP.to_string(), "--steps", &self.arguments.steps.to_string()]);
        command.arg("--parameters").arg(self.parameters());
        command.env("JAX_PLATFORMS", &self.arguments.platform).env("JAX_COMPILATION_CACHE_DIR", self.folder);
        command.env("XLA_PYTHON_CLIENT_MEM_FRACTION", MEMORY_FRACTION.to_string());
        report(&mut command)
    }

    fn parameters(&self) -> PathBuf {
        self.folder.join("parameters.safetensors")
    }

    /// The reports of both sides, in turn. The first parameters are ours, so JAX cannot begin.
    fn run(&self) -> anyhow::Result<[Vec<Report>; 2]> {
        let first = self.ours(true)?;
        let options = first.compiler_options.clone();
        let mut sides = [vec![first], Vec::new()];
        for turn in 1..2 * self.arguments.rounds {
            // Ours, JAX's, JAX's, ours, ours, ..
            if turn % 4 == 0 || turn % 4 == 3 {
                sides[0].push(self.ours(false)?);
            } else if self.about.is_some() {
                sides[1].push(self.theirs(&options)?);
            }
        }
        Ok(sides)
    }
}

/// The most that the first losses of two sides are apart, as a part of JAX's; NaN if one of them is.
fn apart(ours: &Report, theirs: &Report, count: usize) -> f64 {
    let pairs = ours.losses.iter().zip(&theirs.losses).take(count);
    let errors = pairs.map(|(own, other)| (own - other).abs() / other.abs());
    errors.fold(0.0, |most, error| if error > most || error.is_nan() { error } else { most })
}

/// Both did the same work.
fn check(ours: &[Report], theirs: &[Report], bound: f64) -> anyhow::Result<()> {
    let Some((first, expected)) = ours.first().zip(theirs.first()) else { return Ok(()) };
    let counts = |report: &Report| (report.tokens, report.flops);
    for report in ours.iter().chain(theirs) {
        let (found, wanted) = (counts(report), counts(first));
        ensure!(found == wanted, "tokens and operations of a step are {wanted:?} here, but {found:?} there");
        let error = apart(report, expected, WARMUP);
        ensure!(error <= bound, "the losses are {:?}, and JAX's {:?}", report.losses, expected.losses);
    }
    let [start, all] = [WARMUP, usize::MAX].map(|count| apart(first, expected, count));
    println!("the first {WARMUP} losses are at most {start:.1e} apart, all {all:.1e}");
    Ok(())
}

fn print_side(name: &str, reports: &[Report]) {
    let Some(first) = reports.first() else { return };
    let losses: Vec<String> = first.losses.iter().take(5).map(|loss| format!("{loss:.5}")).collect();
    println!(
        "{name}: {}, {}, compiled in {:.1} s; first losses {}",
        first.device,
        first.version,
        first.compile_seconds,
        losses.join(" ")
    );
}

/// A figure of a side, from its first report and the median seconds of a step.
type Figure = fn(&Report, f64) -> Option<f64>;

fn print_figures(sides: &[Vec<Report>; 2]) {
    let figures: [(&str, Figure); 4] = [
        ("step (median), ms", |_, seconds| Some(1e3 * seconds)),
        ("tokens/s", |report, seconds| Some(report.tokens / seconds)),
        ("TFLOP/s of the model", |report, seconds| Some(report.flops / seconds / 1e12)),
        ("MFU, %", |report, seconds| {
            let peak = Chip::of_kind(&report.device)?.matrix_rate(Arithmetic::Bf16)?;
            Some(100.0 * report.flops / seconds / peak)
        }),
    ];
    let rows = figures.map(|(what, figure)| {
        let [ours, theirs] = sides.each_ref().map(|reports| {
            let seconds: Vec<f64> = reports.iter().flat_map(|report| report.seconds.iter().copied()).collect();
            figure(reports.first()?, median(&seconds))
        });
        let show = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
        [what.to_owned(), show(ours), show(theirs), show(ratio)]
    });
    let table = Table::of(&rows)
        .text("", |[what, ..]| what)
        .number("meshloom", |[_, ours, ..]| ours)
        .number("JAX", |[_, _, theirs, _]| theirs)
        .number("ratio", |[.., ratio]| ratio);
    println!("{table}");
}

/// Compiles a case of both sides for a GPU that is not there, and prints what they need of its memory.
fn ahead(case: &Case, arguments: &Arguments, about: Option<&About>) -> anyhow::Result<()> {
    let (topology, settings) = (Topology::parse(TARGET)?, Settings::default());
    let described = ahead_of_time::describe(&topology, &settings)?;
    let config = case.config(arguments)?.on_devices(described.devices.len())?;
    let platform = &described.platform;
    let lowered = match case.is_gpt2 {
        true => config.resolve_for(case.gpt2(&config))?.lower(Calls::Single, platform)?.1,
        false => config.resolve()?.lower(Calls::Single, platform)?.1,
    };
    let options = CompileOptions { debug_options: config.compiler_options(platform)?, ..CompileOptions::default() };
    let print = |name: &str, module: &[u8]| -> anyhow::Result<()> {
        let memory = ahead_of_time::compile(&topology, module, &options, &settings)?.memory_stats()?;
        let [total, arguments, temporary] =
            [memory.total(), memory.arguments, memory.temporary].map(|bytes| bytes as f64 / 1e9);
        println!("{name}: {total:.2} GB ({arguments:.2} of arguments, {temporary:.2} of temporaries) on {TARGET}");
        Ok(())
    };
    print("meshloom", &lowered.module.bytes)?;
    if about.is_some() {
        let file = tempfile::NamedTempFile::new()?;
        let case = case.for_jax(&config, &[]);
        output(python("gpu.py").args(["--case", &case, "--hlo"]).arg(file.path()).env("JAX_PLATFORMS", "cpu"))?;
        print("JAX", &std::fs::read(file.path())?)?;
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    worker::run_if_asked();
    let arguments = Arguments::read()?;
    if arguments.is_own_side {
        return arguments.cases().try_for_each(|case| own_side(case, &arguments));
    }
    let runs_on_gpu = arguments.platform == "cuda" && !arguments.is_ahead;
    if runs_on_gpu {
        check_present(PlatformKind::Cuda)?;
    }
    let about = about().filter(|about| about.cuda_plugin.is_some() || !runs_on_gpu);
    match &about {
        Some(about) => println!("JAX {}", about.jax),
        None => println!(
            "JAX is left out: MESHLOOM_BENCH_PYTHON names no Python that has it{}",
            if runs_on_gpu { " with its CUDA plugin" } else { "" }
        ),
    }
    for case in arguments.cases() {
        println!("\n{}", case.name);
        if arguments.is_ahead {
            ahead(case, &arguments, about.as_ref())?;
            continue;
        }
        let folder = tempfile::tempdir()?;
        let (about, folder) = (about.as_ref(), folder.path());
        let sides = Comparison { case, arguments: &arguments, about, folder }.run()?;
        print_side("meshloom", &sides[0]);
        print_side("JAX", &sides[1]);
        check(&sides[0], &sides[1], BOUNDS[usize::from(arguments.is_f32)])?;
        print_figures(&sides);
    }
    Ok(())
}
