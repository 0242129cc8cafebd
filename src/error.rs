//! The crate's error type. Each variant says whose fault it is.

use std::fmt;
use std::sync::Arc;

use crate::ir::{Origin, TensorType};
use crate::transform::diloco::DilocoError;
use crate::transform::pipeline::PipelineError;

/// Everything that can go wrong in meshloom.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The traced program's fault: an op got operands or attributes it does not take.
    #[error(transparent)]
    Op(#[from] Box<OpError>),
    /// The traced program's fault: tensors, trees or closures were combined in a way that has no meaning.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The rules' or the mesh's fault: they do not fit each other, or the program.
    #[error(transparent)]
    Sharding(#[from] Box<crate::sharding::ShardingError>),
    /// The caller's fault: it asks about a tensor that there is not.
    #[error(transparent)]
    UnknownTensor(#[from] crate::sharding::UnknownTensor),
    /// The caller's fault: it asks a ledger for what the program does not have.
    #[error(transparent)]
    Ledger(#[from] crate::partition::LedgerError),
    /// The machine's or the plugin's fault, or arguments that do not fit a program.
    #[error(transparent)]
    Pjrt(#[from] Box<crate::pjrt::PjrtError>),
    /// The run config's fault.
    #[error(transparent)]
    Config(#[from] Box<crate::train::config::ConfigError>),
    /// The training text's fault.
    #[error(transparent)]
    Data(#[from] Box<crate::train::data::DataError>),
    /// The parameter file's fault.
    #[error(transparent)]
    Parameters(#[from] Box<crate::train::parameters::ParameterError>),
    /// The checkpoint's fault, or that of the run that asks for it.
    #[error(transparent)]
    Checkpoint(#[from] Box<crate::train::checkpoint::CheckpointError>),
    /// The tokenizer file's fault.
    #[error(transparent)]
    Tokenizer(#[from] Box<crate::train::tokenizer::TokenizerError>),
    /// The metrics file could not be written.
    #[error(transparent)]
    Metrics(#[from] crate::train::metrics::MetricsError),
    /// The machine's fault, or ours: what all replicas should have alike differs.
    #[error(transparent)]
    Replicas(#[from] crate::train::diloco::ReplicasDiffer),
    /// The caller's fault: there can be no such DiLoCo run.
    #[error(transparent)]
    Diloco(#[from] DilocoError),
    /// The caller's fault: a pass to leave out that does not exist.
    #[error("there is no pass `{name}`{suggestion}; the passes are listed in `compile::PASSES`")]
    UnknownPass {
        /// The name given.
        name: String,
        /// A name that is near, if any.
        suggestion: String,
    },
    /// The program's fault, where replication is denied: an op cannot work on the parts of a value.
    #[error(
        "{}; split another dimension, or set partition.replication = \"warn\" to let every device hold the whole",
        .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    Replication(Vec<crate::partition::Fallback>),
    /// meshloom's fault: a pass made a graph that breaks an invariant.
    #[error("the graph after `{pass}` is invalid, which is a defect of meshloom: {source}")]
    Verify {
        /// Name of the pass.
        pass: &'static str,
        /// What is broken.
        source: crate::ir::VerifyError,
    },
}

macro_rules! boxed {
    ($($variant:ident($error:ty)),*) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::$variant(Box::new(error))
            }
        }
    )*};
}

boxed! {
    Op(OpError),
    Sharding(crate::sharding::ShardingError),
    Pjrt(crate::pjrt::PjrtError),
    Config(crate::train::config::ConfigError),
    Data(crate::train::data::DataError),
    Parameters(crate::train::parameters::ParameterError),
    Checkpoint(crate::train::checkpoint::CheckpointError),
    Tokenizer(crate::train::tokenizer::TokenizerError)
}

/// Why an op refuses its operands.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TypeError {
    /// Wrong number of operands.
    #[error("expected {expected} operands, found {found}")]
    OperandCount {
        /// Number the op takes.
        expected: usize,
        /// Number it got.
        found: usize,
    },
    /// Two operands that must have one element type have two.
    #[error("operand {operand} must have element type {expected}, found {found}; convert it with `.convert(..)`")]
    DType {
        /// Index of the operand.
        operand: usize,
        /// What would be accepted.
        expected: String,
        /// What was given.
        found: crate::ir::DType,
    },
    /// An operand has the wrong number of dimensions.
    #[error("operand {operand} must have {expected} dimensions, found {found}")]
    Rank {
        /// Index of the operand.
        operand: usize,
        /// What would be accepted.
        expected: String,
        /// What was given.
        found: usize,
    },
    /// Two sizes that must agree do not.
    #[error("dimension {dim} of operand {operand} must have size {expected}, found {found}")]
    Size {
        /// Index of the operand.
        operand: usize,
        /// Dimension of that operand.
        dim: usize,
        /// What would be accepted.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// An axis number that the operand does not have, or that is given twice.
    #[error("axis {axis} is out of range or repeated for an operand with {rank} dimensions")]
    Axis {
        /// The axis.
        axis: i64,
        /// Dimensions the operand has.
        rank: usize,
    },
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
}

/// An op that refuses its operands, with everything needed to find the call.
#[derive(Debug, Clone)]
pub struct OpError {
    /// Name of the op.
    pub op: &'static str,
    /// Why.
    pub error: TypeError,
    /// Type of each operand, and its path if it is an input of the traced function or a slice of one.
    pub operands: Vec<(TensorType, Option<Arc<str>>)>,
    /// The user's source line and scope path.
    pub origin: Origin,
}

impl OpError {
    pub(crate) fn new(op: &'static str, error: TypeError, operands: Vec<TensorType>, origin: Origin) -> OpError {
        OpError { op, error, operands: operands.into_iter().map(|ty| (ty, None)).collect(), origin }
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    pub(crate) fn other(message: String) -> Error {
        TraceError { kind: TraceErrorKind::Other(message), origin: Origin::default() }.into()
    }
}

/// Writes ` (in SCOPE, at FILE:LINE:COLUMN)`, as far as known.
pub(crate) fn write_place(f: &mut fmt::Formatter<'_>, origin: Origin) -> fmt::Result {
    let scope = origin.scope.path();
    match (scope.is_empty(), origin.location) {
        (true, None) => Ok(()),
        (false, None) => write!(f, " (in {scope})"),
        (true, Some(location)) => write!(f, " (at {location})"),
        (false, Some(location)) => write!(f, " (in {scope}, at {location})"),
    }
}
