//! Which plan is lowered next: the one with the smallest bound, by itself and by its relatives.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::Found;
use super::bounds::Bounds;
use super::plan::{Family, Kin, Plan};

/// A relative that does less is taken to be slower by at most so much: what is kept must be read again, and a larger
/// part may cross from one regime of a kernel to another.
const SLOWER: f64 = 0.97;

/// A relative that keeps less is taken to need more memory by at most so much.
const LARGER: f64 = 0.9;

/// The plans that are left.
pub(super) struct Queue {
    candidates: Vec<(Plan, Bounds)>,
    /// Bits of seconds, which are in order as the seconds are; then those that do least.
    left: BinaryHeap<Reverse<(u64, usize, usize)>>,
    /// Bytes that a device has.
    memory: u64,
    /// Plans that do not fit, because a relative needs much more.
    pub(super) too_large: usize,
    times: HashMap<Family, Vec<Time>>,
    memories: HashMap<Kin, Vec<Memory>>,
}

/// The time of a plan that was lowered.
struct Time {
    rank: usize,
    parts: usize,
    /// Seconds without bubbles.
    busy: f64,
    /// Seconds of bubbles.
    idle: f64,
}

/// The memory of a plan that was lowered.
struct Memory {
    rank: usize,
    parts: usize,
    bytes: f64,
}

impl Queue {
    pub(super) fn new(candidates: Vec<(Plan, Bounds)>, memory: u64) -> Queue {
        let entry = |(index, (plan, bounds)): (usize, &(Plan, Bounds))| {
            Reverse((bounds.seconds.to_bits(), plan.rank() + plan.parts(), index))
        };
        let left = candidates.iter().enumerate().map(entry).collect();
        Queue { candidates, left, memory, too_large: 0, times: HashMap::new(), memories: HashMap::new() }
    }

    /// The plan that may be fastest, with the seconds that it takes at least.
    pub(super) fn pop(&mut self) -> Option<(Plan, f64)> {
        loop {
            let Reverse((seconds, order, index)) = self.left.pop()?;
            let (plan, bounds) = &self.candidates[index];
            if self.bytes_by_relatives(plan) > self.memory as f64 {
                self.too_large += 1;
                continue;
            }
            let bound = bounds.seconds.max(self.seconds_by_relatives(plan));
            if bound.to_bits() == seconds {
                return Some((plan.clone(), bound));
            }
            // A relative was lowered in the meantime.
            self.left.push(Reverse((bound.to_bits(), order, index)));
        }
    }

    /// Remembers what is known of a plan, and with it of its relatives.
    pub(super) fn learn(&mut self, found: &Found) {
        let (plan, time) = (&found.plan, &found.time);
        let idle = match &plan.pipeline {
            // All stages compute the bubbles.
            Some(pipeline) if !pipeline.schedule.branches() => {
                let ends = (plan.size("stage") - 1) as f64 / pipeline.repeats as f64;
                time.seconds * ends / (pipeline.microbatches as f64 + ends)
            }
            _ => time.idle,
        };
        let (rank, parts) = (plan.rank(), plan.parts());
        self.times.entry(plan.family()).or_default().push(Time { rank, parts, busy: time.seconds - idle, idle });
        self.memories.entry(plan.kin()).or_default().push(Memory { rank, parts, bytes: found.bytes as f64 });
    }

    /// What a plan takes at least, by those of its family that recompute no more and have no more parts.
    fn seconds_by_relatives(&self, plan: &Plan) -> f64 {
        let Some(family) = self.times.get(&plan.family()) else { return 0.0 };
        let less = family.iter().filter(|known| known.rank <= plan.rank() && known.parts <= plan.parts());
        // Bubbles are as much shorter as there are more microbatches.
        let seconds = less.map(|known| known.busy + known.idle * known.parts as f64 / plan.parts() as f64);
        seconds.fold(0.0, f64::max) * SLOWER
    }

    /// What a plan needs at least, by those of its kin that keep no more of a row.
    fn bytes_by_relatives(&self, plan: &Plan) -> f64 {
        let Some(kin) = self.memories.get(&plan.kin()) else { return 0.0 };
        let less = kin.iter().filter(|known| known.rank >= plan.rank());
        let part = |known: &Memory| match plan.keeps_all_parts() {
            true => 1.0,
            false => (known.parts as f64 / plan.parts() as f64).min(1.0),
        };
        less.map(|known| known.bytes * part(known)).fold(0.0, f64::max) * LARGER
    }
}
