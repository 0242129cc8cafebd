//! The tracing language: what it records, and what it says of programs that make no sense.

use meshloom::ir::DType::{F32, F64, S32};
use meshloom::ir::{Graph, GraphTextOptions, Literal, TensorType, verify};
use meshloom::ops::RematPolicy;
use meshloom::trace::{
    Function, MapTree, Path, ScanOptions, Tensor, TensorSpec, Tree, arange, checkpoint, concatenate, constant,
    custom_vjp, einsum, full, grad, iota, scan, scan_with, scope, stack, value_and_grad, vjp, zeros,
};
use meshloom::trace::{TraceError, TraceErrorKind};
use proptest::prelude::*;
use support::anchored::run;
use support::*;

use super::properties;

fn trace<R>(f: impl FnOnce(Tensor, Tensor) -> R) -> Result<Graph, TraceError>
where
    R: Tree<Leaf = Tensor> + MapTree<TensorSpec>,
    R::Mapped: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
{
    let specs = (TensorSpec::new(F64, [2, 3]), TensorSpec::new(F64, [3, 2]));
    let function = Function::trace("f", specs, |(x, y)| f(x, y))?;
    verify(function.graph()).unwrap_or_else(|error| panic!("{error}\n{}", function.graph()));
    Ok(function.graph().as_ref().clone())
}

/// The program is refused with this message, which names a line that says "wrong" as the place.
#[track_caller]
fn check_error<R>(expected: &str, f: impl FnOnce(Tensor, Tensor) -> R)
where
    R: Tree<Leaf = Tensor> + MapTree<TensorSpec>,
    R::Mapped: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
{
    let Err(error) = trace(f) else { panic!("no error where expected: {expected}") };
    let (origin, message) = (error.origin, error.to_string());
    let location = origin.place.unwrap_or_else(|| panic!("{message} has no place"));
    let place = format!("at {location})");
    assert!(message.ends_with(&place), "{message}");
    let line = include_str!("trace.rs").lines().nth(location.line() as usize - 1).expect("a line of this file");
    assert!(line.ends_with("// wrong"), "{message} points to: {line}");
    assert_eq!(message.replace(&place, "HERE)"), expected);
}

/// A program on x: f64[2,3], y: f64[3,2] yields these numbers.
#[track_caller]
fn check(f: impl FnOnce(Tensor, Tensor) -> Tensor, expected: impl Fn(&[f64], &[f64]) -> Vec<f64>) {
    let graph = trace(f).unwrap_or_else(|error| panic!("{error}"));
    let inputs = inputs_of(&graph);
    let found = run(&graph, &inputs)[0].to_f64_vec();
    let expected = expected(&inputs[0].to_f64_vec(), &inputs[1].to_f64_vec());
    assert_eq!(found.len(), expected.len());
    let close = |(x, y): (&f64, &f64)| (x - y).abs() <= 1e-12 * y.abs().max(1.0);
    assert!(found.iter().zip(&expected).all(close), "found {found:?}, expected {expected:?}\n{graph}");
}

// Errors.

#[test]
fn shape_and_type_errors() {
    check_error(
        "add(f64[2,3] \"0\", f64[3,2] \"1\"): dimension 0 of operand 1 must have size 2, found 3 (HERE)",
        |x, y| {
            x + y // wrong
        },
    );
    check_error(
        "multiply(f64[2,3] \"0\", f32[2,3]): the element type of operand 1 must be f64, found f32; convert it with `.convert(..)` (HERE)",
        |x, _| {
            let z = x.convert(F32);
            x * z // wrong
        },
    );
    check_error(
        "dot(f64[2,3] \"0\", f64[2,3] \"0\"): dimension 0 of operand 1 must have size 3, found 2 (HERE)",
        |x, _| x.matmul(x), // wrong
    );
    check_error(
        "reshape(f64[2,3] \"0\"): cannot reshape f64[2,3] (6 elements) to [5] (5 elements) (HERE)",
        |x, _| x.reshape([5]), // wrong
    );
    check_error(
        "reshape(f64[2,3] \"0\"): cannot reshape f64[2,3] (6 elements) to [18446744073709551615, 4] (18446744073709551615 elements) (HERE)",
        |x, _| x.reshape([usize::MAX, 4]), // wrong
    );
    check_error(
        "the axes of a transpose: expected one for each of 2 dimensions, found 1 (HERE)",
        |x, _| x.transpose([0]), // wrong
    );
    check_error(
        "broadcast: expected a shape that repeats to [3, 3], found f64[2,3] (HERE)",
        |x, _| x.broadcast_to([3, 3]), // wrong
    );
    check_error(
        "slice(f64[2,3] \"0\"): the range 2..5 with stride 1 does not fit dimension 1 of size 3 (HERE)",
        |x, _| x.slice(1, 2..5), // wrong
    );
    check_error(
        "slice(f64[2,3] \"0\"): the range 2..18446744073709551615 with stride 1 does not fit dimension 1 of size 3 (HERE)",
        |x, _| x.slice(1, 2..=usize::MAX), // wrong
    );
    check_error(
        "indexing: expected an index into dimension 0 of size 2, found 5 (HERE)",
        |x, _| x.index(5), // wrong
    );
    check_error(
        "indexing: expected indices for 2 dimensions, found 3 (HERE)",
        |x, _| x.index((0, 0, 0)), // wrong
    );
    check_error(
        "gather(f64[2,3] \"0\", f64[3,2] \"1\"): the element type of operand 1 must be an integer type, found f64; convert it with `.convert(..)` (HERE)",
        |x, y| x.take(0, y), // wrong
    );
    check_error(
        "concatenate(f64[2,3] \"0\", f64[3,2] \"1\"): dimension 1 of operand 1 must have size 3, found 2 (HERE)",
        |x, y| concatenate(&[x, y], 0), // wrong
    );
    check_error(
        "cannot concatenate no tensors (HERE)",
        |_, _| concatenate(&[], 0), // wrong
    );
    check_error(
        "select(f64[2,3] \"0\", f64[3,2] \"1\", f64[3,2]): the element type of operand 0 must be pred, found f64; convert it with `.convert(..)` (HERE)",
        |x, y| x.select(y, 1.0), // wrong
    );
    check_error(
        "with-axes(f64[2,3] \"0\"): expected an axis name, or \"\", for each of 2 dimensions, found [\"a\"] (HERE)",
        |x, _| x.with_axes(["a"]), // wrong
    );
    check_error(
        "with-axes(f64[2,3] \"0\"): the axis name \"a\" is given to two dimensions (HERE)",
        |x, _| x.with_axes(["a", "a"]), // wrong
    );
}

#[test]
fn axis_errors() {
    check_error(
        "axis 2 is out of range or repeated for a tensor of type f64[2,3] (HERE)",
        |x, _| x.sum(2), // wrong
    );
    check_error(
        "axis -2 is out of range or repeated for a tensor of type f64[2,3] (HERE)",
        |x, _| x.max([0, -2]), // wrong
    );
    check_error(
        "axis -3 is out of range or repeated for a tensor of type f64[2,3] (HERE)",
        |x, _| x.mean(-3), // wrong
    );
    check_error(
        "axis 4 is out of range or repeated for a tensor of type f64[2,3] (HERE)",
        |x, _| x.expand(4), // wrong
    );
    check_error(
        "axis 7 is out of range or repeated for a tensor of type f64[2,3] (HERE)",
        |x, _| x.argmax(7), // wrong
    );
    check_error(
        "axis 1 is out of range for an iota of type s32[2] (HERE)",
        |_, _| iota(S32, [2], 1), // wrong
    );
    check_error("number of dimensions: expected 3, found 2 in f64[2,3] (HERE)", |x, _| {
        let [a, b, c] = x.shape(); // wrong
        x.reshape([a * b * c])
    });
    check_error("axis 2 is out of range or repeated for a tensor of type f64[2,3] (HERE)", |x, _| {
        let size = x.dim(2); // wrong
        x * size as f64
    });
}

#[test]
fn einsum_errors() {
    check_error(
        "einsum formula `ab,bc`: there is no `->` (HERE)",
        |x, y| einsum("ab,bc", &[x, y]), // wrong
    );
    check_error(
        "einsum formula `ab->a`: it has 1 operand, but the number given is 2 (HERE)",
        |x, y| einsum("ab->a", &[x, y]), // wrong
    );
    check_error(
        "einsum formula `abc,bc->a`: operand 0 has type f64[2,3], but the formula gives it 3 dimensions (HERE)",
        |x, y| einsum("abc,bc->a", &[x, y]), // wrong
    );
    check_error(
        "einsum formula `ab,bc->ad`: `d` is in the result but in no operand (HERE)",
        |x, y| einsum("ab,bc->ad", &[x, y]), // wrong
    );
    check_error(
        "einsum formula `aa,bc->ab`: `a` occurs twice in one term (HERE)",
        |x, y| einsum("aa,bc->ab", &[x, y]), // wrong
    );
    check_error(
        "einsum formula `a1,bc->ab`: `1` is not a letter (HERE)",
        |x, y| einsum("a1,bc->ab", &[x, y]), // wrong
    );
    check_error(
        "einsum formula `ab,ac->bc`: `a` has size 2 in operand 0, but size 3 in operand 1 (HERE)",
        |x, y| einsum("ab,ac->bc", &[x, y]), // wrong
    );
    check_error(
        "einsum formula `ab,ab,ab->ab`: it must have one or two operands (HERE)",
        |x, _| einsum("ab,ab,ab->ab", &[x, x, x]), // wrong
    );
}

#[test]
fn errors_in_closures() {
    check_error(
        "add(f64[2,3] \"0\", f64[2] \"1\"): operand 1 must have 2 dimensions, found 1 (in model/layer, HERE)",
        |x, y| scope("model", || scope("layer", || scan(x, y, |x, y| (x + y, ())).0)), // wrong
    );
    check_error("axis 5 is out of range or repeated for a tensor of type f64[2,3] (in deep, HERE)", |x, y| {
        grad(x, |x| {
            checkpoint(RematPolicy::Full, x, |x| {
                let (h, _) = scan(x, y, |h, _| {
                    let bad = scope("deep", || h.sum(5)); // wrong
                    (h + bad, ())
                });
                h.sum(..)
            })
        })
    });
    check_error(
        "the value to differentiate: expected a floating-point scalar, found f64[2,3] (HERE)",
        |x, _| value_and_grad(x, |x| x.sin()).0, // wrong
    );
    check_error(
        "the cotangents given to a vjp: expected (f64[3]), found (f64[2,3]) (HERE)",
        |x, _| vjp(x, |x| x.sum(0), |_| x).1, // wrong
    );
    check_error(
        "a custom_vjp must not use tensors from outside its arguments; pass them as arguments (HERE)",
        |x, y| {
            custom_vjp(
                x,
                |x| x,
                |x| (x, ()),
                |(), ct| ct * y, // wrong
            )
        },
    );
    check_error(
        "custom-vjp(f64[2,3] \"0\"): the backward rule must return one cotangent for each floating-point argument, [f64[2,3]], found [f64[]] (HERE)",
        |x, _| custom_vjp(x, |x| x, |x| (x, ()), |(), ct| ct.sum(..)), // wrong
    );
    check_error(
        "custom-vjp(f64[2,3] \"0\"): output 0 of the forward rule must be f64[2,3] as in the function itself, found f64[] (HERE)",
        |x, _| custom_vjp(x, |x| x, |x| (x.sum(..), ()), |(), ct| ct), // wrong
    );
}

#[test]
fn scan_errors() {
    check_error(
        "the carry that a scan's body returns: expected (f64[2,3]), found (f32[2,3]) (HERE)",
        |x, y| scan(x, y, |x, _| (x.convert(F32), ())).0, // wrong
    );
    check_error(
        "the carry that a scan's body returns: expected (f64[2,3]), found (f64[2,3], f64[2,3]) (HERE)",
        |x, y| scan(vec![x], y, |x, _| ([x.clone(), x].concat(), ())).0, // wrong
    );
    check_error(
        "stacked input `1` of a scan: expected a leading dimension of 2, found f64[3,2] (HERE)",
        |x, y| scan((), (x, y), |(), (x, _)| ((), x)).1, // wrong
    );
    check_error(
        "the stacked input of a scan: expected a leading dimension to run over, found f64[] (HERE)",
        |x, _| scan((), x.sum(..), |(), x| ((), x)).1, // wrong
    );
    check_error(
        "a scan that stacks nothing needs `ScanOptions::length` (HERE)",
        |x, _| scan(x, (), |x, ()| (x, ())).0, // wrong
    );
    check_error("the stacked input of a scan: expected a leading dimension of 5, found f64[3,2] (HERE)", |x, y| {
        let options = ScanOptions { length: Some(5), ..Default::default() };
        scan_with(options, x, y, |x, _| (x, ())).0 // wrong
    });
}

#[test]
fn tensors_out_of_place() {
    // Kept by a closure beyond its end.
    check_error(
        "a tensor is used outside the trace it belongs to; return it from the traced closure instead of storing it (HERE)",
        |x, y| {
            let mut kept = None;
            let h = scan(x, y, |h, y| {
                kept = Some(y);
                (h, ())
            });
            h.0.sum(..) + kept.expect("the body ran").sum(..) // wrong
        },
    );
    // The tensor belongs to another trace, which has ended.
    let mut kept = None;
    trace(|x, _| *kept.insert(x)).expect("trace");
    let kept = kept.expect("a tensor");
    check_error(
        "a tensor is used outside the trace it belongs to; return it from the traced closure instead of storing it (HERE)",
        |x, _| x + kept, // wrong
    );
    // The tensor belongs to another thread's trace, whatever its number.
    check_error("axis 9 is out of range or repeated for a tensor of type f64[2,3] (HERE)", |x, _| {
        let other = std::thread::spawn(move || trace(|_, y| x + y).map(|_| ()).expect_err("another thread's"));
        assert!(matches!(other.join().expect("no panic"), TraceError { kind: TraceErrorKind::Escaped, .. }));
        x.sum(9) // wrong
    });
    // Made while no trace was under way.
    let nowhere = zeros(F32, [2]).sin() + kept;
    assert_eq!(nowhere.ty(), TensorType::scalar(F32));
    check_error(
        "a tensor operation needs a trace under way; call it inside the closure given to `Function::trace` (HERE)",
        |x, _| x + nowhere, // wrong
    );
    // The tensor belongs to an outer trace, and is used in a function that must stand alone.
    check_error(
        "a custom_vjp must not use tensors from outside its arguments; pass them as arguments (HERE)",
        |x, y| {
            let inner = Function::trace("inner", TensorSpec::new(F64, [2, 3]), |z| {
                z + x // wrong
            });
            let Err(error) = inner else { panic!("a capture must be refused") };
            assert!(matches!(error.kind, TraceErrorKind::Capture { .. }));
            custom_vjp(
                x,
                |x| x.matmul(y), // wrong
                |x| (x.matmul(y), ()),
                |(), ct| ct,
            )
        },
    );
}

#[test]
fn wrong_number_of_names_on_an_input() {
    let function = Function::trace("f", vec![TensorSpec::new(F32, [2, 3]).with_axes(&["embed"])], |x| x);
    let message = function.expect_err("one name for two dimensions").to_string();
    let expected = "input `0` of `f` has type f32[2,3] but 1 axis name; give one, or `\"\"`, per dimension (at tests/";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn a_panic_leaves_the_thread_usable() {
    let panicked = std::panic::catch_unwind(|| {
        let _ = trace(|x, y| scope("deep", || scan(x, y, |_, _| -> (Tensor, ()) { panic!("on purpose") }).0));
    });
    assert!(panicked.is_err());
    let graph = trace(|x, y| x.matmul(y)).expect("trace");
    assert_eq!(graph.nodes().next().expect("a node").origin().scope.path(), "");
}

#[test]
fn impossible_sizes_are_errors() {
    check_error(
        "splat(): the result f32[1099511627776,1099511627776] has more bytes than can be addressed (HERE)",
        |_, _| full(F32, [1 << 40, 1 << 40], 1.0), // wrong
    );
}

// Operators.

#[test]
fn operators_with_numbers() {
    fn each(x: &[f64], f: impl Fn(f64) -> f64) -> Vec<f64> {
        x.iter().map(|&x| f(x)).collect()
    }
    check(|x, _| (2.0 - x * 3) / 4.0 + 1, |x, _| each(x, |x| (2.0 - x * 3.0) / 4.0 + 1.0));
    check(|x, _| 1.0 / x - -x % 0.25, |x, _| each(x, |x| 1.0 / x - -x % 0.25));
    check(|x, _| x.pow(2.5).maximum(0.3).minimum(1), |x, _| each(x, |x| x.powf(2.5).clamp(0.3, 1.0)));
    check(|x, _| x.greater(0.7).select(x, 0.0), |x, _| each(x, |x| if x > 0.7 { x } else { 0.0 }));
    check(|x, _| x.less_equal(0.7).select(1.0, x.square()), |x, _| each(x, |x| if x <= 0.7 { 1.0 } else { x * x }));
    check(|x, _| (!x.less(0.5) & x.not_equal(9)).convert(F64), |x, _| each(x, |x| f64::from(u8::from(x >= 0.5))));
    check(|x, _| x.recip() + x.mean(..), |x, _| each(x, |v| 1.0 / v + x.iter().sum::<f64>() / 6.0));
}

#[test]
fn broadcasting() {
    check(|x, _| x - x.sum(..), |x, _| x.iter().map(|v| v - x.iter().sum::<f64>()).collect());
    check(|x, _| x.sum(..) - x, |x, _| x.iter().map(|v| x.iter().sum::<f64>() - v).collect());
    check(|x, _| x.index(1).broadcast_to([2, 3]), |x, _| [&x[3..], &x[3..]].concat());
    check(|x, _| x.slice(1, 1..2).broadcast_to([2, 2]), |x, _| vec![x[1], x[1], x[4], x[4]]);
    check(|x, y| y.index((.., 0)).broadcast_like(x, -1) * x, |x, y| (0..6).map(|at| x[at] * y[2 * (at % 3)]).collect());
}

#[test]
fn indexing() {
    check(|x, _| x.index((-1, 1..3)), |x, _| x[4..].to_vec());
    check(|x, _| x.index((.., 1)), |x, _| vec![x[1], x[4]]);
    check(|x, _| x.slice(-1, ..=1), |x, _| vec![x[0], x[1], x[3], x[4]]);
    check(|x, _| stack(&[x.index(1), x.index(0)], -1), |x, _| vec![x[3], x[0], x[4], x[1], x[5], x[2]]);
    let rows = || constant(Literal::from_slice(&[2, 2], &[1, 0, 7, -3]).expect("four"));
    check(|x, _| x.take(0, rows()), |x, _| [&x[3..], &x[..3], &x[3..], &x[..3]].concat());
    check(|x, _| x.take(1, arange(S32, 2)), |x, _| vec![x[0], x[1], x[3], x[4]]);
    check(
        |x, _| x.dynamic_slice(&[arange(S32, 1).sum(..), x.argmax(1).max(..)], [2, 1]),
        |x, _| {
            let best = |row: &[f64]| (0..3).fold(0, |best, at| if row[at] > row[best] { at } else { best });
            let column = best(&x[..3]).max(best(&x[3..]));
            vec![x[column], x[3 + column]]
        },
    );
}

// Einsum.

/// Sums over all assignments of sizes to letters.
fn naive_einsum(inputs: &[&str], output: &str, operands: &[Literal], size: impl Fn(char) -> usize) -> Vec<f64> {
    let mut letters: Vec<char> = output.chars().collect();
    inputs.iter().flat_map(|input| input.chars()).for_each(|letter| {
        if !letters.contains(&letter) {
            letters.push(letter);
        }
    });
    let offset = |term: &str, at: &[usize]| {
        term.chars().fold(0, |offset, letter| {
            let index = letters.iter().position(|&other| other == letter).expect("a known letter");
            offset * size(letter) + at[index]
        })
    };
    let elements: Vec<Vec<f64>> = operands.iter().map(Literal::to_f64_vec).collect();
    let mut result = vec![0.0; output.chars().map(&size).product()];
    let total: usize = letters.iter().map(|&letter| size(letter)).product();
    for mut number in 0..total {
        let mut at = vec![0; letters.len()];
        for (index, &letter) in letters.iter().enumerate() {
            at[index] = number % size(letter);
            number /= size(letter);
        }
        let product: f64 = inputs.iter().zip(&elements).map(|(term, elements)| elements[offset(term, &at)]).product();
        result[offset(output, &at)] += product;
    }
    result
}

fn check_einsum(inputs: &[&str], output: &str) {
    let size = |letter: char| 1 + (letter as usize - 'a' as usize) % 3;
    let dims = |term: &str| term.chars().map(size).collect::<Vec<usize>>();
    let formula = format!("{}->{output}", inputs.join(","));
    let specs: Vec<TensorSpec> = inputs.iter().map(|term| TensorSpec::new(F64, dims(term))).collect();
    let function = Function::trace("f", specs, |operands| einsum(&formula, &operands));
    let function = function.unwrap_or_else(|error| panic!("{formula}: {error}"));
    let operands = inputs_of(function.graph());
    let found = run(function.graph(), &operands)[0].to_f64_vec();
    assert_eq!(function.outputs().ty.dims.as_slice(), dims(output), "{formula}");
    let expected = naive_einsum(inputs, output, &operands, size);
    let close = |(x, y): (&f64, &f64)| (x - y).abs() <= 1e-12 * y.abs();
    assert!(found.iter().zip(&expected).all(close), "{formula}: found {found:?}, expected {expected:?}");
}

#[test]
fn random_einsum() {
    let letters = || vec!['a', 'b', 'c', 'd', 'e'];
    let terms = prop::collection::vec(prop::sample::subsequence(letters(), 0..=4).prop_shuffle(), 1..=2);
    let result = prop::collection::vec(any::<bool>(), 5);
    let strategy = (terms, result, Just(letters()).prop_shuffle());
    properties::check("compiler random einsum", 60, 600, &strategy, |(terms, result, order)| {
        let terms: Vec<String> = terms.iter().map(|term| term.iter().collect()).collect();
        let terms: Vec<&str> = terms.iter().map(String::as_str).collect();
        let in_some = |letter: &&char| terms.iter().any(|term| term.contains(**letter));
        let chosen = |letter: &&char| result[**letter as usize - 'a' as usize];
        let output: String = order.iter().filter(|letter| in_some(letter) && chosen(letter)).collect();
        check_einsum(&terms, &output);
        Ok(())
    });
}

// Trees.

meshloom::tree! {
    /// A layer.
    struct Layer<T> {
        weight: T,
        bias: Option<T>,
    }

    /// A model.
    struct Model<T> {
        embed: T,
        layers: Vec<Layer<T>>,
        heads: [(T, T); 1],
    }
}

#[test]
fn trees() {
    let spec = |count: usize| TensorSpec::new(F64, [count]);
    let model = Model {
        embed: spec(1),
        layers: vec![Layer { weight: spec(2), bias: None }, Layer { weight: spec(3), bias: Some(spec(4)) }],
        heads: [(spec(5), spec(6))],
    };
    let paths = ["embed", "layers.0.weight", "layers.1.weight", "layers.1.bias", "heads.0.0", "heads.0.1"];
    assert_eq!(model.paths(), paths);
    let mut sizes = model.leaves().into_iter().rev();
    let rebuilt = model.rebuild(&mut || sizes.next().expect("as many leaves"));
    assert_eq!(rebuilt.embed, spec(6));
    assert_eq!(rebuilt.layers[1].bias, Some(spec(3)));
    let mut path = Path::default();
    assert_eq!(path.descend("a", |path| path.descend(1, |path| path.to_string())), "a.1");
    assert_eq!(path.to_string(), "");

    let function = Function::trace("f", (model.clone(), spec(2)), |(model, x)| {
        let gradient = grad(model, |model| (model.layers[0].weight * x).sum(..) + model.heads[0].1.sum(..));
        (gradient, x)
    });
    let function = function.expect("trace");
    let inputs: Vec<&str> = function.graph().input_info().iter().map(|info| &*info.path).collect();
    assert_eq!(inputs, [&paths.map(|path| format!("0.{path}"))[..], &["1".to_owned()]].concat());
    let outputs: Vec<&str> = function.graph().output_info().iter().map(|info| &*info.path).collect();
    assert_eq!(outputs, inputs);
    assert_eq!(function.outputs().0.layers[1].bias, Some(spec(4)));
    let results = run(function.graph(), &inputs_of(function.graph()));
    assert_eq!(results[5].to_f64_vec(), [1.0; 6]);
}

// Closures, calls, text.

#[test]
fn captures_through_two_scans() {
    check(
        |x, y| {
            let (h, _) = scan(x.sum(0), y, |h, row| {
                let (h, _) = scan(h, x, |h, line| (h + line * row.sum(..) * x.sum(..), ()));
                (h, ())
            });
            h
        },
        |x, y| {
            let (all_x, all_y): (f64, f64) = (x.iter().sum(), y.iter().sum());
            (0..3).map(|at| (x[at] + x[at + 3]) * (1.0 + all_y * all_x)).collect()
        },
    );
}

#[test]
fn called_functions_are_emitted_once() {
    let layer = Function::trace("layer", vec![TensorSpec::new(F64, [2, 3]); 2], |x| x[0].sin() * x[1]).expect("trace");
    let graph = trace(|x, y| {
        let h = layer.call(vec![x, x]);
        scan(layer.call(vec![h, x]), y, |h, _| (layer.call(vec![h, x]), ())).0
    });
    let graph = graph.expect("trace");
    assert_eq!(count(&graph, "call"), 3);
    let module = meshloom::emit::emit(&graph, Default::default()).expect("a module").decode().expect("a module");
    let named =
        |name: &str| module.computations.iter().filter(|computation| computation.name.starts_with(name)).count();
    assert_eq!((module.computations.len(), named("layer")), (4, 1), "entry, condition, body, layer");
    let inputs = inputs_of(&graph);
    let expected = (0..6).map(|at| {
        let x = inputs[0].to_f64_vec()[at];
        (0..5).fold(x, |h: f64, _| h.sin() * x)
    });
    let found = run(&graph, &inputs)[0].to_f64_vec();
    assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-14));
    let wrong = trace(|x, y| layer.call(vec![x, y])).expect_err("types differ").to_string();
    assert!(
        wrong.starts_with("call(f64[2,3] \"0\", f64[3,2] \"1\"): dimension 0 of operand 1 must have size 2"),
        "{wrong}"
    );
    assert!(trace(|x, _| layer.call(vec![x])).is_err());
}

#[test]
fn text_form() {
    let graph = trace(|x, y| {
        let (h, out) = scan(x.with_axes(["batch", ""]), y, |h, row| {
            let h = checkpoint(RematPolicy::Dots, h, |h| (h.matmul(y) + row.sum(0)).matmul(x) * 2.0);
            (h, h.max(..).greater(0.5))
        });
        vec![h.pad(1, 0, 2, -1.0).slice(0, 1..), out.convert(S32).expand(0).transpose([1, 0])]
    });
    insta::assert_snapshot!(graph.expect("trace"), @r#"
    f(%0: f64[2,3] "0", %1: f64[3,2] "1") {
      %2 = with-axes %0 ["batch", ""] : f64[2,3]
      %3, %4 = scan %1, %0, %2, %1 {length=3, invariants=2, carries=1} @0 : f64[2,3], pred[3]
      %5 = splat -1 : f64[]
      %6 = pad %3, %5 {0_0_0, 0_2_0} : f64[2,5]
      %7 = slice %6 {1:2:1, 0:5:1} : f64[1,5]
      %8 = convert %4 : s32[3]
      %9 = reshape %8 : s32[1,3]
      %10 = transpose %9 {[1, 0]} : s32[3,1]
      return %7 "0", %10 "1"
    }

    @0 scan(%2: f64[3,2], %3: f64[2,3], %0: f64[2,3], %1: f64[2]) {
      %4 = checkpoint %2, %1, %3, %0 {dots} @1 : f64[2,3]
      %5 = reduce-max %4 {axes=[0, 1]} : f64[]
      %6 = splat 0.5 : f64[]
      %7 = compare %5, %6 {GT} : pred[]
      return %4, %7
    }

    @1 checkpoint(%1: f64[3,2], %3: f64[2], %7: f64[2,3], %0: f64[2,3]) {
      %2 = dot %0, %1 {contract=[1]x[0]} : f64[2,2]
      %4 = reduce-sum %3 {axes=[0]} : f64[]
      %5 = broadcast %4 {axes=[]} : f64[2,2]
      %6 = add %2, %5 : f64[2,2]
      %8 = dot %6, %7 {contract=[1]x[0]} : f64[2,3]
      %9 = splat 2 : f64[2,3]
      %10 = multiply %8, %9 : f64[2,3]
      return %10
    }
    "#);
    let graph = trace(|x, y| scope("loss", || grad(x, |x| scope("dot", || x.matmul(y)).sum(..))));
    let text = graph.expect("trace").to_text(GraphTextOptions { origins: true, ..GraphTextOptions::default() });
    let without_lines: Vec<&str> = text.lines().map(|line| line.split(" tests/").next().unwrap_or_default()).collect();
    insta::assert_snapshot!(without_lines.join("\n"), @r#"
    f(%0: f64[2,3] "0", %1: f64[3,2] "1") {
      %2 = dot %0, %1 {contract=[1]x[0]} : f64[2,2]  // loss/dot
      %3 = reduce-sum %2 {axes=[0, 1]} : f64[]  // loss
      %4 = splat 1 : f64[]  // loss
      %5 = broadcast %4 {axes=[]} : f64[2,2]  // loss
      %6 = dot %5, %1 {contract=[1]x[1]} : f64[2,3]  // loss/dot
      return %6
    }
    "#);
}

#[test]
fn errors_name_the_parameter_through_closures() {
    let specs = (TensorSpec::new(F32, [4]), TensorSpec::new(F32, [3, 4, 5]));
    let error = Function::trace("model", specs, |(x, layers)| {
        value_and_grad((x, layers), |(x, layers)| scan(x, layers, |x, w| (x.matmul(w), ())).0.sum(..))
    });
    let text = error.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.starts_with("the carry that a scan's body returns"), "{text}");
    let specs = (TensorSpec::new(F32, [6]), TensorSpec::new(F32, [3, 4, 4]));
    let error = Function::trace("model", specs, |(x, layers)| {
        value_and_grad((x, layers), |(x, layers)| scan(x, layers, |x, w| (x.matmul(w), ())).0.sum(..))
    });
    let text = error.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.starts_with("dot(f32[6] \"0\", f32[4,4] \"1\"): dimension 0 of operand 1"), "{text}");
}
