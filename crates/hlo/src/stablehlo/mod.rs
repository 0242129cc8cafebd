//! StableHLO and Shardy as text: what `jax.jit(f).lower(...).as_text()` prints.
//!
//! [`read`](fn@read) makes an `HloModuleProto` of a text, [`write`](fn@write) a text of an `HloModuleProto`, and
//! [`write_artifact`] a portable artifact, which is MLIR's bytecode.
//! `names` has the ops and types that both languages have, once for both directions.

pub(crate) mod names;
pub(crate) mod read;
pub mod write;

pub use read::{BytecodeError, ShardyText, ShardyValue, is_mlir, read, read_function, read_with};
pub use write::{ArtifactVersion, VersionError, WriteError, WriteOptions, write, write_artifact};
