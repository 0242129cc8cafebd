//! Training, and the published model families.

mod families;
mod train;

use support::counts::Budget;

support::test_program!(Budget { steps: 127, modules: 28, processes: 95 });
