//! Derivatives of derivatives: against central differences of the first gradient, and against JAX.

use meshloom::ir::DType::{F64, S32};
use meshloom::ir::{Graph, Literal};
use meshloom::ops::RematPolicy;
use meshloom::trace::{
    Function, ScanOptions, Tensor, checkpoint, cond, full, grad, jvp, scan, scan_with, switch, value_and_grad,
};
use support::anchored::{run, run_anchored};
use support::derivatives::*;
use support::*;

#[test]
fn second_derivatives_through_regions() {
    let cases: &[(&[&[usize]], Program)] = &[
        (&[&[2], &[3, 2]], |x| scan(x[0], x[1], |h, w| ((h * w).sin(), h.exp())).1.sum(..)),
        (&[&[2], &[3, 2]], |x| {
            let options = ScanOptions { reverse: true, parallel: false, unroll: 2, ..Default::default() };
            let ((h, _), out) = scan_with(options, (x[0], full(S32, [], 1.0)), x[1], |(h, n), w| {
                (((h * w).sin(), n + 1), h * n.convert(F64))
            });
            h.sum(..) + out.square().sum(..)
        }),
        (&[&[3]], |x| own_exp(x[0].sin()).sum(..)),
        (&[&[2], &[2, 2]], |x| scan(x[0], x[1], |h, w| (own_exp((h * w).sin()), ())).0.square().sum(..)),
        (&[&[2]], |x| cond(x[0].sum(..).less(1e3), x[0], |x| x.sin() * x.exp(), |x| x).sum(..)),
        (&[&[2], &[3, 2]], |x| {
            // The branch changes from iteration to iteration.
            let step = |(n, h): (Tensor, Tensor), w: Tensor| {
                let h = switch(n, (h, w), [&|(h, w)| (h * w).sin(), &|(h, w)| h.exp() * w, &|(h, _)| h * h]);
                ((n + 1, h), ())
            };
            scan((full(S32, [], 0.0), x[0]), x[1], step).0.1.sum(..)
        }),
    ];
    for (shapes, program) in cases {
        check_second(shapes, *program);
    }
}

#[test]
fn second_derivatives_through_calls() {
    let layer = Function::trace("layer", specs(&[&[2], &[2, 2]]), |x| x[0].matmul(x[1]).tanh() + x[0].sin());
    let layer = layer.expect("trace");
    let program = |x: &[Tensor]| layer.call(vec![layer.call(vec![x[0], x[1]]), x[1]]).square().sum(..);
    check(&[&[2], &[2, 2]], |x| weighted_gradient(x, program));
}

/// A weighted sum of the gradient of a program.
fn weighted_gradient(x: &[Tensor], program: impl Fn(&[Tensor]) -> Tensor) -> Tensor {
    let gradients = grad(x.to_vec(), |x| program(&x));
    let terms = gradients.iter().zip(1..).map(|(gradient, weight)| (*gradient * f64::from(weight)).sum(..));
    terms.reduce(|x, y| x + y).expect("a parameter")
}

#[test]
fn second_derivatives_through_every_policy() {
    let policies = [
        RematPolicy::None,
        RematPolicy::Full,
        RematPolicy::Dots,
        RematPolicy::DotsWithoutBatch,
        save(&["hidden"]),
        RematPolicy::Offload(names(&["hidden"])),
        RematPolicy::SaveExcept(names(&["hidden"])),
        RematPolicy::Any(vec![RematPolicy::Dots, save(&["hidden"])]),
    ];
    let shapes: &[&[usize]] = &[&[2], &[2, 2, 2]];
    // A loop, a branch and a checkpoint within the checkpoint.
    let program = |policy: &RematPolicy, x: &[Tensor]| {
        checkpoint(policy.clone(), (x[0], x[1]), |(h, w)| {
            let step = |h: Tensor, w: Tensor| {
                let h = cond(h.sum(..).less(1e3), (h, w), |(h, w)| h.matmul(w).tanh().named("hidden"), |(h, _)| h);
                (checkpoint(RematPolicy::Full, h, |h| (h * h).sin().named("hidden").exp()), ())
            };
            scan(h, w, step).0.square().sum(..)
        })
    };
    let expected = check(shapes, |x| weighted_gradient(x, |x| program(&RematPolicy::None, x)));
    for policy in &policies[1..] {
        let found = check(shapes, |x| weighted_gradient(x, |x| program(policy, x)));
        assert!(distance(&found, &expected) <= 1e-12, "{policy:?}");
    }
}

#[test]
fn third_derivatives() {
    // d³/dx³ of x⁴ is 24 x, of sin is -cos; by each mixture of the modes.
    let derivative = |x: Tensor, f: &dyn Fn(Tensor) -> Tensor, forward: bool| match forward {
        true => jvp(x, full(F64, [], 1.0), f).1,
        false => grad(x, f),
    };
    let f = |x: Tensor| x * x * x * x + x.sin();
    for modes in 0..8 {
        let mode = |index: u32| modes >> index & 1 == 1;
        let function = Function::trace("third", specs(&[&[]]), |x| {
            derivative(x[0], &|x| derivative(x, &|x| derivative(x, &f, mode(0)), mode(1)), mode(2))
        });
        let graph = function.expect("trace").graph().as_ref().clone();
        let x = inputs_of(&graph)[0].to_f64_vec()[0];
        let found = run(&graph, &inputs_of(&graph))[0].to_f64_vec()[0];
        assert!((found - (24.0 * x - x.cos())).abs() < 1e-12, "modes {modes:03b}: {found}");
    }
    // Through a loop, a branch and a hand-written rule.
    check(&[&[2], &[2, 2]], |x| {
        weighted_gradient(x, |x| {
            weighted_gradient(x, |x| {
                scan(x[0], x[1], |h, w| (cond(h.sum(..).less(1e3), h * w, |h| own_exp(h.sin()), |h| h), ())).0.sum(..)
            })
        })
    });
}

/// The program of `tests/oracle/second_order.py`, which prints these numbers.
#[test]
fn hessian_products_are_those_of_jax() {
    let f = |h: Tensor, w: Tensor| {
        let step = |h: Tensor, w: Tensor| {
            let h = checkpoint(RematPolicy::Full, (h, w), |(h, w)| h.matmul(w).tanh());
            (cond(h.sum(..).greater(0.0), h, |h| h.sin(), |h| h.exp()), h.square().sum(..))
        };
        let (h, out) = scan(h, w, step);
        h.exp().sum(..) + (out * out).sum(..)
    };
    let number = |index: usize| (index as f64 * 0.7).sin();
    let tensor = |dims: &[usize], start: usize| {
        let numbers: Vec<f64> = (start..start + dims.iter().product::<usize>()).map(number).collect();
        Literal::from_slice(dims, &numbers).expect("as many elements")
    };
    let shapes: &[&[usize]] = &[&[3], &[4, 3, 3], &[3], &[4, 3, 3]];
    let function = Function::trace("hvp", specs(shapes), |x| {
        let parameters = (x[0], x[1]);
        let (value, gradient) = value_and_grad(parameters, |(h, w)| f(h, w));
        let (_, product) = jvp(parameters, (x[2], x[3]), |parameters| grad(parameters, |(h, w)| f(h, w)));
        (value, gradient, product)
    });
    let graph: Graph = function.expect("trace").graph().as_ref().clone();
    let inputs = [tensor(&[3], 0), tensor(&[4, 3, 3], 3), tensor(&[3], 40), tensor(&[4, 3, 3], 43)];
    let results = run_anchored(&optimize(&graph), &inputs);
    let norm = |literal: &Literal| literal.to_f64_vec().iter().map(|x| x * x).sum::<f64>().sqrt();
    let found: Vec<f64> = [&results[..1], &results[1..2], &results[3..4]]
        .concat()
        .iter()
        .flat_map(|literal| literal.to_f64_vec())
        .chain([norm(&results[2]), norm(&results[4])])
        .collect();
    assert!(distance(&found, JAX) <= 1e-13, "{found:?}");
}

/// Value, gradient and Hessian product in the first parameter, norms of both in the second: from JAX 0.10.2, on the
/// CPU.
const JAX: &[f64] = &[
    4.4187311605927935,
    -2.6522834214887316,
    0.6356058859861144,
    2.0105171102870685,
    11.719819544356918,
    -2.978839471941142,
    -8.712108537081342,
    4.94460799739713,
    22.365246563667633,
];
