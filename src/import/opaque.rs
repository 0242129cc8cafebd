//! Instructions that no op recognizes, carried as they are.

use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto};

use super::{ImportError, Importer, NESTING};
use crate::ir::{GraphBuilder, TensorType, Value, Values};
use crate::ops::Opaque;

impl<'m> Importer<'m> {
    /// The values of an instruction that is carried as it is.
    pub(super) fn opaque(
        &self,
        instruction: &'m HloInstructionProto,
        types: &[TensorType],
        builder: &mut GraphBuilder,
        operands: &[Value],
    ) -> Result<Values, ImportError> {
        let refused = || ImportError::Unrecognized(self.place(instruction));
        // An operand that is a tuple would be one no more.
        if instruction.operand_ids.len() != operands.len() {
            return Err(refused());
        }
        let mut computations = Vec::new();
        for &id in &instruction.called_computation_ids {
            self.collect(id, &mut computations, 0).ok_or_else(|| ImportError::Nesting(self.place(instruction)))?;
        }
        let operand_types: Vec<TensorType> = operands.iter().map(|&value| builder.ty(value).clone()).collect();
        let op = Opaque::of(instruction, &operand_types, types, computations).ok_or_else(refused)?;
        let pushed = builder.push(op, operands);
        pushed.map_err(|error| ImportError::Op { place: self.place(instruction), source: error.into() })
    }

    /// Appends a computation behind those that it calls; `None` if they are nested too deep.
    fn collect(&self, id: i64, computations: &mut Vec<HloComputationProto>, depth: usize) -> Option<()> {
        if computations.iter().any(|known| known.id == id) {
            return Some(());
        }
        let computation = self.computations.get(&id).filter(|_| depth < NESTING)?;
        for &called in computation.instructions.iter().flat_map(|it| &it.called_computation_ids) {
            self.collect(called, computations, depth + 1)?;
        }
        computations.push((*computation).clone());
        Some(())
    }
}
