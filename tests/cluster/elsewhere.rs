//! The program `meshloom` runs `meshloom-processes` in its place to be one of several processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use meshloom_cli::Elsewhere;
use support::counts::process;
use support::program::meshloom_with_processes;

use super::processes::Run;

/// The program is looked for beside `meshloom` first, then in PATH, and nowhere else.
#[test]
fn where_the_program_is_looked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name);
    for name in ["own", "first", "second"] {
        fs::create_dir(place(name)).expect("a folder");
    }
    let path = std::env::join_paths([Path::new("relative"), &place("first"), &place("second")]).expect("a path");
    let elsewhere = Elsewhere { program: place("own/meshloom"), path };
    let found =
        || elsewhere.find().map_err(|error| error.to_string().replace(&folder.path().display().to_string(), "DIR"));
    insta::assert_snapshot!(found().expect_err("it is nowhere"), @"runs of several processes, and certificates for them, need the program meshloom-processes, which is neither beside DIR/own/meshloom nor in a folder of PATH: `cargo install --path crates/cluster` installs it, and `cargo build --release --bin meshloom-processes` builds it for `cargo run --release`");
    // A folder of this name is not the program.
    fs::create_dir(place("own/meshloom-processes")).expect("a folder");
    for (name, expected) in [("second", "second"), ("first", "first")] {
        fs::write(place(name).join("meshloom-processes"), b"").expect("a file");
        assert_eq!(found(), Ok(place(expected).join("meshloom-processes")));
    }
    fs::remove_dir(place("own/meshloom-processes")).expect("a folder");
    fs::write(place("own/meshloom-processes"), b"").expect("a file");
    assert_eq!(found(), Ok(place("own/meshloom-processes")));
}

/// Links the program into a folder without the other. It is a hard link, since a symbolic one would be followed.
fn alone(folder: &Path) -> PathBuf {
    let (from, to) = (meshloom_with_processes(), folder.join("meshloom"));
    fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).expect("the program");
    to
}

/// A program in place of `meshloom-processes` gets the arguments, the environment and the process number.
#[test]
fn it_runs_in_place_of_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = alone(folder.path());
    let flags = ["train", "--processes", "auto", "--set", "model.layers=2"];
    let run = || {
        let mut command = process(&program);
        let child = command.args(flags).env("PATH", "/nowhere").env("SAID", "so").stderr(std::process::Stdio::piped());
        let child = child.stdout(std::process::Stdio::piped()).spawn().expect("it runs");
        let number = child.id();
        (number, child.wait_with_output().expect("it ends"))
    };
    let (_, output) = run();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with(
            "error: runs of several processes, and certificates for them, need the program meshloom-processes"
        ),
        "{said}"
    );

    let script = folder.path().join("meshloom-processes");
    fs::write(&script, "#!/bin/sh\necho $$ $SAID $MESHLOOM_STARTED_BY \"$@\"\nexit 7\n").expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let (number, output) = run();
    let expected = format!("{number} so {} {}\n", env!("CARGO_PKG_VERSION"), flags.join(" "));
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()), (Some(7), expected));
}

#[test]
fn another_version_is_refused() {
    let processes = meshloom_with_processes().with_file_name("meshloom-processes");
    let run = Run::new(1, &[]);
    let status = run.command(&processes, "alone", &[]).env("MESHLOOM_STARTED_BY", "0.0.1").status().expect("it runs");
    let log = run.log("alone");
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("but the meshloom that started it has 0.0.1: install both from the same source"), "{log}");
}
