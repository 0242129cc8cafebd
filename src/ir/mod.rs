//! The intermediate representation: one [`Graph`] type from trace to emission.
//!
//! A graph is a list of nodes in the order of data flow. A node applies an [`Op`](crate::ops::Op) to values and makes
//! values; each [`Value`] has a [`TensorType`]. Inputs and outputs carry [`PortInfo`]: path, axis names, role and, once
//! sharded, a spec. Loop bodies and called functions are graphs of their own, held by their op, and closed: whatever a
//! body needs from outside is an operand.
//!
//! A graph prints as text, which reads back as an equal graph; bodies follow it under the names `@0`, `@1`, ...:
//!
//! ```
//! # use meshloom::ir::Graph;
//! # use meshloom::ir::DType::F32;
//! # use meshloom::trace::{Function, TensorSpec};
//! let function = Function::trace("half_square", TensorSpec::new(F32, [3]), |x| x * x * 0.5)?;
//! let text = function.graph().to_string();
//! assert!(text.contains("%1 = multiply %0, %0"), "{text}");
//! assert_eq!(Graph::from_text(&text)?, **function.graph());
//!
//! // An error in a text is reported with its place.
//! let error = Graph::from_text("f(%0: f32[3]) {\n  %1 = cosin %0 : f32[3]\n  return %1\n}\n").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "line 2, column 8: there is no op `cosin` (did you mean \"cosine\"?)\n    %1 = cosin %0 : f32[3]\n         ^"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Architecture invariant: nothing here knows of HLO protos or of a plugin.

mod axis_set;
mod builder;
mod copy;
mod entities;
mod equality;
mod error;
mod graph;
mod spec;
mod text;
mod verify;

pub(crate) use axis_set::AxisSet;
pub(crate) use builder::ValueMap;
pub use builder::{GraphBuilder, Values};
pub(crate) use copy::{BodyCache, GraphCopy, Memo};
pub use entities::{Name, Node, Origin, Phase, Scope, UserLine, Value};
pub(crate) use error::write_place;
pub use error::{InternalError, OpError, TypeError};
pub use graph::{AxisNames, Definition, Graph, NodeRef, PortInfo};
pub use meshloom_hlo::{DType, Dims, Element, F8E4M3FN, F8E5M2, Literal, LiteralError, S4, TensorType, U4};
pub use spec::{Axes, Role, Spec, SpecDisplay, SpecError};
pub(crate) use text::{Attribute, Attributes, OpReader, OpText, Printer, Reader, attributes, op_text, word_attribute};
pub use text::{GraphTextError, GraphTextOptions, OpName};
pub use verify::{VerifyError, verify};
