//! meshloom: a Rust compiler frontend for XLA.

pub mod ir;
