//! The backward phases of a pipeline: those of the forward pass in reverse. Each iteration uses the values that it
//! kept.
//!
//! With a sliding window, the weights of repeat `r - 1` are gathered during the rest of repeat `r`, unless they were
//! kept. Each device adds up its cotangents of the weights of `r`; they are reduced and scattered once, when the change
//! to `r` is complete. The loop over repeats does so at the start of its next iteration: the exchange can then be under
//! way while microbatches go through, for the price of one repeat's sums.

use super::super::stage::StageHalves;
use super::super::stage_weights::{RepeatNumber, no_sums};
use super::forward::{KeptWeights, PhasePart, inner_phase, is_looped};
use super::iteration::{Machine, State};
use super::phases::{IterationPhase, WeightUse};
use super::weight_window::{PhaseWeights, RepeatSums};
use crate::ir::DType;
use crate::trace::{ScanOptions, Tensor, arange, fail_internal, scan_with};

/// Cotangents of the state, and the sums of those of a window's weights.
type Back = (State<Tensor>, Vec<Vec<Tensor>>);

/// A backward pass.
pub(super) struct Backward<'a> {
    pub(super) machine: &'a Machine<'a>,
    pub(super) halves: &'a StageHalves,
    /// The stacked weights, gathered if all are gathered once.
    pub(super) stacked: &'a [Tensor],
    /// The gathered weights of every repeat, if they have been kept.
    pub(super) kept: Option<KeptWeights>,
}

impl Backward<'_> {
    /// Runs all phases: the cotangents of the state before the first, and of the stacked weights.
    pub(super) fn run(&self, state: State<Tensor>) -> (State<Tensor>, Vec<Tensor>) {
        let (options, weights) = (self.machine.options, self.machine.weights);
        let phases = options.phases();
        let last = self.of_repeat(RepeatNumber::Known(options.repeats - 1));
        let (begin, end) = (&phases[0], &phases[phases.len() - 1]);
        if options.repeats == 1 {
            let sums = vec![no_sums(&last)];
            let state = State { io: self.machine.home_back(state.io), ..state };
            let (state, sums) = self.phase(begin, PhasePart::Whole, &PhaseWeights::One(last), (state, sums));
            return (state, weights.stack(vec![RepeatSums::One(self.reduced(sums.concat()))]));
        }
        if options.weights.slides() {
            return self.sliding((begin, end), last, state);
        }
        let first = self.of_repeat(RepeatNumber::Known(0));
        let mut sums = vec![no_sums(&first); options.repeats];
        let between = self.machine.between(self.stacked, (&first, &last));
        let mut state = state;
        for phase in phases.iter().rev() {
            let (window, of) = match phase.weights {
                WeightUse::One(0) => (PhaseWeights::One(first.clone()), 0..1),
                WeightUse::One(repeat) => (PhaseWeights::One(last.clone()), repeat..repeat + 1),
                WeightUse::Changing(_) | WeightUse::Any => (between.clone(), 0..options.repeats),
            };
            let (before, added) = self.phase(phase, PhasePart::Whole, &window, (state, sums[of.clone()].to_vec()));
            state = before;
            sums.splice(of, added);
        }
        (state, weights.stack(sums.into_iter().map(RepeatSums::One).collect()))
    }

    /// The iterations of a part of a phase, the last first.
    fn phase(&self, phase: &IterationPhase, part: PhasePart, window: &PhaseWeights, back: Back) -> Back {
        self.phase_from(phase, part, window, RepeatNumber::Known(0).tensor(), back)
    }

    /// As [`Backward::phase`], with an offset added to the numbers of iterations.
    fn phase_from(
        &self,
        phase: &IterationPhase,
        part: PhasePart,
        window: &PhaseWeights,
        offset: Tensor,
        (state, sums): Back,
    ) -> Back {
        let (carried, read) = state.split();
        let iterations = (part.of(phase, true), true);
        let (state, sums) =
            self.machine.each_iteration(iterations, offset, (carried, sums), |iteration, (state, sums)| {
                let back = (state.join(&read), sums);
                let (state, sums) = self.machine.run_back((self.halves, phase), window, iteration, back);
                (state.split().0, sums)
            });
        (state.join(&read), sums)
    }

    /// The weights of a repeat, as the forward pass used them.
    fn of_repeat(&self, repeat: RepeatNumber) -> Vec<Tensor> {
        match &self.kept {
            None => self.machine.weights.of_repeat(self.stacked, repeat),
            Some(kept) => kept.of_repeat(repeat),
        }
    }

    /// Runs a part of the pass and, meanwhile, gets the weights of a repeat.
    fn prefetching(
        &self,
        repeat: RepeatNumber,
        back: Back,
        run: impl Fn(PhasePart, Back) -> Back,
    ) -> (Back, Vec<Tensor>) {
        match &self.kept {
            None => self.machine.prefetching(self.stacked, repeat, back, |(state, _)| &mut state.shift, run),
            Some(kept) => (run(PhasePart::Whole, back), kept.of_repeat(repeat)),
        }
    }

    /// The cotangents of the weights of a repeat whose iterations are all done.
    fn reduced(&self, sums: Vec<Tensor>) -> Vec<Tensor> {
        let weights = self.machine.weights;
        if weights.options.weights.slides() { weights.scatter(sums, false) } else { sums }
    }

    /// Runs all phases with a sliding window. `last` holds the last repeat of the window.
    fn sliding(
        &self,
        (begin, end): (&IterationPhase, &IterationPhase),
        last: Vec<Tensor>,
        state: State<Tensor>,
    ) -> (State<Tensor>, Vec<Tensor>) {
        let (options, weights) = (self.machine.options, self.machine.weights);
        let window = PhaseWeights::One(last.clone());
        let back = (state, vec![no_sums(&last)]);
        let ((state, sums), before) = self.prefetching(RepeatNumber::Known(options.repeats - 2), back, |part, back| {
            self.phase(end, part, &window, back)
        });
        let (state, sums, done) =
            self.change(RepeatNumber::Known(options.repeats - 1), (before.clone(), last), (state, sums));
        let mut by_repeat = Vec::new();
        // From the rest of a repeat to the change to it.
        let retreat = |repeat: RepeatNumber, (state, sums): Back, current: Vec<Tensor>| {
            let rest = inner_phase(options, WeightUse::One(0));
            let offset = repeat.tensor() * options.microbatches as f64;
            let window = PhaseWeights::One(current.clone());
            let (back, before) = self.prefetching(repeat.plus(-1), (state, sums), |part, back| {
                self.phase_from(&rest, part, &window, offset, back)
            });
            let (state, sums, done) = self.change(repeat, (before.clone(), current), back);
            (state, sums, before, done)
        };
        let (mut state, mut sums, mut current, mut done) = (state, sums, before, done);
        if is_looped(options) {
            let numbers = arange(DType::S32, options.repeats - 2) + 1.0;
            let reverse = ScanOptions { reverse: true, ..ScanOptions::default() };
            let (carried, read) = state.split();
            let carry = (carried, sums, current, done);
            let (carry, reduced) = scan_with(reverse, carry, numbers, |(state, sums, current, done), repeat| {
                let reduced = self.reduced(done);
                let back = (state.join(&read), sums);
                let (state, sums, current, done) = retreat(RepeatNumber::Traced(repeat), back, current);
                ((state.split().0, sums, current, done), reduced)
            });
            (state, sums, current, done) = carry;
            state = state.join(&read);
            by_repeat.push(RepeatSums::Several(reduced));
        } else {
            for repeat in (1..options.repeats - 1).rev() {
                by_repeat.push(RepeatSums::One(self.reduced(done)));
                (state, sums, current, done) = retreat(RepeatNumber::Known(repeat), (state, sums), current);
            }
        }
        by_repeat.push(RepeatSums::One(self.reduced(done)));
        let (state, sums) = self.phase(begin, PhasePart::Whole, &PhaseWeights::One(current), (state, sums));
        by_repeat.push(RepeatSums::One(self.reduced(sums.concat())));
        by_repeat.reverse();
        (state, weights.stack(by_repeat))
    }

    /// Runs the phase in which stages change to a repeat. Returns the sums of the repeat before, which have only begun,
    /// and those of this one, not reduced yet.
    fn change(
        &self,
        repeat: RepeatNumber,
        (before, after): (Vec<Tensor>, Vec<Tensor>),
        (state, mut sums): Back,
    ) -> (State<Tensor>, Vec<Vec<Tensor>>, Vec<Tensor>) {
        let options = self.machine.options;
        let repeat = repeat.tensor();
        sums.insert(0, no_sums(&before));
        let phase = inner_phase(options, WeightUse::Changing(0));
        let offset = repeat * options.microbatches as f64;
        let window = PhaseWeights::Two { before, after, repeat };
        let (state, mut sums) = self.phase_from(&phase, PhasePart::Whole, &window, offset, (state, sums));
        let done = sums.pop().unwrap_or_else(|| {
            fail_internal("the change to a repeat of a pipeline", "sums of its weights");
            Vec::new()
        });
        (state, sums, done)
    }
}
