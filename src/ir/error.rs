//! The errors of ops that refuse their operands, with their place in the user's program.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use super::{DType, Origin, TensorType};
use meshloom_hlo::message::counted;

/// The reason why an op refuses its operands.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum TypeError {
    /// The number of operands is wrong.
    #[error("expected {}, found {found}", counted(*.expected, "operand"))]
    OperandCount { expected: usize, found: usize },
    /// Two operands that must have one element type have two.
    #[error("the element type of operand {operand} must be {expected}, found {found}; convert it with `.convert(..)`")]
    DType { operand: usize, expected: String, found: DType },
    /// An operand has the wrong number of dimensions.
    #[error("operand {operand} must have {expected} {}, found {found}", if expected.rsplit(' ').next() == Some("1") { "dimension" } else { "dimensions" })]
    Rank { operand: usize, expected: String, found: usize },
    /// Two sizes that must agree do not.
    #[error("dimension {dim} of operand {operand} must have size {expected}, found {found}")]
    Size { operand: usize, dim: usize, expected: usize, found: usize },
    /// The operand does not have this axis, or the axis is given twice.
    #[error("axis {axis} is out of range or repeated for an operand with {}", counted(*.rank, "dimension"))]
    Axis { axis: i64, rank: usize },
    /// An attribute does not fit the operands.
    #[error("{0}")]
    Attribute(String),
    /// The op has no gradient.
    #[error("it is not differentiable; wrap its operand in `stop_gradient` if no gradient should flow through it")]
    NotDifferentiable,
    /// The op has a derivative in forward mode only.
    #[error(
        "it has no gradient in reverse mode, as it is not known before how often it runs; use a `scan` over the largest \
         number of iterations there may be, or `stop_gradient` on what enters the loop"
    )]
    NotReversible,
    /// The op makes a function that is to be transposed nonlinear.
    #[error("a function that is not linear in its inputs has no transpose: {0}")]
    NotLinear(&'static str),
    /// The op has no batching rule.
    #[error("it has no batching rule; apply it in a scan over the batch")]
    NotBatchable,
    /// The error is a defect of meshloom, not of the op.
    #[error(transparent)]
    Internal(#[from] Box<InternalError>),
}

meshloom_hlo::debug_is_message!(TypeError);

/// A defect of meshloom: something happened that cannot happen. The error stands in the place of a value that would
/// have to be made up.
#[derive(Clone, PartialEq)]
pub struct InternalError {
    /// The op, value or function that it is about.
    pub subject: String,
    /// The state that should have held.
    pub expected: String,
    /// The user's source line and scope path, where known.
    pub origin: Origin,
    /// The line of meshloom that found it.
    pub found_at: &'static Location<'static>,
}

meshloom_hlo::debug_is_message!(InternalError);

impl InternalError {
    /// Creates an error about `subject`, found by the caller.
    #[track_caller]
    pub fn new(subject: impl fmt::Display, expected: impl fmt::Display) -> InternalError {
        InternalError {
            subject: subject.to_string(),
            expected: expected.to_string(),
            origin: Origin::default(),
            found_at: Location::caller(),
        }
    }

    /// Returns the error with the place in the user's program.
    #[must_use]
    pub fn at(self, origin: Origin) -> InternalError {
        InternalError { origin, ..self }
    }
}

impl fmt::Display for InternalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InternalError { subject, expected, origin, found_at } = self;
        write!(f, "internal error at {}:{}: `{subject}`", found_at.file(), found_at.line())?;
        write_place(f, *origin)?;
        write!(
            f,
            ": expected {expected}; this is a defect of meshloom, please report it with the program that shows it"
        )
    }
}

impl std::error::Error for InternalError {}

/// An op that refuses its operands, with everything needed to find the call.
#[derive(Clone, PartialEq)]
pub struct OpError {
    /// Name of the op.
    pub op: &'static str,
    /// The reason.
    pub error: TypeError,
    /// Type of each operand, and its path if it is an input of the traced function or a slice of one.
    pub operands: Vec<(TensorType, Option<Arc<str>>)>,
    /// The user's source line and scope path.
    pub origin: Origin,
}

meshloom_hlo::debug_is_message!(OpError);

impl OpError {
    pub(crate) fn new(op: &'static str, error: TypeError, operands: Vec<TensorType>, origin: Origin) -> OpError {
        OpError { op, error, operands: operands.into_iter().map(|ty| (ty, None)).collect(), origin }
    }
}

impl From<InternalError> for OpError {
    fn from(error: InternalError) -> OpError {
        let origin = error.origin;
        OpError { op: "", error: TypeError::Internal(Box::new(error)), operands: Vec::new(), origin }
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let TypeError::Internal(error) = &self.error {
            return error.fmt(f);
        }
        write!(f, "{}(", self.op)?;
        for (index, (ty, path)) in self.operands.iter().enumerate() {
            write!(f, "{}{ty}", if index > 0 { ", " } else { "" })?;
            if let Some(path) = path {
                write!(f, " {path:?}")?;
            }
        }
        write!(f, "): {}", self.error)?;
        write_place(f, self.origin)
    }
}

// The source is part of the message already, so it is not offered a second time through `source()`.
impl std::error::Error for OpError {}

/// Writes ` (in SCOPE, at FILE:LINE:COLUMN)`, as far as known.
pub(crate) fn write_place(f: &mut fmt::Formatter<'_>, origin: Origin) -> fmt::Result {
    let scope = origin.scope.path();
    match (scope.is_empty(), origin.place) {
        (true, None) => Ok(()),
        (false, None) => write!(f, " (in {scope})"),
        (true, Some(place)) => write!(f, " (at {place})"),
        (false, Some(place)) => write!(f, " (in {scope}, at {place})"),
    }
}
