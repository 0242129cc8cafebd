//! Passes that make a graph smaller and leave its results the same.
//!
//! Each is a function from graph to graph. No pass changes the rounding of any result: results are equal bit for bit,
//! where a back end computes each op as it stands. (XLA's own fusion may contract a product and a sum into one
//! rounding, so that a program with other neighbours around an op may differ in the last bit.)
//!
//! [`PASSES`](crate::compile::PASSES) lists them in their order, and says what each does. All but the first and the
//! last share one walk when they run together, in which each sees what the others make; see `rewrite`.
//!
//! [`probe`] makes a graph that counts where another has numbers which are not finite.
//!
//! Partitioned graphs have passes of their own ([`LOCAL_PASSES`](crate::compile::LOCAL_PASSES)), which may change the
//! order of additions.

mod algebra;
mod collectives;
mod dce;
mod evaluate;
mod fold;
mod markers;
pub mod probe;
mod rewrite;
mod unroll;

pub use algebra::algebra_rules;
pub use collectives::{
    CollectiveLevels, CollectiveLimits, CollectiveMatmul, cancel_collectives, collective_matmul,
    collectives_by_process, combine_collectives, pack_collectives,
};
pub use dce::eliminate_dead_code;
pub use evaluate::evaluate;
pub use rewrite::{LARGEST_FOLDED, RewriteRule};
pub use unroll::unroll;

pub(crate) use algebra::SIMPLIFY;
pub(crate) use collectives::hoisting;
pub(crate) use fold::FOLD_CONSTANTS;
pub(crate) use markers::ERASE_MARKERS;
pub(crate) use rewrite::{HOIST, HOIST_SMALL, MERGE, Rewrite, SCAN_CARRIES, SCAN_OPERANDS};

use std::borrow::Cow;

use crate::ir::Graph;
use crate::ops::Op;

/// Drops names and gradient stops, and writes the bodies of checkpoints and custom VJPs in place. It is for a graph
/// that is not differentiated any more.
pub fn erase_markers(graph: &Graph) -> Graph {
    ERASE_MARKERS.run(graph)
}

/// Moves values that are the same in every iteration of a scan in front of it, whatever their size. Differentiation
/// wants this: a value that is computed in front of a loop is no residual of each iteration.
pub fn hoist_invariants(graph: &Graph) -> Graph {
    if contains_loop(graph) { HOIST.run(graph) } else { graph.clone() }
}

/// As [`hoist_invariants`], for a program that will not be differentiated again. Values stay in the loop if they are
/// larger than the values they are made of, or if they are recomputed.
pub fn hoist_small_invariants(graph: &Graph) -> Graph {
    if contains_loop(graph) { HOIST_SMALL.run(graph) } else { graph.clone() }
}

/// Merges nodes with equal ops and operands, equal bodies, and equal operands and results of scans.
pub fn eliminate_common_subexpressions(graph: &Graph) -> Graph {
    MERGE.run(graph)
}

/// Prepares a graph for differentiation. Invariants move in front of loops, so that they are no residuals of an
/// iteration, and dead carries go, so that no loop is differentiated in vain. A graph without loops is left as it is.
pub(crate) fn prepare(graph: &Graph) -> Cow<'_, Graph> {
    if contains_loop(graph) { Cow::Owned(hoist_invariants(&eliminate_dead_code(graph))) } else { Cow::Borrowed(graph) }
}

/// Whether a graph has a loop of known length, in a region or outside.
fn contains_loop(graph: &Graph) -> bool {
    let is_loop = |op: &Op| op.trip_count().is_some() || op.regions().any(|body| contains_loop(body));
    graph.nodes().any(|node| node.op().as_primitive().is_none() && is_loop(node.op()))
}
