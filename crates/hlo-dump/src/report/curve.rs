//! The values that fill memory: the bytes that are live along the schedule, and the buffers at the peak.

use maud::{Markup, html};
use meshloom_analysis::{BufferKind, LiveBuffer, ModuleMemory};
use serde::Serialize;

use super::Page;
use crate::markup::chart::{Area, WIDTH, at, byte_ticks, drawing, rule, shortened, text};
use crate::markup::html::{Cell, json, section, table};
use crate::output::{human_bytes, plural};

const HEIGHT: f64 = 250.0;
const LEFT: f64 = 78.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 28.0;
/// The most points: screens show no more.
const MOST_POINTS: usize = 1100;

pub fn render(report: &Page) -> Option<Markup> {
    let memory = report.memory.as_ref().ok().filter(|memory| !memory.curve.is_empty())?;
    let largest = memory.live_at_peak.iter().map(|buffer| buffer.bytes).max().unwrap_or(0).max(1) as f64;
    let columns = ["buffer", "kind", "bytes", "shape", "source"];
    let rows = table("live-rows", columns, &memory.live_at_peak, |buffer: &LiveBuffer| {
        let LiveBuffer { name, kind, bytes, shape, op_name, source, .. } = buffer;
        let is_path = *kind == BufferKind::Argument && !op_name.is_empty();
        [
            Cell::code(if is_path { op_name } else { name }),
            Cell::text(kind.name()),
            Cell::bytes(Some(*bytes)).with_bar(*bytes as f64 / largest, "var(--bar)"),
            // Tuples may have hundreds of parts.
            Cell::code(shortened(shape, 48)),
            Cell::code(source.as_ref().unwrap_or(op_name)),
        ]
    });
    let body = html! { (curve(report, memory)) h3 { "Live at the peak: " (human_bytes(memory.peak)) } (rows) };
    let lead = "What one device holds along the schedule: arguments and outputs below, temporaries above them.";
    Some(section("memory", "Memory", lead, body))
}

/// A point of the drawing, for the script that reads it off.
#[derive(Serialize)]
struct Point<'a> {
    x: f64,
    y: f64,
    bytes: String,
    name: &'a str,
}

/// Returns the number of the point with most bytes, the first if there are several.
fn most(live: &[u64]) -> usize {
    (0..live.len()).max_by_key(|&at| (live[at], std::cmp::Reverse(at))).unwrap_or(0)
}

/// Returns the position with most bytes, for each run of positions that share a pixel.
fn points(live: &[u64]) -> Vec<usize> {
    let chunk = live.len().div_ceil(MOST_POINTS).max(1);
    live.chunks(chunk).enumerate().map(|(index, part)| index * chunk + most(part)).collect()
}

fn curve(report: &Page, memory: &ModuleMemory) -> Markup {
    let live: Vec<u64> = memory.curve.iter().map(|point| point.bytes).collect();
    let peak_at = most(&live);
    let resident = memory.arguments.saturating_add(memory.outputs).saturating_sub(memory.aliased);
    let largest = memory.peak.max(live[peak_at]).max(1) as f64;
    // A limit far above the curve would flatten it; then only the text states it.
    let limit = report.chip.device_memory().filter(|&bytes| (bytes as f64) < largest * 2.5);
    let top = largest.max(limit.unwrap_or(0) as f64) * 1.06;
    let x = |index: usize| LEFT + (WIDTH - LEFT) * index as f64 / (live.len().max(2) - 1) as f64;
    let y = |bytes: u64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - bytes as f64 / top);
    let point = |&index: &usize| Point {
        x: at(x(index)),
        y: at(y(live[index])),
        bytes: human_bytes(live[index]),
        name: &memory.curve[index].instruction,
    };
    let points: Vec<Point<'_>> = points(&live).iter().map(point).collect();
    // A buffer is in memory from one instruction to another, so the curve has steps, not slopes.
    let steps: String = points.iter().skip(1).map(|point| format!("H{}V{}", point.x, point.y)).collect();
    let line = format!("M{},{}{steps}", points[0].x, points[0].y);
    let below = Area { x: LEFT, y: y(resident), width: WIDTH - LEFT, height: y(0) - y(resident) };
    let content = html! {
        @for tick in byte_ticks(top, 5).into_iter().map(|tick| tick as u64) {
            (rule("grid", (LEFT, y(tick)), (WIDTH, y(tick))))
            (text("tick end", (LEFT - 8.0, y(tick) + 4.0), human_bytes(tick)))
        }
        path class="area" d={ (line) "V" (at(y(0))) "H" (LEFT) "Z" } {}
        (below.rectangle(Some("resident"), 0, None))
        path class="line" d=(line) {}
        @if below.height > 18.0 {
            @let label = format!("arguments and outputs {}", human_bytes(resident));
            (text("inside", (LEFT + 10.0, below.y + below.height / 2.0 + 4.0), label))
        }
        @if let Some(bytes) = limit {
            @let label = format!("memory of {}: {}", report.chip.name, human_bytes(bytes));
            (rule("limit", (LEFT, y(bytes)), (WIDTH, y(bytes))))
            (text("limit", (LEFT + 10.0, y(bytes) - 5.0), label))
        }
        (peak_mark(memory, &memory.curve[peak_at].instruction, x(peak_at), y(memory.peak)))
        @let steps = memory.curve.last().map_or(0, |point| point.position);
        (text("tick", (LEFT, HEIGHT - 8.0), format!("first of {}", plural(steps, "instruction"))))
        (text("tick end", (WIDTH, HEIGHT - 8.0), "last"))
        g id="memory-cursor" {}
    };
    html! {
        (drawing("", Some("memory-curve"), HEIGHT, "live bytes along the schedule", content))
        (json("memory-data", &points))
    }
}

fn peak_mark(memory: &ModuleMemory, name: &str, x: f64, y: f64) -> Markup {
    let (anchor, shift) = if x > WIDTH * 0.6 { ("end", -10.0) } else { ("start", 10.0) };
    html! {
        circle class="peak" cx=(at(x)) cy=(at(y)) r="4.5" {}
        text class="peak" text-anchor=(anchor) x=(at(x + shift)) y=(at(y - 8.0)) {
            "peak " (human_bytes(memory.peak)) @if !name.is_empty() { " at " (shortened(name, 60)) }
        }
    }
}
