//! The options by which the CPU plugin compiles programs that are run only for their numbers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::program::test_alone;

/// The variable that XLA reads when a plugin is loaded.
const FLAGS: &str = "XLA_FLAGS";

/// Its value where a process of a test is to compile as everybody does: one that changes nothing. XLA only asks whether
/// there is the option below, not what it is.
const AS_FOR_EVERYBODY: &str = "--xla_dump_to=";

const QUICK: [&str; 3] = [
    "--xla_backend_optimization_level=1",
    "--xla_cpu_parallel_codegen_split_count=2",
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true",
];

/// Makes XLA's CPU compiler take about half of its time for small programs: it emits fusions as it did before MLIR did;
/// LLVM optimizes at level 1, and gets two modules at most. Its passes over HLO run as always. The processes that a
/// test starts inherit the options. In the full tier, and if `XLA_FLAGS` is set, programs are compiled with the usual
/// options.
///
/// XLA does not take the option for fusions with a program. The variable is set before `main`.
#[allow(unsafe_code)]
pub fn compile_quickly() {
    if !crate::cases::more_than_few() && env::var_os(FLAGS).is_none() {
        // SAFETY: before `main` there is one thread.
        unsafe { env::set_var(FLAGS, QUICK.join(" ")) };
    }
}

/// A worker's program, in a folder, that compiles with these options though it is started without `XLA_FLAGS`. In the
/// full tier it is the worker itself.
pub fn worker(folder: &Path) -> PathBuf {
    let worker = crate::program::worker();
    if crate::cases::more_than_few() { worker } else { with_flags(&worker, folder) }
}

/// A script that starts a worker with these options.
#[cfg(unix)]
fn with_flags(worker: &Path, folder: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let script = folder.join("worker");
    let text = format!("#!/bin/sh\n{FLAGS}='{}' exec '{}' \"$@\"\n", QUICK.join(" "), worker.display());
    fs::write(&script, text).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).expect("it can be started");
    script
}

#[cfg(not(unix))]
fn with_flags(worker: &Path, _: &Path) -> PathBuf {
    worker.to_owned()
}

/// Whether a test that compares bits of two programs is to go on: how they are fused decides how they round, and only
/// the usual options make the same of both. Otherwise it has run in a process of its own, where it was.
///
/// `module` is the `module_path!()` of the test.
pub fn are_usual(module: &str, test: &str) -> bool {
    if env::var(FLAGS).is_ok_and(|flags| flags == AS_FOR_EVERYBODY) || crate::cases::more_than_few() {
        return true;
    }
    passes_with_the_usual(&mut test_alone(module, test));
    false
}

/// Runs a test of this program with the usual options, and fails unless it passes.
pub fn passes_with_the_usual(test: &mut Command) {
    let output = test.env(FLAGS, AS_FOR_EVERYBODY).output().expect("a child process");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{test:?}: {said}");
}
