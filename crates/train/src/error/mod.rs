//! The error type of training, and the errors of those rooms that return it. Each variant says whose fault it is.
//!
//! Config, data, checkpoints and so on have errors of their own, which know nothing of this one; it wraps them.

mod execution;
mod generate;
mod replicas;
mod tokens;

pub use execution::Execution;
pub use generate::GenerateError;
pub use replicas::{ReplicasDiffer, SyncError};
pub use tokens::TokensError;

use execution::advice;

use crate::report::StepMetrics;
use meshloom::hlo::mesh::MeshError;
use meshloom::ir::{OpError, SpecError};
use meshloom::pjrt::PjrtError;
use meshloom::sharding::ShardingError;

/// Everything that can go wrong in a training run.
#[derive(thiserror::Error)]
pub enum Error {
    /// The compiler's, the program's or the plugin's.
    #[error(transparent)]
    Compiler(#[from] meshloom::Error),
    /// The plugin's, or the machine's: a program did not end well.
    #[error("{what}: {source}{}", advice(*.what, .source))]
    Execution {
        /// The purpose of the program.
        what: Execution,
        /// The error of the plugin or the compiler.
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
    Parameters(#[from] Box<meshloom_models::parameters::ParameterError>),
    /// The checkpoint's fault, or that of the run that asks for it.
    #[error(transparent)]
    Checkpoint(#[from] Box<crate::checkpoint::CheckpointError>),
    /// The fault of a published model's config.json.
    #[error(transparent)]
    Family(#[from] Box<meshloom_models::families::FamilyError>),
    /// The fault of a published model's weights, or of the folder that they are written to.
    #[error(transparent)]
    Weights(#[from] Box<meshloom_models::weights::WeightsError>),
    /// A folder that has no model.
    #[error(
        "{0:?} has no model: give a checkpoint, a directory of checkpoints, or the folder of a published model, which \
         has a config.json"
    )]
    NoModel(std::path::PathBuf),
    /// The fault of tokens that a model is given.
    #[error(transparent)]
    Tokens(#[from] Box<TokensError>),
    /// The tokenizer file's fault.
    #[error(transparent)]
    Tokenizer(#[from] Box<crate::tokenizer::TokenizerError>),
    /// The fault of what a generator is asked for.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The metrics file could not be written.
    #[error(transparent)]
    Metrics(#[from] crate::report::MetricsError),
    /// The machine's fault, or ours: what all replicas should have alike differs.
    #[error(transparent)]
    Replicas(#[from] ReplicasDiffer),
    /// Steps changed nothing, because their numbers are not finite.
    #[error(transparent)]
    NotFinite(#[from] Box<NotFinite>),
    /// A replica that is apart from the others cannot go on.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// The others do not go on with this replica, or it does not reach them.
    #[error(transparent)]
    ReplicaLink(#[from] crate::peers::ReplicaLinkError),
    /// Another process's fault, or the network's: the processes of a run do not go on together.
    #[error(transparent)]
    Peers(#[from] crate::peers::PeersError),
}

meshloom::hlo::debug_is_message!(Error);

/// More steps in a row than `train.skip_bad_steps` had a loss or a gradient norm that is not finite. These steps did
/// not change the state.
#[derive(Clone, PartialEq, thiserror::Error)]
#[error(
    "step {} changed nothing{}: its loss is {}, its gradient norm {}; lower train.learning_rate or train.clip_norm, or \
     look at the data of that step; train.skip_bad_steps is {allowed}, and lets a run go over so many such steps",
    .first.step, and_others(*.in_a_row), .first.loss, .first.grad_norm
)]
pub struct NotFinite {
    /// The first step of the row.
    pub first: StepMetrics,
    /// The number of such steps in a row.
    pub in_a_row: u64,
    /// `train.skip_bad_steps`.
    pub allowed: u64,
    /// All steps of the call in which there were too many.
    pub metrics: Vec<StepMetrics>,
}

meshloom::hlo::debug_is_message!(NotFinite);

fn and_others(in_a_row: u64) -> String {
    match in_a_row {
        1 => String::new(),
        count => format!(", nor did the {} after it", count - 1),
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
    NotFinite(NotFinite),
    Parameters(meshloom_models::parameters::ParameterError),
    Checkpoint(crate::checkpoint::CheckpointError),
    Family(meshloom_models::families::FamilyError),
    Weights(meshloom_models::weights::WeightsError),
    Tokens(TokensError),
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
