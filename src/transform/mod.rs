//! Rewrites of the way in which a model runs: from a layer stack to a pipeline, from a batch to its parts.
//!
//! Transforms work on traced functions in global view and know no devices. Logical axes say where values lie, as
//! everywhere.

pub mod accumulate;
pub mod diloco;
pub mod pipeline;
