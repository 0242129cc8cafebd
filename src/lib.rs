//! meshloom: a Rust compiler frontend for XLA.

pub mod hlo;
pub mod ir;
pub mod sharding;
mod suggest;
pub mod train;
