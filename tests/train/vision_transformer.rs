//! The trainer takes any model: the vision transformer of the example learns, computes the same on any mesh, and
//! resumes from checkpoints.

#[path = "../../crates/train/examples/vision_transformer/model.rs"]
mod model;

use meshloom::pjrt::Client;
use meshloom_train::Trainer;
use meshloom_train::checkpoint::{self, Checkpointer, Fallback, Start};
use meshloom_train::config::RunConfig;
use model::{Digits, PATCHES, VisionTransformer};
use support::cases::cases;
use support::configs::UNOPTIMIZED;
use support::eight_devices::client;

fn config(settings: &[&str]) -> RunConfig {
    let length = format!("model.seq={PATCHES}");
    let common = ["model.layers=4", "train.batch=32", "train.warmup=5", "train.steps=60", &length, UNOPTIMIZED];
    // The client keeps programs, also those for several devices.
    let common = common.into_iter().chain(["target.compile_cache="]);
    let settings: Vec<String> = common.chain(settings.iter().copied()).map(str::to_owned).collect();
    RunConfig::from_overrides(&settings).unwrap_or_else(|error| panic!("{error}"))
}

fn model_of(config: &RunConfig) -> VisionTransformer {
    let pipeline = config.pipeline_options().expect("a pipeline or none");
    VisionTransformer { layers: config.model.layers, embed: 32, heads: 4, pipeline }
}

fn trainer(client: &Client, config: &RunConfig) -> Trainer<VisionTransformer, Digits> {
    let run = config.resolve_for(model_of(config)).unwrap_or_else(|error| panic!("{error}"));
    Trainer::of(run, Digits, client).unwrap_or_else(|error| panic!("{error}"))
}

fn losses(trainer: &mut Trainer<VisionTransformer, Digits>, count: usize) -> Vec<f64> {
    (0..count).map(|_| trainer.step().expect("a step").loss).collect()
}

const ONE_DEVICE: &[&str] = &["mesh.axes=data=1", "target.devices=1"];
const MESH: &[&str] = &["mesh.axes=data=2,fsdp=2,tensor=2"];
const PIPELINE: &[&str] = &["mesh.axes=stage=2,fsdp=2,tensor=2", "pipeline.repeats=2"];

#[test]
fn a_model_that_is_no_decoder_trains_on_any_mesh() {
    let client = client();
    let plain = losses(&mut trainer(&client, &config(ONE_DEVICE)), 40);
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&plain[35..]) < 0.85 * mean(&plain[..5]), "{plain:?}");
    let all = [
        PIPELINE,
        &["mesh.axes=fsdp=8", "train.microbatches=4"],
        MESH,
        &["mesh.axes=fsdp=8", "train.steps_per_call=2"],
    ];
    for settings in cases("train vision transformers", 1, all) {
        let found = losses(&mut trainer(&client, &config(settings)), 2);
        for (found, expected) in found.iter().zip(&plain) {
            assert!((found - expected).abs() <= 1e-5 * expected, "{settings:?}: {found} instead of {expected}");
        }
    }
    for replicas in
        cases("train vision transformers of replicas", 0, [["mesh.axes=diloco=2,fsdp=4", "diloco.sync_period=2"]])
    {
        let first = losses(&mut trainer(&client, &config(&replicas)), 1)[0];
        assert!((first - plain[0]).abs() <= 1e-5 * plain[0], "{first} instead of {}", plain[0]);
    }
}

#[test]
fn it_resumes_from_a_checkpoint_on_another_mesh() {
    let client = client();
    let directory = tempfile::tempdir().expect("a folder");
    let path = format!("checkpoint.dir={:?}", directory.path());
    let config_of = |mesh: &[&str]| config(&[mesh, &[&path]].concat());
    let saved = config_of(PIPELINE);
    let mut whole = trainer(&client, &saved);
    losses(&mut whole, 3);
    let mut checkpointer = Checkpointer::new(&saved.checkpoint, Start::Fresh).expect("a directory");
    whole.save_checkpoint(&mut checkpointer).expect("a checkpoint");
    checkpointer.finish().expect("it is written");
    let expected = losses(&mut whole, 2);
    let found = checkpoint::find(directory.path(), Fallback::Refuse).expect("the checkpoint").checkpoint;
    for mesh in [PIPELINE, MESH] {
        let config = config_of(mesh);
        let run = config.resolve_for(model_of(&config)).expect("a run");
        let mut resumed = Trainer::resume_run(run, Digits, &client, &found).unwrap_or_else(|error| panic!("{error}"));
        for (found, expected) in losses(&mut resumed, 2).iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-5 * expected, "{mesh:?}: {found} instead of {expected}");
        }
    }
}

/// Only the decoder runs layers around its pipeline, and only it is published.
#[test]
fn what_another_model_cannot_have_is_refused() {
    let refused = |settings: &[&str]| {
        let config = RunConfig::from_overrides(&settings.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        match config.resolve_for(model_of(&config)) {
            Ok(_) => "taken".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    let around = ["mesh.axes=stage=2,fsdp=4", "model.layers=6", "pipeline.layers=4", "pipeline.repeats=2"];
    let found = [refused(&around), refused(&["model.preset=llama-3.2-1b"])];
    insta::assert_snapshot!(found.join("\n"), @r#"
    --set pipeline.layers=4: pipeline.layers is 4: model.layers is 6, and only the decoder runs layers around its pipeline; leave pipeline.layers out, and have the stages hold all layers
    --set model.preset=llama-3.2-1b: model.preset is "llama-3.2-1b": it is a decoder, but the run is of a model that code describes; leave the key out
    "#);
}
