//! Passes across regions: what enters and leaves scans, equal bodies, invariants and their size; and switching passes
//! off.

use meshloom::Error;
use meshloom::compile::{LowerOptions, PASSES, lower};
use meshloom::ir::DType::{F64, S32};
use meshloom::ir::{Graph, verify};
use meshloom::ops::{Op, RematPolicy};
use meshloom::passes::{
    eliminate_common_subexpressions, eliminate_dead_code, erase_markers, hoist_small_invariants, simplify_loops,
};
use meshloom::trace::{
    Function, ScanOptions, Tensor, TensorSpec, checkpoint, custom_vjp, full, grad, iota, scan, scan_with, zeros,
};
use support::interpret::{interpret, same_bits};
use support::*;

type Program = fn(&[Tensor]) -> Vec<Tensor>;

const SHAPES: &[&[usize]] = &[&[3], &[4, 3], &[3, 3]];

fn traced(program: impl Fn(&[Tensor]) -> Vec<Tensor>) -> Graph {
    let specs: Vec<TensorSpec> = SHAPES.iter().map(|dims| TensorSpec::new(F64, *dims)).collect();
    let function = Function::trace("program", specs, |x| program(&x)).unwrap_or_else(|error| panic!("{error}"));
    function.graph().as_ref().clone()
}

fn optimized(graph: &Graph) -> Graph {
    lower(graph, &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}")).graph().clone()
}

/// Runs a pass and drops dead code; results stay the same in every bit, interpreted, and the pass finds nothing more to
/// do.
fn check(graph: &Graph, pass: fn(&Graph) -> Graph) -> Graph {
    let after = eliminate_dead_code(&pass(graph));
    verify(&after).unwrap_or_else(|error| panic!("{error}\n{after}"));
    let inputs = inputs_of(graph);
    for (before, found) in interpret(graph, &inputs).iter().zip(&interpret(&after, &inputs)) {
        assert!(same_bits(before, found), "{graph}\n{after}");
    }
    assert_eq!(eliminate_dead_code(&pass(&after)).to_string(), after.to_string(), "not idempotent");
    after
}

/// What the scans of a graph take and give after a pass.
fn check_scans(program: impl Fn(&[Tensor]) -> Vec<Tensor>, pass: fn(&Graph) -> Graph, expected: &str) -> Graph {
    let after = check(&traced(program), pass);
    assert_eq!(describe_scans(&after).join("\n"), expected, "{after}");
    after
}

// Operands and results of scans.

#[test]
fn constants_are_made_in_the_body() {
    let program = |x: &[Tensor]| {
        let (two, places) = (full(F64, [3], 2.0), iota(F64, [3], 0));
        let rows = full(F64, [4, 3], 0.5);
        let (h, out) = scan(x[0], (x[1], rows, iota(F64, [4, 3], 1)), |h, (w, half, place)| {
            (h * two + w * half + places, place * h)
        });
        vec![h, out]
    };
    let expected = "invariants [] carries [f64[3]] inputs [f64[4,3]] outputs [f64[4,3]]";
    check_scans(program, simplify_loops, expected);
}

#[test]
fn a_stacked_input_that_repeats_one_value_is_an_invariant() {
    let program = |x: &[Tensor]| {
        let rows = (x[0].sin().broadcast_to([4, 3]), x[0].sum(..).broadcast_to([4, 3]));
        vec![scan(x[0], rows, |h, (same, number)| (h * same + number, ())).0]
    };
    let expected = "invariants [f64[3] f64[]] carries [f64[3]] inputs [] outputs []";
    check_scans(program, simplify_loops, expected);
}

#[test]
fn a_carry_that_does_not_change_is_an_invariant() {
    let program = |x: &[Tensor]| {
        let start = (x[0], x[2], zeros(F64, [3]));
        let ((h, same, zero), _) =
            scan(start, x[1], |(h, m, zero), w| ((h.matmul(m) + w + zero, m, zeros(F64, [3])), ()));
        vec![h, same, zero]
    };
    let expected = "invariants [f64[3,3]] carries [f64[3]] inputs [f64[4,3]] outputs []";
    let after = check_scans(program, simplify_loops, expected);
    assert_eq!(after.outputs()[1], after.inputs()[2], "the carry is what it was before the loop");
}

#[test]
fn carries_that_change_by_nothing_are_invariants_with_all_passes() {
    // Taking zero away is dropped, so the carry does not change, so it is an invariant, so its sine leaves the loop.
    let program = |x: &[Tensor]| {
        let ((h, _), out) = scan((x[0], x[0].exp()), x[1], |(h, same), w| ((h * w, same - 0.0), same.sin()));
        vec![h, out]
    };
    let expected = "invariants [] carries [f64[3]] inputs [f64[4,3]] outputs []";
    let after = check_scans(program, optimized, expected);
    assert_eq!(count(&after, "sine"), 1);
    assert!(scans(&after)[0].0.body.nodes().all(|node| node.op().name() != "sine"));
}

#[test]
fn a_stacked_output_that_does_not_change_is_a_broadcast() {
    let program = |x: &[Tensor]| {
        let (h, out) =
            scan(x[0], x[1], |h, w| (h * w, (x[0], x[0].broadcast_to([2, 3]), full(F64, [2], 3.0), iota(F64, [2], 0))));
        vec![h, out.0, out.1, out.2, out.3]
    };
    check_scans(program, simplify_loops, "invariants [] carries [f64[3]] inputs [f64[4,3]] outputs []");
}

#[test]
fn a_loop_whose_results_are_all_known_goes() {
    let graph = traced(|x| {
        let options = ScanOptions { length: Some(5), ..ScanOptions::default() };
        let ((a, b), out) = scan_with(options, (x[0], x[2]), (), |carry, ()| (carry, x[1]));
        vec![a, b, out]
    });
    assert_eq!(scans(&check(&graph, simplify_loops)).len(), 0);
}

#[test]
fn carries_that_only_feed_each_other_go() {
    let program = |x: &[Tensor]| {
        let start = (x[0], x[0].sin(), x[0].cos(), x[0].exp());
        let ((h, ..), _) = scan(start, x[1], |(h, a, b, c), w| ((h * w, b + a, c * 2.0, a - b), ()));
        vec![h]
    };
    check_scans(program, |graph| graph.clone(), "invariants [] carries [f64[3]] inputs [f64[4,3]] outputs []");
}

// Equal things.

#[test]
fn equal_operands_and_results_of_a_scan_are_one() {
    let program = |x: &[Tensor]| {
        let (s, t) = (x[0].sin(), x[0].sin());
        let ((a, b, c), (p, q)) = scan((s, t, x[0]), (x[1], x[1]), |(a, b, c), (v, w)| {
            ((a * v + s, b * w + t, c + v), ((a + v).tanh(), (b + w).tanh()))
        });
        vec![a, b, c, p, q]
    };
    let expected = "invariants [f64[3]] carries [f64[3] f64[3]] inputs [f64[4,3]] outputs [f64[4,3]]";
    let after = check_scans(program, eliminate_common_subexpressions, expected);
    assert_eq!([count(&after, "sine"), count(&after, "tanh")], [1, 1]);
    assert_eq!(after.outputs()[0], after.outputs()[1]);
    assert_eq!(after.outputs()[3], after.outputs()[4]);
}

#[test]
fn carries_that_start_equal_and_part_stay_two() {
    // The first two part in the first iteration, the third and fourth only because the first two have.
    let program = |x: &[Tensor]| {
        let ((a, b, c, d), _) =
            scan((x[0], x[0], x[0], x[0]), x[1], |(a, b, c, d), w| ((a * w, b + w, c * a, d * b), ()));
        vec![a, b, c, d]
    };
    let expected = "invariants [] carries [f64[3] f64[3] f64[3] f64[3]] inputs [f64[4,3]] outputs []";
    check_scans(program, eliminate_common_subexpressions, expected);
}

#[test]
fn equal_bodies_are_one() {
    let graph = traced(|x| {
        let layers = |h: Tensor| scan(h, x[1], |h, w| ((h * w).sin(), ())).0;
        let function = || Function::trace("f", TensorSpec::new(F64, [3]), |x| x.cos() + 1.0).expect("trace");
        vec![layers(x[0]), layers(x[0]), layers(x[0].exp()), function().call(x[0]), function().call(x[0].exp())]
    });
    let after = check(&graph, eliminate_common_subexpressions);
    assert_eq!(scans(&after).len(), 2, "the two over the same operands are one");
    let functions: Vec<_> = after
        .nodes()
        .filter(|node| matches!(node.op(), Op::Call(_)))
        .flat_map(|node| node.op().regions().map(std::sync::Arc::as_ptr))
        .collect();
    assert_eq!(functions.len(), 2);
    assert_eq!(functions[0], functions[1], "a function traced twice is emitted once");
}

#[test]
fn what_a_loop_computes_from_invariants_is_taken_from_outside() {
    let graph = traced(|x| {
        let outside = x[2].sin().sum(0);
        let (h, _) = scan(x[0], x[1], |h, w| (h * w + x[2].sin().sum(0), ()));
        vec![h, outside]
    });
    let after = check(&graph, optimized);
    assert_eq!([count(&after, "sine"), count(&after, "reduce-sum")], [1, 1]);
    assert_eq!(describe_scans(&after), ["invariants [f64[3]] carries [f64[3]] inputs [f64[4,3]] outputs []"]);
}

// Invariants.

#[test]
fn what_is_larger_than_its_operands_stays_in_the_loop() {
    let graph = traced(|x| {
        let (h, _) = scan(x[0], x[1], |h, w| {
            // Positions compared: nothing to hold before, a whole matrix after. The sine of a repeated row: a matrix
            // for a row.
            let below = iota(S32, [3, 3], 0).less(iota(S32, [3, 3], 1));
            let wide = x[0].broadcast_to([3, 3]).sin();
            let small = x[2].cos().sum(0);
            (below.select(wide, h.broadcast_to([3, 3])).sum(0) + small * w, ())
        });
        vec![h]
    });
    let after = check(&graph, hoist_small_invariants);
    let names: Vec<&str> = after.nodes().map(|node| node.op().name()).collect();
    assert_eq!(names, ["cosine", "reduce-sum", "scan"]);
}

#[test]
fn recomputation_stays_in_the_loop() {
    let graph = traced(|x| {
        grad(vec![x[0], x[2]], |p| {
            scan(p[0], x[1], |h, w| (checkpoint(RematPolicy::Full, (h, p[1]), |(h, m)| (h * w).matmul(m.sin())), ()))
                .0
                .sum(..)
        })
    });
    let sines = |graph: &Graph| {
        scans(graph)
            .iter()
            .map(|(scan, _)| scan.body.nodes().filter(|node| node.op().name() == "sine").count())
            .collect::<Vec<_>>()
    };
    let after = check(&graph, hoist_small_invariants);
    // The checkpoint keeps nothing but its operands: its backward pass computes the sine again.
    assert_eq!(sines(&after)[1], sines(&graph)[1]);
    assert!(sines(&after)[1] > 0);
}

// Markers.

#[test]
fn markers_go() {
    let graph = traced(|x| {
        let kept = checkpoint(RematPolicy::Full, x[0], |x| x.sin().named("sine"));
        let custom = custom_vjp(x[0], |x| x.sin(), |x| (x.sin(), x), |x, ct| ct * x.cos());
        vec![kept, custom.stop_gradient(), scan(x[0], x[1], |h, w| (checkpoint(RematPolicy::Full, h, |h| h * w), ())).0]
    });
    let after = check(&graph, erase_markers);
    let names = ["checkpoint", "custom-vjp", "name", "stop-gradient"].map(|name| count(&after, name));
    assert_eq!(names, [0; 4]);
    // Only then are the two sines seen to be one.
    assert_eq!(count(&check(&graph, optimized), "sine"), 1);
}

// The table of passes.

#[test]
fn passes_can_be_switched_off() {
    // For each pass, a program in which it alone removes something, and the op by which one sees it.
    let programs: &[(&str, &str, Program)] = &[
        ("unroll", "scan", |x| {
            let options = ScanOptions { unroll: 4, ..ScanOptions::default() };
            vec![scan_with(options, x[0], x[1], |h, w| (h * w, ())).0]
        }),
        ("markers", "name", |x| vec![x[0].named("x").sin()]),
        ("constant-folding", "multiply", |x| vec![x[0].sin() + full(F64, [3], 2.0) * full(F64, [3], 1.5)]),
        ("algebra", "negate", |x| vec![-(-x[0])]),
        ("scan-operands", "broadcast", |x| vec![scan(x[0], x[0].broadcast_to([4, 3]), |h, w| (h * w, ())).0]),
        ("common-subexpressions", "sine", |x| vec![x[0].sin() * x[0].sin()]),
        ("dead-code", "sine", |x| {
            let _ = x[0].sin();
            vec![x[0]]
        }),
    ];
    for &(pass, op, program) in programs {
        let graph = traced(program);
        let left = |without: &[&str]| {
            let options = LowerOptions { without, ..LowerOptions::default() };
            count(lower(&graph, &options).expect("it lowers").graph(), op)
        };
        assert!(left(&[pass]) > left(&[]), "{pass}");
    }
    let graph = traced(|x| vec![scan(x[0], x[1], |h, w| (h * w + x[2].sin().sum(0), ())).0]);
    let options = LowerOptions { without: &["loop-invariants"], ..LowerOptions::default() };
    let inside = |graph: &Graph| scans(graph)[0].0.body.nodes().filter(|node| node.op().name() == "sine").count();
    assert_eq!([inside(lower(&graph, &options).expect("it lowers").graph()), inside(&optimized(&graph))], [1, 0]);
    let mut tested: Vec<&str> = programs.iter().map(|program| program.0).collect();
    tested.insert(5, "loop-invariants");
    assert_eq!(tested, PASSES.iter().map(|pass| pass.name).collect::<Vec<_>>());
}

#[test]
fn an_unknown_pass_is_an_error() {
    let graph = traced(|x| vec![x[0]]);
    let options = LowerOptions { without: &["dead-cod"], ..LowerOptions::default() };
    let error = lower(&graph, &options).expect_err("there is no such pass");
    assert!(matches!(error, Error::UnknownPass { .. }));
    assert_eq!(
        error.to_string(),
        "there is no pass `dead-cod` (did you mean \"dead-code\"?); the passes are listed in `compile::PASSES`"
    );
}
