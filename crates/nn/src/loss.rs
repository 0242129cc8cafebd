//! The language-model loss.

use std::panic::Location;

use meshloom::ir::DType;
use meshloom::trace::{Tensor, composite, custom_vjp, iota};

/// The weighted mean over tokens of the cross entropy, in nats: `sum(weights * (logsumexp(logits) - logits[target]))`
/// divided by `sum(weights)`, or by 1 if that is less.
///
/// `logits` is `[batch, length, vocab]`, `targets` (integer) and `weights` (`f32`) are `[batch, length]`; computed in
/// `f32`. No gradient flows into the weights. The target's logit is picked by comparing positions rather than by a
/// gather, so a sharded vocabulary never has to come together.
#[track_caller]
pub fn cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor {
    composite(Location::caller(), || {
        weighted_cross_entropy(logits, targets, weights, 0.0) / WholeBatch::of(weights).weight
    })
}

/// The facts of a whole batch that the loss of some of its rows needs.
#[derive(Clone, Copy, Debug)]
pub struct WholeBatch {
    /// The divisor of the weighted mean over its tokens: the sum of their weights, or 1 if that is less.
    pub weight: Tensor,
    /// The number of parts into which it is cut.
    pub parts: usize,
}

impl WholeBatch {
    /// A batch with these weights, in one part.
    pub fn of(weights: Tensor) -> WholeBatch {
        WholeBatch { weight: weights.sum(..).maximum(1.0).stop_gradient(), parts: 1 }
    }

    /// The weights of some of its tokens, over that of all.
    pub(super) fn shares(self, weights: Tensor) -> Tensor {
        weights / self.weight.broadcast_like(weights, [])
    }
}

/// The sum of the cross entropies of all tokens, each times its weight. With a `z_loss`, each token adds so much of the
/// square of its logsumexp, which keeps logits from drifting: Chowdhery et al., "PaLM", arXiv 2204.02311, section 5.
#[track_caller]
pub(super) fn weighted_cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor, z_loss: f64) -> Tensor {
    let place = Location::caller();
    if logits.rank() != 3 {
        let expected = "`[batch, length, vocab]`".to_owned();
        return logits.mismatch("the logits of a cross entropy", expected, logits.ty().to_string(), place);
    }
    for (name, given) in [("targets", targets), ("weights", weights)] {
        if given.dims()[..] != logits.dims()[..2] {
            let expected = format!("`[batch, length]` of the logits, {}", logits.ty());
            return given.mismatch(&format!("the {name} of a cross entropy"), expected, given.ty().to_string(), place);
        }
    }
    (token_losses(logits, targets, z_loss) * weights.stop_gradient()).sum(..)
}

/// Cross entropy of each token, and its z-loss. The backward pass is `softmax - one-hot`, and for the z-loss a multiple
/// of the softmax: from the logits and their logsumexp alone.
fn token_losses(logits: Tensor, targets: Tensor, z_loss: f64) -> Tensor {
    custom_vjp(
        (logits, targets),
        |(logits, targets)| TokenLosses::of(logits, targets, z_loss).losses,
        |(logits, targets)| {
            let found = TokenLosses::of(logits, targets, z_loss);
            (found.losses, (logits, targets, found.log_total))
        },
        |(logits, targets, log_total), ct| {
            (gradient_of_logits(logits, (targets, log_total), ct, z_loss).convert(logits.dtype()), targets)
        },
    )
}

/// The losses of some tokens, from logits `[batch, length, vocab]`; both fields are `[batch, length]`, `f32`.
pub(super) struct TokenLosses {
    /// The cross entropy of each token, and its z-loss.
    pub(super) losses: Tensor,
    /// The logsumexp of each token's logits.
    pub(super) log_total: Tensor,
}

impl TokenLosses {
    pub(super) fn of(logits: Tensor, targets: Tensor, z_loss: f64) -> TokenLosses {
        let wide = logits.convert(DType::F32);
        let highest = wide.max(-1);
        let shifted = (wide - highest.broadcast_like(wide, [0, 1])).exp();
        let log_total = shifted.sum(-1).log() + highest;
        let target = is_target(wide, targets).select(wide, 0.0).sum(-1);
        let loss = log_total - target;
        let losses = if z_loss == 0.0 { loss } else { loss + log_total.square() * z_loss };
        TokenLosses { losses, log_total }
    }
}

/// The cotangent of logits, `f32`, from their targets and logsumexp and the cotangents `ct` of the tokens' losses.
pub(super) fn gradient_of_logits(
    logits: Tensor,
    (targets, log_total): (Tensor, Tensor),
    ct: Tensor,
    z_loss: f64,
) -> Tensor {
    let wide = logits.convert(DType::F32);
    let probabilities = (wide - log_total.broadcast_like(wide, [0, 1])).exp();
    let probabilities = match z_loss == 0.0 {
        true => probabilities,
        false => probabilities * (log_total * (2.0 * z_loss) + 1.0).broadcast_like(wide, [0, 1]),
    };
    let expected = is_target(wide, targets).convert(DType::F32);
    (probabilities - expected) * ct.broadcast_like(wide, [0, 1])
}

/// Where the last dimension's position is the target.
fn is_target(logits: Tensor, targets: Tensor) -> Tensor {
    iota(DType::S32, logits.dims(), -1).equal(targets.broadcast_like(logits, [0, 1]))
}
