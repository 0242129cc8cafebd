//! The decoder: embedding, a stack of [layers](super::DecoderLayer) of one family, head and loss.

use super::attention::TokenPlaces;
use super::dropout::Dropout;
use super::head_loss::{Chunked, HeadLoss};
use super::layer::{DecoderLayer, LayerLoss, LayerParts, RowInputs};
use super::layout::{Rows, whole_rows};
use super::loss::{WholeBatch, weighted_cross_entropy};
use super::norm::rms_norm;
use super::rotary::Rotary;
use super::token_order::TokenOrder;
use crate::ir::DType;
use crate::ops::{KeyExchange, RematPolicy};
use crate::trace::{MapTree, Param, Tensor, TensorSpec, checkpoint, einsum_with, scan, scope};
use crate::transform::pipeline::PipelineOptions;

/// The shape of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub embed: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub mlp: usize,
    /// Number of token values.
    pub vocab: usize,
    /// Whether the head is the transposed embedding.
    pub tied_embeddings: bool,
    /// Type that parameters are stored in.
    pub param_dtype: DType,
    /// Type that activations are computed in; norms, softmax and loss are always `f32`.
    pub compute_dtype: DType,
    /// Whether the layers are one scan over stacked parameters, or each has its own nodes.
    pub scan_layers: bool,
    /// What the backward pass finds of a layer, and what it computes again.
    pub remat: RematPolicy,
    /// How the layers are spread over stages; one after the other on all devices if they are not.
    pub pipeline: Option<PipelineOptions>,
    /// How queries meet keys of other devices, where sequences are split. Latent attention gathers them always.
    pub exchange: KeyExchange,
    /// In what order the tokens of a row are, with all that belongs to them. The natural one, unless a batch is
    /// arranged by [`TokenOrder::places`].
    pub order: TokenOrder,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square in norms.
    pub norm_epsilon: f64,
    /// Weight of the z-loss, the mean over tokens of `logsumexp(logits)^2`; 0 for none.
    pub z_loss: f64,
    /// Parts of a sequence, a divisor of its length, whose logits the loss makes at a time: with 1 those of all tokens
    /// at once. See [`head_loss`](super::head_loss()).
    pub loss_chunks: usize,
    /// What sets the family apart from Llama.
    pub parts: LayerParts,
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

crate::tree! {
    /// The layer stack: one set of parameters with a leading layer dimension, or one for each layer.
    pub enum Layers<T> {
        /// Paths read `layers.attention.wq`.
        Stacked(Box<DecoderLayer<T>>),
        /// Paths read `layers.3.attention.wq`.
        Separate(Vec<DecoderLayer<T>>),
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
        let layer = self.layer_parameters();
        let layers = if let Some(pipeline) = &self.pipeline {
            let dims = pipeline.leading_dims();
            Layers::Stacked(Box::new(layer.map(|_, param| param.clone().stacked_over(&dims))))
        } else if self.scan_layers {
            Layers::Stacked(Box::new(layer.map(|_, param| param.clone().stacked(self.layers))))
        } else {
            Layers::Separate(vec![layer; self.layers])
        };
        let embed = self.embed;
        // A tied embedding is the head as well, for which the fan-in is the width.
        let fan_in = if self.tied_embeddings { embed } else { 1 };
        // Tables over the vocabulary are no matrices to optimizers: rows are seldom used, or classes of their own.
        let head = || self.matrix(&[embed, self.vocab], &["embed", "vocab"], embed, 1.0).with_matrix(None);
        Decoder {
            embedding: self.matrix(&[self.vocab, embed], &["vocab", "embed"], fan_in, 1.0).with_matrix(None),
            layers,
            final_norm: self.norm_parameter(embed, "norm"),
            head: (!self.tied_embeddings).then(head),
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

    /// All layers over the residual stream `x` `[batch, length, embed]`, scanned or one after the other, under the
    /// remat policy; and the mean of the layers' own losses, if they have any. What drops is the same scanned or not,
    /// recomputed or not.
    pub fn layer_stack(
        &self,
        x: Tensor,
        layers: &Layers<Tensor>,
        rows: RowInputs<'_>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        let one_layer = |x: Tensor, layer: DecoderLayer<Tensor>, dropout: Option<Dropout>| {
            let inputs = (x, layer, dropout.map(|dropout| dropout.key));
            checkpoint(self.remat.clone(), inputs, |(x, layer, key)| {
                let dropout = dropout.zip(key).map(|(dropout, key)| Dropout { key, ..dropout });
                self.layer(x, &layer, rows, dropout)
            })
        };
        match layers {
            Layers::Stacked(layers) => scope("layers", || {
                let numbers = dropout.map(|_| Dropout::layer_numbers(self.layers));
                let stacked = ((**layers).clone(), numbers);
                let body = |x, (layer, number): (_, Option<Tensor>)| {
                    let dropout = dropout.zip(number).map(|(dropout, number)| dropout.at(number));
                    one_layer(x, layer, dropout)
                };
                let (x, losses) = scan(x, stacked, body);
                (x, losses.map(|losses| losses.mean(..)))
            }),
            Layers::Separate(layers) => {
                let (mut x, mut losses) = (x, Vec::new());
                for (index, layer) in layers.iter().enumerate() {
                    let dropout = dropout.map(|dropout| dropout.at(index as u32));
                    let (next, loss) = scope(&format!("layers.{index}"), || one_layer(x, layer.clone(), dropout));
                    x = next;
                    losses.extend(loss);
                }
                let total = losses.into_iter().reduce(|total, loss| total + loss);
                (x, total.map(|total| total / layers.len() as f64))
            }
        }
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
    fn with_table_in_use(&self, params: &Decoder<Tensor>) -> Decoder<Tensor> {
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
        let x = self.embed(params, tokens);
        if let Some(found) = self.pipelined_layers(params, x, (positions, segment_ids), dropout) {
            return found;
        }
        let rotary = scope("rotary", || Rotary::new(positions, self.rotary_dim(), self.rope_theta));
        let tokens = self.token_places(segment_ids);
        self.layer_stack(x, &params.layers, RowInputs { rotary: &rotary, tokens }, dropout)
    }

    /// Where the tokens of rows stand, by their segments `[batch, length]`.
    pub(super) fn token_places(&self, segment_ids: Tensor) -> TokenPlaces {
        TokenPlaces::of_rows(segment_ids).with_exchange(self.exchange).with_order(self.order)
    }

    /// The embedded tokens, `[batch, length, embed]`.
    pub(super) fn embed(&self, params: &Decoder<Tensor>, tokens: Tensor) -> Tensor {
        scope("embedding", || {
            let table = whole_rows(params.embedding.convert(self.compute_dtype));
            // Where the vocabulary is split, each device has the rows of some tokens: a partial sum, as of a block.
            self.rows().leave_block(table.take(0, tokens))
        })
    }

    /// From the residual stream to the logits.
    pub(super) fn head(&self, params: &Head<Tensor>, x: Tensor, rows: Rows) -> Tensor {
        scope("head", || {
            let x = self.enter_head(params, x, rows);
            let formula = if self.tied_embeddings { "bte,ve->btv" } else { "bte,ev->btv" };
            rows.logits(einsum_with(formula, &[x, params.matrix.convert(x.dtype())], DType::F32))
        })
    }

    /// What the head's product reads.
    fn enter_head(&self, params: &Head<Tensor>, x: Tensor, rows: Rows) -> Tensor {
        rows.enter_block(rms_norm(x, params.norm, self.norm_epsilon))
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
        let config = HeadLoss { tied: self.tied_embeddings, z_loss: self.z_loss, chunks: self.loss_chunks };
        let x = scope("head", || self.enter_head(params, x, rows));
        Chunked { config, rows }.loss(x, params.matrix, targets, weights)
    }

    /// The mean cross entropy of a batch, in nats per token; with routed experts, and their load-balance loss times its
    /// weight. The z-loss comes with its weight as well.
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
        let loss = if self.loss_chunks > 1 {
            // The gradient is made with the loss, so what divides it must be known there.
            let weights = scope("loss", || part.weights / whole.weight.broadcast_like(part.weights, []));
            self.head_loss(&head, x, (part.targets, weights), self.rows())
        } else {
            let sum = self.head_loss(&head, x, (part.targets, part.weights), self.rows());
            scope("loss", || sum / whole.weight)
        };
        scope("loss", || {
            let balance = self.parts.routed.load_balance_weight / whole.parts as f64;
            layer_loss.map_or(loss, |layer_loss| loss + layer_loss * balance)
        })
    }
}
