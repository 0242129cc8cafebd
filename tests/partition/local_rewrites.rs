//! The rewrites of collectives, as far as `tests/filetests` cannot hold it: phases, and a whole program.

use meshloom::compile::{LowerOptions, Partitioned, lower};
use meshloom::hlo::CollectiveKind;
use meshloom::ir::{GraphBuilder, Origin, Phase, Value};
use meshloom::ops::{AllGather, AllReduce, ReduceKind};
use meshloom::partition::Ledger;
use meshloom::passes::combine_collectives;
use meshloom::pjrt::SliceLevels;
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
        let after = combine_collectives(&builder.finish(outputs, ports), 1 << 20, 1 << 20);
        Ledger::of(&after, &mesh).iter().expect("no filter").count()
    };
    assert_eq!([combined_count(Phase::Forward), combined_count(Phase::Backward)], [1, 2]);
}

fn decoder(axes: &str, options: LowerOptions<'_>) -> Partitioned {
    let axes = format!("mesh.axes=\"{axes}\"");
    let config = [
        "model.layers=2",
        "model.embed=64",
        "model.heads=4",
        "model.kv_heads=2",
        "model.head_dim=16",
        "model.mlp=160",
        "model.seq=64",
        &axes,
    ];
    let config: Vec<String> = config.iter().map(|&text| text.to_owned()).collect();
    let config = RunConfig::from_overrides(&config).unwrap();
    let function = config.train_step().unwrap().trace().unwrap();
    let (mesh, rules) = (config.mesh().unwrap(), config.rule_sets().unwrap());
    let options = LowerOptions { sharding: Some((&mesh, &rules)), ..options };
    lower(function.graph(), &options).unwrap().partitioned().expect("it is partitioned").clone()
}

/// Each pass can be switched off by its name, and what it does is seen in the count of collectives.
#[test]
fn each_rewrite_can_be_switched_off() {
    let ledger = |without: &[&str]| {
        let program = decoder("data=2,fsdp=4", LowerOptions { without, ..LowerOptions::default() });
        Ledger::of(&program.graph, &program.mesh)
    };
    let (all, apart) = (ledger(&[]), ledger(&["combine-collectives"]));
    assert!(all.count().unwrap() < apart.count().unwrap());
    assert_eq!(all.operands_moved(), apart.operands_moved());
    assert_eq!(all.moved_bytes(), apart.moved_bytes());
    let plain = ledger(&["combine-collectives", "gather-slice", "hoist-gathers"]);
    assert!(apart.moved_bytes().unwrap().bound() <= plain.moved_bytes().unwrap().bound());
    let graph = decoder("data=2,fsdp=4", LowerOptions::default()).graph;
    let error = lower(&graph, &LowerOptions { without: &["hoist-gather"], ..LowerOptions::default() });
    assert!(error.unwrap_err().to_string().contains("did you mean \"hoist-gathers\"?"));
}

/// All-reduces of gradients have a limit of their own. DiLoCo's transfers belong to the forward pass, and are combined.
#[test]
fn all_reduces_of_gradients_have_a_limit() {
    let mesh = mesh("a=2,b=4");
    let combined_count = |phase: Phase, limit: u64| {
        let mut builder = GraphBuilder::new("program");
        let inputs = [2, 4].map(|size| builder.input(f32s(&[size, 3]), rows(&mesh, &["a", "b"], 2)));
        builder.set_origin(Origin::default().in_phase(phase));
        let sum = AllReduce { group: group(&mesh, &["b"]), kind: ReduceKind::Sum };
        let outputs: Vec<Value> =
            inputs.iter().map(|&value| builder.push1(sum.clone(), &[value]).expect("a sum")).collect();
        let ports = outputs.iter().map(|_| rows(&mesh, &["a", "b"], 2)).collect();
        let after = combine_collectives(&builder.finish(outputs, ports), 1 << 20, limit);
        Ledger::of(&after, &mesh).iter().expect("no filter").count()
    };
    // The larger one has 48 bytes.
    let counts = |phase| [47, 48].map(|limit| combined_count(phase, limit));
    assert_eq!(counts(Phase::Forward), [1, 1]);
    assert_eq!(counts(Phase::Recompute), [2, 1]);
    assert_eq!(counts(Phase::Backward), [2, 1]);
}

/// Over an axis that is a whole slice, what is gathered and scattered is so in two levels, with the same bytes.
#[test]
fn whole_slices_are_crossed_in_two_levels() {
    let ledger = |levels| {
        let program = decoder("fsdp=8", LowerOptions { levels, ..LowerOptions::default() });
        Ledger::of(&program.graph, &program.mesh)
    };
    let levels = |gathers: Option<u64>| Some(SliceLevels { shape: vec![2, 4], whole: gathers.is_none(), gathers });
    let (one, two, of_gathers) = (ledger(None), ledger(levels(None)), ledger(levels(Some(1 << 10))));
    assert_eq!(one.moved_bytes(), two.moved_bytes());
    assert_eq!(one.moved_bytes(), of_gathers.moved_bytes());
    let axes = |ledger: &Ledger, kind| -> Vec<String> {
        let of_kind = ledger.iter().expect("no filter").filter(|it| it.kind == kind);
        of_kind.map(|it| it.axes.join(",")).collect()
    };
    for (kind, levels) in [
        (CollectiveKind::AllGather, ["fsdp:(4)2", "fsdp:(1)4"]),
        (CollectiveKind::ReduceScatter, ["fsdp:(1)4", "fsdp:(4)2"]),
    ] {
        let whole = axes(&one, kind);
        assert!(whole.len() > 4 && whole.iter().all(|axes| axes == "fsdp"), "{whole:?}");
        assert_eq!(axes(&two, kind), levels.repeat(whole.len()));
        let expected = if kind == CollectiveKind::AllGather { axes(&two, kind) } else { whole };
        assert_eq!(axes(&of_gathers, kind), expected);
    }
}
