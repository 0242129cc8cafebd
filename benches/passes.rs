//! Measures the effect of the passes on the decoder's train step: nodes, instructions, lowering time, XLA's compile
//! time and the step's time on one CPU device, with all passes, without each, and without any.
//!
//! ```text
//! cargo bench --bench passes -- [rounds]
//! cargo bench --bench passes -- lowering [rounds]    # Llama 3 405B's shape; nothing is compiled
//! ```
//!
//! `MESHLOOM_BENCH_SET` holds config overrides, separated by commas. Variants take turns, so that all see the same
//! machine; printed are the smallest and the median.

use std::time::Instant;

use anyhow::Context;
use meshloom::compile::{LowerOptions, PASSES, Program, lower};
use meshloom::ops::RematPolicy;
use meshloom::pjrt::{Array, Client};
use meshloom::trace::Tree;
use meshloom_benches::{llama_405b, smallest_and_median};
use meshloom_nn::Batch;
use meshloom_train::config::RunConfig;
use meshloom_train::data::TextDataset;
use meshloom_train::run::{StepFunction, TrainStep, aliases};
use meshloom_train::tokenizer::Tokenizer;

/// A choice of passes.
struct Variant {
    name: String,
    without: Vec<&'static str>,
}

fn variants() -> Vec<Variant> {
    let all: Vec<&'static str> = PASSES.iter().map(|pass| pass.name).collect();
    let but = |name: &&'static str| Variant { name: format!("all but {name}"), without: vec![*name] };
    let mut variants = vec![
        Variant { name: "all".to_owned(), without: Vec::new() },
        Variant { name: "none".to_owned(), without: all.clone() },
    ];
    variants.extend(all.iter().map(but));
    variants
}

/// Seconds that this thread has been on a CPU, where the system says so: other processes do not count.
fn thread_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? * 1e-9)
}

fn timed<T>(f: impl FnOnce() -> T) -> (T, f64) {
    let (cpu, wall) = (thread_seconds(), Instant::now());
    let result = f();
    let seconds = match (cpu, thread_seconds()) {
        (Some(start), Some(end)) => end - start,
        _ => wall.elapsed().as_secs_f64(),
    };
    (result, seconds)
}

struct Contender {
    variant: Variant,
    nodes: usize,
    instructions: usize,
    module: Vec<u8>,
    program: Option<Program>,
    compile_seconds: Vec<f64>,
    step_seconds: Vec<f64>,
}

fn contend(function: &StepFunction, config: &RunConfig, step: &TrainStep, rounds: usize) -> anyhow::Result<()> {
    let client = Client::cpu(1)?;
    let mut contenders = Vec::new();
    for variant in variants() {
        let lowered = lower(function.graph(), &LowerOptions { without: &variant.without, ..LowerOptions::default() })?;
        contenders.push(Contender {
            variant,
            nodes: lowered.graph().total_node_count(),
            instructions: lowered.module.instruction_count,
            module: lowered.module.bytes.clone(),
            program: Some(lowered.compile(&client)?),
            compile_seconds: Vec::new(),
            step_seconds: Vec::new(),
        });
    }
    // Programs that are the same module are not worth comparing.
    for _ in 0..rounds.div_ceil(4) {
        for contender in &mut contenders {
            let options = LowerOptions { without: &contender.variant.without, ..LowerOptions::default() };
            let lowered = lower(function.graph(), &options)?;
            let start = Instant::now();
            contender.program = Some(lowered.compile(&client)?);
            contender.compile_seconds.push(start.elapsed().as_secs_f64());
        }
    }
    let program = contenders[0].program.as_ref().context("a program")?;
    let dataset = TextDataset::open(&config.data, &Tokenizer::bytes(), step.seq)?;
    let batch = dataset.batch(0, 0, step.batch)?;
    let batch = Batch {
        tokens: batch.tokens,
        targets: batch.targets,
        segment_ids: batch.segment_ids,
        positions: batch.positions,
        weights: batch.weights,
    };
    let mut arguments: Vec<Array> = program.put(0, &step.initialize(0)?)?.leaves();
    arguments.extend(program.put(arguments.len(), &batch)?.leaves());
    let arguments: Vec<&Array> = arguments.iter().collect();
    for round in 0..=rounds {
        for contender in &mut contenders {
            let program = contender.program.as_ref().context("a program")?;
            let start = Instant::now();
            program.run(&arguments)?.iter().try_for_each(Array::block_until_ready)?;
            // The first round warms up.
            if round > 0 {
                contender.step_seconds.push(start.elapsed().as_secs_f64());
            }
        }
    }
    println!("{:36} {:>6} {:>6}  {:>17}  {:>17}", "", "nodes", "instr.", "compile ms", "step ms");
    for contender in &contenders {
        let (compile, compile_median) = smallest_and_median(&contender.compile_seconds);
        let (step, step_median) = smallest_and_median(&contender.step_seconds);
        let same = contender.variant.name != "all" && contender.module == contenders[0].module;
        println!(
            "{:36} {:>6} {:>6}  {:>8.1} {:>8.1}  {:>8.1} {:>8.1}{}",
            contender.variant.name,
            contender.nodes,
            contender.instructions,
            1e3 * compile,
            1e3 * compile_median,
            1e3 * step,
            1e3 * step_median,
            if same { "  (the same module as with all)" } else { "" }
        );
    }
    Ok(())
}

/// Where lowering spends its time, each part the smallest of the rounds.
fn lowering(rounds: usize) -> anyhow::Result<()> {
    for (name, scan_layers, remat) in [
        ("scanned", true, RematPolicy::None),
        ("scanned, remat full", true, RematPolicy::Full),
        ("unrolled", false, RematPolicy::None),
        ("unrolled, remat full", false, RematPolicy::Full),
    ] {
        let step = llama_405b(126, scan_layers, remat);
        let few = ["markers", "constant-folding", "algebra", "scan-operands", "loop-invariants"];
        for (what, without) in [("all passes", &[][..]), ("common subexpressions and dead code only", &few[..])] {
            let mut parts: Vec<(&'static str, f64, usize)> = Vec::new();
            let mut total = f64::INFINITY;
            for _ in 0..rounds {
                let (function, trace) = timed(|| step.trace());
                let function = function?;
                let options = LowerOptions { aliases: aliases(&function), without, ..LowerOptions::default() };
                let (lowered, lowering) = timed(|| lower(function.graph(), &options));
                let lowered = lowered?;
                let nodes = function.graph().total_node_count();
                let timings = lowered.timings.iter().map(|part| (part.pass, part.time.as_secs_f64(), part.node_count));
                let round: Vec<_> = [("trace", trace, nodes)].into_iter().chain(timings).collect();
                if parts.is_empty() {
                    parts.clone_from(&round);
                }
                parts.iter_mut().zip(&round).for_each(|(best, part)| best.1 = best.1.min(part.1));
                total = total.min(trace + lowering);
            }
            println!("{name}, {what}: {:.2} ms", 1e3 * total);
            for (part, seconds, nodes) in parts {
                println!("    {part:28} {:>8.2} ms  {nodes:>6} nodes", 1e3 * seconds);
            }
        }
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let rounds = arguments.last().and_then(|argument| argument.parse::<usize>().ok());
    if arguments.first().is_some_and(|argument| argument == "lowering") {
        return lowering(rounds.unwrap_or(20).max(1));
    }
    let own = std::env::var("MESHLOOM_BENCH_SET").unwrap_or_default();
    for set in [
        &["model.scan_layers=true"][..],
        &["model.scan_layers=true", "remat.policy=full"],
        &["model.scan_layers=false"],
    ] {
        let mut overrides =
            vec![meshloom_benches::text(), "mesh.axes=data=1".to_owned(), "target.devices=1".to_owned()];
        overrides.extend(set.iter().map(|&text| text.to_owned()));
        overrides.extend(own.split(',').filter(|text| !text.is_empty()).map(str::to_owned));
        let config = RunConfig::from_overrides(&overrides)?;
        let step = config.train_step().unwrap();
        println!("{}", set.join(" "));
        contend(&step.trace()?, &config, &step, rounds.unwrap_or(12).max(1))?;
    }
    Ok(())
}
