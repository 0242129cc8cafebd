//! The others of a run, as training sees them: the processes of its program, and replicas that train apart.

mod processes;
mod replica_link;

pub use processes::{Peers, PeersError};
pub use replica_link::{Beginning, Judge, ReplicaLink, ReplicaLinkError, Round};
