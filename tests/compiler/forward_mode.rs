//! Forward mode and linear transposes, against reverse mode: `<ct, J v> = <J' ct, v>`.

use meshloom::ir::DType::{F64, S32};
use meshloom::ir::TypeError;
use meshloom::ir::{Graph, Literal};
use meshloom::ops::{Op, RematPolicy};
use meshloom::passes::eliminate_dead_code;
use meshloom::trace::TraceErrorKind;
use meshloom::trace::{
    Function, ScanOptions, Tensor, checkpoint, cond, constant, custom_vjp, full, grad, jvp, linear_transpose,
    linearize, scan, scan_with, switch, vjp, while_loop, zeros,
};
use support::anchored::{run, run_anchored};
use support::derivatives::*;
use support::*;

type Several = fn(&[Tensor]) -> Vec<Tensor>;

/// The same tensors in every run.
fn directions(shapes: &[&[usize]], seed: u64) -> Vec<Tensor> {
    shapes.iter().zip(seed..).map(|(dims, seed)| constant(f64s(dims, seed)) - 0.6).collect()
}

fn inner(x: &[Tensor], y: &[Tensor]) -> Tensor {
    x.iter().zip(y).map(|(x, y)| (*x * *y).sum(..)).fold(zeros(F64, []), |sum, x| sum + x)
}

fn traced(shapes: &[&[usize]], program: impl Fn(Vec<Tensor>) -> Vec<Tensor>) -> Graph {
    let function = Function::trace("program", specs(shapes), program);
    function.unwrap_or_else(|error| panic!("{error}")).graph().as_ref().clone()
}

/// Forward mode and reverse mode are each other's transposes, and forward mode leaves the values as they are.
fn check_transposed(shapes: &[&[usize]], program: Several) {
    let graph = traced(shapes, |x| {
        let plain = program(&x);
        let (values, tangents) = jvp(x.clone(), directions(shapes, 50), |x| program(&x));
        let seeds = |outputs: &Vec<Tensor>| {
            let seed = |(index, output): (usize, &Tensor)| constant(f64s(&output.dims(), 90 + index as u64)) - 0.6;
            outputs.iter().enumerate().map(seed).collect::<Vec<_>>()
        };
        let (_, gradients) = vjp(x, |x| program(&x), seeds);
        let forward = inner(&seeds(&tangents), &tangents);
        let backward = inner(&directions(shapes, 50), &gradients);
        [vec![forward, backward], plain, values].concat()
    });
    let results = run(&optimize(&graph), &inputs_of(&graph));
    let (products, values) = results.split_at(2);
    let [forward, backward] = [0, 1].map(|index| products[index].to_f64_vec()[0]);
    assert!((forward - backward).abs() <= 1e-12 * backward.abs().max(1e-3), "{forward} {backward}\n{graph}");
    assert!(backward.abs() > 1e-6, "there is nothing to compare");
    let (plain, values) = values.split_at(values.len() / 2);
    assert!(distance(&flat(values), &flat(plain)) <= 1e-14);
}

#[test]
fn forward_mode_is_the_transpose_of_reverse_mode() {
    let cases: &[(&[&[usize]], Several)] = &[
        (&[&[3], &[3]], |x| vec![(x[0] * x[1]).sin(), x[0].exp().sum(..)]),
        // Loops: carries, slices, outputs, invariants; in reverse; of no length; a carry that becomes active late.
        (&[&[3], &[4, 3], &[3]], |x| {
            let (h, out) = scan(x[0], x[1], |h, w| ((h * w + x[2]).sin(), (h * x[2]).sum(..)));
            vec![h, out]
        }),
        (&[&[3], &[4, 3]], |x| {
            let options = ScanOptions { reverse: true, parallel: false, unroll: 2, ..Default::default() };
            let (h, out) = scan_with(options, x[0], x[1], |h, w| ((h * w).sin(), h.exp()));
            vec![h, out]
        }),
        (&[&[3], &[0, 3]], |x| vec![scan(x[0], x[1], |h, w| ((h * w).tanh(), ())).0]),
        (&[&[4, 2]], |x| {
            let zero = zeros(F64, [2]);
            let ((_, _, h), _) =
                scan((zero, zero, zero), x[0], |(a, b, c), w| ((a + w, (b + a).sin(), c * 0.5 + b.exp()), ()));
            vec![h]
        }),
        (&[&[3], &[4, 3]], |x| {
            let ((step, h), _) =
                scan((full(S32, [], 0.0), x[0]), x[1], |(n, h), w| ((n + 1, (h * w * n.convert(F64)).sin() + h), ()));
            vec![h * step.convert(F64)]
        }),
        (&[&[2], &[3, 4, 2]], |x| {
            let inner = |h: Tensor, rows| scan(h, rows, |h: Tensor, row| ((h * row).tanh(), h.sum(..)));
            let (h, out) = scan(x[0], x[1], inner);
            vec![h, out]
        }),
        // Branches; only one depends on an input; checkpoints; hand-written rules; calls.
        (&[&[3], &[3]], |x| {
            let flag = x[0].sum(..).less(1e3);
            vec![cond(flag, x[0], |h| (h * x[1]).sin(), |h| h), cond(flag, x[0], |h| h.exp(), |_| zeros(F64, [3]))]
        }),
        (&[&[3]], |x| vec![switch(full(S32, [], 1.0), x[0], [&|h| h, &|h| h.sin(), &|h| h * 0.0])]),
        (&[&[3], &[3, 3]], |x| {
            vec![checkpoint(RematPolicy::Dots, (x[0], x[1]), |(h, w)| h.matmul(w).tanh().matmul(w).sin())]
        }),
        (&[&[3], &[4, 3]], |x| vec![scan(x[0], x[1], |h, w| (own_exp((h * w).sin()), ())).0, own_exp(x[0])]),
    ];
    for (shapes, program) in cases {
        check_transposed(shapes, *program);
    }
}

#[test]
fn called_functions_are_pushed_forward_once() {
    let shapes: &[&[usize]] = &[&[3], &[3, 3]];
    let layer = Function::trace("layer", specs(shapes), |x| (x[0].matmul(x[1]).tanh(), x[0].greater(0.0)));
    let layer = layer.expect("trace");
    let program = |x: &[Tensor]| (0..3).fold(x[0], |h, _| layer.call(vec![h, x[1]]).0);
    let graph = traced(shapes, |x| vec![jvp(x, directions(shapes, 50), |x| program(&x)).1]);
    let mut functions = Vec::new();
    walk(&graph, &mut |_, node| {
        if let Op::Call(call) = node.op() {
            functions.push(format!("{:p}", call.function.as_ref()));
        }
    });
    assert_eq!(functions.len(), 3);
    functions.dedup();
    assert_eq!(functions.len(), 1);
    check(shapes, |x| jvp(x.to_vec(), directions(shapes, 50), |x| program(&x)).1.sum(..));
}

#[test]
fn forward_mode_stacks_nothing() {
    let shapes: &[&[usize]] = &[&[3], &[5, 3], &[3]];
    let graph = traced(shapes, |x| {
        vec![jvp(x, directions(shapes, 50), |x| scan(x[0], x[1], |h, w| ((h * w).sin() * x[2], ())).0).1]
    });
    insta::assert_snapshot!(describe_scans(&optimize(&graph)).join("\n"), @"invariants [f64[3] f64[3]] carries [f64[3] f64[3]] inputs [f64[5,3] f64[5,3]] outputs []");
}

/// The loop has as many iterations as a scan, so reverse mode of the scan gives the values that forward mode of the
/// loop must have.
#[test]
fn tangents_of_a_while() {
    let looped = |x: &[Tensor]| {
        while_loop((x[0], full(S32, [], 0.0)), |(_, n)| n.less(4.0), |(h, n)| ((h * x[1]).sin() + x[0], n + 1)).0
    };
    let shapes: &[&[usize]] = &[&[3], &[3]];
    let graph = traced(shapes, |x| {
        let (value, tangent) = jvp(x.clone(), directions(shapes, 50), |x| looped(&x));
        let unrolled = (0..4).fold(x[0], |h, _| (h * x[1]).sin() + x[0]);
        let (_, expected) =
            jvp(x.clone(), directions(shapes, 50), |x| (0..4).fold(x[0], |h, _| (h * x[1]).sin() + x[0]));
        vec![value, tangent, unrolled, expected]
    });
    let results = run(&optimize(&graph), &inputs_of(&graph));
    assert!(distance(&flat(&results[..2]), &flat(&results[2..])) <= 1e-14);
    // The number of iterations depends on the value: Newton's method, whose derivative is that of the square root.
    let root = |x: Tensor| while_loop(x, |y| (y * y - x).abs().greater(1e-9), |y| (y + x / y) * 0.5);
    let graph = traced(&[&[]], |x| vec![jvp(x[0], full(F64, [], 1.0), root).1 * x[0].sqrt() * 2.0]);
    assert!((run(&graph, &inputs_of(&graph))[0].to_f64_vec()[0] - 1.0).abs() < 1e-8);
}

#[test]
fn both_modes_compose() {
    let f = |x: &[Tensor]| scan(x[0], x[1], |h, w| ((h * w).sin() + own_exp(h * 0.1), ())).0.square().sum(..);
    let shapes: &[&[usize]] = &[&[3], &[4, 3]];
    // Products of the Hessian with a vector: forward over reverse, reverse over reverse, reverse over forward.
    let graph = traced(shapes, |x| {
        let v = || directions(shapes, 50);
        let forward = jvp(x.clone(), v(), |x| grad(x, |x| f(&x))).1;
        let backward = grad(x.clone(), |x| inner(&grad(x, |x| f(&x)), &v()));
        let mixed = grad(x.clone(), |x| jvp(x, v(), |x| f(&x)).1);
        [forward, backward, mixed].concat()
    });
    let results = run_anchored(&optimize(&graph), &inputs_of(&graph));
    let [forward, backward, mixed] = [0, 2, 4].map(|start| flat(&results[start..start + 2]));
    assert!(distance(&forward, &backward) <= 1e-12 && distance(&mixed, &backward) <= 1e-12);
    // A second derivative along a direction, in forward mode alone, and gradients of all that.
    check(shapes, |x| jvp(x.to_vec(), directions(shapes, 50), |x| f(&x)).1);
    check(shapes, |x| jvp(x.to_vec(), directions(shapes, 50), |x| jvp(x, directions(shapes, 60), |x| f(&x)).1).1);
}

#[test]
fn linearized_functions_share_their_values() {
    let shapes: &[&[usize]] = &[&[3]];
    let graph = traced(shapes, |x| {
        let (y, derivative) = linearize(x[0], |x| x.sin() * x.exp());
        vec![y, derivative(x[0]), derivative(x[0] * 2.0)]
    });
    let clean = optimize(&graph);
    assert_eq!((count(&clean, "sine"), count(&clean, "cosine"), count(&clean, "exponential")), (1, 1, 1), "{clean}");
    let results = run(&clean, &inputs_of(&clean));
    let x = f64s(&[3], 1).to_f64_vec();
    let slope: Vec<f64> = x.iter().map(|x| (x.cos() + x.sin()) * x.exp() * x).collect();
    assert!(distance(&flat(&results[1..2]), &slope) < 1e-15);
    assert!(distance(&flat(&results[2..]), &slope.iter().map(|x| 2.0 * x).collect::<Vec<_>>()) < 1e-15);
}

#[test]
fn hand_written_rules_count_in_forward_mode() {
    let tangent = |program: Several| {
        let graph = traced(&[&[2]], |x| jvp(x.clone(), x, |x| program(&x)).1);
        run(&graph, &inputs_of(&graph))[0].to_f64_vec()
    };
    let x = f64s(&[2], 1).to_f64_vec();
    let times = |factor: f64| x.iter().map(|x| x * factor).collect::<Vec<_>>();
    assert_eq!(tangent(|x| vec![custom_vjp(x[0], |x| x, |x| (x, ()), |(), ct| ct * 7.0)]), times(7.0));
    // A residual that the rule reads, and an output without a tangent.
    let found = tangent(|x| {
        let (y, _) = custom_vjp(x[0], |x| (x, x.greater(0.0)), |x| ((x, x.greater(0.0)), x), |x, (ct, _)| ct * x);
        vec![y]
    });
    assert!(distance(&found, &x.iter().map(|x| x * x).collect::<Vec<_>>()) < 1e-15);
    // A rule that is not linear has no transpose.
    let clipped =
        |x: Vec<Tensor>| jvp(x.clone(), x, |x| custom_vjp(x[0], |x| x, |x| (x, ()), |(), ct| ct.minimum(1.0))).1;
    let message = Function::trace("f", specs(&[&[2]]), clipped).map(drop).expect_err("not linear").to_string();
    assert!(
        message.starts_with("minimum(f64[2], f64[2]): a function that is not linear")
            && message.contains("forward_mode.rs"),
        "{message}"
    );
}

// Linear transposes.

/// `<ct, f(x)> = <f'(ct), x>`, with nothing left of the evaluation of `f`.
fn check_linear(shapes: &[&[usize]], linear: usize, program: Several) {
    let graph = traced(shapes, |x| {
        let (example, rest) = x.split_at(linear);
        let with_rest = |x: Vec<Tensor>| program(&[&x[..], rest].concat());
        let outputs = with_rest(example.to_vec());
        let seeds: Vec<Tensor> = outputs.iter().map(|output| constant(f64s(&output.dims(), 90)) - 0.6).collect();
        let found = linear_transpose(example.to_vec(), with_rest, seeds.clone());
        [vec![inner(&outputs, &seeds), inner(&found, example)], found].concat()
    });
    let results = run(&optimize(&graph), &inputs_of(&graph));
    let [forward, backward] = [0, 1].map(|index| results[index].to_f64_vec()[0]);
    assert!((forward - backward).abs() <= 1e-12 * forward.abs().max(1e-3), "{forward} {backward}\n{graph}");
}

#[test]
fn transposes_of_linear_functions() {
    let cases: &[(&[&[usize]], usize, Several)] = &[
        (&[&[2, 3], &[3, 4]], 1, |x| vec![x[0].matmul(x[1].sin()) * 3.0]),
        (&[&[2, 3], &[3, 4]], 2, |x| vec![x[0] - x[0].sum(1).broadcast_like(x[0], 0), -x[1].transpose([1, 0])]),
        (&[&[3], &[4, 3]], 1, |x| {
            // The second carry does not depend on the linear input, and decides about the first.
            let ((h, _), out) = scan((x[0], full(F64, [3], 1.0)), x[1], |(h, c), w| {
                ((c.greater(0.9).select(h * w, h - h.sum(..)), (c * w).sin()), h * c.exp())
            });
            vec![h, out]
        }),
        (&[&[4, 3], &[3]], 1, |x| vec![scan(zeros(F64, [3]), x[0], |h, w| (h * x[1] + w, h)).1]),
        (&[&[3], &[3]], 1, |x| {
            let flag = x[1].sum(..).less(1.0);
            vec![checkpoint(RematPolicy::Full, x[0], |h| cond(flag, h, |h| h * x[1].exp(), |h| -h))]
        }),
        (&[&[3]], 1, |x| vec![custom_vjp(x[0], |x| x * 2.0, |x| (x * 2.0, ()), |(), ct| ct * 2.0)]),
    ];
    for (shapes, linear, program) in cases {
        check_linear(shapes, *linear, *program);
    }
}

#[test]
fn transposing_evaluates_nothing() {
    let graph = traced(&[&[3, 3], &[3, 3]], |x| {
        vec![linear_transpose(x[0], |y| (0..4).fold(y, |y, _| y.matmul(x[1].sin())), x[1])]
    });
    let clean = optimize(&graph);
    assert_eq!((count(&clean, "dot"), count(&clean, "sine")), (4, 1), "{clean}");
    // A function that only reads its linear input has no other node that does.
    let carried =
        traced(&[&[3], &[5, 3]], |x| vec![linear_transpose(x[0], |h| scan(h, x[1], |h, w| (h * w.exp(), ())).0, x[0])]);
    insta::assert_snapshot!(describe_scans(&eliminate_dead_code(&carried)).join("\n"), @r"
    invariants [] carries [] inputs [f64[5,3]] outputs [f64[5,3]]
    reverse invariants [] carries [f64[3]] inputs [f64[5,3]] outputs []
    ");
}

#[test]
fn functions_that_are_not_linear_are_refused() {
    let refusal = |program: fn(Tensor) -> Tensor| {
        let trace = |x: Vec<Tensor>| vec![linear_transpose(x[0], program, program(x[0]))];
        let Err(error) = Function::trace("f", specs(&[&[3]]), trace) else { panic!("must be refused") };
        let TraceErrorKind::Op(error) = error.kind else { panic!("{error}") };
        let TypeError::NotLinear(reason) = error.error else { panic!("{error}") };
        assert!(error.origin.place.is_some_and(|place| place.file().ends_with("forward_mode.rs")), "{error}");
        format!("{}: {reason}", error.op)
    };
    let programs: &[fn(Tensor) -> Tensor] = &[
        |x| x.sin(),
        |x| x * x,
        |x| x.exp() - x.exp(),
        |x| x + 1.0,
        |x| x + zeros(F64, [3]).pow(zeros(F64, [3])),
        |x| x + zeros(F64, [3]).clamp(1.0, 2.0),
        |x| x + zeros(F64, [3]).cumlogsumexp(0),
        |_| full(F64, [3], 1.0),
        |x| x.greater(0.5).select(x, x * 2.0),
        |x| x + x.stop_gradient(),
        |x| x.floor(),
        |x| x.convert(S32).convert(F64),
        |x| x.maximum(0.0),
        |x| scan(x, full(F64, [4], 1.0), |h, w| (h * w + 0.5, ())).0,
        |x| scan(full(F64, [3], 1.0), full(F64, [4], 1.0), |h, w| (h * w + x, ())).0,
        |x| scan(x, full(F64, [4], 1.0), |h, _| (h.tanh(), ())).0,
        |x| cond(x.sum(..).greater(0.0), x, |x| x, |x| -x),
        |x| cond(full(F64, [], 1.0).greater(0.0), x, |x| x, |x| x.sin()),
        |x| checkpoint(RematPolicy::Full, x, |x| x.cos()),
        |x| custom_vjp(x, |x| x.exp(), |x| (x.exp(), x.exp()), |y, ct| y * ct),
    ];
    let found: Vec<String> = programs.iter().map(|program| refusal(*program)).collect();
    insta::assert_snapshot!(found.join("\n"), @r"
    sine: its derivative depends on the linear inputs
    multiply: its derivative depends on the linear inputs
    exponential: its derivative depends on the linear inputs
    add: its result is not zero where the linear inputs are: something that does not depend on them is added
    add: its result is not zero where the linear inputs are: something that does not depend on them is added
    add: its result is not zero where the linear inputs are: something that does not depend on them is added
    add: its result is not zero where the linear inputs are: something that does not depend on them is added
    splat: its result is not zero where the linear inputs are: something that does not depend on them is added
    compare: its result depends on the linear inputs, but has no derivative in them
    stop-gradient: its result depends on the linear inputs, but has no derivative in them
    floor: its result depends on the linear inputs, but has no derivative in them
    convert: its result depends on the linear inputs, but has no derivative in them
    maximum: its derivative depends on the linear inputs
    add: its result is not zero where the linear inputs are: something that does not depend on them is added
    scan: its result is not zero where the linear inputs are: something that does not depend on them is added
    tanh: its derivative depends on the linear inputs
    compare: its result depends on the linear inputs, but has no derivative in them
    sine: its derivative depends on the linear inputs
    cosine: its derivative depends on the linear inputs
    custom-vjp: its derivative depends on the linear inputs
    ");
}

#[test]
fn tangents_and_cotangents_of_other_types_are_refused() {
    let message = |program: fn(&[Tensor]) -> Tensor| {
        let error = Function::trace("f", specs(&[&[3], &[2]]), |x| program(&x)).map(drop).expect_err("must be refused");
        let text = error.to_string();
        text[..text.find(" (at").expect("a place")].to_owned()
    };
    assert_eq!(message(|x| jvp(x[0], x[1], |x| x).1), "the tangents given to a jvp: expected (f64[3]), found (f64[2])");
    assert_eq!(
        message(|x| linear_transpose(x[0], |x| x.sum(..), x[1])),
        "the cotangents given to a linear_transpose: expected (f64[]), found (f64[2])"
    );
    // Integers have no tangents.
    let function = Function::trace("f", specs(&[&[3]]), |x| {
        jvp((x[0].convert(S32), x[0]), (x[0].convert(S32), x[0]), |(n, x)| (n + 1, x * n.convert(F64))).1
    });
    let function = function.expect("trace");
    let results = run(function.graph(), &[Literal::from_slice(&[3], &[1.0, 2.0, 3.0]).expect("three")]);
    assert_eq!(flat(&results), [0.0, 0.0, 0.0, 1.0, 4.0, 9.0]);
}
