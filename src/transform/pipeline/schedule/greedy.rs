//! Tables by a greedy rule with a few parameters, over which `search` looks for the best.
//!
//! In each tick, each stage takes what is there: the next forward pass that it may do, the oldest backward pass. Then
//! the tick lasts as long as the stage that has most to do, and the others fill the rest with gradients of weights.

use super::{Cell, Cost, Item, Shape, Table};

/// The work that a stage may do in a tick besides gradients of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// One pass.
    One(Prefer),
    /// A forward pass and a backward pass. If both would go the same way, the stage does the preferred one.
    Both {
        prefer: Prefer,
        /// Whether the backward pass of the last virtual stage follows in the tick of its forward pass.
        at_once: bool,
    },
}

/// The pass that a stage takes if it could do both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefer {
    Forward,
    Backward,
    /// By turns, odd stages against even ones.
    Alternate,
}

impl Prefer {
    fn backward(self, tick: usize, stage: usize) -> bool {
        match self {
            Prefer::Forward => false,
            Prefer::Backward => true,
            Prefer::Alternate => tick % 2 == stage % 2,
        }
    }
}

/// The rule's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GreedyRule {
    pub mode: Mode,
    /// Microbatches that may be under way. With one chunk, stage s may hold `in_flight - slope * s`.
    pub in_flight: usize,
    pub slope: usize,
    /// Microbatches, in chunks, whose weights may wait before a tick is made longer for them.
    pub waiting: usize,
    /// Whether a forward pass of a later chunk goes first.
    pub deep: bool,
}

/// Where to give up: no better table can come of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The time of the best table so far.
    pub time: f64,
    /// Items that a stage may hold.
    pub held: usize,
}

/// A table, its time in lock step, and the items that a stage holds at most.
pub(super) struct Made {
    pub table: Table,
    pub time: f64,
    pub held: usize,
}

const NEVER: u32 = u32::MAX;
/// Times that differ by less are the same.
pub(super) const EPSILON: f64 = 1e-9;

/// The work that all stages have done so far, by `[stage * chunks + chunk]`.
struct DoneWork<'a> {
    shape: &'a Shape,
    costs: &'a [Cost],
    forwards: Vec<usize>,
    backwards: Vec<usize>,
    weights: Vec<usize>,
    /// By virtual stage and microbatch: the tick of each pass.
    forward_at: Vec<u32>,
    backward_at: Vec<u32>,
    /// Items held on each stage.
    held: Vec<usize>,
}

/// A chunk and a microbatch of a pass; `None` if there is no pass.
type ChunkPass = Option<(usize, usize)>;

/// Makes a table. Returns `None` if the table would not keep within the bounds, or no stage can go on.
pub(super) fn greedy(shape: &Shape, costs: &[Cost], rule: &GreedyRule, bounds: Bounds) -> Option<Made> {
    let &Shape { stages, microbatches, chunks, .. } = shape;
    let all = microbatches * chunks;
    let mut state = DoneWork::new(shape, costs);
    let mut ticks: Vec<Vec<Cell>> = Vec::with_capacity(2 * all);
    let (mut time, mut most_held) = (0.0, 0);
    let mut passes: Vec<(ChunkPass, ChunkPass)> = vec![(None, None); stages];
    let mut left = stages * all;
    while left > 0 {
        let tick = ticks.len();
        for (stage, passes) in passes.iter_mut().enumerate() {
            *passes = state.choose(tick, stage, rule);
        }
        let mut row = vec![Cell::default(); stages];
        let mut lasts = vec![0.0; stages];
        for (stage, &(forward, backward)) in passes.iter().enumerate() {
            lasts[stage] += state.forward(tick, stage, forward, &mut row[stage]);
            most_held = state.held[stage].max(most_held);
            lasts[stage] += state.backward(tick, stage, backward, &mut row[stage]);
            left -= usize::from(backward.is_some());
        }
        if most_held > bounds.held {
            return None;
        }
        if shape.split {
            state.fill(rule, &mut row, &mut lasts);
        }
        if row.iter().all(Cell::is_empty) {
            return None;
        }
        time += lasts.iter().copied().fold(0.0, f64::max);
        ticks.push(row);
        if time > bounds.time + EPSILON {
            return None;
        }
    }
    let rest = shape.split.then(|| state.rest()).flatten();
    if let Some((row, lasts)) = rest {
        time += lasts;
        ticks.push(row);
    }
    let table = Table { shape: *shape, ticks };
    (time <= bounds.time + EPSILON).then_some(Made { table, time, held: most_held })
}

impl<'a> DoneWork<'a> {
    fn new(shape: &'a Shape, costs: &'a [Cost]) -> DoneWork<'a> {
        let (chunks, items) = (shape.stages * shape.chunks, shape.virtual_stages() * shape.microbatches);
        DoneWork {
            shape,
            costs,
            forwards: vec![0; chunks],
            backwards: vec![0; chunks],
            weights: vec![0; chunks],
            forward_at: vec![NEVER; items],
            backward_at: vec![NEVER; items],
            held: vec![0; shape.stages],
        }
    }

    fn at(&self, virtual_stage: usize, microbatch: usize) -> usize {
        virtual_stage * self.shape.microbatches + microbatch
    }

    fn chunks_of(&self, stage: usize) -> std::ops::Range<usize> {
        stage * self.shape.chunks..(stage + 1) * self.shape.chunks
    }

    /// The microbatch whose forward pass a chunk can do in a tick, and may.
    fn next_forward(&self, tick: usize, stage: usize, chunk: usize, rule: &GreedyRule) -> ChunkPass {
        let here = self.shape.virtual_stage(stage, chunk);
        let at = stage * self.shape.chunks + chunk;
        let microbatch = self.forwards[at];
        if microbatch >= self.shape.microbatches {
            return None;
        }
        if here > 0 && self.forward_at[self.at(here - 1, microbatch)] as usize >= tick {
            return None;
        }
        if here == 0 || self.shape.chunks == 1 {
            let most = rule.in_flight.saturating_sub(rule.slope * stage).max(1);
            if microbatch - self.backwards[at] >= most {
                return None;
            }
            // Items whose weights are not done count as held.
            if self.shape.split && microbatch - self.weights[at] >= rule.in_flight + rule.waiting {
                return None;
            }
        }
        Some((chunk, microbatch))
    }

    /// The microbatch whose backward pass a chunk can do in a tick, if the forward pass `now` is done in it too.
    fn next_backward(&self, tick: usize, stage: usize, chunk: usize, now: ChunkPass) -> ChunkPass {
        let here = self.shape.virtual_stage(stage, chunk);
        let at = stage * self.shape.chunks + chunk;
        let microbatch = self.backwards[at];
        if microbatch >= self.shape.microbatches {
            return None;
        }
        let there = if here + 1 == self.shape.virtual_stages() {
            now == Some((chunk, microbatch)) || (self.forward_at[self.at(here, microbatch)] as usize) < tick
        } else {
            (self.backward_at[self.at(here + 1, microbatch)] as usize) < tick
        };
        there.then_some((chunk, microbatch))
    }

    /// The oldest backward pass that does not collide with a forward pass. The last chunk wins among passes of the same
    /// age.
    fn oldest_backward(&self, tick: usize, stage: usize, forward: ChunkPass, at_once: bool) -> ChunkPass {
        let now = if at_once { forward } else { None };
        let candidates = (0..self.shape.chunks).filter_map(|chunk| self.next_backward(tick, stage, chunk, now));
        let free = candidates
            .filter(|(chunk, _)| forward.is_none_or(|(forward, _)| !self.shape.collide(stage, forward, *chunk)));
        free.min_by_key(|&(chunk, microbatch)| (microbatch, std::cmp::Reverse(chunk)))
    }

    /// The passes of a stage in a tick.
    fn choose(&self, tick: usize, stage: usize, rule: &GreedyRule) -> (ChunkPass, ChunkPass) {
        let chunks = self.shape.chunks;
        let in_order = |index: usize| if rule.deep { chunks - 1 - index } else { index };
        let mut forwards = (0..chunks).filter_map(|index| self.next_forward(tick, stage, in_order(index), rule));
        match rule.mode {
            Mode::One(prefer) => {
                let (forward, backward) = (forwards.next(), self.oldest_backward(tick, stage, None, false));
                match (forward, backward) {
                    (Some(_), Some(_)) if prefer.backward(tick, stage) => (None, backward),
                    (Some(_), Some(_)) => (forward, None),
                    alone => alone,
                }
            }
            Mode::Both { prefer, at_once } => {
                let first = forwards.next();
                let alone = self.oldest_backward(tick, stage, None, false);
                let Some(forward) = first else { return (None, alone) };
                // The oldest backward pass with any forward pass that goes another way, before any other of them.
                let mut best: Option<((usize, usize), (usize, usize))> = None;
                for candidate in std::iter::once(forward).chain(forwards) {
                    let Some(backward) = self.oldest_backward(tick, stage, Some(candidate), at_once) else { continue };
                    let older = best.is_none_or(|(_, (chunk, microbatch))| {
                        (backward.1, std::cmp::Reverse(backward.0)) < (microbatch, std::cmp::Reverse(chunk))
                    });
                    if older {
                        best = Some((candidate, backward));
                    }
                }
                match best {
                    Some((forward, backward)) => (Some(forward), Some(backward)),
                    None if alone.is_some() && prefer.backward(tick, stage) => (None, alone),
                    None => (Some(forward), None),
                }
            }
        }
    }

    /// Notes a forward pass, and returns its time.
    fn forward(&mut self, tick: usize, stage: usize, pass: ChunkPass, cell: &mut Cell) -> f64 {
        let Some((chunk, microbatch)) = pass else { return 0.0 };
        let here = self.shape.virtual_stage(stage, chunk);
        let at = self.at(here, microbatch);
        self.forward_at[at] = tick as u32;
        self.forwards[stage * self.shape.chunks + chunk] += 1;
        self.held[stage] += 1;
        cell.forward = Some(Item { chunk, microbatch });
        self.costs[here].forward
    }

    /// Notes a backward pass, and returns its time.
    fn backward(&mut self, tick: usize, stage: usize, pass: ChunkPass, cell: &mut Cell) -> f64 {
        let Some((chunk, microbatch)) = pass else { return 0.0 };
        let here = self.shape.virtual_stage(stage, chunk);
        let at = self.at(here, microbatch);
        self.backward_at[at] = tick as u32;
        self.backwards[stage * self.shape.chunks + chunk] += 1;
        cell.backward = Some(Item { chunk, microbatch });
        let cost = self.costs[here];
        if self.shape.split {
            return cost.backward;
        }
        self.held[stage] -= 1;
        cost.backward + cost.weights
    }

    /// The chunk of a stage whose weights have waited longest, and their time.
    fn next_weights(&self, stage: usize) -> Option<(usize, f64)> {
        let waiting = self.chunks_of(stage).filter(|at| self.weights[*at] < self.backwards[*at]);
        let chunk = waiting.min_by_key(|at| self.weights[*at])? - stage * self.shape.chunks;
        Some((chunk, self.costs[self.shape.virtual_stage(stage, chunk)].weights))
    }

    /// Notes the gradients of a chunk's next weights.
    fn do_weights(&mut self, stage: usize, chunk: usize, cell: &mut Cell) {
        let at = stage * self.shape.chunks + chunk;
        cell.weights.push(Item { chunk, microbatch: self.weights[at] });
        self.weights[at] += 1;
        self.held[stage] -= 1;
    }

    /// Adds gradients of weights: those that may not wait any longer, then as many as fit in the time of the tick.
    fn fill(&mut self, rule: &GreedyRule, row: &mut [Cell], lasts: &mut [f64]) {
        let idle = row.iter().all(Cell::is_empty);
        for (stage, (cell, lasts)) in row.iter_mut().zip(lasts.iter_mut()).enumerate() {
            let pending: usize = self.chunks_of(stage).map(|at| self.backwards[at] - self.weights[at]).sum();
            let too_many = pending.saturating_sub(rule.waiting);
            let busy = cell.forward.is_some() || cell.backward.is_some();
            let forced = match rule.mode {
                Mode::Both { .. } => too_many,
                // A pass of its own tick.
                Mode::One(_) => usize::from(too_many > 0 && !busy),
            };
            // If no stage has a pass, weights are all there is to do.
            let forced = if idle { forced.max(1) } else { forced };
            for _ in 0..forced {
                let Some((chunk, cost)) = self.next_weights(stage) else { break };
                self.do_weights(stage, chunk, cell);
                *lasts += cost;
            }
        }
        let longest = lasts.iter().copied().fold(0.0, f64::max);
        for (stage, (cell, lasts)) in row.iter_mut().zip(lasts.iter_mut()).enumerate() {
            while let Some((chunk, cost)) = self.next_weights(stage) {
                if *lasts + cost > longest + EPSILON {
                    break;
                }
                self.do_weights(stage, chunk, cell);
                *lasts += cost;
            }
        }
    }

    /// The gradients of weights that are left after the last pass, all in one tick, and its time.
    fn rest(&mut self) -> Option<(Vec<Cell>, f64)> {
        let mut row = vec![Cell::default(); self.shape.stages];
        let mut longest = 0.0;
        for (stage, cell) in row.iter_mut().enumerate() {
            let mut lasts = 0.0;
            while let Some((chunk, cost)) = self.next_weights(stage) {
                self.do_weights(stage, chunk, cell);
                lasts += cost;
            }
            longest = f64::max(longest, lasts);
        }
        let some = row.iter().any(|cell| !cell.is_empty());
        some.then_some((row, longest))
    }
}
