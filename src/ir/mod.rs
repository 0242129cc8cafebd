//! The intermediate representation: one [`Graph`] type from trace to emission.
//!
//! Architecture invariant: nothing here knows of HLO protos or of a plugin.

mod builder;
mod entities;
mod graph;
mod literal;
mod text;
mod types;
mod verify;

pub(crate) use builder::ValueMap;
pub use builder::{GraphBuilder, Values};
pub use entities::{Name, Node, Origin, Phase, Scope, Value};
pub use graph::{AxisNames, Definition, Graph, NodeRef, PortInfo};
pub use literal::{Element, Literal};
pub use text::GraphTextOptions;
pub use types::{DType, Dims, TensorType};
pub use verify::{VerifyError, verify};
