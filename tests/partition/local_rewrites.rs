//! The rewrites of collectives: what they leave to communicate, and that values stay the same.

use std::sync::Arc;

use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::{DType, Graph, GraphBuilder, Literal, Origin, Phase, PortInfo, TensorType, Value, verify};
use meshloom::ops::*;
use meshloom::partition::Ledger;
use meshloom::passes::{cancel_collectives, combine_collectives, eliminate_dead_code, hoist_gathers};
use meshloom::sharding::Mesh;
use meshloom_train::config::RunConfig;
use support::eight_devices::client;
use support::local_graph::*;

const MIB: u64 = 1 << 20;

fn all_reduce(group: Group) -> Op {
    AllReduce { group, kind: ReduceKind::Sum }.into()
}

/// `kind over axes` of each collective, in order; how often it runs if that is not once, and how many operands if
/// several.
fn summary(graph: &Graph, mesh: &Mesh) -> Vec<String> {
    let ledger = Ledger::of(graph, mesh);
    let entry = |entry: &meshloom::partition::Collective| {
        let operands = if entry.operand_count > 1 { format!(" x{}", entry.operand_count) } else { String::new() };
        let times = if entry.executions == 1 { String::new() } else { format!(" {} times", entry.executions) };
        format!("{} {}{operands}{times}", entry.kind, entry.axes.join(","))
    };
    ledger.iter().expect("no filter").map(entry).collect()
}

fn same_values(before: &[Literal], after: &[Literal], graph: &Graph) {
    // The numbers are small integers, so that no sum is rounded.
    assert_eq!(before, after, "{graph}");
}

/// A program of inputs of these local shapes, split by rows over all axes; all its outputs are as they are on each
/// device.
#[track_caller]
fn check(
    mesh_text: &str,
    rewrite: impl Fn(&Graph) -> Graph,
    inputs: &[&[usize]],
    program: impl Fn(&mut GraphBuilder, &Mesh, &[Value]) -> Vec<Value>,
    expected: &[&str],
) {
    let mesh = mesh(mesh_text);
    let names: Vec<&str> = mesh.axis_names().collect();
    let mut builder = GraphBuilder::new("program");
    let inputs: Vec<Value> =
        inputs.iter().map(|dims| builder.input(f32s(dims), rows(&mesh, &names, dims.len()))).collect();
    let outputs = program(&mut builder, &mesh, &inputs);
    let ports = outputs.iter().map(|&value| rows(&mesh, &names, builder.ty(value).rank())).collect();
    let before = builder.finish(outputs, ports);
    let after = rewrite(&eliminate_dead_code(&before));
    verify(&after).unwrap_or_else(|error| panic!("{error}\n{after}"));
    let after = eliminate_dead_code(&after);
    assert_eq!(summary(&after, &mesh), expected, "{before}\n{after}");
    same_values(&run(&client(), &before, &mesh), &run(&client(), &after, &mesh), &after);
}

#[track_caller]
fn check_cancel(
    inputs: &[&[usize]],
    program: impl Fn(&mut GraphBuilder, &Mesh, &[Value]) -> Vec<Value>,
    expected: &[&str],
) {
    check("a=2,b=4", cancel_collectives, inputs, program, expected);
}

fn gather(builder: &mut GraphBuilder, mesh: &Mesh, axes: &[&str], dim: usize, value: Value) -> Value {
    builder.push1(AllGather { group: group(mesh, axes), dim }, &[value]).unwrap()
}

fn reduce(builder: &mut GraphBuilder, mesh: &Mesh, axes: &[&str], value: Value) -> Value {
    builder.push1(all_reduce(group(mesh, axes)), &[value]).unwrap()
}

fn part(builder: &mut GraphBuilder, mesh: &Mesh, axes: &[&str], dim: usize, value: Value) -> Value {
    own_part(builder, value, dim, group(mesh, axes))
}

fn add(builder: &mut GraphBuilder, x: Value, y: Value) -> Value {
    builder.push1(Binary(BinaryKind::Add), &[x, y]).unwrap()
}

#[test]
fn slices_of_what_was_gathered() {
    check_cancel(
        &[&[2, 3]],
        |b, m, x| {
            let y = gather(b, m, &["a", "b"], 0, x[0]);
            vec![part(b, m, &["a", "b"], 0, y)]
        },
        &[],
    );
    check_cancel(
        &[&[1, 3]],
        |b, m, x| {
            let y = gather(b, m, &["b"], 0, x[0]);
            vec![part(b, m, &["b"], 0, y)]
        },
        &[],
    );
    // Along the first axis: the rest is gathered.
    check_cancel(
        &[&[2, 3]],
        |b, m, x| {
            let y = gather(b, m, &["a", "b"], 0, x[0]);
            vec![part(b, m, &["a"], 0, y)]
        },
        &["all-gather b"],
    );
    // Along the last axis, a slice is none of what the device had.
    check_cancel(
        &[&[2, 3]],
        |b, m, x| {
            let y = gather(b, m, &["a", "b"], 0, x[0]);
            vec![part(b, m, &["b"], 0, y)]
        },
        &["all-gather a,b"],
    );
    // Another order, another dimension.
    check_cancel(
        &[&[2, 3]],
        |b, m, x| {
            let y = gather(b, m, &["a", "b"], 0, x[0]);
            vec![part(b, m, &["b", "a"], 0, y)]
        },
        &["all-gather a,b"],
    );
    check_cancel(
        &[&[2, 4]],
        |b, m, x| {
            let y = gather(b, m, &["b"], 0, x[0]);
            vec![part(b, m, &["b"], 1, y)]
        },
        &["all-gather b"],
    );
    // Others read the whole too: the slice is free all the same.
    check_cancel(
        &[&[2, 3]],
        |b, m, x| {
            let y = gather(b, m, &["b"], 0, x[0]);
            vec![part(b, m, &["b"], 0, y), y]
        },
        &["all-gather b"],
    );
}

#[test]
fn slices_that_are_gathered_again() {
    // The same on all devices of the group.
    check_cancel(
        &[&[4, 3]],
        |b, m, x| {
            let whole = reduce(b, m, &["b"], x[0]);
            let y = part(b, m, &["b"], 0, whole);
            vec![gather(b, m, &["b"], 0, y), whole]
        },
        &["all-reduce b"],
    );
    // Different on each.
    check_cancel(
        &[&[4, 3]],
        |b, m, x| {
            let y = part(b, m, &["b"], 0, x[0]);
            vec![gather(b, m, &["b"], 0, y)]
        },
        &["all-gather b"],
    );
    // The same along one axis only.
    check_cancel(
        &[&[8, 3]],
        |b, m, x| {
            let whole = reduce(b, m, &["b"], x[0]);
            let y = part(b, m, &["a", "b"], 0, whole);
            vec![gather(b, m, &["a", "b"], 0, y), whole]
        },
        &["all-reduce b", "all-gather a,b"],
    );
}

#[test]
fn slices_of_sums() {
    check_cancel(
        &[&[8, 3]],
        |b, m, x| {
            let y = reduce(b, m, &["b"], x[0]);
            vec![part(b, m, &["b"], 0, y)]
        },
        &["reduce-scatter b"],
    );
    check_cancel(
        &[&[8, 3]],
        |b, m, x| {
            let y = reduce(b, m, &["a", "b"], x[0]);
            vec![part(b, m, &["b"], 0, y)]
        },
        &["reduce-scatter b", "all-reduce a"],
    );
    // Someone reads the whole sum.
    check_cancel(
        &[&[8, 3]],
        |b, m, x| {
            let y = reduce(b, m, &["b"], x[0]);
            vec![part(b, m, &["b"], 0, y), y]
        },
        &["all-reduce b"],
    );
    // Not a sum; not along the slice's axes.
    check_cancel(
        &[&[8, 3]],
        |b, m, x| {
            let op = AllReduce { group: group(m, &["b"]), kind: ReduceKind::Max };
            let y = b.push1(op, &[x[0]]).unwrap();
            vec![part(b, m, &["b"], 0, y)]
        },
        &["all-reduce b"],
    );
    check_cancel(
        &[&[8, 3]],
        |b, m, x| {
            let y = reduce(b, m, &["a"], x[0]);
            vec![part(b, m, &["b"], 0, y)]
        },
        &["all-reduce a"],
    );
}

#[test]
fn sums_of_sums() {
    check_cancel(
        &[&[2, 3], &[2, 3], &[2, 3]],
        |b, m, x| {
            let [x, y, z] = [0, 1, 2].map(|at| reduce(b, m, &["b"], x[at]));
            let sum = add(b, x, y);
            vec![b.push1(Binary(BinaryKind::Subtract), &[sum, z]).unwrap()]
        },
        &["all-reduce b"],
    );
    check_cancel(
        &[&[4, 3], &[4, 3]],
        |b, m, x| {
            let scatter =
                |b: &mut GraphBuilder, x| b.push1(ReduceScatter { group: group(m, &["b"]), dim: 0 }, &[x]).unwrap();
            let (x, y) = (scatter(b, x[0]), scatter(b, x[1]));
            vec![add(b, x, y)]
        },
        &["reduce-scatter b"],
    );
    // Terms that are not reduced stand between.
    check_cancel(
        &[&[2, 3], &[2, 3], &[2, 3]],
        |b, m, x| {
            let [y, z] = [1, 2].map(|at| reduce(b, m, &["b"], x[at]));
            let sum = add(b, x[0], y);
            let sum = add(b, sum, x[1]);
            vec![add(b, z, sum)]
        },
        &["all-reduce b", "all-reduce b"],
    );
    check_cancel(
        &[&[2, 3], &[2, 3], &[2, 3]],
        |b, m, x| {
            let [y, z] = [1, 2].map(|at| reduce(b, m, &["b"], x[at]));
            let (left, right) = (add(b, x[0], y), add(b, z, x[1]));
            let sum = add(b, left, right);
            let another = reduce(b, m, &["b"], x[0]);
            vec![add(b, sum, another)]
        },
        &["all-reduce b"],
    );
    check_cancel(
        &[&[2, 3], &[2, 3]],
        |b, m, x| {
            let [y, z] = [0, 1].map(|at| reduce(b, m, &["b"], x[at]));
            let sum = add(b, x[0], y);
            vec![b.push1(Binary(BinaryKind::Subtract), &[sum, z]).unwrap()]
        },
        &["all-reduce b", "all-reduce b"],
    );
    // Two groups; a sum that others read; a product.
    check_cancel(
        &[&[2, 3], &[2, 3]],
        |b, m, x| {
            let (x, y) = (reduce(b, m, &["a"], x[0]), reduce(b, m, &["b"], x[1]));
            vec![add(b, x, y)]
        },
        &["all-reduce a", "all-reduce b"],
    );
    check_cancel(
        &[&[2, 3], &[2, 3]],
        |b, m, x| {
            let (x, y) = (reduce(b, m, &["b"], x[0]), reduce(b, m, &["b"], x[1]));
            vec![add(b, x, y), y]
        },
        &["all-reduce b", "all-reduce b"],
    );
    check_cancel(
        &[&[2, 3], &[2, 3]],
        |b, m, x| {
            let (x, y) = (reduce(b, m, &["b"], x[0]), reduce(b, m, &["b"], x[1]));
            vec![b.push1(Binary(BinaryKind::Multiply), &[x, y]).unwrap()]
        },
        &["all-reduce b", "all-reduce b"],
    );
    // Then a slice of the one sum.
    check_cancel(
        &[&[4, 3], &[4, 3]],
        |b, m, x| {
            let (x, y) = (reduce(b, m, &["b"], x[0]), reduce(b, m, &["b"], x[1]));
            let sum = add(b, x, y);
            vec![part(b, m, &["b"], 0, sum)]
        },
        &["reduce-scatter b"],
    );
}

/// A body of two inputs, which `f` makes into its outputs.
fn body(types: [&TensorType; 2], f: impl FnOnce(&mut GraphBuilder, Value, Value) -> Vec<Value>) -> Arc<Graph> {
    let mut builder = GraphBuilder::new("body");
    let [x, y] = types.map(|ty| builder.input(ty.clone(), PortInfo::default()));
    let outputs = f(&mut builder, x, y);
    let ports = outputs.iter().map(|_| PortInfo::default()).collect();
    Arc::new(builder.finish(outputs, ports))
}

/// Five times: a carry of 8 rows plus the gathered invariant of one row, both of 3 numbers.
fn gathering_scan(b: &mut GraphBuilder, m: &Mesh, x: &[Value]) -> Vec<Value> {
    let body = body([&f32s(&[1, 3]), &f32s(&[8, 3])], |b, weight, carry| {
        let weight = add(b, weight, weight);
        let whole = gather(b, m, &["a", "b"], 0, weight);
        vec![add(b, carry, whole)]
    });
    let scan = Scan { body, length: 5, invariant_count: 1, carry_count: 1, reverse: false, unroll: 1 };
    b.push(scan, &[x[0], x[1]]).unwrap().to_vec()
}

#[test]
fn gathers_leave_scans() {
    const SHAPES: &[&[usize]] = &[&[1, 3], &[8, 3]];
    let bytes = 8 * 3 * 4;
    check("a=2,b=4", |graph| hoist_gathers(graph, bytes), SHAPES, gathering_scan, &["all-gather a,b"]);
    check("a=2,b=4", |graph| hoist_gathers(graph, bytes - 1), SHAPES, gathering_scan, &["all-gather a,b 5 times"]);
    // Out of two loops at once.
    let nested = |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| {
        let outer = body([&f32s(&[1, 3]), &f32s(&[8, 3])], |b, weight, carry| gathering_scan(b, m, &[weight, carry]));
        let scan = Scan { body: outer, length: 2, invariant_count: 1, carry_count: 1, reverse: false, unroll: 1 };
        b.push(scan, &[x[0], x[1]]).unwrap().to_vec()
    };
    check("a=2,b=4", |graph| hoist_gathers(graph, bytes), SHAPES, nested, &["all-gather a,b"]);
    // What changes stays.
    let changing = |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| {
        let body = body([&f32s(&[8, 3]), &f32s(&[1, 3])], |b, whole, carry| {
            let gathered = gather(b, m, &["a", "b"], 0, carry);
            let sum = add(b, whole, gathered);
            vec![part(b, m, &["a", "b"], 0, sum)]
        });
        let scan = Scan { body, length: 2, invariant_count: 1, carry_count: 1, reverse: false, unroll: 1 };
        b.push(scan, &[x[1], x[0]]).unwrap().to_vec()
    };
    check("a=2,b=4", |graph| hoist_gathers(graph, MIB), SHAPES, changing, &["all-gather a,b 2 times"]);
}

/// Neither out of a branch, nor out of a while, which devices might not run alike.
#[test]
fn gathers_stay_in_branches() {
    let flag = |b: &mut GraphBuilder| b.push1(Splat::new(TensorType::scalar(DType::Pred), 1.0), &[]).unwrap();
    let in_branch = |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| {
        let types = [&f32s(&[1, 3]), &f32s(&[8, 3])];
        let taken = body(types, |b, weight, carry| {
            let whole = gather(b, m, &["a", "b"], 0, weight);
            let doubled = add(b, weight, weight);
            let again = gather(b, m, &["a", "b"], 0, doubled);
            let sum = add(b, whole, again);
            vec![add(b, carry, sum)]
        });
        let not_taken = body(types, |_, _, carry| vec![carry]);
        let outer = body(types, |b, weight, carry| {
            let flag = flag(b);
            let cond = Cond { branches: vec![not_taken.clone(), taken.clone()] };
            b.push(cond, &[flag, weight, carry]).unwrap().to_vec()
        });
        let scan = Scan { body: outer, length: 2, invariant_count: 1, carry_count: 1, reverse: false, unroll: 1 };
        b.push(scan, &[x[0], x[1]]).unwrap().to_vec()
    };
    let all = |graph: &Graph| combine_collectives(&hoist_gathers(&cancel_collectives(graph), MIB), MIB);
    check("a=2,b=4", all, &[&[1, 3], &[8, 3]], in_branch, &["all-gather a,b x2 <=2 times"]);
    let in_while = |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| {
        let types = [&f32s(&[1, 3]), &f32s(&[8, 3])];
        let never = |b: &mut GraphBuilder| b.push1(Splat::new(TensorType::scalar(DType::Pred), 0.0), &[]).unwrap();
        let condition = body(types, |b, _, _| vec![never(b)]);
        let turn = body(types, |b, weight, carry| {
            let whole = gather(b, m, &["a", "b"], 0, weight);
            vec![add(b, carry, whole)]
        });
        b.push(While { condition, body: turn, invariant_count: 1 }, &[x[0], x[1]]).unwrap().to_vec()
    };
    check("a=2,b=4", all, &[&[1, 3], &[8, 3]], in_while, &["all-gather a,b unknown times"]);
}

#[test]
fn collectives_that_are_ready_together() {
    const SHAPES: &[&[usize]] = &[&[2, 3], &[4, 3], &[6, 3]];
    let combined = |graph: &Graph| combine_collectives(graph, MIB);
    // Each is read before the next one stands there.
    let gathers = |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| {
        let mut outputs = Vec::new();
        for &x in x {
            let doubled = add(b, x, x);
            let whole = gather(b, m, &["b"], 0, doubled);
            outputs.push(b.push1(Unary(UnaryKind::Negate), &[whole]).unwrap());
        }
        outputs
    };
    check("a=2,b=4", combined, SHAPES, gathers, &["all-gather b x3"]);
    // 96 bytes each device has of the first when gathered, 192 of the second, 288 of the third.
    check("a=2,b=4", |graph| combine_collectives(graph, 300), SHAPES, gathers, &["all-gather b x2", "all-gather b"]);
    check("a=2,b=4", |graph| combine_collectives(graph, 0), SHAPES, gathers, &["all-gather b"; 3]);
    let reductions =
        |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| x.iter().map(|&x| reduce(b, m, &["a", "b"], x)).collect();
    check("a=2,b=4", combined, SHAPES, reductions, &["all-reduce a,b x3"]);
    // Large ones would be copied side by side for nothing.
    let large: &[&[usize]] = &[&[1024, 257], &[1024, 257]];
    let limited = |graph: &Graph| combine_collectives(graph, 64 * MIB);
    check("a=2,b=4", limited, large, reductions, &["all-reduce a,b"; 2]);
    check("a=2,b=4", limited, large, gathers, &["all-gather b"; 2]);
    let scattered = |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| {
        x.iter().map(|&x| b.push1(ReduceScatter { group: group(m, &["a"]), dim: 0 }, &[x]).unwrap()).collect()
    };
    check("a=2,b=4", combined, SHAPES, scattered, &["reduce-scatter a x3"]);
    // One needs the other: only through what is light, or not.
    let chained = |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| {
        let first = reduce(b, m, &["b"], x[0]);
        let negated = b.push1(Unary(UnaryKind::Negate), &[first]).unwrap();
        let second = reduce(b, m, &["b"], negated);
        let third = reduce(b, m, &["b"], x[1]);
        vec![first, second, third]
    };
    check("a=2,b=4", combined, SHAPES, chained, &["all-reduce b x2", "all-reduce b"]);
    // Different axes, dimensions, kinds.
    let different = |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| {
        let max = AllReduce { group: group(m, &["b"]), kind: ReduceKind::Max };
        let max = b.push1(max, &[x[0]]).unwrap();
        vec![gather(b, m, &["b"], 0, x[0]), gather(b, m, &["a"], 0, x[1]), reduce(b, m, &["b"], x[1]), max]
    };
    let expected = ["all-reduce b", "all-gather b", "all-gather a", "all-reduce b"];
    check("a=2,b=4", combined, SHAPES, different, &expected);
    // The operand of the second is a product that stands behind the first.
    let product = |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| {
        let first = reduce(b, m, &["b"], x[0]);
        let axes = |axis: usize| [axis].into_iter().collect();
        let dims = DotDims { lhs_contract: axes(1), rhs_contract: axes(1), ..DotDims::default() };
        let op = DotGeneral { dims: dims.into(), dtype: DType::F32, precision: Precision::Default };
        let dot = b.push1(op, &[x[0], x[1]]).unwrap();
        vec![first, reduce(b, m, &["b"], dot)]
    };
    check("a=2,b=4", combined, SHAPES, product, &["all-reduce b"; 2]);
    // Forward and backward stay apart.
    let phases = |b: &mut GraphBuilder, m: &Mesh, x: &[Value]| {
        let first = gather(b, m, &["b"], 0, x[0]);
        b.set_origin(Origin::default().in_phase(Phase::Backward));
        vec![first, gather(b, m, &["b"], 0, x[1])]
    };
    check("a=2,b=4", combined, SHAPES, phases, &["all-gather b"; 2]);
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
