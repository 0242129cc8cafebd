//! The contents of the branches of conditionals. Each conditional runs one of its branches.

use meshloom_analysis::{Amount, Branch};
use meshloom_analysis::{Conditional, ModuleCollective, ModuleCollectives};
use meshloom_hlo::table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::moved::Moved;
use crate::output::{self, line};

/// A conditional with collectives in its branches.
#[derive(JsonSchema, Serialize)]
pub struct ConditionalSum<'a> {
    /// The number that `branches` of a collective uses.
    number: usize,
    /// The name of the instruction.
    name: &'a str,
    /// The name of the computation that it is in.
    computation: &'a str,
    /// The scope path and op of its metadata.
    op_name: &'a str,
    /// The source line of its metadata as `file:line`, if it has one.
    source: Option<&'a str>,
    /// How often it runs in one run of the program.
    executions: Amount,
    /// Its branches, in program order.
    branches: Vec<BranchSum<'a>>,
}

/// The bytes that a branch moves: as often as devices take it, where that is known, else as if it were taken each time
/// that its conditional runs.
#[derive(JsonSchema, Serialize)]
struct BranchSum<'a> {
    /// `true`, `false`, or the value of the selector.
    when: &'a str,
    /// The number of collectives in it.
    collectives: usize,
    #[serde(flatten)]
    all: Moved,
}

/// Returns the conditionals that contain any of these collectives.
pub fn sums(found: &ModuleCollectives) -> Vec<ConditionalSum<'_>> {
    let all = found.conditionals.iter().enumerate();
    all.filter_map(|(number, conditional)| {
        let branches = conditional.branches.iter().enumerate();
        let branches: Vec<_> = branches.map(|(branch, when)| branch_sum(found, when, (number, branch))).collect();
        let Conditional { name, computation, op_name, source, executions, .. } = conditional;
        branches.iter().any(|branch| branch.collectives > 0).then_some(ConditionalSum {
            number,
            name,
            computation,
            op_name,
            source: source.as_deref(),
            executions: *executions,
            branches,
        })
    })
    .collect()
}

fn branch_sum<'a>(found: &ModuleCollectives, when: &'a str, at: (usize, usize)) -> BranchSum<'a> {
    let is_inside = |entry: &&ModuleCollective| entry.branches.iter().any(|it| (it.conditional, it.branch) == at);
    let executions = found.total_in_branch(at, |_| Some(1));
    let moved = found.total_in_branch(at, |entry| entry.moved_bytes);
    let collectives = found.entries.iter().filter(is_inside).count();
    BranchSum { when, collectives, all: Moved::of(executions, moved) }
}

/// Returns `true`, `1 of 3`, or `true > 1 of 3` for a branch within another.
pub fn branch_text(conditionals: &[Conditional], entry: &ModuleCollective) -> String {
    let one = |it: &Branch| {
        let when = conditionals.get(it.conditional).and_then(|conditional| conditional.branches.get(it.branch));
        match when.map(String::as_str) {
            Some(truth @ ("true" | "false")) => truth.to_owned(),
            _ => format!("{} of {}", it.branch, it.branch_count),
        }
    };
    entry.branches.iter().map(one).collect::<Vec<_>>().join(" > ")
}

pub fn print(found: &ModuleCollectives) {
    let conditionals = sums(found);
    if conditionals.is_empty() {
        return;
    }
    let rows = conditionals.iter().flat_map(|it| it.branches.iter().enumerate().map(move |row| (it, row)));
    let first = |number: usize, text: String| if number == 0 { text } else { String::new() };
    let table = Table::of(rows)
        .text("one of these branches", |(it, (number, _))| {
            first(*number, format!("%{} in {}", it.name, it.computation))
        })
        .text("taken when", |(_, (_, branch))| branch.when)
        .number("collectives", |(_, (_, branch))| branch.collectives)
        .number("times", |(_, (_, branch))| output::bounds_of_count(branch.all.executions()))
        .number("sends", |(_, (_, branch))| output::bounds_of_bytes(branch.all.moved_bytes()))
        .flexible("where from", |(it, (number, _))| first(*number, output::whence(it.source, it.op_name)));
    line("");
    output::table(table, 0);
    line("");
}
