//! Replicas that differ, or cannot sync.

/// A replica's outer parameter differs from that of another replica.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the outer parameter {path} differs between replicas: device {device} has other bits than device {other}, which holds the same \
     part; replicas must sync the same sums, so this is a defect of a plugin, of the network or of meshloom"
)]
pub struct ReplicasDiffer {
    /// The parameter's path in the model.
    pub path: String,
    /// Position of a device in the mesh.
    pub device: usize,
    /// Position of the other device.
    pub other: usize,
}

meshloom::hlo::debug_is_message!(ReplicasDiffer);

/// A sync that a replica cannot do.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The run does not know the others.
    #[error(
        "diloco.apart is true, but this run does not know the other replicas: start it by --replica N, or give it a ReplicaLink"
    )]
    Alone,
    /// A message is not what this replica sends.
    #[error(
        "a message of the round after step {round} has {found} bytes, not {expected}: replicas must run the same version of meshloom"
    )]
    Message {
        /// The round.
        round: u64,
        /// Bytes that a message has.
        expected: usize,
        /// Bytes that it has.
        found: usize,
    },
    /// Outer parameters are on their way.
    #[error("the sync after step {round} is under way, and not part of the state yet: call Trainer::complete first")]
    UnderWay {
        /// The round.
        round: u64,
    },
    /// The machine's fault.
    #[error("there is no folder for the outer state that another replica is to take: {reason}")]
    Folder {
        /// The reason that the system gives.
        reason: String,
    },
    /// A replica of several processes has no folder that all of them see.
    #[error(
        "a replica of several processes needs --checkpoint DIR on a shared file system: others take its state from there"
    )]
    NoFolder,
}

meshloom::hlo::debug_is_message!(SyncError);
