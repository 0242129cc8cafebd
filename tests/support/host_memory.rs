//! The memory of this process, as Linux counts it.

use std::fs;

/// A figure of this process, in bytes.
fn figure(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a figure of that name");
    1024 * line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<u64>().expect("a number")
}

/// The result of `f`, and how many bytes the process grew for it, at most.
pub fn growth<R>(f: impl FnOnce() -> R) -> (R, u64) {
    // The peak begins anew.
    fs::write("/proc/self/clear_refs", "5").expect("Linux");
    let before = figure("VmRSS");
    let result = f();
    (result, figure("VmHWM").saturating_sub(before))
}
