//! Collectives: groups given by mesh axes become XLA's lists of devices.

use std::borrow::Cow;

use meshloom_hlo::proto::{self, HloInstructionProto};

use super::node::NodeEmitter;
use crate::ir::{DType, TensorType};
use crate::ops::{
    ComputationId, EmitCollectives, EmitContext, Group, InstructionId, ReduceKind, ReduceScatter, ReduceScatterForm,
    to_i64,
};
use meshloom_hlo::GroupFormat;
use meshloom_hlo::crossing::CrossingKind;
use meshloom_hlo::mesh::{Mesh, MeshAxis};

/// The device at each rank of each group.
pub fn device_groups(mesh: &Mesh, axes: &[MeshAxis]) -> Vec<Vec<usize>> {
    let positions = |axes: &[MeshAxis]| {
        let mut offsets = vec![0];
        for &axis in axes {
            let stride = mesh.stride(axis);
            offsets = offsets
                .iter()
                .flat_map(|offset| (0..mesh.size(axis)).map(move |position| offset + position * stride))
                .collect();
        }
        offsets
    };
    let others: Vec<MeshAxis> = mesh.axes().filter(|axis| !axes.contains(axis)).collect();
    let ranks = positions(axes);
    positions(&others).into_iter().map(|base| ranks.iter().map(|rank| base + rank).collect()).collect()
}

/// The groups as a transposed iota (`IotaReplicaGroupListProto`).
fn iota_groups(mesh: &Mesh, group: &Group) -> proto::IotaReplicaGroupListProto {
    let others = mesh.axes().filter(|axis| !group.axes.contains(axis));
    proto::IotaReplicaGroupListProto {
        num_replica_groups: (mesh.device_count() / group.size) as i64,
        num_devices_per_group: group.size as i64,
        iota_reshape_dims: mesh.axes().map(|axis| mesh.size(axis) as i64).collect(),
        iota_transpose_perm: others.chain(group.axes.iter().copied()).map(|axis| axis.index() as i32).collect(),
    }
}

/// States the groups of a collective in one of the forms.
fn write_groups(instruction: &mut HloInstructionProto, mesh: &Mesh, group: &Group, format: GroupFormat) {
    match format {
        GroupFormat::Lists => {
            let list = |ids: Vec<usize>| proto::ReplicaGroup { replica_ids: to_i64(&ids).collect() };
            instruction.replica_groups = device_groups(mesh, &group.axes).into_iter().map(list).collect();
        }
        GroupFormat::IotaInList => {
            let list = Some(iota_groups(mesh, group));
            let list = proto::CollectiveDeviceListProto { iota_replica_group_list: list, ..Default::default() };
            instruction.collective_device_list = Some(list.into());
        }
        GroupFormat::Iota => instruction.iota_collective_device_list = Some(iota_groups(mesh, group).into()),
    }
}

impl EmitCollectives for NodeEmitter<'_, '_> {
    /// XLA's CPU runtime, which takes several operands, gathers them wrongly in loops, so these are laid side by side
    /// as well.
    fn all_gather(&mut self, group: &Group, dim: usize) {
        if self.emitter.crosses(group) {
            return self.emit_crossing(group, CrossingKind::AllGather, dim);
        }
        let operands = self.operand_ids();
        if operands.len() == 1 {
            return self.emit_collective("all-gather", group, |instruction| instruction.dimensions.push(dim as i64));
        }
        let describe = |instruction: &mut HloInstructionProto| instruction.dimensions.push(0);
        self.side_by_side("all-gather", group, (1, group.size), None, describe, |context, index, rows| {
            let part = context.operand_type(index).clone();
            context.parts_into(&part, rows, dim, group.size)
        });
    }

    /// In a manual region, XLA's partitioner takes one operand alone (`spmd_partitioner.cc`, `HandleAllReduce`), so
    /// several are laid side by side.
    fn all_reduce(&mut self, group: &Group, kind: ReduceKind) {
        if self.emitter.crosses(group) {
            return self.emit_crossing(group, CrossingKind::AllReduce(kind), 0);
        }
        let combiner = self.combiner(kind.name(), self.operand_type(0).dtype);
        self.emit_reduction("all-reduce", group, combiner, None);
    }

    fn all_to_all(&mut self, group: &Group, dim: usize) {
        if self.emitter.crosses(group) {
            return self.emit_crossing(group, CrossingKind::AllToAll, dim);
        }
        self.emit_collective("all-to-all", group, |instruction| instruction.dimensions.push(dim as i64));
    }

    /// The rank is computed from the device's place in the mesh.
    fn axis_index(&mut self, group: &Group) {
        let mesh = self.emitter.options.mesh.map_or_else(Cow::default, Cow::Borrowed);
        let unsigned = TensorType::scalar(DType::U32);
        let device = match self.emitter.place() {
            Some(place) => place,
            None if self.emitter.is_local() => self.fail("a parameter with the number of the device"),
            None => self.instruction("partition-id", &unsigned, &[]),
        };
        let mut rank = None;
        for &axis in &group.axes {
            let (stride, size) = (mesh.stride(axis), mesh.size(axis));
            let mut position = device;
            if stride > 1 {
                let stride = self.number(DType::U32, stride as f64);
                position = self.instruction("divide", &unsigned, &[position, stride]);
            }
            let size = self.number(DType::U32, size as f64);
            if axis.index() > 0 {
                position = self.instruction("remainder", &unsigned, &[position, size]);
            }
            rank = Some(match rank {
                None => position,
                Some(rank) => {
                    let major = self.instruction("multiply", &unsigned, &[rank, size]);
                    self.instruction("add", &unsigned, &[major, position])
                }
            });
        }
        let rank = rank.unwrap_or_else(|| self.number(DType::U32, 0.0));
        self.begin_with("convert", 0, &[rank]);
        self.finish();
    }

    fn collective_permute(&mut self, group: &Group, pairs: &[(u32, u32)]) {
        if self.emitter.crosses(group) {
            return self.emit_crossing(group, CrossingKind::CollectivePermute(pairs.to_vec()), 0);
        }
        let channel = self.next_channel();
        let mesh = self.partitioned_over();
        let pairs = device_groups(&mesh, &group.axes).into_iter().flat_map(|devices| {
            let pair = move |&(source, target): &(u32, u32)| proto::SourceTarget {
                source: devices[source as usize] as i64,
                target: devices[target as usize] as i64,
            };
            pairs.iter().map(pair).collect::<Vec<_>>()
        });
        let pairs: Vec<_> = pairs.collect();
        let instruction = self.begin("collective-permute");
        instruction.channel_id = channel;
        instruction.source_target_pairs = pairs;
        self.mark_collective("collective-permute", channel);
        self.finish();
    }

    /// libtpu ends its process over one of several operands, so these are laid side by side too, as
    /// [`ReduceScatter::packed_columns`] says. One alone gets its [form](ReduceScatter::form_of_one).
    fn reduce_scatter(&mut self, group: &Group, dim: usize) {
        if self.emitter.crosses(group) {
            return self.emit_crossing(group, CrossingKind::ReduceScatter(ReduceKind::Sum), dim);
        }
        let combiner = self.combiner(ReduceKind::Sum.name(), self.operand_type(0).dtype);
        let &[operand] = &self.operand_ids()[..] else {
            return self.emit_reduction("reduce-scatter", group, combiner, Some(dim));
        };
        let (ty, result) = (self.operand_type(0).clone(), self.result_type(0).clone());
        let of_dims = |dims: &[usize]| TensorType::new(ty.dtype, dims);
        let op = ReduceScatter { group: group.clone(), dim };
        let (value, form, dim) = match op.form_of_one(&ty.dims) {
            ReduceScatterForm::Merged { dims, .. } if *dims == *ty.dims => {
                return self.emit_reduction("reduce-scatter", group, combiner, Some(dim));
            }
            ReduceScatterForm::Merged { dims, dim } => (operand, of_dims(&dims), dim),
            ReduceScatterForm::Rows { columns } => {
                let parts = if ty.dims[..dim].iter().all(|&size| size == 1) {
                    operand
                } else {
                    self.parts_first(&ty, operand, dim, group.size)
                };
                (parts, of_dims(&op.rows_of(columns)), 0)
            }
        };
        let value = self.instruction("reshape", &form, &[value]);
        let mut scattered = form;
        scattered.dims[dim] /= group.size;
        self.begin_typed("reduce-scatter", &scattered, &[value]);
        self.communicate("reduce-scatter", group, |instruction| {
            instruction.dimensions.push(dim as i64);
            instruction.called_computation_ids.push(combiner);
        });
        let scattered = self.commit();
        let value = self.instruction("reshape", &result, &[scattered]);
        self.set_result(0, value);
    }
}

impl<'o> NodeEmitter<'_, 'o> {
    /// The channel of its own that the next collective gets.
    pub(super) fn next_channel(&mut self) -> i64 {
        self.emitter.channels += 1;
        self.emitter.channels
    }

    /// The mesh of a partitioned graph that XLA knows. Without a mesh it is one device; with several processes it is
    /// the part within one.
    fn partitioned_over(&self) -> Cow<'o, Mesh> {
        match (self.emitter.options.mesh, self.emitter.options.processes) {
            (None, _) => Cow::default(),
            (Some(mesh), 0 | 1) => Cow::Borrowed(mesh),
            (Some(mesh), processes) => Cow::Owned(mesh.within_process(processes)),
        }
    }

    /// Names the collective begun by its channel, which counts the collectives of a module: the name by which the
    /// ledger knows it.
    pub(super) fn mark_collective(&mut self, opcode: &str, channel: i64) {
        self.emitter.in_order();
        self.emitter.writer.set_name(&format!("{opcode}.{channel}"));
    }

    /// Emits a collective of all operands over a group, with a result for each operand; `describe` adds the opcode's
    /// own attributes.
    fn emit_collective(&mut self, opcode: &str, group: &Group, describe: impl FnOnce(&mut HloInstructionProto)) {
        let operands = self.operand_ids();
        self.begin_all(opcode, &operands);
        self.communicate(opcode, group, describe);
        self.finish_all();
    }

    /// Makes the instruction begun a collective over a group.
    fn communicate(&mut self, opcode: &str, group: &Group, describe: impl FnOnce(&mut HloInstructionProto)) {
        let channel = self.next_channel();
        let (mesh, format) = (self.partitioned_over(), self.emitter.options.groups);
        let instruction = self.emitter.writer.attributes();
        instruction.channel_id = channel;
        write_groups(instruction, &mesh, group, format);
        // An all-to-all always goes by partition.
        instruction.use_global_device_ids = opcode != "all-to-all";
        describe(instruction);
        self.mark_collective(opcode, channel);
    }

    fn emit_reduction(&mut self, opcode: &str, group: &Group, combiner: ComputationId, scattered: Option<usize>) {
        let describe = |instruction: &mut HloInstructionProto, dim: Option<usize>| {
            instruction.dimensions.extend(dim.map(|dim| dim as i64));
            instruction.called_computation_ids.push(combiner);
        };
        let operands = self.operand_ids();
        if operands.len() == 1 {
            return self.emit_collective(opcode, group, |instruction| describe(instruction, scattered));
        }
        // A row for each device that gets a part; within a row, the operands' parts one after the other.
        let rows = scattered.map_or(1, |_| group.size);
        let describe_all = |instruction: &mut HloInstructionProto| describe(instruction, scattered.map(|_| 0));
        self.side_by_side(opcode, group, (rows, 1), scattered, describe_all, |context, index, part| {
            let ty = context.result_type(index).clone();
            context.instruction("reshape", &ty, &[part])
        });
    }

    /// One collective of all operands, as matrices of `before` rows that are laid side by side: of their parts along a
    /// dimension, if they are `scattered`. Each of these rows is then several, if that makes a plugin keep the
    /// collective. `result` makes each result of its columns, which have `after` rows.
    fn side_by_side(
        &mut self,
        opcode: &str,
        group: &Group,
        (before, after): (usize, usize),
        scattered: Option<usize>,
        describe: impl FnOnce(&mut HloInstructionProto),
        result: impl Fn(&mut Self, usize, InstructionId) -> InstructionId,
    ) {
        let operands = self.operand_ids();
        let types: Vec<TensorType> = (0..operands.len()).map(|index| self.operand_type(index).clone()).collect();
        let matrix = |rows: usize, columns: usize| TensorType::new(types[0].dtype, &[rows, columns]);
        let widths: Vec<usize> = types.iter().map(|ty| ty.element_count() / before).collect();
        let mut parts = Vec::with_capacity(operands.len());
        for ((ty, &width), operand) in types.iter().zip(&widths).zip(operands) {
            let operand = scattered.map_or(operand, |dim| self.parts_first(ty, operand, dim, before));
            parts.push(self.instruction("reshape", &matrix(before, width), &[operand]));
        }
        let width = widths.iter().sum();
        let packed = scattered.and_then(|_| ReduceScatter::packed_columns(width));
        let padded = packed.map_or(width, |columns| ReduceScatter::PACKED_ROWS * columns);
        if padded > width {
            let zero = self.number(types[0].dtype, 0.0);
            parts.push(self.broadcast(&matrix(before, padded - width), zero, &[]));
        }
        self.begin_typed("concatenate", &matrix(before, padded), &parts).dimensions.push(1);
        let mut joined = self.commit();
        let form = |devices: usize| match packed {
            Some(columns) => matrix(devices * ReduceScatter::PACKED_ROWS, columns),
            None => matrix(devices, padded),
        };
        if packed.is_some() {
            joined = self.instruction("reshape", &form(before), &[joined]);
        }
        self.begin_typed(opcode, &form(after), &[joined]);
        self.communicate(opcode, group, describe);
        let mut exchanged = self.commit();
        if packed.is_some() {
            exchanged = self.instruction("reshape", &matrix(after, padded), &[exchanged]);
        }
        let mut start = 0;
        for (index, &width) in widths.iter().enumerate() {
            let part = self.columns(exchanged, &matrix(after, width), start);
            let result = result(self, index, part);
            self.set_result(index, result);
            start += width;
        }
    }

    /// Columns of a matrix, as many as `ty` has, from column `start` on.
    fn columns(&mut self, matrix: InstructionId, ty: &TensorType, start: usize) -> InstructionId {
        let range = |start: usize, limit: usize| proto::hlo_instruction_proto::SliceDimensions {
            start: start as i64,
            limit: limit as i64,
            stride: 1,
        };
        let (rows, columns) = (range(0, ty.dims[0]), range(start, start + ty.dims[1]));
        self.begin_typed("slice", ty, &[matrix]).slice_dimensions.extend([rows, columns]);
        self.commit()
    }

    /// The value whose dimension is made up of the parts. Each row of the operand has the elements of a part of type
    /// `part`.
    pub(super) fn parts_into(
        &mut self,
        part: &TensorType,
        rows: InstructionId,
        dim: usize,
        count: usize,
    ) -> InstructionId {
        let mut stacked = part.clone();
        stacked.dims.insert(0, count);
        let mut value = self.instruction("reshape", &stacked, &[rows]);
        if dim > 0 {
            let order: Vec<usize> = (1..=dim).chain([0]).chain(dim + 1..stacked.rank()).collect();
            value = self.transpose(&stacked, value, &order);
        }
        let mut whole = part.clone();
        whole.dims[dim] *= count;
        self.instruction("reshape", &whole, &[value])
    }

    /// A value with a dimension cut into parts, which a dimension in front of all others counts.
    pub(super) fn parts_first(
        &mut self,
        ty: &TensorType,
        value: InstructionId,
        dim: usize,
        count: usize,
    ) -> InstructionId {
        let mut cut = ty.clone();
        cut.dims[dim] /= count;
        cut.dims.insert(dim, count);
        let value = self.instruction("reshape", &cut, &[value]);
        if dim == 0 {
            return value;
        }
        let order = std::iter::once(dim).chain((0..cut.rank()).filter(|&other| other != dim));
        self.transpose(&cut, value, &order.collect::<Vec<_>>())
    }

    /// A value of type `ty` with its dimensions in another order.
    fn transpose(&mut self, ty: &TensorType, value: InstructionId, order: &[usize]) -> InstructionId {
        let moved = TensorType { dtype: ty.dtype, dims: order.iter().map(|&from| ty.dims[from]).collect() };
        self.begin_typed("transpose", &moved, &[value]).dimensions.extend(to_i64(order));
        self.commit()
    }
}
