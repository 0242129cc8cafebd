//! The intermediate representation: one `Graph` type from trace to emission.

mod literal;
mod types;

pub use literal::{Element, Literal};
pub use types::{DType, Dims, TensorType};
