//! What an op's rules see of a node, and what they may ask for. Whoever applies the rules provides it: an op knows
//! neither differentiation nor the passes above it.

mod batch;
mod emit;
mod gradient;
mod partition;

pub use batch::{BatchContext, Batched};
pub(crate) use batch::{aligned, batch_in_front};
pub use emit::{ComputationId, EmitBody, EmitCollectives, EmitContext, EmitDefinition, InstructionId};
pub use gradient::{JvpContext, VjpContext};
pub(crate) use partition::PartitionPorts;
pub use partition::{PartitionContext, Stretch};
