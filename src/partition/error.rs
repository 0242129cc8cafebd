//! What keeps a graph from being partitioned.

use super::Fallback;
use crate::ir::{InternalError, OpError, SpecError};
use crate::sharding::ShardingError;

/// Why a graph cannot be partitioned.
#[derive(Debug, thiserror::Error)]
pub enum PartitionError {
    /// An op does not take the parts of its operands.
    #[error(transparent)]
    Op(#[from] Box<OpError>),
    /// A spec does not fit its value or the mesh.
    #[error(transparent)]
    Sharding(#[from] Box<ShardingError>),
    /// An op cannot work on the parts of a value, and replication is denied.
    #[error(
        "{}; split another dimension, or set partition.replication = \"warn\" to let every device hold the whole",
        .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    Replication(Vec<Fallback>),
    /// meshloom's fault.
    #[error(transparent)]
    Internal(#[from] Box<InternalError>),
}

impl From<OpError> for PartitionError {
    fn from(error: OpError) -> PartitionError {
        PartitionError::Op(Box::new(error))
    }
}

impl From<ShardingError> for PartitionError {
    fn from(error: ShardingError) -> PartitionError {
        PartitionError::Sharding(Box::new(error))
    }
}

impl From<SpecError> for PartitionError {
    fn from(error: SpecError) -> PartitionError {
        ShardingError::from(error).into()
    }
}

impl From<InternalError> for PartitionError {
    fn from(error: InternalError) -> PartitionError {
        PartitionError::Internal(Box::new(error))
    }
}
