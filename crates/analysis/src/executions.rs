//! The number of executions of everything, on each device, given some inputs: the branch that a train step takes when
//! its counter is `n`, and the work that a stage of a pipeline does in an iteration.
//!
//! The selector of a conditional is computed from the number of the device and from inputs ([`KnownInput`]), in each
//! iteration of the surrounding loops if it depends on them. The iterations of a loop without a fixed number are
//! computed in the same way. Branches that are not taken run zero times. If a selector depends on something else, all
//! its branches stay possible, and sums have bounds ([`Bounds`]).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHasher;

use super::devices::Devices;
pub use super::values::KnownInput;
use super::values::{ANY_ITERATION, Values};
use super::walk::{Place, Via, Walk};
use crate::{Amount, Bounds, Branch};

/// The most iterations that are looked at one by one, over all loops of a device.
const ITERATIONS: u64 = 1 << 16;
/// The most devices that are told apart; no program is made for more.
const DEVICES: u64 = 1 << 13;

/// The number of executions of each place of a walk, on each device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceExecutions {
    /// The runs of devices, each different one once.
    runs: Vec<Arc<DeviceRun>>,
    /// The number of each device's run; empty if all devices have the first.
    of_device: Vec<usize>,
    devices: Devices,
}

/// The executions on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceRun {
    pub(super) places: Vec<PlaceRun>,
    /// For each place that is the body of a loop, the number of iterations of the loop, each time it is run. This is
    /// not in [`PlaceRun`], because a loop without iterations makes no difference to a device.
    iterations: Vec<Option<Bounds>>,
}

/// The number of executions of a place on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PlaceRun {
    /// The certain executions, without branches, and those in branches that may or may not be taken.
    pub(super) amounts: Vec<(Vec<Branch>, Amount)>,
    /// A hash of the iterations in which it runs. Devices that run it in other iterations have another hash.
    when: u64,
}

impl Walk<'_> {
    /// Returns how often each place runs on each of these devices, given these inputs.
    pub fn given(&self, inputs: &[KnownInput], devices: Devices) -> DeviceExecutions {
        let mut found = [(inputs, DeviceExecutions::nothing(devices))];
        self.follow(&mut found, devices);
        let [(_, given)] = found;
        given
    }

    /// Returns the same for each of several sets of inputs. Everything that does not depend on them, such as the stages
    /// of a pipeline, is computed once.
    pub fn given_each(&self, inputs: &[Vec<KnownInput>], devices: Devices) -> Vec<DeviceExecutions> {
        let mut found: Vec<_> =
            inputs.iter().map(|inputs| (inputs.as_slice(), DeviceExecutions::nothing(devices))).collect();
        self.follow(&mut found, devices);
        found.into_iter().map(|(_, given)| given).collect()
    }

    fn follow(&self, found: &mut [(&[KnownInput], DeviceExecutions)], devices: Devices) {
        let decides = self.deciding();
        if self.is_merged() || !decides.contains(&true) {
            let whichever = self.whichever(devices);
            found.iter_mut().for_each(|(_, given)| given.clone_from(&whichever));
            return;
        }
        let count = devices.replicas.saturating_mul(devices.partitions);
        let mut values = Values::new(self, found.len());
        let mut runs: Vec<Arc<DeviceRun>> = Vec::new();
        for device in 0..count.max(1) {
            if count <= DEVICES {
                values.become_device(device, devices);
            }
            for (inputs, given) in &mut *found {
                values.take_inputs(inputs);
                let run = Follow::program(self, &mut values, &decides);
                let run = match runs.iter().find(|known| ***known == run) {
                    Some(known) => known.clone(),
                    None => {
                        let run = Arc::new(run);
                        runs.push(run.clone());
                        run
                    }
                };
                given.add(run);
            }
            if !values.depends_on_device() || count > DEVICES {
                break;
            }
        }
        for (_, given) in found.iter_mut().filter(|(_, given)| given.runs.len() == 1) {
            given.of_device.clear();
        }
    }

    /// Returns how often each place runs, whichever branches are taken.
    pub(super) fn whichever(&self, devices: Devices) -> DeviceExecutions {
        let own = |place: &Place<'_>| PlaceRun { amounts: vec![(place.branches.clone(), place.executions)], when: 0 };
        let places = self.places().iter().map(own).collect();
        DeviceExecutions {
            runs: vec![Arc::new(DeviceRun { places, iterations: Vec::new() })],
            ..DeviceExecutions::nothing(devices)
        }
    }

    /// Returns for each place whether anything in it, or in the places it runs, is decided while it runs.
    pub(super) fn deciding(&self) -> Vec<bool> {
        let mut found = vec![false; self.places().len()];
        // A place follows its caller.
        for (number, place) in self.places().iter().enumerate().rev() {
            let Some(caller) = place.caller else { continue };
            let decided = match caller.via {
                Via::Branch(_) => true,
                Via::LoopBody => self.trip_count(number).is_none(),
                _ => false,
            };
            found[caller.place] |= found[number] || decided;
        }
        found
    }
}

impl DeviceExecutions {
    /// Returns the runs of devices, each different one once.
    pub(super) fn runs(&self) -> impl Iterator<Item = &DeviceRun> {
        self.runs.iter().map(|run| &**run)
    }

    /// Returns the run of a device, where devices differ; `None` if there is no such device.
    pub(super) fn run_of(&self, device: u64) -> Option<&DeviceRun> {
        let number = usize::try_from(device).ok()?;
        Some(self.runs.get(*self.of_device.get(number)?)?)
    }

    /// Whether all devices do the same.
    pub(super) fn is_same_on_all(&self) -> bool {
        self.of_device.is_empty()
    }

    /// The devices that are told apart.
    pub(super) fn devices(&self) -> Devices {
        self.devices
    }

    /// Returns the first device of each set of devices that do the same.
    pub(super) fn representatives(&self) -> Vec<u64> {
        let of_run = |run: usize| self.of_device.iter().position(|&own| own == run).unwrap_or(0) as u64;
        (0..self.runs.len()).map(of_run).collect()
    }

    fn nothing(devices: Devices) -> DeviceExecutions {
        DeviceExecutions { runs: Vec::new(), of_device: Vec::new(), devices }
    }

    /// Adds the run of the next device.
    fn add(&mut self, run: Arc<DeviceRun>) {
        let known = self.runs.iter().position(|known| Arc::ptr_eq(known, &run));
        self.of_device.push(known.unwrap_or(self.runs.len()));
        if known.is_none() {
            self.runs.push(run);
        }
    }

    /// Returns the branches that may or may not be taken around a place, and how often it runs if they are: on all
    /// devices, or the most on any. It is `None` if one amount cannot say it.
    pub(super) fn of_place(&self, place: usize) -> Option<(Vec<Branch>, Amount)> {
        let nothing = (Vec::new(), Amount::Exactly(0));
        let mut all = self.runs.iter().map(|run| match run.places.get(place)?.amounts.as_slice() {
            [] => Some(&nothing),
            [only] => Some(only),
            _ => None,
        });
        let (branches, first) = all.next()??;
        let executions = all.try_fold(*first, |most, amount| {
            let (others, amount) = amount?;
            let most = if most == *amount { most } else { Amount::AtMost(most.bound()?.max(amount.bound()?)) };
            (branches == others).then_some(most)
        })?;
        Some((branches.clone(), executions))
    }

    /// Returns the iterations of the loop whose body is a place: the fewest and the most of any run of the loop, on any
    /// device. It is `None` if the place is no body, or if the walk itself says as much.
    pub fn iterations(&self, body: usize) -> Option<Bounds> {
        self.runs.iter().filter_map(|run| *run.iterations.get(body)?).reduce(Bounds::or)
    }
}

impl PlaceRun {
    /// Whether it may or may not run, for all that is known.
    pub(super) fn is_open(&self) -> bool {
        self.amounts.iter().any(|(branches, amount)| !branches.is_empty() || !matches!(amount, Amount::Exactly(_)))
    }
}

/// Follows one device through the program.
struct Follow<'f, 'w, 'a> {
    walk: &'w Walk<'a>,
    values: &'f mut Values<'w, 'a>,
    decides: &'f [bool],
    run: DeviceRun,
    /// The number of iterations that may still be looked at one by one.
    left: u64,
}

impl<'f, 'w, 'a> Follow<'f, 'w, 'a> {
    fn program(walk: &'w Walk<'a>, values: &'f mut Values<'w, 'a>, decides: &'f [bool]) -> DeviceRun {
        let count = walk.places().len();
        let run = DeviceRun { places: vec![PlaceRun::default(); count], iterations: vec![None; count] };
        let mut follow = Follow { walk, values, decides, run, left: ITERATIONS };
        follow.place(0, &mut Vec::new(), &mut Vec::new(), Amount::Exactly(1));
        follow.run
    }

    /// Counts a place and everything it runs, in one iteration of each surrounding loop, or in [`ANY_ITERATION`].
    /// `open` are the surrounding branches that may or may not be taken.
    fn place(&mut self, number: usize, iterations: &mut Vec<u64>, open: &mut Vec<Branch>, times: Amount) {
        self.add(number, iterations, open, times);
        for callee in self.walk.places()[number].callees.clone() {
            let Some(caller) = self.walk.places()[callee].caller else { continue };
            match caller.via {
                Via::Branch(branch) => {
                    let conditional = caller.instruction;
                    match self.values.branch(number, conditional, iterations) {
                        Some(taken) if taken == branch => self.place(callee, iterations, open, times),
                        Some(_) => {}
                        None => {
                            open.extend(self.walk.places()[callee].branches.last());
                            self.place(callee, iterations, open, times.or_less());
                            open.pop();
                        }
                    }
                }
                Via::LoopBody => {
                    let count = self.values.trips(number, caller.instruction, iterations);
                    let now = Bounds { least: count.unwrap_or(0), most: count };
                    let known = &mut self.run.iterations[callee];
                    *known = Some(known.map_or(now, |known| known.or(now)));
                    self.body(callee, iterations, open, times, count);
                }
                Via::LoopCondition => {
                    // The condition runs once more than the body; numbers in it are not followed.
                    let count = self.values.trips(number, caller.instruction, iterations);
                    let count = count.map(|count| count.saturating_add(1));
                    self.unlooked(callee, iterations, open, count.map_or(Amount::Unknown, |count| times.times(count)));
                }
                Via::CustomCall => self.place(callee, iterations, open, Amount::Unknown),
                Via::Fusion | Via::Call | Via::Async => self.place(callee, iterations, open, times),
            }
        }
    }

    fn body(
        &mut self,
        body: usize,
        iterations: &mut Vec<u64>,
        open: &mut Vec<Branch>,
        times: Amount,
        count: Option<u64>,
    ) {
        let Some(count) = count else {
            return self.unlooked(body, iterations, open, Amount::Unknown);
        };
        if !self.decides[body] || count > self.left {
            return self.unlooked(body, iterations, open, times.times(count));
        }
        self.left -= count;
        for iteration in 0..count {
            iterations.push(iteration);
            self.place(body, iterations, open, times);
            iterations.pop();
        }
    }

    /// Counts all iterations at once: nothing that depends on the iteration is known.
    fn unlooked(&mut self, callee: usize, iterations: &mut Vec<u64>, open: &mut Vec<Branch>, times: Amount) {
        iterations.push(ANY_ITERATION);
        self.place(callee, iterations, open, times);
        iterations.pop();
    }

    fn add(&mut self, place: usize, iterations: &[u64], open: &[Branch], times: Amount) {
        let known = &mut self.run.places[place];
        // A body that runs zero times runs in no iteration.
        if times != Amount::Exactly(0) {
            let mut hasher = FxHasher::default();
            (known.when, iterations).hash(&mut hasher);
            known.when = hasher.finish();
        }
        match known.amounts.iter_mut().find(|(branches, _)| branches == open) {
            Some((_, amount)) => *amount = amount.plus(times),
            None => known.amounts.push((open.to_vec(), times)),
        }
    }
}
