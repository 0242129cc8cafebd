//! The program `hlo-dump`, as its users run it.

mod answers;
mod bisect;
mod command;
mod commands;
mod options;
mod quoted;
mod report;
mod traffic;
mod unpartitioned;

use support::counts::Budget;

support::test_program!(Budget { steps: 1000, modules: 10000, processes: 1000 });
