//! One walk over everything that a module runs: each instruction, its executions and its surroundings.
//!
//! The walk starts at the entry and follows all calls: bodies and conditions of loops, branches, fusions, calls,
//! asynchronous computations, and computations of custom calls. A computation is a new [`Place`] each time it is
//! called, with its own number of executions, so its contents count once for each way they are reached:
//!
//! - The trip counts of loops multiply; a condition runs once more than its body. [`trip_count`] describes when a trip
//!   count is known.
//! - A branch runs at most as often as its conditional ([`Amount::AtMost`]) and excludes the others
//!   ([`Place::undecided`]). Where the devices are known and their numbers decide which one runs, as in a pipeline
//!   whose stages branch, a [`DeviceWalk`](super::DeviceWalk) knows it. For known inputs,
//!   [`executions`](super::executions) finds which one runs.
//! - An asynchronous computation runs where it starts. The instructions that update and end it name it again and run
//!   nothing.
//! - A computation given to a custom call runs an unknown number of times, with one exception: a computation that a TPU
//!   compiler offloads to SparseCores this way counts as a call.
//!
//! Reducers, comparators and the like compute scalars and are not walked; their callers account for them.
//!
//! Calls of calls can be reached in exponentially many ways. A module with more ways than [`Walk::of`] follows is
//! walked with one place for each computation. The place then has the sum of the executions of all ways, and the
//! surroundings of the first: see [`Walk::is_merged`].

use std::ops::Range;

use rustc_hash::FxHashSet;

use super::custom_collectives::communication_of_call;
use super::index::{Computation, Module};
use super::trip_count;
use crate::{Amount, Branch};
use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto, HloModuleProto};
use meshloom_hlo::source::op_name;

/// The way in which an instruction runs a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// Each iteration of a loop runs it.
    LoopBody,
    /// A loop runs it to decide whether to go on.
    LoopCondition,
    /// It is one branch of a conditional, counted from 0.
    Branch(usize),
    /// It is compiled to one piece of code.
    Fusion,
    /// It runs in place of the call.
    Call,
    /// It runs beside the instructions that follow.
    Async,
    /// A custom call takes it as an argument.
    CustomCall,
}

/// The instruction through which a place is reached.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The place it is in, by number.
    pub place: usize,
    /// The instruction.
    pub instruction: &'a HloInstructionProto,
    /// The way in which it runs the computation.
    pub via: Via,
}

/// A computation, reached in one way.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// The computation.
    pub computation: &'a HloComputationProto,
    /// The instruction that runs it; `None` for the entry.
    pub caller: Option<Caller<'a>>,
    /// The number of times it runs in one run of the program: the product of the trip counts around it.
    pub executions: Amount,
    /// The same, assuming that loops with an unknown trip count, and computations given to custom calls, ran once; in a
    /// branch, the bound.
    pub assumed_executions: u64,
    /// The branches of conditionals around it, outermost first; empty where the walk is merged.
    pub branches: Vec<Branch>,
    /// The part of `branches` that may or may not be taken, for all that is known.
    pub undecided: Vec<Branch>,
    /// The number of loops around it.
    pub loop_depth: usize,
    /// The body or condition of the innermost loop around it, which may be itself, as the number of a place.
    pub innermost_loop: Option<usize>,
    /// Whether it runs beside the instructions that follow its start.
    pub asynchronous: bool,
    /// Whether it is in a fusion.
    pub fused: bool,
    number: usize,
    /// The call site, among those of the caller's computation.
    site: usize,
    /// The places that it calls, by number, in the order of the calls.
    pub callees: Range<usize>,
}

/// An instruction in a place.
#[derive(Clone, Copy, Debug)]
pub struct Step<'w, 'a> {
    /// The place.
    pub place: &'w Place<'a>,
    /// Its number.
    pub place_number: usize,
    /// The instruction.
    pub instruction: &'a HloInstructionProto,
    /// Its position in its computation.
    pub position: usize,
}

/// A step of the way to a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathStep<'a> {
    /// The loop, conditional, fusion or call.
    pub instruction: &'a HloInstructionProto,
    /// The way in which it runs the next step.
    pub via: Via,
}

/// Everything that a module runs.
pub struct Walk<'a> {
    module: Module<'a>,
    sites: CallSites,
    places: Vec<Place<'a>>,
    merged: bool,
    /// Conditionals, each once for each way to it: where it stands, by place and position.
    conditionals: Vec<(usize, usize)>,
}

impl Place<'_> {
    /// Whether it is known how often it runs in the innermost branch around it: see [`DeviceWalk`](super::DeviceWalk).
    pub fn is_decided(&self) -> bool {
        self.undecided.last() != self.branches.last()
    }

    /// Number of the computation in its module.
    pub(super) fn number(&self) -> usize {
        self.number
    }
}

impl<'a> Walk<'a> {
    /// Walks a module, whatever is wrong with it: ids without an instruction or computation, and computations that call
    /// themselves, are passed over.
    pub fn of(module: &'a HloModuleProto) -> Walk<'a> {
        let module = Module::new(module);
        let sites = CallSites::of(&module);
        let mut walk = Walk { module, sites, places: Vec::new(), merged: false, conditionals: Vec::new() };
        if let Some(entry) = walk.module.entry() {
            let order = walk.sites.callers_first(entry);
            walk.merged = !walk.sites.few_ways(&walk.module, &order);
            walk.expand(entry, &order);
        }
        walk
    }

    /// Whether the module had too many ways to keep apart, so that a place represents all executions of a computation.
    pub fn is_merged(&self) -> bool {
        self.merged
    }

    /// Returns every place. The first is the entry; a place follows its caller.
    pub fn places(&self) -> &[Place<'a>] {
        &self.places
    }

    /// Returns the places, for an analysis that knows more of their executions.
    pub(super) fn places_mut(&mut self) -> &mut [Place<'a>] {
        &mut self.places
    }

    /// Returns every instruction in every place, in program order; the instructions that an instruction runs follow it.
    pub fn steps(&self) -> Steps<'_, 'a> {
        let stack = if self.places.is_empty() { Vec::new() } else { vec![Visit::of(&self.places, 0)] };
        Steps { walk: self, stack }
    }

    /// Returns the way to a place, the entry's instruction first; at most its last 64 steps.
    pub fn path(&self, place: usize) -> Vec<PathStep<'a>> {
        /// Longer ways than any compiler makes.
        const LONGEST: usize = 64;
        let mut next = self.places.get(place).and_then(|place| place.caller);
        let mut path = Vec::new();
        while let Some(caller) = next.filter(|_| path.len() < LONGEST) {
            path.push(PathStep { instruction: caller.instruction, via: caller.via });
            next = self.places[caller.place].caller;
        }
        path.reverse();
        path
    }

    /// Returns the scopes and the op of an instruction in a place, below those of the calls around it. XLA joins them
    /// when it inlines a function.
    pub fn op_name(&self, place: usize, instruction: &HloInstructionProto) -> String {
        let calls = self.path(place).into_iter().filter(|step| step.via == Via::Call);
        let names = calls.map(|step| op_name(step.instruction)).chain([op_name(instruction)]);
        names.filter(|name| !name.is_empty()).fold(String::new(), |around, name| match around.as_str() {
            "" => name.to_owned(),
            // A name of the whole way has its beginning already.
            around if name.starts_with(around) => name.to_owned(),
            around => format!("{around}/{name}"),
        })
    }

    /// Returns the iterations of the loop whose body is this place; `None` if they are unknown, or if the place is not
    /// a loop body.
    pub fn trip_count(&self, place: usize) -> Option<u64> {
        let place = self.places.get(place)?;
        let caller = place.caller.filter(|caller| caller.via == Via::LoopBody)?;
        match self.sites.of_computation(self.places[caller.place].number)[place.site].times {
            Times::Exactly(times) => Some(times),
            Times::AtMostOnce | Times::Unknown => None,
        }
    }

    /// Returns the places that the instruction in a position of a place runs.
    pub fn callees_at(&self, place: usize, position: usize) -> Range<usize> {
        let Some(found) = self.places.get(place) else { return 0..0 };
        let sites = self.sites.of_computation(found.number);
        let callees = &self.places[found.callees.clone()];
        let before =
            |end: usize| found.callees.start + callees.partition_point(|callee| sites[callee.site].position < end);
        before(position)..before(position + 1)
    }

    /// Returns the conditionals by their numbers, each once for each way to it, with the place that it is in.
    pub fn conditionals(&self) -> impl Iterator<Item = (&Place<'a>, &'a HloInstructionProto)> {
        let places = self.conditionals.iter().map(|&(place, position)| (&self.places[place], position));
        places.map(|(place, position)| (place, &place.computation.instructions[position]))
    }

    pub(super) fn module(&self) -> &Module<'a> {
        &self.module
    }

    /// Returns the computation of a place, with its instructions by id.
    pub(super) fn computation(&self, place: &Place<'a>) -> &Computation<'a> {
        &self.module.computations()[place.number]
    }

    /// Makes the places, each before those that it calls.
    fn expand(&mut self, entry: usize, order: &[usize]) {
        let totals = self.merged.then(|| self.sites.executions(entry, order));
        let mut seen = vec![false; self.module.computations().len()];
        seen[entry] = true;
        self.places.push(Place {
            computation: self.module.computations()[entry].proto(),
            caller: None,
            executions: Amount::Exactly(1),
            assumed_executions: 1,
            branches: Vec::new(),
            undecided: Vec::new(),
            loop_depth: 0,
            innermost_loop: None,
            asynchronous: false,
            fused: false,
            number: entry,
            site: 0,
            callees: 0..0,
        });
        let mut next = 0;
        while next < self.places.len() {
            let first = self.places.len();
            let around = self.places[next].clone();
            for (index, site) in self.sites.of_computation(around.number).iter().enumerate() {
                if site.recursive || self.merged && std::mem::replace(&mut seen[site.callee], true) {
                    continue;
                }
                let (executions, assumed_executions) = match &totals {
                    Some(totals) => totals[site.callee],
                    None => site.times.of((around.executions, around.assumed_executions)),
                };
                let instruction = &around.computation.instructions[site.position];
                let branches: Vec<Branch> = match site.via {
                    Via::Branch(_) if self.merged => Vec::new(),
                    Via::Branch(branch) => {
                        let conditional = conditional_at(&mut self.conditionals, (next, site.position));
                        let branch_count = instruction.called_computation_ids.len();
                        let inner = Branch { conditional, branch, branch_count };
                        around.branches.iter().copied().chain([inner]).collect()
                    }
                    _ => around.branches.clone(),
                };
                let is_loop = matches!(site.via, Via::LoopBody | Via::LoopCondition);
                self.places.push(Place {
                    computation: self.module.computations()[site.callee].proto(),
                    caller: Some(Caller { place: next, instruction, via: site.via }),
                    executions,
                    assumed_executions,
                    undecided: branches.clone(),
                    branches,
                    loop_depth: around.loop_depth + usize::from(is_loop),
                    innermost_loop: if is_loop { Some(self.places.len()) } else { around.innermost_loop },
                    asynchronous: around.asynchronous || site.via == Via::Async,
                    fused: around.fused || site.via == Via::Fusion,
                    number: site.callee,
                    site: index,
                    callees: 0..0,
                });
            }
            self.places[next].callees = first..self.places.len();
            next += 1;
        }
    }
}

/// Returns the number of the conditional in a position of a place. Its branches come one after another.
fn conditional_at(known: &mut Vec<(usize, usize)>, here: (usize, usize)) -> usize {
    if known.last() != Some(&here) {
        known.push(here);
    }
    known.len() - 1
}

/// The instructions of a walk. See [`Walk::steps`].
pub struct Steps<'w, 'a> {
    walk: &'w Walk<'a>,
    stack: Vec<Visit>,
}

/// A place that is being walked.
struct Visit {
    place: usize,
    /// The next instruction.
    position: usize,
    /// The places it calls which have not been walked.
    callees: Range<usize>,
}

impl Visit {
    fn of(places: &[Place<'_>], place: usize) -> Visit {
        Visit { place, position: 0, callees: places[place].callees.clone() }
    }
}

impl<'w, 'a> Iterator for Steps<'w, 'a> {
    type Item = Step<'w, 'a>;

    fn next(&mut self) -> Option<Step<'w, 'a>> {
        let places = &self.walk.places;
        loop {
            let visit = self.stack.last_mut()?;
            let place = &places[visit.place];
            // The places that the previous instruction runs come first.
            if let Some(callee) = visit.callees.clone().next()
                && self.walk.sites.of_computation(place.number)[places[callee].site].position < visit.position
            {
                visit.callees.start += 1;
                let deeper = Visit::of(places, callee);
                self.stack.push(deeper);
                continue;
            }
            if let Some(instruction) = place.computation.instructions.get(visit.position) {
                visit.position += 1;
                return Some(Step { place, place_number: visit.place, instruction, position: visit.position - 1 });
            }
            self.stack.pop();
        }
    }
}

/// The number of times a computation runs, each time its caller does.
#[derive(Clone, Copy, Debug)]
enum Times {
    Exactly(u64),
    AtMostOnce,
    Unknown,
}

impl Times {
    /// Returns the executions of the callee, known and assumed, from those of the caller.
    fn of(self, (executions, assumed): (Amount, u64)) -> (Amount, u64) {
        match self {
            Times::Exactly(times) => (executions.times(times), assumed.saturating_mul(times)),
            Times::AtMostOnce => (executions.or_less(), assumed),
            Times::Unknown => (Amount::Unknown, assumed),
        }
    }
}

/// A site where a computation is run.
#[derive(Clone, Copy, Debug)]
struct CallSite {
    /// Position of the instruction that runs it.
    position: usize,
    callee: usize,
    via: Via,
    times: Times,
    /// Whether the callee is one of the computations on the way here.
    recursive: bool,
}

/// The call sites of each computation, in the order of its instructions.
struct CallSites(Vec<Vec<CallSite>>);

impl CallSites {
    fn of(module: &Module<'_>) -> CallSites {
        let budget = trip_count::Budget::of(module);
        let offloaded = offloaded(module);
        let of = |(number, computation)| call_sites(module, computation, offloaded.contains(&number), &budget);
        CallSites(module.computations().iter().enumerate().map(of).collect())
    }

    fn of_computation(&self, number: usize) -> &[CallSite] {
        &self.0[number]
    }

    /// Returns the computations that a computation reaches, each before those it calls, and marks the sites that close
    /// a circle.
    fn callers_first(&mut self, entry: usize) -> Vec<usize> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            Open,
            Done,
        }
        let mut states = vec![State::New; self.0.len()];
        let mut order = Vec::new();
        let mut stack = vec![(entry, 0)];
        states[entry] = State::Open;
        while let Some((number, next)) = stack.last_mut() {
            let number = *number;
            let Some(site) = self.0[number].get_mut(*next) else {
                states[number] = State::Done;
                order.push(number);
                stack.pop();
                continue;
            };
            *next += 1;
            match states[site.callee] {
                State::New => {
                    states[site.callee] = State::Open;
                    stack.push((site.callee, 0));
                }
                State::Open => site.recursive = true,
                State::Done => {}
            }
        }
        order.reverse();
        order
    }

    /// Whether the ways through a module can be kept apart in a multiple of its size.
    fn few_ways(&self, module: &Module<'_>, order: &[usize]) -> bool {
        /// Modules with fewer places are always kept apart.
        const PLACES: u64 = 1 << 16;
        const STEPS: u64 = 1 << 20;
        let mut ways = vec![0u64; self.0.len()];
        // A place has a list of the conditionals around it.
        let mut branches = vec![0u64; self.0.len()];
        let Some(&entry) = order.first() else { return true };
        ways[entry] = 1;
        let (mut places, mut steps, mut instructions) = (0u64, 0u64, 0u64);
        for &number in order {
            let count = module.computations()[number].instructions().len() as u64;
            places = places.saturating_add(ways[number].saturating_mul(1 + branches[number] / 8));
            steps = steps.saturating_add(ways[number].saturating_mul(count));
            instructions += count;
            for site in self.0[number].iter().filter(|site| !site.recursive) {
                ways[site.callee] = ways[site.callee].saturating_add(ways[number]);
                let inner = branches[number] + u64::from(matches!(site.via, Via::Branch(_)));
                branches[site.callee] = branches[site.callee].max(inner);
            }
        }
        places <= PLACES + 4 * order.len() as u64 && steps <= STEPS + 4 * instructions
    }

    /// Returns how often each computation runs, and is assumed to run, over all its callers.
    fn executions(&self, entry: usize, order: &[usize]) -> Vec<(Amount, u64)> {
        let mut totals = vec![(Amount::Exactly(0), 0u64); self.0.len()];
        totals[entry] = (Amount::Exactly(1), 1);
        for &number in order {
            for site in self.0[number].iter().filter(|site| !site.recursive) {
                let (executions, assumed) = site.times.of(totals[number]);
                let total = &mut totals[site.callee];
                *total = (total.0.plus(executions), total.1.saturating_add(assumed));
            }
        }
        totals
    }
}

/// Whether a custom call runs the computation that it names once, on other cores of the chip: a TPU compiler offloads
/// to SparseCores this way, and states it only in the backend config.
fn is_offloaded(instruction: &HloInstructionProto) -> bool {
    let says = |word: &[u8]| instruction.backend_config.windows(word.len()).any(|part| part == word);
    says(b"\"sparse_core_config\"") && says(b"\"offload\":\"OFFLOAD_")
}

/// Returns the computations that asynchronous operations offload. In a proto the operation has the backend config, and
/// the custom call that it runs has none; the parser of text gives it to both.
fn offloaded(module: &Module<'_>) -> FxHashSet<usize> {
    let all = module.computations().iter().flat_map(Computation::instructions);
    let starts = all.filter(|it| it.opcode == "async-start" && is_offloaded(it));
    starts.flat_map(|it| &it.called_computation_ids).filter_map(|&id| module.number(id)).collect()
}

fn call_sites(
    module: &Module<'_>,
    computation: &Computation<'_>,
    offloaded: bool,
    budget: &trip_count::Budget,
) -> Vec<CallSite> {
    let mut sites = Vec::new();
    for (position, instruction) in computation.instructions().iter().enumerate() {
        let callees = instruction.called_computation_ids.as_slice();
        if callees.is_empty() {
            continue;
        }
        let count = callees.len();
        let times = |count: Option<u64>| count.map_or(Times::Unknown, Times::Exactly);
        let once = Times::Exactly(1);
        let uses = match instruction.opcode.as_str() {
            "while" => {
                let count = trip_count::of(module, computation, instruction, budget);
                // The condition follows the body. It runs once more than the body.
                let condition = count.map(|count| count.saturating_add(1));
                vec![(Via::LoopBody, times(count)), (Via::LoopCondition, times(condition))]
            }
            "scan" => vec![(Via::LoopBody, times(trip_count::of_scan(computation, instruction))); count],
            "conditional" => (0..count).map(|branch| (Via::Branch(branch), Times::AtMostOnce)).collect(),
            "fusion" => vec![(Via::Fusion, once); count],
            "call" => vec![(Via::Call, once); count],
            "async-start" => vec![(Via::Async, once); count],
            // The reducer of a collective.
            "custom-call" if communication_of_call(instruction).is_some() => continue,
            "custom-call" if offloaded || is_offloaded(instruction) => vec![(Via::Call, once); count],
            "custom-call" => vec![(Via::CustomCall, Times::Unknown); count],
            _ => continue,
        };
        let site = |(&callee, (via, times)): (&i64, (Via, Times))| {
            Some(CallSite { position, callee: module.number(callee)?, via, times, recursive: false })
        };
        sites.extend(callees.iter().zip(uses).filter_map(site));
    }
    sites
}
