//! Whether a table does everything once, in time, and on paths that are free.

use super::{Cell, Item, ScheduleError, Shape, Table, Work};

/// The tick of an entry that is not done.
const NEVER: usize = usize::MAX;

/// When each entry of a table is done, by [`Times::index`].
pub(super) struct Times {
    microbatches: usize,
    /// F, by virtual stage and microbatch.
    pub forward: Vec<usize>,
    /// B.
    pub backward: Vec<usize>,
    /// W; empty where that is part of B.
    pub weights: Vec<usize>,
}

impl Times {
    /// Where an item is.
    pub fn index(&self, virtual_stage: usize, microbatch: usize) -> usize {
        virtual_stage * self.microbatches + microbatch
    }

    /// Collects the entries of a table, and checks that the shape has each of them and that each occurs once.
    fn of(table: &Table) -> Result<Times, ScheduleError> {
        let shape = &table.shape;
        let never = vec![NEVER; shape.virtual_stages() * shape.microbatches];
        let weights = if shape.split { never.clone() } else { Vec::new() };
        let mut times = Times { microbatches: shape.microbatches, forward: never.clone(), backward: never, weights };
        for (tick, row) in table.ticks.iter().enumerate() {
            if row.len() != shape.stages {
                return Err(ScheduleError::Stages { tick, expected: shape.stages, found: row.len() });
            }
            for (stage, cell) in row.iter().enumerate() {
                for work in works(cell) {
                    let Some(entry) = times.entry(shape, stage, work) else {
                        return Err(ScheduleError::Unknown { tick, stage, work });
                    };
                    if *entry != NEVER {
                        return Err(ScheduleError::Twice { tick, stage, work, before: *entry });
                    }
                    *entry = tick;
                }
            }
        }
        Ok(times)
    }

    fn entry(&mut self, shape: &Shape, stage: usize, work: Work) -> Option<&mut usize> {
        let item = work.item();
        if item.chunk >= shape.chunks || item.microbatch >= shape.microbatches {
            return None;
        }
        let index = self.index(shape.virtual_stage(stage, item.chunk), item.microbatch);
        match work {
            Work::Forward(_) => self.forward.get_mut(index),
            Work::Backward(_) => self.backward.get_mut(index),
            Work::Weights(_) => self.weights.get_mut(index),
        }
    }

    /// Checks that nothing is left out.
    fn complete(&self, shape: &Shape) -> Result<(), ScheduleError> {
        for virtual_stage in 0..shape.virtual_stages() {
            let (stage, chunk) = shape.place(virtual_stage);
            for microbatch in 0..shape.microbatches {
                let (item, index) = (Item { chunk, microbatch }, self.index(virtual_stage, microbatch));
                let all = [
                    (Work::Forward(item), &self.forward),
                    (Work::Backward(item), &self.backward),
                    (Work::Weights(item), &self.weights),
                ];
                if let Some((work, _)) = all.into_iter().find(|(_, ticks)| ticks.get(index) == Some(&NEVER)) {
                    return Err(ScheduleError::Missing { stage, work });
                }
            }
        }
        Ok(())
    }

    /// The work that an entry waits for, with its stage and the first tick in which its result can be used. It is
    /// `None` if the input comes from outside.
    fn needed(&self, shape: &Shape, stage: usize, work: Work) -> Option<(Work, usize, usize)> {
        let Item { chunk, microbatch } = work.item();
        let here = shape.virtual_stage(stage, chunk);
        let item_of = |virtual_stage| {
            let (stage, chunk) = shape.place(virtual_stage);
            (Item { chunk, microbatch }, stage, self.index(virtual_stage, microbatch))
        };
        match work {
            Work::Forward(_) => here.checked_sub(1).map(|before| {
                let (item, from, index) = item_of(before);
                (Work::Forward(item), from, self.forward[index] + 1)
            }),
            Work::Backward(item) if here + 1 == shape.virtual_stages() => {
                Some((Work::Forward(item), stage, self.forward[self.index(here, microbatch)]))
            }
            Work::Backward(_) => {
                let (item, from, index) = item_of(here + 1);
                Some((Work::Backward(item), from, self.backward[index] + 1))
            }
            Work::Weights(item) => Some((Work::Backward(item), stage, self.backward[self.index(here, microbatch)])),
        }
    }
}

impl Work {
    /// The item that is worked on.
    pub fn item(&self) -> Item {
        match *self {
            Work::Forward(item) | Work::Backward(item) | Work::Weights(item) => item,
        }
    }
}

/// The work of a cell, in order.
fn works(cell: &Cell) -> impl Iterator<Item = Work> + '_ {
    let passes = cell.forward.map(Work::Forward).into_iter().chain(cell.backward.map(Work::Backward));
    passes.chain(cell.weights.iter().copied().map(Work::Weights))
}

impl Table {
    /// Checks that every item has one forward pass, one backward pass and, if the backward pass is split, the gradients
    /// of its weights once, on its stage; that what each needs is there in time; that each permute carries one payload
    /// from each stage; and that microbatches enter and leave in ascending order.
    ///
    /// # Errors
    /// The first wrong entry: its tick, its stage, and what it would have to be.
    pub fn verify(&self) -> Result<(), ScheduleError> {
        self.times().map(|_| ())
    }

    /// When everything is done, in a table that is right.
    pub(super) fn times(&self) -> Result<Times, ScheduleError> {
        let shape = &self.shape;
        shape.validate()?;
        let times = Times::of(self)?;
        times.complete(shape)?;
        let (mut enters, mut exits) = (0, 0);
        for (tick, row) in self.ticks.iter().enumerate() {
            for (stage, cell) in row.iter().enumerate() {
                for work in works(cell) {
                    match times.needed(shape, stage, work) {
                        Some((needed, from, there)) if tick < there => {
                            return Err(ScheduleError::Early { tick, stage, work, needed, from, there });
                        }
                        _ => {}
                    }
                    let expected = match work {
                        Work::Forward(item) if shape.virtual_stage(stage, item.chunk) == 0 => &mut enters,
                        Work::Backward(item) if shape.virtual_stage(stage, item.chunk) == 0 => &mut exits,
                        _ => continue,
                    };
                    if work.item().microbatch != *expected {
                        return Err(ScheduleError::Order { tick, stage, work, expected: *expected });
                    }
                    *expected += 1;
                }
                self.free_paths(tick, stage, cell)?;
            }
        }
        Ok(times)
    }

    fn free_paths(&self, tick: usize, stage: usize, cell: &Cell) -> Result<(), ScheduleError> {
        let (Some(forward), Some(backward)) = (cell.forward, cell.backward) else { return Ok(()) };
        if !self.shape.collide(stage, forward.chunk, backward.chunk) {
            return Ok(());
        }
        let route = self.shape.forward_route(stage, forward.chunk);
        let (forward, backward) = (Work::Forward(forward), Work::Backward(backward));
        Err(ScheduleError::Collision { tick, stage, forward, backward, route })
    }
}
