//! Analyses of any HLO module: ours as emitted, or a compiled one, whoever made it.
//!
//! | module | what it finds |
//! |---|---|
//! | [`at_once`] | In how many collectives a device can be at once, on XLA's CPU runtime. |
//! | [`axes`] | Along which axes of a mesh the devices of a collective lie. |
//! | [`chips`] | What accelerators can do, and where that is published. |
//! | [`collectives`](mod@collectives) | Every collective, its executions, and the bytes it moves. |
//! | [`communication`](mod@communication) | What single instructions communicate. |
//! | [`cost`](mod@cost) | Operations, bytes and time on a chip, for each instruction, loop and scope. |
//! | [`devices`] | How many devices a module is for. |
//! | [`diff`](mod@diff) | What changed between two modules, by meaning. |
//! | [`estimate`](mod@estimate) | How long a step takes, before anything is compiled. |
//! | [`explain`] | Where a value's sharding is stated. |
//! | [`given`] | What each device runs, and when some inputs are known: which branch a step takes when its counter is `n`. |
//! | [`measured`] | What a profile measured: the time of each instruction. |
//! | [`memory`](mod@memory) | Arguments, outputs and temporaries; the peak and what is live at it; the curve. |
//! | [`overlap`](mod@overlap) | Which transfers a compiled schedule hides beside compute. |
//! | [`partitioning`] | Whether XLA has yet to partition the module. |
//! | [`pipelines`](mod@pipelines) | Which loops are pipelines, and what each stage does when. |
//! | [`scopes`] | The module as a graph of its scopes. |
//! | [`shardings`](mod@shardings) | How values are split, as stated by the module. |
//! | [`slices`] | Transfers between TPU slices, through the host. |
//! | [`traffic`](mod@traffic) | What crosses an axis at each step. |
//! | [`trip_count`] | How often a loop runs. |
//! | [`walk`] | Each instruction that the module runs, how often, and what is around it. |

pub mod at_once;
pub mod axes;
pub mod chips;
pub mod collectives;
pub mod communication;
pub mod cost;
mod device_walk;
pub mod devices;
pub mod diff;
mod elements;
pub mod estimate;
pub mod explain;
mod fused;
pub mod given;
mod index;
pub mod measured;
pub mod memory;
mod moves;
pub mod overlap;
pub mod partitioning;
pub mod pipelines;
pub mod scopes;
pub mod shardings;
mod sites;
mod size;
pub mod slices;
pub mod traffic;
pub mod trip_count;
mod values;
pub mod walk;

pub use at_once::collectives_at_once;
pub use axes::{AxisPart, PairAxes, Strides, mesh_of, pair_axes};
pub use chips::{Arithmetic, CHIPS, Chip, UnknownChip, chip_of_kind};
pub use collectives::{Conditional, ModuleCollective, ModuleCollectives, Together, collectives, collectives_of_walk};
pub use communication::{Communication, communication};
pub use cost::{CostOptions, ModuleCost, Work, cost, cost_of_walk};
pub use device_walk::DeviceWalk;
pub use devices::{Devices, device_count};
pub use diff::{CollectiveChange, ModuleDiff, NameChange, Occurrence, OpChange, diff};
pub use estimate::{EstimateError, Hardware, StepTime, TransferTime, UnknownRate, estimate, estimate_walk};
pub use explain::{StatedFrom, TracedStep, UnknownValue, trace_sharding};
pub use given::{Given, KnownInput};
pub use measured::{Measured, MeasuredInstruction, longest_program};
pub use memory::{
    BufferKind, CurvePoint, LiveBuffer, MemoryError, MemoryForm, ModuleMemory, memory, memory_of_assignment,
    memory_of_dump, memory_of_walk,
};
pub use overlap::{CollectiveOverlap, Hidden, ModuleOverlap, OverlapError, overlap};
pub use partitioning::Partitioning;
pub use pipelines::{Pipeline, PipelineLoop, pipelines};
pub use scopes::{ScopeEdge, ScopeGraph, ScopeNode, scope_graph};
pub use shardings::{ShardedValue, ValueKind, shardings};
pub use slices::{SliceTransfer, communication_of, slice_count};
pub use traffic::{StepTraffic, Traffic, counter_names, step_inputs, traffic};
pub use walk::{Caller, PathStep, Place, Step, Via, Walk};
