//! Modules of one program: the compiler before anything is sharded, and shardings.

#[path = "../compiler/mod.rs"]
mod compiler;
#[path = "../sharding/mod.rs"]
mod sharding;

use support::counts::Budget;

support::test_program!(Budget { steps: 20, modules: 51, processes: 7 });
