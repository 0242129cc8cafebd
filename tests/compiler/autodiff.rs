//! Differentiation of programs: loops, checkpoints, hand-written gradients and calls, against central differences.

use meshloom::autodiff;
use meshloom::ir::DType::{F32, F64, S32};
use meshloom::ir::{Graph, GraphBuilder, Literal, Phase, PortInfo, TensorType};
use meshloom::ops::{Checkpoint, Op, RematPolicy};
use meshloom::passes::eliminate_dead_code;
use meshloom::trace::TraceErrorKind;
use meshloom::trace::{
    Function, ScanOptions, Tensor, TensorSpec, checkpoint, cond, constant, custom_vjp, full, grad, scan, scan_with,
    stack, value_and_grad_aux, vjp, zeros,
};
use proptest::prelude::*;
use support::anchored::run;
use support::cases::cases;
use support::derivatives::*;
use support::*;

use super::properties;

// Loops.

#[test]
fn scan_equals_unrolled() {
    check_same(
        &[&[3], &[4, 3, 3]],
        &[
            |x| scan(x[0], x[1], |h, w| (h.matmul(w).tanh(), ())).0.square().sum(..),
            |x| (0..4).fold(x[0], |h, layer| h.matmul(x[1].index(layer)).tanh()).square().sum(..),
        ],
    );
}

#[test]
fn reverse_scan_equals_unrolled() {
    check_same(
        &[&[3], &[4, 3]],
        &[
            |x| {
                let options = ScanOptions { reverse: true, ..Default::default() };
                let (h, out) = scan_with(options, x[0], x[1], |h, w| ((h * w).sin(), h.exp()));
                (out * x[1]).sum(..) + h.sum(..)
            },
            |x| {
                let mut h = x[0];
                let mut total = zeros(F64, []);
                for layer in [3, 2, 1, 0] {
                    let w = x[1].index(layer);
                    total = total + (h.exp() * w).sum(..);
                    h = (h * w).sin();
                }
                total + h.sum(..)
            },
        ],
    );
}

#[test]
fn nested_scans() {
    let program: Program = |x| {
        let (h, out) = scan(x[0], x[1], |h, rows| {
            let scale = x[2].exp();
            let (h, inner) = scan(h, rows, |h, row| ((h * row + scale).tanh(), (h * scale).sum(..)));
            (h, inner.sum(..) * h)
        });
        (h * x[0]).sum(..) + out.square().sum(..)
    };
    check_anchored(&[&[2], &[3, 4, 2], &[2]], program);
    check_second(&[&[2], &[2, 3, 2], &[2]], program);
}

#[test]
fn scan_with_unused_outputs() {
    check(&[&[3], &[4, 3]], |x| {
        let ((h, _), (_, out)) =
            scan((x[0], x[0]), x[1], |(h, unused), w| (((h * w).tanh(), unused.exp()), (unused.sin(), h * h)));
        h.sum(..) + out.index(1).sum(..)
    });
}

#[test]
fn scan_with_integer_carry() {
    check(&[&[3], &[4, 3]], |x| {
        let ((step, h), steps) = scan((full(S32, [], 0.0), x[0]), x[1], |(step, h), w| {
            ((step + 1, (h * w * step.convert(F64)).sin() + h), step)
        });
        (h * (step + steps.sum(..)).convert(F64)).sum(..)
    });
}

#[test]
fn scan_over_integers() {
    check(&[&[5, 3]], |x| {
        let rows = constant(Literal::from_slice(&[4], &[4, 0, 4, 2]).expect("four"));
        let (h, _) = scan(zeros(F64, [3]), rows, |h, row| ((h + x[0].take(0, row)).tanh(), ()));
        h.sum(..)
    });
}

#[test]
fn scans_of_length_zero_and_one() {
    for length in [0, 1] {
        check(&[&[3], &[length, 3]], |x| {
            let (h, out) = scan(x[0], x[1], |h, w| ((h * w).tanh(), h.exp()));
            (h * x[0]).sum(..) + out.sum(..)
        });
    }
}

#[test]
fn scan_with_a_carry_that_becomes_active_late() {
    // The second carry depends on the first, the first on the weights: activity needs three rounds.
    check(&[&[4, 2]], |x| {
        let zero = zeros(F64, [2]);
        let ((_, _, h), _) =
            scan((zero, zero, zero), x[0], |(a, b, c), w| ((a + w, (b + a).sin(), c * 0.5 + b.exp()), ()));
        h.sum(..)
    });
}

#[test]
fn invariants_are_not_stacked() {
    // The weights are read by every iteration, the hidden state only is stacked: no weights, no products of weights.
    let program: Program = |x| scan(x[0], x[2], |h, b| (h.matmul(x[1].exp()).tanh() + b, ())).0.sum(..);
    let shapes: &[&[usize]] = &[&[3], &[3, 3], &[5, 3]];
    check(shapes, program);
    insta::assert_snapshot!(describe_scans(&optimize(&differentiated(shapes, program))).join("\n"), @r#"
    invariants [f64[3,3]] carries [f64[3]] inputs [f64[5,3]] outputs [f64[5,3] f64[5,3]]
    reverse invariants [f64[3,3]] carries [f64[3] f64[3,3]] inputs [f64[5,3] f64[5,3]] outputs [f64[5,3]]
    "#);
}

#[test]
fn slices_are_not_stacked_again() {
    let program: Program = |x| scan(x[0], x[1], |h, w| ((h * w).sin(), ())).0.sum(..);
    let shapes: &[&[usize]] = &[&[3], &[5, 3]];
    insta::assert_snapshot!(describe_scans(&optimize(&differentiated(shapes, program))).join("\n"), @r#"
    invariants [] carries [f64[3]] inputs [f64[5,3]] outputs [f64[5,3]]
    reverse invariants [] carries [f64[3]] inputs [f64[5,3] f64[5,3]] outputs [f64[5,3]]
    "#);
}

#[test]
fn outputs_are_not_stacked_again() {
    let program: Program = |x| {
        let (_, out) = scan(x[0], x[1], |h, w| {
            let next = (h * w).tanh();
            (next, next)
        });
        out.square().sum(..)
    };
    let shapes: &[&[usize]] = &[&[3], &[5, 3]];
    check(shapes, program);
    insta::assert_snapshot!(describe_scans(&optimize(&differentiated(shapes, program))).join("\n"), @r#"
    invariants [] carries [f64[3]] inputs [f64[5,3]] outputs [f64[5,3] f64[5,3]]
    reverse invariants [] carries [f64[3]] inputs [f64[5,3] f64[5,3] f64[5,3] f64[5,3]] outputs [f64[5,3]]
    "#);
}

#[test]
fn broadcasts_and_masks_are_not_stacked() {
    // The row is stacked, not its repetition; the mask is compared again.
    let program: Program = |x| {
        let (h, _) = scan(x[0], x[1], |h, row| {
            let wide = row.exp().broadcast_to([4, 3]);
            ((wide.greater(1.5).select(h * wide, h)).sin(), ())
        });
        h.sum(..)
    };
    let shapes: &[&[usize]] = &[&[4, 3], &[5, 3]];
    check(shapes, program);
    insta::assert_snapshot!(describe_scans(&optimize(&differentiated(shapes, program))).join("\n"), @r#"
    invariants [] carries [f64[4,3]] inputs [f64[5,3]] outputs [f64[5,4,3] f64[5,3]]
    reverse invariants [] carries [f64[4,3]] inputs [f64[5,4,3] f64[5,3]] outputs [f64[5,3]]
    "#);
}

#[test]
fn what_takes_few_instructions_is_not_stacked() {
    let cheap: Program = |x| {
        let body = |h: Tensor, w: Tensor| {
            let weights = constant(Literal::from_slice(&[3], &[1.0, 2.0, 3.0]).expect("three"));
            ((h * w.clamp(-0.5, 0.5) * weights).sin(), ())
        };
        scan(x[0], x[1], body).0.sum(..)
    };
    let costly: Program = |x| scan(x[0], x[1], |h, w| ((h * w.atan2(0.5)).sin(), ())).0.sum(..);
    let shapes: &[&[usize]] = &[&[3], &[5, 3]];
    let scans = [cheap, costly].map(|program| {
        check(shapes, program);
        describe_scans(&optimize(&differentiated(shapes, program))).join("\n")
    });
    insta::assert_snapshot!(scans.join("\n"), @r#"
    invariants [] carries [f64[3]] inputs [f64[5,3]] outputs [f64[5,3]]
    reverse invariants [] carries [f64[3]] inputs [f64[5,3] f64[5,3]] outputs [f64[5,3]]
    invariants [] carries [f64[3]] inputs [f64[5,3]] outputs [f64[5,3] f64[5,3]]
    reverse invariants [f64[3]] carries [f64[3]] inputs [f64[5,3] f64[5,3] f64[5,3]] outputs [f64[5,3]]
    "#);
}

#[test]
fn gradients_of_narrowed_invariants_are_summed_wide() {
    // Weights in f64, computation in f32: the sum over iterations must not be taken in f32.
    let program: Program = |x| {
        let (h, _) = scan(x[0].convert(F32), x[1].convert(F32), |h, b| ((h * x[2].convert(F32) + b).tanh(), ()));
        h.convert(F64).sum(..)
    };
    insta::assert_snapshot!(describe_scans(&optimize(&differentiated(&[&[3], &[5, 3], &[3]], program))).join("\n"), @r#"
    invariants [f64[3]] carries [f32[3]] inputs [f32[5,3]] outputs [f32[5,3] f32[5,3]]
    reverse invariants [f64[3]] carries [f32[3] f64[3]] inputs [f32[5,3] f32[5,3]] outputs [f32[5,3]]
    "#);
}

// Values and inputs.

#[test]
fn value_used_many_times() {
    check(&[&[3]], |x| {
        let y = x[0].sin();
        (0..6).fold(y, |sum, power| sum + y * sum * f64::from(power)).sum(..)
    });
}

#[test]
fn unused_input_has_zero_gradient() {
    assert_eq!(check(&[&[2], &[3]], |x| x[0].sum(..)), [1.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(check(&[&[2]], |_| full(F64, [], 1.0)), [0.0, 0.0]);
}

#[test]
fn gradient_with_respect_to_integers_is_zero() {
    let inputs = (TensorSpec::new(F64, [2]), TensorSpec::new(S32, [2]));
    let function =
        Function::trace("f", inputs, |(x, index)| grad((x, index), |(x, index)| (x * index.convert(F64)).sum(..)));
    let inputs = [f64s(&[2], 1), Literal::from_slice(&[2], &[3, 4]).expect("two")];
    let results = run(function.expect("trace").graph(), &inputs);
    assert_eq!(results[0].to_vec::<f64>().expect("f64"), [3.0, 4.0]);
    assert_eq!(results[1].to_vec::<i32>().expect("s32"), [0, 0]);
}

#[test]
fn aux_is_not_differentiated() {
    let function = Function::trace("f", TensorSpec::new(F64, [2]), |x| {
        value_and_grad_aux(x, |x| (x.square().sum(..), (x.exp(), x)))
    });
    let results = run(function.expect("trace").graph(), &[Literal::from_slice(&[2], &[1.0, 2.0]).expect("two")]);
    assert!(distance(&flat(&results), &[5.0, 1f64.exp(), 2f64.exp(), 1.0, 2.0, 2.0, 4.0]) < 1e-15);
}

#[test]
fn stop_gradient_stops() {
    let function = Function::trace("f", TensorSpec::new(F64, [2]), |x| grad(x, |x| (x * x.stop_gradient()).sum(..)));
    let results = run(function.expect("trace").graph(), &[Literal::from_slice(&[2], &[1.0, 2.0]).expect("two")]);
    assert_eq!(flat(&results), [1.0, 2.0]);
    // The scan before `stop_gradient` is not made ready for a backward pass.
    let graph = differentiated(&[&[3], &[5, 3]], |x| {
        (scan(x[0], x[1], |h, w| ((h * w).sin(), ())).0.stop_gradient() * x[0]).sum(..)
    });
    insta::assert_snapshot!(describe_scans(&graph).join("\n"), @"invariants [] carries [f64[3]] inputs [f64[5,3]] outputs []");
}

#[test]
fn vjp_with_cotangents() {
    let function = Function::trace("f", (TensorSpec::new(F64, [2]), TensorSpec::new(F64, [2])), |(x, ct)| {
        vjp(x, |x| (x.square(), x.greater(0.0)), |&(_, flags)| (ct, flags)).1
    });
    let inputs = [[1.0, 2.0], [10.0, 100.0]].map(|numbers| Literal::from_slice(&[2], &numbers).expect("two"));
    assert_eq!(flat(&run(function.expect("trace").graph(), &inputs)), [20.0, 400.0]);
}

#[test]
fn loss_must_be_a_scalar() {
    let refused = |dtype, dims: &[usize]| {
        let Err(error) = Function::trace("f", TensorSpec::new(dtype, dims), |x| grad(x, |x| x)) else {
            panic!("{dtype} {dims:?} must be refused");
        };
        assert!(error.origin.place.is_some_and(|location| location.file().ends_with("autodiff.rs")));
        let TraceErrorKind::Mismatch { found, .. } = error.kind else { panic!("{error}") };
        found
    };
    assert_eq!(refused(F64, &[3]), "f64[3]");
    assert_eq!(refused(S32, &[]), "s32[]");
    let graph = Function::trace("f", TensorSpec::new(F64, []), |x| x).expect("trace").graph().clone();
    assert!(autodiff::value_and_grad(&graph, &[1]).is_err());
    assert_eq!(autodiff::value_and_grad(&graph, &[0]).expect("a gradient").outputs().len(), 2);
}

// Hand-written gradients.

#[test]
fn custom_vjp_in_scan_in_checkpoint() {
    let program: Program = |x| {
        checkpoint(RematPolicy::Full, (x[0], x[1]), |(h, w)| scan(h, w, |h, w| (own_exp(h * w).sin(), ())).0.sum(..))
    };
    let shapes: &[&[usize]] = &[&[3], &[4, 3]];
    check(shapes, program);
    check_second_anchored(shapes, program);
    check_same(shapes, &[program, |x| scan(x[0], x[1], |h, w| ((h * w).exp().sin(), ())).0.sum(..)]);
}

#[test]
fn custom_vjp_rule_is_used() {
    let function = Function::trace("f", TensorSpec::new(F64, [2]), |x| {
        grad(x, |x| custom_vjp(x, |x| x, |x| (x, ()), |(), ct| ct * 7.0).sum(..))
    });
    assert_eq!(flat(&run(function.expect("trace").graph(), &[f64s(&[2], 1)])), [7.0, 7.0]);
}

#[test]
fn custom_vjp_with_integers() {
    check(&[&[4, 2]], |x| {
        let rows = constant(Literal::from_slice(&[2], &[3, 1]).expect("two"));
        let taken = custom_vjp(
            (x[0], rows),
            |(x, rows)| (x.take(0, rows), rows),
            |(x, rows)| ((x.take(0, rows), rows), (x, rows)),
            |(x, rows), (ct, _)| (grad(x, |x| (x.take(0, rows) * ct).sum(..)), rows),
        );
        (taken.0 * taken.1.convert(F64).broadcast_like(taken.0, [0])).sin().sum(..)
    });
}

// Checkpoints.

fn block(policy: RematPolicy, x: &[Tensor]) -> Tensor {
    let (h, w1, w2) = (x[0], x[1], x[2]);
    let out = checkpoint(policy, (h, w1, w2), |(h, w1, w2)| {
        let hidden = h.matmul(w1).tanh().named("hidden");
        (hidden.matmul(w2).sin() + h).exp()
    });
    (out * h).sum(..)
}

const BLOCK: &[&[usize]] = &[&[2, 3], &[3, 4], &[4, 3]];

#[test]
fn checkpoint_policies_agree() {
    check_same(
        BLOCK,
        &[
            |x| block(RematPolicy::None, x),
            |x| block(RematPolicy::Full, x),
            |x| block(RematPolicy::Dots, x),
            |x| block(save(&["hidden"]), x),
            |x| block(save(&["nothing of this name"]), x),
        ],
    );
    check_second(&[&[2, 2], &[2, 2], &[2, 2]], |x| block(RematPolicy::Full, x));
    check_second(&[&[2, 2], &[2, 2], &[2, 2]], |x| block(RematPolicy::Dots, x));
}

/// Describes the values that cross from the forward to the backward pass, and the ops that are computed again.
fn describe_checkpoint(graph: &Graph) -> String {
    let mut text = String::new();
    walk(graph, &mut |graph, node| {
        if matches!(node.op(), Op::Barrier(_)) {
            assert_eq!(node.origin().phase, Phase::Recompute);
            let operand = |value: &meshloom::ir::Value| match graph.defining_node(*value) {
                Some(node) if node.origin().phase == Phase::Forward => Some(node.op().name()),
                Some(_) => None,
                None => Some("input"),
            };
            let names: Vec<&str> = node.operands().iter().filter_map(operand).collect();
            text += &format!("crosses: {}\n", names.join(" "));
        }
    });
    let mut again = Vec::new();
    walk(graph, &mut |_, node| {
        if node.origin().phase == Phase::Recompute && !matches!(node.op(), Op::Barrier(_) | Op::Splat(_)) {
            again.push(node.op().name());
        }
    });
    again.sort_unstable();
    text + &format!("again: {}", again.join(" "))
}

#[test]
fn checkpoint_keeps_what_its_policy_says() {
    let describe = |policy: RematPolicy| {
        let graph = differentiated(BLOCK, |x| block(policy.clone(), x));
        let text = describe_checkpoint(&eliminate_dead_code(&graph));
        // Common subexpressions are merged around the barrier, not through it.
        assert_eq!(text, describe_checkpoint(&optimize(&graph)));
        text
    };
    insta::assert_snapshot!(describe(RematPolicy::None), @"again:");
    insta::assert_snapshot!(describe(RematPolicy::Full), @r#"
    crosses: input input input
    again: add dot dot exponential name sine tanh
    "#);
    insta::assert_snapshot!(describe(RematPolicy::Dots), @r#"
    crosses: input input input dot dot
    again: add exponential name sine tanh
    "#);
    insta::assert_snapshot!(describe(save(&["hidden"])), @r#"
    crosses: input input input tanh
    again: add dot exponential name sine
    "#);
}

#[test]
fn checkpoint_in_scan() {
    fn layers(policy: RematPolicy, x: &[Tensor]) -> Tensor {
        let (h, out) = scan(x[0], x[1], |h, w| {
            let h = checkpoint(policy, (h, w), |(h, w)| (h.matmul(w).tanh().named("a") * x[2].exp()).sin());
            (h, h.sum(..))
        });
        (h * h).sum(..) + out.sum(..)
    }
    let shapes: &[&[usize]] = &[&[3], &[4, 3, 3], &[3]];
    check_same(
        shapes,
        &[
            |x| layers(RematPolicy::None, x),
            |x| layers(RematPolicy::Full, x),
            |x| layers(RematPolicy::Dots, x),
            |x| layers(save(&["a"]), x),
        ],
    );
    let describe = |policy: RematPolicy| {
        let graph = optimize(&differentiated(shapes, |x| layers(policy.clone(), x)));
        format!("{}\n{}", describe_scans(&graph).join("\n"), describe_checkpoint(&graph))
    };
    insta::assert_snapshot!(describe(RematPolicy::Full), @r#"
    invariants [f64[3]] carries [f64[3]] inputs [f64[4,3,3]] outputs [f64[4] f64[4,3]]
    reverse invariants [f64[3]] carries [f64[3] f64[3]] inputs [f64[4,3] f64[4,3,3] f64[4]] outputs [f64[4,3,3]]
    crosses: input input input
    again: dot exponential multiply name tanh
    "#);
    insta::assert_snapshot!(describe(RematPolicy::Dots), @r#"
    invariants [f64[3]] carries [f64[3]] inputs [f64[4,3,3]] outputs [f64[4] f64[4,3] f64[4,3]]
    reverse invariants [f64[3]] carries [f64[3] f64[3]] inputs [f64[4,3] f64[4,3,3] f64[4,3] f64[4]] outputs [f64[4,3,3]]
    crosses: input input input input
    again: exponential multiply name tanh
    "#);
    insta::assert_snapshot!(describe(save(&["a"])), @r#"
    invariants [f64[3]] carries [f64[3]] inputs [f64[4,3,3]] outputs [f64[4] f64[4,3] f64[4,3]]
    reverse invariants [f64[3]] carries [f64[3] f64[3]] inputs [f64[4,3] f64[4,3,3] f64[4,3] f64[4]] outputs [f64[4,3,3]]
    crosses: input input input input
    again: exponential multiply name
    "#);
}

#[test]
fn nested_checkpoints() {
    let program: Program = |x| {
        checkpoint(RematPolicy::Full, (x[0], x[1]), |(h, w)| {
            let inner = |h: Tensor| checkpoint(RematPolicy::Full, h, |h| (h.matmul(w).tanh() * w.exp().sum(0)).sin());
            inner(inner(h)).sum(..)
        })
    };
    check(&[&[2], &[2, 2]], program);
    check_second(&[&[2], &[2, 2]], program);
}

#[test]
fn recomputed_loops_run_in_their_phase() {
    let graph = optimize(&differentiated(&[&[3], &[4, 3]], |x| {
        checkpoint(RematPolicy::Full, (x[0], x[1]), |(h, w)| scan(h, w, |h, w| ((h * w).sin(), ())).0.sum(..))
    }));
    let phases: Vec<Phase> = scans(&graph).iter().map(|(_, node)| node.origin().phase).collect();
    assert_eq!(phases, [Phase::Forward, Phase::Recompute, Phase::Backward]);
}

#[test]
fn recomputation_survives_compilation() {
    // Two dots forwards and four backwards; a full checkpoint computes both forward ones again.
    let all = [
        (RematPolicy::Full, (2, 8)),
        (RematPolicy::None, (1, 6)),
        (RematPolicy::Dots, (2, 6)),
        (save(&["hidden"]), (1, 7)),
    ];
    for (policy, expected) in cases("compiler recomputation", 2, all) {
        let program = |x: &[Tensor]| block(policy.clone(), x);
        let compiled = compile(&optimize(&differentiated(&[&[64, 64], &[64, 64], &[64, 64]], program)));
        assert_eq!((compiled.count("tanh"), compiled.count("dot")), expected, "{policy:?}");
    }
}

#[test]
fn checkpoint_op_that_keeps_everything() {
    // The tracing language leaves such a checkpoint out; a graph built by hand may have one, with a loop inside.
    let body =
        Function::trace("body", specs(&[&[3], &[4, 3]]), |x| scan(x[0], x[1], |h, w| ((h * w).sin(), ())).0.sum(..));
    let body = body.expect("trace").graph().clone();
    let mut builder = GraphBuilder::new("f");
    let types = [TensorType::new(F64, &[3]), TensorType::new(F64, &[4, 3])];
    let inputs = types.map(|ty| builder.input(ty, PortInfo::default()));
    let policy = RematPolicy::None;
    let outputs = builder.push(Checkpoint { body: body.clone(), policy }, &inputs).expect("a checkpoint");
    let graph = builder.finish(outputs.to_vec(), vec![PortInfo::default()]);
    let inputs = inputs_of(&graph);
    let found = run(&autodiff::value_and_grad(&graph, &[0, 1]).expect("gradients"), &inputs);
    let expected = run(&autodiff::value_and_grad(&body, &[0, 1]).expect("gradients"), &inputs);
    assert_eq!(flat(&found), flat(&expected));
}

// Calls.

#[test]
fn called_function_shares_its_backward() {
    let shapes: &[&[usize]] = &[&[3], &[3, 3]];
    let layer = Function::trace("layer", specs(shapes), |x| (x[0].matmul(x[1]).tanh() + x[0]).sin());
    let layer = layer.expect("trace");
    let program = |x: &[Tensor]| {
        let h = (0..3).fold(x[0], |h, _| layer.call(vec![h, x[1]]));
        h.square().sum(..)
    };
    check(shapes, program);
    let mut functions = Vec::new();
    walk(&optimize(&differentiated(shapes, program)), &mut |_, node| {
        if let Op::Call(call) = node.op() {
            functions.push(call.function.name().to_owned());
            functions.push(format!("{:p}", call.function.as_ref()));
        }
    });
    assert_eq!(functions.len(), 12, "three calls forwards and three backwards");
    functions.sort();
    functions.dedup();
    assert_eq!(functions.len(), 4, "two names and two functions: {functions:?}");
}

#[test]
fn call_in_scan_in_checkpoint() {
    let shapes: &[&[usize]] = &[&[3], &[4, 3]];
    let layer = Function::trace("layer", specs(&[&[3], &[3]]), |x| {
        let (h, _) = scan_with(ScanOptions { length: Some(2), ..Default::default() }, x[0], (), |h, ()| {
            ((h * x[1].exp()).sin(), ())
        });
        (h, h.greater(0.0))
    });
    let layer = layer.expect("trace");
    check(shapes, |x| {
        checkpoint(RematPolicy::Full, (x[0], x[1]), |(h, w)| {
            scan(h, w, |h, w| {
                let (h, flags) = layer.call(vec![h, w]);
                (flags.select(h, 0.0), ())
            })
            .0
            .sum(..)
        })
    });
}

// Second derivatives.

#[test]
fn second_derivatives() {
    let cases: &[(&[&[usize]], Program)] = &[
        (&[&[3], &[4, 3]], |x| scan(x[0], x[1], |h, w| ((h * w).sin(), h.exp())).1.sum(..)),
        (&[&[3]], |x| own_exp(x[0].sin()).sum(..)),
        (&[&[2], &[3, 2]], |x| {
            scan(x[0], x[1], |h, w| (checkpoint(RematPolicy::Full, (h, w), |(h, w)| (h * w).tanh().exp()), ()))
                .0
                .sum(..)
        }),
    ];
    for (shapes, program) in cases {
        check_second(shapes, *program);
    }
}

// Random programs.

#[derive(Clone, Debug)]
enum Step {
    Elementwise(u8),
    Bias,
    Dot,
    DotTransposed,
    Normalize,
    Reshape,
    Slice,
    Maximum,
    Scan { length: usize, reverse: bool, body: Vec<Step> },
    Checkpoint { policy: u8, body: Vec<Step> },
    Branch { flag: bool, body: Vec<Step> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let leaf = prop_oneof![
        (0u8..5).prop_map(Step::Elementwise),
        Just(Step::Bias),
        Just(Step::Dot),
        Just(Step::DotTransposed),
        Just(Step::Normalize),
        Just(Step::Reshape),
        Just(Step::Slice),
        Just(Step::Maximum),
    ];
    let step = leaf.prop_recursive(3, 24, 4, |step| {
        let body = prop::collection::vec(step, 1..4);
        prop_oneof![
            (0usize..4, any::<bool>(), body.clone()).prop_map(|(length, reverse, body)| Step::Scan {
                length,
                reverse,
                body
            }),
            (0u8..4, body.clone()).prop_map(|(policy, body)| Step::Checkpoint { policy, body }),
            (any::<bool>(), body).prop_map(|(flag, body)| Step::Branch { flag, body }),
        ]
    });
    prop::collection::vec(step, 1..5)
}

const RANDOM: &[&[usize]] = &[&[3, 3], &[3, 3], &[3], &[3, 3, 3]];

/// Every step keeps its result small: gradients of programs that grow in loops cannot be told by differences.
fn interpret(steps: &[Step], h: Tensor, x: &[Tensor]) -> Tensor {
    steps.iter().fold(h, |h, step| match step {
        Step::Elementwise(0) => h.tanh(),
        Step::Elementwise(1) => h.sin() * x[1],
        Step::Elementwise(2) => (h * h + 1.0).rsqrt() - h,
        Step::Elementwise(3) => h.logistic().log_1p() / (x[1] + 1.5),
        Step::Elementwise(_) => (h * 0.3).sin().exp().named("exp"),
        Step::Bias => (h + x[2].exp().broadcast_to([3, 3])).sin(),
        Step::Dot => h.matmul(x[1]).tanh().named("dot"),
        Step::DotTransposed => x[1].matmul(h.transpose([1, 0])).cos(),
        Step::Normalize => h * (h.square().mean(-1) + 0.1).rsqrt().broadcast_like(h, 0),
        Step::Reshape => h.reshape([9]).pad(0, 1, 0, 0.5).slice(0, ..9).reshape([3, 3]),
        Step::Slice => stack(&[h.slice(0, 1..).sum(0), x[2], h.index(0)], 1),
        Step::Maximum => (h.maximum(x[1]) + h.max(0).broadcast_to([3, 3]) * h).tanh(),
        Step::Scan { length, reverse, body } => {
            let options = ScanOptions { reverse: *reverse, ..Default::default() };
            let (h, out) = scan_with(options, h, x[3].slice(0, ..*length), |h, row| {
                let next = interpret(body, h + row.broadcast_to([3, 3]) * x[1].sin(), x).sin();
                (next, (next * row.broadcast_to([3, 3])).sum(1))
            });
            h.tanh() + out.sum(0).broadcast_to([3, 3])
        }
        Step::Branch { flag, body } => {
            // Far from where it changes, so that differences see one branch.
            let limit = if *flag { 1e3 } else { -1e3 };
            cond(h.sum(..).less(limit), h, |h| interpret(body, h, x), |h| (h * x[1]).cos())
        }
        Step::Checkpoint { policy, body } => {
            let policy =
                [RematPolicy::None, RematPolicy::Full, RematPolicy::Dots, save(&["dot"])][usize::from(*policy)].clone();
            checkpoint(policy, h, |h| interpret(body, h, x))
        }
    })
}

/// In the full tier XLA computes the first 40.
#[test]
fn random_programs() {
    properties::check("compiler random programs", 40, 400, &steps(), |steps| {
        check_interpreted(RANDOM, |x| interpret(steps, x[0], x).sin().sum(..));
        Ok(())
    });
    properties::check("compiler random programs, compiled", 0, 40, &steps(), |steps| {
        check_anchored(RANDOM, |x| interpret(steps, x[0], x).sin().sum(..));
        Ok(())
    });
}

#[test]
fn gradient_grows_linearly() {
    // Thousands of small nodes in the body of a loop, each a residual.
    let node_count = |length: usize| {
        let loss = Function::trace("long", specs(&[&[3], &[4, 3]]), |x| {
            scan(x[0], x[1], |h, w| ((0..length).fold(h, |h, _| (h * w).sin()), ())).0.sum(..)
        });
        let loss = loss.expect("trace").graph().clone();
        optimize(&autodiff::value_and_grad(&loss, &[0, 1]).expect("gradients")).total_node_count()
    };
    let [short, middle, long] = [2_000, 4_000, 6_000].map(node_count);
    assert_eq!(long - middle, middle - short);
}
