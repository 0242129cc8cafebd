//! The context in which an op's partitioning rule runs.

use smallvec::SmallVec;

use crate::ir::{Axes, Dims, GraphBuilder, InternalError, OpError, Spec, TensorType, Value};
use crate::ops::{Group, Op, Primitive};
use meshloom_hlo::mesh::{Mesh, MeshAxis};

/// One node's operands on one device, as its [partitioning rule](crate::ops::Primitive::partition) sees them.
pub struct PartitionContext<'a> {
    /// The graph to which the rule adds nodes.
    pub builder: &'a mut GraphBuilder,
    mesh: &'a Mesh,
    ports: PartitionPorts<'a>,
    results: SmallVec<[Value; 2]>,
}

/// The operands and results of an op, on one device and as a whole.
#[derive(Clone, Copy)]
pub(crate) struct PartitionPorts<'a> {
    /// This device's parts.
    pub(crate) operands: &'a [Value],
    pub(crate) operand_types: &'a [&'a TensorType],
    pub(crate) operand_specs: &'a [Spec],
    pub(crate) result_types: &'a [&'a TensorType],
    pub(crate) result_specs: &'a [Spec],
    /// The dimensions of this device's parts.
    pub(crate) result_dims: &'a [Dims],
}

/// The stretch of a dimension that each device wants: `size` elements from `first + rank * step` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    /// Where the stretch of rank 0 begins.
    pub first: i64,
    /// Distance between the beginnings at neighbouring ranks.
    pub step: i64,
    /// Number of elements.
    pub size: usize,
    /// Whether positions before the first and after the last element count from the other end; else they are zeros.
    pub wraps: bool,
}

impl<'a> PartitionContext<'a> {
    /// The results of an op on one device, by its partitioning rule.
    pub(crate) fn results(
        builder: &'a mut GraphBuilder,
        mesh: &'a Mesh,
        primitive: &dyn Primitive,
        ports: PartitionPorts<'a>,
    ) -> Result<SmallVec<[Value; 2]>, OpError> {
        let mut context = PartitionContext { builder, mesh, ports, results: SmallVec::new() };
        primitive.partition(&mut context)?;
        let (expected, found) = (ports.result_types.len(), context.results.len());
        if found != expected {
            let expected = format!("{expected} results of its partitioning rule, not {found}");
            return Err(InternalError::new(primitive.name(), expected).at(context.builder.origin()).into());
        }
        Ok(context.results)
    }

    /// This device's part of an operand.
    pub(crate) fn operand(&self, index: usize) -> Value {
        self.ports.operands[index]
    }

    pub(crate) fn operand_type(&self, index: usize) -> &TensorType {
        self.ports.operand_types[index]
    }

    /// The dimensions of this device's part of an operand.
    pub(crate) fn operand_dims(&self, index: usize) -> Dims {
        self.builder.ty(self.ports.operands[index]).dims.clone()
    }

    /// The mesh axes that a dimension of an operand is split over, major to minor.
    pub(crate) fn operand_axes(&self, index: usize, dim: usize) -> Axes {
        self.ports.operand_specs[index].dim(dim).into()
    }

    /// The dimensions of this device's part of a result.
    pub(crate) fn result_dims(&self, index: usize) -> &Dims {
        &self.ports.result_dims[index]
    }

    /// The mesh axes that a dimension of a result is split over, major to minor.
    pub(crate) fn result_axes(&self, index: usize, dim: usize) -> Axes {
        self.ports.result_specs[index].dim(dim).into()
    }

    /// States the results of `op`, applied to the parts of all operands, as the next results.
    pub(crate) fn apply(&mut self, op: impl Into<Op>) -> Result<(), OpError> {
        self.apply_to(op, self.ports.operands)
    }

    /// States the results of `op`, applied to values of this device, as the next results.
    pub(crate) fn apply_to(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<(), OpError> {
        let results = self.builder.push(op, operands)?;
        self.results.extend(results);
        Ok(())
    }

    pub(crate) fn operand_count(&self) -> usize {
        self.ports.operands.len()
    }

    pub(crate) fn is_zero(&self, value: Value) -> bool {
        self.builder.graph().is_zero(value)
    }

    /// States the next result.
    pub(crate) fn push_result(&mut self, value: Value) {
        self.results.push(value);
    }

    /// The devices along some axes.
    pub(crate) fn group(&self, axes: &[MeshAxis]) -> Group {
        Group::new(self.mesh, axes)
    }
}
