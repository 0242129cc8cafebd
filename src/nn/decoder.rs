//! The decoder: embedding, a [stack](super::Stack) of layers, head and loss.

use super::architecture::Architecture;
use super::dropout::Dropout;
use super::further::{FurtherToken, KnownTokens, LossWeights};
use super::head_loss::{Chunked, HeadLoss, capped};
use super::layer::{FeedForwardConfig, LayerLoss};
use super::layers::{LayerRows, added};
use super::layout::{Rows, whole_rows};
use super::loss::{WholeBatch, weighted_cross_entropy};
use super::moe::MoeConfig;
use super::norm::rms_norm;
use super::stack::{LayerRun, Layers, Run};
use super::token_order::TokenOrder;
use super::token_places::TokenPlaces;
use crate::ir::DType;
use crate::ops::{KeyExchange, RematPolicy};
use crate::trace::{Param, Tensor, TensorSpec, einsum_with, scope};
use crate::transform::pipeline::PipelineOptions;

/// A decoder: what it computes, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// What it computes.
    pub architecture: Architecture,
    /// Type that parameters are stored in.
    pub param_dtype: DType,
    /// Type that activations are computed in; norms, softmax and loss are always `f32`.
    pub compute_dtype: DType,
    /// Whether layers that are alike are one scan over stacked parameters, or each has its own nodes.
    pub scan_layers: bool,
    /// What the backward pass finds of a layer, and what it computes again.
    pub remat: RematPolicy,
    /// How the cycles of the stack are spread over stages; one after the other on all devices if they are not.
    pub pipeline: Option<PipelineOptions>,
    /// How queries meet keys of other devices, where sequences are split. Latent attention gathers them always.
    pub exchange: KeyExchange,
    /// In what order the tokens of a row are, with all that belongs to them. The natural one, unless a batch is
    /// arranged by [`TokenOrder::places`].
    pub order: TokenOrder,
    /// Weight of the z-loss, the mean over tokens of `logsumexp(logits)^2`; 0 for none.
    pub z_loss: f64,
    /// Weight of the load-balance loss of routed experts, the mean over their layers; 0 for none.
    pub load_balance_weight: f64,
    /// Weight of the loss of further tokens, the mean over the layers that predict them; 0 for none, and then these
    /// layers are not computed.
    pub further_weight: f64,
    /// Whether biases of choices of experts have a gradient, by which experts are balanced
    /// ([`Routing::choice_bias_loss`](super::Routing::choice_bias_loss)).
    pub choice_bias_gradient: bool,
    /// Parts of a sequence, a divisor of its length, whose logits the loss makes at a time: with 1 those of all tokens
    /// at once. See [`head_loss`](super::head_loss()).
    pub loss_chunks: usize,
    /// Whether a layer works on two halves of the batch in turns, so that what one moves can overlap with what the
    /// other computes.
    pub batch_split: bool,
}

impl DecoderConfig {
    /// A decoder in `f32` with its layers in a scan, nothing computed twice, no pipeline and no further losses.
    pub fn new(architecture: Architecture) -> DecoderConfig {
        DecoderConfig {
            architecture,
            param_dtype: DType::F32,
            compute_dtype: DType::F32,
            scan_layers: true,
            remat: RematPolicy::None,
            pipeline: None,
            exchange: KeyExchange::Gather,
            order: TokenOrder::default(),
            z_loss: 0.0,
            load_balance_weight: 0.0,
            further_weight: 0.0,
            choice_bias_gradient: false,
            loss_chunks: 1,
            batch_split: false,
        }
    }

    /// The same for one device, which has all tokens, in their natural order, and all experts.
    #[must_use]
    pub fn on_one_device(&self) -> DecoderConfig {
        let mut plain = DecoderConfig { order: TokenOrder::default(), batch_split: false, ..self.clone() };
        plain.architecture.for_each_layer(|layer| {
            if let FeedForwardConfig::Routed(routed) = &mut layer.feed_forward {
                let MoeConfig { exchange, expert_groups, batch_parts, sequence_parts, .. } = MoeConfig::default();
                *routed = MoeConfig { exchange, expert_groups, batch_parts, sequence_parts, ..routed.clone() };
            }
        });
        plain
    }
}

crate::tree! {
    /// Parameters of a decoder.
    pub struct Decoder<T> {
        /// `[vocab, embed]`.
        pub embedding: T,
        /// The layer stack.
        pub layers: Layers<T>,
        /// `[embed]`.
        pub final_norm: T,
        /// `[embed, vocab]`; none when tied to the embedding.
        pub head: Option<T>,
        /// The layers that predict further tokens.
        pub further: Vec<FurtherToken<T>>,
    }

    /// What makes logits of activations.
    pub(super) struct Head<T> {
        /// `[embed]`.
        pub(super) norm: T,
        /// `[embed, vocab]`; when tied, the embedding `[vocab, embed]`.
        pub(super) matrix: T,
    }

    /// One batch of packed sequences; all `[batch, length]`.
    #[derive(PartialEq)]
    pub struct Batch<T> {
        /// Input tokens, `s32`.
        pub tokens: T,
        /// The token after each, `s32`.
        pub targets: T,
        /// Which document a token belongs to, `s32`.
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

impl<T: Clone> Head<T> {
    /// That of a decoder.
    pub(super) fn of(decoder: &Decoder<T>) -> Head<T> {
        let matrix = decoder.head.as_ref().unwrap_or(&decoder.embedding).clone();
        Head { norm: decoder.final_norm.clone(), matrix }
    }
}

impl DecoderConfig {
    /// The parameters.
    ///
    /// Matrices start normally distributed with variance one over the fan-in; those that write into the residual stream
    /// with that divided by twice the number of layers, so that the stream's variance does not grow with depth.
    pub fn parameters(&self) -> Decoder<Param> {
        let &Architecture { embed, vocab, tied_embeddings, .. } = &self.architecture;
        // A tied embedding is the head as well, for which the fan-in is the width.
        let fan_in = if tied_embeddings { embed } else { 1 };
        // Tables over the vocabulary are no matrices to optimizers: rows are seldom used, or classes of their own.
        let head = || self.matrix(&[embed, vocab], &["embed", "vocab"], embed, 1.0).with_matrix(None);
        Decoder {
            embedding: self.matrix(&[vocab, embed], &["vocab", "embed"], fan_in, 1.0).with_matrix(None),
            layers: self.layers_parameters(),
            final_norm: self.norm_parameter(embed, self.architecture.final_norm),
            head: (!tied_embeddings).then(head),
            further: self.further_parameters(),
        }
    }

    /// The types of a batch of `batch` rows of `length` tokens, split as this model wants them.
    pub fn batch_specs(&self, batch: usize, length: usize) -> Batch<TensorSpec> {
        let axes = if self.pipeline.is_some() { Batch::AXES_OF_PIPELINE } else { Batch::AXES };
        Batch::named_specs(batch, length, axes)
    }

    /// How rows are split outside the layers.
    pub(super) fn rows(&self) -> Rows {
        if self.pipeline.is_some() { Rows::AROUND_PIPELINE } else { Rows::LAYERS }
    }

    /// The logits `[batch, length, vocab]`, `f32`, of the token after each token.
    pub fn logits(&self, params: &Decoder<Tensor>, tokens: Tensor, segment_ids: Tensor, positions: Tensor) -> Tensor {
        self.logits_with(params, tokens, segment_ids, positions, None).0
    }

    /// As [`DecoderConfig::logits`], with dropout in the layers; and the mean of the layers' own losses.
    pub fn logits_with(
        &self,
        params: &Decoder<Tensor>,
        tokens: Tensor,
        segment_ids: Tensor,
        positions: Tensor,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let params = &self.with_table_in_use(params);
        let (x, layer_loss) = self.activations(params, tokens, (positions, segment_ids), dropout);
        (self.head(&Head::of(params), x, self.rows()), layer_loss)
    }

    /// The parameters, of which a tied table is converted once, for embedding and head. So its two gradients are added
    /// up in the type in which they are sent, and reduced once. If each were converted on its own, each would be
    /// reduced first, as fewer bits are sent than after the conversion, and added up then.
    ///
    /// A pipeline with the loss in its loop does not do so: there the head's gradient is a sum of `f32`.
    pub(super) fn with_table_in_use(&self, params: &Decoder<Tensor>) -> Decoder<Tensor> {
        let mut params = params.clone();
        if params.head.is_none() {
            params.embedding = scope("embedding", || params.embedding.convert(self.compute_dtype));
        }
        params
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

    /// Where the tokens of rows stand, by their segments `[batch, length]`.
    pub(super) fn token_places(&self, segment_ids: Tensor) -> TokenPlaces {
        TokenPlaces::of_rows(segment_ids).with_exchange(self.exchange).with_order(self.order)
    }

    /// The embedded tokens, `[batch, length, embed]`.
    pub(super) fn embed(&self, table: Tensor, tokens: Tensor, rows: Rows) -> Tensor {
        scope("embedding", || {
            let table = whole_rows(table.convert(self.compute_dtype));
            // Where the vocabulary is split, each device has the rows of some tokens: a partial sum, as of a block.
            let x = rows.leave_block(table.take(0, tokens));
            match self.architecture.embedding_scale {
                1.0 => x,
                // A number takes the type of the tensor, rounded.
                scale => x * scale,
            }
        })
    }

    /// From the residual stream to the logits.
    pub(super) fn head(&self, params: &Head<Tensor>, x: Tensor, rows: Rows) -> Tensor {
        scope("head", || {
            let x = self.enter_head(params, x, rows);
            let formula = if self.architecture.tied_embeddings { "bte,ve->btv" } else { "bte,ev->btv" };
            let logits = einsum_with(formula, &[x, params.matrix.convert(x.dtype())], DType::F32);
            rows.logits(self.architecture.logit_cap.map_or(logits, |cap| capped(logits, cap)))
        })
    }

    /// What the head's product reads.
    fn enter_head(&self, params: &Head<Tensor>, x: Tensor, rows: Rows) -> Tensor {
        rows.enter_block(rms_norm(x, params.norm, self.architecture.final_norm))
    }

    /// From the residual stream to the weighted sum of the tokens' losses, of a whole batch or of a part.
    pub(super) fn head_loss(
        &self,
        params: &Head<Tensor>,
        x: Tensor,
        (targets, weights): (Tensor, Tensor),
        rows: Rows,
    ) -> Tensor {
        if self.loss_chunks <= 1 {
            let logits = self.head(params, x, rows);
            return scope("loss", || weighted_cross_entropy(logits, targets, weights, self.z_loss));
        }
        let &Architecture { tied_embeddings: tied, logit_cap, .. } = &self.architecture;
        let config = HeadLoss { tied, z_loss: self.z_loss, chunks: self.loss_chunks, logit_cap };
        let x = scope("head", || self.enter_head(params, x, rows));
        Chunked { config, rows }.loss(x, params.matrix, targets, weights)
    }

    /// The mean cross entropy of a batch, in nats per token; with routed experts, and their load-balance loss times its
    /// weight. The z-loss and the loss of further tokens come with their weights as well.
    pub fn loss(&self, params: &Decoder<Tensor>, batch: &Batch<Tensor>) -> Tensor {
        self.loss_with(params, batch, None)
    }

    /// As [`DecoderConfig::loss`], with dropout in the layers.
    pub fn loss_with(&self, params: &Decoder<Tensor>, batch: &Batch<Tensor>, dropout: Option<Dropout>) -> Tensor {
        self.loss_of_part(params, batch, scope("loss", || WholeBatch::of(batch.weights)), dropout)
    }

    /// What some rows of a batch add to the loss of the whole: however the rows are split, the cross entropies of the
    /// parts add up to that of the batch, whatever the tokens weigh. The load-balance loss of routed experts, which is
    /// no sum over tokens, is the mean of the parts' own.
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

    /// What the layers that predict further tokens add, from the stream behind the layers.
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
        let run_layer =
            |x: Tensor, run: &Run, weights: &LayerRun<Tensor>| self.outside_pipeline(x, run, weights, &rows, dropout);
        self.further_loss(&LossWeights::of(params, true), x, known, run_layer)
    }
}
