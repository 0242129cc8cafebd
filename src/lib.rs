//! meshloom: a Rust compiler frontend for XLA.

pub mod hlo;
pub mod ir;
pub mod pjrt;
