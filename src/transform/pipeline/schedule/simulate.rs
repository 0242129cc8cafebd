//! The time and the memory of tables.

use super::{Item, ScheduleError, Shape, Table};

/// The time of each pass over one microbatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// F.
    pub forward: f64,
    /// Gradients of inputs, B.
    pub backward: f64,
    /// Gradients of weights, W.
    pub weights: f64,
}

/// The times of the passes.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// The time of the table: each tick lasts as long as the stage that has most to do.
    pub time: f64,
    /// The time of a stage's work, on average over the stages.
    pub ideal: f64,
    /// The part of `time` that is more than `ideal`.
    pub bubble: f64,
    /// The most activations that a stage holds, in microbatches; each takes 1 on a stage that has passed it through all
    /// its chunks. An item counts from F until W; without [`Shape::split`] until B.
    pub peak: f64,
}

/// The time of a cell.
pub(super) fn cell_cost(shape: &Shape, costs: &[Cost], stage: usize, cell: &super::Cell) -> f64 {
    let of = |item: &Item| costs[shape.virtual_stage(stage, item.chunk)];
    let backward = |cost: Cost| if shape.split { cost.backward } else { cost.backward + cost.weights };
    let forward = cell.forward.as_ref().map_or(0.0, |item| of(item).forward);
    let weights: f64 = cell.weights.iter().map(|item| of(item).weights).sum();
    forward + cell.backward.as_ref().map_or(0.0, |item| backward(of(item))) + weights
}

/// The time of a tick: that of the stage that has most to do.
pub(super) fn tick_cost(shape: &Shape, costs: &[Cost], row: &[super::Cell]) -> f64 {
    row.iter().enumerate().map(|(stage, cell)| cell_cost(shape, costs, stage, cell)).fold(0.0, f64::max)
}

impl Table {
    /// Computes the time of the table with these costs, and the activations that it holds.
    ///
    /// # Errors
    /// The table does not [verify](Table::verify), or the costs are for another shape or no times.
    pub fn simulate(&self, costs: &Costs) -> Result<Simulated, ScheduleError> {
        self.verify()?;
        let (shape, costs) = (&self.shape, costs.resolve(&self.shape)?);
        let time = self.time(&costs);
        let cells = self.ticks.iter().flat_map(|row| row.iter().enumerate());
        let work: f64 = cells.map(|(stage, cell)| cell_cost(shape, &costs, stage, cell)).sum();
        let ideal = work / shape.stages as f64;
        Ok(Simulated { time, ideal, bubble: 1.0 - ideal / time, peak: self.most_held() as f64 / shape.chunks as f64 })
    }

    /// The time of the table, by the costs of virtual stages.
    pub(super) fn time(&self, costs: &[Cost]) -> f64 {
        self.ticks.iter().map(|row| tick_cost(&self.shape, costs, row)).sum()
    }

    /// The most items that a stage holds.
    pub(super) fn most_held(&self) -> usize {
        let mut held = vec![0; self.shape.stages];
        let after_forward = |(held, cell): (&mut usize, &super::Cell)| {
            *held += usize::from(cell.forward.is_some());
            let most = *held;
            *held -= if self.shape.split { cell.weights.len() } else { usize::from(cell.backward.is_some()) };
            most
        };
        self.ticks.iter().flat_map(|row| held.iter_mut().zip(row).map(after_forward).max()).max().unwrap_or(0)
    }
}
