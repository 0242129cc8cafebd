//! Programs in the local form: parameters of the shapes of one device, and its number as an argument.

use std::sync::Arc;

use crate::partition::train_steps::{SMALL, inputs};
use meshloom::analysis::mesh_of;
use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::emit::ProgramForm;
use meshloom::hlo::proto::HloInstructionProto;
use meshloom::ir::{DType, Graph, GraphBuilder, Literal, PortInfo, TensorType, Value};
use meshloom::ops::*;
use meshloom::sharding::Mesh;
use meshloom_train::run::aliases;
use support::cases::cases;
use support::configs::{self, SHORT_RUN};
use support::eight_devices::client;
use support::experts::{check_equal, run};
use support::interpret::interpret;
use support::local_graph::{self, group, mesh};

fn scalar() -> TensorType {
    TensorType::scalar(DType::S32)
}

/// A body of one number that adds the rank along axes to it.
fn adding(name: &str, mesh: &Mesh, axes: &[&str]) -> Arc<Graph> {
    let mut builder = GraphBuilder::new(name);
    let x = builder.input(scalar(), PortInfo::default());
    let sum = with_rank(&mut builder, mesh, axes, x);
    Arc::new(builder.finish(vec![sum], vec![PortInfo::default()]))
}

fn with_rank(builder: &mut GraphBuilder, mesh: &Mesh, axes: &[&str], x: Value) -> Value {
    let rank = builder.push1(AxisIndex { group: group(mesh, axes) }, &[]).expect("a rank");
    builder.push1(Binary(BinaryKind::Add), &[x, rank]).expect("a sum")
}

/// Whether a number is less than a rank, and ten.
fn below(mesh: &Mesh, axes: &[&str]) -> Arc<Graph> {
    let mut builder = GraphBuilder::new("below");
    let x = builder.input(scalar(), PortInfo::default());
    let ten = builder.push1(Splat::new(scalar(), 10.0), &[]).expect("ten");
    let most = with_rank(&mut builder, mesh, axes, ten);
    let flag = builder.push1(Compare(Direction::Lt), &[x, most]).expect("a flag");
    Arc::new(builder.finish(vec![flag], vec![PortInfo::default()]))
}

/// Ranks at the top, and in computations of every kind, one inside another.
fn ranks_everywhere(mesh: &Mesh) -> Graph {
    let mut builder = GraphBuilder::new("ranks");
    let rows = builder.input(TensorType::new(DType::S32, &[1]), local_graph::rows(mesh, &["a", "b", "c"], 1));
    let x = builder.push1(Reshape { dims: [].as_slice().into() }, &[rows]).expect("a number");
    let mut values = vec![with_rank(&mut builder, mesh, &["a"], x), with_rank(&mut builder, mesh, &["c", "a"], x)];
    let inner = Call { function: adding("added", mesh, &["b"]) };
    values.push(builder.push1(inner.clone(), &[x]).expect("a call"));
    // The second call of a function that is there already.
    values.push(builder.push1(inner, &[values[0]]).expect("a call"));
    let body = {
        let mut builder = GraphBuilder::new("turn");
        let x = builder.input(scalar(), PortInfo::default());
        let called = builder.push1(Call { function: adding("added", mesh, &["c"]) }, &[x]).expect("a call");
        let sum = with_rank(&mut builder, mesh, &["b", "c"], called);
        Arc::new(builder.finish(vec![sum], vec![PortInfo::default()]))
    };
    let scan = Scan { body, length: 3, invariant_count: 0, carry_count: 1, reverse: false, parallel: false, unroll: 1 };
    values.push(builder.push1(scan, &[x]).expect("a scan"));
    // At least one is added in each turn.
    let body = {
        let mut builder = GraphBuilder::new("grown");
        let x = builder.input(scalar(), PortInfo::default());
        let one = builder.push1(Splat::new(scalar(), 1.0), &[]).expect("one");
        let more = builder.push1(Binary(BinaryKind::Add), &[x, one]).expect("a sum");
        let sum = with_rank(&mut builder, mesh, &["a", "c"], more);
        Arc::new(builder.finish(vec![sum], vec![PortInfo::default()]))
    };
    let condition = below(mesh, &["b"]);
    values.push(
        builder
            .push1(While { condition, body, invariant_count: 0, at_most: 0, often: Often::default() }, &[x])
            .expect("a loop"),
    );
    let zero = builder.push1(Splat::new(scalar(), 0.0), &[]).expect("zero");
    let rank = with_rank(&mut builder, mesh, &["b"], zero);
    let branches = vec![adding("first", mesh, &["a"]), adding("second", mesh, &["c"])];
    values.push(builder.push1(Cond::of(branches), &[rank, x]).expect("a conditional"));
    let rows: Vec<Value> = (values.iter())
        .map(|&value| builder.push1(Reshape { dims: [1].as_slice().into() }, &[value]).expect("a row"))
        .collect();
    let info = vec![local_graph::rows(mesh, &["a", "b", "c"], 1); rows.len()];
    builder.finish(rows, info)
}

/// A module's instructions.
fn instructions(lowered: &Lowered) -> Vec<HloInstructionProto> {
    let module = lowered.module.decode().expect("a module");
    module.computations.into_iter().flat_map(|computation| computation.instructions).collect()
}

#[test]
fn ranks_in_computations_of_every_kind() {
    let mesh = mesh("a=2,b=2,c=2");
    let graph = ranks_everywhere(&mesh);
    // Each device starts with its own number.
    let input = |ty: &TensorType, _| Literal::from_fn(ty.clone(), |index| index as f64);
    let of_device = |x: i32| {
        let (a, b, c) = (x / 4, x / 2 % 2, x % 2);
        let mut grown = x;
        while grown < 10 + b {
            grown += 1 + 2 * a + c;
        }
        let turns = x + 3 * (c + 2 * b + c);
        [x + a, x + 2 * c + a, x + b, x + a + b, turns, grown, if b == 0 { x + a } else { x + c }]
    };
    let devices: Vec<[i32; 7]> = (0..8).map(of_device).collect();
    let expected: Vec<Literal> =
        (0..7).map(|index| Literal::vector(&devices.iter().map(|values| values[index]).collect::<Vec<_>>())).collect();
    for form in [ProgramForm::Manual, ProgramForm::Local] {
        assert_eq!(local_graph::run_in(form, &client(), &graph, &mesh, input), expected, "{form:?}");
    }
}

/// Train steps over several meshes, with donated state, and pipelines: the new state and the loss of one device.
#[test]
fn train_steps() {
    // Each of the four microbatches has a row for each of the four devices of a stage.
    const PIPELINE: &[&str] = &[
        "pipeline.microbatches=4",
        "pipeline.repeats=1",
        "pipeline.layers_per_stage=2",
        "model.layers=4",
        "train.batch=16",
    ];
    let all = [
        // The small tier runs the first case.
        ("fsdp=2,tensor=2,context=2", &["kernels.context=ring"][..]),
        ("data=8", &[]),
        ("data=2,fsdp=4", &[]),
        ("stage=2,fsdp=4", PIPELINE),
        ("stage=2,data=2,fsdp=2", &[PIPELINE, &["pipeline.schedule=1f1b"]].concat()),
    ];
    for (axes, more) in cases("partition local form", 1, all) {
        let axes_key = format!("mesh.axes={axes}");
        let config = configs::config(&[SHORT_RUN, SMALL, &[&axes_key], more]);
        let (function, manual) = config.lower_train_step().expect("it lowers");
        let (mesh, rules) = (manual.mesh().expect("a mesh").clone(), config.rule_sets().expect("rules"));
        let options = LowerOptions {
            sharding: Some((&mesh, &rules)),
            aliases: aliases(&function),
            form: ProgramForm::Local,
            ..LowerOptions::default()
        };
        let local = lower(function.graph(), &options).unwrap_or_else(|error| panic!("{axes}: {error}"));
        assert!(instructions(&local).iter().all(|instruction| instruction.sharding.is_none()), "{axes}");
        assert!(instructions(&local).iter().all(|instruction| instruction.opcode != "partition-id"), "{axes}");
        let named = mesh_of(&local.module.decode().expect("a module")).map(|mesh| mesh.to_string());
        assert_eq!(named, local.emitted_mesh().map(ToString::to_string));
        let inputs = inputs(function.graph());
        let expected: Vec<Vec<f64>> = interpret(function.graph(), &inputs).iter().map(Literal::to_f64_vec).collect();
        check_equal(axes, &run(&local, &inputs), &expected, 1e-5);
    }
}
