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
mod launchers;
mod mpi;
mod processes;
mod programs;
mod replicas;
mod rounds;
mod search_paths;
mod store;
mod training;

use support::counts::Budget;

support::test_program!(Budget { steps: 0, modules: 0, processes: 60 });

/// Its tests mostly wait: for leases to end, for processes that are missing.
#[ctor::ctor(unsafe)]
#[allow(unsafe_code)]
fn four_tests_at_a_time() {
    const THREADS: &str = "RUST_TEST_THREADS";
    if std::env::var_os(THREADS).is_none() {
        // SAFETY: before `main` there is one thread.
        unsafe { std::env::set_var(THREADS, "4") };
    }
}
