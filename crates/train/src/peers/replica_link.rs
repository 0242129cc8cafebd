//! The other replicas of a run, as the training of one that lives apart sees them.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// This replica among those of a run, and what travels between them. All processes of a replica call the same methods
/// in the same order.
pub trait ReplicaLink: Debug + Send + Sync {
    /// Its number.
    fn number(&self) -> usize;

    /// Returns when the run begins or takes in this replica, which has done `step` steps. `form` is what replicas have
    /// alike, in lines.
    ///
    /// # Errors
    /// Others have another form, or cannot be reached.
    fn begin(&self, form: &str, step: u64) -> Result<Beginning, ReplicaLinkError>;

    /// Sends the message of the round after step `round`, and returns at once. It comes in after step `use_at`. `judge`
    /// judges all messages of the round before they are taken, its own too: one that a replica refuses counts for
    /// none.
    ///
    /// # Errors
    /// The others cannot be reached.
    fn send(&self, round: u64, use_at: u64, message: Vec<u8>, judge: Judge) -> Result<(), ReplicaLinkError>;

    /// Waits for what came of the round: the same on all replicas.
    ///
    /// # Errors
    /// The others went on without this replica, or cannot be reached.
    fn receive(&self, round: u64) -> Result<Round, ReplicaLinkError>;

    /// Gives the outer state after a step, in the files of a folder, to those who join. The folder stays until the
    /// next is given, or this replica has [left](ReplicaLink::leave).
    ///
    /// # Errors
    /// The folder cannot be read.
    fn give(&self, step: u64, folder: &Path) -> Result<(), ReplicaLinkError>;

    /// Ends, after the last step and its [`receive`](ReplicaLink::receive): when those have the outer state to whom it
    /// was given.
    ///
    /// # Errors
    /// The others cannot be reached.
    fn leave(&self) -> Result<(), ReplicaLinkError>;
}

/// Says of a message why it is not taken, if it is not.
pub type Judge = Arc<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

/// The way in which a replica begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beginning {
    /// The number of steps after which it begins.
    pub step: u64,
    /// Whether it is to give its outer state to others, by [`ReplicaLink::give`].
    pub gives: bool,
    /// The folder with the outer state that it takes; `None` for its own.
    pub taken: Option<PathBuf>,
}

/// The outcome of a round.
#[derive(Clone, Debug)]
pub struct Round {
    /// The messages that count, in the order of their replicas.
    pub messages: Vec<Vec<u8>>,
    /// True if this replica is to give its outer state to others.
    pub gives: bool,
}

/// The reason why replicas cannot go on together.
#[derive(Clone, thiserror::Error)]
#[error(transparent)]
pub struct ReplicaLinkError(pub Arc<dyn std::error::Error + Send + Sync>);

meshloom::hlo::debug_is_message!(ReplicaLinkError);
