//! What fills memory: the bytes that are live along the schedule, and the buffers at the peak.

use std::fmt::Write;

use serde::Serialize;

use super::html::{Cell, escape, json, section, shortened, table, ticks};
use super::{MOST_ROWS, Report};
use crate::output::{human_bytes, thousands};

/// A buffer that is live at the peak.
#[derive(Clone, Debug, Default)]
pub struct LiveBuffer {
    /// Path of an argument, or name of the instruction.
    pub name: String,
    /// Argument, output, temporary.
    pub kind: String,
    pub bytes: u64,
    /// Type and dimensions.
    pub shape: String,
    /// The source line, or the scope.
    pub source: String,
}

/// Bytes that are live along the schedule.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// Live bytes at each step of the schedule, or the most in several steps: arguments and outputs included.
    pub live: Vec<u64>,
    /// Instructions of the schedule.
    pub steps: u64,
    /// What runs at each position; or nothing, where that is not known.
    pub names: Vec<String>,
    /// Bytes that are live all along: arguments, and outputs in their own buffers.
    pub resident: u64,
    pub peak: u64,
    /// Where the peak is.
    pub peak_position: usize,
    /// Bytes of the chip's memory, and its name.
    pub limit: Option<(u64, String)>,
    /// Those at the peak, largest first.
    pub buffers: Vec<LiveBuffer>,
}

const WIDTH: f64 = 1120.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 78.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 28.0;
/// No screen shows more points.
const MOST_POINTS: usize = 1100;

pub fn render(report: &Report) -> String {
    let Some(curve) = report.memory.as_ref().filter(|curve| !curve.live.is_empty()) else { return String::new() };
    let mut body = drawing(curve);
    let largest = curve.buffers.iter().map(|buffer| buffer.bytes).max().unwrap_or(0).max(1) as f64;
    let cells = |buffer: &LiveBuffer| {
        let share = buffer.bytes as f64 / largest;
        vec![
            Cell::code(&buffer.name),
            Cell::text(&buffer.kind),
            Cell::number(buffer.bytes as f64, human_bytes(buffer.bytes)).with_bar(share, "var(--bar)"),
            // Tuples may be of hundreds of parts.
            Cell::code(shortened(&buffer.shape, 48)),
            Cell::code(&buffer.source),
        ]
    };
    let cells: Vec<Vec<Cell>> = curve.buffers.iter().take(MOST_ROWS).map(cells).collect();
    let _ = writeln!(body, "<h3>Live at the peak: {}</h3>", human_bytes(curve.peak));
    body.push_str(&table("live-rows", &["buffer", "kind", "bytes", "shape", "source"], &cells, curve.buffers.len()));
    let lead = "What one device holds along the schedule: arguments and outputs below, temporaries above them.";
    section("memory", "Memory", lead, &body)
}

/// A point of the drawing, for the script that reads it off.
#[derive(Serialize)]
struct Point<'a> {
    x: f64,
    y: f64,
    bytes: String,
    name: &'a str,
}

/// Of each run of positions that share a pixel, the one with most.
fn points(curve: &Curve) -> Vec<usize> {
    let chunk = curve.live.len().div_ceil(MOST_POINTS).max(1);
    let most = |(index, chunk_of): (usize, &[u64])| {
        let at = (0..chunk_of.len()).max_by_key(|&at| (chunk_of[at], std::cmp::Reverse(at))).unwrap_or(0);
        index * chunk + at
    };
    curve.live.chunks(chunk).enumerate().map(most).collect()
}

fn drawing(curve: &Curve) -> String {
    let most = curve.peak.max(curve.live.iter().copied().max().unwrap_or(0)).max(1) as f64;
    // A limit far above the curve would flatten it; then it is only said.
    let limit = curve.limit.as_ref().filter(|(bytes, _)| (*bytes as f64) < most * 2.5);
    let top = most.max(limit.map_or(0.0, |(bytes, _)| *bytes as f64)) * 1.06;
    let x = |at: usize| LEFT + (WIDTH - LEFT) * at as f64 / (curve.live.len().max(2) - 1) as f64;
    let y = |bytes: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - bytes / top);
    let mut svg = format!(
        "<svg class=\"chart\" id=\"memory-curve\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"live bytes along the schedule\">\n"
    );
    // Writing to a string does not fail.
    for tick in ticks(top, 5, true) {
        let (at, label) = (y(tick), human_bytes(tick as u64));
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text class=\"tick end\" x=\"{}\" \
             y=\"{:.1}\">{label}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    let chosen = points(curve);
    let mut line = String::new();
    let mut last = None;
    for &at in &chosen {
        let (x, y) = (x(at), y(curve.live[at] as f64));
        // A buffer is there from one instruction to another: steps, not slopes.
        match last {
            None => _ = write!(line, "M{x:.1},{y:.1}"),
            Some(_) => _ = write!(line, "H{x:.1}V{y:.1}"),
        }
        last = Some(x);
    }
    let (zero, resident) = (y(0.0), y(curve.resident as f64));
    let _ = writeln!(svg, "<path class=\"area\" d=\"{line}V{zero:.1}H{LEFT}Z\"/>");
    let _ = writeln!(
        svg,
        "<rect class=\"resident\" x=\"{LEFT}\" y=\"{resident:.1}\" width=\"{}\" height=\"{:.1}\"/>",
        WIDTH - LEFT,
        zero - resident
    );
    let _ = writeln!(svg, "<path class=\"line\" d=\"{line}\"/>");
    if zero - resident > 18.0 {
        let _ = writeln!(
            svg,
            "<text class=\"inside\" x=\"{}\" y=\"{:.1}\">arguments and outputs {}</text>",
            LEFT + 10.0,
            (zero + resident) / 2.0 + 4.0,
            human_bytes(curve.resident)
        );
    }
    if let Some((bytes, name)) = limit {
        let at = y(*bytes as f64);
        let _ = writeln!(
            svg,
            "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text class=\"limit\" x=\"{}\" y=\"{:.1}\">\
             memory of {}: {}</text>",
            LEFT + 10.0,
            at - 5.0,
            escape(name),
            human_bytes(*bytes)
        );
    }
    svg.push_str(&peak_mark(curve, x(curve.peak_position), y(curve.peak as f64)));
    let _ = writeln!(
        svg,
        "<text class=\"tick\" x=\"{LEFT}\" y=\"{}\">first of {} instructions</text><text class=\"tick end\" x=\"{WIDTH}\" y=\"{}\">last</text>",
        HEIGHT - 8.0,
        thousands(curve.steps),
        HEIGHT - 8.0
    );
    svg.push_str("<g id=\"memory-cursor\"></g></svg>\n");
    let name = |at: usize| curve.names.get(at).map_or("", String::as_str);
    let data: Vec<Point<'_>> = chosen
        .iter()
        .map(|&at| Point {
            x: (x(at) * 10.0).round() / 10.0,
            y: (y(curve.live[at] as f64) * 10.0).round() / 10.0,
            bytes: human_bytes(curve.live[at]),
            name: name(at),
        })
        .collect();
    svg + &json("memory-data", &data)
}

fn peak_mark(curve: &Curve, x: f64, y: f64) -> String {
    let (anchor, shift) = if x > WIDTH * 0.6 { ("end", -10.0) } else { ("start", 10.0) };
    let name = curve.names.get(curve.peak_position).filter(|name| !name.is_empty());
    let at = name.map_or(String::new(), |name| format!(" at {}", shortened(name, 60)));
    format!(
        "<circle class=\"peak\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/><text class=\"peak\" text-anchor=\"{anchor}\" x=\"{:.1}\" \
         y=\"{:.1}\">peak {}{}</text>\n",
        x + shift,
        y - 8.0,
        human_bytes(curve.peak),
        escape(&at)
    )
}
