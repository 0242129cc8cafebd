//! How the CPU plugin compiles what is only there for its numbers.

use std::env;
use std::process::Command;

use crate::program::test_alone;

/// The variable that XLA reads when a plugin is loaded.
const FLAGS: &str = "XLA_FLAGS";

/// Its value where a process of a test is to compile as everybody does: one that changes nothing. XLA only asks whether
/// there is the option below, not what it is.
const AS_FOR_EVERYBODY: &str = "--xla_dump_to=";

/// Has XLA's CPU compiler emit fusions as it did before it did so by MLIR, which is more than half of the time that it
/// takes for small programs. Its passes over HLO run as always. With `MESHLOOM_EVERY_CASE=1`, or where `XLA_FLAGS` says
/// anything, programs are compiled as they are for everybody.
///
/// XLA does not take this option with a program. The variable is set before `main`.
#[allow(unsafe_code)]
pub fn without_mlir() {
    if !crate::every_case() && env::var_os(FLAGS).is_none() {
        // SAFETY: before `main` there is one thread.
        unsafe { env::set_var(FLAGS, "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true") };
    }
}

/// Has [`without_mlir`] run before `main` of a test program.
#[macro_export]
macro_rules! compile_without_mlir {
    () => {
        #[ctor::ctor(unsafe)]
        fn compile_without_mlir() {
            $crate::emitters::without_mlir();
        }
    };
}

/// Whether a test that compares bits of two programs is to go on: how they are fused decides how they round, and only
/// the usual emitters make the same of both. Otherwise it has run in a process of its own, where it was.
///
/// `module` is the `module_path!()` of the test.
pub fn are_usual(module: &str, test: &str) -> bool {
    if env::var(FLAGS).is_ok_and(|flags| flags == AS_FOR_EVERYBODY) || crate::every_case() {
        return true;
    }
    passes_with_the_usual(&mut test_alone(module, test));
    false
}

/// Runs a test of this program with the usual emitters, and fails unless it passes.
pub fn passes_with_the_usual(test: &mut Command) {
    let output = test.env(FLAGS, AS_FOR_EVERYBODY).output().expect("a child process");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{test:?}: {said}");
}
