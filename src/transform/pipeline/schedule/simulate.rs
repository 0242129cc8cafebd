//! The time and the memory of tables.

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{Item, Placement, ScheduleError, Shape, Table};

/// The time of each pass over one microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// F.
    pub forward: f64,
    /// Gradients of inputs, B.
    pub backward: f64,
    /// Gradients of weights, W.
    pub weights: f64,
}

/// The times of the passes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Costs {
    /// The times of a whole stage, the same for all stages. A chunk takes its share.
    Even(Cost),
    /// The times of each virtual stage.
    PerVirtualStage(Vec<Cost>),
}

impl Costs {
    /// Costs of a whole stage, all alike.
    pub fn even(forward: f64, backward: f64, weights: f64) -> Costs {
        Costs::Even(Cost { forward, backward, weights })
    }

    /// The cost of each virtual stage.
    ///
    /// # Errors
    /// They are for another number of virtual stages, or not times, or all 0.
    pub fn resolve(&self, shape: &Shape) -> Result<Vec<Cost>, ScheduleError> {
        let expected = shape.virtual_stages();
        let costs = match self {
            Costs::Even(cost) => {
                let share = |time: f64| time / shape.chunks as f64;
                let cost =
                    Cost { forward: share(cost.forward), backward: share(cost.backward), weights: share(cost.weights) };
                vec![cost; expected]
            }
            Costs::PerVirtualStage(costs) if costs.len() == expected => costs.clone(),
            Costs::PerVirtualStage(costs) => return Err(ScheduleError::Costs { expected, found: costs.len() }),
        };
        let times = || costs.iter().flat_map(|cost| [cost.forward, cost.backward, cost.weights]);
        if let Some(cost) = times().find(|time| !time.is_finite() || *time < 0.0) {
            return Err(ScheduleError::Cost { cost });
        }
        if times().all(|time| time == 0.0) {
            return Err(ScheduleError::Cost { cost: 0.0 });
        }
        Ok(costs)
    }
}

/// The time and the memory that a table takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// The time of the table, if each tick lasts as long as the stage that has most to do.
    pub makespan_lockstep: f64,
    /// The time of the table, if a stage waits only for its neighbours at the end of a tick.
    pub makespan_near: f64,
    /// The time of a stage's work, on average over the stages.
    pub ideal: f64,
    /// The part of `makespan_lockstep` that is more than `ideal`.
    pub bubble_lockstep: f64,
    /// The part of `makespan_near` that is more than `ideal`.
    pub bubble_near: f64,
    /// For each stage, the most activations that it holds: in microbatches; each takes 1 on a stage that has
    /// passed it through all its chunks. An item counts from F until its last W; without [`Shape::split`] until B.
    pub peak_memory: Vec<f64>,
    /// `[tick][stage]`: the activations held after the F of the tick.
    pub memory: Vec<Vec<f64>>,
}

impl Simulated {
    /// The most activations that a stage holds. Buffers are alike on all stages, so this is what counts.
    pub fn peak(&self) -> f64 {
        self.peak_memory.iter().copied().fold(0.0, f64::max)
    }
}

/// Computes the time and the memory of a table.
///
/// # Errors
/// The table does not [verify](Table::verify), or the costs are not its costs.
pub(super) fn simulate(table: &Table, costs: &Costs) -> Result<Simulated, ScheduleError> {
    table.verify()?;
    let costs = costs.resolve(&table.shape)?;
    let shape = &table.shape;
    let mut lockstep = 0.0;
    let mut ends = vec![0.0; shape.stages];
    let mut work = 0.0;
    for row in &table.ticks {
        let lasts: Vec<f64> = (0..shape.stages).map(|stage| cell_cost(shape, &costs, stage, &row[stage])).collect();
        lockstep += lasts.iter().copied().fold(0.0, f64::max);
        work += lasts.iter().sum::<f64>();
        ends = (0..shape.stages).map(|stage| begins(shape, &ends, stage) + lasts[stage]).collect();
    }
    let near = ends.into_iter().fold(0.0, f64::max);
    let ideal = work / shape.stages as f64;
    let memory = memory(table);
    let mut peak_memory = vec![0.0; shape.stages];
    for row in &memory {
        for (peak, held) in peak_memory.iter_mut().zip(row) {
            *peak = held.max(*peak);
        }
    }
    Ok(Simulated {
        makespan_lockstep: lockstep,
        makespan_near: near,
        ideal,
        bubble_lockstep: 1.0 - ideal / lockstep,
        bubble_near: 1.0 - ideal / near,
        peak_memory,
        memory,
    })
}

/// When a stage can begin its next tick: when its neighbours have ended theirs.
fn begins(shape: &Shape, ends: &[f64], stage: usize) -> f64 {
    let stages = shape.stages;
    let ring = shape.placement == Placement::Loop && shape.chunks > 1;
    let left = if stage > 0 { Some(stage - 1) } else { ring.then_some(stages - 1) };
    let right = if stage + 1 < stages { Some(stage + 1) } else { ring.then_some(0) };
    [left, right].into_iter().flatten().map(|neighbour| ends[neighbour]).fold(ends[stage], f64::max)
}

/// The time of a cell.
pub(super) fn cell_cost(shape: &Shape, costs: &[Cost], stage: usize, cell: &super::Cell) -> f64 {
    let of = |item: &Item| costs[shape.virtual_stage(stage, item.chunk)];
    let backward = |cost: Cost| if shape.split { cost.backward } else { cost.backward + cost.weights };
    let forward = cell.forward.as_ref().map_or(0.0, |item| of(item).forward);
    let weights: f64 = cell.weights.iter().map(|piece| of(&piece.item).weights / shape.pieces as f64).sum();
    forward + cell.backward.as_ref().map_or(0.0, |item| backward(of(item))) + weights
}

/// `[tick][stage]`: activations held after F, in microbatches of a whole stage. Takes any table.
pub(super) fn memory(table: &Table) -> Vec<Vec<f64>> {
    let chunks = table.shape.chunks.max(1) as f64;
    let mut held = vec![0usize; table.shape.stages];
    let mut done: FxHashMap<(usize, Item), usize> = FxHashMap::default();
    let mut curve = Vec::with_capacity(table.ticks.len());
    for row in &table.ticks {
        held.resize(row.len().max(held.len()), 0);
        let mut after_forward = Vec::with_capacity(row.len());
        for (stage, cell) in row.iter().enumerate() {
            held[stage] += usize::from(cell.forward.is_some());
            after_forward.push(held[stage] as f64 / chunks);
            let mut freed = usize::from(cell.backward.is_some() && !table.shape.split);
            for piece in &cell.weights {
                let count = done.entry((stage, piece.item)).or_insert(0);
                *count += 1;
                freed += usize::from(*count == table.shape.pieces);
            }
            held[stage] = held[stage].saturating_sub(freed);
        }
        curve.push(after_forward);
    }
    curve
}

impl Table {
    /// Computes the time of the table with these costs, and the activations that it holds.
    ///
    /// # Errors
    /// The table does not [verify](Table::verify), or the costs are for another shape or no times.
    pub fn simulate(&self, costs: &Costs) -> Result<Simulated, ScheduleError> {
        simulate(self, costs)
    }
}
