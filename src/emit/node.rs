//! Emission of one node: the requests of its op's rule, carried out on the module that is being written.

use std::panic::Location;

use smallvec::SmallVec;

use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto, ShapeProto};

use super::{EmitOptions, Emitter, Ids, UNSET};
use crate::ir::{DType, Graph, GraphBuilder, InternalError, NodeRef, Spec, TensorType, Values};
use crate::ops::{ComputationId, EmitBody, EmitContext, EmitDefinition, InstructionId, Primitive};

pub(super) struct NodeEmitter<'e, 'o> {
    pub(super) emitter: &'e mut Emitter<'o>,
    graph: &'e Graph,
    node: NodeRef<'e>,
    operands: &'e [InstructionId],
    /// The node's results.
    values: Values,
    results: Ids,
}

impl Emitter<'_> {
    /// Emits a node by its op's rule; returns the instructions of its results.
    pub(super) fn primitive(
        &mut self,
        graph: &Graph,
        node: NodeRef<'_>,
        primitive: &dyn Primitive,
        operands: &[InstructionId],
    ) -> Ids {
        let values: Values = node.results().collect();
        let results = SmallVec::from_elem(UNSET, values.len());
        let mut context = NodeEmitter { emitter: self, graph, node, operands, values, results };
        primitive.emit(&mut context);
        context.results
    }
}

impl NodeEmitter<'_, '_> {
    /// As [`EmitContext::fail_at`], found by the caller.
    #[track_caller]
    pub(super) fn fail(&mut self, expected: &str) -> InstructionId {
        self.fail_at(expected, Location::caller())
    }
}

impl EmitContext for NodeEmitter<'_, '_> {
    fn operand_id(&self, index: usize) -> InstructionId {
        self.operands[index]
    }

    fn operand_ids(&self) -> Vec<InstructionId> {
        self.operands.to_vec()
    }

    fn operand_type(&self, index: usize) -> &TensorType {
        self.graph.ty(self.node.operands()[index])
    }

    fn result_count(&self) -> usize {
        self.node.results().len()
    }

    fn result_type(&self, index: usize) -> &TensorType {
        self.graph.ty(self.values[index])
    }

    fn set_result(&mut self, index: usize, id: InstructionId) {
        self.results[index] = id;
    }

    fn begin(&mut self, opcode: &str) -> &mut HloInstructionProto {
        self.begin_with(opcode, 0, self.operands)
    }

    fn begin_with(&mut self, opcode: &str, result: usize, operands: &[InstructionId]) -> &mut HloInstructionProto {
        let ty = self.graph.ty(self.values[result]);
        self.emitter.begin(opcode, ty, operands)
    }

    fn begin_typed(&mut self, opcode: &str, ty: &TensorType, operands: &[InstructionId]) -> &mut HloInstructionProto {
        self.emitter.begin(opcode, ty, operands)
    }

    fn begin_tuple(
        &mut self,
        opcode: &str,
        types: &[&TensorType],
        operands: &[InstructionId],
    ) -> &mut HloInstructionProto {
        self.emitter.begin_tuple(opcode, types.iter().copied(), operands)
    }

    fn begin_all(&mut self, opcode: &str, operands: &[InstructionId]) -> &mut HloInstructionProto {
        if self.result_count() == 1 {
            return self.begin_with(opcode, 0, operands);
        }
        let (graph, node) = (self.graph, self.node);
        self.emitter.begin_tuple(opcode, node.results().map(|value| graph.ty(value)), operands)
    }

    fn set_shape(&mut self, shape: &ShapeProto) {
        self.emitter.writer.set_shape(shape);
    }

    fn commit(&mut self) -> InstructionId {
        self.emitter.writer.commit()
    }

    fn finish_all(&mut self) {
        let (graph, node) = (self.graph, self.node);
        let id = self.commit();
        if self.result_count() == 1 {
            self.results[0] = id;
        } else {
            self.results = self.emitter.elements(id, node.results().map(|value| graph.ty(value)));
        }
    }

    fn instruction(&mut self, opcode: &str, ty: &TensorType, operands: &[InstructionId]) -> InstructionId {
        self.emitter.instruction(opcode, ty, operands)
    }

    fn element(&mut self, tuple: InstructionId, index: usize, ty: &TensorType) -> InstructionId {
        self.emitter.element(tuple, index, ty)
    }

    fn scalar_constant(&mut self, dtype: DType, bytes: &[u8]) -> InstructionId {
        self.emitter.scalar_constant(dtype, bytes)
    }

    fn number(&mut self, dtype: DType, number: f64) -> InstructionId {
        self.emitter.number(dtype, number)
    }

    fn combiner(&mut self, opcode: &'static str, dtype: DType) -> ComputationId {
        self.emitter.writer.combiner(opcode, dtype)
    }

    fn replacer(&mut self, dtype: DType) -> ComputationId {
        self.emitter.writer.replacer(dtype)
    }

    fn log_add_exp(&mut self, dtype: DType) -> ComputationId {
        self.emitter.writer.scalar_computation("log_add_exp", dtype, |writer, [lhs, rhs]| {
            let number = TensorType::scalar(dtype);
            let larger = writer.instruction("maximum", &number, &[lhs, rhs]);
            let difference = writer.instruction("subtract", &number, &[lhs, rhs]);
            let distance = writer.instruction("abs", &number, &[difference]);
            let exponent = writer.instruction("negate", &number, &[distance]);
            let power = writer.instruction("exponential", &number, &[exponent]);
            let rest = writer.instruction("log-plus-one", &number, &[power]);
            let sum = writer.instruction("add", &number, &[larger, rest]);
            // The difference of equal infinities is undefined: their sum is the infinity, and NaN for NaN.
            let undefined = writer.compare("NE", dtype, [difference, difference]);
            let plain = writer.instruction("add", &number, &[lhs, rhs]);
            writer.instruction("select", &number, &[undefined, plain, sum])
        })
    }

    fn arg_reduce_combiner(&mut self, better: &str, dtype: DType) -> ComputationId {
        self.emitter.arg_reduce_combiner(better, dtype)
    }

    fn computation(
        &mut self,
        name: &str,
        parameters: &[&TensorType],
        results: &[&TensorType],
        body: &EmitBody<'_>,
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
        let outputs = body(self, &inputs);
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

    fn foreign_computation(&mut self, computations: &[HloComputationProto], id: i64) -> ComputationId {
        match self.emitter.foreign_computation(computations, id) {
            Some(id) => id,
            None => self.fail("a foreign computation whose operands and calls are known"),
        }
    }

    fn by_definition(&mut self, definition: &EmitDefinition<'_>) {
        let types: Vec<TensorType> = self.node.operands().iter().map(|&value| self.graph.ty(value).clone()).collect();
        match GraphBuilder::definition(self.node.origin(), types, definition) {
            Ok(graph) => self.results = self.emitter.body(&graph, self.operands),
            Err(error) => {
                self.fail(&error.to_string());
            }
        }
    }

    /// A `Sharding` custom call.
    fn reshard(&mut self, spec: &Spec) {
        let EmitOptions { mesh: Some(mesh), annotation, .. } = self.emitter.options else {
            return self.forward_operand();
        };
        let instruction = self.begin("custom-call");
        instruction.custom_call_target.push_str("Sharding");
        annotation.write_constraint(mesh, spec, instruction);
        self.finish();
    }

    fn has_host_memory(&self) -> bool {
        self.emitter.options.host_memory
    }

    fn fail_at(&mut self, expected: &str, found_at: &'static Location<'static>) -> InstructionId {
        let error = InternalError::new(self.node.op().name(), expected).at(self.node.origin());
        self.emitter.defect.get_or_insert(InternalError { found_at, ..error });
        UNSET
    }
}
