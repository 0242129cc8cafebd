//! The architecture of a decoder: what it computes, however it is run.

use super::layer::LayerConfig;
use super::norm::RmsNorm;
use super::stack::Stack;

/// The architecture of a decoder: everything that a published model fixes. The way in which it is computed is in
/// [`DecoderConfig`](super::DecoderConfig).
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// Width of the residual stream.
    pub embed: usize,
    /// Number of token values.
    pub vocab: usize,
    /// Whether the head is the transposed embedding.
    pub tied_embeddings: bool,
    /// The factor of embedded tokens, rounded to the type of activations first.
    pub embedding_scale: f64,
    /// Logits `l` become `cap * tanh(l / cap)` (Gemma 2, arXiv 2408.00118).
    pub logit_cap: Option<f64>,
    /// The layers.
    pub stack: Stack,
    /// The form of the norm behind them.
    pub final_norm: RmsNorm,
    /// Layers that predict further tokens, each one more (multi-token prediction,
    /// [`FurtherToken`](super::FurtherToken)). Only training computes them.
    pub further: Vec<LayerConfig>,
}

impl Architecture {
    /// Llama's: an embedding, these layers, a norm and a head of its own.
    pub fn llama(embed: usize, vocab: usize, stack: Stack, epsilon: f64) -> Architecture {
        Architecture {
            embed,
            vocab,
            tied_embeddings: false,
            embedding_scale: 1.0,
            logit_cap: None,
            stack,
            final_norm: RmsNorm::llama(epsilon),
            further: Vec::new(),
        }
    }

    /// Changes every layer, of those that predict further tokens as well.
    pub fn for_each_layer(&mut self, mut f: impl FnMut(&mut LayerConfig)) {
        self.stack.for_each(&mut f);
        self.further.iter_mut().for_each(f);
    }
}
