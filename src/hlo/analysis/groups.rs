//! The devices that take part in a collective.

use crate::hlo::proto::{HloInstructionProto, IotaReplicaGroupListProto};

/// How many devices a program runs on. What XLA partitions, or we do, has one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Devices {
    /// Copies of the program.
    pub replicas: u64,
    /// Parts into which each copy is split.
    pub partitions: u64,
}

impl Devices {
    /// One replica of so many partitions.
    pub fn partitioned(partitions: usize) -> Devices {
        Devices { replicas: 1, partitions: partitions as u64 }
    }
}

/// The groups of a collective, in the form in which the module has them. Numbers are those of devices, replicas or partitions,
/// as the instruction's other attributes say (`GetCollectiveOpGroupMode`, collective_ops_utils.cc in XLA).
#[derive(Clone, Debug, PartialEq, Eq)]
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
        /// Which dimension goes where.
        permutation: Vec<usize>,
    },
    /// A form that is not read here: groups by the axes of a mesh (V3).
    Unreadable,
}

impl DeviceGroups {
    /// The groups of an instruction.
    pub fn of(instruction: &HloInstructionProto) -> DeviceGroups {
        let lists = |groups: &[crate::hlo::proto::ReplicaGroup]| {
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
        if instruction.mesh_axes_replica_group_list.is_some() {
            return DeviceGroups::Unreadable;
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

    /// Members of the largest group; `None` where the module does not say.
    pub fn size(&self) -> Option<u64> {
        match self {
            DeviceGroups::One | DeviceGroups::Unreadable => None,
            DeviceGroups::Lists(lists) => lists.iter().map(|list| list.len() as u64).max(),
            DeviceGroups::Iota { group_size, .. } => Some(*group_size),
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

/// The elements, in order, of the numbers from 0 on in an array of `dims`, transposed; `None` for no permutation of its
/// dimensions.
fn transposed_iota(dims: &[u64], permutation: &[usize]) -> Option<Vec<u64>> {
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim];
    }
    let mut elements = vec![0];
    for &dim in permutation {
        let (size, stride) = (*dims.get(dim)?, strides[dim]);
        elements = elements.iter().flat_map(|&base| (0..size).map(move |at| base + at * stride)).collect();
    }
    (permutation.len() == dims.len()).then_some(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::proto::{CollectiveDeviceListProto, ReplicaGroup};

    #[test]
    fn every_form_is_read() {
        let iota = IotaReplicaGroupListProto {
            num_replica_groups: 4,
            num_devices_per_group: 2,
            iota_reshape_dims: vec![2, 2, 2],
            iota_transpose_perm: vec![0, 2, 1],
        };
        let group = |ids: &[i64]| ReplicaGroup { replica_ids: ids.to_vec() };
        let lists = || vec![group(&[0, 2]), group(&[1, 3])];
        let in_list = |iota, replica_groups| {
            Some(Box::new(CollectiveDeviceListProto { iota_replica_group_list: iota, replica_groups }))
        };
        let none = HloInstructionProto::default;
        let check = |instruction: HloInstructionProto, size: Option<u64>, expected: Option<&[&[u64]]>| {
            let groups = DeviceGroups::of(&instruction);
            assert_eq!(groups.size(), size, "{groups:?}");
            let expected = expected.map(|lists| lists.iter().map(|list| list.to_vec()).collect::<Vec<_>>());
            assert_eq!(groups.lists(), expected, "{groups:?}");
        };
        let across: &[&[u64]] = &[&[0, 2], &[1, 3], &[4, 6], &[5, 7]];
        let listed: &[&[u64]] = &[&[0, 2], &[1, 3]];
        check(none(), None, None);
        check(HloInstructionProto { replica_groups: lists(), ..none() }, Some(2), Some(listed));
        check(HloInstructionProto { collective_device_list: in_list(None, lists()), ..none() }, Some(2), Some(listed));
        check(
            HloInstructionProto { collective_device_list: in_list(Some(iota.clone()), vec![]), ..none() },
            Some(2),
            Some(across),
        );
        check(
            HloInstructionProto { iota_collective_device_list: Some(Box::new(iota)), ..none() },
            Some(2),
            Some(across),
        );
        let by_axes = HloInstructionProto { mesh_axes_replica_group_list: Some(Default::default()), ..none() };
        assert_eq!(DeviceGroups::of(&by_axes), DeviceGroups::Unreadable);
    }
}
