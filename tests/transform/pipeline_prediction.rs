//! A lowered pipeline moves what follows from the counts of its timeline.

use std::collections::BTreeMap;

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::partition::{Amount, CollectiveKind, Ledger};
use meshloom::sharding::{MeshAxis, Role};
use meshloom::trace::{TensorSpec, Tree};
use meshloom::transform::pipeline::{Timeline, WeightPlan};
use meshloom_nn::STREAM;
use meshloom_train::config::RunConfig;
use meshloom_train::run::aliases;
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

/// Mesh axes that split rows under the rules of these tests, so weights are gathered over them.
const OF_ROWS: [&str; 3] = ["data", "fsdp", "expert"];

/// Bytes of operands on one device in a step, by kind and mesh axes.
type Traffic = BTreeMap<(CollectiveKind, Vec<String>), u64>;

/// The traffic that a pipeline should have. Layers do the same in every iteration, so it follows from the counts of its
/// timeline, and from how the weights of one repeat and the activations of one iteration are split. It leaves out
/// embedding, head, loss and optimizer, transfers within layers, and the rows that each stage gets once.
fn expected(config: &RunConfig) -> Traffic {
    let (mesh, rules) = (config.mesh().unwrap(), config.rule_sets().unwrap());
    let options = config.pipeline_options().unwrap().expect("a pipeline");
    let counts = Timeline::of(&options).counts;
    let (model, train) = (&config.model, &config.train);
    let size = |axes: &[MeshAxis]| axes.iter().map(|axis| mesh.size(*axis) as u64).product::<u64>();
    // The axes that split a value, and the bytes of one device's part.
    let part = |role, spec: &TensorSpec| {
        let texts: Vec<String> = spec.axes.iter().map(|name| name.text()).collect();
        let names: Vec<Option<&str>> = texts.iter().map(|text| Some(text.as_str())).collect();
        let dims = &spec.ty.dims;
        let split = rules.get(role).resolve(&mesh, "value", &names, dims, &mut Vec::new()).unwrap();
        let parts = (0..dims.len()).map(|dim| dims[dim].div_ceil(split.part_count(&mesh, dim)));
        let axes: Vec<MeshAxis> = split.used_axes().filter(|axis| mesh.size(*axis) > 1).collect();
        (axes, (parts.product::<usize>() * spec.ty.dtype.byte_count()) as u64)
    };
    let mut traffic = Traffic::new();
    let mut add = |kind, axes: &[MeshAxis], bytes: u64, times: usize| {
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        if size(&axes) > 1 && bytes * times as u64 > 0 {
            let names = axes.iter().map(|axis| mesh.name(*axis).to_owned()).collect();
            *traffic.entry((kind, names)).or_default() += bytes * times as u64;
        }
    };
    // The activations of one iteration `[S, mb, T, E]`. The pipeline runs once for each part of the batch.
    let rows = train.batch / train.microbatches / options.microbatches;
    let stream = TensorSpec::new(model.compute_dtype, [options.stages, rows, model.seq, model.embed]);
    let (of_stream, bytes) = part(Role::Compute, &stream.with_axes(&[&["activation_stage"], &STREAM[..]].concat()));
    let stage: Vec<MeshAxis> = mesh.axis("stage").into_iter().collect();
    add(CollectiveKind::CollectivePermute, &stage, bytes, train.microbatches * counts.permutes);
    let decoder = config.decoder().unwrap();
    let layers = decoder.parameters().layers;
    for (path, param) in layers.paths().into_iter().zip(layers.leaves()) {
        let mut used = param.spec.clone();
        used.ty.dtype = decoder.dtype_in_use(&path, &param);
        let of_experts = used.axes.iter().any(|name| name.text() == "exp");
        let stays = |axis: &MeshAxis| {
            let name = mesh.name(*axis);
            !OF_ROWS.contains(&name) || (of_experts && name == "expert")
        };
        let whole: Vec<MeshAxis> = part(Role::Compute, &used).0.into_iter().filter(stays).collect();
        let (at_rest, bytes) = part(Role::Params, &used);
        let gathered: Vec<MeshAxis> = at_rest.into_iter().filter(|axis| !whole.contains(axis)).collect();
        let of_repeat = bytes / options.repeats as u64;
        let gathers = counts.gathers_forward + counts.gathers_backward;
        add(CollectiveKind::AllGather, &gathered, of_repeat, train.microbatches * gathers);
        // Sums of gradients have at least 32 bits; those of single iterations are not sums yet.
        let widening = (4 / used.ty.dtype.byte_count()).max(1) as u64;
        let of_sum = if options.weights == WeightPlan::PerIteration { 1 } else { widening };
        let scattered = of_repeat * size(&gathered) * of_sum;
        add(CollectiveKind::ReduceScatter, &gathered, scattered, train.microbatches * counts.scatters);
        // Over axes that split rows but not the weight, its gradient is summed once, and scattered where the
        // optimizer's state is split further.
        let is_summed = |axis: &MeshAxis| !whole.contains(axis) && !gathered.contains(axis);
        let of_state = part(Role::Optimizer, &used).0;
        let summed = of_stream.iter().copied().filter(is_summed);
        let (further, summed): (Vec<MeshAxis>, Vec<MeshAxis>) = summed.partition(|axis| of_state.contains(axis));
        let (_, kept) = part(Role::Params, &param.spec);
        let sum = if train.microbatches > 1 { bytes * widening } else { kept };
        add(CollectiveKind::ReduceScatter, &further, sum, 1);
        add(CollectiveKind::AllReduce, &summed, sum / size(&further), 1);
        add(CollectiveKind::AllGather, &further, kept / size(&further), 1);
    }
    traffic
}

fn bytes_of(traffic: &Traffic, kind: CollectiveKind, axis: &str) -> u64 {
    traffic.get(&(kind, vec![axis.to_owned()])).copied().unwrap_or(0)
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

/// Bytes over `stage`, `fsdp` and `replica`, to the byte.
fn check(overrides: &[&str]) {
    check_over("fsdp", overrides);
}

/// The same where another axis than `fsdp` splits the widths of weights.
fn check_over(widths: &str, overrides: &[&str]) {
    let config = config(overrides);
    let traffic = expected(&config);
    let lowered = lowered(&config);
    let ledger = lowered.collectives();
    let mut wrong = Vec::new();
    let mut expect = |kind, axis, outside: u64| {
        let (expected, found) = (bytes_of(&traffic, kind, axis) + outside, moved(&ledger, kind, axis));
        if found != expected {
            wrong.push(format!("{kind} over {axis}: expected {expected}, found {found}"));
        }
    };
    let mesh = config.mesh().unwrap();
    let size = |name| mesh.axis(name).map_or(1, |axis| mesh.size(axis)) as u64;
    if size("stage") > 1 {
        expect(CollectiveKind::CollectivePermute, "stage", 0);
    }
    if size(widths) > 1 {
        let outside = outside(&config) / size("tensor");
        expect(CollectiveKind::AllGather, widths, outside / size(widths));
        expect(CollectiveKind::ReduceScatter, widths, outside);
    }
    if size("replica") > 1 {
        // Embedding, head and the last norm: devices along fsdp have parts of all but the norm; gradients of all are
        // `f32`.
        let tables = outside_elements(&config) / size("fsdp") / size("tensor");
        let sums = 4 * (tables + config.model.embed as u64);
        expect(CollectiveKind::ReduceScatter, "replica", sums);
        expect(CollectiveKind::AllGather, "replica", sums / size("replica"));
    }
    assert!(wrong.is_empty(), "{overrides:?}: {wrong:#?}\n{ledger}");
}

#[test]
fn every_plan() {
    for weights in ["per-iteration", "gather-once", "bsw", "bsw-split"] {
        let weights = format!("pipeline.weights={weights}");
        for keep in ["pipeline.keep_gathered=false", "pipeline.keep_gathered=true"] {
            check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=4", &weights, keep]);
        }
    }
}

/// The axis that the rules use in the place of `fsdp` changes nothing.
#[test]
fn weights_over_data() {
    for weights in ["per-iteration", "gather-once", "bsw", "bsw-split"] {
        let weights = format!("pipeline.weights={weights}");
        let rules = "rules.override=[[\"embed\", [\"data\"]]]";
        check_over("data", &["mesh.axes=stage=2,data=4", "pipeline.repeats=4", rules, &weights]);
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
    shapes.iter().for_each(|shape| check(shape));
}

#[test]
fn several_layers_per_stage() {
    check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=2", "pipeline.layers_per_stage=2"]);
}

/// The layers of a stage one by one.
#[test]
fn several_unrolled_layers_per_stage() {
    let unrolled = "model.scan_layers=false";
    check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=2", "pipeline.layers_per_stage=2", unrolled]);
}

#[test]
fn one_forward_one_backward() {
    let schedule = "pipeline.schedule=1f1b";
    check(&[
        "mesh.axes=stage=4,fsdp=2",
        "pipeline.repeats=1",
        "pipeline.layers_per_stage=2",
        "pipeline.microbatches=8",
        schedule,
    ]);
    check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=1", "model.layers=2", "pipeline.microbatches=8", schedule]);
}

/// The layers' own weights, whatever they are: those of experts keep the axis that splits experts.
#[test]
fn routed_experts() {
    let experts = ["model.family=mixtral", "mesh.axes=stage=2,fsdp=2,expert=2", "pipeline.repeats=4"];
    let config = config(&experts);
    let traffic = expected(&config);
    let (_, lowered) = config.lower_train_step().unwrap();
    assert_eq!(
        moved(&lowered.collectives(), CollectiveKind::CollectivePermute, "stage"),
        bytes_of(&traffic, CollectiveKind::CollectivePermute, "stage")
    );
    let (experts, others) = (["fsdp"], ["fsdp", "expert"]);
    for axes in [&experts[..], &others] {
        let key = (CollectiveKind::AllGather, axes.iter().map(|axis| (*axis).to_owned()).collect());
        assert!(traffic.contains_key(&key), "{axes:?}: {traffic:#?}");
    }
}

#[test]
fn half_precision() {
    for weights in ["bsw", "per-iteration"] {
        let weights = format!("pipeline.weights={weights}");
        check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=4", "model.compute_dtype=bf16", &weights]);
    }
}

/// Recomputation moves nothing over these axes.
#[test]
fn other_remat() {
    for policy in ["none", "dots"] {
        check(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=4", &format!("remat.policy={policy}")]);
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
        check(&[mesh, &parts[..]].concat());
        check(mesh);
    }
    check(&[
        "mesh.axes=replica=2,stage=2,fsdp=2",
        "pipeline.repeats=4",
        "model.compute_dtype=bf16",
        "train.microbatches=2",
    ]);
}
