//! One forward, one backward: in every iteration a stage runs the forward pass of one microbatch and the backward pass
//! of another.
//!
//! In iteration `i`, stage `s` runs the forward pass of microbatch `i - s` and then the backward pass of microbatch
//! `i - 2 (S - 1) + s`; for the last stage they are the same. So the loss of a microbatch must be known when it leaves
//! the last stage, and is part of the loop, which computes loss and gradients in one pass. A stage needs what it keeps
//! of a microbatch for `2 (S - 1 - s) + 1` iterations. Since all stages run one program, each has room for `2 S - 1`
//! microbatches (on average S are in use), however many there are.
//!
//! The state is that of [`iteration`](super::iteration), with two differences: cotangents travel from stage to stage
//! beside activations, and the cotangents of inputs take the slots of `io` that inputs leave.
//!
//! Source: PipeDream-Flush (Narayanan et al., arXiv 2104.04473), with both passes in step over all stages.

use super::iteration::{Machine, slots};
use super::stage::{Iteration, StageHalves};
use super::weights::{Items, Number, Window, no_sum, per_stage, pick_own};
use crate::autodiff::Halves;
use crate::ir::{AxisNames, DType, Graph, Name};
use crate::ops::WithAxes;
use crate::trace::{self, Place, Tensor, fail_internal, full, iota, label, zeros};

crate::tree! {
    /// What is carried from iteration to iteration.
    struct State<T> {
        /// Activations that each stage receives, `[S, mb, ..]`.
        shift: T,
        /// Cotangents that each stage receives, `[S, mb, ..]`.
        back: T,
        /// Inputs, and the cotangents of those that are through: `[S, M/S, mb, ..]`.
        io: T,
        /// What is kept for the backward pass: for each residual, of the last `2 S - 1` iterations.
        stash: Vec<T>,
        /// Sums of auxiliary values, of each stage.
        aux: Vec<T>,
        /// Sums of the cotangents of the weights.
        sums: Vec<T>,
        /// Sums of the cotangents of the loss's weights.
        loss_sums: Vec<T>,
        /// The loss so far.
        loss: T,
    }
}

/// The loss of a microbatch: a traced function of activations `[mb, ..]`, its own weights and rows `[mb, ..]`.
pub(super) struct LossFunction {
    pub(super) graph: Graph,
    /// Of the loss.
    pub(super) dtype: DType,
    pub(super) captured: Vec<Tensor>,
    pub(super) weight_count: usize,
    /// The logical names of the activations that it gets.
    pub(super) names: AxisNames,
    pub(super) place: Place,
}

/// What a pass over all microbatches finds.
pub(super) struct Found {
    pub(super) loss: Tensor,
    /// `[S, ..]` each.
    pub(super) aux: Vec<Tensor>,
    /// Cotangents of the stacked weights.
    pub(super) weights: Vec<Tensor>,
    /// Cotangents of the inputs, in slots.
    pub(super) io: Tensor,
    /// Cotangents of the loss's weights.
    pub(super) loss_weights: Vec<Tensor>,
}

impl LossFunction {
    /// Differentiates it, with respect to activations and weights.
    pub(super) fn differentiate(&self) -> Option<Halves> {
        let first = self.captured.len();
        let active: Vec<bool> =
            (0..self.graph.inputs().len()).map(|input| (first..=first + self.weight_count).contains(&input)).collect();
        trace::differentiate(&self.graph, &active)
    }

    /// The loss alone.
    pub(super) fn value(&self, captured: &[Tensor], x: Tensor, weights: &[Tensor], rows: &[Tensor]) -> Tensor {
        trace::inline(&self.graph, &[captured, &[x], weights, rows].concat(), self.place)[0]
    }

    /// The loss, the cotangent of the activations and those of the weights.
    fn with_gradients(
        &self,
        halves: &Halves,
        captured: &[Tensor],
        (x, weights, rows): (Tensor, &[Tensor], &[Tensor]),
    ) -> (Tensor, Tensor, Vec<Tensor>) {
        let inputs = [captured, &[x], weights, rows].concat();
        let results = trace::inline(halves.forward(), &inputs, self.place);
        let one = full(results[0].dtype(), [], 1.0);
        let arguments = halves.arguments(&inputs, &results[1..], &[one]);
        let gradients = trace::inline(halves.backward(), &arguments, self.place);
        let of = |input: usize| halves.active().iter().position(|&active| active == input).map(|at| gradients[at]);
        let first = captured.len();
        let of_x = of(first).unwrap_or_else(|| x.zeros_like());
        let of_weights = weights.iter().enumerate();
        let of_weights = of_weights.map(|(index, weight)| of(first + 1 + index).unwrap_or_else(|| weight.zeros_like()));
        (results[0], of_x, of_weights.collect())
    }

    fn named(&self, x: Tensor) -> Tensor {
        label(x, WithAxes::new(self.names.clone()), self.place)
    }
}

/// What the iterations of one pass have in common.
pub(super) struct Pass<'a> {
    pub(super) machine: &'a Machine<'a>,
    pub(super) halves: &'a StageHalves,
    pub(super) loss: &'a LossFunction,
    pub(super) loss_halves: &'a Halves,
    /// The weights of the loss, gathered.
    pub(super) loss_weights: &'a [Tensor],
    pub(super) loss_captured: &'a [Tensor],
    /// Rows `[M, mb, ..]`.
    pub(super) rows: &'a [Tensor],
    /// The weights of the stages, gathered.
    pub(super) window: &'a Window,
    /// For each auxiliary value `[S, ..]`, its cotangent.
    pub(super) aux: &'a [Tensor],
}

impl Pass<'_> {
    fn depth(&self) -> usize {
        2 * self.machine.options.stages - 1
    }

    /// All iterations.
    pub(super) fn run(&self, io: Tensor) -> Found {
        let machine = self.machine;
        let options = machine.options;
        let nothing = machine.start(io);
        let stash = machine.stage.residual_types(self.halves).into_iter();
        let Window::One(weights) = self.window else {
            fail_internal("a pipeline of one forward and one backward pass in turn", "the weights of one repeat");
            return self.nothing(io);
        };
        let stash = stash.map(|ty| zeros(ty.dtype, [&[ty.dims[0], self.depth()], &ty.dims[1..]].concat()));
        let state = State {
            shift: nothing.shift,
            back: nothing.shift,
            io,
            stash: stash.collect(),
            aux: machine.stage.aux_types().map(|ty| zeros(ty.dtype, &ty.dims)).collect(),
            sums: weights.iter().map(|&weight| no_sum(weight)).collect(),
            loss_sums: self.loss_weights.iter().map(|&weight| no_sum(weight)).collect(),
            loss: zeros(self.loss.dtype, []),
        };
        let count = options.microbatches + 2 * (options.stages - 1);
        let state = machine.each_iteration((0..count, false), Number::Known(0).tensor(), state, |iteration, state| {
            self.iteration(iteration, state)
        });
        Found { loss: state.loss, aux: state.aux, weights: state.sums, io: state.io, loss_weights: state.loss_sums }
    }

    /// What stands for results that an error has prevented.
    fn nothing(&self, io: Tensor) -> Found {
        Found { loss: io, aux: Vec::new(), weights: Vec::new(), io, loss_weights: Vec::new() }
    }

    fn iteration(&self, iteration: Tensor, state: State<Tensor>) -> State<Tensor> {
        let machine = self.machine;
        let stages = machine.options.stages;
        let slot = iteration % slots(machine.options) as f64;
        let in_slot = state.io.dynamic_index(1, slot);
        // Forwards.
        let forward = machine.items(iteration);
        let x = machine.named(machine.is_stage(0, state.shift).select(in_slot, state.shift));
        let weights = machine.weights.of_iteration(self.window, &forward, x);
        let result = machine.stage.run(Some(self.halves), &machine.captured, &machine.inputs(&forward, weights, x));
        let place = iteration % self.depth() as f64;
        let keep = |(stash, residual): (&Tensor, &Tensor)| stash.dynamic_update_along(1, residual.expand(1), place);
        let stash: Vec<Tensor> = state.stash.iter().zip(&result.residuals).map(keep).collect();
        let y = machine.named(result.y);
        let added = state.aux.iter().zip(&result.aux);
        let aux = added.map(|(&sum, &aux)| sum + per_stage(forward.active, aux).select(aux, 0.0)).collect();
        let last = machine.is_stage(stages - 1, y);
        // The loss of what leaves the last stage.
        let leaving = iteration - (stages - 1) as f64;
        let (loss, of_y, of_weights) = self.loss_of(leaving, last.select(y, 0.0).sum(0));
        let spread = |sum: Tensor, added: Tensor| self.while_leaving(leaving, sum, added);
        let axes: Vec<i32> = (1..y.rank() as i32).collect();
        let received = last.select(of_y.broadcast_like(y, &axes[..]), state.back);
        // Backwards.
        let stage = iota(DType::S32, [stages], 0);
        let began = iteration.broadcast_like(stage, []) - 2.0 * (stages - 1) as f64 + stage * 2.0;
        let backward = machine.items_of(began - stage);
        let (sums, of_x) = self.backward(&backward, began, (machine.named(received), &stash), &state.sums);
        let moved = machine.is_stage(0, of_x).select(of_x, in_slot).roll(0, -1);
        State {
            shift: machine.rotate(y),
            back: machine.rotate_back(of_x),
            io: state.io.dynamic_update_along(1, machine.named(moved).expand(1), slot),
            stash,
            aux,
            sums,
            loss_sums: state.loss_sums.iter().zip(of_weights).map(|(&sum, added)| spread(sum, added)).collect(),
            loss: spread(state.loss, loss),
        }
    }

    /// `sum + added`, where a microbatch leaves the last stage; else `sum`.
    fn while_leaving(&self, leaving: Tensor, sum: Tensor, added: Tensor) -> Tensor {
        let count = self.machine.options.microbatches as f64;
        let is_one = leaving.greater_equal(0.0) & leaving.less(count);
        sum + is_one.broadcast_like(added, []).select(added, 0.0).convert(sum.dtype())
    }

    /// The loss of a microbatch whose activations are these, their cotangent, and those of the loss's weights.
    fn loss_of(&self, microbatch: Tensor, y: Tensor) -> (Tensor, Tensor, Vec<Tensor>) {
        let y = self.loss.named(y);
        let inside = microbatch.clamp(0.0, (self.machine.options.microbatches - 1) as f64);
        let rows: Vec<Tensor> = self.rows.iter().map(|rows| rows.dynamic_index(0, inside)).collect();
        let inputs = (y, self.loss_weights, &rows[..]);
        let (loss, of_y, of_weights) = self.loss.with_gradients(self.loss_halves, self.loss_captured, inputs);
        (loss, self.loss.named(of_y), of_weights)
    }

    /// The backward passes of all stages, of microbatches whose forward passes they did in the iterations `began`.
    fn backward(
        &self,
        items: &Items,
        began: Tensor,
        (y, stash): (Tensor, &[Tensor]),
        sums: &[Tensor],
    ) -> (Vec<Tensor>, Tensor) {
        let machine = self.machine;
        let depth = self.depth() as f64;
        let place = (began + 2.0 * depth) % depth;
        let residuals = stash.iter().map(|&stash| pick_own(stash, place)).collect();
        let masked = |x: Tensor| per_stage(items.active, x).select(x, 0.0);
        let aux = self.aux.iter().map(|&aux| masked(aux)).collect();
        let weights = machine.weights.of_iteration(self.window, items, y);
        let inputs = machine.inputs(items, weights, y);
        let result = Iteration { y: masked(y), aux, residuals };
        let (of_weights, of_x) = machine.stage.run_back(self.halves, &machine.captured, inputs, result);
        let sums = machine.weights.add(&[sums.to_vec()], self.window, items, (of_weights, true)).concat();
        (sums, machine.named(masked(of_x)))
    }
}

/// Rows `[M, mb, ..]`, the same on every stage.
pub(super) fn rows_of_all(names: &AxisNames, all: Tensor, place: Place) -> Tensor {
    let other = vec![Name::new(""); all.rank() - 2];
    label(all, WithAxes::new([&[Name::new(""), names[1]], &other[..]].concat().into()), place)
}
