//! `meshloom plan`: the pipelines that a run config could have, the ways in which it could split a sequence, and the
//! picture of its schedule; with `--search`, the best of all plans of its model on devices.

mod picture;
mod rows;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use hlo_dump::configs;
use hlo_dump::output::{self, BAD, BOLD, Busy, DIM, GOOD, line, paint, plural};
use hlo_dump::streams;
use meshloom::analysis::Chip;
use meshloom::analysis::estimate::KernelTime;
use meshloom::transform::pipeline::Timeline;
use meshloom_plan::{
    Hardware, LoweredPlan, MOST_LOWERED, Progress, Refused, Search, SearchOptions, compare, hardware, on_hardware,
    read_hardware, search,
};
use meshloom_train::config::RunConfig;
use serde::Serialize;

use picture::Picture;
use rows::{Row, Rows, print_kernels, print_rows};

/// The number of rows of the table of plans, unless more are asked for.
const SHOWN: usize = 12;

#[derive(Args)]
pub struct Plan {
    /// A run config, or -; without --search, one with a section `[pipeline]`, or whose rules split the sequence
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    /// Overrides one key of the config; may be given more than once
    #[arg(long, value_name = "SECTION.KEY=VALUE", help_heading = "Reading")]
    pub set: Vec<String>,
    /// The hardware, as v5p:4x4x8 or h100:1x8x8, or a TOML file that describes it; by default target.topology
    #[arg(long, value_name = "TOPOLOGY|FILE.toml")]
    pub target: Option<String>,
    /// Gbit/s of the network between slices or hosts for each device, in place of the published rate
    #[arg(long, value_name = "GBITS", value_parser = positive)]
    pub network: Option<f64>,
    /// Compares memory with this chip's, where no hardware is given
    #[arg(long, value_name = "CHIP", conflicts_with_all = ["search", "target"])]
    pub chip: Option<String>,
    /// Prints the whole schedule, however long
    #[arg(long, conflicts_with = "search")]
    pub schedule: bool,
    /// Searches meshes, schedules, microbatches, accumulation, rematerialization and sequence parallelism for the plan
    /// with the shortest step
    #[arg(long, help_heading = "Search")]
    pub search: bool,
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

#[derive(Serialize)]
struct Answer<'a> {
    config: &'a str,
    target: &'a str,
    devices: usize,
    chip_bytes: Option<u64>,
    hardware: Option<&'a Hardware>,
    #[serde(flatten)]
    searched: &'a Search,
    seconds: f64,
    configured: Option<Row<'a>>,
    plans: Vec<Row<'a>>,
    /// The fastest plans that do not fit, which show the gain of more memory.
    #[serde(skip)]
    larger: Vec<Row<'a>>,
    front: Vec<Row<'a>>,
    /// The kernels of the best plan that take longest.
    kernels: &'a [KernelTime],
    timeline: Option<Timeline>,
}

/// A config, and the devices that its plans are for.
struct Planned {
    text: String,
    name: String,
    config: RunConfig,
    target: String,
    hardware: Option<Hardware>,
    memory: Option<u64>,
}

pub fn run(arguments: &Plan, json: bool) -> Result<()> {
    if streams::is_redacting() {
        bail!("--redact is for HLO, and a plan is of a run config; leave it out");
    }
    let mut planned = planned(arguments)?;
    let start = std::time::Instant::now();
    let (searched, timeline) = if arguments.search {
        (whole_search(&planned, arguments.most)?, None)
    } else {
        let timeline = planned.config.pipeline_options().with_context(|| planned.name.clone())?;
        let timeline = timeline.as_ref().map(Timeline::of);
        let searched = compared(&mut planned, arguments.target.is_some())?;
        let name = &planned.name;
        if searched.considered == 0 || arguments.schedule && timeline.is_none() {
            bail!(
                "{name}: there is no pipeline to plan; add a section [pipeline] and a mesh axis \"stage\", as by \
                 --set mesh.axes=stage=2,fsdp=4 --set pipeline.repeats=2; to compare ways to split a sequence, add a \
                 mesh axis \"context\""
            );
        }
        (searched, timeline)
    };
    let Planned { name, config, target, memory, .. } = &planned;
    let answer = answer(&planned, &searched, arguments, (start.elapsed().as_secs_f64(), timeline));
    if let Some(path) = &arguments.svg {
        let title = format!("{name} on {target}: {} lowered", plural(searched.lowered as u64, "plan"));
        output::write(path, Picture { title, searched: &searched, memory: *memory }.svg())?;
    }
    if let (Some(path), Some(best)) = (&arguments.write, searched.found.first()) {
        output::write(path, best.plan.apply(config).to_toml())?;
    }
    if json {
        return output::json("meshloom/plan", &answer);
    }
    if arguments.search {
        print_search(&answer);
        print_settings(&planned, &arguments.set, &searched);
    } else {
        print_comparison(&planned, &answer, arguments.schedule)?;
    }
    Ok(())
}

fn planned(arguments: &Plan) -> Result<Planned> {
    let (text, name) = configs::text(&arguments.config)?;
    let mut config = RunConfig::from_toml_with(&text, &name, &arguments.set)?;
    let target = arguments.target.clone().unwrap_or_else(|| config.target.topology.clone());
    let mut found = match target.as_str() {
        "" if arguments.search => {
            bail!("{name} names no hardware to search for; give it, as by --target h100:1x1x8, or set target.topology")
        }
        "" => None,
        // No plugin has a name for the hardware of a file.
        file if file.ends_with(".toml") => {
            let hardware = read_hardware(file)?;
            config = on_hardware(&config, &hardware);
            Some(hardware)
        }
        topology => {
            config.target.topology = topology.to_owned();
            let is_needed = arguments.search || arguments.target.is_some();
            if is_needed { Some(hardware(topology)?) } else { hardware(topology).ok() }
        }
    };
    if let (Some(network), Some(hardware)) = (arguments.network, &mut found) {
        hardware.set_network(network * 1e9 / 8.0);
    }
    if !arguments.search {
        config = config.on_stated_devices()?;
    }
    let chip = match &arguments.chip {
        Some(name) => Some(Chip::parse(name)?),
        None => Chip::parse(target.split(':').next().unwrap_or_default()).ok(),
    };
    let memory = found.as_ref().map_or_else(|| chip.and_then(Chip::device_memory), |it| it.chip.device_memory());
    Ok(Planned { text, name, config, target, hardware: found, memory })
}

/// Compares the config's pipelines and ways to split a sequence. Hardware that the command does not name itself may
/// have no rates for the config's numbers, or no place for its mesh; then no time is estimated.
fn compared(planned: &mut Planned, is_named: bool) -> Result<Search> {
    let memory = planned.memory.unwrap_or(u64::MAX);
    let mut searched = compare(&planned.config, planned.hardware.as_ref(), memory);
    if searched.is_err() && !is_named && planned.hardware.take().is_some() {
        searched = compare(&planned.config, None, memory);
    }
    searched.with_context(|| planned.name.clone())
}

fn whole_search(planned: &Planned, most: usize) -> Result<Search> {
    let Planned { name, config, target, hardware, .. } = planned;
    let Some(hardware) = hardware else { bail!("{name} names no hardware to search for") };
    let searched = {
        let bar = Busy::new("");
        let options = SearchOptions { most, ..SearchOptions::new(hardware.clone()) };
        search(config, &options, &|progress: Progress| bar.say(&progress.to_string()))?
    };
    if let Some(Err(reason)) = &searched.configured {
        output::note(&format!("the plan that {name} has cannot be lowered: {reason}"));
    }
    if searched.found.is_empty() {
        bail!("{name} on {target}: {}", searched.why_none(hardware));
    }
    Ok(searched)
}

fn answer<'a>(
    planned: &'a Planned,
    searched: &'a Search,
    arguments: &Plan,
    (seconds, timeline): (f64, Option<Timeline>),
) -> Answer<'a> {
    let Planned { name, config, target, hardware, memory, .. } = planned;
    let best = searched.found.first().filter(|_| arguments.search);
    let rows = Rows::of(config, searched, (hardware.as_ref(), *memory), best);
    let top = if arguments.search { arguments.top } else { usize::MAX };
    let is_larger = |it: &&LoweredPlan| best.is_some_and(|best| !it.fits && it.seconds() < best.seconds());
    let front = if best.is_some() { searched.front() } else { Vec::new() };
    Answer {
        config: name,
        target,
        devices: hardware.as_ref().map_or_else(|| config.device_total(), Hardware::device_count),
        chip_bytes: *memory,
        hardware: hardware.as_ref(),
        searched,
        seconds,
        configured: searched.configured.iter().flatten().next().map(|found| rows.row(found)),
        plans: searched.found.iter().take(top).map(|found| rows.row(found)).collect(),
        larger: searched.found.iter().filter(is_larger).take(3).map(|found| rows.row(found)).collect(),
        front: front.into_iter().map(|found| rows.row(found)).collect(),
        kernels: best.and_then(|best| best.time.as_ref()).map_or(&[], |time| &time.largest),
        timeline,
    }
}

fn print_search(answer: &Answer<'_>) {
    let Answer { config, target, seconds, searched, .. } = answer;
    let Search { considered, lowered, too_large, too_slow, refused, ended_early, .. } = searched;
    let considered = plural(*considered as u64, "plan");
    line(&paint(BOLD, &format!("{config} on {target}: {considered} considered, {lowered} lowered in {seconds:.1} s")));
    line(&paint(
        DIM,
        &format!(
            "not lowered: by their bounds {too_large} do not fit and {too_slow} are no faster than the best; {} not \
             possible",
            refused.len()
        ),
    ));
    if let Some(reason) = searched.first_refusal() {
        line(&paint(DIM, &format!("the first that is not possible: {reason}")));
    }
    if *ended_early {
        output::note("the search ended at --most; plans that may be faster are left");
    }
    if searched.best().is_none() {
        line(&paint(BAD, "no plan fits the memory of a device; these come nearest"));
    }
    print_rows("plans by time", answer.configured.iter().chain(&answer.plans));
    if !answer.larger.is_empty() {
        print_rows("faster, with more memory than there is", &answer.larger);
    }
    print_rows("no other is better in both time and memory", &answer.front);
    if let Some(time) = searched.found.first().and_then(|best| best.time.as_ref()) {
        print_kernels(time);
    }
}

/// Prints the settings of the best plan, if they make it from the config.
fn print_settings(planned: &Planned, set: &[String], searched: &Search) {
    let Planned { text, name, config, target, .. } = planned;
    let Some(best) = searched.found.first() else { return };
    let mut sets = best.plan.settings();
    if target.ends_with(".toml") {
        sets.push(format!("target.platform={}", config.target.platform));
        sets.push(format!("target.devices={}", config.target.devices));
    }
    let topology = format!("target.topology={}", config.target.topology);
    let by_set = RunConfig::from_toml_with(text, name, &[set, &sets, &[topology]].concat());
    line("");
    line(&match by_set.is_ok_and(|it| it.to_toml() == best.plan.apply(config).to_toml()) {
        true => format!("{} the best plan: --set {}", paint(GOOD, "=>"), sets.join(" --set ")),
        // `--set` cannot remove the config's section [pipeline], or its accumulation.
        false => format!(
            "{} --write FILE writes a config with the best plan: --set does not take away what this config has",
            paint(GOOD, "=>")
        ),
    });
}

fn print_comparison(planned: &Planned, answer: &Answer<'_>, whole: bool) -> Result<()> {
    let Planned { name, config, .. } = planned;
    let of_stages = answer.timeline.as_ref().map_or_else(String::new, |it| {
        format!(" on {}, {}", plural(it.stages as u64, "stage"), plural(it.microbatches as u64, "microbatch"))
    });
    let (mesh, layers) = (config.mesh()?, plural(config.model.layers as u64, "layer"));
    line(&paint(BOLD, &format!("{name} ({mesh}): {layers}{of_stages}")));
    print_rows("plan", &answer.plans);
    for Refused { plan, reason } in &answer.searched.refused {
        output::note(&format!("not {plan}: {reason}"));
    }
    if let Some(timeline) = &answer.timeline {
        line("");
        print_schedule(timeline, whole);
    }
    Ok(())
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
