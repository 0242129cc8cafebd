//! Collectives of several operands, and reduce-scatters in other forms than their operands have: the plugin and the
//! reference interpreter agree, over each choice of axes and dimension.

use meshloom::analysis::{Devices, collectives};
use meshloom::emit::{EmitOptions, emit};
use meshloom::ir::{Graph, GraphBuilder, PortInfo};
use meshloom::ops::*;
use meshloom::partition::Ledger;
use meshloom::passes::CollectiveLevels;
use meshloom::pjrt::SliceLevels;
use meshloom::sharding::Mesh;
use support::cases::cases;
use support::eight_devices::client;
use support::local_graph::{self, f32s, group, mesh, numbers};
use support::spmd::run_local;

#[test]
fn collectives_of_several_operands() {
    let mesh = mesh("a=2,b=2,c=2");
    let mut ops: Vec<(Op, Vec<&[usize]>)> = Vec::new();
    for axes in [&["a", "b"][..], &["b"], &["c", "a"]] {
        for dim in 0..3 {
            let group = group(&mesh, axes);
            let all: [Op; 3] = [
                AllGather { group: group.clone(), dim }.into(),
                AllReduce { group: group.clone(), kind: ReduceKind::Sum }.into(),
                ReduceScatter { group, dim }.into(),
            ];
            ops.extend(all.map(|op| (op, vec![&[8, 4, 8][..], &[8, 4, 4]])));
        }
    }
    agree(&mesh, &ops);
}

/// So large that each device's part of the reduce-scatter is 16 rows, the last of them padded: 36488 elements of 36496.
#[test]
fn packed_parts_are_rows_of_a_matrix() {
    let mesh = mesh("a=2,b=2,c=2");
    let group = group(&mesh, &["a", "c"]);
    let dims: [&[usize]; 2] = [&[8, 512, 32], &[8, 60, 31]];
    let ops = [0, 1].map(|dim| (Op::from(ReduceScatter { group: group.clone(), dim }), dims.to_vec()));
    for (op, dims) in &ops {
        let graph = graph(&mesh, &[(op.clone(), dims.clone())]);
        let options = EmitOptions { mesh: Some(&mesh), partitioned: true, ..EmitOptions::default() };
        let module = emit(&graph, options).unwrap().decode().unwrap();
        let found = collectives(&module, Devices::partitioned(8)).along(&mesh);
        let [entry] = found.entries.as_slice() else { panic!("{found:?}") };
        assert_eq!(entry.bytes, Some(4 * 36496 * 4));
        let mut instructions = module.computations.iter().flat_map(|it| &it.instructions);
        let scattered = instructions.find(|it| it.opcode == "reduce-scatter").unwrap();
        assert_eq!(scattered.shape.as_ref().unwrap().dimensions, [16, 2281]);
        let ledger = Ledger::of(&graph, &mesh);
        assert_eq!(ledger.moved_bytes().unwrap(), found.moved_bytes());
        assert_eq!(ledger.bytes().unwrap(), 4 * 36496 * 4);
    }
    agree(&mesh, &cases("partition packed parts by XLA", 1, ops));
}

/// Single operands that the plugin gets as a matrix.
#[test]
fn single_operands_in_other_forms() {
    let mesh = mesh("a=2,b=2,c=2");
    let group = group(&mesh, &["c", "a"]);
    let all: [(&[usize], usize, &[i64]); 7] = [
        (&[8, 32, 64], 2, &[256, 16]),
        (&[64, 8, 32], 0, &[16, 256]),
        (&[8, 128, 32], 1, &[16, 512]),
        (&[1, 128, 128], 1, &[32, 128]),
        (&[8, 64, 128], 1, &[8, 16, 128]),
        // Long rows of large matrices.
        (&[1, 64, 65536], 1, &[16, 256, 256]),
        (&[129, 128, 128], 2, &[16, 129, 256]),
    ];
    let mut ops = Vec::new();
    for (dims, dim, scattered) in all {
        let op: Op = ReduceScatter { group: group.clone(), dim }.into();
        let graph = graph(&mesh, &[(op.clone(), vec![dims])]);
        let options = EmitOptions { mesh: Some(&mesh), partitioned: true, ..EmitOptions::default() };
        let module = emit(&graph, options).unwrap().decode().unwrap();
        let mut instructions = module.computations.iter().flat_map(|it| &it.instructions);
        let found = instructions.find(|it| it.opcode == "reduce-scatter").unwrap();
        assert_eq!(found.shape.as_ref().unwrap().dimensions, scattered, "{dims:?}");
        let found = collectives(&module, Devices::partitioned(8)).along(&mesh);
        assert_eq!(Ledger::of(&graph, &mesh).moved_bytes().unwrap(), found.moved_bytes(), "{dims:?}");
        ops.push((op, vec![dims]));
    }
    let large = ops.split_off(5);
    agree(&mesh, &ops);
    for op in cases("partition large scatters by XLA", 0, large) {
        agree(&mesh, &[op]);
    }
}

/// A collective over three axes in two levels; the minor level has as many devices as a slice's first dimension,
/// or nearly; an all-gather also in three.
#[test]
fn levels_of_several_axes() {
    let mesh = mesh("a=2,b=2,c=2");
    let group = group(&mesh, &["c", "a", "b"]);
    let whole: Vec<_> =
        [[64, 16, 3], [128, 8, 3]].iter().enumerate().map(|(i, dims)| numbers(&f32s(dims), i)).collect();
    for (shape, gathers, levels) in [
        (&[2, 4][..], None, &["c,a", "b"][..]),
        (&[4, 2], None, &["c", "a,b"]),
        (&[4, 2], Some(0), &["c", "a", "b"]),
        (&[2, 2, 2], Some(u64::MAX), &["c,a", "b"]),
    ] {
        let slice = SliceLevels { shape: shape.to_vec(), whole: true, gathers };
        let in_levels = CollectiveLevels::new(&mesh, &slice).expect("axes along dimensions");
        // Only gathers have as many.
        let two = if gathers == Some(0) { &["c", "a,b"][..] } else { levels };
        for dim in 0..2 {
            let ops: [(Op, Vec<&str>); 2] = [
                (AllGather { group: group.clone(), dim }.into(), levels.iter().rev().copied().collect()),
                (ReduceScatter { group: group.clone(), dim }.into(), two.to_vec()),
            ];
            for (op, axes) in ops {
                let one = graph(&mesh, &[(op.clone(), vec![&[8, 16, 3], &[16, 8, 3]])]);
                let two = in_levels.write(&one, &mesh);
                let [before, after] = [&one, &two].map(|graph| Ledger::of(graph, &mesh));
                let found: Vec<String> = after.iter().unwrap().map(|it| it.axes.join(",")).collect();
                assert_eq!(found, axes, "{op:?}");
                assert_eq!(before.moved_bytes(), after.moved_bytes(), "{op:?}");
                let [expected, found] = [&one, &two].map(|graph| run_local(graph, &mesh, &whole).unwrap());
                // Whole numbers, which are added up in any order alike.
                assert_eq!(found, expected, "{op:?}");
            }
        }
    }
}

/// Builds a graph of collectives, from the dimensions that the operands of each have on one device.
fn graph(mesh: &Mesh, ops: &[(Op, Vec<&[usize]>)]) -> Graph {
    let mut builder = GraphBuilder::new("several");
    let mut results = Vec::new();
    for (op, dims) in ops {
        let own = |builder: &mut GraphBuilder, ty| {
            let x = builder.input(ty, local_graph::rows(mesh, &["a", "b", "c"], 3));
            builder.push1(Binary(BinaryKind::Multiply), &[x, x]).unwrap()
        };
        let operands: Vec<_> = dims.iter().map(|dims| own(&mut builder, f32s(dims))).collect();
        results.extend(builder.push(op.clone(), &operands).unwrap());
    }
    let info: Vec<PortInfo> = results.iter().map(|_| local_graph::rows(mesh, &["a", "b", "c"], 3)).collect();
    builder.finish(results, info)
}

/// Checks that the plugin and the interpreter agree about collectives, in one program.
fn agree(mesh: &Mesh, ops: &[(Op, Vec<&[usize]>)]) {
    // A share of the full tier may have no case, and XLA takes no program without results.
    if ops.is_empty() {
        return;
    }
    let graph = graph(mesh, ops);
    let whole = |(index, dims): (usize, &&[usize])| numbers(&f32s(&[8 * dims[0], dims[1], dims[2]]), index);
    let whole: Vec<_> = ops.iter().flat_map(|(_, dims)| dims).enumerate().map(whole).collect();
    let mut expected = run_local(&graph, mesh, &whole).unwrap().into_iter();
    let mut found = local_graph::run(&client(), &graph, mesh).into_iter();
    for (op, dims) in ops {
        let (found, expected) = (found.by_ref().take(dims.len()), expected.by_ref().take(dims.len()));
        assert!(found.eq(expected), "{op:?}: {dims:?}");
    }
}
