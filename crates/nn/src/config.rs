//! The config of a decoder.

use meshloom::ir::DType;
use meshloom::ops::{KeyExchange, RematPolicy};
use meshloom::transform::pipeline::PipelineOptions;

use super::architecture::Architecture;
use super::layer::FeedForwardConfig;
use super::moe::MoeConfig;
use super::token_order::TokenOrder;

/// A decoder: its architecture, and the way in which it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// The architecture, which says what is computed.
    pub architecture: Architecture,
    /// Type that parameters are stored in.
    pub param_dtype: DType,
    /// Type that activations are computed in; norms, softmax and loss are always `f32`.
    pub compute_dtype: DType,
    /// Whether layers that are alike are one scan over stacked parameters, or each has its own nodes.
    pub scan_layers: bool,
    /// The policy that says what the backward pass finds of a layer, and what it computes again.
    pub remat: RematPolicy,
    /// The pipeline over cycles of the stack; without one, all devices run them one after the other.
    pub pipeline: Option<PipelineOptions>,
    /// The way in which queries meet keys of other devices, where sequences are split. Latent attention always gathers
    /// them.
    pub exchange: KeyExchange,
    /// The order of the tokens of a row, and of all that belongs to them. It is the natural one, unless a batch is
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
