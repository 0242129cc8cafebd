//! The threads in which virtual devices wait for each other.
#![cfg(target_os = "linux")]

use std::{env, fs};

use meshloom::pjrt::Client;
use support::program::test_alone;

/// Eight devices have threads for three collectives at once (our programs have two: tests/hlo/at_once.rs), however few
/// the environment asks for. It stays as it is.
#[test]
fn devices_have_threads_to_wait_in() {
    for (given, expected) in [("3", 17), ("40", 40)] {
        let mut child = test_alone(module_path!(), "child_threads");
        let output = child.env("PJRT_NPROC", given).output().expect("a child process");
        let text = String::from_utf8_lossy(&output.stdout);
        let is_expected = text.contains(&format!("{expected} threads, PJRT_NPROC={given}\n"));
        assert!(output.status.success() && is_expected, "{text}");
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_threads() {
    let _client = Client::cpu(8).expect("a client of eight devices");
    let tasks = fs::read_dir("/proc/self/task").expect("threads").flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let count = names.filter(|name| name.starts_with("tf_XLAEigen")).count();
    println!("{count} threads, PJRT_NPROC={}", env::var("PJRT_NPROC").expect("set"));
}
