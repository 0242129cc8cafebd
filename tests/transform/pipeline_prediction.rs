//! What is predicted of a pipeline is what its lowered train step moves, and about what it needs.

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::partition::{Amount, CollectiveKind, Ledger, Memory};
use meshloom_train::config::RunConfig;
use meshloom_train::step::aliases;
use meshloom_train::{PipelinePrediction, Traffic};
use support::configs::{self, DECODER};

const MODEL: &[&str] = &[
    "model.layers=8",
    "model.mlp=128",
    "model.seq=32",
    "train.batch=32",
    "remat.policy=full",
    "pipeline.microbatches=4",
];

/// Embedding and head, whole: what else is gathered and scattered over `fsdp`, in the type that is computed in.
fn outside(config: &RunConfig) -> u64 {
    outside_elements(config) * config.model.compute_dtype.byte_count() as u64 * config.train.microbatches as u64
}

fn outside_elements(config: &RunConfig) -> u64 {
    let tables = if config.model.tied_embeddings { 1 } else { 2 };
    (config.model.vocab * config.model.embed * tables) as u64
}

fn config(overrides: &[&str]) -> RunConfig {
    configs::config(&[DECODER, MODEL, overrides])
}

fn predicted(prediction: &PipelinePrediction, kind: CollectiveKind, axis: &str) -> u64 {
    let these = |it: &&Traffic| it.kind == kind && it.axes == [axis];
    prediction.traffic.iter().filter(these).map(|it| it.bytes).sum()
}

fn moved(ledger: &Ledger, kind: CollectiveKind, axis: &str) -> Amount {
    let found = ledger.kind(kind).over_exactly(&[axis]);
    found.iter().unwrap().fold(Amount::Exactly(0), |sum, it| {
        let times = it.executions.bound().unwrap_or_else(|| panic!("{} runs an unknown number of times", it.name));
        sum.plus(Amount::Exactly(it.bytes * times))
    })
}

/// The train step. Weights this small would be gathered in front of the loop over the parts of a batch, which is not
/// predicted.
fn lowered(config: &RunConfig) -> Lowered {
    let function = config.train_step().unwrap().trace().unwrap();
    let (mesh, rules) = (config.mesh().unwrap(), config.rule_sets().unwrap());
    let without: &[&str] = if config.train.microbatches > 1 { &["loop-invariants", "hoist-gathers"] } else { &[] };
    let options = LowerOptions {
        sharding: Some((&mesh, &rules)),
        aliases: aliases(&function),
        without,
        ..LowerOptions::default()
    };
    lower(function.graph(), &options).unwrap()
}

/// Bytes over `stage` and `fsdp` to the byte; memory within `bound`, of its own.
fn check(overrides: &[&str], bound: f64) {
    let config = config(overrides);
    let prediction = config.predict_pipeline().unwrap().unwrap();
    let lowered = lowered(&config);
    let ledger = lowered.collectives();
    let mut wrong = Vec::new();
    let mut expect = |kind, axis, outside: u64| {
        let (expected, found) = (predicted(&prediction, kind, axis) + outside, moved(&ledger, kind, axis));
        if found != expected {
            wrong.push(format!("{kind} over {axis}: predicted {expected}, found {found}"));
        }
    };
    let mesh = config.mesh().unwrap();
    let size = |name| mesh.axis(name).map_or(1, |axis| mesh.size(axis)) as u64;
    if size("stage") > 1 {
        expect(CollectiveKind::CollectivePermute, "stage", 0);
    }
    if size("fsdp") > 1 {
        let outside = outside(&config) / size("tensor");
        expect(CollectiveKind::AllGather, "fsdp", outside / size("fsdp"));
        expect(CollectiveKind::ReduceScatter, "fsdp", outside);
    }
    if size("replica") > 1 {
        // Embedding, head and the last norm, of which devices along fsdp have parts, but for the norm; gradients of all
        // are `f32`.
        let tables = outside_elements(&config) / size("fsdp") / size("tensor");
        let sums = 4 * (tables + config.model.embed as u64);
        expect(CollectiveKind::ReduceScatter, "replica", sums);
        expect(CollectiveKind::AllGather, "replica", sums / size("replica"));
    }
    assert!(wrong.is_empty(), "{overrides:?}: {wrong:#?}\n{ledger}");
    let memory = Memory::of(lowered.emitted(), &lowered.aliases);
    let error = prediction.memory.peak() as f64 / memory.peak as f64 - 1.0;
    println!("{overrides:?}: memory {error:+.3} of {}: {:?}", memory.peak, prediction.memory);
    assert!(error.abs() <= bound, "{overrides:?}: memory off by {error:+.3}: {:?}\n{memory}", prediction.memory);
}

const BOUND: f64 = 0.2;

#[test]
fn every_plan() {
    for weights in ["per-iteration", "gather-once", "bsw", "bsw-split"] {
        let weights = format!("pipeline.weights={weights}");
        for keep in ["pipeline.keep_gathered=false", "pipeline.keep_gathered=true"] {
            check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=4", &weights, keep], BOUND);
        }
    }
}

#[test]
fn every_shape() {
    let shapes: &[&[&str]] = &[
        // One repeat, of one layer and of several.
        &["mesh.axes=stage=8", "pipeline.repeats=1", "pipeline.microbatches=8", "pipeline.schedule=gpipe"],
        &["mesh.axes=stage=4,fsdp=2", "pipeline.repeats=2"],
        &[
            "mesh.axes=stage=4,fsdp=2",
            "pipeline.repeats=2",
            "pipeline.microbatches=8",
            "pipeline.delay_forwarding=true",
        ],
        &["mesh.axes=stage=2,data=2,fsdp=2", "pipeline.repeats=4", "pipeline.scan_repeats=false"],
        // Without stages, but in repeats.
        &["mesh.axes=data=2,fsdp=4", "pipeline.repeats=8"],
        // Bubbles run layers: what they send within themselves is not looked at here.
        &["mesh.axes=stage=2,fsdp=2,tensor=2", "pipeline.repeats=4"],
        &["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=4", "model.tied_embeddings=true"],
    ];
    shapes.iter().for_each(|shape| check(shape, BOUND));
}

#[test]
fn several_layers_per_stage() {
    check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=2", "pipeline.layers_per_stage=2"], BOUND);
}

/// The layers of a stage one by one.
#[test]
fn several_unrolled_layers_per_stage() {
    let unrolled = "model.scan_layers=false";
    check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=2", "pipeline.layers_per_stage=2", unrolled], BOUND);
}

#[test]
fn one_forward_one_backward() {
    let schedule = "pipeline.schedule=1f1b";
    check(
        &[
            "mesh.axes=stage=4,fsdp=2",
            "pipeline.repeats=1",
            "pipeline.layers_per_stage=2",
            "pipeline.microbatches=8",
            schedule,
        ],
        BOUND,
    );
    check(
        &["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=1", "model.layers=2", "pipeline.microbatches=8", schedule],
        BOUND,
    );
}

/// The layers' own weights, whatever they are: those of experts keep the axis that splits experts.
#[test]
fn routed_experts() {
    let experts = ["model.family=mixtral", "mesh.axes=stage=2,fsdp=2,expert=2", "pipeline.repeats=4"];
    let config = config(&experts);
    let prediction = config.predict_pipeline().unwrap().unwrap();
    let (_, lowered) = config.lower_train_step().unwrap();
    assert_eq!(
        moved(&lowered.collectives(), CollectiveKind::CollectivePermute, "stage"),
        predicted(&prediction, CollectiveKind::CollectivePermute, "stage")
    );
    let (experts, others) = (["fsdp"], ["fsdp", "expert"]);
    for axes in [&experts[..], &others] {
        let of = |it: &&Traffic| it.kind == CollectiveKind::AllGather && it.axes == axes;
        assert!(prediction.traffic.iter().any(|it| of(&it) && it.what == "weights"), "{axes:?}: {prediction:#?}");
    }
}

#[test]
fn half_precision() {
    for weights in ["bsw", "per-iteration"] {
        let weights = format!("pipeline.weights={weights}");
        check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=4", "model.compute_dtype=bf16", &weights], BOUND);
    }
}

/// What a layer keeps is read off two layers that are lowered by themselves. Next to each other they hold more than the
/// stash of a pipeline has of each, so that this is an upper bound.
#[test]
fn other_remat() {
    const BOUND: f64 = 0.4;
    for policy in ["none", "dots"] {
        check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=4", &format!("remat.policy={policy}")], BOUND);
    }
}

/// The pipeline runs once for each part of the batch; what is added up over replicas crosses once.
#[test]
fn parts_of_a_batch() {
    let parts = ["train.batch=64", "train.microbatches=2"];
    for mesh in [
        &["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=4"][..],
        &["mesh.axes=replica=2,stage=2,fsdp=2", "pipeline.repeats=4"],
        &["mesh.axes=replica=2,stage=2,fsdp=2", "pipeline.repeats=4", "pipeline.weights=per-iteration"],
        &["mesh.axes=replica=2,stage=2,fsdp=2", "pipeline.repeats=4", "pipeline.weights=gather-once"],
        &["mesh.axes=replica=2,stage=2,data=2", "pipeline.repeats=4"],
    ] {
        check(&[mesh, &parts[..]].concat(), BOUND);
        check(mesh, BOUND);
    }
    check(
        &[
            "mesh.axes=replica=2,stage=2,fsdp=2",
            "pipeline.repeats=4",
            "model.compute_dtype=bf16",
            "train.microbatches=2",
        ],
        BOUND,
    );
}
