//! Reads a [`Report`] off an input.

mod memory;
mod pipelines;
mod schedule;
mod scopes;
mod shardings;

use meshloom::transform::pipeline::Timeline;
use meshloom_hlo::Amount;
use meshloom_hlo::analysis::cost::{Bound, ScopeCost};
use meshloom_hlo::analysis::{
    Chip, CostOptions, ModuleCollective, ModuleCollectives, ModuleCost, Sources, Walk, collectives_of_walk,
    cost_of_walk,
};
use meshloom_hlo::mesh::Mesh;

use super::{CollectiveRow, CostRow, Figure, Limit, Report, StepLanes};
use crate::input::Loaded;
use crate::output::{amount, human_bytes, human_count, seconds, thousands};

/// What the page shows of an input, with times of a chip.
pub fn report(loaded: &Loaded, chip: &Chip) -> Report {
    let walk = Walk::of(&loaded.module);
    let sources = Sources::of(&loaded.module);
    let cost = cost_of_walk(&walk, sources, &CostOptions::devices(loaded.devices).on(chip));
    let found = collectives_of_walk(&walk, sources, loaded.devices);
    let collectives = loaded.mesh.iter().fold(found, ModuleCollectives::along);
    let (memory, memory_note) = memory::curve(loaded, chip);
    let peak = memory.as_ref().map(|memory| memory.peak);
    let lanes = schedule::lanes(chip, &walk, &cost, &collectives);
    Report {
        title: loaded.module.name.clone(),
        subtitle: format!("{}: {}", loaded.name, loaded.title()),
        mesh: loaded.mesh.as_ref().map(axes_of).unwrap_or_default(),
        figures: figures(loaded, chip, &cost, &collectives, peak, lanes.as_ref()),
        timeline: timeline(loaded),
        pipelines: pipelines::pipelines(&walk, &collectives),
        lanes,
        collectives: collectives.entries.iter().map(collective_row).collect(),
        memory,
        costs: cost.scopes.iter().map(cost_row).collect(),
        scopes: scopes::tree(&loaded.module.name, &walk, &cost),
        shardings: shardings::rows(loaded),
        notes: mesh_note(loaded).into_iter().chain(notes(&cost)).chain(memory_note).collect(),
    }
}

/// What the run config says of its pipeline.
fn timeline(loaded: &Loaded) -> Option<Timeline> {
    let options = loaded.run.as_ref()?.config.pipeline_options().ok()??;
    Some(Timeline::of(&options))
}

fn axes_of(mesh: &Mesh) -> Vec<(String, usize)> {
    mesh.axes().map(|axis| (mesh.name(axis).to_owned(), mesh.size(axis))).collect()
}

/// `fsdp`, `data,fsdp`; for devices that do not lie along axes of a mesh, how many there are in a group.
fn axes_text(entry: &ModuleCollective) -> String {
    match (&entry.axes, entry.group_size) {
        (Some(axes), _) => axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        (None, Some(size)) => format!("groups of {size}"),
        (None, None) => "pairs".to_owned(),
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

fn cost_row(scope: &ScopeCost) -> CostRow {
    CostRow {
        scope: scope.scope.clone(),
        flops: scope.total.flops as f64,
        memory_bytes: scope.total.bytes(),
        link_bytes: scope.total.link_bytes,
        seconds: scope.seconds.map(|seconds| seconds.serial),
        limit: scope.seconds.map_or(Limit::Unknown, |seconds| limit(seconds.bound())),
    }
}

fn limit(bound: Bound) -> Limit {
    match bound {
        Bound::Compute => Limit::Compute,
        Bound::Memory => Limit::Memory,
        Bound::Link => Limit::Link,
    }
}

fn figures(
    loaded: &Loaded,
    chip: &Chip,
    cost: &ModuleCost,
    collectives: &ModuleCollectives,
    peak: Option<u64>,
    lanes: Option<&StepLanes>,
) -> Vec<Figure> {
    let instructions: usize = loaded.module.computations.iter().map(|it| it.instructions.len()).sum();
    let moved = collectives.moved_bytes();
    let figure = |label, value: String, detail: String| Figure { label, value, detail };
    let mut figures = vec![
        figure(
            "devices",
            thousands(loaded.device_count()),
            loaded.mesh.as_ref().map_or("no mesh is named".to_owned(), Mesh::to_string),
        ),
        figure(
            "instructions",
            thousands(instructions as u64),
            format!("in {} computations", thousands(loaded.module.computations.len() as u64)),
        ),
        figure(
            "operations",
            format!("{}FLOP", human_count(cost.total.flops as f64)),
            format!("{} on each device", thousands(cost.total.flops)),
        ),
        figure("moved", bytes_of(moved), format!("sent by one device in {} runs", amount(collectives.executions()))),
    ];
    if let Some(peak) = peak {
        let share = chip.device_memory().map(|memory| 100.0 * peak as f64 / memory as f64);
        let of = share.filter(|share| *share >= 0.1).map(|share| format!(", {share:.1} % of a {}", chip.name));
        figures.push(figure(
            "peak memory",
            human_bytes(peak),
            format!("{} bytes{}", thousands(peak), of.unwrap_or_default()),
        ));
    }
    if let (Some(roofline), Some(lanes)) = (&cost.roofline, lanes) {
        let (least, most) = (seconds(roofline.overlapped_seconds), seconds(roofline.serial_seconds));
        let detail =
            format!("on {}, {} bound; {least} if all overlaps, {most} if nothing", roofline.chip, roofline.bound);
        figures.push(figure("step, estimated", seconds(lanes.seconds), detail));
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

fn mesh_note(loaded: &Loaded) -> Option<String> {
    let is_nameless = loaded.mesh.is_none() && loaded.device_count() > 1;
    is_nameless.then(|| "The module names no mesh: --mesh data=2,fsdp=4 would name the axes.".to_owned())
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
        notes.push(format!(
            "What custom call {}{times} computes is not known: its operations do not count.",
            call.target
        ));
    }
    notes
}
