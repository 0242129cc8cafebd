//! Changed bytes anywhere in a checkpoint: it is refused, or it is what was written. Changed manifests with checksums
//! to match: read or refused, never a panic, and never more memory than the files have.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use meshloom_train::checkpoint::Checkpoint;
use proptest::prelude::*;
use proptest::sample::Index;
use support::cases::cases;

use super::damage::seal;
use super::state::{declared, names, values, write, written_values};

/// The files of a checkpoint.
fn files() -> &'static [(String, Vec<u8>)] {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a folder");
        let [folder] = &write(directory.path(), &[5])[..] else { panic!("one folder") };
        names(folder).into_iter().map(|name| (name.clone(), fs::read(folder.join(name)).expect("a file"))).collect()
    })
}

/// The files in a folder of this thread's, with one of them changed.
fn changed(index: usize, bytes: &[u8]) -> PathBuf {
    thread_local! {
        static SCRATCH: tempfile::TempDir = tempfile::tempdir().expect("a folder");
    }
    let folder = SCRATCH.with(|scratch| scratch.path().join("step-00000005"));
    fs::create_dir_all(&folder).expect("a folder");
    for (place, (name, content)) in files().iter().enumerate() {
        fs::write(folder.join(name), if place == index { bytes } else { content }).expect("written");
    }
    folder
}

#[derive(Clone, Debug)]
enum Change {
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// A run of digits becomes another number.
    Number(Index, u64),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let number = prop_oneof![
        Just(0),
        Just(1),
        Just(u64::from(u32::MAX)),
        Just(1 << 40),
        Just(1 << 62),
        Just(i64::MAX as u64),
        Just(u64::MAX),
        0..64u64,
        any::<u64>()
    ];
    prop_oneof![
        (at(), 1..=255u8).prop_map(|(at, bits)| Change::Flip(at, bits)),
        at().prop_map(Change::Cut),
        (at(), prop::collection::vec(any::<u8>(), 1..8)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), 1..32usize).prop_map(|(at, count)| Change::Remove(at, count)),
        (at(), number).prop_map(|(at, number)| Change::Number(at, number)),
    ]
}

fn apply(bytes: &[u8], change: &Change) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let length = bytes.len();
    match change {
        Change::Flip(at, bits) => bytes[at.index(length)] ^= bits,
        Change::Cut(at) => bytes.truncate(at.index(length)),
        Change::Insert(at, new) => drop(bytes.splice(at.index(length)..at.index(length), new.iter().copied())),
        Change::Remove(at, count) => drop(bytes.drain(at.index(length)..(at.index(length) + count).min(length))),
        Change::Number(at, number) => {
            let digit = |byte: &u8| byte.is_ascii_digit();
            let Some(start) = bytes[at.index(length)..].iter().position(digit).map(|first| first + at.index(length))
            else {
                return bytes;
            };
            let end = bytes[start..].iter().position(|byte| !digit(byte)).map_or(length, |count| start + count);
            bytes.splice(start..end, number.to_string().into_bytes());
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases("train changed checkpoints", 100, 0..400).len() as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_change_is_found(file in any::<Index>(), change in change()) {
        let index = file.index(files().len());
        let bytes = apply(&files()[index].1, &change);
        let opened = Checkpoint::open(changed(index, &bytes));
        match bytes == files()[index].1 {
            true => prop_assert_eq!(values(&opened.expect("unchanged")).expect("values"), written_values(5)),
            false => {
                let error = opened.expect_err("changed").to_string();
                prop_assert!(error.contains("step-00000005"), "{}", error);
            }
        }
    }

    #[test]
    fn changed_manifests_are_read_or_refused(changes in prop::collection::vec(change(), 1..4)) {
        let index = files().iter().position(|(name, _)| name == "manifest.json").expect("a manifest");
        let mut bytes = files()[index].1.clone();
        for change in &changes {
            bytes = if bytes.is_empty() { bytes } else { apply(&bytes, change) };
        }
        let folder = changed(index, &bytes);
        seal(&folder);
        if let Ok(checkpoint) = Checkpoint::open(folder) {
            // Then all of it can be read, if it is asked for by these names and types.
            match checkpoint.check(&declared()) {
                Ok(()) => prop_assert_eq!(values(&checkpoint).expect("values").len(), 5),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
