//! Training, and the published model families.

mod families;
mod train;

use support::counts::Budget;

support::test_program!(Budget { steps: 85, modules: 25, processes: 48 });
