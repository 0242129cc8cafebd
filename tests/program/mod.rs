//! The program `meshloom`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The program that `MESHLOOM_TEST_PROGRAM` names; else builds it as this test was built. Returns its path.
pub fn meshloom() -> PathBuf {
    if let Some(path) = env::var_os("MESHLOOM_TEST_PROGRAM").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let own = env::current_exe().expect("own path");
    // TARGET/PROFILE/deps/train-HASH
    let profile = own.ancestors().nth(2).expect("a profile's folder");
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "-p", "meshloom-train", "--bin", "meshloom", "--target-dir"]);
    build.arg(profile.parent().expect("the target folder"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success());
    profile.join("meshloom")
}
