//! The collectives: bars by mesh axes and kind, and a table of every collective.

use std::cmp::Reverse;

use indexmap::IndexMap;
use maud::{Markup, html};
use meshloom_analysis::Amount;
use meshloom_analysis::ModuleCollective;

use super::{Page, axes_text};
use crate::markup::html::{Cell, section, table};
use crate::output::{amount, human_bytes, plural, thousands, times};

/// A collective, with the figures that bars and table both need.
struct CollectiveRow<'a> {
    entry: &'a ModuleCollective,
    kind: String,
    axes: String,
    /// Bytes that one device sends in all executions; `None` if that is not known.
    total: Option<u64>,
    /// The bound of its executions, 1 if it is not known.
    executions: u64,
}

impl CollectiveRow<'_> {
    fn of(entry: &ModuleCollective) -> CollectiveRow<'_> {
        CollectiveRow {
            entry,
            kind: format!("{}{}", entry.kind.name(), entry.shift.map_or(String::new(), |shift| format!(" {shift:+}"))),
            axes: axes_text(entry),
            total: entry.total_moved_bytes().bound(),
            executions: entry.executions.bound().unwrap_or(1),
        }
    }
}

pub fn render(report: &Page) -> Markup {
    let mut rows: Vec<CollectiveRow<'_>> = report.collectives.entries.iter().map(CollectiveRow::of).collect();
    rows.sort_by_key(|row| Reverse(row.total));
    let largest = rows.iter().filter_map(|row| row.total).max().unwrap_or(0).max(1) as f64;
    let columns = ["kind", "axes", "operands", "runs", "sent in all", "instruction", "scope", "source"];
    let body = html! {
        @if rows.is_empty() {
            p.empty { "This program has no collective: its devices do not communicate." }
        } @else {
            (bars(report, &rows))
            (table("collective-rows", columns, &rows, |row| {
                let CollectiveRow { entry, kind, axes, total, executions } = row;
                let share = total.unwrap_or(0) as f64 / largest;
                [
                    Cell::text(if entry.asynchronous { format!("{kind} (async)") } else { kind.clone() }),
                    Cell::text(axes),
                    Cell::bytes(entry.bytes),
                    Cell::number(*executions as f64, amount(entry.executions)),
                    Cell::bytes(*total).with_bar(share, report.axes_color(axes)),
                    Cell::code(&entry.name),
                    Cell::code(&entry.op_name),
                    Cell::code(entry.source.clone().unwrap_or_default()),
                ]
            }))
        }
    };
    let lead = "Bytes that one device sends in one step, along a ring; loops multiplied. An asynchronous collective \
                (start and done) is one.";
    section("collectives", "What moves", lead, body)
}

#[derive(Default)]
struct GroupSum {
    total: u64,
    instructions: usize,
    executions: u64,
    unknown: bool,
}

impl GroupSum {
    fn add(&mut self, row: &CollectiveRow<'_>) {
        self.total = self.total.saturating_add(row.total.unwrap_or(0));
        self.instructions += 1;
        self.executions = self.executions.saturating_add(row.executions);
        self.unknown |= row.total.is_none();
    }
}

fn bars(report: &Page, rows: &[CollectiveRow<'_>]) -> Markup {
    let mut by_axes: IndexMap<&str, (GroupSum, IndexMap<&str, GroupSum>)> = IndexMap::new();
    for row in rows {
        let (sum, kinds) = by_axes.entry(&row.axes).or_default();
        sum.add(row);
        kinds.entry(&row.kind).or_default().add(row);
    }
    by_axes.sort_by_key(|_, (sum, _)| Reverse(sum.total));
    by_axes.values_mut().for_each(|(_, kinds)| kinds.sort_by_key(|_, sum| Reverse(sum.total)));
    let all = by_axes.values().map(|(sum, _)| sum.total).fold(0, u64::saturating_add);
    let share = |sum: &GroupSum| 100.0 * sum.total as f64 / all.max(1) as f64;
    let bar = |name: &str, sum: &GroupSum, color: &str, detail: &str| {
        html! {
            span.name { (name) }
            span.track { i style=(format!("width:{:.2}%;background:{color}", share(sum))) {} }
            span.value title={ (plural(sum.total, "byte")) } {
                (human_bytes(sum.total)) @if sum.unknown { " or more" }
            }
            span.detail { (detail) }
        }
    };
    html! {
        div.bars {
            @for (axes, (sum, kinds)) in &by_axes {
                @let color = report.axes_color(axes);
                @let name = if axes.is_empty() { "no axis" } else { axes };
                div.row.axes { (bar(name, sum, &color, &format!("{:.1} %", share(sum)))) }
                @for (kind, sum) in kinds {
                    @let instructions = thousands(sum.instructions as u64);
                    @let runs = times(Amount::Exactly(sum.executions));
                    div.row.kind { (bar(kind, sum, &color, &format!("{instructions} in the program, run {runs}"))) }
                }
            }
        }
    }
}
