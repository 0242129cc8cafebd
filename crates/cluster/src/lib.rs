//! Several processes run one program of meshloom.
//!
//! | module | what it does |
//! |---|---|
//! | [`Crossing`] | Collectives between processes on CPU plugins, by custom calls onto MPI. |
//! | [`StoreForClients`] | The store of a run, as the clients of CUDA ask for it. |

mod combine;
mod crossing;
mod key_values;

pub use combine::Combine;
pub use crossing::{Crossing, CrossingError, CrossingKind, CrossingSite, forget_sites};
pub use key_values::StoreForClients;
