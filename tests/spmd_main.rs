//! Programs on a mesh: partitioned ones, pipelines, replicas.

mod partition;
mod transform;

use support::counts::Budget;

support::test_program!(Budget { steps: 48, modules: 29, processes: 1 });
