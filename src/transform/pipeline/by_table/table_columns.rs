//! The numbers of a table, as the program that runs it reads them.

use super::super::schedule::{Columns, Shape};
use super::input_ring::{InputRing, RingTurn};
use crate::ir::Literal;
use crate::trace::{Tensor, constant, fail_internal};

/// A number of a tick and stage: its place in a cell. A cell ends with its entries of weights.
#[derive(Clone, Copy)]
pub(super) enum CellColumn {
    Forward,
    ForwardMicrobatch,
    ForwardFirstLayer,
    ForwardInput,
    ForwardHeld,
    ForwardHeldW,
    Backward,
    BackwardMicrobatch,
    BackwardFirstLayer,
    BackwardInput,
    BackwardHeld,
    BackwardHeldW,
    BackwardBetween,
    LossSlot,
    SendsRight,
    SendsLeft,
    FromLeft,
    FromRight,
    ForwardStays,
    BackwardStays,
}

const NUMBERS: usize = CellColumn::BackwardStays as usize + 1;

/// A number of an entry of weights: its place in the entry.
#[derive(Clone, Copy)]
pub(super) enum EntryColumn {
    /// 1 more than the chunk.
    Chunk,
    Microbatch,
    FirstLayer,
    HeldW,
    Between,
}

const ENTRY: usize = EntryColumn::Between as usize + 1;

/// A number of a tick that all stages share.
#[derive(Clone, Copy)]
pub(super) enum TickColumn {
    /// The microbatch whose loss is computed.
    Leaves,
    /// The slot of `io` that turns.
    Turns,
    /// The slot of `done` for the cotangent that the first stage has computed.
    Exits,
    /// The slot of `done` whose cotangent is put into the turning slot.
    Taken,
}

const SHARED: usize = TickColumn::Taken as usize + 1;

/// The numbers of a tick, `s32[numbers]`: of a stage, of one of its entries of weights, or those that all share.
#[derive(Clone, Copy)]
pub(super) struct CellNumbers(pub(super) Tensor);

impl CellNumbers {
    fn at(self, index: usize) -> Tensor {
        self.0.slice(0, index..index + 1).reshape([])
    }

    pub(super) fn get(self, number: CellColumn) -> Tensor {
        self.at(number as usize)
    }

    pub(super) fn shared(self, number: TickColumn) -> Tensor {
        self.at(number as usize)
    }

    /// A number, with 0 in place of the -1 that stands for nothing.
    pub(super) fn place(self, number: CellColumn) -> Tensor {
        self.get(number).maximum(0.0)
    }

    /// The entries of weights.
    pub(super) fn entries(self) -> WeightEntries {
        let numbers = self.0.dims().first().copied().unwrap_or(0);
        let count = numbers.saturating_sub(NUMBERS) / ENTRY;
        WeightEntries(self.0.slice(0, NUMBERS..numbers).reshape([count, ENTRY]))
    }
}

/// WeightEntries of weights, `s32[entries, numbers]`. Behind the last real entry, all numbers of chunks are 0.
#[derive(Clone, Copy)]
pub(super) struct WeightEntries(pub(super) Tensor);

impl WeightEntries {
    /// A number of the first entry.
    pub(super) fn first(self, number: EntryColumn) -> Tensor {
        let at = number as usize;
        self.0.slice(0, 0..1).slice(1, at..at + 1).reshape([])
    }

    /// All but the first.
    pub(super) fn rest(self) -> WeightEntries {
        WeightEntries(self.0.pad(0, -1, 1, 0.0))
    }
}

/// The numbers of a table.
pub(super) struct TableNumbers<'a> {
    pub(super) columns: &'a Columns,
    pub(super) shape: Shape,
    pub(super) layers_per_stage: usize,
}

impl TableNumbers<'_> {
    /// The numbers of this many ticks and of all stages, `s32[ticks, S, numbers]`. There can be more ticks than the
    /// table has, in which stages do nothing.
    pub(super) fn of_stages(&self, count: usize) -> Tensor {
        let (columns, stages) = (self.columns, self.shape.stages);
        let entries = columns.max_weights * ENTRY;
        let mut numbers = Vec::new();
        for tick in 0..columns.forward.len() {
            for stage in 0..stages {
                let of = |column: &[Vec<i32>]| column[tick][stage];
                let loss_slot = if stage == self.shape.loss_stage() { columns.loss_slot[tick] } else { -1 };
                // In the order of `CellColumn`.
                let cell: [i32; NUMBERS] = [
                    of(&columns.forward),
                    of(&columns.forward_microbatch),
                    self.first_layer(stage, of(&columns.forward)),
                    of(&columns.forward_input),
                    of(&columns.forward_held_b),
                    of(&columns.forward_held_w),
                    of(&columns.backward),
                    of(&columns.backward_microbatch),
                    self.first_layer(stage, of(&columns.backward)),
                    of(&columns.backward_input),
                    of(&columns.backward_held_b),
                    of(&columns.backward_held_w),
                    of(&columns.backward_between),
                    loss_slot,
                    of(&columns.sends_right),
                    of(&columns.sends_left),
                    of(&columns.arrives_from_left),
                    of(&columns.arrives_from_right),
                    of(&columns.forward_stays),
                    of(&columns.backward_stays),
                ];
                numbers.extend(cell);
                for entry in stage * columns.max_weights..(stage + 1) * columns.max_weights {
                    let of = |column: &[Vec<i32>]| column[tick][entry];
                    // In the order of `EntryColumn`.
                    let entry: [i32; ENTRY] = [
                        of(&columns.weights),
                        of(&columns.weights_microbatch),
                        self.first_layer(stage, of(&columns.weights)),
                        of(&columns.weights_held_w),
                        of(&columns.weights_between),
                    ];
                    numbers.extend(entry);
                }
            }
        }
        // A cell with nothing to do, to which nothing comes.
        let mut idle = vec![-1; NUMBERS + entries];
        for number in [CellColumn::Forward as usize, CellColumn::Backward as usize] {
            idle[number] = 0;
        }
        for entry in 0..columns.max_weights {
            idle[NUMBERS + entry * ENTRY + EntryColumn::Chunk as usize] = 0;
        }
        (columns.forward.len() * stages..count * stages).for_each(|_| numbers.extend(&idle));
        tensor_of(&[count, stages, NUMBERS + entries], &numbers)
    }

    /// The numbers that all stages share, `s32[ticks, numbers]`.
    pub(super) fn shared(&self, turns: &InputRing) -> Tensor {
        // In the order of `TickColumn`.
        let tick = |(tick, turn): (usize, &RingTurn)| -> [i32; SHARED] {
            let leaves = self.columns.leaves_for_loss.get(tick).copied().unwrap_or(-1);
            [leaves, turn.slot, turn.exits, turn.taken]
        };
        let numbers: Vec<i32> = turns.ticks.iter().enumerate().flat_map(tick).collect();
        tensor_of(&[turns.ticks.len(), SHARED], &numbers)
    }

    /// The number of the first layer of a chunk. A column gives the chunk as 1 more than its number, or 0 for none.
    fn first_layer(&self, stage: usize, chunk: i32) -> i32 {
        let chunk = usize::try_from(chunk - 1).unwrap_or(0);
        (self.shape.virtual_stage(stage, chunk) * self.layers_per_stage) as i32
    }
}

fn tensor_of(dims: &[usize], numbers: &[i32]) -> Tensor {
    match Literal::from_slice(dims, numbers) {
        Ok(literal) => constant(literal),
        Err(_) => fail_internal("the table of a pipeline", "a number for each tick and stage"),
    }
}
