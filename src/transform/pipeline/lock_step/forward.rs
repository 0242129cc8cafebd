//! The phases of a pipeline, one after the other.
//!
//! Weights in a sliding window are gathered while a phase runs that does not need them: neither depends on the other.
//! Each repeat `r` except the first and last has two phases: the change to it, and the rest of it, during which the
//! weights of `r + 1` are gathered. As a loop, these phases carry the weights of one repeat.

use std::ops::Range;

use super::super::stage_weights::RepeatNumber;
use super::super::{PipelineOptions, WeightPlan};
use super::iteration::{Machine, State};
use super::phases::{IterationPhase, WeightUse};
use super::weight_window::PhaseWeights;
use crate::ir::DType;
use crate::trace::{ScanOptions, Tensor, Tree, arange, barrier, fail_internal, scan, scan_with, zeros};

/// The part of a phase during which the first half of a gather is under way, the second half, or both.
#[derive(Clone, Copy)]
pub(super) enum PhasePart {
    Whole,
    First,
    Second,
}

impl PhasePart {
    /// The iterations of this part of a phase that goes through them in order or in reverse.
    pub(super) fn of(self, phase: &IterationPhase, reverse: bool) -> Range<usize> {
        let Range { start, end } = phase.iterations;
        let middle = (start + end) / 2;
        match (self, reverse) {
            (PhasePart::Whole, _) => start..end,
            (PhasePart::First, false) | (PhasePart::Second, true) => start..middle,
            (PhasePart::First, true) | (PhasePart::Second, false) => middle..end,
        }
    }
}

/// The gathered weights of every repeat, for a backward pass that does not gather again.
pub(super) enum KeptWeights {
    /// One by one.
    Separate(Vec<Vec<Tensor>>),
    /// For each weight `[R, S, P, ..]`.
    Stacked(Vec<Tensor>),
}

impl KeptWeights {
    fn into_leaves(self) -> Vec<Tensor> {
        match self {
            KeptWeights::Separate(weights) => weights.concat(),
            KeptWeights::Stacked(weights) => weights,
        }
    }

    /// The opposite of [`KeptWeights::into_leaves`], for pipelines with `count` weights.
    pub(super) fn from_leaves(options: &PipelineOptions, count: usize, leaves: &[Tensor]) -> KeptWeights {
        match is_looped(options) {
            true => KeptWeights::Stacked(leaves.to_vec()),
            false => KeptWeights::Separate(leaves.chunks(count.max(1)).map(<[Tensor]>::to_vec).collect()),
        }
    }

    /// The weights of a repeat.
    pub(super) fn of_repeat(&self, repeat: RepeatNumber) -> Vec<Tensor> {
        match (self, repeat) {
            // A pipeline without weights has nothing to keep.
            (KeptWeights::Separate(weights), _) if weights.is_empty() => Vec::new(),
            (KeptWeights::Separate(weights), RepeatNumber::Known(repeat)) if repeat < weights.len() => {
                weights[repeat].clone()
            }
            (KeptWeights::Separate(weights), _) => {
                // Weights stand apart only where every repeat's number is known.
                let missing =
                    || fail_internal("a repeat of a pipeline", "a known number among those whose weights are kept");
                weights[0].iter().map(|_| missing()).collect()
            }
            (KeptWeights::Stacked(weights), repeat) => {
                weights.iter().map(|weight| weight.dynamic_index(0, repeat.tensor())).collect()
            }
        }
    }

    /// Zeros in which the weights of this many repeats are kept.
    fn room(repeats: usize, weights: &[Tensor]) -> Vec<Tensor> {
        weights.iter().map(|weight| zeros(weight.dtype(), [&[repeats], &weight.dims()[..]].concat())).collect()
    }
}

/// Writes the weights of a repeat to their place among those of all.
fn keep(kept: &[Tensor], weights: &[Tensor], repeat: RepeatNumber) -> Vec<Tensor> {
    let put = |(kept, weight): (&Tensor, &Tensor)| kept.dynamic_update_along(0, weight.expand(0), repeat.tensor());
    kept.iter().zip(weights).map(put).collect()
}

/// Whether the repeats between the first and the last are a loop.
pub(super) fn is_looped(options: &PipelineOptions) -> bool {
    options.scan_repeats && options.weights.slides() && options.repeats > 3
}

/// Where the weights of the second half of a gather begin: with the weight in the middle of all bytes.
fn halfway(weights: &[Tensor]) -> usize {
    let bytes = |weights: &[Tensor]| weights.iter().map(|weight| weight.ty().byte_count()).sum::<usize>();
    let whole = bytes(weights);
    (1..weights.len()).find(|&cut| bytes(&weights[..cut]) * 2 >= whole).unwrap_or(weights.len())
}

/// A phase of all repeats but the first and the last: the change to a repeat, or the rest of it.
pub(super) fn inner_phase(options: &PipelineOptions, weights: WeightUse) -> IterationPhase {
    let (count, lag) = (options.microbatches, options.lag());
    let iterations = if matches!(weights, WeightUse::One(_)) { lag..count } else { 0..lag };
    IterationPhase {
        iterations,
        weights,
        takes_inputs: false,
        gives_outputs: false,
        has_bubbles: false,
        prefetches: None,
    }
}

impl Machine<'_> {
    /// Runs these iterations in order or in reverse; `offset` is added to their numbers.
    pub(super) fn each_iteration<S: Tree<Leaf = Tensor>>(
        &self,
        (iterations, reverse): (Range<usize>, bool),
        offset: Tensor,
        state: S,
        run: impl Fn(Tensor, S) -> S,
    ) -> S {
        let first = offset + iterations.start as f64;
        if self.options.scan_iterations && iterations.len() > 1 {
            let options = ScanOptions { reverse, ..ScanOptions::default() };
            let numbers = arange(DType::S32, iterations.len());
            return scan_with(options, state, numbers, |state, number| (run(first + number, state), ())).0;
        }
        let step = |state, number: usize| run(first + number as f64, state);
        match reverse {
            false => (0..iterations.len()).fold(state, step),
            true => (0..iterations.len()).rev().fold(state, step),
        }
    }

    fn phase(
        &self,
        phase: &IterationPhase,
        part: PhasePart,
        window: &PhaseWeights,
        offset: Tensor,
        state: State<Tensor>,
    ) -> State<Tensor> {
        self.each_iteration((part.of(phase, false), false), offset, state, |iteration, state| {
            self.run(phase, window, iteration, state)
        })
    }

    /// Runs a phase and, meanwhile, gathers the weights of a repeat: at once, or in two halves; the second half
    /// waits for the first half of the phase. `shift` is a part of the state that exists only after that half, and that
    /// the second gather needs.
    pub(super) fn prefetching<S>(
        &self,
        stacked: &[Tensor],
        repeat: RepeatNumber,
        state: S,
        shift: impl Fn(&mut S) -> &mut Tensor,
        run: impl Fn(PhasePart, S) -> S,
    ) -> (S, Vec<Tensor>) {
        if self.options.weights != WeightPlan::SplitSlidingWindow {
            let next = self.weights.of_repeat(stacked, repeat);
            return (run(PhasePart::Whole, state), next);
        }
        let weights = self.weights.at_rest(stacked, repeat);
        let cut = halfway(&weights);
        let first = self.weights.gather(&weights[..cut], 0, false);
        let mut state = run(PhasePart::First, state);
        let shift = shift(&mut state);
        let mut together = barrier(&[&[*shift], &weights[cut..]].concat());
        let waiting = together.split_off(1);
        *shift = together[0];
        let second = self.weights.gather(&waiting, cut, false);
        (run(PhasePart::Second, state), [first, second].concat())
    }

    /// Runs all phases. Returns the last state and the gathered weights that are kept.
    pub(super) fn run_all(&self, stacked: &[Tensor], io: Tensor) -> (State<Tensor>, Vec<Tensor>) {
        let (options, phases) = (self.options, self.options.phases());
        let (state, zero) = (self.start(io), RepeatNumber::Known(0).tensor());
        let first = self.weights.of_repeat(stacked, RepeatNumber::Known(0));
        if options.repeats == 1 {
            let state = self.phase(&phases[0], PhasePart::Whole, &PhaseWeights::One(first.clone()), zero, state);
            let state = State { io: self.home(state.io), ..state };
            return (state, if self.keeps() { first } else { Vec::new() });
        }
        let (begin, end) = (&phases[0], &phases[phases.len() - 1]);
        if options.weights.slides() {
            let (state, last, kept) = self.sliding(stacked, begin, state, first);
            let state = self.phase(end, PhasePart::Whole, &PhaseWeights::One(last), zero, state);
            return (state, kept);
        }
        let mut state = self.phase(begin, PhasePart::Whole, &PhaseWeights::One(first.clone()), zero, state);
        let last = self.weights.of_repeat(stacked, RepeatNumber::Known(options.repeats - 1));
        for phase in &phases[1..phases.len() - 1] {
            state = self.phase(phase, PhasePart::Whole, &self.between(stacked, (&first, &last)), zero, state);
        }
        (self.phase(end, PhasePart::Whole, &PhaseWeights::One(last), zero, state), Vec::new())
    }

    /// Whether gathered weights are kept for the backward pass.
    pub(super) fn keeps(&self) -> bool {
        self.options.keep_gathered && self.options.weights.slides() && self.halves.is_some()
    }

    /// The window of weights between the first and the last repeat, where weights do not slide.
    pub(super) fn between(&self, stacked: &[Tensor], (first, last): (&[Tensor], &[Tensor])) -> PhaseWeights {
        match self.options.repeats {
            2 => PhaseWeights::Two {
                before: first.to_vec(),
                after: last.to_vec(),
                repeat: RepeatNumber::Known(1).tensor(),
            },
            _ => PhaseWeights::All(stacked.to_vec()),
        }
    }

    /// Runs the phases up to the last with a sliding window. Returns the state, the weights of the last repeat, and
    /// those of all repeats if they are kept.
    fn sliding(
        &self,
        stacked: &[Tensor],
        begin: &IterationPhase,
        state: State<Tensor>,
        first: Vec<Tensor>,
    ) -> (State<Tensor>, Vec<Tensor>, Vec<Tensor>) {
        let options = self.options;
        let zero = RepeatNumber::Known(0).tensor();
        let window = PhaseWeights::One(first.clone());
        let (state, second) = self.prefetching(
            stacked,
            RepeatNumber::Known(1),
            state,
            |state| &mut state.shift,
            |part, state| self.phase(begin, part, &window, zero, state),
        );
        let mut kept = Vec::new();
        if self.keeps() {
            kept = vec![first.clone(), second.clone()];
        }
        let state = self.change(RepeatNumber::Known(1), (first, second.clone()), state);
        let advance = |repeat: RepeatNumber, state: State<Tensor>, current: Vec<Tensor>| {
            let rest = inner_phase(options, WeightUse::One(0));
            let offset = repeat.tensor() * options.microbatches as f64;
            let window = PhaseWeights::One(current.clone());
            let next = repeat.plus(1);
            let (state, gathered) = self.prefetching(
                stacked,
                next,
                state,
                |state| &mut state.shift,
                |part, state| self.phase(&rest, part, &window, offset, state),
            );
            (self.change(next, (current, gathered.clone()), state), gathered)
        };
        if is_looped(options) {
            let mut room = Vec::new();
            if self.keeps() {
                room = KeptWeights::room(options.repeats, &second);
                for (repeat, weights) in kept.iter().enumerate() {
                    room = keep(&room, weights, RepeatNumber::Known(repeat));
                }
            }
            let numbers = arange(DType::S32, options.repeats - 2) + 1.0;
            let carry = (state, second, room);
            let ((state, last, kept), ()) = scan(carry, numbers, |(state, current, kept), repeat| {
                let repeat = RepeatNumber::Traced(repeat);
                let (state, next) = advance(repeat, state, current);
                let kept = keep(&kept, &next, repeat.plus(1));
                ((state, next, kept), ())
            });
            return (state, last, KeptWeights::Stacked(kept).into_leaves());
        }
        let (mut state, mut current) = (state, second);
        for repeat in 1..options.repeats - 1 {
            (state, current) = advance(RepeatNumber::Known(repeat), state, current);
            if self.keeps() {
                kept.push(current.clone());
            }
        }
        (state, current, KeptWeights::Separate(kept).into_leaves())
    }

    /// The phase in which stages change to a repeat.
    fn change(
        &self,
        repeat: RepeatNumber,
        (before, after): (Vec<Tensor>, Vec<Tensor>),
        state: State<Tensor>,
    ) -> State<Tensor> {
        let phase = inner_phase(self.options, WeightUse::Changing(0));
        let repeat = repeat.tensor();
        let offset = repeat * self.options.microbatches as f64;
        self.phase(&phase, PhasePart::Whole, &PhaseWeights::Two { before, after, repeat }, offset, state)
    }
}
