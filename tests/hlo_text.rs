//! The HLO text printer against XLA's own: modules under `tests/oracle/hlo` and XLA's text of each.
//!
//! `python3 tests/oracle/hlo_text.py --write` makes these files (any Python with jax); `--check` has XLA's parser read
//! what our printer says about many more modules.

use std::fs;
use std::path::{Path, PathBuf};

use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::text::{self, TextOptions};
use prost::Message;

/// The `.pb` files of a folder, in order.
fn modules(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pb"))
        .collect();
    files.sort();
    files
}

fn read(file: &Path) -> HloModuleProto {
    HloModuleProto::decode(fs::read(file).unwrap().as_slice()).unwrap()
}

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/hlo")
}

#[track_caller]
fn check(file: &Path) {
    let expected = fs::read_to_string(file.with_extension("txt")).unwrap();
    let actual = text::print(&read(file), &TextOptions::parseable());
    for (number, (ours, theirs)) in actual.lines().zip(expected.lines()).enumerate() {
        assert_eq!(ours, theirs, "{}:{}", file.display(), number + 1);
    }
    assert_eq!(actual, expected, "{}", file.display());
}

#[test]
fn parseable_text_is_what_xla_prints() {
    let files = modules(&golden_folder());
    assert!(files.len() >= 10, "only {} golden modules", files.len());
    for file in files {
        check(&file);
    }
}

/// For `hlo_text.py --check`: prints the modules of a folder, each beside itself, in both presets.
#[test]
#[ignore = "a tool for tests/oracle/hlo_text.py"]
fn print_folder() {
    let folder = PathBuf::from(std::env::var("MESHLOOM_HLO_FOLDER").unwrap());
    for file in modules(&folder) {
        let module = read(&file);
        fs::write(file.with_extension("ours.txt"), text::print(&module, &TextOptions::parseable())).unwrap();
        fs::write(file.with_extension("canonical.txt"), text::print(&module, &TextOptions::canonical())).unwrap();
    }
}
