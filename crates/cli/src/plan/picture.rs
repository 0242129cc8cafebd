//! The plans of a search as a drawing that stands alone: a point for each, by memory and time, and the line of the
//! plans that no other beats in both.

use std::fmt::Write;

use maud::{Markup, Render, html};
use meshloom_plan::{LoweredPlan, Search};

use hlo_dump::markup::chart::{COLORS, alone, at, byte_ticks, ticks};
use hlo_dump::output::{human_bytes, seconds};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 52.0;

/// The slowest plan that is drawn takes at most this many times the best step.
const MOST_TIMES: f64 = 3.0;

const FITS: &str = COLORS[0];
const TOO_LARGE: &str = COLORS[3];
const CONFIGURED: &str = COLORS[5];

pub struct Picture<'a> {
    pub title: String,
    pub searched: &'a Search,
    pub memory: Option<u64>,
}

impl Picture<'_> {
    pub fn svg(&self) -> String {
        let found = &self.searched.found;
        let least = found.iter().map(|it| it.seconds()).fold(f64::INFINITY, f64::min);
        let drawn: Vec<&LoweredPlan> = found.iter().filter(|it| it.seconds() <= MOST_TIMES * least).collect();
        let configured = self.configured().filter(|it| it.seconds() <= MOST_TIMES * least);
        let most = |of: &mut dyn Iterator<Item = f64>| of.fold(0.0, f64::max);
        let times = drawn.iter().map(|it| it.seconds()).chain(configured.map(LoweredPlan::seconds));
        let bytes = drawn.iter().map(|it| it.bytes).chain(self.memory).chain(configured.map(|it| it.bytes));
        let axes = Axes {
            bytes: 1.05 * most(&mut bytes.map(|bytes| bytes as f64)).max(1.0),
            seconds: 1.05 * most(&mut { times }).max(f64::MIN_POSITIVE),
        };
        let left_out = found.len() - drawn.len();
        let content = html! {
            text x=(LEFT) y="22" font-weight="bold" { (self.title) }
            (self.legend(left_out))
            (axes.render())
            @if let Some(memory) = self.memory {
                @let x = at(axes.x(memory as f64));
                line x1=(x) x2=(x) y1=(TOP) y2=(HEIGHT - BOTTOM) stroke="#777" stroke-dasharray="5 3" {}
            }
            path d=(axes.steps(&self.searched.front())) fill="none" stroke="#222" {}
            @for each in &drawn { (axes.point(each)) }
            @if let Some(it) = configured {
                @let (x, y) = (axes.x(it.bytes as f64), axes.y(it.seconds()));
                path d=(format!("M{:.1} {:.1}l6 6l-6 6l-6 -6z", x, y - 6.0)) fill=(CONFIGURED) {
                    title { "as configured: " (seconds(it.seconds())) ", " (human_bytes(it.bytes)) }
                }
            }
        };
        alone(&self.title, (WIDTH, HEIGHT), content)
    }

    fn configured(&self) -> Option<&LoweredPlan> {
        self.searched.configured.iter().flatten().next()
    }

    fn legend(&self, left_out: usize) -> Markup {
        let rest = match left_out {
            0 => String::new(),
            _ => format!("; {left_out} that take more than {MOST_TIMES} times the shortest step are left out"),
        };
        let entry = |x: f64, color: &str, text: &str| {
            html! {
                circle cx=(x) cy="42" r="4" fill=(color) {}
                text x=(x + 10.0) y="46" { (text) }
            }
        };
        html! {
            (entry(LEFT + 4.0, FITS, "fits"))
            (entry(LEFT + 74.0, TOO_LARGE, "too large"))
            @if self.configured().is_some() { (entry(LEFT + 174.0, CONFIGURED, "as configured")) }
            text x=(LEFT + 304.0) y="46" fill="#555" { "line: no other is better in both" (rest) }
        }
    }
}

/// From 0 to the most.
struct Axes {
    bytes: f64,
    seconds: f64,
}

impl Axes {
    fn x(&self, bytes: f64) -> f64 {
        LEFT + bytes / self.bytes * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, seconds: f64) -> f64 {
        HEIGHT - BOTTOM - seconds / self.seconds * (HEIGHT - BOTTOM - TOP)
    }

    fn point(&self, found: &LoweredPlan) -> Markup {
        let (x, y) = (self.x(found.bytes as f64), self.y(found.seconds()));
        html! {
            circle cx=(at(x)) cy=(at(y)) r="3.5" fill=(if found.fits { FITS } else { TOO_LARGE }) fill-opacity="0.7" {
                title {
                    (seconds(found.seconds())) ", " (human_bytes(found.bytes)) ": " (found.plan.settings().join(" "))
                }
            }
        }
    }

    /// Draws the front as steps: between two of its plans, the slower one is the best that fits.
    fn steps(&self, front: &[&LoweredPlan]) -> String {
        let mut path = String::new();
        for found in front.iter().rev() {
            let (x, y) = (self.x(found.bytes as f64), self.y(found.seconds()).max(TOP));
            let _ = if path.is_empty() { write!(path, "M{x:.1} {y:.1}") } else { write!(path, "H{x:.1}V{y:.1}") };
        }
        path
    }
}

impl Render for Axes {
    fn render(&self) -> Markup {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        html! {
            @for tick in ticks(self.seconds, 6) {
                @let y = at(self.y(tick));
                line x1=(LEFT) x2=(right) y1=(y) y2=(y) stroke="#ddd" {}
                text x=(LEFT - 8.0) y=(y + 4.0) text-anchor="end" fill="#555" { (seconds(tick)) }
            }
            @for tick in byte_ticks(self.bytes, 8) {
                @let x = at(self.x(tick));
                line x1=(x) x2=(x) y1=(TOP) y2=(bottom) stroke="#eee" {}
                text x=(x) y=(bottom + 18.0) text-anchor="middle" fill="#555" { (human_bytes(tick as u64)) }
            }
            text x=(f64::midpoint(LEFT, right)) y=(bottom + 40.0) text-anchor="middle" fill="#555" {
                "memory of a device; the dashed line is what it has"
            }
            text x="20" y=(TOP - 10.0) fill="#555" { "a step" }
        }
    }
}
