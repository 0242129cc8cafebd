//! Programs on a mesh: partitioned ones, pipelines, replicas.

mod partition;
mod transform;

use support::counts::Budget;

support::test_program!(Budget { steps: 43, modules: 26, processes: 1 });
