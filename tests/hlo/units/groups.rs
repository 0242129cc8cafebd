use meshloom::hlo::device_groups::DeviceGroups;
use meshloom::hlo::proto::{
    AxisRefProto, CollectiveDeviceListProto, HloInstructionProto, IotaReplicaGroupListProto,
    MeshAxesReplicaGroupListProto, MeshProto, ReplicaGroup, axis_ref_proto, mesh_proto,
};

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
    check(HloInstructionProto { iota_collective_device_list: Some(Box::new(iota)), ..none() }, Some(2), Some(across));
    let along_mesh = |axes: &[(i64, Option<(i64, i64)>)], device_ids: &[i64], iota_transform| {
        let axis = |size| mesh_proto::MeshAxis { name: "axis".into(), size };
        let mesh = MeshProto { axes: vec![axis(2), axis(4)], device_ids: device_ids.to_vec(), iota_transform };
        let part = |(pre_size, size)| axis_ref_proto::SubAxis { pre_size, size };
        let axis = |&(mesh_axis_index, sub_axis): &(i64, Option<(i64, i64)>)| AxisRefProto {
            mesh_axis_index,
            sub_axis_info: sub_axis.map(part),
        };
        let list = MeshAxesReplicaGroupListProto { mesh: Some(mesh), axes: axes.iter().map(axis).collect() };
        HloInstructionProto { mesh_axes_replica_group_list: Some(Box::new(list)), ..none() }
    };
    let along = |axes: &[(i64, Option<(i64, i64)>)], device_ids: &[i64]| along_mesh(axes, device_ids, None);
    check(along(&[(0, None)], &[]), Some(2), Some(&[&[0, 4], &[1, 5], &[2, 6], &[3, 7]]));
    check(along(&[(1, None), (0, None)], &[]), Some(8), Some(&[&[0, 4, 1, 5, 2, 6, 3, 7]]));
    check(along(&[(1, Some((1, 2)))], &[]), Some(2), Some(&[&[0, 2], &[1, 3], &[4, 6], &[5, 7]]));
    check(along(&[(1, Some((2, 2)))], &[]), Some(2), Some(&[&[0, 1], &[2, 3], &[4, 5], &[6, 7]]));
    let reversed = [7, 6, 5, 4, 3, 2, 1, 0];
    check(along(&[(0, None)], &reversed), Some(2), Some(&[&[7, 3], &[6, 2], &[5, 1], &[4, 0]]));
    // Devices in the order 0 2 4 6 1 3 5 7.
    let transposed = |dims: &[i64]| {
        let transform = mesh_proto::IotaTransform { reshape_dims: dims.to_vec(), transpose_perm: vec![1, 0] };
        along_mesh(&[(0, None)], &[], Some(transform))
    };
    check(transposed(&[4, 2]), Some(2), Some(&[&[0, 1], &[2, 3], &[4, 5], &[6, 7]]));
    let huge = [transposed(&[4, 1]), transposed(&[1 << 40, 1 << 40]), transposed(&[-4, 2])];
    for unreadable in huge.into_iter().chain([along(&[(2, None)], &[]), along(&[(1, Some((3, 2)))], &[])]) {
        assert_eq!(DeviceGroups::of(&unreadable), DeviceGroups::Unreadable);
    }
}
