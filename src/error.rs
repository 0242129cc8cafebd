//! The crate's error type. Each variant says whose fault it is.

use crate::transform::diloco::DilocoError;

use meshloom_hlo::mesh::MeshError;

pub use crate::ir::{OpError, SpecError, TypeError};
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

boxed! {
    Op(OpError),
    Sharding(crate::sharding::ShardingError),
    Pjrt(crate::pjrt::PjrtError)
}
