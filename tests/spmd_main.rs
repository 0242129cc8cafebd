//! Programs on a mesh: partitioned ones, pipelines, replicas.

mod partition;
mod transform;

use support::counts::Budget;

support::test_program!(Budget { steps: 49, modules: 31, processes: 1 });
