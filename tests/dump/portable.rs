//! People keep XLA dumps on every system: `meshloom-hlo`, `meshloom-analysis`, and `hlo-dump` without run configs, use
//! nothing that only one has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use support::counts::process;

const SYSTEMS: [&str; 3] = ["x86_64-unknown-linux-gnu", "x86_64-apple-darwin", "x86_64-pc-windows-msvc"];

/// The crates by which `anstyle`, `anstream` and `terminal_size` ask each system about its terminal.
const OF_TERMINALS: [&str; 9] = [
    "anstyle-wincon",
    "bitflags",
    "errno",
    "libc",
    "linux-raw-sys",
    "once_cell_polyfill",
    "rustix",
    "windows-link",
    "windows-sys",
];

/// Names of the packages that one is built of, without default features; with `--depth 1` those that it names itself.
fn packages(package: &str, system: &str, more: &[&str]) -> BTreeSet<String> {
    let mut command = process(env!("CARGO"));
    command.args(["tree", "--locked", "--package", package, "--no-default-features", "--edges", "normal"]);
    command.args(["--prefix", "none", "--target", system]).args(more).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names");
    text.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn every_system_has_the_same_packages() {
    let [first, others @ ..] = SYSTEMS;
    for system in others {
        let (here, there) = (packages("meshloom-hlo", first, &[]), packages("meshloom-hlo", system, &[]));
        assert_eq!(here, there, "meshloom-hlo for {system}");
        let depth = ["--depth", "1"];
        let (here, there) = (packages("hlo-dump", first, &depth), packages("hlo-dump", system, &depth));
        assert_eq!(here, there, "hlo-dump for {system}");
        let (here, there) = (packages("hlo-dump", first, &[]), packages("hlo-dump", system, &[]));
        let odd: Vec<_> =
            here.symmetric_difference(&there).filter(|name| !OF_TERMINALS.contains(&name.as_str())).collect();
        assert!(odd.is_empty(), "not on each of {first} and {system}: {odd:?}");
    }
}

#[test]
fn neither_compiler_nor_plugins_are_needed() {
    let found = packages("hlo-dump", SYSTEMS[0], &[]);
    assert!(found.contains("meshloom-hlo"), "{found:?}");
    for heavy in ["meshloom", "meshloom-pjrt", "meshloom-train", "libloading", "tokenizers", "zip", "layout-rs"] {
        assert!(!found.contains(heavy), "{heavy} among {found:?}");
    }
}

#[test]
fn sources_name_no_system() {
    let own = support::path("crates/hlo-dump");
    // The code that asks plugins is not part of the small build, and states where it runs.
    check(&own.join("src"), &own.join("src/configs"));
    // The file `files.rs` knows the names that a shell gives to the streams it opens; on other systems they mean
    // nothing.
    let hlo = support::path("crates/hlo/src");
    check(&hlo, &hlo.join("files.rs"));
    check(&support::path("crates/analysis/src"), Path::new(""));
}

fn check(folder: &Path, except: &Path) {
    const WORDS: [&str; 8] =
        ["std::os::", "rustix::", "libc::", "\"/proc", "\"/dev/", "cfg(unix", "cfg(windows", "target_os"];
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path == except {
            continue;
        }
        if path.is_dir() {
            check(&path, except);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            for word in WORDS {
                assert!(!text.contains(word), "{} has {word}", path.display());
            }
        }
    }
}
