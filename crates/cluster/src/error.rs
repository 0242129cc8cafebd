//! The ways in which joining a run can fail.

use crate::launch::LaunchError;
use crate::mpi::MpiError;
use crate::store::StoreError;

use crate::programs::ProgramError;

/// The reason why a process is not part of a run, or no longer is.
#[derive(thiserror::Error)]
pub enum JoinError {
    /// The launcher's variables cannot be used.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The store reports an error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// MPI reports an error.
    #[error(transparent)]
    Mpi(#[from] MpiError),
    /// A program or a library that is needed cannot be found.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The address of the store is not known.
    #[error(
        "the processes need a store to find each other, and {launcher} does not say where one is; give --store http://HOST:PORT of an etcd, or set MESHLOOM_STORE"
    )]
    NoStore {
        /// The program that has started the process.
        launcher: String,
    },
    /// MPI's launcher and the flags differ.
    #[error("this is process {number} of {count}, but by MPI {rank} of {size}: start the processes as one job")]
    Ranks {
        /// The number of the process.
        number: usize,
        /// The number of processes that there should be.
        count: usize,
        /// Its rank by MPI.
        rank: usize,
        /// The number of processes by MPI.
        size: usize,
    },
    /// A value differs between processes.
    #[error("{what} differs between processes: {first} on process 0, {other} on process {process}; {advice}")]
    Differs {
        /// The name of the value.
        what: String,
        /// The value of process 0.
        first: String,
        /// The value of another process.
        other: String,
        /// The number of that process.
        process: usize,
        /// The way to mend it.
        advice: String,
    },
    /// A network interface does not exist.
    #[error("--trusted-network {name}: this host has no such network interface; it has {there}")]
    Interface {
        /// The name that was given.
        name: String,
        /// The interfaces of the host.
        there: String,
    },
    /// The libraries that carry collectives would be open to a network.
    #[error(
        "the processes are on {hosts} hosts, and MPI, NCCL and libtpu listen on the network between them without asking \
         who connects: give --trusted-network INTERFACE, the interface of a network in which everybody is trusted"
    )]
    Untrusted {
        /// The number of hosts.
        hosts: usize,
    },
    /// The folder of an etcd cannot be made.
    #[error("no folder for the data of the etcd of this run: {reason}")]
    Folder {
        /// The system's reason.
        reason: String,
    },
    /// The socket for MPI's questions cannot be made.
    #[error("no way to tell MPI who is there: {reason}")]
    Socket {
        /// The system's reason.
        reason: String,
    },
}

meshloom_hlo::debug_is_message!(JoinError);
