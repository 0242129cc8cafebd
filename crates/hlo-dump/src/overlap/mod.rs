//! `hlo-dump overlap`, `compile --overlap` and `check --min-overlap`: the transfers that a compiled schedule hides.

mod perfetto;

use std::cmp::Ordering;

use anyhow::{Context, Result, bail};
use indexmap::IndexMap;
use meshloom_analysis::overlap::Beside;
use meshloom_analysis::{
    Amount, AxisPart, Chip, CollectiveOverlap, CostOptions, Hidden, HostCopyOverlap, ModuleOverlap, overlap,
    overlap_with_events, slice_count,
};
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{self, Select};
use crate::collectives::{axes_of, axes_text, note_if_none, selection, where_from};
use crate::input::{Loaded, load, load_profile};
use crate::output::{self, DIM, line, paint};

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    #[serde(flatten)]
    found: &'a ModuleOverlap,
    /// The sums over the collectives of the same axes.
    axes: Vec<AxesSum>,
    /// The trace that `--perfetto` wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    perfetto: Option<perfetto::Written>,
}

/// The sum of transfers over the same axes.
#[derive(JsonSchema, Serialize)]
struct AxesSum {
    /// The mesh axes that the transfers cross.
    axes: String,
    /// The number of collectives.
    count: usize,
    #[serde(flatten)]
    hidden: Hidden,
    /// The hidden part, from 0 to 1.
    hidden_share: Option<f64>,
}

pub fn run(arguments: &arguments::Overlap, json: bool) -> Result<()> {
    let Some(chip) = &arguments.chip else {
        bail!("times need the rates of a chip; say for which, as --chip v5p or --chip h100")
    };
    let chip = Chip::parse(chip)?;
    let mut loaded = load(&arguments.input)?;
    if let Some(path) = &arguments.profile {
        loaded.profile = Some(load_profile(path)?);
    }
    let is_selected = selection(&arguments.select, &loaded)?;
    let (mut found, written) = match &arguments.perfetto {
        None => (of(&loaded, chip)?, None),
        Some(path) => {
            let (found, events) =
                overlap_with_events(&loaded.module, loaded.mesh.as_ref(), &options(&loaded, chip), perfetto::MOST)
                    .with_context(|| loaded.name.clone())?;
            let written = perfetto::write(path, &loaded, &found, &events)?;
            (found, Some(written))
        }
    };
    let all = found.transfers.len();
    found.transfers.retain(|it| is_selected(&it.collective));
    note_if_none(found.transfers.len(), all, &arguments.select);
    found.host_copies.retain(|copy| is_selected_copy(&arguments.select, copy));
    found.total = Hidden::sum(found.transfers.iter().map(|it| it.hidden));
    if json {
        let answer = Answer { axes: sums(&found), found: &found, perfetto: written };
        return output::json("hlo-dump/overlap", &loaded.found(&answer));
    }
    loaded.print_title();
    print(&found, arguments.limit);
    if found.transfers.len() < all {
        line(&paint(DIM, &format!("{} of {all} collectives are selected", found.transfers.len())));
    }
    if loaded.is_nameless() && !found.transfers.is_empty() {
        line(&paint(
            DIM,
            "the module names no mesh, so every collective takes the links of all axes; --mesh data=2,fsdp=4 would name \
             them",
        ));
    }
    if let Some(written) = written {
        written.print();
    }
    Ok(())
}

/// Whether options select a copy, which is no collective: only its scope can be asked for.
fn is_selected_copy(select: &Select, copy: &HostCopyOverlap) -> bool {
    let Select { over, kind, min_bytes, scope, in_loops } = select;
    over.is_empty()
        && kind.is_none()
        && !in_loops
        && min_bytes.is_none_or(|least| copy.bytes >= least)
        && scope.as_ref().is_none_or(|scope| copy.op_name.contains(scope.as_str()))
}

pub fn of(loaded: &Loaded, chip: &Chip) -> Result<ModuleOverlap> {
    overlap(&loaded.module, loaded.mesh.as_ref(), &options(loaded, chip)).with_context(|| loaded.name.clone())
}

fn options(loaded: &Loaded, chip: &Chip) -> CostOptions {
    let slices = slice_count(&loaded.module);
    let slice_devices = (slices > 1).then(|| loaded.device_count() / slices);
    CostOptions { slice_devices, ..CostOptions::devices(loaded.devices).on(chip) }
}

/// A row of the table: a collective, or a copy to or from the host.
struct TransferRow<'a> {
    name: String,
    axes: String,
    executions: Amount,
    bytes: Amount,
    hidden: Hidden,
    largest_beside: Option<&'a Beside>,
    from: String,
}

fn rows(found: &ModuleOverlap) -> Vec<TransferRow<'_>> {
    let name = |kind: &str, synchronous: bool| format!("{kind}{}", if synchronous { "" } else { " (async)" });
    let collectives = found.transfers.iter().map(|it| TransferRow {
        name: name(it.collective.kind.name(), it.synchronous),
        axes: axes_text(&it.collective),
        executions: it.collective.executions,
        bytes: it.collective.total_moved_bytes(),
        hidden: it.hidden,
        largest_beside: it.largest_beside.as_ref(),
        from: where_from(&it.collective),
    });
    let copies = found.host_copies.iter().filter(|it| it.hidden.seconds > 0.0).map(|it| TransferRow {
        name: name("copy", it.synchronous),
        axes: it.direction.to_owned(),
        executions: it.executions,
        bytes: it.executions.times(it.bytes),
        hidden: it.hidden,
        largest_beside: None,
        from: output::whence(it.source.as_deref(), &it.op_name),
    });
    let mut rows: Vec<TransferRow<'_>> = collectives.chain(copies).collect();
    rows.sort_by(|a, b| b.hidden.exposed_seconds.total_cmp(&a.hidden.exposed_seconds));
    rows
}

/// Returns the sums by axes.
fn sums(found: &ModuleOverlap) -> Vec<AxesSum> {
    sums_by(found.transfers.iter().map(|it| (axes_of(&it.collective), it.hidden)))
}

/// Returns the sums of copies to and from the host, by direction.
fn host_sums(found: &ModuleOverlap) -> Vec<AxesSum> {
    let timed = found.host_copies.iter().filter(|copy| copy.hidden.seconds > 0.0);
    sums_by(timed.map(|copy| (copy.direction.to_owned(), copy.hidden)))
}

fn sums_by(parts: impl Iterator<Item = (String, Hidden)>) -> Vec<AxesSum> {
    let mut sums: IndexMap<String, Vec<Hidden>> = IndexMap::new();
    parts.for_each(|(axes, hidden)| sums.entry(axes).or_default().push(hidden));
    sums.into_iter().map(|(axes, parts)| AxesSum::of(axes, parts.len(), Hidden::sum(parts))).collect()
}

impl AxesSum {
    fn of(axes: String, count: usize, hidden: Hidden) -> AxesSum {
        AxesSum { axes, count, hidden, hidden_share: hidden.share() }
    }
}

/// Prints each transfer, the most exposed first, the sums over axes, and how long the device computes and waits.
pub fn print(found: &ModuleOverlap, limit: usize) {
    let table = Table::of(rows(found))
        .text("collective", |it| it.name.clone())
        .text("axes", |it| it.axes.clone())
        .number("times", |it| output::amount(it.executions))
        .number("bytes sent", |it| output::amount_of_bytes(it.bytes))
        .number("transfer", |it| output::seconds(it.hidden.seconds))
        .number("exposed", |it| output::seconds(it.hidden.exposed_seconds))
        .number("waited for", |it| output::seconds(it.hidden.waited_seconds))
        .number("hidden", |it| share_text(it.hidden))
        .flexible("largest beside it", |it| match it.largest_beside {
            Some(largest) => format!("{} %{}, {}", largest.op, largest.name, output::seconds(largest.seconds)),
            None => String::new(),
        })
        .flexible("where from", |it| it.from.clone());
    output::table(table, limit);
    line("");
    let all = AxesSum::of("all".to_owned(), found.transfers.len(), found.total);
    let table = Table::of(sums(found).into_iter().chain([all]).chain(host_sums(found)))
        .text("over", |sum| sum.axes.clone())
        .number("collectives", |sum| sum.count)
        .number("transfer", |sum| output::seconds(sum.hidden.seconds))
        .number("exposed", |sum| output::seconds(sum.hidden.exposed_seconds))
        .number("waited for", |sum| output::seconds(sum.hidden.waited_seconds))
        .number("hidden", |sum| share_text(sum.hidden));
    output::table(table, 0);
    let (computing, waiting) = (output::seconds(found.computing_seconds), output::seconds(found.waiting_seconds));
    line(&format!("on {}, at peak rates: it computes for {computing}, and waits for {waiting}", found.chip));
    if found.loops_counted_once {
        line(&paint(DIM, "loops whose trip count is not known count once"));
    }
    let untimed = found.host_copies.iter().filter(|copy| copy.hidden.seconds == 0.0).count() as u64;
    if untimed > 0 {
        let copies = if untimed == 1 { "1 copy".to_owned() } else { format!("{} copies", output::thousands(untimed)) };
        let chip = found.chip;
        line(&paint(
            DIM,
            &format!("{copies} to or from the host without a time: the rate of {chip}'s link to it is not published"),
        ));
    }
}

/// Returns `83.1 %`, or a dash where nothing is sent.
pub fn share_text(hidden: Hidden) -> String {
    hidden.share().map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

/// Compares collectives so that the most exposed come first.
pub fn by_exposed(a: &CollectiveOverlap, b: &CollectiveOverlap) -> Ordering {
    b.hidden.exposed_seconds.total_cmp(&a.hidden.exposed_seconds)
}

pub fn axis<'a>(name: &str, loaded: &'a Loaded) -> Result<(AxisPart, &'a Mesh)> {
    let Some(mesh) = &loaded.mesh else {
        bail!("--min-overlap {name}: the module names no mesh; add --mesh, such as --mesh data=2,fsdp=4")
    };
    let part = AxisPart::parse(name, mesh).with_context(|| format!("--min-overlap {name}"))?;
    Ok((part, mesh))
}

/// Returns the hidden share over an axis, or of all, and the exposed collectives, the most exposed first. A collective
/// that does not state which devices take part may cross any axis.
pub fn over(found: &ModuleOverlap, axis: Option<&str>, loaded: &Loaded) -> Result<(Hidden, Vec<String>)> {
    let mut transfers: Vec<&CollectiveOverlap> = found.transfers.iter().collect();
    if let Some(name) = axis {
        let (part, mesh) = self::axis(name, loaded)?;
        transfers.retain(|it| it.collective.crosses(&part, mesh).unwrap_or(true));
    }
    transfers.sort_by(|a, b| by_exposed(a, b));
    let sum = Hidden::sum(transfers.iter().map(|it| it.hidden));
    let describe = |it: &&CollectiveOverlap| {
        let (kind, axes) = (it.collective.kind.name(), axes_text(&it.collective));
        let (exposed, all) = (output::seconds(it.hidden.exposed_seconds), output::seconds(it.hidden.seconds));
        format!("{kind} over {axes}: {exposed} of {all} exposed: {}", where_from(&it.collective))
    };
    let exposed = transfers.iter().filter(|it| it.hidden.exposed_seconds > 0.0).map(describe).collect();
    Ok((sum, exposed))
}
