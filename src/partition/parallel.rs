//! Scans whose iterations run side by side: each device runs those of its part of the leading dimension.
//!
//! Devices that share a part take the same branches in the body: its values differ only between parts, or along axes
//! that split other dimensions, and a selector is whole. So an exchange over other axes is safe wherever it stands, as
//! all devices of its group reach it. An exchange over the leading dimension's own axes is not, and a
//! collective-permute waits for all devices of a CPU plugin, whatever its pairs. Both are refused.
//!
//! Source: XLA's operation semantics (`Conditional`, `AllReduce`); the hanging cases were measured with CPU plugins.

use std::sync::Arc;

use super::error::PartitionError;
use super::region::with_leading;
use super::stray::{Stray, StrayReason};
use super::walk::Partitioning;
use crate::ir::{Axes, Dims, Graph, NodeRef, Spec, Value};
use crate::ops::{Devices, Op, Scan};
use meshloom_hlo::mesh::Mesh;

impl Partitioning<'_, '_> {
    /// A scan whose slices are split over mesh axes `along`: its body with each device's slices.
    pub(super) fn parallel_scan(&mut self, node: NodeRef<'_>, scan: &Scan, along: &Axes) -> Result<(), PartitionError> {
        let (body, shardings) = (&scan.body, self.body_shardings(node, 0)?);
        let is_along = |axis: &meshloom_hlo::mesh::MeshAxis| along.contains(axis);
        let without_along = |spec: &Spec| {
            let dims = spec.dims().iter().map(|axes| axes.iter().copied().filter(|axis| !is_along(axis)).collect());
            let unreduced = spec.unreduced().iter().copied().filter(|axis| !is_along(axis));
            Spec::new(dims.collect::<Vec<Axes>>()).with_unreduced(unreduced)
        };
        let mut inputs = Vec::new();
        let mut operands = Vec::new();
        for (index, (&operand, &input)) in node.operands().iter().zip(body.inputs()).enumerate() {
            let sliced = index >= scan.invariant_count;
            let at_hand = self.first(operand).map(|(_, spec)| spec.clone());
            // Sums stay partial: the terms that are added to them are partial too.
            let partial: Axes = at_hand.iter().flat_map(|spec| spec.unreduced().iter().copied()).collect();
            let spec = match (sliced, at_hand) {
                (false, Some(spec)) => spec.with_unreduced([]),
                _ => shardings.spec(input).clone(),
            };
            let spec = without_along(&spec);
            let used: Axes = spec.used_axes().collect();
            let kept = partial.into_iter().filter(|axis| sliced && !is_along(axis) && !used.contains(axis));
            let spec = spec.with_unreduced(kept);
            let outer = if sliced { with_leading(along.clone(), &spec) } else { spec.clone() };
            operands.push(self.get(operand, &outer)?);
            inputs.push(spec);
        }
        let partitioned = self.body(body, shardings, &inputs, |_, found| without_along(found))?;
        let graph = partitioned.graph;
        if let Some(stray) = find_stray(&graph, self.mesh, along, false) {
            return Err(PartitionError::Stray { stray: Box::new(stray) });
        }
        self.builder.set_origin(node.origin());
        let parts: usize = along.iter().map(|&axis| self.mesh.size(axis)).product();
        let length = scan.length / parts;
        let specs = partitioned.outputs.iter().map(|spec| with_leading(along.clone(), spec));
        let results = if length == 1 {
            self.one_slice(&graph, scan.invariant_count, &operands)?
        } else {
            self.builder.push(Scan { body: Arc::new(graph), length, ..scan.clone() }, &operands)?.to_vec()
        };
        self.set_results(node, results, specs.collect::<Vec<_>>());
        Ok(())
    }

    /// The body in place, for a device with only one slice.
    fn one_slice(&mut self, body: &Graph, invariants: usize, operands: &[Value]) -> Result<Vec<Value>, PartitionError> {
        let mut arguments = operands[..invariants].to_vec();
        for &operand in &operands[invariants..] {
            let dims: Dims = self.builder.ty(operand).dims[1..].into();
            arguments.push(self.builder.reshape(operand, &dims)?);
        }
        let results = self.builder.inline(body, &arguments);
        let mut stacked = Vec::new();
        for result in results {
            let mut dims = self.builder.ty(result).dims.clone();
            dims.insert(0, 1);
            stacked.push(self.builder.reshape(result, &dims)?);
        }
        Ok(stacked)
    }
}

/// The first collective of a body that devices might not reach together.
fn find_stray(graph: &Graph, mesh: &Mesh, along: &Axes, in_branch: bool) -> Option<Stray> {
    graph.nodes().find_map(|node| {
        let branches = in_branch || matches!(node.op(), Op::Cond(_) | Op::While(_));
        if let Some(stray) = node.op().regions().find_map(|body| find_stray(body, mesh, along, branches)) {
            return Some(stray);
        }
        let (Devices::Exchange(_, group) | Devices::Rank(group)) = node.op().facts().devices else { return None };
        let reason = match node.op() {
            _ if group.axes.iter().any(|axis| along.contains(axis)) => StrayReason::SpansBranches,
            Op::CollectivePermute(_) if in_branch => StrayReason::PermutesInBranch,
            _ => return None,
        };
        let (op, origin) = (node.op().name(), node.origin());
        Some(Stray { op, axes: mesh.names_of(&group.axes), reason, along: mesh.names_of(along), origin })
    })
}
