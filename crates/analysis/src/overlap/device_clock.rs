//! The time line of a schedule: a clock that compute moves, links that transfers queue for, and waits.

use rustc_hash::FxHashMap;

use super::events::{BranchEvents, Content, EventNames, Recorder, ScheduleEvents, ScheduleTransfer};
use super::wiring::Wiring;
use super::{Beside, CollectiveOverlap, Hidden, HostCopyOverlap};
use crate::async_collectives::{End, Site, Sites};
use crate::collectives::ModuleCollective;
use crate::cost::{CostOptions, Timer};
use crate::host_transfers::{HostCopy, copy_of};
use crate::megascale::communication_of;
use crate::memory::order;
use crate::walk::{Via, Walk};
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto};
use meshloom_hlo::source::Sources;

/// Loops this deep are followed once, with their first iteration standing for all.
const LOOP_DEPTH_LIMIT: usize = 8;

/// A time in which the device waits. Waits of iterations that are alike are one, and lie evenly in it.
#[derive(Clone)]
struct Wait {
    start: f64,
    end: f64,
    waited: f64,
}

/// The state of the device, in seconds.
#[derive(Clone, Default)]
struct DeviceClock {
    clock: f64,
    /// The time at which each link is free.
    free: Vec<f64>,
    waits: Vec<Wait>,
    waited: f64,
}

impl DeviceClock {
    fn computed(&self) -> f64 {
        self.clock - self.waited
    }

    fn wait_until(&mut self, end: f64) {
        if end > self.clock {
            let waited = end - self.clock;
            self.waits.push(Wait { start: self.clock, end, waited });
            self.waited += waited;
            self.clock = end;
        }
    }

    /// Returns how long it waited in a stretch of the past.
    fn waited_in(&self, begin: f64, end: f64) -> f64 {
        let inside = self.waits.iter().rev().take_while(|wait| wait.end > begin);
        let part = |wait: &Wait| {
            let common = wait.end.min(end) - wait.start.max(begin);
            if common > 0.0 { wait.waited * common / (wait.end - wait.start) } else { 0.0 }
        };
        inside.map(part).sum()
    }
}

/// Collectives under way, or a copy to or from the host, from the start on.
struct Flight<'a> {
    /// Its transfers, with how often each runs.
    entries: Vec<(usize, f64)>,
    /// Whether it is a chain of fusions.
    is_chain: bool,
    /// Each transfer's stretch of time on its links; empty before it has its operands.
    pieces: Vec<(usize, f64, f64)>,
    /// The time that the device had computed when the flight began.
    computed: f64,
    /// The largest instruction since its start.
    largest: Option<(&'a HloInstructionProto, f64)>,
    is_done: bool,
}

/// A copy to or from the host, where it stands.
struct HostSite<'a> {
    place: usize,
    instruction: &'a HloInstructionProto,
    copy: HostCopy,
}

/// The sums over all executions of a transfer.
#[derive(Default)]
struct Executed {
    synchronous: bool,
    hidden: Hidden,
    beside_seconds: f64,
    largest_beside: Option<Beside>,
}

/// A module on its way along the time line.
pub(super) struct Simulation<'w, 'a> {
    module: &'a HloModuleProto,
    walk: &'w Walk<'a>,
    timer: Timer<'w, 'a>,
    sites: Sites,
    collectives: Vec<ModuleCollective>,
    /// The copies to and from the host: transfers that are numbered after the collectives.
    host: Vec<HostSite<'a>>,
    /// The number of each such copy among the transfers, by place and position.
    host_at: FxHashMap<(usize, usize), usize>,
    /// The links of each transfer, and its time on them.
    wires: Wiring,
    executed: Vec<Executed>,
    /// Whether each place, or one that it calls, has a transfer.
    sends: Vec<bool>,
    /// The time that each place computes in one execution, where it is known already.
    plain: FxHashMap<usize, f64>,
    line: DeviceClock,
    /// The events, if they are to be drawn.
    recorder: Option<Recorder>,
}

impl<'w, 'a> Simulation<'w, 'a> {
    /// Returns `None` for a chip without rates.
    pub(super) fn new(
        module: &'a HloModuleProto,
        walk: &'w Walk<'a>,
        sites: Sites,
        entries: Vec<ModuleCollective>,
        options: &CostOptions,
    ) -> Option<Simulation<'w, 'a>> {
        let chip = options.chip?;
        let (host, host_at) = host_copies(walk, entries.len());
        let mut sends = vec![false; walk.places().len()];
        sites.places().chain(host.iter().map(|it| it.place)).for_each(|place| sends[place] = true);
        for (number, place) in walk.places().iter().enumerate().rev() {
            if let Some(caller) = place.caller {
                sends[caller.place] |= sends[number];
            }
        }
        let mut wires = Wiring::of(&entries, options)?;
        let rate = chip.device_host_bandwidth();
        host.iter().for_each(|it| wires.add_host_copy(it.copy, rate));
        let executed = (0..entries.len() + host.len()).map(|_| Executed::default()).collect();
        Some(Simulation {
            module,
            walk,
            timer: Timer::of(walk, chip),
            sites,
            collectives: entries,
            host,
            host_at,
            line: DeviceClock { free: vec![0.0; wires.link_count()], ..DeviceClock::default() },
            wires,
            executed,
            sends,
            plain: FxHashMap::default(),
            recorder: None,
        })
    }

    /// Notes the events of what is followed from here on.
    pub(super) fn record(&mut self) {
        self.recorder = Some(Recorder::default());
    }

    /// Follows the entry.
    pub(super) fn run(&mut self) {
        if !self.walk.places().is_empty() {
            // The event of the whole step, whatever of it is too much to draw.
            let event = self.open(Content::Iteration { body: 0, count: 1 }, 1.0);
            self.place(0, 1.0);
            self.close(event);
        }
    }

    /// Returns how long the device computes and waits.
    pub(super) fn seconds(&self) -> (f64, f64) {
        (self.line.computed(), self.line.waited)
    }

    /// Returns at most `most` events. Transfers have their numbers among those that [`Simulation::finish`] returns.
    pub(super) fn events(&mut self, most: usize) -> ScheduleEvents {
        let Some(recorder) = self.recorder.take() else { return ScheduleEvents::default() };
        let mut starts: Vec<Option<&'a HloInstructionProto>> = vec![None; self.collectives.len()];
        for (collective, (place, position)) in self.sites.starts() {
            starts[collective] = self.walk.places()[place].computation.instructions.get(position);
        }
        let (of_collectives, _) = self.executed.split_at(self.collectives.len());
        let mut shown = 0;
        let mut transfers = Vec::new();
        for ((it, executed), start) in self.collectives.iter().zip(of_collectives).zip(starts) {
            transfers.push((ScheduleTransfer::Collective(shown), start, it.moved_bytes.or(it.bytes)));
            shown += usize::from(executed.hidden.takes_time());
        }
        let of_host = |(number, it): (usize, &HostSite<'a>)| {
            (ScheduleTransfer::HostCopy(number), Some(it.instruction), Some(it.copy.bytes))
        };
        transfers.extend(self.host.iter().enumerate().map(of_host));
        let names = EventNames {
            walk: self.walk,
            timer: &self.timer,
            sources: Sources::of(self.module),
            wires: &self.wires,
            transfers: &transfers,
        };
        recorder.finish(most, &names)
    }

    /// Returns the overlap of each collective, and of each copy to or from the host.
    pub(super) fn finish(self) -> (Vec<CollectiveOverlap>, Vec<HostCopyOverlap>) {
        let mut executed = self.executed.into_iter();
        let mut transfers = Vec::new();
        for (collective, executed) in self.collectives.into_iter().zip(&mut executed) {
            let Executed { synchronous, hidden, beside_seconds, largest_beside } = executed;
            transfers.push(CollectiveOverlap { collective, synchronous, hidden, beside_seconds, largest_beside });
        }
        let host = self.host.iter().zip(executed);
        let host = host.map(|(it, executed)| {
            let place = &self.walk.places()[it.place];
            HostCopyOverlap::of(self.module, (place, it.instruction, it.copy), executed.synchronous, executed.hidden)
        });
        (transfers, host.collect())
    }

    /// Follows one execution of a place, which stands for `weight` executions.
    fn place(&mut self, place: usize, weight: f64) {
        let mut flights: Vec<Flight<'a>> = Vec::new();
        // The instructions that refer to each flight: its start and its updates.
        let mut handles: FxHashMap<i64, usize> = FxHashMap::default();
        let instructions = &self.walk.places()[place].computation.instructions;
        for position in order(self.module, self.walk, place) {
            let instruction = &instructions[position];
            let before = self.line.computed();
            let opcode = instruction.opcode.as_str();
            let handle = instruction.operand_ids.first().and_then(|id| handles.get(id)).copied();
            match handle {
                Some(flight) if opcode.ends_with("-done") => {
                    self.land(&mut flights[flight], weight);
                    continue;
                }
                Some(flight) if opcode.ends_with("-update") || opcode == "get-tuple-element" => {
                    handles.insert(instruction.id, flight);
                    if instruction.operand_ids.len() > 1 && flights[flight].pieces.is_empty() {
                        self.launch(&mut flights[flight]);
                    }
                    continue;
                }
                _ => {}
            }
            if let Some(mut flight) = self.started(place, position, instruction) {
                // An offloaded collective starts without operands, and gets them by an update.
                let is_ready = opcode != "async-start" || !instruction.operand_ids.is_empty();
                if is_ready {
                    self.launch(&mut flight);
                }
                handles.insert(instruction.id, flights.len());
                flights.push(flight);
                continue;
            }
            self.instruction((place, position), instruction, weight, &mut flights);
            let computed = self.line.computed() - before;
            for flight in flights.iter_mut().filter(|flight| !flight.is_done && !flight.pieces.is_empty()) {
                if computed > flight.largest.map_or(0.0, |(_, most)| most) {
                    flight.largest = Some((instruction, computed));
                }
            }
        }
        for flight in flights.iter_mut() {
            self.land(flight, weight);
        }
    }

    /// Returns a flight, if an instruction is the first half of collectives.
    fn started(&self, place: usize, position: usize, instruction: &'a HloInstructionProto) -> Option<Flight<'a>> {
        let entries = if let Some(&entry) = self.host_at.get(&(place, position)) {
            if !instruction.opcode.ends_with("-start") {
                return None;
            }
            vec![(entry, 1.0)]
        } else if let Some(site) = self.sites.at(place, position) {
            let is_half = communication_of(instruction)?.1 || instruction.opcode == "send";
            if !is_half || is_synchronous(instruction) {
                return None;
            }
            vec![(site.collective, 1.0)]
        } else if instruction.opcode == "async-start" {
            if is_synchronous(instruction) {
                return None;
            }
            self.inside(place, position)
        } else {
            return None;
        };
        (!entries.is_empty()).then(|| Flight::of(entries))
    }

    /// Follows an instruction that starts nothing: compute, a transfer in one piece, or a call of other computations.
    fn instruction(
        &mut self,
        (place, position): (usize, usize),
        instruction: &'a HloInstructionProto,
        weight: f64,
        flights: &mut Vec<Flight<'a>>,
    ) {
        let host = self.host_at.get(&(place, position)).copied().filter(|&entry| self.wires.times[entry].1 > 0.0);
        if let Some(entry) = host.or_else(|| Some(self.sites.at(place, position)?.collective)) {
            self.at_once(vec![(entry, 1.0)], weight);
            return;
        }
        let sends = self.walk.callees_at(place, position).any(|callee| self.sends[callee]);
        match instruction.opcode.as_str() {
            "async-start" if sends => {
                let entries = self.inside(place, position);
                self.at_once(entries, weight);
            }
            // Copies within the device's memories and other asynchronous work hide nothing, and the device does not
            // wait for them.
            opcode if opcode.ends_with("-start") => {}
            "fusion" if sends => self.fusion(place, position, instruction, weight, flights),
            _ if sends => {
                let content = Content::Instruction { place, position, holds: true };
                let event = self.open(content, weight);
                self.callees(place, position, weight);
                self.close(event);
            }
            _ => {
                let (begin, seconds) = (self.line.clock, self.plain_instruction(place, position));
                self.line.clock += seconds;
                if self.recorder.is_some() {
                    self.draw((place, position), begin, seconds, weight);
                }
            }
        }
    }

    /// Begins an event that contains what follows.
    fn open(&mut self, content: Content, weight: f64) -> Option<usize> {
        let now = self.line.clock;
        self.recorder.as_mut()?.add((now, now), weight, content)
    }

    fn close(&mut self, event: Option<usize>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.close(event, self.line.clock);
        }
    }

    /// Notes an instruction without transfers that begins at a time, with what it runs: one iteration of each loop.
    fn draw(&mut self, (place, position): (usize, usize), begin: f64, seconds: f64, weight: f64) {
        let callees: Vec<(usize, Via)> = self
            .walk
            .callees_at(place, position)
            .filter_map(|callee| Some((callee, self.walk.places()[callee].caller?.via)))
            .filter(|(_, via)| matches!(via, Via::LoopBody | Via::LoopCondition | Via::Call | Via::Branch(_)))
            .collect();
        let found = &self.walk.places()[place];
        let own = self.timer.seconds(found, &found.computation.instructions[position]);
        let Some(recorder) = self.recorder.as_mut().filter(|_| seconds > 0.0) else { return };
        // An instruction that is only counted is counted as a whole.
        let holds = !callees.is_empty() && !recorder.is_full();
        recorder.add((begin, begin + seconds), weight, Content::Instruction { place, position, holds });
        if !holds {
            return;
        }
        if own > 0.0 {
            recorder.add((begin, begin + own), weight, Content::Instruction { place, position, holds: false });
        }
        let branches = callees.iter().filter(|(_, via)| matches!(via, Via::Branch(_)));
        let least = branches.map(|&(callee, _)| (callee, self.plain_place(callee))).min_by(|a, b| a.1.total_cmp(&b.1));
        let mut now = begin + own;
        for (callee, via) in callees {
            let once = self.plain_place(callee);
            match via {
                Via::LoopBody | Via::LoopCondition => {
                    let count = self.times(place, callee, via);
                    if count > 0 && once > 0.0 {
                        let weight = weight * count as f64;
                        if let Some(recorder) = &mut self.recorder {
                            recorder.add((now, now + once), weight, Content::Iteration { body: callee, count });
                        }
                        self.draw_place(callee, now, weight);
                        now += once * count as f64;
                    }
                }
                Via::Branch(_) if least.is_none_or(|(least, _)| least != callee) => {}
                _ => {
                    self.draw_place(callee, now, weight);
                    now += once;
                }
            }
        }
    }

    fn draw_place(&mut self, place: usize, begin: f64, weight: f64) {
        let mut now = begin;
        for position in order(self.module, self.walk, place) {
            let seconds = self.plain_instruction(place, position);
            self.draw((place, position), now, seconds, weight);
            now += seconds;
        }
    }

    /// Follows a fusion with a collective in it: a part of one in several parts, or all of one.
    fn fusion(
        &mut self,
        place: usize,
        position: usize,
        instruction: &'a HloInstructionProto,
        weight: f64,
        flights: &mut Vec<Flight<'a>>,
    ) {
        let computed = self.timer.seconds(&self.walk.places()[place], instruction);
        let (mut whole, mut launched, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for callee in self.walk.callees_at(place, position) {
            let end = End::of(self.walk.places()[callee].computation);
            for (site, times) in self.inside_place(callee) {
                let entry = site.collective;
                let is_open = |flight: &Flight<'_>| !flight.is_done && flight.is_chain && flight.entries[0].0 == entry;
                match end {
                    Some(End::Start) => {
                        launched.push(Flight { is_chain: true, ..Flight::of(vec![(entry, times)]) });
                    }
                    Some(End::Done) => ended.extend(flights.iter().position(is_open)),
                    None if site.starts => whole.push((entry, times)),
                    None => {}
                }
            }
        }
        // The fusion's own computation is before the flights that it starts, and after those that it ends: it hides
        // neither.
        ended.into_iter().for_each(|flight| self.land(&mut flights[flight], weight));
        let event = self.open(Content::Instruction { place, position, holds: false }, weight);
        self.line.clock += computed;
        self.close(event.filter(|_| computed > 0.0));
        for mut flight in launched {
            self.launch(&mut flight);
            flights.push(flight);
        }
        if !whole.is_empty() {
            self.at_once(whole, weight);
        }
    }

    /// Follows a transfer that the device waits for from its start on.
    fn at_once(&mut self, entries: Vec<(usize, f64)>, weight: f64) {
        let mut flight = Flight::of(entries);
        flight.entries.iter().for_each(|&(entry, _)| self.executed[entry].synchronous = true);
        self.launch(&mut flight);
        self.land(&mut flight, weight);
    }

    fn launch(&mut self, flight: &mut Flight<'a>) {
        flight.computed = self.line.computed();
        for &(entry, times) in &flight.entries {
            let (links, seconds) = &self.wires.times[entry];
            let begin = links.iter().fold(self.line.clock, |latest, &link| latest.max(self.line.free[link]));
            let end = begin + seconds * times;
            links.iter().for_each(|&link| self.line.free[link] = end);
            flight.pieces.push((entry, begin, end));
        }
    }

    fn land(&mut self, flight: &mut Flight<'a>, weight: f64) {
        if std::mem::replace(&mut flight.is_done, true) {
            return;
        }
        if flight.pieces.is_empty() {
            self.launch(flight);
        }
        let beside = self.line.computed() - flight.computed;
        flight.pieces.sort_by(|a, b| a.2.total_cmp(&b.2));
        for &(entry, _, end) in &flight.pieces {
            let (clock, waited) = (self.line.clock, self.line.waited);
            self.line.wait_until(end);
            let waited = self.line.waited - waited;
            self.executed[entry].hidden.waited_seconds += weight * waited;
            if let Some(recorder) = self.recorder.as_mut().filter(|_| waited > 0.0) {
                recorder.add((clock, end), weight, Content::Wait { entry });
            }
        }
        for &(entry, begin, end) in &flight.pieces {
            let exposed = self.line.waited_in(begin, end).max(0.0);
            let found = &mut self.executed[entry];
            found.hidden.seconds += weight * (end - begin);
            found.hidden.exposed_seconds += weight * exposed;
            found.beside_seconds += weight * beside;
            if let Some((instruction, seconds)) = flight.largest
                && found.largest_beside.as_ref().is_none_or(|largest| seconds > largest.seconds)
            {
                let (name, op) = (instruction.name.clone(), instruction.opcode.clone());
                found.largest_beside = Some(Beside { name, op, seconds });
            }
            // A copy whose time is not known has no length.
            if let Some(recorder) = self.recorder.as_mut().filter(|_| end > begin || entry >= self.collectives.len()) {
                recorder.add((begin, end), weight, Content::Transfer { entry, exposed });
            }
        }
    }

    /// Follows the computations that an instruction runs: one by one if they contain collectives.
    fn callees(&mut self, place: usize, position: usize, weight: f64) {
        let callees = self.walk.callees_at(place, position);
        let sends = callees.clone().any(|callee| self.sends[callee]);
        let once = |line: &mut Self, callee| match sends {
            true => line.place(callee, weight),
            false => line.line.clock += line.plain_place(callee),
        };
        let is_branch = |callee: usize| {
            self.walk.places()[callee].caller.is_some_and(|caller| matches!(caller.via, Via::Branch(_)))
        };
        let before = if callees.clone().any(is_branch) { self.line.clone() } else { DeviceClock::default() };
        let mut least: Option<DeviceClock> = None;
        let (mut kept, from) = (BranchEvents::default(), self.recorder.as_ref().map_or(0, Recorder::len));
        for callee in callees {
            match self.walk.places()[callee].caller.map(|caller| caller.via) {
                Some(via @ (Via::LoopBody | Via::LoopCondition)) => {
                    let times = self.times(place, callee, via);
                    self.repeat(callee, times, weight);
                }
                Some(Via::Branch(_)) => {
                    self.line = before.clone();
                    once(self, callee);
                    let is_least = least.as_ref().is_none_or(|line| self.line.computed() < line.computed());
                    if is_least {
                        least = Some(self.line.clone());
                    }
                    if let Some(recorder) = &mut self.recorder {
                        recorder.end_branch(from, is_least, &mut kept);
                    }
                }
                Some(Via::Call) => once(self, callee),
                _ => {}
            }
        }
        if let Some(least) = least {
            self.line = least;
            if let Some(recorder) = &mut self.recorder {
                recorder.take(kept);
            }
        }
    }

    /// Returns how often a loop runs its body, or its condition.
    fn times(&self, place: usize, callee: usize, via: Via) -> u64 {
        let times = self.walk.places()[callee].assumed_executions / self.walk.places()[place].assumed_executions.max(1);
        // Body and condition of a loop that may run any number of times run once.
        if via == Via::LoopCondition { times.max(1) } else { times }
    }

    /// Follows a loop's first iteration, and one of the others, which are alike: transfers that were under way before
    /// have left the links that the first one uses.
    fn repeat(&mut self, callee: usize, times: u64, weight: f64) {
        if !self.sends[callee] {
            let (begin, once) = (self.line.clock, self.plain_place(callee));
            self.line.clock += once * times as f64;
            if let Some(recorder) = self.recorder.as_mut().filter(|_| once > 0.0 && times > 0) {
                let weight = weight * times as f64;
                recorder.add((begin, begin + once), weight, Content::Iteration { body: callee, count: times });
                self.draw_place(callee, begin, weight);
            }
            return;
        }
        let is_idle = self.line.free.iter().all(|&free| free <= self.line.clock);
        let is_deep = self.walk.places()[callee].loop_depth > LOOP_DEPTH_LIMIT;
        let rounds = if is_idle || is_deep || times < 2 { [times, 0] } else { [1, times - 1] };
        for round in rounds.into_iter().filter(|&round| round > 0) {
            let DeviceClock { clock, waited, .. } = self.line;
            let wait_count = self.line.waits.len();
            let weight = weight * round as f64;
            let event = self.open(Content::Iteration { body: callee, count: round }, weight);
            self.place(callee, weight);
            self.close(event);
            if round > 1 {
                let (took, waited_once) = (self.line.clock - clock, self.line.waited - waited);
                self.line.waits.truncate(wait_count);
                self.line.clock = clock + took * round as f64;
                self.line.waited = waited + waited_once * round as f64;
                if waited_once > 0.0 {
                    let waited = waited_once * round as f64;
                    self.line.waits.push(Wait { start: clock, end: self.line.clock, waited });
                }
            }
        }
    }

    /// Returns the time that a place without collectives computes in one execution.
    fn plain_place(&mut self, place: usize) -> f64 {
        if let Some(&known) = self.plain.get(&place) {
            return known;
        }
        let count = self.walk.places()[place].computation.instructions.len();
        let sum = (0..count).map(|position| self.plain_instruction(place, position)).sum();
        self.plain.insert(place, sum);
        sum
    }

    /// Returns the time that an instruction without collectives computes, with the computations it runs.
    fn plain_instruction(&mut self, place: usize, position: usize) -> f64 {
        let instruction = &self.walk.places()[place].computation.instructions[position];
        if instruction.opcode.ends_with("-start") {
            return 0.0;
        }
        let own = DeviceClock {
            clock: self.timer.seconds(&self.walk.places()[place], instruction),
            ..DeviceClock::default()
        };
        let outer = std::mem::replace(&mut self.line, own);
        // Its events are drawn where it stands, by `draw`.
        let recorder = self.recorder.take();
        self.callees(place, position, 0.0);
        self.recorder = recorder;
        std::mem::replace(&mut self.line, outer).clock
    }

    /// Returns the collectives in the computations that an instruction runs, and how often each runs in one execution.
    fn inside(&self, place: usize, position: usize) -> Vec<(usize, f64)> {
        let callees = self.walk.callees_at(place, position);
        callees.flat_map(|callee| self.inside_place(callee)).map(|(site, times)| (site.collective, times)).collect()
    }

    fn inside_place(&self, place: usize) -> Vec<(Site, f64)> {
        if !self.sends[place] {
            return Vec::new();
        }
        let outer = self.walk.places()[place].assumed_executions.max(1) as f64;
        let mut found = Vec::new();
        let mut left = vec![place];
        while let Some(number) = left.pop() {
            let inner = &self.walk.places()[number];
            let times = inner.assumed_executions as f64 / outer;
            let positions = 0..inner.computation.instructions.len();
            found.extend(positions.filter_map(|position| Some((self.sites.at(number, position)?, times))));
            left.extend(inner.callees.clone().filter(|&callee| self.sends[callee]));
        }
        found
    }
}

impl<'a> Flight<'a> {
    fn of(entries: Vec<(usize, f64)>) -> Flight<'a> {
        Flight { entries, is_chain: false, pieces: Vec::new(), computed: 0.0, largest: None, is_done: false }
    }
}

/// Whether a pair of halves runs in one piece, as XLA's GPU compiler states in the backend config.
fn is_synchronous(instruction: &HloInstructionProto) -> bool {
    let config: Option<serde_json::Value> = serde_json::from_slice(&instruction.backend_config).ok();
    config.is_some_and(|config| config["collective_backend_config"]["is_sync"] == true)
}

/// Returns the copies to and from the host, and their numbers among transfers, which begin after the others.
fn host_copies<'a>(walk: &Walk<'a>, first: usize) -> (Vec<HostSite<'a>>, FxHashMap<(usize, usize), usize>) {
    let (mut host, mut at) = (Vec::new(), FxHashMap::default());
    for step in walk.steps().filter(|step| !step.place.fused) {
        if let Some(copy) = copy_of(walk.module(), walk.computation(step.place), step.instruction) {
            at.insert((step.place_number, step.position), first + host.len());
            host.push(HostSite { place: step.place_number, instruction: step.instruction, copy });
        }
    }
    (host, at)
}
