//! A decoder whose layers are a pipeline.
//!
//! Embedding, head and loss stand around it, where stages split the batch as further data parallelism. With the
//! schedule 1F1B head and loss are in its loop, and stages split the sequence of each microbatch for them.

use super::decoder::Head;
use super::layer::{DecoderLayer, LayerLoss, RowInputs};
use super::layout::{Rows, STREAM};
use super::loss::WholeBatch;
use super::rotary::Rotary;
use super::{Batch, Decoder, DecoderConfig, Dropout, Layers};
use crate::ir::DType;
use crate::trace::{MapTree, Param, Tensor, Tree, fail_internal, scope};
use crate::transform::pipeline::{
    LayerPlace, PipelineInput, PipelineLoss, PipelineOptions, Schedule, StackedWeights, pipeline, pipeline_with_loss,
};

/// Positions and segments of rows.
type Sequence = (Tensor, Tensor);

/// A sequence, and the rows' numbers where something drops.
type NumberedRows = (Sequence, Option<Tensor>);

impl DecoderConfig {
    /// All layers over `x` `[batch, length, embed]` as a pipeline, and the mean of their own losses; none if they are
    /// no pipeline.
    pub(super) fn pipelined_layers(
        &self,
        params: &Decoder<Tensor>,
        x: Tensor,
        rows: Sequence,
        dropout: Option<Dropout>,
    ) -> Option<(Tensor, LayerLoss)> {
        let (options, stacked) = self.stacked_layers(params)?;
        let rows = (rows, dropout.map(|dropout| dropout.rows));
        let input = PipelineInput { x, names: STREAM.to_vec(), rows };
        let layer = |x: Tensor, layer: DecoderLayer<Tensor>, rows: NumberedRows, place: LayerPlace| {
            self.layer_of_pipeline(x, &layer, rows, place, dropout)
        };
        let (x, losses) = scope("layers", || pipeline(options, stacked, input, layer));
        let mean = losses.map(|losses| losses / (self.layers * options.microbatches) as f64);
        Some((self.rows().leave_block(x), mean))
    }

    /// The loss, where it is a part of the pipeline.
    pub(super) fn loss_in_pipeline(
        &self,
        params: &Decoder<Tensor>,
        batch: &Batch<Tensor>,
        whole: WholeBatch,
        dropout: Option<Dropout>,
    ) -> Option<Tensor> {
        let (options, stacked) = self.stacked_layers(params)?;
        if options.schedule != Schedule::OneForwardOneBackward {
            return None;
        }
        let x = self.embed(params, batch.tokens);
        // Each microbatch adds its part of the mean.
        let weights = batch.weights / whole.weight.broadcast_like(batch.weights, []);
        let numbered = ((batch.positions, batch.segment_ids), dropout.map(|dropout| dropout.rows));
        let rows = (numbered, (batch.targets, weights));
        let input = PipelineInput { x, names: STREAM.to_vec(), rows };
        let declared = Head::of(&self.parameters()).leaves();
        let head = StackedWeights {
            weights: Head::of(params),
            names: declared.into_iter().map(|param| param.spec.axes).collect(),
        };
        let penalty = self.parts.routed.load_balance_weight / (self.layers * options.microbatches * whole.parts) as f64;
        let loss = PipelineLoss {
            weights: head,
            names: Rows::OF_MICROBATCH.stream().to_vec(),
            // Only routed experts have a loss of their own.
            penalties: vec![penalty],
        };
        let layer = |x: Tensor, layer: DecoderLayer<Tensor>, (rows, _): (NumberedRows, Sequence), place: LayerPlace| {
            self.layer_of_pipeline(x, &layer, rows, place, dropout)
        };
        let of_microbatch = |x: Tensor, head: Head<Tensor>, (_, tokens): (NumberedRows, Sequence)| {
            self.head_loss(&head, x, tokens, Rows::OF_MICROBATCH)
        };
        Some(scope("layers", || pipeline_with_loss(options, stacked, input, layer, loss, of_microbatch).0))
    }

    /// The form of the pipeline and its weights, if there is one.
    fn stacked_layers(
        &self,
        params: &Decoder<Tensor>,
    ) -> Option<(&PipelineOptions, StackedWeights<DecoderLayer<Tensor>>)> {
        let (Some(options), Layers::Stacked(layers)) = (&self.pipeline, &params.layers) else { return None };
        let Layers::Stacked(declared) = self.parameters().layers else { return None };
        let declared = declared.leaves();
        let mut params = declared.iter();
        let weights = MapTree::map(&**layers, |path, &weight: &Tensor| match params.next() {
            Some(param) => weight.convert(self.dtype_in_use(&path.to_string(), param)),
            None => fail_internal(format_args!("weight {path}"), "a weight that the config declares"),
        });
        Some((options, StackedWeights::declared(&declared, weights)))
    }

    /// The type in which a layer's weight is gathered: what a layer works with may have fewer bits, so less is
    /// gathered. It uses vectors, and the router, as they are.
    pub fn dtype_in_use(&self, path: &str, param: &Param) -> DType {
        let is_converted = param.unstacked_rank() > 1 && !path.ends_with("router");
        if is_converted { self.compute_dtype } else { param.spec.ty.dtype }
    }

    /// A layer, which makes of rows what it needs.
    fn layer_of_pipeline(
        &self,
        x: Tensor,
        layer: &DecoderLayer<Tensor>,
        ((positions, segment_ids), numbers): NumberedRows,
        place: LayerPlace,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let rotary = scope("rotary", || Rotary::new(positions, self.rotary_dim(), self.rope_theta));
        let tokens = self.token_places(segment_ids);
        let dropout = dropout.zip(numbers).map(|(dropout, rows)| Dropout { rows, ..dropout }.at(place.layer));
        self.layer(x, layer, RowInputs { rotary: &rotary, tokens }, dropout)
    }

    /// The same model with its layers one after the other, and the parameters of this one for it.
    pub fn without_pipeline(&self, params: &Decoder<Tensor>) -> (DecoderConfig, Decoder<Tensor>) {
        let (Some(pipeline), Layers::Stacked(layers)) = (&self.pipeline, &params.layers) else {
            return (self.clone(), params.clone());
        };
        let leading = pipeline.leading_dims().len();
        let flat = layers.map(|path, weight| match weight.dims().get(leading..) {
            Some(rest) => weight.reshape([&[self.layers][..], rest].concat()),
            None => fail_internal(format_args!("weight {path}"), format_args!("{leading} leading dimensions")),
        });
        let model = DecoderConfig { pipeline: None, scan_layers: true, ..self.clone() };
        (model, Decoder { layers: Layers::Stacked(flat), ..params.clone() })
    }
}
