//! The shardings of values and their reasons: for a run config from its rules, for other modules as they state it.

use std::cmp::Reverse;

use indexmap::IndexMap;
use maud::{Markup, html};
use meshloom_analysis::{ShardedValue, ValueKind, shardings};

use super::Page;
use crate::markup::html::{Cell, section, table};
use crate::output::spec;
use crate::run::Row;

pub fn render(report: &Page) -> Markup {
    let loaded = report.loaded;
    let stated = || shardings(&loaded.module, loaded.mesh.as_ref()).iter().map(of_module).collect();
    // Values with the same name at one place, such as keys and values, share a row.
    let mut counts: IndexMap<Row, usize> = IndexMap::new();
    for row in loaded.run.as_ref().and_then(|run| run.shardings()).unwrap_or_else(stated) {
        *counts.entry(row).or_default() += 1;
    }
    counts.sort_by_key(|row, _| Reverse(row.device_bytes));
    let rows: Vec<(Row, usize)> = counts.into_iter().collect();
    let Some((first, _)) = rows.first() else {
        let body = html! { p.empty { "No value of this program says how it is sharded." } };
        return section("shardings", "Shardings", "What a device holds of a value.", body);
    };
    let largest = first.device_bytes.unwrap_or(0).max(1) as f64;
    let columns = ["value", "shape", "sharding", "on a device", "whole", "times", "origin"];
    let body = table("sharding-rows", columns, &rows, |(row, count)| {
        [
            Cell::code(&row.value),
            Cell::code(&row.shape),
            Cell::code(&row.sharding),
            Cell::bytes(row.device_bytes).with_bar(row.device_bytes.unwrap_or(0) as f64 / largest, "var(--bar)"),
            Cell::bytes(row.whole_bytes),
            Cell::number(*count as f64, count.to_string()),
            Cell::text(&row.origin),
        ]
    });
    let lead = "Values that say how they are sharded, those that take most of a device first.";
    section("shardings", "Shardings", lead, body)
}

fn of_module(value: &ShardedValue) -> Row {
    let kind = match value.kind {
        ValueKind::Parameter => "argument",
        ValueKind::Result => "result",
        ValueKind::Annotated => "annotated",
    };
    let is_path = value.kind == ValueKind::Parameter && !value.op_name.is_empty();
    Row {
        value: if is_path { value.op_name.clone() } else { value.name.clone() },
        shape: value.shape.clone(),
        sharding: value.axes.as_ref().map_or_else(|| value.sharding.clone(), |axes| spec(axes)),
        device_bytes: value.device_bytes,
        whole_bytes: value.bytes,
        origin: value.source.as_ref().map_or(kind.to_owned(), |source| format!("{kind} at {source}")),
    }
}
