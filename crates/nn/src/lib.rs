//! Decoder parts and whole decoders on the public API of `meshloom`, as anybody's model is.
//!
//! Every part is a function of tensors, with its parameters in a [`tree!`](meshloom::tree) struct. Activations and
//! parameters carry the logical axes that MaxText-style rules know: `activation_batch`, `activation_length`, ... and
//! `embed`, `heads`, `mlp`, .... A part has a custom VJP if that saves fewer and smaller values than the derived
//! backward pass.
//!
//! | part | function |
//! |---|---|
//! | dense layer | [`linear`] |
//! | embedding | [`Tensor::take`](meshloom::trace::Tensor::take) of rows of a `[vocab, embed]` table |
//! | normalization | [`layer_norm`], [`rms_norm`] |
//! | attention | [`causal_attention`] over heads; [`attention`] and [`latent_attention`] with their projections |
//! | activations | methods of [`Tensor`](meshloom::trace::Tensor): `relu`, `gelu`, `gelu_tanh`, `silu`, `softplus`; gated ones: [`Activation`] |
//! | rotary positions | [`rotate`] by the angles of a [`Rope`] |
//! | experts | [`moe`](moe()) |
//! | dropout | [`dropout`](dropout()) |
//! | loss | [`cross_entropy`]; [`head_loss`](head_loss()) with the head's product, some positions at a time |
//! | order of tokens over devices | [`TokenOrder`] |
//! | generation | [`GeneratingDecoder`]: prompts in one pass, then a token at a time over a [`KeyValueCache`] |
//! | whole decoders | [`DecoderConfig`]: an [`Architecture`] with its [`Stack`] of layers, and how it runs |

mod architecture;
mod attention;
mod batch_split;
mod config;
mod decoder;
mod dropout;
mod flops;
mod generation;
mod head;
mod head_loss;
mod kv_cache;
mod latent;
mod layer;
mod layers;
mod layout;
mod linear;
mod loss;
mod mlp;
mod moe;
mod multi_token;
mod norm;
mod parameters;
mod pipelined;
mod rotary;
mod runs;
mod stack;
mod token_order;
mod token_places;

pub use architecture::Architecture;
pub use attention::{
    Attention, AttentionBias, AttentionOptions, GroupedConfig, HeadNorms, attention, causal_attention,
    causal_attention_with,
};
pub use config::DecoderConfig;
pub use decoder::Batch;
pub use dropout::{Dropout, DroppedWeights, dropout};
pub use generation::{Continued, GeneratingDecoder, NextTokens, Prompts};
pub use head_loss::{HeadLoss, head_loss};
pub use kv_cache::{KeyValueCache, KeysAndValues, LatentSlots, LayerCache};
pub use latent::{LatentAttention, LatentConfig, LatentQuery, latent_attention};
pub use layer::{
    Angles, AttentionBlock, AttentionConfig, DecoderLayer, FeedForward, FeedForwardConfig, LayerConfig, LayerLoss,
    RowInputs,
};
pub use layout::{STREAM, rows_of_weight};
pub use linear::{Linear, linear};
pub use loss::{WholeBatch, cross_entropy};
pub use mlp::{Activation, Mlp, mlp};
pub use moe::{
    Dispatched, ExchangeSizes, ExpertBiases, ExpertExchange, Moe, MoeConfig, RouterGroups, Routing, Scoring,
    add_shared, combine, dispatch, moe, route, run_experts,
};
pub use multi_token::further_path;
pub use norm::{LayerNorm, NormCast, NormWeight, RmsNorm, layer_norm, rms_norm};
pub use parameters::{Decoder, FurtherToken};
pub use rotary::{Rope, RopePairs, RopeScaling, Rotary, rotate};
pub use runs::{LayerRun, Layers, RunForm, RunWeights};
pub use stack::Stack;
pub use token_order::{ContextOrder, TokenOrder, TokenOrderError};
pub use token_places::TokenPlaces;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
