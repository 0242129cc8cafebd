//! The verifier of graphs.

use meshloom::internals::{Damage, damage, node, value};
use meshloom::ir::{DType, Definition, Graph, GraphBuilder, Name, PortInfo, TensorType, verify};
use meshloom::ops::{Binary, BinaryKind, Call, Unary, UnaryKind};

/// x + x, then negated.
fn graph() -> Graph {
    let mut builder = GraphBuilder::new("f");
    let x = builder.input(TensorType::new(DType::F32, &[2]), PortInfo::default());
    let sum = builder.push1(Binary(BinaryKind::Add), &[x, x]).expect("a sum");
    let negated = builder.push1(Unary(UnaryKind::Negate), &[sum]).expect("a negation");
    builder.finish(vec![negated], vec![PortInfo::default()])
}

/// Damages a valid graph, and checks that the verifier refuses it.
fn check(by: Damage, expected: &str) {
    let mut broken = graph();
    verify(&broken).expect("valid as built");
    damage(&mut broken, by);
    assert_eq!(verify(&broken).expect_err(expected).to_string(), expected);

    // The error is the same inside a region.
    let mut builder = GraphBuilder::new("caller");
    let x = builder.input(TensorType::new(DType::F32, &[2]), PortInfo::default());
    let types = [TensorType::new(DType::F32, &[2])];
    let function = std::sync::Arc::new(broken);
    if function.input_types().eq(&types) && function.output_types().eq(&types) {
        let results = builder.push(Call { function }, &[x]).expect("its types are right");
        let caller = builder.finish(results.to_vec(), vec![PortInfo::default()]);
        assert_eq!(verify(&caller).expect_err(expected).to_string(), expected);
    }
}

#[test]
fn broken_graphs_are_refused() {
    check(Damage::Operand(0, value(2)), "node0 of `f` uses %2 before it is defined");
    check(Damage::Operand(0, value(9)), "node0 of `f` uses %9 before it is defined");
    check(Damage::SwappedNodes(0, 1), "node0 of `f` uses %1 before it is defined");
    check(Damage::Definition(1, Definition::Result(node(1), 0)), "%1 of `f` is not defined where its entry says");
    check(Damage::Definition(0, Definition::Input(1)), "%0 of `f` is not defined where its entry says");
    check(Damage::FurtherInput(value(0)), "`f` has 2 inputs but 1 descriptions of them");
    check(Damage::NoOutputInfo, "`f` has 1 outputs but 0 descriptions of them");
    check(
        Damage::InputAxes(0, ["a", "b"].map(Name::new).into_iter().collect()),
        "`f` has 1 input dimensions but 2 descriptions of them",
    );
    check(
        Damage::Type(1, TensorType::new(DType::F32, &[3])),
        "in `f`: add(f32[2], f32[2]): its results are [f32[3]], but the op yields [f32[2]]",
    );
    check(
        Damage::Type(0, TensorType::new(DType::Pred, &[2])),
        "in `f`: add(pred[2], pred[2]): the element type of operand 0 must be a number type, found pred; convert it with \
         `.convert(..)`",
    );
}
