//! The time of each instruction of a module, as a profile measured it.
//!
//! Events are matched by the instruction's name. The profile of a compiled module has these names, whichever profiler
//! recorded it:
//!
//! - of a TPU, the plane of each device has a line `XLA Ops`, whose events are named by the instruction or its text;
//! - of an NVIDIA GPU, the lines are streams, and a kernel has the instruction in the stat `hlo_op`;
//! - of CPU devices, the lines are the host's threads; events have the stats `hlo_op` and `device_ordinal`.
//!
//! An event that names its module (`hlo_module`, and `program_id` where programs are numbered) is matched in that
//! module alone. Loops, calls and conditionals contain the events of the instructions they run, so their own are left
//! out. An asynchronous instruction is measured as its start and its done: the times in which the device was busy with
//! it or waited for it. Lines for instructions in flight (`Async XLA Ops`) are left out.

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::walk::Walk;
use crate::Amount;
use meshloom_hlo::proto::HloModuleProto;
use meshloom_hlo::sort;
use meshloom_hlo::xplane::{PROGRAM_ID_STAT, XEvent, XEventMetadata, XLine, XPlane, XSpace};

/// The time that an instruction took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredInstruction {
    /// Its name.
    pub name: String,
    /// The number of its events, on all devices and in all runs.
    pub events: u64,
    /// The time of these events, all added up.
    pub seconds: f64,
}

/// The measurements of a module in a profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The instructions that have events, in the order of the module.
    pub instructions: Vec<MeasuredInstruction>,
    /// The number of devices that have events.
    pub devices: u64,
    /// The number of times that each device ran the module while it was recorded: the number of run ids (`run_id`) of
    /// the events, or else the number that most instructions speak for.
    pub runs: u64,
    /// The time of all events of instructions of this module, added up over devices and runs.
    pub seconds: f64,
    /// The time of all events of instructions that this module lacks, though no other module is named.
    pub unknown_seconds: f64,
    /// The time of all events of other modules' instructions.
    pub other_seconds: f64,
}

/// An event of an instruction.
struct OpEvent<'a> {
    plane: usize,
    device: Option<i64>,
    run: Option<i64>,
    module: Option<&'a str>,
    program: Option<i64>,
    op: &'a str,
    picoseconds: i64,
}

impl Measured {
    /// Returns the measurements of a module. `program` is its number in the profile, if that is known.
    pub fn of(module: &HloModuleProto, profile: &XSpace, program: Option<i64>) -> Measured {
        let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
        let mut sums: FxHashMap<&str, MeasuredInstruction> = FxHashMap::default();
        let opcodes: FxHashMap<&str, &str> = instructions().map(|it| (it.name.as_str(), it.opcode.as_str())).collect();
        let (mut devices, mut runs) = (FxHashSet::default(), FxHashSet::default());
        let [mut own, mut unknown, mut other] = [0i64; 3];
        for event in op_events(profile) {
            let is_other = match (program, event.program) {
                (Some(own), Some(of_event)) => own != of_event,
                _ => event.module.is_some_and(|name| name != module.name),
            };
            let sum = match opcodes.get(event.op) {
                _ if is_other => &mut other,
                None => &mut unknown,
                Some(&("while" | "conditional" | "call")) => continue,
                Some(_) => {
                    let empty = || MeasuredInstruction { name: event.op.to_owned(), events: 0, seconds: 0.0 };
                    let sum = sums.entry(event.op).or_insert_with(empty);
                    sum.events += 1;
                    sum.seconds += seconds(event.picoseconds);
                    devices.insert((event.plane, event.device));
                    runs.extend(event.run);
                    &mut own
                }
            };
            *sum = sum.saturating_add(event.picoseconds);
        }
        let instructions: Vec<MeasuredInstruction> =
            instructions().filter_map(|instruction| sums.remove(instruction.name.as_str())).collect();
        let devices = devices.len() as u64;
        let runs = match runs.len() as u64 {
            0 => most_common_runs(module, &instructions, devices),
            runs => runs,
        };
        let [own, unknown, other] = [own, unknown, other].map(seconds);
        Measured { instructions, devices, runs, seconds: own, unknown_seconds: unknown, other_seconds: other }
    }

    /// Converts a time of all devices and runs to the time of one run on one device; 0 if there was no run.
    pub fn per_run(&self, seconds: f64) -> f64 {
        seconds / (self.devices * self.runs).max(1) as f64
    }
}

/// Returns the program that took most of a profile's time: its name and, where programs are numbered, its number.
pub fn longest_program(profile: &XSpace) -> Option<(&str, Option<i64>)> {
    let mut sums: FxHashMap<(&str, Option<i64>), i64> = FxHashMap::default();
    for event in op_events(profile) {
        if let Some(module) = event.module {
            let sum = sums.entry((module, event.program)).or_default();
            *sum = sum.saturating_add(event.picoseconds);
        }
    }
    sums.into_iter().max_by_key(|&(program, sum)| (sum, program)).map(|(program, _)| program)
}

/// A line of a profile with the events that tell of instructions, or of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledLane<'a> {
    /// The name of its plane: a device, or the host.
    pub plane: &'a str,
    /// The name of the line: a kind of event, a stream, a thread.
    pub line: &'a str,
    /// The events in the order of time.
    pub events: Vec<ProfiledEvent<'a>>,
}

/// An event of a profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfiledEvent<'a> {
    /// The name of its instruction, or its own.
    pub name: &'a str,
    /// Picoseconds from the first event of all lanes.
    pub start: i128,
    /// Picoseconds that it took.
    pub picoseconds: i64,
}

/// Returns the lines of a profile for a drawing: those of devices, and of the host the events that name an instruction.
/// At most `most` events are in them, the longest, and the number of the others is returned too.
pub fn profiled_lanes(profile: &XSpace, most: usize) -> (Vec<ProfiledLane<'_>>, usize) {
    let mut lanes = Vec::new();
    for plane in &profile.planes {
        let (op, is_device) = (plane.stat_id("hlo_op"), plane.name.starts_with("/device:"));
        for line in &plane.lines {
            let event = |event| {
                let named = plane.stat(event, op).and_then(|stat| plane.text(stat));
                let name = named.or_else(|| if is_device { name(plane, event) } else { None })?;
                let start = i128::from(line.timestamp_ns) * 1000 + i128::from(event.offset_ps);
                Some(ProfiledEvent { name, start, picoseconds: event.duration_ps.max(0) })
            };
            let events: Vec<ProfiledEvent<'_>> = line.events.iter().filter_map(event).collect();
            if !events.is_empty() {
                lanes.push(ProfiledLane { plane: &plane.name, line: &line.name, events });
            }
        }
    }
    let mut lengths: Vec<i64> = lanes.iter().flat_map(|lane| &lane.events).map(|event| event.picoseconds).collect();
    let all = lengths.len();
    if all > most {
        sort::by_key(&mut lengths, |&length| std::cmp::Reverse(length));
        let (shortest, mut left) = (lengths[most], most);
        let mut keep = |event: &ProfiledEvent<'_>| {
            let is_kept = event.picoseconds > shortest && left > 0;
            left -= usize::from(is_kept);
            is_kept
        };
        lanes.iter_mut().for_each(|lane| lane.events.retain(&mut keep));
        lanes.retain(|lane| !lane.events.is_empty());
    }
    let first = lanes.iter().flat_map(|lane| &lane.events).map(|event| event.start).min().unwrap_or(0);
    for lane in &mut lanes {
        lane.events.iter_mut().for_each(|event| event.start -= first);
        // One that contains others comes before them.
        sort::by_key(&mut lane.events, |event| (event.start, std::cmp::Reverse(event.picoseconds)));
    }
    let kept: usize = lanes.iter().map(|lane| lane.events.len()).sum();
    (lanes, all - kept)
}

/// Returns the number of runs that most instructions agree on: the number of an instruction's events over its
/// executions in one run.
fn most_common_runs(module: &HloModuleProto, measured: &[MeasuredInstruction], devices: u64) -> u64 {
    let mut executions: FxHashMap<&str, Amount> = FxHashMap::default();
    let walk = Walk::of(module);
    for step in walk.steps() {
        let sum = executions.entry(&step.instruction.name).or_insert(Amount::Exactly(0));
        *sum = sum.plus(step.place.executions);
    }
    let mut votes: FxHashMap<u64, usize> = FxHashMap::default();
    for instruction in measured {
        if let Some(&Amount::Exactly(executions @ 1..)) = executions.get(instruction.name.as_str()) {
            let runs = instruction.events / executions.saturating_mul(devices).max(1);
            *votes.entry(runs.max(1)).or_default() += 1;
        }
    }
    votes.into_iter().max_by_key(|&(runs, votes)| (votes, runs)).map_or(1, |(runs, _)| runs)
}

/// Returns the events of a profile that belong to instructions, of any module.
fn op_events(profile: &XSpace) -> impl Iterator<Item = OpEvent<'_>> {
    profile.planes.iter().enumerate().flat_map(|(number, plane)| {
        let ids = ["hlo_op", "hlo_module", PROGRAM_ID_STAT, "device_ordinal", "run_id"].map(|name| plane.stat_id(name));
        let [op, module, program, device, run] = ids;
        // The line repeats what other lines of its plane have.
        let has_ops = plane.name.starts_with("/device:") && plane.lines.iter().any(is_op_line);
        let lines = plane.lines.iter().filter(move |line| !has_ops || is_op_line(line));
        lines.flat_map(|line| &line.events).filter_map(move |event| {
            let number_of = |id| plane.stat(event, id).and_then(|stat| stat.number());
            let text_of = |id| plane.stat(event, id).and_then(|stat| plane.text(stat));
            let named = || if has_ops { name(plane, event) } else { None };
            Some(OpEvent {
                plane: number,
                device: number_of(device),
                run: number_of(run),
                module: text_of(module),
                program: number_of(program),
                op: text_of(op).or_else(named)?,
                picoseconds: event.duration_ps.max(0),
            })
        })
    })
}

fn is_op_line(line: &XLine) -> bool {
    line.name == "XLA Ops"
}

/// Returns the instruction's name, for an event that is named by the instruction or its text: `%fusion.1 = f32[8]{0}
/// fusion(...)`.
fn name<'a>(plane: &'a XPlane, event: &XEvent) -> Option<&'a str> {
    let XEventMetadata { name, display_name, .. } = plane.event_metadata.get(&event.metadata_id)?;
    let text = if display_name.is_empty() { name } else { display_name };
    Some(text.split(" = ").next().unwrap_or(text).trim_start_matches('%'))
}

fn seconds(picoseconds: i64) -> f64 {
    picoseconds as f64 * 1e-12
}
