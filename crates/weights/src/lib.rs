#![doc = include_str!("../README.md")]
// A library neither panics nor prints.
#![warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod natural;
mod region;
mod positioned;
mod decode;
mod json;
mod header;
mod files;
#[doc(hidden)]
pub mod internals;
mod tensor;
mod quantized;
mod ledger;
mod weights;
mod writer;
mod fault;
mod error;

pub use error::WeightsError;
pub use fault::{FileFault, IndexFault, QuantizationFault};
pub use ledger::Ledger;
pub use region::whole;
pub use safetensors::Dtype;
pub use tensor::{Encoding, Tensor};
pub use weights::{FP8_BLOCK, Weights};
pub use writer::{MAX_SHARD_BYTES, TensorSpec, WeightsWriter};
