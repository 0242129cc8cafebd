//! `meshloom bisect`: finds by trying why a program goes wrong.
//!
//! First the symptom has to show itself: a difference from a reference, NaN or an infinity, a process that ends or
//! hangs, or too much memory. Then one thing after another is changed, and what shows the symptom in a smaller program,
//! or what removes it, is kept: the program's sizes, XLA's settings, meshloom's passes, partition modes, XLA's passes,
//! plugins. At last the module is shrunk ([`meshloom::analysis::shrink`]).
//!
//! Each try is a child process with a time limit, on virtual devices of the CPU. Inputs are drawn by name from a seed.
//!
//! ```text
//! Subject -> subject.rs  a setting's program and its reference
//!            runner.rs   a try: child process, memory of what was tried
//!            search.rs   what is changed, in order, and what came of it
//!            smaller.rs  the module, shrunk
//! ```

mod folder;
pub mod inputs;
pub mod program;
pub mod report;
mod runner;
pub mod search;
mod smaller;
mod subject;
mod suspects;
pub mod symptom;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use hlo_dump::Outcome;
use hlo_dump::arguments::{Reading, parse_bytes};
use hlo_dump::input::{in_input, load_path};
use hlo_dump::output::{self, BAD, BOLD, Busy, DIM, GOOD, line, paint, plural};
use hlo_dump::source::{self, read_all};
use hlo_dump::streams;
use meshloom::analysis::{Devices, device_count};
use meshloom::compile::Pass;
use meshloom::hlo::parse::make_names_unique;
use meshloom::hlo::table::Table;
use meshloom::hlo::{files, read};
use serde::Serialize;

use inputs::read_safetensors;
use report::{Dimension, Effect, Report};
use search::Search;
use subject::Subject;
use symptom::Kind;

/// Finds what makes a program go wrong: a pass, a setting, a size, a plugin; and shrinks the program.
///
/// A run config is compared with the same train step on one device without meshloom's passes; a module with itself
/// without XLA's optimizations, or with the module of --reference. Each try runs in a child process on virtual devices
/// of the CPU.
#[derive(Args)]
pub struct Bisect {
    /// HLO text or proto, XLA dump folder, run config, or -
    #[arg(value_name = "INPUT")]
    pub path: PathBuf,
    #[command(flatten)]
    pub reading: Reading,
    /// A module that should give the same results as INPUT, a module
    #[arg(long, value_name = "MODULE")]
    pub reference: Option<PathBuf>,
    /// The folder for the results: summary.md, module.hlo.txt, inputs.safetensors, reproduce.py
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Looks for this symptom alone: crash, hang (not done within --time-limit), memory (more than --max-memory),
    /// not-finite (NaN or an infinity comes out of finite inputs), differs (from the reference's results). May be given
    /// more than once. By default it looks for all
    #[arg(long, value_name = "SYMPTOM", value_parser = one_of(&Kind::ALL, Kind::name), help_heading = "Symptom")]
    pub symptom: Vec<Kind>,
    /// Changes this alone: size (layers, sequence and batch of a run config), mesh, option (XLA's settings that are
    /// given), pass (of meshloom's), partition-mode, xla-pass, xla-flag (XLA's other settings), plugin. May be given
    /// more than once. By default it changes all
    #[arg(long, value_name = "WHAT", value_parser = one_of(&Dimension::ALL[1..], Dimension::name), help_heading = "Running")]
    pub only: Vec<Dimension>,
    /// How much results may differ, as a part of the largest number of an output
    #[arg(long, value_name = "SHARE", default_value_t = 1e-3, help_heading = "Symptom")]
    pub tolerance: f64,
    /// The memory that a device may need: 16GiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Symptom")]
    pub max_memory: Option<u64>,
    /// Seconds that a try may take: longer is a hang
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, help_heading = "Symptom")]
    pub time_limit: f64,
    /// A setting of XLA's compiler, beside those of the config and of XLA_FLAGS; may be given more than once
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Running")]
    pub option: Vec<String>,
    /// The CPU plugin: the name of a known wheel, or a file
    #[arg(long, value_name = "PLUGIN", help_heading = "Running")]
    pub plugin: Option<String>,
    /// Inputs by the names of the parameters, as safetensors; others are drawn
    #[arg(long, value_name = "FILE", help_heading = "Running")]
    pub inputs: Option<PathBuf>,
    /// The seed of inputs that are drawn
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Running")]
    pub seed: u64,
    /// The range of floating-point numbers that are drawn: 0,1
    #[arg(long, value_name = "LEAST,MOST", default_value = "-1,1", value_parser = parse_range, allow_hyphen_values = true, help_heading = "Running")]
    pub range: (f64, f64),
    /// Draws NaN, infinities, -0 and very small numbers among the others
    #[arg(long, help_heading = "Running")]
    pub special: bool,
    /// The most programs that are tried to shrink the module; 0 leaves it as it is
    #[arg(long, value_name = "N", default_value_t = 400, help_heading = "Running")]
    pub shrink: usize,
}

/// Reads one of these by its name, with dashes for spaces.
fn one_of<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let names: Vec<String> = all.iter().map(|it| name(*it).to_lowercase().replace(' ', "-")).collect();
        let found = names.iter().position(|name| name == text);
        found.map(|index| all[index]).ok_or_else(|| format!("it must be one of {}", names.join(", ")))
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    input: String,
    found: bool,
    #[serde(flatten)]
    report: &'a Report,
    seconds: f64,
    /// The folder that it was written to.
    out: Option<String>,
}

fn parse_range(text: &str) -> Result<(f64, f64), String> {
    let numbers: Option<Vec<f64>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[least, most]) if least.is_finite() && most.is_finite() && least <= most => Ok((least, most)),
        _ => Err("expected two finite numbers, the smaller first, as in -1,1".to_owned()),
    }
}

pub fn run(arguments: &Bisect, json: bool) -> Result<Outcome> {
    if let Some(out) = &arguments.out {
        folder::check(out)?;
    }
    let start = Instant::now();
    let report = {
        let busy = Busy::new("");
        let mut tries = 0;
        find(arguments, &[], streams::worker(), &mut |what| {
            tries += 1;
            busy.say(&output::clipped(&format!("{tries}: {what}"), 100));
        })?
    };
    let seconds = start.elapsed().as_secs_f64();
    let input = source::name(&arguments.path);
    if let (Some(out), Some(case)) = (&arguments.out, &report.case) {
        folder::write(arguments, out, &report, case)?;
    }
    let out = arguments.out.as_ref().filter(|_| report.case.is_some()).map(|out| out.display().to_string());
    let found = report.symptom.is_some();
    if json {
        output::json("meshloom/bisect", &Answer { input, found, report: &report, seconds, out })?;
    } else {
        print(&report, seconds, out.as_deref());
    }
    Ok(if found { Outcome::Found } else { Outcome::Done })
}

/// Searches. `further` passes behind meshloom's may be at fault too; `progress` is told what is tried next.
pub fn find(
    arguments: &Bisect,
    further: &[Pass],
    worker: Option<PathBuf>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    if !arguments.time_limit.is_finite() || arguments.time_limit <= 0.0 || arguments.time_limit > 1e6 {
        bail!("--time-limit {}: expected more than 0 seconds, and at most 1000000", arguments.time_limit);
    }
    if !arguments.tolerance.is_finite() || arguments.tolerance < 0.0 {
        bail!("--tolerance {}: expected a number that is at least 0", arguments.tolerance);
    }
    if arguments.symptom.contains(&Kind::Memory) && arguments.max_memory.is_none() {
        bail!("--symptom memory needs --max-memory BYTES, the memory that a device may need");
    }
    let subject = subject(arguments)?;
    let inputs = match &arguments.inputs {
        None => Default::default(),
        Some(path) => {
            let named = || format!("--inputs {}", source::name(path));
            let inputs = read_safetensors(&read_all(path).with_context(named)?).with_context(named)?;
            inputs.into_iter().map(|(name, value)| (source::shown(&name), value)).collect()
        }
    };
    Search::new(&subject, arguments, inputs, further, worker, progress)?.run()
}

/// Returns the subject of the search: a config as it is, or the module of anything else.
fn subject(arguments: &Bisect) -> Result<Subject> {
    let Bisect { path, reading, reference, .. } = arguments;
    let mut loaded = load_path(path, reading)?;
    if loaded.run.is_some() {
        if reference.is_some() {
            bail!("--reference is for a module; a run config is compared with its train step on one device");
        }
        if loaded.stage.is_some_and(|_| reading.stage.is_some()) {
            bail!("--stage: a run config is searched as a whole; give one of its modules to search that alone");
        }
        if path.as_os_str() == "-" {
            bail!("give the run config as a file, because it is read once more for each of its forms");
        }
        let text = files::read_text(path, files::WRITTEN_BYTES).with_context(|| path.display().to_string())?;
        return Ok(Subject::Config { text, name: path.display().to_string(), set: reading.set.clone() });
    }
    // Text for people has names that computations share, which compilers do not accept.
    make_names_unique(&mut loaded.module);
    let devices = loaded.devices;
    let Some(reference) = reference else { return Ok(Subject::Module(Box::new(loaded.module), devices)) };
    let name = format!("--reference {}", source::name(reference));
    let bytes = read_all(reference).with_context(|| name.clone())?;
    let mut found = read::read(&bytes, &streams::limits()).map_err(|error| in_input(error.into(), &name))?;
    streams::redacted(|redaction| redaction.module(&mut found.module));
    make_names_unique(&mut found.module);
    let of_reference = device_count(&found.module, found.config.as_ref());
    let count = |devices: Devices| devices.replicas * devices.partitions;
    if count(of_reference) != count(devices) {
        let (this, other) = (plural(count(devices), "device"), plural(count(of_reference), "device"));
        bail!("{name}: it is for {other}, and {} for {this}", source::name(path));
    }
    Ok(Subject::Pair(Box::new((loaded.module, found.module)), devices))
}

fn print(report: &Report, seconds: f64, out: Option<&str>) {
    let Some(symptom) = &report.symptom else {
        line(&paint(GOOD, "nothing to find: no symptom shows"));
        line(&format!("tried on {} in {}", report.plugin, output::seconds(seconds)));
        return;
    };
    line(&format!("{} {symptom}", paint(BAD, "symptom:")));
    for culprit in &report.culprits {
        line(&format!("{} {}", paint(BOLD, "culprit:"), culprit.text));
    }
    if report.culprits.is_empty() {
        line("nothing that was changed removes it");
    }
    line("");
    let table = Table::of(&report.tried)
        .text("changed", |it| it.dimension.name())
        .flexible("how", |it| it.change.clone())
        .flexible("symptom", |it| effect_text(&it.effect));
    output::table(table, 0);
    line("");
    for text in kept(report) {
        line(&text);
    }
    line(&paint(DIM, &format!("{} in {}", plural(report.runs as u64, "run"), output::seconds(seconds))));
    match out {
        Some(out) => line(&format!("written to {out}: summary.md, module.hlo.txt, inputs.safetensors, reproduce.py")),
        None => output::note("--out DIR writes the module, its inputs and a script that shows the symptom"),
    }
}

fn effect_text(effect: &Effect) -> String {
    match effect {
        Effect::Shows => "shows".to_owned(),
        Effect::Gone => "gone".to_owned(),
        // The first line states the problem.
        Effect::NotPossible(reason) => format!("not possible: {}", reason.lines().next().unwrap_or_default()),
    }
}

/// Describes the conditions of the symptom, and the size of the remaining module.
fn kept(report: &Report) -> Vec<String> {
    let mut lines = vec![format!("plugin: {}", report.plugin)];
    if !report.overrides.is_empty() {
        lines.push(format!("the config's form: --set {}", report.overrides.join(" --set ")));
    }
    if !report.options.is_empty() {
        lines.push(format!("XLA's settings: {}", report.options.join(" ")));
    }
    if let Some(shrinking) = &report.shrinking {
        let (before, after) = (shrinking.instructions_before as u64, shrinking.instructions as u64);
        let end = if shrinking.is_complete { "nothing more can be left out" } else { "--shrink allows no more tries" };
        let tries = if shrinking.tries == 1 { "1 try".to_owned() } else { format!("{} tries", shrinking.tries) };
        lines.push(format!(
            "shrunk from {} to {} in {tries}: {end}",
            output::thousands(before),
            plural(after, "instruction")
        ));
    }
    lines
}
