//! The parts that run programs: the plugin boundary, and several processes.

mod cluster;
mod pjrt;

use support::counts::Budget;

support::test_program!(Budget { steps: 0, modules: 84, processes: 62 });

/// Tests of several processes mostly wait: for leases to end, for processes that are missing.
#[ctor::ctor(unsafe)]
#[allow(unsafe_code)]
fn four_tests_at_a_time() {
    const THREADS: &str = "RUST_TEST_THREADS";
    if std::env::var_os(THREADS).is_none() {
        // SAFETY: before `main` there is one thread.
        unsafe { std::env::set_var(THREADS, "4") };
    }
}
