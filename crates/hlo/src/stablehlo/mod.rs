//! StableHLO and Shardy as text: what `jax.jit(f).lower(...).as_text()` prints.
//!
//! [`read`](fn@read) makes an `HloModuleProto` of a text, and [`write`](fn@write) a text of an `HloModuleProto`.
//! `names` has the ops and types that both languages have, once for both directions.

pub(crate) mod names;
pub(crate) mod read;
pub mod write;

pub use read::{BytecodeError, is_mlir, read, read_function, read_with};
pub use write::{WriteError, WriteOptions, write};
