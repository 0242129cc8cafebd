//! A decoder whose layers are a pipeline.
//!
//! Embedding, head and loss stand around it, where stages split the batch as further data parallelism, and so do layers
//! that are no part of it: those in front of the cycles, cycles that are left over, and those behind. With the schedule
//! 1F1B head and loss are in its loop, and stages split the sequence of each microbatch for them.

use super::decoder::Head;
use super::layer::LayerLoss;
use super::layer_path::{LayerNumbers, LayerPath};
use super::layers::{LayerRows, added, offset};
use super::layout::{Rows, STREAM};
use super::loss::WholeBatch;
use super::stack::{LayerRun, Run, RunForm};
use super::{Batch, Decoder, DecoderConfig, Dropout, Layers};
use crate::ir::DType;
use crate::trace::{MapTree, Param, Tensor, Tree, concatenate, fail_internal, scope};
use crate::transform::pipeline::{
    LayerPlace, PipelineInput, PipelineLoss, PipelineOptions, Schedule, StackedWeights, pipeline, pipeline_with_loss,
};

impl DecoderConfig {
    /// The layers of the pipeline over `x` `[batch, length, embed]`, and the sum of their own losses.
    pub(super) fn pipelined_run(
        &self,
        options: &PipelineOptions,
        x: Tensor,
        run: &Run,
        weights: &LayerRun<Tensor>,
        rows: &LayerRows<Tensor>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let input = PipelineInput { x, names: STREAM.to_vec(), rows: rows.clone() };
        let stacked = self.stacked(run, weights);
        let cycle = |x: Tensor, layers: Layers<Tensor>, rows: LayerRows<Tensor>, place: LayerPlace| {
            self.cycle_of_pipeline(x, run, &layers, &rows, place, dropout)
        };
        let (x, losses) = scope("layers", || pipeline(options, stacked, input, cycle));
        (self.rows().leave_block(x), losses.map(|losses| losses / options.microbatches as f64))
    }

    /// The loss, where it is a part of the pipeline.
    pub(super) fn loss_in_pipeline(
        &self,
        params: &Decoder<Tensor>,
        batch: &Batch<Tensor>,
        whole: WholeBatch,
        dropout: Option<Dropout>,
    ) -> Option<Tensor> {
        let options = self.pipeline.as_ref()?;
        if options.schedule != Schedule::OneForwardOneBackward {
            return None;
        }
        let runs = self.runs();
        let pipelined = runs.iter().position(|run| run.form == RunForm::Pipelined)?;
        let (run, weights) = (&runs[pipelined], params.layers.0.get(pipelined)?);
        let x = self.embed(params, batch.tokens);
        if let Some(behind) = runs.get(pipelined + 1) {
            let expected = "none: the schedule 1f1b has the loss in its loop; take another schedule".to_owned();
            let found = format!("layers from number {} on", behind.first);
            return Some(x.mismatch("the layers behind a pipeline", expected, found, std::panic::Location::caller()));
        }
        let numbers = dropout.map(|dropout| dropout.rows);
        let rows = LayerRows { positions: batch.positions, segments: batch.segment_ids, numbers };
        let in_front = Layers(params.layers.0[..pipelined].to_vec());
        let (x, loss_in_front) = self.in_order(x, &in_front, |x, run, weights| {
            self.around_pipeline(options.stages, x, run, weights, &rows, dropout)
        });
        // Each microbatch adds its part of the mean.
        let weights_of_tokens = batch.weights / whole.weight.broadcast_like(batch.weights, []);
        let input = PipelineInput { x, names: STREAM.to_vec(), rows: (rows, (batch.targets, weights_of_tokens)) };
        let declared = Head::of(&self.parameters()).leaves();
        let head = StackedWeights {
            weights: Head::of(params),
            names: declared.into_iter().map(|param| param.spec.axes).collect(),
        };
        let routed = self.architecture.routed_count();
        let penalty = 1.0 / (routed.max(1) * options.microbatches * whole.parts) as f64;
        let loss = PipelineLoss {
            weights: head,
            names: Rows::OF_MICROBATCH.stream().to_vec(),
            // Only routed experts have a loss of their own.
            penalties: vec![penalty],
        };
        let cycle = |x: Tensor, layers: Layers<Tensor>, (rows, _): InLoop, place: LayerPlace| {
            self.cycle_of_pipeline(x, run, &layers, &rows, place, dropout)
        };
        let of_microbatch =
            |x: Tensor, head: Head<Tensor>, (_, tokens): InLoop| self.head_loss(&head, x, tokens, Rows::OF_MICROBATCH);
        let stacked = self.stacked(run, weights);
        let loss = scope("layers", || pipeline_with_loss(options, stacked, input, cycle, loss, of_microbatch).0);
        added(Some(loss), loss_in_front.map(|loss| loss / whole.parts as f64))
    }

    /// The weights of the pipeline.
    fn stacked(&self, run: &Run, weights: &LayerRun<Tensor>) -> StackedWeights<Layers<Tensor>> {
        let declared = self.parameters().layers.0.into_iter().find(|declared| declared.numbers.first == run.first);
        let declared = declared.map(|run| Layers(vec![run]).leaves()).unwrap_or_default();
        let mut params = declared.iter();
        let weights = MapTree::map(&Layers(vec![weights.clone()]), |path, &weight: &Tensor| match params.next() {
            Some(param) => weight.convert(self.dtype_in_use(&path.to_string(), param)),
            None => fail_internal(format_args!("weight {path}"), "a weight that the config declares"),
        });
        StackedWeights::declared(&declared, weights)
    }

    /// The type in which a layer's weight is gathered: what a layer works with may have fewer bits, so less is
    /// gathered. It uses vectors, biases and the router as they are.
    pub fn dtype_in_use(&self, path: &str, param: &Param) -> DType {
        let is_converted = param.matrix.is_some() && !path.ends_with("router");
        if is_converted { self.compute_dtype } else { param.spec.ty.dtype }
    }

    /// A cycle of layers, which makes of rows what it needs.
    fn cycle_of_pipeline(
        &self,
        x: Tensor,
        run: &Run,
        layers: &Layers<Tensor>,
        rows: &LayerRows<Tensor>,
        place: LayerPlace,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let read = self.read_of_rows(rows, &run.cycle, dropout);
        let length = run.cycle.len();
        let first = if length == 1 { place.layer } else { place.layer * length as f64 };
        let layers = layers.0.first().map_or(&[][..], |run| &run.layers);
        run.cycle(x, layers, |x, position, config, layer| {
            let dropout = read.dropout.map(|dropout| dropout.at(offset(first, run.first + position)));
            self.layer(config, x, layer, read.inputs(), dropout)
        })
    }

    /// The same model with its layers one after the other, and the parameters of this one for it.
    pub fn without_pipeline(&self, params: &Decoder<Tensor>) -> (DecoderConfig, Decoder<Tensor>) {
        let Some(pipeline) = &self.pipeline else { return (self.clone(), params.clone()) };
        let model = DecoderConfig { pipeline: None, scan_layers: true, ..self.clone() };
        let leading = pipeline.leading_dims().len();
        let sources = params.paths().into_iter().zip(params.leaves()).zip(self.parameters().leaves());
        let sources: Vec<(LayerPath, Tensor)> = sources
            .map(|((path, weight), declared)| {
                let flat = match weight.dims().get(leading..) {
                    Some(rest) if declared.stacked_dims == leading => {
                        let cycles = weight.dims()[..leading].iter().product();
                        weight.reshape([&[cycles][..], rest].concat())
                    }
                    _ => weight,
                };
                (LayerPath::of(&path, declared.stacked_dims > 0), flat)
            })
            .collect();
        let params = model.parameters().map(|path, declared| {
            let wanted = LayerPath::of(&path.to_string(), declared.stacked_dims > 0);
            let count = declared.spec.ty.dims.first().copied().unwrap_or_default();
            joined(&sources, &wanted, count)
        });
        (model, params)
    }
}

/// The parameter `wanted`, which has `count` layers if it is of several, put together of those that have its layers.
fn joined(sources: &[(LayerPath, Tensor)], wanted: &LayerPath, count: usize) -> Tensor {
    let same = sources.iter().filter(|(path, _)| path.name == wanted.name);
    let Some(LayerNumbers { first, step: Some(step) }) = wanted.numbers else {
        let found = same.into_iter().find(|(path, _)| path.numbers == wanted.numbers);
        return found.map_or_else(|| missing(wanted), |(_, weight)| *weight);
    };
    let layers = first..first + count * step;
    let is_wanted =
        |numbers: LayerNumbers| layers.contains(&numbers.first) && (numbers.first - first).is_multiple_of(step);
    let pieces: Vec<Tensor> = same
        .filter_map(|(path, weight)| path.numbers.map(|numbers| (numbers, *weight)))
        .filter(|(numbers, _)| is_wanted(*numbers))
        .map(|(numbers, weight)| if numbers.step.is_some() { weight } else { weight.expand(0) })
        .collect();
    match pieces[..] {
        [] => missing(wanted),
        [one] => one,
        _ => concatenate(&pieces, 0),
    }
}

fn missing(wanted: &LayerPath) -> Tensor {
    fail_internal(format_args!("the parameter {}", wanted.name), "the layers of a pipeline and around it")
}

/// Rows of a pipeline with its loss: those of layers, and targets and weights of tokens.
type InLoop = (LayerRows<Tensor>, (Tensor, Tensor));
