//! Differentiation inside a trace.

use std::panic::Location;

use super::context::{self, Place, trace_body, with_builder};
use super::control::{describe, ports, refill, types_of};
use super::{Tensor, Tree};
use crate::autodiff::{Tape, gradient_of_first};
use crate::error::{Error, TraceErrorKind};
use crate::ir::{TensorType, Value};
use crate::passes;

/// The value of a scalar function and its gradient with respect to `params`. `f` may use outer tensors.
#[track_caller]
pub fn value_and_grad<P: Tree<Leaf = Tensor>>(params: P, f: impl FnOnce(P) -> Tensor) -> (Tensor, P) {
    let (value, (), gradient) = differentiate(params, |params| (f(params), ()), Location::caller());
    (value, gradient)
}

/// As [`value_and_grad`], for a function that returns something else besides the value, which is not differentiated.
#[track_caller]
pub fn value_and_grad_aux<P, A>(params: P, f: impl FnOnce(P) -> (Tensor, A)) -> (Tensor, A, P)
where
    P: Tree<Leaf = Tensor>,
    A: Tree<Leaf = Tensor>,
{
    differentiate(params, f, Location::caller())
}

/// The gradient of a scalar function.
#[track_caller]
pub fn grad<P: Tree<Leaf = Tensor>>(params: P, f: impl FnOnce(P) -> Tensor) -> P {
    differentiate(params, |params| (f(params), ()), Location::caller()).2
}

fn differentiate<P, A>(params: P, f: impl FnOnce(P) -> (Tensor, A), place: Place) -> (Tensor, A, P)
where
    P: Tree<Leaf = Tensor>,
    A: Tree<Leaf = Tensor>,
{
    let arguments = params.leaves();
    let mut shape = None;
    let traced = trace_body("loss", ports(&arguments), None, place, |tensors| {
        let (value, aux) = f(refill(&params, &mut tensors.iter().copied()));
        let mut results = vec![value];
        results.extend(aux.leaves());
        shape = Some((value, aux));
        results
    });
    let results = traced.map_err(context::fail_error).ok().and_then(|body| {
        let (graph, captured) = body.captures_first();
        let operands = [&captured[..], &arguments].concat();
        let (results, frame) = with_builder(&operands, place, |builder, values| {
            let graph = passes::prepare(&graph);
            let active: Vec<bool> = (0..values.len()).map(|index| index >= captured.len()).collect();
            let (mut results, gradients) = gradient_of_first(builder, &graph, values, &active)?;
            for (index, gradient) in gradients.into_iter().enumerate().skip(captured.len()) {
                results.push(gradient.unwrap_or_else(|| builder.zeros_like(values[index])));
            }
            Ok(results)
        })?;
        Some(results.into_iter().map(|value| Tensor { frame, value }).collect::<Vec<_>>())
    });
    let mut results = results.unwrap_or_default().into_iter();
    // The closure always runs, so its structure is known; its tensors are replaced by those of this trace.
    match shape {
        Some((value, aux)) => {
            let value = refill(&value, &mut results);
            (value, refill(&aux, &mut results), refill(&params, &mut results))
        }
        None => super::control::unreachable_body(),
    }
}

/// The outputs of `f` at `inputs`, and the cotangents of the inputs for the cotangents of the outputs that
/// `cotangents` makes from them. Cotangents for outputs that are not floating-point are ignored.
#[track_caller]
pub fn vjp<P, O>(inputs: P, f: impl FnOnce(P) -> O, cotangents: impl FnOnce(&O) -> O) -> (O, P)
where
    P: Tree<Leaf = Tensor>,
    O: Tree<Leaf = Tensor>,
{
    let place = Location::caller();
    let arguments = inputs.leaves();
    let mut shape = None;
    let traced = trace_body("function", ports(&arguments), None, place, |tensors| {
        let output = f(refill(&inputs, &mut tensors.iter().copied()));
        let results = output.leaves();
        shape = Some(output);
        results
    });
    let Some(shape) = shape else { super::control::unreachable_body() };
    let poisoned = |error: Error| {
        context::fail_error(error);
        (refill(&shape, &mut std::iter::empty()), refill(&inputs, &mut std::iter::empty()))
    };
    let (graph, captured) = match traced {
        Ok(body) => body.captures_first(),
        Err(error) => return poisoned(error),
    };
    let graph = passes::prepare(&graph);
    let operands = [&captured[..], &arguments].concat();
    let active: Vec<bool> = (0..operands.len()).map(|index| index >= captured.len()).collect();
    let wanted: Vec<bool> = graph.output_types().map(|ty| ty.dtype.is_float()).collect();
    let recorded = with_builder(&operands, place, |builder, values| {
        let tape = Tape::record(builder, &graph, values, &active, &wanted)?;
        Ok((tape.outputs(), tape, values.to_vec()))
    });
    let Some(((outputs, tape, values), frame)) = recorded else {
        return (refill(&shape, &mut std::iter::empty()), refill(&inputs, &mut std::iter::empty()));
    };
    let outputs: O = refill(&shape, &mut outputs.into_iter().map(|value| Tensor { frame, value }));
    let seeds = cotangents(&outputs).leaves();
    let (expected, found) = (types_of(&outputs.leaves()), types_of(&seeds));
    let fits = |(index, ty): (usize, &TensorType)| !wanted[index] || found[index] == *ty;
    if expected.len() != found.len() || !expected.iter().enumerate().all(fits) {
        let what = "the cotangents given to a vjp".to_owned();
        let (expected, found) = (describe(&expected), describe(&found));
        context::fail(TraceErrorKind::Mismatch { what, expected, found }, place);
    }
    let gradients = with_builder(&seeds, place, |builder, seeds| {
        let seeds: Vec<Option<Value>> =
            seeds.iter().zip(&wanted).map(|(&seed, &wanted)| wanted.then_some(seed)).collect();
        let gradients = tape.pullback(builder, &seeds)?;
        let own = gradients.into_iter().enumerate().skip(captured.len());
        Ok(own
            .map(|(index, gradient)| gradient.unwrap_or_else(|| builder.zeros_like(values[index])))
            .collect::<Vec<_>>())
    });
    let gradients = gradients.map(|(values, _)| values).unwrap_or_default();
    (outputs, refill(&inputs, &mut gradients.into_iter().map(|value| Tensor { frame, value })))
}
