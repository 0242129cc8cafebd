//! Traffic by step as a drawing that stands alone: bars side by side for each step, and a dashed line for the model of
//! overlap.

use std::fmt::Write;

use maud::PreEscaped;

use super::series::{Series, StepRow};
use crate::markup::chart::{COLORS, alone, byte_ticks};
use crate::output::{self, human_bytes};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 18.0;
const TALL: f64 = 300.0;
/// The distance between two lines of text.
const LINE: f64 = 20.0;
/// The most steps that are drawn: more are not distinguishable.
const MOST_STEPS: usize = 400;

pub fn svg(series: &[Series], axis: &str) -> String {
    let steps = series.iter().map(|it| it.rows.len()).max().unwrap_or(0).clamp(1, MOST_STEPS);
    let values =
        series.iter().flat_map(|it| &it.rows).flat_map(|row| [row.most().map(|it| it as f64), row.spread_bytes]);
    let most = values.flatten().fold(0.0, f64::max);
    let dashed = series.iter().flat_map(|it| &it.rows).any(|row| row.spread_bytes.is_some());
    let legend = LINE * (series.len() as f64 + f64::from(1 + u8::from(dashed))) + 14.0;
    let chart = Chart { top: legend + 14.0, steps, most: if most > 0.0 { most } else { 1.0 } };
    let height = chart.bottom() + 46.0;
    let mut svg = format!(
        "<text x=\"{LEFT}\" y=\"22\" font-weight=\"bold\">bytes that each device sends over {} in a step</text>\n",
        escaped(axis)
    );
    for (number, it) in series.iter().enumerate() {
        let y = 22.0 + LINE * (number as f64 + 1.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"11\" height=\"11\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}; {}</text>",
            y - 10.0,
            color(number),
            LEFT + 18.0,
            escaped(&it.title()),
            escaped(&format!("at most {}", output::most(it.peak(), human_bytes)))
        );
    }
    if dashed {
        let y = 22.0 + LINE * (series.len() as f64 + 1.0);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"#555\">dashed, a model: each transfer spread over the steps between sending and use</text>",
            LEFT + 18.0
        );
    }
    chart.axes(&mut svg);
    for (number, it) in series.iter().enumerate() {
        chart.bars(&mut svg, it, (number, series.len()));
    }
    for (number, it) in series.iter().enumerate() {
        chart.spread(&mut svg, it, number);
    }
    alone(&format!("bytes over {axis} by step"), (WIDTH, height), PreEscaped(svg))
}

fn color(number: usize) -> &'static str {
    COLORS[number % COLORS.len()]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

struct Chart {
    top: f64,
    steps: usize,
    most: f64,
}

impl Chart {
    fn bottom(&self) -> f64 {
        self.top + TALL
    }

    fn step(&self) -> f64 {
        (WIDTH - LEFT - RIGHT) / self.steps as f64
    }

    fn x(&self, index: usize) -> f64 {
        LEFT + index as f64 * self.step()
    }

    fn y(&self, bytes: f64) -> f64 {
        self.bottom() - bytes / self.most * TALL
    }

    fn axes(&self, svg: &mut String) {
        let right = WIDTH - RIGHT;
        for bytes in byte_ticks(self.most, 6) {
            let y = self.y(bytes);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\" fill=\"#555\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                human_bytes(bytes.round() as u64)
            );
        }
        let every = ((34.0 / self.step()).ceil() as usize).max(1);
        for step in (1..=self.steps).filter(|step| every == 1 || step.is_multiple_of(every)) {
            let x = self.x(step - 1) + self.step() / 2.0;
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{step}</text>",
                self.bottom() + 17.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">step</text>",
            f64::midpoint(LEFT, right),
            self.bottom() + 36.0
        );
    }

    fn bars(&self, svg: &mut String, series: &Series, (number, count): (usize, usize)) {
        let width = self.step() * 0.8 / count as f64;
        for (index, row) in series.rows.iter().enumerate().take(self.steps) {
            let Some(bytes) = row.most().filter(|&bytes| bytes > 0) else { continue };
            let x = self.x(index) + self.step() * 0.1 + width * number as f64;
            // An amount above zero is always visible.
            let tall = (self.bottom() - self.y(bytes as f64)).max(1.0);
            let _ = writeln!(
                svg,
                "<g><title>{}</title><rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"{}\"/></g>",
                escaped(&title(series, row)),
                self.bottom() - tall,
                width.max(0.5),
                color(number)
            );
        }
    }

    fn spread(&self, svg: &mut String, series: &Series, number: usize) {
        let values: Option<Vec<f64>> = series.rows.iter().take(self.steps).map(|row| row.spread_bytes).collect();
        let Some(values) = values.filter(|values| !values.is_empty()) else { return };
        let mut path = String::new();
        for (index, &bytes) in values.iter().enumerate() {
            let (command, y) = (if index == 0 { 'M' } else { 'L' }, self.y(bytes));
            let _ = write!(path, "{command}{:.1} {y:.1}L{:.1} {y:.1}", self.x(index), self.x(index + 1));
        }
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" stroke-dasharray=\"5 3\"/>",
            color(number)
        );
    }
}

fn title(series: &Series, row: &StepRow) -> String {
    let event = row.event();
    let what = if event.is_empty() { String::new() } else { format!(" ({event})") };
    format!("{}, step {}: {}{what}", series.name, row.step, row.most().map_or("?".to_owned(), human_bytes))
}
