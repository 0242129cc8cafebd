//! One step by estimated time: instructions in the order of the module, one after the other, except asynchronous pairs.
//!
//! A synchronous collective starts when the device reaches it and its links are free, and the device waits for its end.
//! With an asynchronous pair, the device continues after the start and waits at the end. The body of a loop is a
//! schedule of its own, stretched by the number of its iterations. Other devices are not modelled: they do the same.

use meshloom_analysis::cost::InstructionCost;
use meshloom_analysis::{ModuleCollective, ModuleCollectives, ModuleCost, Place, Via, Walk};
use meshloom_hlo::proto::HloInstructionProto;
use meshloom_hlo::source::op_name;
use rustc_hash::FxHashMap;

use super::axes_text;
use super::lanes::{Lane, LoopSpan, Span, StepLanes};
use crate::output::{human_bytes, human_count, seconds};

/// More levels of loops and calls than any compiler makes.
const DEEPEST: usize = 64;

pub fn lanes(walk: &Walk<'_>, cost: &ModuleCost, collectives: &ModuleCollectives) -> Option<StepLanes> {
    cost.roofline.as_ref()?;
    let planner = Planner::of(walk, cost, collectives);
    let plan = planner.place(0, 0);
    let mut lanes = vec![Lane { name: "compute".into(), ..Lane::default() }];
    lanes.extend(planner.axes.iter().map(|name| Lane { name: name.clone(), sends: true, ..Lane::default() }));
    for (lane, span) in plan.spans {
        lanes[lane].busy += span.end - span.start;
        lanes[lane].spans.push(span);
    }
    let exposed = (plan.seconds - lanes[0].busy).max(0.0);
    Some(StepLanes { seconds: plan.seconds, lanes, loops: plan.loops, exposed })
}

/// A schedule of a computation, from 0.
#[derive(Default)]
struct StepSchedule {
    seconds: f64,
    /// The spans by number of their lane.
    spans: Vec<(usize, Span)>,
    loops: Vec<LoopSpan>,
}

/// The names of a computation and of an instruction in it.
type Name<'a> = (&'a str, &'a str);

struct Planner<'a> {
    walk: &'a Walk<'a>,
    costs: FxHashMap<Name<'a>, &'a InstructionCost>,
    collectives: FxHashMap<Name<'a>, (&'a ModuleCollective, usize)>,
    /// The axes of each lane except the first.
    axes: Vec<String>,
}

impl<'a> Planner<'a> {
    fn of(walk: &'a Walk<'a>, cost: &'a ModuleCost, collectives: &'a ModuleCollectives) -> Planner<'a> {
        let mut axes: Vec<String> = Vec::new();
        let mut known = FxHashMap::default();
        for entry in &collectives.entries {
            let name = axes_text(entry);
            let lane = axes.iter().position(|axes| *axes == name).unwrap_or_else(|| {
                axes.push(name);
                axes.len() - 1
            });
            known.insert((entry.computation.as_str(), entry.name.as_str()), (entry, lane + 1));
        }
        let costs = cost.instructions.iter().map(|it| ((it.computation.as_str(), it.name.as_str()), it)).collect();
        Planner { walk, costs, collectives: known, axes }
    }

    /// Returns the schedule of one execution of a place.
    fn place(&self, number: usize, depth: usize) -> StepSchedule {
        let places = self.walk.places();
        let (Some(place), true) = (places.get(number), depth < DEEPEST) else { return StepSchedule::default() };
        let mut callees: FxHashMap<i64, Vec<usize>> = FxHashMap::default();
        for callee in place.callees.clone() {
            let caller = places.get(callee).and_then(|callee| callee.caller);
            callees.entry(caller.map_or(-1, |caller| caller.instruction.id)).or_default().push(callee);
        }
        let executions = place.assumed_executions.max(1) as f64;
        let mut clock = Clock { links: vec![0.0; self.axes.len() + 1], ..Clock::default() };
        for instruction in &place.computation.instructions {
            let name = (place.computation.name.as_str(), instruction.name.as_str());
            let called = callees.get(&instruction.id).map(Vec::as_slice).unwrap_or_default();
            self.instruction(&mut clock, name, instruction, called, executions, depth);
        }
        let last = clock.links.iter().copied().fold(clock.now, f64::max);
        StepSchedule { seconds: last, ..clock.plan }
    }

    fn instruction(
        &self,
        clock: &mut Clock,
        name: Name<'_>,
        instruction: &HloInstructionProto,
        called: &[usize],
        executions: f64,
        depth: usize,
    ) {
        let opcode = instruction.opcode.as_str();
        if let Some((entry, lane)) = self.collectives.get(&name) {
            let end = clock.send(*lane, self.span(name, entry, executions));
            clock.wait_or_remember(instruction.id, end, entry.asynchronous);
            return;
        }
        if opcode.ends_with("-done") || opcode.ends_with("-update") {
            clock.finish(instruction, opcode.ends_with("-done"));
            return;
        }
        match opcode {
            "while" => self.fold_loop(clock, instruction, called, depth),
            "conditional" => {
                let places = self.walk.places();
                let is_decided = |callee: &usize| places.get(*callee).is_some_and(Place::is_decided);
                if called.iter().all(is_decided) {
                    // Each branch takes part with its share of the executions.
                    for &callee in called {
                        let times = places[callee].assumed_executions as f64 / executions;
                        clock.append(self.place(callee, depth + 1), times, 0);
                    }
                    return;
                }
                // If the branch is not known, the longest one counts.
                let plans = called.iter().map(|&callee| self.place(callee, depth + 1));
                clock.append(plans.max_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap_or_default(), 1.0, 0);
            }
            "call" => called.iter().for_each(|&callee| clock.append(self.place(callee, depth + 1), 1.0, 0)),
            _ => {
                let inside = called.iter().filter_map(|&callee| self.walk.places().get(callee));
                let sent = inside.flat_map(|place| {
                    place.computation.instructions.iter().filter_map(|inner| {
                        let name = (place.computation.name.as_str(), inner.name.as_str());
                        self.collectives.get(&name).map(|(entry, lane)| (*lane, self.span(name, entry, executions)))
                    })
                });
                let mut end = None;
                for (lane, span) in sent.collect::<Vec<_>>() {
                    end = Some(clock.send(lane, span).max(end.unwrap_or(0.0)));
                }
                if let Some(end) = end {
                    clock.wait_or_remember(instruction.id, end, opcode == "async-start");
                }
                if let Some(cost) = self.costs.get(&name).filter(|_| !opcode.ends_with("-start")) {
                    clock.compute(compute_span(cost, executions));
                }
            }
        }
    }

    /// Adds a loop: its body and condition, as wide as all iterations.
    fn fold_loop(&self, clock: &mut Clock, instruction: &HloInstructionProto, called: &[usize], depth: usize) {
        let via =
            |callee: usize| self.walk.places().get(callee).and_then(|place| place.caller).map(|caller| caller.via);
        let Some(&body) = called.iter().find(|&&callee| via(callee) == Some(Via::LoopBody)) else { return };
        let iterations = self.walk.trip_count(body);
        let plan = self.place(body, depth + 1);
        let times = iterations.unwrap_or(1) as f64;
        let (start, end) = (clock.now, clock.now + plan.seconds * times);
        let (name, path) = (instruction.name.clone(), op_name(instruction).to_owned());
        clock.plan.loops.push(LoopSpan { start, end, depth: 0, name, path, iterations });
        clock.append(plan, times, 1);
    }

    fn span(&self, name: Name<'_>, entry: &ModuleCollective, executions: f64) -> Span {
        let cost = self.costs.get(&name);
        let time = cost.and_then(|cost| cost.seconds).map_or(0.0, |seconds| seconds.link / executions);
        let moved = entry.moved_bytes.map_or("?".to_owned(), human_bytes);
        let halves = if entry.asynchronous { ", in two halves" } else { "" };
        Span {
            start: 0.0,
            end: time,
            label: entry.kind.name().to_owned(),
            detail: format!(
                "{} over {}: sends {moved} in {}{halves}\n{}",
                entry.name,
                axes_text(entry),
                seconds(time),
                entry.op_name
            ),
            ..Span::default()
        }
    }
}

fn compute_span(cost: &InstructionCost, executions: f64) -> Span {
    let time = cost.seconds.map_or(0.0, |seconds| seconds.compute.max(seconds.memory) / executions);
    let label = if cost.scope.is_empty() { cost.op.clone() } else { cost.scope.clone() };
    let work = &cost.work;
    Span {
        start: 0.0,
        end: time,
        label,
        detail: format!(
            "{} ({}): {}, {} op, {} of memory traffic\n{}",
            cost.name,
            cost.op,
            seconds(time),
            human_count(work.flops as f64),
            human_bytes(work.bytes()),
            cost.op_name
        ),
        limit: cost.bound,
        ..Span::default()
    }
}

#[derive(Default)]
struct Clock {
    now: f64,
    /// The times at which the links of each lane are free.
    links: Vec<f64>,
    /// The times at which started instructions will be done, by the id of the instruction that started them.
    pending: FxHashMap<i64, f64>,
    plan: StepSchedule,
}

impl Clock {
    fn compute(&mut self, span: Span) {
        let end = self.now + span.end;
        if span.end > 0.0 {
            self.plan.spans.push((0, Span { start: self.now, end, ..span }));
        }
        self.now = end;
    }

    /// Sends a span for its duration, as soon as the links are free.
    fn send(&mut self, lane: usize, span: Span) -> f64 {
        let start = self.now.max(self.links[lane]);
        let end = start + span.end;
        self.links[lane] = end;
        self.plan.spans.push((lane, Span { start, end, ..span }));
        end
    }

    fn wait_or_remember(&mut self, id: i64, end: f64, asynchronous: bool) {
        match asynchronous {
            true => _ = self.pending.insert(id, end),
            false => self.now = self.now.max(end),
        }
    }

    /// Ends a later half: the last one waits, one in between passes it on.
    fn finish(&mut self, instruction: &HloInstructionProto, waits: bool) {
        let Some(end) = instruction.operand_ids.first().and_then(|id| self.pending.get(id)).copied() else { return };
        self.wait_or_remember(instruction.id, end, !waits);
    }

    /// Adds another schedule, stretched by a factor, with its loops nested deeper.
    fn append(&mut self, plan: StepSchedule, times: f64, loops: usize) {
        let start = self.now;
        let moved = |time: f64| start + time * times;
        self.plan.spans.extend(
            plan.spans
                .into_iter()
                .map(|(lane, span)| (lane, Span { start: moved(span.start), end: moved(span.end), ..span })),
        );
        self.plan.loops.extend(plan.loops.into_iter().map(|it| LoopSpan {
            start: moved(it.start),
            end: moved(it.end),
            depth: it.depth + loops,
            ..it
        }));
        self.now = moved(plan.seconds);
        self.links.iter_mut().for_each(|link| *link = link.max(self.now));
    }
}
