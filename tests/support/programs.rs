//! Programs that plugins for all kinds of hardware compile.

use meshloom::compile::{LowerOptions, Lowered, PartitionMode, lower};
use meshloom::emit::Annotation;
use meshloom::ir::{DType, Graph, GraphBuilder};
use meshloom::ops::{AllGather, AllReduce, Op, ReduceKind, ReduceScatter};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Tensor, TensorSpec, scan};

use crate::local_graph::{f32s, group, rows};

/// Each kind of collective that takes several operands, of two of them: at once, or one by one.
pub fn of_two_operands(mesh: &Mesh, together: bool) -> Graph {
    let ops: [Op; 4] = [
        AllGather { group: group(mesh, &["b"]), dim: 0 }.into(),
        AllReduce { group: group(mesh, &["a"]), kind: ReduceKind::Sum }.into(),
        AllReduce { group: group(mesh, &["b"]), kind: ReduceKind::Max }.into(),
        ReduceScatter { group: group(mesh, &["b", "a"]), dim: 1 }.into(),
    ];
    let mut builder = GraphBuilder::new("several");
    let x = builder.input(f32s(&[2, 16]), rows(mesh, &["a", "b"], 2));
    let y = builder.input(f32s(&[3, 8]), rows(mesh, &["a", "b"], 2));
    let mut outputs = Vec::new();
    for op in ops {
        if together {
            outputs.extend(builder.push(op, &[x, y]).unwrap());
        } else {
            outputs.extend([x, y].map(|value| builder.push1(op.clone(), &[value]).unwrap()));
        }
    }
    let ports = outputs.iter().map(|_| rows(mesh, &["a", "b"], 2)).collect();
    builder.finish(outputs, ports)
}

/// Three layers in a scan, with constraints inside, over a mesh if there is an annotation.
pub fn annotated_layers(annotation: Option<Annotation>) -> Lowered {
    let mesh = Mesh::parse("data=2,model=4", 8).unwrap();
    let rules: &[(&str, &[&str])] = &[("rows", &["data"]), ("hidden", &["model"])];
    let rules = RuleSets::uniform(Rules::from_pairs(rules).unwrap());
    let specs = (
        TensorSpec::new(DType::F32, [16, 8]).with_axes(&["rows", ""]),
        TensorSpec::new(DType::F32, [3, 8, 32]).with_axes(&["", "", "hidden"]),
        TensorSpec::new(DType::F32, [3, 32, 8]).with_axes(&["", "hidden", ""]),
    );
    let function = Function::trace("layers", specs, |(x, up, down): (Tensor, Tensor, Tensor)| {
        let (x, ()) = scan(x, (up, down), |x, (up, down)| {
            let hidden = x.matmul(up).tanh().with_axes(["rows", "hidden"]);
            (x + hidden.matmul(down), ())
        });
        (x.with_axes(["rows", ""]), x.square().sum(..))
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let sharding = annotation.map(|_| (&mesh, &rules));
    let options = LowerOptions {
        sharding,
        partition: PartitionMode::Annotated(annotation.unwrap_or_default()),
        ..LowerOptions::default()
    };
    lower(function.graph(), &options).unwrap()
}
