//! The drawing of a pipeline: stages below each other, iterations side by side, pass after pass; below them bars.

use std::ops::Range;

use maud::{Markup, html};

use super::chart::{Area, WIDTH, drawing, text};

/// The microbatches that each stage works on in each iteration.
pub struct Schedule {
    /// The word for a row: `stage`.
    pub row: String,
    pub stages: usize,
    pub passes: Vec<Pass>,
    /// For each column, the most microbatches that a stage holds: a curve. It is empty if that is not known.
    pub held: Vec<f64>,
    pub bars: Vec<Bar>,
}

/// A pass: iterations that follow each other.
pub struct Pass {
    pub title: &'static str,
    /// The things that the numbers of its tasks count: `microbatch`.
    pub counts: &'static str,
    pub microbatches: usize,
    /// The number of its first column.
    pub start: usize,
    pub columns: Vec<Column>,
}

pub struct Column {
    pub iteration: usize,
    /// The work that is done at the same time: each side has its part of the row.
    pub sides: Vec<Side>,
}

/// The work of the stages in one direction.
pub struct Side {
    /// `forward`, `backward` or `weights`.
    pub class: &'static str,
    /// The name that tells it from the other sides.
    pub name: &'static str,
    /// The tasks by stage; none for a bubble.
    pub tasks: Vec<Vec<Task>>,
}

#[derive(Clone, Copy)]
pub struct Task {
    pub microbatch: usize,
    /// The word `repeat` or `chunk`, and its number, if there are several.
    pub part: Option<(&'static str, usize)>,
}

/// Something that lasts for some columns, such as weights that are there.
pub struct Bar {
    pub name: String,
    /// Columns, with a class and its meaning.
    pub stretches: Vec<(Range<usize>, &'static str, &'static str)>,
    /// Columns at whose end a gradient is scattered.
    pub scatters: Vec<usize>,
}

const LEFT: f64 = 82.0;
const TOP: f64 = 40.0;
/// The space between two passes.
const BETWEEN: f64 = 18.0;
const BAR: f64 = 18.0;
/// The height of the curve of held microbatches.
const CURVE: f64 = 34.0;
/// The most columns of a schedule: larger ones are cut off, since more cells are not readable.
pub const MOST_COLUMNS: usize = 256;
pub const MOST_ROWS: usize = 64;

/// Returns a number with one digit behind the point, if it needs it.
fn short(number: f64) -> String {
    ((number * 10.0).round() / 10.0).to_string()
}

pub fn legend(items: &[(&str, &str)]) -> Markup {
    html! { ul.legend { @for (class, text) in items { li { i class=(class) {} (text) } } } }
}

impl Schedule {
    pub fn render(&self) -> Markup {
        let above = if self.bars.is_empty() { 0.0 } else { 10.0 };
        let curve = TOP + self.rows() as f64 * self.tall() + 8.0;
        let below = if self.held.is_empty() { curve - 8.0 } else { curve + CURVE } + above;
        let height = below + self.bars.len() as f64 * BAR + 8.0;
        let content = html! {
            defs {
                pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    line x1="0" y1="0" x2="0" y2="7" {}
                }
            }
            @for stage in 0..self.rows() {
                (text("lane", (0.0, TOP + (stage as f64 + 0.5) * self.tall() + 4.0), format!("{} {stage}", self.row)))
            }
            @for pass in &self.passes {
                (text("title", (self.x(pass.start).unwrap_or(LEFT), 13.0), pass.title))
                @for (index, column) in pass.columns.iter().enumerate() { (self.column(pass, index, column)) }
            }
            @if !self.held.is_empty() { (self.curve(curve)) }
            @for (row, bar) in self.bars.iter().enumerate() { (self.bar(bar, below + row as f64 * BAR)) }
        };
        drawing(" pipeline", None, height, "microbatches by stage and iteration", content)
    }

    fn rows(&self) -> usize {
        self.stages.min(MOST_ROWS)
    }

    fn tall(&self) -> f64 {
        // All columns of a pass have the same number of sides.
        let columns = self.passes.iter().filter_map(|pass| pass.columns.first());
        let sides = columns.map(|column| column.sides.len()).max().unwrap_or(1);
        match (self.rows() > 16, sides) {
            (true, _) => 18.0,
            (false, 3..) => 51.0,
            _ => 34.0,
        }
    }

    fn width(&self) -> f64 {
        let columns: usize = self.passes.iter().map(|pass| pass.columns.len()).sum();
        let space = WIDTH - LEFT - BETWEEN * self.passes.len().saturating_sub(1) as f64;
        (space / columns.max(1) as f64).min(56.0)
    }

    /// Returns the start of a column; `None` if it is not drawn.
    fn x(&self, column: usize) -> Option<f64> {
        let mut x = LEFT;
        for pass in &self.passes {
            if pass.range().contains(&column) {
                return Some(x + (column - pass.start) as f64 * self.width());
            }
            x += pass.columns.len() as f64 * self.width() + BETWEEN;
        }
        None
    }

    fn is_numbered(&self, tall: f64) -> bool {
        self.width() >= 18.0 && tall >= 15.0
    }

    fn column(&self, pass: &Pass, index: usize, column: &Column) -> Markup {
        let Some(x) = self.x(pass.start + index) else { return Markup::default() };
        let width = self.width();
        let every = if self.is_numbered(self.tall()) { 1 } else { (30.0 / width).ceil() as usize };
        let tall = self.tall() / column.sides.len().max(1) as f64;
        let area = |stage: usize, side: usize| {
            let y = TOP + stage as f64 * self.tall() + side as f64 * tall;
            Area { x, y, width, height: tall }
        };
        html! {
            @if column.iteration.is_multiple_of(every) {
                (text("tick middle", (x + width / 2.0, 32.0), column.iteration))
            }
            @for (number, side) in column.sides.iter().enumerate() {
                @for (stage, tasks) in side.tasks.iter().enumerate().take(self.rows()) {
                    g {
                        title {
                            "stage " (stage) ", iteration " (column.iteration) (side.name) ": "
                            @if tasks.is_empty() { "bubble" }
                            @for (index, Task { microbatch, part }) in tasks.iter().enumerate() {
                                @if index > 0 { ", " }
                                (pass.counts) " " (microbatch)
                                @if let Some((part, number)) = part { " in " (part) " " (number) }
                            }
                        }
                        (self.cell(area(stage, number), side.class, tasks, pass.microbatches))
                    }
                }
            }
        }
    }

    fn cell(&self, area: Area, class: &str, tasks: &[Task], microbatches: usize) -> Markup {
        let task = tasks.first().copied();
        // Later microbatches are stronger, so that the eye can follow one.
        let count = microbatches.max(2) as f64 - 1.0;
        let strength = task.map_or(1.0, |task| 0.7 + 0.3 * task.microbatch as f64 / count);
        let number = task.filter(|_| self.is_numbered(area.height)).map(|task| match (task.part, tasks.len()) {
            (_, 2..) => format!("×{}", tasks.len()),
            (Some((_, part)), _) if area.width >= 30.0 => format!("{part}:{}", task.microbatch),
            _ => task.microbatch.to_string(),
        });
        let class = if task.is_some() { class } else { "bubble" };
        html! {
            (area.inset().rectangle(Some(class), 3, Some(format!("opacity:{strength:.2}"))))
            @if let Some(number) = number {
                (text("number", (area.x + area.width / 2.0, area.y + area.height / 2.0 + 4.5), number))
            }
        }
    }

    /// Draws the held microbatches, as a column of that height for each iteration.
    fn curve(&self, y: f64) -> Markup {
        let most = self.held.iter().copied().fold(0.0, f64::max);
        let column = |(index, &held): (usize, &f64)| {
            let height = if most > 0.0 { (CURVE - 4.0) * held / most } else { 0.0 };
            let area = Area { x: self.x(index)?, y: y + CURVE - height, width: self.width(), height };
            Some(html! { g { title { "held: " (short(held)) } (area.rectangle(Some("held"), 0, None)) } })
        };
        html! {
            (text("lane", (0.0, y + CURVE / 2.0 + 4.0), format!("held ≤ {}", short(most))))
            @for column in self.held.iter().enumerate().filter_map(column) { (column) }
        }
    }

    fn bar(&self, bar: &Bar, y: f64) -> Markup {
        let part = |class: &str, meaning: &str, x: f64, width: f64, rounding: u8| {
            let area = Area { x, y, width: width.max(0.5), height: 14.0 };
            html! { g { title { (bar.name) ": " (meaning) } (area.rectangle(Some(class), rounding, None)) } }
        };
        html! {
            (text("lane", (0.0, y + 11.0), &bar.name))
            @for (columns, class, meaning) in &bar.stretches {
                // A bar is cut at the end of a pass.
                @for pass in self.passes.iter().map(Pass::range) {
                    @let (start, end) = (columns.start.max(pass.start), columns.end.min(pass.end));
                    @if let Some(x) = self.x(start).filter(|_| start < end) {
                        (part(class, meaning, x + 1.0, (end - start) as f64 * self.width() - 2.0, 3))
                    }
                }
            }
            @for x in bar.scatters.iter().filter_map(|&column| self.x(column)) {
                (part("scatter", "gradient is scattered", x + self.width() - 4.0, 4.0, 0))
            }
        }
    }
}

impl Pass {
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.columns.len()
    }
}
