//! Published model families against transformers: what their decoders compute, what tensors they have, and which
//! details the comparison sees.

mod balance;
mod config_errors;
mod config_forms;
mod details;
mod exchange;
mod further;
mod generation;
mod golden;
mod meshes;
mod parity;
mod presets;
mod runs;
mod sampling;
mod wrong_batches;

use crate::train::interpreted;
