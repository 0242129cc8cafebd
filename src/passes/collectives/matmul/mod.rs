//! Collective matmul: parts travel around a ring while products of the parts that are here are made.
//!
//! | pattern | becomes |
//! |---|---|
//! | products of what is gathered with weights | a product of each part as it comes, put in its place of the result |
//! | the reduce-scattered sum of products with weights | sums that travel, to which devices add their products |
//!
//! A part travels `n / 2` places at most, one half of the parts each way round, and `n - 1` parts in all reach or leave
//! a device: as many bytes as the all-gather or the reduce-scatter sends. The rounds are written out, so back ends can
//! send while they multiply. A product that sums over the gathered dimension, as in the gradient of weights, and any
//! other reader of the gathered value, gets it assembled from the same parts: partial sums of a weight's gradient would
//! be rounded, or held in a wider type, once for each part.
//!
//! Only activations are treated so, and only products with weights: see [`Computed`]. A weight's gather can be started
//! long before its product, and the result of a gradient's reduce-scatter is needed long after.
//!
//! Source: Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
//! Models", ASPLOS 2023, doi 10.1145/3567955.3567959.

mod activations;
mod pays;
mod plan;
mod ring;

pub use pays::CollectiveMatmul;

use std::convert::Infallible;
use std::sync::Arc;

use activations::Computed;
use plan::Replacements;
use ring::RingCopy;

use crate::ir::{Graph, GraphCopy, Memo};
use crate::ops::{Analysis, Op};
use crate::passes::MERGE;

/// Makes rings of all-gathers in front of products and of reduce-scatters behind them, where `choice` says so: in every
/// region too, but those of conditionals and `while`s. The graph must have no dead nodes, and equal nodes must be
/// merged, since readers are counted.
pub fn collective_matmul(graph: &Graph, choice: CollectiveMatmul) -> Graph {
    if choice == CollectiveMatmul::Off {
        return graph.clone();
    }
    let rings = MatmulPass { choice, bodies: Memo::default() }.graph(graph, &vec![false; graph.inputs().len()]);
    // Each ring makes its own places and slices of parts, and bodies may have become equal.
    MERGE.run(&rings)
}

struct MatmulPass {
    choice: CollectiveMatmul,
    /// Bodies that have been done, by the flags of their inputs.
    bodies: Memo<Vec<bool>, Arc<Graph>>,
}

impl MatmulPass {
    /// A graph, given which of its inputs are computed.
    fn graph(&self, graph: &Graph, inputs: &[bool]) -> Graph {
        let computed = Computed.values(graph, inputs);
        let plan = Replacements::of(graph, &computed, self.choice);
        let mut walk = RingCopy::new(GraphCopy::with_inputs(graph), &plan);
        for node in graph.nodes() {
            // Devices may take different branches and numbers of iterations, and permutes of CPU plugins wait for all
            // devices, not for those of a group alone.
            if node.op().as_primitive().is_some() || matches!(node.op(), Op::Cond(_) | Op::While(_)) {
                walk.node(node, None);
                continue;
            }
            let operands: Vec<bool> = node.operands().iter().map(|value| computed[value.index()]).collect();
            let body = |body: &Arc<Graph>, inputs: Vec<bool>| {
                let done = || Ok::<_, Infallible>(Arc::new(self.graph(body, &inputs)));
                let Ok(done) = self.bodies.of(body, inputs.clone(), done);
                done
            };
            walk.node(node, Computed.map_bodies(node.op(), &operands, body));
        }
        walk.finish()
    }
}
