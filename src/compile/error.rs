//! The error of the crate, whose variants say whose fault it is, and the errors of this module.

use std::fmt;

use meshloom_analysis::MemoryError;
use meshloom_hlo::mesh::MeshError;
use meshloom_hlo::message::counted;

use crate::ir::{InternalError, OpError, SpecError, TensorType};
use crate::partition::boxed;
use crate::trace::{TraceError, TraceErrorKind, called};
use crate::transform::diloco::DilocoError;

/// Everything that can go wrong in meshloom.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum Error {
    /// The traced program's fault: an op got operands or attributes it does not take.
    #[error(transparent)]
    Op(#[from] Box<OpError>),
    /// The traced program's fault: tensors, trees or closures were combined in a way that has no meaning.
    #[error(transparent)]
    Trace(TraceError),
    /// The caller's fault: values that do not fit a compiled program.
    #[error(transparent)]
    Arguments(#[from] Box<ArgumentError>),
    /// The caller's fault: values that do not fill a tree.
    #[error(transparent)]
    Leaves(#[from] crate::trace::LeafCountError),
    /// The caller's fault: host values that do not fill a literal.
    #[error(transparent)]
    Literal(#[from] crate::ir::LiteralError),
    /// The caller's fault: a parameter is declared with a first value that its type cannot hold.
    #[error(transparent)]
    Init(#[from] crate::trace::InitError),
    /// The rules' or the mesh's fault: they do not fit each other, or the program.
    #[error(transparent)]
    Sharding(#[from] Box<crate::sharding::ShardingError>),
    /// The caller's fault: it asks about a tensor that does not exist.
    #[error(transparent)]
    UnknownTensor(#[from] crate::sharding::UnknownTensor),
    /// The caller's fault: it asks a ledger for something that the program does not have.
    #[error(transparent)]
    Ledger(#[from] crate::partition::LedgerError),
    /// The program's fault: its memory cannot be estimated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The machine's or the plugin's fault, or arguments that do not fit a program.
    #[error(transparent)]
    Pjrt(#[from] Box<crate::pjrt::PjrtError>),
    /// The caller's fault: there can be no such DiLoCo run.
    #[error(transparent)]
    Diloco(#[from] DilocoError),
    /// The caller's fault: a pass to leave out that does not exist.
    #[error("there is no pass `{name}`{suggestion}; the passes are listed in `compile::PASSES`")]
    UnknownPass { name: String, suggestion: String },
    /// The module's fault, or a limit of meshloom: it cannot be imported.
    #[error(transparent)]
    Import(#[from] Box<crate::import::ImportError>),
    /// The program's or the specs' fault: the program of one device cannot be made.
    #[error(transparent)]
    Partition(#[from] crate::partition::PartitionError),
    /// meshloom's fault: something impossible has happened.
    #[error(transparent)]
    Internal(#[from] Box<InternalError>),
    /// meshloom's fault: a pass made a graph that breaks an invariant.
    #[error("the graph after `{pass}` is invalid, which is a defect of meshloom: {source}")]
    Verify { pass: &'static str, source: crate::ir::VerifyError },
}

meshloom_hlo::debug_is_message!(Error);

impl From<TraceError> for Error {
    fn from(error: TraceError) -> Error {
        match error.kind {
            TraceErrorKind::Op(error) => Error::Op(error),
            _ => Error::Trace(error),
        }
    }
}

impl From<MeshError> for Error {
    fn from(error: MeshError) -> Error {
        crate::sharding::ShardingError::from(error).into()
    }
}

impl From<SpecError> for Error {
    fn from(error: SpecError) -> Error {
        crate::sharding::ShardingError::from(error).into()
    }
}

boxed!(Error {
    Arguments(ArgumentError),
    Op(OpError),
    Internal(InternalError),
    Sharding(crate::sharding::ShardingError),
    Pjrt(crate::pjrt::PjrtError),
});

/// The reason why a program does not take its arguments.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum ArgumentError {
    /// The tree of the arguments is not that of the inputs.
    #[error("the {what}: expected {expected}; found {found}")]
    Tree {
        /// `inputs`, or `state` for that of a step.
        what: &'static str,
        expected: String,
        found: String,
    },
    /// A value has another type than its input.
    #[error("{} must be {expected}, found {found}", called(what, path))]
    Type {
        /// `input`, or `state` for one of a step's state.
        what: &'static str,
        /// Path of the input; empty where it is the only one.
        path: String,
        expected: TensorType,
        found: TensorType,
    },
    /// An output is to share its buffer with an input, but cannot.
    #[error(
        "`LowerOptions::aliases` has ({output}, {input}), but output {output} cannot share a buffer with input {input}: {reason}"
    )]
    Alias { output: usize, input: usize, reason: AliasProblem },
    /// An option that the function does not follow.
    #[error("`{function}` does not follow `LowerOptions::{field}`; use `{instead}`")]
    Unfollowed { function: &'static str, field: &'static str, instead: &'static str },
    /// XLA is to partition a program over processes between which its plugin has no collectives.
    #[error(
        "XLA's partitioner makes no program of {processes} processes on this platform; leave `LowerOptions::partition` at `PartitionMode::Explicit`, or run one process"
    )]
    Processes { processes: usize },
    /// There are more values than inputs, or a run has fewer.
    #[error("the program has {}, but the number of values given is {given}", counted(*.inputs, "input"))]
    Count { inputs: usize, given: usize },
}

/// The reason why an output cannot share a buffer with an input.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum AliasProblem {
    /// One of them does not exist.
    Missing { inputs: usize, outputs: usize },
    /// They have different types.
    Types { output: TensorType, input: TensorType },
    /// One of them shares its buffer already.
    Twice { output: usize, input: usize },
}

impl fmt::Display for AliasProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AliasProblem::Missing { inputs, outputs } => {
                let (inputs, outputs) = (counted(*inputs, "input"), counted(*outputs, "output"));
                write!(f, "the program has {inputs} and {outputs}")
            }
            AliasProblem::Types { output, input } => write!(f, "the output is {output}, the input {input}"),
            AliasProblem::Twice { output, input } => write!(f, "({output}, {input}) is given already"),
        }
    }
}

meshloom_hlo::debug_is_message!(ArgumentError);
