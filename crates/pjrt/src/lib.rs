#![doc = include_str!("../README.md")]
//!
//! # How it fits together
//!
//! ```text
//! Plugin::find("cpu") -> Client::new -> compile(module bytes, CompileOptions) -> Executable
//!                                    -> Array::put(literal, layout) ------------> run -> Array -> get -> Literal
//! ```
//!
//! A [`Plugin`] is a shared object with XLA inside, found on the machine or fetched. A [`Client`] is its devices. An
//! [`Executable`] is a program compiled for some of them. A [`Buffer`] is a value in one device's memory, an [`Array`]
//! is a global value spread over many.
//!
//! All handles are `Send + Sync` and cheap to clone, and each keeps alive what it needs: a client outlives its buffers
//! and executables, a plugin is never unloaded. Executions and transfers are asynchronous; whatever reads a value waits
//! for it.
//!
//! [`ahead_of_time`] compiles for the absent hardware of a [`Topology`] in a child process.
//!
//! XLA's checks end the process, so everything that can be checked is checked here before a plugin is called.

// A library neither panics nor prints.
#![warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

pub mod ahead_of_time;
mod api;
mod array;
mod buffer;
mod cache;
mod cache_dir;
mod client;
mod compiled;
mod device;
mod element_type;
mod error;
mod event;
mod executable;
mod exit;
#[cfg(feature = "fetch")]
mod fetch;
mod files;
mod foreign_calls;
mod hardware;
#[doc(hidden)]
pub mod internals;
mod kept;
mod key;
mod key_values;
mod layout;
mod loaded;
mod options;
pub mod packages;
mod pci;
mod platform;
mod plugin;
mod chip_options;
mod profiler;
mod program;
#[cfg(feature = "fetch")]
mod progress;
pub mod raw;
mod record;
mod search;
#[rustfmt::skip]
mod sys;
mod topology;
mod value;
mod wheels;
pub mod worker;

pub use array::{Array, ArraySpec};
pub use buffer::Buffer;
pub use buffer::HostCopy;
pub use cache::{CacheUse, CompileCache};
pub use cache_dir::{user_cache_directory, user_cache_folder};
pub use chip_options::{CHIP_OPTIONS, ChipOptions};
pub use client::{Client, ClientOptions, Device, ProcessPlace};
pub use compiled::{CostAnalysis, MemoryStats, OptimizedProgram};
pub use device::{DeviceDescription, DeviceMemory};
pub use error::{Attempt, ErrorCode, PjrtError};
pub use executable::{COMPILATION, Executable, ExecuteOptions};
pub use exit::{end_process, is_ignored};
pub use foreign_calls::{CallFailure, CallOperand, CallResult, ForeignCall, ForeignFunction};
pub use hardware::{CudaDevice, CudaDriver, FoundLibrary, check_present, libraries_of};
pub use key_values::{KeyValueFailure, KeyValues};
pub use layout::{ShardBox, ShardLayout};
pub use layout::{runs, shared_runs};
pub use options::{CompileOptions, DebugValue, ProgramFormat, Span};
pub use platform::{Platform, SliceLevels};
pub use plugin::Plugin;
pub use profiler::{Profile, Profiler, ProfilerOptions};
pub use program::Parameter;
pub use search::{FindOptions, plugin_variable};
pub use topology::Topology;
pub use value::NamedValue;
pub use wheels::{Companion, Package, WHEELS, Wheel};
