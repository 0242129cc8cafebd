#![doc = include_str!("../README.md")]
// A library neither panics nor prints.
#![warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

pub mod families;
#[doc(hidden)]
pub mod internals;
pub mod parameters;
pub mod published;
pub mod weights;
