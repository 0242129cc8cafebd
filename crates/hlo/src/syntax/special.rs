//! Attributes that are more than a field of the instruction.

use super::words::{Comparison, OrderOfComparison};
use super::{Kind, Value, emit};
use crate::parse::{Parser, Result, Scope, fault};
use crate::proto::{HloInstructionProto, LiteralProto, PrimitiveType, ShapeProto};
use crate::text::{Layouts, Printer};

/// How such an attribute prints and reads.
pub(super) trait Special {
    /// Prints the attribute, if there is something to print; `start` is the text before its value.
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str);

    fn read(parser: &mut Parser<'_>, scope: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()>;
}

/// JSON as it is, or anything in quotes.
pub(super) struct BackendConfig;

impl Special for BackendConfig {
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str) {
        // A payload lies with the module, so it is copied out; only few instructions have one.
        let payload = match &instruction.backend_config_payload {
            Some(payload) if instruction.backend_config.is_empty() => printer.module.payload(payload).to_vec(),
            _ => Vec::new(),
        };
        let config = if payload.is_empty() { &instruction.backend_config } else { &payload };
        if !config.is_empty() {
            printer.text(start);
            printer.json_or_quoted(config);
        }
    }

    fn read(parser: &mut Parser<'_>, _: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()> {
        target.backend_config = parser.lexer.quoted_or_braced()?;
        Ok(())
    }
}

/// `{%a, %b}`: instructions above.
pub(super) struct ControlPredecessors;

impl Special for ControlPredecessors {
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str) {
        if !instruction.control_predecessor_ids.is_empty() {
            emit!(printer, start, "{");
            printer.separated(&instruction.control_predecessor_ids, ", ", |printer, &id| printer.instruction_name(id));
            printer.text("}");
        }
    }

    fn read(parser: &mut Parser<'_>, scope: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()> {
        target.control_predecessor_ids = parser.list_of(b'{', b'}', |parser| {
            let start = parser.lexer.here();
            let name = parser.lexer.name("the name of an instruction")?;
            Ok(scope.id(scope.place_of(name, start)?))
        })?;
        Ok(())
    }
}

/// The computations that an instruction calls: all of them print, and one is read.
pub(super) struct Calls;

impl Special for Calls {
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str) {
        if !instruction.called_computation_ids.is_empty() {
            printer.text(start);
            printer.separated(&instruction.called_computation_ids, ", ", |printer, &id| printer.computation_name(id));
        }
    }

    fn read(parser: &mut Parser<'_>, _: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()> {
        let id = parser.called()?;
        place_call(target, 0, id);
        Ok(())
    }
}

/// `{%f, %g}`.
pub(super) struct Computations;

impl Kind<Vec<i64>> for Computations {
    fn print(ids: &Vec<i64>, printer: &mut Printer<'_>) {
        printer.text("{");
        printer.separated(ids, ", ", |printer, &id| printer.computation_name(id));
        printer.text("}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<Vec<i64>> {
        parser.list_of(b'{', b'}', Parser::called)
    }

    fn is_omitted(ids: &Vec<i64>, is_optional: bool) -> bool {
        is_optional && ids.is_empty()
    }
}

pub(super) struct ChannelId;

impl Special for ChannelId {
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str) {
        // All-reduces of old writers carry theirs in the other field.
        let id = if instruction.channel_id > 0 { instruction.channel_id } else { instruction.all_reduce_id };
        if id > 0 {
            emit!(printer, start, &id);
        }
    }

    fn read(parser: &mut Parser<'_>, _: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()> {
        target.channel_id = parser.lexer.integer()?;
        Ok(())
    }
}

/// It says what channel_id and use_global_device_ids say; XLA reads it and forgets it.
pub(super) struct Mode;

impl Special for Mode {
    fn print(_: &mut Printer<'_>, _: &HloInstructionProto, _: &str) {}

    fn read(parser: &mut Parser<'_>, _: &Scope<'_>, _: &mut HloInstructionProto) -> Result<()> {
        parser.lexer.expect_word("a mode of device groups").map(|_| ())
    }
}

/// `{{8,16},{8,16}}`: the sizes of all slices follow each other in the proto.
pub(super) struct SliceSizes;

impl Special for SliceSizes {
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str) {
        let sizes = &instruction.dynamic_slice_sizes;
        if sizes.is_empty() {
            return;
        }
        // Each slice has as many dimensions as the input.
        let input = printer.find_operand(instruction, 0).and_then(|operand| operand.shape.as_ref());
        let rank = input
            .map(|shape| shape.tuple_shapes.first().unwrap_or(shape).dimensions.len())
            .filter(|&rank| rank > 0)
            .unwrap_or(sizes.len());
        emit!(printer, start, "{");
        printer.separated(sizes.chunks(rank), ",", |printer, sizes| printer.shape_index(sizes));
        printer.text("}");
    }

    fn read(parser: &mut Parser<'_>, _: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()> {
        target.dynamic_slice_sizes = <Vec<Vec<i64>> as Value>::read(parser)?.concat();
        Ok(())
    }
}

/// The attribute that states how a comparison compares, where the type of its operands does not imply it.
pub(super) struct ComparisonType;

impl Special for ComparisonType {
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str) {
        let operand = printer.find_operand(instruction, 0).and_then(|operand| operand.shape.as_ref());
        let comparison = instruction.comparison_type.as_str();
        if !comparison.is_empty() && comparison != default_comparison(operand) {
            emit!(printer, start, comparison);
        }
    }

    fn read(parser: &mut Parser<'_>, _: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()> {
        target.comparison_type = Comparison::read(parser)?;
        Ok(())
    }
}

/// The attribute that states the order of a comparison, where its type does not imply it: floating-point numbers have a
/// total order beside their own, in which a NaN too has its place.
pub(super) struct ComparisonOrder;

impl Special for ComparisonOrder {
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str) {
        let operand = printer.find_operand(instruction, 0).and_then(|operand| operand.shape.as_ref());
        let comparison = match instruction.comparison_type.as_str() {
            "" => default_comparison(operand),
            stated => stated,
        };
        let order = instruction.comparison_order.as_str();
        if !order.is_empty() && order != implied_order(comparison) {
            emit!(printer, start, order);
        }
    }

    fn read(parser: &mut Parser<'_>, _: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()> {
        target.comparison_order = OrderOfComparison::read(parser)?;
        Ok(())
    }
}

/// The order in which a comparison of this type has its values where nothing is said.
pub(crate) fn implied_order(comparison: &str) -> &'static str {
    if comparison == "FLOAT" { "PARTIAL" } else { "TOTAL" }
}

/// How values of a type are compared where the text does not say.
pub(crate) fn default_comparison(operand: Option<&ShapeProto>) -> &'static str {
    use PrimitiveType as T;
    match operand.and_then(|shape| T::try_from(shape.element_type).ok()).unwrap_or_default() {
        T::S1 | T::S2 | T::S4 | T::S8 | T::S16 | T::S32 | T::S64 => "SIGNED",
        T::Pred | T::U1 | T::U2 | T::U4 | T::U8 | T::U16 | T::U32 | T::U64 => "UNSIGNED",
        // Values without numbers are not compared.
        T::Invalid | T::Tuple | T::OpaqueType | T::Token => "UNSIGNED",
        _ => "FLOAT",
    }
}

/// `{kind="sharding", entry={...}, exit={...}}`. XLA names the two sides from the inside in its protos and from the
/// outside in its text.
pub(super) struct Domain;

impl Special for Domain {
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str) {
        if let (Some(operand_side), Some(user_side)) =
            (instruction.domain_entry_sharding.as_deref(), instruction.domain_exit_sharding.as_deref())
        {
            emit!(printer, start, "{kind=\"sharding\", entry=", user_side, ", exit=", operand_side, "}");
        }
    }

    fn read(parser: &mut Parser<'_>, _: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()> {
        parser.lexer.expect(b'{', "before the parts of a domain")?;
        loop {
            let start = parser.lexer.here();
            match parser.lexer.attribute_name()? {
                "kind" => {
                    let start = parser.lexer.here();
                    let kind = parser.lexer.string()?;
                    if kind != "sharding" {
                        return fault(start, format!("a domain is of kind \"sharding\", found {kind:?}"));
                    }
                }
                "entry" => target.domain_exit_sharding = Value::read(parser)?,
                "exit" => target.domain_entry_sharding = Value::read(parser)?,
                other => return fault(start, format!("a domain has kind, entry and exit, found \"{other}\"")),
            }
            parser.lexer.eat(b',');
            if parser.lexer.eat(b'}') {
                return Ok(());
            }
        }
    }
}

/// `{f32[4]{0}, s32[]}`.
pub(super) struct OperandLayoutConstraints;

impl Special for OperandLayoutConstraints {
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str) {
        if instruction.constrain_layout {
            emit!(printer, start, &instruction.operand_shapes_with_layout);
        }
    }

    fn read(parser: &mut Parser<'_>, _: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()> {
        target.operand_shapes_with_layout = Value::read(parser)?;
        target.constrain_layout = true;
        Ok(())
    }
}

/// A shape with its layout, whatever the options say.
impl Value for ShapeProto {
    const SEPARATOR: &'static str = ", ";

    fn print(&self, printer: &mut Printer<'_>) {
        printer.shape_with(self, Layouts::All);
    }

    fn read(parser: &mut Parser<'_>) -> Result<ShapeProto> {
        parser.shape()
    }
}

/// A shape that is always stated.
pub(super) struct StatedShape;

impl Kind<Option<Box<ShapeProto>>> for StatedShape {
    fn print(shape: &Option<Box<ShapeProto>>, printer: &mut Printer<'_>) {
        printer.optional_shape(shape.as_deref(), Layouts::All);
    }

    fn read(parser: &mut Parser<'_>) -> Result<Option<Box<ShapeProto>>> {
        Value::read(parser)
    }
}

/// A literal after its shape.
impl Value for LiteralProto {
    fn print(&self, printer: &mut Printer<'_>) {
        printer.literal_with_shape(self);
    }

    fn read(parser: &mut Parser<'_>) -> Result<LiteralProto> {
        parser.literal_with_shape()
    }
}

/// Sets the id of the `place`th called computation.
pub(super) fn place_call(target: &mut HloInstructionProto, place: usize, id: i64) {
    if target.called_computation_ids.len() <= place {
        target.called_computation_ids.resize(place + 1, id);
    }
    target.called_computation_ids[place] = id;
}
