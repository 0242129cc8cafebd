//! Programs on a mesh: partitioned ones, pipelines, replicas.

#[path = "../partition/mod.rs"]
mod partition;
#[path = "../transform/mod.rs"]
mod transform;

use support::counts::Budget;

support::test_program!(Budget { steps: 49, modules: 31, processes: 1 });
