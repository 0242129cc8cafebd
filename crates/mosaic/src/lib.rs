#![doc = include_str!("../README.md")]
// A library neither panics nor prints.
#![warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

pub mod text;
pub mod attention;
pub mod grouped;
mod error;
mod kernel;

pub use error::KernelError;
pub use kernel::{CALL_TARGET, Cost, Kernel, Operand};
