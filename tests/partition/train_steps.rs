//! Our own partitioner: the same numbers as one device, and the collectives that are expected.

use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;
use support::configs::{self, SHORT_RUN};
use support::eight_devices::{client, relative_error};

fn config(overrides: &[&str]) -> RunConfig {
    configs::config(&[SHORT_RUN, overrides])
}

pub(crate) fn numbers(config: &RunConfig, steps: usize) -> Vec<f64> {
    let mut trainer = Trainer::new(config, &client()).expect("a trainer");
    (0..steps).flat_map(|_| trainer.step().map(|metrics| [metrics.loss, metrics.grad_norm]).expect("a step")).collect()
}

fn check(mesh: &str) {
    let one = numbers(&config(&["mesh.axes=\"data=1,fsdp=1\"", "target.devices=1"]), 5);
    let overrides = [format!("mesh.axes=\"{mesh}\""), "partition.mode=\"explicit\"".to_owned()];
    let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
    let eight = config(&overrides);
    let (_, lowered) = eight.lower_train_step().expect("it lowers");
    let local = &lowered.partitioned().expect("a local graph").graph;
    if std::env::var("SHOW").is_ok() {
        println!("{local}");
    }
    if std::env::var("HLO").is_ok() {
        use meshloom::hlo::text::{TextOptions, print};
        println!("{}", print(&lowered.module.decode().expect("a module"), &TextOptions::canonical()));
    }
    for timing in &lowered.timings {
        println!("{timing:?}");
    }
    let found = numbers(&eight, 5);
    let error = relative_error(&found, &one);
    println!("{mesh}: {error:.1e}\n{one:?}\n{found:?}");
    assert!(error <= 1e-5, "{mesh}: {error:.1e}");
}

#[test]
fn data() {
    check("data=8");
}

#[test]
fn fsdp() {
    check("fsdp=8");
}

#[test]
fn mixed() {
    check("data=2,fsdp=4");
}

/// The plugin gets the program as StableHLO: on one device, and in a manual region.
#[test]
fn in_stablehlo() {
    let meshes: [&[&str]; 3] = [
        &["mesh.axes=\"data=1,fsdp=1\"", "target.devices=1"],
        &["mesh.axes=\"data=2,fsdp=4\"", "partition.mode=\"explicit\""],
        &["mesh.axes=\"data=2,fsdp=2,tensor=2\"", "partition.mode=\"explicit\"", "remat.policy=full"],
    ];
    for mesh in meshes {
        let numbers_in = |format: &str| numbers(&config(&[mesh, &[format]].concat()), 3);
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
    let one = numbers(&config(&[&model[..], &["mesh.axes=\"data=1\"", "target.devices=1"]].concat()), 3);
    let eight = config(&[&model[..], &["mesh.axes=\"data=2,tensor=4\"", "partition.replication=\"deny\""]].concat());
    let (_, lowered) = eight.lower_train_step().expect("it lowers");
    assert_eq!(lowered.emitted_mesh().expect("a mesh").to_string(), "data=2,tensor:(1)2=2,tensor:(2)2=2");
    // Nothing of queries, keys or scores moves forwards: only what the output projection has added up in parts.
    let moved = lowered.collectives().in_scope("attention").forward();
    println!("{moved}");
    assert_eq!(moved.count().expect("a scope"), 1);
    let found = numbers(&eight, 3);
    let error = relative_error(&found, &one);
    assert!(error <= 1e-5, "{error:.1e}");
}
