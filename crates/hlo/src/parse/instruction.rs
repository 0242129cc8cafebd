//! One instruction: `ROOT %name = shape opcode(operands), attributes`.

use super::computation::Scope;
use super::error::{Result, fault};
use super::lexer::Lexer;
use super::shape::{add_layouts, is_compatible};
use super::{ATTRIBUTE, Parser, infer};
use crate::proto::{CustomCallApiVersion, HloInstructionProto, PrecisionConfig, ShapeProto};
use crate::shape::is_tuple;
use crate::suggest::did_you_mean;
use crate::syntax::attributes::{Attribute, Attributes};
use crate::syntax::opcodes::{Operands, Operation};
use crate::syntax::{default_comparison, implied_order};

/// The ending of the short form of an asynchronous operation, and the opcode that it stands for.
const ASYNC_SUFFIXES: &[(&str, &str)] =
    &[("-start", "async-start"), ("-update", "async-update"), ("-done", "async-done")];

/// Bytes of a short string behind its pointer, at least: those of an allocation.
const SHORT_STRING: usize = 32;

/// The operations that an opcode names.
struct Opcode {
    operation: &'static Operation,
    /// The operation that runs asynchronously, where the short form names it.
    wrapped: Option<&'static Operation>,
}

impl<'a> Parser<'a> {
    /// Adds an instruction to `scope`.
    pub(super) fn instruction(&mut self, scope: &mut Scope<'a>) -> Result<()> {
        let root_start = self.lexer.here();
        let is_root = self.lexer.eat_word("ROOT");
        let start = self.lexer.here();
        let name = self.lexer.name("an instruction or '}'")?;
        self.lexer.expect(b'=', "after the name of the instruction")?;
        let place = self.right_hand_side(scope, name, true)?;
        if scope.names.insert(name, place).is_some() {
            return fault(start, format!("there are two instructions named {name} in this computation"));
        }
        if is_root && scope.root.replace(place).is_some() {
            return fault(root_start, "there are two ROOT instructions in this computation");
        }
        Ok(())
    }

    /// The text after the equals sign. Without a name it is an operand, which has no attributes: a comma after it
    /// belongs to the surrounding list.
    pub(super) fn right_hand_side(&mut self, scope: &mut Scope<'a>, name: &str, has_attributes: bool) -> Result<usize> {
        let start = self.lexer.here();
        self.memory.take(size_of::<HloInstructionProto>() + 2 * SHORT_STRING, start)?;
        let shape = if self.is_shape_next() { Some(self.shape()?) } else { None };
        let Opcode { operation, wrapped } = self.opcode()?;
        let mut instruction = HloInstructionProto {
            name: name.to_string(),
            opcode: operation.name.to_string(),
            shape,
            ..Default::default()
        };
        set_assumed(operation, &mut instruction);
        self.arguments(scope, operation, &mut instruction)?;
        if let (Some(wrapped), "async-start") = (wrapped, operation.name) {
            self.wrapped_start(scope, start, wrapped, &mut instruction, has_attributes)?;
        } else {
            let required = if wrapped.is_some() { Attributes::default() } else { operation.required };
            if has_attributes {
                self.attributes(scope, operation.allowed, required, &mut instruction, None)?;
            } else if let Some(missing) = required.first_not_in(Attributes::default()) {
                return missing_attribute(start, operation, missing);
            }
            self.set_unwritten(scope, start, &mut instruction)?;
        }
        if instruction.opcode == "fusion" {
            self.mark_fused(&instruction);
        }
        let place = scope.instructions.len();
        instruction.id = scope.id(place);
        scope.instructions.push(instruction);
        Ok(place)
    }

    fn mark_fused(&mut self, fusion: &HloInstructionProto) {
        let called = fusion.called_computation_ids.first().and_then(|&id| usize::try_from(id).ok());
        if let Some(computation) = called.and_then(|id| self.computations.get_mut(id)) {
            computation.is_fusion_computation = true;
        }
    }

    fn opcode(&mut self) -> Result<Opcode> {
        let start = self.lexer.here();
        let name = self.lexer.expect_word("an opcode")?;
        if let Some(operation) = Operation::from_name(name) {
            return Ok(Opcode { operation, wrapped: None });
        }
        for (suffix, stands_for) in ASYNC_SUFFIXES {
            let wrapped = name.strip_suffix(suffix).and_then(Operation::from_name);
            if let (Some(wrapped), Some(operation)) = (wrapped, Operation::from_name(stands_for)) {
                return Ok(Opcode { operation, wrapped: Some(wrapped) });
            }
        }
        fault(start, format!("unknown opcode \"{name}\"{}", did_you_mean(name, Operation::names())))
    }

    /// Reads the arguments between the parentheses.
    fn arguments(
        &mut self,
        scope: &mut Scope<'a>,
        operation: &Operation,
        instruction: &mut HloInstructionProto,
    ) -> Result<()> {
        let start = self.lexer.here();
        match operation.operands {
            Operands::Number => {
                self.lexer.expect(b'(', "before the number of a parameter")?;
                let start = self.lexer.here();
                instruction.parameter_number = self.lexer.integer()?;
                if instruction.parameter_number < 0 {
                    return fault(start, "the number of a parameter is at least 0");
                }
                self.lexer.expect(b')', "after the number of a parameter")
            }
            Operands::Value => {
                let Some(shape) = &instruction.shape else {
                    return fault(start, "a constant needs its shape before the opcode");
                };
                self.lexer.expect(b'(', "before the value of a constant")?;
                let literal = self.literal(shape)?;
                // XLA compares the orders of the two, scalars' too, which need no layout otherwise.
                if let (Some(shape), Some(of_literal)) = (&mut instruction.shape, &literal.shape) {
                    add_layouts(shape, of_literal);
                }
                instruction.literal = Some(Box::new(literal));
                self.lexer.expect(b')', "after the value of a constant")
            }
            Operands::Exactly(_) | Operands::Any => {
                instruction.operand_ids = self.operands(scope)?;
                match operation.operands {
                    Operands::Exactly(count) if count != instruction.operand_ids.len() => {
                        let found = instruction.operand_ids.len();
                        let plural = if count == 1 { "" } else { "s" };
                        fault(start, format!("{} has {count} operand{plural}, found {found}", operation.name))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// `(%x, f32[2] %y, negate(%z))`.
    fn operands(&mut self, scope: &mut Scope<'a>) -> Result<Vec<i64>> {
        self.list_of(b'(', b')', |parser| {
            let place = parser.operand(scope)?;
            Ok(scope.id(place))
        })
    }

    fn operand(&mut self, scope: &mut Scope<'a>) -> Result<usize> {
        let start = self.lexer.clone();
        let shape_start = self.lexer.here();
        let is_plain_name = self.lexer.peek() == Some(b'%');
        let shape = if !is_plain_name && self.is_shape_next() { Some(self.shape()?) } else { None };
        let shape = match shape {
            Some(shape) if scope.is_single => return self.operand_alone(scope, shape, start),
            shape => shape,
        };
        let name_start = self.lexer.here();
        let name = self.lexer.name("the name of an operand")?;
        if !is_plain_name && self.lexer.peek() == Some(b'(') {
            return self.nested_instruction(scope, start);
        }
        let mut place = scope.place_of(name, name_start)?;
        while self.lexer.eat(b'#') {
            place = self.element_of(scope, place, name)?;
        }
        if let (Some(stated), Some(actual)) = (&shape, &scope.instructions[place].shape)
            && !is_compatible(stated, actual)
        {
            return fault(shape_start, format!("the shape stated here is not the shape of {name}"));
        }
        Ok(place)
    }

    /// The `1` of `%x#1`, which stands for `get-tuple-element(%x), index=1`: makes that instruction once.
    fn element_of(&mut self, scope: &mut Scope<'a>, tuple: usize, name: &str) -> Result<usize> {
        let start = self.lexer.here();
        let index = self.lexer.integer()?;
        if let Some(&place) = scope.elements.get(&(tuple, index)) {
            return Ok(place);
        }
        let shapes = scope.instructions[tuple].shape.as_ref().map_or(&[][..], |shape| &shape.tuple_shapes);
        let Some(shape) = usize::try_from(index).ok().and_then(|index| shapes.get(index)) else {
            let count = shapes.len();
            return fault(start, format!("{name} has no element {index} here: there are {count} in its shape"));
        };
        let name = format!("{}_{index}", scope.instructions[tuple].name);
        self.memory.take(size_of::<HloInstructionProto>() + SHORT_STRING + name.len(), start)?;
        self.memory.take_shape(shape, start)?;
        let place = scope.instructions.len();
        let element = HloInstructionProto {
            name,
            opcode: "get-tuple-element".to_string(),
            shape: Some(shape.clone()),
            tuple_index: index,
            operand_ids: vec![scope.id(tuple)],
            id: scope.id(place),
            ..Default::default()
        };
        scope.instructions.push(element);
        scope.unnamed.push(place);
        scope.elements.insert((tuple, index), place);
        Ok(place)
    }

    /// An instruction that stands as an operand, with its shape or without.
    fn nested_instruction(&mut self, scope: &mut Scope<'a>, start: Lexer<'a>) -> Result<usize> {
        self.lexer = start;
        let place = self.nested(|parser| parser.right_hand_side(scope, "", false))?;
        let instruction = &mut scope.instructions[place];
        instruction.name = format!("{}.anon", instruction.opcode);
        scope.unnamed.push(place);
        Ok(place)
    }

    /// An operand of an instruction that stands alone, from after its shape: with a name, without one, or another
    /// instruction.
    fn operand_alone(&mut self, scope: &mut Scope<'a>, shape: ShapeProto, start: Lexer<'a>) -> Result<usize> {
        let mut name = None;
        if !matches!(self.lexer.peek(), Some(b',' | b')')) {
            let stated = self.lexer.name("the name of an operand")?;
            if self.lexer.peek() == Some(b'(') {
                return self.nested_instruction(scope, start);
            }
            if let Some(&place) = scope.names.get(stated) {
                return Ok(place);
            }
            name = Some(stated);
        }
        self.memory.take(size_of::<HloInstructionProto>() + 2 * SHORT_STRING, self.lexer.here())?;
        let number = scope.parameters;
        scope.parameters += 1;
        let place = scope.instructions.len();
        scope.names.extend(name.map(|name| (name, place)));
        scope.instructions.push(HloInstructionProto {
            name: name.map_or_else(|| format!("_{number}"), str::to_string),
            opcode: "parameter".to_string(),
            shape: Some(shape),
            parameter_number: number,
            id: scope.id(place),
            ..Default::default()
        });
        Ok(place)
    }

    /// Reads the attributes that follow. The attributes of a wrapped operation go to `wrapped`, if there is one;
    /// `start` gets the common ones and those about running it.
    fn attributes(
        &mut self,
        scope: &mut Scope<'a>,
        allowed: Attributes,
        required: Attributes,
        instruction: &mut HloInstructionProto,
        mut wrapped: Option<&mut HloInstructionProto>,
    ) -> Result<()> {
        let end_of_operands = self.lexer.here();
        let mut seen = Attributes::default();
        while self.lexer.eat(b',') {
            let start = self.lexer.here();
            let name = self.lexer.attribute_name()?;
            let Some(attribute) = allowed.named(name) else {
                self.pass_over(start, (ATTRIBUTE, &instruction.opcode), name, allowed.names())?;
                continue;
            };
            let is_repeated = seen.contains(attribute);
            seen = seen.with(attribute);
            let target = match &mut wrapped {
                // Printed twice, a common attribute is first that of the wrapped instruction.
                Some(wrapped) if attribute.is_common() => {
                    if is_repeated {
                        move_common(attribute, instruction, wrapped);
                    }
                    &mut *instruction
                }
                Some(wrapped) if is_of_wrapped(attribute, is_repeated, wrapped) => &mut **wrapped,
                Some(_) if attribute == Attribute::OutputToOperandAliasing => &mut *instruction,
                _ if is_repeated => return fault(start, format!("attribute {name} is here twice")),
                _ => &mut *instruction,
            };
            self.attribute(scope, attribute, target)?;
        }
        match required.first_not_in(seen) {
            Some(missing) => {
                fault(end_of_operands, format!("{} needs the attribute {}", instruction.opcode, missing.name()))
            }
            None => Ok(()),
        }
    }

    /// The rest of an async-start in its short form, from the attributes on: makes the computation that it wraps.
    fn wrapped_start(
        &mut self,
        scope: &mut Scope<'a>,
        position: usize,
        operation: &'static Operation,
        start: &mut HloInstructionProto,
        has_attributes: bool,
    ) -> Result<()> {
        // The shapes are those stated here: copies of the operands' own could be far larger than the text.
        let stated = start.shape.as_ref().map(|shape| shape.tuple_shapes.as_slice());
        let (operands, result) = match stated {
            Some([operands, result, ..]) if is_tuple(operands) => (operands.tuple_shapes.clone(), result.clone()),
            _ => {
                let name = operation.name;
                return fault(position, format!("{name}-start needs a shape of the form ((operands), result, ...)"));
            }
        };
        let mut root = HloInstructionProto {
            name: operation.name.to_string(),
            opcode: operation.name.to_string(),
            shape: Some(result),
            ..Default::default()
        };
        set_assumed(operation, &mut root);
        if has_attributes {
            let own = [Attribute::AsyncExecutionThread, Attribute::OutputToOperandAliasing];
            let allowed = own.into_iter().fold(operation.allowed, Attributes::with);
            self.attributes(scope, allowed, operation.required, start, Some(&mut root))?;
        } else if let Some(missing) = operation.required.first_not_in(Attributes::default()) {
            return missing_attribute(position, operation, missing);
        }
        let opened_as = self.computations.len();
        let mut inner = self.open_scope(0);
        for (number, shape) in operands.into_iter().enumerate() {
            root.operand_ids.push(inner.id(number));
            inner.instructions.push(HloInstructionProto {
                name: if number == 0 { "async_param".to_string() } else { format!("async_param.{number}") },
                opcode: "parameter".to_string(),
                shape: Some(shape),
                parameter_number: number as i64,
                id: inner.id(number),
                ..Default::default()
            });
        }
        root.id = inner.id(inner.instructions.len());
        root.metadata = start.metadata.clone();
        root.backend_config = start.backend_config.clone();
        root.original_value = start.original_value.clone();
        self.set_unwritten(&inner, position, &mut root)?;
        if root.opcode == "fusion" {
            self.mark_fused(&root);
        }
        let root_place = inner.instructions.len();
        inner.instructions.push(root);
        let id = self.add_computation("async_wrapped", inner.instructions, root_place, opened_as, position)?;
        self.is_hidden[id] = true;
        self.unnamed.push(id);
        self.computations[id].execution_thread = start.async_execution_thread.clone();
        start.called_computation_ids = vec![id as i64];
        Ok(())
    }

    /// Sets the fields of an instruction that its text leaves out and XLA's parser sets.
    fn set_unwritten(&mut self, scope: &Scope<'a>, start: usize, instruction: &mut HloInstructionProto) -> Result<()> {
        if instruction.shape.is_none() {
            instruction.shape = Some(infer::shape(self, scope, start, instruction)?);
        }
        match instruction.opcode.as_str() {
            "dot" | "scaled-dot" | "ragged-dot" => set_precision(instruction, 2),
            "convolution" => {
                set_precision(instruction, 2);
                set_group_counts(instruction);
            }
            "custom-call" => {
                set_precision(instruction, instruction.operand_ids.len());
                set_group_counts(instruction);
                if instruction.custom_call_api_version() == CustomCallApiVersion::ApiVersionUnspecified {
                    instruction.custom_call_api_version = CustomCallApiVersion::ApiVersionOriginal.into();
                }
            }
            "compare" => {
                if instruction.comparison_type.is_empty() {
                    let operand = instruction.operand_ids.first().and_then(|id| scope.shape_of(*id));
                    instruction.comparison_type = default_comparison(operand).to_string();
                }
                // An order that the type implies is the same as none.
                if instruction.comparison_order == implied_order(&instruction.comparison_type) {
                    instruction.comparison_order.clear();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Scope<'_> {
    /// The instruction of an id that this scope gave.
    pub(super) fn get(&self, id: i64) -> Option<&HloInstructionProto> {
        self.instructions.get(usize::try_from(id - self.first_id).ok()?)
    }

    pub(super) fn shape_of(&self, id: i64) -> Option<&ShapeProto> {
        self.get(id)?.shape.as_ref()
    }

    /// Where the instruction of a name is, which stands at `start` in the text.
    pub(crate) fn place_of(&self, name: &str, start: usize) -> Result<usize> {
        match self.names.get(name) {
            Some(&place) => Ok(place),
            None => {
                let near = did_you_mean(name, self.names.keys().copied());
                fault(start, format!("no instruction above is named {name} in this computation{near}"))
            }
        }
    }
}

fn missing_attribute<T>(start: usize, operation: &Operation, missing: Attribute) -> Result<T> {
    fault(
        start,
        format!(
            "{} needs the attribute {}, which an instruction that stands as an operand cannot have",
            operation.name,
            missing.name()
        ),
    )
}

/// Whether an attribute of an async-start in its short form belongs to the operation that it wraps. Both may have
/// aliases; that of the operation comes first.
fn is_of_wrapped(attribute: Attribute, is_repeated: bool, wrapped: &HloInstructionProto) -> bool {
    match attribute {
        Attribute::AsyncExecutionThread => false,
        Attribute::OutputToOperandAliasing => {
            let operation = Operation::from_name(&wrapped.opcode);
            !is_repeated && operation.is_some_and(|operation| operation.allowed.contains(attribute))
        }
        _ => true,
    }
}

/// Moves the value of a common attribute that is about to be read again.
fn move_common(attribute: Attribute, from: &mut HloInstructionProto, to: &mut HloInstructionProto) {
    match attribute {
        Attribute::Sharding => to.sharding = from.sharding.take(),
        Attribute::FrontendAttributes => to.frontend_attributes = from.frontend_attributes.take(),
        Attribute::Statistics => to.statistics_viz = from.statistics_viz.take(),
        Attribute::ResultAccuracy => to.result_accuracy = from.result_accuracy.take(),
        _ => {}
    }
}

/// One precision for each operand, unless there are some.
fn set_precision(instruction: &mut HloInstructionProto, count: usize) {
    let config = instruction.precision_config.get_or_insert_default();
    let PrecisionConfig { operand_precision, .. } = &mut **config;
    if operand_precision.is_empty() {
        *operand_precision = vec![0; count];
    }
}

fn set_group_counts(instruction: &mut HloInstructionProto) {
    instruction.feature_group_count = instruction.feature_group_count.max(1);
    instruction.batch_group_count = instruction.batch_group_count.max(1);
}

/// Sets what an attribute that may be left out means then, where that is not its type's zero.
fn set_assumed(operation: &Operation, instruction: &mut HloInstructionProto) {
    if operation.name == "topk" {
        instruction.largest = true;
    }
}
