//! The decoder: from tokens through embedding, layers and head to logits and the loss of a batch.

use meshloom::ir::DType;
use meshloom::trace::{Tensor, TensorSpec, scope};

use super::config::DecoderConfig;
use super::dropout::Dropout;
use super::head::Head;
use super::layer::{LayerLoss, added};
use super::layers::LayerRows;
use super::layout::Rows;
use super::loss::WholeBatch;
use super::multi_token::{KnownTokens, LossWeights};
use super::parameters::Decoder;
use super::runs::{LayerRun, RunWeights};

meshloom::tree! {
    /// One batch of packed sequences; all `[batch, length]`.
    #[derive(PartialEq)]
    pub struct Batch<T> {
        /// Input tokens, `s32`.
        pub tokens: T,
        /// The token after each, `s32`.
        pub targets: T,
        /// The number of the document that each token belongs to, `s32`.
        pub segment_ids: T,
        /// Position within the document, `s32`.
        pub positions: T,
        /// Weight of each token's loss, `f32`.
        pub weights: T,
    }
}

impl Batch<TensorSpec> {
    /// The logical axes of everything in a batch.
    pub const AXES: [&str; 2] = ["activation_batch", "activation_length"];

    /// As [`Batch::AXES`], in front of a pipeline.
    pub const AXES_OF_PIPELINE: [&str; 2] = [Rows::AROUND_PIPELINE.batch, "activation_length"];

    /// The types of a batch of `batch` rows of `length` tokens.
    pub fn specs(batch: usize, length: usize) -> Batch<TensorSpec> {
        Batch::named_specs(batch, length, Self::AXES)
    }

    fn named_specs(batch: usize, length: usize, axes: [&str; 2]) -> Batch<TensorSpec> {
        let spec = |dtype| TensorSpec::new(dtype, [batch, length]).with_axes(&axes);
        Batch {
            tokens: spec(DType::S32),
            targets: spec(DType::S32),
            segment_ids: spec(DType::S32),
            positions: spec(DType::S32),
            weights: spec(DType::F32),
        }
    }
}

impl DecoderConfig {
    /// The types of a batch of `batch` rows of `length` tokens, split as this model wants them.
    pub fn batch_specs(&self, batch: usize, length: usize) -> Batch<TensorSpec> {
        let axes = if self.pipeline.is_some() { Batch::AXES_OF_PIPELINE } else { Batch::AXES };
        Batch::named_specs(batch, length, axes)
    }

    /// The logits `[batch, length, vocab]`, `f32`, of the token after each token.
    pub fn logits(&self, params: &Decoder<Tensor>, tokens: Tensor, segment_ids: Tensor, positions: Tensor) -> Tensor {
        let params = &self.with_table_in_use(params);
        let (x, _) = self.activations(params, tokens, (positions, segment_ids), None);
        self.head(&Head::of(params), x, self.rows())
    }

    /// The residual stream behind the layers, `[batch, length, embed]`, and the mean of the layers' own losses.
    fn activations(
        &self,
        params: &Decoder<Tensor>,
        tokens: Tensor,
        (positions, segment_ids): (Tensor, Tensor),
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let x = self.embed(params.embedding, tokens, self.rows());
        let rows = LayerRows { positions, segments: segment_ids, numbers: dropout.map(|dropout| dropout.rows) };
        self.all_layers(x, &params.layers, &rows, dropout)
    }

    /// The mean cross entropy of a batch, in nats per token; with routed experts, and their load-balance loss times its
    /// weight. The z-loss and the loss of further tokens come with their weights as well.
    pub fn loss(&self, params: &Decoder<Tensor>, batch: &Batch<Tensor>) -> Tensor {
        self.loss_of_part(params, batch, scope("loss", || WholeBatch::of(batch.weights)), None)
    }

    /// The share of some rows of a batch in the loss of the whole. However the rows are split, the cross entropies of
    /// the parts add up to that of the batch, whatever the tokens weigh. The load-balance loss of routed experts is not
    /// a sum over tokens; the shares add up to the mean of the parts' own.
    pub fn loss_of_part(
        &self,
        params: &Decoder<Tensor>,
        part: &Batch<Tensor>,
        whole: WholeBatch,
        dropout: Option<Dropout>,
    ) -> Tensor {
        if let Some(loss) = self.loss_in_pipeline(params, part, whole, dropout) {
            return loss;
        }
        let params = &self.with_table_in_use(params);
        let rows = (part.positions, part.segment_ids);
        let (x, layer_loss) = self.activations(params, part.tokens, rows, dropout);
        let head = Head::of(params);
        let shares = || scope("loss", || whole.shares(part.weights));
        let loss = if self.loss_chunks > 1 {
            // The gradient is made with the loss, so what divides it must be known there.
            self.head_loss(&head, x, (part.targets, shares()), self.rows())
        } else {
            let sum = self.head_loss(&head, x, (part.targets, part.weights), self.rows());
            scope("loss", || sum / whole.weight)
        };
        let (of_further, further_layer_loss) = match self.predicts_further() {
            true => self.further_loss_of_part(params, x, part, shares(), dropout),
            false => (None, None),
        };
        scope("loss", || {
            let own = added(layer_loss, further_layer_loss).map(|layer_loss| layer_loss / whole.parts as f64);
            [of_further, own].into_iter().flatten().fold(loss, |sum, part| sum + part)
        })
    }

    /// The losses of the layers that predict further tokens, from the stream behind the other layers.
    fn further_loss_of_part(
        &self,
        params: &Decoder<Tensor>,
        x: Tensor,
        part: &Batch<Tensor>,
        shares: Tensor,
        dropout: Option<Dropout>,
    ) -> (Option<Tensor>, LayerLoss) {
        let numbers = dropout.map(|dropout| dropout.rows);
        let rows = LayerRows { positions: part.positions, segments: part.segment_ids, numbers };
        let known =
            KnownTokens { segments: part.segment_ids, targets: part.targets, weights: shares, rows: self.rows() };
        let run_layer = |x: Tensor, run: &LayerRun, weights: &RunWeights<Tensor>| {
            self.outside_pipeline(x, run, weights, &rows, dropout)
        };
        self.further_loss(&LossWeights::of(params, true), x, known, run_layer)
    }
}
