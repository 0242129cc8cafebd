//! `hlo-dump compile`: compiles for hardware that need not be here, in a child process, with the maker's plugin.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use meshloom::hlo::PlatformKind;
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom::pjrt::{CompileOptions, CostAnalysis, DeviceDescription, FindOptions, MemoryStats, Topology};
use meshloom_analysis::{Chip, Devices, ModuleCollectives, ModuleCost, ModuleOverlap, Partitioning};
use meshloom_hlo::Stage;
use meshloom_hlo::parse::make_names_unique;
use meshloom_hlo::proto::HloModuleProtoWithConfig;
use meshloom_hlo::table::Table;
use meshloom_hlo::text::{TextOptions, print_with_config};
use prost::Message;
use serde::Serialize;

use super::hidden;
use crate::arguments::{Input, parse_whole};
use crate::collectives::Totals;
use crate::conditionals::ConditionalSum;
use crate::configs::ahead::{Compiled, announce, of_run, optimized, settings};
use crate::emitted::{Ahead, Emitted};
use crate::input::{Loaded, load};
use crate::output::{self, line, plural};
use crate::streams::{self, Stream};
use crate::{collectives, conditionals, cost, overlap};

#[derive(Args)]
pub struct Compile {
    #[command(flatten)]
    pub input: Input,
    /// Hardware: cpu:8, v5p:8x8x8, tpu:tpu7x:2x2x1:slices=2, gpu:h100:1x1x8; by default a run config's target.topology
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// The most time that compilation may take
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..))]
    pub time_limit: u64,
    /// Writes the compiled program: HLO text if the name ends in .txt or .hlo, else a proto
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Downloads no plugin: a missing one is an error
    #[arg(long)]
    pub offline: bool,
    /// Whether the module's shardings are Shardy's; by default hlo-dump detects it
    #[arg(long, value_name = "YES", help_heading = "Reading")]
    pub shardy: Option<bool>,
    /// Adds the transfers that the schedule hides beside compute, and the work that runs beside them
    #[arg(long)]
    pub overlap: bool,
    /// The most collectives to print; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 20, value_parser = parse_whole::<usize>)]
    pub limit: usize,
}

#[derive(Serialize)]
struct Answer<'a> {
    target: String,
    device_kind: &'a str,
    target_devices: usize,
    compiler_options: &'a [String],
    compile_seconds: f64,
    memory: Option<MemoryStats>,
    memory_limit: Option<i64>,
    cost: Option<CostAnalysis>,
    instructions: u64,
    #[serde(flatten)]
    collectives: &'a ModuleCollectives,
    #[serde(flatten)]
    totals: Totals,
    conditionals: Vec<ConditionalSum<'a>>,
    /// The comparison with the emitted program; null if XLA partitions the program, which then has no collectives
    /// before.
    compiled_as_emitted: Option<&'a Emitted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<&'a ModuleOverlap>,
}

pub fn run(arguments: &Compile, json: bool) -> Result<()> {
    let find = FindOptions { allow_fetch: !arguments.offline, ..FindOptions::default() };
    let settings = Settings { time_limit: Duration::from_secs(arguments.time_limit), find, ..settings() };
    let both = compile(&arguments.input, arguments.target.as_deref(), arguments.shardy, &settings, arguments.overlap)?;
    if let Some(path) = &arguments.output {
        write(path, &both.compiled.module)?;
    }
    let Both { ahead: Ahead { emitted, after, .. }, compiled } = &both;
    let found = collectives::of(after);
    let emitted = emitted.as_ref().map(|before| Emitted::compared(before, &found));
    let time_line = arguments.overlap.then(|| overlap::of(after, both.ahead.chip()?)).transpose()?;
    if json {
        return answer(after, compiled, &found, emitted.as_ref(), time_line.as_ref());
    }
    print(after, compiled, &found, emitted.as_ref(), arguments.limit);
    if let Some(time_line) = &time_line {
        line("");
        hidden::print(time_line, arguments.limit);
    }
    Ok(())
}

/// Returns a program before and after a plugin, for a check of it.
pub fn ahead(input: &Input, target: Option<&str>, needs_rates: bool) -> Result<Ahead> {
    Ok(compile(input, target, None, &settings(), needs_rates)?.ahead)
}

/// A program before and after a plugin, with everything that the plugin reports of it.
struct Both {
    ahead: Ahead,
    compiled: Compiled,
}

/// Compiles an input. If the command needs rates, a target without rates is refused before it is compiled.
fn compile(
    input: &Input,
    target: Option<&str>,
    shardy: Option<bool>,
    settings: &Settings,
    needs_rates: bool,
) -> Result<Both> {
    let target = target.map(topology).transpose()?;
    let given = &input.reading.set;
    if target.is_some() && given.iter().any(|key| key.starts_with("target.topology")) {
        bail!("--target is the config's target.topology, and --set gives it too; leave one of them out");
    }
    let overrides: Vec<String> = target.iter().map(|target| format!("target.topology={target}")).collect();
    let mut input = input.with(&overrides);
    // Other commands read a folder's compiled module by default, but no plugin takes that one.
    if input.path.is_dir() && input.reading.pass.is_none() {
        input.reading.stage.get_or_insert(Stage::Traced);
    }
    let loaded = load(&input)?;
    if loaded.module.schedule.is_some() {
        bail!(
            "{}: the module is compiled already: it has a schedule; compile what comes before, such as the text of \
             `lowered` in JAX, or of a dump folder --stage traced",
            loaded.name
        );
    }
    let topology = target.map_or_else(|| own_topology(&loaded), Ok)?;
    if shardy.is_some() && loaded.run.is_some() {
        bail!("--shardy is for HLO; a run config says it itself: --set partition.mode=shardy");
    }
    let chip = chip_of(&topology).filter(|chip| chip.memory_bandwidth.is_some());
    if needs_rates && chip.is_none() {
        bail!("no rates are published for {topology}, so transfers have no times; take a target such as v5p:2x2x1")
    }
    announce(&topology, settings)?;
    let waiting = spinner(format!("compiling for {topology}"));
    let compiled = match &loaded.run {
        Some(run) => of_run(run.config(), settings),
        None => of_module(&loaded, &topology, settings, shardy),
    };
    waiting.finish_and_clear();
    let compiled = compiled?;
    let module = compiled.module.hlo_module.clone().unwrap_or_default();
    let stage = loaded.stage.map(|_| Stage::Compiled);
    let partitioning = Partitioning::of(&module, loaded.devices);
    let before = compiled.emitted.as_ref().unwrap_or(&loaded.module);
    let emitted = (!loaded.partitioning.is_pending()).then(|| collectives::of_module(before, &loaded));
    let after = Loaded { module, config: compiled.module.config.clone(), stage, partitioning, ..loaded };
    Ok(Both { ahead: Ahead { emitted, after, chip }, compiled })
}

/// Shows a sign of life on a terminal during work that may take minutes.
fn spinner(doing: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(doing);
    if !streams::is_terminal(Stream::Err) {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Returns the topology to compile an input for, if the command does not name one.
fn own_topology(loaded: &Loaded) -> Result<Topology> {
    match &loaded.run {
        Some(run) if !run.config().target.topology.is_empty() => Ok(Topology::parse(&run.config().target.topology)?),
        Some(_) => bail!("the config has no target.topology; say what to compile for, as --target cpu:8"),
        None => bail!("HLO does not say what to compile it for; say it, as --target cpu:8 or --target v5p:2x2x2"),
    }
}

/// Reads `v5p:8x8x8`, also with the platform before it: `tpu:v5p:8x8x8`, `gpu:h100:1x1x8`.
fn topology(text: &str) -> Result<Topology> {
    let platforms = [("tpu:", PlatformKind::Tpu), ("gpu:", PlatformKind::Cuda), ("cuda:", PlatformKind::Cuda)];
    let Some((before, platform)) = platforms.into_iter().find(|(before, _)| text.starts_with(before)) else {
        return Ok(Topology::parse(text)?);
    };
    let rest = &text[before.len()..];
    let topology = Topology::parse(rest)?;
    if topology.platform() != platform {
        bail!("--target {text}: {rest} is compiled by the {} plugin; leave \"{before}\" out", topology.platform());
    }
    Ok(topology)
}

fn of_module(loaded: &Loaded, topology: &Topology, settings: &Settings, shardy: Option<bool>) -> Result<Compiled> {
    let described = ahead_of_time::describe(topology, settings)?;
    let needed = loaded.device_count();
    if needed > described.devices.len() as u64 {
        bail!(
            "the module is for {}, and {topology} has {}; take a target with as many",
            plural(needed, "device"),
            described.devices.len()
        );
    }
    let Devices { replicas, partitions } = loaded.devices;
    let places: Vec<_> = described.devices.iter().map(DeviceDescription::place).collect();
    let mut options = match &loaded.mesh {
        Some(mesh) if replicas == 1 && mesh.device_count() > 1 => CompileOptions::over_mesh(mesh, &places)?,
        _ => CompileOptions::partitioned(partitions as usize),
    };
    options.num_replicas = replicas as usize;
    options.use_shardy_partitioner = shardy.unwrap_or_else(|| is_shardy(loaded)) && partitions > 1;
    let mut module = loaded.module.clone();
    // Text for people has names that computations share, which compilers do not accept.
    make_names_unique(&mut module);
    let bytes = module.encode_to_vec();
    let ahead = ahead_of_time::compile(topology, &bytes, &options, settings)?;
    let module = optimized(&ahead)?;
    Ok(Compiled { ahead, devices: described.devices, module, emitted: None, options: Vec::new() })
}

/// Whether XLA would partition the module by Shardy: it was made for Shardy, or has its attributes.
fn is_shardy(loaded: &Loaded) -> bool {
    let in_map = |map: &std::collections::BTreeMap<String, String>| map.keys().any(|key| key.starts_with("xla.sdy."));
    let attributes = loaded.module.frontend_attributes.iter().any(|attributes| in_map(&attributes.map));
    let instructions = loaded.module.computations.iter().flat_map(|computation| &computation.instructions);
    attributes
        || loaded.config.as_ref().is_some_and(|config| config.use_shardy_partitioner)
        || instructions.flat_map(|instruction| &instruction.frontend_attributes).any(|it| in_map(&it.map))
}

fn write(path: &Path, module: &HloModuleProtoWithConfig) -> Result<()> {
    let is_text = path.extension().is_some_and(|extension| extension == "txt" || extension == "hlo");
    let bytes = match is_text {
        true => print_with_config(module, &TextOptions::parseable()).into_bytes(),
        false => module.encode_to_vec(),
    };
    output::write(path, bytes)
}

fn answer(
    after: &Loaded,
    compiled: &Compiled,
    found: &ModuleCollectives,
    emitted: Option<&Emitted>,
    overlap: Option<&ModuleOverlap>,
) -> Result<()> {
    let ahead = &compiled.ahead;
    let answer = Answer {
        target: ahead.topology.to_string(),
        device_kind: compiled.devices.first().map_or("", |device| &device.kind),
        target_devices: compiled.devices.len(),
        compiler_options: &compiled.options,
        compile_seconds: ahead.compile_time.as_secs_f64(),
        memory: ahead.memory_stats().ok(),
        memory_limit: compiled.devices.first().and_then(DeviceDescription::memory_limit),
        cost: ahead.cost_analysis().ok().cloned(),
        instructions: after.instruction_count(),
        collectives: found,
        totals: Totals::of(found, after.steps_per_execution()),
        conditionals: conditionals::sums(found),
        compiled_as_emitted: emitted,
        overlap,
    };
    output::json("compile", &after.found(&answer))
}

fn print(after: &Loaded, compiled: &Compiled, found: &ModuleCollectives, emitted: Option<&Emitted>, limit: usize) {
    let ahead = &compiled.ahead;
    let kind = compiled.devices.first().map_or("", |device| device.kind.as_str());
    after.print_title();
    line(&format!(
        "compiled for {} ({}, {kind}) in {}: {}",
        ahead.topology,
        plural(compiled.devices.len() as u64, "device"),
        output::seconds(ahead.compile_time.as_secs_f64()),
        plural(after.instruction_count(), "instruction"),
    ));
    line("");
    let limit_bytes = compiled.devices.first().and_then(DeviceDescription::memory_limit);
    match ahead.memory_stats() {
        Ok(stats) => print_memory(&stats, limit_bytes),
        Err(error) => output::note(&error.to_string()),
    }
    line("");
    print_cost(&of_compiled(after, &ahead.topology), ahead.cost_analysis().ok());
    line("");
    let mut entries = found.entries.clone();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.total_moved_bytes().bound().unwrap_or(u64::MAX)));
    collectives::print(&entries, &found.conditionals, limit);
    conditionals::print(found);
    collectives::print_total(after, found, found.entries.len());
    if let Some(emitted) = emitted {
        line("");
        emitted.print();
    }
}

fn print_memory(stats: &MemoryStats, limit: Option<i64>) {
    let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
    let total = stats.total();
    let rows = [
        ("arguments", stats.arguments),
        ("outputs", stats.outputs),
        ("  of them in arguments", stats.aliased),
        ("temporaries", stats.temporary),
        ("code", stats.generated_code),
        ("all but code", total),
    ];
    let table = Table::of(rows)
        .text("memory of each device", |(name, _)| *name)
        .number("bytes", |(_, count)| output::bytes(bytes(*count)));
    output::table(table, 0);
    if let Some(limit) = limit.filter(|&limit| limit > 0).map(bytes) {
        line(&output::verdict(bytes(total), limit, &format!("the chip's {}", output::bytes(limit))));
    }
}

/// Returns the chip of a target, if it is known.
fn chip_of(topology: &Topology) -> Option<&'static Chip> {
    topology.to_string().split(':').next().and_then(|name| Chip::parse(name).ok())
}

/// Returns the cost of the compiled program, with times for the target's chip if it is known.
fn of_compiled(after: &Loaded, topology: &Topology) -> ModuleCost {
    cost::of(after, chip_of(topology))
}

/// Prints our count and XLA's.
fn print_cost(ours: &ModuleCost, theirs: Option<&CostAnalysis>) {
    let time = ours.roofline.as_ref().map(|roofline| output::seconds(roofline.overlapped_seconds));
    // Some plugins report a negative time, which means that they do not know it.
    let their_time = theirs.and_then(CostAnalysis::optimal_seconds).filter(|&time| time > 0.0).map(output::seconds);
    let rows = [
        ("operations", output::count(ours.total.flops as f64), theirs.and_then(CostAnalysis::flops).map(output::count)),
        (
            "bytes accessed",
            output::bytes(ours.total.bytes()),
            theirs.and_then(CostAnalysis::bytes_accessed).map(|bytes| output::bytes(bytes.max(0.0) as u64)),
        ),
        ("time at best", time.unwrap_or_else(|| "not known".to_owned()), their_time),
    ];
    let table = Table::of(&rows)
        .text("cost", |(name, ..)| *name)
        .number("loops multiplied", |(_, ours, _)| ours)
        .number("XLA's own", |(.., theirs)| theirs.as_deref().unwrap_or("not said"));
    output::table(table, 0);
}
