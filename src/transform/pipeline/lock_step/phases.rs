//! The phases of the forward pass: runs of iterations that do the same. The backward pass goes through them in reverse.
//!
//! In iteration `i`, stage `s` works on item `i - D s`: microbatch `item mod M` of repeat `item div M`. Inputs enter
//! during the first M iterations, and results leave during the last M, so a pipeline of several repeats is cut there.
//! In between, stages change from repeat `r - 1` to `r` during the L iterations from `r M` on.

use std::ops::Range;

use serde::Serialize;

use super::super::PipelineOptions;

/// The work of one stage in one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Task {
    /// The microbatch.
    pub microbatch: usize,
    /// The repeat.
    pub repeat: usize,
}

/// The repeats whose weights a phase uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightUse {
    /// Every stage at work works on this repeat.
    One(usize),
    /// Stages are about to change from the repeat before to this one.
    Changing(usize),
    /// Stages use the weights of any repeat: several changes of repeats overlap.
    Any,
}

/// A run of iterations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IterationPhase {
    /// The iterations.
    pub iterations: Range<usize>,
    /// The weights it uses.
    pub weights: WeightUse,
    /// Whether the first stage takes new microbatches.
    pub takes_inputs: bool,
    /// Whether the last stage's results leave the pipeline.
    pub gives_outputs: bool,
    /// Whether there are iterations in which some stage has nothing to do.
    pub has_bubbles: bool,
    /// The repeat whose weights can be gathered meanwhile: nothing in this phase needs them.
    pub prefetches: Option<usize>,
}

impl PipelineOptions {
    /// The work of a stage in an iteration of the forward pass; `None` if that is a bubble.
    pub fn task(&self, iteration: usize, stage: usize) -> Option<Task> {
        let item = iteration.checked_sub(self.delay() * stage)?;
        (item < self.microbatches * self.repeats)
            .then(|| Task { microbatch: item % self.microbatches, repeat: item / self.microbatches })
    }

    /// The phases, in order. With weights in a sliding window, stages change repeats in separate phases.
    pub fn phases(&self) -> Vec<IterationPhase> {
        let (repeats, count, lag) = (self.repeats, self.microbatches, self.lag());
        let prefetch = |repeat: usize| (self.weights.slides() && repeat < repeats).then_some(repeat);
        let phase = |iterations: Range<usize>, weights| IterationPhase {
            has_bubbles: iterations.start < lag || iterations.end > count * repeats,
            takes_inputs: iterations.start < count,
            gives_outputs: iterations.end > count * (repeats - 1) + lag,
            prefetches: None,
            iterations,
            weights,
        };
        if repeats == 1 {
            return vec![phase(0..count + lag, WeightUse::One(0))];
        }
        let last = (repeats - 1) * count + lag;
        let mut phases = vec![IterationPhase { prefetches: prefetch(1), ..phase(0..count, WeightUse::One(0)) }];
        if self.weights.slides() {
            for repeat in 1..repeats {
                let start = repeat * count;
                phases.push(phase(start..start + lag, WeightUse::Changing(repeat)));
                if repeat + 1 < repeats {
                    let rest = phase(start + lag..start + count, WeightUse::One(repeat));
                    phases.push(IterationPhase { prefetches: prefetch(repeat + 1), ..rest });
                }
            }
        } else {
            let weights = if repeats == 2 { WeightUse::Changing(1) } else { WeightUse::Any };
            phases.push(phase(count..last, weights));
        }
        phases.push(phase(last..last + count, WeightUse::One(repeats - 1)));
        phases.retain(|phase| !phase.iterations.is_empty());
        phases
    }
}
