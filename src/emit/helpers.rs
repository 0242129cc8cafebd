//! Helpers for rules that emit more than one instruction: further instructions, computations beside the open one,
//! results out of a tuple.

use meshloom_hlo::proto::{HloInstructionProto, ShapeProto};

use super::{ComputationId, EmitContext, InstructionId};
use crate::ir::{DType, TensorType};
use crate::ops::to_i64;

impl EmitContext<'_> {
    /// The type of a result.
    pub fn result_type(&self, index: usize) -> &TensorType {
        self.graph.ty(self.values[index])
    }

    /// Number of results.
    pub fn result_count(&self) -> usize {
        self.node.results().len()
    }

    /// Starts an instruction of any type, which need not be a result; [`EmitContext::commit`] ends it.
    pub fn begin_typed(
        &mut self,
        opcode: &str,
        ty: &TensorType,
        operands: &[InstructionId],
    ) -> &mut HloInstructionProto {
        self.emitter.begin(opcode, ty, operands)
    }

    /// Ends the instruction begun, whichever it is.
    pub fn commit(&mut self) -> InstructionId {
        self.emitter.writer.commit()
    }

    /// One instruction without attributes.
    pub fn instruction(&mut self, opcode: &str, ty: &TensorType, operands: &[InstructionId]) -> InstructionId {
        self.emitter.instruction(opcode, ty, operands)
    }

    /// A comparison, `pred` with the dimensions of `ty`, which is the operands' type. `order` is `FLOAT`, `TOTALORDER`,
    /// `SIGNED` or `UNSIGNED`; see [`comparison_type`].
    pub fn compare(
        &mut self,
        direction: &str,
        order: &str,
        ty: &TensorType,
        [lhs, rhs]: [InstructionId; 2],
    ) -> InstructionId {
        let instruction = self.begin_typed("compare", &ty.with_dtype(DType::Pred), &[lhs, rhs]);
        instruction.comparison_direction.push_str(direction);
        instruction.comparison_type.push_str(order);
        self.commit()
    }

    /// A scalar instruction repeated to `ty`.
    pub fn repeat(&mut self, ty: &TensorType, scalar: InstructionId) -> InstructionId {
        if ty.rank() == 0 { scalar } else { self.instruction("broadcast", ty, &[scalar]) }
    }

    /// An instruction repeated along new dimensions: its own dimension `i` becomes dimension `mapping[i]` of `ty`.
    pub fn broadcast(&mut self, ty: &TensorType, operand: InstructionId, mapping: &[usize]) -> InstructionId {
        self.begin_typed("broadcast", ty, &[operand]).dimensions.extend(to_i64(mapping));
        self.commit()
    }

    /// Positions along a dimension.
    pub fn positions(&mut self, ty: &TensorType, axis: usize) -> InstructionId {
        self.begin_typed("iota", ty, &[]).dimensions.push(axis as i64);
        self.commit()
    }

    /// A computation beside the open one, written by `f` from its parameters; `results` are the types of what `f`
    /// returns, a tuple unless it is one. The same `name` gives the same computation: it must say everything that `f`
    /// depends on.
    pub fn computation(
        &mut self,
        name: &str,
        parameters: &[&TensorType],
        results: &[&TensorType],
        f: impl FnOnce(&mut Self, &[InstructionId]) -> Vec<InstructionId>,
    ) -> ComputationId {
        if let Some(&known) = self.emitter.named_computations.get(name) {
            return known;
        }
        self.emitter.open();
        let mut inputs = Vec::with_capacity(parameters.len());
        for ty in parameters {
            self.emitter.writer.parameter(ty, "");
            inputs.push(self.commit());
        }
        let outputs = f(self, &inputs);
        let (root, result) = match (&outputs[..], results) {
            (&[root], &[ty]) => (root, self.emitter.writer.shape(ty)),
            (outputs, types) => {
                let root = self.emitter.tuple(types, outputs);
                (root, self.emitter.writer.tuple_shape(types.iter().copied()))
            }
        };
        let (id, _) = self.emitter.close(name, root, result);
        self.emitter.named_computations.insert(name.to_owned(), id);
        id
    }

    /// Starts an instruction that gives a tuple; [`EmitContext::commit`] ends it.
    pub fn begin_tuple(
        &mut self,
        opcode: &str,
        types: &[&TensorType],
        operands: &[InstructionId],
    ) -> &mut HloInstructionProto {
        self.emitter.begin_tuple(opcode, types.iter().copied(), operands)
    }

    /// An element of a tuple.
    pub fn element(&mut self, tuple: InstructionId, index: usize, ty: &TensorType) -> InstructionId {
        self.emitter.element(tuple, index, ty)
    }

    /// Starts an instruction that gives all results: a tuple, unless there is one; [`EmitContext::finish_all`] ends it.
    pub fn begin_all(&mut self, opcode: &str, operands: &[InstructionId]) -> &mut HloInstructionProto {
        if self.result_count() == 1 {
            return self.begin_with(opcode, 0, operands);
        }
        let (graph, node) = (self.graph, self.node);
        self.emitter.begin_tuple(opcode, node.results().map(|value| graph.ty(value)), operands)
    }

    /// Gives the instruction begun another shape: one with a layout of its own.
    pub fn set_shape(&mut self, shape: &ShapeProto) {
        self.emitter.writer.set_shape(shape);
    }

    /// Ends the instruction begun by [`EmitContext::begin_all`].
    pub fn finish_all(&mut self) {
        let (graph, node) = (self.graph, self.node);
        let id = self.commit();
        if self.result_count() == 1 {
            self.results[0] = id;
        } else {
            self.results = self.emitter.elements(id, node.results().map(|value| graph.ty(value)));
        }
    }

    /// The instructions that all operands became.
    pub fn operand_ids(&self) -> Vec<InstructionId> {
        self.operands.to_vec()
    }
}

/// The order in which HLO compares elements of a type, in which NaN is unordered.
pub fn comparison_type(dtype: DType) -> &'static str {
    if dtype.is_float() {
        "FLOAT"
    } else if dtype.is_signed_integer() {
        "SIGNED"
    } else {
        "UNSIGNED"
    }
}
