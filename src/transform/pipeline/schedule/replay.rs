//! Whether the columns of a table, run one by one, find in each slot what they need.
//!
//! This knows nothing of how slots were assigned: it executes the columns as a device would, but on names of values.

use std::fmt;

use super::columns::{SENDS_BACKWARD, SENDS_FORWARD};
use super::{Columns, Item, Piece, Read, Route, ScheduleError, Shape, Table, Work};

/// A value in a slot, by virtual stage and microbatch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Nothing,
    /// The input of the forward pass.
    Activation(usize, usize),
    /// The gradient of the result.
    Gradient(usize, usize),
    /// The residuals that the forward pass leaves.
    Residuals(usize, usize),
    /// The values that the backward pass leaves for gradients of weights.
    Between(usize, usize),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, at, microbatch) = match *self {
            Value::Nothing => return f.write_str("nothing"),
            Value::Activation(at, microbatch) => ("the input", at, microbatch),
            Value::Gradient(at, microbatch) => ("the gradient of the result", at, microbatch),
            Value::Residuals(at, microbatch) => ("the residuals", at, microbatch),
            Value::Between(at, microbatch) => ("what B left", at, microbatch),
        };
        write!(f, "{what} of virtual stage {at}, microbatch {microbatch}")
    }
}

/// The buffers of a stage.
#[derive(Clone)]
struct Buffers {
    inbox: Vec<Value>,
    held_b: Vec<Value>,
    held_w: Vec<Value>,
    between: Vec<Value>,
}

impl Buffers {
    fn of(&mut self, buffer: Read) -> &mut Vec<Value> {
        match buffer {
            Read::Inbox => &mut self.inbox,
            Read::HeldB => &mut self.held_b,
            Read::HeldW => &mut self.held_w,
            Read::Between => &mut self.between,
        }
    }
}

impl Columns {
    /// Executes the columns on names of values, and compares the computed and the read values with the table.
    ///
    /// # Errors
    /// The first number that differs from that of the table, or the first slot that holds another value than the one
    /// that is read there.
    pub fn replay(&self, table: &Table) -> Result<(), ScheduleError> {
        table.verify()?;
        self.lengths(table)?;
        let mut machine = Machine::new(self, &table.shape);
        for tick in 0..table.ticks.len() {
            machine.tick(tick, table)?;
        }
        Ok(())
    }

    fn lengths(&self, table: &Table) -> Result<(), ScheduleError> {
        let (ticks, stages) = (table.ticks.len(), table.shape.stages);
        let entries = stages.saturating_mul(self.max_weights);
        let by_stage = [
            ("forward", &self.forward, stages),
            ("forward_microbatch", &self.forward_microbatch, stages),
            ("forward_input", &self.forward_input, stages),
            ("forward_held_b", &self.forward_held_b, stages),
            ("forward_held_w", &self.forward_held_w, stages),
            ("backward", &self.backward, stages),
            ("backward_microbatch", &self.backward_microbatch, stages),
            ("backward_input", &self.backward_input, stages),
            ("backward_held_b", &self.backward_held_b, stages),
            ("backward_held_w", &self.backward_held_w, stages),
            ("backward_between", &self.backward_between, stages),
            ("weights_count", &self.weights_count, stages),
            ("weights", &self.weights, entries),
            ("weights_microbatch", &self.weights_microbatch, entries),
            ("weights_piece", &self.weights_piece, entries),
            ("weights_held_w", &self.weights_held_w, entries),
            ("weights_between", &self.weights_between, entries),
            ("sends_right", &self.sends_right, stages),
            ("sends_left", &self.sends_left, stages),
            ("arrives_from_left", &self.arrives_from_left, stages),
            ("arrives_from_right", &self.arrives_from_right, stages),
            ("forward_stays", &self.forward_stays, stages),
            ("backward_stays", &self.backward_stays, stages),
        ];
        let wrong = |column, expected, found| Err(ScheduleError::ColumnLength { column, expected, found });
        for (column, rows, length) in by_stage {
            if rows.len() != ticks {
                return wrong(column, ticks, rows.len());
            }
            if let Some(row) = rows.iter().find(|row| row.len() != length) {
                return wrong(column, length, row.len());
            }
        }
        let by_tick = [
            ("enters", &self.enters),
            ("leaves_for_loss", &self.leaves_for_loss),
            ("loss_slot", &self.loss_slot),
            ("exits", &self.exits),
        ];
        match by_tick.into_iter().find(|(_, row)| row.len() != ticks) {
            Some((column, row)) => wrong(column, ticks, row.len()),
            None => Ok(()),
        }
    }
}

/// All stages, between two ticks.
struct Machine<'a> {
    columns: &'a Columns,
    shape: &'a Shape,
    stages: Vec<Buffers>,
}

/// Where in the columns a number is.
#[derive(Clone, Copy)]
struct At {
    tick: usize,
    stage: usize,
}

impl At {
    /// Checks a number that the table fixes.
    fn expect(
        self,
        column: &'static str,
        expected: Option<usize>,
        offset: i32,
        found: i32,
    ) -> Result<(), ScheduleError> {
        let expected = expected.map_or(offset - 1, |value| super::slots::number(value) + offset);
        if expected == found { Ok(()) } else { Err(self.wrong(column, expected.to_string(), found)) }
    }

    fn wrong(self, column: &'static str, expected: String, found: i32) -> ScheduleError {
        ScheduleError::Column { tick: self.tick, stage: self.stage, column, expected, found }
    }
}

impl<'a> Machine<'a> {
    fn new(columns: &'a Columns, shape: &'a Shape) -> Machine<'a> {
        let slots = columns.slots;
        let buffer = |count| vec![Value::Nothing; count];
        let buffers = Buffers {
            inbox: buffer(slots.inbox),
            held_b: buffer(slots.held_b),
            held_w: buffer(slots.held_w),
            between: buffer(slots.between),
        };
        Machine { columns, shape, stages: vec![buffers; shape.stages] }
    }

    fn write(
        &mut self,
        at: At,
        column: &'static str,
        buffer: Read,
        slot: i32,
        value: Value,
    ) -> Result<(), ScheduleError> {
        let slots = self.stages[at.stage].of(buffer);
        let count = slots.len();
        match usize::try_from(slot).ok().and_then(|slot| slots.get_mut(slot)) {
            Some(entry) => *entry = value,
            None => return Err(at.wrong(column, format!("one of the {count} slots of {buffer}"), slot)),
        }
        Ok(())
    }

    fn read(&mut self, at: At, work: Work, buffer: Read, slot: i32, expected: Value) -> Result<(), ScheduleError> {
        let At { tick, stage } = at;
        let slots = self.stages[stage].of(buffer);
        let found = usize::try_from(slot).ok().and_then(|slot| slots.get(slot)).copied().unwrap_or(Value::Nothing);
        if found == expected {
            return Ok(());
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        Err(ScheduleError::Slot { tick, stage, buffer, slot, work, expected, found })
    }

    fn tick(&mut self, tick: usize, table: &Table) -> Result<(), ScheduleError> {
        let columns = self.columns;
        let stages = self.shape.stages;
        // The microbatches that enter and leave the pipeline in this tick, and the results of each stage.
        let (mut enters, mut loss, mut exits) = (None, None, None);
        let mut results = vec![(Value::Nothing, Value::Nothing); stages];
        for (stage, cell) in table.ticks[tick].iter().enumerate() {
            let at = At { tick, stage };
            at.expect("forward", cell.forward.map(|item| item.chunk), 1, columns.forward[tick][stage])?;
            let microbatch = cell.forward.map(|item| item.microbatch);
            at.expect("forward_microbatch", microbatch, 0, columns.forward_microbatch[tick][stage])?;
            let Some(item) = cell.forward else {
                at.expect("forward_input", None, 0, columns.forward_input[tick][stage])?;
                at.expect("forward_held_b", None, 0, columns.forward_held_b[tick][stage])?;
                at.expect("forward_held_w", None, 0, columns.forward_held_w[tick][stage])?;
                continue;
            };
            results[stage].0 = self.forward(at, item)?;
            let here = self.shape.virtual_stage(stage, item.chunk);
            enters = if here == 0 { Some(item.microbatch) } else { enters };
            loss = if here + 1 == self.shape.virtual_stages() { Some(item.microbatch) } else { loss };
        }
        let first = At { tick, stage: 0 };
        first.expect("enters", enters, 0, columns.enters[tick])?;
        let losses = At { tick, stage: self.shape.loss_stage() };
        losses.expect("leaves_for_loss", loss, 0, columns.leaves_for_loss[tick])?;
        match loss {
            None => losses.expect("loss_slot", None, 0, columns.loss_slot[tick])?,
            Some(microbatch) => {
                let gradient = Value::Gradient(self.shape.virtual_stages() - 1, microbatch);
                self.write(losses, "loss_slot", Read::Inbox, columns.loss_slot[tick], gradient)?;
            }
        }
        for (stage, cell) in table.ticks[tick].iter().enumerate() {
            let at = At { tick, stage };
            at.expect("backward", cell.backward.map(|item| item.chunk), 1, columns.backward[tick][stage])?;
            let microbatch = cell.backward.map(|item| item.microbatch);
            at.expect("backward_microbatch", microbatch, 0, columns.backward_microbatch[tick][stage])?;
            if let Some(item) = cell.backward {
                results[stage].1 = self.backward(at, item)?;
                let here = self.shape.virtual_stage(stage, item.chunk);
                exits = if here == 0 { Some(item.microbatch) } else { exits };
            } else {
                at.expect("backward_input", None, 0, columns.backward_input[tick][stage])?;
                at.expect("backward_held_b", None, 0, columns.backward_held_b[tick][stage])?;
                at.expect("backward_held_w", None, 0, columns.backward_held_w[tick][stage])?;
                at.expect("backward_between", None, 0, columns.backward_between[tick][stage])?;
            }
            self.weights(at, &cell.weights)?;
        }
        first.expect("exits", exits, 0, columns.exits[tick])?;
        self.permutes(tick, table, &results)
    }

    fn forward(&mut self, at: At, item: Item) -> Result<Value, ScheduleError> {
        let (columns, At { tick, stage }) = (self.columns, at);
        let (here, microbatch) = (self.shape.virtual_stage(stage, item.chunk), item.microbatch);
        let slot = columns.forward_input[tick][stage];
        match here {
            0 => at.expect("forward_input", None, 0, slot)?,
            _ => self.read(at, Work::Forward(item), Read::Inbox, slot, Value::Activation(here, microbatch))?,
        }
        let residuals = Value::Residuals(here, microbatch);
        self.write(at, "forward_held_b", Read::HeldB, columns.forward_held_b[tick][stage], residuals)?;
        let slot = columns.forward_held_w[tick][stage];
        if self.shape.split {
            self.write(at, "forward_held_w", Read::HeldW, slot, residuals)?;
        } else {
            at.expect("forward_held_w", None, 0, slot)?;
        }
        Ok(Value::Activation(here + 1, microbatch))
    }

    fn backward(&mut self, at: At, item: Item) -> Result<Value, ScheduleError> {
        let (columns, At { tick, stage }) = (self.columns, at);
        let (here, microbatch) = (self.shape.virtual_stage(stage, item.chunk), item.microbatch);
        let (work, residuals) = (Work::Backward(item), Value::Residuals(here, microbatch));
        let gradient = Value::Gradient(here, microbatch);
        self.read(at, work, Read::Inbox, columns.backward_input[tick][stage], gradient)?;
        self.read(at, work, Read::HeldB, columns.backward_held_b[tick][stage], residuals)?;
        let (held_w, between) = (columns.backward_held_w[tick][stage], columns.backward_between[tick][stage]);
        if self.shape.split {
            self.read(at, work, Read::HeldW, held_w, residuals)?;
            self.write(at, "backward_between", Read::Between, between, Value::Between(here, microbatch))?;
        } else {
            at.expect("backward_held_w", None, 0, held_w)?;
            at.expect("backward_between", None, 0, between)?;
        }
        // The gradient of the chunk's input is that of the result of the virtual stage before.
        Ok(here.checked_sub(1).map_or(Value::Nothing, |before| Value::Gradient(before, microbatch)))
    }

    fn weights(&mut self, at: At, pieces: &[Piece]) -> Result<(), ScheduleError> {
        let (columns, At { tick, stage }) = (self.columns, at);
        at.expect("weights_count", Some(pieces.len()), 0, columns.weights_count[tick][stage])?;
        for entry in 0..columns.max_weights {
            let index = stage * columns.max_weights + entry;
            let piece = pieces.get(entry);
            at.expect("weights", piece.map(|piece| piece.item.chunk), 1, columns.weights[tick][index])?;
            let microbatch = piece.map(|piece| piece.item.microbatch);
            at.expect("weights_microbatch", microbatch, 0, columns.weights_microbatch[tick][index])?;
            at.expect("weights_piece", piece.map(|piece| piece.piece), 0, columns.weights_piece[tick][index])?;
            let (held_w, between) = (columns.weights_held_w[tick][index], columns.weights_between[tick][index]);
            let Some(&piece) = piece else {
                at.expect("weights_held_w", None, 0, held_w)?;
                at.expect("weights_between", None, 0, between)?;
                continue;
            };
            let Item { chunk, microbatch } = piece.item;
            let (here, work) = (self.shape.virtual_stage(stage, chunk), Work::Weights(piece));
            self.read(at, work, Read::HeldW, held_w, Value::Residuals(here, microbatch))?;
            self.read(at, work, Read::Between, between, Value::Between(here, microbatch))?;
        }
        if pieces.len() > columns.max_weights {
            let expected = format!("at most {}, which is max_weights,", columns.max_weights);
            return Err(at.wrong("weights_count", expected, columns.weights_count[tick][stage]));
        }
        Ok(())
    }

    /// Moves the results of all stages at the end of a tick.
    fn permutes(&mut self, tick: usize, table: &Table, results: &[(Value, Value)]) -> Result<(), ScheduleError> {
        let (columns, stages) = (self.columns, self.shape.stages);
        // The value that a stage sends, by its number in a column.
        let sent = |column, stage: usize, number: i32| match number {
            0 => Ok(None),
            SENDS_FORWARD => Ok(Some(results[stage].0)),
            SENDS_BACKWARD => Ok(Some(results[stage].1)),
            _ => Err(At { tick, stage }.wrong(column, "0, 1 or 2".to_owned(), number)),
        };
        for (stage, result) in results.iter().enumerate() {
            let (left, right) = ((stage + stages - 1) % stages, (stage + 1) % stages);
            let at = At { tick, stage };
            let cell = &table.ticks[tick][stage];
            let stays = |route| route == Route::Stays;
            let forward_stays = cell.forward.is_some_and(|item| stays(self.shape.forward_route(stage, item.chunk)));
            let backward_stays = cell.backward.is_some_and(|item| stays(self.shape.backward_route(stage, item.chunk)));
            let arrivals = [
                (
                    "arrives_from_left",
                    columns.arrives_from_left[tick][stage],
                    sent("sends_right", left, columns.sends_right[tick][left])?,
                ),
                (
                    "arrives_from_right",
                    columns.arrives_from_right[tick][stage],
                    sent("sends_left", right, columns.sends_left[tick][right])?,
                ),
                ("forward_stays", columns.forward_stays[tick][stage], forward_stays.then_some(result.0)),
                ("backward_stays", columns.backward_stays[tick][stage], backward_stays.then_some(result.1)),
            ];
            for (column, slot, value) in arrivals {
                match value {
                    None => at.expect(column, None, 0, slot)?,
                    Some(value) => self.write(at, column, Read::Inbox, slot, value)?,
                }
            }
        }
        Ok(())
    }
}
