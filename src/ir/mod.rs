//! The intermediate representation: one [`Graph`] type from trace to emission.
//!
//! A graph is a list of nodes in the order of data flow. A node applies an [`Op`](crate::ops::Op) to values and makes values;
//! each [`Value`] has a [`TensorType`]. Inputs and outputs carry [`PortInfo`]: path, axis names, role and, once sharded, a
//! spec. Loop bodies and called functions are graphs of their own, held by their op, and closed: whatever a body needs
//! from outside is an operand.
//!
//! A graph prints; bodies follow it under the names `@0`, `@1`, ...:
//!
//! ```
//! # use meshloom::ir::DType::F32;
//! # use meshloom::trace::{Function, TensorSpec};
//! let function = Function::trace("half_square", TensorSpec::new(F32, [3]), |x| x * x * 0.5)?;
//! let text = function.graph().to_string();
//! assert!(text.contains("%1 = multiply %0, %0"), "{text}");
//! # Ok::<(), meshloom::Error>(())
//! ```
//!
//! Architecture invariant: nothing here knows of HLO protos or of a plugin.

mod builder;
mod copy;
mod entities;
mod error;
mod graph;
mod spec;
mod text;
mod verify;

pub(crate) use builder::ValueMap;
pub use builder::{GraphBuilder, Values};
pub(crate) use copy::{BodyCache, GraphCopy};
pub use entities::{Name, Node, Origin, Phase, Scope, Value};
pub(crate) use error::write_place;
pub use error::{InternalError, OpError, TypeError};
pub use graph::{AxisNames, Definition, Graph, NodeRef, PortInfo};
pub use meshloom_hlo::{DType, Dims, Element, F8E4M3FN, F8E5M2, Literal, S4, TensorType, U4};
pub use spec::{Axes, Role, Spec, SpecDisplay, SpecError};
pub use text::GraphTextOptions;
pub use verify::{VerifyError, verify};
