//! `hlo-dump diff`: the differences in meaning between two programs.

use anyhow::{Result, bail};
use meshloom_analysis::{CollectiveChange, CostOptions, ModuleDiff, ModuleMemory, Occurrence, OpChange, cost, diff};
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Outcome;
use crate::arguments::{Diff, Reading};
use crate::collectives;
use crate::input::{Described, Loaded, load_path};
use crate::memory;
use crate::output::{self, BOLD, WARN, line, paint};

/// A figure of two programs.
#[derive(JsonSchema, Serialize)]
struct Figure {
    /// Its name: `instructions`, `operations`, `bytes accessed`, `bytes sent`, `arguments`, `outputs`, `temporaries` or
    /// `peak memory`.
    name: &'static str,
    /// Its value in the first program.
    before: u64,
    /// Its value in the second program.
    after: u64,
    #[serde(skip)]
    text: fn(u64) -> String,
}

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    /// The first program.
    before: Described<'a>,
    /// The second program.
    after: Described<'a>,
    /// Whether both mean the same: names and numbers may differ.
    same: bool,
    /// The figures of both.
    figures: &'a [Figure],
    #[serde(flatten)]
    diff: &'a ModuleDiff,
}

/// Gives a program that names no mesh that of the other one, if it is for as many devices: the same groups then have
/// the same names.
fn share_mesh(before: &mut Loaded, after: &mut Loaded) {
    let fits = |mesh: &Mesh, loaded: &Loaded| mesh.device_count() as u64 == loaded.device_count();
    match (&before.mesh, &after.mesh) {
        (Some(mesh), None) if fits(mesh, after) => after.mesh = Some(mesh.clone()),
        (None, Some(mesh)) if fits(mesh, before) => before.mesh = Some(mesh.clone()),
        _ => {}
    }
}

pub fn run(arguments: &Diff, json: bool) -> Result<Outcome> {
    let mut before = load_path(&arguments.before, &arguments.reading)?;
    let mut reading: Reading = arguments.reading.clone();
    reading.config_set.extend(arguments.set_after.iter().cloned());
    let mut after = load_path(&arguments.after, &reading)?;
    if !arguments.set_after.is_empty() && after.run.is_none() {
        bail!("--set-after is for run configs, and {} is {}", after.name, after.form);
    }
    share_mesh(&mut before, &mut after);
    let (found_before, found_after) = (collectives::of(&before), collectives::of(&after));
    let changes = diff((&before.module, &found_before), (&after.module, &found_after));
    let figures = figures(&before, &after)?;
    let same = changes.is_empty() && figures.iter().all(|figure| figure.before == figure.after);
    let outcome = if same || !arguments.exit_code { Outcome::Done } else { Outcome::Found };
    if json {
        let (before, after) = (before.describe(), after.describe());
        output::json("hlo-dump/diff", &Answer { before, after, same, figures: &figures, diff: &changes })?;
        return Ok(outcome);
    }
    for (sign, loaded) in [("-", &before), ("+", &after)] {
        line(&paint(BOLD, &format!("{sign} {}", loaded.title())));
        loaded.unpartitioned().iter().for_each(|warning| line(&paint(WARN, &format!("  {warning}"))));
    }
    if same && changes.names.is_empty() {
        line("they mean the same");
        return Ok(outcome);
    }
    print_figures(&figures);
    print_changes(&changes, arguments.limit);
    if same {
        line("they mean the same, except for names");
    } else if changes.is_empty() {
        line("the operations are the same");
    } else if !changes.same_wiring && changes.operations.is_empty() && changes.collectives.is_empty() {
        line("the operations are the same, but connected otherwise");
    }
    Ok(outcome)
}

fn figures(before: &Loaded, after: &Loaded) -> Result<Vec<Figure>> {
    let cost_of = |loaded: &Loaded| cost(&loaded.module, &CostOptions::devices(loaded.devices)).total;
    let (cost_before, cost_after) = (cost_of(before), cost_of(after));
    let (memory_before, memory_after) = (memory::of(before)?, memory::of(after)?);
    let operations = |flops: u64| output::count(flops as f64);
    let figure = |name, text, before, after| Figure { name, before, after, text };
    let memory = |name, of: fn(&ModuleMemory) -> u64| {
        figure(name, output::bytes as fn(u64) -> String, of(&memory_before), of(&memory_after))
    };
    Ok(vec![
        figure("instructions", output::thousands, before.instruction_count(), after.instruction_count()),
        figure("operations", operations, cost_before.flops, cost_after.flops),
        figure("bytes accessed", output::bytes, cost_before.bytes(), cost_after.bytes()),
        figure("bytes sent", output::bytes, cost_before.link_bytes, cost_after.link_bytes),
        memory("arguments", |it| it.arguments),
        memory("outputs", |it| it.outputs),
        memory("temporaries", |it| it.temporaries),
        memory("peak memory", |it| it.peak),
    ])
}

fn print_figures(figures: &[Figure]) {
    let table = Table::of(figures)
        .text("", |figure| figure.name)
        .number("before", |figure| (figure.text)(figure.before))
        .number("after", |figure| (figure.text)(figure.after))
        .number("change", |figure| change(figure.before, figure.after));
    output::table(table, 0);
}

/// Returns `+12.5 %`.
fn change(before: u64, after: u64) -> String {
    match (before, after) {
        (before, after) if before == after => "=".to_owned(),
        (0, _) => "new".to_owned(),
        (_, 0) => "gone".to_owned(),
        (before, after) => format!("{:+.2} %", 100.0 * (after as f64 / before as f64 - 1.0)),
    }
}

fn print_changes(changes: &ModuleDiff, limit: usize) {
    let count = |it: Occurrence| match it.count {
        0 => "-".to_owned(),
        count if it.executions == count as u64 => count.to_string(),
        count => format!("{count} ({})", output::times(it.executions)),
    };
    let bytes = |it: &CollectiveChange| match it.new_bytes {
        Some(new) => format!("{} -> {}", output::known_bytes(it.bytes), output::bytes(new)),
        None => output::known_bytes(it.bytes),
    };
    let collectives = Table::of(&changes.collectives)
        .text("", |it| format!("{} {}", sign(it.before, it.after), it.kind))
        .flexible("axes", |it| &it.axes)
        .number("bytes", |it| bytes(it))
        .number("before", |it| count(it.before))
        .number("after", |it| count(it.after))
        .flexible("where from", |it| &it.from);
    print("collectives", collectives, limit);
    let shape = |it: &OpChange| match &it.new_shape {
        Some(new) => format!("{} -> {new}", it.shape),
        None if it.before == it.after => format!("{}, other attributes", it.shape),
        None => it.shape.clone(),
    };
    let operations = Table::of(&changes.operations)
        .text("", |it| format!("{} {}", sign(it.before, it.after), it.opcode))
        .flexible("shapes", |it| shape(it))
        .number("before", |it| count(it.before))
        .number("after", |it| count(it.after))
        .flexible("where from", |it| &it.from);
    print("operations", operations, limit);
    let names = Table::of(&changes.names)
        .text("", |it| &it.opcode)
        .flexible("before", |it| &it.before)
        .flexible("after", |it| &it.after)
        .number("operations", |it| it.count);
    print("moved names", names, limit);
}

/// Prints a table under a heading, if it has rows.
fn print<R>(heading: &str, table: Table<R>, limit: usize) {
    if table.columns.iter().any(|column| !column.cells.is_empty()) {
        line("");
        line(&paint(BOLD, heading));
        output::table(table, limit);
    }
}

/// Returns `+` for new or more, `-` for gone or fewer, `~` for as many but different.
fn sign(before: Occurrence, after: Occurrence) -> &'static str {
    let size = |it: Occurrence| (it.executions.bound().unwrap_or(u64::MAX), it.count);
    match size(after).cmp(&size(before)) {
        std::cmp::Ordering::Greater => "+",
        std::cmp::Ordering::Less => "-",
        std::cmp::Ordering::Equal => "~",
    }
}
