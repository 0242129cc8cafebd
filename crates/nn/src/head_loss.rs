//! Head and loss in one, some positions at a time: the logits of a whole batch never exist at once.
//!
//! The positions of each row are dealt out to chunks in turn: chunk `j` of `n` has `j`, `n + j`, `2 n + j`, .., so
//! however devices split the sequence, each has a part of every chunk, and nothing moves. A loop over the chunks makes
//! the logits of one, and of them its losses.
//!
//! Under differentiation the same iteration makes the gradient of a chunk as well, while its logits are there: what is
//! kept for the backward pass is the gradient itself, of the activations and of the matrix, not logits, and no product
//! is made twice. The backward pass multiplies them by the cotangent of the loss, a scalar.
//!
//! Over devices, the matrix is gathered before the loop and its gradient reduced after it: in the loop it is a partial
//! sum, and so is the gradient of the activations where the vocabulary is split. Only the maximum, the sum and the
//! target's logit of each token cross devices in the loop.
//!
//! Source of the gradient in the forward pass: Hsu et al., "Liger Kernel", arXiv 2410.10989, section 3.2.

use std::panic::Location;

use meshloom::ir::{DType, Name};
use meshloom::ops::WithAxes;
use meshloom::trace::{Tensor, composite, custom_vjp, einsum_with, map, scan, scope, zeros};

use super::layout::Rows;
use super::loss::{TokenLosses, gradient_of_logits};

/// How [`head_loss`] works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadLoss {
    /// Whether the matrix is that of the embedding, `[vocab, embed]`, instead of `[embed, vocab]`.
    pub tied: bool,
    /// Weight of the z-loss, as [`DecoderConfig::z_loss`](super::DecoderConfig::z_loss).
    pub z_loss: f64,
    /// Logits `l` become `cap * tanh(l / cap)`.
    pub logit_cap: Option<f64>,
    /// Parts in which the positions of a row are worked on, a divisor of their number. The result does not depend on
    /// it, but for the order of sums.
    pub chunks: usize,
}

/// The sum of the cross entropies of all tokens, each times its weight, in nats; and of their z-losses.
///
/// `x` is `[batch, length, embed]`, as it leaves the last norm; `targets` (integer) and `weights` (`f32`) are
/// `[batch, length]`. The matrix is used in the type of `x`; logits are accumulated and kept in `f32`, and so is the
/// gradient of the matrix until all chunks are in it. No gradient flows into the weights.
///
/// The gradient of `x` is kept in the type of `x`, before it is multiplied by the loss's cotangent: what the loss is
/// divided by is best divided into the weights, so that this cotangent is 1 and the gradient is rounded once.
///
/// # Errors
/// In the trace: a tensor has other dimensions, or the chunks do not divide the length.
#[track_caller]
pub fn head_loss(config: &HeadLoss, x: Tensor, matrix: Tensor, targets: Tensor, weights: Tensor) -> Tensor {
    composite(Location::caller(), || Chunked { config: *config, rows: Rows::LAYERS }.loss(x, matrix, targets, weights))
}

/// As [`head_loss`], for rows that are split in some way.
pub(super) struct Chunked {
    pub(super) config: HeadLoss,
    pub(super) rows: Rows,
}

/// Activations `[batch, length, embed]`, targets and weights `[batch, length]`.
type Inputs = (Tensor, Tensor, Tensor);

impl Chunked {
    /// The loss of all tokens.
    #[track_caller]
    pub(super) fn loss(&self, x: Tensor, matrix: Tensor, targets: Tensor, weights: Tensor) -> Tensor {
        if let Some((what, expected, found)) = self.misfit(x, matrix, targets, weights) {
            return found.mismatch(what, expected, found.ty().to_string(), Location::caller());
        }
        let matrix = scope("head", || matrix.convert(x.dtype()));
        custom_vjp(
            (x, matrix, targets, weights.stop_gradient()),
            |(x, matrix, targets, weights)| self.forwards((x, targets, weights), matrix),
            |(x, matrix, targets, weights)| {
                let (loss, gradients) = self.both_ways((x, targets, weights), matrix);
                (loss, (gradients, (targets, weights)))
            },
            |((of_x, of_matrix), (targets, weights)), ct| {
                let dtype = of_x.dtype();
                let [of_x, of_matrix] = [of_x, of_matrix].map(|gradient| {
                    let wide = gradient.convert(DType::F32);
                    (wide * ct.broadcast_like(wide, [])).convert(dtype)
                });
                // Still whole: else it would be scattered in `f32`, before it has the bits that are sent.
                (of_x, self.of_matrix(of_matrix, true), targets, weights.zeros_like())
            },
        )
    }

    /// The loss alone.
    fn forwards(&self, inputs: Inputs, matrix: Tensor) -> Tensor {
        let (inputs, matrix) = self.gathered(inputs, matrix);
        let losses = map(inputs, |chunk| {
            let (x, targets, weights) = self.at_hand(chunk);
            let logits = self.capped_logits(x, matrix);
            scope("loss", || (TokenLosses::of(logits, targets, self.config.z_loss).losses * weights).sum(..))
        });
        scope("loss", || losses.sum(..))
    }

    /// The loss, and its gradient with respect to the activations, in their type, and to the matrix, in `f32`.
    fn both_ways(&self, inputs: Inputs, matrix: Tensor) -> (Tensor, (Tensor, Tensor)) {
        let (z_loss, dtype) = (self.config.z_loss, matrix.dtype());
        let start = zeros(DType::F32, matrix.dims());
        let (to_x, to_matrix) = match self.config.tied {
            true => ("btv,ve->bte", "btv,bte->ve"),
            false => ("btv,ev->bte", "bte,btv->ev"),
        };
        let (inputs, matrix) = self.gathered(inputs, matrix);
        // The chunks' losses are added up behind the loop: a sum in it would be taken for one over a split vocabulary.
        let (of_matrix, (losses, of_x)) = scan(start, inputs, |of_matrix, chunk| {
            let (x, targets, weights) = self.at_hand(chunk);
            let logits = self.capped_logits(x, matrix);
            let (loss, of_logits) = scope("loss", || {
                let found = TokenLosses::of(logits, targets, z_loss);
                let gradient = gradient_of_logits(logits, (targets, found.log_total), weights, z_loss);
                let gradient = match self.config.logit_cap {
                    // The slope of the hyperbolic tangent, from its value.
                    Some(cap) => gradient * (1.0 - (logits * cap.recip()).square()),
                    None => gradient,
                };
                ((found.losses * weights).sum(..), gradient.convert(dtype))
            });
            scope("head", || {
                // Rounded by the product: a conversion would need the sum over a split vocabulary.
                let of_x = self.of_rows(einsum_with(to_x, &[of_logits, matrix], dtype), true);
                let factors = if self.config.tied { [of_logits, x] } else { [x, of_logits] };
                (of_matrix + einsum_with(to_matrix, &factors, DType::F32), (loss, of_x))
            })
        });
        let loss = scope("loss", || losses.sum(..));
        // Where they are used they are reduced, and scattered. Not before: that would be done chunk by chunk.
        scope("head", || (loss, (self.of_rows(joined(of_x), true), self.of_matrix(of_matrix, true))))
    }

    /// The logits of a chunk, capped, `f32`.
    fn capped_logits(&self, x: Tensor, matrix: Tensor) -> Tensor {
        let logits = self.logits(x, matrix);
        self.config.logit_cap.map_or(logits, |cap| scope("head", || capped(logits, cap)))
    }

    /// The logits of a chunk, `f32`.
    fn logits(&self, x: Tensor, matrix: Tensor) -> Tensor {
        let formula = if self.config.tied { "bte,ve->btv" } else { "bte,ev->btv" };
        scope("head", || self.rows.logits(einsum_with(formula, &[x, matrix], DType::F32)))
    }

    /// Activations `[batch, positions, embed]` as the product with the matrix wants them.
    #[track_caller]
    fn of_rows(&self, x: Tensor, keeps_partial: bool) -> Tensor {
        named(x, &self.rows.block(), keeps_partial)
    }

    /// The matrix, or its gradient, as the product wants it: only the vocabulary is split.
    #[track_caller]
    fn of_matrix(&self, matrix: Tensor, keeps_partial: bool) -> Tensor {
        let (embed, vocab) = ("activation_embed", "activation_vocab");
        let names = if self.config.tied { [vocab, embed] } else { [embed, vocab] };
        named(matrix, &names, keeps_partial)
    }

    /// The inputs with a leading dimension of chunks, and the matrix: gathered in front of the loop. Their cotangents
    /// are not asked to lie so.
    fn gathered(&self, inputs: Inputs, matrix: Tensor) -> (Inputs, Tensor) {
        let chunks = self.config.chunks;
        let (x, targets, weights) = self.at_hand(inputs);
        scope("head", || {
            let inputs = (dealt_out(x, chunks), dealt_out(targets, chunks), dealt_out(weights, chunks));
            (inputs, self.of_matrix(matrix, false))
        })
    }

    /// Inputs split as logits are.
    fn at_hand(&self, (x, targets, weights): Inputs) -> Inputs {
        let [batch, length, _] = self.rows.block();
        let per_token = |x| named(x, &[batch, length], false);
        scope("head", || (self.of_rows(x, false), per_token(targets), per_token(weights)))
    }

    /// The first tensor that does not fit the others: what it is, and what was expected.
    fn misfit(
        &self,
        x: Tensor,
        matrix: Tensor,
        targets: Tensor,
        weights: Tensor,
    ) -> Option<(&'static str, String, Tensor)> {
        let chunks = self.config.chunks;
        if x.rank() != 3 {
            return Some(("the activations of a head's loss", "`[batch, length, embed]`".to_owned(), x));
        }
        let [_, length, embed] = x.shape();
        if chunks == 0 || !length.is_multiple_of(chunks) {
            return Some(("the activations of a head's loss", format!("a length that {chunks} chunks divide"), x));
        }
        let embed_dim = usize::from(self.config.tied);
        if matrix.rank() != 2 || matrix.dims()[embed_dim] != embed {
            let form = if self.config.tied { format!("`[vocab, {embed}]`") } else { format!("`[{embed}, vocab]`") };
            return Some(("the matrix of a head's loss", form, matrix));
        }
        let per_token = [("the targets of a head's loss", targets), ("the weights of a head's loss", weights)];
        let wrong = per_token.into_iter().find(|(_, given)| given.dims()[..] != x.dims()[..2]);
        wrong.map(|(what, given)| (what, format!("`[batch, length]` of the activations, {}", x.ty()), given))
    }
}

/// Logits `l` as `cap * tanh(l / cap)`.
pub(super) fn capped(logits: Tensor, cap: f64) -> Tensor {
    (logits * cap.recip()).tanh() * cap
}

/// Names the dimensions of a value, which is complete then, or may be a partial sum.
#[track_caller]
fn named(x: Tensor, names: &[&'static str], keeps_partial: bool) -> Tensor {
    let names = names.iter().map(|name| Name::new(name)).collect();
    x.with_logical_axes(WithAxes { keeps_partial, ..WithAxes::new(names) })
}

/// `[batch, length, ..]` as `[chunks, batch, length / chunks, ..]`: neighbours go to different chunks.
fn dealt_out(x: Tensor, chunks: usize) -> Tensor {
    let dims = x.dims();
    let apart = x.reshape([&[dims[0], dims[1] / chunks, chunks], &dims[2..]].concat());
    let order: Vec<i32> = [2, 0, 1].into_iter().chain(3..=dims.len() as i32).collect();
    apart.transpose(&order[..])
}

/// `[chunks, batch, positions, width]` as `[batch, length, width]`: undoes [`dealt_out`].
fn joined(x: Tensor) -> Tensor {
    let [chunks, batch, positions, width] = x.shape();
    x.transpose([1, 2, 0, 3]).reshape([batch, positions * chunks, width])
}
