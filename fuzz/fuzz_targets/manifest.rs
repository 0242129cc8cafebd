//! Any bytes as the manifest of a checkpoint whose sums are right: an error, or a checkpoint.

#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use meshloom_train::checkpoint::Checkpoint;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const SHARD: [u8; 8] = [0; 8];

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("shard-0.bin"), SHARD).expect("written");
    folder
});

fn line(name: &str, bytes: &[u8]) -> String {
    let sum: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{sum}  {name}\n")
}

fuzz_target!(|manifest: &[u8]| {
    let folder = FOLDER.path();
    fs::write(folder.join("manifest.json"), manifest).expect("written");
    let sums = line("manifest.json", manifest) + &line("shard-0.bin", &SHARD);
    fs::write(folder.join("SHA256SUMS"), sums).expect("written");
    let _ = Checkpoint::open(folder);
});
