//! Finds the loops that look like pipelines.

use meshloom::hlo::analysis::{ModuleCollective, ModuleCollectives, Via, Walk};
use rustc_hash::FxHashSet;

use crate::input::Loaded;
use crate::report::{Pipeline, PipelineLoop};

/// Loops in whose body a permute goes one step along one axis. Those of the same axis that follow each other are one pipeline.
pub fn pipelines(loaded: &Loaded, walk: &Walk<'_>, collectives: &ModuleCollectives) -> Vec<Pipeline> {
    let Some(mesh) = &loaded.mesh else { return Vec::new() };
    let mut found: Vec<Pipeline> = Vec::new();
    let mut seen: FxHashSet<(&str, bool)> = FxHashSet::default();
    for entry in &collectives.entries {
        let Some((axis, shift)) = single_step(entry) else { continue };
        let stages = mesh.axis(axis).map_or(0, |axis| mesh.size(axis));
        let Some((name, iterations)) = loop_of(walk, entry) else { continue };
        if stages < 2 || iterations < stages || !is_chain(entry, stages) {
            continue;
        }
        // Of a loop that sends several values the same way, the first stands for all.
        if !seen.insert((name, shift < 0)) {
            continue;
        }
        let next = PipelineLoop {
            name: name.to_owned(),
            iterations,
            backward: shift < 0,
            bytes: entry.bytes,
            source: entry.source.clone().unwrap_or_default(),
        };
        match found.last_mut().filter(|last| last.axis == axis) {
            Some(last) => last.loops.push(next),
            None => found.push(Pipeline { axis: axis.to_owned(), stages, loops: vec![next] }),
        }
    }
    // A ring that turns once for each of its devices hands every part to everybody: a gather in steps, and no pipeline.
    found.retain_mut(|pipeline| {
        pipeline.loops.retain(|it| it.iterations > pipeline.stages);
        !pipeline.loops.is_empty()
    });
    found
}

/// The axis along which a permute goes one step, and which way.
fn single_step(entry: &ModuleCollective) -> Option<(&str, i64)> {
    match (entry.axes.as_deref()?, entry.shift?) {
        ([axis], shift @ (1 | -1)) if axis.part.is_none() => Some((&axis.name, shift)),
        _ => None,
    }
}

/// Whether every stage but one hands on: of each line along the axis all pairs are there, with or without the one that closes the ring.
fn is_chain(entry: &ModuleCollective, stages: usize) -> bool {
    let pairs = entry.pairs.len();
    let per_line = if pairs.is_multiple_of(stages) { stages } else { stages - 1 };
    per_line > 0 && pairs.is_multiple_of(per_line)
}

/// The loop whose body a collective is in, by name, and how often it goes around.
fn loop_of<'a>(walk: &Walk<'a>, entry: &ModuleCollective) -> Option<(&'a str, usize)> {
    let places = walk.places();
    let (_, place) = places.iter().enumerate().find(|(_, place)| place.computation.name == entry.computation)?;
    let number = place.innermost_loop?;
    let caller = places.get(number)?.caller.filter(|caller| caller.via == Via::LoopBody)?;
    let iterations = usize::try_from(walk.trip_count(number)?).ok()?;
    Some((&caller.instruction.name, iterations))
}
