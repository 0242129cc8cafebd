//! Train steps of decoders whose layers are a pipeline: of every family, they compute what the layers compute one after the other on one
//! device.

// A test says what it found by panicking.
#![allow(clippy::panic)]

mod eight_devices;
mod support;

use eight_devices::{client, relative_error};
use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::Literal;
use meshloom::nn::Batch;
use meshloom::trace::Tree;
use meshloom::train::config::{ModelFamily, RunConfig};
use meshloom::train::step::StepInput;
use support::interpret::interpret;
use support::spmd::run_local;

const MODEL: &str = r#"
[model]
layers = 4
embed = 16
heads = 2
kv_heads = 2
head_dim = 8
mlp = 32
vocab = 256
seq = 8
experts = 4
moe_mlp = 16
q_lora = 8
kv_lora = 8
rope_head_dim = 4
v_head_dim = 8
[train]
batch = 16
[remat]
policy = "full"
"#;

/// A config with these keys set.
fn config(settings: &[&str]) -> RunConfig {
    let overrides: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    RunConfig::from_toml_with(MODEL, "run.toml", &overrides).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
}

fn batch(config: &RunConfig) -> Batch<Literal> {
    let dims = [config.train.batch, config.model.seq];
    let count = dims[0] * dims[1];
    let integers = |f: &dyn Fn(usize) -> usize| {
        let values: Vec<i32> = (0..count).map(|index| f(index) as i32).collect();
        Literal::from_slice(&dims, &values).expect("as many elements")
    };
    let weights: Vec<f32> = (0..count).map(|index| if index % 7 == 3 { 0.0 } else { 1.0 }).collect();
    Batch {
        tokens: integers(&|index| index * 37 % 251),
        targets: integers(&|index| index * 53 % 241),
        segment_ids: integers(&|index| index % dims[1] / 5),
        positions: integers(&|index| index % dims[1] % 5),
        weights: Literal::from_slice(&dims, &weights).expect("as many elements"),
    }
}

fn run_compiled(lowered: &Lowered, inputs: &Vec<Literal>) -> Vec<Literal> {
    let program = lowered.compile(&client()).unwrap_or_else(|error| panic!("{error}"));
    let arguments = program.put(0, inputs).expect("the inputs fit").leaves();
    let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
    outputs.iter().map(|output| output.get().expect("a result")).collect()
}

/// What a step returns, by path: loss, norm of the gradient, and the moments that say what the gradient was.
fn step(config: &RunConfig) -> Vec<(String, Literal)> {
    let step = config.train_step();
    let function = step.trace().unwrap_or_else(|error| panic!("{error}"));
    let inputs = StepInput { state: step.initialize(7), batch: batch(config) }.leaves();
    let (mesh, rules) = (config.mesh().expect("a mesh"), config.rule_sets().expect("rules"));
    let options = LowerOptions {
        sharding: (mesh.device_count() > 1).then_some((&mesh, &rules)),
        explicit: true,
        deny_replication: true,
        ..LowerOptions::default()
    };
    let lowered = lower(function.graph(), &options).unwrap_or_else(|error| panic!("{error}"));
    // The interpreter, which is faster than compiling, knows no sort.
    let outputs = match (&lowered.local, &lowered.local_mesh) {
        _ if config.model.family != ModelFamily::Llama => run_compiled(&lowered, &inputs),
        (Some(local), Some(mesh)) => run_local(local, mesh, &inputs).unwrap_or_else(|error| panic!("{error}")),
        _ => interpret(&lowered.graph, &inputs),
    };
    let paths = function.graph().output_info().iter().map(|info| info.path.to_string());
    paths.zip(outputs).filter(|(path, _)| !path.contains(".params.") && !path.starts_with("state.params")).collect()
}

/// As [`step`] with the layers one after the other, on one device.
fn expected(settings: &[&str]) -> Vec<(String, Literal)> {
    step(&config(&[settings, &["mesh.axes=data=1", "target.devices=1"]].concat()))
}

#[track_caller]
fn check(family: &[&str], pipeline: &[&str], expected: &[(String, Literal)]) {
    let found = step(&config(&[family, pipeline].concat()));
    assert_eq!(found.len(), expected.len());
    for ((path, found), (other, expected)) in found.iter().zip(expected) {
        assert_eq!(path, other);
        let error = relative_error(&found.to_f64_vec(), &expected.to_f64_vec());
        assert!(error <= 1e-5, "{family:?} {pipeline:?}: {path} is off by {error:e}");
    }
}

const SLIDING: &[&str] = &["pipeline.repeats=2", "pipeline.weights=bsw"];
const ONCE: &[&str] = &["pipeline.repeats=2", "pipeline.weights=gather-once"];
const DEEP: &[&str] = &["pipeline.repeats=1", "pipeline.layers_per_stage=2", "pipeline.schedule=gpipe"];
const ONE_LOOP: &[&str] = &["pipeline.repeats=1", "pipeline.layers_per_stage=2", "pipeline.schedule=1f1b"];

fn over(mesh: &'static str, pipeline: &[&'static str]) -> Vec<&'static str> {
    [&[mesh], pipeline].concat()
}

#[test]
fn llama() {
    let expected = expected(&[]);
    for pipeline in [SLIDING, ONCE, DEEP, ONE_LOOP] {
        for mesh in [
            "mesh.axes=stage=2,data=2,fsdp=2",
            "mesh.axes=stage=2,fsdp=2,tensor=2",
            "mesh.axes=stage=2,fsdp=2,context=2",
        ] {
            check(&[], &over(mesh, pipeline), &expected);
        }
    }
    check(&[], &over("mesh.axes=stage=4,fsdp=2", &["pipeline.repeats=1", "pipeline.schedule=1f1b"]), &expected);
    check(&[], &over("mesh.axes=stage=4,fsdp=2", &["pipeline.repeats=1", "pipeline.schedule=gpipe"]), &expected);
}

/// Rules of the shape of MaxText's for pipelines (pipeline-large-moe), from a file.
#[test]
fn rules_from_a_file() {
    let family = ["model.family=mixtral", "rules.file=tests/rule_files/pipelined-experts.yml"];
    let expected = expected(&["model.family=mixtral"]);
    check(&family, &over("mesh.axes=data=2,stage=2,fsdp=2", SLIDING), &expected);
    let dense = ["rules.file=tests/rule_files/pipelined-experts.yml"];
    let expected = self::expected(&[]);
    for pipeline in [SLIDING, ONE_LOOP] {
        check(&dense, &over("mesh.axes=stage=2,fsdp=2,tensor=2", pipeline), &expected);
    }
}

/// Masks are drawn by layer, microbatch and position: the same however the layers of so many stages are run.
#[test]
fn dropout() {
    let settings = ["model.dropout=0.3"];
    let first = step(&config(&[&settings[..], &over("mesh.axes=stage=2,data=2,fsdp=2", SLIDING)].concat()));
    let others = [
        over("mesh.axes=stage=2,fsdp=4", DEEP),
        over("mesh.axes=stage=2,fsdp=2,tensor=2", ONCE),
        over("mesh.axes=stage=2,data=2,fsdp=2", ONE_LOOP),
    ];
    for pipeline in others {
        check(&settings, &pipeline, &first);
    }
    let without = step(&config(&over("mesh.axes=stage=2,data=2,fsdp=2", SLIDING)));
    let loss =
        |found: &[(String, Literal)]| found.iter().find(|(path, _)| path == "loss").map(|(_, loss)| loss.clone());
    assert_ne!(loss(&first), loss(&without));
}

#[test]
fn tied_embeddings() {
    let tied = ["model.tied_embeddings=true"];
    let expected = expected(&tied);
    for pipeline in [SLIDING, ONE_LOOP] {
        check(&tied, &over("mesh.axes=stage=2,data=2,fsdp=2", pipeline), &expected);
    }
}

#[test]
fn mixtral() {
    let family = ["model.family=mixtral"];
    let expected = expected(&family);
    for pipeline in [SLIDING, ONE_LOOP] {
        check(&family, &over("mesh.axes=stage=2,fsdp=2,expert=2", pipeline), &expected);
    }
}

/// Latent attention, shared and routed experts, each layer in two halves of the microbatch.
#[test]
fn deepseek_in_halves() {
    let family = ["model.family=deepseek", "train.batch=32"];
    let expected = expected(&family);
    let halves = ["model.family=deepseek", "train.batch=32", "model.batch_split=true"];
    for pipeline in [SLIDING, ONE_LOOP] {
        check(&halves, &over("mesh.axes=stage=2,fsdp=2,expert=2", pipeline), &expected);
    }
}
