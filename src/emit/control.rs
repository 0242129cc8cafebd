//! Emission of ops with regions, which become computations: a scan is a `while` with a known trip count, a while is a
//! `while`, a cond is a `conditional`, a call is a `call`. Checkpoints and custom VJPs that were not differentiated are
//! inlined.
//!
//! XLA requires that a computation of a `while` or `conditional` takes one tuple.

use std::sync::Arc;

use meshloom_analysis::trip_count::STATED_ITERATIONS;
use meshloom_hlo::proto::{FrontendAttributes, HloInstructionProto};
use smallvec::SmallVec;

use super::{Emitter, Ids, sanitize};
use crate::ir::{DType, Graph, NodeRef, TensorType};
use crate::ops::{Call, ComputationId, Cond, InstructionId, Scan, While, to_i64};

impl Emitter<'_> {
    /// Writes the body of the region op that is being emitted into the open computation.
    pub(super) fn region(&mut self, body: &Graph, inputs: &[InstructionId]) -> Ids {
        let (origin, op_name) = (self.origin, self.op_name);
        let outer = std::mem::replace(&mut self.phase, origin.phase);
        let outputs = self.body(body, inputs);
        (self.origin, self.op_name, self.phase) = (origin, op_name, outer);
        outputs
    }

    pub(super) fn call(&mut self, call: &Call, operands: &[InstructionId]) -> Ids {
        let function = &call.function;
        let known = self.functions.get(&Arc::as_ptr(function)).map(|&(_, id)| id);
        let (origin, op_name) = (self.origin, self.op_name);
        // The nodes of a function know the phase they belong to, whatever the phase of the call is.
        let phase = std::mem::take(&mut self.phase);
        let place = self.place_for(&[function]);
        let computation = known.unwrap_or_else(|| {
            self.open();
            let inputs: Ids = function
                .input_types()
                .map(|ty| {
                    self.writer.parameter(ty, "");
                    self.writer.commit()
                })
                .collect();
            if place.is_some() {
                self.writer.parameter(&TensorType::scalar(DType::U32), "");
                let own = self.writer.commit();
                self.set_place(Some(own));
            }
            let mut outputs = self.body(function, &inputs);
            let mut types: Vec<&TensorType> = function.output_types().collect();
            self.pass_place_on(place, &mut types, &mut outputs);
            let id = self.close_with(&sanitize(function.name()), &types, &outputs);
            self.functions.insert(Arc::as_ptr(function), (function.clone(), id));
            id
        });
        (self.origin, self.op_name, self.phase) = (origin, op_name, phase);
        let operands: Ids = operands.iter().copied().chain(place).collect();
        let mut types: Vec<&TensorType> = function.output_types().collect();
        self.pass_place_on(place, &mut types, &mut Ids::new());
        self.begin_tuple("call", types.iter().copied(), &operands).called_computation_ids.push(computation);
        self.in_order_if(&[computation]);
        let result = self.writer.commit();
        self.take_place_from(result, place, types.len() - 1);
        self.elements(result, function.output_types())
    }

    /// Adds the number of the device to the results of a computation, where that tells which of two calls comes first
    /// (`crossing.rs`).
    fn pass_place_on(&mut self, place: Option<InstructionId>, types: &mut Vec<&TensorType>, outputs: &mut Ids) {
        static PLACE: TensorType = TensorType { dtype: DType::U32, dims: SmallVec::new_const() };
        if place.is_some() && self.orders_by_place() {
            types.push(&PLACE);
            outputs.extend(self.place());
        }
    }

    /// Takes the number of the device from the last element of the result of such a computation.
    fn take_place_from(&mut self, result: InstructionId, place: Option<InstructionId>, last: usize) {
        if place.is_some() && self.orders_by_place() {
            let after = self.element(result, last, &TensorType::scalar(DType::U32));
            self.set_place(Some(after));
        }
    }

    /// Opens a computation whose only parameter is a tuple, and returns that parameter.
    fn open_over(&mut self, name: &str, types: &[&TensorType]) -> InstructionId {
        self.open();
        self.writer.tuple_parameter(types, name);
        self.writer.commit()
    }

    /// As [`Emitter::open_over`], but returns the elements of the tuple. If there is a `place`, the last of them is the
    /// number of the device.
    fn open_state(&mut self, name: &str, types: &[&TensorType], place: Option<InstructionId>) -> Ids {
        let parameter = self.open_over(name, types);
        let state = self.elements(parameter, types.iter().copied());
        self.set_place(place.and(state.last().copied()));
        state
    }

    /// Closes the body of a loop with the state after an iteration.
    fn close_state(
        &mut self,
        name: &str,
        types: &[&TensorType],
        mut state: Ids,
        place: Option<InstructionId>,
    ) -> ComputationId {
        if let (Some(own), Some(last), true) = (self.place(), state.last_mut(), place.is_some()) {
            *last = own;
        }
        self.close_with(name, types, &state)
    }

    /// Closes the condition of a loop.
    fn close_condition(&mut self, name: &str, root: InstructionId) -> ComputationId {
        let flag = self.writer.shape(&TensorType::scalar(DType::Pred));
        self.close(name, root, flag).0
    }

    /// Emits a `while` of a body and a condition; returns its last state. `describe` says how often it runs.
    fn loop_over(
        &mut self,
        types: &[&TensorType],
        initial: InstructionId,
        computations: [ComputationId; 2],
        place: Option<InstructionId>,
        describe: impl FnOnce(&mut HloInstructionProto),
    ) -> InstructionId {
        let instruction = self.begin_tuple("while", types.iter().copied(), &[initial]);
        // XLA reads the body first, then the condition.
        instruction.called_computation_ids.extend(computations);
        describe(instruction);
        self.in_order_if(&computations);
        let result = self.writer.commit();
        self.take_place_from(result, place, types.len() - 1);
        result
    }

    /// Emits a `while` over the state (counter, carries, stacked outputs, invariants, stacked inputs), and the number
    /// of the device where the body needs it as a value.
    pub(super) fn scan(&mut self, graph: &Graph, node: NodeRef<'_>, scan: &Scan, operands: &[InstructionId]) -> Ids {
        let counter_type = TensorType::scalar(DType::S32);
        let result_types: Vec<&TensorType> = node.results().map(|value| graph.ty(value)).collect();
        let operand_types: Vec<&TensorType> = node.operands().iter().map(|&value| graph.ty(value)).collect();
        let (invariants, rest) = operands.split_at(scan.invariant_count);
        let (carries, stacked) = rest.split_at(scan.carry_count);
        let (invariant_types, rest) = operand_types.split_at(scan.invariant_count);
        let (place, place_type) = (self.place_for(&[&scan.body]), TensorType::scalar(DType::U32));
        let stacked_types = &rest[scan.carry_count..];
        let mut types = [&[&counter_type][..], &result_types, invariant_types, stacked_types].concat();
        types.extend(place.map(|_| &place_type));

        let mut results: Ids = carries.into();
        for ty in &result_types[scan.carry_count..] {
            let zero = self.number(ty.dtype, 0.0);
            results.push(self.instruction("broadcast", ty, &[zero]));
        }
        if scan.length == 0 {
            // XLA refuses a body that takes slices from nothing.
            return results;
        }
        let mut state: Ids = Ids::from_slice(&[self.number(DType::S32, 0.0)]);
        state.extend(results);
        state.extend([invariants, stacked].into_iter().flatten().copied().chain(place));
        let initial = self.tuple(&types, &state);

        let name = sanitize(scan.body.name());
        let parameter = self.open_over("state", &types);
        let counter = self.element(parameter, 0, &counter_type);
        let limit = self.number(DType::S32, scan.length as f64);
        let below = self.begin("compare", &TensorType::scalar(DType::Pred), &[counter, limit]);
        below.comparison_direction.push_str("LT");
        below.comparison_type.push_str("SIGNED");
        let root = self.writer.commit();
        let condition = self.close_condition(&format!("{name}_condition"), root);
        let state = self.open_state("state", &types, place);
        let state = self.iteration(scan, &result_types, stacked_types, state);
        let body = self.close_state(&name, &types, state, place);
        let trips = format!(r#"{{"known_trip_count":{{"n":"{}"}}}}"#, scan.length);
        let result = self.loop_over(&types, initial, [body, condition], place, |instruction| {
            instruction.backend_config = trips.into_bytes();
        });
        result_types.iter().enumerate().map(|(index, ty)| self.element(result, 1 + index, ty)).collect()
    }

    /// Writes one iteration of a scan into the open computation: from the state before it to the state after it.
    fn iteration(
        &mut self,
        scan: &Scan,
        result_types: &[&TensorType],
        stacked_types: &[&TensorType],
        mut state: Ids,
    ) -> Ids {
        let (counter, counter_type) = (state[0], TensorType::scalar(DType::S32));
        let mut position = counter;
        if scan.reverse {
            let last = self.number(DType::S32, scan.length as f64 - 1.0);
            position = self.instruction("subtract", &counter_type, &[last, counter]);
        }
        let zero = self.number(DType::S32, 0.0);
        let at_position = |target: &[InstructionId], rank: usize| -> Ids {
            let zeros = std::iter::repeat_n(zero, rank - 1);
            target.iter().copied().chain([position]).chain(zeros).collect()
        };
        let first_stacked_output = 1 + scan.carry_count;
        let first_invariant = 1 + result_types.len();
        let first_stacked_input = first_invariant + scan.invariant_count;
        let mut inputs: Ids = state[first_invariant..first_stacked_input].into();
        inputs.extend_from_slice(&state[1..first_stacked_output]);
        for (index, &ty) in stacked_types.iter().enumerate() {
            let operands = at_position(&[state[first_stacked_input + index]], ty.rank());
            let mut slice_type = ty.clone();
            slice_type.dims[0] = 1;
            let slice = self.begin("dynamic-slice", &slice_type, &operands);
            slice.dynamic_slice_sizes.extend(to_i64(&slice_type.dims));
            let slice = self.writer.commit();
            slice_type.dims.remove(0);
            inputs.push(self.instruction("reshape", &slice_type, &[slice]));
        }
        let outputs = self.region(&scan.body, &inputs);
        state[1..first_stacked_output].copy_from_slice(&outputs[..scan.carry_count]);
        for (index, &ty) in result_types.iter().enumerate().skip(scan.carry_count) {
            let mut row = ty.clone();
            row.dims[0] = 1;
            let row = self.instruction("reshape", &row, &[outputs[index]]);
            let operands = at_position(&[state[1 + index], row], ty.rank());
            state[1 + index] = self.instruction("dynamic-update-slice", ty, &operands);
        }
        let one = self.number(DType::S32, 1.0);
        state[0] = self.instruction("add", &counter_type, &[counter, one]);
        state
    }

    /// Emits a `while` over the state (invariants, carries), and the number of the device as in a scan.
    pub(super) fn while_loop(&mut self, op: &While, operands: &[InstructionId]) -> Ids {
        let (place, place_type) = (self.place_for(&[&op.condition, &op.body]), TensorType::scalar(DType::U32));
        let types: Vec<&TensorType> = op.body.input_types().chain(place.map(|_| &place_type)).collect();
        let initial: Ids = operands.iter().copied().chain(place).collect();
        let initial = self.tuple(&types, &initial);
        let state = self.open_state("state", &types, place);
        let root = self.region(&op.condition, &state[..operands.len()])[0];
        let condition = self.close_condition(&sanitize(op.condition.name()), root);
        let mut state = self.open_state("state", &types, place);
        let carries = self.region(&op.body, &state[..operands.len()]);
        state[op.invariant_count..operands.len()].copy_from_slice(&carries);
        let body = self.close_state(&sanitize(op.body.name()), &types, state, place);
        let result = self.loop_over(&types, initial, [body, condition], place, |instruction| {
            // A loop of at most one iteration is a branch.
            if op.at_most > 1 {
                let stated = (STATED_ITERATIONS.to_owned(), op.at_most.to_string());
                instruction.frontend_attributes = Some(FrontendAttributes { map: [stated].into() });
            }
        });
        (op.invariant_count..operands.len()).map(|index| self.element(result, index, types[index])).collect()
    }

    /// Emits a `conditional` whose branches all take the same tuple.
    pub(super) fn cond(&mut self, graph: &Graph, node: NodeRef<'_>, op: &Cond, operands: &[InstructionId]) -> Ids {
        let branches: Vec<&Graph> = op.branches.iter().map(|branch| &**branch).collect();
        let (place, place_type) = (self.place_for(&branches), TensorType::scalar(DType::U32));
        let input_types = node.operands()[1..].iter().map(|&value| graph.ty(value));
        let input_types: Vec<&TensorType> = input_types.chain(place.map(|_| &place_type)).collect();
        let result_types: Vec<&TensorType> = node.results().map(|value| graph.ty(value)).collect();
        let arguments: Ids = operands[1..].iter().copied().chain(place).collect();
        let arguments = self.tuple(&input_types, &arguments);
        let mut computations: Vec<_> = op
            .branches
            .iter()
            .map(|branch| {
                let inputs = self.open_state("arguments", &input_types, place);
                let mut outputs = self.region(branch, &inputs[..node.operands().len() - 1]);
                let mut types = result_types.clone();
                self.pass_place_on(place, &mut types, &mut outputs);
                self.close_with(&sanitize(branch.name()), &types, &outputs)
            })
            .collect();
        if graph.ty(node.operands()[0]).dtype == DType::Pred {
            // XLA expects the true branch of a pred first.
            computations.reverse();
        }
        let mut operands: Ids = Ids::from_slice(&[operands[0]]);
        operands.resize(1 + computations.len(), arguments);
        let mut types = result_types.clone();
        self.pass_place_on(place, &mut types, &mut Ids::new());
        let conditional = self.begin_tuple("conditional", types.iter().copied(), &operands);
        conditional.called_computation_ids.extend_from_slice(&computations);
        self.in_order_if(&computations);
        let result = self.writer.commit();
        self.take_place_from(result, place, types.len() - 1);
        self.elements(result, result_types)
    }
}
