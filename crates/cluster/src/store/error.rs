//! What can go wrong between a process and its store.

use std::time::Duration;

/// Why the store did not do what it was asked.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The address is no URL of an etcd.
    #[error(
        "the address of the store, {address:?}, cannot be used: {reason}; expected http://HOST:PORT or https://HOST:PORT"
    )]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody answers, or no longer.
    #[error("the store at {address} does not answer: {reason}; is etcd running there, and reachable from this host?")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// What was found instead.
        reason: String,
    },
    /// The password would travel in clear.
    #[error(
        "the password of {user:?} would travel to {address} in clear: give an address https://HOST:PORT, with --store-ca \
         where its certificate is of an authority of your own, or --insecure in a network in which everybody is trusted"
    )]
    InClear {
        /// Where the store is.
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
        /// Where it is.
        address: String,
        /// The user.
        user: String,
        /// What all keys of the job begin with.
        prefix: String,
        /// What the store says.
        reason: String,
    },
    /// A key is written once.
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
        /// How long it was waited for.
        waited: Duration,
    },
    /// Some processes did not come to a barrier in time.
    #[error(
        "at the barrier {barrier:?}, {} of {count} processes are missing after {} s: {}; see what their logs end with",
        missing.len(), .waited.as_secs_f64(), numbers(missing)
    )]
    Missing {
        /// Its name.
        barrier: String,
        /// How many were to come.
        count: usize,
        /// Those that did not.
        missing: Vec<usize>,
        /// How long they were waited for.
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
        /// What it said.
        reason: String,
    },
    /// The lease of this process has ended: the others take it for dead.
    #[error("the lease of this process has ended, so the others take it for dead: it was cut off from the store for longer than {} s", .0.as_secs())]
    LeaseEnded(Duration),
    /// The store says something else.
    #[error("the store at {address} says: {reason}")]
    Other {
        /// Where it is.
        address: String,
        /// What it says.
        reason: String,
    },
}

meshloom_hlo::debug_is_message!(StoreError);

/// `0, 3, 4 and 12 more`.
fn numbers(processes: &[usize]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = processes.iter().take(SHOWN).map(|process| format!("process {process}")).collect();
    match processes.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}
