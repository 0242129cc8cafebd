//! HLO modules: the protobuf types that XLA reads, emission of graphs as modules, and the text form.
//!
//! [`emit`] is the last step of [`lower`](crate::compile::lower). Its bytes are what a plugin compiles; decoded, they
//! print:
//!
//! ```
//! use meshloom::compile::{LowerOptions, lower};
//! use meshloom::hlo::text::{TextOptions, print};
//! # use meshloom::ir::DType::F32;
//! # use meshloom::trace::{Function, TensorSpec};
//! let function = Function::trace("double", TensorSpec::new(F32, [3]), |x| x + x)?;
//! let lowered = lower(function.graph(), &LowerOptions::default())?;
//! let text = print(&lowered.module.decode(), &TextOptions::canonical());
//! assert!(text.contains("f32[3] add("), "{text}");
//! # Ok::<(), meshloom::Error>(())
//! ```
//!
//! Architecture invariant: nothing here knows of a plugin.

pub mod analysis;
mod collective;
mod emit;
pub mod parse;
pub mod proto;
pub mod read;
mod sharding;
pub mod text;
mod wire;
mod writer;

pub use collective::{GroupFormat, device_groups};
pub use emit::{EmitContext, EmitOptions, EmittedModule, comparison_type, emit};
pub use sharding::{Annotation, op_sharding};
pub use writer::{ComputationId, InstructionId, element_type, shape};
