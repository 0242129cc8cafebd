//! `hlo-dump cost`: the cost of a program, and the resource that limits it.

use std::cmp::Reverse;

use anyhow::{Result, bail};
use indexmap::IndexMap;
use meshloom_analysis::Amount;
use meshloom_analysis::cost::{Assumptions, InstructionCost, LoopCost, Roofline, ScopeCost, Seconds};
use meshloom_analysis::{Chip, CostOptions, ModuleCost, Work, cost};
use meshloom_hlo::table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Cost, CostBy};
use crate::input::{Loaded, load};
use crate::output::{self, DIM, line, or_no_scope, paint, plural, seconds, whence};
use crate::selection::{check_scope, given, note_if_empty};

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    /// The chip that `--chip` names.
    chip: Option<&'a str>,
    #[serde(flatten)]
    cost: &'a ModuleCost,
}

pub fn run(arguments: &Cost, json: bool) -> Result<()> {
    let chip = arguments.chip.as_deref().map(Chip::parse).transpose()?;
    let loaded = load(&arguments.input)?;
    let mut cost = of(&loaded, chip);
    check_scope(arguments.scope.as_deref(), &loaded)?;
    let by = match (arguments.by, &arguments.scope) {
        (Some(CostBy::Loop), Some(scope)) => {
            bail!(
                "--by loop adds up whole loops, whatever is in them; with --scope {scope}, take --by op, opcode or scope"
            )
        }
        (Some(by), _) => by,
        (None, Some(_)) => CostBy::Op,
        (None, None) => CostBy::Loop,
    };
    let all = cost.instructions.len();
    if let Some(scope) = &arguments.scope {
        cost.instructions.retain(|it| it.op_name.contains(scope.as_str()));
        cost.scopes.retain(|it| it.scope.contains(scope.as_str()));
    }
    note_if_empty(cost.instructions.len(), all, "instruction", [given("--scope", &arguments.scope)]);
    if json {
        return output::json("hlo-dump/cost", &loaded.found(&Answer { chip: chip.map(|chip| chip.name), cost: &cost }));
    }
    loaded.print_title();
    print_rows(&rows(&cost, by), chip.is_some(), arguments.limit);
    line("");
    if let Some(scope) = &arguments.scope {
        let selected = cost.instructions.iter().fold(Work::default(), |sum, it| sum.plus(it.total));
        let (flops, bytes) = (output::count(selected.flops as f64), output::bytes(selected.bytes()));
        line(&format!("in scope {scope}: {flops} operations, {bytes} read and written; in all:"));
    }
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

struct CostRow {
    name: String,
    executions: Option<Amount>,
    total: Work,
    seconds: Option<Seconds>,
    from: String,
}

impl CostRow {
    fn empty(name: &str, executions: u64) -> CostRow {
        let executions = Some(Amount::Exactly(executions));
        CostRow { name: name.to_owned(), executions, total: Work::default(), seconds: None, from: String::new() }
    }

    fn add(&mut self, total: Work, seconds: Option<Seconds>) {
        self.total = self.total.plus(total);
        self.seconds = Seconds::combine(self.seconds, seconds, |a, b| a + b);
    }
}

fn rows(cost: &ModuleCost, by: CostBy) -> Vec<CostRow> {
    let mut rows: Vec<CostRow> = match by {
        CostBy::Loop => loops(cost),
        CostBy::Scope => {
            let row = |it: &ScopeCost| CostRow {
                name: or_no_scope(&it.scope).to_owned(),
                executions: None,
                total: it.total,
                seconds: it.seconds,
                from: String::new(),
            };
            cost.scopes.iter().map(row).collect()
        }
        CostBy::Op => {
            let row = |it: &InstructionCost| CostRow {
                name: format!("{} %{}", it.op, it.name),
                executions: Some(it.executions),
                total: it.total,
                seconds: it.seconds,
                from: whence(it.source.as_deref(), &it.op_name),
            };
            cost.instructions.iter().map(row).collect()
        }
        CostBy::Opcode => {
            let mut rows: IndexMap<&str, CostRow> = IndexMap::new();
            for it in &cost.instructions {
                let row = rows.entry(&it.op).or_insert_with(|| CostRow::empty(&it.op, 0));
                row.executions = row.executions.map(|executions| executions.plus(it.executions));
                row.add(it.total, it.seconds);
            }
            rows.into_values().collect()
        }
    };
    let time = |row: &CostRow| row.seconds.map_or(0.0, |seconds| seconds.serial);
    // Without a chip all times are 0: then operations decide, and after them bytes.
    rows.sort_by(|a, b| {
        time(b).total_cmp(&time(a)).then(b.total.flops.cmp(&a.total.flops)).then(b.total.bytes().cmp(&a.total.bytes()))
    });
    rows
}

fn loops(cost: &ModuleCost) -> Vec<CostRow> {
    let row = |it: &LoopCost| {
        let times = output::bounds_of_times(it.trips);
        CostRow {
            name: format!("{}%{}, {times}", "  ".repeat(it.depth.saturating_sub(1)), it.name),
            executions: Some(it.executions),
            total: it.total,
            seconds: it.seconds,
            from: it.source.clone().unwrap_or_default(),
        }
    };
    let mut outside = CostRow::empty("outside of loops", 1);
    cost.instructions.iter().filter(|it| it.loop_depth == 0).for_each(|it| outside.add(it.total, it.seconds));
    cost.loops.iter().map(row).chain([outside]).collect()
}

fn print_rows(rows: &[CostRow], timed: bool, limit: usize) {
    let operations =
        |total: &Work| format!("{}{}", output::human_count(total.flops as f64), if total.unknown { "+?" } else { "" });
    let sent = |bytes: u64| if bytes == 0 { String::new() } else { output::human_bytes(bytes) };
    let cycles = |count: u64| if count == 0 { String::new() } else { output::human_count(count as f64) };
    let mut table = Table::of(rows)
        .flexible("", |row| &row.name)
        .number("times", |row| row.executions.map(output::amount).unwrap_or_default())
        .number("operations", |row| operations(&row.total))
        .number("bytes", |row| output::human_bytes(row.total.bytes()))
        .optional("op/byte", |row| row.total.intensity().map_or(String::new(), |intensity| format!("{intensity:.1}")))
        .optional("sent", |row| sent(row.total.link_bytes))
        .optional("cycles", |row| cycles(row.total.cycles));
    if timed {
        table = table
            .number("time", |row| row.seconds.map_or(String::new(), |it| seconds(it.serial)))
            .text("bound by", |row| row.seconds.map_or(String::new(), |it| it.bound().to_string()));
    }
    output::table(table.flexible("where from", |row| &row.from), limit);
}

fn print_total(cost: &ModuleCost) {
    let total = &cost.total;
    if !cost.assumptions.loops_counted_once.is_empty() {
        let names = cost.assumptions.loops_counted_once.join(", ");
        line(&format!("with loops counted once whose trip counts are not known ({names}):"));
    }
    line(&format!("operations           {}", output::count(total.flops as f64)));
    line(&format!("transcendentals      {}", output::count(total.transcendentals as f64)));
    line(&format!("bytes read           {}", output::bytes(total.bytes_read)));
    line(&format!("bytes written        {}", output::bytes(total.bytes_written)));
    if let Some(intensity) = total.intensity() {
        line(&format!("operations per byte  {intensity:.2}"));
    }
    line(&format!("bytes sent           {}", output::bytes(total.link_bytes)));
    if total.cycles > 0 {
        let cycles = output::count(total.cycles as f64);
        line(&format!("cycles               {cycles}, the compiler's estimate, for the kernels that have one"));
    }
    if let Some(Roofline { chip, seconds: parts, serial_seconds, overlapped_seconds, bound }) = &cost.roofline {
        let (compute, memory, link) = (seconds(parts.compute), seconds(parts.memory), seconds(parts.link));
        line(&format!("on {chip}, at peak rates: compute {compute}, memory {memory}, links {link}"));
        let (least, most) = (seconds(*overlapped_seconds), seconds(*serial_seconds));
        line(&format!("a step takes at least {least} if all overlaps, {most} if nothing does; {bound} bound"));
    }
}

fn print_assumptions(assumptions: &Assumptions) {
    let say = |text: String| line(&paint(DIM, &text));
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
            "+? {} of {}: what they compute is not known; {bytes}",
            plural(call.instructions, "custom call"),
            call.target
        ));
    }
}
