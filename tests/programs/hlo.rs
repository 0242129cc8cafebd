//! HLO modules, and the program `hlo-dump` that inspects them.

#[path = "../dump/mod.rs"]
mod dump;
#[path = "../hlo/mod.rs"]
mod hlo;

use support::counts::Budget;

support::test_program!(Budget { steps: 3, modules: 11, processes: 38 });
