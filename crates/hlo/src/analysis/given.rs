//! How often everything runs, given some inputs: which branch a train step takes when its counter is `n`.
//!
//! The selector of a conditional is computed from the inputs ([`KnownInput`]), and in each iteration of the surrounding
//! loops if it depends on them. Branches that are not taken run zero times. If a selector depends on something else,
//! all its branches stay possible, and sums have bounds ([`Bounds`]) as they have without inputs.

use super::collectives::ModuleCollective;
pub use super::values::KnownInput;
use super::values::{ANY_ITERATION, Values};
use super::walk::{Via, Walk};
use crate::{Amount, Bounds, Branch, sum};

/// Iterations that are looked at one by one, over all loops.
const ITERATIONS: u64 = 1 << 16;

/// How often each place of a walk runs.
#[derive(Clone, Debug)]
pub struct Given {
    /// For each place, its executions: the certain ones, without branches, and those in branches that may or may not be
    /// taken.
    places: Vec<Vec<(Vec<Branch>, Amount)>>,
}

impl Walk<'_> {
    /// How often each place runs, given these inputs.
    pub fn given(&self, inputs: &[KnownInput]) -> Given {
        let own = |place: &super::walk::Place<'_>| vec![(place.branches.clone(), place.executions)];
        if self.is_merged() || self.conditional_count() == 0 {
            return Given { places: self.places().iter().map(own).collect() };
        }
        let mut run = Run {
            walk: self,
            values: Values::new(self, inputs),
            decides: self.with_conditionals(),
            places: vec![Vec::new(); self.places().len()],
            left: ITERATIONS,
        };
        run.place(0, &mut Vec::new(), &mut Vec::new(), Amount::Exactly(1));
        Given { places: run.places }
    }

    /// For each place, whether there is a conditional in it or in what it runs.
    fn with_conditionals(&self) -> Vec<bool> {
        let mut found = vec![false; self.places().len()];
        // A place follows its caller.
        for (number, place) in self.places().iter().enumerate().rev() {
            let Some(caller) = place.caller else { continue };
            found[caller.place] |= found[number] || matches!(caller.via, Via::Branch(_));
        }
        found
    }
}

impl Given {
    /// How often a collective runs.
    pub fn executions(&self, collective: &ModuleCollective) -> Bounds {
        self.total([collective], |_| Some(1))
    }

    /// Bytes that one device sends in collectives.
    pub fn moved_bytes<'c>(&self, collectives: impl IntoIterator<Item = &'c ModuleCollective>) -> Bounds {
        self.total(collectives, |collective| collective.moved_bytes)
    }

    /// A number for each execution of collectives, summed.
    pub fn total<'c>(
        &self,
        collectives: impl IntoIterator<Item = &'c ModuleCollective>,
        of_one: impl Fn(&ModuleCollective) -> Option<u64>,
    ) -> Bounds {
        let amounts = collectives.into_iter().flat_map(|collective| {
            let each = of_one(collective);
            self.places.get(collective.place).into_iter().flatten().map(move |(branches, executions)| {
                (branches.as_slice(), each.map_or(unless_never(*executions), |each| executions.times(each)))
            })
        });
        sum(amounts.collect::<Vec<_>>())
    }
}

/// What runs zero times moves nothing, whatever it is.
fn unless_never(executions: Amount) -> Amount {
    if executions == 0 { executions } else { Amount::Unknown }
}

struct Run<'w, 'a> {
    walk: &'w Walk<'a>,
    values: Values<'w, 'a>,
    decides: Vec<bool>,
    places: Vec<Vec<(Vec<Branch>, Amount)>>,
    /// Iterations that may still be looked at one by one.
    left: u64,
}

impl Run<'_, '_> {
    /// Counts a place and everything it runs, in one iteration of each surrounding loop; `None` if no particular
    /// iteration is examined. `open` are the surrounding branches that may or may not be taken.
    fn place(&mut self, number: usize, iterations: &mut Vec<u64>, open: &mut Vec<Branch>, times: Amount) {
        self.add(number, open, times);
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
                Via::LoopBody => self.body(callee, iterations, open, times),
                Via::LoopCondition => {
                    // It is asked once more than it says yes; its own numbers are not followed.
                    let body = self.walk.callees_at(number, self.position(callee)).next();
                    let count = body.and_then(|body| self.walk.trip_count(body)).map(|count| count.saturating_add(1));
                    self.unlooked(callee, iterations, open, count.map_or(Amount::Unknown, |count| times.times(count)));
                }
                Via::CustomCall => self.place(callee, iterations, open, Amount::Unknown),
                Via::Fusion | Via::Call | Via::Async => self.place(callee, iterations, open, times),
            }
        }
    }

    fn body(&mut self, body: usize, iterations: &mut Vec<u64>, open: &mut Vec<Branch>, times: Amount) {
        let Some(count) = self.walk.trip_count(body) else {
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

    /// All iterations at once: nothing that depends on the iteration is known.
    fn unlooked(&mut self, callee: usize, iterations: &mut Vec<u64>, open: &mut Vec<Branch>, times: Amount) {
        iterations.push(ANY_ITERATION);
        self.place(callee, iterations, open, times);
        iterations.pop();
    }

    /// Where in its caller's computation the instruction stands that runs a place.
    fn position(&self, callee: usize) -> usize {
        let caller = self.walk.places()[callee].caller;
        let found = caller.and_then(|caller| {
            self.walk.computation(&self.walk.places()[caller.place]).position(caller.instruction.id)
        });
        found.unwrap_or(0)
    }

    fn add(&mut self, place: usize, open: &[Branch], times: Amount) {
        let known = &mut self.places[place];
        match known.iter_mut().find(|(branches, _)| branches == open) {
            Some((_, amount)) => *amount = amount.plus(times),
            None => known.push((open.to_vec(), times)),
        }
    }
}
