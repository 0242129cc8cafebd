//! Planning the change of a value's sharding: the cheapest sequence of collectives from one spec to another.
//!
//! A plan is found by uniform-cost search over specs. Its moves are those of [`Step`]; the cost of a move is the number
//! of bytes that a device sends, plus a small constant for each collective, so that of two plans that move the same,
//! the one with fewer collectives wins. An axis only ever moves towards its place in the goal, which keeps the search
//! small: a few dozen states for the specs of decoders.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::without;
use crate::ir::{Axes, InternalError, Spec};
use meshloom_hlo::mesh::{Mesh, MeshAxis};

/// One change of a spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Each device keeps a part of its part: the dimension gains these axes as its most minor ones.
    Slice {
        /// The dimension.
        dim: usize,
        /// The axes gained, major to minor.
        axes: Axes,
    },
    /// Parts are joined: the dimension loses these axes, its most minor ones.
    AllGather {
        /// The dimension.
        dim: usize,
        /// The axes lost, major to minor.
        axes: Axes,
    },
    /// Partial sums are added up, and each device keeps its part: the dimension gains axes that were unreduced.
    ReduceScatter {
        /// The dimension.
        dim: usize,
        /// The axes gained, major to minor.
        axes: Axes,
    },
    /// Partial sums are added up.
    AllReduce {
        /// The axes that were unreduced.
        axes: Axes,
    },
    /// Parts of one dimension are exchanged for parts of another: one loses the axes at its minor end, the other gains
    /// them there.
    AllToAll {
        /// The dimension that loses.
        from: usize,
        /// The dimension that gains.
        to: usize,
        /// The axes, major to minor.
        axes: Axes,
    },
    /// Devices exchange their values, so that the dimension's axes stand in another order.
    Reorder {
        /// The dimension.
        dim: usize,
        /// All its axes before, major to minor.
        before: Axes,
        /// All its axes after.
        after: Axes,
    },
}

/// How a value gets from one sharding to another: a sequence of steps, and its cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReshardPlan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Bytes that one device sends in all of them.
    pub bytes_sent: u64,
}

/// The cost of a collective besides its bytes, in bytes: enough to prefer one collective to two that move as much.
const COLLECTIVE: u64 = 1024;

/// The cheapest plan from one spec to another, for a value of `dims` whose elements have `element_bytes` bytes. The
/// goal may be unreduced over axes that the start is unreduced over, and over no others.
///
/// # Errors
/// The goal cannot be reached: it asks for a partial sum that the start is not.
pub fn plan(
    mesh: &Mesh,
    dims: &[usize],
    element_bytes: usize,
    from: &Spec,
    to: &Spec,
) -> Result<ReshardPlan, InternalError> {
    if from == to {
        return Ok(ReshardPlan::default());
    }
    let whole = dims.iter().product::<usize>() as u64 * element_bytes as u64;
    let search = Search { mesh, whole, goal: to };
    search.run(from)
}

struct Search<'a> {
    mesh: &'a Mesh,
    /// Bytes of the whole value.
    whole: u64,
    goal: &'a Spec,
}

/// How a state was reached: its cost, the state before and the step taken.
struct Reached {
    cost: u64,
    from: Option<(usize, Step)>,
}

impl Search<'_> {
    fn run(&self, start: &Spec) -> Result<ReshardPlan, InternalError> {
        let mut states: Vec<(Spec, Reached)> = vec![(start.clone(), Reached { cost: 0, from: None })];
        let mut known: FxHashMap<Spec, usize> = FxHashMap::from_iter([(start.clone(), 0)]);
        let mut queue = BinaryHeap::from([Reverse((0, 0))]);
        while let Some(Reverse((cost, index))) = queue.pop() {
            let spec = states[index].0.clone();
            if cost > states[index].1.cost {
                continue;
            }
            if spec == *self.goal {
                return Ok(self.plan_to(&states, index));
            }
            for step in self.moves(&spec) {
                let next = self.after(&spec, &step);
                let cost = cost + self.cost(&spec, &step);
                match known.get(&next) {
                    Some(&at) if states[at].1.cost <= cost => {}
                    Some(&at) => {
                        states[at].1 = Reached { cost, from: Some((index, step)) };
                        queue.push(Reverse((cost, at)));
                    }
                    None => {
                        known.insert(next.clone(), states.len());
                        queue.push(Reverse((cost, states.len())));
                        states.push((next, Reached { cost, from: Some((index, step)) }));
                    }
                }
            }
        }
        // Everything can be gathered and cut again, so only an impossible goal gets here.
        let goal = format!("a way to {}", self.goal.display(self.mesh));
        Err(InternalError::new(format_args!("reshard from {}", start.display(self.mesh)), goal))
    }

    fn plan_to(&self, states: &[(Spec, Reached)], goal: usize) -> ReshardPlan {
        let mut steps = Vec::new();
        let mut bytes_sent = 0;
        let mut at = goal;
        while let Some((before, step)) = &states[at].1.from {
            bytes_sent += self.bytes_sent(&states[*before].0, step);
            steps.push(step.clone());
            at = *before;
        }
        steps.reverse();
        ReshardPlan { steps, bytes_sent }
    }

    fn part_bytes(&self, spec: &Spec) -> u64 {
        self.whole / spec.parts(self.mesh).max(1) as u64
    }

    fn size(&self, axes: &[MeshAxis]) -> u64 {
        axes.iter().map(|&axis| self.mesh.size(axis) as u64).product()
    }

    /// Bytes that a device sends in a step, by the usual ring algorithms.
    fn bytes_sent(&self, before: &Spec, step: &Step) -> u64 {
        let local = self.part_bytes(before);
        let share = |bytes: u64, size: u64| bytes * (size - 1) / size;
        match step {
            Step::Slice { .. } => 0,
            Step::AllGather { axes, .. } => local * (self.size(axes) - 1),
            Step::ReduceScatter { axes, .. } | Step::AllToAll { axes, .. } => share(local, self.size(axes)),
            Step::AllReduce { axes } => 2 * share(local, self.size(axes)),
            Step::Reorder { .. } => local,
        }
    }

    fn cost(&self, before: &Spec, step: &Step) -> u64 {
        match step {
            // A slice reads what it keeps, so of two ways without communication the shorter wins.
            Step::Slice { .. } => 1,
            step => self.bytes_sent(before, step) + COLLECTIVE,
        }
    }

    fn after(&self, spec: &Spec, step: &Step) -> Spec {
        let gain = |spec: Spec, dim: usize, axes: &Axes| {
            let all: Axes = spec.dim(dim).iter().chain(axes).copied().collect();
            spec.with_dim(dim, all)
        };
        let lose = |spec: Spec, dim: usize, axes: &Axes| {
            let kept: Axes = spec.dim(dim)[..spec.dim(dim).len() - axes.len()].into();
            spec.with_dim(dim, kept)
        };
        let reduce = |spec: Spec, axes: &Axes| {
            let rest = without(spec.unreduced(), axes);
            spec.with_unreduced(rest)
        };
        let spec = spec.clone();
        match step {
            Step::Slice { dim, axes } => gain(spec, *dim, axes),
            Step::AllGather { dim, axes } => lose(spec, *dim, axes),
            Step::ReduceScatter { dim, axes } => gain(reduce(spec, axes), *dim, axes),
            Step::AllReduce { axes } => reduce(spec, axes),
            Step::AllToAll { from, to, axes } => gain(lose(spec, *from, axes), *to, axes),
            Step::Reorder { dim, after, .. } => spec.with_dim(*dim, after.iter().copied()),
        }
    }

    /// The moves from a state that lead towards the goal.
    fn moves(&self, spec: &Spec) -> Vec<Step> {
        let mut moves = Vec::new();
        for dim in 0..spec.rank() {
            let (have, want) = (spec.dim(dim), self.goal.dim(dim));
            if want.starts_with(have) {
                self.gains(spec, dim, &want[have.len()..], &mut moves);
                continue;
            }
            let agreed = have.iter().zip(want).take_while(|(a, b)| a == b).count();
            // The axes after the agreed part leave, from the minor end; several axes at once leave as one collective.
            for start in agreed..have.len() {
                let axes: Axes = have[start..].into();
                for to in (0..spec.rank()).filter(|&to| to != dim) {
                    let rest = self.goal.dim(to).strip_prefix(spec.dim(to)).unwrap_or_default();
                    if rest.starts_with(&axes) {
                        moves.push(Step::AllToAll { from: dim, to, axes: axes.clone() });
                    }
                }
                moves.push(Step::AllGather { dim, axes });
            }
            self.reorders(spec, dim, agreed, &mut moves);
        }
        self.reductions(spec, &mut moves);
        moves
    }

    /// Ways to give a dimension the next axes it wants.
    fn gains(&self, spec: &Spec, dim: usize, wanted: &[MeshAxis], moves: &mut Vec<Step>) {
        let used: Axes = spec.used_axes().collect();
        for end in 1..=wanted.len() {
            let axes: Axes = wanted[..end].into();
            if axes.iter().all(|axis| spec.unreduced().contains(axis)) {
                moves.push(Step::ReduceScatter { dim, axes });
            } else if axes.iter().all(|axis| !used.contains(axis)) {
                moves.push(Step::Slice { dim, axes });
            }
        }
    }

    /// Other orders of a dimension's axes that bring the goal nearer: the wanted ones first, or those that leave last.
    fn reorders(&self, spec: &Spec, dim: usize, agreed: usize, moves: &mut Vec<Step>) {
        let (have, want) = (spec.dim(dim), self.goal.dim(dim));
        let stay = want.iter().copied().filter(|axis| have.contains(axis));
        let leave = have[agreed..].iter().copied().filter(|axis| !want.contains(axis));
        let after: Axes = stay.chain(leave).collect();
        if after.as_slice() != have {
            moves.push(Step::Reorder { dim, before: have.into(), after });
        }
    }

    /// Ways to add up partial sums that the goal does not keep: all at once, or those that no dimension wants.
    fn reductions(&self, spec: &Spec, moves: &mut Vec<Step>) {
        let goal: SmallVec<[MeshAxis; Mesh::MAX_AXES]> = self.goal.dims().iter().flatten().copied().collect();
        let all = without(spec.unreduced(), self.goal.unreduced());
        let unwanted = without(&all, &goal);
        for axes in [&unwanted, &all] {
            if !axes.is_empty() {
                moves.push(Step::AllReduce { axes: axes.clone() });
            }
        }
    }
}
