//! Programs of `f64` tensors, and checks of their derivatives.

use meshloom::ir::DType::F64;
use meshloom::ir::{Graph, Literal, Name, verify};
use meshloom::ops::RematPolicy;
use meshloom::passes::{eliminate_common_subexpressions, eliminate_dead_code, hoist_invariants};
use meshloom::trace::{Function, Tensor, TensorSpec, constant, custom_vjp, grad, value_and_grad};

use super::*;

pub type Program = fn(&[Tensor]) -> Tensor;

pub fn specs(shapes: &[&[usize]]) -> Vec<TensorSpec> {
    shapes.iter().map(|dims| TensorSpec::new(F64, *dims)).collect()
}

pub fn optimize(graph: &Graph) -> Graph {
    let graph = eliminate_dead_code(&hoist_invariants(&eliminate_common_subexpressions(graph)));
    verify(&graph).unwrap_or_else(|error| panic!("{error}\n{graph}"));
    graph
}

/// The program's value and gradients as a graph.
pub fn differentiated(shapes: &[&[usize]], program: impl Fn(&[Tensor]) -> Tensor) -> Graph {
    let function = Function::trace("program", specs(shapes), |x| value_and_grad(x, |x| program(&x)));
    let function = function.unwrap_or_else(|error| panic!("{error}"));
    function.graph().as_ref().clone()
}

pub fn flat(literals: &[Literal]) -> Vec<f64> {
    literals.iter().flat_map(Literal::to_f64_vec).collect()
}

pub fn distance(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len());
    let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut x.iter().zip(y).map(|(x, y)| x - y));
    assert!(difference.is_finite(), "{x:?} {y:?}");
    difference / norm(&mut y.iter().copied()).max(1e-3)
}

/// Checks that the derivatives along three directions agree with central differences (of fourth order) of the value,
/// and that optimization changes neither value nor gradients; returns the gradients. The interpreter computes all of
/// it, in `f64` and as exactly as XLA does.
#[track_caller]
pub fn check(shapes: &[&[usize]], program: impl Fn(&[Tensor]) -> Tensor) -> Vec<f64> {
    check_by(shapes, program, anchored::run)
}

/// Like [`check`], but XLA does not compute in the full tier either.
#[track_caller]
pub fn check_interpreted(shapes: &[&[usize]], program: impl Fn(&[Tensor]) -> Tensor) -> Vec<f64> {
    check_by(shapes, program, interpret::interpret)
}

/// Like [`check`], but XLA also computes value and gradients, before and after optimization.
#[track_caller]
pub fn check_anchored(shapes: &[&[usize]], program: impl Fn(&[Tensor]) -> Tensor) -> Vec<f64> {
    check_by(shapes, program, anchored::run_anchored)
}

#[track_caller]
fn check_by(
    shapes: &[&[usize]],
    program: impl Fn(&[Tensor]) -> Tensor,
    run: impl Fn(&Graph, &[Literal]) -> Vec<Literal>,
) -> Vec<f64> {
    let graph = differentiated(shapes, &program);
    let inputs = inputs_of(&graph);
    let plain = flat(&run(&graph, &inputs));
    let optimized = flat(&run(&optimize(&graph), &inputs));
    assert!(distance(&optimized, &plain) <= 1e-13, "optimized {optimized:?}\nplain {plain:?}\n{graph}");

    let value = Function::trace("program", specs(shapes), |x| program(&x)).unwrap_or_else(|error| panic!("{error}"));
    let value = |inputs: &[Literal]| interpret::interpret(value.graph(), inputs)[0].to_f64_vec()[0];
    let alone = value(&inputs);
    assert!(distance(&[alone], &plain[..1]) <= 1e-13, "{alone} without gradients, {} with them\n{graph}", plain[0]);
    let gradients = &plain[1..];
    for seed in [71, 72, 73] {
        let directions: Vec<Vec<f64>> = inputs
            .iter()
            .enumerate()
            .map(|(index, input)| numbers(input.ty().element_count(), seed + 10 * index as u64))
            .collect();
        let at = |step: f64| {
            let moved = inputs.iter().zip(&directions).map(|(input, direction)| {
                let moved =
                    input.to_f64_vec().iter().zip(direction).map(|(x, d)| x + step * (d - 0.6)).collect::<Vec<_>>();
                Literal::from_slice(&input.ty().dims, &moved).expect("as many elements")
            });
            value(&moved.collect::<Vec<_>>())
        };
        let slope: f64 = gradients.iter().zip(directions.iter().flatten()).map(|(g, d)| g * (d - 0.6)).sum();
        let size = gradients.iter().map(|g| g * g).sum::<f64>().sqrt().max(1.0);
        // A large step is more exact for a smooth program, a small one for one that bends strongly.
        let agrees = [1e-4, 1e-5, 2e-6].iter().any(|step| {
            let difference = (8.0 * (at(*step) - at(-step)) - (at(2.0 * step) - at(-2.0 * step))) / (12.0 * step);
            (slope - difference).abs() <= 1e-7 * size
        });
        assert!(agrees, "slope {slope} is not that of the program\n{graph}");
    }
    gradients.to_vec()
}

/// Second derivatives, as the gradient of a weighted sum of the gradient.
#[track_caller]
pub fn check_second(shapes: &[&[usize]], program: Program) {
    check(shapes, |x| weighted_gradient(x, program));
}

/// Like [`check_second`], but XLA computes too.
#[track_caller]
pub fn check_second_anchored(shapes: &[&[usize]], program: Program) {
    check_anchored(shapes, |x| weighted_gradient(x, program));
}

fn weighted_gradient(x: &[Tensor], program: Program) -> Tensor {
    let gradients = grad(x.to_vec(), |x| program(&x));
    let weighted =
        |(index, gradient): (usize, &Tensor)| (*gradient * constant(f64s(&gradient.dims(), index as u64 + 7))).sum(..);
    let terms: Vec<Tensor> = gradients.iter().enumerate().map(weighted).collect();
    terms.into_iter().reduce(|x, y| x + y).expect("a parameter")
}

/// The same gradients, up to rounding.
#[track_caller]
pub fn check_same(shapes: &[&[usize]], programs: &[Program]) {
    let gradients: Vec<Vec<f64>> = programs.iter().map(|program| check(shapes, program)).collect();
    for (index, other) in gradients.iter().enumerate().skip(1) {
        assert!(distance(other, &gradients[0]) <= 1e-12, "program {index}: {other:?}\nprogram 0: {:?}", gradients[0]);
    }
}

/// exp, whose backward rule reads the result.
pub fn own_exp(x: Tensor) -> Tensor {
    custom_vjp(x, |x| x.exp(), |x| (x.exp(), (x.exp(), x)), |(y, _), ct| y * ct)
}

/// The names as a policy has them.
pub fn names(names: &[&str]) -> Vec<Name> {
    names.iter().map(|name| Name::new(name)).collect()
}

pub fn save(listed: &[&str]) -> RematPolicy {
    RematPolicy::Save(names(listed))
}
