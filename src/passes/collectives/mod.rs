//! Rewrites of collectives, for partitioned graphs.
//!
//! Every device must run the same collectives in the same order. So no collective moves into or out of a branch or a
//! `while`: devices may take different branches and numbers of iterations, and a device that skips a collective blocks
//! all others. A collective may move out of a scan, whose length is the same everywhere, and within one graph, since no
//! device skips a part of it.
//!
//! The order of additions may change, so results are equal up to rounding, unlike those of the other passes.

mod cancel;
mod combine;
mod levels;
mod matmul;
mod pack;
mod processes;
mod varying;

pub use cancel::cancel_collectives;
pub use combine::combine_collectives;
pub use levels::CollectiveLevels;
pub use matmul::{CollectiveMatmul, collective_matmul};
pub use pack::pack_collectives;
pub use processes::collectives_by_process;

use super::rewrite::{Bound, Rewrite};
use crate::ir::{BodyCache, Graph, GraphCopy, NodeRef, Values};

const MIB: u64 = 1 << 20;

/// Copies a graph and its bodies. `write` pushes other collectives in the place of a node and returns their results, or
/// declines.
fn replaced(
    graph: &Graph,
    bodies: &mut BodyCache,
    write: &dyn Fn(&mut GraphCopy<'_>, NodeRef<'_>) -> Option<Values>,
) -> Graph {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let outer = copy.builder.origin();
        copy.builder.set_origin(node.origin());
        let written = write(&mut copy, node);
        copy.builder.set_origin(outer);
        match written {
            Some(values) => node.results().zip(values).for_each(|(old, new)| copy.map.set(old, new)),
            None => bodies.copy(&mut copy, node, |body, bodies| replaced(body, bodies, write)),
        }
    }
    copy.finish()
}

/// The memory that the rewrites may spend on fewer collectives, and the places where they may cut products for their
/// sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveLimits {
    /// The most bytes, of operands or of results, that one combined collective has on a device. At 32 MiB, a link of
    /// 100 GB/s is busy for 300 microseconds: a hundred times the time that it takes to start a collective, so that
    /// more would gain nothing but hold results longer.
    pub combined_bytes: u64,
    /// The most bytes of an all-reduce of the backward pass that is combined with others: 1 MiB, as for other
    /// collectives. They are copied side by side and apart again.
    /// [`LowerOptions::on`](crate::compile::LowerOptions::on) lowers it for CPUs.
    pub all_reduce_bytes: u64,
    /// The most bytes that one loop may hold of values gathered in front of it instead of in each iteration: 64 MiB,
    /// which is less than a thousandth of an accelerator's memory.
    pub hoisted_bytes: u64,
    /// Whether all-gathers in front of products, and reduce-scatters behind them, become rings. By default they do not.
    pub matmul: CollectiveMatmul,
    /// The most bytes, of operands or of results, that gathers or reduce-scatters beside a loop have as one buffer; by
    /// default 0, so each is sent by itself. [`LowerOptions::on`](crate::compile::LowerOptions::on) sets it where a
    /// loop hides only one transfer.
    pub packed_bytes: u64,
}

impl CollectiveLimits {
    /// [`CollectiveLimits::packed_bytes`] where packing pays: 2 GiB, so that the offsets in a buffer fit 32 bits. A
    /// repeat of Llama 3 70B has 0.4 GiB of weights on a device, and 0.8 GiB of their gradients.
    pub const PACKED_BYTES: u64 = 2048 * MIB;
    /// The most of [`CollectiveLimits::all_reduce_bytes`] on a CPU: 64 KiB. Its virtual devices copy in the memory that
    /// they all compute in, and XLA combines all-reduces there, but no other collectives, without copies.
    pub const ALL_REDUCE_BYTES_ON_CPU: u64 = MIB / 16;
}

impl Default for CollectiveLimits {
    fn default() -> CollectiveLimits {
        CollectiveLimits {
            combined_bytes: 32 * MIB,
            all_reduce_bytes: MIB,
            hoisted_bytes: 64 * MIB,
            matmul: CollectiveMatmul::Off,
            packed_bytes: 0,
        }
    }
}

/// Gathers values that no iteration of a scan changes once, in front of it: as many as fit into `limit` bytes for each
/// loop, in the order of the body. The nodes that make a gather's operand move along. Recomputation stays where it is:
/// its purpose is to hold nothing.
pub(crate) fn hoisting(limit: u64) -> Rewrite {
    Rewrite { hoist: Some(Bound::Gathers(limit)), ..Rewrite::NOTHING }
}
