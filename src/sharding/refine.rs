//! Sub-axes: a mesh axis is cut where a reshape splits the dimension that the axis splits.
//!
//! If `heads = 64` is split over `tensor = 16` and reshaped to `[8, 8]`, as in grouped attention, neither new dimension
//! can take sixteen parts. With `tensor` cut into a major sub-axis of 8 and a minor one of 2, each splits one dimension
//! and nothing moves. Only the partitioner sees the cut mesh: ports and the ledger still say `tensor`. The notation,
//! `tensor:(8)2` for the sub-axis of size 2 below one of 8, is Shardy's (`docs/sharding_representation.md`).

use std::borrow::Cow;
use std::sync::Arc;

use super::{Axes, Mesh, MeshAxis, Shardings, Spec, propagate};
use crate::ir::{Graph, GraphCopy, PortInfo};
use crate::ops::{FactorRule, Group, ManualBorder, Op, Reshard, TensorFactors};

/// A graph with a spec for every value, over a mesh some of whose axes may have been cut.
#[derive(Debug)]
pub struct Propagated<'g> {
    /// The graph, its own specs in terms of the mesh below.
    pub graph: Cow<'g, Graph>,
    /// The mesh.
    pub mesh: Mesh,
    /// The specs of its values.
    pub shardings: Shardings,
}

/// An axis, and the size of its major part.
type MajorPart = (MeshAxis, usize);

/// A graph and its mesh with each axis cut into parts of these sizes, major to minor; `None` if no more axes fit.
pub fn cut_axes(graph: &Graph, mesh: &Mesh, sizes: &[Vec<usize>]) -> Option<(Graph, Mesh)> {
    mesh.cut_into(sizes).map(|(mesh, parts)| (refine(graph, &parts), mesh))
}

/// Propagates, and where a reshape splits a dimension in the middle of an axis, cuts the axis and propagates again.
pub fn propagate_with_sub_axes<'g>(graph: &'g Graph, mesh: &Mesh) -> Propagated<'g> {
    let shardings = propagate(graph, mesh);
    let mut done = Propagated { graph: Cow::Borrowed(graph), mesh: mesh.clone(), shardings };
    // Every cut makes an axis smaller, and a mesh has room for a limited number of axes, so this ends.
    while let Some((mesh, parts)) =
        find_in(&done.graph, &done.shardings, &done.mesh).and_then(|cut| done.mesh.cut(cut.0, cut.1))
    {
        let graph = refine(&done.graph, &parts);
        let shardings = propagate(&graph, &mesh);
        done = Propagated { graph: Cow::Owned(graph), mesh, shardings };
    }
    done
}

/// The first axis of the graph that lies across two factors of a dimension.
fn find_in(graph: &Graph, shardings: &Shardings, mesh: &Mesh) -> Option<MajorPart> {
    graph.nodes().find_map(|node| {
        if let Some(rule) = shardings.rule(node.id).filter(|rule| rule.is_compound()) {
            let tensors = rule.operands.iter().chain(&rule.results);
            let values = node.operands().iter().copied().chain(node.results());
            return tensors.zip(values).find_map(|(dims, value)| across(mesh, rule, dims, shardings.known(value)?));
        }
        let mut bodies = node.op().regions().enumerate();
        bodies.find_map(|(index, body)| find_in(body, shardings.body(node.id, index)?, mesh))
    })
}

/// An axis of the spec that one factor of its dimension cannot take alone, but can take together with the next.
fn across(mesh: &Mesh, rule: &FactorRule, dims: &TensorFactors, spec: &Spec) -> Option<MajorPart> {
    dims.iter().enumerate().filter(|(_, factors)| factors.len() > 1).find_map(|(dim, factors)| {
        let mut sizes = factors.iter().map(|&factor| rule.factors[factor as usize].size);
        let mut left = sizes.next()?;
        for &axis in spec.dim(dim) {
            if left == 1 {
                left = sizes.next()?;
            }
            let size = mesh.size(axis);
            if left.is_multiple_of(size) {
                left /= size;
                continue;
            }
            let fits = size.is_multiple_of(left) && sizes.next()?.is_multiple_of(size / left);
            return fits.then_some((axis, left));
        }
        None
    })
}

/// The graph with its own specs in terms of a mesh in which each axis has become `parts`.
fn refine(graph: &Graph, parts: &[Axes]) -> Graph {
    let port =
        |info: &PortInfo| PortInfo { spec: info.spec.as_ref().map(|spec| refine_spec(spec, parts)), ..info.clone() };
    let mut copy = GraphCopy::new(graph);
    graph.inputs().iter().zip(graph.input_info()).for_each(|(&input, info)| copy.input(input, port(info)));
    for node in graph.nodes() {
        let op = match node.op() {
            Op::Reshard(reshard) => Reshard { spec: refine_spec(&reshard.spec, parts), ..reshard.clone() }.into(),
            Op::ManualBorder(border) => {
                let (spec, axes) = (refine_spec(&border.spec, parts), refine_axes(&border.axes, parts));
                ManualBorder { spec, axes, ..border.clone() }.into()
            }
            op => op
                .map_regions(|body| Arc::new(refine(body, parts)))
                .or_else(|| op.with_group(|group| Group { axes: refine_axes(&group.axes, parts), ..*group }))
                .unwrap_or_else(|| op.clone()),
        };
        copy.node_as(node, op);
    }
    copy.finish_with(graph.outputs().iter().copied().zip(graph.output_info().iter().map(port)))
}

fn refine_spec(spec: &Spec, parts: &[Axes]) -> Spec {
    let dims = spec.dims().iter().map(|axes| refine_axes(axes, parts));
    Spec::new(dims).with_unreduced(refine_axes(spec.unreduced(), parts))
}

fn refine_axes(axes: &[MeshAxis], parts: &[Axes]) -> Axes {
    axes.iter().flat_map(|axis| parts[axis.index()].iter().copied()).collect()
}
