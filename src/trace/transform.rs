//! Differentiation inside a trace.

use std::panic::Location;

use super::context::{self, Body, CallSite, push_values, with_builder};
use super::control::{describe, ports, trace_tree, types_of};
use super::{Tensor, TensorTree, TraceError, TraceErrorKind, inline, refill};
use crate::autodiff::{self, Tape, gradient_of_first};
use crate::ir::{Graph, TensorType, Value};
use crate::passes;

/// The value of a scalar function and its gradient with respect to `params`. `f` may use outer tensors.
#[track_caller]
pub fn value_and_grad<P: TensorTree>(params: P, f: impl FnOnce(P) -> Tensor) -> (Tensor, P) {
    value_and_grad_at(params, f, Location::caller())
}

/// [`value_and_grad`] for a function of this library, which is called at `place`.
pub(crate) fn value_and_grad_at<P: TensorTree>(params: P, f: impl FnOnce(P) -> Tensor, place: CallSite) -> (Tensor, P) {
    let (value, (), gradient) = differentiate(params, |params| (f(params), ()), place);
    (value, gradient)
}

/// As [`value_and_grad`], for a function that also returns other values, which are not differentiated.
#[track_caller]
pub fn value_and_grad_aux<P: TensorTree, A: TensorTree>(params: P, f: impl FnOnce(P) -> (Tensor, A)) -> (Tensor, A, P) {
    differentiate(params, f, Location::caller())
}

/// The gradient of a scalar function.
#[track_caller]
pub fn grad<P: TensorTree>(params: P, f: impl FnOnce(P) -> Tensor) -> P {
    differentiate(params, |params| (f(params), ()), Location::caller()).2
}

fn differentiate<P: TensorTree, A: TensorTree>(
    params: P,
    f: impl FnOnce(P) -> (Tensor, A),
    place: CallSite,
) -> (Tensor, A, P) {
    let arguments = params.leaves();
    let (traced, shape) =
        trace_tree("loss", ports(&arguments, place), None, place, |tensors| f(refill(&params, tensors)));
    let mut results = value_and_gradient(traced, &arguments, place).into_iter();
    let (value, aux) = refill(&shape, &mut results);
    (value, aux, refill(&params, &mut results))
}

/// The results of a traced function, and the gradient of the first; nothing after an error.
fn value_and_gradient(traced: Result<Body, TraceError>, arguments: &[Tensor], place: CallSite) -> Vec<Tensor> {
    let results = traced.map_err(context::fail_error).ok().and_then(|body| {
        let (graph, captured) = body.captures_first();
        let operands = [&captured[..], arguments].concat();
        push_values(&operands, place, |builder, values| {
            let graph = passes::prepare(&graph);
            let active: Vec<bool> = (0..values.len()).map(|index| index >= captured.len()).collect();
            let (mut results, gradients) = gradient_of_first(builder, &graph, values, &active)?;
            for (index, gradient) in gradients.into_iter().enumerate().skip(captured.len()) {
                results.push(gradient.unwrap_or_else(|| builder.zeros_like(values[index])));
            }
            Ok(results)
        })
    });
    results.unwrap_or_default()
}

/// The outputs of `f` at `inputs`, and the cotangents of the inputs for the cotangents of the outputs that
/// `cotangents` makes from them. Cotangents for outputs that are not floating-point are ignored.
#[track_caller]
pub fn vjp<P: TensorTree, O: TensorTree>(
    inputs: P,
    f: impl FnOnce(P) -> O,
    cotangents: impl FnOnce(&O) -> O,
) -> (O, P) {
    let place = Location::caller();
    let poisoned = |shape: &O| (refill(shape, &mut std::iter::empty()), refill(&inputs, &mut std::iter::empty()));
    let Traced { graph, operands, captured, shape } = match trace_function(&inputs, f, place) {
        Ok(traced) => traced,
        Err(shape) => return poisoned(&shape),
    };
    let active: Vec<bool> = (0..operands.len()).map(|index| index >= captured).collect();
    let wanted: Vec<bool> = graph.output_types().map(|ty| ty.dtype.is_float()).collect();
    let recorded = with_builder(&operands, place, |builder, values| {
        let tape = Tape::record(builder, &graph, values, &active, &wanted)?;
        Ok((tape.outputs(), tape, values.to_vec()))
    });
    let Some(((outputs, tape, values), frame)) = recorded else { return poisoned(&shape) };
    let outputs: O = refill(&shape, &mut outputs.into_iter().map(|value| Tensor { frame, value }));
    let seeds = cotangents(&outputs).leaves();
    expect_types("the cotangents given to a vjp", &types_of(&outputs.leaves(), place), &types_of(&seeds, place), place);
    let gradients = push_values(&seeds, place, |builder, seeds| {
        let seeds: Vec<Option<Value>> =
            seeds.iter().zip(&wanted).map(|(&seed, &wanted)| wanted.then_some(seed)).collect();
        let gradients = tape.pullback(builder, &seeds)?;
        let own = gradients.into_iter().enumerate().skip(captured);
        Ok(own.map(|(index, gradient)| gradient.unwrap_or_else(|| builder.zeros_like(values[index]))).collect())
    });
    (outputs, refill(&inputs, &mut gradients.unwrap_or_default().into_iter()))
}

/// A traced function and the tensors that stand for its arguments: captures, then the tensors given.
struct Traced<O> {
    graph: Graph,
    operands: Vec<Tensor>,
    captured: usize,
    shape: O,
}

/// Traces a function of tensors for a transform.
fn trace_function<P: TensorTree, O: TensorTree>(
    inputs: &P,
    f: impl FnOnce(P) -> O,
    place: CallSite,
) -> Result<Traced<O>, O> {
    let arguments = inputs.leaves();
    let (traced, shape) =
        trace_tree("function", ports(&arguments, place), None, place, |tensors| f(refill(inputs, tensors)));
    match traced {
        Ok(body) => {
            let (graph, captured) = body.captures_first();
            let graph = passes::prepare(&graph).into_owned();
            let operands = [&captured[..], &arguments].concat();
            Ok(Traced { graph, operands, captured: captured.len(), shape })
        }
        Err(error) => {
            context::fail_error(error);
            Err(refill(&shape, &mut std::iter::empty()))
        }
    }
}

/// Notes an error unless two lists of tensors have the same types, where these are floating-point.
fn expect_types(what: &str, expected: &[TensorType], found: &[TensorType], place: CallSite) {
    let fits = |(expected, found): (&TensorType, &TensorType)| !expected.dtype.is_float() || expected == found;
    if expected.len() != found.len() || !expected.iter().zip(found).all(fits) {
        let (what, expected, found) = (what.to_owned(), describe(expected), describe(found));
        context::fail(TraceErrorKind::Mismatch { what, expected, found }, place);
    }
}

/// The outputs of `f` at `inputs`, and how they change when the inputs change by `tangents`: forward mode. Tangents of
/// inputs that are not floating-point are ignored; those of outputs that are not are zero. `f` may use outer tensors,
/// which stay fixed.
///
/// ```
/// # use meshloom::trace::{Function, TensorSpec, grad, jvp};
/// # use meshloom::ir::DType::F32;
/// // The product of a Hessian with a vector.
/// let specs = (TensorSpec::new(F32, [8]), TensorSpec::new(F32, [8]));
/// let function = Function::trace("hvp", specs, |(x, v)| {
///     jvp(x, v, |x| grad(x, |x| (x.sin() * x).sum(..))).1
/// })?;
/// # Ok::<(), meshloom::Error>(())
/// ```
#[track_caller]
pub fn jvp<P: TensorTree, O: TensorTree>(inputs: P, tangents: P, f: impl FnOnce(P) -> O) -> (O, O) {
    let place = Location::caller();
    match trace_function(&inputs, f, place) {
        Ok(traced) => push_forward(&traced, &tangents.leaves(), place),
        Err(poisoned) => {
            let again = refill(&poisoned, &mut std::iter::empty());
            (poisoned, again)
        }
    }
}

/// The outputs of `f` at `inputs`, and its derivative there: a function from tangents to tangents, which may be applied
/// several times within the same trace. Common parts of the applications are merged when the program is lowered.
#[track_caller]
pub fn linearize<P: TensorTree, O: TensorTree>(inputs: P, f: impl FnOnce(P) -> O) -> (O, impl Fn(P) -> O) {
    let place = Location::caller();
    let traced = trace_function(&inputs, f, place);
    let outputs = match &traced {
        Ok(traced) => refill(&traced.shape, &mut inline(&traced.graph, &traced.operands).into_iter()),
        Err(poisoned) => refill(poisoned, &mut std::iter::empty()),
    };
    let derivative = move |tangents: P| match &traced {
        Ok(traced) => push_forward(traced, &tangents.leaves(), place).1,
        Err(poisoned) => refill(poisoned, &mut std::iter::empty()),
    };
    (outputs, derivative)
}

fn push_forward<O: TensorTree>(traced: &Traced<O>, tangents: &[Tensor], place: CallSite) -> (O, O) {
    let arguments = &traced.operands[traced.captured..];
    expect_types("the tangents given to a jvp", &types_of(arguments, place), &types_of(tangents, place), place);
    let operands = [&traced.operands[..], tangents].concat();
    let results = with_builder(&operands, place, |builder, values| {
        let (values, given) = values.split_at(traced.operands.len());
        let mut tangents = vec![None; traced.captured];
        tangents.extend(given.iter().copied().map(Some));
        let (outputs, tangents) = autodiff::jvp(builder, &traced.graph, values, &tangents)?;
        let tangents = tangents.iter().zip(&outputs);
        let tangents: Vec<Value> =
            tangents.map(|(&tangent, &output)| tangent.unwrap_or_else(|| builder.zeros_like(output))).collect();
        Ok((outputs, tangents))
    });
    let ((outputs, tangents), frame) = results.unwrap_or_default();
    let tensor = |value| Tensor { frame, value };
    (
        refill(&traced.shape, &mut outputs.into_iter().map(tensor)),
        refill(&traced.shape, &mut tangents.into_iter().map(tensor)),
    )
}

/// The transpose of a linear function: from cotangents of its outputs to cotangents of its inputs. `f` is not
/// evaluated: only the types of `example` matter. `f` may use outer tensors, in which it need not be linear.
///
/// A function that is not linear in its inputs (nor zero at zero) is an error that names the op that shows it.
///
/// ```
/// # use meshloom::trace::{Function, TensorSpec, linear_transpose};
/// # use meshloom::ir::DType::F32;
/// let specs = (TensorSpec::new(F32, [4]), TensorSpec::new(F32, [4, 8]), TensorSpec::new(F32, [8]));
/// let function = Function::trace("transposed", specs, |(x, w, ct)| linear_transpose(x, |x| x.matmul(w), ct))?;
/// # Ok::<(), meshloom::Error>(())
/// ```
#[track_caller]
pub fn linear_transpose<P: TensorTree, O: TensorTree>(example: P, f: impl FnOnce(P) -> O, cotangents: O) -> P {
    let place = Location::caller();
    let poisoned = || refill(&example, &mut std::iter::empty());
    let Ok(traced) = trace_function(&example, f, place) else { return poisoned() };
    let (outputs, seeds) = (traced.graph.output_types().cloned().collect::<Vec<_>>(), cotangents.leaves());
    expect_types("the cotangents given to a linear_transpose", &outputs, &types_of(&seeds, place), place);
    let operands = [&traced.operands[..], &seeds].concat();
    let results = push_values(&operands, place, |builder, values| {
        let (values, seeds) = values.split_at(traced.operands.len());
        let known = |(index, &value): (usize, &Value)| (index < traced.captured).then_some(value);
        let arguments: Vec<Option<Value>> = values.iter().enumerate().map(known).collect();
        let seeds = seeds.iter().zip(&outputs).map(|(&seed, ty)| ty.dtype.is_float().then_some(seed));
        let found = autodiff::transpose(builder, &traced.graph, &arguments, &seeds.collect::<Vec<_>>())?;
        let own = found.into_iter().zip(values).skip(traced.captured);
        Ok(own.map(|(found, &value)| found.unwrap_or_else(|| builder.zeros_like(value))).collect())
    });
    refill(&example, &mut results.unwrap_or_default().into_iter())
}
