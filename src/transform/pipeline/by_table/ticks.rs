//! The ticks of a schedule whose stages branch: one program that reads a table.
//!
//! In each tick a stage looks up what it has to do, and does that alone: the forward pass of an item, the backward pass
//! of one, or nothing. The passes stand in conditionals of a [parallel map](map_parallel) over the stages. The work
//! that all stages do together stands outside: the loss of a microbatch, which they split, in the ticks that have one;
//! inputs that enter and cotangents that leave; and at the end of each tick two permutes.
//!
//! Branches return new values and never a buffer, which would be copied. Behind the branches, loops of one iteration or
//! none write these values and add them to sums, which works in place. (A select between the old and the new value
//! would read a buffer beside writing it, and XLA then copies it.)
//!
//! Where the table cuts backward passes in two, W's are a loop over the entries of the cell.
//!
//! | tensor | holds |
//! |---|---|
//! | `inbox` `[S, slots, mb, ..]` | activations and cotangents that have arrived and wait |
//! | `held` `[S, slots, ..]` | residuals of items until B, or until W if that reads them |
//! | `between` `[S, slots, ..]` | what B leaves for W |
//! | `io` `[S, M/S, mb, ..]` | inputs at first, their cotangents at the end; see [`input_ring`](super::input_ring) |
//! | `done` `[S, slots, mb, ..]` | cotangents of inputs that wait at the first stage for their turn |
//! | `sums` `[S, P, ..]` | for each chunk, cotangents of weights |

use super::super::PipelineOptions;
use super::super::batch_slots::{in_order, without_first};
use super::super::schedule::{Columns, Placement, Shape};
use super::super::stage::{Iteration, StageFunction, StageHalves, StageInputs};
use super::super::stage_weights::{added, no_sums};
use super::input_ring::InputRing;
use super::loss_function::LossFunction;
use super::split_stage::SplitStage;
use super::table_columns::{CellColumn, CellNumbers, EntryColumn, TableNumbers, TickColumn, WeightEntries};
use crate::autodiff::Halves;
use crate::ir::{AxisNames, DType, Name, TensorType};
use crate::ops::{Often, WithAxes};
use crate::trace::{
    Branch, ScanOptions, Tensor, change_if, full, iota, map_parallel, refill, scan_with, switch_between, while_at_most,
    zeros,
};

crate::tree! {
    /// The state that one tick hands to the next.
    struct TickState<T> {
        inbox: T,
        held: Vec<T>,
        between: Vec<T>,
        io: T,
        done: Option<T>,
        /// Sums of auxiliary values, of each stage.
        aux: Vec<T>,
        /// For each chunk, sums of the cotangents of its weights.
        sums: Vec<Vec<T>>,
        /// Sums of the cotangents of the loss's weights.
        loss_sums: Vec<T>,
        /// The loss so far.
        loss: T,
    }

    /// The operands of a stage's pass.
    struct ForPass<T> {
        /// The numbers of the tick.
        cell: T,
        /// For each chunk, the weights `[P, ..]`.
        weights: Vec<Vec<T>>,
        inbox: T,
        held: Vec<T>,
        between: Vec<T>,
        /// In the forward pass, the inputs that enter and the sums of auxiliary values; in the backward pass, the
        /// results of the forward pass.
        others: Vec<T>,
        /// In the backward pass, for each chunk the sums of the weights' cotangents.
        sums: Vec<Vec<T>>,
    }
}

/// The results of a pass over all microbatches.
pub(super) struct PassResults {
    pub(super) loss: Tensor,
    /// `[S, ..]` each.
    pub(super) aux: Vec<Tensor>,
    /// For each chunk, cotangents of the weights, `[S, P, ..]`. A forward pass alone has none.
    pub(super) weights: Vec<Vec<Tensor>>,
    /// Cotangents of the inputs, in slots.
    pub(super) io: Option<Tensor>,
    /// Cotangents of the loss's weights.
    pub(super) loss_weights: Vec<Tensor>,
}

/// The derivatives of a stage and of the loss, in halves.
pub(super) struct Derivatives {
    pub(super) stage: StageHalves,
    /// The backward half of a stage in two parts, if the table has it so.
    pub(super) split: Option<SplitStage>,
    pub(super) loss: Halves,
}

/// The parts that all ticks of one pass have in common.
pub(super) struct Ticks<'a> {
    pub(super) options: &'a PipelineOptions,
    pub(super) shape: Shape,
    pub(super) columns: &'a Columns,
    pub(super) turns: &'a InputRing,
    pub(super) stage: &'a StageFunction,
    /// The derivatives of a stage and of the loss; `None` for a forward pass alone.
    pub(super) derivatives: Option<&'a Derivatives>,
    pub(super) captured: &'a [Tensor],
    pub(super) loss: &'a LossFunction,
    /// The weights of the loss, gathered.
    pub(super) loss_weights: &'a [Tensor],
    pub(super) loss_captured: &'a [Tensor],
    /// Rows `[M, mb, ..]`, whole on all stages.
    pub(super) rows: &'a [Tensor],
    /// For each chunk, its weights, gathered: `[S, P, ..]`.
    pub(super) weights: &'a [Vec<Tensor>],
    /// For each auxiliary value, its factor in the loss.
    pub(super) penalties: &'a [f64],
    /// The logical names of activations `[S, mb, ..]`.
    pub(super) names: &'a AxisNames,
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

/// Adds the cotangents of the marked weights of a chunk, if there is a chunk: `chunk` counts from 1, and is 0 for none.
/// `often` says how often each chunk has a pass.
fn add(chunk: Tensor, often: &Often, sums: Vec<Vec<Tensor>>, (marked, more): (&[bool], &[Tensor])) -> Vec<Vec<Tensor>> {
    let of_chunk = |(index, sums): (usize, Vec<Tensor>)| {
        let own = sums.iter().zip(marked).filter(|(_, marked)| **marked).map(|(&sum, _)| sum).collect::<Vec<Tensor>>();
        let is_own = chunk.equal((index + 1) as f64);
        let changed: Vec<Tensor> = change_if(is_own, often.clone(), own, |sums| added(&sums, more.iter().copied()));
        let mut changed = changed.into_iter();
        let own = |(sum, &marked): (Tensor, &bool)| if marked { refill(&sum, &mut changed) } else { sum };
        sums.into_iter().zip(marked).map(own).collect()
    };
    sums.into_iter().enumerate().map(of_chunk).collect()
}

fn write(buffer: Tensor, value: Tensor, place: Tensor) -> Tensor {
    buffer.dynamic_update_along(0, value.expand(0), place)
}

impl Ticks<'_> {
    /// All ticks. Inputs are in slots.
    pub(super) fn run(&self, io: Tensor) -> PassResults {
        let &Ticks { options, columns, shape, turns, .. } = self;
        let count = turns.ticks.len();
        let cells = TableNumbers { columns, shape, layers_per_stage: options.layers_per_stage };
        let numbers = (cells.of_stages(count), cells.shared(turns));
        let unroll = if options.scan_iterations { 1 } else { count.max(1) };
        let in_order_of_ticks = ScanOptions { unroll, ..ScanOptions::default() };
        let (state, ()) = scan_with(in_order_of_ticks, self.start(io, turns), numbers, |state, (cells, shared)| {
            let names = [self.names[0], Name::new("")];
            let cells = cells.with_logical_axes(WithAxes::new(names.into_iter().collect()));
            (self.tick(cells, CellNumbers(shared), state), ())
        });
        PassResults {
            loss: state.loss,
            aux: state.aux,
            weights: state.sums,
            io: state.done.map(|_| in_order(options, state.io, turns.lag)),
            loss_weights: state.loss_sums,
        }
    }

    fn start(&self, io: Tensor, turns: &InputRing) -> TickState<Tensor> {
        let dims = io.dims();
        let (stages, slots) = (self.shape.stages, self.columns.slots);
        let room = |count: usize, dims: &[usize]| [&[stages, count.max(1)], dims].concat();
        let buffer = |ty: &TensorType, count: usize| zeros(ty.dtype, room(count, &ty.dims));
        let held_slots = |index: usize| if self.waits(index) { slots.held_w } else { slots.held_b };
        let residuals = self.residual_types();
        let backwards = self.derivatives.is_some();
        TickState {
            inbox: zeros(io.dtype(), room(slots.inbox, without_first(&dims, 2))),
            held: residuals.iter().enumerate().map(|(index, ty)| buffer(ty, held_slots(index))).collect(),
            between: self.between_types().iter().map(|ty| buffer(ty, slots.between)).collect(),
            io,
            done: backwards.then(|| zeros(io.dtype(), room(turns.waiting, without_first(&dims, 2)))),
            aux: self.stage.aux_types().map(|ty| zeros(ty.dtype, [&[stages], &ty.dims[..]].concat())).collect(),
            sums: if backwards { self.weights.iter().map(|weights| no_sums(weights)).collect() } else { Vec::new() },
            loss_sums: if backwards { no_sums(self.loss_weights) } else { Vec::new() },
            loss: zeros(self.loss.dtype, []),
        }
    }

    /// The types of the residuals that a forward pass keeps; empty where there is no backward pass.
    fn residual_types(&self) -> Vec<TensorType> {
        self.derivatives.map(|all| self.stage.residual_types(&all.stage)).unwrap_or_default()
    }

    /// Items of a stage.
    fn items(&self) -> usize {
        self.shape.microbatches * self.shape.chunks
    }

    /// How often the regions of an op of a tick run in all ticks.
    fn often(&self, runs: impl IntoIterator<Item = usize>) -> Often {
        Often::new(runs, self.turns.ticks.len())
    }

    /// As [`Ticks::often`], for a choice between no pass and a pass of each chunk.
    fn often_of_passes(&self) -> Often {
        let of_chunks = std::iter::repeat_n(self.shape.microbatches, self.shape.chunks);
        self.often(std::iter::once(self.turns.ticks.len() - self.items()).chain(of_chunks))
    }

    fn split(&self) -> Option<&SplitStage> {
        self.derivatives.and_then(|all| all.split.as_ref())
    }

    /// Whether a residual waits for W, not only for B.
    fn waits(&self, residual: usize) -> bool {
        self.split().is_some_and(|split| split.waits[residual])
    }

    /// The types of the values that B leaves for W.
    fn between_types(&self) -> Vec<TensorType> {
        self.split().map(|split| split.between_types(self.stage)).unwrap_or_default()
    }

    fn named(&self, x: Tensor) -> Tensor {
        x.with_logical_axes(WithAxes::new(self.names.clone()))
    }

    /// Activations of one stage, with their names.
    fn named_of_one(&self, x: Tensor) -> Tensor {
        x.with_logical_axes(WithAxes::new(self.names.iter().skip(1).copied().collect()))
    }

    fn is_stage(&self, stage: usize, like: Tensor) -> Tensor {
        iota(DType::S32, [self.shape.stages], 0).equal(stage as f64).broadcast_like(like, [0])
    }

    fn tick(&self, cells: Tensor, shared: CellNumbers, state: TickState<Tensor>) -> TickState<Tensor> {
        let TickState { inbox, held, between, io, done, aux, sums, loss_sums, loss } = state;
        let weights = self.weights.to_vec();
        let turns = shared.shared(TickColumn::Turns);
        let entry = io.dynamic_index(1, turns.maximum(0.0));
        let others = [&[entry], &aux[..]].concat();
        let none = (Vec::new(), Vec::new());
        let pass =
            ForPass { cell: cells, weights: weights.clone(), inbox, held, between: none.0, others, sums: none.1 };
        let (y, held, aux) = map_parallel(pass, |pass| self.forward(pass));
        let y = self.named(y);
        let (of_y, loss_sums, loss) = self.loss(shared.shared(TickColumn::Leaves), y, loss_sums, loss);
        let Some(derivatives) = self.derivatives else {
            let io = self.turn(turns, io, entry, |entry| entry);
            let (right, left) = self.permute(y, y);
            let inbox = self.receive(cells, inbox, [right, left, y, y]);
            return TickState { inbox, held, between, io, done, aux, sums, loss_sums, loss };
        };
        let pass = ForPass { cell: cells, weights, inbox, held: held.clone(), between, others: vec![y], sums };
        let (inbox, (of_x, right, left), between, sums) =
            map_parallel(pass, |pass| self.backward(derivatives, pass, of_y));
        let of_x = self.named(of_x);
        let exits = shared.shared(TickColumn::Exits);
        let done = done.map(|done| {
            let place = exits.maximum(0.0);
            let value = says(exits, of_x).select(of_x, done.dynamic_index(1, place));
            done.dynamic_update_along(1, self.named(value).expand(1), place)
        });
        let taken = shared.shared(TickColumn::Taken);
        let io = self.turn(turns, io, entry, |entry| {
            let Some(done) = done else { return entry };
            let own = says(taken, entry) & self.is_stage(0, entry);
            own.select(done.dynamic_index(1, taken.maximum(0.0)), entry)
        });
        let (right, left) = self.permute(self.named(right), self.named(left));
        let inbox = self.receive(cells, inbox, [right, left, y, of_x]);
        TickState { inbox, held, between, io, done, aux, sums, loss_sums, loss }
    }

    /// Inputs and their cotangents after a tick: with one slot, which holds `there`, changed and moved one stage to the
    /// left.
    fn turn(&self, slot: Tensor, io: Tensor, there: Tensor, change: impl FnOnce(Tensor) -> Tensor) -> Tensor {
        let moves = |there: Tensor| self.named(change(there).roll(0, -1));
        let turns = self.turns.count();
        let often = self.often([self.turns.ticks.len() - turns, turns]);
        let branches: Vec<Branch<'_, Tensor, Tensor>> = vec![Box::new(|there| there), Box::new(moves)];
        let moved = switch_between(slot.greater_equal(0.0), often, self.named(there), branches);
        io.dynamic_update_along(1, self.named(moved).expand(1), slot.maximum(0.0))
    }

    /// The forward pass of one stage: the value that it sends, the residuals, and the sums of auxiliary values.
    fn forward(&self, pass: ForPass<Tensor>) -> (Tensor, Vec<Tensor>, Vec<Tensor>) {
        let ForPass { cell, weights, inbox, held, others, .. } = pass;
        let (cell, entry, aux) = (CellNumbers(cell), others[0], &others[1..]);
        let residual_types = self.residual_types();
        let slot = cell.get(CellColumn::ForwardInput);
        let x = says(slot, entry).select(inbox.dynamic_index(0, slot.maximum(0.0)), entry);
        let aux_types: Vec<_> = self.stage.aux_types().cloned().collect();
        let nothing = |x: Tensor| {
            let residuals: Vec<Tensor> = residual_types.iter().map(|ty| zeros(ty.dtype, &ty.dims)).collect();
            let aux: Vec<Tensor> = aux_types.iter().map(|ty| zeros(ty.dtype, &ty.dims)).collect();
            (self.named_of_one(x.zeros_like()), aux, residuals)
        };
        let of_chunk = |weights: &Vec<Tensor>| {
            let weights = weights.clone();
            move |x: Tensor| {
                let inputs = self.inputs(
                    (cell.get(CellColumn::ForwardMicrobatch), cell.get(CellColumn::ForwardFirstLayer)),
                    weights,
                    x,
                );
                let halves = self.derivatives.map(|all| &all.stage);
                let Iteration { y, aux, residuals } = self.stage.run(halves, self.captured, &inputs);
                (self.named_of_one(y), aux, residuals)
            }
        };
        let mut branches: Vec<Branch<'_, Tensor, _>> = vec![Box::new(nothing)];
        branches.extend(weights.iter().map(|weights| Box::new(of_chunk(weights)) as Branch<'_, _, _>));
        let which = cell.get(CellColumn::Forward);
        let (y, added, residuals) = switch_between(which, self.often_of_passes(), self.named_of_one(x), branches);
        let held = change_if(which.greater(0.0), self.often([self.items()]), held, |held| {
            let places = [CellColumn::ForwardHeld, CellColumn::ForwardHeldW].map(|number| cell.place(number));
            let write = |(index, (&held, residual)): (usize, (&Tensor, Tensor))| {
                write(held, residual, places[usize::from(self.waits(index))])
            };
            held.iter().zip(residuals).enumerate().map(write).collect()
        });
        let aux = aux.iter().zip(added).map(|(&sum, added)| sum + added).collect();
        (y, held, aux)
    }

    /// The inputs of a pass: `numbers` are the microbatch, -1 for none, and the first layer.
    fn inputs(&self, numbers: (Tensor, Tensor), weights: Vec<Tensor>, x: Tensor) -> StageInputs {
        let microbatch = numbers.0.maximum(0.0);
        let rows = self.rows.iter().map(|rows| rows.dynamic_index(0, microbatch)).collect();
        StageInputs { weights, x, rows, first_layer: numbers.1, microbatch }
    }

    /// The loss of a microbatch that has come to the end in this tick, the cotangent of its activations, and those of
    /// the loss's weights. All stages take part.
    fn loss(
        &self,
        microbatch: Tensor,
        y: Tensor,
        loss_sums: Vec<Tensor>,
        loss: Tensor,
    ) -> (Tensor, Vec<Tensor>, Tensor) {
        let one = zeros(y.dtype(), without_first(&y.dims(), 1));
        // XLA moves what does not depend on the carry in front of a loop, and then computes it in every tick. So the
        // activations are carried too, and changed.
        let carry = (y, self.named_of_one(one), loss_sums, loss);
        let (is_one, often) = (microbatch.greater_equal(0.0), self.often([self.shape.microbatches]));
        let (_, of_y, sums, loss) = change_if(is_one, often, carry, |(y, unused, sums, loss)| {
            let own = self.is_stage(self.shape.loss_stage(), y).select(y, 0.0).sum(0);
            let used = self.named(y.zeros_like());
            let rows: Vec<Tensor> =
                self.rows.iter().map(|rows| rows.dynamic_index(0, microbatch.maximum(0.0))).collect();
            let Some(Derivatives { loss: halves, .. }) = self.derivatives else {
                let value = self.loss.value(self.loss_captured, own, self.loss_weights, &rows);
                return (used, unused, sums, loss + value);
            };
            let inputs = (own, self.loss_weights, &rows[..]);
            let (value, of_y, of_weights) = self.loss.with_gradients(halves, self.loss_captured, inputs);
            let sums = added(&sums, of_weights);
            (used, self.named_of_one(of_y), sums, loss + value)
        });
        (of_y, sums, loss)
    }

    /// The backward pass of one stage. Returns the inbox with the loss's cotangent; the cotangent of the chunk's input,
    /// and the values sent to the right and to the left; the values that B leaves for W; and the sums of the weights'
    /// cotangents.
    #[expect(clippy::type_complexity, reason = "each part is what the comment says")]
    fn backward(
        &self,
        Derivatives { stage: halves, split, .. }: &Derivatives,
        pass: ForPass<Tensor>,
        of_y: Tensor,
    ) -> (Tensor, (Tensor, Tensor, Tensor), Vec<Tensor>, Vec<Vec<Tensor>>) {
        let ForPass { cell, weights, inbox, held, between, others, sums } = pass;
        let (cell, y) = (CellNumbers(cell), others[0]);
        let inbox = put(inbox, of_y, cell.get(CellColumn::LossSlot));
        let received = self.named_of_one(inbox.dynamic_index(0, cell.place(CellColumn::BackwardInput)));
        let left_types = self.between_types();
        // The weights whose cotangents are not W's.
        let at_once: Vec<bool> = match split {
            None => vec![true; weights[0].len()],
            Some(split) => split.waiting_weights.iter().map(|waits| !waits).collect(),
        };
        let nothing = |x: Tensor| {
            let own = weights[0].iter().zip(&at_once).filter(|(_, own)| **own);
            let of_weights: Vec<Tensor> = own.map(|(weight, _)| weight.zeros_like()).collect();
            let left: Vec<Tensor> = left_types.iter().map(|ty| zeros(ty.dtype, &ty.dims)).collect();
            (self.named_of_one(x.zeros_like()), of_weights, left)
        };
        let held = &held;
        let of_chunk = |weights: &Vec<Tensor>| {
            let weights = weights.clone();
            move |received: Tensor| {
                let places = [CellColumn::BackwardHeld, CellColumn::BackwardHeldW].map(|number| cell.place(number));
                let residual =
                    |(index, held): (usize, &Tensor)| held.dynamic_index(0, places[usize::from(self.waits(index))]);
                let residuals = held.iter().enumerate().map(residual).collect();
                let numbers = (cell.get(CellColumn::BackwardMicrobatch), cell.get(CellColumn::BackwardFirstLayer));
                let inputs = self.inputs(numbers, weights, received);
                let iteration = Iteration { y: received, aux: self.cotangents_of_aux(), residuals };
                let (of_weights, of_x, left) = match split {
                    None => {
                        let (of_weights, of_x) = self.stage.run_back(halves, self.captured, inputs, iteration);
                        (of_weights, of_x, Vec::new())
                    }
                    Some(split) => split.inputs_back((self.stage, halves), self.captured, inputs, iteration),
                };
                (self.named_of_one(of_x), of_weights, left)
            }
        };
        let mut branches: Vec<Branch<'_, Tensor, _>> = vec![Box::new(nothing)];
        branches.extend(weights.iter().map(|weights| Box::new(of_chunk(weights)) as Branch<'_, _, _>));
        let which = cell.get(CellColumn::Backward);
        let (of_x, of_weights, left) = switch_between(which, self.often_of_passes(), received, branches);
        let sums = add(which, &self.often([self.shape.microbatches]), sums, (&at_once, &of_weights));
        let (between, sums) = match split {
            None => (between, sums),
            Some(split) => {
                let often = self.often([self.items()]);
                let between = change_if(which.greater(0.0), often, between, |between| {
                    let place = cell.place(CellColumn::BackwardBetween);
                    between.iter().zip(left).map(|(&between, left)| write(between, left, place)).collect()
                });
                let sums = self.weights_back((halves, split), cell, (&weights, held, &between), sums);
                (between, sums)
            }
        };
        let sent = |number: CellColumn| says(cell.get(number) - 2.0, y).select(of_x, y);
        let (right, left) = match self.shape.placement {
            Placement::Loop => (y, of_x),
            Placement::Vee => (sent(CellColumn::SendsRight), sent(CellColumn::SendsLeft)),
        };
        (inbox, (of_x, right, left), between, sums)
    }

    /// The W's of a cell: the sums with the cotangents of weights.
    fn weights_back(
        &self,
        halves: (&StageHalves, &SplitStage),
        cell: CellNumbers,
        (weights, held, between): (&[Vec<Tensor>], &[Tensor], &[Tensor]),
        sums: Vec<Vec<Tensor>>,
    ) -> Vec<Vec<Tensor>> {
        // The entries are carried, and change: so XLA finds nothing in the loop that it could compute in front of it.
        let carry = (cell.entries().0, sums);
        let more = |(entries, _): (Tensor, _)| WeightEntries(entries).first(EntryColumn::Chunk).greater(0.0);
        let (chunks, items) = (self.shape.chunks, self.items());
        let runs = (self.columns.max_weights, self.often([items]));
        let (_, sums) = while_at_most(runs, carry, more, |(entries, sums): (Tensor, Vec<Vec<Tensor>>)| {
            let entries = WeightEntries(entries);
            let [chunk, microbatch, first_layer, held_w, place] = [
                EntryColumn::Chunk,
                EntryColumn::Microbatch,
                EntryColumn::FirstLayer,
                EntryColumn::HeldW,
                EntryColumn::Between,
            ]
            .map(|number| entries.first(number));
            let residual = |(index, held): (usize, &Tensor)| match self.waits(index) {
                true => held.dynamic_index(0, held_w),
                // This argument is not read.
                false => held_w,
            };
            let residuals: Vec<Tensor> = held.iter().enumerate().map(residual).collect();
            let between: Vec<Tensor> = between.iter().map(|between| between.dynamic_index(0, place)).collect();
            let of_chunk = |weights: &Vec<Tensor>| {
                let inputs = self.inputs((microbatch, first_layer), weights.clone(), held_w);
                let left = (residuals.clone(), between.clone(), self.cotangents_of_aux());
                halves.1.weights_back((self.stage, halves.0), self.captured, inputs, left)
            };
            let of_weights: Vec<Tensor> = if weights.len() > 1 && halves.1.reads_weights {
                let branch = |weights: &'_ Vec<Tensor>| {
                    let weights = weights.clone();
                    Box::new(move |()| of_chunk(&weights)) as Branch<'_, (), _>
                };
                let often = Often::new(vec![items / chunks; chunks], items);
                switch_between(chunk - 1.0, often, (), weights.iter().map(branch).collect())
            } else {
                of_chunk(&weights[0])
            };
            let often = Often::new([items / chunks], items);
            (entries.rest().0, add(chunk, &often, sums, (&halves.1.waiting_weights, &of_weights)))
        });
        sums
    }

    /// For each auxiliary value, the gradient of its penalty.
    fn cotangents_of_aux(&self) -> Vec<Tensor> {
        let penalties = self.penalties.iter().copied().chain(std::iter::repeat(0.0));
        self.stage.aux_types().zip(penalties).map(|(ty, weight)| full(ty.dtype, &ty.dims, weight)).collect()
    }

    /// Sends values to the right and to the left, and returns them at their receivers.
    fn permute(&self, right: Tensor, left: Tensor) -> (Tensor, Tensor) {
        let (right, left) = match (self.shape.placement, self.options.chunks) {
            (Placement::Loop, 2..) => (right.roll(0, 1), left.roll(0, -1)),
            _ => (right.pad(0, 1, -1, 0.0), left.pad(0, -1, 1, 0.0)),
        };
        (self.named(right), self.named(left))
    }

    /// The inboxes with the values that have arrived: from the left, from the right, and from the stage's own passes.
    fn receive(&self, cells: Tensor, inbox: Tensor, arrived: [Tensor; 4]) -> Tensor {
        let numbers =
            [CellColumn::FromLeft, CellColumn::FromRight, CellColumn::ForwardStays, CellColumn::BackwardStays];
        // Only at the turn of a V does anything stay.
        let count = if self.shape.placement == Placement::Vee { 4 } else { 2 };
        let arrived = arrived[..count].to_vec();
        map_parallel((cells, inbox, arrived), |(cell, inbox, arrived)| {
            numbers
                .into_iter()
                .zip(arrived)
                .fold(inbox, |inbox, (number, x)| put(inbox, x, CellNumbers(cell).get(number)))
        })
    }
}
