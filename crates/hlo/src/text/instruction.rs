//! One instruction: name, shape, opcode, operands, and its attributes.

use super::{Named, Printer, is_one_instruction};
use crate::proto::{HloInstructionProto, PrimitiveType};
use crate::syntax::attributes::{Attribute, Attributes};
use crate::syntax::opcodes::{Operation, Use};

/// How far an async operation may be from its start: real chains have two or three links.
const MAX_ASYNC_CHAIN: usize = 256;

/// The instruction that an async operation runs: the only one of the computation that it wraps.
fn wrapped<'a>(printer: &Printer<'a>, instruction: &HloInstructionProto) -> Option<&'a HloInstructionProto> {
    let mut start = instruction;
    // Updates and dones lead to their start through their first operand. Malformed chains may be cyclic.
    for _ in 0..MAX_ASYNC_CHAIN {
        if start.opcode == "async-start" {
            break;
        }
        start = printer.names.get(start.operand_ids.first()?)?.instruction;
    }
    let computation = printer.module.computations.get(start.called_computation_ids.first()?).copied()?;
    if start.opcode != "async-start" || !is_one_instruction(computation) {
        return None;
    }
    computation.instructions.iter().find(|instruction| instruction.id == computation.root_id)
}

impl<'a> Printer<'a> {
    /// `%add.3 = f32[2]{0} add(%x, %y), ...`.
    pub(super) fn instruction(&mut self, instruction: &'a HloInstructionProto) {
        self.instruction_name(instruction.id);
        self.text(" = ");
        self.optional_shape(instruction.shape.as_ref(), self.options.layouts);
        self.text(" ");
        let sugared = match instruction.opcode.as_str() {
            "async-start" | "async-update" | "async-done" if self.options.async_sugar => wrapped(self, instruction),
            _ => None,
        };
        match (sugared, instruction.opcode.strip_prefix("async")) {
            (Some(wrapped), Some(suffix)) => {
                self.text(&wrapped.opcode);
                self.text(suffix);
            }
            _ => self.text(&instruction.opcode),
        }
        self.text("(");
        self.operands(instruction);
        self.text(")");
        match sugared {
            None => self.own_attributes(instruction),
            Some(wrapped) if instruction.opcode == "async-start" => {
                self.attribute(Attribute::AsyncExecutionThread, instruction, true);
                if !wrapped.opcode.starts_with("async-") {
                    self.own_attributes(wrapped);
                    // The attributes of the start stand for both.
                    let is_bare = instruction.frontend_attributes.as_ref().is_none_or(|outer| outer.map.is_empty());
                    self.common_attributes(wrapped, is_bare);
                }
                self.attribute(Attribute::OutputToOperandAliasing, instruction, true);
            }
            Some(_) if instruction.opcode == "async-update" => {
                self.attribute(Attribute::OutputToOperandAliasing, instruction, true);
            }
            Some(_) => {}
        }
        self.common_attributes(instruction, true);
        if self.options.metadata {
            self.attribute(Attribute::Origin, instruction, true);
            self.attribute(Attribute::Metadata, instruction, true);
        }
        if self.options.backend_config {
            self.attribute(Attribute::BackendConfig, instruction, true);
        }
    }

    fn operands(&mut self, instruction: &HloInstructionProto) {
        match instruction.opcode.as_str() {
            "parameter" => self.number(instruction.parameter_number),
            "constant" => match instruction.literal.as_deref() {
                Some(literal) => self.literal(literal),
                None => self.text("{...}"),
            },
            _ => {
                for (index, &id) in instruction.operand_ids.iter().enumerate() {
                    self.separator(index);
                    if self.options.operand_shapes {
                        let shape = self.names.get(&id).and_then(|named| named.instruction.shape.as_ref());
                        self.optional_shape(shape, self.options.layouts);
                        self.text(" ");
                    }
                    self.instruction_name(id);
                }
            }
        }
    }

    /// Prints the attributes that belong to the instruction's opcode.
    fn own_attributes(&mut self, instruction: &HloInstructionProto) {
        let operation = Operation::from_name(&instruction.opcode);
        // A conditional has either two computations or a list of them.
        let unused = match instruction.opcode.as_str() {
            "conditional" if self.is_predicated(instruction) => Attributes::BRANCHES,
            "conditional" => Attributes::TRUE_OR_FALSE,
            _ => Attributes::NONE,
        };
        for &(attribute, usage) in operation.map_or(&[][..], |operation| operation.attributes) {
            if usage != Use::Read && !unused.contains(attribute) {
                self.attribute(attribute, instruction, matches!(usage, Use::Optional | Use::Unread));
            }
        }
        if operation.is_none_or(|operation| operation.allowed.and(Attributes::CALLS).is_empty()) {
            self.attribute(Attribute::Calls, instruction, true);
        }
    }

    /// Whether a conditional chooses by a truth value rather than by an index.
    fn is_predicated(&self, instruction: &HloInstructionProto) -> bool {
        self.find_operand(instruction, 0)
            .and_then(|operand| operand.shape.as_ref())
            .is_some_and(|shape| shape.element_type == PrimitiveType::Pred as i32)
    }

    /// Returns an operand, without printing it.
    pub(crate) fn find_operand(
        &self,
        instruction: &HloInstructionProto,
        index: usize,
    ) -> Option<&'a HloInstructionProto> {
        let Named { instruction, .. } = self.names.get(instruction.operand_ids.get(index)?)?;
        Some(instruction)
    }

    fn common_attributes(&mut self, instruction: &HloInstructionProto, with_frontend_attributes: bool) {
        self.attribute(Attribute::Sharding, instruction, true);
        if with_frontend_attributes {
            self.attribute(Attribute::FrontendAttributes, instruction, true);
        }
        self.attribute(Attribute::ControlPredecessors, instruction, true);
        self.attribute(Attribute::Statistics, instruction, true);
        self.attribute(Attribute::ResultAccuracy, instruction, true);
    }
}
