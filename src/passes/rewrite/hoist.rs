//! Loop-invariant code motion.

use std::sync::Arc;

use super::Rewrite;
use crate::ir::{Graph, GraphCopy, NodeRef, Origin, Phase, TensorType, Value, ValueMap, Values};
use crate::ops::{Class, Effect, Op, Scan};

/// Moves nodes of scan bodies that depend on invariants alone in front of the scan, innermost scans first.
///
/// Nodes that cost nothing to repeat stay: constants, positions, broadcasts and conversions to a narrower type.
/// Outside, a broadcast would fill memory, and its gradient, summed over the iterations, would be as large; the
/// gradient of a narrowed value would be summed in the narrow type.
///
/// Differentiation runs it first, so that a value that is the same in every iteration is no residual of each.
pub(crate) const HOIST: Rewrite = Rewrite { hoist: Some(Bound::None), ..Rewrite::NOTHING };

/// As [`HOIST`], for a program that will not be differentiated again. A value that the whole loop would have to hold
/// must not be larger than the values it is made of, unless every iteration has it in memory anyway. Recomputation
/// stays where it is: its purpose is that its results are not held.
pub(crate) const HOIST_SMALL: Rewrite = Rewrite { hoist: Some(Bound::Operands), ..Rewrite::NOTHING };

/// The size of a value that may enter a loop as a new invariant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::passes) enum Bound {
    /// The value may have any size.
    None,
    /// The value may be as large as the values it is made of.
    Operands,
    /// The value is gathered from other devices; all of these have at most this many bytes together.
    Gathers(u64),
}

/// The place where a node of a scan's body is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoopSide {
    /// The node is not needed.
    Dropped,
    Inside,
    Outside,
    /// The node is computed on both sides.
    Repeated,
}

/// Decides the place of each node of a scan's body, and the values that enter the loop as new invariants.
fn place(scan: &Scan, bound: Bound) -> (Vec<LoopSide>, Vec<Value>) {
    let body = &*scan.body;
    let mut invariant = vec![false; body.value_count()];
    let mut constant = vec![false; body.value_count()];
    scan.body.inputs()[..scan.invariant_count].iter().for_each(|input| invariant[input.index()] = true);
    // Nodes whose results must not enter the loop from outside.
    let mut stays = vec![false; body.node_count()];
    let mut room = Room(bound);
    // The bytes of the values that a free value is made of. Any other value is made of itself.
    let mut source_bytes: Vec<usize> = (0..body.value_count()).map(|_| 0).collect();
    body.inputs().iter().for_each(|&input| source_bytes[input.index()] = body.ty(input).byte_count());
    for node in body.nodes() {
        let all = |flags: &[bool]| node.operands().iter().all(|value| flags[value.index()]);
        let recomputed = bound != Bound::None && node.origin().phase == Phase::Recompute;
        let facts = node.op().facts();
        let is_invariant = all(&invariant) && facts.effect == Effect::None && !recomputed;
        // The number of bits of the type that a conversion converts from.
        let converted = match node.op() {
            Op::Convert(_) => Some(body.ty(node.operands()[0]).dtype.bit_count()),
            _ => None,
        };
        let is_constant = facts.is_constant()
            || (matches!(facts.class, Class::Broadcast | Class::Reshape) || converted.is_some()) && all(&constant);
        let narrows = |bits| bits > body.ty(node.result()).dtype.bit_count();
        let is_free = is_constant || facts.class == Class::Broadcast || converted.is_some_and(narrows);
        let made_of: usize = node.operands().iter().map(|value| source_bytes[value.index()]).sum();
        let grows = |result: Value| body.ty(result).byte_count() > made_of;
        let too_large = bound == Bound::Operands && facts.class.is_fused() && node.results().any(grows);
        stays[node.id.index()] = is_free || too_large || !room.admits(body, node, is_invariant);
        for result in node.results() {
            invariant[result.index()] = is_invariant;
            constant[result.index()] = is_constant;
            source_bytes[result.index()] = if is_free { made_of } else { body.ty(result).byte_count() };
        }
    }
    let mut read_inside = vec![false; body.value_count()];
    let mut read_outside = vec![false; body.value_count()];
    body.outputs().iter().for_each(|output| read_inside[output.index()] = true);
    let mut places = vec![LoopSide::Dropped; body.node_count()];
    let mut entering = Vec::new();
    for node in body.nodes().rev() {
        let is_read = |flags: &[bool]| node.results().any(|result| flags[result.index()]);
        let place = if !node.results().all(|result| invariant[result.index()]) {
            LoopSide::Inside
        } else if is_read(&read_inside) && stays[node.id.index()] {
            if is_read(&read_outside) { LoopSide::Repeated } else { LoopSide::Inside }
        } else if is_read(&read_inside) || is_read(&read_outside) {
            entering.extend(node.results().filter(|result| read_inside[result.index()]));
            LoopSide::Outside
        } else {
            LoopSide::Dropped
        };
        for operand in node.operands() {
            read_inside[operand.index()] |= matches!(place, LoopSide::Inside | LoopSide::Repeated);
            read_outside[operand.index()] |= matches!(place, LoopSide::Outside | LoopSide::Repeated);
        }
        places[node.id.index()] = place;
    }
    entering.sort_unstable();
    (places, entering)
}

/// The room that a loop still has for gathered values, if it may hold no others.
struct Room(Bound);

impl Room {
    /// Whether a node's results may enter the loop; if so, they take their room.
    fn admits(&mut self, body: &Graph, node: NodeRef<'_>, is_invariant: bool) -> bool {
        let Bound::Gathers(left) = &mut self.0 else { return true };
        if !is_invariant || !matches!(node.op(), Op::AllGather(_)) {
            return false;
        }
        let bytes = node.results().map(|result| body.ty(result).byte_count() as u64).sum();
        let rest = left.checked_sub(bytes);
        *left = rest.unwrap_or(*left);
        rest.is_some()
    }
}

/// Pushes nodes in front of a loop.
pub(super) type PushOutside<'p> = dyn FnMut(Origin, &Op, &[Value], &mut dyn Iterator<Item = TensorType>) -> Values + 'p;

/// Pushes the invariant part of a scan's body in front of it. Returns the rest, which gets further operands; `None` if
/// no node moves.
pub(super) fn hoist(scan: &Scan, operands: &mut Vec<Value>, bound: Bound, push: &mut PushOutside<'_>) -> Option<Scan> {
    let (places, entering) = place(scan, bound);
    if entering.is_empty() {
        return None;
    }
    let body = &*scan.body;
    let (invariants, rest) = operands.split_at(scan.invariant_count);
    let (old_invariants, old_rest) = body.inputs().split_at(scan.invariant_count);

    let mut outside = ValueMap::for_inputs(body, invariants);
    let mut inside = GraphCopy::of_body(body, old_invariants.iter().chain(&entering).chain(old_rest).copied());
    for inner in body.nodes() {
        let place = places[inner.id.index()];
        if matches!(place, LoopSide::Outside | LoopSide::Repeated) {
            let operands = outside.operands(inner);
            let mut types = inner.results().map(|value| body.ty(value).clone());
            let results = push(inner.origin(), inner.op(), &operands, &mut types);
            inner.results().zip(results).for_each(|(old, new)| outside.set(old, new));
        }
        if matches!(place, LoopSide::Inside | LoopSide::Repeated) {
            inside.node(inner);
        }
    }
    let invariant_count = scan.invariant_count + entering.len();
    let added: Vec<Value> = entering.iter().map(|&value| outside.get(value)).collect();
    *operands = [invariants, &added, rest].concat();
    Some(Scan { body: Arc::new(inside.finish_body(body.outputs().iter().copied())), invariant_count, ..scan.clone() })
}
