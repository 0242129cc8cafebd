//! What moves: bars by mesh axes and kind, and a table of every collective.

use std::fmt::Write;

use indexmap::IndexMap;

use super::html::{Cell, escape, section, table};
use super::{MOST_ROWS, Report};
use crate::output::{human_bytes, thousands};

/// One collective.
#[derive(Clone, Debug, Default)]
pub struct CollectiveRow {
    /// What it does.
    pub kind: String,
    /// The mesh axes, joined by `,`; or what else is known of its devices.
    pub axes: String,
    /// Bytes of its operands on one device, in one execution.
    pub bytes: Option<u64>,
    /// How often it runs, in words.
    pub executions: String,
    /// The same as a number: its bound, 1 where nothing is known.
    pub execution_count: u64,
    /// Bytes that one device sends in all executions; `None` where that is not known.
    pub total: Option<u64>,
    /// Whether it is in two halves.
    pub asynchronous: bool,
    /// Name of the instruction.
    pub name: String,
    /// Scope and op.
    pub op_name: String,
    /// The source line.
    pub source: String,
}

pub fn render(report: &Report) -> String {
    let mut rows: Vec<&CollectiveRow> = report.collectives.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.total));
    let body = if rows.is_empty() {
        "<p class=\"empty\">This program has no collective: its devices do not communicate.</p>".to_owned()
    } else {
        let largest = largest(&rows);
        let cells: Vec<Vec<Cell>> = rows.iter().take(MOST_ROWS).map(|row| cells(report, row, largest)).collect();
        let columns = ["kind", "axes", "operands", "runs", "sent in all", "instruction", "scope", "source"];
        bars(report, &rows) + &table("collective-rows", &columns, &cells, rows.len())
    };
    let lead = "Bytes that one device sends in one step, along a ring; loops multiplied. An asynchronous collective (start and \
                done) is one.";
    section("collectives", "What moves", lead, &body)
}

fn largest(rows: &[&CollectiveRow]) -> u64 {
    rows.iter().filter_map(|row| row.total).max().unwrap_or(0)
}

fn cells(report: &Report, row: &CollectiveRow, largest: u64) -> Vec<Cell> {
    let bytes = |bytes: Option<u64>| match bytes {
        Some(bytes) => Cell::number(bytes as f64, human_bytes(bytes)),
        None => Cell::number(-1.0, "?"),
    };
    let share = row.total.unwrap_or(0) as f64 / largest.max(1) as f64;
    let kind = if row.asynchronous { format!("{} (async)", row.kind) } else { row.kind.clone() };
    vec![
        Cell::text(kind),
        Cell::text(&row.axes),
        bytes(row.bytes),
        Cell::number(row.execution_count as f64, &row.executions),
        bytes(row.total).with_bar(share, &report.axes_color(&row.axes)),
        Cell::code(&row.name),
        Cell::code(&row.op_name),
        Cell::code(&row.source),
    ]
}

/// Collectives that are alike in axes and kind.
#[derive(Default)]
struct Sum {
    total: u64,
    instructions: usize,
    executions: u64,
    unknown: bool,
}

impl Sum {
    fn add(&mut self, row: &CollectiveRow) {
        self.total = self.total.saturating_add(row.total.unwrap_or(0));
        self.instructions += 1;
        self.executions = self.executions.saturating_add(row.execution_count);
        self.unknown |= row.total.is_none();
    }
}

/// For each combination of axes a bar, and under it those of the kinds.
fn bars(report: &Report, rows: &[&CollectiveRow]) -> String {
    let mut by_axes: IndexMap<&str, (Sum, IndexMap<&str, Sum>)> = IndexMap::new();
    for row in rows {
        let (sum, kinds) = by_axes.entry(&row.axes).or_default();
        sum.add(row);
        kinds.entry(&row.kind).or_default().add(row);
    }
    by_axes.sort_by(|_, a, _, b| b.0.total.cmp(&a.0.total));
    let all: u64 = by_axes.values().map(|(sum, _)| sum.total).fold(0, u64::saturating_add);
    let mut text = String::from("<div class=\"bars\">");
    for (axes, (sum, kinds)) in by_axes.iter_mut().map(|(axes, sums)| (*axes, sums)) {
        let color = report.axes_color(axes);
        let name = if axes.is_empty() { "no axis" } else { axes };
        bar(&mut text, "axes", name, sum, all, &color);
        kinds.sort_by(|_, a, _, b| b.total.cmp(&a.total));
        kinds.iter().for_each(|(kind, sum)| bar(&mut text, "kind", kind, sum, all, &color));
    }
    text.push_str("</div>\n");
    text
}

fn bar(text: &mut String, class: &str, name: &str, sum: &Sum, all: u64, color: &str) {
    let share = 100.0 * sum.total as f64 / all.max(1) as f64;
    let more = if sum.unknown { " or more" } else { "" };
    let runs = if sum.executions == 1 { "once".to_owned() } else { format!("{} times", thousands(sum.executions)) };
    let detail = match class {
        "axes" => format!("{share:.1} %"),
        _ => format!("{} in the program, run {runs}", thousands(sum.instructions as u64)),
    };
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "<div class=\"row {class}\"><span class=\"name\">{}</span><span class=\"track\"><i style=\"width:{share:.2}%;background:{color}\"></i>\
         </span><span class=\"value\" title=\"{} bytes\">{}{more}</span><span class=\"detail\">{}</span></div>",
        escape(name),
        thousands(sum.total),
        human_bytes(sum.total),
        escape(&detail),
    );
}
