//! Which experts a token goes through, and with what weights.

use super::MoeConfig;
use crate::ir::DType;
use crate::nn::layout::{ROUTED_CHOICES, STREAM, WHOLE_ROW_CHOICES};
use crate::trace::{Tensor, einsum};

/// How scores come of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// The softmax over all experts.
    Softmax,
    /// The logistic function of each (DeepSeek-V3, arXiv 2412.19437).
    Sigmoid,
}

/// What a router decided for tokens `[batch, length]`.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// The experts of each token, best first: `s32` `[batch, length, experts_per_token]`.
    pub experts: Tensor,
    /// The weight of each: `f32`, of the same dimensions.
    pub weights: Tensor,
    /// With a capacity: how many tokens before it in its row chose the same expert, `s32` of the same dimensions. A
    /// choice whose place is not below the capacity is dropped. It goes by rows, so it does not matter how rows are
    /// divided into microbatches, or over devices.
    pub places: Option<Tensor>,
    /// How unevenly experts are used: a scalar `f32`, 1 where they are used evenly. For each row it is
    /// `experts * sum over e of fraction(e) * probability(e)`, of the fraction of choices that fall on an expert and
    /// its mean probability; then the mean over rows.
    ///
    /// The loss is a mean over rows, so it does not matter how a batch is divided into microbatches, halves or shards.
    /// Source: Lepikhin et al., "GShard", arXiv 2006.16668 (there by groups of tokens); Fedus et al., "Switch
    /// Transformers", arXiv 2101.03961; by sequence as in DeepSeek-V3, arXiv 2412.19437.
    pub load_balance_loss: Tensor,
}

/// Added to the sum that weights are divided by, which may underflow to zero with [`Scoring::Sigmoid`].
const SMALL: f64 = 1e-20;

/// Routes the tokens of `x` `[batch, length, embed]` by `router` `[embed, experts]`; in `f32`. Of experts with equal
/// scores the first is chosen.
///
/// # Errors
/// There are fewer experts than a token is to go through.
pub fn route(x: Tensor, router: Tensor, config: &MoeConfig) -> Routing {
    let x = x.with_axes(STREAM).convert(DType::F32);
    let logits = einsum("bte,ex->btx", &[x, router.convert(DType::F32)]);
    let scores = match config.scoring {
        Scoring::Softmax => logits.softmax(-1),
        Scoring::Sigmoid => logits.logistic(),
    };
    let (chosen, experts) = scores.top_k(config.experts_per_token);
    let weights = if config.normalize_weights { share(chosen) } else { chosen } * config.weight_scale;
    // Decided where the tokens are: else the scores of all experts would be gathered with them.
    let (experts, weights) = (experts.with_axes(ROUTED_CHOICES), weights.with_axes(ROUTED_CHOICES));
    let probabilities = match config.scoring {
        Scoring::Softmax => scores,
        Scoring::Sigmoid => share(scores),
    };
    let places = config.capacity_factor.map(|_| places(experts, config.experts));
    Routing { experts, weights, places, load_balance_loss: load_balance_loss(probabilities, experts) }
}

/// See [`Routing::places`].
fn places(experts: Tensor, count: usize) -> Tensor {
    // Numbers of experts, so that where the sequence is split little has to be gathered.
    let experts = experts.with_axes(WHOLE_ROW_CHOICES);
    // A token chooses an expert once.
    let chosen = experts.one_hot(count, DType::S32).sum(2).with_axes(WHOLE_ROW_CHOICES);
    let before = chosen.cumsum(1).with_axes(WHOLE_ROW_CHOICES) - chosen;
    before.take_along_axis(-1, experts).with_axes(ROUTED_CHOICES)
}

/// Numbers as shares of their sum along the last dimension.
fn share(numbers: Tensor) -> Tensor {
    let total = numbers.sum(-1) + SMALL;
    numbers / total.broadcast_like(numbers, [0, 1])
}

/// See [`Routing::load_balance_loss`].
fn load_balance_loss(probabilities: Tensor, experts: Tensor) -> Tensor {
    let [_, length, count] = probabilities.shape();
    let choices = (length * experts.dim(-1)) as f64;
    let fraction = experts.one_hot(count, DType::F32).sum([1, 2]) / choices;
    let probability = probabilities.mean(1);
    (fraction * probability).sum(-1).mean(..) * count as f64
}
