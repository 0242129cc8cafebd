//! The weights' half of a cut backward half, one layer at a time.

use super::cut::is_work;
use super::weights::SplitBackward;
use crate::ir::{DType, Definition, Graph, GraphBuilder, GraphCopy, NodeRef, OpError, PortInfo, TensorType, Value};
use crate::ops::{DynamicSlice, Op, Scan};

/// The weights' half in independent pieces, which are the iterations of a loop over layers.
#[derive(Clone, Debug)]
pub struct WeightsPieces {
    /// The number of pieces.
    pub count: usize,
    /// One piece. It takes the inputs of the weights' half and the number of the piece (`s32[]`, below `count`). It
    /// returns one slice of each cotangent: the results of the weights' half without their leading dimension.
    pub piece: Graph,
}

impl SplitBackward {
    /// Returns the weights' half in pieces, or `None` if it is more than one loop that carries nothing. The ops before
    /// the loop do no work, and are part of every piece.
    ///
    /// # Errors
    /// A part of the loop does not fit, which would be a defect.
    pub fn weights_pieces(&self) -> Result<Option<WeightsPieces>, OpError> {
        let graph = self.weights_half();
        let Some((scan, node)) = the_loop(graph) else { return Ok(None) };
        let is_sliced = |&value: &Value| match graph.definition(value) {
            Definition::Result(maker, _) if maker == node.id => true,
            _ => graph.ty(value).dims.first() == Some(&scan.length),
        };
        if !graph.outputs().iter().all(is_sliced) {
            return Ok(None);
        }
        let mut copy = GraphCopy::of_body(graph, graph.inputs().iter().copied());
        let number = copy.builder.input(TensorType::scalar(DType::S32), PortInfo::default());
        for other in graph.nodes().filter(|other| other.id != node.id) {
            copy.node(other);
        }
        let operands: Vec<Value> = node.operands().iter().map(|&value| copy.map.get(value)).collect();
        let builder = &mut copy.builder;
        builder.set_origin(node.origin());
        let (invariants, stacked) = operands.split_at(scan.invariant_count);
        let mut arguments = invariants.to_vec();
        for &value in stacked {
            arguments.push(slice(builder, value, number)?);
        }
        let of_loop = builder.inline(&scan.body, &arguments);
        let mut outputs = Vec::new();
        for &output in graph.outputs() {
            outputs.push(match graph.definition(output) {
                Definition::Result(maker, index) if maker == node.id => of_loop[index as usize],
                _ => {
                    let whole = copy.map.get(output);
                    slice(&mut copy.builder, whole, number)?
                }
            });
        }
        Ok(Some(WeightsPieces { count: scan.length, piece: copy.builder.finish_body(outputs) }))
    }
}

/// Returns the loop that a graph consists of, if it carries nothing, no other node is work, and no node reads its
/// results.
fn the_loop(graph: &Graph) -> Option<(&Scan, NodeRef<'_>)> {
    let work: Vec<NodeRef<'_>> = graph.nodes().filter(|node| is_work(node.op())).collect();
    let [node] = work[..] else { return None };
    let Op::Scan(scan) = node.op() else { return None };
    let is_result =
        |value: &Value| matches!(graph.definition(*value), Definition::Result(maker, _) if maker == node.id);
    let is_read = graph.nodes().any(|other| other.operands().iter().any(is_result));
    (scan.carry_count == 0 && !is_read).then_some((scan, node))
}

/// Returns the slice with this number.
fn slice(builder: &mut GraphBuilder, stacked: Value, number: Value) -> Result<Value, OpError> {
    let mut sizes = builder.ty(stacked).dims.clone();
    let dims: Vec<usize> = sizes[1..].to_vec();
    sizes[0] = 1;
    let zero = builder.splat(TensorType::scalar(DType::S32), 0.0);
    let mut operands = vec![stacked, number];
    operands.extend(dims.iter().map(|_| zero));
    let slice = builder.push1(DynamicSlice { sizes }, &operands)?;
    builder.reshape(slice, &dims)
}
