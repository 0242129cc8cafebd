//! How the weights of stages, or of a loss, are gathered, and how their cotangents are scattered.

use super::batch_slots::without_first;
use super::{PipelineOptions, StackedWeights};
use crate::ir::{AxisNames, DType, Name};
use crate::ops::WithAxes;
use crate::trace::{Tensor, full, zeros};

/// The facts about all stacked weights of a pipeline.
pub(super) struct StageWeights<'a> {
    pub(super) options: &'a PipelineOptions,
    /// For each weight, the logical names of its dimensions without that of repeats.
    names: Vec<AxisNames>,
    /// For each weight, the names [beside](WithAxes::beside) which it is used.
    beside: Vec<AxisNames>,
}

/// The number of a repeat, or of a chunk: known when tracing, or computed, `s32[]`.
#[derive(Clone, Copy)]
pub(super) enum RepeatNumber {
    Known(usize),
    Traced(Tensor),
}

impl RepeatNumber {
    /// This number and another; the sum must not be negative.
    pub(super) fn plus(self, other: i32) -> RepeatNumber {
        match self {
            RepeatNumber::Known(number) => RepeatNumber::Known(number.saturating_add_signed(other as isize)),
            RepeatNumber::Traced(number) => RepeatNumber::Traced(number + f64::from(other)),
        }
    }

    pub(super) fn tensor(self) -> Tensor {
        match self {
            RepeatNumber::Known(number) => full(DType::S32, [], number as f64),
            RepeatNumber::Traced(number) => number,
        }
    }
}

impl<'a> StageWeights<'a> {
    /// Weights of the layers, or of the loss, that work on activations of these names. `shared` is the logical name
    /// that runs over the stages in activations, if these weights are those of stages.
    pub(super) fn new<W>(
        options: &'a PipelineOptions,
        stacked: &StackedWeights<W>,
        (shared, activations): (&str, &[&str]),
    ) -> StageWeights<'a> {
        // The weights of a loss are not stacked.
        let first = usize::from(!shared.is_empty() && options.parts() > 1);
        let names = stacked.names.iter().map(|names| names.iter().skip(first).copied().collect()).collect();
        let rows: AxisNames =
            activations.split_last().map_or(&[][..], |(_, rows)| rows).iter().map(|name| Name::new(name)).collect();
        let rows = (0..stacked.names.len()).map(|weight| stacked.rows.get(weight).unwrap_or(&rows));
        let beside = rows.map(|rows| std::iter::once(Name::new(shared)).chain(rows.iter().copied()).collect());
        StageWeights { options, names, beside: beside.collect() }
    }

    /// The number of weights.
    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    /// The logical names of the weights of one repeat, or of all.
    fn names(&self, weight: usize, all: bool) -> AxisNames {
        let repeats = all.then(|| Name::new("circular_repeats"));
        repeats.into_iter().chain(self.names[weight].iter().copied()).collect()
    }

    /// Gathers the weights, but for the axes that split them where they are used. `first` is the number of the first
    /// weight in the list.
    pub(super) fn gather(&self, weights: &[Tensor], first: usize, all: bool) -> Vec<Tensor> {
        let gather = |(index, weight): (usize, &Tensor)| weight.with_logical_axes(self.whole(first + index, all));
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
            let sum = sum.with_logical_axes(WithAxes { keeps_partial: true, ..self.whole(index, all) });
            sum.with_logical_axes(WithAxes { keeps_partial: true, ..WithAxes::new(self.names(index, all)) })
        };
        sums.into_iter().enumerate().map(scatter).collect()
    }

    /// The weights of a repeat, or of a chunk, as they are in the stack.
    pub(super) fn at_rest(&self, stacked: &[Tensor], repeat: RepeatNumber) -> Vec<Tensor> {
        let own = |weight: &Tensor| match (self.options.parts(), repeat) {
            (1, _) => *weight,
            (_, RepeatNumber::Known(repeat)) => {
                weight.slice(0, repeat..repeat + 1).reshape(without_first(&weight.dims(), 1))
            }
            (_, RepeatNumber::Traced(repeat)) => weight.dynamic_index(0, repeat),
        };
        stacked.iter().map(own).collect()
    }
}

/// Zeros, to which the cotangents of weights are added. A sum of many numbers of few bits would lose the terms that are
/// added to it, so it is a sum in `f32`.
pub(super) fn no_sums(weights: &[Tensor]) -> Vec<Tensor> {
    let no_sum = |weight: &Tensor| {
        let dtype = weight.dtype();
        zeros(if dtype.is_float() { dtype.at_least_f32() } else { dtype }, weight.dims())
    };
    weights.iter().map(no_sum).collect()
}

/// Sums with the next term added to each.
pub(super) fn added(sums: &[Tensor], more: impl IntoIterator<Item = Tensor>) -> Vec<Tensor> {
    sums.iter().zip(more).map(|(&sum, more)| sum + more.convert(sum.dtype())).collect()
}

/// Converts sums of cotangents to the types of their weights.
pub(super) fn in_types_of(weights: &[Tensor], sums: Vec<Tensor>) -> Vec<Tensor> {
    sums.into_iter().zip(weights).map(|(sum, weight)| sum.convert(weight.dtype())).collect()
}

/// A zero for each of these values, such as the cotangent of one that has none.
pub(super) fn zeros_of(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.zeros_like()).collect()
}
