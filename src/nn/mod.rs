//! Decoder parts and model families, written as ordinary users of [`trace`](crate::trace).
//!
//! Every part is a function of tensors, with its parameters in a [`tree!`](crate::tree) struct. Activations carry the
//! logical axis names that MaxText-style rules know (`activation_batch`, `activation_length`, ...), parameters theirs
//! (`embed`, `heads`, `mlp`, ...). Parts whose backward pass has a better form than the one derived from single ops
//! bring it along as a custom VJP: it saves fewer and smaller values.

mod attention;
mod decoder;
mod dropout;
mod init;
mod layout;
mod loss;
mod mlp;
mod norm;
mod rotary;

pub use attention::{Attention, AttentionMask, attention, masked_softmax};
pub use decoder::{Batch, Decoder, DecoderConfig, DecoderLayer, Layers};
pub use dropout::{Dropout, dropout};
pub use init::initialize;
pub(crate) use init::uniform;
pub(crate) use layout::STREAM;
pub use loss::cross_entropy;
pub use mlp::{Mlp, mlp, swiglu};
pub use norm::rms_norm;
pub use rotary::{Rotary, rotate};
