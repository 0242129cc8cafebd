//! `hlo-dump check`: limits that a program must keep, for CI.

use anyhow::{Result, bail};
use meshloom_analysis::{Amount, Bounds};
use meshloom_analysis::{Chip, Communication, ModuleCollective, ModuleCollectives, ModuleOverlap, Together};
use meshloom_hlo::suggest::did_you_mean;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Outcome;
use crate::arguments::Check;
use crate::collectives::{self, axes_text, keep_over, where_from};
use crate::emitted::{Emitted, Sums};
use crate::input::{Loaded, load};
use crate::lock::TrafficLock;
use crate::output::{self, BAD, GOOD, line, paint};
use crate::{memory, overlap, replication, source, streams};

#[cfg(feature = "configs")]
use crate::ahead::ahead;

#[cfg(not(feature = "configs"))]
fn ahead(_: &crate::arguments::Input, _: Option<&str>, _: bool) -> Result<crate::emitted::Ahead> {
    Err(crate::run::missing("compiling ahead of time"))
}

/// The smallest parameter that `--deny replication` counts by default.
const REPLICATED_BYTES: u64 = 64 << 10;

/// A thing that a program may not have.
enum Denied {
    /// A large parameter that every device holds whole; a value that had to be gathered for an op.
    Replication,
    /// A loop with a collective in it, over an axis if one is named.
    InLoops(Option<String>),
    Over(String),
    /// A collective over an axis that runs whichever branches are taken.
    OutsideConditionals(String),
    /// A collective that some devices of a group run where others take another branch: they would wait forever.
    AcrossBranches,
    /// A kind of collective, over an axis if one is named.
    Kind(String, Option<String>),
    UnknownTripCounts,
}

/// A limit that was asked for, and the things that broke it.
#[derive(JsonSchema, Serialize)]
struct Verdict {
    /// The limit, as the command line states it.
    limit: String,
    /// Whether the program keeps it.
    passed: bool,
    /// The violations, each in words.
    violations: Vec<String>,
}

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    /// Whether the program keeps all limits.
    passed: bool,
    /// Each limit that was asked for.
    checks: &'a [Verdict],
}

pub fn run(arguments: &Check, json: bool) -> Result<Outcome> {
    let denied: Vec<(String, Denied)> =
        arguments.deny.iter().map(|text| Ok((text.clone(), parse(text)?))).collect::<Result<_>>()?;
    // With --chip, the module is already compiled, and --chip names the chip that it is for.
    let needs_rates = !arguments.min_overlap.is_empty() && arguments.chip.is_none();
    let compiles = needs_rates || arguments.compiled_as_emitted.is_some();
    check_options(arguments, &denied, compiles)?;
    let chip = arguments.chip.as_deref().map(Chip::parse).transpose()?;
    let loaded = load_one_device(arguments, needs_rates)?;
    if compiles && streams::below().is_some() {
        bail!("`hlo-dump mcp` compiles nothing: give a compiled module, and with --min-overlap its --chip");
    }
    let found = collectives::of(&loaded);
    collectives::uncounted_text(&found.uncounted).iter().for_each(|text| output::note(text));
    let mut checks = amounts(arguments, &found, &loaded)?;
    let ahead = || ahead(&arguments.input, arguments.target.as_deref(), needs_rates);
    let ahead = compiles.then(ahead).transpose()?;
    if !arguments.min_overlap.is_empty() {
        let line = match (chip, &ahead) {
            (None, Some(ahead)) => Some(overlap::of(&ahead.after, ahead.chip()?)?),
            (chip, _) => chip.map(|chip| overlap::of(&loaded, chip)).transpose()?,
        };
        for (line, (axis, least)) in line.iter().flat_map(|line| arguments.min_overlap.iter().map(move |of| (line, of)))
        {
            checks.push(hidden(line, axis.as_deref(), *least, &loaded)?);
        }
    }
    if let (Some(most), Some(ahead)) = (arguments.compiled_as_emitted, &ahead) {
        checks.push(as_emitted(most, &ahead.compared()?));
    }
    let replicated_bytes = arguments.replicated_bytes.unwrap_or(REPLICATED_BYTES);
    for (text, denied) in &denied {
        let violations = violations(text, denied, &found, &loaded, replicated_bytes)?;
        checks.push(Verdict { limit: format!("--deny {text}"), passed: violations.is_empty(), violations });
    }
    if let Some(path) = &arguments.lock {
        let [worse, better] = TrafficLock::read(path)?.compare(&TrafficLock::of(&loaded, &found)?)?;
        checks.push(Verdict {
            limit: format!("--lock {}", source::name(path)),
            passed: worse.is_empty(),
            violations: worse,
        });
        if !better.is_empty() {
            output::note(&format!(
                "better than the lock, which `hlo-dump lock` would write anew: {}",
                better.join("; ")
            ));
        }
    }
    let passed = checks.iter().all(|check| check.passed);
    if json {
        output::json("hlo-dump/check", &loaded.found(&Answer { passed, checks: &checks }))?;
    } else {
        loaded.print_title();
        checks.iter().for_each(print);
    }
    Ok(if passed { Outcome::Done } else { Outcome::Found })
}

/// Refuses options that limit nothing, or that another option makes meaningless.
fn check_options(arguments: &Check, denied: &[(String, Denied)], compiles: bool) -> Result<()> {
    if arguments.replicated_bytes.is_some() && !denied.iter().any(|(_, it)| matches!(it, Denied::Replication)) {
        bail!("--replicated-bytes says which parameters --deny replication counts; add that");
    }
    if arguments.target.is_some() && !compiles {
        bail!(
            "--target says what --compiled-as-emitted and --min-overlap without --chip compile for; add one of them, such \
             as --compiled-as-emitted 1.02"
        );
    }
    if arguments.chip.is_some() && compiles {
        bail!(
            "--chip is for a module that is compiled already, and --compiled-as-emitted compiles one; leave --chip out"
        );
    }
    let limits = [arguments.max_collective_bytes, arguments.max_collectives, arguments.max_memory];
    let of_axes = [&arguments.max_bytes_over, &arguments.max_collectives_over];
    let has_limits = !denied.is_empty()
        || !arguments.min_overlap.is_empty()
        || arguments.compiled_as_emitted.is_some()
        || arguments.lock.is_some();
    if !has_limits && limits.iter().all(Option::is_none) && of_axes.iter().all(|limits| limits.is_empty()) {
        bail!(
            "there is nothing to check: give --max-collective-bytes, --max-collectives, --max-memory, --max-bytes-over, \
             --max-collectives-over, --min-overlap, --compiled-as-emitted, --lock or --deny"
        );
    }
    Ok(())
}

/// Loads the module, and refuses one to which the limits cannot be held.
fn load_one_device(arguments: &Check, needs_rates: bool) -> Result<Loaded> {
    let loaded = load(&arguments.input)?;
    if let Some(warning) = loaded.unpartitioned().filter(|_| !arguments.allow_unpartitioned) {
        bail!(
            "{}: {warning}; limits are for the program of one device, and --allow-unpartitioned holds this one to them",
            loaded.name
        );
    }
    if needs_rates && loaded.module.schedule.is_some() && !arguments.input.path.is_dir() {
        bail!("{}: --min-overlap: the module is compiled already; say for which chip, as --chip v5p", loaded.name);
    }
    for axis in arguments.min_overlap.iter().filter_map(|(axis, _)| axis.as_deref()) {
        overlap::axis(axis, &loaded)?;
    }
    Ok(loaded)
}

/// The limits of bytes, executions and memory.
fn amounts(arguments: &Check, found: &ModuleCollectives, loaded: &Loaded) -> Result<Vec<Verdict>> {
    let mut checks = Vec::new();
    if let Some(most) = arguments.max_collective_bytes {
        checks.push(at_most("--max-collective-bytes ", most, found.moved_bounds(), output::bytes));
    }
    if let Some(most) = arguments.max_collectives {
        checks.push(at_most("--max-collectives ", most, found.execution_bounds(), output::thousands));
    }
    for (axis, most) in &arguments.max_bytes_over {
        let found = over("--max-bytes-over", Some(axis), found, loaded)?.moved_bounds();
        checks.push(at_most(&format!("--max-bytes-over {axis}="), *most, found, output::bytes));
    }
    for (axis, most) in &arguments.max_collectives_over {
        let found = over("--max-collectives-over", Some(axis), found, loaded)?.execution_bounds();
        checks.push(at_most(&format!("--max-collectives-over {axis}="), *most, found, output::thousands));
    }
    if let Some(most) = arguments.max_memory {
        let (peak, upper) = memory::most(loaded)?;
        let mut verdict = at_most("--max-memory ", most, Bounds { least: peak, most: Some(peak) }, output::bytes);
        if let Some(upper) = upper {
            let margin =
                format!(", of the estimate with the margin for {}, as it is not compiled", upper.backend.name());
            verdict.limit.push_str(&margin);
        }
        checks.push(verdict);
    }
    Ok(checks)
}

/// The values of --deny beside kinds of collectives.
const DENIED: [&str; 6] = [
    "replication",
    "collectives-across-branches",
    "collectives-in-loops",
    "collectives-over",
    "collectives-outside-conditionals",
    "unknown-trip-counts",
];

fn parse(text: &str) -> Result<Denied> {
    let (name, axis) = match text.split_once('=') {
        Some((name, axis)) => (name, Some(axis.to_owned())),
        None => (text, None),
    };
    Ok(match (name, axis) {
        ("replication", None) => Denied::Replication,
        ("unknown-trip-counts", None) => Denied::UnknownTripCounts,
        ("collectives-across-branches", None) => Denied::AcrossBranches,
        ("collectives-in-loops", axis) => Denied::InLoops(axis),
        ("collectives-over", Some(axis)) => Denied::Over(axis),
        ("collectives-outside-conditionals", Some(axis)) => Denied::OutsideConditionals(axis),
        (kind, axis) if Communication::named(kind).is_some() => Denied::Kind(kind.to_owned(), axis),
        (name, _) => {
            let kinds = Communication::ALL.map(Communication::name);
            let near = did_you_mean(name, DENIED.into_iter().chain(kinds).filter(|known| *known != name));
            bail!(
                "--deny {text}: expected replication, collectives-in-loops[=AXIS], collectives-over=AXIS, \
                 collectives-outside-conditionals=AXIS, collectives-across-branches, unknown-trip-counts, or a kind ({}) \
                 with or without =AXIS{near}",
                kinds.join(", ")
            )
        }
    })
}

fn at_most(limit: &str, most: u64, found: Bounds, text: fn(u64) -> String) -> Verdict {
    let too_many = |found: u64| format!("{}, which is {} too many", text(found), text(found - most));
    let violation = match found.most {
        Some(found) if found > most => Some(too_many(found)),
        Some(_) => None,
        None if found.least > most => Some(format!("at least {}", too_many(found.least))),
        None => Some(format!("unknown: at least {}, and a loop has an unknown trip count", text(found.least))),
    };
    Verdict {
        limit: format!("{limit}{}", text(most)),
        passed: violation.is_none(),
        violations: violation.into_iter().collect(),
    }
}

/// Checks that enough is hidden; if not, it names the most exposed transfers. A program that sends nothing passes.
fn hidden(line: &ModuleOverlap, axis: Option<&str>, least: f64, loaded: &Loaded) -> Result<Verdict> {
    let (found, exposed) = overlap::over(line, axis, loaded)?;
    let passed = !line.loops_counted_once && found.share().is_none_or(|share| share >= least);
    let over = axis.map_or(String::new(), |axis| format!("{axis}="));
    let sum = format!(
        "{} hidden: {} of {} exposed, {} waited for",
        overlap::share_text(found),
        output::seconds(found.exposed_seconds),
        output::seconds(found.seconds),
        output::seconds(found.waited_seconds)
    );
    let unknown = line.loops_counted_once.then(|| "unknown: a loop has an unknown trip count".to_owned());
    let violations = if passed { Vec::new() } else { unknown.into_iter().chain([sum]).chain(exposed).collect() };
    Ok(Verdict { limit: format!("--min-overlap {over}{least}"), passed, violations })
}

/// Checks that compiled bytes are at most a multiple of the emitted ones, in all and over each combination of axes.
fn as_emitted(most: f64, compared: &Emitted) -> Verdict {
    let broken = |sums: &&Sums| {
        let bytes = sums.emitted.moved_bytes().most.zip(sums.compiled.moved_bytes().most);
        bytes.is_none_or(|(emitted, compiled)| compiled as f64 > most * emitted as f64)
    };
    let describe = |sums: &Sums| {
        let [emitted, compiled] =
            [&sums.emitted, &sums.compiled].map(|side| output::bounds_of_bytes(side.moved_bytes()));
        let ratio = match sums.ratio {
            Some(ratio) => format!(", {ratio:.3} times as much"),
            None => String::new(),
        };
        format!("{}: {emitted} emitted, {compiled} compiled{ratio}", sums.axes)
    };
    let violations: Vec<String> =
        std::iter::once(&compared.all).chain(&compared.by_axes).filter(broken).map(describe).collect();
    Verdict { limit: format!("--compiled-as-emitted {most}"), passed: violations.is_empty(), violations }
}

/// Returns the collectives that cross an axis, if one is named; else all.
fn over(option: &str, axis: Option<&String>, found: &ModuleCollectives, loaded: &Loaded) -> Result<ModuleCollectives> {
    let mut found = found.clone();
    keep_over(&mut found, option, axis.map(std::slice::from_ref).unwrap_or_default(), loaded)?;
    Ok(found)
}

fn violations(
    text: &str,
    denied: &Denied,
    found: &ModuleCollectives,
    loaded: &Loaded,
    least: u64,
) -> Result<Vec<String>> {
    let option = format!("--deny {text}, axis");
    let listed = |axis: Option<&String>, is_wrong: &dyn Fn(&ModuleCollective) -> bool| -> Result<Vec<String>> {
        let found = over(&option, axis, found, loaded)?;
        Ok(found.entries.iter().filter(|entry| is_wrong(entry)).map(describe).collect())
    };
    match denied {
        Denied::Replication => Ok(replication::found(loaded, least)),
        Denied::UnknownTripCounts => listed(None, &|entry| entry.executions == Amount::Unknown),
        Denied::AcrossBranches => Ok(found.entries.iter().filter_map(|entry| apart(found, entry)).collect()),
        Denied::InLoops(axis) => listed(axis.as_ref(), &|entry| entry.loop_depth > 0),
        Denied::Over(axis) => listed(Some(axis), &|_| true),
        Denied::OutsideConditionals(axis) => listed(Some(axis), &|entry| entry.branches.is_empty()),
        Denied::Kind(kind, axis) => listed(axis.as_ref(), &|entry| entry.kind.name() == kind),
    }
}

/// Describes how the devices of a collective come apart, if they may.
fn apart(found: &ModuleCollectives, entry: &ModuleCollective) -> Option<String> {
    let why = match found.together(entry) {
        Together::Yes => return None,
        Together::No(runs, other) => format!("devices {runs} and {other} take different branches"),
        Together::Unknown => {
            "unknown: the branches or loops around it do not follow from the number of the device".to_owned()
        }
    };
    Some(format!("{}: {why}", describe(entry)))
}

fn describe(entry: &ModuleCollective) -> String {
    let bytes = entry.bytes.map_or("?".to_owned(), output::human_bytes);
    let (kind, axes, times) = (entry.kind.name(), axes_text(entry), output::times(entry.executions));
    format!("{kind} over {axes}, {bytes}, {times}: {}", where_from(entry))
}

fn print(check: &Verdict) {
    const SHOWN: usize = 10;
    let state = if check.passed { paint(GOOD, "pass") } else { paint(BAD, "FAIL") };
    line(&format!("{state}  {}", check.limit));
    check.violations.iter().take(SHOWN).for_each(|violation| line(&format!("      {violation}")));
    if check.violations.len() > SHOWN {
        line(&format!("      and {} more", check.violations.len() - SHOWN));
    }
}
