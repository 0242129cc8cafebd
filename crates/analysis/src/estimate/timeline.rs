//! The time line of an uncompiled program: every instruction that can run does, in the order of the program.
//!
//! A device computes one thing at a time. A collective starts when its operands are there and its links are free, and
//! goes on beside whatever does not need its result. Loops and branches are followed to their ends first and then count
//! as one computation. Where the number of the device decides a branch, as in a pipeline whose stages branch, each
//! iteration takes as long as on the device that has most to do.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::KernelTime;
use super::hardware::Hardware;
use super::kernels::Kernels;
use crate::device_walk::DeviceWalk;
use crate::devices::Devices;
use crate::trip_count;
use crate::values::{ANY_ITERATION, Values};
use crate::walk::{Via, Walk};
use meshloom_hlo::proto::HloInstructionProto;
use meshloom_hlo::sort;
use meshloom_hlo::source::op_name;

/// The most iterations of a loop that are followed one by one; with more, all are taken to be alike.
const MOST_ITERATIONS: u64 = 1 << 12;

/// The times of a stretch of the program, in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Stretch {
    /// The time from its start to its end.
    pub(super) seconds: f64,
    /// The time of computing.
    pub(super) computing: f64,
    /// The time of waiting for the collectives of each class.
    pub(super) waiting: Vec<f64>,
    /// The time that the collectives of each class take.
    pub(super) sending: Vec<f64>,
    /// The time of waiting for other devices, which have more to do: bubbles.
    pub(super) idle: f64,
}

impl Stretch {
    fn add(&mut self, other: &Stretch, times: f64) {
        self.seconds += other.seconds * times;
        self.computing += other.computing * times;
        self.idle += other.idle * times;
        let add = |own: &mut Vec<f64>, other: &[f64]| {
            own.resize(own.len().max(other.len()), 0.0);
            own.iter_mut().zip(other).for_each(|(own, other)| *own += other * times);
        };
        add(&mut self.waiting, &other.waiting);
        add(&mut self.sending, &other.sending);
    }
}

/// A collective or a move at its place: its class, by mesh axes or direction, and the seconds of one execution.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    pub(super) class: usize,
    pub(super) seconds: f64,
}

/// The transfers of a walk, by the place and the position of the instruction that starts them.
pub(super) type Transfers = FxHashMap<(usize, usize), Transfer>;

/// A module on its way along the time line.
pub(super) struct Timeline<'w, 'a> {
    walk: &'w Walk<'a>,
    values: Values<'w, 'a>,
    devices: Devices,
    /// The first device of each set of devices that do the same.
    representatives: Vec<u64>,
    overlaps: bool,
    /// Seconds of the instructions, by number of the computation.
    kernels: FxHashMap<usize, Vec<f64>>,
    counter: Kernels<'w, 'a>,
    transfers: Transfers,
    classes: usize,
    /// Whether anything in a place, or in the places it runs, depends on the device or the iteration.
    decided: Vec<bool>,
    /// Whether all devices run the code that is being followed.
    together: bool,
    /// The times of places, with the branches that are taken in them.
    known: FxHashMap<(usize, Vec<u8>), Stretch>,
}

impl<'w, 'a> Timeline<'w, 'a> {
    pub(super) fn new(
        device_walk: &'w DeviceWalk<'a>,
        transfers: Transfers,
        (hardware, devices): (&'w Hardware, Devices),
    ) -> Timeline<'w, 'a> {
        let walk = device_walk.walk();
        Timeline {
            walk,
            values: Values::new(walk, 1),
            devices,
            representatives: device_walk.executions().representatives(),
            overlaps: hardware.overlaps,
            kernels: FxHashMap::default(),
            counter: Kernels::new(walk.module(), hardware),
            classes: transfers.values().map(|transfer| transfer.class + 1).max().unwrap_or(0),
            transfers,
            decided: walk.deciding(),
            together: true,
            known: FxHashMap::default(),
        }
    }

    /// Follows one run of the program.
    pub(super) fn run(&mut self) -> Stretch {
        if self.walk.places().is_empty() { Stretch::default() } else { self.longest(0, &mut Vec::new()) }
    }

    /// Returns the followed kernels that take longest, in all executions.
    pub(super) fn largest(&self) -> Vec<KernelTime> {
        const COUNT: usize = 8;
        let mut all = Vec::new();
        for place in self.walk.places() {
            let executions = place.assumed_executions;
            let seconds = self.kernels.get(&place.number()).into_iter().flatten();
            let kernels = seconds.zip(&place.computation.instructions).filter(|(seconds, _)| **seconds > 0.0);
            all.extend(kernels.map(|(seconds, instruction)| (seconds * executions as f64, executions, instruction)));
        }
        sort::by(&mut all, |a, b| b.0.total_cmp(&a.0));
        let kernel = |(seconds, executions, it): (f64, u64, &HloInstructionProto)| KernelTime {
            name: it.name.clone(),
            op: it.opcode.clone(),
            op_name: op_name(it).to_owned(),
            executions,
            seconds,
        };
        all.into_iter().take(COUNT).map(kernel).collect()
    }

    /// Follows a place on the device that takes longest.
    fn longest(&mut self, place: usize, iterations: &mut Vec<u64>) -> Stretch {
        if !self.decided[place] {
            return self.place(place, iterations);
        }
        let mut all = Vec::new();
        for device in self.representatives.clone() {
            self.values.become_device(device, self.devices);
            all.push(self.place(place, iterations));
        }
        let busy = |stretch: &Stretch| stretch.seconds - stretch.idle;
        let mean = all.iter().map(busy).sum::<f64>() / all.len().max(1) as f64;
        let longest = all.into_iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        longest.map_or_else(Stretch::default, |stretch| Stretch { idle: stretch.seconds - mean, ..stretch })
    }

    /// Follows a place on the device that the values belong to.
    fn place(&mut self, place: usize, iterations: &mut Vec<u64>) -> Stretch {
        let mut taken = Vec::new();
        if self.decided[place] {
            self.branches(place, iterations, &mut taken);
        }
        if let Some(known) = self.known.get(&(place, taken.clone())) {
            return known.clone();
        }
        let stretch = self.follow(place, iterations);
        self.known.insert((place, taken), stretch.clone());
        stretch
    }

    /// Collects the branches that are taken in a place, outside of its loops.
    fn branches(&mut self, place: usize, iterations: &mut Vec<u64>, taken: &mut Vec<u8>) {
        for callee in self.walk.places()[place].callees.clone() {
            let Some(caller) = self.walk.places()[callee].caller else { continue };
            match caller.via {
                Via::Branch(branch) => {
                    let chosen = self.values.branch(place, caller.instruction, iterations);
                    if branch == 0 {
                        taken.push(chosen.map_or(u8::MAX, |chosen| chosen as u8));
                    }
                    if chosen.is_none_or(|chosen| chosen == branch) {
                        self.branches(callee, iterations, taken);
                    }
                }
                // In loops that devices go through together, nothing depends on the device.
                Via::LoopBody if !self.together => {
                    let count = self.values.trips(place, caller.instruction, iterations);
                    taken.extend(count.unwrap_or(u64::MAX).to_le_bytes());
                    for iteration in 0..count.filter(|_| self.decided[callee]).unwrap_or(0).min(MOST_ITERATIONS) {
                        iterations.push(iteration);
                        self.branches(callee, iterations, taken);
                        iterations.pop();
                    }
                }
                Via::Call | Via::Async if self.decided[callee] => self.branches(callee, iterations, taken),
                _ => {}
            }
        }
    }

    /// Returns the time of an instruction that runs other computations.
    fn called(&mut self, place: usize, position: usize, iterations: &mut Vec<u64>) -> Stretch {
        let mut sum = Stretch::default();
        let mut largest: Option<Stretch> = None;
        for callee in self.walk.callees_at(place, position) {
            let Some(caller) = self.walk.places()[callee].caller else { continue };
            match caller.via {
                Via::LoopBody => {
                    let count = self.values.trips(place, caller.instruction, iterations);
                    let count = count.or_else(|| trip_count::stated(caller.instruction)).unwrap_or(1);
                    sum.add(&self.iterations(callee, count, iterations), 1.0);
                }
                Via::Branch(branch) => {
                    let chosen = self.values.branch(place, caller.instruction, iterations);
                    if chosen.is_none_or(|chosen| chosen == branch) {
                        let together = std::mem::replace(&mut self.together, false);
                        let stretch = self.place(callee, iterations);
                        self.together = together;
                        if largest.as_ref().is_none_or(|largest| stretch.seconds > largest.seconds) {
                            largest = Some(stretch);
                        }
                    }
                }
                Via::Call | Via::Async => sum.add(&self.place(callee, iterations), 1.0),
                Via::LoopCondition | Via::Fusion | Via::CustomCall => {}
            }
        }
        if let Some(largest) = largest {
            sum.add(&largest, 1.0);
        }
        sum
    }

    fn iteration(&mut self, body: usize, iteration: u64, iterations: &mut Vec<u64>) -> Stretch {
        iterations.push(iteration);
        let stretch = self.place(body, iterations);
        iterations.pop();
        stretch
    }

    /// Returns the time of this many iterations of a loop's body. Devices that go through it together wait for each
    /// other in each iteration.
    fn iterations(&mut self, body: usize, count: u64, iterations: &mut Vec<u64>) -> Stretch {
        let mut sum = Stretch::default();
        if !self.decided[body] || count > MOST_ITERATIONS {
            sum.add(&self.iteration(body, ANY_ITERATION, iterations), count as f64);
            return sum;
        }
        if !self.together {
            (0..count).for_each(|iteration| sum.add(&self.iteration(body, iteration, iterations), 1.0));
            return sum;
        }
        self.together = false;
        let own = self.values.device_number(self.devices);
        let mut busy = vec![Stretch::default(); count as usize];
        let mut total = vec![0.0; count as usize];
        let representatives = self.representatives.clone();
        for &device in &representatives {
            self.values.become_device(device, self.devices);
            for iteration in 0..count {
                let stretch = self.iteration(body, iteration, iterations);
                total[iteration as usize] += stretch.seconds - stretch.idle;
                if stretch.seconds > busy[iteration as usize].seconds {
                    busy[iteration as usize] = stretch;
                }
            }
        }
        self.together = true;
        if let Some(own) = own {
            self.values.become_device(own, self.devices);
        }
        let devices = representatives.len().max(1) as f64;
        for (mut stretch, total) in busy.into_iter().zip(total) {
            stretch.idle = stretch.seconds - total / devices;
            sum.add(&stretch, 1.0);
        }
        sum
    }

    /// Runs a place from its start.
    fn follow(&mut self, place: usize, iterations: &mut Vec<u64>) -> Stretch {
        let found = &self.walk.places()[place];
        let (number, instructions) = (found.number(), &found.computation.instructions);
        if !self.kernels.contains_key(&number) {
            let seconds = self.counter.seconds(number);
            self.kernels.insert(number, seconds);
        }
        let computation = self.walk.computation(found);
        let mut run = Following::new(instructions.len(), self.classes);
        for (position, instruction) in instructions.iter().enumerate() {
            for operand in computation.operand_positions(instruction) {
                run.users[operand].push(position as u32);
                run.missing[position] += 1;
            }
        }
        for position in 0..instructions.len() {
            if run.missing[position] == 0 {
                run.ready(position, 0.0, None);
            }
        }
        let mut stretch =
            Stretch { waiting: vec![0.0; self.classes], sending: vec![0.0; self.classes], ..Stretch::default() };
        while let Some(position) = run.next(&mut stretch) {
            if let Some(&transfer) = self.transfers.get(&(place, position)) {
                stretch.sending[transfer.class] += transfer.seconds;
                run.send(position, transfer, self.overlaps, &mut stretch);
                continue;
            }
            let callees = self.walk.callees_at(place, position);
            if callees.is_empty() {
                let seconds = self.kernels[&number][position];
                stretch.computing += seconds;
                run.compute(position, seconds);
                continue;
            }
            let inner = self.called(place, position, iterations);
            let seconds = inner.seconds;
            stretch.add(&Stretch { seconds: 0.0, ..inner }, 1.0);
            run.compute(position, seconds);
        }
        if let Some(class) = run.blame.filter(|_| run.last > run.clock) {
            stretch.waiting[class] += run.last - run.clock;
        }
        stretch.seconds = run.end();
        stretch
    }
}

/// A computation that is being followed.
struct Following {
    users: Vec<Vec<u32>>,
    /// The number of operands that each instruction still waits for.
    missing: Vec<u32>,
    /// The time at which each instruction will have its operands, and the class of the collective that it waits for
    /// last.
    since: Vec<(f64, Option<usize>)>,
    /// The instructions that have their operands, by position.
    available: BinaryHeap<Reverse<u32>>,
    /// The instructions that will have their operands, by time, whose bits are in its order.
    pending: BinaryHeap<Reverse<(u64, u32)>>,
    /// The time at which each class's links are free.
    free: Vec<f64>,
    clock: f64,
    /// The time at which the last result is there.
    last: f64,
    /// The class of the collective that makes the last result, or that it waits for.
    blame: Option<usize>,
}

impl Following {
    fn new(count: usize, classes: usize) -> Following {
        Following {
            users: vec![Vec::new(); count],
            missing: vec![0; count],
            since: vec![(0.0, None); count],
            available: BinaryHeap::new(),
            pending: BinaryHeap::new(),
            free: vec![0.0; classes],
            clock: 0.0,
            last: 0.0,
            blame: None,
        }
    }

    fn ready(&mut self, position: usize, time: f64, blame: Option<usize>) {
        self.since[position] = (time, blame);
        if time <= self.clock {
            self.available.push(Reverse(position as u32));
        } else {
            self.pending.push(Reverse((time.to_bits(), position as u32)));
        }
    }

    /// Returns the next instruction that has its operands; the clock waits for it.
    fn next(&mut self, stretch: &mut Stretch) -> Option<usize> {
        loop {
            while let Some(&Reverse((time, position))) = self.pending.peek()
                && f64::from_bits(time) <= self.clock
            {
                self.pending.pop();
                self.available.push(Reverse(position));
            }
            if let Some(Reverse(position)) = self.available.pop() {
                return Some(position as usize);
            }
            let &Reverse((time, position)) = self.pending.peek()?;
            let time = f64::from_bits(time);
            if let (_, Some(class)) = self.since[position as usize] {
                stretch.waiting[class] += time - self.clock;
            }
            self.clock = time;
        }
    }

    fn compute(&mut self, position: usize, seconds: f64) {
        if seconds == 0.0 {
            // The result is there as soon as its operands are.
            let (time, blame) = self.since[position];
            return self.done(position, time.max(0.0), blame);
        }
        self.clock += seconds;
        self.done(position, self.clock, None);
    }

    fn send(&mut self, position: usize, transfer: Transfer, overlaps: bool, stretch: &mut Stretch) {
        let Transfer { class, seconds } = transfer;
        if !overlaps {
            self.clock += seconds;
            stretch.waiting[class] += seconds;
            return self.done(position, self.clock, None);
        }
        let start = self.since[position].0.max(self.free[class]);
        self.free[class] = start + seconds;
        self.done(position, start + seconds, Some(class));
    }

    fn done(&mut self, position: usize, time: f64, blame: Option<usize>) {
        if time > self.last {
            (self.last, self.blame) = (time, blame);
        }
        for user in std::mem::take(&mut self.users[position]) {
            let user = user as usize;
            if time > self.since[user].0 {
                self.since[user] = (time, blame);
            }
            self.missing[user] -= 1;
            if self.missing[user] == 0 {
                let (time, blame) = self.since[user];
                self.ready(user, time, blame);
            }
        }
    }

    fn end(&self) -> f64 {
        self.clock.max(self.last)
    }
}
