//! Resharding: any spec to any other, on 8 devices, gives the same value. `tests/filetests/partition-reshard.txt` has
//! what it costs.

use meshloom::emit::{EmitOptions, GroupFormat, emit};
use meshloom::ir::{DType, GraphBuilder, Literal, PortInfo, TensorType, Value, verify};
use meshloom::ops::*;
use meshloom::partition::{plan, reshard};
use meshloom::pjrt::{Array, ArraySpec, CompileOptions, ShardLayout};
use meshloom::sharding::{Axes, Mesh, MeshAxis, Spec};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use support::eight_devices::client;
use support::spmd::run_local;

const DIMS: [usize; 3] = [8, 16, 24];

#[derive(Clone, Debug)]
struct Case {
    from: Spec,
    to: Spec,
}

/// A spec that deals out the axes: for each, a dimension, unreduced, or nothing, in a random order.
fn spec(mesh: &Mesh, order: &[usize], places: &[usize], unreduced: bool) -> Spec {
    let mut dims: Vec<Axes> = vec![Axes::new(); DIMS.len()];
    let mut partial = Axes::new();
    for &index in order {
        let Some(axis) = mesh.axes().nth(index) else { continue };
        match places[index] {
            place if place < DIMS.len() => dims[place].push(axis),
            place if place == DIMS.len() && unreduced => partial.push(axis),
            _ => {}
        }
    }
    Spec::new(dims).with_unreduced(partial)
}

fn random_cases(mesh: &Mesh, count: usize) -> Vec<Case> {
    let axes = mesh.axis_count();
    let one = || (Just((0..axes).collect::<Vec<_>>()).prop_shuffle(), prop::collection::vec(0..DIMS.len() + 2, axes));
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let case = (one(), one()).prop_map(|((order, places), (to_order, to_places))| Case {
        from: spec(mesh, &order, &places, true),
        to: spec(mesh, &to_order, &to_places, false),
    });
    (0..count).map(|_| case.new_tree(&mut runner).expect("a case").current()).collect()
}

fn global() -> TensorType {
    TensorType::new(DType::F32, &DIMS)
}

fn values(seed: usize) -> Literal {
    let count = DIMS.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|index| (index + 7 * seed) as f32).collect();
    Literal::from_bytes(global(), values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).unwrap()
}

/// A partial sum over the unreduced axes: the first device along them has the value, the others nothing.
fn partial(builder: &mut GraphBuilder, mesh: &Mesh, value: Value, axes: &[MeshAxis]) -> Value {
    if axes.is_empty() {
        return value;
    }
    let rank = builder.push1(AxisIndex { group: Group::new(mesh, axes) }, &[]).unwrap();
    let zero = builder.push1(Splat::new(TensorType::scalar(DType::S32), 0.0), &[]).unwrap();
    let first = builder.push1(Compare(Direction::Eq), &[rank, zero]).unwrap();
    let dims = builder.ty(value).dims.clone();
    let chosen = builder.push1(BroadcastInDim { dims, mapping: AxisList::new() }, &[first]).unwrap();
    let nothing = builder.push1(Splat::new(builder.ty(value).clone(), 0.0), &[]).unwrap();
    builder.push1(Select, &[chosen, value, nothing]).unwrap()
}

/// Runs a program of all cases of a mesh, in the interpreter and, if asked to, by XLA, and compares every output with
/// its input, exactly.
fn check(mesh: &Mesh, cases: &[Case], groups: GroupFormat, by_xla: bool) {
    let mut builder = GraphBuilder::new("reshard");
    let types: Vec<TensorType> = (cases.iter())
        .map(|case| TensorType::new(DType::F32, &case.from.local_dims(mesh, &DIMS).expect("even parts")))
        .collect();
    let port = |spec: &Spec| PortInfo { spec: Some(spec.clone()), ..PortInfo::default() };
    let stored = |spec: &Spec| Spec::new(spec.dims().iter().cloned());
    let inputs: Vec<Value> =
        cases.iter().zip(&types).map(|(case, ty)| builder.input(ty.clone(), port(&stored(&case.from)))).collect();
    let mut outputs = Vec::new();
    for (case, &input) in cases.iter().zip(&inputs) {
        let value = partial(&mut builder, mesh, input, case.from.unreduced());
        let plan = plan(mesh, &DIMS, 4, &case.from, &case.to).expect("a goal in reach");
        outputs.push(reshard(&mut builder, mesh, value, &plan).expect("a plan that fits"));
    }
    let graph = builder.finish(outputs, cases.iter().map(|case| port(&case.to)).collect());
    verify(&graph).expect("a valid graph");
    let options = EmitOptions { mesh: Some(mesh), partitioned: true, groups, ..EmitOptions::default() };
    let module = emit(&graph, options).expect("a module");
    // The reference interpreter's collectives mean what the plugin's do.
    let inputs: Vec<Literal> = (0..cases.len()).map(values).collect();
    let interpreted = run_local(&graph, mesh, &inputs).expect("replicas that agree");
    assert!(interpreted == inputs, "{mesh}: interpreted, a value is another than before");
    if !by_xla {
        return;
    }
    let client = client();
    let options = CompileOptions { debug_options: support::unoptimized(), ..CompileOptions::partitioned(8) };
    let executable = client.compile(&module.bytes, &options).expect("a module that compiles");
    let array_spec = |spec: &Spec| {
        let layout = ShardLayout::from_boxes(&DIMS, spec.boxes(mesh, &DIMS).unwrap()).unwrap();
        ArraySpec { ty: global(), layout }
    };
    let arrays: Vec<Array> = (cases.iter().enumerate())
        .map(|(index, case)| Array::put(&client, &values(index), &array_spec(&stored(&case.from)).layout).unwrap())
        .collect();
    let specs: Vec<ArraySpec> = cases.iter().map(|case| array_spec(&case.to)).collect();
    let results = executable.run(&arrays.iter().collect::<Vec<_>>(), &specs).expect("a run");
    for (index, (case, result)) in cases.iter().zip(&results).enumerate() {
        let (from, to) = (case.from.display(mesh), case.to.display(mesh));
        assert_eq!(result.get().unwrap(), values(index), "{mesh}: {from} to {to}");
    }
}

#[test]
fn any_spec_becomes_any_other() {
    for text in ["a=8", "a=2,b=4", "a=4,b=2", "a=2,b=2,c=2", "a=2,b=1,c=4"] {
        let mesh = Mesh::parse(text, 8).unwrap();
        let cases = random_cases(&mesh, 60);
        check(&mesh, &cases, GroupFormat::Lists, false);
        let few = if text == "a=2,b=4" { 30 } else { 0 };
        for part in support::cases::cases("sharding reshards by XLA", few, cases).chunks(60) {
            check(&mesh, part, GroupFormat::Lists, true);
        }
    }
}

#[test]
fn the_compact_groups_mean_the_same() {
    let mesh = Mesh::parse("a=2,b=2,c=2", 8).unwrap();
    let cases = support::cases::cases("sharding reshards by XLA", 20, random_cases(&mesh, 40));
    check(&mesh, &cases, GroupFormat::Iota, true);
}
