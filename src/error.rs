//! The crate's error type. Each variant says whose fault it is.

use crate::transform::diloco::DilocoError;

pub use crate::ir::{InternalError, OpError, TypeError};
pub use crate::trace::{TraceError, TraceErrorKind};

/// Everything that can go wrong in meshloom.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The traced program's fault: an op got operands or attributes it does not take.
    #[error(transparent)]
    Op(#[from] Box<OpError>),
    /// The traced program's fault: tensors, trees or closures were combined in a way that has no meaning.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The caller's fault: values that do not fit a compiled program.
    #[error(transparent)]
    Arguments(#[from] crate::compile::ArgumentError),
    /// The caller's fault: values that do not fill a tree.
    #[error(transparent)]
    Leaves(#[from] crate::trace::LeafCountError),
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
    /// The program's or the specs' fault: the program of one device cannot be made.
    #[error(transparent)]
    Partition(#[from] crate::partition::PartitionError),
    /// meshloom's fault: what cannot happen has happened.
    #[error(transparent)]
    Internal(#[from] Box<InternalError>),
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
    Internal(InternalError),
    Sharding(crate::sharding::ShardingError),
    Pjrt(crate::pjrt::PjrtError),
    Config(crate::train::config::ConfigError),
    Data(crate::train::data::DataError),
    Parameters(crate::train::parameters::ParameterError),
    Checkpoint(crate::train::checkpoint::CheckpointError),
    Tokenizer(crate::train::tokenizer::TokenizerError)
}
