//! A run of one program of meshloom by several processes.
//!
//! | module | what it does |
//! |---|---|
//! | [`Member`] | A process of a run: it joins the others, watches them, and leaves. It is training's [`Peers`](meshloom_train::peers::Peers). |
//! | [`Crossing`], [`Links`] | Collectives between processes on CPU plugins, by custom calls onto MPI. |
//! | [`Replicas`] | Runs that are replicas of one another: their messages, and their membership. It is training's [`ReplicaLink`](meshloom_train::peers::ReplicaLink). |
//! | [`store`] | The store of a run in etcd: keys, barriers, leases. |
//! | [`mpi`] | Messages between processes over a library of MPI that is loaded at run time. All `unsafe` of the crate is there. |
//! | [`Launched`] | The number of this process, as its launcher states it. |
//! | `program` | With the feature `cli`: the part that the program `meshloom-processes` adds to `meshloom`. |
//! | `certificates` | With the feature `cli`: certificates by which the hosts of a run know each other. |
//! | `network` | The interface at which MPI and NCCL listen. |
//! | [`StoreForClients`] | The store of a run, in the form that the clients of CUDA ask for. |
//! | [`etcd_program`], [`mpi_library`], [`mpiexec_program`] | The paths of etcd and MPI, which are fetched if they are missing. |
//!
//! The features `store` and `mpi` enable only these two modules, for programs that train nothing.

#[cfg(feature = "cli")]
pub mod certificates;
#[cfg(feature = "training")]
mod combine;
#[cfg(feature = "training")]
mod crossing;
#[cfg(feature = "training")]
mod ending;
#[cfg(feature = "training")]
mod error;
#[cfg(feature = "training")]
#[doc(hidden)]
pub mod internals;
#[cfg(feature = "training")]
mod join;
#[cfg(feature = "training")]
mod key_values;
mod launch;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "training")]
mod network;
#[cfg(feature = "training")]
mod pmi;
#[cfg(feature = "cli")]
pub mod program;
#[cfg(feature = "training")]
mod programs;
#[cfg(feature = "training")]
mod replicas;
#[cfg(feature = "store")]
pub mod store;
#[cfg(feature = "training")]
mod watch;

#[cfg(feature = "training")]
pub use crossing::{Crossing, Links};
#[cfg(feature = "training")]
pub use error::JoinError;
#[cfg(feature = "training")]
pub use join::{JoinOptions, Member, store_address};
#[cfg(feature = "training")]
pub use key_values::StoreForClients;
pub use launch::{LaunchError, Launched, Launcher, own_variable};
#[cfg(feature = "training")]
pub use programs::{ProgramError, etcd_program, mpi_library, mpiexec_program};
#[cfg(feature = "training")]
pub use replicas::{ReplicaError, ReplicaOptions, Replicas};
#[cfg(feature = "store")]
pub use store::{StoreOptions, Tls, User};
