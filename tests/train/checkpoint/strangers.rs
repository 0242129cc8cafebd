//! A checkpoint from elsewhere is data: it says what a model is, and nothing about its use.

use std::fs;

use meshloom_train::config::RunConfig;
use meshloom_train::published::StoredModel;

use super::damage::seal;
use super::state::write;

/// The keys that a stranger would like to set: where files go, options of compilers, plugin and caches, and the files
/// that are read.
const WISHES: &str = r#"
[model]
layers = 3
config = ""

[data]
sources = ["/etc/passwd"]
cache = "/tmp/tokens"
tokenizer = "bytes"

[train]
init = "/tmp/weights"
time_limit = 0.0

[checkpoint]
dir = "/tmp/checkpoints"

[mesh]
axes = "data=4096"

[rules]
file = "/dev/zero"

[target]
platform = "tpu"
processes = 8
compile_cache = "/tmp/programs"
compiler_options = ["xla_dump_to=/tmp/dump"]

[unknown]
key = 1
"#;

/// A checkpoint that records this config, its sums those of its files.
fn recording(directory: &std::path::Path, config: &str) -> std::path::PathBuf {
    let folder = write(directory, &[1]).pop().expect("a checkpoint");
    let manifest = folder.join("manifest.json");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["config"] = config.into();
    fs::write(&manifest, json.to_string()).expect("written");
    seal(&folder);
    folder
}

#[test]
fn a_checkpoint_says_what_the_model_is_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a folder");
    let folder = recording(directory.path(), WISHES);
    let open = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        StoredModel::open(&folder, &overrides).map(|model| model.config)
    };
    let expected = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        RunConfig::from_overrides(&overrides).expect("a config")
    };
    let own = ["model.layers=3", "mesh.axes=data=1", "target.devices=1", "target.processes=1"];
    assert_eq!(open(&[]).expect("a model"), expected(&own));
    // The user of the model gives the other keys.
    let said = ["target.compile_cache=", "model.seq=64"];
    assert_eq!(open(&said).expect("a model"), expected(&[&own[..], &said].concat()));
}

#[test]
fn a_model_of_a_folder_elsewhere_is_not_looked_for() {
    let directory = tempfile::tempdir().expect("a folder");
    let folder = recording(directory.path(), "[model]\nconfig = \"/nowhere/llama\"\n");
    let error = StoredModel::open(&folder, &[]).expect_err("the folder is not asked").to_string();
    assert!(error.contains("/nowhere/llama") && error.contains("--set model.config=FOLDER"), "{error}");
}
