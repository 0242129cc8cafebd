//! The two ends of a decoder, which may share a table: the embedding of tokens, and the head with its loss.

use meshloom::ir::DType;
use meshloom::trace::{Tensor, einsum_with, scope};

use super::architecture::Architecture;
use super::config::DecoderConfig;
use super::head_loss::{Chunked, HeadLoss, capped};
use super::layout::Rows;
use super::loss::weighted_cross_entropy;
use super::norm::rms_norm;
use super::parameters::Decoder;

meshloom::tree! {
    /// The parameters that make logits of activations.
    pub(super) struct Head<T> {
        /// `[embed]`.
        pub(super) norm: T,
        /// `[embed, vocab]`; when tied, the embedding `[vocab, embed]`.
        pub(super) matrix: T,
    }
}

impl<T: Clone> Head<T> {
    /// The head of a decoder.
    pub(super) fn of(decoder: &Decoder<T>) -> Head<T> {
        let matrix = decoder.head.as_ref().unwrap_or(&decoder.embedding).clone();
        Head { norm: decoder.final_norm.clone(), matrix }
    }
}

impl DecoderConfig {
    /// Returns how rows are split outside the layers.
    pub(super) fn rows(&self) -> Rows {
        if self.pipeline.is_some() { Rows::AROUND_PIPELINE } else { Rows::LAYERS }
    }

    /// Returns the parameters. A tied table is converted once, for embedding and head, so its two gradients are added
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

    /// The embedded tokens, `[batch, length, embed]`.
    pub(super) fn embed(&self, table: Tensor, tokens: Tensor, rows: Rows) -> Tensor {
        scope("embedding", || {
            // Whole rows: what splits the width of the parameter is gathered, the vocabulary stays split. The cotangent
            // is a sum over tokens that is scattered where the gradient is needed, so nothing is asked of it here.
            let table = table.convert(self.compute_dtype).with_axes_each_way(&["vocab", "activation_embed"], &[]);
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

    /// Makes the operand of the head's product.
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
}
