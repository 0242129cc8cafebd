//! HLO modules written by hand.

use meshloom::hlo::proto::{
    HloComputationProto, HloInstructionProto, HloModuleProto, LiteralProto, PrimitiveType, ReplicaGroup, ShapeProto,
};

pub fn shape(element_type: PrimitiveType, dims: &[i64]) -> ShapeProto {
    ShapeProto { element_type: element_type.into(), dimensions: dims.to_vec(), ..Default::default() }
}

/// An instruction whose result is `f32[4]`.
pub fn instruction(id: i64, opcode: &str, operands: &[i64]) -> HloInstructionProto {
    HloInstructionProto {
        id,
        name: format!("{opcode}.{id}"),
        opcode: opcode.into(),
        shape: Some(shape(PrimitiveType::F32, &[4])),
        operand_ids: operands.to_vec(),
        ..Default::default()
    }
}

pub fn calling(id: i64, opcode: &str, operands: &[i64], callees: &[i64]) -> HloInstructionProto {
    HloInstructionProto { called_computation_ids: callees.to_vec(), ..instruction(id, opcode, operands) }
}

/// A collective over two groups of four of eight devices.
pub fn collective(id: i64, opcode: &str, operands: &[i64]) -> HloInstructionProto {
    let group = |ids: &[i64]| ReplicaGroup { replica_ids: ids.to_vec() };
    HloInstructionProto {
        channel_id: id,
        use_global_device_ids: true,
        replica_groups: vec![group(&[0, 1, 2, 3]), group(&[4, 5, 6, 7])],
        ..instruction(id, opcode, operands)
    }
}

pub fn number(id: i64, value: i32) -> HloInstructionProto {
    let literal = LiteralProto { s32s: vec![value], ..Default::default() };
    let shape = Some(shape(PrimitiveType::S32, &[]));
    HloInstructionProto { literal: Some(Box::new(literal)), shape, ..instruction(id, "constant", &[]) }
}

pub fn whole(instruction: HloInstructionProto) -> HloInstructionProto {
    HloInstructionProto { shape: Some(shape(PrimitiveType::S32, &[])), ..instruction }
}

pub fn comparing(direction: &str, instruction: HloInstructionProto) -> HloInstructionProto {
    HloInstructionProto { comparison_direction: direction.into(), ..instruction }
}

pub fn element(id: i64, tuple: i64, index: i64) -> HloInstructionProto {
    HloInstructionProto { tuple_index: index, ..whole(instruction(id, "get-tuple-element", &[tuple])) }
}

/// With a tuple as its result.
pub fn tuple(parts: Vec<ShapeProto>, instruction: HloInstructionProto) -> HloInstructionProto {
    let shape = ShapeProto { element_type: PrimitiveType::Tuple.into(), tuple_shapes: parts, ..Default::default() };
    HloInstructionProto { shape: Some(shape), ..instruction }
}

/// A computation whose root is its last instruction.
pub fn computation(id: i64, instructions: Vec<HloInstructionProto>) -> HloComputationProto {
    let root_id = instructions.last().expect("a root").id;
    HloComputationProto { id, name: format!("computation.{id}"), root_id, instructions, ..Default::default() }
}

/// A module whose entry is the first computation.
pub fn module(computations: Vec<HloComputationProto>) -> HloModuleProto {
    HloModuleProto { entry_computation_id: computations[0].id, computations, ..Default::default() }
}

/// An entry of one parameter, 1, and these instructions; then these computations.
pub fn around(
    instructions: impl IntoIterator<Item = HloInstructionProto>,
    others: impl IntoIterator<Item = HloComputationProto>,
) -> HloModuleProto {
    let entry = [instruction(1, "parameter", &[])].into_iter().chain(instructions).collect();
    module([computation(100, entry)].into_iter().chain(others).collect())
}
