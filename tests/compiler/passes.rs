//! Passes: what they remove, merge and move, and that results stay the same.

use meshloom::ir::DType::{F32, F64};
use meshloom::ir::{Graph, Phase, verify};
use meshloom::ops::{Op, RematPolicy};
use meshloom::passes::{eliminate_common_subexpressions, eliminate_dead_code, hoist_invariants};
use meshloom::trace::{
    Function, ScanOptions, Tensor, TensorSpec, checkpoint, custom_vjp, full, grad, scan, scan_with, value_and_grad,
};
use support::*;

type Program = fn(&[Tensor]) -> Vec<Tensor>;
type Pass = fn(&Graph) -> Graph;

const SHAPES: &[&[usize]] = &[&[3], &[4, 3], &[3, 3]];

fn traced(program: impl Fn(&[Tensor]) -> Vec<Tensor>) -> Graph {
    let specs: Vec<TensorSpec> = SHAPES.iter().map(|dims| TensorSpec::new(F64, *dims)).collect();
    let function = Function::trace("program", specs, |x| program(&x)).unwrap_or_else(|error| panic!("{error}"));
    function.graph().as_ref().clone()
}

/// Runs a pass; the graph stays valid, its results the same, and running the pass again changes nothing.
fn check(graph: &Graph, pass: Pass) -> Graph {
    let after = pass(graph);
    verify(&after).unwrap_or_else(|error| panic!("{error}\n{graph}\n{after}"));
    let inputs = inputs_of(graph);
    assert_eq!(run(graph, &inputs), run(&after, &inputs), "{graph}\n{after}");
    assert_eq!(pass(&after).to_string(), after.to_string(), "not idempotent");
    assert_eq!(after.input_info(), graph.input_info());
    assert_eq!(after.output_info(), graph.output_info());
    after
}

/// Numbers of some nodes, those in regions included.
fn counts<const N: usize>(graph: &Graph, ops: [&str; N]) -> [usize; N] {
    ops.map(|op| count(graph, op))
}

fn layers(x: &[Tensor], policy: RematPolicy) -> Tensor {
    let body = |h: Tensor, w: Tensor| {
        let scale = x[2].exp().sum(0);
        checkpoint(policy, (h, w), |(h, w)| ((h * w).matmul(x[2]) * scale).tanh())
    };
    scan(x[0], x[1], |h, w| (body(h, w), ())).0.sum(..)
}

#[test]
fn every_program_keeps_its_results() {
    let programs: &[Program] = &[
        |x| vec![x[0].sin() + x[0].sin(), x[0].cos()],
        |x| vec![layers(x, RematPolicy::Full)],
        |x| grad(x.to_vec(), |x| layers(&x, RematPolicy::Full)),
        |x| grad(x.to_vec(), |x| layers(&x, RematPolicy::Dots)),
        |x| {
            let (value, gradient) =
                value_and_grad(x[0], |h| grad(h, |h| layers(&[h, x[1], x[2]], RematPolicy::Full)).sum(..));
            vec![value, gradient]
        },
        |x| vec![custom_vjp(x[0], |x| x.exp(), |x| (x.exp(), x), |x, ct| ct * x.exp()), x[1].max(0)],
    ];
    for program in programs {
        let graph = traced(program);
        let merged = check(&graph, eliminate_common_subexpressions);
        let hoisted = check(&merged, hoist_invariants);
        let small = check(&hoisted, eliminate_dead_code);
        assert!(small.total_node_count() <= hoisted.total_node_count());
    }
}

// Dead code.

#[test]
fn dead_nodes_go() {
    let graph = traced(|x| {
        let _ = x[0].exp().sum(..);
        vec![x[0].sin()]
    });
    let after = check(&graph, eliminate_dead_code);
    assert_eq!((graph.node_count(), after.node_count()), (3, 1));
}

#[test]
fn dead_parts_of_scans_go() {
    let graph = traced(|x| {
        let unused = x[2].cos();
        let ((kept, _, _), (_, out)) =
            scan((x[0], x[0].exp(), x[0].log()), (x[1], x[1].tanh()), |(a, b, c), (w, v)| {
                // `b` feeds itself and a dead output, `c` feeds `a`.
                ((a * c, b * v + unused.sum(0), c + w), (b.sqrt(), a.rsqrt()))
            });
        vec![kept, out]
    });
    insta::assert_snapshot!(describe_scans(&graph).join("\n"), @"invariants [f64[3,3]] carries [f64[3] f64[3] f64[3]] inputs [f64[4,3] f64[4,3]] outputs [f64[4,3] f64[4,3]]");
    let after = check(&graph, eliminate_dead_code);
    insta::assert_snapshot!(describe_scans(&after).join("\n"), @"invariants [] carries [f64[3] f64[3]] inputs [f64[4,3]] outputs [f64[4,3]]");
    assert_eq!(counts(&after, ["sqrt", "cosine", "exponential", "tanh"]), [0; 4]);
}

#[test]
fn dead_parts_of_nested_scans_go_at_once() {
    // The inner loop's dead output alone reads an invariant of the outer one.
    let graph = traced(|x| {
        let dead = x[2].exp();
        let (h, _) = scan(x[0], x[1], |h, w| {
            let (h, _) = scan(h, x[1], |h, v| (h * v, dead.sum(0) * h));
            (h + w, ())
        });
        vec![h]
    });
    let after = check(&graph, eliminate_dead_code);
    assert_eq!(counts(&after, ["exponential", "reduce-sum"]), [0, 0]);
    insta::assert_snapshot!(describe_scans(&after).join("\n"), @"invariants [f64[4,3]] carries [f64[3]] inputs [f64[4,3]] outputs []");
}

#[test]
fn dead_scans_go() {
    let graph = traced(|x| {
        let _ = scan(x[0], x[1], |h, w| (h * w, h));
        vec![x[0]]
    });
    assert_eq!(check(&graph, eliminate_dead_code).node_count(), 0);
}

#[test]
fn scan_of_constants_keeps_its_length() {
    let graph = traced(|x| {
        let (_, (out, _)) = scan(x[0], x[1], |h, w| (h * w, (full(F64, [2], 3.0).sin(), h)));
        vec![out]
    });
    let after = check(&graph, eliminate_dead_code);
    insta::assert_snapshot!(describe_scans(&after).join("\n"), @"invariants [] carries [] inputs [] outputs [f64[4,2]]");
}

#[test]
fn dead_results_of_barriers_go() {
    let gradient = traced(|x| {
        grad(x[1], |w| {
            checkpoint(RematPolicy::Full, (x[0], w, x[2]), |(h, w, m)| (w * 2.0).sin().sum(0) * h + m.exp().sum(0))
                .sum(..)
        });
        grad(vec![x[1]], |w| checkpoint(RematPolicy::Full, (w[0], x[2]), |(w, m)| w.sin().sum(..) + m.exp().sum(..)))
    });
    let after = check(&gradient, eliminate_dead_code);
    assert_eq!(counts(&after, ["opt-barrier", "exponential"]), [1, 0]);
    let barrier = after.nodes().find(|node| matches!(node.op(), Op::Barrier(_))).expect("a barrier");
    assert_eq!(barrier.results().len(), 2, "the weights and the cotangent: {after}");
}

#[test]
fn dead_code_in_called_functions_goes() {
    let function = Function::trace("f", TensorSpec::new(F64, [3]), |x| {
        let _ = x.exp();
        x.sin()
    });
    let function = function.expect("trace");
    let graph = traced(|x| vec![function.call(x[0]), function.call(x[0].cos())]);
    let after = check(&graph, eliminate_dead_code);
    assert_eq!(counts(&after, ["call", "exponential"]), [2, 0]);
    let mut functions = Vec::new();
    walk(&after, &mut |_, node| functions.extend(node.op().regions().map(std::sync::Arc::as_ptr)));
    assert_eq!(functions[0], functions[1], "it stays one function");
}

// Common subexpressions.

#[test]
fn equal_nodes_merge() {
    let graph = traced(|x| {
        let twice = |h: Tensor| (h.sin() * 2.0 + 1.0) * (h.sin() * 2.0 - 0.0);
        let (h, out) = scan(x[0], x[1], |h, w| (twice(h), twice(w)));
        vec![twice(h), twice(h), out, x[0] * 0.0, x[0] * -0.0]
    });
    let after = check(&graph, eliminate_common_subexpressions);
    assert_eq!(counts(&graph, ["sine", "splat"]), [8, 18]);
    // In the body one for each of two values, outside one; 0 and -0 stay two, as does each region's own constant.
    assert_eq!(counts(&after, ["sine", "splat"]), [3, 7]);
}

#[test]
fn equal_calls_merge() {
    let function = Function::trace("f", TensorSpec::new(F64, [3]), |x| x.sin() + x.sin()).expect("trace");
    let graph = traced(|x| vec![function.call(x[0]), function.call(x[0]), function.call(x[0].cos())]);
    let after = check(&graph, eliminate_common_subexpressions);
    assert_eq!(after.nodes().filter(|node| matches!(node.op(), Op::Call(_))).count(), 2);
}

#[test]
fn barriers_do_not_merge() {
    let graph = traced(|x| vec![x[0].barrier().sin(), x[0].barrier().sin(), x[0].sin()]);
    let after = check(&graph, eliminate_common_subexpressions);
    assert_eq!(counts(&after, ["opt-barrier", "sine"]), [2, 3]);
}

// Invariants.

#[test]
fn invariants_leave_nested_scans() {
    let graph = traced(|x| {
        let (h, _) = scan(x[0], x[1], |h, w| {
            let (h, _) = scan(h, x[1], |h, v| {
                let everywhere = x[2].exp().sum(0);
                let outer = w.cos();
                ((h * v + everywhere * outer).tanh(), ())
            });
            (h, ())
        });
        vec![h]
    });
    let after = check(&graph, hoist_invariants);
    let names: Vec<&str> = after.nodes().map(|node| node.op().name()).collect();
    assert_eq!(names, ["exponential", "reduce-sum", "scan"]);
    let (outer, _) = scans(&after)[0];
    let names: Vec<&str> = outer.body.nodes().map(|node| node.op().name()).collect();
    assert_eq!(names, ["cosine", "multiply", "scan"]);
}

#[test]
fn what_costs_nothing_stays_in_the_loop() {
    let graph = traced(|x| {
        let (h, _) = scan(x[0], x[1], |h, w| {
            let wide = x[0].sin().broadcast_to([3, 3]);
            let narrow = x[2].convert(F32);
            let two = full(F64, [], 2.0).broadcast_to([3]);
            (
                (h * w * two
                    + wide.sum(0)
                    + narrow.matmul(h.convert(F32)).convert(F64)
                    + (wide * h.broadcast_to([3, 3])).sum(1))
                .tanh(),
                (),
            )
        });
        vec![h]
    });
    let after = check(&graph, hoist_invariants);
    // The broadcast is made outside too, for the sum that is hoisted.
    let names: Vec<&str> = after.nodes().map(|node| node.op().name()).collect();
    assert_eq!(names, ["sine", "broadcast", "reduce-sum", "scan"]);
    let (scan, _) = scans(&after)[0];
    let inside = |op: &str| scan.body.nodes().filter(|node| node.op().name() == op).count();
    assert_eq!([inside("splat"), inside("convert"), inside("broadcast")], [1, 3, 3]);
}

#[test]
fn loops_without_inputs_leave_whole() {
    let graph = traced(|x| {
        let (h, _) = scan(x[0], x[1], |h, w| {
            let options = ScanOptions { length: Some(3), ..Default::default() };
            let (power, _) = scan_with(options, x[2], (), |m, ()| (m.matmul(x[2]), ()));
            (h * w + power.sum(0), ())
        });
        vec![h]
    });
    let after = check(&graph, hoist_invariants);
    assert_eq!(scans(&after).len(), 2);
}

#[test]
fn passes_keep_phases() {
    let graph = traced(|x| grad(x.to_vec(), |x| layers(&x, RematPolicy::Full) + layers(&x, RematPolicy::Dots)));
    let phases = |graph: &Graph| {
        let mut numbers = [0; 3];
        walk(graph, &mut |_, node| {
            if matches!(node.op(), Op::DotGeneral(_) | Op::Unary(_)) {
                numbers[node.origin().phase as usize] += 1;
            }
        });
        numbers
    };
    let before = phases(&graph);
    assert_eq!(before, phases(&hoist_invariants(&graph)));
    let alive = phases(&eliminate_dead_code(&graph));
    assert!((0..3).all(|phase| alive[phase] <= before[phase] && alive[phase] > 0), "{before:?} {alive:?}");
    let forward = eliminate_dead_code(&graph);
    assert!(forward.nodes().next().is_some_and(|node| node.origin().phase == Phase::Forward));
}
