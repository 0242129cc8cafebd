//! Collective matmul: rings compute what gathers, products and scatters do, and send as many bytes.

use crate::partition::train_steps::{check_interpreted, numbers as steps_of};
use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::{DType, Graph, GraphBuilder, PortInfo, TensorType, Value, verify};
use meshloom::ops::{
    AllGather, Binary, BinaryKind, Convert, DotDims, DotGeneral, Group, Precision, ReduceScatter, Unary, UnaryKind,
};
use meshloom::partition::{CollectiveKind, Ledger};
use meshloom::passes::{CollectiveLimits, CollectiveMatmul, collective_matmul};
use meshloom::sharding::{Axes, Mesh, Spec};
use meshloom_train::config::RunConfig;
use support::cases::cases;
use support::configs::{self, SHORT_RUN};
use support::eight_devices::relative_error;
use support::interpret::interpret;
use support::random::Random;
use support::spmd::run_local;
use support::{inputs_of, local_graph};

/// A block whose activations are split along their length, and whose weights along what is between its products.
#[derive(Clone, Debug)]
struct Block {
    batch: usize,
    /// The length that a device has.
    part: usize,
    embed: usize,
    /// The features between the products that a device has.
    hidden: usize,
    out: usize,
    /// For each product of the gathered value: whether it is the left operand.
    is_left: Vec<bool>,
    /// Whether the length comes before the batch.
    length_first: bool,
    /// Whether the last products have their weights on the left, so that the length comes last.
    out_first: bool,
    /// Whether the gathered value is read by the gradient of a weight too.
    has_gradient: bool,
    /// Whether it is a result.
    is_result: bool,
    /// Whether the products are converted before they are added up.
    is_converted: bool,
}

impl Block {
    /// Without a product.
    const PLAIN: Block = Block {
        batch: 1,
        part: 1,
        embed: 1,
        hidden: 1,
        out: 1,
        is_left: Vec::new(),
        length_first: false,
        out_first: false,
        has_gradient: false,
        is_result: false,
        is_converted: false,
    };

    fn random(random: &mut Random) -> Block {
        let mut flag = || random.below(2) == 0;
        let [length_first, out_first, has_gradient, is_result, is_converted] = [(); 5].map(|()| flag());
        let is_left = (0..1 + random.below(3)).map(|_| random.below(2) == 0).collect();
        let [batch, part, embed, hidden, out] = [(); 5].map(|()| 1 + random.below(4));
        let sizes = Block { batch, part, embed, hidden, out, ..Block::PLAIN };
        Block { is_left, length_first, out_first, has_gradient, is_result, is_converted, ..sizes }
    }

    /// The dimension of the activations that is split.
    fn length(&self) -> usize {
        usize::from(!self.length_first)
    }

    /// The block on one of a group's devices, or on one device that has it whole: of `size` parts.
    fn graph(&self, size: usize, mesh: Option<(&Mesh, &Axes)>) -> Graph {
        let Block { batch, part, embed, hidden, out, .. } = *self;
        let parts = if mesh.is_some() { 1 } else { size };
        let mut builder = GraphBuilder::new("block");
        let port = |rank: usize, split: Option<usize>| {
            let of_dim = |axes: &Axes, dim: usize| if Some(dim) == split { axes.clone() } else { Axes::new() };
            let spec = mesh.map(|(_, axes)| Spec::new((0..rank).map(|dim| of_dim(axes, dim))));
            PortInfo { spec, ..PortInfo::default() }
        };
        let f32s = |dims: &[usize]| TensorType::new(DType::F32, dims);
        let mut activations = [batch, part * parts, 3];
        if self.length_first {
            activations.swap(0, 1);
        }
        let x = builder.input(f32s(&activations), port(3, Some(self.length())));
        let first = builder.input(f32s(&[3, embed]), port(2, None));
        let weights: Vec<[Value; 2]> = (self.is_left.iter())
            .map(|_| {
                let up = builder.input(f32s(&[embed, hidden * parts]), port(2, Some(1)));
                [up, builder.input(f32s(&[hidden * parts, out]), port(2, Some(0)))]
            })
            .collect();
        let group = mesh.map(|(mesh, axes)| Group::new(mesh, axes));
        // The activations were computed a moment ago; the weights were not.
        let x = dot(&mut builder, [x, first], &[2], &[0]);
        let gather = |group: Group| AllGather { group, dim: self.length() };
        let whole = match group.clone() {
            Some(group) => builder.push1(gather(group), &[x]).expect("a gather"),
            None => x,
        };
        let mut outputs = Vec::new();
        let mut sum: Option<Value> = None;
        for (index, (&is_left, &[up, down])) in self.is_left.iter().zip(&weights).enumerate() {
            let made = match is_left {
                true => dot(&mut builder, [whole, up], &[2], &[0]),
                false => dot(&mut builder, [up, whole], &[0], &[2]),
            };
            let (features, rest) = if is_left { (2, [0, 1]) } else { (0, [1, 2]) };
            if self.has_gradient && index == 0 {
                outputs.push((dot(&mut builder, [whole, made], &[0, 1], &rest), port(2, Some(1))));
            }
            let between = builder.push1(Unary(UnaryKind::Negate), &[made]).expect("an elementwise op");
            let mut term = match self.out_first {
                true => dot(&mut builder, [down, between], &[0], &[features]),
                false => dot(&mut builder, [between, down], &[features], &[0]),
            };
            if self.is_converted {
                term = builder.push1(Convert(DType::F64), &[term]).expect("a conversion");
            }
            sum = Some(match sum {
                Some(sum) => builder.push1(Binary(BinaryKind::Add), &[sum, term]).expect("a sum"),
                None => term,
            });
        }
        let dim = self.length() + usize::from(self.out_first);
        let sum = sum.expect("a product");
        let result = match group {
            Some(group) => builder.push1(ReduceScatter { group, dim }, &[sum]).expect("a scatter"),
            None => sum,
        };
        outputs.push((result, port(3, Some(dim))));
        if self.is_result {
            outputs.push((whole, port(3, None)));
        }
        let (values, ports) = outputs.into_iter().unzip();
        builder.finish(values, ports)
    }
}

fn dot(builder: &mut GraphBuilder, operands: [Value; 2], left: &[usize], right: &[usize]) -> Value {
    let dims = DotDims { lhs_contract: left.into(), rhs_contract: right.into(), ..DotDims::default() };
    let dot = DotGeneral { dims: Box::new(dims), dtype: DType::F32, precision: Precision::Default };
    builder.push1(dot, &operands).expect("a dot")
}

fn mesh_of(text: &str) -> Mesh {
    let axes = text.split(',').map(|axis| axis.split_once('=').expect("NAME=SIZE"));
    Mesh::new(axes.map(|(name, size)| (name, size.parse().expect("a size")))).expect("a mesh")
}

/// Meshes, and the axes of a group of 2, 3, 4, 5, 6 or 8 devices.
const GROUPS: [(&str, &[&str]); 9] = [
    ("a=2", &["a"]),
    ("a=2,b=3", &["b"]),
    ("a=2,b=3", &["b", "a"]),
    ("a=4,b=2", &["a"]),
    ("a=2,b=4", &["b"]),
    ("a=5", &["a"]),
    ("a=8", &["a"]),
    ("a=2,b=2,c=2", &["a", "c"]),
    ("a=2,b=2,c=2", &["c", "a", "b"]),
];

fn counts(ledger: &Ledger) -> [usize; 3] {
    let kinds = [CollectiveKind::AllGather, CollectiveKind::ReduceScatter, CollectiveKind::CollectivePermute];
    kinds.map(|kind| ledger.kind(kind).count().expect("no filter by name"))
}

/// Rings of any length give what one device computes, and send as many bytes as the collectives in whose place they
/// are.
#[test]
fn rings_of_random_blocks() {
    for number in cases("partition rings", 60, 0..180) {
        // The groups take turns, in the small tier too.
        let (text, names) = GROUPS[(number + number / GROUPS.len()) % GROUPS.len()];
        let (mesh, block) = (mesh_of(text), Block::random(&mut Random(3000 + number as u64)));
        let axes = local_graph::axes(&mesh, names);
        let size = axes.iter().map(|&axis| mesh.size(axis)).product();
        let (whole, local) = (block.graph(size, None), block.graph(size, Some((&mesh, &axes))));
        let rings = collective_matmul(&local, CollectiveMatmul::On);
        verify(&rings).unwrap_or_else(|error| panic!("{block:?} on {text}: {error}\n{rings}"));
        let [before, after] = [&local, &rings].map(|graph| Ledger::of(graph, &mesh));
        assert_eq!(counts(&before), [1, 1, 0]);
        assert_eq!(counts(&after), [0, 0, 2 * (size - 1)], "{block:?} on {text}");
        assert_eq!(before.moved_bytes(), after.moved_bytes(), "{block:?} on {text}");
        let inputs = inputs_of(&whole);
        let found = run_local(&rings, &mesh, &inputs).unwrap_or_else(|error| panic!("{block:?} on {text}: {error}"));
        for (found, expected) in found.iter().zip(interpret(&whole, &inputs)) {
            let error = relative_error(&found.to_f64_vec(), &expected.to_f64_vec());
            assert!(error <= 1e-5, "{block:?} on {text}: {error:e}\n{rings}");
        }
        assert_eq!(collective_matmul(&local, CollectiveMatmul::Off), local);
    }
}

/// Some of them on the devices of the CPU plugin.
#[test]
fn rings_on_the_plugin() {
    let client = support::eight_devices::client();
    let mut random = Random(5);
    let groups = GROUPS.into_iter().filter(|(text, _)| mesh_of(text).device_count() == 8);
    for (text, names) in cases("partition rings on the plugin", 1, groups) {
        let (mesh, block) = (mesh_of(text), Block::random(&mut random));
        let axes = local_graph::axes(&mesh, names);
        let size = axes.iter().map(|&axis| mesh.size(axis)).product();
        let local = block.graph(size, Some((&mesh, &axes)));
        let rings = collective_matmul(&local, CollectiveMatmul::On);
        let [found, expected] = [&rings, &local].map(|graph| local_graph::run(&client, graph, &mesh));
        for (found, expected) in found.iter().zip(&expected) {
            let error = relative_error(&found.to_f64_vec(), &expected.to_f64_vec());
            assert!(error <= 1e-5, "{block:?} on {text}: {error:e}");
        }
    }
}

/// The rule takes what hides its transfer, and leaves what does not: a ring of two in which the product takes as long
/// as a part travels, and one of four; products of few rows; and parts that are not whole tiles.
#[test]
fn auto_goes_by_the_rule() {
    let wide = Block { part: 1024, embed: 1024, hidden: 1024, out: 1024, is_left: vec![true], ..Block::PLAIN };
    // A part has 1024 * 1024 * 4 bytes, and a product of a part 2 * 1024^3 operations: 512 for each byte.
    let rings = |block: &Block, axes: &str, operations_per_byte: u64| {
        let (mesh, choice) = (mesh_of(axes), CollectiveMatmul::Auto { operations_per_byte });
        let local = block.graph(mesh.device_count(), Some((&mesh, &local_graph::axes(&mesh, &["a"]))));
        let [gathers, scatters, _] = counts(&Ledger::of(&collective_matmul(&local, choice), &mesh));
        assert_eq!(gathers, scatters, "both have parts of one size");
        gathers == 0
    };
    // hop = 512, products = 2 * 512: apart 1280, beside 512 + 512.
    assert!(rings(&wide, "a=2", 512));
    // hop = 4096: apart 3072, beside 512 + 4096.
    assert!(!rings(&wide, "a=2", 4096));
    // hop = 1024, products = 4 * 512: apart 3584, beside 512 + 2048.
    assert!(rings(&wide, "a=4", 1024));
    // On three devices, parts go one place each way. hop = 1024, products = 3 * 512: apart 2560, beside 512 + 1024.
    assert!(rings(&wide, "a=3", 1024));
    // hop = 16384: apart 26624, beside 512 + 2 * 16384.
    assert!(!rings(&wide, "a=4", 16384));
    // hop = 16, which is little to hide: apart 1032, beside 1024.
    assert!(!rings(&wide, "a=2", 16));
    assert!(rings(&Block { part: 512, ..wide.clone() }, "a=2", 512));
    assert!(!rings(&Block { part: 496, ..wide.clone() }, "a=2", 512));
    assert!(!rings(&Block { part: 1032, ..wide }, "a=2", 512));
}

/// With as many heads as eight devices take.
fn config(overrides: &[&str]) -> RunConfig {
    configs::config(&[SHORT_RUN, &["model.layers=2", "model.heads=8", "model.kv_heads=8"], overrides])
}

/// Whole steps of decoders over `tensor`, scanned and in pipelines, with and without rematerialization: the numbers of
/// one device, and as many bytes as without rings. No scatter of activations of blocks over `tensor` is left, and no
/// gather but of what each block has kept: gradients of weights alone read it, which add up over its length.
#[test]
fn train_steps_of_decoders() {
    const PIPELINE: [&str; 3] = ["pipeline.repeats=1", "pipeline.weights=per-iteration", "pipeline.microbatches=2"];
    let all: [(&str, &[&str], usize); 4] = [
        ("mesh.axes=fsdp=4,tensor=2", &["remat.policy=full"], 0),
        ("mesh.axes=fsdp=2,tensor=4", &[], 2),
        ("mesh.axes=tensor=8", &["remat.policy=dots"], 2),
        ("mesh.axes=stage=2,fsdp=2,tensor=2", &PIPELINE, 2),
    ];
    for (index, (mesh, settings, kept)) in all.into_iter().enumerate() {
        let with = |choice: &'static str| config(&[&[mesh, choice], settings].concat());
        let on_key = "kernels.collective_matmul=true";
        let [on, off] = [on_key, "kernels.collective_matmul=false"].map(with);
        let [rings, plain] = [&on, &off].map(|config| config.lower_train_step().expect("it lowers").1.collectives());
        assert_eq!(rings.moved_bytes(), plain.moved_bytes(), "{mesh}\n{rings}");
        let mut gathered = 0;
        for scope in ["attention", "mlp"] {
            let [rings, plain] = [&rings, &plain].map(|ledger| ledger.in_scope(scope).over("tensor"));
            let [gathers, scatters, permutes] = counts(&plain);
            assert!(gathers > 0 && scatters > 0 && permutes == 0, "{mesh}: {scope}");
            assert!(counts(&rings)[1] == 0 && counts(&rings)[2] > 0, "{mesh}: {scope}");
            let gathers = rings.kind(CollectiveKind::AllGather);
            gathered += gathers.iter().expect("a scope").map(|gather| gather.operand_count).sum::<usize>();
        }
        assert_eq!(gathered, kept, "{mesh}\n{rings}");
        if index < 2 {
            check_interpreted(&["model.heads=8", "model.kv_heads=8"], &[&[mesh, on_key], settings].concat());
        }
        for on in cases("partition rings in train steps", 0, [&on]) {
            let one = steps_of(&config(&["mesh.axes=data=1", "target.devices=1"]), 3);
            let error = relative_error(&steps_of(on, 3), &one);
            assert!(error <= 1e-5, "{mesh}: {error:e}");
        }
    }
}

/// On a CPU, `auto` gives the very module that `off` does.
#[test]
fn auto_is_off_on_a_cpu() {
    let module = |choice: &str| {
        let config = config(&["mesh.axes=fsdp=2,tensor=4", choice]);
        config.lower_train_step().expect("it lowers").1.module.bytes
    };
    let [auto, off, on] =
        ["auto", "false", "true"].map(|choice| module(&format!("kernels.collective_matmul={choice}")));
    assert!(auto == off);
    assert!(on != off);
}

/// The pass can be left out by its name, and is left out of the table of times where it is off.
#[test]
fn it_runs_only_where_asked() {
    let step = config(&["mesh.axes=fsdp=2,tensor=4"]);
    let function = step.train_step().expect("a step").trace().expect("a graph");
    let (mesh, rules) = (step.mesh().expect("a mesh"), step.rule_sets().expect("rules"));
    let permutes = |matmul: CollectiveMatmul, without: &[&str]| {
        let limits = CollectiveLimits { matmul, ..CollectiveLimits::default() };
        let options = LowerOptions { sharding: Some((&mesh, &rules)), limits, without, ..LowerOptions::default() };
        let lowered = lower(function.graph(), &options).expect("it lowers");
        let is_timed = lowered.timings.iter().any(|timing| timing.pass == "collective-matmul");
        (is_timed, counts(&lowered.collectives())[2])
    };
    let (is_timed, on) = permutes(CollectiveMatmul::On, &[]);
    assert!(is_timed && on > 0);
    assert_eq!(permutes(CollectiveMatmul::On, &["collective-matmul"]), (false, 0));
    assert_eq!(permutes(CollectiveMatmul::Off, &[]), (false, 0));
}
