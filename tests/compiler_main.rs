//! Modules of one program: the compiler before anything is sharded, and shardings.

mod compiler;
mod sharding;

use support::counts::Budget;

support::test_program!(Budget { steps: 20, modules: 51, processes: 7 });
