//! meshloom: a Rust compiler frontend for XLA.

pub mod autodiff;
pub mod compile;
pub mod error;
pub mod hlo;
pub mod ir;
pub mod nn;
pub mod ops;
pub mod optim;
pub mod passes;
pub mod pjrt;
pub mod sharding;
mod suggest;
pub mod trace;
pub mod train;

pub use error::Error;
