//! Tables by search: over the parameters of the `greedy` rule, and tables by rule.

use super::greedy::{Bounds, EPSILON, GreedyRule, Made, Mode, Prefer, greedy};
use super::orders::{by_rule, check};
use super::{Cost, Costs, Placement, ScheduleError, Shape, Table};

impl Table {
    /// The best table for the given number of chunks over both placements, with the backward pass in one part or, if
    /// `split` allows, in two. See [`Table::searched`].
    ///
    /// # Errors
    /// As [`Table::searched`]. The placement of `shape` means nothing.
    pub fn auto(shape: &Shape, costs: &Costs, cap: f64) -> Result<Table, ScheduleError> {
        let placements: &[Placement] =
            if shape.chunks == 2 { &[Placement::Loop, Placement::Vee] } else { &[Placement::Loop] };
        let splits: &[bool] = if shape.split { &[false, true] } else { &[false] };
        let shapes: Vec<Shape> = placements
            .iter()
            .flat_map(|&placement| splits.iter().map(move |&split| Shape { placement, split, ..*shape }))
            .collect();
        Table::searched(&shapes, costs, cap)
    }

    /// The table of one of these shapes that takes the least time in lock step; of several such tables, the one that
    /// holds least. No stage holds more microbatches than `cap` at once, as
    /// [`Simulated::peak`](super::Simulated::peak) counts them. The search goes over a small family of
    /// rules, so there can be better tables. Whether an item waits for B or for W does not matter to `cap`; where one
    /// takes more than the other, compare [`Columns::slots`](super::Columns::slots).
    ///
    /// # Errors
    /// There are fewer microbatches than stages, a number is 0 or too large, the costs are for another shape, or no
    /// table was found that keeps the cap.
    pub fn searched(shapes: &[Shape], costs: &Costs, cap: f64) -> Result<Table, ScheduleError> {
        if cap.is_nan() {
            return Err(ScheduleError::Cap { cap });
        }
        let mut best: Option<Made> = None;
        for shape in shapes {
            check(shape)?;
            let costs = costs.resolve(shape)?;
            search(shape, &costs, cap, &mut best);
        }
        match best {
            Some(made) => {
                made.table.verify()?;
                Ok(made.table)
            }
            // With one microbatch under way a stage holds one, in all its chunks.
            None => Err(ScheduleError::NoTable { cap, least: 1.0 }),
        }
    }
}

/// Looks for a better table than `best`.
fn search(shape: &Shape, costs: &[Cost], cap: f64, best: &mut Option<Made>) {
    // Items that a stage may hold; a float that is too large becomes the largest number.
    let held = (cap * shape.chunks as f64 + EPSILON).floor() as usize;
    for table in by_rule(shape, costs) {
        let made = Made { time: table.time(costs), held: table.most_held(), table };
        if made.held <= held && better(&made, best) {
            *best = Some(made);
        }
    }
    for rule in rules(shape) {
        let time = best.as_ref().map_or(f64::INFINITY, |best| best.time);
        let Some(made) = greedy(shape, costs, &rule, Bounds { time, held }) else { continue };
        if better(&made, best) {
            *best = Some(made);
        }
    }
}

/// Whether a table is better than the best so far: faster, or as fast and holds less, or both the same in fewer ticks.
fn better(made: &Made, best: &Option<Made>) -> bool {
    let Some(best) = best else { return true };
    // Items of tables of different shapes differ in size.
    let held = |made: &Made| made.held as f64 / made.table.shape.chunks as f64;
    let ticks = |made: &Made| made.table.ticks.len() as f64;
    for (new, old) in [(made.time, best.time), (held(made), held(best)), (ticks(made), ticks(best))] {
        if (new - old).abs() > EPSILON {
            return new < old;
        }
    }
    false
}

/// The rules to try, those that often are best first.
fn rules(shape: &Shape) -> Vec<GreedyRule> {
    let stages = shape.stages;
    let mut in_flight: Vec<usize> = if stages <= 8 {
        ((stages / 2).max(1)..=2 * stages).collect()
    } else {
        [2, 1]
            .iter()
            .map(|less| stages - less)
            .chain([0, 1, 2, stages / 4, stages / 2, stages].map(|more| stages + more))
            .collect()
    };
    // With one under way there is a table under any cap that allows one.
    in_flight.push(1);
    in_flight.retain(|count| *count <= shape.microbatches.max(1));
    in_flight.push(shape.microbatches.min(2 * stages));
    in_flight.sort_unstable();
    in_flight.dedup();
    let mut waiting = match (shape.split, stages <= 8) {
        (false, _) => vec![0],
        (true, true) => vec![0, 1, 2, 4, stages, 2 * stages],
        (true, false) => vec![0, 1, stages, 2 * stages],
    };
    waiting.sort_unstable();
    waiting.dedup();
    let slopes: &[usize] = if shape.chunks == 1 { &[0, 1, 2] } else { &[0] };
    let deeps: &[bool] = if shape.chunks == 1 { &[true] } else { &[true, false] };
    let both = |prefer| [true, false].map(|at_once| Mode::Both { prefer, at_once });
    let mut modes = both(Prefer::Backward).to_vec();
    modes.push(Mode::One(Prefer::Backward));
    if shape.placement == Placement::Vee {
        modes.extend([Prefer::Forward, Prefer::Alternate].into_iter().flat_map(both));
    }
    modes.extend([Mode::One(Prefer::Alternate), Mode::One(Prefer::Forward)]);
    let mut rules = vec![];
    for mode in modes {
        for &in_flight in &in_flight {
            for &waiting in &waiting {
                for &slope in slopes {
                    rules.extend(deeps.iter().map(|&deep| GreedyRule { mode, in_flight, slope, waiting, deep }));
                }
            }
        }
    }
    rules
}
