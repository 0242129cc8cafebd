//! The edges of ops with regions, along which values go in, around and out.

use std::collections::HashSet;
use std::sync::Arc;

use meshloom::ir::{DType, Graph, GraphBuilder, PortInfo, TensorType, Value};
use meshloom::ops::{Call, Checkpoint, Cond, CustomVjp, Often, Op, RematPolicy, Scan, Source, Target, While};

fn tensor(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

/// A body that returns some of its inputs.
fn body(inputs: &[TensorType], outputs: &[usize]) -> Arc<Graph> {
    let mut builder = GraphBuilder::new("body");
    let inputs: Vec<Value> = inputs.iter().map(|ty| builder.input(ty.clone(), PortInfo::default())).collect();
    let info = vec![PortInfo::default(); outputs.len()];
    builder.finish(outputs.iter().map(|&index| inputs[index]).collect(), info).into()
}

/// Every operand, result and port is on one edge, and all ends of an edge have the same type.
fn check(op: impl Into<Op>, operands: &[TensorType]) {
    let op: Op = op.into();
    let results = op.infer(&operands.iter().collect::<Vec<_>>()).expect("the op fits its operands");
    let bodies: Vec<&Arc<Graph>> = op.regions().collect();
    let mut seen = HashSet::new();
    for edge in op.edges() {
        let inner = |ty: &TensorType| match edge.sliced {
            true => TensorType::new(ty.dtype, &ty.dims[1..]),
            false => ty.clone(),
        };
        let mut types = Vec::new();
        match edge.source {
            Source::Inside => {}
            Source::Operand(index) => types.push(inner(&operands[index])),
            Source::Cotangent(index) => types.push(inner(&results[index])),
        }
        match edge.target {
            Target::Inside | Target::Control => {}
            Target::Result(index) => types.push(inner(&results[index])),
            Target::Cotangent(index) => types.push(inner(&operands[index])),
        }
        types.extend(edge.inputs.iter().map(|port| {
            let body = bodies[port.region];
            body.ty(body.inputs()[port.index]).clone()
        }));
        types.extend(edge.outputs.iter().map(|port| {
            let body = bodies[port.region];
            body.ty(body.outputs()[port.index]).clone()
        }));
        assert!(types.windows(2).all(|pair| pair[0] == pair[1]), "{op:?}: {edge:?} has ends of types {types:?}");
        let inputs = edge.inputs.iter().map(|port| format!("input {port:?}"));
        let outputs = edge.outputs.iter().map(|port| format!("output {port:?}"));
        let ends = [format!("from {:?}", edge.source), format!("to {:?}", edge.target)].into_iter();
        let is_shared = |end: &String| end.ends_with("Inside") || end.ends_with("Control");
        for end in inputs.chain(outputs).chain(ends.filter(|end| !is_shared(end))) {
            assert!(seen.insert(end.clone()), "{op:?}: {end} is on two edges");
        }
    }
    let ports: usize = bodies.iter().map(|body| body.inputs().len() + body.outputs().len()).sum();
    let cotangents = seen.iter().filter(|end| end.contains("Cotangent")).count();
    assert_eq!(seen.len() - cotangents, operands.len() + results.len() + ports, "{op:?} has ends that are on no edge");
}

#[test]
fn every_end_is_on_one_edge() {
    let (row, matrix, flag) = (tensor(&[3]), tensor(&[2, 3]), TensorType::scalar(DType::Pred));
    let count = TensorType::scalar(DType::S32);
    let pair = [row.clone(), matrix.clone()];
    check(Call { function: body(&pair, &[1, 0]) }, &pair);
    check(Checkpoint { body: body(&pair, &[1]), policy: RematPolicy::Full }, &pair);
    let branches = vec![body(&pair, &[1, 0]), body(&pair, &[1, 0])];
    check(Cond::of(branches), &[flag.clone(), row.clone(), matrix.clone()]);
    // One of the operands has no cotangent; there are two residuals.
    let operands = [row.clone(), count.clone(), matrix.clone()];
    let rule = CustomVjp {
        primal: body(&operands, &[0, 1]),
        forward: body(&operands, &[0, 1, 2, 1]),
        backward: body(&[matrix.clone(), count.clone(), row.clone()], &[2, 0]),
    };
    check(rule, &operands);
    let scanned = [matrix.clone(), row.clone(), count.clone(), row.clone()];
    let scan = Scan {
        body: body(&scanned, &[1, 2, 3, 0]),
        length: 5,
        invariant_count: 1,
        carry_count: 2,
        reverse: false,
        parallel: false,
        unroll: 1,
    };
    check(scan, &[matrix.clone(), row.clone(), count, tensor(&[5, 3])]);
    let looped = [matrix, flag, row];
    check(
        While {
            condition: body(&looped, &[1]),
            body: body(&looped, &[1, 2]),
            invariant_count: 1,
            at_most: 0,
            often: Often::default(),
        },
        &looped,
    );
}
