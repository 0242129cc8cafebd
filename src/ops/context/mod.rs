//! The contexts in which an op's rules run. The pass that applies the rules provides them: an op knows neither
//! differentiation nor the passes above it.

mod batch;
mod emit;
mod gradient;
mod import;
mod partition;

pub use batch::{BatchContext, Batched};
pub(crate) use batch::{aligned, batch_in_front};
pub use emit::{ComputationId, EmitBody, EmitCollectives, EmitContext, EmitDefinition, InstructionId};
pub use gradient::{JvpContext, VjpContext};
pub(crate) use import::Import;
pub(crate) use import::combiner;
pub use import::{ImportContext, Recognize, Recognized};
pub(in crate::ops) use import::{applied, axes, import};
pub use partition::PartitionContext;
pub(crate) use partition::{PartitionPorts, Stretch};
