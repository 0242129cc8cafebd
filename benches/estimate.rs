//! Estimated steps beside measured ones, on eight devices of the CPU plugin: whether the estimate that `hlo-dump plan
//! --search` goes by puts plans in the order in which they are fast.
//!
//! ```text
//! cargo bench --bench estimate          # 40 plans of three models, minutes
//! cargo bench --bench estimate -- 4     # four plans of each model
//! cargo bench --bench estimate -- --write cpu.toml     # writes the rates of the devices, and runs no plan
//! ```
//!
//! Of a CPU no rates are published: they are measured first, by loops of products, of elementwise arithmetic and of
//! collectives on all devices at once. The devices share the cores, so what some wait for, others use: bubbles are
//! taken out of the estimate. All plans of a model are estimated, and some are measured that lie evenly from the
//! fastest to the slowest. Printed: a table in Markdown, and the rank correlation of each model and of all.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use meshloom::compile::{LowerOptions, lower};
use meshloom::hlo::analysis::Chip;
use meshloom::hlo::analysis::estimate::{Dimension, Hardware, Reached, Wire};
use meshloom::ir::DType::F32;
use meshloom::ir::Literal;
use meshloom::pjrt::Client;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Tensor, TensorSpec, einsum, fori_loop};
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;
use meshloom_train::search::{Found, bounded, evaluate, write_hardware};

const DEVICES: usize = 8;

/// Plans that are run, of all models together.
const PLANS: usize = 40;

/// Iterations of the loops that rates are measured with.
const ITERATIONS: usize = 20;

/// Three models whose steps take tenths of a second: a plain one, one with a large vocabulary, and one with experts.
const MODELS: [(&str, &[&str]); 3] = [
    ("dense", &["model.layers=4", "model.embed=256", "model.mlp=1024", "model.vocab=512"]),
    ("vocabulary", &["model.layers=2", "model.embed=256", "model.mlp=512", "model.vocab=16384"]),
    ("experts", &["model.layers=2", "model.embed=128", "model.mlp=256", "model.vocab=512", "model.experts=8"]),
];

/// What the models have in common.
const COMMON: &[&str] =
    &["model.heads=8", "model.kv_heads=8", "model.head_dim=32", "model.seq=256", "train.batch=32", "mesh.axes=data=8"];

/// Width of the products that rates are measured with.
const WIDE: usize = 512;

/// Seconds of an iteration of a loop over a value whose rows are split over all devices, beside weights that all have.
fn measure(
    client: &Client,
    (name, dims): (&str, [usize; 2]),
    body: impl FnOnce(Tensor, Tensor) -> Tensor,
) -> anyhow::Result<f64> {
    let specs = (TensorSpec::new(F32, dims).with_axes(&["rows", ""]), TensorSpec::new(F32, [WIDE, WIDE]));
    let function = Function::trace(name, specs, |(x, weights)| {
        fori_loop(ITERATIONS, x, |_, x| body(x, weights).with_axes(["rows", ""]))
    })?;
    let mesh = Mesh::parse(&format!("data={DEVICES}"), DEVICES)?;
    let rules = RuleSets::uniform(Rules::from_pairs(&[("rows", &["data"])])?);
    let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
    let program = lower(function.graph(), &options)?.compile(client)?;
    let number = |dims: &[usize]| {
        Literal::from_fn(TensorSpec::new(F32, dims).ty, |index| (index % 97) as f64 / 97.0 / WIDE as f64)
    };
    let mut seconds = f64::INFINITY;
    for _ in 0..4 {
        let inputs = program.put(0, &vec![number(&dims), number(&[WIDE, WIDE])])?;
        let start = Instant::now();
        let outputs = program.run(&inputs.iter().collect::<Vec<_>>())?;
        outputs[0].get()?;
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    Ok(seconds / ITERATIONS as f64)
}

/// Eight devices as they are here.
fn calibrate(client: &Client) -> anyhow::Result<Hardware> {
    let products =
        measure(client, ("products", [DEVICES * WIDE, WIDE]), |x, weights| einsum("ri,ij->rj", &[x, weights]))?;
    // About as large as what steps of these models send.
    let long = 1 << 17;
    let elements = measure(client, ("elements", [DEVICES, long]), |x, _| x * 0.5 + 1.0)?;
    let nothing = measure(client, ("nothing", [DEVICES, 16]), |x, _| x * 0.5 + 1.0)?;
    let sum = |x: Tensor, _: Tensor| x * 0.5 + x.sum(0).broadcast();
    let short_sum = measure(client, ("short", [DEVICES, 16]), sum)?;
    let long_sum = measure(client, ("long", [DEVICES, long]), sum)?;
    let bytes = 4.0 * long as f64;
    let sent = 2.0 * bytes * (DEVICES - 1) as f64 / DEVICES as f64;
    let rate = sent / (long_sum - short_sum - elements).max(1e-9);
    let chip = Chip {
        f32_flops: Some(2.0 * (WIDE as f64).powi(3) / products),
        memory_bandwidth: Some(2.0 * bytes / elements),
        memory_bytes: Some(1 << 34),
        ..*Chip::parse("cpu")?
    };
    println!(
        "each of {DEVICES} devices: {:.1} GFLOP/s, {:.2} GB/s of memory, {:.2} GB/s between devices, {:.0} us to start a \
         collective, {:.1} us a kernel",
        chip.f32_flops.unwrap_or(0.0) / 1e9,
        chip.memory_bandwidth.unwrap_or(0.0) / 1e9,
        rate / 1e9,
        1e6 * (short_sum - nothing),
        1e6 * nothing
    );
    let reached = Reached { products: 1.0, memory: 1.0, links: 1.0, tile: 1, kernel: nothing };
    let dimension = Dimension { size: DEVICES, wire: Wire::Switch, wraps: false, rate, latency: 0.0 };
    // Of two short times the longer may come out shorter.
    let launch = (short_sum - nothing).max(0.0);
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

/// Spearman's: the correlation of the places that two lists of numbers give.
fn rank_correlation(pairs: &[(f64, f64)]) -> f64 {
    let places = |of: &dyn Fn(&(f64, f64)) -> f64| {
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        order.sort_by(|&a, &b| of(&pairs[a]).total_cmp(&of(&pairs[b])));
        let mut places = vec![0.0; pairs.len()];
        order.iter().enumerate().for_each(|(place, &index)| places[index] = place as f64);
        places
    };
    let (first, second) = (places(&|pair| pair.0), places(&|pair| pair.1));
    let squares: f64 = first.iter().zip(&second).map(|(a, b)| (a - b) * (a - b)).sum();
    let count = pairs.len() as f64;
    1.0 - 6.0 * squares / (count * (count * count - 1.0))
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = arguments.iter().find_map(|argument| argument.parse::<usize>().ok());
    let write = arguments
        .iter()
        .position(|argument| argument == "--write")
        .map(|at| arguments.get(at + 1).context("--write needs a file, as --write cpu.toml"));
    let write = write.transpose()?;
    let client = Client::cpu(DEVICES)?;
    let hardware = calibrate(&client)?;
    if let Some(file) = write {
        // Cargo runs benches in the folder of their package.
        write_hardware(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file), &hardware)?;
        println!("wrote {file}");
        return Ok(());
    }
    let mut all = Vec::new();
    println!("\n| model | plan | estimated | measured |\n|---|---|---|---|");
    for (index, (name, model)) in MODELS.iter().enumerate() {
        let text = meshloom_benches::text();
        let set = COMMON.iter().chain(*model).map(|&set| set.to_owned()).chain([text]).collect::<Vec<_>>();
        let base = RunConfig::from_overrides(&set)?;
        let plans = bounded(&base, &hardware)?;
        let found = plans.iter().filter_map(|(plan, _)| evaluate(&base, plan, &hardware, u64::MAX).ok());
        let seconds = |found: &Found| found.time.seconds - found.time.idle;
        let mut found: Vec<Found> = found.collect();
        found.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let most = number.unwrap_or(PLANS / MODELS.len() + usize::from(index < PLANS % MODELS.len())).min(found.len());
        let mut pairs = Vec::new();
        for place in 0..most {
            let chosen = &found[place * (found.len() - 1) / (most - 1).max(1)];
            let plan = chosen.plan.to_string();
            let config = chosen.plan.apply(&base).on_devices(DEVICES)?;
            let measured = step_seconds(&config, &client).with_context(|| plan.clone())?;
            println!("| {name} | {plan} | {:.0} ms | {:.0} ms |", 1e3 * seconds(chosen), 1e3 * measured);
            pairs.push((seconds(chosen), measured));
        }
        println!("| {name} | rank correlation of {most} plans | {:.3} | |", rank_correlation(&pairs));
        all.extend(pairs);
    }
    let (least, most) =
        all.iter().fold((f64::INFINITY, 0.0f64), |(least, most), pair| (least.min(pair.1), most.max(pair.1)));
    println!(
        "\nrank correlation of all {}: {:.3}; the slowest takes {:.1} times as long as the fastest",
        all.len(),
        rank_correlation(&all),
        most / least
    );
    Ok(())
}
