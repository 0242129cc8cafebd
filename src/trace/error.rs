//! What has no meaning in a traced program.

use std::fmt;

use crate::Error;
use crate::autodiff::GradientError;
use crate::ir::{Origin, write_place};
use crate::transform::pipeline::PipelineError;

/// A meaningless combination of tensors, trees or closures in a traced program.
#[derive(Debug, Clone)]
pub struct TraceError {
    /// What is wrong and what to do.
    pub kind: TraceErrorKind,
    /// The user's source line and scope path.
    pub origin: Origin,
}

/// The kinds of [`TraceError`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TraceErrorKind {
    /// A tensor outlived the closure that it was made in.
    #[error(
        "a tensor is used outside the trace it belongs to; return it from the traced closure instead of storing it"
    )]
    Escaped,
    /// A tensor operation was called with no trace under way.
    #[error("a tensor operation needs a trace under way; call it inside the closure given to `Function::trace`")]
    NoTrace,
    /// Two trees that must have the same leaves do not.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// What was compared.
        what: String,
        /// What would be accepted.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A closure that must not capture outer tensors does.
    #[error("{construct} must not use tensors from outside its arguments; pass them as arguments")]
    Capture {
        /// The construct.
        construct: &'static str,
    },
    /// An einsum formula that cannot be read.
    #[error("einsum formula `{formula}`: {problem}")]
    Einsum {
        /// The formula.
        formula: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A pipeline that cannot be.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        write_place(f, self.origin)
    }
}

impl std::error::Error for TraceError {}

impl TraceError {
    /// An error without a known place.
    pub(crate) fn other(message: String) -> TraceError {
        TraceError { kind: TraceErrorKind::Other(message), origin: Origin::default() }
    }
}

impl From<GradientError> for Error {
    fn from(error: GradientError) -> Error {
        let (kind, origin) = match error {
            GradientError::Op(error) => return error.into(),
            GradientError::NotScalar { found, origin } => {
                let what = "the value to differentiate".to_owned();
                (TraceErrorKind::Mismatch { what, expected: "a floating-point scalar".to_owned(), found }, origin)
            }
            error @ GradientError::NoInput { .. } => (TraceErrorKind::Other(error.to_string()), Origin::default()),
        };
        TraceError { kind, origin }.into()
    }
}
