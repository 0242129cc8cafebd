//! The processes of a run, as training sees them.

use std::fmt::Debug;
use std::sync::Arc;

/// This process among those of a run.
pub trait Peers: Debug + Send + Sync {
    /// Its number.
    fn number(&self) -> usize;

    /// Returns the number of processes.
    fn count(&self) -> usize;

    /// Checks that all have the same; all ask it in the same order. `advice` says what to do where they do not.
    ///
    /// # Errors
    /// They do not, or one is gone.
    fn agree(&self, what: &str, own: &str, advice: &str) -> Result<(), PeersError>;

    /// Returns when all have called it. Each name is for one use.
    ///
    /// # Errors
    /// One is gone, or does not come.
    fn barrier(&self, name: &str) -> Result<(), PeersError>;

    /// Asks all processes to end after a step that they agree on, and says why. If several ask, the first request
    /// counts.
    ///
    /// # Errors
    /// They cannot be told.
    fn ask_to_end(&self, why: &str) -> Result<(), PeersError>;

    /// Returns why all end now, after `done` steps, if one has [asked](Peers::ask_to_end). All processes call this
    /// before each call of a program, with the same numbers in the same order, and all get the same answers: one that
    /// waits for others in a collective does not wait for ever.
    ///
    /// # Errors
    /// One is gone.
    fn ends_after(&self, done: u64) -> Result<Option<String>, PeersError>;
}

/// The reason why processes cannot go on together.
#[derive(Clone, thiserror::Error)]
#[error(transparent)]
pub struct PeersError(pub Arc<dyn std::error::Error + Send + Sync>);

meshloom::hlo::debug_is_message!(PeersError);
