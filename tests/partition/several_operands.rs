//! Collectives of several operands: the plugin and the reference interpreter agree, over each choice of axes and
//! dimension.

use meshloom::ir::{GraphBuilder, PortInfo};
use meshloom::ops::*;
use support::eight_devices::client;
use support::local_graph::{self, f32s, group, mesh, numbers};
use support::spmd::run_local;

#[test]
fn collectives_of_several_operands() {
    let mesh = mesh("a=2,b=2,c=2");
    let mut problems = Vec::new();
    for axes in [&["a", "b"][..], &["b"], &["c", "a"]] {
        for dim in 0..3 {
            let group = group(&mesh, axes);
            let ops: [Op; 3] = [
                AllGather { group: group.clone(), dim }.into(),
                AllReduce { group: group.clone(), kind: ReduceKind::Sum }.into(),
                ReduceScatter { group, dim }.into(),
            ];
            for op in ops {
                let mut builder = GraphBuilder::new("several");
                let types = [f32s(&[8, 4, 8]), f32s(&[8, 4, 4])];
                let own = |builder: &mut GraphBuilder, ty| {
                    let x = builder.input(ty, local_graph::rows(&mesh, &["a", "b", "c"], 3));
                    builder.push1(Binary(BinaryKind::Multiply), &[x, x]).unwrap()
                };
                let operands = types.map(|ty| own(&mut builder, ty));
                let results = builder.push(op.clone(), &operands).unwrap().to_vec();
                let port = || local_graph::rows(&mesh, &["a", "b", "c"], 3);
                let info: Vec<PortInfo> = results.iter().map(|_| port()).collect();
                let graph = builder.finish(results, info);
                let inputs = [numbers(&f32s(&[64, 4, 8]), 0), numbers(&f32s(&[64, 4, 4]), 1)];
                let expected = run_local(&graph, &mesh, &inputs).unwrap();
                let found = local_graph::run(&client(), &graph, &mesh);
                if found != expected {
                    problems.push(format!("{op:?}"));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}
