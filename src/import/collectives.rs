//! The collectives of a module that is the program of one device, as ops over axes of a mesh.

use meshloom_hlo::device_groups::DeviceGroups;
use meshloom_hlo::mesh::{Mesh, MeshAxis};
use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto};

use crate::ir::{Axes, DType, GraphBuilder, OpError, Value, Values};
use crate::ops::{
    AllGather, AllReduce, AllToAll, AxisIndex, CollectivePermute, Convert, Group, Op, ReduceKind, ReduceScatter,
    combiner,
};

/// The nodes of an instruction that only the program of one device has; `None` if it is none of those, or if its
/// devices do not follow the axes of the mesh.
pub(super) fn collective(
    mesh: &Mesh,
    instruction: &HloInstructionProto,
    called: Option<&HloComputationProto>,
    builder: &mut GraphBuilder,
    operands: &[Value],
) -> Result<Option<Values>, OpError> {
    if instruction.opcode == "partition-id" {
        let all = mesh.axes().collect::<Axes>();
        let index = builder.push1(AxisIndex { group: Group::new(mesh, &all) }, &[])?;
        return builder.push(Convert(DType::U32), &[index]).map(Some);
    }
    let Some(op) = op(mesh, instruction, called) else { return Ok(None) };
    builder.push(op, operands).map(Some)
}

fn op(mesh: &Mesh, instruction: &HloInstructionProto, called: Option<&HloComputationProto>) -> Option<Op> {
    // Without a channel, numbers are those of replicas.
    if instruction.channel_id <= 0 {
        return None;
    }
    let dim = || usize::try_from(*instruction.dimensions.first()?).ok();
    // Without this attribute, a group would be one of replicas.
    let group = || if instruction.use_global_device_ids { group(mesh, instruction) } else { None };
    let kind = || called.and_then(combiner).map(|(kind, _)| kind);
    Some(match instruction.opcode.as_str() {
        "all-gather" => AllGather { group: group()?, dim: dim()? }.into(),
        "all-reduce" => AllReduce { group: group()?, kind: kind()? }.into(),
        "reduce-scatter" if kind()? == ReduceKind::Sum => ReduceScatter { group: group()?, dim: dim()? }.into(),
        "all-to-all" if instruction.operand_ids.len() == 1 => {
            AllToAll { group: self::group(mesh, instruction)?, dim: dim()? }.into()
        }
        "collective-permute" if instruction.operand_ids.len() == 1 => {
            let all = mesh.axes().collect::<Axes>();
            let pair = |pair: &meshloom_hlo::proto::SourceTarget| {
                Some((u32::try_from(pair.source).ok()?, u32::try_from(pair.target).ok()?))
            };
            let pairs = instruction.source_target_pairs.iter().map(pair).collect::<Option<_>>()?;
            CollectivePermute { group: Group::new(mesh, &all), pairs }.into()
        }
        _ => return None,
    })
}

/// The axes along which an instruction's devices differ, in the order of their ranks.
fn group(mesh: &Mesh, instruction: &HloInstructionProto) -> Option<Group> {
    let mut lists = match DeviceGroups::of(instruction) {
        DeviceGroups::One => vec![(0..mesh.device_count() as u64).collect()],
        groups => groups.lists()?,
    };
    let first = lists.first()?.clone();
    let mut axes: Vec<MeshAxis> = Vec::new();
    let mut size = 1;
    while size < first.len() {
        let step = usize::try_from(first.get(size)?.checked_sub(first[0])?).ok()?;
        let axis = mesh.axes().find(|&axis| mesh.size(axis) > 1 && mesh.stride(axis) == step)?;
        axes.insert(0, axis);
        size *= mesh.size(axis);
    }
    let group = Group::new(mesh, &axes);
    let numbers = |list: Vec<usize>| list.into_iter().map(|device| device as u64).collect::<Vec<u64>>();
    let mut expected: Vec<Vec<u64>> = group.devices(mesh).into_iter().map(numbers).collect();
    expected.sort();
    lists.sort();
    (lists == expected).then_some(group)
}
