//! Instructions and computations by their ids.

use rustc_hash::FxHashMap;

use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto, HloModuleProto};

/// The computations of a module, numbered in its order.
pub(super) struct Module<'a> {
    computations: Vec<Computation<'a>>,
    by_id: FxHashMap<i64, usize>,
    entry: Option<usize>,
}

/// A computation, with its instructions by id.
pub(super) struct Computation<'a> {
    proto: &'a HloComputationProto,
    positions: FxHashMap<i64, usize>,
}

impl<'a> Module<'a> {
    pub(super) fn new(module: &'a HloModuleProto) -> Module<'a> {
        let computation = |proto: &'a HloComputationProto| {
            let ids = proto.instructions.iter().map(|instruction| instruction.id);
            Computation { proto, positions: ids.zip(0..).collect() }
        };
        let by_id: FxHashMap<i64, usize> =
            module.computations.iter().map(|computation| computation.id).zip(0..).collect();
        let entry = by_id.get(&module.entry_computation_id).copied();
        Module { computations: module.computations.iter().map(computation).collect(), by_id, entry }
    }

    /// Returns the number of a computation; `None` if no computation has the id.
    pub(super) fn number(&self, id: i64) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn entry(&self) -> Option<usize> {
        self.entry
    }

    pub(super) fn computations(&self) -> &[Computation<'a>] {
        &self.computations
    }

    pub(super) fn callee(&self, caller: &HloInstructionProto, position: usize) -> Option<&Computation<'a>> {
        self.computations.get(self.number(*caller.called_computation_ids.get(position)?)?)
    }
}

impl<'a> Computation<'a> {
    pub(super) fn proto(&self) -> &'a HloComputationProto {
        self.proto
    }

    pub(super) fn instructions(&self) -> &'a [HloInstructionProto] {
        &self.proto.instructions
    }

    pub(super) fn root(&self) -> Option<&'a HloInstructionProto> {
        self.instruction(self.proto.root_id)
    }

    pub(super) fn instruction(&self, id: i64) -> Option<&'a HloInstructionProto> {
        self.proto.instructions.get(self.position(id)?)
    }

    pub(super) fn position(&self, id: i64) -> Option<usize> {
        self.positions.get(&id).copied()
    }

    pub(super) fn operand(&self, reader: &HloInstructionProto, position: usize) -> Option<&'a HloInstructionProto> {
        self.instruction(*reader.operand_ids.get(position)?)
    }

    /// The positions of the operands of an instruction.
    pub(super) fn operand_positions(&self, reader: &HloInstructionProto) -> impl Iterator<Item = usize> {
        reader.operand_ids.iter().filter_map(|&id| self.position(id))
    }

    /// The positions of those that read each instruction, each once.
    pub(super) fn readers(&self) -> Vec<Vec<usize>> {
        let mut readers = vec![Vec::new(); self.instructions().len()];
        for (reader, instruction) in self.instructions().iter().enumerate() {
            for operand in self.operand_positions(instruction) {
                if readers[operand].last() != Some(&reader) {
                    readers[operand].push(reader);
                }
            }
        }
        readers
    }

    pub(super) fn operands<'s>(
        &'s self,
        reader: &'s HloInstructionProto,
    ) -> impl Iterator<Item = Option<&'a HloInstructionProto>> + use<'s, 'a> {
        reader.operand_ids.iter().map(|&id| self.instruction(id))
    }
}

/// Returns a frontend attribute of an instruction.
pub(super) fn attribute<'a>(instruction: &'a HloInstructionProto, name: &str) -> Option<&'a str> {
    instruction.frontend_attributes.as_ref()?.map.get(name).map(String::as_str)
}
