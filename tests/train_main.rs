//! Training, and the published model families.

mod families;
mod train;

use support::counts::Budget;

support::test_program!(Budget { steps: 72, modules: 23, processes: 46 });
