//! The HLO text parser: it undoes the printer.

use std::fs;
use std::path::{Path, PathBuf};

use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::HloModuleProtoWithConfig;
use meshloom::hlo::text::{TextOptions, print_with_config};
use prost::Message;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files under `folder` that end so.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut folders = vec![root().join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().is_some_and(|path| path.ends_with(ending)) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Parses `text`, prints it, parses that: both modules are the same. Gives the module and its text.
#[track_caller]
fn check_identity(what: &str, text: &str) -> (HloModuleProtoWithConfig, String) {
    let first = parse(text).unwrap_or_else(|error| panic!("{what}: {error}"));
    let printed = print_with_config(&first, &TextOptions::parseable());
    let second = parse(&printed).unwrap_or_else(|error| panic!("{what}, printed: {error}"));
    // As bytes, so that a NaN equals itself.
    assert!(first.encode_to_vec() == second.encode_to_vec(), "{what}: printed and read again it is another module");
    (first, printed)
}

#[test]
fn snapshots_read_back() {
    let mut count = 0;
    for file in files("hlo_snapshots", ".snap") {
        let snapshot = fs::read_to_string(&file).unwrap();
        let text = snapshot.splitn(3, "---\n").nth(2).unwrap();
        // Others are graphs in our own text form.
        if text.starts_with("HloModule ") {
            count += 1;
            check_identity(&file.display().to_string(), text);
        }
    }
    assert!(count > 150, "only {count} snapshots");
}

#[test]
fn what_xla_prints_reads_and_prints_the_same() {
    let files = files("tests/oracle/hlo", ".txt");
    assert!(files.len() > 30, "only {} texts", files.len());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let (_, printed) = check_identity(&file.display().to_string(), &text);
        assert_eq!(printed, text, "{}", file.display());
    }
}
