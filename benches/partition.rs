//! meshloom's partitioner against XLA's own (GSPMD): the decoder's train step over eight CPU devices, under the meshes
//! of every preset.
//!
//! ```text
//! cargo bench --bench partition                          # the table
//! cargo bench --bench partition -- 20 fsdp=8 tensor=8    # 20 rounds, these meshes alone
//! cargo bench --bench partition -- collectives fsdp=8    # what moves, in both compiled modules
//! cargo bench --bench partition -- scale [rounds]        # lowering for 8 to 6144 devices; nothing is compiled
//! ```
//!
//! Both sides start from the same traced graph and rules. They take turns, step by step and compile by compile, so that
//! both see the same machine; times are medians, and a ratio is ours / GSPMD's. The traffic is read off both compiled
//! modules by the same analysis. `MESHLOOM_BENCH_SET` holds config overrides, separated by semicolons.

use std::time::Instant;

use anyhow::Context;
use meshloom::analysis::{Devices, ModuleCollective, ModuleCollectives, collectives};
use meshloom::compile::{LowerOptions, lower};
use meshloom::emit::GroupFormat;
use meshloom::hlo::table::Table;
use meshloom::ops::RematPolicy;
use meshloom::partition::Amount;
use meshloom::pjrt::{Client, MemoryStats};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom_benches::{llama_405b, median, wide_llama};
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;
use meshloom_train::run::{TrainStep, aliases};

const DEVICES: usize = 8;

/// Meshes for which the decoder preset has rules.
const MESHES: &[&str] = &[
    "data=8",
    "fsdp=8",
    "tensor=8",
    "context=8",
    "data=2,fsdp=4",
    "fsdp=4,tensor=2",
    "data=2,tensor=4",
    "fsdp=2,context=4",
    "context=2,tensor=4",
    "data=2,fsdp=2,tensor=2",
];

/// A decoder whose step takes some tenths of a second.
const MODEL: &[&str] = &[
    "model.layers=4",
    "model.embed=256",
    "model.heads=8",
    "model.kv_heads=8",
    "model.head_dim=32",
    "model.mlp=768",
    "model.seq=256",
    "train.batch=16",
];

const MIB: f64 = (1 << 20) as f64;

fn config(mesh: &str, mode: &str) -> anyhow::Result<RunConfig> {
    let mut overrides: Vec<String> =
        MODEL.iter().map(|&text| text.to_owned()).chain([meshloom_benches::text()]).collect();
    overrides.push(format!("mesh.axes=\"{mesh}\""));
    let own = std::env::var("MESHLOOM_BENCH_SET").unwrap_or_default();
    overrides.extend(own.split(';').filter(|text| !text.is_empty()).map(str::to_owned));
    overrides.push(format!("partition.mode=\"{mode}\""));
    Ok(RunConfig::from_overrides(&overrides)?)
}

/// One side of the comparison.
struct Side {
    config: RunConfig,
    trainer: Trainer,
    compile_seconds: Vec<f64>,
    step_seconds: Vec<f64>,
}

impl Side {
    fn new(mesh: &str, mode: &str, client: &Client) -> anyhow::Result<Side> {
        let config = config(mesh, mode)?;
        let trainer = Trainer::new(&config, client).with_context(|| format!("{mesh}, {mode}"))?;
        Ok(Side { config, trainer, compile_seconds: Vec::new(), step_seconds: Vec::new() })
    }

    fn compile(&mut self, client: &Client) -> anyhow::Result<()> {
        let (_, lowered) = self.config.lower_train_step()?;
        let start = Instant::now();
        lowered.compile(client)?;
        self.compile_seconds.push(start.elapsed().as_secs_f64());
        Ok(())
    }

    fn step(&mut self) -> anyhow::Result<()> {
        let seconds = self.trainer.step()?.step_seconds;
        self.step_seconds.push(seconds);
        Ok(())
    }

    fn collectives(&self) -> anyhow::Result<ModuleCollectives> {
        let module = self.trainer.program().executable().optimized_hlo()?.decode()?;
        Ok(collectives(&module, Devices::partitioned(DEVICES)))
    }

    fn memory(&self) -> anyhow::Result<MemoryStats> {
        Ok(self.trainer.program().executable().memory_stats()?)
    }
}

fn mebibytes(amount: Amount) -> String {
    amount.bound().map_or(amount.to_string(), |bytes| format!("{:.3}", bytes as f64 / MIB))
}

fn table(meshes: &[&str], rounds: usize) -> anyhow::Result<()> {
    let client = Client::cpu(DEVICES)?;
    let mut rows = Vec::new();
    for mesh in meshes {
        let mut sides = [Side::new(mesh, "explicit", &client)?, Side::new(mesh, "gspmd", &client)?];
        for _ in 0..rounds.div_ceil(4) {
            sides.iter_mut().try_for_each(|side| side.compile(&client))?;
        }
        for round in 0..rounds + 2 {
            sides.iter_mut().try_for_each(Side::step)?;
            if round < 2 {
                sides.iter_mut().for_each(|side| side.step_seconds.clear());
            }
        }
        rows.push(row(mesh, &sides)?);
        // As it grows: a run takes minutes.
        eprintln!("{mesh} is done");
        let losses = [0, 1].map(|side: usize| sides[side].trainer.step().map(|metrics| metrics.loss));
        if let [Ok(ours), Ok(theirs)] = losses {
            anyhow::ensure!((ours - theirs).abs() <= 1e-3 * theirs.abs(), "{mesh}: losses {ours} and {theirs}");
        }
    }
    const NUMBERS: [&str; 14] = [
        "moved MiB",
        "GSPMD",
        "ratio",
        "executed",
        "GSPMD",
        "step ms",
        "GSPMD",
        "ratio",
        "temp MiB",
        "GSPMD",
        "ratio",
        "compile s",
        "GSPMD",
        "ratio",
    ];
    let mut table = Table::of(&rows).text("mesh", |row: &&Vec<String>| &row[0]);
    for (index, name) in NUMBERS.into_iter().enumerate() {
        table = table.number(name, |row| &row[index + 1]);
    }
    println!("{table}");
    Ok(())
}

fn row(mesh: &str, [ours, theirs]: &[Side; 2]) -> anyhow::Result<Vec<String>> {
    let (own, other) = (ours.collectives()?, theirs.collectives()?);
    let ratio = |a: f64, b: f64| if b == 0.0 { "-".to_owned() } else { format!("{:.3}", a / b) };
    let bytes = |moved: Amount| moved.bound().map_or(f64::NAN, |bytes| bytes as f64);
    let temporaries = |side: &Side| Ok::<f64, anyhow::Error>(side.memory()?.temporary as f64);
    let (own_temporaries, other_temporaries) = (temporaries(ours)?, temporaries(theirs)?);
    let (own_step, other_step) = (median(&ours.step_seconds), median(&theirs.step_seconds));
    let (own_compile, other_compile) = (median(&ours.compile_seconds), median(&theirs.compile_seconds));
    Ok(vec![
        mesh.to_owned(),
        mebibytes(own.moved_bytes()),
        mebibytes(other.moved_bytes()),
        ratio(bytes(own.moved_bytes()), bytes(other.moved_bytes())),
        own.executions().to_string(),
        other.executions().to_string(),
        format!("{:.1}", 1e3 * own_step),
        format!("{:.1}", 1e3 * other_step),
        ratio(own_step, other_step),
        format!("{:.2}", own_temporaries / MIB),
        format!("{:.2}", other_temporaries / MIB),
        ratio(own_temporaries, other_temporaries),
        format!("{own_compile:.2}"),
        format!("{other_compile:.2}"),
        ratio(own_compile, other_compile),
    ])
}

/// Every collective of both compiled modules. `MESHLOOM_BENCH_DUMP` names a folder for the modules' text.
fn listing(meshes: &[&str]) -> anyhow::Result<()> {
    let client = Client::cpu(DEVICES)?;
    for mesh in meshes {
        for mode in ["explicit", "gspmd"] {
            let (_, lowered) = config(mesh, mode)?.lower_train_step()?;
            let program = lowered.compile(&client).with_context(|| format!("{mesh}, {mode}"))?;
            let module = program.executable().optimized_hlo()?.decode()?;
            let found = collectives(&module, Devices::partitioned(DEVICES));
            let memory = program.executable().memory_stats()?;
            println!("\n{mesh}, {mode}: {} moved MiB, {memory:?}", mebibytes(found.moved_bytes()));
            if let Ok(ledger) = lowered.collectives().moved_bytes() {
                println!("before XLA: {} moved MiB", mebibytes(ledger));
            }
            println!("{}", list(&found));
            if let Some(folder) = std::env::var_os("MESHLOOM_BENCH_DUMP") {
                let text = meshloom::hlo::text::print(&module, &meshloom::hlo::text::TextOptions::parseable());
                std::fs::write(std::path::Path::new(&folder).join(format!("{mesh}.{mode}.txt")), text)?;
            }
        }
    }
    Ok(())
}

fn list(found: &ModuleCollectives) -> Table<&ModuleCollective> {
    let mut entries: Vec<_> = found.entries.iter().collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.total_moved_bytes().bound()));
    Table::of(entries)
        .text("collective", |entry| &entry.name)
        .text("devices", |entry| entry.group_size.map_or("-".to_owned(), |size| size.to_string()))
        .text("bytes", |entry| entry.bytes.map_or("?".to_owned(), |bytes| bytes.to_string()))
        .text("times", |entry| entry.executions)
        .text("moved MiB", |entry| mebibytes(entry.total_moved_bytes()))
        .text("op", |entry| &entry.op_name)
        .text("source", |entry| entry.source.as_deref().unwrap_or_default())
}

/// Llama 3 405B's layers, with the nearest sizes that 24 divides, so that it fits every mesh below.
fn llama_405b_by_24() -> TrainStep {
    let mut step = llama_405b(126, true, RematPolicy::Full);
    step.model = wide_llama([144, 24], 53760, step.model.architecture.stack.cycles, true, step.model.remat);
    (step.batch, step.seq) = (512, 9216);
    step
}

/// Measures the time of lowering for meshes of growing size.
fn scale(rounds: usize) -> anyhow::Result<()> {
    let step = llama_405b_by_24();
    let function = step.trace()?;
    let rules = RuleSets::uniform(Rules::preset("decoder", false)?);
    for (axes, devices) in
        [("data=2,fsdp=2,tensor=2", 8), ("data=8,fsdp=8,tensor=8", 512), ("data=16,fsdp=16,tensor=24", 6144)]
    {
        let mesh = Mesh::parse(axes, devices)?;
        let mut passes: Vec<(&'static str, Vec<f64>)> = Vec::new();
        let mut bytes = 0;
        for _ in 0..rounds {
            let options = LowerOptions {
                sharding: Some((&mesh, &rules)),
                aliases: aliases(&function),
                groups: GroupFormat::Iota,
                ..LowerOptions::default()
            };
            let lowered = lower(function.graph(), &options)?;
            bytes = lowered.module.bytes.len();
            for (index, timing) in lowered.timings.iter().enumerate() {
                if passes.len() == index {
                    passes.push((timing.pass, Vec::new()));
                }
                passes[index].1.push(1e3 * timing.time.as_secs_f64());
            }
        }
        let ours = ["propagate", "partition", "clean-up", "emit"];
        let part =
            |name: &str| passes.iter().filter(|(pass, _)| *pass == name).map(|(_, times)| median(times)).sum::<f64>();
        let parts: Vec<String> = ours.iter().map(|name| format!("{name} {:.2}", part(name))).collect();
        let total: f64 = ours.iter().map(|name| part(name)).sum();
        println!("{axes}: {total:.2} ms ({}), {bytes} bytes", parts.join(", "));
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let rounds = arguments.iter().find_map(|argument| argument.parse::<usize>().ok());
    let meshes: Vec<&str> = arguments.iter().map(String::as_str).filter(|argument| argument.contains('=')).collect();
    let meshes = if meshes.is_empty() { MESHES } else { &meshes };
    match arguments.first().map(String::as_str) {
        Some("scale") => scale(rounds.unwrap_or(20).max(1)),
        Some("collectives") => listing(meshes),
        _ => table(meshes, rounds.unwrap_or(12).max(1)),
    }
}
