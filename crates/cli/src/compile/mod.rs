//! `meshloom compile`: compiles for hardware that need not be here, in a child process, with the maker's plugin.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use hlo_dump::ahead::{Both, chip_of, compile};
use hlo_dump::arguments::{Input, parse_whole};
use hlo_dump::collectives::{self, Totals};
use hlo_dump::conditionals::{self, ConditionalSum};
use hlo_dump::configs::ahead::{Compiled, settings};
use hlo_dump::cost;
use hlo_dump::emitted::{Ahead, Emitted};
use hlo_dump::input::Loaded;
use hlo_dump::output::{self, line, plural};
use hlo_dump::overlap;
use meshloom::analysis::{ModuleCollectives, ModuleCost, ModuleOverlap};
use meshloom::hlo::proto::HloModuleProtoWithConfig;
use meshloom::hlo::table::Table;
use meshloom::hlo::text::{TextOptions, print_with_config};
use meshloom::pjrt::ahead_of_time::Settings;
use meshloom::pjrt::{CostAnalysis, DeviceDescription, FindOptions, MemoryStats};
use prost::Message;
use serde::Serialize;

#[derive(Args)]
pub struct Compile {
    #[command(flatten)]
    pub input: Input,
    /// Hardware: cpu:8, v5p:8x8x8, tpu7x:2x2x1:slices=2, h100:1x1x8; by default a run config's target.topology
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
    /// Whether the module's shardings are Shardy's; by default it is detected
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
        overlap::print(time_line, arguments.limit);
    }
    Ok(())
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
    output::json("meshloom/compile", &after.found(&answer))
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
    print_cost(&cost::of(after, chip_of(&ahead.topology)), ahead.cost_analysis().ok());
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
