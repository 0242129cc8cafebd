//! Several processes run one program of meshloom.
//!
//! | module | what it does |
//! |---|---|
//! | [`Crossing`] | Collectives between processes on CPU plugins, by custom calls onto MPI. |
//! | [`StoreForClients`] | The store of a run, as the clients of CUDA ask for it. |
//! | [`etcd_program`], [`mpi_library`], [`mpiexec_program`] | Where etcd and MPI are; fetched where they are not. |

mod combine;
mod crossing;
mod key_values;
mod programs;

pub use combine::Combine;
pub use crossing::{Crossing, CrossingError, CrossingKind, CrossingSite, forget_sites};
pub use key_values::StoreForClients;
pub use programs::{ProgramError, etcd_program, mpi_library, mpiexec_program};
