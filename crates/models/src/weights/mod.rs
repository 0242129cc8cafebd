//! Folders of safetensors files: read by range, checked, dequantized, written.

pub(crate) mod decode;
mod error;
mod fault;
pub(crate) mod files;
mod folder;
pub(crate) mod header;
mod json;
mod ledger;
pub(crate) mod natural;
mod quantized;
pub(crate) mod region;
mod tensor;
mod writer;

pub use error::WeightsError;
pub use fault::{FileFault, IndexFault, QuantizationFault};
pub use folder::{FP8_BLOCK, Weights};
pub use header::arrange;
pub use ledger::Ledger;
pub use region::whole;
pub use safetensors::Dtype;
pub use tensor::{Encoding, Tensor};
pub use writer::{MAX_SHARD_BYTES, TensorSpec, write_weights};
