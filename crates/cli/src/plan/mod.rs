//! `hlo-dump plan`: the pipelines that a run config could have, the bytes that each moves and needs, and the picture of
//! the configured one; and the same for ways to split a sequence.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use meshloom::transform::pipeline::{Counts, PipelineOptions, Timeline};
use meshloom_analysis::{Chip, ModuleMemory};
use meshloom_hlo::table::Table;
use meshloom_train::config::RunConfig;
use meshloom_train::run::{Alternative, RefusedAlternative};
use serde::Serialize;

use super::plan_rows::{Needs, Traffic, sent, traffic};
use super::{plan_context, plan_search};
use crate::configs::{load, on_topology};
use crate::output::{self, BOLD, DIM, line, paint, plural};

#[derive(Args)]
pub struct Plan {
    /// A run config with a section `[pipeline]`, or whose rules split the sequence, or -
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    /// Overrides one key of the config; may be given more than once
    #[arg(long, value_name = "SECTION.KEY=VALUE", help_heading = "Reading")]
    pub set: Vec<String>,
    /// Compares the peak with this chip's memory; by default with that of target.topology
    #[arg(long, value_name = "CHIP")]
    pub chip: Option<String>,
    /// Prints the whole schedule, however long
    #[arg(long)]
    pub schedule: bool,
    #[command(flatten)]
    pub search: plan_search::Options,
}

#[derive(Serialize)]
struct Answer<'a> {
    config: String,
    mesh: String,
    devices: usize,
    layers: usize,
    microbatches: Option<usize>,
    chip: Option<&'a str>,
    chip_bytes: Option<u64>,
    plans: Vec<Row<'a>>,
    not_possible: Vec<NotPossible>,
    context: Vec<plan_context::Row>,
    context_not_possible: Vec<plan_context::NotPossible>,
    timeline: Option<&'a Timeline>,
}

#[derive(Serialize)]
struct Row<'a> {
    configured: bool,
    schedule: &'a str,
    repeats: usize,
    chunks: usize,
    layers_per_stage: usize,
    remat: &'a str,
    weights: &'a str,
    keep_gathered: bool,
    /// The most microbatches whose activations a stage holds.
    held: f64,
    peak: u64,
    fits: Option<bool>,
    counts: &'a Counts,
    traffic: Vec<Traffic>,
    memory: Needs,
}

#[derive(Serialize)]
struct NotPossible {
    repeats: usize,
    layers_per_stage: usize,
    reason: String,
}

pub fn run(arguments: &Plan, json: bool) -> Result<()> {
    if arguments.search.search {
        return plan_search::run(&arguments.config, &arguments.set, &arguments.search, json);
    }
    let name = arguments.config.display().to_string();
    let config = on_topology(load(&arguments.config, &arguments.set)?)?;
    let options = config.pipeline_options().context(name.clone())?;
    let (ways, refused_orders) = config.context_alternatives().context(name.clone())?;
    if options.is_none() && (ways.is_empty() || arguments.schedule) {
        bail!(
            "{name}: there is no pipeline to plan; add a section [pipeline] and a mesh axis \"stage\", as by \
             --set mesh.axes=stage=2,fsdp=4 --set pipeline.repeats=2; to compare ways to split a sequence, add a mesh \
             axis \"context\""
        );
    }
    let chip = chip(arguments, &config)?;
    let there_is = chip.and_then(Chip::device_memory);
    let (possible, refused) = config.pipeline_alternatives().context(name.clone())?;
    let timeline = options.as_ref().map(Timeline::of);
    let context = plan_context::rows(&ways, there_is)?;
    if json {
        let answer = Answer {
            config: name,
            mesh: config.mesh()?.to_string(),
            devices: config.device_total(),
            layers: config.model.layers,
            microbatches: options.as_ref().map(|options| options.microbatches),
            chip: chip.map(|chip| chip.name),
            chip_bytes: there_is,
            plans: possible.iter().map(|it| row(it, there_is)).collect::<Result<_>>()?,
            not_possible: refused.iter().map(not_possible).collect(),
            context,
            context_not_possible: plan_context::not_possible(&refused_orders),
            timeline: timeline.as_ref(),
        };
        return output::json("plan", &answer);
    }
    let of_stages = options.as_ref().map_or_else(String::new, |options| {
        let (stages, microbatches) = (options.stages as u64, options.microbatches as u64);
        format!(" on {}, {}", plural(stages, "stage"), plural(microbatches, "microbatch"))
    });
    let (mesh, layers) = (config.mesh()?, plural(config.model.layers as u64, "layer"));
    line(&paint(BOLD, &format!("{name} ({mesh}): {layers}{of_stages}")));
    if let Some(options) = &options {
        let is_plan = |it: &&Alternative| same_split(&it.options, options);
        print_plans("when weights are gathered", possible.iter().filter(is_plan), there_is)?;
        print_plans("other ways to split the layers", possible.iter().filter(|it| !is_plan(it)), there_is)?;
    }
    for RefusedAlternative { repeats, layers_per_stage, reason } in &refused {
        let (repeats, layers) = (plural(*repeats as u64, "repeat"), plural(*layers_per_stage as u64, "layer"));
        output::note(&format!("not {repeats} of {layers} per stage: {reason}"));
    }
    if !context.is_empty() {
        plan_context::print(&context, &refused_orders);
    }
    let own = possible.iter().find(|it| it.configured).map(|it| &it.memory);
    if let Some(memory) = own.or_else(|| ways.iter().find(|it| it.configured).map(|it| &it.memory)) {
        print_memory(memory, chip.map(|chip| chip.name).zip(there_is));
    }
    if let Some(timeline) = &timeline {
        line("");
        print_schedule(timeline, arguments.schedule);
    }
    Ok(())
}

/// Returns the chip that was asked for, or that of the topology.
fn chip(arguments: &Plan, config: &RunConfig) -> Result<Option<&'static Chip>> {
    if let Some(name) = &arguments.chip {
        return Ok(Some(Chip::parse(name)?));
    }
    let name = config.target.topology.split(':').next().unwrap_or_default();
    Ok(Chip::parse(name).ok().filter(|chip| chip.device_memory().is_some()))
}

fn same_split(a: &PipelineOptions, b: &PipelineOptions) -> bool {
    (a.repeats, a.chunks, a.schedule, &a.remat) == (b.repeats, b.chunks, b.schedule, &b.remat)
}

fn row(it: &Alternative, there_is: Option<u64>) -> Result<Row<'_>> {
    let &ModuleMemory { arguments, outputs, temporaries, peak, .. } = &it.memory;
    Ok(Row {
        configured: it.configured,
        schedule: it.options.schedule.name(),
        repeats: it.options.repeats,
        chunks: it.options.chunks,
        layers_per_stage: it.options.layers_per_stage,
        remat: it.options.remat.name(),
        weights: it.options.weights.name(),
        keep_gathered: it.options.keep_gathered,
        held: it.held,
        peak,
        fits: there_is.map(|there_is| peak <= there_is),
        counts: &it.counts,
        traffic: traffic(&it.collectives)?,
        memory: Needs { arguments, outputs, temporaries },
    })
}

fn not_possible(it: &RefusedAlternative) -> NotPossible {
    let RefusedAlternative { repeats, layers_per_stage, reason } = it;
    NotPossible { repeats: *repeats, layers_per_stage: *layers_per_stage, reason: reason.to_string() }
}

fn print_plans<'a>(
    title: &'static str,
    plans: impl Iterator<Item = &'a Alternative>,
    there_is: Option<u64>,
) -> Result<()> {
    let rows: Vec<Row<'_>> = plans.map(|it| row(it, there_is)).collect::<Result<_>>()?;
    if rows.is_empty() {
        return Ok(());
    }
    let table = Table::of(&rows)
        .text("", |row| if row.configured { "*" } else { "" })
        .text(title, |row| format!("{}{}", row.weights, if row.keep_gathered { ", kept" } else { "" }))
        .text("schedule", |row| row.schedule)
        .number("repeats", |row| row.repeats)
        .number("chunks", |row| row.chunks)
        .number("layers", |row| row.layers_per_stage)
        .text("remat", |row| row.remat)
        .number("bubbles", |row| format!("{:.1} %", 100.0 * row.counts.bubble_fraction))
        .number("held", |row| row.held)
        .flexible("sent over", |row| sent(&row.traffic))
        .number("peak", |row| output::human_bytes(row.peak))
        .text("", |row| row.fits.map_or("", |fits| if fits { "fits" } else { "does not fit" }));
    line("");
    output::table(table, 0);
    Ok(())
}

fn print_memory(memory: &ModuleMemory, chip: Option<(&str, u64)>) {
    const SHOWN: usize = 6;
    let rows =
        [("arguments: state and batch", memory.arguments), ("temporaries", memory.temporaries), ("peak", memory.peak)];
    let rows = rows.map(|(name, bytes)| (name.to_owned(), bytes)).into_iter();
    let largest = memory.live_at_peak.iter().take(SHOWN);
    let table = Table::of(rows.chain(largest.map(|it| (format!("  at the peak: {}", it.label()), it.bytes))))
        .text("memory of a device", |(name, _)| name.clone())
        .number("bytes", |(_, bytes)| output::bytes(*bytes));
    line("");
    output::table(table, 0);
    if let Some((name, there_is)) = chip {
        let of = format!("the {} of a {name}", output::bytes(there_is));
        line(&output::verdict(memory.peak, there_is, &of));
    }
}

fn print_schedule(timeline: &Timeline, whole: bool) {
    let counts = &timeline.counts;
    line(&paint(
        BOLD,
        &format!(
            "{} = {} real + {} ({:.1} %)",
            plural(counts.iterations as u64, "iteration"),
            counts.real_iterations,
            plural(counts.bubble_iterations as u64, "bubble"),
            100.0 * counts.bubble_fraction
        ),
    ));
    let picture = if whole { format!("{timeline:#}") } else { timeline.to_string() };
    picture.lines().for_each(line);
    let cells = match timeline.parts() {
        (1, _) => "3 microbatch 3".to_owned(),
        (_, part) => format!("1:3 microbatch 3 in {part} 1"),
    };
    let mut legend = format!("{cells}, . bubble, held: microbatches whose activations a stage holds at most");
    if !timeline.windows.is_empty() {
        legend.push_str(", ~ weights are gathered meanwhile, = they are there, + their gradient is scattered");
    }
    if picture.contains('…') {
        legend.push_str("; --schedule shows all");
    }
    line(&paint(DIM, &legend));
}
