//! The schedule of a run config's pipeline, as its options say it: what each stage works on, and when the weights of
//! each repeat are there.

use std::fmt::Write;
use std::ops::Range;

use meshloom::transform::pipeline::{Column, Task, Timeline, WeightWindow};

use super::html::section;

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 82.0;
const TOP: f64 = 40.0;
/// Between the forward and the backward pass.
const BETWEEN: f64 = 18.0;
/// Larger schedules are cut off: nobody reads more cells.
const MOST_COLUMNS: usize = 256;
const MOST_ROWS: usize = 64;
const MOST_BARS: usize = 64;

pub fn render(timeline: &Timeline) -> String {
    let counts = &timeline.counts;
    let mut body = format!(
        "<p class=\"facts\"><b>{} stages</b>, <b>{} microbatches</b>, <b>{} repeats</b>, schedule <b>{}</b>, weights <b>{}</b>; {} iterations, \
         of which <b>{} bubbles</b> ({:.1} %).</p>\n",
        timeline.stages,
        timeline.microbatches,
        timeline.repeats,
        timeline.schedule,
        timeline.weights,
        counts.iterations,
        counts.bubble_iterations,
        100.0 * counts.bubble_fraction,
    );
    body.push_str(&legend(timeline));
    body.push_str(&Drawing::of(timeline).svg());
    let _ = writeln!(
        body,
        "<p class=\"note\">Each stage has at most {} microbatches of which the backward pass is to come. A weight of one repeat is gathered {} \
         times forwards and {} times backwards; its gradient is scattered {} times.</p>",
        counts.alive.iter().max().unwrap_or(&0),
        counts.gathers_forward,
        counts.gathers_backward,
        counts.scatters,
    );
    if timeline.columns.len() > shown(timeline).iter().map(ExactSizeIterator::len).sum() || timeline.stages > MOST_ROWS
    {
        let _ = writeln!(
            body,
            "<p class=\"note\">Only the first {MOST_COLUMNS} iterations of each pass and {MOST_ROWS} stages are drawn; hlo-dump plan \
             --schedule prints all.</p>"
        );
    }
    let lead = "As the run config says: which microbatch each stage works on in each iteration of the forward and of the backward pass, and \
                below, for each repeat, when its weights are gathered and how long they stay.";
    section("pipeline", "Pipeline", lead, &body)
}

fn legend(timeline: &Timeline) -> String {
    let mut items = vec![("forward", "forward"), ("backward", "backward"), ("bubble", "bubble")];
    if !timeline.windows.is_empty() {
        items.extend([
            ("gather", "weights are gathered meanwhile"),
            ("whole", "weights are there"),
            ("scatter", "gradient is scattered"),
        ]);
    }
    let item = |(class, text): (&str, &str)| format!("<li><i class=\"{class}\"></i>{text}</li>");
    format!("<ul class=\"legend\">{}</ul>\n", items.into_iter().map(item).collect::<String>())
}

/// The columns that are drawn, of each pass.
fn shown(timeline: &Timeline) -> Vec<Range<usize>> {
    let count = timeline.columns.len();
    let starts = std::iter::once(0).chain(timeline.turn());
    let ends = timeline.turn().into_iter().chain([count]);
    let passes = starts.zip(ends).map(|(start, end)| start..end);
    passes.map(|pass| pass.start..pass.end.min(pass.start + MOST_COLUMNS)).collect()
}

struct Drawing<'a> {
    timeline: &'a Timeline,
    passes: Vec<Range<usize>>,
    rows: usize,
    /// Of a column, and of a row of a stage.
    width: f64,
    tall: f64,
}

impl<'a> Drawing<'a> {
    fn of(timeline: &'a Timeline) -> Drawing<'a> {
        let passes = shown(timeline);
        let columns: usize = passes.iter().map(ExactSizeIterator::len).sum();
        let space = WIDTH - LEFT - BETWEEN * (passes.len() - 1) as f64;
        let rows = timeline.stages.min(MOST_ROWS);
        let width = (space / columns.max(1) as f64).min(56.0);
        Drawing { timeline, passes, rows, width, tall: if rows > 16 { 18.0 } else { 34.0 } }
    }

    /// Where a column begins; none if it is not drawn.
    fn x(&self, column: usize) -> Option<f64> {
        let mut x = LEFT;
        for pass in &self.passes {
            if pass.contains(&column) {
                return Some(x + (column - pass.start) as f64 * self.width);
            }
            x += pass.len() as f64 * self.width + BETWEEN;
        }
        None
    }

    fn bars(&self) -> Vec<Range<usize>> {
        let mut repeats: Vec<Range<usize>> = self.timeline.windows.iter().map(|it| it.repeats.clone()).collect();
        repeats.sort_by_key(|range| range.start);
        repeats.dedup();
        repeats.truncate(MOST_BARS);
        repeats
    }

    fn svg(&self) -> String {
        const BAR: f64 = 18.0;
        let bars = self.bars();
        let below = TOP + self.rows as f64 * self.tall + 10.0;
        let height = below + bars.len() as f64 * BAR + 8.0;
        let mut svg = format!(
            "<svg class=\"chart pipeline\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"microbatches by stage and iteration\">\n\
             <defs><pattern id=\"hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
             <line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"7\"/></pattern></defs>\n"
        );
        for stage in 0..self.rows {
            let y = TOP + (stage as f64 + 0.5) * self.tall + 4.0;
            let _ = writeln!(svg, "<text class=\"lane\" x=\"0\" y=\"{y:.1}\">stage {stage}</text>");
        }
        for pass in &self.passes {
            let first = &self.timeline.columns[pass.start];
            let title = match (first.forward.is_empty(), first.backward.is_empty()) {
                (false, false) => "forward and backward",
                (false, true) => "forward",
                (true, _) => "backward",
            };
            let x = self.x(pass.start).unwrap_or(LEFT);
            let _ = writeln!(svg, "<text class=\"title\" x=\"{x:.1}\" y=\"13\">{title}</text>");
            pass.clone().for_each(|column| self.column(&mut svg, column));
        }
        for (row, repeats) in bars.iter().enumerate() {
            self.bar(&mut svg, repeats, below + row as f64 * BAR);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn column(&self, svg: &mut String, at: usize) {
        let Some(x) = self.x(at) else { return };
        let Column { iteration, forward, backward } = &self.timeline.columns[at];
        let every = if self.is_numbered(self.tall) { 1 } else { (30.0 / self.width).ceil() as usize };
        if iteration.is_multiple_of(every) {
            let middle = x + self.width / 2.0;
            let _ = writeln!(svg, "<text class=\"tick middle\" x=\"{middle:.1}\" y=\"32\">{iteration}</text>");
        }
        // Where both are at the same time, each has half of the row.
        let sides: Vec<(&str, &Vec<Option<Task>>)> =
            [("forward", forward), ("backward", backward)].into_iter().filter(|(_, tasks)| !tasks.is_empty()).collect();
        let tall = self.tall / sides.len().max(1) as f64;
        for (side, (class, tasks)) in sides.into_iter().enumerate() {
            for (stage, task) in tasks.iter().enumerate().take(self.rows) {
                let y = TOP + stage as f64 * self.tall + side as f64 * tall;
                self.cell(svg, (x, y, tall), class, (stage, *iteration, *task));
            }
        }
    }

    fn is_numbered(&self, tall: f64) -> bool {
        self.width >= 18.0 && tall >= 15.0
    }

    fn cell(
        &self,
        svg: &mut String,
        (x, y, tall): (f64, f64, f64),
        pass: &str,
        (stage, iteration, task): (usize, usize, Option<Task>),
    ) {
        let repeated = self.timeline.repeats > 1;
        let what = match task {
            None => "bubble".to_owned(),
            Some(task) if repeated => format!("microbatch {} in repeat {}", task.microbatch, task.repeat),
            Some(task) => format!("microbatch {}", task.microbatch),
        };
        let class = if task.is_some() { pass } else { "bubble" };
        // Later microbatches are stronger, so that the eye can follow one.
        let count = self.timeline.microbatches.max(2) as f64 - 1.0;
        let strength = task.map_or(1.0, |task| 0.7 + 0.3 * task.microbatch as f64 / count);
        let _ = write!(
            svg,
            "<g><title>stage {stage}, iteration {iteration}, {pass}: {what}</title><rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" \
             width=\"{:.1}\" height=\"{:.1}\" rx=\"3\" style=\"opacity:{strength:.2}\"/>",
            x + 1.0,
            y + 1.0,
            (self.width - 2.0).max(0.5),
            tall - 2.0
        );
        if let Some(task) = task.filter(|_| self.is_numbered(tall)) {
            let text = match repeated && self.width >= 30.0 {
                true => format!("{}:{}", task.repeat, task.microbatch),
                false => task.microbatch.to_string(),
            };
            let (x, y) = (x + self.width / 2.0, y + tall / 2.0 + 4.5);
            let _ = write!(svg, "<text class=\"number\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
        }
        svg.push_str("</g>\n");
    }

    /// The weights of some repeats, through both passes.
    fn bar(&self, svg: &mut String, repeats: &Range<usize>, y: f64) {
        let name = if repeats.len() == 1 { format!("weights {}", repeats.start) } else { "weights".to_owned() };
        let _ = writeln!(svg, "<text class=\"lane\" x=\"0\" y=\"{:.1}\">{name}</text>", y + 11.0);
        for WeightWindow { gather, alive, .. } in self.timeline.windows.iter().filter(|it| it.repeats == *repeats) {
            self.stretch(svg, gather.clone(), y, "gather", &format!("{name}: gathered meanwhile"));
            self.stretch(svg, gather.end.max(alive.start)..alive.end, y, "whole", &format!("{name}: there"));
        }
        for scatter in self.timeline.scatters.iter().filter(|it| it.repeats == *repeats) {
            let Some(x) = scatter.column.checked_sub(1).and_then(|last| self.x(last)) else { continue };
            let _ = writeln!(
                svg,
                "<g><title>{name}: gradient is scattered</title><rect class=\"scatter\" x=\"{:.1}\" y=\"{y:.1}\" width=\"4\" height=\"14\"/></g>",
                x + self.width - 4.0
            );
        }
    }

    /// A bar over some columns, cut where a pass ends.
    fn stretch(&self, svg: &mut String, columns: Range<usize>, y: f64, class: &str, title: &str) {
        for pass in &self.passes {
            let (start, end) = (columns.start.max(pass.start), columns.end.min(pass.end));
            let Some(x) = (start < end).then(|| self.x(start)).flatten() else { continue };
            let width = (end - start) as f64 * self.width - 2.0;
            let _ = writeln!(
                svg,
                "<g><title>{title}</title><rect class=\"{class}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"14\" rx=\"3\"/></g>",
                x + 1.0,
                width.max(0.5)
            );
        }
    }
}
