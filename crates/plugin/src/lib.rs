#![doc = include_str!("../README.md")]
//!
//! # How it fits together
//!
//! ```text
//! GetPjrtApi -> Settings -> Inner -> table: the inner one's bytes, with two functions of ours
//! JAX -> PJRT_Client_Compile -> Request -> Rewrite -> Decision -> the inner PJRT_Client_Compile
//! ```
//!
//! [`Rewrite`] is the seam: what it decides knows nothing of C, and what calls it nothing of programs.

// A plugin is a guest in its process: it neither panics nor ends it.
#![warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod boundary;
mod count;
mod decide;
mod dump;
mod inner;
mod partition;
mod request;
mod rewrite;
mod say;
mod settings;
mod start;
mod state;
mod summary;
mod table;

pub use count::CountOnly;
pub use inner::InnerError;
pub use partition::Partition;
pub use request::{Format, Request};
pub use rewrite::{Decision, Reason, Replacement, Rewrite};
pub use settings::{Mode, SettingError, Settings};
pub use start::{StartError, start};
pub use summary::Summary;
