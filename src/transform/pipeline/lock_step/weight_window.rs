//! The source of an iteration's weights, and the destination of their cotangents.

use super::super::WeightPlan;
use super::super::stage::STAGE;
use super::super::stage_weights::{RepeatNumber, StageWeights, added};
use crate::ops::Often;
use crate::trace::{Tensor, VmapOptions, barrier, change_if, concatenate, map_parallel, vmap_with};

/// The weights that a phase uses; each tensor has the dimensions `[S, P, ..]`.
#[derive(Clone, Debug)]
pub(super) enum PhaseWeights {
    /// The weights of one repeat.
    One(Vec<Tensor>),
    /// The weights of the repeat that ends and of the one that begins.
    Two {
        /// The weights of the repeat before.
        before: Vec<Tensor>,
        /// The weights of the repeat that begins.
        after: Vec<Tensor>,
        /// The repeat that begins, `s32[]`.
        repeat: Tensor,
    },
    /// The weights of all repeats: `[R, S, P, ..]`.
    All(Vec<Tensor>),
}

/// Per-stage numbers of an iteration, all `s32[S]`.
#[derive(Clone, Copy)]
pub(super) struct Items {
    /// The stages at work, `pred[S]`.
    pub(super) active: Tensor,
    /// The repeat, in range.
    pub(super) repeat: Tensor,
    /// The microbatch, in range.
    pub(super) microbatch: Tensor,
}

impl StageWeights<'_> {
    /// Stacked weights that every phase is given: gathered, if all are gathered once.
    pub(super) fn before_phases(&self, stacked: Vec<Tensor>) -> Vec<Tensor> {
        match self.options.weights {
            WeightPlan::GatherOnce => self.gather(&stacked, 0, self.options.repeats > 1),
            _ => stacked,
        }
    }

    /// The weights of a repeat, from [`StageWeights::before_phases`]: gathered, if that is done repeat by repeat.
    pub(super) fn of_repeat(&self, stacked: &[Tensor], repeat: RepeatNumber) -> Vec<Tensor> {
        let weights = self.at_rest(stacked, repeat);
        if self.options.weights.slides() { self.gather(&weights, 0, false) } else { weights }
    }

    /// The weights of an iteration, `[S, P, ..]`. Weights that are gathered per iteration wait for `x`, its
    /// activations: a gather that is the same in all iterations would be moved in front of their loop.
    pub(super) fn of_iteration(&self, window: &PhaseWeights, items: &Items, x: Tensor) -> Vec<Tensor> {
        let weights: Vec<Tensor> = match window {
            PhaseWeights::One(weights) => weights.clone(),
            PhaseWeights::Two { before, after, repeat } => {
                let is_after = self.is_after(items, *repeat);
                let choose = |(&before, &after): (&Tensor, &Tensor)| per_stage(is_after, after).select(after, before);
                before.iter().zip(after).map(choose).collect()
            }
            PhaseWeights::All(weights) => weights.iter().map(|weight| pick(*weight, items.repeat)).collect(),
        };
        match self.options.weights {
            WeightPlan::PerIteration => {
                let mut waiting = barrier(&[&[x], &weights[..]].concat());
                self.gather(&waiting.split_off(1), 0, false)
            }
            _ => weights,
        }
    }

    fn is_after(&self, items: &Items, repeat: Tensor) -> Tensor {
        items.repeat.equal(repeat.broadcast_like(items.repeat, []))
    }

    /// Adds the cotangents of an iteration's weights to the sums of the window, which has a list for each repeat. The
    /// results of bubbles are left out, even if they are NaN.
    pub(super) fn add(
        &self,
        sums: &[Vec<Tensor>],
        window: &PhaseWeights,
        items: &Items,
        (cotangents, has_bubbles): (Vec<Tensor>, bool),
    ) -> Vec<Vec<Tensor>> {
        let cotangents = match self.options.weights {
            WeightPlan::PerIteration => self.scatter(cotangents, false),
            _ => cotangents,
        };
        let add = |sums: &[Tensor], mask: Option<Tensor>| match mask {
            None => added(sums, cotangents.iter().copied()),
            Some(mask) => added(sums, cotangents.iter().map(|&ct| per_stage(mask, ct).select(ct, 0.0))),
        };
        match window {
            PhaseWeights::One(_) => vec![add(&sums[0], has_bubbles.then_some(items.active))],
            PhaseWeights::Two { repeat, .. } => {
                let is_after = self.is_after(items, *repeat);
                vec![add(&sums[0], Some(!is_after & items.active)), add(&sums[1], Some(is_after & items.active))]
            }
            PhaseWeights::All(_) => add_own(sums, items, cotangents),
        }
    }

    /// The cotangents of the stacked weights, `[R, S, P, ..]`, from those of each repeat.
    pub(super) fn stack(&self, by_repeat: Vec<RepeatSums>) -> Vec<Tensor> {
        let repeats = self.options.repeats;
        let joined = (0..self.count()).map(|weight| {
            let parts: Vec<Tensor> = by_repeat.iter().map(|sums| sums.of(weight, repeats > 1)).collect();
            if parts.len() > 1 { concatenate(&parts, 0) } else { parts[0] }
        });
        let joined = joined.collect();
        match self.options.weights {
            WeightPlan::GatherOnce => self.scatter(joined, repeats > 1),
            _ => joined,
        }
    }
}

/// Cotangents of the weights of one repeat, or of several in a row.
pub(super) enum RepeatSums {
    /// `[S, P, ..]`.
    One(Vec<Tensor>),
    /// `[repeats, S, P, ..]`.
    Several(Vec<Tensor>),
}

impl RepeatSums {
    fn of(&self, weight: usize, stacked: bool) -> Tensor {
        match self {
            RepeatSums::One(sums) if stacked => sums[weight].expand(0),
            RepeatSums::One(sums) | RepeatSums::Several(sums) => sums[weight],
        }
    }
}

/// Adds cotangents `[S, P, ..]`, on each stage to the sums of its own repeat. The sums of other repeats are left alone.
fn add_own(sums: &[Vec<Tensor>], items: &Items, cotangents: Vec<Tensor>) -> Vec<Vec<Tensor>> {
    let numbers = [items.repeat, items.active];
    map_parallel((sums.to_vec(), cotangents, numbers), |(sums, cotangents, [repeat, active])| {
        let of_repeat = |(number, sums): (usize, Vec<Tensor>)| {
            let own = repeat.equal(number as f64) & active;
            change_if(own, Often::default(), sums, |sums| added(&sums, cotangents.iter().copied()))
        };
        sums.into_iter().enumerate().map(of_repeat).collect::<Vec<Vec<Tensor>>>()
    })
}

/// `[S]` as a mask over `like` `[S, ..]`.
pub(super) fn per_stage(mask: Tensor, like: Tensor) -> Tensor {
    mask.broadcast_like(like, [0])
}

/// For each stage its part of `[N, S, ..]`, by its own position `s32[S]`.
fn pick(stacked: Tensor, positions: Tensor) -> Tensor {
    let options = VmapOptions::default().inputs([Some(1), Some(0)]).named(STAGE);
    vmap_with(options, (stacked, positions), |(stacked, position)| stacked.dynamic_index(0, position))
}

/// For each stage its part of `[S, N, ..]`, by its own position `s32[S]`.
pub(super) fn pick_own(stacked: Tensor, positions: Tensor) -> Tensor {
    let options = VmapOptions::default().named(STAGE);
    vmap_with(options, (stacked, positions), |(stacked, position)| stacked.dynamic_index(0, position))
}
