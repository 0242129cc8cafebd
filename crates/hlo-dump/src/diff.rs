//! `hlo-dump diff`: what changed between two programs, by meaning.

use anyhow::Result;
use meshloom_hlo::analysis::{CostOptions, ModuleDiff, Occurrence, cost, diff};
use serde::Serialize;

use crate::Outcome;
use crate::arguments::{Diff, Reading};
use crate::collectives;
use crate::input::{Described, Loaded, load_path};
use crate::memory;
use crate::output::{self, BOLD, Column, Table, line, paint};

/// A figure of both programs.
#[derive(Serialize)]
struct Figure {
    name: &'static str,
    before: u64,
    after: u64,
    #[serde(skip)]
    text: fn(u64) -> String,
}

#[derive(Serialize)]
struct Answer<'a> {
    before: Described<'a>,
    after: Described<'a>,
    same: bool,
    figures: &'a [Figure],
    #[serde(flatten)]
    diff: &'a ModuleDiff,
}

pub fn run(arguments: &Diff, json: bool) -> Result<Outcome> {
    let before = load_path(&arguments.before, &arguments.reading)?;
    let mut reading: Reading = arguments.reading.clone();
    reading.set.extend(arguments.set_after.iter().cloned());
    let after = load_path(&arguments.after, &reading)?;
    let (found_before, found_after) = (collectives::of(&before), collectives::of(&after));
    let changes = diff((&before.module, &found_before), (&after.module, &found_after));
    let figures = figures(&before, &after)?;
    let same = changes.is_empty() && figures.iter().all(|figure| figure.before == figure.after);
    let outcome = if same || !arguments.exit_code { Outcome::Done } else { Outcome::Found };
    if json {
        let (before, after) = (before.describe(), after.describe());
        output::json("diff", &Answer { before, after, same, figures: &figures, diff: &changes })?;
        return Ok(outcome);
    }
    line(&paint(BOLD, &format!("- {}", before.title())));
    line(&paint(BOLD, &format!("+ {}", after.title())));
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
    let count = |loaded: &Loaded| {
        loaded.module.computations.iter().map(|computation| computation.instructions.len() as u64).sum::<u64>()
    };
    let operations = |flops: u64| output::count(flops as f64);
    Ok(vec![
        Figure { name: "instructions", before: count(before), after: count(after), text: output::thousands },
        Figure { name: "operations", before: cost_before.flops, after: cost_after.flops, text: operations },
        Figure { name: "bytes accessed", before: cost_before.bytes(), after: cost_after.bytes(), text: output::bytes },
        Figure {
            name: "bytes sent",
            before: cost_before.link_bytes,
            after: cost_after.link_bytes,
            text: output::bytes,
        },
        Figure {
            name: "arguments",
            before: memory_before.arguments,
            after: memory_after.arguments,
            text: output::bytes,
        },
        Figure { name: "outputs", before: memory_before.outputs, after: memory_after.outputs, text: output::bytes },
        Figure {
            name: "temporaries",
            before: memory_before.temporaries,
            after: memory_after.temporaries,
            text: output::bytes,
        },
        Figure { name: "peak memory", before: memory_before.peak, after: memory_after.peak, text: output::bytes },
    ])
}

fn print_figures(figures: &[Figure]) {
    let header =
        [("", Column::Text), ("before", Column::Number), ("after", Column::Number), ("change", Column::Number)];
    let mut table = Table::new(&header);
    for figure in figures {
        let Figure { name, before, after, text } = figure;
        table.row(vec![(*name).to_owned(), text(*before), text(*after), change(*before, *after)]);
    }
    table.print();
}

/// `+12.5 %`.
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
        count => format!("{count} ({} times)", output::amount(it.executions)),
    };
    if !changes.collectives.is_empty() {
        heading("collectives");
        let header = [
            ("", Column::Text),
            ("axes", Column::Flexible),
            ("bytes", Column::Number),
            ("before", Column::Number),
            ("after", Column::Number),
            ("where from", Column::Flexible),
        ];
        let mut table = Table::new(&header);
        for it in &changes.collectives {
            let text = |bytes: Option<u64>| bytes.map_or("?".to_owned(), output::bytes);
            let bytes = match it.new_bytes {
                Some(new) => format!("{} -> {}", text(it.bytes), output::bytes(new)),
                None => text(it.bytes),
            };
            let name = format!("{} {}", sign(it.before, it.after), it.kind);
            table.row(vec![name, it.axes.clone(), bytes, count(it.before), count(it.after), it.from.clone()]);
        }
        table.limit(limit).print();
    }
    if !changes.operations.is_empty() {
        heading("operations");
        let header = [
            ("", Column::Text),
            ("shapes", Column::Flexible),
            ("before", Column::Number),
            ("after", Column::Number),
            ("where from", Column::Flexible),
        ];
        let mut table = Table::new(&header);
        for it in &changes.operations {
            let name = format!("{} {}", sign(it.before, it.after), it.opcode);
            let shape = match &it.new_shape {
                Some(new) => format!("{} -> {new}", it.shape),
                None if it.before == it.after => format!("{}, other attributes", it.shape),
                None => it.shape.clone(),
            };
            table.row(vec![name, shape, count(it.before), count(it.after), it.from.clone()]);
        }
        table.limit(limit).print();
    }
    if !changes.names.is_empty() {
        heading("moved names");
        let header = [
            ("", Column::Text),
            ("before", Column::Flexible),
            ("after", Column::Flexible),
            ("operations", Column::Number),
        ];
        let mut table = Table::new(&header);
        for it in &changes.names {
            table.row(vec![it.opcode.clone(), it.before.clone(), it.after.clone(), it.count.to_string()]);
        }
        table.limit(limit).print();
    }
}

fn heading(text: &str) {
    line("");
    line(&paint(BOLD, text));
}

/// `+` for new or more, `-` for gone or fewer, `~` for as many but different.
fn sign(before: Occurrence, after: Occurrence) -> &'static str {
    let size = |it: Occurrence| (it.executions.bound().unwrap_or(u64::MAX), it.count);
    match size(after).cmp(&size(before)) {
        std::cmp::Ordering::Greater => "+",
        std::cmp::Ordering::Less => "-",
        std::cmp::Ordering::Equal => "~",
    }
}
