//! HLO modules: the protobuf types XLA reads, and emission of graphs as modules.

mod emit;
pub mod proto;
mod sharding;
mod writer;

pub use emit::{EmitContext, EmitOptions, EmittedModule, emit};
pub use sharding::op_sharding;
pub use writer::{ComputationId, InstructionId, element_type};
