//! Several processes run one program of meshloom.
//!
//! | module | what it does |
//! |---|---|
//! | [`Member`] | A process of a run: it joins the others, watches them, and leaves. |
//! | [`Crossing`], [`Links`] | Collectives between processes on CPU plugins, by custom calls onto MPI. |
//! | [`Replicas`] | Runs that are replicas of one another: messages between them, and who takes part. |
//! | `training` | Both as training sees them: [`Peers`](meshloom_train::peers::Peers), [`ReplicaLink`](meshloom_train::peers::ReplicaLink). |
//! | `program` | With the feature `cli`: the part that the program `meshloom-processes` adds to `meshloom`. |
//! | `certificates` | With the feature `cli`: certificates with which the hosts of a run know each other. |
//! | `network` | The interface at which MPI and NCCL listen. |
//! | [`StoreForClients`] | The store of a run, as the clients of CUDA ask for it. |
//! | [`etcd_program`], [`mpi_library`], [`mpiexec_program`] | Where etcd and MPI are; fetched where they are not. |

#[cfg(feature = "cli")]
pub mod certificates;
mod combine;
mod crossing;
#[doc(hidden)]
pub mod internals;
mod ending;
mod join;
mod key_values;
mod network;
mod pmi;
#[cfg(feature = "cli")]
pub mod program;
mod programs;
mod replicas;
mod training;
mod watch;

pub use crossing::{Crossing, GiveUp, Links};
pub use join::{JoinError, JoinOptions, Member, store_address};
pub use key_values::StoreForClients;
pub use meshloom_store::{Environment, LaunchError, Launched, Launcher, OwnEnvironment, StoreOptions, Tls, User};
pub use programs::{ProgramError, etcd_program, mpi_library, mpiexec_program};
pub use replicas::{Beginning, ReplicaError, ReplicaOptions, Replicas, Round};
