//! meshloom: a Rust compiler frontend for XLA.
//!
//! A program is an ordinary closure over traced tensors. meshloom records it as a graph, differentiates the graph, shards
//! it over a device mesh by named-axis rules, partitions it into the program of one device with explicit collectives, and
//! emits an HLO module that a PJRT plugin compiles and runs.
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
//! trace -> ir -> autodiff -> transform -> passes -> sharding -> partition -> hlo -> pjrt
//! closure  Graph  Graph      Graph        Graph     Graph+specs local Graph  proto  executable
//! ```
//!
//! | module | what happens there |
//! |---|---|
//! | [`trace`] | A closure over [`Tensor`](trace::Tensor) handles becomes a [`Function`](trace::Function): a graph with the trees of its inputs and outputs. Every node keeps the user's source line and scope. |
//! | [`ir`] | The one [`Graph`](ir::Graph) type of all stages, with its builder, verifier and text form. |
//! | [`ops`] | The table of all primitives: typing rule, gradient rule and HLO of an op in one place. |
//! | [`autodiff`] | Reverse mode, forward mode and linear transposes, from graph to graph. Tracing calls it where a closure asks for a gradient. |
//! | [`batching`] | `vmap`: from a graph over examples to one over a batch of them. |
//! | [`transform`] | How a model runs: a layer stack as a pipeline, with a backward pass of its own; a batch in parts; replicas that sync now and then. Tracing calls it, as it does autodiff. |
//! | [`passes`] | Constants, identities, loops, common subexpressions, dead code: smaller graphs with the same bits. After partitioning: fewer collectives. |
//! | [`sharding`] | Meshes, specs, and rules from logical axis names to mesh axes. Names become the specs of ports and named values, and propagation gives every other value one. |
//! | [`partition`] | From global shapes to the program of one device: local shapes and explicit collectives. The [`Ledger`](partition::Ledger) of what moves, and what a device needs of memory. |
//! | [`hlo`] | Emission as an `HloModuleProto`, HLO's text form, and what can be read off any module. |
//! | [`pjrt`] | Finds plugins, compiles modules, moves values, runs programs. |
//! | [`compile`](mod@compile) | The order of the passes, and the way from a graph or function to a program that runs. |
//! | [`nn`], [`optim`], [`train`] | Decoder parts, optimizers, and training runs: ordinary users of all of the above. |
//!
//! Two things hold along the way. Until it is partitioned, a graph has global shapes: none mentions a device, and with
//! specs it still means what it means on one device. After that it is the same type of graph, of local shapes. And the
//! same program gives the same bytes: emission is deterministic. With GSPMD or Shardy, XLA partitions instead: then
//! `partition` is left out, and the module says how values are sharded.
//!
//! # Who may know whom
//!
//! A module depends on those to the left of it, with one exception: [`ops`] sees [`ir`] and [`sharding`], the contexts of
//! [`autodiff`]'s and [`partition`]'s rules and [`hlo`]'s writer, so that all rules of an op stand together. In return, `autodiff` and `hlo`
//! know ops by these rules alone, except those with regions (scan, while, cond, call, checkpoint, custom VJP), which each
//! of them treats by name. A port of a graph holds a spec, so `ir` names the types of [`sharding`]; it does nothing with them.
//! Only [`pjrt`] contains `unsafe` code, and only [`train`] knows the run config.
//!
//! # Errors
//!
//! All are variants of [`Error`], which says whose fault each is. No input makes the library panic: a wrong tensor
//! operation poisons its result, and whoever started the trace gets the first error with the line it came from.

// A library neither panics nor prints. Its unit tests, examples and benches may.
#![cfg_attr(
    not(test),
    warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)
)]

pub mod ir;
pub mod ops;
pub mod autodiff;
pub mod batching;
pub mod passes;
pub mod trace;
pub mod optim;
pub mod transform;
pub mod nn;
pub mod sharding;
pub mod partition;
pub mod emit;
pub mod compile;

pub use compile::Error;
pub use meshloom_hlo as hlo;
pub use meshloom_pjrt as pjrt;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/hlo-dump.md")]
struct HloDump;
