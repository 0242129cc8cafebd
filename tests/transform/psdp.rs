//! Partially sharded data parallelism and gradient accumulation (specs/psdp.md): whole train steps equal the plain one
//! on one device, and what crosses the axis `replica` is known to the byte.

use std::collections::BTreeMap;

use crate::transform::pairs;
use crate::transform::train_steps::{self, By, assert_same, batch, lowered};
use insta::assert_snapshot;
use meshloom::compile::{LowerOptions, PartitionMode, lower};
use meshloom::hlo::text::{TextOptions, print};
use meshloom::ir::Literal;
use meshloom::optim::{AdamW, Optimizer};
use meshloom::partition::{Amount, CollectiveKind, Ledger};
use meshloom::passes::CollectiveLimits;
use meshloom::sharding::Role;
use meshloom::trace::{Param, Tree};
use meshloom_train::config::RunConfig;
use meshloom_train::run::TrainStep;
use support::cases::cases;

const MODEL: &str = r#"
[model]
layers = 2
embed = 16
heads = 2
kv_heads = 2
head_dim = 8
mlp = 32
vocab = 256
seq = 8
[train]
batch = 64
clip_norm = 0.05
"#;

/// A config with these keys set.
fn config(settings: &[&str]) -> RunConfig {
    train_steps::config(MODEL, settings)
}

/// Its train step. Without a large epsilon a first step is the sign of the gradient, and rounding decides on that of
/// what is almost zero.
fn train_step(config: &RunConfig) -> TrainStep {
    let mut step = config.train_step().unwrap();
    step.optimizer = Optimizer::AdamW(AdamW { epsilon: 1e-2, ..step.optimizer.adamw().clone() });
    step
}

/// Runs a step and returns its results by path: loss, norm of the gradient, new parameters and moments. Some tokens
/// count less than others, some not at all, and some rows hardly: a mean of the means of microbatches is far from the
/// mean.
fn run(config: &RunConfig, by: By) -> Vec<(String, Literal)> {
    let weight = |row: usize, place: usize| match (row, place) {
        (row, place) if row % 3 == 1 && place > 0 => 0.0,
        (_, place) => [1.0, 0.25, 0.0, 0.5][place % 4],
    };
    train_steps::run(&train_step(config), config, batch(config, weight), by)
}

/// As [`run`] on one device, the batch in one part unless the settings say otherwise.
fn plain(settings: &[&str]) -> Vec<(String, Literal)> {
    run(&config(&[&["mesh.axes=data=1", "target.devices=1"], settings].concat()), By::Interpreter)
}

#[track_caller]
fn check(settings: &[&str], by: By, expected: &[(String, Literal)]) {
    assert_same(settings, &run(&config(settings), by), expected);
}

const MICROBATCHES: [&str; 4] =
    ["train.microbatches=1", "train.microbatches=2", "train.microbatches=4", "train.microbatches=8"];

/// Activations drop by their place in the batch, so the same ones do in any form.
const DROPOUT: &str = "model.dropout=0.2";

#[test]
fn equal_to_the_plain_step() {
    const MESHES: [&[&str]; 8] = [
        &["mesh.axes=fsdp=8"],
        &["mesh.axes=replica=2,fsdp=4"],
        &["mesh.axes=replica=4,fsdp=2"],
        &["mesh.axes=replica=8"],
        &["mesh.axes=replica=2,data=2,fsdp=2"],
        &["mesh.axes=replica=2,fsdp=2,tensor=2"],
        &["mesh.axes=replica=2,fsdp=2,context=2"],
        &["mesh.axes=data=1", "target.devices=1"],
    ];
    let expected = plain(&[DROPOUT]);
    for [mesh, microbatches] in pairs::of_two("transform psdp meshes", [MESHES.len(), MICROBATCHES.len()]) {
        let settings = [MESHES[mesh], &[MICROBATCHES[microbatches], DROPOUT]].concat();
        check(&settings, By::Interpreter, &expected);
    }
}

#[test]
fn compiled() {
    let expected = plain(&[DROPOUT]);
    for microbatches in cases("transform psdp compiled", 1, [MICROBATCHES[2], MICROBATCHES[0]]) {
        check(&["mesh.axes=replica=2,fsdp=2,tensor=2", microbatches, DROPOUT], By::Plugin, &expected);
    }
}

#[test]
fn around_a_pipeline() {
    const PIPELINES: [[&str; 3]; 3] = [
        ["pipeline.repeats=1", "pipeline.schedule=gpipe", "pipeline.microbatches=2"],
        ["pipeline.repeats=1", "pipeline.schedule=1f1b", "pipeline.microbatches=4"],
        ["pipeline.repeats=1", "pipeline.weights=bsw", "pipeline.microbatches=2"],
    ];
    let expected = plain(&[DROPOUT]);
    for [pipeline, microbatches] in pairs::of_two("transform psdp pipelines", [3, 3]) {
        let mesh = ["mesh.axes=replica=2,stage=2,fsdp=2", MICROBATCHES[microbatches], DROPOUT];
        check(&[&mesh[..], &PIPELINES[pipeline]].concat(), By::Interpreter, &expected);
    }
}

/// The load-balance loss of routed experts is that of each microbatch.
#[test]
fn routed_experts() {
    let sizes = ["model.family.experts=4", "model.family.moe_mlp=16"];
    let family = [&["model.family=mixtral", "train.batch=32", DROPOUT], &sizes[..]].concat();
    for (microbatches, by) in [(MICROBATCHES[0], By::Interpreter), (MICROBATCHES[1], By::Plugin)] {
        let settings = [&family[..], &[microbatches]].concat();
        let one = [&["mesh.axes=data=1", "target.devices=1"], &settings[..]].concat();
        let expected = run(&config(&one), By::Interpreter);
        check(&[&["mesh.axes=replica=2,fsdp=2,expert=2"], &settings[..]].concat(), by, &expected);
    }
}

/// The three mappings of seeds/003, as they are written there: the batch over (replica, data), parameters over data,
/// optimizer state over (replica, data). In that order the parts of the state are not parts of what a device has of a
/// gradient.
#[test]
fn mappings_of_the_seed() {
    const ORDERS: [&str; 2] = [r#"["replica","data"]"#, r#"["data","replica"]"#];
    let expected = plain(&[]);
    for [microbatches, order] in pairs::of_two("transform psdp mappings", [3, 2]) {
        let order = ORDERS[order];
        let state = format!(r#"rules.optimizer.override=[["embed",{order}],["norm",{order}]]"#);
        check(&[&SEED[..], &[&state, MICROBATCHES[microbatches]]].concat(), By::Interpreter, &expected);
    }
}

const SEED: [&str; 3] = [
    "mesh.axes=replica=2,data=2,model=2",
    concat!(
        r#"rules.list=[["activation_batch",["replica","data"]],["activation_heads",["model"]],["activation_kv_heads",["model"]],"#,
        r#"["activation_mlp",["model"]],["activation_vocab",["model"]],["embed",["data"]],["heads",["model"]],"#,
        r#"["kv_heads",["model"]],["mlp",["model"]],["vocab",["model"]]]"#
    ),
    "rules.strict=false",
];

/// Collectives of some kind over `replica`: number, and operand bytes.
type Crossing = BTreeMap<(CollectiveKind, String), (usize, u64)>;

/// Returns the collectives that cross `replica`, one for each tensor; they must be outside of all loops.
fn crossing(ledger: &Ledger) -> Crossing {
    let mut found = Crossing::new();
    for entry in ledger.over("replica").iter().expect("there is such an axis") {
        assert_eq!((entry.loop_depth, entry.executions), (0, Amount::Exactly(1)), "{entry:?}");
        let sum = found.entry((entry.kind, entry.axes.join(","))).or_default();
        *sum = (sum.0 + 1, sum.1 + entry.bytes);
    }
    found
}

fn crossing_of(settings: &[&str]) -> Crossing {
    // One collective for each tensor, to count them.
    let limits = CollectiveLimits { combined_bytes: 0, ..CollectiveLimits::default() };
    let config = config(settings);
    crossing(&lowered(&train_step(&config), &config, limits).collectives())
}

/// One reduce-scatter and one all-gather for each parameter, whatever the number of microbatches. Besides, scalars: the
/// weight of the batch, its loss, the norm of the gradient.
#[test]
fn crosses_once() {
    let mut declared: Vec<Param> = Vec::new();
    train_step(&config(&[]))
        .state()
        .params
        .visit(&mut Default::default(), &mut |_, param| declared.push(param.clone()));
    let elements: usize = declared.iter().map(|param| param.spec.ty.element_count()).sum();
    let (parameters, size) = (declared.len(), elements as u64);
    for (settings, dtype_bytes) in [
        (&["mesh.axes=replica=2,fsdp=4"][..], 4),
        (&["mesh.axes=replica=4,fsdp=2"], 4),
        (&["mesh.axes=replica=8"], 4),
        (&["mesh.axes=replica=2,fsdp=4", "model.scan_layers=false"], 4),
        // Gradients are added up in full precision; parameters are gathered as they are kept.
        (&["mesh.axes=replica=2,fsdp=4", "model.param_dtype=bf16", "model.compute_dtype=bf16"], 2),
    ] {
        let first = crossing_of(&[settings, &MICROBATCHES[1..2]].concat());
        for microbatches in &MICROBATCHES[2..] {
            assert_eq!(crossing_of(&[settings, &[microbatches]].concat()), first, "{settings:?} {microbatches}");
        }
        let config = config(settings);
        let mesh = config.mesh().expect("a mesh");
        let along = |axis: &str| mesh.axis(axis).map_or(1, |axis| mesh.size(axis)) as u64;
        let (replicas, fsdp) = (along("replica"), along("fsdp"));
        // Norms are not split over fsdp.
        let norms: u64 = declared
            .iter()
            .filter(|param| param.spec.ty.rank() == param.stacked_dims + 1)
            .map(|p| p.spec.ty.element_count() as u64)
            .sum();
        let on_one_device = (size - norms) / fsdp + norms;
        let expected_count = if config.model.scan_layers { parameters } else { parameters + (parameters - 3) };
        let scatters = first.get(&(CollectiveKind::ReduceScatter, "replica".to_owned()));
        assert_eq!(scatters, Some(&(expected_count, 4 * on_one_device)), "{settings:?}: {first:#?}");
        let gathers = first.get(&(CollectiveKind::AllGather, "replica".to_owned()));
        let gathered = dtype_bytes * on_one_device / replicas;
        assert_eq!(gathers, Some(&(expected_count, gathered)), "{settings:?}: {first:#?}");
        let scalars = first.iter().filter(|((kind, _), _)| *kind == CollectiveKind::AllReduce);
        assert!(scalars.clone().all(|(_, &(count, bytes))| bytes == 4 * count as u64), "{settings:?}: {first:#?}");
        assert_eq!(first.len(), 2 + scalars.count(), "{settings:?}: {first:#?}");
        // Without a loop the same tensors cross.
        let whole = crossing_of(&[settings, &MICROBATCHES[..1]].concat());
        let key = (CollectiveKind::AllGather, "replica".to_owned());
        assert_eq!(whole.get(&key), first.get(&key), "{settings:?}: {whole:#?}");
    }
}

/// Each tensor crosses once also around a pipeline and with tensor parallelism; loops of stages and layers are inside
/// the one of microbatches.
#[test]
fn crosses_once_with_other_axes() {
    let pipeline = ["mesh.axes=replica=2,stage=2,fsdp=2", "pipeline.repeats=1", "pipeline.microbatches=2"];
    for settings in [
        &["mesh.axes=replica=2,fsdp=2,tensor=2"][..],
        &["mesh.axes=replica=2,data=2,fsdp=2"],
        &["mesh.axes=replica=2,fsdp=2,context=2"],
        &pipeline,
        &[&pipeline[..], &["pipeline.schedule=1f1b"]].concat(),
    ] {
        let found = MICROBATCHES[..3].iter().map(|microbatches| crossing_of(&[settings, &[microbatches]].concat()));
        let found: Vec<Crossing> = found.collect();
        assert_eq!(found[1], found[2], "{settings:?}");
        for crossing in &found {
            for ((kind, axes), (count, bytes)) in crossing {
                let of_tensors = [CollectiveKind::ReduceScatter, CollectiveKind::AllGather].contains(kind);
                assert!(of_tensors || *bytes == 4 * *count as u64, "{settings:?}: {kind:?} {axes}: {count}, {bytes}");
            }
            let count = |kind| -> usize { crossing.iter().filter(|((k, _), _)| *k == kind).map(|(_, (n, _))| n).sum() };
            let gathers = count(CollectiveKind::AllGather);
            assert_eq!((count(CollectiveKind::ReduceScatter), gathers), (12, 12), "{settings:?}: {crossing:#?}");
        }
    }
}

/// Each device has one part in (replicas x data) of the optimizer's state.
#[test]
fn optimizer_state_is_fully_sharded() {
    let norms = r#"rules.optimizer.override=[["norm",["fsdp","replica"]]]"#;
    for (mesh, parts) in [("replica=2,fsdp=4", 8), ("replica=4,fsdp=2", 8), ("replica=2,fsdp=2,tensor=2", 4)] {
        let config = config(&[&format!("mesh.axes={mesh}"), norms, "train.microbatches=2"]);
        let mesh = config.mesh().expect("a mesh");
        let lowered = lowered(&train_step(&config), &config, CollectiveLimits::default());
        let (mut own, mut whole) = (0, 0);
        for (info, ty) in lowered.graph().input_info().iter().zip(lowered.graph().input_types()) {
            let Some(spec) = info.spec.as_ref().filter(|_| info.role == Role::Optimizer) else { continue };
            let local = spec.local_dims(&mesh, &ty.dims).expect("it divides");
            own += local.iter().product::<usize>();
            whole += ty.element_count();
            assert!(local.iter().product::<usize>() * parts <= ty.element_count(), "{}", info.path);
        }
        assert!(whole > 0);
        let tensor = mesh.axis("tensor").map_or(1, |axis| mesh.size(axis));
        assert!(own * parts <= whole && own * parts * tensor >= whole, "{mesh}: {own} of {whole}");
        if tensor == 1 {
            assert_eq!(own * parts, whole, "{mesh}");
        }
    }
}

/// The step as it is before and after partitioning.
#[test]
fn programs() {
    let _bound = support::snapshots_in("hlo_snapshots/psdp");
    let config = config(&["mesh.axes=replica=2,fsdp=4", "train.microbatches=2"]);
    let function = train_step(&config).trace().unwrap_or_else(|error| panic!("{error}"));
    let (mesh, rules) = (config.mesh().expect("a mesh"), config.rule_sets().expect("rules"));
    for (stage, partition) in [("global", PartitionMode::GSPMD), ("local", PartitionMode::Explicit)] {
        let sharding = Some((&mesh, &rules));
        let options = LowerOptions { sharding, partition, omit_metadata: true, ..LowerOptions::default() };
        let lowered = lower(function.graph(), &options).unwrap_or_else(|error| panic!("{error}"));
        assert_snapshot!(stage, print(&lowered.module.decode().expect("a module"), &TextOptions::canonical()));
    }
}
