//! The order in which a module's instructions run.

use crate::walk::{Place, Via, Walk};
use meshloom_hlo::proto::{HloModuleProto, ShapeProto};

/// The instructions of all places that have memory of their own, in order: a fusion is one instruction, and the
/// contents of a loop, a branch or a call come before it. An instruction in a place is a point; points are numbered by
/// place.
pub(super) struct Schedule {
    /// The first point of each place; `None` for a place without memory of its own.
    first_points: Vec<Option<usize>>,
    /// The place and the position of each point.
    instructions: Vec<(u32, u32)>,
    /// The time of each point.
    times: Vec<u32>,
    /// The point at each time.
    points: Vec<u32>,
}

impl Schedule {
    /// Returns the order that a compiler wrote into the module, or else that of its instructions. It is `None` if there
    /// are more results than numbers for them.
    pub(super) fn of(module: &HloModuleProto, walk: &Walk<'_>) -> Option<Schedule> {
        let mut schedule =
            Schedule { first_points: Vec::new(), instructions: Vec::new(), times: Vec::new(), points: Vec::new() };
        let mut nodes = 0u64;
        for (number, place) in walk.places().iter().enumerate() {
            let first = schedule.has_memory(place).then_some(schedule.instructions.len());
            schedule.first_points.push(first);
            if first.is_none() {
                continue;
            }
            for (position, instruction) in place.computation.instructions.iter().enumerate() {
                nodes = nodes.saturating_add(instruction.shape.as_ref().map_or(0, node_count));
                schedule.instructions.push((number as u32, position as u32));
            }
        }
        /// More nodes than a module of a gigabyte has; only a module that calls the same computation over and over has
        /// more.
        const MOST_NODES: u64 = 1 << 26;
        if nodes > MOST_NODES {
            return None;
        }
        schedule.run(module, walk);
        Some(schedule)
    }

    fn has_memory(&self, place: &Place<'_>) -> bool {
        let Some(caller) = place.caller else { return true };
        let is_run = matches!(caller.via, Via::LoopBody | Via::LoopCondition | Via::Branch(_) | Via::Call | Via::Async);
        is_run && !place.fused && self.first_points[caller.place].is_some()
    }

    /// Gives each point its time.
    fn run(&mut self, module: &HloModuleProto, walk: &Walk<'_>) {
        struct ScheduleVisit {
            place: usize,
            order: Vec<usize>,
            next: usize,
            /// The places that the next instruction runs and that have not been visited.
            callees: Option<std::ops::Range<usize>>,
        }
        let visit = |place: usize| ScheduleVisit { place, order: order(module, walk, place), next: 0, callees: None };
        self.times = vec![0; self.instructions.len()];
        let mut stack = if walk.places().is_empty() { Vec::new() } else { vec![visit(0)] };
        while let Some(top) = stack.last_mut() {
            let Some(&position) = top.order.get(top.next) else {
                stack.pop();
                continue;
            };
            let place = top.place;
            let callees = top.callees.get_or_insert_with(|| walk.callees_at(place, position));
            if let Some(callee) = callees.find(|&callee| self.first_points[callee].is_some()) {
                stack.push(visit(callee));
                continue;
            }
            top.callees = None;
            top.next += 1;
            if let Some(point) = self.point(place, position) {
                self.times[point] = self.points.len() as u32;
                self.points.push(point as u32);
            }
        }
    }

    pub(super) fn point_count(&self) -> usize {
        self.instructions.len()
    }

    /// Returns the point of the instruction in a position of a place; `None` for a place without memory of its own.
    pub(super) fn point(&self, place: usize, position: usize) -> Option<usize> {
        Some(self.first_points[place]? + position)
    }

    /// Returns the place and the position of a point.
    pub(super) fn instruction(&self, point: usize) -> (usize, usize) {
        let (place, position) = self.instructions[point];
        (place as usize, position as usize)
    }

    pub(super) fn time(&self, point: usize) -> u32 {
        self.times[point]
    }

    pub(super) fn point_at(&self, time: usize) -> usize {
        self.points[time] as usize
    }
}

/// Returns the positions of a place's instructions in the order in which they run, each once.
pub(crate) fn order(module: &HloModuleProto, walk: &Walk<'_>, place: usize) -> Vec<usize> {
    let place = &walk.places()[place];
    let count = place.computation.instructions.len();
    let sequence = module.schedule.as_ref().and_then(|schedule| schedule.sequences.get(&place.computation.id));
    let Some(sequence) = sequence else { return (0..count).collect() };
    let mut seen = vec![false; count];
    let positions = sequence.instruction_ids.iter().filter_map(|&id| walk.computation(place).position(id));
    let mut order: Vec<usize> = positions.filter(|&position| !std::mem::replace(&mut seen[position], true)).collect();
    // A broken schedule may have left out instructions.
    order.extend((0..count).filter(|&position| !seen[position]));
    order
}

pub(super) fn node_count(shape: &ShapeProto) -> u64 {
    shape.tuple_shapes.iter().fold(1, |count, part| count.saturating_add(node_count(part)))
}
