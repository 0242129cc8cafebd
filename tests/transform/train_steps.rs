//! Whole train steps of run configs: how they are made, run and compared.

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::Literal;
use meshloom::passes::CollectiveLimits;
use meshloom::trace::Tree;
use meshloom_nn::Batch;
use meshloom_train::config::RunConfig;
use meshloom_train::run::{StepInput, TrainStep};

use support::anchored::{run_compiled, run_lowered};
use support::eight_devices::relative_error;

/// The config of this text with these keys set.
pub fn config(text: &str, settings: &[&str]) -> RunConfig {
    let overrides: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    RunConfig::from_toml_with(text, "run.toml", &overrides).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
}

/// Rows of documents of five tokens, and what a token weighs by its row and place.
pub fn batch(config: &RunConfig, weight: impl Fn(usize, usize) -> f32) -> Batch<Literal> {
    let dims = [config.train.batch, config.model.seq];
    let count = dims[0] * dims[1];
    let integers = |f: &dyn Fn(usize) -> usize| {
        let values: Vec<i32> = (0..count).map(|index| f(index) as i32).collect();
        Literal::from_slice(&dims, &values).expect("as many elements")
    };
    let weights: Vec<f32> = (0..count).map(|index| weight(index / dims[1], index % dims[1])).collect();
    Batch {
        tokens: integers(&|index| index * 37 % 251),
        targets: integers(&|index| index * 53 % 241),
        segment_ids: integers(&|index| index % dims[1] / 5),
        positions: integers(&|index| index % dims[1] % 5),
        weights: Literal::from_slice(&dims, &weights).expect("as many elements"),
    }
}

/// The step of a config, partitioned over its mesh by us.
pub fn lowered(step: &TrainStep, config: &RunConfig, limits: CollectiveLimits) -> Lowered {
    let function = step.trace().unwrap_or_else(|error| panic!("{error}"));
    let (mesh, rules) = (config.mesh().expect("a mesh"), config.rule_sets().expect("rules"));
    let options = LowerOptions {
        sharding: (mesh.device_count() > 1).then_some((&mesh, &rules)),
        deny_replication: true,
        limits,
        ..LowerOptions::default()
    };
    lower(function.graph(), &options).unwrap_or_else(|error| panic!("{error}"))
}

/// The backend that runs a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    /// The interpreter, which is faster than compiling.
    Interpreter,
    /// The CPU plugin, on eight devices.
    Plugin,
}

/// Runs the first step on a batch and returns its results by path.
pub fn run(step: &TrainStep, config: &RunConfig, batch: Batch<Literal>, by: By) -> Vec<(String, Literal)> {
    let inputs = StepInput { state: step.initialize(7).unwrap(), batch }.leaves();
    let lowered = lowered(step, config, CollectiveLimits::default());
    let outputs = match by {
        By::Interpreter => run_lowered(&lowered, &inputs),
        By::Plugin => run_compiled(&lowered, &inputs),
    };
    let paths = lowered.graph().output_info().iter().map(|info| info.path.to_string());
    paths.zip(outputs).collect()
}

/// Two steps have given the same, to 1e-5 of each result's norm.
#[track_caller]
pub fn assert_same(what: &[&str], found: &[(String, Literal)], expected: &[(String, Literal)]) {
    assert_eq!(found.len(), expected.len());
    for ((path, found), (other, expected)) in found.iter().zip(expected) {
        assert_eq!(path, other);
        let error = relative_error(&found.to_f64_vec(), &expected.to_f64_vec());
        assert!(error <= 1e-5, "{what:?}: {path} is off by {error:e}");
    }
}
