//! The programs of the workspace, as their users run them.
//!
//! Cargo gives a test only the programs of its own package, so the others are built here: once for each test program,
//! with the profile that the tests were built with. Where that has been done already, it takes a moment.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use meshloom::pjrt::ahead_of_time::Settings;
use meshloom_cli::Start;

use crate::counts::process;

/// Builds what `arguments` select, and returns where it is, relative to the folder of the profile.
fn build(arguments: &[&str], place: &str) -> PathBuf {
    let own = env::current_exe().expect("own path");
    // TARGET/PROFILE/deps/train-HASH
    let profile = own.ancestors().nth(2).expect("a profile's folder");
    let name = match profile.file_name().and_then(|name| name.to_str()).expect("a profile's folder") {
        "debug" => "dev",
        name => name,
    };
    let mut build = process(env!("CARGO"));
    // The same packages as `cargo test --workspace` selects: others could have other features, and be built anew.
    build.current_dir(crate::path("")).args(["build", "--quiet", "--workspace", "--profile", name]).args(arguments);
    // The variables by which Cargo tells this test of its own package; build scripts that look at them would be run
    // again.
    let of_package = |name: &OsString| {
        name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
    };
    for name in env::vars_os().map(|(name, _)| name).filter(of_package) {
        build.env_remove(name);
    }
    let built = build.arg("--target-dir").arg(profile.parent().expect("the target folder")).status();
    assert!(built.expect("cargo runs").success(), "cargo build {arguments:?}");
    profile.join(place)
}

/// The program that `MESHLOOM_TEST_PROGRAM` names; else `meshloom`, which it builds.
pub fn meshloom() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| named().unwrap_or_else(|| build(&["--bin", "meshloom"], "meshloom"))).clone()
}

/// Returns the same program with `meshloom-processes` beside it, for runs of several processes.
pub fn meshloom_with_processes() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let both = || build(&["--bin", "meshloom", "--bin", "meshloom-processes"], "meshloom");
    PATH.get_or_init(|| named().unwrap_or_else(both)).clone()
}

fn named() -> Option<PathBuf> {
    env::var_os("MESHLOOM_TEST_PROGRAM").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns the exit code and the message with which the program, in this process, refuses a command line. For several
/// processes it calls `start`.
#[track_caller]
pub fn refused(start: Start, words: &[&str]) -> (u8, String) {
    let failure = meshloom_cli::run(["meshloom"].iter().chain(words), start).expect_err("it is refused");
    (failure.exit_code(), failure.to_string())
}

/// `hlo-dump`, with `meshloom` beside it, which has the commands that need a config or a plugin.
pub fn hlo_dump() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build(&["--bin", "hlo-dump", "--bin", "meshloom"], "hlo-dump")).clone()
}

/// The worker that compiles ahead of time, which no test program is but `ahead`.
pub fn worker() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build(&["--bin", "meshloom-worker"], "meshloom-worker")).clone()
}

/// An example of a crate of the workspace.
pub fn example(name: &str) -> PathBuf {
    build(&["--example", name], &format!("examples/{name}"))
}

/// Settings with that worker.
pub fn with_worker() -> Settings {
    Settings { worker: Some(worker()), ..Settings::default() }
}

/// Runs a test of this test program, ignored or not, in a process of its own.
///
/// `module` is the `module_path!()` of the test.
pub fn test_alone(module: &str, test: &str) -> Command {
    let mut command = process(env::current_exe().expect("own path"));
    command.arg(test_name(module, test)).args(["--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Returns the name of a test in its program. The module's path begins with the program's name.
pub fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}
