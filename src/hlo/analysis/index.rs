//! Instructions and computations by their ids.

use rustc_hash::FxHashMap;

use crate::hlo::proto::{HloComputationProto, HloInstructionProto, HloModuleProto};

/// The computations of a module.
pub(super) struct Module<'a> {
    computations: FxHashMap<i64, Computation<'a>>,
}

/// A computation, with its instructions by id.
pub(super) struct Computation<'a> {
    proto: &'a HloComputationProto,
    instructions: FxHashMap<i64, &'a HloInstructionProto>,
}

impl<'a> Module<'a> {
    pub(super) fn new(module: &'a HloModuleProto) -> Module<'a> {
        let by_id = |proto: &'a HloComputationProto| {
            let instructions = proto.instructions.iter().map(|instruction| (instruction.id, instruction)).collect();
            (proto.id, Computation { proto, instructions })
        };
        Module { computations: module.computations.iter().map(by_id).collect() }
    }

    pub(super) fn computation(&self, id: i64) -> Option<&Computation<'a>> {
        self.computations.get(&id)
    }

    /// The computation that an instruction calls in a position.
    pub(super) fn callee(&self, caller: &HloInstructionProto, position: usize) -> Option<&Computation<'a>> {
        self.computation(*caller.called_computation_ids.get(position)?)
    }
}

impl<'a> Computation<'a> {
    pub(super) fn instructions(&self) -> &'a [HloInstructionProto] {
        &self.proto.instructions
    }

    pub(super) fn name(&self) -> &'a str {
        &self.proto.name
    }

    pub(super) fn root(&self) -> Option<&'a HloInstructionProto> {
        self.instructions.get(&self.proto.root_id).copied()
    }

    /// What an instruction reads in a position.
    pub(super) fn operand(&self, reader: &HloInstructionProto, position: usize) -> Option<&'a HloInstructionProto> {
        self.instructions.get(reader.operand_ids.get(position)?).copied()
    }

    pub(super) fn operands<'s>(
        &'s self,
        reader: &'s HloInstructionProto,
    ) -> impl Iterator<Item = Option<&'a HloInstructionProto>> + use<'s, 'a> {
        reader.operand_ids.iter().map(|id| self.instructions.get(id).copied())
    }
}
