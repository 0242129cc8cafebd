//! Our own partitioner: the same numbers as one device, and the collectives that are expected. `train/runs.rs` compares
//! the meshes that only data or parameters are split over.

use meshloom::ir::{Graph, Literal, TensorType};
use meshloom::pjrt::Client;
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;
use support::cases::cases;
use support::configs::{self, SHORT_RUN};
use support::eight_devices::{client, relative_error};
use support::experts::check_equal;
use support::interpret::interpret;
use support::spmd::run_local;

/// Sizes for a step that is interpreted.
pub(crate) const SMALL: &[&str] = &["model.layers=2", "model.mlp=48", "model.seq=16", "train.batch=8"];

fn config(overrides: &[&str]) -> RunConfig {
    configs::config(&[SHORT_RUN, overrides])
}

pub(crate) fn numbers(config: &RunConfig, steps: usize) -> Vec<f64> {
    numbers_on(&client(), config, steps)
}

fn numbers_on(client: &Client, config: &RunConfig, steps: usize) -> Vec<f64> {
    let mut trainer = Trainer::new(config, client).expect("a trainer");
    (0..steps).flat_map(|_| trainer.step().map(|metrics| [metrics.loss, metrics.grad_norm]).expect("a step")).collect()
}

/// Returns numbers that every input of a step takes: tokens and places are small, second moments are not negative.
pub(crate) fn inputs(graph: &Graph) -> Vec<Literal> {
    let number = |ty: &TensorType, index: usize| {
        if ty.dtype.is_float() { ((index * 37 + 11) % 101) as f64 / 1000.0 } else { (index % 7) as f64 }
    };
    graph.input_types().map(|ty| Literal::from_fn(ty.clone(), |index| number(ty, index))).collect()
}

/// Checks, by the interpreter, that a step of a small model on a mesh gives what one device does: the new state, and
/// the loss.
pub(crate) fn check_interpreted(model: &[&str], mesh: &[&str]) {
    let config = configs::config(&[SHORT_RUN, SMALL, model, mesh]);
    let (function, lowered) = config.lower_train_step().expect("it lowers");
    let inputs = inputs(function.graph());
    let local = lowered.partitioned().expect("a local graph");
    let found = run_local(&local.graph, &local.mesh, &inputs).unwrap_or_else(|error| panic!("{error}"));
    let [found, expected] = [found, interpret(function.graph(), &inputs)]
        .map(|literals| literals.iter().map(Literal::to_f64_vec).collect::<Vec<_>>());
    check_equal(&format!("{mesh:?}"), &found, &expected, 1e-5);
}

/// The plugin gets the program as StableHLO, in a manual region and on one device.
#[test]
fn in_stablehlo() {
    let meshes: [&[&str]; 3] = [
        &["mesh.axes=\"data=2,fsdp=4\"", "partition.mode=\"explicit\""],
        &["mesh.axes=\"data=1,fsdp=1\"", "target.devices=1"],
        &["mesh.axes=\"data=2,fsdp=2,tensor=2\"", "partition.mode=\"explicit\"", "remat.policy=full"],
    ];
    for mesh in cases("partition stablehlo", 1, meshes) {
        // Each format has its own client.
        let numbers_in = |format: &str| numbers_on(&support::client_of(8), &config(&[mesh, &[format]].concat()), 3);
        let (hlo, stablehlo) = (numbers_in("target.format=hlo"), numbers_in("target.format=stablehlo"));
        let error = relative_error(&stablehlo, &hlo);
        assert!(error <= 1e-6, "{mesh:?}: {error:.1e}\n{hlo:?}\n{stablehlo:?}");
    }
}

/// Fewer groups of keys than devices along `tensor`: the axis is cut, so that the queries of a device stay on it.
#[test]
fn sub_axes_of_grouped_attention() {
    let model = [
        "rules.preset=\"decoder-all-reduce\"",
        "model.heads=8",
        "model.kv_heads=2",
        "rules.override=[[\"kv_heads\", []], [\"activation_kv_heads\", []]]",
    ];
    let mesh = ["mesh.axes=\"data=2,tensor=4\"", "partition.replication=\"deny\""];
    let eight = config(&[&model[..], &mesh].concat());
    let (_, lowered) = eight.lower_train_step().expect("it lowers");
    assert_eq!(lowered.emitted_mesh().expect("a mesh").to_string(), "data=2,tensor:(1)2=2,tensor:(2)2=2");
    // Nothing of queries, keys or scores moves forwards: only what the output projection has added up in parts.
    let moved = lowered.collectives().in_scope("attention").forward();
    assert_eq!(moved.count().expect("a scope"), 1, "{moved}");
    check_interpreted(&model, &mesh);
    for eight in cases("partition sub-axes by XLA", 0, [&eight]) {
        let one = numbers(&config(&[&model[..], &["mesh.axes=\"data=1\"", "target.devices=1"]].concat()), 3);
        let error = relative_error(&numbers(eight, 3), &one);
        assert!(error <= 1e-5, "{error:.1e}");
    }
}
