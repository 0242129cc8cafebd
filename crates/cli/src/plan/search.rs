//! `hlo-dump plan --search`: the plans of a model on devices, and the best of them.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use meshloom_analysis::estimate::KernelTime;
use meshloom_analysis::{Arithmetic, StepTime};
use meshloom_hlo::table::Table;
use meshloom_train::config::RunConfig;
use meshloom_train::search::{
    Advice, Found, Hardware, MOST_LOWERED, Progress, Search, SearchOptions, hardware, on_hardware, read_hardware,
    search, what_it_would_need,
};
use serde::Serialize;

use super::plan_picture::Picture;
use crate::configs;
use crate::output::{self, BAD, BOLD, Busy, DIM, GOOD, line, paint, plural};

/// The number of rows of the table of plans, unless more are asked for.
const SHOWN: usize = 12;

/// The number of kernels of the best plan that are shown.
const KERNELS_SHOWN: usize = 6;

#[derive(Args)]
pub struct Options {
    /// Searches meshes, schedules, microbatches, accumulation, rematerialization and sequence parallelism for the plan
    /// with the shortest step
    #[arg(long, help_heading = "Search")]
    pub search: bool,
    /// The hardware, as v5p:4x4x8 or h100:1x8x8, or a TOML file that describes it; by default target.topology
    #[arg(long, value_name = "TOPOLOGY|FILE.toml", requires = "search", help_heading = "Search")]
    pub target: Option<String>,
    /// Gbit/s of the network between slices or hosts for each device, in place of the published rate
    #[arg(long, value_name = "GBITS", requires = "search", value_parser = positive, help_heading = "Search")]
    pub network: Option<f64>,
    /// The most plans that are lowered
    #[arg(long, value_name = "N", requires = "search", value_parser = some, default_value_t = MOST_LOWERED, help_heading = "Search")]
    pub most: usize,
    /// The number of plans to show
    #[arg(long, value_name = "N", requires = "search", value_parser = some, default_value_t = SHOWN, help_heading = "Search")]
    pub top: usize,
    /// Draws the plans by time and memory into an SVG file
    #[arg(long, value_name = "FILE", requires = "search", help_heading = "Search")]
    pub svg: Option<PathBuf>,
    /// Writes the config with the best plan to a file
    #[arg(long, value_name = "FILE", requires = "search", help_heading = "Search")]
    pub write: Option<PathBuf>,
}

fn some(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "it must be a whole number, at least 1".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| *number > 0.0).ok_or_else(|| "it must be a number above 0".to_owned())
}

/// The result of a search, as it is printed and as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    config: &'a str,
    target: &'a str,
    devices: usize,
    chip_bytes: Option<u64>,
    hardware: &'a Hardware,
    considered: usize,
    too_large: usize,
    too_slow: usize,
    lowered: usize,
    refused: usize,
    /// The reason why the first refused plan cannot be lowered.
    first_refusal: Option<&'a str>,
    ended_early: bool,
    seconds: f64,
    configured: Option<Row>,
    plans: Vec<Row>,
    /// The fastest plans that do not fit, which show the gain of more memory.
    #[serde(skip)]
    larger: Vec<Row>,
    front: Vec<Row>,
    /// The kernels of the best plan that take longest.
    kernels: &'a [KernelTime],
}

/// A plan as it is printed.
#[derive(Clone, Serialize)]
struct Row {
    #[serde(skip)]
    name: String,
    settings: Vec<String>,
    seconds: f64,
    computing: f64,
    waiting: f64,
    idle: f64,
    mfu: f64,
    bytes: u64,
    fits: bool,
    waits_for: String,
    needs: String,
}

pub fn run(config_path: &std::path::Path, set: &[String], options: &Options, json: bool) -> Result<()> {
    let (text, name) = configs::text(config_path)?;
    let mut config = RunConfig::from_toml_with(&text, &name, set)?;
    let target = options.target.clone().unwrap_or_else(|| config.target.topology.clone());
    if target.is_empty() {
        bail!("{name} names no hardware to search for; give it, as by --target h100:1x1x8, or set target.topology");
    }
    let is_file = target.ends_with(".toml");
    let mut hardware = if is_file { read_hardware(&target)? } else { hardware(&target)? };
    if is_file {
        // No plugin has a name for the hardware of a file.
        config = on_hardware(&config, &hardware);
    } else {
        config.target.topology.clone_from(&target);
    }
    if let Some(network) = options.network {
        hardware.set_network(network * 1e9 / 8.0);
    }
    let start = std::time::Instant::now();
    let searched = {
        let bar = Busy::new("");
        let options = SearchOptions { most: options.most, ..SearchOptions::new(hardware.clone()) };
        search(&config, &options, &|progress: Progress| bar.say(&progress.to_string()))?
    };
    let seconds = start.elapsed().as_secs_f64();
    if let Some(Err(reason)) = &searched.configured {
        output::note(&format!("the plan that {name} has cannot be lowered: {reason}"));
    }
    let Some(best) = searched.found.first() else {
        bail!("{name} on {target}: {}", searched.why_none(&hardware));
    };
    let answer = answer((&name, &target), &config, &hardware, &searched, best, (options.top, seconds));
    if let Some(path) = &options.svg {
        let title = format!("{name} on {target}: {} lowered", plural(searched.lowered as u64, "plan"));
        let configured = answer.configured.as_ref().map(|row| (row.seconds, row.bytes));
        output::write(path, Picture { title, searched: &searched, configured, memory: answer.chip_bytes }.svg())?;
    }
    let written = best.plan.apply(&config);
    if let Some(path) = &options.write {
        output::write(path, written.to_toml())?;
    }
    if json {
        return output::json("plan-search", &answer);
    }
    show(&answer, best);
    let mut sets = best.plan.settings();
    if is_file {
        sets.push(format!("target.platform={}", config.target.platform));
        sets.push(format!("target.devices={}", config.target.devices));
    }
    let topology = format!("target.topology={}", config.target.topology);
    let by_set = RunConfig::from_toml_with(&text, &name, &[set, &sets, &[topology]].concat());
    line("");
    line(&match by_set.is_ok_and(|it| it.to_toml() == written.to_toml()) {
        true => format!("{} the best plan: --set {}", paint(GOOD, "=>"), sets.join(" --set ")),
        // `--set` cannot remove the config's section [pipeline], or its accumulation.
        false => format!(
            "{} --write FILE writes a config with the best plan: --set does not take away what this config has",
            paint(GOOD, "=>")
        ),
    });
    Ok(())
}

/// Returns the answer of a search with the first `top` plans, and the seconds that the search took.
fn answer<'a>(
    (name, target): (&'a str, &'a str),
    config: &RunConfig,
    hardware: &'a Hardware,
    searched: &'a Search,
    best: &'a Found,
    (top, seconds): (usize, f64),
) -> Answer<'a> {
    let memory = hardware.chip.device_memory();
    let rate = hardware.chip.matrix_rate(Arithmetic::of(config.model.compute_dtype)).unwrap_or(f64::INFINITY);
    let row = |(name, settings): (String, Vec<String>), time: &StepTime, bytes: u64, needs: String| Row {
        name,
        settings,
        seconds: time.seconds,
        computing: time.computing,
        waiting: time.waiting,
        idle: time.idle,
        mfu: searched.flops / rate / time.seconds,
        bytes,
        fits: memory.is_none_or(|memory| bytes <= memory),
        waits_for: waits_for(time),
        needs,
    };
    let of_found = |found: &Found| {
        let is_best = std::ptr::eq(found, best);
        let needs = if is_best { String::new() } else { needs(found, best, memory.unwrap_or(u64::MAX)) };
        row((found.plan.to_string(), found.plan.settings()), &found.time, found.bytes, needs)
    };
    let configured = searched.configured.as_ref().and_then(|estimated| estimated.as_ref().ok());
    let as_configured = |(time, bytes): &(StepTime, u64)| {
        let (mesh, as_configured) = (&config.mesh.axes, "as configured".to_owned());
        let names = (format!("{mesh}, {as_configured}"), vec![format!("mesh.axes={mesh}"), as_configured]);
        row(names, time, *bytes, String::new())
    };
    let larger = searched.found.iter().filter(|found| !found.fits && found.time.seconds < best.time.seconds);
    Answer {
        config: name,
        target,
        devices: hardware.device_count(),
        chip_bytes: memory,
        hardware,
        considered: searched.considered,
        too_large: searched.too_large,
        too_slow: searched.too_slow,
        lowered: searched.lowered,
        refused: searched.refused,
        first_refusal: searched.first_refusal.as_deref(),
        ended_early: searched.ended_early,
        seconds,
        configured: configured.map(as_configured),
        plans: searched.found.iter().take(top).map(of_found).collect(),
        larger: larger.take(3).map(of_found).collect(),
        front: searched.front().into_iter().map(of_found).collect(),
        kernels: &best.time.largest,
    }
}

fn show(answer: &Answer, best: &Found) {
    let Answer { config, target, seconds, lowered, .. } = answer;
    let considered = plural(answer.considered as u64, "plan");
    line(&paint(BOLD, &format!("{config} on {target}: {considered} considered, {lowered} lowered in {seconds:.1} s")));
    line(&paint(
        DIM,
        &format!(
            "not lowered: by their bounds {} do not fit and {} are no faster than the best; {} not possible",
            answer.too_large, answer.too_slow, answer.refused
        ),
    ));
    if let Some(reason) = answer.first_refusal {
        line(&paint(DIM, &format!("the first that is not possible: {reason}")));
    }
    if answer.ended_early {
        output::note("the search ended at --most; plans that may be faster are left");
    }
    if !best.fits {
        line(&paint(BAD, "no plan fits the memory of a device; these come nearest"));
    }
    print("plans by time", &answer.plans, answer.configured.as_ref());
    if !answer.larger.is_empty() {
        print("faster, with more memory than there is", &answer.larger, None);
    }
    print("no other is better in both time and memory", &answer.front, None);
    print_kernels(&best.time);
}

fn print(title: &'static str, rows: &[Row], configured: Option<&Row>) {
    let rows: Vec<&Row> = configured.into_iter().chain(rows).collect();
    let table = Table::of(&rows)
        .number("step", |row| output::seconds(row.seconds))
        .number("MFU", |row| if row.mfu > 0.0 { percent(row.mfu) } else { String::new() })
        .number("computing", |row| output::seconds(row.computing))
        .number("waiting", |row| output::seconds(row.waiting))
        .number("bubbles", |row| output::seconds(row.idle))
        .number("memory", |row| output::human_bytes(row.bytes))
        .text("", |row| if row.fits { "fits" } else { "too large" })
        .flexible(title, |row| row.name.clone())
        .flexible("waits for", |row| row.waits_for.clone())
        .flexible("it would need", |row| row.needs.clone());
    line("");
    output::table(table, 0);
}

fn print_kernels(time: &StepTime) {
    let rows: Vec<&KernelTime> = time.largest.iter().take(KERNELS_SHOWN).collect();
    let table = Table::of(&rows)
        .number("time", |kernel| output::seconds(kernel.seconds))
        .number("of the step", |kernel| percent(kernel.seconds / time.seconds))
        .number("runs", |kernel| kernel.executions.to_string())
        .text("what takes longest in the best plan", |kernel| kernel.op.clone())
        .flexible("op", |kernel| kernel.op_name.clone());
    line("");
    output::table(table, 0);
}

fn waits_for(time: &StepTime) -> String {
    let long = time.transfers.iter().filter(|it| it.waiting > 0.01 * time.seconds);
    long.map(|it| format!("{} {}", it.axes, output::seconds(it.waiting))).collect::<Vec<_>>().join(", ")
}

fn needs(found: &Found, best: &Found, memory: u64) -> String {
    match what_it_would_need(found, best, memory) {
        Advice::Memory(bytes) => format!("{} more", output::human_bytes(bytes)),
        Advice::Transfers(axes, part) => format!("{} less over {axes}", percent(part)),
        Advice::Bubbles(part) => format!("{} shorter bubbles", percent(part)),
        Advice::Computing(part) => format!("{} less to compute", percent(part)),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}
