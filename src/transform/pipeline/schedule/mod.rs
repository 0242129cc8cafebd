//! Schedules as tables: the work of each stage of a pipeline in each tick.
//!
//! A table is for one SPMD program in which stages branch. All stages go through the same ticks, in lock step. In a
//! tick a stage computes the forward pass of one item, then the backward pass of one, then parts of gradients of
//! weights: each only where the table says so. At the end of each tick two permutes move the results, one to the right
//! and one to the left. Nothing here is traced: a table is data, and the program that runs it reads its [`Columns`].
//!
//! | module | what it says |
//! |---|---|
//! | `error` | what is wrong with a table |
//! | `verify` | whether a table does everything once, in time, and on paths that are free |
//! | `columns`, `slots` | the table as numbers, with the slots of buffers |
//! | `simulate` | how long a table takes, and what it holds |
//! | `orders` | tables by rule: GPipe, 1F1B, ZB-V |
//! | `search`, `greedy` | tables by search |
//!
//! Sources: GPipe (Huang et al., arXiv 1811.06965), 1F1B and interleaved stages (Narayanan et al., arXiv 2104.04473),
//! ZB-H1 (Qi et al., arXiv 2401.10241), ZB-V (Qi et al., arXiv 2405.15362).

mod columns;
mod error;
mod greedy;
mod orders;
mod search;
mod simulate;
mod slots;
mod verify;

pub use columns::Columns;
pub use error::ScheduleError;
pub use simulate::{Cost, Costs, Simulated};
pub use slots::Slots;

use std::fmt;

/// The virtual stages of a stage's chunks. A microbatch goes through virtual stages in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Chunk c of stage s is virtual stage c S + s: from the last stage it goes on at the first.
    Loop,
    /// Two chunks: chunk 0 of stage s is virtual stage s, chunk 1 is 2 S - 1 - s. At the last stage the way turns, and
    /// the first stage has the last virtual stage.
    Vee,
}

/// The dimensions of a pipeline for which a table is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The number of stages, S.
    pub stages: usize,
    /// The number of microbatches, M.
    pub microbatches: usize,
    /// Parts of the layer stack on each stage, v.
    pub chunks: usize,
    /// The placement of the chunks.
    pub placement: Placement,
    /// Whether the backward pass is cut into gradients of inputs, which the stage before waits for, and gradients of
    /// weights, which can wait. Otherwise a table has no entries for weights, and [`Cell::backward`] computes both.
    pub split: bool,
}

/// One chunk's work on one microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Item {
    /// The chunk, of those on the stage.
    pub chunk: usize,
    /// The microbatch.
    pub microbatch: usize,
}

/// The work of one stage in one tick, in this order.
///
/// After the forward pass of the last virtual stage, the loss of the microbatch is computed in the same tick. So the
/// backward pass of the same item can follow in this tick. Everything else that another virtual stage needs, on the
/// same stage too, is there from the next tick on. Weights of an item can follow in the tick of its backward pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cell {
    /// The forward pass of an item, F.
    pub forward: Option<Item>,
    /// The backward pass of an item: gradients of inputs, B; without [`Shape::split`] those of weights too.
    pub backward: Option<Item>,
    /// Gradients of weights, W.
    pub weights: Vec<Item>,
}

/// The work of each stage in each tick.
///
/// ```
/// use meshloom::transform::pipeline::{Columns, Costs, Placement, ScheduleError, Shape, Table};
///
/// # fn main() -> Result<(), ScheduleError> {
/// // Four stages and eight microbatches, with F, B and W of one time; at most four microbatches are held.
/// let costs = Costs::even(1.0, 1.0, 1.0);
/// let shape = Shape { chunks: 2, placement: Placement::Vee, split: true, ..Shape::new(4, 8) };
/// let table = Table::searched(&[shape], &costs, 4.0)?;
/// let simulated = table.simulate(&costs)?;
/// assert!(simulated.bubble < 0.06 && simulated.peak <= 4.0);
/// // A program that runs the table reads these numbers.
/// let columns = Columns::of(&table)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The shape for which the table is made.
    pub shape: Shape,
    /// `[tick][stage]`.
    pub ticks: Vec<Vec<Cell>>,
}

/// One entry of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// [`Cell::forward`].
    Forward(Item),
    /// [`Cell::backward`].
    Backward(Item),
    /// One of [`Cell::weights`].
    Weights(Item),
}

/// Where a result goes at the end of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// To the stage after, from the last one to the first.
    Right,
    /// To the stage before, from the first one to the last.
    Left,
    /// To the other chunk of the same stage, at the turn of a [`Placement::Vee`].
    Stays,
    /// Out of the pipeline: from the last virtual stage to the loss, or from the first one backwards.
    Out,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "microbatch {} in chunk {}", self.microbatch, self.chunk)
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Forward(item) => write!(f, "F of {item}"),
            Work::Backward(item) => write!(f, "B of {item}"),
            Work::Weights(item) => write!(f, "W of {item}"),
        }
    }
}

impl Cell {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.forward.is_none() && self.backward.is_none() && self.weights.is_empty()
    }
}

/// More entries than any table needs, and few enough for the numbers of [`Columns`].
const MOST_ENTRIES: usize = 1 << 22;

impl Shape {
    /// A shape of one chunk per stage, with a backward pass in one part.
    pub fn new(stages: usize, microbatches: usize) -> Shape {
        Shape { stages, microbatches, chunks: 1, placement: Placement::Loop, split: false }
    }

    /// Number of virtual stages, S v.
    pub fn virtual_stages(&self) -> usize {
        self.stages * self.chunks
    }

    /// The virtual stage of a chunk of a stage.
    pub fn virtual_stage(&self, stage: usize, chunk: usize) -> usize {
        match (self.placement, chunk) {
            (Placement::Loop, _) => chunk * self.stages + stage,
            (Placement::Vee, 0) => stage,
            (Placement::Vee, _) => 2 * self.stages - 1 - stage,
        }
    }

    /// The stage and the chunk that a virtual stage is.
    pub fn place(&self, virtual_stage: usize) -> (usize, usize) {
        let (chunk, stage) = (virtual_stage / self.stages, virtual_stage % self.stages);
        match (self.placement, chunk) {
            (Placement::Loop, _) | (Placement::Vee, 0) => (stage, chunk),
            (Placement::Vee, _) => (self.stages - 1 - stage, chunk),
        }
    }

    /// The stage that has the last virtual stage, and so the loss; its chunk is the last.
    pub fn loss_stage(&self) -> usize {
        match self.placement {
            Placement::Loop => self.stages - 1,
            Placement::Vee => 0,
        }
    }

    /// Where the result of a chunk's forward pass goes.
    pub fn forward_route(&self, stage: usize, chunk: usize) -> Route {
        match (self.placement, chunk) {
            _ if self.virtual_stage(stage, chunk) + 1 == self.virtual_stages() => Route::Out,
            (Placement::Loop, _) => Route::Right,
            (Placement::Vee, 0) if stage + 1 == self.stages => Route::Stays,
            (Placement::Vee, 0) => Route::Right,
            (Placement::Vee, _) => Route::Left,
        }
    }

    /// Where the gradient of a chunk's input goes.
    pub fn backward_route(&self, stage: usize, chunk: usize) -> Route {
        match (self.placement, chunk) {
            _ if self.virtual_stage(stage, chunk) == 0 => Route::Out,
            (Placement::Loop, _) | (Placement::Vee, 0) => Route::Left,
            (Placement::Vee, _) if stage + 1 == self.stages => Route::Stays,
            (Placement::Vee, _) => Route::Right,
        }
    }

    /// Whether the forward pass of one chunk and the backward pass of another cannot be in one tick of a stage: both
    /// would go the same way.
    pub fn collide(&self, stage: usize, forward: usize, backward: usize) -> bool {
        let route = self.forward_route(stage, forward);
        matches!(route, Route::Right | Route::Left) && route == self.backward_route(stage, backward)
    }

    /// Checks that there can be such a table.
    ///
    /// # Errors
    /// A number is zero or all of them are too large, or the chunks do not go with the placement.
    pub fn validate(&self) -> Result<(), ScheduleError> {
        let &Shape { stages, microbatches, chunks, placement, .. } = self;
        let counts = [("stages", stages), ("microbatches", microbatches), ("chunks", chunks)];
        if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(ScheduleError::Zero { what });
        }
        if placement == Placement::Vee && chunks != 2 {
            return Err(ScheduleError::VeeChunks { chunks });
        }
        let entries = counts.iter().try_fold(1usize, |product, (_, count)| product.checked_mul(*count));
        match entries {
            Some(entries) if entries <= MOST_ENTRIES => Ok(()),
            _ => Err(ScheduleError::TooLarge { stages, microbatches, chunks, limit: MOST_ENTRIES }),
        }
    }
}
