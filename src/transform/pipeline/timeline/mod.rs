//! The schedule of a pipeline as data: what every stage does in every iteration, and when the weights of each repeat
//! are whole. It is a function of the options alone; nothing is traced.
//!
//! Time is counted in columns. With [`Schedule::Gpipe`](super::Schedule::Gpipe) and
//! [`Schedule::Circular`](super::Schedule::Circular) the iterations of the forward pass come first, then those of the
//! backward pass, the last iteration first. Where stages [branch](super::Schedule::branches), a column is a tick, and
//! has both; what is said of repeats holds of chunks there.
//!
//! ```
//! # use meshloom::transform::pipeline::{PipelineOptions, Schedule, Timeline, WeightPlan};
//! let options = PipelineOptions { stages: 2, microbatches: 2, repeats: 2, ..PipelineOptions::default() };
//! let timeline = Timeline::of(&options);
//! assert_eq!(timeline.counts.bubble_fraction, 1.0 / 5.0);
//! assert_eq!(timeline.counts.gathers_forward, 2);
//! println!("{timeline}");
//! ```

mod picture;

use std::ops::Range;

use serde::Serialize;

use super::by_table::InputRing;
use super::schedule::{Cell, Columns, Item, Table};
use super::{PipelineOptions, Task, WeightPlan, WeightUse};

/// The work of every stage, and the times at which weights are gathered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// The number of stages, S.
    pub stages: usize,
    /// The number of repeats, R.
    pub repeats: usize,
    /// The number of chunks, v.
    pub chunks: usize,
    /// The number of microbatches, M.
    pub microbatches: usize,
    /// The delay from stage to stage, D.
    pub delay: usize,
    /// The order of work, by name.
    pub schedule: &'static str,
    /// When weights are gathered, by name.
    pub weights: &'static str,
    /// The columns, in order of time.
    pub columns: Vec<Column>,
    /// For each column the activations held by the stage that holds most, after its forward pass. The unit is a
    /// microbatch with the activations of all its layers, so a microbatch in one of several repeats or chunks counts
    /// its share. Activations are held until the gradients of the weights are done.
    pub held: Vec<f64>,
    /// The times for which the weights of repeats are whole on each device. The list is empty if weights are gathered
    /// in every iteration.
    pub windows: Vec<WeightWindow>,
    /// The times at which the gradients of repeats are reduced and scattered. The list is empty if that happens in
    /// every iteration.
    pub scatters: Vec<GradientScatter>,
    /// Sums over all columns.
    pub counts: Counts,
}

/// The work of all stages at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    /// The iteration; in a backward pass that of the forward pass which it undoes.
    pub iteration: usize,
    /// For each stage the work of the forward pass, `None` in a bubble; empty where there is no forward pass.
    pub forward: Vec<Option<Task>>,
    /// For each stage the work of the backward pass, which in the same column comes after that of the forward pass.
    /// Where `weights` has entries, it is the gradients of inputs alone.
    pub backward: Vec<Option<Task>>,
    /// For each stage the gradients of weights that it computes, after all other work of the column; empty where they
    /// are part of `backward`.
    pub weights: Vec<Vec<Task>>,
}

/// The time for which the gathered weights of some repeats are alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WeightWindow {
    /// The repeats.
    pub repeats: Range<usize>,
    /// The columns behind which the gather can hide: none needs its result. Empty where the next column waits for it.
    pub gather: Range<usize>,
    /// The columns during which the weights are there.
    pub alive: Range<usize>,
}

/// The reduction of the gradient of some repeats, from sums of each device to the part that each keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GradientScatter {
    /// The repeats.
    pub repeats: Range<usize>,
    /// The column before which it can begin; the number of columns if it comes after all.
    pub column: usize,
}

/// Sums over a schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counts {
    /// Iterations of the forward pass; where stages branch, ticks, which have both passes.
    pub iterations: usize,
    /// The iterations in which a stage has a forward pass to do: M R, or M v.
    pub real_iterations: usize,
    /// The iterations in which it has none: D (S - 1); with 1F1B, 2 (S - 1).
    pub bubble_iterations: usize,
    /// The part of all iterations that are bubbles, of each stage. Where stages branch, the part of the time in which a
    /// stage waits: a tick is as long as the longest work of a stage, with backward passes twice as long as forward
    /// passes, or three times with full rematerialization.
    pub bubble_fraction: f64,
    /// How often a device gathers its part of a weight of one repeat, in the forward pass.
    pub gathers_forward: usize,
    /// How often it does so in the backward pass.
    pub gathers_backward: usize,
    /// How often the gradient of a weight of one repeat is reduced and scattered.
    pub scatters: usize,
    /// How often a microbatch moves from stage to stage, forwards and backwards: collective-permutes that run, each of
    /// one microbatch.
    pub permutes: usize,
    /// For each stage, the largest number of microbatches (of any repeat) whose forward pass is done and whose backward
    /// pass, with the gradients of weights, is not.
    pub alive: Vec<usize>,
    /// Iterations whose inputs are kept for the backward pass, bubbles included.
    pub stashed_iterations: usize,
    /// The largest number of repeats that have gathered weights at the same time. With weights gathered per iteration,
    /// those of one repeat are there during an iteration.
    pub gathered_repeats: usize,
}

impl Timeline {
    /// The schedule of a pipeline, whose options are [valid](PipelineOptions::validate).
    pub fn of(options: &PipelineOptions) -> Timeline {
        // Options that are valid have a table, if their stages branch.
        let table = options.schedule.branches().then(|| options.table().ok()).flatten();
        let columns = columns(options, table.as_ref());
        let (windows, scatters) = weights(options, columns.len());
        let counts = counts(options, table.as_ref(), &columns, &windows);
        Timeline {
            stages: options.stages,
            repeats: options.repeats,
            chunks: options.chunks,
            microbatches: options.microbatches,
            delay: options.delay(),
            schedule: options.schedule.name(),
            weights: options.weights.name(),
            held: held(options, &columns),
            columns,
            windows,
            scatters,
            counts,
        }
    }

    /// Parts of the layer stack on each stage, and their name.
    pub fn parts(&self) -> (usize, &'static str) {
        if self.chunks > 1 { (self.chunks, "chunk") } else { (self.repeats, "repeat") }
    }

    /// The first column of the backward pass, where that comes after the forward pass.
    pub fn turn(&self) -> Option<usize> {
        self.columns.iter().position(|column| column.forward.is_empty())
    }
}

fn columns(options: &PipelineOptions, table: Option<&Table>) -> Vec<Column> {
    let forward = |iteration| (0..options.stages).map(|stage| options.task(iteration, stage)).collect();
    if let Some(table) = table {
        let task = |item: Option<Item>| item.map(|Item { chunk, microbatch }| Task { microbatch, repeat: chunk });
        let of_weights = |cell: &Cell| cell.weights.iter().filter_map(|&item| task(Some(item))).collect();
        let column = |(iteration, cells): (usize, &Vec<Cell>)| Column {
            iteration,
            forward: cells.iter().map(|cell| task(cell.forward)).collect(),
            backward: cells.iter().map(|cell| task(cell.backward)).collect(),
            weights: if table.shape.split { cells.iter().map(of_weights).collect() } else { Vec::new() },
        };
        return table.ticks.iter().enumerate().map(column).collect();
    }
    let there = (0..options.iterations()).map(|iteration| Column {
        iteration,
        forward: forward(iteration),
        backward: Vec::new(),
        weights: Vec::new(),
    });
    let back = (0..options.iterations()).rev().map(|iteration| Column {
        iteration,
        forward: Vec::new(),
        backward: forward(iteration),
        weights: Vec::new(),
    });
    there.chain(back).collect()
}

/// When weights are gathered and released, and gradients scattered.
fn weights(options: &PipelineOptions, columns: usize) -> (Vec<WeightWindow>, Vec<GradientScatter>) {
    let all = 0..options.parts();
    let once = |alive: Range<usize>| WeightWindow { repeats: all.clone(), gather: alive.start..alive.start, alive };
    let turn = columns / 2;
    match options.weights {
        WeightPlan::PerIteration => (Vec::new(), Vec::new()),
        _ if options.schedule.branches() => {
            (vec![once(0..columns)], vec![GradientScatter { repeats: all, column: columns }])
        }
        WeightPlan::GatherOnce => {
            let windows =
                if options.keep_gathered { vec![once(0..columns)] } else { vec![once(0..turn), once(turn..columns)] };
            (windows, vec![GradientScatter { repeats: all, column: columns }])
        }
        WeightPlan::SlidingWindow | WeightPlan::SplitSlidingWindow => sliding(options, columns),
    }
}

/// The sliding window: each repeat is gathered while the one before still runs, forwards and, in reverse, backwards.
fn sliding(options: &PipelineOptions, columns: usize) -> (Vec<WeightWindow>, Vec<GradientScatter>) {
    let phases = options.phases();
    let mirrored = |range: &Range<usize>| columns - range.end..columns - range.start;
    let spans: Vec<RepeatSpan> = (0..options.repeats).map(|repeat| RepeatSpan::of(repeat, &phases)).collect();
    let mut windows = Vec::new();
    for (repeat, span) in spans.iter().enumerate() {
        let gather = phases.iter().find(|phase| phase.prefetches == Some(repeat)).map(|phase| phase.iterations.clone());
        let gather = gather.unwrap_or(0..0);
        let end = if options.keep_gathered { columns - span.used.start } else { span.used.end };
        windows.push(WeightWindow { repeats: repeat..repeat + 1, alive: gather.start..end, gather });
    }
    if !options.keep_gathered {
        for (repeat, span) in spans.iter().enumerate().rev() {
            let used = mirrored(&span.used);
            // During the rest of the repeat after it, which is that repeat's own.
            let gather = spans.get(repeat + 1).map_or(used.start..used.start, |next| mirrored(&next.own));
            windows.push(WeightWindow { repeats: repeat..repeat + 1, alive: gather.start..used.end, gather });
        }
    }
    let scatter =
        |repeat: usize| GradientScatter { repeats: repeat..repeat + 1, column: mirrored(&spans[repeat].used).end };
    (windows, (0..options.repeats).rev().map(scatter).collect())
}

/// The iterations of the forward pass that use the weights of a repeat.
struct RepeatSpan {
    /// Any stage.
    used: Range<usize>,
    /// All stages at work.
    own: Range<usize>,
}

impl RepeatSpan {
    fn of(repeat: usize, phases: &[super::IterationPhase]) -> RepeatSpan {
        let uses = |weights: WeightUse| match weights {
            WeightUse::One(own) => own == repeat,
            WeightUse::Changing(to) => to == repeat || to == repeat + 1,
            WeightUse::Any => true,
        };
        let mut used = phases.iter().filter(|phase| uses(phase.weights)).map(|phase| phase.iterations.clone());
        let first = used.next().unwrap_or(0..0);
        let end = used.next_back().map_or(first.end, |last| last.end);
        let own = phases.iter().find(|phase| phase.weights == WeightUse::One(repeat));
        RepeatSpan { used: first.start..end, own: own.map_or(first.clone(), |phase| phase.iterations.clone()) }
    }
}

fn counts(options: &PipelineOptions, table: Option<&Table>, columns: &[Column], windows: &[WeightWindow]) -> Counts {
    let by_table = table.and_then(|table| of_table(options, table));
    let iterations = if by_table.is_some() { columns.len() } else { options.iterations() };
    let real_iterations = options.microbatches * options.parts();
    let bubble_iterations = iterations - real_iterations;
    let turn = if by_table.is_some() { columns.len() } else { options.iterations() };
    let gathers = |backward: bool| match options.weights {
        WeightPlan::PerIteration => options.iterations(),
        _ => {
            let these = windows.iter().filter(|window| (window.alive.start >= turn) == backward);
            these.map(|window| window.repeats.len()).sum()
        }
    };
    let at_once =
        |column: usize| windows.iter().filter(|it| it.alive.contains(&column)).map(|it| it.repeats.len()).sum();
    Counts {
        iterations,
        real_iterations,
        bubble_iterations,
        bubble_fraction: match &by_table {
            Some(table) => table.bubbles,
            None => bubble_iterations as f64 / iterations as f64,
        },
        gathers_forward: gathers(false),
        gathers_backward: gathers(true),
        scatters: if options.weights == WeightPlan::PerIteration { options.iterations() } else { options.parts() },
        permutes: by_table.as_ref().map_or_else(|| permutes(options, iterations), |table| table.permutes),
        alive: (0..options.stages).map(|stage| alive(columns, stage).into_iter().max().unwrap_or(0)).collect(),
        stashed_iterations: by_table.as_ref().map_or(iterations, |table| table.held),
        gathered_repeats: (0..columns.len()).map(at_once).max().unwrap_or(0).max(1),
    }
}

/// The counts of a table.
struct OfTable {
    bubbles: f64,
    permutes: usize,
    held: usize,
}

/// The counts of a table, or `None` if it does not verify. Tables made from options do verify.
fn of_table(options: &PipelineOptions, table: &Table) -> Option<OfTable> {
    let (columns, simulated) = (Columns::of(table).ok()?, table.simulate(&options.costs()).ok()?);
    let turns = InputRing::of(&columns, table.shape);
    // Two permutes at the end of each tick, and one for each turn.
    let moved = 2 * turns.ticks.len() + turns.count();
    let permutes = if options.stages == 1 { 0 } else { moved };
    Some(OfTable { bubbles: simulated.bubble, permutes, held: columns.slots.held_b.max(columns.slots.held_w) })
}

/// The number of permutes: in every iteration one for the stages' results; where inputs enter or results leave, one for
/// the slot that moves with them as well; and the turns that bring results home where microbatches do not fill the
/// slots.
fn permutes(options: &PipelineOptions, iterations: usize) -> usize {
    if options.stages == 1 {
        return 0;
    }
    let moving = options.phases().into_iter().filter(|phase| phase.takes_inputs || phase.gives_outputs);
    let last_turns = options.microbatches.next_multiple_of(options.stages) - options.microbatches;
    2 * (iterations + moving.map(|phase| phase.iterations.len()).sum::<usize>() + last_turns)
}

/// For each column, the microbatches (of any repeat) whose forward pass a stage has done, and not all of the
/// backward pass. Within a column, forward comes first.
fn alive(columns: &[Column], stage: usize) -> Vec<usize> {
    let mut now = 0;
    let of_column = |column: &Column| {
        now += usize::from(column.forward.get(stage).is_some_and(Option::is_some));
        let held = now;
        now -= match column.weights.get(stage) {
            Some(weights) => weights.len(),
            None => usize::from(column.backward.get(stage).is_some_and(Option::is_some)),
        };
        held
    };
    columns.iter().map(of_column).collect()
}

fn held(options: &PipelineOptions, columns: &[Column]) -> Vec<f64> {
    let of_stages: Vec<Vec<usize>> = (0..options.stages).map(|stage| alive(columns, stage)).collect();
    let most = |column: usize| of_stages.iter().map(|held| held[column]).max().unwrap_or(0);
    (0..columns.len()).map(|column| most(column) as f64 / options.parts() as f64).collect()
}
