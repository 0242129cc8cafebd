//! All layers of a decoder, in a pipeline or not.
//!
//! Embedding, head and loss stand around a pipeline, where stages split the batch as further data parallelism, and so
//! do layers that are no part of it: those in front of the cycles, cycles that are left over, and those behind. With
//! the schedule 1F1B head and loss are in its loop, and stages split the sequence of each microbatch for them.

use meshloom::trace::{MapTree, Tensor, Tree, fail_internal, scope};
use meshloom::transform::pipeline::{
    LayerPlace, PipelineInput, PipelineLoss, PipelineOptions, StackedWeights, pipeline, pipeline_with_loss,
};

use super::layer::{LayerLoss, added};
use super::layers::{LayerRows, offset};
use super::layout::{Rows, STREAM, rows_of_weight};
use super::loss::WholeBatch;
use super::multi_token::{KnownTokens, LossWeights};
use super::runs::{LayerRun, RunForm, RunWeights};
use super::{Batch, Decoder, DecoderConfig, Dropout, Layers};

impl DecoderConfig {
    /// As [`DecoderConfig::layer_stack`], from the data of rows; in a pipeline if the config has one, and around it.
    pub(super) fn all_layers(
        &self,
        x: Tensor,
        layers: &Layers<Tensor>,
        rows: &LayerRows<Tensor>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let Some(options) = &self.pipeline else {
            let read = self.read_of_rows(rows, self.architecture.stack.described(), dropout);
            return self.layer_stack(x, layers, read.inputs(), read.dropout);
        };
        self.in_order(x, layers, |x, run, weights| match run.form {
            RunForm::Pipelined => self.pipelined_run(options, x, run, weights, rows, dropout),
            RunForm::Apart | RunForm::Scanned(_) => self.outside_pipeline(x, run, weights, rows, dropout),
        })
    }

    /// The layers of the pipeline over `x` `[batch, length, embed]`, and the sum of their own losses.
    fn pipelined_run(
        &self,
        options: &PipelineOptions,
        x: Tensor,
        run: &LayerRun,
        weights: &RunWeights<Tensor>,
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
        if !options.schedule.branches() {
            return None;
        }
        let runs = self.runs();
        let pipelined = runs.iter().position(|run| run.form == RunForm::Pipelined)?;
        let (run, weights) = (&runs[pipelined], params.layers.0.get(pipelined)?);
        let x = self.embed(params.embedding, batch.tokens, self.rows());
        if let Some(behind) = runs.get(pipelined + 1) {
            let schedule = options.schedule;
            let expected = format!("none: the schedule {schedule} has the loss in its loop; take gpipe or circular");
            let found = format!("layers from number {} on", behind.first);
            return Some(x.mismatch("the layers behind a pipeline", expected, found, std::panic::Location::caller()));
        }
        let numbers = dropout.map(|dropout| dropout.rows);
        let rows = LayerRows { positions: batch.positions, segments: batch.segment_ids, numbers };
        let in_front = Layers(params.layers.0[..pipelined].to_vec());
        let (x, loss_in_front) =
            self.in_order(x, &in_front, |x, run, weights| self.outside_pipeline(x, run, weights, &rows, dropout));
        // Each microbatch adds its part of the mean.
        let shares = whole.shares(batch.weights);
        let input = PipelineInput { x, names: STREAM.to_vec(), rows: (rows, (batch.targets, shares)) };
        let routed = self.routed_count();
        let penalty = 1.0 / (routed.max(1) * options.microbatches * whole.parts) as f64;
        let loss = PipelineLoss {
            weights: self.loss_weights(params),
            names: Rows::OF_MICROBATCH.stream().to_vec(),
            // Only routed experts have a loss of their own.
            penalties: vec![penalty],
        };
        let cycle = |x: Tensor, layers: Layers<Tensor>, (rows, _): InLoop, place: LayerPlace| {
            self.cycle_of_pipeline(x, run, &layers, &rows, place, dropout)
        };
        let of_microbatch = |x: Tensor, params: LossWeights<Tensor>, rows: InLoop| {
            let loss = self.head_loss(&params.head, x, rows.1, Rows::OF_MICROBATCH);
            let (of_further, of_experts) = self.further_loss_of_microbatch(&params, x, &rows, dropout);
            let of_experts = of_experts.map(|loss| loss / (options.microbatches * whole.parts) as f64);
            [of_further, of_experts].into_iter().flatten().fold(loss, |sum, part| sum + part)
        };
        let stacked = self.stacked(run, weights);
        let loss = scope("layers", || pipeline_with_loss(options, stacked, input, cycle, loss, of_microbatch).0);
        added(Some(loss), loss_in_front.map(|loss| loss / whole.parts as f64))
    }

    /// The weights of the loss, in the loop. The weights of the head stay in their own type: if the head is the table
    /// of tokens, its two gradients are added up in that type.
    fn loss_weights(&self, params: &Decoder<Tensor>) -> StackedWeights<LossWeights<Tensor>> {
        let declared = LossWeights::of(&self.parameters(), self.predicts_further()).leaves();
        let mut left = declared.iter();
        let weights = MapTree::map(&LossWeights::of(params, self.predicts_further()), |path, &weight: &Tensor| {
            let path = path.to_string();
            match left.next() {
                Some(param) if !path.starts_with("head.") => weight.convert(self.dtype_in_use(&path, param)),
                _ => weight,
            }
        });
        let names = declared.into_iter().map(|param| param.spec.axes).collect();
        StackedWeights::new(weights, names).used_on(|names| Rows::OF_MICROBATCH.of_weight(names))
    }

    /// The losses of the layers that predict further tokens, for a microbatch. It has too few rows for the stages, and
    /// each of its tokens sees others: every stage computes these layers for all of it.
    fn further_loss_of_microbatch(
        &self,
        params: &LossWeights<Tensor>,
        x: Tensor,
        (rows, (targets, weights)): &InLoop,
        dropout: Option<Dropout>,
    ) -> (Option<Tensor>, LayerLoss) {
        if params.further.is_empty() {
            return (None, None);
        }
        let (targets, weights) = (*targets, *weights);
        let known = KnownTokens { segments: rows.segments, targets, weights, rows: Rows::OF_MICROBATCH };
        self.further_loss(params, x, known, |x, run, weights| {
            let read = self.read_of_rows(rows, &run.cycle, dropout);
            let (x, loss) = self.layer_run(x.with_axes(STREAM), run, weights, read.inputs(), read.dropout);
            (x.with_axes(Rows::OF_MICROBATCH.stream()), loss)
        })
    }

    /// The weights of the pipeline.
    fn stacked(&self, run: &LayerRun, weights: &RunWeights<Tensor>) -> StackedWeights<Layers<Tensor>> {
        let declared = self.parameters().layers.0.into_iter().find(|declared| declared.numbers.first == run.first);
        let declared = declared.map(|run| Layers(vec![run]).leaves()).unwrap_or_default();
        let mut params = declared.iter();
        let weights = MapTree::map(&Layers(vec![weights.clone()]), |path, &weight: &Tensor| match params.next() {
            Some(param) => weight.convert(self.dtype_in_use(&path.to_string(), param)),
            None => fail_internal(format_args!("weight {path}"), "a weight that the config declares"),
        });
        StackedWeights::declared(&declared, weights).used_on(rows_of_weight)
    }

    /// A cycle of layers, which makes of rows what it needs.
    fn cycle_of_pipeline(
        &self,
        x: Tensor,
        run: &LayerRun,
        layers: &Layers<Tensor>,
        rows: &LayerRows<Tensor>,
        place: LayerPlace,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let mut read = self.read_of_rows(rows, &run.cycle, dropout);
        if self.pipeline.as_ref().is_some_and(|options| options.schedule.branches()) {
            // A ring passes keys on by permutes, for which not all devices are there in a branch.
            read = read.gathering_keys();
        }
        let length = run.cycle.len();
        let first = if length == 1 { place.layer } else { place.layer * length as f64 };
        let layers = layers.0.first().map_or(&[][..], |run| &run.layers);
        run.cycle(x, layers, |x, position, config, layer| {
            let dropout = read.dropout.map(|dropout| dropout.at(offset(first, run.first + position)));
            self.layer(config, x, layer, read.inputs(), dropout)
        })
    }
}

/// Rows of a pipeline with its loss: those of layers, and targets and weights of tokens.
type InLoop = (LayerRows<Tensor>, (Tensor, Tensor));
