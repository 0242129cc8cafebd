//! Rewrites how a model runs: from a layer stack to a pipeline, from a batch to its parts.
//!
//! Transforms work on traced functions in global view: none knows a device. Logical axes say where values lie, as
//! everywhere.

pub mod accumulate;
pub mod diloco;
pub mod pipeline;
