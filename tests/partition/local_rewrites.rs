//! The rewrites of collectives, as far as `tests/filetests` cannot hold it: phases, and a whole program.

use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::{Graph, GraphBuilder, Origin, Phase, Value};
use meshloom::ops::AllGather;
use meshloom::partition::Ledger;
use meshloom::passes::combine_collectives;
use meshloom_train::config::RunConfig;
use support::local_graph::*;

/// Collectives that are ready together are not combined if one is of the forward and one of the backward pass.
#[test]
fn forward_and_backward_stay_apart() {
    let mesh = mesh("a=2,b=4");
    let combined_count = |phase: Phase| {
        let mut builder = GraphBuilder::new("program");
        let inputs = [2, 4].map(|size| builder.input(f32s(&[size, 3]), rows(&mesh, &["a", "b"], 2)));
        let mut gather = |phase: Phase, value: Value| {
            builder.set_origin(Origin::default().in_phase(phase));
            builder.push1(AllGather { group: group(&mesh, &["b"]), dim: 0 }, &[value]).expect("a gather")
        };
        let outputs = vec![gather(Phase::Forward, inputs[0]), gather(phase, inputs[1])];
        let ports = outputs.iter().map(|_| rows(&mesh, &["a", "b"], 2)).collect();
        let after = combine_collectives(&builder.finish(outputs, ports), 1 << 20);
        Ledger::of(&after, &mesh).iter().expect("no filter").count()
    };
    assert_eq!([combined_count(Phase::Forward), combined_count(Phase::Backward)], [1, 2]);
}

fn decoder(without: &[&str]) -> Graph {
    let config = [
        "model.layers=2",
        "model.embed=64",
        "model.heads=4",
        "model.kv_heads=2",
        "model.head_dim=16",
        "model.mlp=160",
        "model.seq=64",
        "mesh.axes=\"data=2,fsdp=4\"",
    ];
    let config: Vec<String> = config.iter().map(|&text| text.to_owned()).collect();
    let config = RunConfig::from_overrides(&config).unwrap();
    let function = config.train_step().unwrap().trace().unwrap();
    let (mesh, rules) = (config.mesh().unwrap(), config.rule_sets().unwrap());
    let options = LowerOptions { sharding: Some((&mesh, &rules)), without, ..LowerOptions::default() };
    lower(function.graph(), &options).unwrap().partitioned().expect("it is partitioned").graph.clone()
}

/// Each pass can be switched off by its name, and what it does is seen in the count of collectives.
#[test]
fn each_rewrite_can_be_switched_off() {
    let mesh = mesh("data=2,fsdp=4");
    let ledger = |without: &[&str]| Ledger::of(&decoder(without), &mesh);
    let (all, apart) = (ledger(&[]), ledger(&["combine-collectives"]));
    println!("{all}\n{apart}");
    assert!(all.count().unwrap() < apart.count().unwrap());
    assert_eq!(all.operands_moved(), apart.operands_moved());
    assert_eq!(all.moved_bytes(), apart.moved_bytes());
    let plain = ledger(&["combine-collectives", "gather-slice", "hoist-gathers"]);
    assert!(apart.moved_bytes().unwrap().bound() <= plain.moved_bytes().unwrap().bound());
    let error = lower(&decoder(&[]), &LowerOptions { without: &["hoist-gather"], ..LowerOptions::default() });
    assert!(error.unwrap_err().to_string().contains("did you mean \"hoist-gathers\"?"));
}
