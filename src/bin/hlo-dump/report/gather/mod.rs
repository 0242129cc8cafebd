//! Reads a [`Report`] off a module.

mod memory;
mod pipelines;
mod schedule;
mod scopes;

use meshloom::hlo::analysis::{
    Chip, CostOptions, Devices, ModuleCollective, ModuleCollectives, ModuleCost, Sources, ValueSharding, Walk,
    collectives_of_walk, cost_of_walk, shardings,
};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::partition::Amount;
use meshloom::sharding::Mesh;

use super::{CollectiveRow, CostRow, Figure, Limit, Report, ShardingRow};
use crate::output::{amount, human_bytes, human_count, seconds, thousands};

/// A module, and what is known of it beside.
pub struct Subject<'a> {
    /// Where it comes from: file, form.
    pub description: String,
    pub module: &'a HloModuleProto,
    pub mesh: Option<&'a Mesh>,
    pub devices: Devices,
    /// The chip whose times are estimated.
    pub chip: Option<&'a Chip>,
    /// How values are sharded, where that is known better than the module says it.
    pub shardings: Option<Vec<ShardingRow>>,
}

pub fn report(subject: &Subject<'_>) -> Report {
    let walk = Walk::of(subject.module);
    let sources = Sources::of(subject.module);
    let options = CostOptions::devices(subject.devices);
    let cost = cost_of_walk(&walk, sources, &subject.chip.map_or(options, |chip| options.on(chip)));
    let mut collectives = collectives_of_walk(&walk, sources, subject.devices);
    if let Some(mesh) = subject.mesh {
        collectives = collectives.along(mesh);
    }
    let memory = memory::curve(subject, &walk);
    let mesh = subject.mesh.map(axes_of).unwrap_or_default();
    Report {
        title: subject.module.name.clone(),
        subtitle: subject.description.clone(),
        figures: figures(subject, &cost, &collectives, memory.as_ref().map(|memory| memory.peak)),
        pipelines: pipelines::pipelines(subject, &walk, &collectives),
        lanes: subject.chip.and_then(|chip| schedule::lanes(chip, &walk, &cost, &collectives)),
        collectives: collectives.entries.iter().map(collective_row).collect(),
        memory,
        costs: cost_rows(&cost),
        scopes: scopes::tree(subject.module, &walk, &cost),
        shardings: subject.shardings.clone().unwrap_or_else(|| sharding_rows(&shardings(subject.module, subject.mesh))),
        notes: notes(&cost),
        mesh,
    }
}

fn axes_of(mesh: &Mesh) -> Vec<(String, usize)> {
    mesh.axes().map(|axis| (mesh.name(axis).to_owned(), mesh.size(axis))).collect()
}

/// `fsdp`, `data,fsdp`; for devices that do not lie along axes of a mesh, how many there are in a group.
fn axes_text(entry: &ModuleCollective) -> String {
    match (&entry.axes, entry.group_size) {
        (Some(axes), _) => axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        (None, Some(size)) => format!("groups of {size}"),
        (None, None) => "unknown".to_owned(),
    }
}

fn collective_row(entry: &ModuleCollective) -> CollectiveRow {
    let shift = entry.shift.map(|shift| format!(" {shift:+}")).unwrap_or_default();
    CollectiveRow {
        kind: format!("{}{shift}", entry.kind.name()),
        axes: axes_text(entry),
        bytes: entry.bytes,
        executions: amount(entry.executions),
        execution_count: entry.executions.bound().unwrap_or(1),
        total: entry.total_moved_bytes().bound(),
        asynchronous: entry.asynchronous,
        name: entry.name.clone(),
        op_name: entry.op_name.clone(),
        source: entry.source.clone().unwrap_or_default(),
    }
}

fn cost_rows(cost: &ModuleCost) -> Vec<CostRow> {
    let row = |scope: &meshloom::hlo::analysis::cost::ScopeCost| CostRow {
        scope: scope.scope.clone(),
        flops: scope.total.flops as f64,
        memory_bytes: scope.total.bytes(),
        link_bytes: scope.total.link_bytes,
        seconds: scope.seconds.map(|seconds| seconds.serial),
        limit: scope.seconds.map_or(Limit::Unknown, |seconds| limit(seconds.bound())),
    };
    cost.scopes.iter().map(row).collect()
}

fn limit(bound: meshloom::hlo::analysis::cost::Bound) -> Limit {
    use meshloom::hlo::analysis::cost::Bound;
    match bound {
        Bound::Compute => Limit::Compute,
        Bound::Memory => Limit::Memory,
        Bound::Link => Limit::Link,
    }
}

fn sharding_rows(found: &[ValueSharding]) -> Vec<ShardingRow> {
    use meshloom::hlo::analysis::ShardedValue;
    let row = |value: &ValueSharding| {
        let kind = match value.value {
            ShardedValue::Argument => "argument",
            ShardedValue::Result => "result",
            ShardedValue::Value => "annotated",
        };
        let source = value.source.as_ref().map(|source| format!(" at {source}")).unwrap_or_default();
        ShardingRow {
            value: value.name.clone(),
            shape: value.shape.clone(),
            sharding: value.to_string(),
            device_bytes: value.device_bytes,
            whole_bytes: value.whole_bytes,
            origin: format!("{kind}{source}"),
        }
    };
    found.iter().map(row).collect()
}

fn figures(
    subject: &Subject<'_>,
    cost: &ModuleCost,
    collectives: &ModuleCollectives,
    peak: Option<u64>,
) -> Vec<Figure> {
    let count = subject.devices.replicas.saturating_mul(subject.devices.partitions);
    let instructions: usize = subject.module.computations.iter().map(|it| it.instructions.len()).sum();
    let moved = collectives.moved_bytes();
    let figure = |label, value: String, detail: String| Figure { label, value, detail };
    let mut figures = vec![
        figure("devices", thousands(count), subject.mesh.map_or("no mesh is named".to_owned(), Mesh::to_string)),
        figure(
            "instructions",
            thousands(instructions as u64),
            format!("in {} computations", thousands(subject.module.computations.len() as u64)),
        ),
        figure(
            "operations",
            human_count(cost.total.flops as f64),
            format!("{} on each device", thousands(cost.total.flops)),
        ),
        figure("moved", bytes_of(moved), format!("sent by one device in {} runs", amount(collectives.executions()))),
    ];
    if let Some(peak) = peak {
        let share = subject.chip.and_then(Chip::device_memory).map(|memory| 100.0 * peak as f64 / memory as f64);
        let of = share.zip(subject.chip).map(|(share, chip)| format!(", {share:.1} % of a {}", chip.name));
        figures.push(figure(
            "peak memory",
            human_bytes(peak),
            format!("{} bytes{}", thousands(peak), of.unwrap_or_default()),
        ));
    }
    if let Some(roofline) = &cost.roofline {
        figures.push(figure(
            "step",
            seconds(roofline.serial_seconds),
            format!("at least {} on {}: {} bound", seconds(roofline.overlapped_seconds), roofline.chip, roofline.bound),
        ));
    }
    figures
}

fn bytes_of(amount: Amount) -> String {
    match amount {
        Amount::Exactly(bytes) => human_bytes(bytes),
        Amount::AtMost(bytes) => format!("≤ {}", human_bytes(bytes)),
        Amount::Unknown => "unknown".to_owned(),
    }
}

fn notes(cost: &ModuleCost) -> Vec<String> {
    let assumed = &cost.assumptions;
    let mut notes = Vec::new();
    if !assumed.loops_counted_once.is_empty() {
        let names = assumed.loops_counted_once.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        let count = assumed.loops_counted_once.len();
        notes.push(format!("How often {count} loops run is not known; they count once: {names}."));
    }
    if assumed.branches {
        notes.push("Of the branches of a conditional, the most expensive one counts.".to_owned());
    }
    if assumed.merged {
        notes.push("Calls of calls can be reached in too many ways to keep apart: each computation is one.".to_owned());
    }
    for call in assumed.unknown_calls.iter().take(8) {
        let times = if call.instructions == 1 { String::new() } else { format!(" ({} of them)", call.instructions) };
        notes.push(format!("What custom call {}{times} computes is not known: its operations do not count.", call.target));
    }
    notes
}
