//! The compiler before anything is partitioned: graphs and what passes make of them, and how values are sharded.

mod compiler;
mod sharding;

use support::counts::Budget;

support::test_program!(Budget { steps: 20, modules: 51, processes: 7 });
