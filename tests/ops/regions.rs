//! Ops with regions.

use std::sync::Arc;

use meshloom::ir::DType::*;
use meshloom::ir::{Graph, GraphBuilder, Name, TensorType, Value};
use meshloom::ops::*;

use crate::harness::*;

pub fn body(name: &str, inputs: &str, f: impl FnOnce(&mut GraphBuilder, &[Value]) -> Vec<Value>) -> Arc<Graph> {
    Arc::new(graph(name, &types(inputs), f))
}

pub fn mul(b: &mut GraphBuilder, x: Value, y: Value) -> Value {
    push(b, Binary(BinaryKind::Multiply), &[x, y])
}

pub fn add(b: &mut GraphBuilder, x: Value, y: Value) -> Value {
    push(b, Binary(BinaryKind::Add), &[x, y])
}

pub fn unary(b: &mut GraphBuilder, kind: UnaryKind, x: Value) -> Value {
    push(b, Unary(kind), &[x])
}

/// One step of a loop over vectors of two: `(scale; carry, count; input, index) -> (carry, count; output, index)`.
fn scan_body(dtype: &str) -> Arc<Graph> {
    let inputs = format!("{dtype}[2] {dtype}[2] s32[] {dtype}[2] s32[]");
    body("step", &inputs, |b, x| {
        let [scale, carry, count, input, index] = *x else { unreachable!() };
        let scaled = mul(b, scale, carry);
        let next = unary(b, UnaryKind::Sine, scaled);
        let next = add(b, next, input);
        let output = mul(b, next, carry);
        let count = add(b, count, index);
        vec![next, count, output, index]
    })
}

fn scan_op(dtype: &str, length: usize, reverse: bool) -> Scan {
    Scan { body: scan_body(dtype), length, invariant_count: 1, carry_count: 2, reverse, parallel: false, unroll: 1 }
}

fn scan_reference(operands: &[Tensor], length: usize, reverse: bool) -> Vec<Tensor> {
    let (scale, mut carry) = (&operands[0].values, operands[1].values.clone());
    let (mut count, mut outputs) = (operands[2].values[0], vec![0.0; 2 * length]);
    for step in 0..length {
        let step = if reverse { length - 1 - step } else { step };
        for lane in 0..2 {
            let next = (scale[lane] * carry[lane]).sin() + operands[3].values[2 * step + lane];
            outputs[2 * step + lane] = next * carry[lane];
            carry[lane] = next;
        }
        count += operands[4].values[step];
    }
    let dtype = operands[1].ty.dtype;
    vec![
        Tensor::new(dtype, &[2], &carry),
        Tensor::scalar(S32, count),
        Tensor::new(dtype, &[length, 2], &outputs),
        operands[4].clone(),
    ]
}

fn scan_operands(dtype: meshloom::ir::DType, length: usize) -> Vec<Tensor> {
    vec![
        random(dtype, &[2], 0.2, 1.5),
        random(dtype, &[2], -1.0, 1.0),
        Tensor::scalar(S32, 5.0),
        random(dtype, &[length, 2], -1.5, 1.5),
        distinct(S32, &[length]),
    ]
}

pub fn scan() -> Entry {
    let op = scan_op("f32", 3, false);
    let lengthy = Scan { length: 3_000_000_000, ..op.clone() };
    let fewer = Scan { invariant_count: 0, carry_count: 3, ..op.clone() };
    let many = Scan { invariant_count: usize::MAX, ..op.clone() };
    let no_outputs = Scan {
        body: body("nothing", "f32[]", |_, _| vec![]),
        length: 3,
        invariant_count: 0,
        carry_count: 1,
        reverse: false,
        parallel: false,
        unroll: 1,
    };
    let mut entry = Entry::new("scan")
        .accept(op.clone(), "f32[2] f32[2] s32[] f32[3,2] s32[3] -> f32[2] s32[] f32[3,2] s32[3]")
        .accept(scan_op("f32", 0, true), "f32[2] f32[2] s32[] f32[0,2] s32[0] -> f32[2] s32[] f32[0,2] s32[0]")
        .reject(op.clone(), "f32[2] f32[2] s32[]", "expected 5 operands, found 3")
        .reject(op.clone(), "f32[2] f32[3] s32[] f32[3,2] s32[3]", "dimension 0 of operand 1 must have size 2, found 3")
        .reject(op.clone(), "f32[2] f32[2] s32[] f32[4,2] s32[3]", "dimension 0 of operand 3 must have size 3, found 4")
        .reject(op.clone(), "f32[2] f32[2] s32[] f32[2] s32[3]", "operand 3 must have 2 dimensions, found 1")
        .reject(
            op.clone(),
            "f32[2] f32[2] u32[] f32[3,2] s32[3]",
            "the element type of operand 2 must be s32, found u32",
        )
        .reject(many, "f32[2] f32[2] s32[] f32[3,2] s32[3]", "invariants and 2 carries, but only 5 operands")
        .reject(
            fewer,
            "f32[2] f32[2] s32[] f32[3,2] s32[3]",
            "carry 1 enters an iteration as f32[2] and leaves it as s32[]; both must be the same",
        )
        .reject(no_outputs, "f32[]", "the body returns 0 values, fewer than the 1 carries")
        .reject(
            lengthy,
            "f32[2] f32[2] s32[] f32[3000000000,2] s32[3000000000]",
            "a loop of 3000000000 iterations is longer than s32 can count",
        );
    for length in [0, 1, 3] {
        for reverse in [false, true] {
            for (dtype, tolerance) in [(F32, 1e-6), (BF16, 0.05)] {
                let operands = scan_operands(dtype, length);
                let expected = scan_reference(&operands, length, reverse);
                entry = entry.run(scan_op(dtype.name(), length, reverse), &operands, expected, tolerance);
            }
            let operands = scan_operands(F64, length);
            entry = entry.gradient(scan_op("f64", length, reverse), &operands);
            for active in [0, 1, 3] {
                entry = entry.gradient_in(scan_op("f64", length, reverse), &operands, &[active]);
            }
        }
    }
    // No invariants and nothing stacked; only stacked inputs and outputs; a carry that only some outputs depend on.
    let carries = body("carries", "f64[3] f64[3]", |b, x| {
        let product = mul(b, x[0], x[1]);
        let next = unary(b, UnaryKind::Tanh, product);
        vec![x[1], next]
    });
    let carries = Scan {
        body: carries,
        length: 3,
        invariant_count: 0,
        carry_count: 2,
        reverse: false,
        parallel: false,
        unroll: 1,
    };
    let slices = body("slices", "f64[2] f64[]", |b, x| {
        let exponential = unary(b, UnaryKind::Exponential, x[0]);
        let square = mul(b, x[1], x[1]);
        vec![square, exponential, x[0]]
    });
    let slices =
        Scan { body: slices, length: 3, invariant_count: 0, carry_count: 0, reverse: true, parallel: false, unroll: 1 };
    let invariant = body("invariant", "f64[2] f64[2] f64[2]", |b, x| {
        let product = mul(b, x[0], x[1]);
        let next = mul(b, x[0], x[2]);
        vec![next, product, x[1], x[0]]
    });
    let invariant = Scan {
        body: invariant,
        length: 2,
        invariant_count: 1,
        carry_count: 1,
        reverse: false,
        parallel: false,
        unroll: 1,
    };
    // A loop in a loop: the inner one's carry starts at the outer one's.
    let inner = scan_op("f64", 2, true);
    let nested = body("outer", "f64[2] f64[2] f64[2,2]", |b, x| {
        let zero = push(b, Splat::new(TensorType::scalar(S32), 0.0), &[]);
        let positions = push(b, Iota { ty: TensorType::new(S32, &[2]), axis: 0 }, &[]);
        let results = b.push(inner.clone(), &[x[0], x[1], zero, x[2], positions]).expect("fits");
        let mean = push(b, Reduce { kind: ReduceKind::Sum, axes: [0].into_iter().collect() }, &[results[2]]);
        vec![results[0], mean]
    });
    let nested = Scan {
        body: nested,
        length: 3,
        invariant_count: 1,
        carry_count: 1,
        reverse: false,
        parallel: false,
        unroll: 1,
    };
    entry
        .gradient(carries, &[f64s(&[3]), random(F64, &[3], 0.3, 1.0)])
        .gradient(slices, &[f64s(&[3, 2]), f64s(&[3])])
        .gradient_in(invariant, &[f64s(&[2]), random(F64, &[2], 0.0, 1.0), random(F64, &[2, 2], 0.0, 1.0)], &[0, 2])
        .gradient(nested, &[random(F64, &[2], 0.2, 1.5), f64s(&[2]), f64s(&[3, 2, 2])])
        .with_vjp_snapshot()
}

/// `(x, y, n) -> (sin(x) * y + x, n)`, with a named value and, where asked for, a dot and a loop.
fn function(dtype: &str, rich: bool) -> Arc<Graph> {
    body("function", &format!("{dtype}[2,2] {dtype}[2,2] s32[]"), |b, x| {
        let sine = unary(b, UnaryKind::Sine, x[0]);
        let sine = push(b, Named(Name::new("sine")), &[sine]);
        let mut result = mul(b, sine, x[1]);
        result = add(b, result, x[0]);
        if rich {
            let contract = || AxisList::from_slice(&[1]);
            let dims = DotDims { lhs_contract: contract(), rhs_contract: contract(), ..DotDims::default() };
            let dtype = b.ty(result).dtype;
            let dot = DotGeneral { dims: Box::new(dims), dtype, precision: Precision::Default };
            let product = push(b, dot, &[result, sine]);
            // Bounded, so that a few layers of it stay smooth enough for central differences.
            let product = unary(b, UnaryKind::Tanh, product);
            let step = body("loop", "f64[2] f64[2]", |b, x| {
                let product = mul(b, x[0], x[1]);
                let next = unary(b, UnaryKind::Cosine, product);
                vec![next, product]
            });
            let scan = Scan {
                body: step,
                length: 2,
                invariant_count: 0,
                carry_count: 1,
                reverse: false,
                parallel: false,
                unroll: 1,
            };
            let start = push(b, Reduce { kind: ReduceKind::Sum, axes: [0].into_iter().collect() }, &[product]);
            let results = b.push(scan, &[start, product]).expect("fits");
            result = add(b, result, results[1]);
        }
        vec![result, x[2]]
    })
}

/// Signatures, runs and rejections of an op that calls `function`.
fn calling(mut entry: Entry, op: impl Fn(&str) -> Op) -> Entry {
    entry = entry
        .accept(op("f32"), "f32[2,2] f32[2,2] s32[] -> f32[2,2] s32[]")
        .reject(op("f32"), "f32[2,2]", "expected 3 operands, found 1")
        .reject(op("f32"), "f32[2,2] f32[2,3] s32[]", "dimension 1 of operand 1 must have size 2, found 3")
        .reject(op("f32"), "f32[2,2] bf16[2,2] s32[]", "the element type of operand 1 must be f32, found bf16")
        .reject(op("f32"), "f32[2,2] f32[2,2] s32[1]", "operand 2 must have 0 dimensions, found 1");
    for (dtype, tolerance) in [(F32, 1e-6), (BF16, 2e-2)] {
        let (x, y) = (random(dtype, &[2, 2], -2.0, 2.0), random(dtype, &[2, 2], 0.0, 1.0));
        let (n, z) = (Tensor::scalar(S32, 7.0), Tensor::from_fn(dtype, &[2, 2], |i| x.at(i).sin() * y.at(i) + x.at(i)));
        entry = entry.run(op(dtype.name()), &[x, y, n.clone()], [z, n], tolerance);
    }
    entry
}

fn function_operands() -> [Tensor; 3] {
    [f64s(&[2, 2]), random(F64, &[2, 2], 0.0, 1.0), Tensor::scalar(S32, 7.0)]
}

pub fn call() -> Entry {
    let op = |dtype: &str| Op::from(Call { function: function(dtype, false) });
    let rich = Call { function: function("f64", true) };
    // Called twice, the second time on its own result; and a function that calls functions.
    let shared = function("f64", true);
    let twice = body("twice", "f64[2,2] f64[2,2] s32[]", |b, x| {
        let first = b.push(Call { function: shared.clone() }, x).expect("fits");
        b.push(Call { function: shared.clone() }, &[x[1], first[0], first[1]]).expect("fits").to_vec()
    });
    let operands = function_operands();
    calling(Entry::new("call"), op)
        .accept(Call { function: body("empty", "", |_, _| vec![]) }, "->")
        .gradient(rich.clone(), &operands)
        .gradient_in(rich.clone(), &operands, &[0])
        .gradient_in(rich, &operands, &[1])
        .gradient(Call { function: twice }, &operands)
        .with_vjp_snapshot()
}

pub fn checkpoint() -> Entry {
    let policies = || {
        let name = |text| Name::new(text);
        [
            RematPolicy::Full,
            RematPolicy::None,
            RematPolicy::Dots,
            RematPolicy::Save(vec![name("sine")]),
            RematPolicy::Save(vec![name("another")]),
        ]
    };
    let op = |dtype: &str| Op::from(Checkpoint { body: function(dtype, false), policy: RematPolicy::Full });
    let mut entry = calling(Entry::new("checkpoint"), op);
    for policy in policies() {
        let op = Checkpoint { body: function("f64", true), policy: policy.clone() };
        let operands = function_operands();
        entry = entry.gradient_in(op.clone(), &operands, &[1]);
        // In the body of a loop, and in another checkpoint.
        let inner = op.clone();
        let step = body("layers", "f64[2,2] f64[2,2]", |b, x| {
            let zero = push(b, Splat::new(TensorType::scalar(S32), 0.0), &[]);
            vec![b.push(inner, &[x[0], x[1], zero]).expect("fits")[0]]
        });
        let layers = Scan {
            body: step,
            length: 3,
            invariant_count: 0,
            carry_count: 1,
            reverse: false,
            parallel: false,
            unroll: 1,
        };
        entry = entry.gradient(layers, &[f64s(&[2, 2]), random(F64, &[3, 2, 2], 0.0, 1.0)]);
        let outer = body("nested", "f64[2,2] f64[2,2] s32[]", |b, x| {
            let results = b.push(op, x).expect("fits");
            vec![mul(b, results[0], x[0]), results[1]]
        });
        entry = entry.gradient(Checkpoint { body: outer, policy }, &operands);
    }
    entry.with_vjp_snapshot()
}

/// `(x, y, n) -> sin(x) * y`, with `factor` times its gradient, by hand.
fn custom(dtype: &str, factor: f64) -> CustomVjp {
    let inputs = format!("{dtype}[2,2] {dtype}[2,2] s32[]");
    let primal = function(dtype, false);
    let forward = body("forward", &inputs, |b, x| {
        let results = b.push(Call { function: function(dtype, false) }, x).expect("fits");
        vec![results[0], results[1], x[0], x[1]]
    });
    let backward = body("backward", &format!("{dtype}[2,2] {dtype}[2,2] {dtype}[2,2]"), |b, x| {
        let [x, y, ct] = *x else { unreachable!() };
        let ty = b.ty(ct).clone();
        let factor = push(b, Splat::new(ty.clone(), factor), &[]);
        let ct = mul(b, ct, factor);
        let (cosine, sine) = (unary(b, UnaryKind::Cosine, x), unary(b, UnaryKind::Sine, x));
        let slope = mul(b, cosine, y);
        let one = push(b, Splat::new(ty, 1.0), &[]);
        let slope = add(b, slope, one);
        vec![mul(b, ct, slope), mul(b, ct, sine)]
    });
    CustomVjp { primal, forward, backward }
}

pub fn custom_vjp() -> Entry {
    let good = custom("f32", 1.0);
    let other = body("other", "f32[2,2] f32[2,2] s32[]", |_, x| vec![x[2], x[0]]);
    let short = body("short", "f32[2,2] f32[2,2] s32[]", |_, x| vec![x[0]]);
    let operands = "f32[2,2] f32[2,2] s32[]";
    let narrow = body("narrow", "f32[2,2] f32[2,2]", |_, x| vec![x[0], x[1]]);
    let silent = body("silent", "f32[2,2] f32[2,2] f32[2,2]", |_, x| vec![x[0]]);
    let in_loop = body("layers", "f64[2,2] f64[2,2]", |b, x| {
        let zero = push(b, Splat::new(TensorType::scalar(S32), 0.0), &[]);
        vec![b.push(custom("f64", 1.0), &[x[0], x[1], zero]).expect("fits")[0]]
    });
    let layers = Scan {
        body: in_loop,
        length: 2,
        invariant_count: 0,
        carry_count: 1,
        reverse: false,
        parallel: false,
        unroll: 1,
    };
    calling(Entry::new("custom_vjp"), |dtype| custom(dtype, 1.0).into())
        .reject(
            CustomVjp { forward: other, ..good.clone() },
            operands,
            "output 0 of the forward rule must be f32[2,2] as in the function itself, found s32[]",
        )
        .reject(CustomVjp { forward: short, ..good.clone() }, operands, "output 1 of the forward rule must be s32[]")
        .reject(CustomVjp { backward: narrow, ..good.clone() }, operands, "must take the residuals and the cotangents")
        .reject(CustomVjp { backward: silent, ..good }, operands, "must return one cotangent for each floating-point")
        .gradient(custom("f64", 1.0), &function_operands())
        .gradient_in(custom("f64", 1.0), &function_operands(), &[1])
        .gradient(layers, &[f64s(&[2, 2]), random(F64, &[2, 2, 2], 0.0, 1.0)])
        // The rule by hand is what counts.
        .gradient(custom("f64", 0.0), &function_operands())
        .expect_zero()
        .with_vjp_snapshot()
}

/// The instructions that run a body are named after the op, not after the body's last node.
#[test]
fn instructions_around_a_body_are_the_ops_own() {
    let operands = scan_operands(F32, 3);
    let types: Vec<TensorType> = operands.into_iter().map(|operand| operand.ty).collect();
    let called = body("called", "f32[2]", |b, x| vec![unary(b, UnaryKind::Tanh, x[0])]);
    let graph = graph("metadata", &types, |b, x| {
        let results = b.push(scan_op("f32", 3, false), x).expect("fits");
        b.push(Call { function: called }, &results[..1]).expect("fits").to_vec()
    });
    let module = meshloom::emit::emit(&graph, Default::default()).expect("a module").decode().expect("a module");
    let instructions: Vec<_> = module.computations.iter().flat_map(|computation| &computation.instructions).collect();
    for (opcode, op) in
        [("while", "scan"), ("dynamic-update-slice", "scan"), ("dynamic-slice", "scan"), ("call", "call")]
    {
        let named = instructions.iter().filter(|instruction| instruction.opcode == opcode);
        let names: Vec<_> = named.map(|instruction| instruction.metadata.clone().unwrap_or_default().op_type).collect();
        assert!(!names.is_empty() && names.iter().all(|name| name == op), "{opcode} instructions are of {names:?}");
    }
}
