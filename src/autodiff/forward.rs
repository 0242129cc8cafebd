//! Forward mode: values and their tangents, in one walk.

use smallvec::SmallVec;

use super::forward_regions::{self, JvpCache};
use crate::ir::{Graph, GraphBuilder, OpError, Value, ValueMap, Values};
use crate::ops::JvpContext;

/// Copies `graph` into `builder` with `arguments` for its inputs, and pushes tangents through it: from one tangent for
/// each input (`None` for zero) to one for each output. Nothing is stored for later, so a loop needs no more memory
/// than twice that of the values themselves.
///
/// # Errors
/// A tangent reaches an op that is not differentiable.
pub fn jvp(
    builder: &mut GraphBuilder,
    graph: &Graph,
    arguments: &[Value],
    tangents: &[Option<Value>],
) -> Result<(Values, Vec<Option<Value>>), OpError> {
    walk(builder, graph, arguments, tangents, &JvpCache::new(walk))
}

/// As [`jvp`], with the functions called so far.
fn walk(
    builder: &mut GraphBuilder,
    graph: &Graph,
    arguments: &[Value],
    tangents: &[Option<Value>],
    cache: &JvpCache,
) -> Result<(Values, Vec<Option<Value>>), OpError> {
    let mut map = ValueMap::for_inputs(graph, arguments);
    let mut flowing: Vec<Option<Value>> = vec![None; graph.value_count()];
    for (&input, &tangent) in graph.inputs().iter().zip(tangents) {
        flowing[input.index()] = tangent.filter(|_| graph.ty(input).dtype.is_float());
    }
    for node in graph.nodes() {
        let incoming: SmallVec<[Option<Value>; 4]> =
            node.operands().iter().map(|value| flowing[value.index()]).collect();
        let is_differentiable = node.results().any(|result| graph.ty(result).dtype.is_float());
        if !is_differentiable || incoming.iter().all(Option::is_none) {
            builder.copy_node(graph, node, &mut map);
            continue;
        }
        let mut found: SmallVec<[Option<Value>; 2]> = SmallVec::from_elem(None, node.results().len());
        let operands = map.operands(node);
        let outer = builder.origin();
        if let Some(primitive) = node.op().as_primitive() {
            let results = builder.copy_node(graph, node, &mut map);
            builder.set_origin(node.origin().copied_in(outer.phase));
            primitive.jvp(&mut JvpContext {
                builder,
                operands: &operands,
                results: &results,
                tangents: &incoming,
                found: &mut found,
                definition: jvp,
            })?;
        } else if let Some(op) = node.op().region_kind() {
            builder.set_origin(node.origin().copied_in(outer.phase));
            let (results, outgoing) = forward_regions::jvp(builder, op, &operands, &incoming, cache)?;
            node.results().zip(results).for_each(|(old, new)| map.set(old, new));
            found.copy_from_slice(&outgoing);
        }
        builder.set_origin(outer);
        for (result, tangent) in node.results().zip(found) {
            flowing[result.index()] = tangent.filter(|_| graph.ty(result).dtype.is_float());
        }
    }
    let outputs = graph.outputs().iter().map(|&value| map.get(value)).collect();
    Ok((outputs, graph.outputs().iter().map(|value| flowing[value.index()]).collect()))
}
