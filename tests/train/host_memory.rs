//! Tests of the memory that the host takes beside the devices' own bytes: while a state is drawn, while it is loaded,
//! and in the first step after that. Each case is a process of its own, whose peak the kernel counts. The virtual
//! devices' bytes are the process's too.
//!
//! The test is in the full tier alone, with a model of 34 million parameters and one of 300 million, for which the
//! machine needs about 12 GB:
//!
//! ```text
//! MESHLOOM_EVERY_CASE="train memory of the host" cargo test --release --test train host_memory -- --nocapture
//! ```

use std::env;
use std::path::PathBuf;

use meshloom::compile::Program;
use meshloom::pjrt::Array;
use meshloom::trace::{Key, Tree};
use meshloom_models::parameters::LoadOptions;
use meshloom_train::checkpoint::{Checkpointer, Fallback, Start, find};
use meshloom_train::config::RunConfig;
use meshloom_train::{Run, Trainer};
use support::cases::cases;
use support::configs;
use support::eight_devices::client;
use support::host_memory::growth;
use support::program::test_alone;

/// The environment variable with the folder of the checkpoint.
const FOLDER: &str = "MESHLOOM_TEST_FOLDER";

/// The environment variable with the number of layers of the model.
const LAYERS: &str = "MESHLOOM_TEST_LAYERS";

fn config() -> RunConfig {
    let layers = format!("model.layers={}", env::var(LAYERS).expect("a number"));
    let model = ["model.embed=512", "model.heads=8", "model.kv_heads=8", "model.head_dim=64", "model.mlp=2048"];
    let small = ["model.seq=8", "train.batch=8", "mesh.axes=fsdp=8", &layers];
    let folder = format!("checkpoint.dir={:?}", env::var(FOLDER).expect("a folder"));
    configs::config(&[&model, &small, &[&folder]]).on_client(&client()).expect("eight devices")
}

/// Bytes of all devices' parts, and of the largest part.
fn bytes(arrays: &[Array]) -> [u64; 2] {
    let parts = arrays.iter().flat_map(Array::shards).map(|shard| shard.ty().byte_count() as u64);
    [parts.clone().sum(), parts.max().unwrap_or(0)]
}

/// The devices' bytes, eight of the largest part (what eight devices work on at once), and some for everything else.
#[track_caller]
fn expect_little_more(what: &str, growth: u64, arrays: &[Array]) {
    let [all, largest] = bytes(arrays);
    println!("{what}: {growth} bytes for {all} on the devices, in parts of at most {largest}");
    assert!(growth < all + 8 * largest + (32 << 20), "{what}: {growth} bytes for {all}, at most {largest} in a part");
}

fn ready(arrays: &[Array]) {
    arrays.iter().for_each(|array| array.block_until_ready().expect("computed"));
}

/// The run of a config, and the program that draws its first state.
fn run_and_first(config: &RunConfig) -> (Run, Program) {
    let run = config.resolve().expect("a run");
    let lowered = run.lower_first_state(client().platform()).expect("it lowers");
    (run, lowered.compile(&client()).expect("it compiles"))
}

#[test]
fn the_host_holds_no_state_of_its_own() {
    for layers in cases("train memory of the host", 0, ["8", "72"]) {
        let folder = tempfile::tempdir().expect("a folder");
        for child in ["child_draws_and_saves", "child_loads", "child_resumes"] {
            let mut child_process = test_alone(module_path!(), child);
            let output =
                child_process.env(FOLDER, folder.path()).env(LAYERS, layers).output().expect("a child process");
            let text = String::from_utf8_lossy(&output.stdout);
            text.lines().filter(|line| line.contains(" bytes")).for_each(|line| println!("{line}"));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{child}, {layers} layers: {text}{errors}");
        }
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_draws_and_saves() {
    let config = config();
    let (_, program) = run_and_first(&config);
    let key = program.put(0, &Key::from_seed(3)).expect("a key").into_data();
    let (arrays, grown) = growth(|| {
        let arrays = program.run(&[&key]).expect("it runs");
        ready(&arrays);
        arrays
    });
    expect_little_more("drawn", grown, &arrays);
    drop(arrays);
    let trainer = Trainer::new(&config, &client()).expect("a trainer");
    let mut checkpointer = Checkpointer::new(&config.checkpoint, Start::Fresh).expect("a folder");
    trainer.save_checkpoint(&mut checkpointer).expect("saved");
    checkpointer.finish().expect("written");
    trainer.save_parameters(PathBuf::from(&config.checkpoint.dir).join("parameters")).expect("saved");
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_loads() {
    let config = config();
    // Its outputs lie as a state does.
    let (run, program) = run_and_first(&config);
    let devices = program.executable().devices();
    let checkpoint = find(&config.checkpoint.dir, Fallback::Refuse).expect("it is there").checkpoint;
    let (arrays, grown) = growth(|| {
        let arrays = checkpoint.load(&run.state(), program.outputs(), &client(), devices).expect("loaded");
        ready(&arrays);
        arrays
    });
    expect_little_more("loaded", grown, &arrays);
}

/// The step after a resume takes no more than later ones: it has the memory of the state that was read. Without that it
/// would take the state's bytes once more.
#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_resumes() {
    let config = config();
    let checkpoint = find(&config.checkpoint.dir, Fallback::Refuse).expect("it is there").checkpoint;
    let mut trainer = Trainer::resume(&config, &client(), &checkpoint).expect("a trainer");
    let file = PathBuf::from(&config.checkpoint.dir).join("parameters");
    let ((), grown) = growth(|| {
        trainer.load_parameters(&file, LoadOptions::default()).expect("loaded");
        ready(&trainer.state().leaves());
    });
    // The old parameters go when all new ones are there.
    expect_little_more("parameters loaded", grown, &trainer.state().params().leaves());
    let mut peaks = (0..10).map(|_| {
        let (_, grown) = growth(|| {
            trainer.step().expect("a step");
            ready(&trainer.state().leaves());
        });
        grown
    });
    let first = peaks.next().expect("a step");
    // The extent to which the devices' temporaries overlap in time differs from step to step.
    let later = peaks.max().expect("more steps");
    println!("step 1: {first} bytes, the nine after it: at most {later} bytes");
    let [state, _] = bytes(&trainer.state().leaves());
    assert!(first < later + state / 8, "step 1 takes {first} bytes, a later one {later}, of a state of {state}");
}
