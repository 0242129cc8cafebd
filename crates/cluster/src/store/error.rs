//! The errors between a process and its store.

use std::time::Duration;

/// The reason why a request to the store failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum StoreError {
    /// The address is not a URL of an etcd.
    #[error(
        "the address of the store, {address:?}, cannot be used: {reason}; expected http://HOST:PORT or https://HOST:PORT"
    )]
    Address { address: String, reason: String },
    /// The store does not answer, or has stopped answering.
    #[error("the store at {address} does not answer: {reason}; is etcd running there, and reachable from this host?")]
    Unreachable { address: String, reason: String },
    /// The password would travel unencrypted.
    #[error(
        "the password of {user:?} would travel to {address} in clear: give an address https://HOST:PORT, with --store-ca \
         where its certificate is of an authority of your own, or --insecure in a network in which everybody is trusted"
    )]
    InClear { address: String, user: String },
    /// The store refuses the user.
    #[error(
        "the store at {address} refuses the user {user:?}: {reason}; it needs a role with \
         `etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}`"
    )]
    Denied {
        address: String,
        user: String,
        /// The prefix of all keys of the job.
        prefix: String,
        reason: String,
    },
    /// A key has been written before; a key is written only once.
    #[error("the key {key:?} has been written before")]
    AlreadyExists {
        /// The key, without the names of job and attempt.
        key: String,
    },
    /// A key is not there.
    #[error("there is no key {key:?}")]
    NotFound { key: String },
    /// A key did not come in time.
    #[error("the key {key:?} was not written within {} s; has a process stopped?", .waited.as_secs_f64())]
    DeadlineExceeded { key: String, waited: Duration },
    /// Some processes did not come to a barrier in time.
    #[error(
        "at the barrier {barrier:?}, {} of {count} processes are missing after {} s: {}; see what their logs end with",
        missing.len(), .waited.as_secs_f64(), numbers(missing)
    )]
    Missing { barrier: String, count: usize, missing: Vec<usize>, waited: Duration },
    /// Processes that were part of the run have gone.
    #[error("{} of the run's processes {}: {}; their leases have ended", dead.len(), if dead.len() == 1 { "has died" } else { "have died" }, numbers(dead))]
    Died { dead: Vec<usize> },
    /// A process has said that it ends.
    #[error("process {process} of the run has failed: {reason}")]
    Failed { process: usize, reason: String },
    /// The lease of this process has ended: the others take it for dead.
    #[error("the lease of this process has ended, so the others take it for dead: it was cut off from the store for longer than {} s", .0.as_secs())]
    LeaseEnded(Duration),
    /// The store reports another error.
    #[error("the store at {address} says: {reason}")]
    Other { address: String, reason: String },
}

meshloom_hlo::debug_is_message!(StoreError);

/// Formats a list of processes, shortened: `0, 3, 4 and 12 more`.
fn numbers(processes: &[usize]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = processes.iter().take(SHOWN).map(|process| format!("process {process}")).collect();
    match processes.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}
