//! The schedule of a run config's pipeline, by its options: the work of each stage, and the times at which the weights
//! of each repeat are there.

use std::ops::Range;

use maud::{Markup, html};
use meshloom::transform::pipeline::{self, Timeline};
use meshloom_analysis::Amount;

use crate::markup::html::section;
use crate::markup::schedule::{Bar, Column, MOST_COLUMNS, MOST_ROWS, Pass, Schedule, Side, Task, legend};
use crate::output::{self, plural};

const MOST_BARS: usize = 64;

pub fn render(timeline: &Timeline) -> Markup {
    let counts = &timeline.counts;
    let schedule = Schedule {
        row: "stage".to_owned(),
        stages: timeline.stages,
        passes: passes(timeline),
        held: timeline.held.clone(),
        bars: bars(timeline),
    };
    let drawn: usize = schedule.passes.iter().map(|pass| pass.columns.len()).sum();
    let (parts, part) = timeline.parts();
    let alive = counts.alive.iter().max().copied().unwrap_or(0);
    let times = |count: usize| output::times(Amount::Exactly(count as u64));
    let mut key = vec![("forward", "forward"), ("backward", "backward")];
    if timeline.columns.iter().any(|column| !column.weights.is_empty()) {
        key.push(("weights", "backward, of weights"));
    }
    key.push(("bubble", "bubble"));
    if !timeline.windows.is_empty() {
        key.extend([
            ("gather", "weights are gathered meanwhile"),
            ("whole", "weights are there"),
            ("scatter", "gradient is scattered"),
        ]);
    }
    let body = html! {
        p.facts {
            b { (plural(timeline.stages as u64, "stage")) } ", "
            b { (plural(timeline.microbatches as u64, "microbatch")) } ", "
            b { (plural(parts as u64, part)) } ", schedule " b { (timeline.schedule) } ", weights "
            b { (timeline.weights) }
            "; " (plural(counts.iterations as u64, "iteration")) ", including "
            b { (plural(counts.bubble_iterations as u64, "bubble")) }
            " (" (format!("{:.1}", 100.0 * counts.bubble_fraction)) " %)."
        }
        (legend(&key))
        (schedule.render())
        p.note {
            "Each stage has at most " (plural(alive as u64, "microbatch")) " that wait for their backward pass. A weight of \
             one " (part) " is gathered " (times(counts.gathers_forward)) " forwards and " (times(counts.gathers_backward))
            " backwards; its gradient is scattered " (times(counts.scatters)) "."
        }
        @if timeline.columns.len() > drawn || timeline.stages > MOST_ROWS {
            p.note {
                "Only the first " (MOST_COLUMNS) " iterations of each pass and " (MOST_ROWS) " stages are drawn; \
                 meshloom plan --schedule prints all."
            }
        }
    };
    let lead = "As the run config says: which microbatch each stage works on in each iteration of the forward and of \
                the backward pass, and below, for each repeat, when its weights are gathered and how long they stay.";
    section("pipeline", "Pipeline", lead, body)
}

/// Returns the forward and the backward pass, or the one that is both.
fn passes(timeline: &Timeline) -> Vec<Pass> {
    let starts = std::iter::once(0).chain(timeline.turn());
    let ends = timeline.turn().into_iter().chain([timeline.columns.len()]);
    let pass = |(start, end): (usize, usize)| {
        let columns = &timeline.columns[start..end.min(start + MOST_COLUMNS)];
        let title = match columns.first().map(|first| (first.forward.is_empty(), first.backward.is_empty())) {
            Some((false, false)) => "forward and backward",
            Some((false, true)) => "forward",
            _ => "backward",
        };
        let columns = columns.iter().map(|column| self::column(column, timeline.parts())).collect();
        Pass { title, counts: "microbatch", microbatches: timeline.microbatches, start, columns }
    };
    starts.zip(ends).map(pass).collect()
}

fn column(column: &pipeline::Column, (parts, part): (usize, &'static str)) -> Column {
    let task =
        |task: &pipeline::Task| Task { microbatch: task.microbatch, part: (parts > 1).then_some((part, task.repeat)) };
    let one = |it: &Option<pipeline::Task>| it.iter().map(task).collect::<Vec<Task>>();
    let side = |class, name, tasks| Side { class, name, tasks };
    let mut sides = Vec::new();
    if !column.forward.is_empty() {
        sides.push(side("forward", ", forward", column.forward.iter().map(one).collect()));
    }
    if !column.backward.is_empty() {
        sides.push(side("backward", ", backward", column.backward.iter().map(one).collect()));
    }
    if !column.weights.is_empty() {
        let tasks = column.weights.iter().map(|tasks| tasks.iter().map(task).collect());
        sides.push(side("weights", ", backward of weights", tasks.collect()));
    }
    Column { iteration: column.iteration, sides }
}

/// Returns the times at which weights are there, for each of the repeats that are gathered together.
fn bars(timeline: &Timeline) -> Vec<Bar> {
    let mut repeats: Vec<&Range<usize>> = timeline.windows.iter().map(|it| &it.repeats).collect();
    repeats.sort_by_key(|range| range.start);
    repeats.dedup();
    let bar = |repeats: &Range<usize>| {
        let windows = timeline.windows.iter().filter(|it| it.repeats == *repeats);
        let stretches = windows.flat_map(|it| {
            let there = it.gather.end.max(it.alive.start)..it.alive.end;
            [(it.gather.clone(), "gather", "gathered meanwhile"), (there, "whole", "there")]
        });
        let scatters = timeline.scatters.iter().filter(|it| it.repeats == *repeats);
        Bar {
            name: if repeats.len() == 1 { format!("weights {}", repeats.start) } else { "weights".to_owned() },
            stretches: stretches.collect(),
            scatters: scatters.filter_map(|scatter| scatter.column.checked_sub(1)).collect(),
        }
    };
    repeats.into_iter().take(MOST_BARS).map(bar).collect()
}
