//! StableHLO and Shardy as text: what `jax.jit(f).lower(...).as_text()` prints.
//!
//! `names` has the ops and types that both languages have, once for both directions. `read` makes an `HloModuleProto`
//! of a text, and [`write`](mod@write) a text of an `HloModuleProto`.

pub(crate) mod names;
pub(crate) mod read;
pub mod write;

pub use write::{WriteError, WriteOptions, write};
