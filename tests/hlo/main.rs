//! HLO modules: parsing and printing them, and what the analyses say of ours and of anybody's.

mod at_once;
mod collectives;
mod cost;
mod diff;
mod foreign;
mod generated;
mod margins;
mod memory;
mod modules;
mod mutated;
mod parse;
mod partitioning;
mod pipelines;
mod presets;
mod programs;
mod stablehlo;
mod stages;
mod text;
mod traffic;
mod walk;

use support::counts::Budget;

support::test_program!(Budget { steps: 1000, modules: 10000, processes: 1000 });
