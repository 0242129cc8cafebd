//! Training, and the published model families.

#[path = "../families/mod.rs"]
mod families;
#[path = "../train/mod.rs"]
mod train;

use support::counts::Budget;

support::test_program!(Budget { steps: 127, modules: 28, processes: 95 });
