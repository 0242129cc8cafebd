//! Collectives over several dimensions of a slice, as one for each level.

use meshloom_hlo::mesh::{Mesh, MeshAxis, axes_along_slice};

use super::replaced;
use crate::ir::{BodyCache, Graph, NodeRef};
use crate::ops::{AllGather, Group, Op, ReduceScatter};
use crate::pjrt::SliceLevels;

/// Makes several collectives of one over several dimensions of a slice, where [`SliceLevels`] says that it pays.
/// Together they send the same bytes.
///
/// Ranks count along the axes, and the first axis is the most major. So a reduce-scatter begins with the major axes,
/// and an all-gather ends with them. A group over one axis stays as it is, so axes are cut [before](Self::parts), where
/// the next dimension begins. Collectives across slices stay: in levels, an all-gather would send more over the slow
/// links between them.
pub struct CollectiveLevels<'a> {
    levels: &'a SliceLevels,
    /// The parts into which each axis is to be cut, major to minor.
    pub parts: Vec<Vec<usize>>,
    /// Names of the axes that cross slices.
    crossing: Vec<String>,
}

impl<'a> CollectiveLevels<'a> {
    /// Finds how the axes of a mesh lie in slices. Returns `None` if the mesh is not made of such slices.
    pub fn new(mesh: &Mesh, levels: &'a SliceLevels) -> Option<CollectiveLevels<'a>> {
        let along = axes_along_slice(mesh, &levels.shape)?;
        let crosses = |(axis, parts): &(MeshAxis, &Vec<usize>)| mesh.size(*axis) > 1 && parts.is_empty();
        let crossing = mesh.axes().zip(&along).filter(crosses).map(|(axis, _)| mesh.name(axis).to_owned()).collect();
        let devices: usize = levels.shape.iter().product();
        let parts = mesh.axes().zip(along).map(|(axis, parts)| match mesh.size(axis) {
            size if parts.is_empty() || !(levels.gathers.is_some() || levels.whole && size == devices) => vec![size],
            _ => parts,
        });
        Some(CollectiveLevels { levels, parts: parts.collect(), crossing })
    }

    /// The graph of one device with its collectives in levels; `mesh` has axes that were cut.
    pub fn write(&self, graph: &Graph, mesh: &Mesh) -> Graph {
        replaced(graph, &mut BodyCache::default(), &|copy, node| {
            let (ops, operands) = (self.levels(node, copy.source, mesh)?, copy.operands(node));
            ops.into_iter().try_fold(operands, |values, op| copy.builder.push(op, &values).ok())
        })
    }

    /// The collectives that replace one, in their order.
    fn levels(&self, node: NodeRef<'_>, graph: &Graph, mesh: &Mesh) -> Option<Vec<Op>> {
        match node.op() {
            Op::AllGather(AllGather { group, dim }) => {
                let bytes: u64 = node.results().map(|value| graph.ty(value).byte_count() as u64).sum();
                let each = self.levels.gathers.is_some_and(|smallest| bytes >= smallest);
                let groups = if each { self.each_axis(group, mesh) } else { self.whole_slice(group, mesh) }?;
                Some(groups.into_iter().rev().map(|group| AllGather { group, dim: *dim }.into()).collect())
            }
            Op::ReduceScatter(ReduceScatter { group, dim }) => {
                let groups = self.whole_slice(group, mesh)?;
                Some(groups.into_iter().map(|group| ReduceScatter { group, dim: *dim }.into()).collect())
            }
            _ => None,
        }
    }

    /// A group as one along each of its axes.
    fn each_axis(&self, group: &Group, mesh: &Mesh) -> Option<Vec<Group>> {
        let is_one = group.axes.len() < 2 || self.crosses(group, mesh);
        (!is_one).then(|| group.axes.iter().map(|&axis| Group::new(mesh, &[axis])).collect())
    }

    /// A group over a whole slice as one along its major axes and one along its minor ones, which have as many devices
    /// as the slice's first dimension, or nearly.
    fn whole_slice(&self, group: &Group, mesh: &Mesh) -> Option<Vec<Group>> {
        let SliceLevels { shape, whole, .. } = self.levels;
        let &first = shape.first()?;
        if !whole || group.size != shape.iter().product::<usize>() || self.crosses(group, mesh) {
            return None;
        }
        let cut = |first: usize| {
            let (major, minor) = group.axes.split_at(first);
            [major, minor].map(|axes| Group::new(mesh, axes))
        };
        let cuts = (1..group.axes.len()).map(cut).filter(|levels| levels.iter().all(|level| level.size > 1));
        cuts.min_by_key(|[_, minor]| minor.size.abs_diff(first)).map(Vec::from)
    }

    fn crosses(&self, group: &Group, mesh: &Mesh) -> bool {
        group.axes.iter().any(|&axis| self.crossing.iter().any(|name| name == mesh.parent_name(axis)))
    }
}
