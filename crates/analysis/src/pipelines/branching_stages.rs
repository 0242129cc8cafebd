//! The schedule of stages that branch, by the selectors of their conditionals for each stage and iteration.

use std::collections::BTreeMap;

use super::super::devices::Devices;
use super::super::values::Values;
use super::super::walk::{Place, Via, Walk};
use super::{Item, LoopSchedule, Order, Pass, PermuteLoop, Row};
use meshloom_hlo::proto::HloInstructionProto;
use meshloom_hlo::sort;

/// The number of times that some work is done, by stage and iteration.
type Counts = Vec<Vec<usize>>;

/// Work that not every stage does in every iteration.
struct StageWork<'a> {
    place: usize,
    /// A conditional, or a loop whose number of iterations depends on the device.
    it: &'a HloInstructionProto,
    branch: Option<usize>,
    /// The number of instructions of each opcode. Branches of one conditional that are alike do the same with other
    /// weights.
    made_of: BTreeMap<&'a str, usize>,
}

/// The same work for each chunk of a stage.
struct Kind {
    chunks: Vec<Counts>,
    /// The sum over all chunks.
    all: Counts,
}

/// Returns the schedule of a loop's stages, if they branch; `None` if they do not, or if their branches are not known.
pub(super) fn of(
    walk: &Walk<'_>,
    values: &mut Values<'_, '_>,
    devices: Devices,
    within: &PermuteLoop,
) -> Option<Result<LoopSchedule, &'static str>> {
    let mut kinds: Vec<Kind> = Vec::new();
    let mut before: Option<StageWork> = None;
    for work in works(walk, within.body) {
        let Some(counts) = counts(&work, values, devices, within) else {
            return Some(Err("data decides which branches its stages take"));
        };
        let is_chunk = before.as_ref().is_some_and(|before| {
            before.place == work.place && before.it.id == work.it.id && before.made_of == work.made_of
        });
        match kinds.last_mut().filter(|_| is_chunk) {
            Some(kind) => kind.add(counts),
            None => kinds.push(Kind { all: counts.clone(), chunks: vec![counts] }),
        }
        before = Some(work);
    }
    // Work that all stages do at once is no pass, such as a loss that is spread over the stages. Work of one stage
    // alone is in front of the layers or after them.
    kinds.retain(|kind| {
        let stages = kind.all.iter().filter(|stage| stage.iter().any(|&count| count > 0)).count();
        stages > 1 && kind.all.iter().any(|stage| *stage != kind.all[0])
    });
    sort::by_key(&mut kinds, |kind| (kind.all.iter().map(|stage| first(stage)).sum::<usize>(), kind.all.clone()));
    // Kinds of work that are always done together are one kind.
    kinds.dedup_by(|a, b| a.is_busy().eq(b.is_busy()));
    match kinds.len() {
        0 => None,
        1..=3 => Some(Ok(schedule(&kinds, within))),
        _ => Some(Err("its stages choose between more than three kinds of work")),
    }
}

impl Kind {
    fn add(&mut self, counts: Counts) {
        for (sum, count) in self.all.iter_mut().flatten().zip(counts.iter().flatten()) {
            *sum += count;
        }
        self.chunks.push(counts);
    }

    /// Returns whether there is something to do, stage by stage and iteration by iteration.
    fn is_busy(&self) -> impl Iterator<Item = bool> {
        self.all.iter().flatten().map(|&count| count > 0)
    }

    /// Returns the work of each stage in each iteration.
    fn cells(&self) -> Vec<Vec<Vec<Item>>> {
        let mut cells: Vec<Vec<Vec<Item>>> = self.all.iter().map(|stage| vec![Vec::new(); stage.len()]).collect();
        for (chunk, counts) in self.chunks.iter().enumerate() {
            let part = (self.chunks.len() > 1).then_some(chunk);
            for (cells, counts) in cells.iter_mut().zip(counts) {
                let mut done = 0;
                for (cell, &count) in cells.iter_mut().zip(counts) {
                    cell.extend((done..done + count).map(|number| Item { number, part }));
                    done += count;
                }
            }
        }
        cells
    }
}

/// Returns the work that a body does in some branch, or in a loop whose iterations are decided while it runs. The
/// branches of a conditional come one after another.
fn works<'a>(walk: &Walk<'a>, body: usize) -> Vec<StageWork<'a>> {
    let places = walk.places();
    let is_here = |number: usize| {
        let place = &places[number];
        place.innermost_loop == Some(body) && place.branches == places[body].branches
    };
    let work = |(number, place): (usize, &Place<'a>)| {
        let caller = place.caller.filter(|caller| is_here(caller.place))?;
        let branch = match caller.via {
            Via::Branch(branch) => Some(branch),
            Via::LoopBody if walk.trip_count(number).is_none() => None,
            _ => return None,
        };
        let (mut made_of, mut computes) = (BTreeMap::new(), false);
        let mut left = vec![number];
        while let Some(number) = left.pop() {
            left.extend(places[number].callees.clone());
            for it in &places[number].computation.instructions {
                *made_of.entry(it.opcode.as_str()).or_default() += 1;
                computes |= is_product(it);
            }
        }
        computes.then_some(StageWork { place: caller.place, it: caller.instruction, branch, made_of })
    };
    places.iter().enumerate().filter_map(work).collect()
}

/// Whether an instruction is a product, as the work of layers is.
fn is_product(it: &HloInstructionProto) -> bool {
    match it.opcode.as_str() {
        "dot" | "scaled-dot" | "ragged-dot" | "convolution" => true,
        "custom-call" => ["gemm", "matmul", "cublas", "cudnn"].iter().any(|part| it.custom_call_target.contains(part)),
        _ => false,
    }
}

fn counts(work: &StageWork<'_>, values: &mut Values<'_, '_>, devices: Devices, within: &PermuteLoop) -> Option<Counts> {
    let mut of_stages = Vec::new();
    for &device in &within.devices {
        values.become_device(device, devices);
        let count = |iteration| {
            let inside = within.inside(iteration);
            match work.branch {
                Some(branch) => Some(usize::from(values.branch(work.place, work.it, &inside)? == branch)),
                None => usize::try_from(values.trips(work.place, work.it, &inside)?).ok(),
            }
        };
        of_stages.push((0..within.it.iterations).map(count).collect::<Option<Vec<usize>>>()?);
    }
    Some(of_stages)
}

/// Returns the first iteration in which a stage does the work.
fn first(stage: &[usize]) -> usize {
    stage.iter().position(|&count| count > 0).unwrap_or(stage.len())
}

fn last(stage: &[usize]) -> usize {
    stage.iter().rposition(|&count| count > 0).unwrap_or(0)
}

fn schedule(kinds: &[Kind], within: &PermuteLoop) -> LoopSchedule {
    let passes = match (kinds.len(), within.is_backward()) {
        (1, true) => &[Pass::Backward][..],
        _ => &[Pass::Forward, Pass::Backward, Pass::Weights],
    };
    let rows = kinds.iter().zip(passes).map(|(kind, &pass)| Row { pass, cells: kind.cells() }).collect();
    let total = |stage: &Vec<usize>| stage.iter().sum::<usize>();
    let all = kinds[0].all.first().map_or(0, total);
    let is_complete = kinds.iter().flat_map(|kind| &kind.all).all(|stage| total(stage) == all);
    let order = match kinds {
        _ if !is_complete => Order::Unnamed,
        [passing] if !within.closed() && fills_and_drains(&passing.all, within.is_backward()) => Order::FillDrain,
        [_] => Order::Unnamed,
        [forward, backward, weights @ ..] => order(&forward.all, &backward.all, !weights.is_empty(), within.closed()),
        [] => Order::Unnamed,
    };
    let chunks = match order {
        Order::Interleaved { chunks } => chunks,
        Order::ZeroBubbleVee => 2,
        Order::Unnamed => kinds[0].chunks.len(),
        _ => 1,
    };
    let is_known = is_complete && all.is_multiple_of(chunks) && [1, chunks].contains(&kinds[0].chunks.len());
    match is_known {
        true => LoopSchedule { order, microbatches: Some(all / chunks), rows },
        false => LoopSchedule { order: Order::Unnamed, microbatches: None, rows },
    }
}

/// Whether each stage works without a break, one iteration later than the one before it.
fn fills_and_drains(passing: &Counts, is_backward: bool) -> bool {
    let starts = |stage: usize| first(&passing[if is_backward { passing.len() - 1 - stage } else { stage }]);
    passing.iter().all(|stage| 1 + last(stage) - first(stage) == stage.iter().sum::<usize>())
        && (1..passing.len()).all(|stage| starts(stage) == starts(0) + stage)
}

/// Returns the name of a schedule in which both passes are in one loop.
fn order(forward: &Counts, backward: &Counts, is_cut: bool, closed: bool) -> Order {
    let stages = forward.len();
    if forward.iter().zip(backward).all(|(forward, backward)| last(forward) <= first(backward)) {
        return if is_cut { Order::Unnamed } else { Order::FillDrain };
    }
    // The way through the stages turns back at the last one, and ends where it began.
    if first(&backward[0]) < first(&backward[stages - 1]) {
        return if is_cut { Order::ZeroBubbleVee } else { Order::Unnamed };
    }
    // The passes of the last stage before its first backward pass: one microbatch of the last chunk, and those of the
    // chunks before it, which come round in groups of as many as there are stages.
    let (ends_forward, ends_backward) = (&forward[stages - 1], &backward[stages - 1]);
    let before: usize = ends_forward[..=first(ends_backward)].iter().sum();
    match (before, is_cut) {
        (1, false) => Order::OneForwardOneBackward,
        (1, true) => Order::ZeroBubble,
        (_, false) if closed && before % stages == 1 => Order::Interleaved { chunks: before / stages + 1 },
        _ => Order::Unnamed,
    }
}
