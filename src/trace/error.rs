//! Errors of traced programs.

use std::fmt;
use std::sync::Arc;

use crate::autodiff::GradientError;
use crate::ir::{DType, OpError, Origin, TensorType, write_place};
use meshloom_hlo::message::listed;

/// An error in a traced program: an op that refuses its operands, or a combination of tensors, trees or closures that
/// has no meaning.
#[derive(Clone)]
pub struct TraceError {
    /// The fault, and its remedy.
    pub kind: TraceErrorKind,
    /// The user's source line and scope path.
    pub origin: Origin,
}

meshloom_hlo::debug_is_message!(TraceError);

/// The kinds of [`TraceError`].
#[derive(Clone, PartialEq, thiserror::Error)]
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
        /// The things that were compared.
        what: String,
        /// The form that would be accepted.
        expected: String,
        /// The form that was given.
        found: String,
    },
    /// A closure that must not capture outer tensors does.
    #[error("{construct} must not use tensors from outside its arguments; pass them as arguments")]
    Capture {
        /// The construct.
        construct: &'static str,
    },
    /// A Rust number that the element type of a tensor cannot hold.
    #[error("{dtype} cannot hold the number {}; {}", number_text(*.number), advice(*.dtype))]
    Number {
        /// The number.
        number: f64,
        /// The element type.
        dtype: DType,
    },
    /// An einsum formula that cannot be read.
    #[error("einsum formula `{formula}`: {problem}")]
    Einsum {
        /// The formula.
        formula: String,
        /// The fault in the formula.
        problem: String,
    },
    /// An op refuses its operands.
    #[error(transparent)]
    Op(Box<OpError>),
    /// A transform refuses its arguments.
    #[error(transparent)]
    Transform(TransformError),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// A first value that a parameter's type cannot hold.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum InitError {
    /// The number that all elements should have.
    #[error("{} is {ty}, which cannot hold its first value {}; declare another type or value", called("parameter", path), number_text(*.number))]
    Constant {
        /// Path of the parameter; empty where it is the only one.
        path: String,
        /// Its type.
        ty: TensorType,
        /// The number.
        number: f64,
    },
    /// Random numbers of this standard deviation.
    #[error("{} is {ty}, which cannot hold normally distributed numbers of standard deviation {}; declare a floating-point type, and a deviation that is not negative, and a third of the largest number at most", called("parameter", path), number_text(*.deviation))]
    Normal {
        /// Path of the parameter; empty where it is the only one.
        path: String,
        /// Its type.
        ty: TensorType,
        /// The standard deviation.
        deviation: f64,
    },
}

meshloom_hlo::debug_is_message!(InitError);

/// Names a leaf in a message: ``input `layers.0.wq` ``; `the input` where it is the whole tree, whose path is empty.
pub(crate) fn called(what: &str, path: &str) -> String {
    if path.is_empty() { format!("the {what}") } else { format!("{what} `{path}`") }
}

/// Names the leaves of a tree in a message, by their paths: ``the leaves `0` and `1` ``.
pub(crate) fn called_all(paths: &[String]) -> String {
    match paths {
        [path] if path.is_empty() => "one leaf that is the whole tree".to_owned(),
        paths => listed("leaf", &paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>()),
    }
}

/// A number in a message: with an exponent where it would have many digits.
fn number_text(number: f64) -> String {
    let many = number.is_finite() && number != 0.0 && !(1e-5..1e16).contains(&number.abs());
    if many { format!("{number:e}") } else { number.to_string() }
}

/// The remedy for a number that does not fit.
fn advice(dtype: DType) -> &'static str {
    if dtype.is_float() {
        "use a wider element type (convert a tensor by `.convert(..)` first)"
    } else {
        "use an element type that can (convert a tensor by `x.convert(F32)` first)"
    }
}
meshloom_hlo::debug_is_message!(TraceErrorKind);

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match self.kind {
            // The op's message ends with the place.
            TraceErrorKind::Op(_) => Ok(()),
            _ => write_place(f, self.origin),
        }
    }
}

impl std::error::Error for TraceError {}

impl TraceError {
    /// An error without a known place.
    pub(crate) fn other(message: String) -> TraceError {
        TraceErrorKind::Other(message).into()
    }
}

/// Makes an error without a place.
impl From<TraceErrorKind> for TraceError {
    fn from(kind: TraceErrorKind) -> TraceError {
        TraceError { kind, origin: Origin::default() }
    }
}

impl From<OpError> for TraceError {
    fn from(error: OpError) -> TraceError {
        TraceError { origin: error.origin, kind: TraceErrorKind::Op(Box::new(error)) }
    }
}

impl From<Box<OpError>> for TraceError {
    fn from(error: Box<OpError>) -> TraceError {
        TraceError { origin: error.origin, kind: TraceErrorKind::Op(error) }
    }
}

impl From<GradientError> for TraceError {
    fn from(error: GradientError) -> TraceError {
        let (kind, origin) = match error {
            GradientError::Op(error) => return error.into(),
            GradientError::NotScalar { found, origin } => {
                let what = "the value to differentiate".to_owned();
                (TraceErrorKind::Mismatch { what, expected: "a floating-point scalar".to_owned(), found }, origin)
            }
            error @ GradientError::NoInput { .. } => (TraceErrorKind::Other(error.to_string()), Origin::default()),
        };
        TraceError { kind, origin }
    }
}

/// The error of a transform that stands above tracing, such as a pipeline.
#[derive(Clone)]
pub struct TransformError(Arc<dyn std::error::Error + Send + Sync>);

meshloom_hlo::debug_is_message!(TransformError);

impl TransformError {
    /// Wraps the transform's own error.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> TransformError {
        TransformError(Arc::new(error))
    }

    /// The transform's own error, if it is of this type.
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Display for TransformError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for TransformError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl PartialEq for TransformError {
    fn eq(&self, other: &TransformError) -> bool {
        self.to_string() == other.to_string()
    }
}
