//! meshloom: a Rust compiler frontend for XLA.
//!
//! A program is a closure over traced tensors. meshloom records it as a graph, differentiates the graph, shards it over
//! a device mesh by rules on logical axes, and partitions it into the program of one device with explicit collectives.
//! It emits that as an HLO module, which a PJRT plugin compiles and runs.
//!
//! ```
//! use meshloom::compile::{LowerOptions, compile};
//! use meshloom::ir::{DType::F32, Literal};
//! use meshloom::pjrt::Client;
//! use meshloom::trace::{Function, TensorSpec, value_and_grad};
//!
//! # fn main() -> Result<(), meshloom::Error> {
//! // Traced: the closure runs once, on handles that have types but no values.
//! let function = Function::trace("square", TensorSpec::new(F32, [2]), |x| value_and_grad(x, |x| x.square().sum(..)))?;
//! // Lowered and compiled for one virtual CPU device.
//! let compiled = compile(&function, &Client::cpu(1)?, &LowerOptions::default())?;
//! let (value, gradient) = compiled.call(&Literal::vector(&[3f32, 4.0]))?;
//! assert_eq!(value, Literal::scalar(25f32));
//! assert_eq!(gradient, Literal::vector(&[6f32, 8.0]));
//! # Ok(())
//! # }
//! ```
//!
//! # Data flow, left to right
//!
//! ```text
//! trace -> ir -> autodiff -> transform -> passes -> sharding -> partition -> emit -> pjrt
//! closure  Graph  Graph      Graph        Graph     Graph+specs local Graph  proto  executable
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`ir`] | The one [`Graph`](ir::Graph) type of all stages, with its builder, verifier and text form. |
//! | [`ops`] | The table of all primitives, with all rules of an op in one file. |
//! | [`autodiff`] | Reverse mode, forward mode and linear transposes, from graph to graph. |
//! | [`batching`] | `vmap`: from a graph over examples to a graph over a batch of them. |
//! | [`passes`] | Smaller graphs with the same bits; after partitioning, fewer collectives. |
//! | [`trace`] | Closures over [`Tensor`](trace::Tensor) handles become a [`Function`](trace::Function). |
//! | [`optim`] | Optimizers and learning-rate schedules. |
//! | [`transform`] | Pipelines, gradient accumulation, and replicas that synchronize now and then. |
//! | [`sharding`] | Rules from logical axes to specs, and propagation of specs. |
//! | [`partition`] | The program of one device, with its collectives and their [`Ledger`](partition::Ledger). |
//! | [`emit`] | From a graph to an `HloModuleProto`. |
//! | [`import`] | From an HLO module to a graph: the inverse. |
//! | [`compile`](mod@compile) | The order of the passes, and the way from a function to a program that runs. |
//! | [`hlo`], [`analysis`] | The crates `meshloom-hlo` and `meshloom-analysis`: HLO modules, and what they do. |
//! | [`pjrt`] | The crate `meshloom-pjrt`: plugins. |
//!
//! Attention, experts, norms, losses and whole decoders are in the crate `meshloom-nn`, which uses this one as
//! anybody's model does.
//!
//! - Until it is partitioned, a graph has global shapes and mentions no device. With specs it still means what it means
//!   on one device. After partitioning it is the same type of graph, with local shapes and explicit collectives.
//! - Emission is deterministic: the same program gives the same bytes.
//! - With GSPMD or Shardy, XLA partitions instead. `partition` is then left out, and the module says how values are
//!   sharded.
//!
//! ARCHITECTURE.md in the repository says which module may import which.
//!
//! # Errors
//!
//! Every error is a variant of [`Error`], which says whose fault it is. No input makes the library panic. A wrong
//! tensor operation poisons its result, and the caller who started the trace gets the first error with the line it came
//! from.

// A library neither panics nor prints.
#![warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

pub mod ir;
pub mod ops;
pub mod autodiff;
pub mod batching;
pub mod passes;
pub mod trace;
pub mod optim;
pub mod transform;
pub mod sharding;
pub mod partition;
pub mod emit;
pub mod import;
pub mod kernels;
pub mod verify;
pub mod compile;
#[doc(hidden)]
pub mod internals;

/// The names that most programs use: `use meshloom::prelude::*;`.
pub mod prelude {
    pub use crate::compile::{CompiledFunction, LowerOptions, compile, lower};
    pub use crate::ir::DType::{self, *};
    pub use crate::ir::Literal;
    pub use crate::optim::{AdamW, Decay, LearningRate, Muon, Sgd, clip_by_global_norm, global_norm};
    pub use crate::pjrt::{Array, Client};
    pub use crate::sharding::{Mesh, RuleSets, Rules};
    pub use crate::trace::{
        Function, Init, Key, MapTree, Param, ScanOptions, Tensor, TensorSpec, Tree, VmapOptions, arange, checkpoint,
        concatenate, cond, constant, custom_vjp, einsum, einsum_with, full, grad, initialize, iota, jvp, scan,
        scan_with, scope, stack, value_and_grad, value_and_grad_aux, vjp, vmap, vmap_with, while_loop, zeros,
    };
    pub use crate::tree;
}

pub use compile::Error;
pub use meshloom_analysis as analysis;
pub use meshloom_hlo as hlo;
pub use meshloom_pjrt as pjrt;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/hlo-dump.md")]
struct HloDump;

#[cfg(doctest)]
#[doc = include_str!("../docs/kernels.md")]
struct KernelsPage;
