//! The plugin boundary: the runtime, and compiling ahead of time.

mod ahead_of_time;
mod foreign_calls;
mod options;
mod runtime;
mod threads;

use support::counts::Budget;

support::test_program!(Budget { steps: 1000, modules: 10000, processes: 1000 });
