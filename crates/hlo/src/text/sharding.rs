//! Shardings, meshes and device groups.

use super::Printer;
use crate::proto::op_sharding::{ShardGroupType, Type};
use crate::proto::{
    AxisRefProto, HloInstructionProto, IotaReplicaGroupListProto, MeshProto, NamedShardingProto, OpMetadata,
    OpSharding, ReplicaGroup,
};

impl Printer<'_> {
    /// Appends a sharding with its braces: `{replicated}`, `{devices=[2,4]<=[8]}`, `{mesh['x'=8], [{'x'}, {}]}`.
    pub(super) fn sharding(&mut self, sharding: &OpSharding) {
        if sharding.r#type() == Type::Tuple {
            self.text("{");
            for (index, element) in sharding.tuple_shardings.iter().enumerate() {
                // XLA puts these comments between the comma and the element with a space, unlike elsewhere.
                self.separator(index);
                self.sharding(element);
            }
            self.text("}");
            return;
        }
        if let Some(named) = &sharding.named_sharding {
            self.named_sharding(named);
            return;
        }
        match sharding.r#type() {
            Type::Replicated => self.text("{replicated"),
            Type::Manual => self.text("{manual"),
            Type::Unknown => self.text("{unknown"),
            Type::Unreduced => self.text("{unreduced"),
            Type::Maximal => {
                self.text("{maximal device=");
                self.number(sharding.tile_assignment_devices.first().copied().unwrap_or(0));
            }
            Type::Other | Type::Tuple => {
                self.text("{");
                self.tiles(sharding);
            }
        }
        if sharding.is_shard_group {
            self.text(match sharding.shard_group_type() {
                ShardGroupType::As => " shard_as ",
                ShardGroupType::Like => " shard_like ",
            });
            self.number(sharding.shard_group_id);
        }
        if self.options.metadata && !sharding.metadata.is_empty() {
            self.text(" metadata={");
            if let [metadata] = sharding.metadata.as_slice() {
                self.metadata_fields(metadata);
            } else {
                self.metadata_list(&sharding.metadata);
            }
            self.text("}");
        }
        self.text("}");
    }

    fn metadata_list(&mut self, list: &[OpMetadata]) {
        for (index, metadata) in list.iter().enumerate() {
            if index > 0 {
                self.text(", ");
            }
            self.text("{");
            self.metadata_fields(metadata);
            self.text("}");
        }
    }

    fn tiles(&mut self, sharding: &OpSharding) {
        self.text("devices=[");
        self.numbers(&sharding.tile_assignment_dimensions, ",");
        self.text("]");
        if sharding.iota_reshape_dims.is_empty() {
            self.numbers(&sharding.tile_assignment_devices, ",");
        } else {
            self.iota(&sharding.iota_reshape_dims, &sharding.iota_transpose_perm);
        }
        if sharding.replicate_on_last_tile_dim {
            self.text(" last_tile_dim_replicate");
        }
        if !sharding.last_tile_dims.is_empty() {
            self.text(" last_tile_dims={");
            for (index, kind) in sharding.last_tile_dims().enumerate() {
                if index > 0 {
                    self.text(", ");
                }
                self.text(match kind {
                    Type::Manual => "manual",
                    Type::Maximal => "maximal",
                    Type::Replicated => "replicated",
                    Type::Unreduced => "unreduced",
                    Type::Tuple | Type::Other | Type::Unknown => "error_type.",
                });
            }
            self.text("}");
        }
    }

    /// `<=[8]`, `<=[2,4]T(1,0)`.
    fn iota(&mut self, reshape: &[i64], permutation: &[i32]) {
        self.text("<=[");
        self.numbers(reshape, ",");
        self.text("]");
        // A transposition of one dimension is none.
        if permutation.len() > 1 {
            self.text("T(");
            self.numbers(permutation, ",");
            self.text(")");
        }
    }

    fn named_sharding(&mut self, sharding: &NamedShardingProto) {
        let default = MeshProto::default();
        let mesh = sharding.mesh.as_ref().unwrap_or(&default);
        self.text("{");
        self.mesh(mesh);
        let unsplit = sharding.dim_shardings.iter().all(|dimension| dimension.axes.is_empty() && dimension.is_closed);
        let covers_mesh = |axes: &[AxisRefProto]| {
            !axes.is_empty()
                && axes.len() == mesh.axes.len()
                && axes
                    .iter()
                    .enumerate()
                    .all(|(index, axis)| axis.mesh_axis_index == index as i64 && axis.sub_axis_info.is_none())
        };
        let maximal = mesh.axes.is_empty() && !mesh.device_ids.is_empty();
        let no_axes = sharding.unreduced_axes.is_empty() && sharding.manual_axes.is_empty();
        if maximal {
            // The mesh says it all.
        } else if unsplit && no_axes && sharding.replicated_axes.is_empty() {
            self.text(", replicated");
        } else if unsplit && covers_mesh(&sharding.unreduced_axes) {
            self.text(", unreduced");
        } else if unsplit && covers_mesh(&sharding.manual_axes) {
            self.text(", manual");
        } else {
            self.text(", [");
            for (index, dimension) in sharding.dim_shardings.iter().enumerate() {
                if index > 0 {
                    self.text(", ");
                }
                self.text("{");
                self.axes(mesh, &dimension.axes, ", ");
                if !dimension.is_closed {
                    self.text(if dimension.axes.is_empty() { "?" } else { ", ?" });
                }
                self.text("}");
            }
            self.text("]");
            for (name, axes) in [
                ("replicated", &sharding.replicated_axes),
                ("unreduced", &sharding.unreduced_axes),
                ("manual", &sharding.manual_axes),
            ] {
                if !axes.is_empty() {
                    self.text(", ");
                    self.text(name);
                    self.text("={");
                    self.axes(mesh, axes, ", ");
                    self.text("}");
                }
            }
        }
        if self.options.metadata && !sharding.metadata.is_empty() {
            self.text(", metadata={");
            self.metadata_list(&sharding.metadata);
            self.text("}");
        }
        self.text("}");
    }

    /// `mesh['x'=2,'y'=4]`, with the devices' order where it is not the plain one.
    fn mesh(&mut self, mesh: &MeshProto) {
        if let (true, Some(&device)) = (mesh.axes.is_empty(), mesh.device_ids.first()) {
            self.text("maximal_mesh[device_id=");
            self.number(device);
            self.text("]");
            return;
        }
        self.text("mesh[");
        for (index, axis) in mesh.axes.iter().enumerate() {
            if index > 0 {
                self.text(",");
            }
            self.axis_name(&axis.name);
            self.text("=");
            self.number(axis.size);
        }
        self.text("]");
        if let Some(iota) = &mesh.iota_transform {
            let permutation: Vec<i32> =
                iota.transpose_perm.iter().map(|&dimension| i32::try_from(dimension).unwrap_or(-1)).collect();
            self.text(", device_ids=(");
            let start = self.out.len();
            self.iota(&iota.reshape_dims, &permutation);
            self.out.replace_range(start..start + 2, "");
            self.text(")");
        } else if !mesh.device_ids.is_empty() {
            self.text(", device_ids=(");
            self.numbers(&mesh.device_ids, ",");
            self.text(")");
        }
    }

    fn axis_name(&mut self, name: &str) {
        self.text("'");
        self.text(name);
        self.text("'");
    }

    fn axes(&mut self, mesh: &MeshProto, axes: &[AxisRefProto], separator: &str) {
        for (index, axis) in axes.iter().enumerate() {
            if index > 0 {
                self.text(separator);
            }
            match usize::try_from(axis.mesh_axis_index).ok().and_then(|index| mesh.axes.get(index)) {
                Some(mesh_axis) => self.axis_name(&mesh_axis.name),
                None => self.number(axis.mesh_axis_index),
            }
            if let Some(part) = &axis.sub_axis_info {
                self.text(":(");
                self.number(part.pre_size);
                self.text(")");
                self.number(part.size);
            }
        }
    }

    /// The device groups of a collective, in whichever of the forms it has them.
    pub(super) fn replica_groups(&mut self, instruction: &HloInstructionProto) {
        self.text("replica_groups=");
        if let Some(mesh_axes) = &instruction.mesh_axes_replica_group_list {
            let default = MeshProto::default();
            let mesh = mesh_axes.mesh.as_ref().unwrap_or(&default);
            self.mesh(mesh);
            self.text(" {");
            self.axes(mesh, &mesh_axes.axes, ",");
            self.text("}");
            return;
        }
        let list = instruction.collective_device_list.as_deref();
        let iota = instruction.iota_collective_device_list.as_deref();
        if let Some(iota) = iota.or(list.and_then(|list| list.iota_replica_group_list.as_ref())) {
            self.iota_groups(iota);
            return;
        }
        self.group_list(match list {
            Some(list) if !list.replica_groups.is_empty() => &list.replica_groups,
            _ => &instruction.replica_groups,
        });
    }

    fn iota_groups(&mut self, groups: &IotaReplicaGroupListProto) {
        self.text("[");
        self.number(groups.num_replica_groups);
        self.text(",");
        self.number(groups.num_devices_per_group);
        self.text("]");
        self.iota(&groups.iota_reshape_dims, &groups.iota_transpose_perm);
    }

    fn group_list(&mut self, groups: &[ReplicaGroup]) {
        self.text("{");
        for (index, group) in groups.iter().enumerate() {
            if index > 0 {
                self.text(",");
            }
            self.shape_index(&group.replica_ids);
        }
        self.text("}");
    }
}
