//! Rows of the table of plans, and of its JSON.

use std::collections::BTreeMap;

use hlo_dump::output;
use meshloom::analysis::estimate::KernelTime;
use meshloom::analysis::{Arithmetic, StepTime};
use meshloom::hlo::table::Table;
use meshloom_plan::{Advice, Hardware, LoweredPlan, Search, Traffic, what_it_would_need};
use meshloom_train::config::RunConfig;
use serde::Serialize;

const KERNELS_SHOWN: usize = 6;

#[derive(Serialize)]
pub struct Row<'a> {
    #[serde(flatten)]
    found: &'a LoweredPlan,
    /// The operations of a step over those that the devices could do meanwhile.
    mfu: Option<f64>,
    waits_for: String,
    needs: String,
    #[serde(skip)]
    is_memory_known: bool,
}

/// The facts that all rows share.
pub struct Rows<'a> {
    /// Seconds of a step at the rate of the chip.
    least_seconds: Option<f64>,
    memory: Option<u64>,
    best: Option<&'a LoweredPlan>,
}

impl<'a> Rows<'a> {
    pub fn of(
        config: &RunConfig,
        searched: &Search,
        (hardware, memory): (Option<&Hardware>, Option<u64>),
        best: Option<&'a LoweredPlan>,
    ) -> Rows<'a> {
        let chip = hardware.map(|hardware| &hardware.chip);
        let rate = chip.and_then(|chip| chip.matrix_rate(Arithmetic::of(config.model.compute_dtype)));
        Rows { least_seconds: rate.map(|rate| searched.flops / rate), memory, best }
    }

    pub fn row(&self, found: &'a LoweredPlan) -> Row<'a> {
        let advice = self.best.filter(|best| best.plan != found.plan && best.seconds() != found.seconds());
        Row {
            found,
            mfu: self.least_seconds.zip(found.time.as_ref()).map(|(least, time)| least / time.seconds),
            waits_for: found.time.as_ref().map(waits_for).unwrap_or_default(),
            needs: advice.and_then(|best| needs(found, best, self.memory.unwrap_or(u64::MAX))).unwrap_or_default(),
            is_memory_known: self.memory.is_some(),
        }
    }
}

pub fn print_rows<'r, 'a: 'r>(title: &'static str, rows: impl IntoIterator<Item = &'r Row<'a>>) {
    let rows: Vec<&Row<'_>> = rows.into_iter().collect();
    let time = |row: &Row<'_>, part: fn(&StepTime) -> f64| {
        row.found.time.as_ref().map(|time| output::seconds(part(time))).unwrap_or_default()
    };
    let pipeline = |row: &Row<'_>| row.found.pipeline.clone();
    let balance = |row: &Row<'_>| row.found.scores.map(|scores| format!("{:.2}", scores.balance()));
    let scores = |row: &Row<'_>| row.found.scores.map(|scores| output::thousands(scores.busiest as u64));
    let is_timed = rows.iter().any(|row| row.found.time.is_some());
    let table = Table::of(&rows)
        .text("", |row| if row.found.is_configured { "*" } else { "" })
        .flexible(title, |row| row.found.plan.to_string())
        .number("step", |row| time(row, |time| time.seconds))
        .number("MFU", |row| row.mfu.filter(|mfu| *mfu > 0.0).map(percent).unwrap_or_default())
        .number("computing", |row| time(row, |time| time.computing))
        .number("waiting", |row| time(row, |time| time.waiting))
        .number("idle", |row| time(row, |time| time.idle))
        .number("bubbles", |row| pipeline(row).map(|it| percent(it.counts.bubble_fraction)).unwrap_or_default())
        .number("held", |row| pipeline(row).map(|it| it.held.to_string()).unwrap_or_default())
        .number("busiest/mean", |row| balance(row).unwrap_or_default())
        .number("scores of the busiest", |row| scores(row).unwrap_or_default())
        .number("memory", |row| output::human_bytes(row.found.bytes))
        .text("", |row| match (row.is_memory_known, row.found.fits) {
            (false, _) => "",
            (true, true) => "fits",
            (true, false) => "too large",
        })
        .flexible("sent over", |row| if is_timed { String::new() } else { sent(&row.found.traffic) })
        .flexible("waits for", |row| row.waits_for.clone())
        .flexible("it would need", |row| row.needs.clone());
    output::line("");
    output::table(table, 0);
}

pub fn print_kernels(time: &StepTime) {
    let rows: Vec<&KernelTime> = time.largest.iter().take(KERNELS_SHOWN).collect();
    let table = Table::of(&rows)
        .number("time", |kernel| output::seconds(kernel.seconds))
        .number("of the step", |kernel| percent(kernel.seconds / time.seconds))
        .number("runs", |kernel| kernel.executions.to_string())
        .text("what takes longest in the best plan", |kernel| kernel.op.clone())
        .flexible("op", |kernel| kernel.op_name.clone());
    output::line("");
    output::table(table, 0);
}

fn waits_for(time: &StepTime) -> String {
    let long = time.transfers.iter().filter(|it| it.waiting > 0.01 * time.seconds);
    long.map(|it| format!("{} {}", it.axes, output::seconds(it.waiting))).collect::<Vec<_>>().join(", ")
}

/// Returns the bytes that a device sends in a step, by axes: `fsdp 3.00 MiB, stage 34.0 MiB`.
fn sent(traffic: &[Traffic]) -> String {
    let mut by_axes: BTreeMap<String, u64> = BTreeMap::new();
    for it in traffic {
        *by_axes.entry(it.axes.join(",")).or_default() += it.moved_bytes;
    }
    by_axes.iter().map(|(axes, bytes)| format!("{axes} {}", output::human_bytes(*bytes))).collect::<Vec<_>>().join(", ")
}

fn needs(found: &LoweredPlan, best: &LoweredPlan, memory: u64) -> Option<String> {
    Some(match what_it_would_need(found, best, memory)? {
        Advice::Memory(bytes) => format!("{} more", output::human_bytes(bytes)),
        Advice::Transfers(axes, part) => format!("{} less over {axes}", percent(part)),
        Advice::Bubbles(part) => format!("{} shorter bubbles", percent(part)),
        Advice::Computing(part) => format!("{} less to compute", percent(part)),
    })
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}
