//! Modules of JAX programs, made by `tests/oracle/foreign.py`: what hlo-dump's tables say of them is what was counted by hand from the
//! programs (`tests/foreign/expected.toml`).

// A test says what it found by panicking.
#![allow(clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use meshloom::hlo::analysis::{Communication, Devices, ModuleCollective, ModuleCollectives, collectives};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::read;
use meshloom::partition::Amount;
use meshloom::sharding::Mesh;
use serde::Deserialize;

#[derive(Deserialize)]
struct Manifest {
    module: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    /// Names under `tests/foreign`; `*` stands for what XLA numbers.
    files: Vec<String>,
    mesh: String,
    moved: u64,
    rows: Vec<Row>,
}

/// Collectives of one kind, over the same axes, of the same size.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    kind: String,
    axes: String,
    bytes: u64,
    r#static: u64,
    executions: u64,
    moved: u64,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign")
}

fn manifest() -> Manifest {
    let text = fs::read_to_string(folder().join("expected.toml")).expect("the manifest");
    toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// Every module that is stored, by its name.
fn stored() -> BTreeSet<String> {
    let list = |folder: PathBuf| fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let files = list(folder()).chain(list(folder().join("xla_dump"))).filter(|path| path.is_file());
    let name = |path: PathBuf| path.strip_prefix(folder()).expect("within").to_string_lossy().into_owned();
    files.map(name).filter(|name| is_module(name)).collect()
}

/// Whether a file is a module, and not something else that XLA dumps beside it.
fn is_module(name: &str) -> bool {
    let ends = |suffix: &str| name.ends_with(suffix);
    match name.starts_with("xla_dump/") {
        true => ends("_optimizations.txt") || ends(".hlo.pb"),
        false => ends(".txt") || ends(".pb"),
    }
}

/// The names that a pattern with at most one `*` stands for.
fn matching<'a>(pattern: &str, names: &'a BTreeSet<String>) -> Vec<&'a String> {
    let matches = |name: &&String| match pattern.split_once('*') {
        Some((start, end)) => name.starts_with(start) && name.ends_with(end),
        None => name.as_str() == pattern,
    };
    names.iter().filter(matches).collect()
}

fn read(name: &str) -> HloModuleProto {
    let bytes = fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    read::read(&bytes, &read::Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}")).module
}

fn exactly(amount: Amount) -> u64 {
    match amount {
        Amount::Exactly(number) => number,
        other => panic!("not known exactly: {other:?}"),
    }
}

fn axes(found: &ModuleCollective) -> String {
    let parts = found.axes.as_ref().unwrap_or_else(|| panic!("{}: along no axes: {:?}", found.name, found.groups));
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// What was found, as rows of the manifest.
fn rows(found: &ModuleCollectives) -> Vec<Row> {
    let mut rows = BTreeMap::new();
    for entry in &found.entries {
        let Communication::Collective(kind) = entry.kind else { panic!("{}: {:?}", entry.name, entry.kind) };
        let key = (kind.to_string(), axes(entry), entry.bytes.expect("a size"));
        let row: &mut (u64, u64, u64) = rows.entry(key).or_default();
        row.0 += 1;
        row.1 += exactly(entry.executions);
        row.2 += exactly(entry.total_moved_bytes());
    }
    let row =
        |((kind, axes, bytes), (r#static, executions, moved))| Row { kind, axes, bytes, r#static, executions, moved };
    rows.into_iter().map(row).collect()
}

fn check(name: &str, expected: &Expected) {
    let module = read(name);
    let mesh = Mesh::parse(&expected.mesh, 8).unwrap_or_else(|error| panic!("{error}"));
    let found = collectives(&module, Devices::partitioned(8)).along(&mesh);
    let mut wanted = expected.rows.clone();
    wanted.sort();
    assert_eq!(rows(&found), wanted, "{name}");
    assert_eq!(exactly(found.moved_bytes()), expected.moved, "{name}");
    assert_eq!(exactly(found.executions()), wanted.iter().map(|row| row.executions).sum::<u64>(), "{name}");
}

#[test]
fn collectives_are_those_counted_by_hand() {
    let stored = stored();
    let mut checked = BTreeSet::new();
    for expected in &manifest().module {
        for pattern in &expected.files {
            let names = matching(pattern, &stored);
            assert_eq!(names.len(), 1, "{pattern}: {names:?}");
            check(names[0], expected);
            assert!(checked.insert(names[0].clone()), "{pattern} is there twice");
        }
    }
    assert_eq!(checked, stored, "every module is in the manifest");
}

/// The sums in the manifest are sums: a slip of the hand there would otherwise be looked for in the tables.
#[test]
fn the_manifest_adds_up() {
    for expected in manifest().module {
        let sum: u64 = expected.rows.iter().map(|row| row.moved).sum();
        assert_eq!(sum, expected.moved, "{:?}", expected.files);
        assert!(expected.rows.iter().all(|row| row.executions >= row.r#static), "{:?}", expected.files);
    }
}

#[test]
fn no_file_names_a_folder_of_the_machine_it_was_made_on() {
    for name in stored() {
        let bytes = fs::read(folder().join(&name)).expect("readable");
        for root in ["/home/", "/root/", "/tmp/", "/usr/", "/opt/", "/work/", "site-packages"] {
            assert!(!bytes.windows(root.len()).any(|window| window == root.as_bytes()), "{name} has {root}");
        }
    }
}
