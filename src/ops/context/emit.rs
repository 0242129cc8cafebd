//! The context in which an op's emission rule runs.

use std::panic::Location;

use meshloom_hlo::literal_proto;
use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto, ShapeProto};

use crate::ir::{DType, GraphBuilder, Literal, OpError, Spec, TensorType, Value, Values};
use crate::ops::{Group, ReduceKind, to_i64};

/// Id of an instruction, unique in its module.
pub type InstructionId = i64;

/// Id of a computation, unique in its module.
pub type ComputationId = i64;

/// Writes the results of a computation, from its parameters.
pub type EmitBody<'f> = dyn Fn(&mut dyn EmitContext, &[InstructionId]) -> Vec<InstructionId> + 'f;

/// Makes the results of an op from its operands, by other ops.
pub type EmitDefinition<'f> = dyn Fn(&mut GraphBuilder, &[Value]) -> Result<Values, OpError> + 'f;

/// Exchanges within a group of devices, as instructions of the node that is emitted. They make its results.
pub trait EmitCollectives {
    /// An all-gather of all operands along a dimension.
    fn all_gather(&mut self, group: &Group, dim: usize);

    /// An all-reduce of all operands.
    fn all_reduce(&mut self, group: &Group, kind: ReduceKind);

    /// An all-to-all along a dimension.
    fn all_to_all(&mut self, group: &Group, dim: usize);

    /// This device's rank in its group.
    fn axis_index(&mut self, group: &Group);

    /// A collective-permute between ranks (source, target), in every group at once.
    fn collective_permute(&mut self, group: &Group, pairs: &[(u32, u32)]);

    /// A reduce-scatter of all operands along a dimension, which adds them up.
    fn reduce_scatter(&mut self, group: &Group, dim: usize);
}

/// One node as its op's `emit` rule sees it.
pub trait EmitContext: EmitCollectives {
    /// The instruction that an operand became.
    fn operand_id(&self, index: usize) -> InstructionId;

    /// The instructions that all operands became.
    fn operand_ids(&self) -> Vec<InstructionId>;

    /// The type of an operand.
    fn operand_type(&self, index: usize) -> &TensorType;

    /// Number of results.
    fn result_count(&self) -> usize;

    /// The type of a result.
    fn result_type(&self, index: usize) -> &TensorType;

    /// States the instruction of a result.
    fn set_result(&mut self, index: usize, id: InstructionId);

    /// Starts an instruction with all operands and the type of result 0; [`EmitContext::finish`] ends it.
    fn begin(&mut self, opcode: &str) -> &mut HloInstructionProto;

    /// Starts an instruction with chosen operands and the type of a result; [`EmitContext::finish`] ends it.
    fn begin_with(&mut self, opcode: &str, result: usize, operands: &[InstructionId]) -> &mut HloInstructionProto;

    /// Starts an instruction of any type, which need not be a result; [`EmitContext::commit`] ends it.
    fn begin_typed(&mut self, opcode: &str, ty: &TensorType, operands: &[InstructionId]) -> &mut HloInstructionProto;

    /// Starts an instruction that gives a tuple; [`EmitContext::commit`] ends it.
    fn begin_tuple(
        &mut self,
        opcode: &str,
        types: &[&TensorType],
        operands: &[InstructionId],
    ) -> &mut HloInstructionProto;

    /// Starts an instruction that gives all results: a tuple, unless there is one; [`EmitContext::finish_all`] ends it.
    fn begin_all(&mut self, opcode: &str, operands: &[InstructionId]) -> &mut HloInstructionProto;

    /// Gives the instruction begun another shape: one with a layout of its own.
    fn set_shape(&mut self, shape: &ShapeProto);

    /// Ends the instruction begun, whichever it is.
    fn commit(&mut self) -> InstructionId;

    /// Ends the instruction begun by [`EmitContext::begin_all`].
    fn finish_all(&mut self);

    /// One instruction without attributes.
    fn instruction(&mut self, opcode: &str, ty: &TensorType, operands: &[InstructionId]) -> InstructionId;

    /// An element of a tuple.
    fn element(&mut self, tuple: InstructionId, index: usize, ty: &TensorType) -> InstructionId;

    /// A scalar constant from its bytes.
    fn scalar_constant(&mut self, dtype: DType, bytes: &[u8]) -> InstructionId;

    /// A scalar constant from a number.
    fn number(&mut self, dtype: DType, number: f64) -> InstructionId;

    /// A computation of two scalars by one opcode.
    fn combiner(&mut self, opcode: &'static str, dtype: DType) -> ComputationId;

    /// A computation of two scalars that returns the second.
    fn replacer(&mut self, dtype: DType) -> ComputationId;

    /// A computation of two scalars that returns log(exp + exp), with the larger taken out.
    fn log_add_exp(&mut self, dtype: DType) -> ComputationId;

    /// A computation of two pairs (value, position) that returns the pair whose value is the better one by a comparison
    /// (`GT` or `LT`), with the lower position of equals. NaN is better than any number.
    fn arg_reduce_combiner(&mut self, better: &str, dtype: DType) -> ComputationId;

    /// A computation beside the open one, written by `body` from its parameters; `results` are the types of the values
    /// that `body` returns, which form a tuple unless there is only one. The same `name` gives the same computation: it
    /// must say everything that `body` depends on.
    fn computation(
        &mut self,
        name: &str,
        parameters: &[&TensorType],
        results: &[&TensorType],
        body: &EmitBody<'_>,
    ) -> ComputationId;

    /// One of these computations of another module, with those that it calls, which stand before it.
    fn foreign_computation(&mut self, computations: &[HloComputationProto], id: i64) -> ComputationId;

    /// The rule of an op that other ops can express: `definition` makes its results, whose instructions are written in
    /// its place.
    fn by_definition(&mut self, definition: &EmitDefinition<'_>);

    /// A statement of how result 0 is sharded, or the operand itself in a program for one device.
    fn reshard(&mut self, spec: &Spec);

    /// Whether values can be moved to a memory of the host's.
    fn has_host_memory(&self) -> bool;

    /// Notes that the rule cannot go on, which is a defect found at `found_at`. The id that it returns stands for an
    /// instruction.
    fn fail_at(&mut self, expected: &str, found_at: &'static Location<'static>) -> InstructionId;

    /// Ends the instruction begun, which is result 0.
    fn finish(&mut self) {
        let id = self.commit();
        self.set_result(0, id);
    }

    /// One instruction with all operands and no attributes.
    fn simple(&mut self, opcode: &str) {
        self.begin(opcode);
        self.finish();
    }

    /// Makes result 0 the operand itself.
    fn forward_operand(&mut self) {
        self.set_result(0, self.operand_id(0));
    }

    /// A dense constant as result 0.
    fn literal(&mut self, value: &Literal) {
        let value = literal_proto(value.ty(), value.bytes());
        self.begin("constant").literal = Some(value.into());
        self.finish();
    }

    /// A comparison, `pred` with the dimensions of `ty`, which is the operands' type. `order` is `FLOAT`, `TOTALORDER`,
    /// `SIGNED` or `UNSIGNED`; see [`DType::comparison_type`].
    fn compare(
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
    fn repeat(&mut self, ty: &TensorType, scalar: InstructionId) -> InstructionId {
        if ty.rank() == 0 { scalar } else { self.instruction("broadcast", ty, &[scalar]) }
    }

    /// An instruction repeated along new dimensions: its own dimension `i` becomes dimension `mapping[i]` of `ty`.
    fn broadcast(&mut self, ty: &TensorType, operand: InstructionId, mapping: &[usize]) -> InstructionId {
        self.begin_typed("broadcast", ty, &[operand]).dimensions.extend(to_i64(mapping));
        self.commit()
    }

    /// Positions along a dimension.
    fn positions(&mut self, ty: &TensorType, axis: usize) -> InstructionId {
        self.begin_typed("iota", ty, &[]).dimensions.push(axis as i64);
        self.commit()
    }
}

impl dyn EmitContext + '_ {
    /// As [`EmitContext::fail_at`], found by the caller.
    #[track_caller]
    pub(crate) fn fail(&mut self, expected: &str) -> InstructionId {
        self.fail_at(expected, Location::caller())
    }
}
