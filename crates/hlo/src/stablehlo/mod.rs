//! StableHLO and Shardy as text: what `jax.jit(f).lower(...).as_text()` prints.
//!
//! [`names`] has the ops and types that both languages have, once for both directions. `read` makes an
//! `HloModuleProto` of a text.

#[allow(dead_code, reason = "each direction uses its half")]
pub(crate) mod names;
pub(crate) mod read;
