//! Collectives within processes and between them.

use meshloom_hlo::mesh::{Mesh, MeshAxis};

use super::replaced;
use crate::ir::{BodyCache, Graph, GraphBuilder, OpError, TensorType, Value};
use crate::ops::{AllGather, AllReduce, AllToAll, Group, Op, ReduceKind, ReduceScatter, Reshape};

/// Cuts each collective whose group has several devices in each of several processes into some that stay within a
/// process and some that cross, so that as few bytes as possible cross: parts of a process are put together after they
/// have crossed, and added up before. Permutes stay as they are. The mesh has axes that were cut where processes begin
/// ([`Mesh::at_processes`]).
///
/// The idea is that of hierarchical collectives, as in NCCL's trees and MPI libraries: the slow link sees each byte
/// once.
pub fn collectives_by_process(graph: &Graph, mesh: &Mesh, processes: usize) -> Graph {
    // A collective that cannot be written is a defect. It then stays, and emission says that it is neither within a
    // process nor between processes.
    replaced(graph, &mut BodyCache::default(), &|copy, node| {
        let (levels, operands) = (levels(node.op(), mesh, processes)?, copy.operands(node));
        let mut writer = ProcessWriter { builder: &mut copy.builder, levels: &levels };
        operands.into_iter().map(|operand| writer.collective(node.op(), operand).ok()).collect()
    })
}

/// The part of a group along axes that all cross processes, or all stay within one.
struct ProcessLevel {
    group: Group,
    crosses: bool,
}

/// The levels of a collective's group, major to minor, if it has several.
fn levels(op: &Op, mesh: &Mesh, processes: usize) -> Option<Vec<ProcessLevel>> {
    let group = match op {
        Op::AllGather(AllGather { group, .. })
        | Op::AllReduce(AllReduce { group, .. })
        | Op::AllToAll(AllToAll { group, .. })
        | Op::ReduceScatter(ReduceScatter { group, .. }) => group,
        _ => return None,
    };
    let axes: Vec<MeshAxis> = group.axes.iter().copied().filter(|&axis| mesh.size(axis) > 1).collect();
    let crosses = |axis: MeshAxis| mesh.crosses(axis, processes);
    let runs = axes.chunk_by(|&a, &b| crosses(a) == crosses(b));
    let levels: Vec<ProcessLevel> =
        runs.map(|axes| ProcessLevel { group: Group::new(mesh, axes), crosses: crosses(axes[0]) }).collect();
    (levels.len() > 1).then_some(levels)
}

struct ProcessWriter<'a> {
    builder: &'a mut GraphBuilder,
    levels: &'a [ProcessLevel],
}

impl ProcessWriter<'_> {
    fn collective(&mut self, op: &Op, operand: Value) -> Result<Value, OpError> {
        match op {
            Op::AllGather(AllGather { dim, .. }) => self.all_gather(operand, *dim),
            Op::AllToAll(AllToAll { dim, .. }) => self.all_to_all(operand, *dim),
            Op::ReduceScatter(ReduceScatter { dim, .. }) => self.reduce_scatter(operand, *dim),
            Op::AllReduce(AllReduce { kind, .. }) => self.all_reduce(operand, *kind),
            _ => Ok(operand),
        }
    }

    fn one(&mut self, op: impl Into<Op>, operand: Value) -> Result<Value, OpError> {
        self.builder.push1(op.into(), &[operand])
    }

    fn ty(&self, value: Value) -> TensorType {
        self.builder.ty(value).clone()
    }

    /// The indices of the levels, those that cross first.
    fn crossing_first(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.levels.len()).collect();
        order.sort_by_key(|&level| !self.levels[level].crosses);
        order
    }

    /// The value with a dimension for each level in front of dimension `dim`, or in its place.
    fn spread(&mut self, value: Value, dim: usize, sizes: &[usize], size: usize) -> Result<Value, OpError> {
        let mut dims = self.ty(value).dims;
        dims[dim] = size;
        dims.insert_many(dim, sizes.iter().copied());
        self.one(Reshape { dims }, value)
    }

    /// The value with the dimensions of the levels and the one behind them merged into one.
    fn joined(&mut self, value: Value, dim: usize) -> Result<Value, OpError> {
        let mut dims = self.ty(value).dims;
        let joined = dims.drain(dim..=dim + self.levels.len()).product();
        dims.insert(dim, joined);
        self.one(Reshape { dims }, value)
    }

    /// Parts cross first, while they are small: each level fills a dimension of its own.
    fn all_gather(&mut self, operand: Value, dim: usize) -> Result<Value, OpError> {
        let size = self.ty(operand).dims[dim];
        let mut value = self.spread(operand, dim, &vec![1; self.levels.len()], size)?;
        for level in self.crossing_first() {
            value = self.one(AllGather { group: self.levels[level].group.clone(), dim: dim + level }, value)?;
        }
        self.joined(value, dim)
    }

    /// Parts cross last, when they are small.
    fn reduce_scatter(&mut self, operand: Value, dim: usize) -> Result<Value, OpError> {
        let mut value = self.cut(operand, dim)?;
        for level in self.crossing_first().into_iter().rev() {
            value = self.one(ReduceScatter { group: self.levels[level].group.clone(), dim: dim + level }, value)?;
        }
        self.joined(value, dim)
    }

    /// Rank `(i, j)` sends part `(a, b)` to rank `(a, b)`: along each level by itself, with a dimension for each.
    fn all_to_all(&mut self, operand: Value, dim: usize) -> Result<Value, OpError> {
        let mut value = self.cut(operand, dim)?;
        for level in self.crossing_first() {
            value = self.one(AllToAll { group: self.levels[level].group.clone(), dim: dim + level }, value)?;
        }
        self.joined(value, dim)
    }

    fn cut(&mut self, operand: Value, dim: usize) -> Result<Value, OpError> {
        let sizes: Vec<usize> = self.levels.iter().map(|level| level.group.size).collect();
        let size = self.ty(operand).dims[dim] / sizes.iter().product::<usize>();
        self.spread(operand, dim, &sizes, size)
    }

    /// For sums that have a dimension to cut, each device of a process adds up one part, sends it across, and gets the
    /// parts of the others. Else the whole value crosses from each device.
    fn all_reduce(&mut self, operand: Value, kind: ReduceKind) -> Result<Value, OpError> {
        let of = |crosses: bool| -> Vec<Group> {
            self.levels.iter().filter(|level| level.crosses == crosses).map(|level| level.group.clone()).collect()
        };
        let (within, crossing) = (of(false), of(true));
        let parts: usize = within.iter().map(|group| group.size).product();
        let dim = self.ty(operand).dims.iter().position(|&size| size > 0 && size.is_multiple_of(parts));
        let cut = dim.filter(|_| kind == ReduceKind::Sum);
        let mut value = operand;
        for group in within.iter().cloned() {
            value = match cut {
                Some(dim) => self.one(ReduceScatter { group, dim }, value)?,
                None => self.one(AllReduce { group, kind }, value)?,
            };
        }
        for group in crossing {
            value = self.one(AllReduce { group, kind }, value)?;
        }
        if let Some(dim) = cut {
            for group in within.into_iter().rev() {
                value = self.one(AllGather { group, dim }, value)?;
            }
        }
        Ok(value)
    }
}
