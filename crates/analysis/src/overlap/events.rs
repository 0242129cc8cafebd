//! The time line of a schedule as events in lanes, to be drawn.
//!
//! A loop is folded: its event is as long as all its iterations, and one iteration is drawn in it, which stands for
//! the others. `times` says how many executions an event stands for, so the sums over events are those of
//! [`ModuleOverlap`](super::ModuleOverlap), less what [`ScheduleEvents::left_out`] says.

use meshloom_hlo::proto::HloInstructionProto;
use meshloom_hlo::sort;
use meshloom_hlo::source::{Sources, op_name};
use meshloom_hlo::text::{Layouts, print_shape};
use serde::Serialize;

use super::wiring::Wiring;
use crate::cost::Timer;
use crate::walk::Walk;

/// More events are not kept while a schedule is followed.
const MOST_RECORDED: usize = 1 << 19;

/// The lane of what a device computes.
pub const COMPUTE_LANE: usize = 0;

/// The lane of the times in which it waits.
pub const WAITING_LANE: usize = 1;

/// A schedule as events in lanes. In a lane, events follow one another or lie one within the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScheduleEvents {
    /// The names of the lanes: what computes, what waits, then the links.
    pub lanes: Vec<String>,
    /// The events in the order of time; one that contains others comes before them.
    pub events: Vec<ScheduleEvent>,
    /// The events that are not drawn.
    pub left_out: LeftOut,
}

/// A stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleEvent {
    /// The lanes that it is drawn in: several for a transfer over several links.
    pub lanes: Vec<usize>,
    /// The seconds from the start of the step to its beginning.
    pub start: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// The number of executions that it stands for.
    pub times: f64,
    /// The content.
    pub kind: ScheduleEventKind,
    /// The name of the instruction; of an iteration, that of its computation.
    pub name: String,
    /// The opcode.
    pub op: String,
    /// The scopes and the op of its metadata.
    pub op_name: String,
    /// The line of its source.
    pub source: Option<String>,
    /// The shape of its result.
    pub shape: String,
    /// The bytes that it reads and writes, or sends.
    pub bytes: Option<u64>,
    /// Its operations.
    pub flops: Option<u64>,
}

/// The content of a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScheduleEventKind {
    /// An instruction computes.
    Compute,
    /// A call, a conditional or a loop contains what it runs; a loop has the number of its iterations.
    Call(Option<u64>),
    /// An iteration, or the condition, of a loop, which stands for this many.
    Iteration(u64),
    /// A transfer; the device waits in so many of its seconds.
    Transfer(ScheduleTransfer, f64),
    /// The device waits for a transfer.
    Wait(ScheduleTransfer),
}

/// A transfer of a [`ModuleOverlap`](super::ModuleOverlap).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleTransfer {
    /// By its number among `transfers`.
    Collective(usize),
    /// By its number among `host_copies`.
    HostCopy(usize),
}

/// Events that are not drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// The shortest events, beyond the number that is drawn.
    pub short: LeftOutEvents,
    /// The events in branches that do not compute least.
    pub branches: LeftOutEvents,
}

/// The number and the times of events that are not drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftOutEvents {
    /// Their number.
    pub events: u64,
    /// The time that they compute, in all executions, in seconds.
    pub computing_seconds: f64,
    /// The time of the transfers, in all executions, in seconds.
    pub transfer_seconds: f64,
    /// The time in which the device waits, in all executions, in seconds.
    pub waiting_seconds: f64,
}

impl LeftOutEvents {
    fn add(&mut self, event: &Recorded) {
        self.events += 1;
        let seconds = event.times * (event.end - event.start);
        match event.content {
            Content::Instruction { holds: false, .. } => self.computing_seconds += seconds,
            Content::Transfer { .. } => self.transfer_seconds += seconds,
            Content::Wait { .. } => self.waiting_seconds += seconds,
            Content::Instruction { .. } | Content::Iteration { .. } => {}
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Content {
    /// An instruction, by place and position, and whether events lie in it.
    Instruction {
        place: usize,
        position: usize,
        holds: bool,
    },
    /// One of so many iterations of a place.
    Iteration {
        body: usize,
        count: u64,
    },
    Transfer {
        entry: usize,
        exposed: f64,
    },
    Wait {
        entry: usize,
    },
}

struct Recorded {
    start: f64,
    end: f64,
    times: f64,
    content: Content,
}

/// Notes the events of a schedule that is followed.
#[derive(Default)]
pub(super) struct Recorder {
    events: Vec<Recorded>,
    left_out: LeftOut,
}

impl Recorder {
    /// Adds an event, and returns its number, by which [`Recorder::close`] sets its end.
    pub(super) fn add(&mut self, (start, end): (f64, f64), times: f64, content: Content) -> Option<usize> {
        let event = Recorded { start, end, times, content };
        if self.is_full() {
            self.left_out.short.add(&event);
            return None;
        }
        self.events.push(event);
        Some(self.events.len() - 1)
    }

    pub(super) fn close(&mut self, number: Option<usize>, end: f64) {
        if let Some(event) = number.and_then(|number| self.events.get_mut(number)) {
            event.end = end;
        }
    }

    /// Whether further events are only counted.
    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= MOST_RECORDED
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Moves the events of a branch, which are those from a number on, into `kept` if it is the one that counts.
    pub(super) fn end_branch(&mut self, from: usize, counts: bool, kept: &mut BranchEvents) {
        let mut dropped = self.events.split_off(from.min(self.events.len()));
        if counts {
            std::mem::swap(&mut dropped, &mut kept.0);
        }
        dropped.iter().for_each(|event| self.left_out.branches.add(event));
    }

    pub(super) fn take(&mut self, kept: BranchEvents) {
        self.events.extend(kept.0);
    }

    /// Returns at most `most` events: transfers and waits first, then the longest.
    pub(super) fn finish(mut self, most: usize, names: &EventNames<'_, '_>) -> ScheduleEvents {
        let rank = |event: &Recorded| {
            let computes = matches!(event.content, Content::Instruction { .. } | Content::Iteration { .. });
            (computes, event.end - event.start)
        };
        if self.events.len() > most {
            let mut order: Vec<usize> = (0..self.events.len()).collect();
            sort::by(&mut order, |&a, &b| {
                let (a, b) = (rank(&self.events[a]), rank(&self.events[b]));
                a.0.cmp(&b.0).then(b.1.total_cmp(&a.1))
            });
            let mut is_kept = vec![false; self.events.len()];
            order.into_iter().take(most).for_each(|number| is_kept[number] = true);
            let left_out = &mut self.left_out.short;
            let mut kept = is_kept.into_iter();
            self.events.retain(|event| {
                let keep = kept.next() == Some(true);
                if !keep {
                    left_out.add(event);
                }
                keep
            });
        }
        // If two begin at once, the one that was added first contains the other.
        sort::by(&mut self.events, |a, b| a.start.total_cmp(&b.start));
        let (links, lane_of_link) = names.wires.lanes();
        let lanes = ["compute", "waits"].map(str::to_owned).into_iter().chain(links).collect();
        let events = self.events.iter().map(|event| names.event(event, &lane_of_link)).collect();
        ScheduleEvents { lanes, events, left_out: self.left_out }
    }
}

/// The events of the branch that counts among those that were followed.
#[derive(Default)]
pub(super) struct BranchEvents(Vec<Recorded>);

/// Everything that events are described by.
pub(super) struct EventNames<'n, 'a> {
    pub(super) walk: &'n Walk<'a>,
    pub(super) timer: &'n Timer<'n, 'a>,
    pub(super) sources: Sources<'a>,
    pub(super) wires: &'n Wiring,
    /// The name that each transfer has elsewhere, the instruction that starts it, and its bytes.
    pub(super) transfers: &'n [(ScheduleTransfer, Option<&'a HloInstructionProto>, Option<u64>)],
}

impl EventNames<'_, '_> {
    fn event(&self, recorded: &Recorded, lane_of_link: &[usize]) -> ScheduleEvent {
        let &Recorded { start, end, times, content } = recorded;
        let compute = vec![COMPUTE_LANE];
        let (lanes, kind, instruction, bytes) = match content {
            Content::Instruction { place, position, holds } => {
                let instruction = &self.walk.places()[place].computation.instructions[position];
                let body = self.walk.callees_at(place, position).find_map(|callee| self.walk.trip_count(callee));
                let kind = if holds { ScheduleEventKind::Call(body) } else { ScheduleEventKind::Compute };
                (compute, kind, Some(instruction), None)
            }
            Content::Iteration { count, .. } => (compute, ScheduleEventKind::Iteration(count), None, None),
            Content::Transfer { entry, exposed } => {
                let (transfer, instruction, bytes) = self.transfers[entry];
                let links = self.wires.times[entry].0.iter();
                let mut lanes: Vec<usize> = links.map(|&link| WAITING_LANE + 1 + lane_of_link[link]).collect();
                lanes.dedup();
                (lanes, ScheduleEventKind::Transfer(transfer, exposed), instruction, bytes)
            }
            Content::Wait { entry } => {
                let (transfer, instruction, bytes) = self.transfers[entry];
                (vec![WAITING_LANE], ScheduleEventKind::Wait(transfer), instruction, bytes)
            }
        };
        let mut event = ScheduleEvent {
            lanes,
            start,
            seconds: end - start,
            times,
            kind,
            name: String::new(),
            op: String::new(),
            op_name: String::new(),
            source: None,
            shape: String::new(),
            bytes,
            flops: None,
        };
        match (instruction, content) {
            (Some(instruction), _) => {
                event.name = instruction.name.clone();
                event.op = instruction.opcode.clone();
                event.op_name = op_name(instruction).to_owned();
                event.source = self.sources.line(instruction).map(|line| line.to_string());
                event.shape =
                    instruction.shape.as_ref().map(|shape| print_shape(shape, Layouts::None)).unwrap_or_default();
            }
            (None, Content::Iteration { body, .. }) => event.name = self.walk.places()[body].computation.name.clone(),
            _ => {}
        }
        if let Content::Instruction { place, position, holds: false } = content {
            let place = &self.walk.places()[place];
            let work = self.timer.work(place, &place.computation.instructions[position]);
            (event.bytes, event.flops) = (Some(work.bytes()), Some(work.flops));
        }
        event
    }
}
