//! One iteration: the inputs of each stage, the destinations of its results, and the same backwards.
//!
//! An iteration is linear in everything except the layers. So its backward pass needs only what the layers need, and
//! stands here next to the forward pass whose transpose it is. The state is `[S, ..]` throughout, split over the
//! stages:
//!
//! | tensor | holds | after an iteration |
//! |---|---|---|
//! | `shift` `[S, mb, ..]` | what each stage receives next | results, one stage to the right |
//! | `sent` `[S, mb, ..]` | with delayed forwarding, the last results | results; `shift` is made of those before |
//! | `io` `[S, M/S, mb, ..]` | inputs at first, results at the end | slot `i mod (M/S)` one stage to the left |
//! | `waiting` `[S, M - S D, mb, ..]` | what waits at the first stage for its next repeat | what came round takes the oldest's place |
//!
//! Where microbatches do not fill the slots, `io` turns on behind the last iteration until results are in their places.
//!
//! MaxText (`maxtext.layers.pipeline`) moves three buffers in every iteration. Here `shift` reaches the first stage by
//! itself, so nothing moves to `waiting`, which holds only what waits at a time; and `io` moves in the first and last M
//! iterations only.

use std::ops::Range;

use super::super::PipelineOptions;
use super::super::stage::{Iteration, StageFunction, StageHalves, StageInputs};
use super::super::stage_weights::StageWeights;
use super::phases::IterationPhase;
use super::weight_window::{Items, PhaseWeights, per_stage, pick_own};
use crate::ir::{AxisNames, DType, TensorType};
use crate::ops::WithAxes;
use crate::trace::{Tensor, full, iota, zeros};

crate::tree! {
    /// The state that iterations hand on; in the backward pass, its cotangents.
    pub(super) struct State<T> {
        /// The input that each stage receives next.
        pub(super) shift: T,
        /// The last results of each stage, where sending takes an iteration.
        pub(super) sent: Option<T>,
        /// Inputs and results.
        pub(super) io: T,
        /// Microbatches that have come round and wait.
        pub(super) waiting: Option<T>,
        /// Sums of auxiliary values, of each stage. Backwards, their cotangents, which do not change.
        pub(super) aux: Vec<T>,
        /// The residuals kept for the backward pass: each one, for all iterations.
        pub(super) stash: Vec<T>,
    }
}

impl State<Tensor> {
    /// Splits the state of a backward pass into what it carries and what it only reads: the residuals and the
    /// cotangents of auxiliary values.
    pub(super) fn split(self) -> (State<Tensor>, [Vec<Tensor>; 2]) {
        let read = [self.stash, self.aux];
        (State { stash: Vec::new(), aux: Vec::new(), ..self }, read)
    }

    /// The opposite of [`State::split`].
    pub(super) fn join(self, [stash, aux]: &[Vec<Tensor>; 2]) -> State<Tensor> {
        State { stash: stash.clone(), aux: aux.clone(), ..self }
    }
}

/// The parts that all iterations have in common.
pub(super) struct Machine<'a> {
    pub(super) options: &'a PipelineOptions,
    pub(super) stage: &'a StageFunction,
    /// The halves of the derivative, under differentiation.
    pub(super) halves: Option<&'a StageHalves>,
    pub(super) weights: &'a StageWeights<'a>,
    /// The logical names of activations `[S, mb, ..]`.
    pub(super) names: &'a AxisNames,
    pub(super) captured: Vec<Tensor>,
    /// Rows `[S, M, mb, ..]`: every stage has all rows.
    pub(super) rows: Vec<Tensor>,
}

/// Number of slots of `io`.
fn slots(options: &PipelineOptions) -> usize {
    options.microbatches.div_ceil(options.stages)
}

impl Machine<'_> {
    /// The state before the first iteration.
    pub(super) fn start(&self, io: Tensor) -> State<Tensor> {
        let stashed = self.halves.map(|halves| self.stage.residual_types(halves)).unwrap_or_default();
        let stash = stashed.into_iter().map(|ty| {
            let dims = [&[self.options.iterations()], &ty.dims[..]].concat();
            zeros(ty.dtype, dims)
        });
        let aux = self.stage.aux_types().map(|ty| zeros(ty.dtype, &ty.dims));
        State { stash: stash.collect(), aux: aux.collect(), ..self.empty(io) }
    }

    /// A state in which nothing is under way.
    fn empty(&self, io: Tensor) -> State<Tensor> {
        let options = self.options;
        let activations = TensorType { dims: [&io.dims()[..1], &io.dims()[2..]].concat().into(), ..io.ty() };
        let zeros_of = |ty: &TensorType| zeros(ty.dtype, &ty.dims);
        let nothing = self.named(zeros_of(&activations));
        let queue = |count: usize| {
            let mut ty = activations.clone();
            ty.dims.insert(1, count);
            zeros_of(&ty)
        };
        State {
            shift: nothing,
            sent: options.delay_forwarding.then_some(nothing),
            io,
            waiting: (options.waiting() > 0).then(|| queue(options.waiting())),
            aux: Vec::new(),
            stash: Vec::new(),
        }
    }

    /// The cotangents after the last iteration.
    pub(super) fn start_back(&self, io: Tensor, aux: Vec<Tensor>, stash: Vec<Tensor>) -> State<Tensor> {
        State { aux, stash, ..self.empty(io) }
    }

    pub(super) fn named(&self, activations: Tensor) -> Tensor {
        activations.with_logical_axes(WithAxes::new(self.names.clone()))
    }

    /// The items on which the stages work in an iteration: their numbers count through the microbatches of all repeats.
    fn items(&self, iteration: Tensor) -> Items {
        let &PipelineOptions { microbatches, repeats, stages, .. } = self.options;
        let count = microbatches * repeats;
        let stage = iota(DType::S32, [stages], 0);
        let item = iteration.broadcast_like(stage, []) - stage * self.options.delay() as f64;
        let active = item.greater_equal(0.0) & item.less(count as f64);
        let inside = item.clamp(0.0, (count - 1) as f64);
        let (repeat, microbatch) = match repeats {
            1 => (inside.zeros_like(), inside),
            _ => (inside / microbatches as f64, inside % microbatches as f64),
        };
        Items { active, repeat, microbatch }
    }

    /// The inputs of the stages in an iteration.
    fn inputs(&self, items: &Items, weights: Vec<Tensor>, x: Tensor) -> StageInputs {
        let &PipelineOptions { stages, layers_per_stage, .. } = self.options;
        let part = items.repeat * stages as f64 + iota(DType::S32, [stages], 0);
        StageInputs {
            weights,
            x,
            rows: self.rows.iter().map(|&rows| pick_own(rows, items.microbatch)).collect(),
            first_layer: part * layers_per_stage as f64,
            microbatch: items.microbatch,
        }
    }

    fn is_stage(&self, stage: usize, like: Tensor) -> Tensor {
        per_stage(iota(DType::S32, [self.options.stages], 0).equal(stage as f64), like)
    }

    /// The slot of `io` that an iteration moves. Where results leave after all inputs have entered, they are put in
    /// order.
    fn slot(&self, phase: &IterationPhase, iteration: Tensor) -> Tensor {
        let slots = slots(self.options);
        let first = if phase.takes_inputs { 0 } else { phase.iterations.start % slots };
        (iteration + (slots - first) as f64) % slots as f64
    }

    /// Results, one stage on; from the last to the first if microbatches go round. With `by` of -1 it is the transpose.
    fn rotate(&self, results: Tensor, by: i64) -> Tensor {
        match self.options.repeats {
            1 => self.named(results.pad(0, by, -by, 0.0)),
            _ => self.named(results.roll(0, by)),
        }
    }

    /// The turns of `io` behind the last iteration. There are some where microbatches do not fill the slots, because
    /// results are not in their places then.
    fn last_turns(&self) -> Range<usize> {
        let all = slots(self.options) * self.options.stages;
        let iterations = self.options.iterations();
        iterations..iterations + all - self.options.microbatches
    }

    fn turn_one(&self, io: Tensor, turn: usize, towards: i64) -> Tensor {
        let slot = full(DType::S32, [], (turn % slots(self.options)) as f64);
        let moved = self.named(io.dynamic_index(1, slot).roll(0, towards));
        io.dynamic_update_along(1, moved.expand(1), slot)
    }

    /// Results in their places.
    pub(super) fn home(&self, io: Tensor) -> Tensor {
        self.last_turns().fold(io, |io, turn| self.turn_one(io, turn, -1))
    }

    /// The transpose of [`Machine::home`].
    pub(super) fn home_back(&self, io: Tensor) -> Tensor {
        self.last_turns().rev().fold(io, |io, turn| self.turn_one(io, turn, 1))
    }

    /// One iteration.
    pub(super) fn run(
        &self,
        phase: &IterationPhase,
        window: &PhaseWeights,
        iteration: Tensor,
        state: State<Tensor>,
    ) -> State<Tensor> {
        let items = self.items(iteration);
        let State { shift, sent, io, waiting, aux, stash } = state;
        let moves = phase.takes_inputs || phase.gives_outputs;
        let slot = self.slot(phase, iteration);
        let in_slot = moves.then(|| io.dynamic_index(1, slot));
        let place = iteration % self.options.waiting().max(1) as f64;
        let first = match (phase.takes_inputs, waiting) {
            (true, _) => in_slot,
            (false, Some(waiting)) => Some(waiting.dynamic_index(1, place)),
            (false, None) => None,
        };
        let x = first.map_or(shift, |first| self.is_stage(0, shift).select(first, shift));
        let x = self.named(x);
        let weights = self.weights.of_iteration(window, &items, x);
        let result = self.stage.run(self.halves, &self.captured, &self.inputs(&items, weights, x));
        let y = self.named(result.y);
        let added = aux.iter().zip(&result.aux).map(|(&sum, &aux)| match phase.has_bubbles {
            true => sum + per_stage(items.active, aux).select(aux, 0.0),
            false => sum + aux,
        });
        let stashed = stash
            .iter()
            .zip(&result.residuals)
            .map(|(stash, residual)| stash.dynamic_update_along(0, residual.expand(0), iteration));
        let io = in_slot.map_or(io, |in_slot| {
            let moved = in_slot.roll(0, -1);
            let last = self.is_stage(self.options.stages - 1, y);
            let moved = if phase.gives_outputs { last.select(y, moved) } else { moved };
            io.dynamic_update_along(1, self.named(moved).expand(1), slot)
        });
        State {
            shift: self.rotate(sent.unwrap_or(y), 1),
            sent: sent.map(|_| y),
            io,
            waiting: waiting.map(|waiting| waiting.dynamic_update_along(1, shift.expand(1), place)),
            aux: added.collect(),
            stash: stashed.collect(),
        }
    }

    /// One iteration backwards: from the cotangents of the state after it to those of the state before it, and the sums
    /// of the weights' cotangents with those of this iteration.
    pub(super) fn run_back(
        &self,
        (halves, phase): (&StageHalves, &IterationPhase),
        window: &PhaseWeights,
        iteration: Tensor,
        (state, sums): (State<Tensor>, Vec<Vec<Tensor>>),
    ) -> (State<Tensor>, Vec<Vec<Tensor>>) {
        let items = self.items(iteration);
        let State { shift, sent, io, waiting, aux, stash } = state;
        let moves = phase.takes_inputs || phase.gives_outputs;
        let slot = self.slot(phase, iteration);
        let place = iteration % self.options.waiting().max(1) as f64;
        let received = self.rotate(shift, -1);
        let (mut y, sent) = match sent {
            Some(sent) => (sent, Some(received)),
            None => (received, None),
        };
        let mut in_slot = moves.then(|| io.dynamic_index(1, slot));
        if let (true, Some(of_slot)) = (phase.gives_outputs, in_slot) {
            let last = self.is_stage(self.options.stages - 1, y);
            y = y + last.select(of_slot, 0.0);
            in_slot = Some(last.select(0.0, of_slot));
        }
        let masked = |x: Tensor| match phase.has_bubbles {
            true => per_stage(items.active, x).select(x, 0.0),
            false => x,
        };
        let residuals: Vec<Tensor> = stash.iter().map(|stash| stash.dynamic_index(0, iteration)).collect();
        let weights = self.weights.of_iteration(window, &items, y);
        let result = Iteration { y: masked(y), aux: aux.iter().map(|&aux| masked(aux)).collect(), residuals };
        let inputs = self.inputs(&items, weights, y);
        let (of_weights, of_x) = self.stage.run_back(halves, &self.captured, inputs, result);
        let of_x = self.named(masked(of_x));
        let sums = self.weights.add(&sums, window, &items, (of_weights, phase.has_bubbles));
        let first = self.is_stage(0, of_x);
        let io = in_slot.map_or(io, |in_slot| {
            let moved = in_slot.roll(0, 1);
            let moved = if phase.takes_inputs { first.select(of_x, moved) } else { moved };
            io.dynamic_update_along(1, self.named(moved).expand(1), slot)
        });
        let came_round = waiting.map(|waiting| waiting.dynamic_index(1, place));
        let waiting = waiting.map(|waiting| {
            let taken = if phase.takes_inputs { of_x.zeros_like() } else { first.select(of_x, 0.0) };
            waiting.dynamic_update_along(1, taken.expand(1), place)
        });
        let from_shift = if phase.takes_inputs || waiting.is_some() { first.select(0.0, of_x) } else { of_x };
        let shift = came_round.map_or(from_shift, |came_round| from_shift + came_round);
        (State { shift: self.named(shift), sent, io, waiting, aux, stash }, sums)
    }
}
