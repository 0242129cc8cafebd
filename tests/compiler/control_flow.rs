//! Loops and branches: what they compute, their gradients, what is refused, and what passes make of them.

use meshloom::ir::DType::{F64, S32};
use meshloom::ir::{Graph, Literal};
use meshloom::ops::Op;
use meshloom::ops::RematPolicy;
use meshloom::passes::{eliminate_dead_code, unroll};
use meshloom::trace::{
    Function, ScanOptions, Tensor, checkpoint, cond, fori_loop, full, grad, map, scan, scan_with, switch, while_loop,
    zeros,
};
use support::anchored::run;
use support::derivatives::*;
use support::*;

/// The program's outputs at [`inputs_of`] its graph.
fn values(shapes: &[&[usize]], program: impl Fn(&[Tensor]) -> Vec<Tensor>) -> Vec<Vec<f64>> {
    let graph = traced(shapes, program);
    let plain: Vec<Vec<f64>> = run(&graph, &inputs_of(&graph)).iter().map(Literal::to_f64_vec).collect();
    let optimized = optimize(&graph);
    let found: Vec<Vec<f64>> = run(&optimized, &inputs_of(&graph)).iter().map(Literal::to_f64_vec).collect();
    assert_eq!(plain, found, "{optimized}");
    plain
}

fn traced(shapes: &[&[usize]], program: impl Fn(&[Tensor]) -> Vec<Tensor>) -> Graph {
    let function = Function::trace("program", specs(shapes), |x| program(&x));
    function.unwrap_or_else(|error| panic!("{error}")).graph().as_ref().clone()
}

/// The message of a program that is refused, with the place of the call in this file as `HERE`.
fn refusal(shapes: &[&[usize]], program: impl Fn(&[Tensor]) -> Tensor) -> String {
    let Err(error) = Function::trace("program", specs(shapes), |x| program(&x)) else { panic!("must be refused") };
    let text = error.to_string();
    let Some(place) = text.find("at tests/compiler/control_flow.rs:") else { panic!("{text} has no place") };
    format!("{}HERE)", &text[..place])
}

// Loops that run while a condition holds.

/// Square roots by Newton's method: how often it runs depends on the number.
fn root(x: Tensor) -> (Tensor, Tensor) {
    while_loop(
        (x, full(S32, [], 0.0)),
        |(y, _)| (y * y / x - 1.0).abs().greater(1e-12),
        |(y, n)| ((y + x / y) * 0.5, n + 1),
    )
}

#[test]
fn while_runs_as_often_as_it_takes() {
    let found = values(&[&[], &[]], |x| {
        let ((a, n), (b, m)) = (root(x[0]), root(x[1] * 1e6));
        vec![a.square() / x[0], b.square() / (x[1] * 1e6), n.convert(F64), m.convert(F64)]
    });
    assert!((found[0][0] - 1.0).abs() < 1e-11 && (found[1][0] - 1.0).abs() < 1e-11, "{found:?}");
    assert!(found[2][0] >= 2.0 && found[3][0] >= 3.0 * found[2][0], "{found:?}");
}

#[test]
fn while_captures_in_condition_and_body() {
    // The limit is used by the condition alone, the step by the body alone, the factor by both.
    let found = values(&[&[], &[], &[]], |x| {
        let (limit, step, factor) = (x[0] * 10.0, x[1], x[2]);
        let never = while_loop(step, |y| y.less(-1e9), |y| y + factor);
        vec![while_loop(zeros(F64, []), |y| (y * factor).less(limit), |y| y + step + factor), never]
    });
    let [limit, step, factor] = [0, 1, 2].map(|index| f64s(&[], index + 1).to_f64_vec()[0]);
    let mut expected = 0.0;
    while expected * factor < limit * 10.0 {
        expected = expected + step + factor;
    }
    assert_eq!(found, [[expected], [step]]);
}

#[test]
fn while_has_no_gradient_in_reverse() {
    insta::assert_snapshot!(refusal(&[&[]], |x| grad(x[0], |x| root(x).0)), @"while(f64[], f64[], s32[]): it has no gradient in reverse mode, as it is not known before how often it runs; use a `scan` over the largest number of iterations there may be, or `stop_gradient` on what enters the loop (HERE)");
    // In the body of a scan too.
    let inside = |x: &[Tensor]| grad(x[0], |x| scan(x, full(F64, [3], 1.0), |x, w| (root(x * w).0, ())).0);
    assert!(refusal(&[&[]], inside).starts_with("while("));
    // Where no gradient flows through it, it is like any other op.
    check(&[&[3]], |x| {
        let n = while_loop(full(S32, [], 1.0), |n| n.less(40.0), |n| n * 2);
        let y = while_loop(x[0].stop_gradient(), |y| y.sum(..).less(9.0), |y| y * 2.0);
        (x[0].sin() * n.convert(F64)).sum(..) + (y * 0.0).sum(..)
    });
}

#[test]
fn loops_that_do_not_fit_are_refused() {
    insta::assert_snapshot!(refusal(&[&[2]], |x| while_loop(x[0], |y| y, |y| y)), @r#"while(f64[2] "0"): the condition must return a pred[], found [f64[2]] (HERE)"#);
    insta::assert_snapshot!(refusal(&[&[2]], |x| while_loop(x[0], |y| y.sum(..).less(1.0), |y| y.sum(..))), @"the carry that a while's body returns: expected (f64[2]), found (f64[]) (HERE)");
    let options = ScanOptions { unroll: 0, ..Default::default() };
    insta::assert_snapshot!(refusal(&[&[2]], |x| scan_with(options, x[0].sum(..), x[0], |h, w| (h * w, ())).0), @r#"scan(f64[], f64[2] "0"): the unroll factor must be at least 1, found 0 (HERE)"#);
}

#[test]
fn map_and_counted_loops() {
    let found = values(&[&[3, 2]], |x| {
        let offset = x[0].sum(0);
        vec![map(x[0], |row| (row + offset).sin()), fori_loop(4, zeros(S32, []), |i, sum| sum + i * i).convert(F64)]
    });
    let rows = f64s(&[3, 2], 1).to_f64_vec();
    let offset = [rows[0] + rows[2] + rows[4], rows[1] + rows[3] + rows[5]];
    let expected: Vec<f64> = rows.iter().enumerate().map(|(index, x)| (x + offset[index % 2]).sin()).collect();
    assert!(distance(&found[0], &expected) < 1e-15);
    assert_eq!(found[1], [14.0]);
    check(&[&[3, 2]], |x| map(x[0], |row| row.sin() * x[0].sum(..)).sum(..));
    check(&[&[2]], |x| fori_loop(3, x[0], |i, h| (h * i.convert(F64)).sin() + x[0]).sum(..));
}

// Branches.

#[test]
fn the_branch_that_is_chosen_runs() {
    let found = values(&[&[2]], |x| {
        let sum = x[0].sum(..);
        let choose = |flag| cond(flag, x[0], |x| x * sum, |x| x - sum);
        let index = |index: f64| switch(full(S32, [], index), x[0], [&|x| x, &|x| x * 2.0, &|x| x + sum]);
        // An endless loop in the branch that is not chosen.
        let forever = cond(sum.less(1e9), sum, |x| x, |x| while_loop(x, |x| x.less(f64::INFINITY), |x| x * 0.5));
        vec![
            choose(sum.greater(0.0)),
            choose(sum.less(0.0)),
            index(0.0),
            index(1.0),
            index(2.0),
            index(3.0),
            index(-1.0),
            forever,
        ]
    });
    let x = f64s(&[2], 1).to_f64_vec();
    let sum = x[0] + x[1];
    let each = |f: &dyn Fn(f64) -> f64| x.iter().map(|&x| f(x)).collect::<Vec<_>>();
    let last = each(&|x| x + sum);
    let expected = [
        each(&|x| x * sum),
        each(&|x| x - sum),
        x.clone(),
        each(&|x| x * 2.0),
        last.clone(),
        last.clone(),
        last,
        vec![sum],
    ];
    assert_eq!(found, expected);
}

#[test]
fn gradients_of_branches() {
    for flag in [true, false] {
        let limit = if flag { 1e3 } else { -1e3 };
        // Branches that read different operands and captures, leave different residuals, or none.
        check(&[&[3], &[3], &[2, 3]], |x| {
            let chosen = x[0].sum(..).less(limit);
            let (a, b) = cond(
                chosen,
                (x[0], x[1]),
                |(a, b)| ((a * b).sin() * x[2].sum(0), x[2].exp().sum(..)),
                |(a, _)| (a.tanh().exp() + x[1] * 3.0, zeros(F64, [])),
            );
            (a * x[0]).sum(..) + b
        });
    }
    for index in [0.0, 1.0, 2.0, 7.0] {
        check(&[&[3], &[3]], |x| {
            let h = switch(full(S32, [], index), x[0], [&|h| h.sin(), &|h| h * h * x[1], &|_| x[1].exp()]);
            h.square().sum(..)
        });
    }
    // Only some results are wanted, only some operands are active.
    check(&[&[3]], |x| {
        let flag = x[0].sum(..).less(1e3);
        let (a, _) = cond(flag, (x[0], full(F64, [3], 2.0)), |(a, c)| (a * c, a.exp()), |(a, c)| (c, a));
        a.sin().sum(..)
    });
}

#[test]
fn branches_share_room_for_residuals() {
    let graph = differentiated(&[&[3]], |x| {
        let flag = x[0].sum(..).less(1e3);
        // Two residuals and three of one type, and one of another type.
        cond(flag, x[0], |x| x.sin().exp().sum(..), |x| (x.exp().sin().tanh() * x.sum(..).exp()).sum(..))
    });
    let graph = eliminate_dead_code(&graph);
    let conds: Vec<_> = graph.nodes().filter(|node| matches!(node.op(), Op::Cond(_))).collect();
    let types =
        |index: usize| conds[index].results().map(|value| graph.ty(value).to_string()).collect::<Vec<_>>().join(" ");
    insta::assert_snapshot!(format!("{}\n{}", types(0), types(1)), @r"
    f64[] f64[3] f64[3] f64[]
    f64[3]
    ");
}

#[test]
fn branches_that_do_not_fit_are_refused() {
    insta::assert_snapshot!(refusal(&[&[2]], |x| cond(x[0].sum(..).less(1.0), x[0], |x| x, |x| x.sum(..))), @"what branch 1 returns, compared with branch 0: expected (f64[]), found (f64[2]) (HERE)");
    insta::assert_snapshot!(refusal(&[&[2]], |x| cond(x[0].less(1.0), x[0], |x| x, |x| x)), @r#"cond(pred[2], f64[2] "0"): operand 0 must have 0 dimensions, found 1 (HERE)"#);
    insta::assert_snapshot!(refusal(&[&[2]], |x| switch(x[0].sum(..), x[0], [&|x| x, &|x| x])), @r#"cond(f64[], f64[2] "0"): the element type of operand 0 must be pred or s32, found f64; convert it with `.convert(..)` (HERE)"#);
    // The first error is that of the branch.
    insta::assert_snapshot!(refusal(&[&[2], &[3]], |x| cond(x[0].sum(..).less(1.0), x[0], |y| y + x[1], |y| y)), @r#"add(f64[2] "0", f64[3] "1"): dimension 0 of operand 1 must have size 2, found 3 (HERE)"#);
}

// All in all.

/// A scan in a branch in a loop in a call, and the other way round.
#[test]
fn regions_in_regions() {
    let layer = Function::trace("layer", specs(&[&[2], &[3, 2]]), |x| {
        let (h, _) = while_loop(
            (x[0], full(S32, [], 0.0)),
            |(_, n)| n.less(3.0),
            |(h, n)| {
                let scanned = |h: Tensor| scan(h, x[1], |h, w| ((h * w).sin() + x[0], ())).0;
                (cond(n.equal(1), h, scanned, |h| h * 0.5), n + 1)
            },
        );
        h
    });
    let layer = layer.expect("trace");
    let found = values(&[&[2], &[3, 2]], |x| vec![layer.call(vec![layer.call(vec![x[0], x[1]]), x[1]])]);
    let layer = |x: &[f64], w: &[f64]| {
        let mut h = x.to_vec();
        for n in 0..3 {
            for row in 0..if n == 1 { 3 } else { 0 } {
                h = (0..2).map(|lane| (h[lane] * w[2 * row + lane]).sin() + x[lane]).collect();
            }
            h.iter_mut().for_each(|h| *h *= if n == 1 { 1.0 } else { 0.5 });
        }
        h
    };
    let (x, w) = (f64s(&[2], 1).to_f64_vec(), f64s(&[3, 2], 2).to_f64_vec());
    assert!(distance(&found[0], &layer(&layer(&x, &w), &w)) < 1e-15);

    let branch = |h: Tensor, w: Tensor| {
        let flag = w.sum(..).less(1e3);
        cond(flag, (h, w), |(h, w)| scan(h, w, |h, w| ((h * w).sin(), ())).0, |(h, w)| h * w.sum(0))
    };
    check_anchored(&[&[2], &[3, 2], &[4]], |x| {
        let policy = RematPolicy::Full;
        scan(x[0], x[2], |h, s| (checkpoint(policy, (h, s), |(h, s)| branch(h * s, x[1]).tanh()), ())).0.sum(..)
    });
    check_second(&[&[2], &[2, 2], &[2]], |x| {
        let flag = |s: Tensor| s.less(0.7);
        scan(x[0], x[2], |h, s| (cond(flag(s), (h, s), |(h, s)| (h * s).sin(), |(h, _)| h.exp() * x[1].sum(0)), h))
            .1
            .sum(..)
    });
}

// Unrolling.

fn layers(unroll: usize, reverse: bool, x: &[Tensor]) -> Tensor {
    let options = ScanOptions { unroll, reverse, ..Default::default() };
    let (h, out) = scan_with(options, x[0], x[1], |h, w| ((h * w + x[2]).sin(), (h * w).sum(..)));
    (h * x[2]).sum(..) + (out * out).sum(..)
}

#[test]
fn unrolled_loops_compute_the_same() {
    for length in [0, 1, 5] {
        for reverse in [false, true] {
            let shapes: &[&[usize]] = &[&[2], &[length, 2], &[2]];
            let plain = differentiated(shapes, |x| layers(1, reverse, x));
            let expected = run(&plain, &inputs_of(&plain));
            for factor in [2, 3, 4, 5, 9] {
                let graph = differentiated(shapes, |x| layers(factor, reverse, x));
                // Differentiation has seen one copy of the body.
                assert_eq!(graph.total_node_count(), plain.total_node_count());
                let written_out = unroll(&graph);
                let loops = describe_scans(&written_out).len();
                assert_eq!(loops, if factor < length { 2 } else { 0 }, "{written_out}");
                assert_eq!(
                    run(&written_out, &inputs_of(&graph)),
                    expected,
                    "{length} {reverse} {factor}\n{written_out}"
                );
            }
        }
    }
}
