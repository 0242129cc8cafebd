//! HLO modules, and the program `hlo-dump` that inspects them.

mod dump;
mod hlo;
mod hostile;

use support::counts::Budget;

support::test_program!(Budget { steps: 3, modules: 11, processes: 34 });
