//! Runs the layers of a decoder over the residual stream, [run](super::LayerRun) by run.

use meshloom::ir::DType;
use meshloom::ops::KeyExchange;
use meshloom::trace::{MapTree, Tensor, VmapOptions, arange, checkpoint, fail_internal, scan, scope, vmap_with};
use meshloom::transform::pipeline::{PipelineOptions, STAGE};

use super::batch_split;
use super::config::DecoderConfig;
use super::dropout::Dropout;
use super::kv_cache::Keys;
use super::layer::{Angles, DecoderLayer, Layer, LayerConfig, LayerLoss, LayerLossWeights, RowInputs, added};
use super::layout::{Rows, STREAM};
use super::runs::{LayerRun, Layers, RunForm, RunWeights};
use super::token_places::TokenPlaces;

meshloom::tree! {
    /// The data of the rows of a batch that layers need.
    pub(super) struct LayerRows<T> {
        /// Position within the document, `s32` `[batch, length]`.
        pub(super) positions: T,
        /// The number of the document that each token belongs to, `s32` `[batch, length]`.
        pub(super) segments: T,
        /// The number of each row in the whole batch, if there is dropout: integers `[batch]`.
        pub(super) numbers: Option<T>,
    }
}

/// The inputs of layers that belong to rows, with the dropout of these rows.
pub(super) struct ReadOfRows {
    angles: Angles,
    tokens: TokenPlaces,
    pub(super) dropout: Option<Dropout>,
}

impl ReadOfRows {
    pub(super) fn inputs(&self) -> RowInputs<'_> {
        RowInputs { angles: &self.angles, tokens: self.tokens }
    }

    /// The same, with keys that are gathered.
    pub(super) fn gathering_keys(self) -> ReadOfRows {
        ReadOfRows { tokens: self.tokens.with_exchange(KeyExchange::Gather), ..self }
    }
}

impl DecoderConfig {
    /// All layers over the residual stream `x` `[batch, length, embed]`, under the remat policy; and the mean of the
    /// layers' own losses, if they have any. The same elements drop, scanned or not, recomputed or not.
    ///
    /// A config with a pipeline has parameters of another form, and cannot use it.
    pub fn layer_stack(
        &self,
        x: Tensor,
        layers: &Layers<Tensor>,
        rows: RowInputs<'_>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let of_run =
            |x: Tensor, run: &LayerRun, weights: &RunWeights<Tensor>| self.layer_run(x, run, weights, rows, dropout);
        self.in_order(x, layers, of_run)
    }

    /// The inputs of some layers that belong to rows.
    pub(super) fn read_of_rows<'l>(
        &self,
        rows: &LayerRows<Tensor>,
        layers: impl IntoIterator<Item = &'l LayerConfig>,
        dropout: Option<Dropout>,
    ) -> ReadOfRows {
        ReadOfRows {
            angles: Angles::new(rows.positions, layers),
            tokens: TokenPlaces::of_rows(rows.segments).with_exchange(self.exchange).with_order(self.order),
            dropout: dropout.zip(rows.numbers).map(|(dropout, rows)| Dropout { rows, ..dropout }),
        }
    }

    /// One run after the other; and the mean of the sums of their layers' own losses.
    pub(super) fn in_order(
        &self,
        mut x: Tensor,
        layers: &Layers<Tensor>,
        mut of_run: impl FnMut(Tensor, &LayerRun, &RunWeights<Tensor>) -> (Tensor, LayerLoss),
    ) -> (Tensor, LayerLoss) {
        let mut total: LayerLoss = None;
        for (run, weights) in self.runs().iter().zip(&layers.0) {
            let (next, loss) = of_run(x, run, weights);
            x = next;
            total = added(total, loss);
        }
        (x, total.map(|total| total / self.routed_count() as f64))
    }

    /// One layer over the residual stream `x` `[batch, length, embed]`: attention, then the feed-forward block. Each
    /// adds its result to the stream, after `dropout`. Also returns the layer's own loss.
    ///
    /// With [`DecoderConfig::batch_split`] in two halves of the batch, if it is even; the numbers are the same.
    pub fn layer(
        &self,
        config: &LayerConfig,
        x: Tensor,
        params: &DecoderLayer<Tensor>,
        rows: RowInputs<'_>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let loss = LayerLossWeights { load_balance: self.load_balance_weight, choice_bias: self.choice_bias_gradient };
        let layer = Layer { config, params, loss };
        // A single row cannot be halved.
        let is_even = x.dims().first().is_some_and(|rows| rows.is_multiple_of(2));
        if self.batch_split && is_even {
            return batch_split::run(layer, x, rows, dropout);
        }
        let x = layer.attention_block(x, rows.angles, &mut Keys::of_rows(rows.tokens), dropout);
        layer.feed_forward_block(x, dropout)
    }
    /// The layers of a run, and the sum of their own losses.
    pub(super) fn layer_run(
        &self,
        x: Tensor,
        run: &LayerRun,
        weights: &RunWeights<Tensor>,
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
            RunForm::Apart => scope(&format!("layers.{}", run.first), || {
                run.cycle(x, &weights.layers, |x, position, config, layer| {
                    let dropout = dropout.map(|dropout| dropout.at((run.first + position) as u32));
                    one_layer(x, config, layer.clone(), dropout)
                })
            }),
            RunForm::Scanned(cycles) => scope("layers", || {
                let numbers = dropout.map(|_| run.cycle_numbers(cycles));
                let body = |x: Tensor, (layers, first): (Vec<DecoderLayer<Tensor>>, Option<Tensor>)| {
                    run.cycle(x, &layers, |x, position, config, layer| {
                        let dropout = dropout.zip(first).map(|(dropout, first)| dropout.at(offset(first, position)));
                        one_layer(x, config, layer.clone(), dropout)
                    })
                };
                let (x, losses) = scan(x, (weights.layers.clone(), numbers), body);
                (x, losses.map(|losses: Tensor| losses.sum(..)))
            }),
            RunForm::Pipelined => (fail_internal("the layers of a decoder", "no pipeline where none is run"), None),
        }
    }

    /// The layers of a run that is no pipeline, and the sum of their own losses. In front of a pipeline or behind it,
    /// stages split the batch, as further data parallelism.
    ///
    /// They are a leading dimension, so that layers are the same as in the pipeline: rows `s B / S` to `(s + 1) B / S`
    /// of the batch are those of stage `s`, which is how the pipeline takes them up.
    pub(super) fn outside_pipeline(
        &self,
        x: Tensor,
        run: &LayerRun,
        weights: &RunWeights<Tensor>,
        rows: &LayerRows<Tensor>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let layers = |x: Tensor, rows: &LayerRows<Tensor>| {
            let read = self.read_of_rows(rows, &run.cycle, dropout);
            self.layer_run(x, run, weights, read.inputs(), read.dropout)
        };
        let Some(PipelineOptions { stages, .. }) = self.pipeline else { return layers(x, rows) };
        let by_stage = |x: Tensor| x.reshape_first(&[stages, x.dim(0) / stages.max(1)]);
        let cut = by_stage(x).with_axes([&[STAGE], &STREAM[..]].concat());
        let cut_rows = MapTree::map(rows, |_, &rows: &Tensor| by_stage(rows));
        let options = VmapOptions::default().named(STAGE);
        let (made, losses) =
            vmap_with(options, (cut, cut_rows), |(x, rows): (Tensor, LayerRows<Tensor>)| layers(x, &rows));
        let made = made.with_axes([&[STAGE], &STREAM[..]].concat()).reshape(x.dims());
        (made.with_axes(Rows::AROUND_PIPELINE.stream()), losses.map(|losses: Tensor| losses.mean(..)))
    }
}

impl LayerRun {
    /// The layers of one cycle over `x`, each by its place in the cycle; and the sum of their own losses.
    pub(super) fn cycle(
        &self,
        x: Tensor,
        layers: &[DecoderLayer<Tensor>],
        of_layer: impl Fn(Tensor, usize, &LayerConfig, &DecoderLayer<Tensor>) -> (Tensor, LayerLoss),
    ) -> (Tensor, LayerLoss) {
        let cycle = self.cycle.iter().zip(layers).enumerate();
        cycle.fold((x, None), |(x, total), (position, (config, layer))| {
            let (x, loss) = self.scoped(position, || of_layer(x, position, config, layer));
            (x, added(total, loss))
        })
    }

    /// The numbers of the first layers of cycles, to fold in: `u32` `[cycles]`.
    fn cycle_numbers(&self, cycles: usize) -> Tensor {
        let numbers = arange(DType::U32, cycles);
        let numbers = if self.cycle.len() == 1 { numbers } else { numbers * self.cycle.len() as f64 };
        offset(numbers, self.first)
    }

    /// In a scope of its own, if there are several layers in a cycle.
    fn scoped<R>(&self, position: usize, f: impl FnOnce() -> R) -> R {
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
