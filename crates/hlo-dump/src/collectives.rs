//! `hlo-dump collectives`: the values that move, how often, and over which axis.

use std::cmp::Reverse;
use std::num::NonZeroU64;

use anyhow::{Context, Result, bail};
use indexmap::IndexMap;
use meshloom_analysis::{Amount, Bounds, collectives};
use meshloom_analysis::{AxisPart, Communication, Conditional, ModuleCollective, ModuleCollectives, UncountedCall};
use meshloom_hlo::device_groups::DeviceGroups;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProto;
use meshloom_hlo::suggest::did_you_mean;
use meshloom_hlo::table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{CollectiveColumn, CollectiveGroup, Collectives, Select};
use crate::conditionals::{self, ConditionalSum};
use crate::input::{Loaded, load};
use crate::moved::Moved;
use crate::output::{self, DIM, WARN, amount, amount_of_bytes, line, paint};
use crate::selection::{check_scope, given, note_if_empty};

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    /// The collectives, in the order that was asked for.
    collectives: &'a [ModuleCollective],
    #[serde(flatten)]
    totals: Totals,
    /// The conditionals that have collectives in their branches.
    conditionals: Vec<ConditionalSum<'a>>,
    /// Custom calls that may communicate: what they send is in no sum.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    uncounted: &'a [UncountedCall],
}

#[derive(JsonSchema, Serialize)]
pub struct Totals {
    #[serde(flatten)]
    all: Moved,
    /// Train steps in one execution of the program.
    steps: u64,
    /// The bytes that a device sends in a step, at most: the mean over the steps. Null if the number is not known.
    moved_bytes_per_step: Option<f64>,
}

impl Totals {
    pub fn of(found: &ModuleCollectives, steps: u64) -> Totals {
        let moved = found.moved_bounds();
        Totals {
            all: Moved::of(found.execution_bounds(), moved),
            steps,
            moved_bytes_per_step: moved.most.map(|most| most as f64 / steps as f64),
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub struct Grouped {
    /// The sums, the largest first: what `--group` asks for, instead of single collectives.
    groups: Vec<Sum>,
}

#[derive(JsonSchema, Serialize)]
struct Sum {
    /// The property that its collectives have in common: the kind, axes, scope or source line.
    name: String,
    /// The number of its collectives.
    collectives: usize,
    #[serde(flatten)]
    all: Moved,
}

pub fn run(arguments: &Collectives, json: bool) -> Result<()> {
    let loaded = load(&arguments.input)?;
    let mut found = of(&loaded);
    let all = found.entries.len();
    found.entries.retain(selection(&arguments.select, &loaded)?);
    note_if_none(found.entries.len(), all, &arguments.select);
    sort(&mut found.entries, arguments.by);
    if let Some(by) = arguments.group {
        let groups = sums(&found, by);
        if json {
            return output::json("hlo-dump/collectives", &loaded.found(&Grouped { groups }));
        }
        loaded.print_title();
        let table = Table::of(&groups)
            .flexible("", |sum| &sum.name)
            .number("collectives", |sum| sum.collectives)
            .number("times", |sum| output::bounds_of_count(sum.all.executions()))
            .number("moved in all", |sum| output::bounds_of_bytes(sum.all.moved_bytes()));
        output::table(table, arguments.limit);
        conditionals::print(&found);
        print_total(&loaded, &found, all);
        return Ok(());
    }
    let steps = arguments.steps.map_or_else(|| loaded.steps_per_execution(), NonZeroU64::get);
    if json {
        let (totals, conditionals) = (Totals::of(&found, steps), conditionals::sums(&found));
        let answer = Answer { collectives: &found.entries, totals, conditionals, uncounted: &found.uncounted };
        return output::json("hlo-dump/collectives", &loaded.found(&answer));
    }
    loaded.print_title();
    print(&found.entries, &found.conditionals, arguments.limit);
    conditionals::print(&found);
    print_total(&loaded, &found, all);
    print_per_step(&found, &arguments.select.over, steps);
    if found.merged {
        output::note("the module can be walked in too many ways to keep them apart: a row is all of an instruction's");
    }
    if loaded.is_nameless() && !found.entries.is_empty() {
        line(&paint(DIM, "the module names no mesh; --mesh data=2,fsdp=4 would name the axes"));
    }
    Ok(())
}

pub fn of(loaded: &Loaded) -> ModuleCollectives {
    of_module(&loaded.module, loaded)
}

pub fn of_module(module: &HloModuleProto, loaded: &Loaded) -> ModuleCollectives {
    let found = collectives(module, loaded.devices);
    match &loaded.mesh {
        Some(mesh) => found.along(mesh),
        None => found,
    }
}

/// Returns the mesh axes, or else the devices in short: `groups of 4, stride 2`.
pub fn axes_text(entry: &ModuleCollective) -> String {
    let Some(axes) = &entry.axes else { return devices_text(entry) };
    let names: Vec<_> = axes.iter().map(ToString::to_string).collect();
    match (names.as_slice(), entry.shift) {
        ([], _) => "none".to_owned(),
        (names, Some(shift)) => format!("{} {shift:+}", names.join(",")),
        (names, None) => names.join(","),
    }
}

/// Returns the axes, whichever way a permute goes along them.
pub fn axes_of(entry: &ModuleCollective) -> String {
    match &entry.axes {
        Some(axes) if !axes.is_empty() => axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        _ => axes_text(entry),
    }
}

fn devices_text(entry: &ModuleCollective) -> String {
    if !entry.pairs.is_empty() {
        let shown: Vec<_> = entry.pairs.iter().take(2).map(|(from, to)| format!("{from}>{to}")).collect();
        let more = if entry.pairs.len() > 2 { ",..." } else { "" };
        return format!("{}{more}", shown.join(","));
    }
    let size = entry.group_size.map_or("?".to_owned(), |size| size.to_string());
    match &entry.groups {
        // A send or receive has a partner elsewhere, such as the host's runtime.
        DeviceGroups::One if entry.group_size.is_none() => "one to one".to_owned(),
        DeviceGroups::One => format!("all {size}"),
        DeviceGroups::Unreadable => "?".to_owned(),
        DeviceGroups::Lists(lists) => {
            let first: Vec<_> = lists.iter().flatten().take(4).map(u64::to_string).collect();
            let more = if lists.first().is_some_and(|list| list.len() > 4) { ",..." } else { "" };
            let first = first[..first.len().min(lists.first().map_or(0, Vec::len))].join(",");
            format!("{}x{size} {{{first}{more}}}", lists.len())
        }
        DeviceGroups::Iota { dims, permutation, .. } => {
            let join = |numbers: &mut dyn Iterator<Item = String>| numbers.collect::<Vec<_>>().join(",");
            let dims = join(&mut dims.iter().map(u64::to_string));
            let order = join(&mut permutation.iter().map(usize::to_string));
            let transposed = if permutation.len() > 1 { format!("T({order})") } else { String::new() };
            format!("groups of {size} <=[{dims}]{transposed}")
        }
    }
}

/// Returns whether a collective crosses all axes, or parts of axes, that an option names. One that does not state which
/// devices take part may cross any axis.
fn crossing<'a>(
    option: &str,
    names: &[String],
    loaded: &'a Loaded,
) -> Result<impl Fn(&ModuleCollective) -> bool + use<'a>> {
    let axes: Vec<(AxisPart, &'a Mesh)> = names
        .iter()
        .map(|name| {
            let Some(mesh) = &loaded.mesh else {
                bail!("{option} {name}: the module names no mesh; add --mesh, such as --mesh data=2,fsdp=4")
            };
            Ok((AxisPart::parse(name, mesh).with_context(|| format!("{option} {name}"))?, mesh))
        })
        .collect::<Result<_, _>>()?;
    Ok(move |entry: &ModuleCollective| axes.iter().all(|(axis, mesh)| entry.crosses(axis, mesh).unwrap_or(true)))
}

/// Keeps the collectives that cross all axes that an option names.
pub fn keep_over(found: &mut ModuleCollectives, option: &str, names: &[String], loaded: &Loaded) -> Result<()> {
    found.entries.retain(crossing(option, names, loaded)?);
    Ok(())
}

/// Returns whether options select a collective.
pub fn selection<'a>(select: &'a Select, loaded: &'a Loaded) -> Result<impl Fn(&ModuleCollective) -> bool + use<'a>> {
    let crosses = crossing("--over", &select.over, loaded)?;
    if let Some(kind) = &select.kind
        && Communication::named(kind).is_none()
    {
        let all = Communication::ALL.map(Communication::name).join(", ");
        let near = did_you_mean(kind, Communication::ALL.map(Communication::name));
        bail!("--kind {kind}: unknown collective{near}; known are {all}");
    }
    check_scope(select.scope.as_deref(), loaded)?;
    Ok(move |entry: &ModuleCollective| {
        crosses(entry)
            && select.kind.as_ref().is_none_or(|kind| entry.kind.name() == kind)
            // An unknown amount may be large.
            && select.min_bytes.is_none_or(|least| entry.total_moved_bytes().bound().is_none_or(|bytes| bytes >= least))
            && select.scope.as_ref().is_none_or(|scope| entry.op_name.contains(scope.as_str()))
            && (!select.in_loops || entry.loop_depth > 0)
    })
}

/// Notes that nothing is selected.
pub fn note_if_none(left: usize, all: usize, select: &Select) {
    let over = select.over.iter().map(|axis| format!("--over {axis}")).reduce(|one, other| format!("{one} {other}"));
    let options = [
        over,
        given("--kind", &select.kind),
        given("--min-bytes", &select.min_bytes.map(output::human_bytes)),
        given("--scope", &select.scope),
        select.in_loops.then(|| "--in-loops".to_owned()),
    ];
    note_if_empty(left, all, "collective", options);
}

fn sort(entries: &mut [ModuleCollective], by: CollectiveColumn) {
    /// Returns a key that sorts by size. Unknown amounts come first, since they may be the largest.
    fn size(amount: Amount) -> Reverse<u64> {
        Reverse(amount.bound().unwrap_or(u64::MAX))
    }
    match by {
        CollectiveColumn::Program => {}
        CollectiveColumn::Total => entries.sort_by_key(|entry| size(entry.total_moved_bytes())),
        CollectiveColumn::Bytes => entries.sort_by_key(|entry| Reverse(entry.bytes.unwrap_or(u64::MAX))),
        CollectiveColumn::Executions => entries.sort_by_key(|entry| size(entry.executions)),
        CollectiveColumn::Kind => entries.sort_by_key(|entry| entry.kind.name()),
        CollectiveColumn::Axes => entries.sort_by_key(axes_text),
        CollectiveColumn::Source => entries.sort_by_key(where_from),
    }
}

/// Returns the source line and the scope; the instruction if the module states neither.
pub fn where_from(entry: &ModuleCollective) -> String {
    from_or_name(entry.source.as_deref(), &entry.op_name, (&entry.name, &entry.computation))
}

fn from_or_name(source: Option<&str>, op_name: &str, (name, computation): (&str, &str)) -> String {
    match output::whence(source, op_name) {
        nowhere if nowhere.is_empty() => format!("%{name} in {computation}"),
        from => from,
    }
}

/// Prints a table. Collectives that are alike in everything that is shown are one row, with their number.
pub fn print(entries: &[ModuleCollective], conditionals: &[Conditional], limit: usize) {
    let mut rows: IndexMap<[String; 8], (usize, Amount, Amount)> = IndexMap::new();
    for entry in entries {
        let halves = if entry.asynchronous { " (async)" } else { "" };
        let key = [
            format!("{}{halves}", entry.kind.name()),
            axes_text(entry),
            entry.group_size.map_or(String::new(), |size| size.to_string()),
            output::known_bytes(entry.bytes),
            // Executions are in the key too: a collective that runs now and then does not share a row with one that
            // always runs.
            amount(entry.executions),
            if entry.loop_depth == 0 { String::new() } else { entry.loop_depth.to_string() },
            conditionals::branch_text(conditionals, entry),
            where_from(entry),
        ];
        let row = rows.entry(key).or_insert((0, Amount::Exactly(0), Amount::Exactly(0)));
        *row = (row.0 + 1, row.1.plus(entry.executions), row.2.plus(entry.total_moved_bytes()));
    }
    let table = Table::of(&rows)
        .text("collective", |(key, (count, ..))| match count {
            1 => key[0].clone(),
            count => format!("{} x{count}", key[0]),
        })
        .text("axes", |(key, _)| &key[1])
        .optional("devices", |(key, _)| &key[2])
        .number("bytes", |(key, _)| &key[3])
        .number("times", |(_, (_, executions, _))| amount(*executions))
        .number("moved in all", |(_, (.., moved))| amount_of_bytes(*moved))
        .optional("loops", |(key, _)| &key[5])
        .text("branch", |(key, _)| &key[6])
        .flexible("where from", |(key, _)| &key[7]);
    output::table(table, limit);
}

pub fn print_total(loaded: &Loaded, found: &ModuleCollectives, all: usize) {
    let of_all = if found.entries.len() == all { String::new() } else { format!(" of {all}") };
    let missing = if loaded.partitioning.is_pending() { ", without what XLA will add" } else { "" };
    line(&format!(
        "{}{of_all}, executed {}; each device sends {}{missing}",
        output::plural(found.entries.len() as u64, "collective"),
        output::bounds_of_times(found.execution_bounds()),
        output::bounds_of_bytes(found.moved_bounds())
    ));
    let unknown = found.entries.iter().filter(|entry| entry.executions == Amount::Unknown).count();
    if unknown > 0 {
        let run = if unknown == 1 { "runs" } else { "run" };
        let sums = "sums with >= leave them out, as they may not run at all";
        line(&paint(DIM, &format!("? {unknown} {run} in a loop whose trip count is not known before it runs; {sums}")));
    }
    if found.entries.iter().any(|entry| matches!(entry.executions, Amount::AtMost(_))) {
        line(&paint(DIM, "<= in a branch that may not be taken"));
    }
    uncounted_text(&found.uncounted).iter().for_each(|text| line(&paint(WARN, text)));
}

/// Returns one line that says which custom calls may send something that is not counted; `None` if there are none.
pub fn uncounted_text(calls: &[UncountedCall]) -> Option<String> {
    const SHOWN: usize = 3;
    let mut targets: IndexMap<&str, String> = IndexMap::new();
    for call in calls {
        let from = || from_or_name(call.source.as_deref(), &call.op_name, (&call.name, &call.computation));
        targets.entry(&call.target).or_insert_with(from);
    }
    let more = if targets.len() > SHOWN { format!(" and {} more", targets.len() - SHOWN) } else { String::new() };
    let named: Vec<String> = targets.iter().take(SHOWN).map(|(target, from)| format!("{target} ({from})")).collect();
    let all = output::plural(calls.len() as u64, "custom call");
    let named = named.join(", ");
    (!calls.is_empty()).then(|| format!("{all} may communicate, and what is sent there is not counted: {named}{more}"))
}

/// Prints what a device sends over the axes that were asked for, in an execution of several steps and in one step.
fn print_per_step(found: &ModuleCollectives, over: &[String], steps: u64) {
    // For one step, the line of the total has it already.
    if steps == 1 {
        return;
    }
    let over = if over.is_empty() { String::new() } else { format!(" over {}", over.join(" and ")) };
    let Bounds { least, most } = found.moved_bounds();
    let all = output::bounds_of_bytes(Bounds { least, most });
    line(&format!("an execution sends {all}{over} from each device"));
    // Steps need not be alike: a quotient is a mean.
    let each = |bytes: u64| bytes as f64 / steps as f64;
    let is_whole = least.is_multiple_of(steps) && most.is_none_or(|most| most.is_multiple_of(steps));
    let a_step = match most {
        _ if is_whole => output::bounds_of_bytes(Bounds { least: least / steps, most: most.map(|most| most / steps) }),
        Some(most) if most == least => format!("about {}", output::human_bytes(each(most).round() as u64)),
        Some(most) => {
            let [least, most] = [least, most].map(|bytes| output::human_bytes(each(bytes).round() as u64));
            format!("about {least} to {most}")
        }
        None => format!(">= {}", output::human_bytes(each(least) as u64)),
    };
    line(&format!("a step, of {steps} in an execution: {a_step}"));
}

fn sums(found: &ModuleCollectives, by: CollectiveGroup) -> Vec<Sum> {
    let mut groups: IndexMap<String, Vec<ModuleCollective>> = IndexMap::new();
    for entry in &found.entries {
        let kind = entry.kind.name().to_owned();
        let name = match by {
            CollectiveGroup::Kind => kind,
            CollectiveGroup::Axes => axes_text(entry),
            CollectiveGroup::KindAxes => format!("{kind} {}", axes_text(entry)),
            CollectiveGroup::Scope => scope_of(entry).unwrap_or("no scope").to_owned(),
            CollectiveGroup::Source => entry.source.clone().unwrap_or_else(|| "unknown".to_owned()),
        };
        groups.entry(name).or_default().push(entry.clone());
    }
    let sum = |(name, entries): (String, Vec<ModuleCollective>)| {
        let group = found.some(entries);
        let all = Moved::of(group.execution_bounds(), group.moved_bounds());
        Sum { name, collectives: group.entries.len(), all }
    };
    let mut groups: Vec<Sum> = groups.into_iter().map(sum).collect();
    groups.sort_by_key(|sum| Reverse(sum.all.moved_bytes().most.unwrap_or(u64::MAX)));
    groups
}

/// Returns the scope path without the op; `None` if there is none.
pub fn scope_of(entry: &ModuleCollective) -> Option<&str> {
    entry.op_name.rsplit_once('/').map(|(scope, _)| scope)
}
