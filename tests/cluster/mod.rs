//! Several processes run one program: the store that they share, what launchers tell them, and what they compute
//! together.
//!
//! etcd and MPICH are found as programs find them, and fetched where they are not.

mod callbacks;
mod crossing;
mod deaths;
mod docs;
mod elsewhere;
mod etcd;
mod hostile;
mod launchers;
mod mpi;
mod peers;
mod processes;
mod programs;
mod replicas;
mod rounds;
mod search_paths;
mod store;
mod training;
