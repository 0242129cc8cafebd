//! HLO modules: the protobuf types that XLA reads, emission of graphs as modules, and the text form.

mod emit;
pub mod proto;
mod sharding;
pub mod text;
mod writer;

pub use emit::{EmitContext, EmitOptions, EmittedModule, emit};
pub use sharding::op_sharding;
pub use writer::{ComputationId, InstructionId, element_type};
