//! The part of `hlo-dump plan` on a sequence that is split: the values that travel, and the tokens of each device.

use anyhow::Result;
use meshloom_analysis::ModuleMemory;
use meshloom_hlo::table::Table;
use meshloom_train::run::{ContextAlternative, RefusedOrder};
use serde::Serialize;

use super::plan_rows::{Needs, Traffic, sent, traffic};
use crate::output::{self, line};

#[derive(Serialize)]
pub struct Row {
    configured: bool,
    exchange: &'static str,
    order: &'static str,
    /// The scores that the busiest device computes for a head of one row.
    scores: usize,
    /// The average of the scores over all devices.
    mean_scores: f64,
    balance: f64,
    peak: u64,
    fits: Option<bool>,
    traffic: Vec<Traffic>,
    memory: Needs,
}

#[derive(Serialize)]
pub struct NotPossible {
    order: &'static str,
    reason: String,
}

pub fn rows(possible: &[ContextAlternative], there_is: Option<u64>) -> Result<Vec<Row>> {
    possible.iter().map(|it| row(it, there_is)).collect()
}

fn row(it: &ContextAlternative, there_is: Option<u64>) -> Result<Row> {
    let &ModuleMemory { arguments, outputs, temporaries, peak, .. } = &it.memory;
    Ok(Row {
        configured: it.configured,
        exchange: it.exchange.name(),
        order: it.order.name(),
        scores: it.scores.busiest,
        mean_scores: it.scores.mean,
        balance: it.scores.balance(),
        peak,
        fits: there_is.map(|there_is| peak <= there_is),
        traffic: traffic(&it.collectives)?,
        memory: Needs { arguments, outputs, temporaries },
    })
}

pub fn not_possible(refused: &[RefusedOrder]) -> Vec<NotPossible> {
    let of = |it: &RefusedOrder| NotPossible { order: it.order.name(), reason: it.reason.to_string() };
    refused.iter().map(of).collect()
}

pub fn print(rows: &[Row], refused: &[RefusedOrder]) {
    let table = Table::of(rows)
        .text("", |row| if row.configured { "*" } else { "" })
        .text("keys", |row| row.exchange)
        .text("order", |row| row.order)
        .number("busiest/mean", |row| format!("{:.2}", row.balance))
        .number("scores of the busiest", |row| output::thousands(row.scores as u64))
        .flexible("sent over", |row| sent(&row.traffic))
        .number("peak", |row| output::human_bytes(row.peak))
        .text("", |row| row.fits.map_or("", |fits| if fits { "fits" } else { "does not fit" }));
    line("");
    output::table(table, 0);
    for it in refused {
        output::note(&format!("not {}: {}", it.order, it.reason));
    }
}
