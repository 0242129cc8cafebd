#![doc = include_str!("../README.md")]
// A library neither panics nor prints.
#![warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod amount;
pub mod concurrent_collectives;
pub mod axes;
pub mod chips;
pub mod collectives;
pub mod communication;
pub mod cost;
mod custom_collectives;
mod device_walk;
pub mod devices;
pub mod diff;
mod elements;
pub mod estimate;
pub mod explain;
mod fused;
pub mod executions;
mod index;
mod manual;
#[doc(hidden)]
pub mod internals;
pub mod measured;
pub mod memory;
mod host_transfers;
pub mod overlap;
pub mod partitioning;
pub mod pipelines;
pub mod redact;
pub mod scopes;
pub mod shardings;
pub mod shrink;
mod async_collectives;
#[cfg(feature = "schema")]
mod schema;
mod size;
pub mod sliced_whole;
pub mod megascale;
pub mod traffic;
pub mod trip_count;
mod values;
pub mod walk;

pub use amount::{Amount, Bounds, Branch, sum};
pub use axes::{AxisPart, PairAxes, Strides, mesh_of, pair_axes};
pub use chips::{Arithmetic, CHIPS, Chip, UnknownChip, chip_of_kind};
pub use collectives::{
    Conditional, ModuleCollective, ModuleCollectives, Together, UncountedCall, collectives, collectives_of_walk,
};
pub use communication::{Communication, communication};
pub use concurrent_collectives::collectives_at_once;
pub use cost::{CostOptions, ModuleCost, Work, cost, cost_of_walk};
pub use device_walk::DeviceWalk;
pub use devices::{Devices, device_count};
pub use diff::{CollectiveChange, ModuleDiff, NameChange, Occurrence, OpChange, diff};
pub use estimate::{EstimateError, Hardware, StepTime, TransferTime, UnknownRate, estimate, estimate_walk};
pub use executions::{DeviceExecutions, KnownInput};
pub use explain::{StatedFrom, TracedStep, UnknownValue, trace_sharding};
pub use measured::{Measured, MeasuredInstruction, ProfiledEvent, ProfiledLane, longest_program, profiled_lanes};
pub use megascale::{SliceTransfer, communication_of, slice_count};
pub use memory::{
    BufferKind, CurvePoint, LiveBuffer, MemoryError, MemoryForm, ModuleMemory, OtherSpace, memory,
    memory_of_assignment, memory_of_dump, memory_of_walk,
};
pub use overlap::{
    CollectiveOverlap, Hidden, HostCopyOverlap, ModuleOverlap, OverlapError, overlap, overlap_with_events,
};
pub use partitioning::{Partitioning, has_local_shapes};
pub use pipelines::{Pipeline, PipelineLoop, pipelines};
pub use redact::Redaction;
pub use scopes::{ScopeEdge, ScopeGraph, ScopeNode, scope_graph};
pub use shardings::{ShardedValue, ValueKind, shardings};
pub use sliced_whole::{SlicedWhole, WholeBy, sliced_wholes};
pub use traffic::{StepTraffic, Traffic, counter_names, step_inputs, traffic};
pub use walk::{Caller, PathStep, Place, Step, Via, Walk};
