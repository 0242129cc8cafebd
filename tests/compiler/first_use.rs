//! Tests of what a new user of the library meets: first values, statistics in narrow types, tensors of another trace,
//! states and warnings.

use meshloom::compile::{CompiledFunction, LowerOptions, compile};
use meshloom::ir::{DType, Literal, Role};
use meshloom::ops::WindowDim;
use meshloom::optim::{AdamW, Decay, LearningRate, Sgd};
use meshloom::pjrt::Client;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::initialize;
use meshloom::trace::*;
use meshloom::transform::accumulate::{in_role, value_and_grad_in_parts};
use meshloom_nn::{self as nn, LayerNorm};
use support::anchored::run;

use DType::*;

fn compiled<I, O>(function: &Function<I, O>) -> CompiledFunction<I, O>
where
    I: Tree<Leaf = TensorSpec> + MapTree<Tensor> + Clone,
    O: Tree<Leaf = TensorSpec> + MapTree<Tensor> + Clone,
{
    compile(function, &Client::cpu(1).expect("a client"), &LowerOptions::default()).expect("it compiles")
}

fn of_one(x: &Literal, f: impl FnOnce(Tensor) -> Tensor) -> Function<TensorSpec, TensorSpec> {
    let function = Function::trace("f", TensorSpec::new(x.ty().dtype, &x.ty().dims), f);
    function.unwrap_or_else(|error| panic!("{error}"))
}

/// Computes a function of one literal with the interpreter.
fn values(x: &Literal, f: impl FnOnce(Tensor) -> Tensor) -> Vec<f64> {
    let function = of_one(x, f);
    run(function.graph(), std::slice::from_ref(x))[0].to_f64_vec()
}

/// Computes the same with XLA.
fn values_by_xla(x: &Literal, f: impl FnOnce(Tensor) -> Tensor) -> Vec<f64> {
    compiled(&of_one(x, f)).call(x).expect("it runs").to_f64_vec()
}

#[test]
fn first_values_are_those_declared() {
    let first = |dtype, number| {
        let param = Param::new(dtype, [2], &["embed"], Init::Constant(number));
        initialize(&param, 0).map(|literal| literal.to_f64_vec())
    };
    assert_eq!(first(F64, 0.1).expect("it holds"), [0.1, 0.1]);
    assert_eq!(first(S32, 16_777_217.0).expect("it holds"), [16_777_217.0; 2]);
    for (dtype, number) in [(S32, 0.5), (U8, 300.0), (Pred, 2.0), (F16, 1e40), (S8, f64::NAN)] {
        let error = first(dtype, number).expect_err("it does not hold").to_string();
        assert!(error.starts_with(&format!("the parameter is {dtype}[2], which cannot hold")), "{error}");
        assert!(!error.contains("000000"), "{error}");
    }
    for (dtype, deviation) in [(S32, 1.0), (F32, -1.0), (F32, f64::NAN), (F16, 1e6)] {
        let param = (Param::new(dtype, [2], &[], Init::Normal(deviation)),);
        let error = initialize(&param, 0).expect_err("no such numbers").to_string();
        assert!(error.starts_with(&format!("parameter `0` is {dtype}[2]")), "{error}");
    }
    // A draw is not rounded to f32 on its way to f64.
    let drawn = |dtype| initialize(&Param::new(dtype, [64], &[], Init::Normal(0.1)), 3).expect("it draws").to_f64_vec();
    let (wide, narrow) = (drawn(F64), drawn(F32));
    assert!(wide.iter().zip(&narrow).all(|(wide, narrow)| *wide as f32 == *narrow as f32));
    assert!(wide.iter().any(|wide| f64::from(*wide as f32) != *wide));
}

/// Against what `jax.numpy` gives.
#[test]
fn statistics_of_narrow_types_are_computed_in_f32() {
    let count = |dtype| Literal::from_fn(meshloom::ir::TensorType::new(dtype, &[100]), |index| index as f64);
    assert_eq!(values(&count(BF16), |x| x.mean(..)), [49.5]);
    assert_eq!(values(&count(BF16), |x| x.keep_dims().mean(0)), [49.5]);
    // 833.25, rounded to the 8 bits of bf16.
    assert_eq!(values(&count(BF16), |x| x.variance(..)), [832.0]);
    let large = Literal::from_fn(meshloom::ir::TensorType::new(F16, &[4]), |_| 60_000.0);
    assert_eq!(values(&large, |x| x.mean(..)), [60_000.0]);
    assert_eq!(values(&large, |x| x.variance(..)), [0.0]);
    let many = Literal::from_fn(meshloom::ir::TensorType::new(F16, &[100_000]), |_| 0.0);
    assert!(values(&many, |x| x.logsumexp(..))[0] < 11.6);
}

#[test]
fn derivatives_at_edges_are_the_limits() {
    let ends =
        |numbers: &[f32], f: fn(Tensor) -> Tensor| values(&Literal::vector(numbers), |x| grad(x, |x| f(x).sum(..)));
    assert_eq!(ends(&[1.0], |x| x.acosh()), [f64::INFINITY]);
    let everywhere = [f32::INFINITY, f32::NEG_INFINITY, 0.0, -3.0];
    assert_eq!(ends(&everywhere, |x| x.pow(0.0)), [0.0; 4]);
}

/// Against `x / 2 * erfc(-x / sqrt(2))` with 40 digits, by mpmath.
#[test]
fn gelu_keeps_its_digits_where_it_is_small() {
    let points = [-12.0, -5.0, -3.0, -1.0, -1e-4, 0.0, 0.5, 4.0, 3e38];
    let expected = [
        -2.131_778_534_493_215e-32,
        -1.433_257_859_395_969_6e-6,
        -0.004_049_694_094_890_284,
        -0.158_655_253_931_457_07,
        -4.999_601_057_720_263e-5,
        0.0,
        0.345_731_230_637_006_55,
        3.999_873_315_032_667_5,
        3e38,
    ];
    for (dtype, tolerance) in [(F32, 2.4e-7), (F64, 2e-15)] {
        let x = Literal::from_fn(meshloom::ir::TensorType::new(dtype, &[points.len()]), |index| points[index]);
        for ((point, found), expected) in points.iter().zip(values_by_xla(&x, |x| x.gelu())).zip(expected) {
            // Rounding the operand alone changes the result by its square in units of rounding.
            let tolerance = tolerance * (1.0 + f64::powi(*point, 2).min(144.0));
            assert!((found - expected).abs() <= tolerance * f64::abs(expected), "{dtype} {point}: {found:?}");
        }
    }
}

/// Refusals name the line of this file, and no internals of the library.
#[test]
fn refusals_name_what_is_wrong_and_where() {
    type Case = (&'static str, fn(Tensor) -> Tensor);
    let refusals: &[Case] = &[
        ("axis 5 is out of range", |x| stack(&[x, x], 5)),
        ("multiply(f32[3,2], f32[2,3])", |x| nn::Activation::Silu.of(x.transpose([1, 0]), x)),
        ("the axes of a transpose: expected one for each of 2 dimensions, found 1", |x| x.transpose([1])),
        ("indexing: expected indices for 1 dimension, found 2", |x| x.index(0).index((0, 0))),
        ("s8 cannot hold the number 299; use an element type that can", |_| iota(S8, [300], 0)),
        ("f32 cannot hold the number 1e40; use a wider element type", |x| x * 1e40),
        ("a window of size 0, stride 1 and padding 0 and 0 does not fit dimension 0 of size 2", |x| {
            let none = WindowDim { size: 0, stride: 1, low: 0, high: 0, base_dilation: 1, window_dilation: 1 };
            x.reduce_window(meshloom::ops::ReduceKind::Sum, [none, none])
        }),
        ("the element type of operand 0 must be a floating-point type, found s32", |x| x.convert(S32).exp()),
        ("the scale of a layer norm: expected one number for each of the last dimension of f32[2,3]", |x| {
            nn::layer_norm(x, &LayerNorm { scale: zeros(F32, [2]), bias: zeros(F32, [3]) }, 1e-5)
        }),
        ("the logits of a cross entropy: expected `[batch, length, vocab]`", |x| nn::cross_entropy(x, x, x)),
        ("the rate of a dropout: expected a probability from 0 to 1, found NaN", |x| {
            nn::dropout(x, f64::NAN, Key::new(1))
        }),
        ("the range of a random number", |_| Key::new(1).truncated_normal(F32, [2], 5.0..1.0)),
        ("the range of a random number", |_| Key::new(1).uniform_in(F32, [2], 5.0..1.0)),
        ("the step of a schedule: expected an integer scalar, found pred[2,3]", |x| {
            LearningRate { peak: 1.0, warmup: 1, steps: 2, floor: 0.0, decay: Decay::Cosine }.rate(x.greater(0.0))
        }),
        ("the stacked input of a scan", |x| scan(x, x.sum(..), |x, _| (x, ())).0),
        ("the value to differentiate: expected a floating-point scalar", |x| {
            let declared = Param::new(F32, [2, 3], &[], Init::Constant(0.0));
            value_and_grad_in_parts(2, &declared, x, x, |x, part| x + part.sum(..)).0
        }),
        ("the declared parameters of value_and_grad_in_parts: expected one for each of 1 parameter, found 0", |x| {
            value_and_grad_in_parts(2, &Vec::<Param>::new(), x, x, |x, part| x.sum(..) * part.sum(..)).0
        }),
        ("the declared parameters of in_role: expected one for each of 1 parameter, found 2", |x| {
            let declared = Param::new(F32, [2, 3], &[], Init::Constant(0.0));
            in_role(&[declared.clone(), declared], &x, Role::Params)
        }),
    ];
    for (message, case) in refusals {
        let function = Function::trace("f", TensorSpec::new(F32, [2, 3]), *case);
        let error = function.map(drop).expect_err(message).to_string();
        assert!(error.contains(message) && error.contains("first_use.rs:"), "{message:?} is not in\n{error}");
    }
}

/// Every use of a tensor after the end of its trace is an error that says so.
#[test]
fn a_tensor_of_another_trace_is_called_that() {
    let mut escaped = None;
    let first = Function::trace("first", TensorSpec::new(F32, [4, 4]), |x| {
        escaped = Some(x);
        x
    });
    first.expect("it traces");
    let escaped = escaped.expect("it escapes");
    assert_eq!(format!("{escaped:?}"), "a tensor without a value in this trace");
    type Case = (&'static str, fn(Tensor, Tensor) -> Tensor);
    let uses: &[Case] = &[
        ("add", |x, escaped| x + escaped),
        ("zeros_like", |x, escaped| x + escaped.zeros_like()),
        ("full_like", |x, escaped| x + escaped.full_like(3.0)),
        ("dims", |x, escaped| x + Key::new(1).normal(F32, escaped.dims())),
        ("sum", |_, escaped| escaped.sum(-1)),
        ("shape", |x, escaped| x * escaped.shape::<2>()[0] as f64),
        ("index", |_, escaped| escaped.index(0)),
        ("slice", |_, escaped| escaped.slice(1, 0..2)),
        ("take", |x, escaped| escaped.take(1, x.convert(S32))),
        ("at", |x, escaped| escaped.at(&[x.convert(S32)]).get()),
        ("at, by", |x, escaped| x.at(&[escaped, escaped]).get()),
        ("mean", |_, escaped| escaped.mean(1)),
        ("einsum", |x, escaped| einsum("ab,bc->ac", &[x, escaped])),
        ("scan", |x, escaped| scan(x, escaped, |x, row| (x * row.sum(..), ())).0),
        ("vmap", |_, escaped| vmap(escaped, |row| row.sum(..))),
        ("broadcast", |x, escaped| x + escaped.broadcast()),
        ("broadcast_like", |x, escaped| x.broadcast_like(escaped, [0, 1])),
        ("a result", |_, escaped| escaped),
    ];
    for (name, case) in uses {
        let function = Function::trace("second", TensorSpec::new(F32, [4, 4]), |x| case(x, escaped));
        let error = function.map(drop).expect_err(name).to_string();
        let expected = "a tensor is used outside the trace it belongs to";
        assert!(error.starts_with(expected) && error.contains("first_use.rs:"), "{name}: {error}");
    }
}

/// An optimizer's state is the optimizer's, whichever it is; and a rate may come from a schedule.
#[test]
fn optimizers_declare_their_state_alike() {
    let param = Param::new(F32, [4], &["embed"], Init::Constant(1.0));
    assert_eq!(AdamW::default().state(&param).first.spec.role, Role::Optimizer);
    let sgd = Sgd { momentum: 0.5, nesterov: false };
    let state = sgd.state(&param);
    assert_eq!(state.spec.role, Role::Optimizer);
    let function = Function::trace("update", (&param, &state, TensorSpec::new(F32, [])), |(param, velocity, rate)| {
        sgd.update(&param, &param, &velocity, rate)
    });
    let inputs = (Literal::vector(&[1f32; 4]), Literal::vector(&[2f32; 4]), Literal::scalar(0.25f32));
    let (param, velocity) = compiled(&function.expect("it traces")).call(&inputs).expect("it runs");
    assert_eq!((param, velocity), (Literal::vector(&[0.5f32; 4]), Literal::vector(&[2f32; 4])));
}

/// Host values that are not a state of the step are refused by path, before anything runs.
#[test]
fn a_state_is_checked_as_inputs_are() {
    let specs = vec![TensorSpec::new(F32, [2]), TensorSpec::new(F32, [3])];
    let step = Function::trace_step("step", &specs, &TensorSpec::new(F32, []), |state: Vec<Tensor>, rate| {
        (state.iter().map(|part| *part * rate).collect(), state[0].sum(..))
    });
    let step = compiled(&step.expect("it traces"));
    let (two, three) = (Literal::vector(&[1f32; 2]), Literal::vector(&[1f32; 3]));
    let refusal = |state: Vec<Literal>| step.put_state(&state).map(drop).expect_err("no such state").to_string();
    assert_eq!(refusal(vec![two.clone(), two.clone()]), "state `1` must be f32[3], found f32[2]");
    let integers = Literal::vector(&[1i32; 2]);
    assert_eq!(refusal(vec![integers, three.clone()]), "state `0` must be f32[2], found s32[2]");
    let expected = "the state: expected leaves `0` and `1`; found leaf `0`";
    assert_eq!(refusal(vec![two.clone()]), expected);
    assert!(refusal(vec![two.clone(), three.clone(), two.clone()]).contains("`1` and `2`"));
    let state = step.put_state(&vec![two.clone(), three.clone()]).expect("a state");
    let rate = Literal::scalar(2i32);
    let error = step.step(state.clone(), &rate).map(drop).expect_err("an integer").to_string();
    assert_eq!(error, "the input must be f32[], found s32[]");
    let error = step.step(state[..1].to_vec(), &Literal::scalar(2f32)).map(drop).expect_err("a leaf less").to_string();
    assert_eq!(error, expected);
    let (state, sum) = step.step(state, &Literal::scalar(2f32)).expect("a step");
    assert_eq!(sum.get().expect("a sum"), Literal::scalar(2f32));
    assert_eq!(state[1].get().expect("a state"), Literal::vector(&[2f32; 3]));
}

/// A program keeps what the rules warned of; pairs of aliases that are known may be given again.
#[test]
fn warnings_and_aliases_reach_who_compiles() {
    let (client, mesh) = (Client::cpu(2).expect("a client"), Mesh::parse("data=2", 2).expect("a mesh"));
    let rules = Rules::from_pairs(&[("batch", &["data"][..]), ("nobody", &["data"])]).expect("rules");
    let rules = RuleSets::uniform(rules);
    let weight = Param::new(F32, [4, 2], &[], Init::Constant(1.0)).stacked(3);
    assert_eq!(weight.spec.axes.len(), 3);
    let x = TensorSpec::new(F32, [4]).with_axes(&["batch"]);
    let step = Function::trace_step("step", &weight, &x, |weight, x| (weight * 0.5, x * 2.0)).expect("it traces");
    let aliases = step.aliases();
    let options = LowerOptions { sharding: Some((&mesh, &rules)), aliases, ..LowerOptions::default() };
    let compiled = compile(&step, &client, &options).expect("known pairs count once");
    let warnings = compiled.warnings();
    assert!(warnings.iter().any(|warning| warning.contains("nobody")), "{warnings:?}");
    assert_eq!(warnings, compiled.program().warnings());
}

#[test]
fn axes_of_outputs_are_checked() {
    let trace = || Function::trace("f", TensorSpec::new(F32, [8]), |x| (x * 2.0, x.sum(..))).expect("it traces");
    let refusal = |path, names: &[&str]| trace().with_output_axes(path, names).map(drop).expect_err(path).to_string();
    let error = refusal("0", &["batch", "x"]);
    assert!(
        error.starts_with("the axis names of output `0` of `f`: expected one for each dimension of f32[8], found 2")
    );
    let error = refusal("loss", &["batch"]);
    assert!(error.starts_with("the outputs of `f`: expected leaves `0` and `1`, found `loss`"), "{error}");
    assert!(trace().with_output_axes("0", &["batch"]).is_ok());
}
