//! One step by estimated time: a lane for what a device computes, and one for what it sends along each mesh axis.

use std::fmt::Write;

use super::html::{escape, fitting, section, shortened, ticks};
use super::{Limit, Report};
use crate::output::{seconds, thousands};

/// Something that takes time.
#[derive(Clone, Debug, Default)]
pub struct Span {
    /// When it begins and ends, in seconds of the drawing: see [`StepLanes`].
    pub start: f64,
    pub end: f64,
    /// What it is, in short: of computation, its scope. Spans that follow each other with the same label are drawn as
    /// one.
    pub label: String,
    /// All that is known of it.
    pub detail: String,
    pub limit: Limit,
    /// The part of its time that nothing happens, where it is several drawn as one.
    pub idle: f64,
}

/// What one part of a device does.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// `compute`, or the axes along which it sends.
    pub name: String,
    /// Whether it is that of mesh axes.
    pub sends: bool,
    /// In the order of time.
    pub spans: Vec<Span>,
    /// Seconds of the step in which it is busy.
    pub busy: f64,
}

/// A loop, drawn once and as wide as all its iterations.
#[derive(Clone, Debug, Default)]
pub struct LoopSpan {
    pub start: f64,
    pub end: f64,
    /// Loops around it.
    pub depth: usize,
    /// Its name, and its scope.
    pub name: String,
    pub path: String,
    /// How often it goes around; `None` where that is not known.
    pub iterations: Option<u64>,
}

/// One step. Loops are folded: the body is drawn once, stretched to the time of all its iterations, so that what is
/// drawn is as long as the step, and parts keep their proportions.
#[derive(Clone, Debug, Default)]
pub struct StepLanes {
    /// What the step takes.
    pub seconds: f64,
    /// The chip it is estimated for.
    pub chip: String,
    pub lanes: Vec<Lane>,
    pub loops: Vec<LoopSpan>,
    /// Seconds in which a device waits for what it sends and receives, computing nothing.
    pub exposed: f64,
}

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 118.0;
const RIGHT: f64 = 62.0;
const LANE: f64 = 34.0;
const GAP: f64 = 10.0;
const BRACKET: f64 = 20.0;
/// The narrowest mark that can be seen.
const NARROWEST: f64 = 0.7;

pub fn render(report: &Report) -> String {
    let Some(step) = report.lanes.as_ref().filter(|step| step.seconds > 0.0) else { return String::new() };
    let share = 100.0 * step.exposed / step.seconds;
    let facts = format!(
        "<p class=\"facts\"><b>{}</b> a step on {}, estimated; <b>{}</b> of it ({share:.1} %) waits for communication.</p>\n",
        seconds(step.seconds),
        escape(&step.chip),
        seconds(step.exposed),
    );
    let key = format!(
        "<ul class=\"legend\">{}</ul>\n",
        [("--compute", "computes, compute bound"), ("--memory", "computes, memory bound")]
            .map(|(color, text)| format!("<li><i style=\"background:var({color})\"></i>{text}</li>"))
            .concat()
    );
    let lead = "Estimated at the chip's peak rates: nothing is faster than this, and real steps are slower. A loop is drawn once, as \
                wide as all its iterations. Collectives that are not in two halves let nothing overlap.";
    section("step", "One step, by estimated time", lead, &(facts + &key + &drawing(report, step)))
}

fn drawing(report: &Report, step: &StepLanes) -> String {
    let depth = step.loops.iter().map(|it| it.depth + 1).max().unwrap_or(0);
    let top = 8.0 + depth as f64 * BRACKET;
    let bottom = top + step.lanes.len() as f64 * (LANE + GAP);
    let height = bottom + 26.0;
    let x = |time: f64| LEFT + (WIDTH - LEFT - RIGHT) * time / step.seconds;
    let mut svg = format!(
        "<svg class=\"chart\" id=\"lanes\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"one step by estimated time\">\n"
    );
    // Writing to a string does not fail.
    for tick in ticks(step.seconds, 8, false) {
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{top}\" y2=\"{bottom}\"/><text class=\"tick middle\" x=\"{0:.1}\" \
             y=\"{1}\">{2}</text>",
            x(tick),
            bottom + 16.0,
            seconds(tick)
        );
    }
    for found in &step.loops {
        bracket(&mut svg, found, x(found.start), x(found.end), bottom);
    }
    for (number, lane) in step.lanes.iter().enumerate() {
        let y = top + number as f64 * (LANE + GAP) + GAP / 2.0;
        let color = if lane.sends { report.axes_color(&lane.name) } else { "var(--compute)".to_owned() };
        let _ = writeln!(
            svg,
            "<text class=\"lane\" x=\"0\" y=\"{text:.1}\">{name}</text><line class=\"base\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{base:.1}\" \
             y2=\"{base:.1}\"/><text class=\"tick end\" x=\"{WIDTH}\" y=\"{text:.1}\">{busy:.0} %</text>",
            text = y + LANE / 2.0 + 4.0,
            name = escape(&shortened(&lane.name, 17)),
            end = WIDTH - RIGHT,
            base = y + LANE,
            busy = 100.0 * lane.busy / step.seconds,
        );
        for span in visible(&lane.spans, step.seconds) {
            let fill = if !lane.sends && span.limit == Limit::Memory { "var(--memory)" } else { &color };
            mark(&mut svg, &span, x(span.start), x(span.end), y, fill);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// A loop: a bracket above the lanes, and a background behind them.
fn bracket(svg: &mut String, found: &LoopSpan, start: f64, end: f64, bottom: f64) {
    let y = 8.0 + found.depth as f64 * BRACKET;
    let width = (end - start).max(NARROWEST);
    let times = found.iterations.map_or("× ?".to_owned(), |count| format!("× {}", thousands(count)));
    let name = format!("{times}  {}  {}", found.name, found.path);
    let letters = ((width - 12.0) / 6.4).max(0.0) as usize;
    let texts = [name.clone(), format!("{times}  {}", found.name), times];
    let text = texts.iter().find(|text| text.chars().count() <= letters).map_or(String::new(), |text| escape(text));
    let _ = writeln!(
        svg,
        "<g class=\"loop\"><title>{}</title><rect class=\"back\" x=\"{start:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>\
         <path d=\"M{start:.1},{:.1}V{:.1}H{end:.1}V{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\">{text}</text></g>",
        escape(&name),
        bottom - y,
        y + BRACKET - 3.0,
        y + 1.0,
        y + BRACKET - 3.0,
        start + 6.0,
        y + 14.0,
    );
}

/// Neighbours of the same scope, and those too narrow to be seen, become one mark.
fn visible(spans: &[Span], whole: f64) -> Vec<Span> {
    let narrow = whole * NARROWEST / (WIDTH - LEFT - RIGHT);
    let mut shown: Vec<Merged> = Vec::new();
    for span in spans {
        let joins = |last: &Merged| {
            let next_to = span.start - last.span.end < narrow / 10.0;
            let same = last.span.label == span.label && next_to;
            same || last.span.end - last.span.start < narrow && span.start - last.span.end < narrow
        };
        match shown.last_mut().filter(|last| joins(last)) {
            Some(last) => last.join(span),
            None => shown.push(Merged {
                longest: span.end - span.start,
                busy: span.end - span.start,
                count: 1,
                span: span.clone(),
            }),
        }
    }
    shown.into_iter().map(Merged::finish).collect()
}

/// Spans drawn as one, which is described by the longest.
struct Merged {
    span: Span,
    longest: f64,
    busy: f64,
    count: usize,
}

impl Merged {
    fn join(&mut self, next: &Span) {
        let length = next.end - next.start;
        self.count += 1;
        self.busy += length;
        self.span.end = self.span.end.max(next.end);
        if length > self.longest {
            self.longest = length;
            (self.span.label, self.span.detail, self.span.limit) =
                (next.label.clone(), next.detail.clone(), next.limit);
        }
    }

    fn finish(self) -> Span {
        let Merged { mut span, count, busy, .. } = self;
        if count > 1 {
            let all = seconds(busy);
            span.idle = (1.0 - busy / (span.end - span.start)).clamp(0.0, 1.0);
            span.detail = format!("{} instructions, {all}; the longest: {}", thousands(count as u64), span.detail);
        }
        span
    }
}

fn mark(svg: &mut String, span: &Span, start: f64, end: f64, y: f64, fill: &str) {
    let width = (end - start).max(NARROWEST);
    // A line of paper between neighbours.
    let drawn = if width > 3.0 { width - 1.0 } else { width };
    let _ = write!(
        svg,
        "<g class=\"span\"><title>{}\n{}</title><rect x=\"{start:.2}\" y=\"{y:.1}\" width=\"{drawn:.2}\" height=\"{LANE}\" rx=\"{}\" \
         style=\"fill:{fill};opacity:{:.2}\"/>",
        escape(&span.label),
        escape(&span.detail),
        if width > 8.0 { 3 } else { 0 },
        // An alternation too fast to draw is shaded by how busy it is.
        1.0 - 0.75 * span.idle,
    );
    let letters = ((width - 10.0) / 6.4).max(0.0) as usize;
    let text = fitting(&span.label, letters);
    // A few letters of a name say nothing.
    if !text.ends_with('…') || letters >= 9 {
        let text = escape(&text);
        let _ = write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{text}</text>", start + 5.0, y + LANE / 2.0 + 4.0);
    }
    svg.push_str("</g>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_has_no_more_marks_than_pixels() {
        let span = |at: u32| Span {
            start: f64::from(at),
            end: f64::from(at) + 1.0,
            label: format!("op{at}"),
            ..Span::default()
        };
        let spans: Vec<Span> = (0..200_000).map(span).collect();
        let shown = visible(&spans, 200_000.0);
        assert!(shown.len() < 2000, "{}", shown.len());
        assert_eq!((shown[0].start, shown[shown.len() - 1].end), (0.0, 200_000.0));
        assert_eq!(visible(&spans[..10], 10.0).len(), 10);
        let same: Vec<Span> = spans[..10].iter().map(|span| Span { label: "layer".into(), ..span.clone() }).collect();
        let shown = visible(&same, 10.0);
        assert_eq!((shown.len(), shown[0].start, shown[0].end), (1, 0.0, 10.0));
    }
}
