//! Whether the columns of a table, run one by one, find in each slot what they need.
//!
//! This knows nothing of how slots were assigned: it executes the columns as a device would, but on names of values.

use std::fmt;

use meshloom::transform::pipeline::{Columns, Item, Route, Shape, Table, Work};

/// The first number that differs from that of the table, or the first slot that holds another value than the one that
/// is read there.
type Checked<T = ()> = Result<T, String>;

/// A buffer of the columns.
#[derive(Clone, Copy, Debug)]
enum Read {
    Inbox,
    HeldB,
    HeldW,
    Between,
}

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

/// Executes the columns on names of values, and compares the computed and the read values with the table.
pub fn replay(columns: &Columns, table: &Table) -> Checked {
    table.verify().map_err(|error| error.to_string())?;
    lengths(columns, table)?;
    let mut machine = Machine::new(columns, &table.shape);
    (0..table.ticks.len()).try_for_each(|tick| machine.tick(tick, table))
}

fn lengths(columns: &Columns, table: &Table) -> Checked {
    let (ticks, stages) = (table.ticks.len(), table.shape.stages);
    let entries = stages * columns.max_weights;
    let by_stage = [
        ("forward", &columns.forward, stages),
        ("forward_microbatch", &columns.forward_microbatch, stages),
        ("forward_input", &columns.forward_input, stages),
        ("forward_held_b", &columns.forward_held_b, stages),
        ("forward_held_w", &columns.forward_held_w, stages),
        ("backward", &columns.backward, stages),
        ("backward_microbatch", &columns.backward_microbatch, stages),
        ("backward_input", &columns.backward_input, stages),
        ("backward_held_b", &columns.backward_held_b, stages),
        ("backward_held_w", &columns.backward_held_w, stages),
        ("backward_between", &columns.backward_between, stages),
        ("weights", &columns.weights, entries),
        ("weights_microbatch", &columns.weights_microbatch, entries),
        ("weights_held_w", &columns.weights_held_w, entries),
        ("weights_between", &columns.weights_between, entries),
        ("sends_right", &columns.sends_right, stages),
        ("sends_left", &columns.sends_left, stages),
        ("arrives_from_left", &columns.arrives_from_left, stages),
        ("arrives_from_right", &columns.arrives_from_right, stages),
        ("forward_stays", &columns.forward_stays, stages),
        ("backward_stays", &columns.backward_stays, stages),
    ];
    let wrong = |column, expected: usize, found: usize| {
        Err(format!("the column {column} has {found} numbers, but the table needs {expected}"))
    };
    for (column, rows, length) in by_stage {
        if rows.len() != ticks {
            return wrong(column, ticks, rows.len());
        }
        if let Some(row) = rows.iter().find(|row| row.len() != length) {
            return wrong(column, length, row.len());
        }
    }
    let by_tick = [
        ("enters", &columns.enters),
        ("leaves_for_loss", &columns.leaves_for_loss),
        ("loss_slot", &columns.loss_slot),
        ("exits", &columns.exits),
    ];
    match by_tick.into_iter().find(|(_, row)| row.len() != ticks) {
        Some((column, row)) => wrong(column, ticks, row.len()),
        None => Ok(()),
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
    fn expect(self, column: &'static str, expected: Option<usize>, offset: i32, found: i32) -> Checked {
        let expected = expected.map_or(offset - 1, |value| value as i32 + offset);
        if expected == found { Ok(()) } else { Err(self.wrong(column, expected.to_string(), found)) }
    }

    fn wrong(self, column: &'static str, expected: String, found: i32) -> String {
        let At { tick, stage } = self;
        format!("in tick {tick}, stage {stage}, {column} is {found}, but the table needs {expected}")
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

    fn write(&mut self, at: At, column: &'static str, buffer: Read, slot: i32, value: Value) -> Checked {
        let slots = self.stages[at.stage].of(buffer);
        let count = slots.len();
        match usize::try_from(slot).ok().and_then(|slot| slots.get_mut(slot)) {
            Some(entry) => *entry = value,
            None => return Err(at.wrong(column, format!("one of the {count} slots of {buffer:?}"), slot)),
        }
        Ok(())
    }

    fn read(&mut self, at: At, work: Work, buffer: Read, slot: i32, expected: Value) -> Checked {
        let At { tick, stage } = at;
        let slots = self.stages[stage].of(buffer);
        let found = usize::try_from(slot).ok().and_then(|slot| slots.get(slot)).copied().unwrap_or(Value::Nothing);
        if found == expected {
            return Ok(());
        }
        Err(format!(
            "in tick {tick}, stage {stage} reads slot {slot} of {buffer:?} for {work}, which needs {expected} but finds {found}"
        ))
    }

    fn tick(&mut self, tick: usize, table: &Table) -> Checked {
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

    fn forward(&mut self, at: At, item: Item) -> Checked<Value> {
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

    fn backward(&mut self, at: At, item: Item) -> Checked<Value> {
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

    fn weights(&mut self, at: At, items: &[Item]) -> Checked {
        let (columns, At { tick, stage }) = (self.columns, at);
        for entry in 0..columns.max_weights {
            let index = stage * columns.max_weights + entry;
            let item = items.get(entry);
            at.expect("weights", item.map(|item| item.chunk), 1, columns.weights[tick][index])?;
            let microbatch = item.map(|item| item.microbatch);
            at.expect("weights_microbatch", microbatch, 0, columns.weights_microbatch[tick][index])?;
            let (held_w, between) = (columns.weights_held_w[tick][index], columns.weights_between[tick][index]);
            let Some(&item) = item else {
                at.expect("weights_held_w", None, 0, held_w)?;
                at.expect("weights_between", None, 0, between)?;
                continue;
            };
            let (here, work) = (self.shape.virtual_stage(stage, item.chunk), Work::Weights(item));
            self.read(at, work, Read::HeldW, held_w, Value::Residuals(here, item.microbatch))?;
            self.read(at, work, Read::Between, between, Value::Between(here, item.microbatch))?;
        }
        match items.len() > columns.max_weights {
            true => Err(format!("there are {} entries of weights, more than max_weights", items.len())),
            false => Ok(()),
        }
    }

    /// Moves the results of all stages at the end of a tick.
    fn permutes(&mut self, tick: usize, table: &Table, results: &[(Value, Value)]) -> Checked {
        let (columns, stages) = (self.columns, self.shape.stages);
        // The value that a stage sends, by its number in a column.
        let sent = |column, stage: usize, number: i32| match number {
            0 => Ok(None),
            1 => Ok(Some(results[stage].0)),
            2 => Ok(Some(results[stage].1)),
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
