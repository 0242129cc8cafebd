//! Collectives over all devices of a slice, as two.

use meshloom_hlo::mesh::{Mesh, MeshAxis};

use crate::ir::{BodyCache, Graph, GraphCopy, NodeRef, Values};
use crate::ops::{AllGather, Group, Op, ReduceScatter};
use crate::pjrt::WholeSlice;

/// Makes each all-gather and reduce-scatter over as many devices as a slice has two: over some of its axes, and over
/// the others. Together they send the same bytes. [`WholeSlice`] says where that pays.
///
/// Ranks count along the axes, the first of which is the most major. So a reduce-scatter begins with the major axes,
/// and an all-gather ends with them. A group over one axis stays as it is; [`levels_of_axis`] says where to cut that
/// before.
pub fn two_level_collectives(graph: &Graph, mesh: &Mesh, slice: WholeSlice) -> Graph {
    Levels { mesh, slice }.run(graph, &mut BodyCache::default())
}

/// The axis that has all devices of a slice, and the size of the major one of its two levels; `None` if there is no
/// such axis, or the minor level does not divide it.
pub fn levels_of_axis(mesh: &Mesh, slice: WholeSlice) -> Option<(MeshAxis, usize)> {
    let is_whole = |&axis: &MeshAxis| mesh.size(axis) == slice.devices && mesh.dcn_size(axis) == 1;
    let major = slice.devices.checked_div(slice.minor)?;
    let divides = slice.minor > 1 && major > 1 && slice.devices.is_multiple_of(slice.minor);
    mesh.axes().filter(|_| divides).find(is_whole).map(|axis| (axis, major))
}

struct Levels<'a> {
    mesh: &'a Mesh,
    slice: WholeSlice,
}

impl Levels<'_> {
    fn run(&self, graph: &Graph, bodies: &mut BodyCache) -> Graph {
        let mut copy = GraphCopy::with_inputs(graph);
        for node in graph.nodes() {
            let in_two = self.levels(node.op()).and_then(|ops| push_both(&mut copy, node, ops));
            if in_two.is_none() {
                let op = bodies.transform_op(node.op(), |body, bodies| self.run(body, bodies));
                copy.node_as(node, op.unwrap_or_else(|| node.op().clone()));
            }
        }
        copy.finish()
    }

    /// The two collectives that do what one over a whole slice does, in their order.
    fn levels(&self, op: &Op) -> Option<[Op; 2]> {
        match op {
            Op::AllGather(AllGather { group, dim }) => {
                let [major, minor] = self.groups(group)?;
                Some([minor, major].map(|group| AllGather { group, dim: *dim }.into()))
            }
            Op::ReduceScatter(ReduceScatter { group, dim }) => {
                Some(self.groups(group)?.map(|group| ReduceScatter { group, dim: *dim }.into()))
            }
            _ => None,
        }
    }

    /// A group over a whole slice as one along its major axes and one along its minor ones, which have as many devices
    /// as the minor level, or nearly.
    fn groups(&self, group: &Group) -> Option<[Group; 2]> {
        if group.size != self.slice.devices || group.axes.len() < 2 {
            return None;
        }
        let cut = |first: usize| {
            let (major, minor) = group.axes.split_at(first);
            [major, minor].map(|axes| Group::new(self.mesh, axes))
        };
        let cuts = (1..group.axes.len()).map(cut).filter(|levels| levels.iter().all(|level| level.size > 1));
        cuts.min_by_key(|[_, minor]| minor.size.abs_diff(self.slice.minor))
    }
}

/// Adds two collectives, the second of what the first makes.
fn push_both(copy: &mut GraphCopy<'_>, node: NodeRef<'_>, ops: [Op; 2]) -> Option<()> {
    let mut values: Values = node.operands().iter().map(|&value| copy.map.get(value)).collect();
    let outer = copy.builder.origin();
    copy.builder.set_origin(node.origin());
    for op in ops {
        values = copy.builder.push(op, &values).ok()?;
    }
    copy.builder.set_origin(outer);
    node.results().zip(values).for_each(|(old, new)| copy.map.set(old, new));
    Some(())
}
