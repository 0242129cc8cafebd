//! The devices that take part in a collective, in any of the forms that a module has for them.

use std::collections::BTreeSet;

use crate::proto::{
    HloInstructionProto, IotaReplicaGroupListProto, MeshAxesReplicaGroupListProto, MeshProto, ReplicaGroup,
};

/// The groups of a collective, in the form in which the module has them. Numbers are those of devices, replicas or
/// partitions, as the instruction's other attributes say (`GetCollectiveOpGroupMode`, collective_ops_utils.cc in XLA).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceGroups {
    /// All are one group.
    One,
    /// The members of each group.
    Lists(Vec<Vec<u64>>),
    /// The numbers from 0 on in an array of these dimensions, transposed, and cut into rows.
    Iota {
        /// Members of each group.
        group_size: u64,
        /// Dimensions before the transpose.
        dims: Vec<u64>,
        /// The order in which the transpose puts the dimensions.
        permutation: Vec<usize>,
    },
    /// A form that cannot be read: axes (V3) of an absent mesh, or axes that the mesh does not have.
    Unreadable,
}

impl DeviceGroups {
    /// The groups of an instruction.
    pub fn of(instruction: &HloInstructionProto) -> DeviceGroups {
        let lists = |groups: &[ReplicaGroup]| {
            let list = |ids: &[i64]| ids.iter().map(|&id| id.max(0) as u64).collect();
            DeviceGroups::Lists(groups.iter().map(|group| list(&group.replica_ids)).collect())
        };
        if let Some(iota) = &instruction.iota_collective_device_list {
            return DeviceGroups::iota(iota);
        }
        if let Some(list) = &instruction.collective_device_list {
            match &list.iota_replica_group_list {
                Some(iota) => return DeviceGroups::iota(iota),
                None if !list.replica_groups.is_empty() => return lists(&list.replica_groups),
                None => {}
            }
        }
        if let Some(list) = &instruction.mesh_axes_replica_group_list {
            return DeviceGroups::mesh_axes(list).unwrap_or(DeviceGroups::Unreadable);
        }
        match instruction.replica_groups.as_slice() {
            [] => DeviceGroups::One,
            groups => lists(groups),
        }
    }

    fn iota(list: &IotaReplicaGroupListProto) -> DeviceGroups {
        DeviceGroups::Iota {
            group_size: list.num_devices_per_group.max(0) as u64,
            dims: list.iota_reshape_dims.iter().map(|&size| size.max(0) as u64).collect(),
            permutation: list.iota_transpose_perm.iter().map(|&dim| dim.max(0) as usize).collect(),
        }
    }

    /// Groups along axes of a mesh, or parts of axes: those are axes of a finer mesh.
    fn mesh_axes(list: &MeshAxesReplicaGroupListProto) -> Option<DeviceGroups> {
        let mesh = list.mesh.as_ref()?;
        // For each axis, the sizes into which it is cut, major to minor: a part has `pre_size` steps before it.
        let positive = |size: i64| u64::try_from(size).ok().filter(|&size| size > 0);
        let sizes = mesh.axes.iter().map(|axis| positive(axis.size)).collect::<Option<Vec<u64>>>()?;
        let mut borders: Vec<BTreeSet<u64>> = sizes.iter().map(|&size| [1, size].into()).collect();
        let mut parts = Vec::new();
        for axis in &list.axes {
            let index = usize::try_from(axis.mesh_axis_index).ok()?;
            let (from, to) = match &axis.sub_axis_info {
                None => (1, *sizes.get(index)?),
                Some(part) => (positive(part.pre_size)?, positive(part.pre_size.checked_mul(part.size)?)?),
            };
            borders.get_mut(index)?.extend([from, to]);
            parts.push((index, from, to));
        }
        let mut dims = Vec::new();
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); parts.len()];
        let mut others = Vec::new();
        for (index, borders) in borders.iter().enumerate() {
            for (&from, &to) in borders.iter().zip(borders.iter().skip(1)) {
                let within = |part: &(usize, u64, u64)| part.0 == index && part.1 <= from && to <= part.2;
                match parts.iter().position(within) {
                    Some(part) => members[part].push(dims.len()),
                    None => others.push(dims.len()),
                }
                dims.push((to % from == 0).then_some(to / from)?);
            }
        }
        let group_size = members.iter().flatten().try_fold(1u64, |size, &dim| size.checked_mul(dims[dim]))?;
        let permutation: Vec<usize> = others.into_iter().chain(members.into_iter().flatten()).collect();
        let Some(device_ids) = device_ids(mesh)? else {
            return Some(DeviceGroups::Iota { group_size, dims, permutation });
        };
        let device = |at: u64| device_ids.get(usize::try_from(at).ok()?).copied();
        let devices = transposed_iota(&dims, &permutation)?.into_iter().map(device).collect::<Option<Vec<u64>>>()?;
        Some(DeviceGroups::Lists(devices.chunks(usize::try_from(group_size).ok()?).map(<[u64]>::to_vec).collect()))
    }

    /// Members of the largest group; `None` where the module does not say.
    pub fn size(&self) -> Option<u64> {
        match self {
            DeviceGroups::One | DeviceGroups::Unreadable => None,
            DeviceGroups::Lists(lists) => lists.iter().map(|list| list.len() as u64).max(),
            DeviceGroups::Iota { group_size, .. } => Some(*group_size),
        }
    }

    /// One more than the largest number of a member; `None` where the module does not say.
    pub fn largest(&self) -> Option<u64> {
        match self {
            DeviceGroups::One | DeviceGroups::Unreadable => None,
            DeviceGroups::Lists(lists) => lists.iter().flatten().max().map(|&last| last.saturating_add(1)),
            DeviceGroups::Iota { dims, .. } => Some(dims.iter().fold(1, |product, &size| product.saturating_mul(size))),
        }
    }

    /// The members of each group; `None` where the module does not say.
    pub fn lists(&self) -> Option<Vec<Vec<u64>>> {
        match self {
            DeviceGroups::One | DeviceGroups::Unreadable => None,
            DeviceGroups::Lists(lists) => Some(lists.clone()),
            DeviceGroups::Iota { group_size, dims, permutation } => {
                let members = transposed_iota(dims, permutation)?;
                Some(members.chunks((*group_size).max(1) as usize).map(<[u64]>::to_vec).collect())
            }
        }
    }
}

/// The devices of a mesh in the order of its axes. The outer `Some` means that they can be read; the inner `None` means
/// that they are in their own order. A mesh whose axes are in another order than its devices has a transpose: XLA's
/// partitioner makes such meshes for shardings like `devices=[4,1,2]<=[2,4]T(1,0)`.
fn device_ids(mesh: &MeshProto) -> Option<Option<Vec<u64>>> {
    match &mesh.iota_transform {
        Some(transform) => {
            let dims = transform.reshape_dims.iter().map(|&size| u64::try_from(size).ok());
            let permutation = transform.transpose_perm.iter().map(|&dim| usize::try_from(dim).ok());
            let devices =
                transposed_iota(&dims.collect::<Option<Vec<_>>>()?, &permutation.collect::<Option<Vec<_>>>()?)?;
            Some(Some(devices))
        }
        None if mesh.device_ids.is_empty() => Some(None),
        None => Some(Some(mesh.device_ids.iter().map(|&id| u64::try_from(id).ok()).collect::<Option<_>>()?)),
    }
}

/// More devices than any real program has: a module that claims more is not believed.
const DEVICE_LIMIT: u64 = 1 << 24;

/// The elements, in order, of the numbers from 0 on in an array of `dims`, transposed; `None` for no permutation of its
/// dimensions. Where none is stated, none is permuted.
pub fn transposed_iota(dims: &[u64], permutation: &[usize]) -> Option<Vec<u64>> {
    let identity: Vec<usize> = (0..dims.len()).collect();
    let permutation = if permutation.is_empty() { &identity } else { permutation };
    let count = dims.iter().try_fold(1u64, |count, &size| count.checked_mul(size))?;
    let distinct: BTreeSet<usize> = permutation.iter().copied().collect();
    if count > DEVICE_LIMIT || distinct.len() != dims.len() {
        return None;
    }
    let mut strides = vec![1u64; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim].checked_mul(dims[dim])?;
    }
    let mut elements = vec![0];
    for &dim in permutation {
        let (size, stride) = (*dims.get(dim)?, strides[dim]);
        elements = elements.iter().flat_map(|&base| (0..size).map(move |at| base + at * stride)).collect();
    }
    (permutation.len() == dims.len()).then_some(elements)
}
