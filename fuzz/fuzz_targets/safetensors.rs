//! Any bytes as `model.safetensors` of a published model and as a file of parameters: an error, or tensors that read.

#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use meshloom_models::parameters::ParameterFile;
use meshloom_models::weights::{FP8_BLOCK, Weights, whole};
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));

fuzz_target!(|bytes: &[u8]| {
    let path = FOLDER.path().join("model.safetensors");
    fs::write(&path, bytes).expect("written");
    let _ = ParameterFile::open(&path);
    let Ok(weights) = Weights::open(FOLDER.path(), FP8_BLOCK) else { return };
    for tensor in weights.tensors() {
        let _ = weights.read(tensor.name(), &whole(tensor.shape()));
    }
});
