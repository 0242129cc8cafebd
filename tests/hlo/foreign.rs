//! Modules of JAX programs, made by `tests/oracle/foreign.py`: what hlo-dump's tables say of them is what was counted
//! by hand from the programs (`tests/foreign/expected.toml`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use meshloom::analysis::{
    AxisPart, Communication, Devices, ModuleCollective, ModuleCollectives, collectives, step_inputs, traffic,
};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::read;
use meshloom::partition::{Amount, Bounds};
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
    /// In a branch: then the numbers are those of the case that it is taken.
    #[serde(default)]
    in_branch: bool,
}

fn folder() -> PathBuf {
    support::path("tests/foreign")
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

/// A number that is known: exactly, or as the most where what is counted is in a branch.
fn known(amount: Amount, in_branch: bool) -> u64 {
    match (amount, in_branch) {
        (Amount::Exactly(number), false) | (Amount::AtMost(number), true) => number,
        other => panic!("not known so: {other:?}"),
    }
}

fn axes(found: &ModuleCollective) -> String {
    let parts = found.axes.as_ref().unwrap_or_else(|| panic!("{}: along no axes: {:?}", found.name, found.groups));
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The collectives that were found, as rows of the manifest.
fn rows(found: &ModuleCollectives) -> Vec<Row> {
    let mut rows = BTreeMap::new();
    for entry in &found.entries {
        let Communication::Collective(kind) = entry.kind else { panic!("{}: {:?}", entry.name, entry.kind) };
        let key = (kind.to_string(), axes(entry), entry.bytes.expect("a size"), entry.in_branch);
        let row: &mut (u64, u64, u64) = rows.entry(key).or_default();
        row.0 += 1;
        row.1 += known(entry.executions, entry.in_branch);
        row.2 += known(entry.total_moved_bytes(), entry.in_branch);
    }
    let row = |((kind, axes, bytes, in_branch), (r#static, executions, moved))| Row {
        kind,
        axes,
        bytes,
        r#static,
        executions,
        moved,
        in_branch,
    };
    rows.into_iter().map(row).collect()
}

fn check(name: &str, expected: &Expected) {
    let module = read(name);
    let mesh = Mesh::parse(&expected.mesh, 8).unwrap_or_else(|error| panic!("{error}"));
    let found = collectives(&module, Devices::partitioned(8)).along(&mesh);
    let mut wanted = expected.rows.clone();
    wanted.sort();
    assert_eq!(rows(&found), wanted, "{name}");
    let branches = wanted.iter().any(|row| row.in_branch);
    assert_eq!(known(found.moved_bytes(), branches), expected.moved, "{name}");
    assert_eq!(known(found.executions(), branches), wanted.iter().map(|row| row.executions).sum::<u64>(), "{name}");
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

/// `lax.cond` on the remainder of the counter, as the partitioner and the CPU compiler leave it.
#[test]
fn a_jax_program_syncs_after_every_fifth_step() {
    for name in ["local_sgd.partitioned.txt", "local_sgd.optimized.txt"] {
        let (module, mesh) = (read(name), Mesh::parse("diloco=2,fsdp=4", 8).expect("a mesh"));
        let sent = |axis: &str| -> Vec<Bounds> {
            let axis = AxisPart::parse(axis, &mesh).expect("an axis");
            let inputs = step_inputs(&module, None);
            assert_eq!(inputs, [(0, vec![])], "{name}: the argument `step`");
            let found = traffic(&module, Devices::partitioned(8), (&mesh, &axis), &inputs, 0..11);
            found.steps.iter().map(|step| step.moved_bytes).collect()
        };
        let exactly = |bytes: u64| Bounds { least: bytes, most: Some(bytes) };
        let synced = (1..=11).map(|step| exactly(if step % 5 == 0 { 768 } else { 0 }));
        assert_eq!(sent("diloco"), synced.collect::<Vec<_>>(), "{name}");
        assert_eq!(sent("fsdp"), [exactly(2 * 2304); 11], "{name}");
    }
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
