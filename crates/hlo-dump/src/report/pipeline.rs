//! Pipelines: the work of each stage in each iteration of a loop, as the program states it.

use anyhow::Result;
use maud::{Markup, html};
use meshloom_analysis::pipelines::{self, Item, LoopSchedule, Order, Pipeline, PipelineLoop};

use super::Page;
use crate::markup::html::section;
use crate::markup::schedule::{Column, MOST_COLUMNS, MOST_ROWS, Pass, Schedule, Side, Task, legend};
use crate::output::{human_bytes, plural};

pub fn render(report: &Page) -> Result<Option<Markup>> {
    // A run config states its pipeline, so nothing needs to be inferred.
    if let Some(section) = report.loaded.run.as_ref().map_or(Ok(None), |run| run.pipeline_section())? {
        return Ok(Some(section));
    }
    let pipelines = pipelines::pipelines(report.walk, &report.collectives, report.loaded.devices);
    if pipelines.is_empty() {
        return Ok(None);
    }
    let lead = html! {
        b { "Inferred." }
        " A loop that hands values to the next device of one mesh axis in every iteration is read as a pipeline. Which \
         stage works when is computed from the selectors of its conditionals, if stages branch, and else from the \
         indices of what they pick; along an open line it fills and drains. Microbatches are counted as they come."
    };
    let body = html! { @for pipeline in &pipelines { (render_pipeline(pipeline)) } };
    Ok(Some(section("pipeline", "Pipeline", lead, body)))
}

fn render_pipeline(pipeline: &Pipeline) -> Markup {
    let schedule = schedule(pipeline);
    let has = |class: &str| {
        let sides = schedule.passes.iter().filter_map(|pass| pass.columns.first()).flat_map(|column| &column.sides);
        sides.into_iter().any(|side| side.class == class)
    };
    let key = [
        ("forward", "forward pass"),
        ("backward", "backward pass"),
        ("weights", "gradients of weights"),
        ("bubble", "bubble"),
    ];
    let key: Vec<(&str, &str)> = key.into_iter().filter(|(class, _)| *class == "bubble" || has(class)).collect();
    let is_long = pipeline.loops.iter().any(|it| it.iterations > MOST_COLUMNS) || pipeline.stages > MOST_ROWS;
    html! {
        p.facts {
            b { (plural(pipeline.stages as u64, "stage")) } " over " b { (pipeline.axis) }
            @if let Some(microbatches) = microbatches(pipeline) { ", " b { (microbatches) } }
            @match pipeline.bubble() {
                Some(bubble) => { "; bubbles are " b { (format!("{:.1} %", 100.0 * bubble)) } " of all stage slots." }
                None => ". Its schedule is not known.",
            }
        }
        @if !schedule.passes.is_empty() {
            (legend(&key))
            (schedule.render())
            @if is_long {
                p.note { "Only the first " (MOST_COLUMNS) " iterations and " (MOST_ROWS) " stages are drawn." }
            }
        }
        @for found in &pipeline.loops {
            p.note {
                code { (found.name) } ": " (what_it_does(found)) "; " (plural(found.iterations as u64, "iteration")) ", "
                @for (number, handed) in found.handed.iter().enumerate() {
                    @if number > 0 { " and " }
                    (handed.bytes.map_or("?".to_owned(), human_bytes))
                    " handed " (if handed.backward { "back" } else { "on" })
                }
                " in each."
                @if let Some(handed) = found.handed.first().filter(|it| !it.source.is_empty()) {
                    " " code { (handed.source) }
                }
            }
        }
    }
}

/// Returns `6 microbatches`, or each number if loops differ.
fn microbatches(pipeline: &Pipeline) -> Option<String> {
    let mut counts: Vec<usize> =
        pipeline.loops.iter().filter_map(|it| it.schedule.as_ref().ok()?.microbatches).collect();
    counts.dedup();
    match counts.as_slice() {
        [] => None,
        &[count] => Some(plural(count as u64, "microbatch")),
        counts => Some(format!("{} microbatches", counts.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))),
    }
}

fn what_it_does(found: &PipelineLoop) -> String {
    match &found.schedule {
        Ok(LoopSchedule { order, .. }) => order.to_string(),
        Err(reason) => format!("not known, because {reason}"),
    }
}

fn schedule(pipeline: &Pipeline) -> Schedule {
    let mut passes: Vec<Pass> = Vec::new();
    for found in &pipeline.loops {
        let Ok(schedule) = &found.schedule else { continue };
        let start = passes.iter().map(|pass| pass.columns.len()).sum();
        passes.push(pass(found, schedule, (pipeline.stages.min(MOST_ROWS), start)));
    }
    Schedule { row: pipeline.axis.clone(), stages: pipeline.stages, passes, held: Vec::new(), bars: Vec::new() }
}

fn pass(found: &PipelineLoop, schedule: &LoopSchedule, (stages, start): (usize, usize)) -> Pass {
    let LoopSchedule { order, microbatches, rows } = schedule;
    let part = if matches!(order, Order::Circular { .. }) { "repeat" } else { "chunk" };
    let task = |item: &Item| Task { microbatch: item.number, part: item.part.map(|number| (part, number)) };
    let side = |row: &pipelines::Row, iteration: usize| {
        let (class, name) = match row.pass {
            pipelines::Pass::Forward => ("forward", ", forward"),
            pipelines::Pass::Backward => ("backward", ", backward"),
            pipelines::Pass::Weights => ("weights", ", backward of weights"),
        };
        let tasks = row.cells.iter().take(stages).map(|cells| cells[iteration].iter().map(task).collect()).collect();
        Side { class, name: if rows.len() > 1 { name } else { "" }, tasks }
    };
    let column = |iteration| Column { iteration, sides: rows.iter().map(|row| side(row, iteration)).collect() };
    let items = || rows.iter().flat_map(|row| &row.cells).flatten().flatten();
    let is_counted_through = items().all(|item| item.part.is_none())
        && matches!(order, Order::Interleaved { .. } | Order::ZeroBubbleVee | Order::Unnamed);
    Pass {
        title: match rows.as_slice() {
            [row] if row.pass == pipelines::Pass::Forward => "forward",
            [_] => "backward",
            _ => "forward and backward",
        },
        // Without chunks the order of the microbatches is not known.
        counts: if is_counted_through { "work" } else { "microbatch" },
        microbatches: microbatches.unwrap_or_else(|| items().map(|item| item.number + 1).max().unwrap_or(0)),
        start,
        columns: (0..found.iterations.min(MOST_COLUMNS)).map(column).collect(),
    }
}
