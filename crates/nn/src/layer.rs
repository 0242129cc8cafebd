//! One decoder layer: an attention block and a feed-forward block, each added to the residual stream.

use meshloom::trace::{Tensor, fail_internal, scope};

use super::attention::{Attention, GroupedConfig, attention_over_keys};
use super::dropout::Dropout;
use super::kv_cache::Keys;
use super::latent::{LatentAttention, LatentConfig, latent_attention_over_keys};
use super::layout::Rows;
use super::mlp::{Activation, Mlp, mlp};
use super::moe::{Moe, MoeConfig, Routing, moe_with_routing};
use super::norm::{RmsNorm, rms_norm};
use super::rotary::{Rope, Rotary};
use super::token_places::TokenPlaces;

/// The shape of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// Attention.
    pub attention: AttentionConfig,
    /// Feed-forward block.
    pub feed_forward: FeedForwardConfig,
    /// The form of the norms over the residual stream.
    pub norm: RmsNorm,
    /// Whether there is a norm behind each block as well, over what it adds to the stream (Gemma 2, arXiv 2408.00118).
    pub norms_behind: bool,
    /// The factor of the results that blocks add to the stream.
    pub residual_scale: f64,
}

/// Attention of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum AttentionConfig {
    /// Groups of query heads share keys and values.
    Grouped(GroupedConfig),
    /// Keys and values are made of a narrow vector.
    Latent(LatentConfig),
}

/// Feed-forward block of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForwardConfig {
    /// One block for all tokens.
    Dense {
        /// Its inner width.
        mlp: usize,
        /// The activation between its products.
        activation: Activation,
    },
    /// Routed experts.
    Routed(MoeConfig),
}

impl LayerConfig {
    /// Llama's, with the feed-forward block of an inner width: norms in Llama's form.
    pub fn llama(attention: GroupedConfig, mlp: usize, epsilon: f64) -> LayerConfig {
        LayerConfig {
            attention: AttentionConfig::Grouped(attention),
            feed_forward: FeedForwardConfig::Dense { mlp, activation: Activation::Silu },
            norm: RmsNorm::llama(epsilon),
            norms_behind: false,
            residual_scale: 1.0,
        }
    }

    /// How queries and keys turn.
    pub fn rope(&self) -> &Rope {
        match &self.attention {
            AttentionConfig::Grouped(grouped) => &grouped.rope,
            AttentionConfig::Latent(latent) => &latent.rope,
        }
    }

    /// The routed experts, if it has any.
    pub fn routed(&self) -> Option<&MoeConfig> {
        match &self.feed_forward {
            FeedForwardConfig::Dense { .. } => None,
            FeedForwardConfig::Routed(routed) => Some(routed),
        }
    }
}

meshloom::tree! {
    /// Parameters of one decoder layer.
    pub struct DecoderLayer<T> {
        /// `[embed]`.
        pub attention_norm: T,
        /// Attention.
        pub attention: AttentionBlock<T>,
        /// Behind attention, if there is one: `[embed]`.
        pub post_attention_norm: Option<T>,
        /// `[embed]`.
        pub mlp_norm: T,
        /// Feed-forward block.
        pub mlp: FeedForward<T>,
        /// Behind the feed-forward block, if there is one: `[embed]`.
        pub post_mlp_norm: Option<T>,
    }
}

meshloom::tree! {
    /// Parameters of a layer's attention.
    pub enum AttentionBlock<T> {
        /// Grouped-query attention.
        Grouped(Box<Attention<T>>),
        /// Latent attention.
        Latent(Box<LatentAttention<T>>),
    }
}

meshloom::tree! {
    /// Parameters of a layer's feed-forward block.
    pub enum FeedForward<T> {
        /// One block for all tokens.
        Dense(Box<Mlp<T>>),
        /// Routed experts.
        Routed(Box<Moe<T>>),
    }
}

/// The inputs of a layer that belong to the rows of the batch.
#[derive(Clone, Copy, Debug)]
pub struct RowInputs<'r> {
    /// Rotation angles.
    pub angles: &'r Angles,
    /// Where tokens stand, which decides what sees what.
    pub tokens: TokenPlaces,
}

/// The rotation angles of rows, by how layers turn their heads.
#[derive(Clone, Debug)]
pub struct Angles(Vec<(Rope, Rotary)>);

impl Angles {
    /// The angles that some layers need, for integer `positions` `[batch, length]`.
    pub fn new<'l>(positions: Tensor, layers: impl IntoIterator<Item = &'l LayerConfig>) -> Angles {
        let mut found: Vec<(Rope, Rotary)> = Vec::new();
        for layer in layers {
            let rope = layer.rope();
            if found.iter().all(|(known, _)| known != rope) {
                found.push((rope.clone(), scope("rotary", || Rotary::new(positions, rope))));
            }
        }
        Angles(found)
    }

    /// The same with cosines and sines replaced.
    pub(super) fn map(&self, f: impl Fn(Tensor) -> Tensor) -> Angles {
        Angles(self.0.iter().map(|(rope, rotary)| (rope.clone(), rotary.map(&f))).collect())
    }

    /// The angles of a layer.
    fn of(&self, layer: &LayerConfig) -> Rotary {
        let found = self.0.iter().find(|(rope, _)| rope == layer.rope());
        found.map_or_else(|| Rotary::missing("the angles of a layer"), |(_, rotary)| *rotary)
    }
}

/// The part of the loss that a layer adds by itself: of routed experts the load-balance loss, times its weight. A
/// scalar `f32`.
pub type LayerLoss = Option<Tensor>;

/// The sum of two losses; either may be missing.
pub(super) fn added(total: LayerLoss, loss: LayerLoss) -> LayerLoss {
    match (total, loss) {
        (Some(total), Some(loss)) => Some(total + loss),
        (total, loss) => total.or(loss),
    }
}

/// The weights of the losses of layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerLossWeights {
    /// Weight of the load-balance loss.
    pub(super) load_balance: f64,
    /// Whether biases of choices have a gradient ([`Routing::choice_bias_loss`]).
    pub(super) choice_bias: bool,
}

impl LayerLossWeights {
    /// The loss of a layer whose router decided this.
    pub(super) fn of(self, routing: &Routing) -> LayerLoss {
        let balance = (self.load_balance != 0.0).then(|| routing.load_balance_loss * self.load_balance);
        added(balance, routing.choice_bias_loss.filter(|_| self.choice_bias))
    }
}

/// A layer of a decoder, with its parameters.
#[derive(Clone, Copy)]
pub(super) struct Layer<'l> {
    pub(super) config: &'l LayerConfig,
    pub(super) params: &'l DecoderLayer<Tensor>,
    pub(super) loss: LayerLossWeights,
}

impl Layer<'_> {
    /// The first block of a layer, over the keys that queries see.
    pub(super) fn attention_block(
        self,
        x: Tensor,
        angles: &Angles,
        keys: &mut Keys,
        dropout: Option<Dropout>,
    ) -> Tensor {
        scope("attention", || {
            let normal = Rows::LAYERS.enter_block(rms_norm(x, self.params.attention_norm, self.config.norm));
            let of_weights = dropout.map(|dropout| dropout.at(WEIGHTS));
            let angles = angles.of(self.config);
            let (mixed, bias) = match (&self.params.attention, &self.config.attention) {
                (AttentionBlock::Grouped(params), AttentionConfig::Grouped(config)) => {
                    (attention_over_keys(normal, params, config, &angles, keys, of_weights), params.output_bias)
                }
                (AttentionBlock::Latent(params), AttentionConfig::Latent(config)) => {
                    (latent_attention_over_keys(normal, params, config, &angles, keys, of_weights), None)
                }
                (AttentionBlock::Grouped(_), _) | (AttentionBlock::Latent(_), _) => {
                    (fail_internal("a layer's attention", "parameters of the kind that its config says"), None)
                }
            };
            let made = Rows::LAYERS.leave_block(mixed);
            let made = bias.map_or(made, |bias| made + bias.convert(made.dtype()).broadcast_like(made, -1));
            self.add(x, made, self.params.post_attention_norm, (dropout, ATTENTION_BLOCK))
        })
    }

    /// The second block of a layer.
    pub(super) fn feed_forward_block(self, x: Tensor, dropout: Option<Dropout>) -> (Tensor, LayerLoss) {
        scope("mlp", || {
            let normal = self.enter_feed_forward(x);
            let (made, loss) = match (&self.params.mlp, &self.config.feed_forward) {
                (FeedForward::Dense(params), FeedForwardConfig::Dense { activation, .. }) => {
                    (Rows::LAYERS.leave_block(mlp(Rows::LAYERS.enter_block(normal), params, *activation)), None)
                }
                (FeedForward::Routed(params), FeedForwardConfig::Routed(config)) => {
                    let (made, routing) = moe_with_routing(normal, params, config);
                    (made, self.loss.of(&routing))
                }
                (FeedForward::Dense(_), _) | (FeedForward::Routed(_), _) => {
                    (fail_internal("a layer's feed-forward block", "parameters of the kind that its config says"), None)
                }
            };
            (self.leave_feed_forward(x, made, dropout), loss)
        })
    }

    /// The input of the feed-forward block.
    pub(super) fn enter_feed_forward(self, x: Tensor) -> Tensor {
        rms_norm(x, self.params.mlp_norm, self.config.norm)
    }

    /// The stream behind the feed-forward block.
    pub(super) fn leave_feed_forward(self, x: Tensor, made: Tensor, dropout: Option<Dropout>) -> Tensor {
        self.add(x, made, self.params.post_mlp_norm, (dropout, FEED_FORWARD))
    }

    /// The stream with the result of a block: behind its norm, dropped, scaled.
    fn add(self, x: Tensor, made: Tensor, norm: Option<Tensor>, (dropout, place): (Option<Dropout>, u32)) -> Tensor {
        let made = norm.map_or(made, |norm| rms_norm(made, norm, self.config.norm));
        let made = dropout.map_or(made, |dropout| dropout.at(place).apply(made));
        match self.config.residual_scale {
            1.0 => x + made,
            scale => x + made * scale,
        }
    }
}

/// The places of a layer at which something drops, to fold in.
const ATTENTION_BLOCK: u32 = 0;
const FEED_FORWARD: u32 = 1;
const WEIGHTS: u32 = 2;
