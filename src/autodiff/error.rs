//! The error of a graph that cannot be differentiated.

use crate::ir::{OpError, Origin};

/// The reason why a graph has no gradient.
#[derive(Clone, thiserror::Error)]
pub enum GradientError {
    /// An op on the way has no gradient.
    #[error(transparent)]
    Op(#[from] Box<OpError>),
    /// The first output is not a floating-point scalar.
    #[error("the value to differentiate must be a floating-point scalar, found {found}")]
    NotScalar {
        /// Type of the first output, or `nothing`.
        found: String,
        /// Where the gradient is asked for.
        origin: Origin,
    },
    /// There is no such input.
    #[error("cannot differentiate with respect to input {input} of `{graph}`, which has {count}")]
    NoInput {
        /// The input asked for.
        input: usize,
        /// Name of the graph.
        graph: String,
        /// Number of inputs it has.
        count: usize,
    },
}

meshloom_hlo::debug_is_message!(GradientError);

impl From<OpError> for GradientError {
    fn from(error: OpError) -> GradientError {
        GradientError::Op(Box::new(error))
    }
}
