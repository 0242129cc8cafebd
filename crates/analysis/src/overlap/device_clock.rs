//! The time line of a schedule: a clock that compute moves, links that transfers queue for, and waits.

use indexmap::IndexSet;
use rustc_hash::FxHashMap;

use super::{Beside, CollectiveOverlap, Hidden};
use crate::async_collectives::{End, Site, Sites};
use crate::collectives::ModuleCollective;
use crate::cost::{CostOptions, Link, Timer, transfer};
use crate::megascale::communication_of;
use crate::memory::order;
use crate::walk::{Via, Walk};
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto};

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

/// A collective under way, from its start on.
struct Flight<'a> {
    /// Its collectives, with how often each runs.
    entries: Vec<(usize, f64)>,
    /// Whether it is a chain of fusions.
    is_chain: bool,
    /// Each collective's stretch of time on its links; empty before it has its operands.
    pieces: Vec<(usize, f64, f64)>,
    /// The time that the device had computed when the flight began.
    computed: f64,
    /// The largest instruction since its start.
    largest: Option<(&'a HloInstructionProto, f64)>,
    is_done: bool,
}

/// A module on its way along the time line.
pub(super) struct Simulation<'w, 'a> {
    module: &'a HloModuleProto,
    walk: &'w Walk<'a>,
    timer: Timer<'w, 'a>,
    sites: Sites,
    /// The links of each collective, and its time on them.
    wires: Vec<LinkTimes>,
    found: Vec<CollectiveOverlap>,
    /// Whether each place, or one that it calls, has a collective.
    sends: Vec<bool>,
    /// The time that each place computes in one execution, where it is known already.
    plain: FxHashMap<usize, f64>,
    line: DeviceClock,
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
        let mut sends = vec![false; walk.places().len()];
        sites.places().for_each(|place| sends[place] = true);
        for (number, place) in walk.places().iter().enumerate().rev() {
            if let Some(caller) = place.caller {
                sends[caller.place] |= sends[number];
            }
        }
        let (wires, link_count) = wires(&entries, options)?;
        let overlap = |collective| {
            let (hidden, beside_seconds, largest_beside) = (Hidden::default(), 0.0, None);
            CollectiveOverlap { collective, synchronous: false, hidden, beside_seconds, largest_beside }
        };
        Some(Simulation {
            module,
            walk,
            timer: Timer::of(walk, chip),
            sites,
            wires,
            found: entries.into_iter().map(overlap).collect(),
            sends,
            plain: FxHashMap::default(),
            line: DeviceClock { free: vec![0.0; link_count], ..DeviceClock::default() },
        })
    }

    /// Follows the entry.
    pub(super) fn run(&mut self) {
        if !self.walk.places().is_empty() {
            self.place(0, 1.0);
        }
    }

    /// Returns the overlap of each collective, and how long the device computes and waits.
    pub(super) fn finish(self) -> (Vec<CollectiveOverlap>, f64, f64) {
        (self.found, self.line.computed(), self.line.waited)
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
            self.instruction(place, position, instruction, weight, &mut flights);
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
        let entries = if let Some(site) = self.sites.at(place, position) {
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

    /// Follows an instruction that starts nothing: compute, a collective in one piece, or a call of other computations.
    fn instruction(
        &mut self,
        place: usize,
        position: usize,
        instruction: &'a HloInstructionProto,
        weight: f64,
        flights: &mut Vec<Flight<'a>>,
    ) {
        if let Some(site) = self.sites.at(place, position) {
            self.at_once(vec![(site.collective, 1.0)], weight);
            return;
        }
        let sends = self.walk.callees_at(place, position).any(|callee| self.sends[callee]);
        match instruction.opcode.as_str() {
            "async-start" if sends => {
                let entries = self.inside(place, position);
                self.at_once(entries, weight);
            }
            // Copies and other asynchronous work hide nothing, and the device does not wait for them.
            opcode if opcode.ends_with("-start") => {}
            "fusion" if sends => self.fusion(place, position, instruction, weight, flights),
            _ if sends => self.callees(place, position, weight),
            _ => self.line.clock += self.plain_instruction(place, position),
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
        self.line.clock += computed;
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
        flight.entries.iter().for_each(|&(entry, _)| self.found[entry].synchronous = true);
        self.launch(&mut flight);
        self.land(&mut flight, weight);
    }

    fn launch(&mut self, flight: &mut Flight<'a>) {
        flight.computed = self.line.computed();
        for &(entry, times) in &flight.entries {
            let (links, seconds) = &self.wires[entry];
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
            let waited = self.line.waited;
            self.line.wait_until(end);
            self.found[entry].hidden.waited_seconds += weight * (self.line.waited - waited);
        }
        for &(entry, begin, end) in &flight.pieces {
            let exposed = self.line.waited_in(begin, end);
            let found = &mut self.found[entry];
            found.hidden.seconds += weight * (end - begin);
            found.hidden.exposed_seconds += weight * exposed;
            found.beside_seconds += weight * beside;
            if let Some((instruction, seconds)) = flight.largest
                && found.largest_beside.as_ref().is_none_or(|largest| seconds > largest.seconds)
            {
                let (name, op) = (instruction.name.clone(), instruction.opcode.clone());
                found.largest_beside = Some(Beside { name, op, seconds });
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
        let before = self.line.clone();
        let mut least: Option<DeviceClock> = None;
        for callee in callees {
            match self.walk.places()[callee].caller.map(|caller| caller.via) {
                Some(via @ (Via::LoopBody | Via::LoopCondition)) => {
                    let times = self.times(place, callee, via);
                    self.repeat(callee, times, weight);
                }
                Some(Via::Branch(_)) => {
                    self.line = before.clone();
                    once(self, callee);
                    if least.as_ref().is_none_or(|line| self.line.computed() < line.computed()) {
                        least = Some(self.line.clone());
                    }
                }
                Some(Via::Call) => once(self, callee),
                _ => {}
            }
        }
        if let Some(least) = least {
            self.line = least;
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
            self.line.clock += self.plain_place(callee) * times as f64;
            return;
        }
        let is_idle = self.line.free.iter().all(|&free| free <= self.line.clock);
        let is_deep = self.walk.places()[callee].loop_depth > LOOP_DEPTH_LIMIT;
        let rounds = if is_idle || is_deep || times < 2 { [times, 0] } else { [1, times - 1] };
        for round in rounds.into_iter().filter(|&round| round > 0) {
            let DeviceClock { clock, waited, .. } = self.line;
            let wait_count = self.line.waits.len();
            self.place(callee, weight * round as f64);
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
        self.callees(place, position, 0.0);
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

/// The links of a collective, by number, and its time on them.
type LinkTimes = (Vec<usize>, f64);

/// Whether a permute goes both ways round, as the exchange of two devices does.
fn is_swap(entry: &ModuleCollective) -> bool {
    entry.pairs.iter().any(|&(from, to)| entry.pairs.contains(&(to, from)))
}

/// Returns the links of each collective, by number, with its time on them, and the number of links. The result is
/// `None` for a chip without rates.
fn wires(entries: &[ModuleCollective], options: &CostOptions) -> Option<(Vec<LinkTimes>, usize)> {
    const NETWORK: &str = "the network";
    const SWITCH: &str = "the switch";
    let is_switched = options.chip?.is_switched();
    let mut links: IndexSet<String> = IndexSet::from([NETWORK.to_owned()]);
    let mut wires = Vec::new();
    for entry in entries {
        let (link, mut seconds) = transfer(entry, options)?;
        let names = match (link, &entry.axes) {
            (Link::Network, _) => Some(vec![NETWORK.to_owned()]),
            (Link::Ring, _) if is_switched => Some(vec![SWITCH.to_owned()]),
            // Parts of an axis lie on its links. A permute by several places takes the links that many times. A shift
            // goes one way, over half of the links; all other transfers go both ways.
            (Link::Ring, Some(axes)) => {
                let places = entry.shift.unwrap_or(0);
                seconds *= places.unsigned_abs().max(1) as f64;
                let ways = match places {
                    0 => &["+", "-"][..],
                    _ if is_swap(entry) => &["+", "-"],
                    1.. => &["+"],
                    _ => &["-"],
                };
                if ways.len() == 1 {
                    seconds *= 2.0;
                }
                let names = axes.iter().map(|axis| axis.whole_name());
                Some(names.flat_map(|name| ways.iter().map(move |way| format!("{name}{way}"))).collect())
            }
            (Link::Ring, None) => None,
        };
        let numbers = names.map(|names| names.into_iter().map(|name| links.insert_full(name).0).collect::<Vec<_>>());
        wires.push((numbers, seconds));
    }
    // A collective that may be anywhere needs at least one ring.
    let count = links.len().max(2);
    let all = |numbers: Option<Vec<usize>>| numbers.unwrap_or_else(|| (1..count).collect());
    Some((wires.into_iter().map(|(numbers, seconds)| (all(numbers), seconds)).collect(), count))
}
