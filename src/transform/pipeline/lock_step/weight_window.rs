//! The source of an iteration's weights, and the destination of their cotangents.

use super::stage::STAGE;
use super::{PipelineOptions, StackedWeights, WeightPlan, without_first};
use crate::ir::{AxisNames, DType, Name};
use crate::ops::{Often, WithAxes};
use crate::trace::{
    Place, Tensor, VmapOptions, barrier, change_if, concatenate, full, label, map_parallel, vmap_with, zeros,
};

/// The facts about all stacked weights of a pipeline.
pub(super) struct Weights<'a> {
    pub(super) options: &'a PipelineOptions,
    /// For each weight, the logical names of its dimensions without that of repeats.
    names: Vec<AxisNames>,
    /// For each weight, the names [beside](WithAxes::beside) which it is used.
    beside: Vec<AxisNames>,
    place: Place,
}

/// The weights that a phase uses; each tensor has the dimensions `[S, P, ..]`.
#[derive(Clone, Debug)]
pub(super) enum Window {
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

/// A number that is known when tracing, or is computed: `s32[]`.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Known(usize),
    Traced(Tensor),
}

impl Number {
    /// This number and another; the sum must not be negative.
    pub(super) fn plus(self, other: i32) -> Number {
        match self {
            Number::Known(number) => Number::Known(number.saturating_add_signed(other as isize)),
            Number::Traced(number) => Number::Traced(number + f64::from(other)),
        }
    }

    /// As a tensor.
    pub(super) fn tensor(self) -> Tensor {
        match self {
            Number::Known(number) => full(DType::S32, [], number as f64),
            Number::Traced(number) => number,
        }
    }
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

impl<'a> Weights<'a> {
    /// Weights of the layers, or of the loss, that work on activations of these names. `shared` is the logical name
    /// that runs over the stages in activations, if these weights are those of stages.
    pub(super) fn new<W>(
        options: &'a PipelineOptions,
        stacked: &StackedWeights<W>,
        (shared, activations): (&str, &[&str]),
        place: Place,
    ) -> Weights<'a> {
        // The weights of a loss are not stacked.
        let first = usize::from(!shared.is_empty() && options.parts() > 1);
        let names = stacked.names.iter().map(|names| names.iter().skip(first).copied().collect()).collect();
        let rows: AxisNames =
            activations.split_last().map_or(&[][..], |(_, rows)| rows).iter().map(|name| Name::new(name)).collect();
        let rows = (0..stacked.names.len()).map(|weight| stacked.rows.get(weight).unwrap_or(&rows));
        let beside = rows.map(|rows| std::iter::once(Name::new(shared)).chain(rows.iter().copied()).collect());
        Weights { options, names, beside: beside.collect(), place }
    }

    /// The logical names of the weights of one repeat, or of all.
    fn names(&self, weight: usize, all: bool) -> AxisNames {
        let repeats = all.then(|| Name::new("circular_repeats"));
        repeats.into_iter().chain(self.names[weight].iter().copied()).collect()
    }

    /// Gathers the weights, but for the axes that split them where they are used. `first` is the number of the first
    /// weight in the list.
    pub(super) fn gather(&self, weights: &[Tensor], first: usize, all: bool) -> Vec<Tensor> {
        let gather = |(index, &weight): (usize, &Tensor)| label(weight, self.whole(first + index, all), self.place);
        weights.iter().enumerate().map(gather).collect()
    }

    /// The names of a weight that lies as it is used.
    fn whole(&self, weight: usize, all: bool) -> WithAxes {
        WithAxes { beside: self.beside[weight].clone(), ..WithAxes::new(self.names(weight, all)) }
    }

    /// Reduces cotangents that each device has added up for itself, and splits them as the stacked weights are. Over
    /// axes that do not split the weights they stay partial sums.
    pub(super) fn scatter(&self, sums: Vec<Tensor>, all: bool) -> Vec<Tensor> {
        let scatter = |(index, sum): (usize, Tensor)| {
            // The sum lies as the weight does where it is used: else it would be scattered term by term.
            let partial = WithAxes { keeps_partial: true, ..self.whole(index, all) };
            let sum = label(sum, partial, self.place);
            label(sum, WithAxes { keeps_partial: true, ..WithAxes::new(self.names(index, all)) }, self.place)
        };
        sums.into_iter().enumerate().map(scatter).collect()
    }

    /// Stacked weights that every phase is given: gathered, if all are gathered once.
    pub(super) fn before_phases(&self, stacked: Vec<Tensor>) -> Vec<Tensor> {
        match self.options.weights {
            WeightPlan::GatherOnce => self.gather(&stacked, 0, self.options.repeats > 1),
            _ => stacked,
        }
    }

    /// The weights of a repeat, or of a chunk, as they are in the stack.
    pub(super) fn at_rest(&self, stacked: &[Tensor], repeat: Number) -> Vec<Tensor> {
        let own = |weight: &Tensor| match (self.options.parts(), repeat) {
            (1, _) => *weight,
            (_, Number::Known(repeat)) => weight.slice(0, repeat..repeat + 1).reshape(without_first(&weight.dims(), 1)),
            (_, Number::Traced(repeat)) => weight.dynamic_index(0, repeat),
        };
        stacked.iter().map(own).collect()
    }

    /// The weights of a repeat, from [`Weights::before_phases`]: gathered, if that is done repeat by repeat.
    pub(super) fn of_repeat(&self, stacked: &[Tensor], repeat: Number) -> Vec<Tensor> {
        let weights = self.at_rest(stacked, repeat);
        if self.options.weights.slides() { self.gather(&weights, 0, false) } else { weights }
    }

    /// The weights of an iteration, `[S, P, ..]`. Weights that are gathered per iteration wait for `x`, its
    /// activations: a gather that is the same in all iterations would be moved in front of their loop.
    pub(super) fn of_iteration(&self, window: &Window, items: &Items, x: Tensor) -> Vec<Tensor> {
        let weights: Vec<Tensor> = match window {
            Window::One(weights) => weights.clone(),
            Window::Two { before, after, repeat } => {
                let is_after = self.is_after(items, *repeat);
                let choose = |(&before, &after): (&Tensor, &Tensor)| per_stage(is_after, after).select(after, before);
                before.iter().zip(after).map(choose).collect()
            }
            Window::All(weights) => weights.iter().map(|weight| pick(*weight, items.repeat)).collect(),
        };
        match self.options.weights {
            WeightPlan::PerIteration => {
                let mut waiting = barrier(&[&[x], &weights[..]].concat(), self.place);
                self.gather(&waiting.split_off(1), 0, false)
            }
            _ => weights,
        }
    }

    fn is_after(&self, items: &Items, repeat: Tensor) -> Tensor {
        items.repeat.equal(repeat.broadcast_like(items.repeat, []))
    }

    /// Zeros, to which the cotangents of these weights are added.
    pub(super) fn no_sums(&self, weights: &[Tensor]) -> Vec<Vec<Tensor>> {
        vec![weights.iter().map(|&weight| no_sum(weight)).collect()]
    }

    /// Zeros, to which the cotangents of the weights of every repeat are added.
    pub(super) fn no_sums_of_all(&self, of_repeat: &[Tensor]) -> Vec<Vec<Tensor>> {
        vec![of_repeat.iter().map(|&weight| no_sum(weight)).collect(); self.options.repeats]
    }

    /// Adds the cotangents of an iteration's weights to the sums of the window, which has a list for each repeat. The
    /// results of bubbles are left out, even if they are NaN.
    pub(super) fn add(
        &self,
        sums: &[Vec<Tensor>],
        window: &Window,
        items: &Items,
        (cotangents, has_bubbles): (Vec<Tensor>, bool),
    ) -> Vec<Vec<Tensor>> {
        let cotangents = match self.options.weights {
            WeightPlan::PerIteration => self.scatter(cotangents, false),
            _ => cotangents,
        };
        let add = |sums: &[Tensor], mask: Option<Tensor>| -> Vec<Tensor> {
            let add = |(&sum, &ct): (&Tensor, &Tensor)| match mask {
                Some(mask) => sum + per_stage(mask, ct).select(ct, 0.0).convert(sum.dtype()),
                None => sum + ct.convert(sum.dtype()),
            };
            sums.iter().zip(&cotangents).map(add).collect()
        };
        match window {
            Window::One(_) => vec![add(&sums[0], has_bubbles.then_some(items.active))],
            Window::Two { repeat, .. } => {
                let is_after = self.is_after(items, *repeat);
                vec![add(&sums[0], Some(!is_after & items.active)), add(&sums[1], Some(is_after & items.active))]
            }
            Window::All(_) => add_own(sums, items, cotangents),
        }
    }

    /// The cotangents of the stacked weights, `[R, S, P, ..]`, from those of each repeat.
    pub(super) fn stack(&self, by_repeat: Vec<RepeatSums>) -> Vec<Tensor> {
        let repeats = self.options.repeats;
        let joined = (0..self.names.len()).map(|weight| {
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

/// Zeros of a weight's dimensions. A sum of many numbers of few bits would lose the terms that are added to it, so it
/// is a sum in `f32`.
pub(super) fn no_sum(weight: Tensor) -> Tensor {
    let dtype = match weight.dtype() {
        DType::F64 => DType::F64,
        dtype if dtype.is_float() => DType::F32,
        dtype => dtype,
    };
    zeros(dtype, weight.dims())
}

/// Converts sums of cotangents to the types of their weights.
pub(super) fn in_types_of(weights: &[Tensor], sums: Vec<Tensor>) -> Vec<Tensor> {
    sums.into_iter().zip(weights).map(|(sum, weight)| sum.convert(weight.dtype())).collect()
}

/// Adds cotangents `[S, P, ..]`, on each stage to the sums of its own repeat. The sums of other repeats are left alone.
fn add_own(sums: &[Vec<Tensor>], items: &Items, cotangents: Vec<Tensor>) -> Vec<Vec<Tensor>> {
    let numbers = [items.repeat, items.active];
    map_parallel((sums.to_vec(), cotangents, numbers), |(sums, cotangents, [repeat, active])| {
        let of_repeat = |(number, sums): (usize, Vec<Tensor>)| {
            let own = repeat.equal(number as f64) & active;
            change_if(own, Often::default(), sums, |sums| {
                sums.iter().zip(&cotangents).map(|(&sum, ct)| sum + ct.convert(sum.dtype())).collect()
            })
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
