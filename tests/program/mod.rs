//! The `pretrain` example as a program.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Builds the example as this test was built; returns its path.
pub fn pretrain() -> PathBuf {
    let own = env::current_exe().expect("own path");
    // TARGET/PROFILE/deps/train-HASH
    let profile = own.ancestors().nth(2).expect("a profile's folder");
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--example", "pretrain", "--target-dir"]);
    build.arg(profile.parent().expect("the target folder"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success());
    profile.join("examples/pretrain")
}
