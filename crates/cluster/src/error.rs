//! The ways in which joining a run can fail.

use std::sync::Arc;

use meshloom_train::peers::PeersError;

use crate::launch::LaunchError;
use crate::mpi::MpiError;
use crate::programs::ProgramError;
use crate::store::StoreError;

/// The reason why a process is not part of a run, or no longer is.
#[derive(thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
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
    NoStore { launcher: String },
    /// MPI's launcher and the flags differ.
    #[error("this is process {number} of {count}, but by MPI {rank} of {size}: start the processes as one job")]
    Ranks { number: usize, count: usize, rank: usize, size: usize },
    /// A value differs between processes.
    #[error("{what} differs between processes: {first} on process 0, {other} on process {process}; {advice}")]
    Differs { what: String, first: String, other: String, process: usize, advice: String },
    /// A network interface does not exist.
    #[error("--trusted-network {name}: this host has no such network interface; it has {there}")]
    Interface { name: String, there: String },
    /// The libraries that carry collectives would be open to a network.
    #[error(
        "the processes are on {hosts} hosts, and MPI, NCCL and libtpu listen on the network between them without asking \
         who connects: give --trusted-network INTERFACE, the interface of a network in which everybody is trusted"
    )]
    Untrusted { hosts: usize },
    /// The folder of an etcd cannot be made.
    #[error("no folder for the data of the etcd of this run: {reason}")]
    Folder { reason: String },
    /// The socket for MPI's questions cannot be made.
    #[error("no way to tell MPI who is there: {reason}")]
    Socket { reason: String },
}

meshloom_hlo::debug_is_message!(JoinError);

impl From<JoinError> for PeersError {
    fn from(error: JoinError) -> PeersError {
        PeersError(Arc::new(error))
    }
}

impl From<StoreError> for PeersError {
    fn from(error: StoreError) -> PeersError {
        PeersError(Arc::new(error))
    }
}
