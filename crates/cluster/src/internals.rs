//! Parts of the crate that the project's own tests use one by one. Nothing here is for users, and any version may
//! change or remove it.

pub use crate::network::{check_hosts, variables};
pub use crate::programs::{in_path, libraries_of};
pub use crate::replicas::alone::{Port, connect};
pub use crate::replicas::port::{Limits, Say};
pub use crate::replicas::rounds::{Decision, Keys, Present, Seat, Undecided, held_key, present_key, round_key};
