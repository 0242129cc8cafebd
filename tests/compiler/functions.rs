//! Functions of the tracing language that consist of several ops, and reading and writing by index.

use meshloom::ir::DType::{self, F32, F64, S32};
use meshloom::ir::{Graph, Literal};
use meshloom::ops::{CumulativeKind, Precision, ReduceKind, WindowDim};
use meshloom::trace::{
    DotOptions, Function, Tensor, TensorSpec, concatenate, constant, einsum_with, grad, value_and_grad,
};
use support::anchored::run;
use support::cases::cases;
use support::compile;

fn graph(spec: &TensorSpec, f: impl FnOnce(Tensor) -> Tensor) -> Graph {
    let function = Function::trace("f", spec.clone(), f).unwrap_or_else(|error| panic!("{error}"));
    function.graph().as_ref().clone()
}

/// An elementwise function of `f64`: its name, the function, its values and slopes, the points to look at, and the
/// relative error that each may have.
type Row<'a> = (&'a str, fn(Tensor) -> Tensor, fn(f64) -> f64, fn(f64) -> f64, &'a [f64], f64);

/// Checks values and slopes of the functions, all in one program. XLA runs it, since how exact they are depends on XLA
/// too.
#[track_caller]
fn check_on_xla(rows: &[Row<'_>]) {
    let specs: Vec<TensorSpec> = rows.iter().map(|row| TensorSpec::new(F64, [row.4.len()])).collect();
    let traced = Function::trace("f", specs, |x| {
        let of_row = |(&(_, f, ..), x): (&Row<'_>, Tensor)| (f(x), grad(x, |x| f(x).sum(..)));
        rows.iter().zip(x).map(of_row).collect::<Vec<_>>()
    });
    let traced = traced.unwrap_or_else(|error| panic!("{error}"));
    let points: Vec<Literal> = rows.iter().map(|row| Literal::vector(row.4)).collect();
    let found = support::run(traced.graph(), &points);
    for (&(name, _, value, slope, points, tolerance), found) in rows.iter().zip(found.chunks(2)) {
        for (what, found, expected) in [("value", &found[0], value), ("slope", &found[1], slope)] {
            for (&x, found) in points.iter().zip(found.to_f64_vec()) {
                let expected = expected(x);
                let near = found == expected || (found - expected).abs() <= tolerance * expected.abs();
                assert!(
                    near || found.is_nan() && expected.is_nan(),
                    "{name}: {what} at {x} is {found}, not {expected}"
                );
            }
        }
    }
}

const WIDE: &[f64] = &[-750.0, -40.0, -5.0, -1.0, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 0.5, 1.0, 3.0, 36.0, 40.0, 750.0];
const AROUND: &[f64] = &[-3.0, -1.5, -0.5, -1e-5, 0.0, 1e-5, 0.3, 1.0, 2.5];

fn logistic(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn activations() {
    let normal = |x: f64| 0.5 + 0.5 * erf(x * std::f64::consts::FRAC_1_SQRT_2);
    assert!((normal(1.0) - 0.841_344_746_068_542_9).abs() < 1e-15);
    check_on_xla(&[
        ("relu", Tensor::relu, |x| x.max(0.0), |x| f64::from(x > 0.0), WIDE, 0.0),
        ("silu", Tensor::silu, |x| x * logistic(x), |x| logistic(x) * (1.0 + x * logistic(-x)), WIDE, 1e-13),
        ("softplus", Tensor::softplus, softplus, logistic, WIDE, 1e-13),
        ("log_logistic", Tensor::log_logistic, |x| -softplus(-x), |x| logistic(-x), WIDE, 1e-13),
        (
            "gelu",
            Tensor::gelu,
            |x| x * (0.5 + 0.5 * erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            |x| {
                let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
                0.5 + 0.5 * erf(x * std::f64::consts::FRAC_1_SQRT_2) + x * density
            },
            AROUND,
            1e-12,
        ),
        (
            "gelu_tanh",
            Tensor::gelu_tanh,
            |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
            |x| {
                let slope = (2.0 / std::f64::consts::PI).sqrt();
                let tanh = (slope * (x + 0.044715 * x * x * x)).tanh();
                0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope * (1.0 + 3.0 * 0.044715 * x * x)
            },
            AROUND,
            1e-12,
        ),
    ]);
}

/// Slopes of the functions that are emitted as formulas are those of the functions, also where a formula has none.
#[test]
fn inverse_and_hyperbolic_functions() {
    let far = &[-700.0, -30.0, -1.0, -1e-8, 0.0, 1e-8, 0.9, 1.1, 30.0, 700.0][..];
    let huge = &[-1e300, -1e155, -30.0, -1.0, -1e-8, 0.0, 1e-8, 0.9, 1.1, 30.0, 1e155, 1e300][..];
    let above = &[1.0 + 1e-8, 1.5, 30.0, 1e8][..];
    let unit = &[-0.999, -0.5, -1e-8, 0.0, 1e-8, 0.5, 0.999][..];
    check_on_xla(&[
        ("sinh", Tensor::sinh, f64::sinh, f64::cosh, far, 1e-13),
        ("cosh", Tensor::cosh, f64::cosh, f64::sinh, far, 1e-13),
        ("asinh", Tensor::asinh, f64::asinh, |x| 1.0 / x.hypot(1.0), &huge[2..10], 1e-13),
        ("acosh", Tensor::acosh, f64::acosh, |x| 1.0 / ((x - 1.0) * (x + 1.0)).sqrt(), above, 1e-9),
        ("atanh", Tensor::atanh, f64::atanh, |x| 1.0 / ((1.0 - x) * (1.0 + x)), unit, 1e-12),
        ("asin", Tensor::asin, f64::asin, |x| 1.0 / ((1.0 - x) * (1.0 + x)).sqrt(), unit, 1e-12),
        ("acos", Tensor::acos, f64::acos, |x| -1.0 / ((1.0 - x) * (1.0 + x)).sqrt(), unit, 1e-12),
        ("atan", Tensor::atan, f64::atan, |x| 1.0 / (1.0 + x * x), far, 1e-12),
        ("cbrt", Tensor::cbrt, f64::cbrt, |x| 1.0 / (3.0 * x.cbrt() * x.cbrt()), &[-8.0, -1e-9, 1e-9, 27.0], 1e-12),
    ]);
    let ends = &[-1.0, 1.0, -1.5, 1.5, f64::NAN][..];
    let spec = TensorSpec::new(F64, [5]);
    let found = support::run(&graph(&spec, Tensor::erf_inv), &[Literal::vector(ends)])[0].to_f64_vec();
    assert_eq!(found[..2], [f64::NEG_INFINITY, f64::INFINITY]);
    assert!(found[2..].iter().all(|value| value.is_nan()), "{found:?}");
}

/// f32[2, 3] in, and what comes out.
#[track_caller]
fn check_matrix(f: impl FnOnce(Tensor) -> Tensor, rows: [[f32; 3]; 2], expected: &[f64], tolerance: f64) {
    let found = run(&graph(&TensorSpec::new(F32, [2, 3]), f), &[Literal::matrix(&rows)])[0].to_f64_vec();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, &expected) in found.iter().zip(expected) {
        let near = *found == expected || (found - expected).abs() <= tolerance * expected.abs();
        assert!(near || found.is_nan() && expected.is_nan(), "{found:?} instead of {expected:?}");
    }
}

#[test]
fn statistics() {
    let inf = f32::INFINITY;
    let low = f64::NEG_INFINITY;
    let rows = [[1000.0, 1000.0, -1000.0], [-inf, -inf, -inf]];
    check_matrix(|x| x.logsumexp(-1), rows, &[1000.0 + 2f64.ln(), low], 1e-7);
    check_matrix(|x| x.logsumexp(-1), [[inf, 0.0, -inf], [0.0, 0.0, 0.0]], &[f64::INFINITY, 3f64.ln()], 1e-7);
    check_matrix(|x| x.softmax(-1).slice(0, 0..1), rows, &[0.5, 0.5, 0.0], 1e-7);
    check_matrix(|x| x.log_softmax(-1).slice(0, 0..1), rows, &[-(2f64.ln()), -(2f64.ln()), -2000.0 - 2f64.ln()], 1e-6);
    let numbers = [[1.0, 2.0, 6.0], [-1.0, 0.0, 1.0]];
    check_matrix(|x| x.mean(1), numbers, &[3.0, 0.0], 1e-7);
    check_matrix(|x| x.variance(1), numbers, &[14.0 / 3.0, 2.0 / 3.0], 1e-6);
    check_matrix(|x| x.variance(..), numbers, &[43.0 / 6.0 - 2.25], 1e-6);
    check_matrix(|x| x.prod(1), numbers, &[12.0, 0.0], 0.0);
    // The gradient of a softmax's logarithm, and of a log-sum, at numbers whose exponentials overflow.
    check_matrix(
        |x| grad(x, |x| x.logsumexp(-1).sum(..)),
        [[1e4, 1e4, 0.0], [0.0; 3]],
        &[0.5, 0.5, 0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0],
        1e-6,
    );
    let masked = |x: Tensor| x.log_softmax(-1).index((.., 0)).sum(..);
    check_matrix(
        |x| grad(x, masked),
        [[1e4, 1e4, 0.0], [0.0; 3]],
        &[0.5, -0.5, 0.0, 2.0 / 3.0, -1.0 / 3.0, -1.0 / 3.0],
        1e-6,
    );
}

#[test]
fn log_add_exp_of_infinities() {
    let (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
    let (x, y) = ([low, low, high, high, 1.0, f64::NAN], [low, 2.0, high, low, 1.0, 0.0]);
    let graph = Function::trace("f", (TensorSpec::new(F64, [6]), TensorSpec::new(F64, [6])), |(x, y)| {
        value_and_grad((x, y), |(x, y)| x.log_add_exp(y).index(0..5).sum(..)).1
    });
    let slopes = run(graph.unwrap().graph(), &[Literal::vector(&x), Literal::vector(&y)]);
    // At equal numbers both share.
    assert_eq!(slopes[0].to_f64_vec()[..5], [0.5, 0.0, 0.5, 1.0, 0.5]);
    assert_eq!(slopes[1].to_f64_vec()[..5], [0.5, 1.0, 0.5, 0.0, 0.5]);
    let graph = Function::trace("f", (TensorSpec::new(F64, [6]), TensorSpec::new(F64, [6])), |(x, y)| x.log_add_exp(y));
    let values = run(graph.unwrap().graph(), &[Literal::vector(&x), Literal::vector(&y)])[0].to_f64_vec();
    assert_eq!(values[..5], [low, 2.0, high, high, 1.0 + 2f64.ln()]);
    assert!(values[5].is_nan());
}

/// x: f32[4, 3] = 0, 1, .. 11 and what comes out.
#[track_caller]
fn check_table(f: impl FnOnce(Tensor) -> Tensor, expected: &[f64]) {
    check_table_by(run, f, expected);
}

#[track_caller]
fn check_table_by(
    run: impl Fn(&Graph, &[Literal]) -> Vec<Literal>,
    f: impl FnOnce(Tensor) -> Tensor,
    expected: &[f64],
) {
    let x: Vec<f32> = (0..12u8).map(f32::from).collect();
    let x = Literal::from_slice(&[4, 3], &x).unwrap();
    let found = run(&graph(&TensorSpec::new(F32, [4, 3]), f), &[x])[0].to_f64_vec();
    assert_eq!(found, expected);
}

fn indices(values: &[i32]) -> Tensor {
    constant(Literal::vector(values))
}

#[test]
fn reading_by_index() {
    let rows = [3, -1, 0, 4];
    let nearest = [9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 9.0, 10.0, 11.0];
    check_table(|x| x.at(&[indices(&rows)]).get(), &nearest);
    check_table(|x| x.at(&[indices(&rows)]).clip().get(), &nearest);
    let filled = [9.0, 10.0, 11.0, 7.0, 7.0, 7.0, 0.0, 1.0, 2.0, 7.0, 7.0, 7.0];
    check_table(|x| x.at(&[indices(&rows)]).fill(7.0).get(), &filled);
    // Two components: elements.
    check_table(|x| x.at(&[indices(&[1, 3, 0]), indices(&[2, 0, 3])]).fill(-1.0).get(), &[5.0, 9.0, -1.0]);
    check_table(|x| x.at(&[indices(&[1, 3, 0]), indices(&[2, 0, 3])]).get(), &[5.0, 9.0, 2.0]);
    // An element that is read out of range has no gradient; one that is read twice has two.
    let weight = |x: Tensor| x.at(&[indices(&[3, -1, 3, 9])]).fill(0.0).get().sum(..);
    check_table(|x| grad(x, weight), &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0]);
    check_table(
        |x| x.take_along_axis(0, constant(Literal::matrix(&[[0i32, 3, 9], [-1, 1, 1]]))),
        &[0.0, 10.0, 11.0, 0.0, 4.0, 5.0],
    );
    check_table(|x| x.take_along_axis(1, constant(Literal::matrix(&[[0i32], [2], [1], [5]]))), &[0.0, 5.0, 7.0, 11.0]);
    check_table(|x| x.roll(0, 1), &[9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let at = |at: i32| constant(Literal::scalar(at));
    check_table(|x| x.dynamic_index(0, at(2)), &[6.0, 7.0, 8.0]);
    check_table(|x| x.dynamic_index(1, at(9)), &[2.0, 5.0, 8.0, 11.0]);
    check_table(|x| x.dynamic_slice_along(0, at(3), 2), &[6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    check_table(
        |x| x.dynamic_update_along(1, x.slice(1, 0..1) * 10.0, at(1)),
        &[0.0, 0.0, 2.0, 3.0, 30.0, 5.0, 6.0, 60.0, 8.0, 9.0, 90.0, 11.0],
    );
    check_table(
        |_| indices(&[1, -1, 3, 0]).one_hot(3, F32),
        &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
    );
    // An index type that cannot hold the dimension's size.
    let spec = TensorSpec::new(F32, [300]);
    let near = graph(&spec, |x| x.at(&[constant(Literal::vector(&[127i8, -128, 5]))]).fill(-1.0).get());
    let x: Vec<f32> = (0..300u16).map(f32::from).collect();
    assert_eq!(run(&near, &[Literal::vector(&x)])[0].to_f64_vec(), [127.0, -1.0, 5.0]);
}

#[test]
fn writing_by_index() {
    let rows = || indices(&[0, 5, -2, 2]);
    let set = [7.0, 7.0, 7.0, 3.0, 4.0, 5.0, 7.0, 7.0, 7.0, 9.0, 10.0, 11.0];
    check_table(|x| x.at(&[rows()]).set(7.0), &set);
    // Clipped, the indices are 0, 3, 0 and 2.
    let clipped = [2.0, 3.0, 4.0, 3.0, 4.0, 5.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0];
    check_table(|x| x.at(&[rows()]).clip().add(1.0), &clipped);
    check_table(|x| x.at(&[rows()]).max(7.0), &[7.0, 7.0, 7.0, 3.0, 4.0, 5.0, 7.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    check_table(|x| x.at(&[rows()]).min(7.0), &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 7.0, 9.0, 10.0, 11.0]);
    check_table(
        |x| x.at(&[rows()]).multiply(-1.0),
        &[0.0, -1.0, -2.0, 3.0, 4.0, 5.0, -6.0, -7.0, -8.0, 9.0, 10.0, 11.0],
    );
    let column = [0.0, 1.0, 2.0, 3.0, 4.0, 100.0, 6.0, 7.0, 8.0, 9.0, 10.0, 101.0];
    let values = || constant(Literal::vector(&[100f32, 101.0]));
    check_table(|x| x.at(&[indices(&[1, 3]), indices(&[2, 2])]).unique().sorted().in_bounds().set(values()), &column);
    // Elements that were replaced have no gradient.
    let kept = |x: Tensor| x.at(&[indices(&[1, 1])]).set(x.slice(0, 0..2) * 2.0).sum(..);
    check_table(|x| grad(x, kept), &[1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn indexing_errors_name_the_users_line() {
    let specs = || TensorSpec::new(F32, [4, 3]);
    let line = line!() + 1;
    let error = Function::trace("f", specs(), |x| x.at(&[indices(&[0]), indices(&[0, 1])]).get()).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains(
            "expected index tensors of one type, one for each of the leading of 2 dimensions, found [s32[1], s32[2]]"
        ),
        "{message}"
    );
    assert!(message.contains(&format!("functions.rs:{line}")), "{message}");
    let line = line!() + 1;
    let error = Function::trace("f", TensorSpec::new(S32, [4, 3]), |x| x.softmax(-1)).unwrap_err().to_string();
    assert!(error.contains("exponential") || error.contains("is-finite"), "{error}");
    assert!(error.contains(&format!("functions.rs:{line}")), "{error}");
}

#[test]
fn windows() {
    let window = [WindowDim { low: 1, ..WindowDim::new(2, 2) }, WindowDim::ONE];
    let of_windows = |x: Tensor| concatenate(&[x.reduce_window(ReduceKind::Max, window), x.mean_window(window)], 0);
    let expected = [0.0, 1.0, 2.0, 6.0, 7.0, 8.0, 0.0, 1.0, 2.0, 4.5, 5.5, 6.5];
    check_table_by(support::run, of_windows, &expected);
    check_table(|x| x.cumsum(1), &[0.0, 1.0, 3.0, 3.0, 7.0, 12.0, 6.0, 13.0, 21.0, 9.0, 19.0, 30.0]);
    let reversed = [18.0, 22.0, 26.0, 18.0, 21.0, 24.0, 15.0, 17.0, 19.0, 9.0, 10.0, 11.0];
    check_table(|x| x.cumulative(CumulativeKind::Sum, 0, true), &reversed);
}

/// XLA turns a fold over a long window into a tree: no window that is left is long, so the work is not quadratic.
#[test]
fn running_folds_are_trees() {
    for kind in cases("compiler folds", 1, CumulativeKind::ALL) {
        let graph = graph(&TensorSpec::new(F32, [100_000]), |x| x.cumulative(kind, 0, false));
        let longest = compile(&graph).longest_window();
        assert!((2..=64).contains(&longest), "{kind:?} has a window of {longest} elements");
    }
}

/// Gradients of a contraction are as exact as it is, and have its operands' types.
#[test]
fn precision_reaches_gradients() {
    let specs = (TensorSpec::new(DType::BF16, [2, 3]), TensorSpec::new(DType::BF16, [3, 4]));
    let options = DotOptions { dtype: Some(F32), precision: Precision::Highest };
    let function = Function::trace("f", specs, |(x, y)| {
        value_and_grad((x, y), |(x, y)| einsum_with("ij,jk->ik", &[x, y], options).square().sum(..)).1
    });
    let graph = function.unwrap().graph().as_ref().clone();
    let types: Vec<String> = graph.output_types().map(ToString::to_string).collect();
    assert_eq!(types, ["bf16[2,3]", "bf16[3,4]"]);
    let mut count = 0;
    for node in graph.nodes() {
        if let meshloom::ops::Op::DotGeneral(dot) = node.op() {
            assert_eq!(dot.precision, Precision::Highest);
            count += 1;
        }
    }
    assert_eq!(count, 3);
}

/// A cotangent too large for 8 bits does no harm on its way: only the gradient itself has the operand's type.
#[test]
fn gradients_of_narrow_contractions_are_computed_wide() {
    let specs = (TensorSpec::new(DType::F8E4M3FN, [1, 2]), TensorSpec::new(DType::F8E4M3FN, [2, 1]));
    let function = Function::trace("f", specs, |(x, y)| {
        value_and_grad((x, y), |(x, y)| (einsum_with("ij,jk->ik", &[x, y], F32) * 1000.0).sum(..)).1
    });
    let number = |number: f64| meshloom::ir::F8E4M3FN::from_f64(number);
    let (x, y) = ([number(0.25), number(-0.125)], [number(0.0625), number(2.0)]);
    let inputs = [Literal::matrix(&[x]), Literal::matrix(&[[y[0]], [y[1]]])];
    let found = support::run(function.unwrap().graph(), &inputs);
    // 62.5 and 125 lie between numbers of the type; 2000 is beyond the largest.
    assert_eq!(found[0].to_f64_vec()[0], 64.0);
    assert!(found[0].to_f64_vec()[1].is_nan());
    assert_eq!(found[1].to_f64_vec(), [256.0, -128.0]);
}
