//! Estimated steps beside measured ones, on eight devices of the CPU plugin: whether the estimate that `meshloom plan
//! --search` goes by puts plans in the order in which they are fast.
//!
//! ```text
//! cargo bench --bench estimate          # 40 plans of three models, minutes
//! cargo bench --bench estimate -- 4     # four plans of each model
//! cargo bench --bench estimate -- --write cpu.toml     # writes the rates of the devices, and runs no plan
//! cargo bench --bench estimate -- --record tests/train/measured     # writes the rates, and what the plans take
//! ```
//!
//! No rates of CPUs are published. They are measured first, by loops of products, of the ops that layers have between
//! products, on few and on many numbers, of small kernels and of collectives, on all devices at once. The devices share
//! the cores: while some wait, others use them. So bubbles are taken out of the estimate. All plans of a model are
//! estimated, and some are measured that lie evenly from the fastest to the slowest. The bench prints a table in
//! Markdown, and the rank correlation of each model, of all plans, and of those without stages that branch.
//! `tests/train/search.rs` compares the recorded times with today's estimates.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use meshloom::analysis::Chip;
use meshloom::analysis::estimate::{Cache, Dimension, Hardware, Reached, Wire, estimate};
use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::DType::F32;
use meshloom::ir::Literal;
use meshloom::pjrt::Client;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Tensor, TensorSpec, einsum, fori_loop};
use meshloom_benches::copies::Copies;
use meshloom_benches::rank::rank_correlation;
use meshloom_benches::{ITERATIONS, fastest};
use meshloom_plan::{LoweredPlan, bounded, evaluate, write_hardware};
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;

const DEVICES: usize = 8;

/// Plans that are run, of all models together.
const PLANS: usize = 40;

/// Three models whose steps take tenths of a second: a plain one, one with a large vocabulary, and one with experts.
const MODELS: [(&str, &[&str]); 3] = [
    ("dense", &["model.layers=4", "model.embed=256", "model.mlp=1024", "model.vocab=512"]),
    ("vocabulary", &["model.layers=2", "model.embed=256", "model.mlp=512", "model.vocab=16384"]),
    (
        "experts",
        &["model.family=mixtral", "model.layers=2", "model.embed=128", "model.family.moe_mlp=256", "model.vocab=512"],
    ),
];

/// The settings that the models share.
const COMMON: &[&str] =
    &["model.heads=8", "model.kv_heads=8", "model.head_dim=32", "model.seq=256", "train.batch=32", "mesh.axes=data=8"];

/// Width of the products that rates are measured with.
const WIDE: usize = 512;

/// A loop over a value of `columns` numbers for each device, beside weights that all have.
struct Loop<'a> {
    client: &'a Client,
    name: &'a str,
    rows: usize,
    columns: usize,
}

/// The time and the bytes of a loop.
struct Measured {
    /// Seconds of an iteration.
    iteration: f64,
    /// Seconds of a run besides.
    besides: f64,
    /// Bytes that the estimate has the kernels of an iteration read and write.
    moved: f64,
    /// Bytes of outputs and temporaries.
    fresh: f64,
}

/// One run of a program.
struct RunOnce {
    seconds: f64,
    moved: f64,
    fresh: f64,
}

impl Loop<'_> {
    fn measure(&self, body: impl Fn(Tensor, Tensor) -> Tensor) -> anyhow::Result<Measured> {
        let [one, all] = [self.run(1, &body)?, self.run(ITERATIONS, &body)?];
        // The longer of two short loops may be measured as the shorter.
        let of_one = |all: f64, one: f64| ((all - one) / (ITERATIONS - 1) as f64).max(0.0);
        let iteration = of_one(all.seconds, one.seconds);
        let besides = (one.seconds - iteration).max(0.0);
        Ok(Measured { iteration, besides, moved: of_one(all.moved, one.moved), fresh: one.fresh })
    }

    fn run(&self, iterations: usize, body: impl Fn(Tensor, Tensor) -> Tensor) -> anyhow::Result<RunOnce> {
        let dims = [DEVICES * self.rows, self.columns];
        let specs = (TensorSpec::new(F32, dims).with_axes(&["rows", ""]), TensorSpec::new(F32, [WIDE, WIDE]));
        let function = Function::trace(self.name, specs, |(x, weights)| {
            fori_loop(iterations, x, |_, x| body(x, weights).with_axes(["rows", ""]))
        })?;
        let mesh = Mesh::parse(&format!("data={DEVICES}"), DEVICES)?;
        let rules = RuleSets::uniform(Rules::from_pairs(&[("rows", &["data"])])?);
        let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
        let lowered = lower(function.graph(), &options)?;
        let module = lowered.module.decode()?;
        // A byte a second, and all else takes no time.
        let chip = Chip { f32_flops: Some(1e30), memory_bandwidth: Some(1.0), ..*Chip::parse("cpu")? };
        let free = Dimension { size: DEVICES, wire: Wire::Switch, wraps: false, rate: 1e30, latency: 0.0 };
        let bytes = Hardware { launch: 0.0, ..Hardware::of_dimensions(chip, vec![free]) };
        let moved = estimate(&module, &mesh, &bytes)?.computing;
        let program = lowered.compile(self.client)?;
        let number = |dims: &[usize]| {
            Literal::from_fn(TensorSpec::new(F32, dims).ty, |index| (index % 97) as f64 / 97.0 / WIDE as f64)
        };
        let inputs = program.put(0, &vec![number(&dims), number(&[WIDE, WIDE])])?;
        let seconds = fastest(|| {
            let outputs = program.run(&inputs.iter().collect::<Vec<_>>())?;
            Ok(outputs.iter().try_for_each(|output| output.block_until_ready())?)
        })?;
        let taken = program.executable().memory_stats()?;
        Ok(RunOnce { seconds, moved, fresh: (taken.temporary + taken.outputs) as f64 })
    }
}

/// Rows of a device in the loops that say how fast memory is, from what fits any cache to more than the system keeps
/// for the next run.
const ROWS: [usize; 7] = [1 << 6, 1 << 7, 1 << 8, 1 << 9, 1 << 11, 1 << 13, 1 << 15];

/// Eight devices as they are here.
fn calibrate(client: &Client) -> anyhow::Result<Hardware> {
    let of = |name, rows, columns| Loop { client, name, rows, columns };
    let scaled = |x: Tensor, _: Tensor| x * 0.5 + 1.0;
    let products = of("products", WIDE, WIDE).measure(|x, weights| einsum("ri,ij->rj", &[x, weights]))?.iteration;
    let nothing = of("nothing", 1, 16).measure(scaled)?.iteration;
    // Small products are not fused.
    const CHAIN: usize = 16;
    let chain = of("kernels", 8, 8).measure(|x, weights| {
        let weights = weights.slice(0, 0..8).slice(1, 0..8);
        (0..CHAIN).fold(x, |x, _| einsum("ri,ij->rj", &[x, weights]))
    })?;
    let kernel = ((chain.iteration - nothing) / CHAIN as f64).max(0.0);
    // The ops of a layer between products: a norm, a softmax, a gate.
    let layer = |x: Tensor, _: Tensor| {
        let norm = (x.square().mean(-1) + 1e-5).rsqrt();
        let normal = x * norm.broadcast_like(x, [0]);
        normal.softmax(-1) + normal.silu()
    };
    let mut rates = Vec::new();
    let mut fresh = 0.0;
    for rows in ROWS {
        let passed = of("elements", rows, WIDE).measure(layer)?;
        rates.push((8.0 * (rows * WIDE) as f64, passed.moved / passed.iteration.max(1e-9)));
        // In the longest loop, nearly all of the other time is spent on fresh memory.
        fresh = passed.besides / passed.fresh;
    }
    let memory = rates.last().map_or(1.0, |&(_, rate)| rate);
    let cached = rates.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
    let in_cache = rates.iter().filter(|&&(_, rate)| rate > (cached * memory).sqrt());
    let cache_bytes = in_cache.map(|&(bytes, _)| bytes).fold(0.0, f64::max);
    // As long as what steps of these models send.
    let mut logarithms = Vec::new();
    for numbers in [1 << 17, 1 << 19, 1 << 21] {
        for copies in Copies::ALL {
            let seconds = copies.seconds(client, DEVICES, numbers)?;
            println!("{copies:?} of {} KiB: {:.0} us", numbers >> 8, 1e6 * seconds);
            logarithms.push((4.0 * numbers as f64 / seconds.max(1e-9)).ln());
        }
    }
    let rate = (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp();
    // Threads that wait for one another, in pairs and all: what one more doubling of a group takes.
    let short = |members| Copies::AllReduce.seconds(client, members, 64);
    let [of_two, of_all] = [short(2)?, short(DEVICES)?];
    let latency = ((of_all - of_two) / (DEVICES as f64 / 2.0).log2()).max(0.0);
    let launch = (of_two - latency).max(0.0);
    let chip = Chip {
        f32_flops: Some(2.0 * (WIDE as f64).powi(3) / products),
        memory_bandwidth: Some(memory),
        memory_bytes: Some(1 << 34),
        ..*Chip::parse("cpu")?
    };
    println!(
        "each of {DEVICES} devices: {:.1} GFLOP/s, {:.2} GB/s of memory, {:.2} GB/s up to {:.0} KiB, {:.2} GB/s between \
         devices, {:.0} us to start a collective, {:.0} us for each doubling of its devices, {:.1} us a kernel, {:.0} us \
         for each MiB of temporaries",
        chip.f32_flops.unwrap_or(0.0) / 1e9,
        memory / 1e9,
        cached / 1e9,
        cache_bytes / 1024.0,
        rate / 1e9,
        1e6 * launch,
        1e6 * latency,
        1e6 * kernel,
        1e6 * fresh * f64::from(1 << 20),
    );
    let cache = Some(Cache { bytes: cache_bytes, bandwidth: cached });
    let reached = Reached { products: 1.0, memory: 1.0, links: 1.0, tile: 1, kernel, fresh, cache };
    let dimension = Dimension { size: DEVICES, wire: Wire::Memory, wraps: false, rate, latency };
    Ok(Hardware { chip, dimensions: vec![dimension], reached, launch, overlaps: false })
}

/// Seconds of a step: the smallest of three.
fn step_seconds(config: &RunConfig, client: &Client) -> anyhow::Result<f64> {
    let mut trainer = Trainer::new(config, client)?;
    trainer.step()?;
    let mut seconds = f64::INFINITY;
    for _ in 0..3 {
        seconds = seconds.min(trainer.step()?.step_seconds);
    }
    Ok(seconds)
}

/// The path that follows an option, from the repository's folder: Cargo runs benches in that of their package.
fn path_after(arguments: &[String], option: &str) -> anyhow::Result<Option<PathBuf>> {
    let Some(at) = arguments.iter().position(|argument| argument == option) else { return Ok(None) };
    let path = arguments.get(at + 1).with_context(|| format!("{option} needs a path"))?;
    Ok(Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)))
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = arguments.iter().find_map(|argument| argument.parse::<usize>().ok());
    let [write, record] = ["--write", "--record"].map(|option| path_after(&arguments, option));
    let (write, record) = (write?, record?);
    let client = Client::cpu(DEVICES)?;
    let hardware = calibrate(&client)?;
    if let Some(file) = write {
        write_hardware(&file, &hardware)?;
        println!("wrote {}", file.display());
        return Ok(());
    }
    let (mut all, mut without_branches) = (Vec::new(), Vec::new());
    let mut recorded = String::from("model\tsettings\tseconds\n");
    println!("\n| model | plan | estimated | measured |\n|---|---|---|---|");
    for (index, (name, model)) in MODELS.iter().enumerate() {
        let shape = COMMON.iter().chain(*model).map(|&set| set.to_owned()).collect::<Vec<_>>();
        let base = RunConfig::from_overrides(&[&shape[..], &[meshloom_benches::text()]].concat())?;
        let plans = bounded(&base, &hardware)?;
        let found =
            plans.iter().filter_map(|(plan, _)| evaluate(&base, &plan.clone().into(), Some(&hardware), u64::MAX).ok());
        let seconds = |found: &LoweredPlan| found.seconds() - found.time.as_ref().map_or(0.0, |time| time.idle);
        let mut found: Vec<LoweredPlan> = found.collect();
        found.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let most = number.unwrap_or(PLANS / MODELS.len() + usize::from(index < PLANS % MODELS.len())).min(found.len());
        let mut pairs = Vec::new();
        for place in 0..most {
            let chosen = &found[place * (found.len() - 1) / (most - 1).max(1)];
            let plan = chosen.plan.to_string();
            let config = chosen.plan.apply(&base).on_devices(DEVICES)?;
            let measured = step_seconds(&config, &client).with_context(|| plan.clone())?;
            println!("| {name} | {plan} | {:.0} ms | {:.0} ms |", 1e3 * seconds(chosen), 1e3 * measured);
            let settings = [&shape[..], &chosen.plan.settings()].concat().join(" ");
            writeln!(recorded, "{name}\t{settings}\t{measured:.3}")?;
            pairs.push((seconds(chosen), measured));
            let pipeline = chosen.plan.plan().and_then(|plan| plan.pipeline.as_ref());
            if !pipeline.is_some_and(|pipeline| pipeline.schedule.branches()) {
                without_branches.push((seconds(chosen), measured));
            }
        }
        println!("| {name} | rank correlation of {most} plans | {:.3} | |", rank_correlation(&pairs));
        all.extend(pairs);
    }
    if let Some(folder) = record {
        write_hardware(folder.join("cpu.toml"), &hardware)?;
        std::fs::write(folder.join("steps.tsv"), recorded)?;
    }
    let (least, most) =
        all.iter().fold((f64::INFINITY, 0.0f64), |(least, most), pair| (least.min(pair.1), most.max(pair.1)));
    println!(
        "\nrank correlation of all {}: {:.3}, of the {} whose stages do not branch: {:.3}; the slowest takes {:.1} times \
         as long as the fastest",
        all.len(),
        rank_correlation(&all),
        without_branches.len(),
        rank_correlation(&without_branches),
        most / least
    );
    Ok(())
}
