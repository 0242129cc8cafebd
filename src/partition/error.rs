//! Errors of partitioning.

use super::{Fallback, Stray};
use crate::ir::{InternalError, OpError, SpecError};
use crate::sharding::ShardingError;

/// The reason why a graph cannot be partitioned.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum PartitionError {
    /// An op does not take the parts of its operands.
    #[error(transparent)]
    Op(#[from] Box<OpError>),
    /// A spec does not fit its value or the mesh.
    #[error(transparent)]
    Sharding(#[from] Box<ShardingError>),
    /// An op cannot work on the parts of a value, and replication is denied.
    #[error(
        "{}; split another dimension, or use {setting} to let every device hold the whole",
        .fallbacks.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    Replication { fallbacks: Vec<Fallback>, setting: &'static str },
    /// Devices branch by their place, and an exchange needs devices of several branches.
    #[error("{stray}")]
    Stray { stray: Box<Stray> },
    /// meshloom's fault.
    #[error(transparent)]
    Internal(#[from] Box<InternalError>),
}

meshloom_hlo::debug_is_message!(PartitionError);

/// Makes an error of errors that it holds in boxes.
macro_rules! boxed {
    ($error:ident { $($variant:ident($source:ty)),* $(,)? }) => {$(
        impl From<$source> for $error {
            fn from(error: $source) -> $error {
                $error::$variant(Box::new(error))
            }
        }
    )*};
}
pub(crate) use boxed;

boxed!(PartitionError { Op(OpError), Sharding(ShardingError), Internal(InternalError) });

impl From<SpecError> for PartitionError {
    fn from(error: SpecError) -> PartitionError {
        ShardingError::from(error).into()
    }
}
