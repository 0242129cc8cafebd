//! Loops without a known length, and branches.

use std::sync::Arc;

use meshloom::ir::DType::{self, *};
use meshloom::ir::{Graph, GraphBuilder, TensorType, Value};
use meshloom::ops::*;

use crate::harness::*;
use crate::regions::{add, body, mul, unary};

fn below(b: &mut GraphBuilder, x: Value, limit: Value) -> Value {
    push(b, Compare(Direction::Lt), &[x, limit])
}

/// `(limit, scale; count, x) -> (count + 1, sin(x) * scale)` while the count is below the limit.
fn while_op(dtype: &str) -> While {
    let inputs = format!("s32[] {dtype}[2] s32[] {dtype}[2]");
    let condition = body("condition", &inputs, |b, x| vec![below(b, x[2], x[0])]);
    let step = body("step", &inputs, |b, x| {
        let one = push(b, Splat::new(TensorType::scalar(S32), 1.0), &[]);
        let sine = unary(b, UnaryKind::Sine, x[3]);
        vec![add(b, x[2], one), mul(b, sine, x[1])]
    });
    While { condition, body: step, invariant_count: 2, at_most: 0, often: Often::default() }
}

pub fn while_loop() -> Entry {
    let op = while_op("f32");
    let operands = "s32[] f32[2] s32[] f32[2]";
    let number = body("number", operands, |_, x| vec![x[0]]);
    let short = body("short", operands, |_, x| vec![x[2]]);
    let swapped = body("swapped", operands, |_, x| vec![x[3], x[2]]);
    let mut entry = Entry::new("while")
        .accept(op.clone(), "s32[] f32[2] s32[] f32[2] -> s32[] f32[2]")
        .reject(op.clone(), "s32[] f32[2]", "expected 4 operands, found 2")
        .reject(op.clone(), "s32[] f32[2] s32[] f32[3]", "dimension 0 of operand 3 must have size 2, found 3")
        .reject(While { invariant_count: 5, ..op.clone() }, operands, "there are 5 invariants, but only 4 operands")
        .reject(
            While { condition: number, ..op.clone() },
            operands,
            "the condition must return a pred[], found [s32[]]",
        )
        .reject(While { body: short, ..op.clone() }, operands, "the body returns 1 values for 2 carries")
        .reject(
            While { body: swapped, ..op.clone() },
            operands,
            "carry 0 enters an iteration as s32[] and leaves it as f32[2]; both must be the same",
        );
    for (dtype, tolerance) in [(F32, 1e-6), (BF16, 0.05), (F64, 1e-14)] {
        let (x, scale) = (random(dtype, &[2], -1.0, 1.0), random(dtype, &[2], 0.5, 1.5));
        for (limit, start) in [(5, 2), (1, 0), (0, 0), (-3, 4)] {
            let iterations = (limit - start).max(0);
            let last = (0..iterations)
                .fold(x.values.clone(), |x, _| x.iter().zip(&scale.values).map(|(x, scale)| x.sin() * scale).collect());
            let operands =
                [Tensor::scalar(S32, limit as f64), scale.clone(), Tensor::scalar(S32, start as f64), x.clone()];
            let expected = [Tensor::scalar(S32, (start + iterations) as f64), Tensor::new(dtype, &[2], &last)];
            entry = entry.run(while_op(dtype.name()), &operands, expected, tolerance);
        }
    }
    entry
        .refuse_gradient(
            reduced_while(),
            "f64[2]",
            "while(s32[], f64[2], s32[], f64[2]): it has no gradient in reverse",
        )
        .without_gradient("the number of residuals is not known")
}

/// The loop over its last carry alone.
fn reduced_while() -> Call {
    let function = body("reduced", "f64[2]", |b, x| {
        let three = push(b, Splat::new(TensorType::scalar(S32), 3.0), &[]);
        let zero = push(b, Splat::new(TensorType::scalar(S32), 0.0), &[]);
        vec![b.push(while_op("f64"), &[three, x[0], zero, x[0]]).expect("fits")[1]]
    });
    Call { function }
}

/// `(x, y, n)`: three branches that read different operands and leave different residuals.
fn branches(dtype: &str) -> Vec<Arc<Graph>> {
    let inputs = format!("{dtype}[2] {dtype}[2] s32[]");
    let sine = body("sine", &inputs, |b, x| {
        let sine = unary(b, UnaryKind::Sine, x[0]);
        vec![mul(b, sine, x[1]), x[2]]
    });
    let square = body("square", &inputs, |b, x| {
        let tanh = unary(b, UnaryKind::Tanh, x[0]);
        let square = mul(b, tanh, tanh);
        vec![square, add(b, x[2], x[2])]
    });
    let constant = body("constant", &inputs, |b, x| {
        let ty = b.ty(x[0]).clone();
        vec![push(b, Splat::new(ty, 3.0), &[]), x[2]]
    });
    vec![sine, square, constant]
}

fn branch_values(branch: usize, operands: &[Tensor]) -> [Tensor; 2] {
    let [x, y, n] = operands else { unreachable!() };
    let values = Tensor::from_fn(x.ty.dtype, &[2], |i| match branch {
        0 => x.at(i).sin() * y.at(i),
        1 => x.at(i).tanh().powi(2),
        _ => 3.0,
    });
    let n = if branch == 1 { Tensor::scalar(S32, 2.0 * n.values[0]) } else { n.clone() };
    [values, n]
}

fn operands(dtype: DType) -> Vec<Tensor> {
    vec![random(dtype, &[2], -1.5, 1.5), random(dtype, &[2], 0.0, 1.0), Tensor::scalar(S32, 7.0)]
}

pub fn cond() -> Entry {
    let op = Cond::of(branches("f32"));
    let two = |dtype: &str| Cond::of(branches(dtype)[..2].to_vec());
    let types = "f32[2] f32[2] s32[]";
    let other = body("other", types, |_, x| vec![x[0]]);
    let narrow = body("narrow", "f32[2]", |_, x| vec![x[0]]);
    let mut entry = Entry::new("cond")
        .accept(op.clone(), "s32[] f32[2] f32[2] s32[] -> f32[2] s32[]")
        .accept(two("f32"), "pred[] f32[2] f32[2] s32[] -> f32[2] s32[]")
        .accept(Cond::of(vec![body("nothing", "", |_, _| vec![])]), "s32[] ->")
        .reject(op.clone(), "", "it needs a selector and branches, found 3 branches")
        .reject(Cond::of(vec![]), "s32[]", "it needs a selector and branches, found 0 branches")
        .reject(op.clone(), "pred[] f32[2] f32[2] s32[]", "a pred chooses between two branches, found 3")
        .reject(op.clone(), "u32[] f32[2] f32[2] s32[]", "the element type of operand 0 must be pred or s32, found u32")
        .reject(op.clone(), "s32[1] f32[2] f32[2] s32[]", "operand 0 must have 0 dimensions, found 1")
        .reject(op.clone(), "s32[] f32[2]", "branch 0, operands after the selector: expected 3 operands, found 1")
        .reject(
            Cond::of([op.branches.clone(), vec![other]].concat()),
            "s32[] f32[2] f32[2] s32[]",
            "all branches must return the same types; branch 0 returns [f32[2], s32[]], branch 3 [f32[2]]",
        )
        .reject(
            Cond::of([op.branches.clone(), vec![narrow]].concat()),
            "s32[] f32[2] f32[2] s32[]",
            "branch 3, operands after the selector: expected 1 operand, found 3",
        );
    for (dtype, tolerance) in [(F32, 1e-6), (BF16, 2e-2), (F64, 1e-14)] {
        let arguments = operands(dtype);
        // Out of range, on either side, is the last branch.
        for (index, branch) in [(0, 0), (1, 1), (2, 2), (3, 2), (-1, 2), (i32::MAX, 2), (i32::MIN, 2)] {
            let op = Cond::of(branches(dtype.name()));
            assert_eq!(op.chosen(index), branch);
            let operands = [vec![Tensor::scalar(S32, index.into())], arguments.clone()].concat();
            entry = entry.run(op, &operands, branch_values(branch, &arguments), tolerance);
        }
        for flag in [0, 1] {
            let operands = [vec![Tensor::scalar(Pred, f64::from(flag))], arguments.clone()].concat();
            entry = entry.run(two(dtype.name()), &operands, branch_values(flag as usize, &arguments), tolerance);
        }
    }
    for index in 0..3 {
        let operands = [vec![Tensor::scalar(S32, f64::from(index))], operands(F64)].concat();
        let op = Cond::of(branches("f64"));
        entry = entry.gradient(op.clone(), &operands).gradient_in(op.clone(), &operands, &[1]);
        entry = entry.gradient_in(op, &operands, &[2]);
    }
    for flag in [0.0, 1.0] {
        entry = entry.gradient(two("f64"), &[vec![Tensor::scalar(Pred, flag)], operands(F64)].concat());
    }
    entry.with_vjp_snapshot()
}
