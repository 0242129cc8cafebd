//! Computations of other modules, written as they are.

use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto};
use rustc_hash::FxHashMap;

use super::{Emitter, UNSET};
use crate::ops::{ComputationId, InstructionId};

impl Emitter<'_> {
    /// Writes one of these computations, and before it those that it calls; `None` if an id names nothing.
    pub(super) fn foreign_computation(
        &mut self,
        computations: &[HloComputationProto],
        id: i64,
    ) -> Option<ComputationId> {
        let at = computations.iter().position(|computation| computation.id == id)?;
        let (computation, earlier) = (&computations[at], &computations[..at]);
        // Each stands behind those that it calls, so that no circle is followed.
        let mut called: FxHashMap<i64, ComputationId> = FxHashMap::default();
        for id in computation.instructions.iter().flat_map(|it| &it.called_computation_ids) {
            if !called.contains_key(id) {
                called.insert(*id, self.foreign_computation(earlier, *id)?);
            }
        }
        self.open();
        let mut parameters: Vec<&HloInstructionProto> =
            computation.instructions.iter().filter(|it| it.opcode == "parameter").collect();
        parameters.sort_by_key(|parameter| parameter.parameter_number);
        let others = computation.instructions.iter().filter(|it| it.opcode != "parameter");
        let mut ids: FxHashMap<i64, InstructionId> = FxHashMap::default();
        let mut is_whole = true;
        for instruction in parameters.into_iter().chain(others) {
            let operands: Vec<InstructionId> =
                instruction.operand_ids.iter().map(|id| ids.get(id).copied().unwrap_or(UNSET)).collect();
            is_whole &= !operands.contains(&UNSET);
            let shape = instruction.shape.clone().unwrap_or_default();
            let own = self.writer.begin_foreign(&instruction.opcode, &shape, &operands);
            *own = HloInstructionProto {
                name: String::new(),
                opcode: String::new(),
                shape: None,
                metadata: None,
                operand_ids: Vec::new(),
                control_predecessor_ids: Vec::new(),
                id: 0,
                called_computation_ids: instruction.called_computation_ids.iter().map(|id| called[id]).collect(),
                ..instruction.clone()
            };
            ids.insert(instruction.id, self.writer.commit());
        }
        let root = computation.instructions.iter().find(|it| it.id == computation.root_id);
        let shape = root.and_then(|root| root.shape.clone()).unwrap_or_default();
        let result = self.writer.put_shape(&shape);
        let root = ids.get(&computation.root_id).copied().unwrap_or(UNSET);
        let (written, _) = self.close(&computation.name, root, result);
        (is_whole && root != UNSET).then_some(written)
    }
}
