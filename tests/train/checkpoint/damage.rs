//! Damaged and foreign checkpoints: one clear error each, and the checkpoint before it where that is asked for.

use std::fs;
use std::path::{Path, PathBuf};

use meshloom_train::checkpoint::{Checkpoint, CheckpointError, Fallback, find};
use sha2::{Digest, Sha256};

use super::state::{declared, names, values, write, written_values};

const SHARD: &str = "shard-00003-of-00008.safetensors";
const MANIFEST: &str = "manifest.json";
const SUMS: &str = "SHA256SUMS";

/// The same checkpoints for each case; the older one is always fit.
struct Directory {
    scratch: tempfile::TempDir,
    newest: PathBuf,
}

impl Directory {
    fn new() -> Directory {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut folders = write(scratch.path(), &[2, 4]);
        let newest = folders.pop().expect("the newest");
        Directory { scratch, newest }
    }

    fn path(&self) -> &Path {
        self.scratch.path()
    }
}

/// Replaces a part of a file's text.
fn edit(folder: &Path, name: &str, from: &str, to: &str) {
    let text = fs::read_to_string(folder.join(name)).expect("text");
    assert!(text.contains(from), "{name} has no {from}: {text}");
    fs::write(folder.join(name), text.replacen(from, to, 1)).expect("written");
}

/// Makes the checksums those of the files as they are: what an edited manifest claims is then all that can be wrong.
pub fn seal(folder: &Path) {
    let sum = |name: String| {
        let digest = Sha256::digest(fs::read(folder.join(&name)).expect("a file"));
        format!("{}  {name}\n", support::hex(&digest))
    };
    let sums: String = names(folder).into_iter().filter(|name| name != SUMS).map(sum).collect();
    fs::write(folder.join(SUMS), sums).expect("written");
}

fn edit_manifest(folder: &Path, from: &str, to: &str) {
    edit(folder, MANIFEST, from, to);
    seal(folder);
}

type Change = fn(&Path);

/// The changes to the newest checkpoint: a name, the change, the file that the error names, and a part of the error.
const CASES: &[(&str, Change, &str, &str)] = &[
    (
        "a byte of a value",
        |folder| {
            let path = folder.join(SHARD);
            let mut bytes = fs::read(&path).expect("a file");
            *bytes.last_mut().expect("a byte") ^= 1;
            fs::write(path, bytes).expect("written");
        },
        SHARD,
        "is damaged: its SHA-256 is ",
    ),
    (
        "a byte of a file's header",
        |folder| {
            let mut bytes = fs::read(folder.join(SHARD)).expect("a file");
            bytes[20] ^= 1;
            fs::write(folder.join(SHARD), bytes).expect("written");
        },
        SHARD,
        "is damaged: its SHA-256 is ",
    ),
    (
        "a file cut short",
        |folder| {
            let file = fs::File::options().write(true).open(folder.join(SHARD)).expect("a file");
            file.set_len(100).expect("cut");
        },
        SHARD,
        "it has 100 bytes, but was written with ",
    ),
    ("a file emptied", |folder| fs::write(folder.join(SHARD), "").expect("written"), SHARD, "it has 0 bytes, but "),
    ("a file gone", |folder| fs::remove_file(folder.join(SHARD)).expect("gone"), SHARD, "is damaged: it is missing"),
    (
        "a folder for a file",
        |folder| {
            fs::remove_file(folder.join(SHARD)).expect("gone");
            fs::create_dir(folder.join(SHARD)).expect("made");
        },
        SHARD,
        "is damaged: it is not a file",
    ),
    (
        "another checkpoint's file",
        |folder| {
            let other = folder.with_file_name("step-00000002");
            fs::copy(other.join(SHARD), folder.join(SHARD)).expect("copied");
        },
        SHARD,
        "is damaged: its SHA-256 is ",
    ),
    (
        "another program's safetensors file",
        |folder| {
            let length = fs::metadata(folder.join(SHARD)).expect("a file").len() as usize;
            let header = r#"{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
            let mut bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
            bytes.resize(length, 0);
            fs::write(folder.join(SHARD), bytes).expect("written");
        },
        SHARD,
        "is damaged: its SHA-256 is ",
    ),
    ("no manifest", |folder| fs::remove_file(folder.join(MANIFEST)).expect("gone"), MANIFEST, "it is missing"),
    (
        "an empty manifest",
        |folder| fs::write(folder.join(MANIFEST), "").expect("written"),
        MANIFEST,
        "not a checkpoint of meshloom, or damaged: EOF",
    ),
    (
        "a manifest of brackets",
        |folder| fs::write(folder.join(MANIFEST), "[".repeat(100_000)).expect("written"),
        MANIFEST,
        "not a checkpoint of meshloom, or damaged",
    ),
    (
        "another program's JSON",
        |folder| fs::write(folder.join(MANIFEST), r#"{"weight_map": {}}"#).expect("written"),
        MANIFEST,
        "missing field `format`",
    ),
    (
        "another program's format",
        |folder| fs::write(folder.join(MANIFEST), r#"{"format": "pt", "version": 1}"#).expect("written"),
        MANIFEST,
        "its format is \"pt\", not \"meshloom checkpoint\"",
    ),
    (
        "a later version",
        |folder| edit_manifest(folder, "\"version\": 1", "\"version\": 2"),
        MANIFEST,
        "is a checkpoint in version 2 of the format; this meshloom reads version 1",
    ),
    (
        "another step",
        |folder| edit(folder, MANIFEST, "\"step\": 4", "\"step\": 9"),
        MANIFEST,
        "is damaged: its SHA-256 is ",
    ),
    (
        "another seed",
        |folder| edit(folder, MANIFEST, "\"seed\": 7", "\"seed\": 8"),
        MANIFEST,
        "is damaged: its SHA-256 is ",
    ),
    (
        "a folder for the manifest",
        |folder| {
            fs::remove_file(folder.join(MANIFEST)).expect("gone");
            fs::create_dir(folder.join(MANIFEST)).expect("made");
        },
        MANIFEST,
        "it is a folder, and only regular files are read",
    ),
    ("no checksums", |folder| fs::remove_file(folder.join(SUMS)).expect("gone"), SUMS, "is damaged: it is missing"),
    (
        "checksums that are none",
        |folder| fs::write(folder.join(SUMS), "abc").expect("written"),
        SUMS,
        "line 1 has no checksum and name",
    ),
    (
        "checksums that are no text",
        |folder| fs::write(folder.join(SUMS), [0xff; 80]).expect("written"),
        SUMS,
        "is damaged: invalid utf-8",
    ),
    (
        "a checksum too few",
        |folder| edit(folder, SUMS, SHARD, "other"),
        SUMS,
        "it has no line for shard-00003-of-00008.safetensors",
    ),
    (
        "a file outside",
        |folder| edit_manifest(folder, SHARD, "../../secret"),
        MANIFEST,
        "\"../../secret\" is not the name of one of its files",
    ),
    (
        "an absolute file",
        |folder| edit_manifest(folder, SHARD, "/etc/passwd"),
        MANIFEST,
        "\"/etc/passwd\" is not the name of one of its files",
    ),
    (
        "a file twice",
        |folder| edit_manifest(folder, SHARD, "shard-00002-of-00008.safetensors"),
        MANIFEST,
        "\"shard-00002-of-00008.safetensors\" is not the name of one of its files",
    ),
    (
        "an absurd length",
        |folder| edit_manifest(folder, "\"bytes\": ", "\"bytes\": 1844674407370955"),
        "",
        "bytes, but was written with 1844674407370955",
    ),
    (
        "an absurd dimension",
        |folder| edit_manifest(folder, "\"dims\": [\n        6", "\"dims\": [\n        4611686018427387904"),
        MANIFEST,
        "matrix: the dimensions [4611686018427387904, 8] are not possible",
    ),
    (
        "a larger dimension",
        |folder| edit_manifest(folder, "\"dims\": [\n        6", "\"dims\": [\n        7"),
        MANIFEST,
        "matrix: its pieces are not 56 elements",
    ),
    (
        "an absurd piece",
        |folder| edit_manifest(folder, "\"dims\": [\n            3", "\"dims\": [\n            4611686018427387904"),
        MANIFEST,
        "matrix: the piece ",
    ),
    (
        "a piece outside of its value",
        |folder| edit_manifest(folder, "\"start\": [\n            3", "\"start\": [\n            5"),
        MANIFEST,
        "matrix: ",
    ),
    (
        "an absurd start",
        |folder| edit_manifest(folder, "\"start\": [\n            3", "\"start\": [\n            18446744073709551615"),
        MANIFEST,
        "matrix: the piece ",
    ),
    (
        "a piece of another rank",
        |folder| edit_manifest(folder, "\"start\": [\n            3,", "\"start\": ["),
        MANIFEST,
        "matrix: the piece ",
    ),
    (
        "a piece outside of its file",
        |folder| edit_manifest(folder, "\"offset\": ", "\"offset\": 9999"),
        MANIFEST,
        "matrix: the piece ",
    ),
    (
        "a piece in no file",
        |folder| edit_manifest(folder, "\"file\": 0", "\"file\": 99"),
        MANIFEST,
        "matrix: the piece ",
    ),
    (
        "another element type",
        |folder| edit_manifest(folder, "\"bf16\"", "\"bf17\""),
        MANIFEST,
        "unknown element type \"bf17\"",
    ),
    (
        "a value twice",
        |folder| edit_manifest(folder, "\"path\": \"uneven\"", "\"path\": \"matrix\""),
        MANIFEST,
        "matrix is there twice",
    ),
    (
        "a manifest without values",
        |folder| edit_manifest(folder, "\"leaves\"", "\"leafs\""),
        MANIFEST,
        "missing field `leaves`",
    ),
    (
        "a negative step",
        |folder| edit_manifest(folder, "\"step\": 4", "\"step\": -4"),
        MANIFEST,
        "invalid value: integer `-4`",
    ),
    (
        "an empty folder",
        |folder| {
            fs::remove_dir_all(folder).expect("gone");
            fs::create_dir(folder).expect("made");
        },
        MANIFEST,
        "it is missing",
    ),
    (
        "a file for the folder",
        |folder| {
            fs::remove_dir_all(folder).expect("gone");
            fs::write(folder, "x").expect("written");
        },
        "step-00000004",
        "it is a file, not a folder",
    ),
];

#[test]
fn what_is_damaged_is_refused() {
    for (what, change, file, message) in CASES {
        let directory = Directory::new();
        change(&directory.newest);
        let error = Checkpoint::open(&directory.newest).expect_err(what);
        let text = error.to_string();
        assert!(text.contains(message), "{what}: {text:?} has no {message:?}");
        assert!(text.contains(file) && text.contains("step-00000004"), "{what}: {text:?} does not name {file:?}");

        // The newest is an error, unless another will do.
        let refused = find(directory.path(), Fallback::Refuse).expect_err(what);
        let CheckpointError::Newest { source, previous } = &refused else { panic!("{what}: {refused}") };
        assert_eq!(source.to_string(), text);
        assert_eq!(previous.as_deref(), Some(directory.path().join("step-00000002").as_path()));
        let advice =
            "step-00000002: ask for it by name, or resume with a fallback (--resume-fallback, `Fallback::Older`)";
        assert!(refused.to_string().contains(advice), "{what}: {refused}");
        let found = find(directory.path(), Fallback::Older).expect(what);
        assert_eq!(found.checkpoint.about().step, 2);
        assert_eq!(found.skipped.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
        assert_eq!(values(&found.checkpoint).expect("values"), written_values(2));
    }
}

#[test]
fn directories_without_checkpoints_are_refused() {
    let scratch = tempfile::tempdir().expect("a folder");
    let path = |name: &str| scratch.path().join(name);
    fs::create_dir(path("empty")).expect("made");
    fs::create_dir_all(path("unfinished/.tmp-step-00000004")).expect("made");
    fs::create_dir_all(path("other/step-4")).expect("made");
    fs::create_dir_all(path("other/set-aside-step-00000004.1")).expect("made");
    fs::write(path("file"), "").expect("written");
    for fallback in [Fallback::Refuse, Fallback::Older] {
        for (name, message) in [
            ("empty", "there is no checkpoint in "),
            ("unfinished", "there is no checkpoint in "),
            ("other", "there is no checkpoint in "),
            ("file", "it is a file, not a folder"),
            ("none", "cannot read "),
            ("none/step-00000004", "cannot read "),
        ] {
            let error = find(path(name), fallback).expect_err(name).to_string();
            assert!(error.contains(message) && error.contains(name), "{error}");
        }
    }
}

#[test]
fn all_may_be_damaged() {
    let directory = Directory::new();
    for step in [2, 4] {
        fs::remove_file(directory.path().join(format!("step-{step:08}")).join(SHARD)).expect("gone");
    }
    let error = find(directory.path(), Fallback::Older).expect_err("none is fit");
    let CheckpointError::AllDamaged { failures, .. } = &error else { panic!("{error}") };
    assert_eq!(failures.len(), 2);
    assert!(error.to_string().starts_with("none of the 2 checkpoints in "), "{error}");
    fs::remove_dir_all(directory.path().join("step-00000002")).expect("gone");
    let error = find(directory.path(), Fallback::Refuse).expect_err("it is damaged").to_string();
    assert!(error.ends_with("it is missing; there is no older one"), "{error}");
}

/// Files that are not the checkpoint's do not disturb it.
#[test]
fn other_files_may_lie_beside() {
    let directory = Directory::new();
    fs::write(directory.newest.join("notes.txt"), "mine").expect("written");
    fs::write(directory.path().join("metrics.jsonl"), "").expect("written");
    fs::create_dir(directory.path().join(".tmp-mine")).expect("made");
    let found = find(directory.path(), Fallback::Refuse).expect("a checkpoint");
    found.checkpoint.check(&declared()).expect("the values");
    assert_eq!(found.checkpoint.about().step, 4);
    assert_eq!(names(directory.path()).len(), 4);
}
