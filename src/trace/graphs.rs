//! Closures as graphs and graphs in place of closures, for transforms: a body traced once can be used several times.

use std::panic::Location;

use super::context::{self, CallSite, push_values, trace_body, with_builder};
use super::{Tensor, TraceErrorKind, control::ports};
use crate::autodiff::{Halves, SplitBackward};
use crate::ir::{Graph, Origin};
use crate::ops::{Barrier, WithAxes};
use crate::passes;

/// Makes a graph of a closure. Its inputs are the outer tensors that the closure uses, which are returned, then inputs
/// of the types of `examples`. Returns `None` if that has failed, which has been noted.
#[track_caller]
pub(crate) fn graph_of(
    name: &str,
    examples: &[Tensor],
    f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Option<(Graph, Vec<Tensor>)> {
    graph_at(name, examples, Location::caller(), f)
}

/// As [`graph_of`], of a user's closure that belongs to a call at this place.
pub(crate) fn graph_at(
    name: &str,
    examples: &[Tensor],
    place: CallSite,
    f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Option<(Graph, Vec<Tensor>)> {
    let traced = trace_body(name, ports(examples, place), None, place, Box::new(f));
    let (graph, captured) = traced.map_err(context::fail_error).ok()?.captures_first();
    Some((passes::prepare(&graph).into_owned(), captured))
}

/// The outputs of a graph at these arguments, in the trace under way.
#[track_caller]
pub(crate) fn inline(graph: &Graph, arguments: &[Tensor]) -> Vec<Tensor> {
    let place = Location::caller();
    let results = push_values(arguments, place, |builder, values| Ok(builder.inline(graph, values).to_vec()));
    results.unwrap_or_else(|| vec![Tensor::POISONED; graph.outputs().len()])
}

/// The halves of a graph's derivative with respect to the inputs marked active. Returns `None` if it has no derivative,
/// which has been noted.
pub(crate) fn differentiate(graph: &Graph, active: &[bool]) -> Option<Halves> {
    Halves::of(graph, active).map_err(|error| context::fail_error(error.into())).ok()
}

/// The backward half in two: see [`Halves::split`]. Returns `None` after an error, which has been noted.
pub(crate) fn split_backward(halves: &Halves, is_weight: impl Fn(usize) -> bool) -> Option<SplitBackward> {
    halves.split(is_weight).map_err(|error| context::fail_error(error.into())).ok()
}

/// Notes an error in the trace under way; the returned tensor stands for the result.
pub(crate) fn fail(kind: impl Into<TraceErrorKind>, place: CallSite) -> Tensor {
    context::fail(kind.into(), place)
}

/// Several tensors through one barrier: none of the results is there before all of the tensors are.
#[track_caller]
pub(crate) fn barrier(tensors: &[Tensor]) -> Vec<Tensor> {
    context::apply_many(Barrier.into(), tensors, tensors.len(), Location::caller()).to_vec()
}

/// The origin of a tensor; `None` for an input.
pub(crate) fn origin_of(x: Tensor, place: CallSite) -> Option<Origin> {
    let found = with_builder(&[x], place, |builder, values| {
        Ok(builder.graph().defining_node(values[0]).map(|node| node.origin()))
    });
    found.and_then(|(origin, _)| origin)
}

/// As [`Tensor::with_logical_axes`], with this origin for the op.
pub(crate) fn label_from(origin: Option<Origin>, x: Tensor, names: WithAxes, place: CallSite) -> Tensor {
    let labelled = push_values(&[x], place, |builder, values| {
        if let Some(origin) = origin {
            builder.set_origin(origin);
        }
        Ok(builder.push(names, values)?.to_vec())
    });
    labelled.map_or(Tensor::POISONED, |labelled| labelled[0])
}
