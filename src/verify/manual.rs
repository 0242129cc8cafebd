//! Modules whose program of one device lies in a region that XLA's partitioner leaves alone.

use meshloom_hlo::proto::op_sharding::Type;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, OpSharding};
use rustc_hash::FxHashMap;

/// The module with parameters and results of one device, and with the shardings that it states for them. A module of
/// another form comes back as it is.
pub(super) fn without_borders(module: &HloModuleProto) -> HloModuleProto {
    unwrapped(module).unwrap_or_else(|| module.clone())
}

fn unwrapped(module: &HloModuleProto) -> Option<HloModuleProto> {
    let mut module = module.clone();
    let entry = module.entry_computation_id;
    let entry = module.computations.iter_mut().find(|computation| computation.id == entry)?;
    let by_id: FxHashMap<i64, HloInstructionProto> =
        entry.instructions.iter().map(|instruction| (instruction.id, instruction.clone())).collect();
    let mut readers: FxHashMap<i64, usize> = FxHashMap::default();
    for operand in entry.instructions.iter().flat_map(|instruction| &instruction.operand_ids) {
        *readers.entry(*operand).or_default() += 1;
    }
    let calls = |id: i64, target: &str| {
        by_id.get(&id).filter(|it| it.opcode == "custom-call" && it.custom_call_target == target)
    };
    // In a region that is manual along some axes alone, XLA's partitioner still has work to do.
    let is_manual = |it: &HloInstructionProto| it.sharding.as_ref().is_some_and(|it| it.r#type() == Type::Manual);
    let mut stands_for: FxHashMap<i64, i64> = FxHashMap::default();
    let mut parameters: FxHashMap<i64, (HloInstructionProto, Option<Box<OpSharding>>)> = FxHashMap::default();
    let mut results: FxHashMap<i64, OpSharding> = FxHashMap::default();
    for instruction in &entry.instructions {
        let operand = || instruction.operand_ids.first().copied();
        if calls(instruction.id, "SPMDFullToShardShape").is_some() {
            let stated = calls(operand()?, "Sharding")?;
            let parameter = by_id.get(stated.operand_ids.first()?).filter(|it| it.opcode == "parameter")?;
            if !is_manual(instruction) || readers.get(&parameter.id) != Some(&1) || readers.get(&stated.id) != Some(&1)
            {
                return None;
            }
            stands_for.insert(instruction.id, parameter.id);
            stands_for.insert(stated.id, parameter.id);
            parameters.insert(parameter.id, (instruction.clone(), stated.sharding.clone()));
        }
        if calls(instruction.id, "SPMDShardToFullShape").is_some() {
            let stated = calls(operand()?, "Sharding")?;
            if !is_manual(stated)
                || readers.get(&stated.id) != Some(&1)
                || readers.get(&instruction.id).copied().unwrap_or(0) > 1
            {
                return None;
            }
            let inner = *stated.operand_ids.first()?;
            stands_for.insert(instruction.id, inner);
            stands_for.insert(stated.id, inner);
            results.insert(instruction.id, *instruction.sharding.clone()?);
        }
    }
    let root = by_id.get(&entry.root_id)?;
    let borders: Vec<i64> = if root.opcode == "tuple" { root.operand_ids.clone() } else { vec![root.id] };
    // All borders are those of the program: nothing is computed outside.
    let shardings: Vec<OpSharding> = borders.iter().map(|id| results.get(id).cloned()).collect::<Option<_>>()?;
    if entry.instructions.iter().any(|it| it.opcode == "parameter" && !parameters.contains_key(&it.id))
        || results.len() != borders.len()
    {
        return None;
    }
    let inner = |mut id: i64| {
        while let Some(&other) = stands_for.get(&id) {
            id = other;
        }
        id
    };
    entry.instructions.retain(|instruction| !stands_for.contains_key(&instruction.id));
    for instruction in &mut entry.instructions {
        instruction.operand_ids.iter_mut().for_each(|id| *id = inner(*id));
        if let Some((local, sharding)) = parameters.get(&instruction.id) {
            instruction.shape.clone_from(&local.shape);
            instruction.sharding.clone_from(sharding);
        }
    }
    entry.root_id = inner(entry.root_id);
    let root_id = entry.root_id;
    let of_root = |id: &i64| by_id.get(id).and_then(|it| it.shape.clone());
    let shapes: Vec<_> = borders
        .iter()
        .map(|&id| inner(id))
        .map(|id| {
            let parameter = parameters.get(&id).and_then(|(local, _)| local.shape.clone());
            parameter.or_else(|| of_root(&id))
        })
        .collect::<Option<_>>()?;
    let root = entry.instructions.iter_mut().find(|it| it.id == root_id)?;
    if root.opcode == "tuple" {
        root.shape.as_mut()?.tuple_shapes = shapes;
        let tuple = OpSharding { r#type: Type::Tuple.into(), tuple_shardings: shardings, ..OpSharding::default() };
        root.sharding = Some(Box::new(tuple));
    } else {
        // A parameter that is the result has one sharding as the one and another as the other.
        if root.opcode == "parameter" {
            return None;
        }
        root.sharding = shardings.into_iter().next().map(Box::new);
    }
    Some(module)
}
