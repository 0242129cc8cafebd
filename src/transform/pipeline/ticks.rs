//! The ticks of a schedule whose stages branch: one program that reads a table.
//!
//! In each tick a stage looks up what it has to do, and does that alone: the forward pass of an item, the backward pass
//! of one, or nothing. The passes stand in conditionals of a [parallel map](map_parallel) over the stages. What all
//! stages have to do together stands outside: the loss of a microbatch, over which they split the work, in the ticks in
//! which there is one; inputs that enter and cotangents that leave; and at the end of each tick two permutes.
//!
//! Buffers are read in the branches and written behind them: a conditional that returned a buffer would copy it. So a
//! branch returns what is new, and a stage that has nothing to write writes what is there already. Sums of cotangents
//! of weights are too large for that: they are carried by a loop of one iteration or none, which works in place.
//!
//! | tensor | holds |
//! |---|---|
//! | `inbox` `[S, slots, mb, ..]` | activations and cotangents that have arrived and wait |
//! | `held` `[S, slots, ..]` | residuals of items between their passes |
//! | `io` `[S, M/S, mb, ..]` | inputs at first, their cotangents at the end; see [`turns`](super::turns) |
//! | `done` `[S, slots, mb, ..]` | cotangents of inputs that wait at the first stage for their turn |
//! | `sums` `[S, P, ..]` | for each chunk, cotangents of weights |

use super::loss_function::LossFunction;
use super::schedule::{Columns, Placement, Shape};
use super::stage::{Iteration, StageFunction, StageHalves, StageInputs};
use super::turns::{Turn, Turns};
use super::weights::no_sum;
use super::{PipelineOptions, in_order, stage_names_of_one, without_first};
use crate::autodiff::Halves;
use crate::ir::{AxisNames, DType, Literal, Name};
use crate::ops::WithAxes;
use crate::trace::{
    Branch, Place, ScanOptions, Tensor, change_if, cond, constant, fail_internal, full, iota, label, map_parallel,
    scan_with, stack, switch_between, zeros,
};

crate::tree! {
    /// What is carried from tick to tick.
    struct State<T> {
        inbox: T,
        held: Vec<T>,
        io: T,
        done: Option<T>,
        /// Sums of auxiliary values, of each stage.
        aux: Vec<T>,
        /// For each chunk.
        sums: Vec<Vec<T>>,
        /// Sums of the cotangents of the loss's weights.
        loss_sums: Vec<T>,
        /// The loss so far.
        loss: T,
    }

    /// What a stage needs for a pass.
    struct ForPass<T> {
        /// The numbers of the tick.
        cell: T,
        /// For each chunk, the weights `[P, ..]`.
        weights: Vec<Vec<T>>,
        inbox: T,
        held: Vec<T>,
        /// Forwards, what enters and the sums of auxiliary values; backwards, what the forward pass has made.
        others: Vec<T>,
        /// Backwards, for each chunk the sums of the weights' cotangents.
        sums: Vec<Vec<T>>,
    }
}

/// What a pass over all microbatches finds.
pub(super) struct Found {
    pub(super) loss: Tensor,
    /// `[S, ..]` each.
    pub(super) aux: Vec<Tensor>,
    /// Cotangents of the stacked weights, `[v, S, P, ..]` (without v if that is 1). None of a forward pass alone.
    pub(super) weights: Vec<Tensor>,
    /// Cotangents of the inputs, in slots.
    pub(super) io: Option<Tensor>,
    /// Cotangents of the loss's weights.
    pub(super) loss_weights: Vec<Tensor>,
}

/// What the ticks of one pass have in common.
pub(super) struct Ticks<'a> {
    pub(super) options: &'a PipelineOptions,
    pub(super) shape: Shape,
    pub(super) columns: &'a Columns,
    pub(super) stage: &'a StageFunction,
    /// The halves of the derivatives of a stage and of the loss; none of a forward pass alone.
    pub(super) halves: Option<(&'a StageHalves, &'a Halves)>,
    pub(super) captured: &'a [Tensor],
    pub(super) loss: &'a LossFunction,
    /// The weights of the loss, gathered.
    pub(super) loss_weights: &'a [Tensor],
    pub(super) loss_captured: &'a [Tensor],
    /// Rows `[M, mb, ..]`, whole on all stages.
    pub(super) rows: &'a [Tensor],
    /// For each chunk, its weights, gathered: `[S, P, ..]`.
    pub(super) weights: &'a [Vec<Tensor>],
    /// For each auxiliary value, what it counts in the loss.
    pub(super) penalties: &'a [f64],
    /// The logical names of activations `[S, mb, ..]`.
    pub(super) names: &'a AxisNames,
    pub(super) place: Place,
}

/// A number of a tick and stage: its place in a cell.
#[derive(Clone, Copy)]
enum Number {
    Forward,
    ForwardMicrobatch,
    ForwardFirstLayer,
    ForwardInput,
    ForwardHeld,
    Backward,
    BackwardMicrobatch,
    BackwardFirstLayer,
    BackwardInput,
    BackwardHeld,
    LossSlot,
    SendsRight,
    SendsLeft,
    FromLeft,
    FromRight,
    ForwardStays,
    BackwardStays,
}

const NUMBERS: usize = Number::BackwardStays as usize + 1;

/// A number of a tick that all stages share.
#[derive(Clone, Copy)]
enum Shared {
    /// The microbatch whose loss is computed.
    Leaves,
    /// The slot of `io` that turns.
    Turns,
    /// The slot of `done` for the cotangent that the first stage has computed.
    Exits,
    /// The slot of `done` whose cotangent is put into the turning slot.
    Taken,
}

const SHARED: usize = Shared::Taken as usize + 1;

/// The numbers of a tick, `s32[numbers]`: of a stage, or those that all share.
#[derive(Clone, Copy)]
struct Cell(Tensor);

impl Cell {
    fn at(self, index: usize) -> Tensor {
        self.0.slice(0, index..index + 1).reshape([])
    }

    fn get(self, number: Number) -> Tensor {
        self.at(number as usize)
    }

    fn shared(self, number: Shared) -> Tensor {
        self.at(number as usize)
    }

    /// A number of which -1 stands for nothing; then 0.
    fn place(self, number: Number) -> Tensor {
        self.get(number).maximum(0.0)
    }
}

/// Whether a number says something, rather than -1, as a mask over `like`.
fn says(number: Tensor, like: Tensor) -> Tensor {
    number.greater_equal(0.0).broadcast_like(like, [])
}

/// A buffer with a value in a slot; the buffer itself if that is -1.
fn put(buffer: Tensor, value: Tensor, slot: Tensor) -> Tensor {
    let place = slot.maximum(0.0);
    let there = buffer.dynamic_index(0, place);
    write(buffer, says(slot, value).select(value, there), place)
}

/// Zeros, to which the cotangents of weights are added.
fn no_sums(weights: &[Tensor]) -> Vec<Tensor> {
    weights.iter().map(|&weight| no_sum(weight)).collect()
}

fn write(buffer: Tensor, value: Tensor, place: Tensor) -> Tensor {
    buffer.dynamic_update_along(0, value.expand(0), place)
}

impl Ticks<'_> {
    /// All ticks. Inputs are in slots.
    pub(super) fn run(&self, io: Tensor) -> Found {
        let turns = Turns::of(self.columns, self.shape);
        let count = turns.ticks.len();
        let numbers = (self.cells(count), self.shared_numbers(&turns));
        let unroll = if self.options.scan_iterations { 1 } else { count.max(1) };
        let options = ScanOptions { unroll, ..ScanOptions::default() };
        let (state, ()) = scan_with(options, self.start(io, &turns), numbers, |state, (cells, shared)| {
            let names = [self.names[0], Name::new("")];
            let cells = label(cells, WithAxes::new(names.into_iter().collect()), self.place);
            (self.tick(cells, Cell(shared), state), ())
        });
        Found {
            loss: state.loss,
            aux: state.aux,
            weights: self.stacked(&state.sums),
            io: state.done.map(|_| in_order(self.options, state.io, turns.lag)),
            loss_weights: state.loss_sums,
        }
    }

    /// The numbers of so many ticks and of all stages, `s32[ticks, S, numbers]`. There can be more ticks than the table
    /// has, in which stages do nothing.
    fn cells(&self, count: usize) -> Tensor {
        let (columns, stages) = (self.columns, self.shape.stages);
        let mut numbers = Vec::new();
        for tick in 0..columns.forward.len() {
            for stage in 0..stages {
                let of = |column: &[Vec<i32>]| column[tick][stage];
                let loss_slot = if stage == self.shape.loss_stage() { columns.loss_slot[tick] } else { -1 };
                // In the order of `Number`.
                let cell: [i32; NUMBERS] = [
                    of(&columns.forward),
                    of(&columns.forward_microbatch),
                    self.first_layer(stage, of(&columns.forward)),
                    of(&columns.forward_input),
                    of(&columns.forward_held_b),
                    of(&columns.backward),
                    of(&columns.backward_microbatch),
                    self.first_layer(stage, of(&columns.backward)),
                    of(&columns.backward_input),
                    of(&columns.backward_held_b),
                    loss_slot,
                    of(&columns.sends_right),
                    of(&columns.sends_left),
                    of(&columns.arrives_from_left),
                    of(&columns.arrives_from_right),
                    of(&columns.forward_stays),
                    of(&columns.backward_stays),
                ];
                numbers.extend(cell);
            }
        }
        // Nothing to do, and nothing that comes.
        let mut idle = [-1; NUMBERS];
        idle[Number::Forward as usize] = 0;
        idle[Number::Backward as usize] = 0;
        (columns.forward.len() * stages..count * stages).for_each(|_| numbers.extend(idle));
        self.numbers(&[count, stages, NUMBERS], &numbers)
    }

    /// The numbers that all stages share, `s32[ticks, numbers]`.
    fn shared_numbers(&self, turns: &Turns) -> Tensor {
        // In the order of `Shared`.
        let tick = |(tick, turn): (usize, &Turn)| -> [i32; SHARED] {
            let leaves = self.columns.leaves_for_loss.get(tick).copied().unwrap_or(-1);
            [leaves, turn.slot, turn.exits, turn.taken]
        };
        let numbers: Vec<i32> = turns.ticks.iter().enumerate().flat_map(tick).collect();
        self.numbers(&[turns.ticks.len(), SHARED], &numbers)
    }

    fn numbers(&self, dims: &[usize], numbers: &[i32]) -> Tensor {
        match Literal::from_slice(dims, numbers) {
            Ok(literal) => constant(literal),
            Err(_) => fail_internal("the table of a pipeline", "a number for each tick and stage"),
        }
    }

    /// The number of the first layer of a chunk, given by what a column says of it: 1 more, or 0 for none.
    fn first_layer(&self, stage: usize, chunk: i32) -> i32 {
        let chunk = usize::try_from(chunk - 1).unwrap_or(0);
        (self.shape.virtual_stage(stage, chunk) * self.options.layers_per_stage) as i32
    }

    fn start(&self, io: Tensor, turns: &Turns) -> State<Tensor> {
        let dims = io.dims();
        let (stages, slots) = (self.shape.stages, self.columns.slots);
        let room = |count: usize, dims: &[usize]| [&[stages, count.max(1)], dims].concat();
        let residuals = self.halves.map(|(halves, _)| self.stage.residual_types(halves)).unwrap_or_default();
        let backwards = self.halves.is_some();
        State {
            inbox: zeros(io.dtype(), room(slots.inbox, without_first(&dims, 2))),
            held: residuals.iter().map(|ty| zeros(ty.dtype, room(slots.held_b, &ty.dims))).collect(),
            io,
            done: backwards.then(|| zeros(io.dtype(), room(turns.waiting, without_first(&dims, 2)))),
            aux: self.stage.aux_types().map(|ty| zeros(ty.dtype, [&[stages], &ty.dims[..]].concat())).collect(),
            sums: if backwards { self.weights.iter().map(|weights| no_sums(weights)).collect() } else { Vec::new() },
            loss_sums: self.loss_weights.iter().filter(|_| backwards).map(|&weight| no_sum(weight)).collect(),
            loss: zeros(self.loss.dtype, []),
        }
    }

    /// The sums of all chunks, `[v, S, P, ..]` (without v if that is 1).
    fn stacked(&self, sums: &[Vec<Tensor>]) -> Vec<Tensor> {
        match sums {
            [] => Vec::new(),
            [sums] => sums.clone(),
            [first, ..] => {
                let of_weight = |weight: usize| sums.iter().map(|sums| sums[weight]).collect::<Vec<Tensor>>();
                (0..first.len()).map(|weight| stack(&of_weight(weight), 0)).collect()
            }
        }
    }

    fn named(&self, x: Tensor) -> Tensor {
        label(x, WithAxes::new(self.names.clone()), self.place)
    }

    /// Activations of one stage, with their names.
    fn named_of_one(&self, x: Tensor) -> Tensor {
        label(x, WithAxes::new(stage_names_of_one(self.names)), self.place)
    }

    fn is_stage(&self, stage: usize, like: Tensor) -> Tensor {
        iota(DType::S32, [self.shape.stages], 0).equal(stage as f64).broadcast_like(like, [0])
    }

    fn tick(&self, cells: Tensor, shared: Cell, state: State<Tensor>) -> State<Tensor> {
        let State { inbox, held, io, done, aux, sums, loss_sums, loss } = state;
        let weights = self.weights.to_vec();
        let turns = shared.shared(Shared::Turns);
        let entry = io.dynamic_index(1, turns.maximum(0.0));
        let others = [&[entry], &aux[..]].concat();
        let pass = ForPass { cell: cells, weights: weights.clone(), inbox, held, others, sums: Vec::new() };
        let (y, held, aux) = map_parallel(pass, |pass| self.forward(pass));
        let y = self.named(y);
        let (of_y, loss_sums, loss) = self.loss(shared.shared(Shared::Leaves), y, loss_sums, loss);
        let Some((halves, _)) = self.halves else {
            let io = self.turn(turns, io, entry, |entry| entry);
            let (right, left) = self.permute(y, y);
            let inbox = self.receive(cells, inbox, [right, left, y, y]);
            return State { inbox, held, io, done, aux, sums, loss_sums, loss };
        };
        let pass = ForPass { cell: cells, weights, inbox, held: held.clone(), others: vec![y], sums };
        let (inbox, (of_x, right, left), sums) = map_parallel(pass, |pass| self.backward(halves, pass, of_y));
        let of_x = self.named(of_x);
        let exits = shared.shared(Shared::Exits);
        let done = done.map(|done| {
            let place = exits.maximum(0.0);
            let value = says(exits, of_x).select(of_x, done.dynamic_index(1, place));
            done.dynamic_update_along(1, self.named(value).expand(1), place)
        });
        let taken = shared.shared(Shared::Taken);
        let io = self.turn(turns, io, entry, |entry| {
            let Some(done) = done else { return entry };
            let own = says(taken, entry) & self.is_stage(0, entry);
            own.select(done.dynamic_index(1, taken.maximum(0.0)), entry)
        });
        let (right, left) = self.permute(self.named(right), self.named(left));
        let inbox = self.receive(cells, inbox, [right, left, y, of_x]);
        State { inbox, held, io, done, aux, sums, loss_sums, loss }
    }

    /// Inputs and their cotangents after a tick: with one slot, which holds `there`, changed and moved one stage to the
    /// left.
    fn turn(&self, slot: Tensor, io: Tensor, there: Tensor, change: impl FnOnce(Tensor) -> Tensor) -> Tensor {
        let moves = |there: Tensor| self.named(change(there).roll(0, -1));
        let moved = cond(slot.greater_equal(0.0), self.named(there), moves, |there| there);
        io.dynamic_update_along(1, self.named(moved).expand(1), slot.maximum(0.0))
    }

    /// The forward pass of one stage: what it sends, the residuals, and the sums of auxiliary values.
    fn forward(&self, pass: ForPass<Tensor>) -> (Tensor, Vec<Tensor>, Vec<Tensor>) {
        let ForPass { cell, weights, inbox, held, others, .. } = pass;
        let (cell, entry, aux) = (Cell(cell), others[0], &others[1..]);
        let slot = cell.get(Number::ForwardInput);
        let x = says(slot, entry).select(inbox.dynamic_index(0, slot.maximum(0.0)), entry);
        let place = cell.place(Number::ForwardHeld);
        let aux_types: Vec<_> = self.stage.aux_types().cloned().collect();
        let nothing = |x: Tensor| {
            // What is in the slot already.
            let residuals: Vec<Tensor> = held.iter().map(|held| held.dynamic_index(0, place)).collect();
            let aux: Vec<Tensor> = aux_types.iter().map(|ty| zeros(ty.dtype, &ty.dims)).collect();
            (self.named_of_one(x.zeros_like()), aux, residuals)
        };
        let of_chunk = |weights: &Vec<Tensor>| {
            let weights = weights.clone();
            move |x: Tensor| {
                let inputs = self.inputs(cell, (Number::ForwardMicrobatch, Number::ForwardFirstLayer), weights, x);
                let halves = self.halves.map(|(halves, _)| halves);
                let Iteration { y, aux, residuals } = self.stage.run(halves, self.captured, &inputs);
                (self.named_of_one(y), aux, residuals)
            }
        };
        let mut branches: Vec<Branch<'_, Tensor, _>> = vec![Box::new(nothing)];
        branches.extend(weights.iter().map(|weights| Box::new(of_chunk(weights)) as Branch<'_, _, _>));
        let (y, added, residuals) = switch_between(cell.get(Number::Forward), self.named_of_one(x), branches);
        let held = held.iter().zip(residuals).map(|(&held, residual)| write(held, residual, place)).collect();
        let aux = aux.iter().zip(added).map(|(&sum, added)| sum + added).collect();
        (y, held, aux)
    }

    fn inputs(
        &self,
        cell: Cell,
        (microbatch, first_layer): (Number, Number),
        weights: Vec<Tensor>,
        x: Tensor,
    ) -> StageInputs {
        let microbatch = cell.place(microbatch);
        let rows = self.rows.iter().map(|rows| rows.dynamic_index(0, microbatch)).collect();
        StageInputs { weights, x, rows, first_layer: cell.get(first_layer), microbatch }
    }

    /// In a tick in which a microbatch has come to the end: its loss, the cotangent of its activations, and those of
    /// the loss's weights. All stages take part.
    fn loss(
        &self,
        microbatch: Tensor,
        y: Tensor,
        loss_sums: Vec<Tensor>,
        loss: Tensor,
    ) -> (Tensor, Vec<Tensor>, Tensor) {
        let one = zeros(y.dtype(), without_first(&y.dims(), 1));
        let carry = (self.named_of_one(one), loss_sums, loss);
        change_if(microbatch.greater_equal(0.0), carry, |(unused, sums, loss)| {
            let own = self.is_stage(self.shape.loss_stage(), y).select(y, 0.0).sum(0);
            let rows: Vec<Tensor> =
                self.rows.iter().map(|rows| rows.dynamic_index(0, microbatch.maximum(0.0))).collect();
            let Some((_, halves)) = self.halves else {
                let value = self.loss.value(self.loss_captured, own, self.loss_weights, &rows);
                return (unused, sums, loss + value);
            };
            let inputs = (own, self.loss_weights, &rows[..]);
            let (value, of_y, of_weights) = self.loss.with_gradients(halves, self.loss_captured, inputs);
            let sums = sums.iter().zip(of_weights).map(|(&sum, added)| sum + added.convert(sum.dtype())).collect();
            (self.named_of_one(of_y), sums, loss + value)
        })
    }

    /// The backward pass of one stage: the inbox with the loss's cotangent; the cotangent of what the chunk began with,
    /// and what goes to the right and to the left; and the sums of the weights' cotangents.
    fn backward(
        &self,
        halves: &StageHalves,
        pass: ForPass<Tensor>,
        of_y: Tensor,
    ) -> (Tensor, (Tensor, Tensor, Tensor), Vec<Vec<Tensor>>) {
        let ForPass { cell, weights, inbox, held, others, sums } = pass;
        let (cell, y) = (Cell(cell), others[0]);
        let inbox = put(inbox, of_y, cell.get(Number::LossSlot));
        let received = self.named_of_one(inbox.dynamic_index(0, cell.place(Number::BackwardInput)));
        let nothing = |x: Tensor| {
            let none: Vec<Tensor> = weights[0].iter().map(|weight| weight.zeros_like()).collect();
            (self.named_of_one(x.zeros_like()), none)
        };
        let held = &held;
        let of_chunk = |weights: &Vec<Tensor>| {
            let weights = weights.clone();
            move |received: Tensor| {
                let place = cell.place(Number::BackwardHeld);
                let residuals = held.iter().map(|held| held.dynamic_index(0, place)).collect();
                let inputs =
                    self.inputs(cell, (Number::BackwardMicrobatch, Number::BackwardFirstLayer), weights, received);
                let iteration = Iteration { y: received, aux: self.cotangents_of_aux(), residuals };
                let (of_weights, of_x) = self.stage.run_back(halves, self.captured, inputs, iteration);
                (self.named_of_one(of_x), of_weights)
            }
        };
        let mut branches: Vec<Branch<'_, Tensor, _>> = vec![Box::new(nothing)];
        branches.extend(weights.iter().map(|weights| Box::new(of_chunk(weights)) as Branch<'_, _, _>));
        let which = cell.get(Number::Backward);
        let (of_x, of_weights) = switch_between(which, received, branches);
        let sums = self.add(which, sums, &of_weights);
        let sent = |number: Number| says(cell.get(number) - 2.0, y).select(of_x, y);
        let (right, left) = match self.shape.placement {
            Placement::Loop => (y, of_x),
            Placement::Vee => (sent(Number::SendsRight), sent(Number::SendsLeft)),
        };
        (inbox, (of_x, right, left), sums)
    }

    /// Adds the cotangents of a chunk's weights, if there are any: `chunk` counts from 1, and is 0 if there are none.
    fn add(&self, chunk: Tensor, sums: Vec<Vec<Tensor>>, of_weights: &[Tensor]) -> Vec<Vec<Tensor>> {
        let of_chunk = |(index, sums): (usize, Vec<Tensor>)| {
            change_if(chunk.equal((index + 1) as f64), sums, |sums| {
                let added = sums.iter().zip(of_weights);
                added.map(|(&sum, added)| sum + added.convert(sum.dtype())).collect()
            })
        };
        sums.into_iter().enumerate().map(of_chunk).collect()
    }

    /// For each auxiliary value, what its penalty's gradient is.
    fn cotangents_of_aux(&self) -> Vec<Tensor> {
        let penalties = self.penalties.iter().copied().chain(std::iter::repeat(0.0));
        self.stage.aux_types().zip(penalties).map(|(ty, weight)| full(ty.dtype, &ty.dims, weight)).collect()
    }

    /// What has been sent to the right and to the left, with those who get it.
    fn permute(&self, right: Tensor, left: Tensor) -> (Tensor, Tensor) {
        let (right, left) = match (self.shape.placement, self.options.chunks) {
            (Placement::Loop, 2..) => (right.roll(0, 1), left.roll(0, -1)),
            _ => (right.pad(0, 1, -1, 0.0), left.pad(0, -1, 1, 0.0)),
        };
        (self.named(right), self.named(left))
    }

    /// The inboxes with what has arrived: from the left, from the right, and from the stage's own passes.
    fn receive(&self, cells: Tensor, inbox: Tensor, arrived: [Tensor; 4]) -> Tensor {
        let numbers = [Number::FromLeft, Number::FromRight, Number::ForwardStays, Number::BackwardStays];
        // Only at the turn of a V does anything stay.
        let count = if self.shape.placement == Placement::Vee { 4 } else { 2 };
        let arrived = arrived[..count].to_vec();
        map_parallel((cells, inbox, arrived), |(cell, inbox, arrived)| {
            numbers.into_iter().zip(arrived).fold(inbox, |inbox, (number, x)| put(inbox, x, Cell(cell).get(number)))
        })
    }
}
