//! A table as numbers, which the program that runs it reads.

use super::slots::{AssignedSlots, Slots, number};
use super::{Route, ScheduleError, Shape, Table};

/// A table as numbers.
///
/// In each tick, all stages do the following, in this order:
///
/// 1. F, where `forward` is not 0. It reads `forward_input`, and writes its residuals into `forward_held_b` and
///    `forward_held_w`.
/// 2. The loss of microbatch `leaves_for_loss`, if it is not -1, of the F of stage
///    [`loss_stage`](Shape::loss_stage). The gradient goes into `loss_slot` of that stage's inbox.
/// 3. B, where `backward` is not 0. It reads `backward_input` and `backward_held_b`, and writes `backward_between`.
/// 4. W's, each an entry where `weights` is not 0. Each reads `weights_held_w` and `weights_between`.
/// 5. The permutes: the results that `sends_right` and `sends_left` name go to the neighbours, which put them into the
///    slots of their inboxes that `arrives_from_left` and `arrives_from_right` name. Results that stay are put into
///    `forward_stays` and `backward_stays`.
///
/// No slot of a buffer but the inbox is written in a tick in which another item reads it. So F, B and W can read
/// buffers as they were when the tick began, except for the values that F or B of the same item wrote in the tick. A
/// slot of the inbox that has been read can be written later in the tick: by the loss if F read it, by the permutes in
/// any case. B can read what the loss wrote in the tick.
///
/// Columns with stages are `[tick][stage]`. -1 is nothing, unless a column says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Slots of buffers.
    pub slots: Slots,
    /// Entries of weights in a tick of a stage, at most.
    pub max_weights: usize,

    /// 0 for none, else 1 + the chunk.
    pub forward: Vec<Vec<i32>>,
    /// The microbatch; -1 for none.
    pub forward_microbatch: Vec<Vec<i32>>,
    /// The slot of the inbox with the input; -1 for none, or if it comes from outside (see `enters`).
    pub forward_input: Vec<Vec<i32>>,
    /// The slot of `held_b` for the residuals.
    pub forward_held_b: Vec<Vec<i32>>,
    /// The slot of `held_w` for the residuals; -1 without [`Shape::split`].
    pub forward_held_w: Vec<Vec<i32>>,

    /// 0 for none, else 1 + the chunk.
    pub backward: Vec<Vec<i32>>,
    /// The microbatch; -1 for none.
    pub backward_microbatch: Vec<Vec<i32>>,
    /// The slot of the inbox with the gradient of the chunk's result.
    pub backward_input: Vec<Vec<i32>>,
    /// The slot of `held_b` with the residuals.
    pub backward_held_b: Vec<Vec<i32>>,
    /// The slot of `held_w` with the residuals, which the W's of the item read too; -1 without
    /// [`Shape::split`].
    pub backward_held_w: Vec<Vec<i32>>,
    /// The slot of `between` for the W's of the item; -1 without [`Shape::split`].
    pub backward_between: Vec<Vec<i32>>,

    /// 0 for none, else 1 + the chunk. The real entries come first. This column and the others of weights have
    /// `max_weights` entries for each stage: `[tick][stage * max_weights + entry]`.
    pub weights: Vec<Vec<i32>>,
    /// The microbatch; -1 for none.
    pub weights_microbatch: Vec<Vec<i32>>,
    /// The slot of `held_w`.
    pub weights_held_w: Vec<Vec<i32>>,
    /// The slot of `between`.
    pub weights_between: Vec<Vec<i32>>,

    /// The result sent to the stage after: 0 for none, 1 for that of F, 2 for that of B.
    pub sends_right: Vec<Vec<i32>>,
    /// The result sent to the stage before: 0 for none, 1 for that of F, 2 for that of B.
    pub sends_left: Vec<Vec<i32>>,
    /// The slot of the inbox for the result that the stage before sent.
    pub arrives_from_left: Vec<Vec<i32>>,
    /// The slot of the inbox for the result that the stage after sent.
    pub arrives_from_right: Vec<Vec<i32>>,
    /// The slot of the inbox for the result of this stage's own F: only at the turn of a V.
    pub forward_stays: Vec<Vec<i32>>,
    /// The slot of the inbox for the result of this stage's own B: only at the turn of a V. F and B can both stay in
    /// one tick.
    pub backward_stays: Vec<Vec<i32>>,

    /// `[tick]`: the microbatch that F of the first virtual stage takes from outside; it is on stage 0.
    pub enters: Vec<i32>,
    /// `[tick]`: the microbatch whose loss is computed.
    pub leaves_for_loss: Vec<i32>,
    /// `[tick]`: the slot of the inbox of the loss's stage for the gradient of the loss.
    pub loss_slot: Vec<i32>,
    /// `[tick]`: the microbatch whose gradient leaves B of the first virtual stage; it is on stage 0.
    pub exits: Vec<i32>,
}

/// The numbers by which [`Columns::sends_right`] and [`Columns::sends_left`] name the result of F and that of B.
const SENDS_FORWARD: i32 = 1;
const SENDS_BACKWARD: i32 = 2;

impl Columns {
    /// The columns of a table.
    ///
    /// # Errors
    /// The table does not [verify](Table::verify).
    pub fn of(table: &Table) -> Result<Columns, ScheduleError> {
        let times = table.times()?;
        let shape = &table.shape;
        let assigned = AssignedSlots::of(shape, &times);
        let max_weights = table.ticks.iter().flatten().map(|cell| cell.weights.len()).max().unwrap_or(0);
        let mut columns = Columns::empty(shape, table.ticks.len(), max_weights);
        columns.slots = assigned.slots;
        let index = |stage, chunk, microbatch| times.index(shape.virtual_stage(stage, chunk), microbatch);
        for (tick, row) in table.ticks.iter().enumerate() {
            for (stage, cell) in row.iter().enumerate() {
                if let Some(item) = cell.forward {
                    let at = index(stage, item.chunk, item.microbatch);
                    columns.forward[tick][stage] = 1 + number(item.chunk);
                    columns.forward_microbatch[tick][stage] = number(item.microbatch);
                    columns.forward_input[tick][stage] = assigned.forward_input[at];
                    columns.forward_held_b[tick][stage] = assigned.held_b[at];
                    columns.forward_held_w[tick][stage] = assigned.held_w[at];
                    if shape.virtual_stage(stage, item.chunk) == 0 {
                        columns.enters[tick] = number(item.microbatch);
                    }
                    match shape.forward_route(stage, item.chunk) {
                        Route::Out => {
                            columns.leaves_for_loss[tick] = number(item.microbatch);
                            columns.loss_slot[tick] = assigned.backward_input[at];
                        }
                        route => {
                            let after = times.index(shape.virtual_stage(stage, item.chunk) + 1, item.microbatch);
                            columns.send(tick, stage, route, SENDS_FORWARD, assigned.forward_input[after]);
                        }
                    }
                }
                if let Some(item) = cell.backward {
                    let here = shape.virtual_stage(stage, item.chunk);
                    let at = times.index(here, item.microbatch);
                    columns.backward[tick][stage] = 1 + number(item.chunk);
                    columns.backward_microbatch[tick][stage] = number(item.microbatch);
                    columns.backward_input[tick][stage] = assigned.backward_input[at];
                    columns.backward_held_b[tick][stage] = assigned.held_b[at];
                    columns.backward_held_w[tick][stage] = assigned.held_w[at];
                    columns.backward_between[tick][stage] = assigned.between[at];
                    match here.checked_sub(1) {
                        None => columns.exits[tick] = number(item.microbatch),
                        Some(before) => {
                            let slot = assigned.backward_input[times.index(before, item.microbatch)];
                            let route = shape.backward_route(stage, item.chunk);
                            columns.send(tick, stage, route, SENDS_BACKWARD, slot);
                        }
                    }
                }
                for (entry, item) in cell.weights.iter().enumerate() {
                    let (at, entry) = (index(stage, item.chunk, item.microbatch), stage * max_weights + entry);
                    columns.weights[tick][entry] = 1 + number(item.chunk);
                    columns.weights_microbatch[tick][entry] = number(item.microbatch);
                    columns.weights_held_w[tick][entry] = assigned.held_w[at];
                    columns.weights_between[tick][entry] = assigned.between[at];
                }
            }
        }
        Ok(columns)
    }

    /// Columns in which nothing is done.
    fn empty(shape: &Shape, ticks: usize, max_weights: usize) -> Columns {
        let (zeros, none) = (vec![vec![0; shape.stages]; ticks], vec![vec![-1; shape.stages]; ticks]);
        let entries = |value| vec![vec![value; shape.stages * max_weights]; ticks];
        Columns {
            slots: Slots::default(),
            max_weights,
            forward: zeros.clone(),
            forward_microbatch: none.clone(),
            forward_input: none.clone(),
            forward_held_b: none.clone(),
            forward_held_w: none.clone(),
            backward: zeros.clone(),
            backward_microbatch: none.clone(),
            backward_input: none.clone(),
            backward_held_b: none.clone(),
            backward_held_w: none.clone(),
            backward_between: none.clone(),
            weights: entries(0),
            weights_microbatch: entries(-1),
            weights_held_w: entries(-1),
            weights_between: entries(-1),
            sends_right: zeros.clone(),
            sends_left: zeros,
            arrives_from_left: none.clone(),
            arrives_from_right: none.clone(),
            forward_stays: none.clone(),
            backward_stays: none,
            enters: vec![-1; ticks],
            leaves_for_loss: vec![-1; ticks],
            loss_slot: vec![-1; ticks],
            exits: vec![-1; ticks],
        }
    }

    /// Notes that a result goes to a slot, on the stage where it is needed.
    fn send(&mut self, tick: usize, stage: usize, route: Route, what: i32, slot: i32) {
        let stages = self.forward[tick].len();
        match route {
            Route::Right => {
                self.sends_right[tick][stage] = what;
                self.arrives_from_left[tick][(stage + 1) % stages] = slot;
            }
            Route::Left => {
                self.sends_left[tick][stage] = what;
                self.arrives_from_right[tick][(stage + stages - 1) % stages] = slot;
            }
            Route::Stays if what == SENDS_FORWARD => self.forward_stays[tick][stage] = slot,
            Route::Stays => self.backward_stays[tick][stage] = slot,
            Route::Out => {}
        }
    }
}
