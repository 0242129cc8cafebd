//! Pipelines: which stage works on which microbatch in each iteration of a loop, as its ring of permutes suggests.

use anyhow::Result;
use maud::{Markup, html};
use meshloom_hlo::analysis::{ModuleCollective, ModuleCollectives, Via, Walk};
use meshloom_hlo::proto::{HloComputationProto, ShapeProto};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Report;
use super::html::section;
use super::schedule::{Column, MOST_COLUMNS, MOST_ROWS, Pass, Schedule, Side, Task, legend};
use crate::output::{human_bytes, plural};

pub fn render(report: &Report) -> Result<Option<Markup>> {
    // Nothing needs to be inferred of what is known.
    if let Some(section) = report.loaded.run.as_ref().map_or(Ok(None), |run| run.pipeline_section())? {
        return Ok(Some(section));
    }
    let pipelines = pipelines(report.walk, &report.collectives);
    if pipelines.is_empty() {
        return Ok(None);
    }
    let lead = html! {
        b { "Inferred." }
        " A loop that hands values to the next device of one mesh axis in every iteration is read as a pipeline that \
         fills and drains: stage " i { "s" } " works on microbatch " i { "t - s" } " in iteration " i { "t" } ". The \
         program says who sends to whom and how often, not which microbatch it is."
    };
    let body = html! { @for pipeline in &pipelines { (pipeline.render()) } };
    Ok(Some(section("pipeline", "Pipeline", lead, body)))
}

/// A loop that hands values on from stage to stage.
#[derive(Default)]
struct PipelineLoop {
    /// Name of the loop.
    name: String,
    /// How often it goes around.
    iterations: usize,
    /// Whether values go to the stage before: a backward pass does that.
    backward: bool,
    /// Bytes that a device hands on in one iteration.
    bytes: Option<u64>,
    /// The source line of the permute.
    source: String,
}

impl PipelineLoop {
    fn direction(&self) -> &'static str {
        if self.backward { "backward" } else { "forward" }
    }

    /// Microbatches, if each iteration begins one until all have begun and the last ends at the last stage.
    fn microbatches(&self, stages: usize) -> usize {
        (self.iterations + 1).saturating_sub(stages)
    }

    /// The microbatch at a stage in an iteration, both counted from 0; none where the stage waits. What goes backward
    /// begins at the last stage with the last microbatch.
    fn microbatch(&self, stages: usize, stage: usize, iteration: usize) -> Option<usize> {
        let count = self.microbatches(stages);
        let late = if self.backward { (stages - 1).checked_sub(stage)? } else { stage };
        let number = iteration.checked_sub(late).filter(|&number| number < count)?;
        Some(if self.backward { count - 1 - number } else { number })
    }
}

/// Loops that hand values on along one mesh axis, in the order of the program.
struct Pipeline {
    axis: String,
    stages: usize,
    loops: Vec<PipelineLoop>,
}

impl Pipeline {
    /// The part of all iterations of all stages in which a stage has no microbatch.
    fn bubble(&self) -> f64 {
        let slots: usize = self.loops.iter().map(|it| it.iterations * self.stages).sum();
        let used: usize = self.loops.iter().map(|it| it.microbatches(self.stages) * self.stages).sum();
        1.0 - used as f64 / slots.max(1) as f64
    }

    /// `6 microbatches`, or each number where loops differ.
    fn microbatches(&self) -> String {
        let mut counts: Vec<usize> = self.loops.iter().map(|it| it.microbatches(self.stages)).collect();
        counts.dedup();
        match counts.as_slice() {
            &[count] => plural(count as u64, "microbatch"),
            counts => format!("{} microbatches", counts.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
        }
    }
}

impl Pipeline {
    fn render(&self) -> Markup {
        let has = |backward: bool| self.loops.iter().any(|it| it.backward == backward);
        let mut key = vec![("bubble", "bubble")];
        if has(true) {
            key.insert(0, ("backward", "hands back to the stage before"));
        }
        if has(false) {
            key.insert(0, ("forward", "hands on to the next stage"));
        }
        html! {
            p.facts {
                b { (plural(self.stages as u64, "stage")) } " over " b { (self.axis) } ", "
                b { (self.microbatches()) } "; bubbles are "
                b { (format!("{:.1} %", 100.0 * self.bubble())) } " of all stage slots."
            }
            (legend(&key))
            (self.schedule().render())
            @if self.loops.iter().any(|it| it.iterations > MOST_COLUMNS) || self.stages > MOST_ROWS {
                p.note { "Only the first " (MOST_COLUMNS) " iterations and " (MOST_ROWS) " stages are drawn." }
            }
            @for found in &self.loops {
                p.note {
                    code { (found.name) } ": " (found.direction()) ", " (plural(found.iterations as u64, "iteration")) " = "
                    (plural(found.microbatches(self.stages) as u64, "microbatch")) " + " (self.stages - 1) " to fill and drain; "
                    (found.bytes.map_or("?".to_owned(), human_bytes)) " handed on in each."
                    @if !found.source.is_empty() { " " code { (found.source) } }
                }
            }
        }
    }

    fn schedule(&self) -> Schedule {
        let column = |found: &PipelineLoop, iteration: usize| {
            let task = |stage| found.microbatch(self.stages, stage, iteration);
            let task = |stage| task(stage).map(|microbatch| Task { microbatch, part: None }).into_iter().collect();
            let tasks = (0..self.stages.min(MOST_ROWS)).map(task).collect();
            Column { iteration, sides: vec![Side { class: found.direction(), name: "", tasks }] }
        };
        let mut passes: Vec<Pass> = Vec::new();
        for found in &self.loops {
            passes.push(Pass {
                title: found.direction(),
                microbatches: found.microbatches(self.stages),
                start: passes.iter().map(|pass| pass.columns.len()).sum(),
                columns: (0..found.iterations.min(MOST_COLUMNS)).map(|at| column(found, at)).collect(),
            });
        }
        Schedule { row: self.axis.clone(), stages: self.stages, passes, held: Vec::new(), bars: Vec::new() }
    }
}

/// Loops in whose body a permute goes one step along one axis, and what it brings is for the next iteration. Those of
/// the same axis that follow each other are one pipeline.
fn pipelines(walk: &Walk<'_>, collectives: &ModuleCollectives) -> Vec<Pipeline> {
    let mut found: Vec<Pipeline> = Vec::new();
    let mut seen: FxHashSet<(&str, bool)> = FxHashSet::default();
    for entry in &collectives.entries {
        let Some(line) = single_axis(entry).and_then(|_| Line::of(&entry.pairs)) else { continue };
        let Some((name, iterations)) = loop_of(walk, entry) else { continue };
        // A ring that turns once for each of its devices hands every part to every device: that is a gather in steps,
        // not a pipeline. If a loop sends several values the same way, the first represents all.
        if iterations <= line.stages || !seen.insert((name, line.backward)) {
            continue;
        }
        let next = PipelineLoop {
            name: name.to_owned(),
            iterations,
            backward: line.backward,
            bytes: entry.bytes,
            source: entry.source.clone().unwrap_or_default(),
        };
        let axis = single_axis(entry).unwrap_or_default();
        match found.last_mut().filter(|last| last.axis == axis && last.stages == line.stages) {
            Some(last) => last.loops.push(next),
            None => found.push(Pipeline { axis: axis.to_owned(), stages: line.stages, loops: vec![next] }),
        }
    }
    found
}

/// The axis along which a permute goes, by name; `device` where no mesh says it.
fn single_axis(entry: &ModuleCollective) -> Option<&str> {
    match entry.axes.as_deref() {
        Some([axis]) if axis.part.is_none() => Some(&axis.name),
        None if !entry.pairs.is_empty() => Some("device"),
        _ => None,
    }
}

/// Devices that hand on one to the next.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    stages: usize,
    /// Whether to the one of a lower number.
    backward: bool,
}

impl Line {
    /// The lines that pairs of source and target make up, which must all be alike: as long as each other, the same
    /// number between neighbours, closed to rings or open.
    fn of(pairs: &[(u64, u64)]) -> Option<Line> {
        let next: FxHashMap<u64, u64> = pairs.iter().copied().collect();
        let targets: FxHashSet<u64> = next.values().copied().collect();
        if next.len() != pairs.len() || targets.len() != pairs.len() {
            return None;
        }
        // Most pairs go one way; the one that closes a ring goes the other.
        let rising = pairs.iter().filter(|(source, target)| target > source).count();
        let backward = 2 * rising < pairs.len();
        let goes_on = |&(source, target): &(u64, u64)| (target < source) == backward && source != target;
        let step = pairs.iter().find(|pair| goes_on(pair)).map(|(source, target)| source.abs_diff(*target))?;
        let mut stages = None;
        // A line begins where nothing comes from, but for what closes a ring.
        let onwards: FxHashMap<u64, u64> = pairs.iter().copied().filter(goes_on).collect();
        let reached: FxHashSet<u64> = onwards.values().copied().collect();
        for first in onwards.keys().filter(|device| !reached.contains(device)) {
            let (mut device, mut length) = (*first, 1);
            while let Some(&target) = onwards.get(&device) {
                if target.abs_diff(device) != step {
                    return None;
                }
                (device, length) = (target, length + 1);
            }
            if stages.replace(length).is_some_and(|other| other != length) {
                return None;
            }
            if next.get(&device).is_some_and(|back| back != first) {
                return None;
            }
        }
        stages.map(|stages| Line { stages, backward })
    }
}

/// The loop whose body a collective is in, by name, and how often it goes around.
fn loop_of<'a>(walk: &Walk<'a>, entry: &ModuleCollective) -> Option<(&'a str, usize)> {
    let places = walk.places();
    let place = places.iter().find(|place| place.computation.name == entry.computation)?;
    if !is_carried(place.computation, &entry.name) {
        return None;
    }
    let number = place.innermost_loop?;
    let caller = places.get(number)?.caller.filter(|caller| caller.via == Via::LoopBody)?;
    let iterations = usize::try_from(walk.trip_count(number)?).ok()?;
    Some((&caller.instruction.name, iterations))
}

/// Whether what a permute gives leaves its computation, as it is or after operations on single elements. What
/// neighbours exchange for an operation that works across the border between them is put beside other elements first.
fn is_carried(computation: &HloComputationProto, name: &str) -> bool {
    const CARRIES: [&str; 11] = [
        "bitcast",
        "collective-permute-done",
        "convert",
        "copy",
        "copy-done",
        "copy-start",
        "get-tuple-element",
        "opt-barrier",
        "reshape",
        "transpose",
        "tuple",
    ];
    let Some(permute) = computation.instructions.iter().find(|instruction| instruction.name == name) else {
        return false;
    };
    // The start of one in two halves gives a tuple of what it reads and what it will give.
    let given = |shape: &ShapeProto| shape.tuple_shapes.get(1).unwrap_or(shape).dimensions.clone();
    let dims = permute.shape.as_ref().map(given);
    let mut carried: FxHashSet<i64> = std::iter::once(permute.id).collect();
    for instruction in &computation.instructions {
        let alike = instruction.shape.as_ref().map(|shape| &shape.dimensions) == dims.as_ref();
        let carries = alike || CARRIES.contains(&instruction.opcode.as_str());
        if carries && instruction.operand_ids.iter().any(|id| carried.contains(id)) {
            carried.insert(instruction.id);
        }
    }
    carried.contains(&computation.root_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microbatches_fill_and_drain() {
        let schedule = |backward| {
            let found = PipelineLoop { iterations: 5, backward, ..PipelineLoop::default() };
            let cell =
                |stage, iteration| found.microbatch(3, stage, iteration).map_or(".".to_owned(), |it| it.to_string());
            (0..3).map(|stage| (0..5).map(|iteration| cell(stage, iteration)).collect::<String>()).collect::<Vec<_>>()
        };
        assert_eq!(schedule(false), ["012..", ".012.", "..012"]);
        assert_eq!(schedule(true), ["..210", ".210.", "210.."]);
        let found = PipelineLoop { iterations: 9, ..PipelineLoop::default() };
        let pipeline = Pipeline { axis: "stage".into(), stages: 4, loops: vec![found] };
        assert!((pipeline.bubble() - 3.0 / 9.0).abs() < 1e-12);
    }

    #[test]
    fn lines_are_told_from_other_permutes() {
        let line = |stages, backward| Some(Line { stages, backward });
        type Case = (&'static [(u64, u64)], Option<Line>);
        let cases: [Case; 10] = [
            (&[(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4)], line(4, false)),
            (&[(1, 0), (2, 1), (3, 2), (0, 3)], line(4, true)),
            (&[(0, 1), (1, 2), (2, 3)], line(4, false)),
            (&[(0, 2), (2, 4), (4, 6), (1, 3), (3, 5), (5, 7)], line(4, false)),
            (&[(3, 2), (2, 1), (1, 0), (7, 6), (6, 5), (5, 4)], line(4, true)),
            (&[(0, 1), (1, 0)], line(2, false)),
            // One line shorter than the other, a jump, two that send to the same, nothing at all.
            (&[(0, 1), (1, 2), (4, 5)], None),
            (&[(0, 1), (1, 3)], None),
            (&[(0, 1), (2, 1)], None),
            (&[], None),
        ];
        for (pairs, expected) in cases {
            assert_eq!(Line::of(pairs), expected, "{pairs:?}");
        }
    }
}
