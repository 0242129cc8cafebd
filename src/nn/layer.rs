//! One decoder layer of any family: an attention block and a feed-forward block, each added to the residual stream.

use super::attention::{Attention, TokenPlaces, attention};
use super::dropout::Dropout;
use super::latent::{LatentAttention, LatentConfig, LatentQuery, latent_attention};
use super::layout::{enter_block, leave_block};
use super::mlp::{Mlp, mlp};
use super::moe::{Moe, MoeConfig, moe};
use super::norm::rms_norm;
use super::rotary::Rotary;
use super::{DecoderConfig, batch_split};
use crate::trace::{Init, MatrixDims, Param, Tensor, scope};

/// What sets a family apart from Llama, which has none of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerParts {
    /// Latent attention in place of grouped-query attention.
    pub latent: Option<LatentConfig>,
    /// Routed experts in place of one feed-forward block, if there are any.
    pub routed: MoeConfig,
    /// Whether a layer works on two halves of the batch in turns, so that what one moves can overlap with what the
    /// other computes.
    pub batch_split: bool,
}

crate::tree! {
    /// Parameters of one decoder layer.
    pub struct DecoderLayer<T> {
        /// `[embed]`.
        pub attention_norm: T,
        /// Attention.
        pub attention: AttentionBlock<T>,
        /// `[embed]`.
        pub mlp_norm: T,
        /// Feed-forward block.
        pub mlp: FeedForward<T>,
    }
}

crate::tree! {
    /// Parameters of a layer's attention.
    pub enum AttentionBlock<T> {
        /// Grouped-query attention.
        Grouped(Box<Attention<T>>),
        /// Latent attention.
        Latent(Box<LatentAttention<T>>),
    }
}

crate::tree! {
    /// Parameters of a layer's feed-forward block.
    pub enum FeedForward<T> {
        /// One block for all tokens.
        Dense(Box<Mlp<T>>),
        /// Routed experts.
        Routed(Box<Moe<T>>),
    }
}

/// What a layer reads of the batch's rows.
#[derive(Clone, Copy, Debug)]
pub struct RowInputs<'r> {
    /// Rotation angles, of the width that [`DecoderConfig::rotary_dim`] says.
    pub rotary: &'r Rotary,
    /// Where tokens stand, which decides what sees what.
    pub tokens: TokenPlaces,
}

/// The part of the loss that a layer adds by itself: of routed experts the load-balance loss, before its weight. A
/// scalar `f32`.
pub type LayerLoss = Option<Tensor>;

impl DecoderConfig {
    /// Width of the part of a head that turns by position.
    pub fn rotary_dim(&self) -> usize {
        self.parts.latent.as_ref().map_or(self.head_dim, |latent| latent.rope_head_dim)
    }

    /// Declares one layer's parameters. Matrices that write into the residual stream start smaller with depth.
    pub(super) fn layer_parameters(&self) -> DecoderLayer<Param> {
        let norm = || self.norm_parameter(self.embed, "norm");
        DecoderLayer {
            attention_norm: norm(),
            attention: match &self.parts.latent {
                None => AttentionBlock::Grouped(Box::new(self.grouped_parameters())),
                Some(latent) => AttentionBlock::Latent(Box::new(self.latent_parameters(latent))),
            },
            mlp_norm: norm(),
            mlp: match &self.parts.routed {
                MoeConfig { experts: 0, .. } => FeedForward::Dense(Box::new(self.mlp_parameters(self.mlp))),
                routed => FeedForward::Routed(Box::new(self.moe_parameters(routed))),
            },
        }
    }

    /// Normally distributed with variance `gain^2` over the fan-in.
    pub(super) fn matrix(&self, dims: &[usize], axes: &[&str], fan_in: usize, gain: f64) -> Param {
        Param::new(self.param_dtype, dims, axes, Init::Normal(gain * (fan_in as f64).powf(-0.5)))
    }

    pub(super) fn norm_parameter(&self, width: usize, axis: &str) -> Param {
        Param::new(self.param_dtype, [width], &[axis], Init::Constant(1.0))
    }

    /// The gain of what writes into the residual stream, whose variance then does not grow with depth.
    fn residual_gain(&self) -> f64 {
        (2.0 * self.layers as f64).powf(-0.5)
    }

    fn grouped_parameters(&self) -> Attention<Param> {
        let (embed, heads, kv_heads, head_dim) = (self.embed, self.heads, self.kv_heads, self.head_dim);
        let of_keys = || self.matrix(&[embed, kv_heads, head_dim], &["embed", "kv_heads", "kv"], embed, 1.0);
        Attention {
            wq: self.matrix(&[embed, heads, head_dim], &["embed", "heads", "kv"], embed, 1.0),
            wk: of_keys(),
            wv: of_keys(),
            wo: self.output_matrix(head_dim),
        }
    }

    fn output_matrix(&self, width: usize) -> Param {
        let dims = [self.heads, width, self.embed];
        let matrix = self.matrix(&dims, &["heads", "kv", "embed"], self.heads * width, self.residual_gain());
        matrix.with_matrix(Some(MatrixDims { batch: 0, inputs: 2 }))
    }

    fn latent_parameters(&self, latent: &LatentConfig) -> LatentAttention<Param> {
        let &LatentConfig { q_lora, kv_lora, nope_head_dim, rope_head_dim, v_head_dim } = latent;
        let (embed, heads) = (self.embed, self.heads);
        let down = |width: usize, name: &str| self.matrix(&[embed, width], &["embed", name], embed, 1.0);
        let up = |from: usize, name: &str, width: usize| {
            self.matrix(&[from, heads, width], &[name, "heads", "kv"], from, 1.0)
        };
        let (source, source_name) = if q_lora > 0 { (q_lora, "q_lora") } else { (embed, "embed") };
        LatentAttention {
            query: LatentQuery {
                wq_a: (q_lora > 0).then(|| down(q_lora, "q_lora")),
                q_norm: (q_lora > 0).then(|| self.norm_parameter(q_lora, "norm")),
                wq_b: up(source, source_name, nope_head_dim + rope_head_dim),
            },
            wkv_a: down(kv_lora, "kv_lora"),
            wk_rope: down(rope_head_dim, "kv"),
            kv_norm: self.norm_parameter(kv_lora, "norm"),
            wkv_b: up(kv_lora, "kv_lora", nope_head_dim + v_head_dim),
            wo: self.output_matrix(v_head_dim),
        }
    }

    fn mlp_parameters(&self, hidden: usize) -> Mlp<Param> {
        let up = || self.matrix(&[self.embed, hidden], &["embed", "mlp"], self.embed, 1.0);
        Mlp {
            gate: up(),
            up: up(),
            down: self.matrix(&[hidden, self.embed], &["mlp", "embed"], hidden, self.residual_gain()),
        }
    }

    fn moe_parameters(&self, routed: &MoeConfig) -> Moe<Param> {
        let (embed, experts, hidden) = (self.embed, routed.experts, routed.mlp);
        let of_experts = Some(MatrixDims { batch: 1, inputs: 1 });
        let up = || {
            let dims = [experts, embed, hidden];
            self.matrix(&dims, &["exp", "embed_no_exp_moe", "mlp"], embed, 1.0).with_matrix(of_experts)
        };
        let shared = routed.shared_experts * hidden;
        Moe {
            router: self.matrix(&[embed, experts], &["embed", ""], embed, 1.0),
            gate: up(),
            up: up(),
            down: self
                .matrix(&[experts, hidden, embed], &["exp", "mlp", "embed_no_exp_moe"], hidden, self.residual_gain())
                .with_matrix(of_experts),
            shared: (shared > 0).then(|| self.mlp_parameters(shared)),
        }
    }

    /// One layer over the residual stream `x` `[batch, length, embed]`: attention, then the feed-forward block. Each
    /// adds its result to the stream, after `dropout`. Also returns the layer's own loss.
    ///
    /// With [`LayerParts::batch_split`] in two halves of the batch, if it is even; the numbers are the same.
    pub fn layer(
        &self,
        x: Tensor,
        params: &DecoderLayer<Tensor>,
        rows: RowInputs<'_>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        // A single row, as when text is sampled, is no two halves.
        let is_even = x.dims().first().is_some_and(|rows| rows.is_multiple_of(2));
        if self.parts.batch_split && is_even {
            return batch_split::layer(self, x, params, rows, dropout);
        }
        let x = self.attention_block(x, params, rows, dropout);
        self.feed_forward_block(x, params, dropout)
    }

    /// The first block of a layer.
    pub(super) fn attention_block(
        &self,
        x: Tensor,
        params: &DecoderLayer<Tensor>,
        rows: RowInputs<'_>,
        dropout: Option<Dropout>,
    ) -> Tensor {
        scope("attention", || {
            let normal = enter_block(rms_norm(x, params.attention_norm, self.norm_epsilon));
            let of_weights = dropout.map(|dropout| dropout.at(WEIGHTS));
            let mixed = match &params.attention {
                AttentionBlock::Grouped(params) => attention(normal, params, rows.rotary, rows.tokens, of_weights),
                AttentionBlock::Latent(params) => {
                    latent_attention(normal, params, rows.rotary, rows.tokens, self.norm_epsilon, of_weights)
                }
            };
            x + added(dropout, ATTENTION_BLOCK, leave_block(mixed))
        })
    }

    /// The second block of a layer.
    pub(super) fn feed_forward_block(
        &self,
        x: Tensor,
        params: &DecoderLayer<Tensor>,
        dropout: Option<Dropout>,
    ) -> (Tensor, LayerLoss) {
        scope("mlp", || {
            let normal = rms_norm(x, params.mlp_norm, self.norm_epsilon);
            match &params.mlp {
                FeedForward::Dense(params) => {
                    (x + added(dropout, FEED_FORWARD, leave_block(mlp(enter_block(normal), params))), None)
                }
                FeedForward::Routed(params) => {
                    let (made, loss) = moe(normal, params, &self.parts.routed);
                    (x + added(dropout, FEED_FORWARD, made), Some(loss))
                }
            }
        })
    }
}

/// The places of a layer at which something drops, to fold in.
const ATTENTION_BLOCK: u32 = 0;
pub(super) const FEED_FORWARD: u32 = 1;
const WEIGHTS: u32 = 2;

/// What a block adds to the residual stream, after dropout.
pub(super) fn added(dropout: Option<Dropout>, place: u32, made: Tensor) -> Tensor {
    dropout.map_or(made, |dropout| dropout.at(place).apply(made))
}
