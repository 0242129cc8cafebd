//! Rewriting how a model runs: from a layer stack to a pipeline, from a batch to its parts.
//!
//! Transforms work on traced functions, in global view: none knows a device. What lies where is said by logical axis names, as
//! everywhere.

pub mod accumulate;
pub mod diloco;
pub mod pipeline;
