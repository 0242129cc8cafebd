//! A schedule as a trace in Chrome's format (JSON), which ui.perfetto.dev opens.
//!
//! The estimated step is a process whose threads are the lanes of [`ScheduleEvents`]; planes of a measured profile are
//! further processes. Perfetto counts in whole nanoseconds, and drops an event that begins in another one and ends
//! after it. So beginnings and ends are rounded, not lengths, and an end lies within what is around it; the exact time
//! is among the arguments of an event.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use meshloom_analysis::overlap::events::{LeftOut, ScheduleEvent, ScheduleEventKind, ScheduleEvents, ScheduleTransfer};
use meshloom_analysis::{ModuleOverlap, ProfiledLane, profiled_lanes};
use meshloom_hlo::proto::HloInstructionProto;
use meshloom_hlo::source::{Sources, op_name};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::collectives::axes_of;
use crate::input::{Loaded, Profile};
use crate::output::{self, DIM, line, paint, plural, thousands};

/// The most events of the estimate, and of a profile: a trace of about 50 MB.
pub const MOST: usize = 100_000;

/// A trace that was written.
#[derive(JsonSchema, Serialize)]
pub struct Written {
    /// The path of the file.
    output: String,
    /// The bytes of the file.
    bytes: u64,
    /// The number of events of the estimate.
    events: usize,
    /// The number of events of the profile.
    measured_events: usize,
    /// The events of the estimate that are not drawn.
    left_out: LeftOut,
    /// The number of events of the profile that are not drawn.
    measured_left_out: usize,
}

impl Written {
    pub fn print(&self) {
        let measured = match self.measured_events {
            0 => String::new(),
            count => format!(", {} measured", thousands(count as u64)),
        };
        let events = plural(self.events as u64, "event");
        line(&format!("{}: {}, {events}{measured}", self.output, output::bytes(self.bytes)));
        let short = self.left_out.short.events + self.measured_left_out as u64;
        let branches = self.left_out.branches.events;
        if short > 0 {
            line(&paint(DIM, &format!("the {} that take least time are left out", plural(short, "event"))));
        }
        if branches > 0 {
            let events = plural(branches, "event");
            line(&paint(DIM, &format!("{events} of branches are left out: the one that computes least is drawn")));
        }
    }
}

pub fn write(path: &Path, loaded: &Loaded, found: &ModuleOverlap, schedule: &ScheduleEvents) -> Result<Written> {
    let cannot = || format!("cannot write {}", path.display());
    let file = output::create(path)?;
    let mut trace = TraceFile { file: BufWriter::new(file), bytes: 0, is_first: true };
    let (profiled, mut measured_left_out) =
        loaded.profile.as_ref().map(|profile| profiled_lanes(&profile.space, MOST)).unwrap_or_default();
    let mut measured_events: usize = profiled.iter().map(|lane| lane.events.len()).sum();
    let mut write_all = || -> std::io::Result<()> {
        trace.text("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        estimate(&mut trace, loaded, found, schedule)?;
        if let Some(profile) = &loaded.profile {
            let beside = measured(&mut trace, loaded, profile, &profiled)?;
            (measured_events, measured_left_out) = (measured_events - beside, measured_left_out + beside);
        }
        let other = json!({
            "program": loaded.module.name,
            "chip": found.chip,
            "estimate": "at peak rates; a loop is as long as all its iterations, and one of them is drawn",
            "computing_seconds": found.computing_seconds,
            "waiting_seconds": found.waiting_seconds,
            "transfer_seconds": found.total.seconds,
            "left_out": schedule.left_out,
            "measured_events_left_out": measured_left_out,
        });
        trace.text(&format!("\n],\n\"otherData\":{other}}}\n"))?;
        trace.file.flush()
    };
    write_all().with_context(cannot)?;
    Ok(Written {
        output: path.display().to_string(),
        bytes: trace.bytes,
        events: schedule.events.len(),
        measured_events,
        left_out: schedule.left_out,
        measured_left_out,
    })
}

struct TraceFile {
    file: BufWriter<File>,
    bytes: u64,
    is_first: bool,
}

impl TraceFile {
    fn text(&mut self, text: &str) -> std::io::Result<()> {
        self.bytes += text.len() as u64;
        self.file.write_all(text.as_bytes())
    }

    fn event(&mut self, event: &Value) -> std::io::Result<()> {
        let comma = if std::mem::take(&mut self.is_first) { "\n" } else { ",\n" };
        self.text(&format!("{comma}{event}"))
    }

    /// Names a process, or a thread of one, and says where it is shown.
    fn name(&mut self, process: usize, thread: Option<usize>, name: &str) -> std::io::Result<()> {
        let what = if thread.is_some() { "thread" } else { "process" };
        let mut event = json!({ "ph": "M", "pid": process, "name": format!("{what}_name"), "args": { "name": name } });
        let mut order = json!({
            "ph": "M", "pid": process, "name": format!("{what}_sort_index"),
            "args": { "sort_index": thread.unwrap_or(process) },
        });
        if let Some(thread) = thread {
            (event["tid"], order["tid"]) = (thread.into(), thread.into());
        }
        self.event(&event)?;
        self.event(&order)
    }

    fn complete(
        &mut self,
        (process, thread): (usize, usize),
        (begin, end): (i64, i64),
        (name, category): (&str, &str),
        arguments: &Value,
    ) -> std::io::Result<()> {
        self.event(&json!({
            "ph": "X", "pid": process, "tid": thread, "ts": microseconds(begin), "dur": microseconds(end - begin),
            "name": name, "cat": category, "args": arguments,
        }))
    }
}

/// Returns microseconds that are the same nanoseconds again, also for a reader that multiplies and cuts off.
fn microseconds(nanoseconds: i64) -> f64 {
    let near = nanoseconds as f64 / 1000.0;
    if ((near * 1000.0) as i64) < nanoseconds { near.next_up() } else { near }
}

/// The events of a lane on their way to whole nanoseconds.
#[derive(Default)]
struct Rounding {
    /// The events around the next one, the outermost first: their ends, exact and rounded.
    around: Vec<(f64, i64)>,
    /// The end of the last event that is over.
    last: i64,
}

impl Rounding {
    /// Returns beginning and end in nanoseconds. Events come in the order of their beginnings; `slack` is a time that
    /// is an error of sums.
    fn round(&mut self, start: f64, seconds: f64, slack: f64) -> (i64, i64) {
        let nanoseconds = |time: f64| (time * 1e9).round() as i64;
        while let Some((_, end)) = self.around.pop_if(|(end, _)| start >= *end - slack) {
            self.last = self.last.max(end);
        }
        let most = self.around.last().map_or(i64::MAX, |&(_, end)| end);
        let begin = nanoseconds(start).max(self.last).min(most);
        let end = nanoseconds(start + seconds).clamp(begin, most);
        self.around.push((start + seconds, end));
        (begin, end)
    }
}

fn estimate(
    trace: &mut TraceFile,
    loaded: &Loaded,
    found: &ModuleOverlap,
    schedule: &ScheduleEvents,
) -> std::io::Result<()> {
    const PROCESS: usize = 1;
    trace.name(PROCESS, None, &format!("{}, estimated on {}", loaded.module.name, found.chip))?;
    for (lane, name) in schedule.lanes.iter().enumerate() {
        trace.name(PROCESS, Some(lane + 1), name)?;
    }
    let mut lanes: Vec<Rounding> = schedule.lanes.iter().map(|_| Rounding::default()).collect();
    let slack = 1e-10 * (found.computing_seconds + found.waiting_seconds);
    for event in &schedule.events {
        let (name, category, arguments) = described(event, found);
        for &lane in &event.lanes {
            let time = lanes[lane].round(event.start, event.seconds, slack);
            trace.complete((PROCESS, lane + 1), time, (&name, category), &arguments)?;
        }
    }
    Ok(())
}

/// Returns the name, the category and the arguments of an event.
fn described(event: &ScheduleEvent, found: &ModuleOverlap) -> (String, &'static str, Value) {
    let mut arguments = serde_json::Map::new();
    let mut add = |name: &str, value: Value| {
        if !value.is_null() && value.as_str() != Some("") {
            arguments.insert(name.to_owned(), value);
        }
    };
    add("seconds", event.seconds.into());
    // An event stands for this many executions.
    add("times", event.times.into());
    let of_transfer = |transfer: ScheduleTransfer| match transfer {
        ScheduleTransfer::Collective(number) => {
            found.transfers.get(number).map(|it| (it.collective.kind.name(), axes_of(&it.collective)))
        }
        ScheduleTransfer::HostCopy(number) => found.host_copies.get(number).map(|it| ("copy", it.direction.to_owned())),
    };
    let times = |count: u64| if count == 1 { "once".to_owned() } else { format!("{} times", thousands(count)) };
    let (name, category) = match event.kind {
        ScheduleEventKind::Compute => (event.name.clone(), "compute"),
        ScheduleEventKind::Call(Some(count)) => {
            add("iterations", count.into());
            (format!("{}, {}", event.name, times(count)), "loop")
        }
        ScheduleEventKind::Call(None) if event.op == "while" => (format!("{}, counted once", event.name), "loop"),
        ScheduleEventKind::Call(None) => (event.name.clone(), "call"),
        ScheduleEventKind::Iteration(count) => {
            add("iterations", count.into());
            let one = if count == 1 { String::new() } else { format!(", one of {}", thousands(count)) };
            (format!("{}{one}", event.name), "iteration")
        }
        ScheduleEventKind::Transfer(transfer, exposed) => {
            let (kind, axes) = of_transfer(transfer).unwrap_or_default();
            add("axes", axes.clone().into());
            add("kind", kind.into());
            add("exposed_seconds", exposed.into());
            add("lanes", event.lanes.len().into());
            (format!("{} ({kind} over {axes})", event.name), "transfer")
        }
        ScheduleEventKind::Wait(transfer) => {
            let (kind, axes) = of_transfer(transfer).unwrap_or_default();
            add("axes", axes.clone().into());
            add("kind", kind.into());
            (format!("for {}", event.name), "wait")
        }
    };
    add("instruction", event.name.clone().into());
    add("op", event.op.clone().into());
    add("op_name", event.op_name.clone().into());
    add("source", event.source.clone().into());
    add("shape", event.shape.clone().into());
    add("bytes", event.bytes.into());
    add("operations", event.flops.filter(|&flops| flops > 0).into());
    (name, category, Value::Object(arguments))
}

/// Writes what a profile measured, and returns the number of events that have no room: more lie side by side in a line
/// than anybody draws.
fn measured(
    trace: &mut TraceFile,
    loaded: &Loaded,
    profile: &Profile,
    lanes: &[ProfiledLane<'_>],
) -> std::io::Result<usize> {
    const MOST_ROWS: usize = 32;
    let mut beside = 0;
    let instructions = || loaded.module.computations.iter().flat_map(|computation| &computation.instructions);
    let known: FxHashMap<&str, &HloInstructionProto> = instructions().map(|it| (it.name.as_str(), it)).collect();
    let sources = Sources::of(&loaded.module);
    let (mut process, mut thread, mut plane) = (1, 0, None);
    for lane in lanes {
        if plane != Some(lane.plane) {
            (process, thread, plane) = (process + 1, 0, Some(lane.plane));
            let host = profile.space.hostnames.first().map(|host| format!(" of {host}")).unwrap_or_default();
            trace.name(process, None, &format!("measured: {}{host}", lane.plane))?;
        }
        // Events of a line that are under way at the same time are drawn in several lanes.
        let mut rows: Vec<(usize, Vec<i64>)> = Vec::new();
        for event in &lane.events {
            let begin = (event.start / 1000) as i64;
            let end = ((event.start + i128::from(event.picoseconds)) / 1000) as i64;
            let fits = |(_, around): &mut (usize, Vec<i64>)| {
                while around.pop_if(|it| *it <= begin).is_some() {}
                around.last().is_none_or(|&around| end <= around)
            };
            let row = match rows.iter_mut().position(fits) {
                Some(row) => row,
                None if rows.len() == MOST_ROWS => {
                    beside += 1;
                    continue;
                }
                None => {
                    thread += 1;
                    let more = if rows.is_empty() { String::new() } else { format!(", {}", rows.len() + 1) };
                    trace.name(process, Some(thread), &format!("{}{more}", lane.line))?;
                    rows.push((thread, Vec::new()));
                    rows.len() - 1
                }
            };
            rows[row].1.push(end);
            let instruction = known.get(event.name);
            let arguments = json!({
                "seconds": event.picoseconds as f64 * 1e-12,
                "op_name": instruction.map(|it| op_name(it)),
                "source": instruction.and_then(|it| sources.line(it)).map(|line| line.to_string()),
            });
            trace.complete((process, rows[row].0), (begin, end), (event.name, "measured"), &arguments)?;
        }
    }
    Ok(beside)
}
