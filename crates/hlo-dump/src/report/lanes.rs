//! One step by estimated time: a lane for a device's computation, and one for its transfers along each mesh axis.

use maud::{Markup, html};
use meshloom_analysis::cost::Bound;

use super::{Page, bound_color};
use crate::markup::chart::{Area, WIDTH, at, drawing, fitting, rule, shortened, text, ticks};
use crate::markup::html::{legend, section};
use crate::output::{plural, seconds, thousands};

/// Something that takes time.
#[derive(Clone, Debug, Default)]
pub struct Span {
    /// The time at which it begins, in seconds of the drawing: see `StepLanes`.
    pub start: f64,
    /// The time at which it ends.
    pub end: f64,
    /// A short description: for computation, its scope. Spans that follow each other with the same label are drawn as
    /// one.
    pub label: String,
    /// Everything that is known of it.
    pub detail: String,
    /// The resource that limits its time.
    pub limit: Option<Bound>,
    /// The part of its time in which nothing happens, if it is several spans drawn as one.
    pub idle: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// `compute`, or the axes along which it sends.
    pub name: String,
    /// Whether it is the lane of mesh axes.
    pub sends: bool,
    /// The spans in the order of time.
    pub spans: Vec<Span>,
    /// The seconds of the step in which it is busy.
    pub busy: f64,
}

/// A loop, drawn once and as wide as all its iterations.
#[derive(Clone, Debug, Default)]
pub struct LoopSpan {
    pub start: f64,
    pub end: f64,
    /// The number of loops around it.
    pub depth: usize,
    /// Its name and its scope.
    pub name: String,
    pub path: String,
    /// The number of its iterations; `None` if that is not known.
    pub iterations: Option<u64>,
}

/// One step. Loops are folded: the body is drawn once, stretched to the time of all its iterations, so that the drawing
/// is as long as the step, and parts keep their proportions.
#[derive(Clone, Debug, Default)]
pub struct StepLanes {
    pub seconds: f64,
    pub lanes: Vec<Lane>,
    pub loops: Vec<LoopSpan>,
    /// The seconds in which a device waits for transfers and computes nothing.
    pub exposed: f64,
}

const LEFT: f64 = 118.0;
const RIGHT: f64 = 62.0;
const LANE: f64 = 34.0;
const GAP: f64 = 10.0;
const BRACKET: f64 = 20.0;
/// The narrowest mark that can be seen.
const NARROWEST: f64 = 0.7;

pub fn render(report: &Page) -> Option<Markup> {
    let step = report.step.as_ref().filter(|step| step.seconds > 0.0)?;
    let key =
        [Bound::Compute, Bound::Memory].map(|bound| (bound_color(Some(bound)), format!("computes, {bound} bound")));
    let body = html! {
        p.facts {
            b { (seconds(step.seconds)) } " a step on " (report.chip.name) ", estimated; " b { (seconds(step.exposed)) }
            " of it (" (format!("{:.1}", 100.0 * step.exposed / step.seconds)) " %) waits for communication."
        }
        (legend(key))
        (lanes(report, step))
    };
    let lead = "Estimated at the chip's peak rates: nothing is faster than this, and real steps are slower. A loop is drawn once, as \
                wide as all its iterations. Collectives that are not in two halves let nothing overlap.";
    Some(section("step", "One step, by estimated time", lead, body))
}

fn lanes(report: &Page, step: &StepLanes) -> Markup {
    let depth = step.loops.iter().map(|it| it.depth + 1).max().unwrap_or(0);
    let top = 8.0 + depth as f64 * BRACKET;
    let bottom = top + step.lanes.len() as f64 * (LANE + GAP);
    let x = |time: f64| LEFT + (WIDTH - LEFT - RIGHT) * time / step.seconds;
    let content = html! {
        @for tick in ticks(step.seconds, 8) {
            (rule("grid", (x(tick), top), (x(tick), bottom)))
            (text("tick middle", (x(tick), bottom + 16.0), seconds(tick)))
        }
        @for found in &step.loops { (bracket(found, x(found.start), x(found.end), bottom)) }
        @for (number, lane) in step.lanes.iter().enumerate() {
            @let y = top + number as f64 * (LANE + GAP) + GAP / 2.0;
            (text("lane", (0.0, y + LANE / 2.0 + 4.0), shortened(&lane.name, 17)))
            (rule("base", (LEFT, y + LANE), (WIDTH - RIGHT, y + LANE)))
            (text("tick end", (WIDTH, y + LANE / 2.0 + 4.0), format!("{:.0} %", 100.0 * lane.busy / step.seconds)))
            @let color = lane.sends.then(|| report.axes_color(&lane.name));
            @for span in visible(&lane.spans, step.seconds) {
                @let limit = span.limit.filter(|limit| *limit == Bound::Memory).unwrap_or(Bound::Compute);
                (mark(&span, x(span.start), x(span.end), y, color.clone().unwrap_or_else(|| bound_color(Some(limit)))))
            }
        }
    };
    drawing("", Some("lanes"), bottom + 26.0, "one step by estimated time", content)
}

/// Returns the number of letters that fit into a space.
fn letters(width: f64) -> usize {
    (width / 6.4).max(0.0) as usize
}

/// Draws a loop: a bracket above the lanes, and a background behind them.
fn bracket(found: &LoopSpan, start: f64, end: f64, bottom: f64) -> Markup {
    let y = 8.0 + found.depth as f64 * BRACKET;
    let width = (end - start).max(NARROWEST);
    let times = found.iterations.map_or("× ?".to_owned(), |count| format!("× {}", thousands(count)));
    let texts = [format!("{times}  {}  {}", found.name, found.path), format!("{times}  {}", found.name), times];
    let [left, right, low, high] = [start, end, y + BRACKET - 3.0, y + 1.0].map(at);
    html! {
        g.loop {
            title { (texts[0]) }
            (Area { x: start, y, width, height: bottom - y }.rectangle(Some("back"), 0, None))
            path d=(format!("M{left},{low}V{high}H{right}V{low}")) {}
            @if let Some(text) = texts.iter().find(|text| text.chars().count() <= letters(width - 12.0)) {
                text x=(at(start + 6.0)) y=(at(y + 14.0)) { (text) }
            }
        }
    }
}

/// Joins neighbours of the same scope, and those too narrow to be seen, to one mark.
pub fn visible(spans: &[Span], whole: f64) -> Vec<Span> {
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
            span.detail = format!("{}, {all}; the longest: {}", plural(count as u64, "instruction"), span.detail);
        }
        span
    }
}

fn mark(span: &Span, start: f64, end: f64, y: f64, fill: String) -> Markup {
    let width = (end - start).max(NARROWEST);
    // A thin gap separates neighbours.
    let drawn = Area { x: start, y, width: if width > 3.0 { width - 1.0 } else { width }, height: LANE };
    // An alternation too fast to draw is shaded by its busy share.
    let style = format!("fill:{fill};opacity:{:.2}", 1.0 - 0.75 * span.idle);
    let letters = letters(width - 10.0);
    let text = fitting(&span.label, letters);
    html! {
        g.span {
            title { (span.label) "\n" (span.detail) }
            (drawn.rectangle(None, if width > 8.0 { 3 } else { 0 }, Some(style)))
            // A few letters of a name tell nothing.
            @if !text.ends_with('…') || letters >= 9 {
                text x=(at(start + 5.0)) y=(at(y + LANE / 2.0 + 4.0)) { (text) }
            }
        }
    }
}
