//! The router chooses the experts that a token goes through, and their weights.

use meshloom::ir::DType;
use meshloom::trace::{Tensor, einsum};

use super::{Moe, MoeConfig, RouterGroups};
use crate::layout::{ROUTED_CHOICES, STREAM, WHOLE_ROW_CHOICES};

/// How scores come of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// The softmax over all experts.
    Softmax,
    /// The logistic function of each (DeepSeek-V3, arXiv 2412.19437).
    Sigmoid,
}

/// The decisions of a router for tokens `[batch, length]`.
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
    /// Where choices have a bias: a scalar `f32` that is zero. Its gradient for an expert's bias is by how much the
    /// expert's fraction of a row's choices is over an even one, the mean over rows. A loss to which it is added has
    /// that gradient, through microbatches, meshes and pipelines as any other; the bias moves against its sign
    /// (DeepSeek-V3, arXiv 2412.19437, section 2.1.2: balance without an auxiliary loss).
    pub choice_bias_loss: Option<Tensor>,
}

/// Added to the sum that weights are divided by, which may underflow to zero with [`Scoring::Sigmoid`].
const SMALL: f64 = 1e-20;

/// Routes the tokens of `x` `[batch, length, embed]` by the router of `params`; in `f32`. If experts have equal
/// scores, the first is chosen.
///
/// # Errors
/// There are fewer experts than a token is to go through.
pub fn route(x: Tensor, params: &Moe<Tensor>, config: &MoeConfig) -> Routing {
    let x = x.with_axes(STREAM).convert(DType::F32);
    let logits = einsum("bte,ex->btx", &[x, params.router.convert(DType::F32)]);
    let logits = match params.router_bias {
        Some(bias) => logits + bias.convert(DType::F32).broadcast_like(logits, -1),
        None => logits,
    };
    let scores = match config.scoring {
        Scoring::Softmax => logits.softmax(-1),
        Scoring::Sigmoid => logits.logistic(),
    };
    let (chosen, experts) = choose(scores, params.choice_bias, config);
    let weights = if config.normalize_weights { share(chosen) } else { chosen } * config.weight_scale;
    // Decided where the tokens are: else the scores of all experts would be gathered with them.
    let (experts, weights) = (experts.with_axes(ROUTED_CHOICES), weights.with_axes(ROUTED_CHOICES));
    let probabilities = match config.scoring {
        Scoring::Softmax => scores,
        Scoring::Sigmoid => share(scores),
    };
    let places = config.capacity_factor.map(|_| places(experts, config.experts));
    let fraction = fraction(experts, config.experts);
    Routing {
        experts,
        weights,
        places,
        load_balance_loss: load_balance_loss(probabilities, fraction),
        choice_bias_loss: params.choice_bias.map(|bias| choice_bias_loss(bias, fraction)),
    }
}

/// The scores of the experts that tokens choose, and their numbers, best first.
fn choose(scores: Tensor, bias: Option<Tensor>, config: &MoeConfig) -> (Tensor, Tensor) {
    let count = config.experts_per_token;
    if bias.is_none() && config.groups.is_none() {
        return scores.top_k(count);
    }
    // Choices have no gradient: it flows through the scores of those chosen.
    let keys = scores.stop_gradient();
    let keys = bias.map_or(keys, |bias| keys + bias.convert(DType::F32).stop_gradient().broadcast_like(keys, -1));
    let keys = config.groups.map_or(keys, |groups| within_groups(keys, groups));
    let (_, experts) = keys.top_k(count);
    (scores.take_along_axis(-1, experts), experts)
}

/// Keys `[batch, length, experts]` with minus infinity for the experts of groups that a token does not choose.
fn within_groups(keys: Tensor, groups: RouterGroups) -> Tensor {
    let [batch, length, experts] = keys.shape();
    let by_group = keys.reshape([batch, length, groups.count, experts / groups.count.max(1)]);
    let best = by_group.top_k(2).0.sum(-1);
    let chosen = best.top_k(groups.chosen).1.one_hot(groups.count, DType::S32).sum(2);
    let is_chosen = chosen.greater(0.0).broadcast_like(by_group, [0, 1, 2]);
    is_chosen.select(by_group, f64::NEG_INFINITY).reshape(keys.dims())
}

impl Routing {
    /// For each token the sum over its experts of a vector of theirs, `[experts, width]`, weighted: `f32`
    /// `[batch, length, width]`. Choices that found no slot add nothing.
    pub(super) fn mixed_by_expert(&self, vectors: Tensor, config: &MoeConfig) -> Tensor {
        let weights = match self.places.zip(config.capacity(self.experts.dim(1))) {
            Some((places, capacity)) => places.less(capacity as f64).select(self.weights, 0.0),
            None => self.weights,
        };
        let chosen = self.experts.one_hot(config.experts, DType::F32);
        let of_experts = einsum("btkx,btk->btx", &[chosen, weights]).with_axes(ROUTED_CHOICES);
        einsum("btx,xe->bte", &[of_experts, vectors.convert(DType::F32)]).with_axes(STREAM)
    }
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

/// The fraction of a row's choices that fall on each expert: `[batch, experts]`.
fn fraction(experts: Tensor, count: usize) -> Tensor {
    let [_, length, chosen] = experts.shape();
    experts.one_hot(count, DType::F32).sum([1, 2]) / (length * chosen) as f64
}

/// See [`Routing::load_balance_loss`].
fn load_balance_loss(probabilities: Tensor, fraction: Tensor) -> Tensor {
    let count = probabilities.dim(-1);
    let probability = probabilities.mean(1);
    (fraction * probability).sum(-1).mean(..) * count as f64
}

/// See [`Routing::choice_bias_loss`].
fn choice_bias_loss(bias: Tensor, fraction: Tensor) -> Tensor {
    let over = fraction - 1.0 / fraction.dim(-1).max(1) as f64;
    let bias = bias.convert(DType::F32);
    let zero = bias - bias.stop_gradient();
    (over * zero.broadcast_like(over, -1)).sum(-1).mean(..)
}
