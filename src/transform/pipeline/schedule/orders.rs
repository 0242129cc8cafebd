//! Tables by rule. Sources: see the [module](super).

use super::simulate::{cell_cost, tick_cost};
use super::{Cell, Cost, Item, Placement, ScheduleError, Shape, Table, Work};

/// Checks a shape for a generator: every table's conditions must hold, and there must be a microbatch for each stage.
pub(super) fn check(shape: &Shape) -> Result<(), ScheduleError> {
    shape.validate()?;
    let &Shape { stages, microbatches, .. } = shape;
    if microbatches < stages { Err(ScheduleError::TooFewMicrobatches { microbatches, stages }) } else { Ok(()) }
}

fn empty(shape: Shape, ticks: usize) -> Table {
    Table { shape, ticks: vec![vec![Cell::default(); shape.stages]; ticks] }
}

impl Table {
    /// All forward, then all backward. With several chunks a microbatch goes round several times, as in a circular
    /// pipeline. The time is (M + (S - 1) / v) (f + b + w), and a stage holds all microbatches.
    ///
    /// # Errors
    /// There are fewer microbatches than stages, or a number is 0 or too large.
    pub fn gpipe(stages: usize, microbatches: usize, chunks: usize) -> Result<Table, ScheduleError> {
        let shape = Shape { chunks, ..Shape::new(stages, microbatches) };
        check(&shape)?;
        let half = microbatches * chunks + stages - 1;
        let mut table = empty(shape, 2 * half);
        for chunk in 0..chunks {
            for microbatch in 0..microbatches {
                let item = Item { chunk, microbatch };
                for stage in 0..stages {
                    let forward = chunk * microbatches + microbatch + stage;
                    // Microbatches leave in ascending order too.
                    let backward = half + (chunks - 1 - chunk) * microbatches + microbatch + (stages - 1 - stage);
                    table.ticks[forward][stage].forward = Some(item);
                    table.ticks[backward][stage].backward = Some(item);
                }
            }
        }
        table.verify()?;
        Ok(table)
    }

    /// The forward pass of one microbatch and the backward pass of another in each tick. The time is
    /// (M + S - 1) (f + b + w), and the first stage holds 2 S - 1 microbatches, or all if those are fewer.
    ///
    /// # Errors
    /// There are fewer microbatches than stages, or a number is 0 or too large.
    pub fn one_f_one_b(stages: usize, microbatches: usize) -> Result<Table, ScheduleError> {
        let shape = Shape::new(stages, microbatches);
        check(&shape)?;
        let lag = 2 * (stages - 1);
        let mut table = empty(shape, microbatches + lag);
        for microbatch in 0..microbatches {
            let item = Item { chunk: 0, microbatch };
            for stage in 0..stages {
                table.ticks[microbatch + stage][stage].forward = Some(item);
                table.ticks[microbatch + lag - stage][stage].backward = Some(item);
            }
        }
        table.verify()?;
        Ok(table)
    }
}

/// The work of one stage, one entry in each tick.
type Order = Vec<Work>;

/// Notes work on one item after another.
struct Writer {
    order: Order,
    microbatches: usize,
}

impl Writer {
    /// Items past the last microbatch are left out.
    fn put(&mut self, work: fn(Item) -> Work, chunk: usize, microbatch: usize) {
        if microbatch < self.microbatches {
            self.order.push(work(Item { chunk, microbatch }));
        }
    }
}

/// ZB-V, as torch.distributed.pipelining has it.
fn zb_v(shape: &Shape) -> Option<Table> {
    let &Shape { stages, microbatches, .. } = shape;
    let order = |stage: usize| {
        let mut to = Writer { order: vec![], microbatches };
        // With fewer microbatches than this, the order is that of as many, without the missing ones.
        let count = microbatches.max(2 * stages - 1);
        let (mut forward, mut backward) = ([0; 2], [0; 2]);
        let next = |to: &mut Writer, work, counts: &mut [usize; 2], chunk: usize| {
            to.put(work, chunk, counts[chunk]);
            counts[chunk] += 1;
        };
        let both = |to: &mut Writer, backward: &mut [usize; 2], chunk: usize| {
            to.put(Work::Backward, chunk, backward[chunk]);
            to.put(Work::Weights, chunk, backward[chunk]);
            backward[chunk] += 1;
        };
        for _ in 0..2 * (stages - stage) - 1 {
            next(&mut to, Work::Forward, &mut forward, 0);
        }
        for _ in 0..stage {
            next(&mut to, Work::Forward, &mut forward, 1);
            next(&mut to, Work::Forward, &mut forward, 0);
        }
        for _ in 0..stages - stage {
            next(&mut to, Work::Forward, &mut forward, 1);
            both(&mut to, &mut backward, 1);
        }
        while forward[1] < forward[0] || forward[0] < count {
            if forward[0] < count {
                next(&mut to, Work::Forward, &mut forward, 0);
            }
            both(&mut to, &mut backward, 0);
            next(&mut to, Work::Forward, &mut forward, 1);
            both(&mut to, &mut backward, 1);
        }
        let mut late = backward;
        for _ in 0..stage {
            next(&mut to, Work::Backward, &mut backward, 0);
            next(&mut to, Work::Backward, &mut backward, 1);
        }
        for _ in 0..stages - stage {
            next(&mut to, Work::Backward, &mut backward, 0);
            next(&mut to, Work::Weights, &mut late, 0);
        }
        for chunk in [1, 0] {
            while late[chunk] < backward[chunk] {
                next(&mut to, Work::Weights, &mut late, chunk);
            }
        }
        to.order
    };
    in_lock_step(shape, &(0..stages).map(order).collect::<Vec<_>>())
}

/// The tick in which each pass of an item is done; later than any if it is not yet.
struct Done {
    microbatches: usize,
    forward: Vec<usize>,
    backward: Vec<usize>,
}

impl Done {
    fn before(&self, shape: &Shape, tick: usize, stage: usize, work: Work) -> bool {
        let Item { chunk, microbatch } = work.item();
        let here = shape.virtual_stage(stage, chunk);
        let at = |virtual_stage: usize| virtual_stage * self.microbatches + microbatch;
        match work {
            Work::Forward(_) => here == 0 || self.forward[at(here - 1)] < tick,
            Work::Backward(_) if here + 1 == shape.virtual_stages() => self.forward[at(here)] < tick,
            Work::Backward(_) => self.backward[at(here + 1)] < tick,
            Work::Weights(_) => self.backward[at(here)] < tick,
        }
    }
}

/// Runs the orders of all stages, one entry in each tick, each as early as it can. Returns `None` if they wait for each
/// other.
fn in_lock_step(shape: &Shape, orders: &[Order]) -> Option<Table> {
    let items = shape.virtual_stages() * shape.microbatches;
    let never = vec![usize::MAX; items];
    let mut done = Done { microbatches: shape.microbatches, forward: never.clone(), backward: never };
    let mut next = vec![0; orders.len()];
    let mut table = empty(*shape, 0);
    while next.iter().zip(orders).any(|(next, order)| *next < order.len()) {
        let tick = table.ticks.len();
        let mut row = vec![Cell::default(); shape.stages];
        for (stage, order) in orders.iter().enumerate() {
            let Some(&work) = order.get(next[stage]) else { continue };
            if !done.before(shape, tick, stage, work) {
                continue;
            }
            next[stage] += 1;
            let item = work.item();
            let index = shape.virtual_stage(stage, item.chunk) * shape.microbatches + item.microbatch;
            match work {
                Work::Forward(_) => {
                    row[stage].forward = Some(item);
                    done.forward[index] = tick;
                }
                Work::Backward(_) => {
                    row[stage].backward = Some(item);
                    done.backward[index] = tick;
                }
                Work::Weights(_) => row[stage].weights.push(item),
            }
        }
        if row.iter().all(Cell::is_empty) {
            return None;
        }
        table.ticks.push(row);
    }
    Some(table)
}

/// Moves gradients of weights to the earliest tick, from that of their backward pass on, in which there is room for
/// them: no tick becomes longer, later ones can become shorter, and nothing is held for longer. Ticks that become empty
/// go.
fn pull_weights(table: &mut Table, costs: &[Cost]) {
    let shape = table.shape;
    let mut room: Vec<Vec<f64>> = Vec::with_capacity(table.ticks.len());
    for row in &table.ticks {
        let longest = tick_cost(&shape, costs, row);
        let cells = row.iter().enumerate();
        room.push(cells.map(|(stage, cell)| longest - cell_cost(&shape, costs, stage, cell)).collect());
    }
    for stage in 0..shape.stages {
        let mut ready = vec![usize::MAX; shape.chunks * shape.microbatches];
        for tick in 0..table.ticks.len() {
            if let Some(item) = table.ticks[tick][stage].backward {
                ready[item.chunk * shape.microbatches + item.microbatch] = tick;
            }
            for item in std::mem::take(&mut table.ticks[tick][stage].weights) {
                let Item { chunk, microbatch } = item;
                let cost = costs[shape.virtual_stage(stage, chunk)].weights;
                let from = ready[chunk * shape.microbatches + microbatch];
                let earlier = (from..tick).find(|earlier| room[*earlier][stage] >= cost - 1e-9);
                let to = earlier.unwrap_or(tick);
                if let Some(earlier) = earlier {
                    room[earlier][stage] -= cost;
                    room[tick][stage] += cost;
                }
                table.ticks[to][stage].weights.push(item);
            }
        }
    }
    table.ticks.retain(|row| !row.iter().all(Cell::is_empty));
}

/// The tables by rule of a shape that a search over greedy tables does not find as good.
pub(super) fn by_rule(shape: &Shape, costs: &[Cost]) -> Vec<Table> {
    match (shape.split, shape.placement) {
        (false, Placement::Loop) => Table::gpipe(shape.stages, shape.microbatches, shape.chunks).into_iter().collect(),
        (true, Placement::Vee) => zb_v(shape).map_or_else(Vec::new, |table| {
            let mut pulled = table.clone();
            pull_weights(&mut pulled, costs);
            vec![table, pulled]
        }),
        (false, Placement::Vee) | (true, Placement::Loop) => Vec::new(),
    }
}
