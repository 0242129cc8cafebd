//! Runs the layers of a decoder over the residual stream, [run](super::Run) by run.

use super::dropout::Dropout;
use super::layer::{Angles, DecoderLayer, LayerConfig, LayerLoss, RowInputs};
use super::layout::{Rows, STREAM};
use super::stack::{LayerRun, Run, RunForm};
use super::{DecoderConfig, Layers};
use crate::ir::DType;
use crate::trace::{MapTree, Tensor, VmapOptions, arange, checkpoint, fail_internal, scan, scope, vmap_with};

crate::tree! {
    /// What belongs to the rows of a batch.
    pub(super) struct LayerRows<T> {
        /// Position within the document, `s32` `[batch, length]`.
        pub(super) positions: T,
        /// Which document a token belongs to, `s32` `[batch, length]`.
        pub(super) segments: T,
        /// Which row of the whole batch each is, where something drops: integers `[batch]`.
        pub(super) numbers: Option<T>,
    }
}

/// The dimension over stages of what is computed around a pipeline.
const STAGE: &str = "activation_stage";

impl DecoderConfig {
    /// All layers over the residual stream `x` `[batch, length, embed]`, under the remat policy; and the mean of the
    /// layers' own losses, if they have any. What drops is the same scanned or not, recomputed or not.
    ///
    /// Not for a config with a pipeline, of which the parameters have another form.
    pub fn layer_stack(
        &self,
        x: Tensor,
        layers: &Layers<Tensor>,
        rows: RowInputs<'_>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let of_run = |x: Tensor, run: &Run, weights: &LayerRun<Tensor>| self.layer_run(x, run, weights, rows, dropout);
        self.in_order(x, layers, of_run)
    }

    /// As [`DecoderConfig::layer_stack`], from what rows are; in a pipeline if the config has one, and around it.
    pub(super) fn all_layers(
        &self,
        x: Tensor,
        layers: &Layers<Tensor>,
        rows: &LayerRows<Tensor>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let Some(options) = &self.pipeline else {
            let angles = Angles::new(rows.positions, self.architecture.stack.described());
            let rows = RowInputs { angles: &angles, tokens: self.token_places(rows.segments) };
            return self.layer_stack(x, layers, rows, dropout);
        };
        self.in_order(x, layers, |x, run, weights| match run.form {
            RunForm::Pipelined => self.pipelined_run(options, x, run, weights, rows, dropout),
            RunForm::Apart | RunForm::Scanned(_) => {
                self.around_pipeline(options.stages, x, run, weights, rows, dropout)
            }
        })
    }

    /// One run after the other; and the mean of the sums of their layers' own losses.
    pub(super) fn in_order(
        &self,
        mut x: Tensor,
        layers: &Layers<Tensor>,
        mut of_run: impl FnMut(Tensor, &Run, &LayerRun<Tensor>) -> (Tensor, LayerLoss),
    ) -> (Tensor, LayerLoss) {
        let mut total: LayerLoss = None;
        for (run, weights) in self.runs().iter().zip(&layers.0) {
            let (next, loss) = of_run(x, run, weights);
            x = next;
            total = added(total, loss);
        }
        (x, total.map(|total| total / self.architecture.routed_count() as f64))
    }

    /// The layers of a run, and the sum of their own losses.
    fn layer_run(
        &self,
        x: Tensor,
        run: &Run,
        weights: &LayerRun<Tensor>,
        rows: RowInputs<'_>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let one_layer = |x: Tensor, config: &LayerConfig, layer: DecoderLayer<Tensor>, dropout: Option<Dropout>| {
            let inputs = (x, layer, dropout.map(|dropout| dropout.key));
            checkpoint(self.remat.clone(), inputs, |(x, layer, key)| {
                let dropout = dropout.zip(key).map(|(dropout, key)| Dropout { key, ..dropout });
                self.layer(config, x, &layer, rows, dropout)
            })
        };
        match run.form {
            RunForm::Apart => run.each_layer(weights).fold((x, None), |(x, total), (number, config, layer)| {
                let dropout = dropout.map(|dropout| dropout.at(number as u32));
                let run_layer = || one_layer(x, config, layer.clone(), dropout);
                let (x, loss) = scope(&format!("layers.{number}"), run_layer);
                (x, added(total, loss))
            }),
            RunForm::Scanned(cycles) => scope("layers", || {
                let numbers = dropout.map(|_| run.cycle_numbers(cycles));
                let body = |x: Tensor, (layers, first): (Vec<DecoderLayer<Tensor>>, Option<Tensor>)| {
                    let number = |position: usize| first.map(|first| offset(first, position));
                    let cycle = run.cycle.iter().zip(&layers).enumerate();
                    cycle.fold((x, None), |(x, total), (position, (config, layer))| {
                        let dropout = dropout.zip(number(position)).map(|(dropout, number)| dropout.at(number));
                        let run_layer = || one_layer(x, config, layer.clone(), dropout);
                        let (x, loss) = run.scoped(position, run_layer);
                        (x, added(total, loss))
                    })
                };
                let (x, losses) = scan(x, (weights.layers.clone(), numbers), body);
                (x, losses.map(|losses: Tensor| losses.sum(..)))
            }),
            RunForm::Pipelined => (fail_internal("the layers of a decoder", "no pipeline where none is run"), None),
        }
    }

    /// The layers of a run in front of a pipeline or behind it: stages split the batch, as further data parallelism.
    ///
    /// They are a leading dimension, so that layers are the same as in the pipeline: rows `s B / S` to `(s + 1) B / S`
    /// of the batch are those of stage `s`, which is how the pipeline takes them up.
    pub(super) fn around_pipeline(
        &self,
        stages: usize,
        x: Tensor,
        run: &Run,
        weights: &LayerRun<Tensor>,
        rows: &LayerRows<Tensor>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let by_stage = |x: Tensor| {
            let dims = x.dims();
            x.reshape([&[stages, dims[0] / stages.max(1)], &dims[1..]].concat())
        };
        let cut = by_stage(x).with_axes([&[STAGE], &STREAM[..]].concat());
        let cut_rows = MapTree::map(rows, |_, &rows: &Tensor| by_stage(rows));
        let options = VmapOptions::default().named(STAGE);
        let (made, losses) = vmap_with(options, (cut, cut_rows), |(x, rows): (Tensor, LayerRows<Tensor>)| {
            let angles = Angles::new(rows.positions, &run.cycle);
            let dropout = dropout.zip(rows.numbers).map(|(dropout, rows)| Dropout { rows, ..dropout });
            let inputs = RowInputs { angles: &angles, tokens: self.token_places(rows.segments) };
            self.layer_run(x, run, weights, inputs, dropout)
        });
        let made = made.with_axes([&[STAGE], &STREAM[..]].concat()).reshape(x.dims());
        (made.with_axes(Rows::AROUND_PIPELINE.stream()), losses.map(|losses: Tensor| losses.mean(..)))
    }
}

impl Run {
    /// The layers of the one cycle, with their numbers and parameters.
    fn each_layer<'r>(
        &'r self,
        weights: &'r LayerRun<Tensor>,
    ) -> impl Iterator<Item = (usize, &'r LayerConfig, &'r DecoderLayer<Tensor>)> {
        let layers = self.cycle.iter().zip(&weights.layers).enumerate();
        layers.map(|(position, (config, layer))| (self.first + position, config, layer))
    }

    /// The numbers of the first layers of cycles, to fold in: `u32` `[cycles]`.
    fn cycle_numbers(&self, cycles: usize) -> Tensor {
        let numbers = arange(DType::U32, cycles);
        let numbers = if self.cycle.len() == 1 { numbers } else { numbers * self.cycle.len() as f64 };
        offset(numbers, self.first)
    }

    /// In a scope of its own, if there are several layers in a cycle.
    pub(super) fn scoped<R>(&self, position: usize, f: impl FnOnce() -> R) -> R {
        match self.cycle.len() {
            1 => f(),
            length => scope(&format!("{}::{length}", self.first + position), f),
        }
    }
}

/// A number of a layer, so many layers on.
pub(super) fn offset(number: Tensor, layers: usize) -> Tensor {
    if layers == 0 { number } else { number + layers as f64 }
}

/// A sum of losses, of which there may be none.
pub(super) fn added(total: LayerLoss, loss: LayerLoss) -> LayerLoss {
    match (total, loss) {
        (Some(total), Some(loss)) => Some(total + loss),
        (total, loss) => total.or(loss),
    }
}
