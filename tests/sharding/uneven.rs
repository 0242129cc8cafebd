//! Dimensions that their axes do not divide: refused, unless asked for; then padded, and eight devices compute what one
//! does.

use meshloom::compile::{LowerOptions, PartitionMode, lower};
use meshloom::ir::{DType, Literal};
use meshloom::pjrt::Array;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Tensor, TensorSpec, Tree, checkpoint, concatenate, einsum, iota, scan};
use meshloom_train::Trainer;
use support::cases::cases;
use support::configs::{UNOPTIMIZED, config};
use support::eight_devices::{client, compile, relative_error};
use support::interpret::interpret;

fn rules(pairs: &[(&str, &[&str])]) -> RuleSets {
    RuleSets::uniform(Rules::from_pairs(pairs).expect("rules").with_uneven(true))
}

fn numbers(dims: &[usize]) -> Literal {
    let count = dims.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|index| ((index * 37 % 101) as f32 - 50.5) / 29.0).collect();
    Literal::from_slice(dims, &values).expect("as many numbers")
}

/// A function of two matrices.
struct Op {
    name: &'static str,
    dims: [[usize; 2]; 2],
    f: fn(Tensor, Tensor) -> Tensor,
}

fn ops() -> Vec<Op> {
    let mut ops = Vec::new();
    let mut add = |name, dims, f| ops.push(Op { name, dims, f });
    add("elementwise", [[10, 7], [10, 7]], |x, y| x * y + (x - y).exp());
    add("reductions", [[10, 7], [10, 7]], |x, y| x.sum(0) + y.max(0) * (x * x + 1.0).recip().sum(..));
    // In what is padded, 0 / 0 must not reach the sum.
    add("quotient", [[10, 7], [10, 7]], |x, y| (x / y.square()).sum(1) + (x.square().log()).sum(..));
    add("softmax", [[10, 7], [10, 7]], |x, y| x.softmax(-1) * y.softmax(0));
    add("contraction", [[10, 7], [7, 11]], |x, y| einsum("ij,jk->ik", &[x, y]));
    add("outer", [[10, 7], [10, 11]], |x, y| einsum("ij,ik->jk", &[x, y]));
    add("reshape", [[10, 7], [10, 7]], |x, y| x.reshape([2, 5, 7]).sum(1).sum(0) + y.reshape([70]).sum(0));
    add("reshape of one", [[10, 6], [10, 6]], |x, y| (x.reshape([10, 2, 3]) * y.reshape([10, 2, 3])).sum(1));
    add("slice", [[10, 7], [10, 7]], |x, y| x.slice(0, 0..5) + y.slice(0, 5..10));
    add("transpose", [[10, 7], [7, 10]], |x, y| x.transpose([1, 0]) - y);
    add("iota", [[10, 7], [10, 7]], |x, y| x * iota(DType::F32, [10, 7], 0) + y * iota(DType::F32, [10, 7], 1));
    add("cumulative", [[10, 7], [10, 7]], |x, y| x.cumsum(0) + y.cumsum(1));
    add("concatenate", [[10, 7], [3, 7]], |x, y| concatenate(&[x, y], 0));
    add("sort", [[10, 7], [10, 7]], |x, y| x.sort(0) + y.sort(1));
    add("lookup", [[10, 7], [5, 1]], |x, y| {
        let rows = (y.reshape([5]) * 100.0).convert(DType::S32);
        x.take(0, rows)
    });
    add("scan", [[10, 7], [10, 7]], |x, y| scan(x, y.expand(0).broadcast_to([3, 10, 7]), |x, y| (x * 0.5 + y, ())).0);
    add("scan over rows", [[10, 7], [10, 7]], |x, y| {
        let (total, sums) = scan(x.sum(0) * 0.0, (x, y), |sum, (x, y)| (sum + x * y, sum));
        sums + total.expand(0).broadcast_to([10, 7])
    });
    add("checkpoint", [[10, 7], [7, 7]], |x, y| {
        meshloom::trace::grad(x, |x| {
            let inner = |(x, y): (Tensor, Tensor)| einsum("ij,jk->ik", &[x, y]).tanh();
            checkpoint(meshloom::ops::RematPolicy::Full, (x, y), inner).sum(..)
        })
    });
    ops
}

/// All functions are in one program, for one device and for eight, with rows and columns split unevenly.
#[test]
fn ops_on_uneven_dimensions() {
    let ops = ops();
    let spec = |dims: [usize; 2]| TensorSpec::new(DType::F32, dims).with_axes(&["rows", "columns"]);
    let specs: Vec<TensorSpec> = ops.iter().flat_map(|op| op.dims.map(spec)).collect();
    let function = Function::trace("ops", specs, |inputs: Vec<Tensor>| {
        ops.iter().zip(inputs.chunks(2)).map(|(op, x)| (op.f)(x[0], x[1])).collect::<Vec<Tensor>>()
    });
    let function = function.expect("a traced function");
    let inputs: Vec<Literal> = ops.iter().flat_map(|op| op.dims.map(|dims| numbers(&dims))).collect();
    let expected = interpret(function.graph(), &inputs);
    let ways = [
        ("a=2,b=4", &[("rows", &["a"][..]), ("columns", &["b"])][..]),
        ("a=8", &[("rows", &["a"]), ("columns", &[])]),
        ("a=8", &[("rows", &[]), ("columns", &["a"])]),
        ("a=2,b=4", &[("rows", &["b", "a"]), ("columns", &[])]),
    ];
    let both = |way| [PartitionMode::Explicit, PartitionMode::GSPMD].map(|mode| (way, mode));
    for ((mesh, pairs), partition) in cases("sharding uneven", 3, ways.into_iter().flat_map(both)) {
        let (mesh, rules) = (Mesh::parse(mesh, 8).expect("a mesh"), rules(pairs));
        let options = LowerOptions { sharding: Some((&mesh, &rules)), partition, ..LowerOptions::default() };
        let lowered = lower(function.graph(), &options).unwrap_or_else(|error| panic!("{mesh}: {error}"));
        let program = compile(&lowered).unwrap_or_else(|error| panic!("{mesh}: {error}"));
        let arguments = program.put(0, &inputs).expect("the inputs fit");
        let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
        for ((op, output), expected) in ops.iter().zip(&outputs).zip(&expected) {
            let found = output.get().expect("a result");
            assert_eq!(found.ty(), expected.ty(), "{}", op.name);
            let error = relative_error(&found.to_f64_vec(), &expected.to_f64_vec());
            assert!(error <= 1e-5, "{} on {mesh}, {partition:?}: {error:.1e}", op.name);
        }
    }
}

const MODEL: &[&str] = &[
    "model.layers=2",
    "model.embed=30",
    "model.heads=6",
    "model.kv_heads=3",
    "model.head_dim=6",
    "model.mlp=50",
    "model.seq=21",
    "train.batch=6",
    "train.warmup=5",
    "train.steps=40",
    UNOPTIMIZED,
];

fn losses(overrides: &[&str]) -> Vec<f64> {
    let config = config(&[MODEL, overrides]);
    let mut trainer = Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{overrides:?}: {error}"));
    let mut numbers: Vec<f64> =
        (0..3).flat_map(|_| trainer.step().map(|step| [step.loss, step.grad_norm]).expect("a step")).collect();
    let sum = |array: &Array| array.get().expect("a parameter").to_f64_vec().into_iter().sum::<f64>();
    numbers.extend(trainer.state().params().leaves().iter().map(sum));
    numbers
}

#[test]
fn a_decoder_of_odd_sizes() {
    let one = losses(&["mesh.axes=\"data=1\"", "target.devices=1"]);
    let meshes =
        ["data=2,context=2,tensor=2", "data=8", "fsdp=8", "tensor=8", "context=8", "data=2,fsdp=4", "fsdp=4,tensor=2"];
    for mesh in cases("sharding uneven decoders", 1, meshes) {
        let axes = format!("mesh.axes=\"{mesh}\"");
        let found = losses(&[&axes, "rules.uneven=true"]);
        let error = relative_error(&found, &one);
        assert!(error <= 1e-5, "{mesh}: {error:.1e}\n{one:?}\n{found:?}");
    }
}

#[test]
fn refused_unless_asked_for() {
    let spec = TensorSpec::new(DType::F32, [10]).with_axes(&["rows"]);
    let function = Function::trace("twice", spec, |x| x + x).expect("a traced function");
    let mesh = Mesh::parse("a=8", 8).expect("a mesh");
    let rules = RuleSets::uniform(Rules::from_pairs(&[("rows", &["a"])]).expect("rules"));
    let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
    let error = lower(function.graph(), &options).expect_err("ten rows over eight devices");
    assert!(error.to_string().contains("cannot be split 8 ways"), "{error}");
}
