//! Tests of the parts of a user's own model: layers of `nn`, inputs from declarations, steps, indices, repeated
//! operands.

use meshloom::ir::DType::{BF16, F32, F64, S32};
use meshloom::ir::{Graph, Literal, TensorType};
use meshloom::ops::Op;
use meshloom::trace::{Function, Inputs, MapTree, Param, Tensor, TensorSpec, einsum, grad, iota, vmap};
use meshloom_nn::{self as nn, LayerNorm, Linear};
use support::anchored::run;
use support::*;

fn traced<I: Inputs>(inputs: I, f: impl FnOnce(<I::Specs as MapTree<Tensor>>::Mapped) -> Vec<Tensor>) -> Graph {
    let function = Function::trace("f", inputs, f).unwrap_or_else(|error| panic!("{error}"));
    function.graph().as_ref().clone()
}

/// Two lists of results of one graph; the second is that of plain formulas.
#[track_caller]
fn equal(graph: &Graph, bound: f64) {
    let input = |(index, ty): (usize, &TensorType)| {
        let numbers = numbers(ty.element_count(), index as u64 + 1);
        Literal::from_fn(ty.clone(), |place| numbers[place])
    };
    let results = run(graph, &graph.input_types().enumerate().map(input).collect::<Vec<_>>());
    let (found, expected) = results.split_at(results.len() / 2);
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.ty(), expected.ty(), "result {index}");
        let (found, expected) = (found.to_f64_vec(), expected.to_f64_vec());
        let norm = |numbers: Vec<f64>| numbers.iter().map(|x| x * x).sum::<f64>().sqrt();
        let difference = norm(found.iter().zip(&expected).map(|(x, y)| x - y).collect());
        let size = norm(expected);
        assert!(size > 1e-3 && difference <= bound * size, "result {index}: {difference} of {size}");
    }
}

#[test]
fn layer_norm_is_its_formula_and_so_are_its_gradients() {
    let spec = |dims: &[usize]| TensorSpec::new(F32, dims);
    let plain = |x: Tensor, p: LayerNorm<Tensor>| {
        let centered = x - x.keep_dims().mean(-1).broadcast();
        let deviation = (centered.square().keep_dims().mean(-1) + 1e-5).sqrt();
        centered / deviation.broadcast() * p.scale.broadcast() + p.bias.broadcast()
    };
    let graph = traced((spec(&[2, 3, 8]), spec(&[8]), spec(&[8]), spec(&[2, 3, 8])), |(x, scale, bias, ct)| {
        let both = |f: &dyn Fn(Tensor, LayerNorm<Tensor>) -> Tensor| {
            let loss = |(x, scale, bias): (Tensor, Tensor, Tensor)| (f(x, LayerNorm { scale, bias }) * ct).sum(..);
            let (x_ct, scale_ct, bias_ct) = grad((x, scale, bias), loss);
            vec![f(x, LayerNorm { scale, bias }), x_ct, scale_ct, bias_ct]
        };
        [both(&|x, p| nn::layer_norm(x, &p, 1e-5)), both(&plain)].concat()
    });
    equal(&graph, 2e-6);
}

#[test]
fn causal_attention_is_softmax_over_earlier_positions() {
    for (heads, kv_heads) in [(4, 4), (4, 2), (4, 1)] {
        let spec = |heads| TensorSpec::new(F32, [2, 5, heads, 3]);
        let graph = traced((spec(heads), spec(kv_heads), spec(kv_heads), spec(heads)), |(q, k, v, ct)| {
            let plain = |q: Tensor, k: Tensor, v: Tensor| {
                let repeated = |x: Tensor| {
                    let dims = [2, 5, kv_heads, heads / kv_heads, 3];
                    x.expand(3).broadcast_to(dims).reshape([2, 5, heads, 3])
                };
                let scores = einsum("bthd,bshd->bhts", &[q, repeated(k)]) / 3f64.sqrt();
                let later = iota(S32, scores.dims(), 3).greater(iota(S32, scores.dims(), 2));
                einsum("bhts,bshd->bthd", &[later.select(f64::NEG_INFINITY, scores).softmax(-1), repeated(v)])
            };
            let both = |f: &dyn Fn(Tensor, Tensor, Tensor) -> Tensor| {
                let (q_ct, k_ct, v_ct) = grad((q, k, v), |(q, k, v)| (f(q, k, v) * ct).sum(..));
                vec![f(q, k, v), q_ct, k_ct, v_ct]
            };
            [both(&nn::causal_attention), both(&plain)].concat()
        });
        equal(&graph, 1e-5);
    }
    let spec = |heads| TensorSpec::new(F32, [2, 5, heads, 3]);
    let error = Function::trace("f", (spec(4), spec(3)), |(q, k)| nn::causal_attention(q, k, k)).expect_err("3 of 4");
    assert!(error.to_string().contains("that divides the 4 heads"), "{error}");
}

#[test]
fn linear_contracts_the_last_dimension() {
    let params = Linear::new(F32, [8, 3, 2], &["embed", "", "heads"], 0.1);
    let bias = params.bias.as_ref().expect("a bias");
    assert_eq!((&bias.spec.ty.dims[..], bias.spec.axes.len()), (&[3, 2][..], 2));
    let graph = traced((TensorSpec::new(F32, [4, 5, 8]), &params), |(x, p)| {
        let bias = p.bias.expect("a bias");
        vec![nn::linear(x, &p), einsum("bte,ech->btch", &[x, p.weight]) + bias.broadcast_to([4, 5, 3, 2])]
    });
    equal(&graph, 1e-6);
    let whole = Linear { bias: None, ..params };
    let function = Function::trace("f", (TensorSpec::new(BF16, [4, 8]), &whole), |(x, p)| nn::linear(x, &p));
    assert_eq!(function.expect("no bias").outputs().ty.to_string(), "bf16[4,3,2]");
}

#[test]
fn reductions_keep_their_dimensions_where_asked() {
    let graph = traced(TensorSpec::new(F64, [2, 3, 4]), |x| {
        let kept = x.keep_dims();
        vec![
            kept.sum(1),
            kept.mean([0, -1]),
            kept.max(..),
            kept.min(-1),
            kept.prod(0),
            kept.variance(2),
            x.sum(1).expand(1),
            x.mean([0, -1]).reshape([1, 3, 1]),
            x.max(..).reshape([1, 1, 1]),
            x.min(-1).expand(-1),
            x.prod(0).expand(0),
            x.variance(2).expand(2),
        ]
    });
    equal(&graph, 1e-12);
}

#[test]
fn operands_repeat_as_numpy_does_where_asked() {
    let specs = (TensorSpec::new(F64, [2, 3, 4]), TensorSpec::new(F64, [4]), TensorSpec::new(F64, [2, 1, 4]));
    let graph = traced(specs, |(x, row, middle)| {
        let scalar = row.sum(..);
        vec![
            x + row.broadcast(),
            x / middle.broadcast(),
            x.maximum(scalar.broadcast()),
            x.greater(row.broadcast()).select(x, middle.broadcast()),
            x + row.broadcast_to([2, 3, 4]),
            x / middle.broadcast_to([2, 3, 4]),
            x.maximum(scalar),
            x.greater(row.broadcast_to([2, 3, 4])).select(x, middle.broadcast_to([2, 3, 4])),
        ]
    });
    equal(&graph, 1e-12);
    let specs = (TensorSpec::new(F64, [2, 3]), TensorSpec::new(F64, [2]));
    let error = Function::trace("f", specs.clone(), |(x, y)| x + y.broadcast()).expect_err("2 is not 3");
    assert!(
        error.to_string().starts_with("broadcast: expected a shape that repeats to [2, 3], found f64[2]"),
        "{error}"
    );
    // Nothing repeats unless asked.
    assert!(Function::trace("f", specs, |(x, y)| x + y).is_err());
}

#[test]
fn indices_are_numbers_ranges_or_tuples_of_them() {
    let graph = traced(TensorSpec::new(F64, [4, 3, 5]), |x| {
        let last: i64 = -1;
        vec![
            x.index(last),
            x.index((.., 1)),
            x.index((1..3, .., 2..)),
            x.index((..2, last, ..4)),
            x.index([0i64, 2]),
            x.slice(0, 3..4).reshape([3, 5]),
            x.slice(1, 1..2).reshape([4, 5]),
            x.slice(0, 1..3).slice(2, 2..),
            x.slice(0, ..2).slice(1, 2..3).slice(2, ..4).reshape([2, 4]),
            x.slice(0, 0..1).slice(1, 2..3).reshape([5]),
        ]
    });
    equal(&graph, 0.0);
}

fn scalar(number: f64) -> Param {
    Param::new(F32, [3], &["embed"], meshloom::trace::Init::Constant(number))
}

#[test]
fn a_step_replaces_its_state() {
    let state = (scalar(1.0), scalar(2.0));
    let x = TensorSpec::new(F32, [3]);
    let step = Function::trace_step("step", &state, &x, |(a, b), x| ((a + x, b * x), (a * b).sum(..)));
    let step = step.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(step.aliases(), [(0, 0), (1, 1)]);
    assert_eq!(step.graph().input_info()[0].axes.len(), 1, "names come from the declarations");

    let wide = Function::trace_step("step", &state, &x, |(a, b), x| ((a + x, b.convert(F64)), x));
    let error = wide.expect_err("another type").to_string();
    let expected = "leaf `1` of the new state of `step`: expected f32[3], as the old one, found f64[3] (at tests/";
    assert!(error.starts_with(expected), "{error}");
    let list = vec![scalar(1.0), scalar(2.0)];
    let error = Function::trace_step("step", &list, &x, |state, x| (state[..1].to_vec(), x)).expect_err("one less");
    let expected = "the new state of `step`: expected leaves `0` and `1`, found leaf `0` (at tests/";
    assert!(error.to_string().starts_with(expected), "{error}");
}

/// The names that a loss gives the hidden values of an example, which is a batch of one, in a batch of six examples.
fn names_of_examples(x: TensorSpec, rows: impl Fn(Tensor) -> Tensor) -> Vec<String> {
    let loss = |w: Tensor, row: Tensor| (row.expand(0) * w.expand(0)).with_axes(["batch", "embed"]).square().sum(..);
    let w = TensorSpec::new(F32, [4]).with_axes(&["embed"]);
    let graph = traced((w, x), |(w, x)| vec![vmap(rows(x), |row| loss(w, row))]);
    let names = graph.nodes().filter_map(|node| match node.op() {
        Op::WithAxes(op) if op.names.len() == 3 => Some(op.names.iter().map(|name| name.text()).collect()),
        _ => None,
    });
    names.collect::<Vec<Vec<String>>>().concat()
}

#[test]
fn a_mapped_dimension_keeps_its_name() {
    let x = || TensorSpec::new(F32, [6, 4]);
    // The batch is split, not the one row of an example; whether the input or an op gives the name.
    assert_eq!(names_of_examples(x().with_axes(&["batch", "embed"]), |x| x), ["batch", "", "embed"]);
    assert_eq!(names_of_examples(x(), |x| x.with_axes(["batch", "embed"])), ["batch", "", "embed"]);
    // The axis of the examples has no name.
    assert_eq!(names_of_examples(x(), |x| x), ["", "batch", "embed"]);
}

#[test]
fn einsum_errors_quote_the_formula() {
    let specs = (TensorSpec::new(F32, [2, 3]), TensorSpec::new(F32, [4, 5]), TensorSpec::new(BF16, [3, 5]));
    let function = |formula: &str, second: usize| {
        let pick = |(x, y, z): (Tensor, Tensor, Tensor)| einsum(formula, &[x, if second == 1 { y } else { z }]);
        Function::trace("f", specs.clone(), pick).expect_err("it does not fit").to_string()
    };
    let sizes = function("ab,bc->ac", 1);
    assert!(
        sizes.starts_with("einsum formula `ab,bc->ac`: `b` has size 3 in operand 0, but size 4 in operand 1"),
        "{sizes}"
    );
    let types = function("ab,bc->ac", 2);
    let expected = "einsum formula `ab,bc->ac`: operand 0 has type f32[2,3], but operand 1 bf16[3,5]; convert one";
    assert!(types.starts_with(expected), "{types}");
}

#[test]
fn errors_of_parts_name_the_line_of_the_caller() {
    let x = || TensorSpec::new(F32, [4, 8]);
    let wrong: &[fn(Tensor) -> Tensor] = &[
        |x| nn::rms_norm(x, x, 1e-5),
        |x| nn::layer_norm(x, &LayerNorm { scale: x, bias: x }, 1e-5),
        |x| nn::linear(x, &Linear { weight: x, bias: None }),
        |x| nn::causal_attention(x, x, x),
        |x| nn::cross_entropy(x, x, x),
    ];
    for (index, part) in wrong.iter().enumerate() {
        let error = Function::trace("f", x(), part).err().unwrap_or_else(|| panic!("part {index}"));
        let location = error.origin.place.unwrap_or_else(|| panic!("{error} has no place"));
        assert!(location.file().ends_with("parts.rs"), "part {index}: {error}");
    }
}

#[test]
fn literals_say_what_does_not_fit() {
    let error = Literal::from_slice(&[2, 3], &[0f32; 5]).expect_err("five of six");
    assert_eq!(error.to_string(), "a literal of type f32[2,3] takes 6 elements, but 5 are given");
    let error = Literal::from_bools(&[2], &[true; 3]).expect_err("three of two");
    assert_eq!(error.to_string(), "a literal of type pred[2] takes 2 elements, but 3 are given");
    let ty = TensorType::new(F32, &[2]);
    let error = Literal::from_bytes(ty, vec![0; 7]).expect_err("seven of eight");
    assert_eq!(error.to_string(), "a literal of type f32[2] takes 8 bytes, but 7 are given");
    assert!(Literal::from_slice(&[2, 3], &[0f32; 6]).is_ok());
}
