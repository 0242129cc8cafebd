//! The errors between a process and its store.

use std::time::Duration;

/// The reason why a request to the store failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The address is not a URL of an etcd.
    #[error(
        "the address of the store, {address:?}, cannot be used: {reason}; expected http://HOST:PORT or https://HOST:PORT"
    )]
    Address {
        /// The address.
        address: String,
        /// The reason why it is none.
        reason: String,
    },
    /// The store does not answer, or has stopped answering.
    #[error("the store at {address} does not answer: {reason}; is etcd running there, and reachable from this host?")]
    Unreachable {
        /// The address where it should be.
        address: String,
        /// The system's reason.
        reason: String,
    },
    /// The password would travel unencrypted.
    #[error(
        "the password of {user:?} would travel to {address} in clear: give an address https://HOST:PORT, with --store-ca \
         where its certificate is of an authority of your own, or --insecure in a network in which everybody is trusted"
    )]
    InClear {
        /// The address of the store.
        address: String,
        /// The user.
        user: String,
    },
    /// The store refuses the user.
    #[error(
        "the store at {address} refuses the user {user:?}: {reason}; it needs a role with \
         `etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}`"
    )]
    Denied {
        /// The address of the store.
        address: String,
        /// The user.
        user: String,
        /// The prefix of all keys of the job.
        prefix: String,
        /// The message of the store.
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
    NotFound {
        /// The key.
        key: String,
    },
    /// A key did not come in time.
    #[error("the key {key:?} was not written within {} s; has a process stopped?", .waited.as_secs_f64())]
    DeadlineExceeded {
        /// The key.
        key: String,
        /// The time that the caller waited for it.
        waited: Duration,
    },
    /// Some processes did not come to a barrier in time.
    #[error(
        "at the barrier {barrier:?}, {} of {count} processes are missing after {} s: {}; see what their logs end with",
        missing.len(), .waited.as_secs_f64(), numbers(missing)
    )]
    Missing {
        /// The name of the barrier.
        barrier: String,
        /// The number of processes.
        count: usize,
        /// The processes that did not come.
        missing: Vec<usize>,
        /// The time that the caller waited for them.
        waited: Duration,
    },
    /// Processes that were part of the run have gone.
    #[error("{} of the run's processes {}: {}; their leases have ended", dead.len(), if dead.len() == 1 { "has died" } else { "have died" }, numbers(dead))]
    Died {
        /// The processes.
        dead: Vec<usize>,
    },
    /// A process has said that it ends.
    #[error("process {process} of the run has failed: {reason}")]
    Failed {
        /// The process.
        process: usize,
        /// The reason that it gave.
        reason: String,
    },
    /// The lease of this process has ended: the others take it for dead.
    #[error("the lease of this process has ended, so the others take it for dead: it was cut off from the store for longer than {} s", .0.as_secs())]
    LeaseEnded(Duration),
    /// The store reports another error.
    #[error("the store at {address} says: {reason}")]
    Other {
        /// The address of the store.
        address: String,
        /// The message of the store.
        reason: String,
    },
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
