//! The error of a graph that cannot be differentiated.

use crate::ir::{OpError, Origin};

/// The reason why a graph has no gradient.
#[derive(Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum GradientError {
    /// An op on the way has no gradient.
    #[error(transparent)]
    Op(#[from] Box<OpError>),
    /// The first output is not a floating-point scalar.
    #[error("the value to differentiate must be a floating-point scalar, found {found}")]
    NotScalar {
        /// Type of the first output, or `nothing`.
        found: String,
        origin: Origin,
    },
    /// There is no such input.
    #[error("cannot differentiate with respect to input {input} of `{graph}`, which has {count}")]
    NoInput { input: usize, graph: String, count: usize },
}

meshloom_hlo::debug_is_message!(GradientError);

impl From<OpError> for GradientError {
    fn from(error: OpError) -> GradientError {
        GradientError::Op(Box::new(error))
    }
}
