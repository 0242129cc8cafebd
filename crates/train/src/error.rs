//! The error type of training. Each variant says whose fault it is.

use meshloom::hlo::mesh::MeshError;
use meshloom::ir::{OpError, SpecError};
use meshloom::pjrt::{ErrorCode, PjrtError};
use meshloom::sharding::ShardingError;

/// Everything that can go wrong in a training run.
#[derive(thiserror::Error)]
pub enum Error {
    /// The compiler's, the program's or the plugin's.
    #[error(transparent)]
    Compiler(#[from] meshloom::Error),
    /// The plugin's, or the machine's: a step did not end well.
    #[error("step {step}: {source}{}", advice(.source))]
    Step {
        /// The step, from 1.
        step: u64,
        /// What went wrong.
        source: Box<meshloom::Error>,
    },
    /// The run config's fault.
    #[error(transparent)]
    Config(#[from] Box<crate::config::ConfigError>),
    /// The training text's fault.
    #[error(transparent)]
    Data(#[from] Box<crate::data::DataError>),
    /// The parameter file's fault.
    #[error(transparent)]
    Parameters(#[from] Box<crate::parameters::ParameterError>),
    /// The checkpoint's fault, or that of the run that asks for it.
    #[error(transparent)]
    Checkpoint(#[from] Box<crate::checkpoint::CheckpointError>),
    /// The tokenizer file's fault.
    #[error(transparent)]
    Tokenizer(#[from] Box<crate::tokenizer::TokenizerError>),
    /// The metrics file could not be written.
    #[error(transparent)]
    Metrics(#[from] crate::metrics::MetricsError),
    /// The machine's fault, or ours: what all replicas should have alike differs.
    #[error(transparent)]
    Replicas(#[from] crate::diloco::ReplicasDiffer),
}

meshloom::hlo::debug_is_message!(Error);

/// What to do about a step that failed, where the config has keys for it.
fn advice(error: &meshloom::Error) -> &'static str {
    let meshloom::Error::Pjrt(error) = error else { return "" };
    match &**error {
        PjrtError::TimedOut { .. } => "; give it more by train.time_limit, or none by 0",
        PjrtError::Plugin { code: ErrorCode::ResourceExhausted, .. } => {
            "; the devices have too little memory: lower train.batch or model.seq, raise train.microbatches, or set \
             remat.policy = \"full\""
        }
        _ => "",
    }
}

macro_rules! boxed {
    ($($variant:ident($error:ty)),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::$variant(Box::new(error))
            }
        }
    )*};
}

boxed! {
    Config(crate::config::ConfigError),
    Data(crate::data::DataError),
    Parameters(crate::parameters::ParameterError),
    Checkpoint(crate::checkpoint::CheckpointError),
    Tokenizer(crate::tokenizer::TokenizerError),
}

macro_rules! of_compiler {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::Compiler(error.into())
            }
        }
    )*};
}

of_compiler! {
    Box<OpError>,
    Box<PjrtError>,
    Box<ShardingError>,
    MeshError,
    OpError,
    PjrtError,
    ShardingError,
    SpecError,
    meshloom::compile::ArgumentError,
    meshloom::ir::InternalError,
    meshloom::ir::LiteralError,
    meshloom::partition::LedgerError,
    meshloom::sharding::UnknownTensor,
    meshloom::trace::InitError,
    meshloom::trace::LeafCountError,
    meshloom::trace::TraceError,
    meshloom::transform::diloco::DilocoError,
}
