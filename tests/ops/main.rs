//! Every op of the table: types, values, gradients, emitted modules. `table.rs` lists the ops, and the modules beside
//! it have what each takes, gives and must compute. `check.rs`, `batching.rs`, `facts.rs`, `factors.rs`,
//! `transforms.rs` and `partition.rs` have the checks, which are the same for all ops; `computer.rs` runs the graphs of
//! the checks.
//!
//! Each op has a test of its name, in which the interpreter computes: `cargo test --release --test ops clamp`.

mod attention;
mod batching;
mod check;
mod computer;
mod control;
mod docs;
mod elementwise;
mod factors;
mod facts;
mod fuzz;
mod gathers;
mod golden;
mod harness;
mod import;
mod kernels;
mod library;
mod moves;
mod partition;
mod reductions;
mod regions;
mod sources;
mod table;
mod text;
mod transforms;
mod windows;

use support::counts::Budget;

support::test_program!(Budget { steps: 8, modules: 100, processes: 3 });
