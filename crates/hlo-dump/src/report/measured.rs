//! The times that a profile measured, beside the estimates: by collective and by scope.

use indexmap::IndexMap;
use maud::{Markup, html};
use meshloom_analysis::{Measured, MeasuredInstruction, ModuleCost};
use meshloom_hlo::source::scope;
use meshloom_hlo::xplane::ProfiledCall;
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Page, axes_text};
use crate::input::{Loaded, Profile};
use crate::markup::html::{Cell, section, table};
use crate::output::{line, or_no_scope, plural, seconds, thousands};

/// Measured and estimated seconds of one run of the program on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
struct Times {
    /// The measured seconds.
    measured: f64,
    /// The estimate; `None` for a chip whose rates are not all known.
    estimated: Option<f64>,
    /// The number of events on all devices in all runs.
    events: u64,
}

impl Times {
    fn add(&mut self, other: Times) {
        self.measured += other.measured;
        self.events += other.events;
        self.estimated = match (self.estimated, other.estimated) {
            (Some(a), Some(b)) => Some(a + b),
            (one, other) => one.or(other),
        };
    }
}

pub struct Comparison {
    measured: Measured,
    calls: Vec<Call>,
    instructions: FxHashMap<String, Times>,
    /// The times by scope, the longest first.
    scopes: Vec<(String, Times)>,
}

/// A call of the program.
#[derive(Clone, JsonSchema, Serialize)]
struct Call {
    /// Its name in the profile.
    name: String,
    /// Its seconds.
    seconds: f64,
}

/// The JSON of a profile: seconds of one run of the program on one device.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "MeasuredProfile")]
pub struct Answer {
    /// The number of devices that were measured.
    devices: u64,
    /// The number of runs of the program.
    runs: u64,
    /// The time of one run.
    seconds: f64,
    /// The share of the time of instructions that belong to no instruction of this module.
    unknown_share: f64,
    /// The share of the time that other modules took.
    other_modules_share: f64,
    /// The times of each scope, the longest first: its path and its times.
    scopes: Vec<(String, Times)>,
    /// The calls of the program, one by one.
    calls: Vec<Call>,
}

impl Comparison {
    pub fn of(loaded: &Loaded, profile: &Profile, cost: &ModuleCost) -> Comparison {
        let measured = Measured::of(&loaded.module, &profile.space, profile.program);
        let mut instructions: FxHashMap<String, Times> = FxHashMap::default();
        // An instruction that is called from several places has a cost in each.
        for entry in &cost.instructions {
            let times = Times { estimated: entry.seconds.map(|seconds| seconds.serial), ..Times::default() };
            instructions.entry(entry.name.clone()).or_default().add(times);
        }
        for MeasuredInstruction { name, events, seconds } in &measured.instructions {
            let times = Times { measured: measured.per_run(*seconds), events: *events, estimated: None };
            instructions.entry(name.clone()).or_default().add(times);
        }
        let mut scopes: IndexMap<&str, Times> = IndexMap::new();
        for instruction in loaded.module.computations.iter().flat_map(|computation| &computation.instructions) {
            if let Some(&times) = instructions.get(&instruction.name) {
                scopes.entry(scope(instruction)).or_default().add(times);
            }
        }
        let mut scopes: Vec<_> = scopes.into_iter().map(|(scope, times)| (scope.to_owned(), times)).collect();
        scopes.sort_by(|(_, a), (_, b)| b.measured.total_cmp(&a.measured));
        let is_own = |call: &ProfiledCall<'_>| call.program.is_none() || call.program == profile.program;
        let calls = profile.space.calls().filter(is_own);
        let calls = calls.map(|call| Call { name: call.name.to_owned(), seconds: call.seconds }).collect();
        Comparison { measured, calls, instructions, scopes }
    }

    pub fn answer(&self) -> Answer {
        let Measured { devices, runs, seconds, unknown_seconds, other_seconds, .. } = self.measured;
        Answer {
            devices,
            runs,
            seconds: self.measured.per_run(seconds),
            unknown_share: self.share(unknown_seconds),
            other_modules_share: self.share(other_seconds),
            scopes: self.scopes.clone(),
            calls: self.calls.clone(),
        }
    }

    pub fn print(&self) {
        for text in self.sentences() {
            line(&text);
        }
    }

    /// Returns the share of a time in the time of all instructions in the profile.
    fn share(&self, part: f64) -> f64 {
        let Measured { seconds, unknown_seconds, other_seconds, .. } = self.measured;
        let all = seconds + unknown_seconds + other_seconds;
        if all > 0.0 { part / all } else { 0.0 }
    }

    /// Describes the measurements, and the parts of the profile that belong to no instruction of this module.
    fn sentences(&self) -> Vec<String> {
        let Measured { devices, runs, seconds: own, unknown_seconds, other_seconds, ref instructions } = self.measured;
        let mut said = Vec::new();
        if !self.calls.is_empty() {
            let mean = self.calls.iter().map(|call| call.seconds).sum::<f64>() / self.calls.len() as f64;
            said.push(format!("{} took {} on average.", plural(self.calls.len() as u64, "call"), seconds(mean)));
        }
        if instructions.is_empty() {
            said.push(if self.calls.is_empty() {
                let why = "it is of another program, or of the module before it was compiled";
                format!("No event of the profile names an instruction of this module: {why}.")
            } else {
                "The profile has no events of instructions: the plugin has no profiler.".to_owned()
            });
            return said;
        }
        said.push(format!(
            "Measured: {} on {}; instructions took {} of a device in one run.",
            plural(runs, "run"),
            plural(devices, "device"),
            seconds(self.measured.per_run(own))
        ));
        let shares = [(unknown_seconds, "instructions that this module lacks"), (other_seconds, "other modules")];
        for (part, whose) in shares.into_iter().filter(|(part, _)| *part > 0.0) {
            said.push(format!("{:.1} % of all time of instructions is that of {whose}.", 100.0 * self.share(part)));
        }
        said
    }
}

pub fn render(report: &Page) -> Option<Markup> {
    let comparison = report.measured.as_ref()?;
    let sentences = comparison.sentences();
    let lead = "Times of one run on one device: means over the runs and devices of the profile, beside the estimate for \
                the chip. An asynchronous collective is measured as its start and its done.";
    let body = html! {
        @for sentence in &sentences { p { (sentence) } }
        @if !comparison.measured.instructions.is_empty() {
            h3 { "Collectives" }
            (collectives(report, comparison))
            h3 { "Scopes" }
            (scopes(comparison))
        }
        @if !comparison.calls.is_empty() {
            h3 { "Calls" }
            (calls(comparison))
        }
    };
    Some(section("measured", "Measured", lead, body))
}

fn collectives(report: &Page, comparison: &Comparison) -> Markup {
    // The done of an asynchronous collective has its start as an operand. The operand's id is unique within a
    // computation.
    let mut ends: FxHashMap<&str, Vec<&str>> = FxHashMap::default();
    for computation in &report.loaded.module.computations {
        let names: FxHashMap<i64, &str> = computation.instructions.iter().map(|it| (it.id, it.name.as_str())).collect();
        for done in computation.instructions.iter().filter(|it| it.opcode.ends_with("-done")) {
            if let Some(start) = done.operand_ids.first().and_then(|id| names.get(id)) {
                ends.entry(start).or_default().push(&done.name);
            }
        }
    }
    let mut rows: Vec<_> = report
        .collectives
        .entries
        .iter()
        .map(|entry| {
            let done = ends.get(entry.name.as_str()).into_iter().flatten().copied();
            let mut times = Times::default();
            for name in [entry.name.as_str()].into_iter().chain(done) {
                times.add(comparison.instructions.get(name).copied().unwrap_or_default());
            }
            (entry, times)
        })
        .collect();
    rows.sort_by(|(_, a), (_, b)| b.measured.total_cmp(&a.measured));
    // A collective that is called from several places has an entry for each; events do not tell which one it was.
    let mut seen = rustc_hash::FxHashSet::default();
    rows.retain(|(entry, _)| seen.insert(entry.name.as_str()));
    if rows.is_empty() {
        return html! { p.empty { "This program has no collective." } };
    }
    let longest = rows.first().map_or(0.0, |(_, times)| times.measured);
    let columns = ["kind", "axes", "measured", "estimated", "ratio", "events", "each", "instruction", "scope"];
    table("measured-collective-rows", columns, &rows, |(entry, times)| {
        let axes = axes_text(entry);
        let color = report.axes_color(&axes);
        let [measured, estimated, ratio] = cells(times, longest, &color);
        // This is the time of each event of the collective itself, not of its done.
        let each = comparison.measured.instructions.iter().find(|it| it.name == entry.name);
        let each = each.map(|it| it.seconds / it.events.max(1) as f64);
        [
            Cell::text(entry.kind.name()),
            Cell::text(&axes),
            measured,
            estimated,
            ratio,
            Cell::number(times.events as f64, thousands(times.events)),
            each.map_or(Cell::number(-1.0, ""), |each| Cell::number(each, seconds(each))),
            Cell::code(&entry.name),
            Cell::code(&entry.op_name),
        ]
    })
}

fn calls(comparison: &Comparison) -> Markup {
    let longest = comparison.calls.iter().map(|call| call.seconds).fold(0.0, f64::max);
    table("measured-call-rows", ["call", "measured"], &comparison.calls, |call| {
        let bar = call.seconds / if longest > 0.0 { longest } else { 1.0 };
        [Cell::text(&call.name), Cell::number(call.seconds, seconds(call.seconds)).with_bar(bar, "var(--bar)")]
    })
}

fn scopes(comparison: &Comparison) -> Markup {
    let longest = comparison.scopes.first().map_or(0.0, |(_, times)| times.measured);
    let columns = ["scope", "measured", "estimated", "ratio", "events"];
    table("measured-scope-rows", columns, &comparison.scopes, |(scope, times)| {
        let [measured, estimated, ratio] = cells(times, longest, "var(--bar)");
        let events = Cell::number(times.events as f64, thousands(times.events));
        [Cell::code(or_no_scope(scope)), measured, estimated, ratio, events]
    })
}

/// Returns measured and estimated time, and their ratio. A collective or scope without events was not measured.
fn cells(times: &Times, longest: f64, color: &str) -> [Cell; 3] {
    let nothing = || Cell::number(-1.0, "");
    let measured = match times.events {
        0 => nothing(),
        _ => Cell::number(times.measured, seconds(times.measured))
            .with_bar(times.measured / if longest > 0.0 { longest } else { 1.0 }, color),
    };
    let estimated = times.estimated.map_or_else(nothing, |time| Cell::number(time, seconds(time)));
    let ratio = times.estimated.filter(|&time| time > 0.0 && times.events > 0).map(|time| times.measured / time);
    [measured, estimated, ratio.map_or_else(nothing, |ratio| Cell::number(ratio, format!("{ratio:.1} x")))]
}
