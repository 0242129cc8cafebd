//! `hlo-dump cost`: what a program costs, and what bounds it.

use std::cmp::Reverse;

use anyhow::Result;
use indexmap::IndexMap;
use meshloom_hlo::Amount;
use meshloom_hlo::analysis::cost::{Assumptions, Roofline, Seconds};
use meshloom_hlo::analysis::{Chip, CostOptions, ModuleCost, Work, cost};
use serde::Serialize;

use crate::arguments::{Cost, CostBy};
use crate::input::{Described, Loaded, load};
use crate::output::{self, BOLD, Column, DIM, Table, line, paint, seconds};

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    input: Described<'a>,
    chip: Option<&'a str>,
    #[serde(flatten)]
    cost: &'a ModuleCost,
}

pub fn run(arguments: &Cost, json: bool) -> Result<()> {
    let chip = arguments.chip.as_deref().map(Chip::parse).transpose()?;
    let loaded = load(&arguments.input)?;
    let mut cost = of(&loaded, chip);
    if let Some(scope) = &arguments.scope {
        cost.instructions.retain(|it| it.op_name.contains(scope.as_str()));
        cost.scopes.retain(|it| it.scope.contains(scope.as_str()));
    }
    if json {
        return output::json(
            "cost",
            &Answer { input: loaded.describe(), chip: chip.map(|chip| chip.name), cost: &cost },
        );
    }
    line(&paint(BOLD, &loaded.title()));
    print_rows(&rows(&cost, arguments.by), chip.is_some(), arguments.limit);
    line("");
    print_total(&cost);
    if let (None, Some(chip)) = (&cost.roofline, chip) {
        output::note(&format!("no rates are published for {}, so there is no estimate of time", chip.name));
    }
    print_assumptions(&cost.assumptions);
    Ok(())
}

pub fn of(loaded: &Loaded, chip: Option<&Chip>) -> ModuleCost {
    let options = CostOptions::devices(loaded.devices);
    cost(&loaded.module, &chip.map_or(options, |chip| options.on(chip)))
}

/// A row of the table.
struct Row {
    name: String,
    executions: Option<Amount>,
    total: Work,
    seconds: Option<Seconds>,
    from: String,
}

fn rows(cost: &ModuleCost, by: CostBy) -> Vec<Row> {
    let mut rows: Vec<Row> = match by {
        CostBy::Loop => loops(cost),
        CostBy::Scope => cost
            .scopes
            .iter()
            .map(|scope| Row {
                name: if scope.scope.is_empty() { "(no scope)".to_owned() } else { scope.scope.clone() },
                executions: None,
                total: scope.total,
                seconds: scope.seconds,
                from: String::new(),
            })
            .collect(),
        CostBy::Op => cost
            .instructions
            .iter()
            .map(|it| Row {
                name: format!("{} %{}", it.op, it.name),
                executions: Some(it.executions),
                total: it.total,
                seconds: it.seconds,
                from: [it.source.clone().unwrap_or_default(), it.op_name.clone()].join(" ").trim().to_owned(),
            })
            .collect(),
        CostBy::Opcode => opcodes(cost),
    };
    let time = |row: &Row| row.seconds.map_or(0.0, |seconds| seconds.serial);
    // Without a chip, by what takes longest on most.
    rows.sort_by(|a, b| {
        time(b).total_cmp(&time(a)).then(b.total.flops.cmp(&a.total.flops)).then(b.total.bytes().cmp(&a.total.bytes()))
    });
    rows
}

/// The loops, and what is outside of all of them.
fn loops(cost: &ModuleCost) -> Vec<Row> {
    let mut rows: Vec<Row> = cost
        .loops
        .iter()
        .map(|it| {
            let times = it.trip_count.map_or("? times".to_owned(), |count| format!("{count} times"));
            Row {
                name: format!("{}%{}, {times}", "  ".repeat(it.depth.saturating_sub(1)), it.name),
                executions: Some(it.executions),
                total: it.total,
                seconds: it.seconds,
                from: it.source.clone().unwrap_or_default(),
            }
        })
        .collect();
    let outside = cost.instructions.iter().filter(|it| it.loop_depth == 0);
    let zero = Row {
        name: "outside of loops".to_owned(),
        executions: Some(Amount::Exactly(1)),
        total: Work::default(),
        seconds: None,
        from: String::new(),
    };
    rows.push(outside.fold(zero, |row, it| Row {
        total: row.total.plus(it.total),
        seconds: sum(row.seconds, it.seconds),
        ..row
    }));
    rows
}

fn opcodes(cost: &ModuleCost) -> Vec<Row> {
    let mut rows: IndexMap<&str, Row> = IndexMap::new();
    for it in &cost.instructions {
        let empty = || Row {
            name: it.op.clone(),
            executions: Some(Amount::Exactly(0)),
            total: Work::default(),
            seconds: None,
            from: String::new(),
        };
        let row = rows.entry(&it.op).or_insert_with(empty);
        row.executions = row.executions.map(|executions| executions.plus(it.executions));
        row.total = row.total.plus(it.total);
        row.seconds = sum(row.seconds, it.seconds);
    }
    rows.into_values().collect()
}

fn sum(a: Option<Seconds>, b: Option<Seconds>) -> Option<Seconds> {
    Seconds::combine(a, b, |a, b| a + b)
}

fn print_rows(rows: &[Row], timed: bool, limit: usize) {
    let mut header = vec![
        ("", Column::Flexible),
        ("times", Column::Number),
        ("operations", Column::Number),
        ("bytes", Column::Number),
        ("op/byte", Column::Optional),
        ("sent", Column::Optional),
    ];
    if timed {
        header.extend([("time", Column::Number), ("bound by", Column::Text)]);
    }
    header.push(("where from", Column::Flexible));
    let mut table = Table::new(&header);
    for row in rows {
        let total = &row.total;
        let unknown = if total.unknown { "+?" } else { "" };
        let mut cells = vec![
            row.name.clone(),
            row.executions.map(output::amount).unwrap_or_default(),
            format!("{}{unknown}", output::human_count(total.flops as f64)),
            output::human_bytes(total.bytes()),
            total.intensity().map_or(String::new(), |intensity| format!("{intensity:.1}")),
            if total.link_bytes == 0 { String::new() } else { output::human_bytes(total.link_bytes) },
        ];
        if timed {
            cells.push(row.seconds.map_or(String::new(), |it| seconds(it.serial)));
            cells.push(row.seconds.map_or(String::new(), |it| it.bound().to_string()));
        }
        cells.push(row.from.clone());
        table.row(cells);
    }
    table.limit(limit).print();
}

fn print_total(cost: &ModuleCost) {
    let total = &cost.total;
    line(&format!("operations           {}", output::count(total.flops as f64)));
    line(&format!("transcendentals      {}", output::count(total.transcendentals as f64)));
    line(&format!("bytes read           {}", output::bytes(total.bytes_read)));
    line(&format!("bytes written        {}", output::bytes(total.bytes_written)));
    if let Some(intensity) = total.intensity() {
        line(&format!("operations per byte  {intensity:.2}"));
    }
    line(&format!("bytes sent           {}", output::bytes(total.link_bytes)));
    if let Some(Roofline { chip, seconds: parts, serial_seconds, overlapped_seconds, bound }) = &cost.roofline {
        let (compute, memory, link) = (seconds(parts.compute), seconds(parts.memory), seconds(parts.link));
        line(&format!("on {chip}, at peak rates: compute {compute}, memory {memory}, links {link}"));
        let (least, most) = (seconds(*overlapped_seconds), seconds(*serial_seconds));
        line(&format!("a step takes at least {least} if all overlaps, {most} if nothing does; {bound} bound"));
    }
}

fn print_assumptions(assumptions: &Assumptions) {
    let say = |text: String| line(&paint(DIM, &text));
    if !assumptions.loops_counted_once.is_empty() {
        let names = assumptions.loops_counted_once.join(", ");
        say(format!("counted once, as their trip counts are not known: {names}"));
    }
    if assumptions.branches {
        say("of branches, sums have the largest".to_owned());
    }
    if assumptions.merged {
        say("the module can be walked in too many ways to keep them apart: sums have all branches".to_owned());
    }
    let mut unknown: Vec<_> = assumptions.unknown_calls.iter().collect();
    unknown.sort_by_key(|call| Reverse(call.bytes));
    for call in unknown {
        let bytes = output::bytes(call.bytes);
        say(format!(
            "+? {} custom calls of {}: what they compute is not known; {bytes}",
            call.instructions, call.target
        ));
    }
}
