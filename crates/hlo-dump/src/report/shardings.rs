//! How values are sharded, and why.

use indexmap::IndexMap;

use super::html::{Cell, section, table};
use super::{MOST_ROWS, Report};
use crate::output::human_bytes;

/// A value that says how it is sharded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardingRow {
    /// Its name in the program, or the path of an argument.
    pub value: String,
    /// Type and dimensions.
    pub shape: String,
    /// Axes of each dimension, as the program says it.
    pub sharding: String,
    /// What a device holds of it.
    pub device_bytes: Option<u64>,
    /// What the whole value has, where that is another number.
    pub whole_bytes: Option<u64>,
    /// Why: a rule, an annotation, an op; or where it is written.
    pub origin: String,
}

pub fn render(report: &Report) -> String {
    if report.shardings.is_empty() {
        let body = "<p class=\"empty\">No value of this program says how it is sharded.</p>";
        return section("shardings", "Shardings", "What a device holds of a value.", body);
    }
    // What is named the same way several times at one place, as keys and values are, is one row.
    let mut counts: IndexMap<&ShardingRow, usize> = IndexMap::new();
    report.shardings.iter().for_each(|row| *counts.entry(row).or_default() += 1);
    let mut rows: Vec<(&ShardingRow, usize)> = counts.into_iter().collect();
    rows.sort_by_key(|(row, _)| std::cmp::Reverse(row.device_bytes));
    let largest = rows.first().and_then(|(row, _)| row.device_bytes).unwrap_or(0).max(1) as f64;
    let bytes = |bytes: Option<u64>| match bytes {
        Some(bytes) => Cell::number(bytes as f64, human_bytes(bytes)),
        None => Cell::number(-1.0, "?"),
    };
    let cells = |&(row, count): &(&ShardingRow, usize)| {
        let share = row.device_bytes.unwrap_or(0) as f64 / largest;
        vec![
            Cell::code(&row.value),
            Cell::code(&row.shape),
            Cell::code(&row.sharding),
            bytes(row.device_bytes).with_bar(share, "var(--bar)"),
            bytes(row.whole_bytes),
            Cell::number(count as f64, count.to_string()),
            Cell::text(&row.origin),
        ]
    };
    let cells: Vec<Vec<Cell>> = rows.iter().take(MOST_ROWS).map(cells).collect();
    let columns = ["value", "shape", "sharding", "on a device", "whole", "times", "origin"];
    let lead = "Values that say how they are sharded, those that take most of a device first.";
    section("shardings", "Shardings", lead, &table("sharding-rows", &columns, &cells, rows.len()))
}
