//! Carrying out a plan: steps become nodes of the local graph.

use super::plan::{ReshardPlan, Step};
use crate::ir::{Axes, DType, Dims, GraphBuilder, OpError, Value};
use crate::ops::{
    AllGather, AllReduce, AllToAll, AxisIndex, AxisList, CollectivePermute, Convert, Group, Op, ReduceKind,
    ReduceScatter,
};
use meshloom_hlo::mesh::{Mesh, MeshAxis};

/// Pushes the nodes that a plan asks for; returns the value after them.
///
/// # Errors
/// A dimension does not divide by the axes it gains.
pub fn reshard(builder: &mut GraphBuilder, mesh: &Mesh, value: Value, plan: &ReshardPlan) -> Result<Value, OpError> {
    plan.steps.iter().try_fold(value, |value, step| apply(builder, mesh, value, step))
}

fn apply(builder: &mut GraphBuilder, mesh: &Mesh, value: Value, step: &Step) -> Result<Value, OpError> {
    match step {
        Step::Slice { dim, axes } => slice(builder, value, *dim, Group::new(mesh, axes)),
        Step::AllGather { dim, axes } => {
            builder.push1(AllGather { group: Group::new(mesh, axes), dim: *dim }, &[value])
        }
        Step::ReduceScatter { dim, axes } => {
            combine(builder, ReduceScatter { group: Group::new(mesh, axes), dim: *dim }, value)
        }
        Step::AllReduce { axes } => {
            combine(builder, AllReduce { group: Group::new(mesh, axes), kind: ReduceKind::Sum }, value)
        }
        Step::AllToAll { from, to, axes } => exchange(builder, value, *from, *to, Group::new(mesh, axes)),
        Step::Reorder { before, after, .. } => {
            let pairs = reordered(mesh, before, after);
            builder.push1(CollectivePermute { group: Group::new(mesh, before), pairs }, &[value])
        }
    }
}

/// Pushes a collective that computes. Elements of less than a byte can be moved, but not computed with: they travel as
/// bytes.
pub(super) fn combine(builder: &mut GraphBuilder, collective: impl Into<Op>, value: Value) -> Result<Value, OpError> {
    let dtype = builder.ty(value).dtype;
    let wide = match dtype {
        DType::S4 => DType::S8,
        DType::U4 => DType::U8,
        _ => return builder.push1(collective, &[value]),
    };
    let bytes = builder.push1(Convert(wide), &[value])?;
    let result = builder.push1(collective, &[bytes])?;
    builder.push1(Convert(dtype), &[result])
}

/// This device's part of a dimension.
fn slice(builder: &mut GraphBuilder, value: Value, dim: usize, group: Group) -> Result<Value, OpError> {
    let size = builder.ty(value).dims[dim] / group.size;
    let rank = builder.push1(AxisIndex { group }, &[])?;
    let start = builder.scale(rank, size as f64)?;
    builder.dynamic_slice_dim(value, dim, start, size)
}

/// The axes leave dimension `from` and join dimension `to`. XLA's all-to-all cuts and joins along one dimension, so the
/// parts get a dimension of their own, which then moves to where they are joined.
fn exchange(builder: &mut GraphBuilder, value: Value, from: usize, to: usize, group: Group) -> Result<Value, OpError> {
    let dims = builder.ty(value).dims.clone();
    let count = group.size;
    // [.., to, ..] -> [.., count, to / count, ..]: part i of `to` goes to rank i.
    let mut cut: Dims = dims.clone();
    cut[to] /= count;
    cut.insert(to, count);
    let cut_value = builder.reshape(value, &cut)?;
    let exchanged = builder.push1(AllToAll { group, dim: to }, &[cut_value])?;
    // One part of `from` has arrived for each sender: move the senders in front of `from`, and join.
    // Without the senders, dimension `from` is where it was before the cut.
    let mut order: AxisList = (0..cut.len()).filter(|&dim| dim != to).collect();
    order.insert(from, to);
    let moved = builder.transpose(exchanged, &order)?;
    let mut joined = dims;
    joined[to] /= count;
    joined[from] *= count;
    builder.reshape(moved, &joined)
}

/// For each rank along `before`, the rank that needs its part when the dimension is split along `after`.
fn reordered(mesh: &Mesh, before: &Axes, after: &Axes) -> Box<[(u32, u32)]> {
    let size = |axis: &MeshAxis| mesh.size(*axis);
    let count: usize = before.iter().map(size).product();
    // The device at position p along `before` holds part p. Part p is wanted by the device whose positions along
    // `after` spell p.
    let wanted_by = |part: usize| {
        let mut rest = part;
        let mut positions = [0; Mesh::MAX_AXES];
        for axis in after.iter().rev() {
            positions[axis.index()] = rest % size(axis);
            rest /= size(axis);
        }
        before.iter().fold(0, |rank, axis| rank * size(axis) + positions[axis.index()])
    };
    // A device that keeps its part sends it to itself: a device to which nothing is sent gets zeros.
    (0..count).map(|part| (part as u32, wanted_by(part) as u32)).collect()
}
