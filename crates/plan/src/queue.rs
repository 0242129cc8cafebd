//! The queue of plans. The plan that is lowered next is the one with the smallest bound, by itself and by its
//! relatives.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::blocks::AttentionBlocks;
use super::bounds::{Bounds, least_bubble};
use super::plan::{DOTS, Keeping, MOST_RECOMPUTED, MemoryClass, Plan, RematClass, Split, WITHIN_ROWS};
use super::{Hardware, LoweredPlan};
use meshloom::analysis::StepTime;

/// The factor by which a relative that does less may be slower: kept values must be read again, and a larger part may
/// cross from one regime of a kernel to another.
const SLOWER: f64 = 0.97;

/// Whether a plan that recomputes so much says how long another takes at least: the same; one that keeps a shorter list
/// of names, or nothing. `dots` does so of one that keeps nothing, and `none` of no other: what they write and read
/// again can take longer than it takes to compute it.
fn recomputes_less(known: usize, rank: usize) -> bool {
    known == rank || (DOTS + 1..rank).contains(&known) || known == DOTS && rank == MOST_RECOMPUTED
}

/// A relative that keeps less is taken to need more memory by at most so much.
const LARGER: f64 = 0.9;

pub(super) struct Queue {
    candidates: Vec<(Plan, Bounds)>,
    /// Bits of seconds, which are in order as the seconds are; then those that do least.
    left: BinaryHeap<Reverse<(u64, usize, usize)>>,
    memory: u64,
    /// Whether smaller pieces can be faster than larger ones, so that relatives say nothing of time.
    favours_small: bool,
    blocks: AttentionBlocks,
    /// Plans that do not fit, because a relative needs much more.
    pub(super) too_large: usize,
    times: HashMap<RematClass, Vec<Time>>,
    memories: HashMap<MemoryClass, Vec<KnownMemory>>,
    works: HashMap<Split, Vec<Work>>,
}

struct Time {
    rank: usize,
    parts: usize,
    /// The [blocks of attention](AttentionBlocks::of).
    blocks: usize,
    /// Seconds without bubbles.
    busy: f64,
    /// Seconds of bubbles.
    idle: f64,
}

/// The work of a device under a plan that was lowered, and its waits within a row.
struct Work {
    rank: usize,
    pieces: usize,
    blocks: usize,
    replicas: usize,
    seconds: f64,
}

struct KnownMemory {
    rank: usize,
    parts: usize,
    bytes: f64,
}

impl Queue {
    pub(super) fn new(
        candidates: Vec<(Plan, Bounds)>,
        hardware: &Hardware,
        memory: u64,
        blocks: AttentionBlocks,
    ) -> Queue {
        let mut queue = Queue {
            candidates: Vec::new(),
            left: BinaryHeap::new(),
            memory,
            favours_small: hardware.reached.cache.is_some() || hardware.reached.fresh > 0.0,
            blocks,
            too_large: 0,
            times: HashMap::new(),
            memories: HashMap::new(),
            works: HashMap::new(),
        };
        queue.extend(candidates);
        queue
    }

    pub(super) fn extend(&mut self, candidates: impl IntoIterator<Item = (Plan, Bounds)>) {
        for (plan, bounds) in candidates {
            let entry = (bounds.seconds.to_bits(), plan.rank() + plan.parts(), self.candidates.len());
            self.left.push(Reverse(entry));
            self.candidates.push((plan, bounds));
        }
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
            let bound = bounds.seconds.max(self.seconds_by_relatives(plan)).max(self.seconds_by_work(plan));
            if bound.to_bits() == seconds {
                return Some((plan.clone(), bound));
            }
            // A relative was lowered in the meantime.
            self.left.push(Reverse((bound.to_bits(), order, index)));
        }
    }

    /// Records what is known of a plan, for the bounds of its relatives.
    pub(super) fn learn(&mut self, plan: &Plan, found: &LoweredPlan) {
        // How long moves are waited for says nothing of plans without them.
        if plan.offloads() {
            return;
        }
        let memory = KnownMemory { rank: plan.rank(), parts: plan.parts(), bytes: found.bytes as f64 };
        self.memories.entry(plan.memory_class()).or_default().push(memory);
        if let Some(time) = found.time.as_ref().filter(|_| !self.favours_small) {
            self.learn_time(plan, time);
        }
    }

    fn learn_time(&mut self, plan: &Plan, time: &StepTime) {
        let (rank, parts, blocks) = (plan.rank(), plan.parts(), self.blocks.of(plan));
        let idle = match &plan.pipeline {
            // All stages compute the bubbles.
            Some(pipeline) if !pipeline.schedule.branches() => {
                let ends = (plan.size("stage") - 1) as f64 / pipeline.repeats as f64;
                time.seconds * ends / (pipeline.microbatches as f64 + ends)
            }
            _ => time.idle,
        };
        self.times.entry(plan.remat_class()).or_default().push(Time {
            rank,
            parts,
            blocks,
            busy: time.seconds - idle,
            idle,
        });
        let is_within = |axes: &str| axes.split(',').all(|axis| WITHIN_ROWS.contains(&axis));
        let within = time.transfers.iter().filter(|transfer| is_within(&transfer.axes));
        let working = time.computing + within.map(|transfer| transfer.waiting).sum::<f64>();
        let seconds = match plan.memory_class().2 {
            Keeping::All => working * (1.0 - idle / time.seconds),
            Keeping::Part | Keeping::Table(..) => working,
        };
        let (pieces, replicas) = (plan.pieces(), plan.size("replica"));
        self.works.entry(plan.split()).or_default().push(Work { rank, pieces, blocks, replicas, seconds });
    }

    /// Returns the least time that a plan takes, by the plans of its family that recompute no more, have no more parts,
    /// and have no smaller blocks.
    fn seconds_by_relatives(&self, plan: &Plan) -> f64 {
        let Some(family) = self.times.get(&plan.remat_class()) else { return 0.0 };
        let (rank, parts, blocks) = (plan.rank(), plan.parts(), self.blocks.of(plan));
        let is_less = |it: &&Time| recomputes_less(it.rank, rank) && it.parts <= parts && it.blocks >= blocks;
        let less = family.iter().filter(is_less);
        // Bubbles are as much shorter as there are more microbatches.
        let seconds = less.map(|known| known.busy + known.idle * known.parts as f64 / parts as f64);
        seconds.fold(0.0, f64::max) * SLOWER
    }

    /// Returns the least time that a plan takes, by the plans that split a row in the same way. Whether other axes
    /// split batch, weights or layers, a device computes as much in all, and waits as long for transfers within a row.
    /// Smaller pieces make products no faster, and replicas convert more.
    fn seconds_by_work(&self, plan: &Plan) -> f64 {
        let Some(alike) = self.works.get(&plan.split()) else { return 0.0 };
        let (rank, pieces, replicas) = (plan.rank(), plan.pieces(), plan.size("replica"));
        let blocks = self.blocks.of(plan);
        let is_less = |it: &&Work| {
            recomputes_less(it.rank, rank) && it.pieces <= pieces && it.blocks >= blocks && it.replicas <= replicas
        };
        let least = alike.iter().filter(is_less).map(|work| work.seconds).reduce(f64::min);
        least.unwrap_or(0.0) * SLOWER / (1.0 - least_bubble(plan))
    }

    /// Returns the least memory that a plan needs, by the plans of its kin that keep no more of a row.
    fn bytes_by_relatives(&self, plan: &Plan) -> f64 {
        let kin = plan.memory_class();
        let Some(alike) = self.memories.get(&kin) else { return 0.0 };
        let less = alike.iter().filter(|known| known.rank >= plan.rank_of_memory());
        let part = |known: &KnownMemory| match kin.2 {
            Keeping::All => 1.0,
            Keeping::Part | Keeping::Table(..) => (known.parts as f64 / plan.parts() as f64).min(1.0),
        };
        less.map(|known| known.bytes * part(known)).fold(0.0, f64::max) * LARGER
    }
}
