//! What an op sees of the mesh while it is partitioned.

use smallvec::SmallVec;

use crate::ir::{Axes, DType, Dims, GraphBuilder, InternalError, OpError, Spec, TensorType, Value};
use crate::ops::{AxisIndex, Direction, Group, Op, Primitive, Select};
use meshloom_hlo::mesh::{Mesh, MeshAxis};

/// One node's operands on one device, as its [partitioning rule](crate::ops::Primitive::partition) sees them.
pub struct PartitionContext<'a> {
    /// Where the rule pushes its nodes.
    pub builder: &'a mut GraphBuilder,
    mesh: &'a Mesh,
    ports: Ports<'a>,
    results: SmallVec<[Value; 2]>,
}

/// What goes into an op and comes out of it, on one device and in all.
#[derive(Clone, Copy)]
pub(super) struct Ports<'a> {
    /// This device's parts.
    pub(super) operands: &'a [Value],
    pub(super) operand_types: &'a [&'a TensorType],
    pub(super) operand_specs: &'a [Spec],
    pub(super) result_types: &'a [&'a TensorType],
    pub(super) result_specs: &'a [Spec],
    /// The dimensions of this device's parts.
    pub(super) result_dims: &'a [Dims],
}

impl<'a> PartitionContext<'a> {
    /// The results of an op on one device, by its partitioning rule.
    pub(super) fn results(
        builder: &'a mut GraphBuilder,
        mesh: &'a Mesh,
        primitive: &dyn Primitive,
        ports: Ports<'a>,
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
    pub fn operand(&self, index: usize) -> Value {
        self.ports.operands[index]
    }

    /// The type of a whole operand.
    pub fn operand_type(&self, index: usize) -> &TensorType {
        self.ports.operand_types[index]
    }

    /// The dimensions of this device's part of an operand.
    pub fn operand_dims(&self, index: usize) -> Dims {
        self.builder.ty(self.ports.operands[index]).dims.clone()
    }

    /// The mesh axes that a dimension of an operand is split over, major to minor.
    pub fn operand_axes(&self, index: usize, dim: usize) -> Axes {
        self.ports.operand_specs[index].dim(dim).into()
    }

    /// The type of a whole result.
    pub fn result_type(&self, index: usize) -> &TensorType {
        self.ports.result_types[index]
    }

    /// The dimensions of this device's part of a result.
    pub fn result_dims(&self, index: usize) -> &Dims {
        &self.ports.result_dims[index]
    }

    /// The mesh axes that a dimension of a result is split over, major to minor.
    pub fn result_axes(&self, index: usize, dim: usize) -> Axes {
        self.ports.result_specs[index].dim(dim).into()
    }

    /// States as results those of `op`, applied to the parts of all operands.
    ///
    /// # Errors
    /// The op refuses the parts.
    pub fn apply(&mut self, op: impl Into<Op>) -> Result<(), OpError> {
        self.apply_to(op, self.ports.operands)
    }

    /// States as results those of `op`, applied to values of this device.
    ///
    /// # Errors
    /// The op refuses them.
    pub fn apply_to(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<(), OpError> {
        let results = self.builder.push(op, operands)?;
        self.results.extend(results);
        Ok(())
    }

    /// Number of operands.
    pub fn operand_count(&self) -> usize {
        self.ports.operands.len()
    }

    /// Whether a local value is known to be zero.
    pub fn is_zero(&self, value: Value) -> bool {
        super::linear::is_zero(self.builder.graph(), value)
    }

    /// States the next result.
    pub fn push_result(&mut self, value: Value) {
        self.results.push(value);
    }

    /// The devices along some axes.
    pub fn group(&self, axes: &[MeshAxis]) -> Group {
        Group::new(self.mesh, axes)
    }

    /// Where this device's part of a dimension begins in the whole, if each part has `size` elements: a scalar `s32`.
    ///
    /// # Errors
    /// None that a mesh could cause.
    pub fn part_start(&mut self, axes: &[MeshAxis], size: usize) -> Result<Value, OpError> {
        let rank = self.rank(axes)?;
        self.builder.scale(rank, size as f64)
    }

    /// This device's rank along some axes: a scalar `s32`.
    ///
    /// # Errors
    /// None that a mesh could cause.
    pub fn rank(&mut self, axes: &[MeshAxis]) -> Result<Value, OpError> {
        let group = self.group(axes);
        self.builder.push1(AxisIndex { group }, &[])
    }

    /// The global positions (`s32`) of this device's part of a dimension that is split over `axes`, along that
    /// dimension of `dims`.
    ///
    /// # Errors
    /// None that a mesh could cause.
    pub fn positions(&mut self, dims: &[usize], dim: usize, axes: &[MeshAxis]) -> Result<Value, OpError> {
        let ty = TensorType::new(DType::S32, dims);
        let local = self.builder.push1(crate::ops::Iota { ty, axis: dim }, &[])?;
        if axes.is_empty() {
            return Ok(local);
        }
        let start = self.part_start(axes, dims[dim])?;
        let start = self.builder.broadcast(start, dims, &[])?;
        self.builder.add(local, start)
    }

    /// `value` where `low <= positions < high`, else `other`; all of the same dimensions, `positions` of type `s32`.
    ///
    /// # Errors
    /// The operands do not have the same dimensions.
    pub fn select_range(
        &mut self,
        positions: Value,
        range: std::ops::Range<i64>,
        value: Value,
        other: Value,
    ) -> Result<Value, OpError> {
        let inside = self.in_range(positions, range)?;
        self.builder.push1(Select, &[inside, value, other])
    }

    /// Where `low <= positions < high`.
    ///
    /// # Errors
    /// The positions are no numbers.
    pub fn in_range(&mut self, positions: Value, range: std::ops::Range<i64>) -> Result<Value, OpError> {
        let low = self.builder.splat_like(positions, range.start as f64);
        let high = self.builder.splat_like(positions, range.end as f64);
        let above = self.builder.compare(Direction::Ge, positions, low)?;
        let below = self.builder.compare(Direction::Lt, positions, high)?;
        self.builder.binary(crate::ops::BinaryKind::And, above, below)
    }
}
