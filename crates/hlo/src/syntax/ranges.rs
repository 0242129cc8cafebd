//! Slices of dimensions, pairs of devices, and aliases between buffers.

use super::{Kind, Value, emit};
use crate::parse::{Parser, Result, fault};
use crate::proto::hlo_buffer_donor_proto::BufferDonorEntryProto;
use crate::proto::hlo_input_output_alias_proto::AliasEntryProto;
use crate::proto::hlo_instruction_proto::{OptionalCrossProgramPrefetchIndex, SliceDimensions};
use crate::proto::{Kind as AliasKind, OutputOperandAliasing, SourceTarget};
use crate::text::Printer;

/// `{[0:4], [1:8]}`: start and limit; and all strides if one is not 1.
pub(super) struct Slices;

impl Kind<Vec<SliceDimensions>> for Slices {
    fn print(dimensions: &Vec<SliceDimensions>, printer: &mut Printer<'_>) {
        let is_strided = dimensions.iter().any(|dimension| dimension.stride != 1);
        printer.text("{");
        printer.separated(dimensions, ", ", |printer, SliceDimensions { start, limit, stride }| {
            emit!(printer, "[", start, ":", limit);
            if is_strided {
                emit!(printer, ":", stride);
            }
            printer.text("]");
        });
        printer.text("}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<Vec<SliceDimensions>> {
        parser.list_of(b'{', b'}', |parser| {
            parser.lexer.expect(b'[', "before the range of a dimension")?;
            let start = parser.lexer.integer()?;
            parser.lexer.expect(b':', "after the start of a range")?;
            let limit = parser.lexer.integer()?;
            let stride = if parser.lexer.eat(b':') { parser.lexer.integer()? } else { 1 };
            parser.lexer.expect(b']', "after the range of a dimension")?;
            Ok(SliceDimensions { start, limit, stride })
        })
    }
}

/// A list of dimensions that is always one.
pub(super) struct OneDimension;

impl Kind<Vec<i64>> for OneDimension {
    fn print(dimensions: &Vec<i64>, printer: &mut Printer<'_>) {
        printer.number(dimensions.first().copied().unwrap_or(0));
    }

    fn read(parser: &mut Parser<'_>) -> Result<Vec<i64>> {
        Ok(vec![parser.lexer.integer()?])
    }

    fn is_omitted(dimensions: &Vec<i64>, is_optional: bool) -> bool {
        is_optional && dimensions.is_empty()
    }
}

/// A number of groups: unset means 1.
pub(super) struct GroupCount;

impl Kind<i64> for GroupCount {
    fn print(count: &i64, printer: &mut Printer<'_>) {
        printer.number(*count);
    }

    fn read(parser: &mut Parser<'_>) -> Result<i64> {
        parser.lexer.integer()
    }

    fn is_omitted(count: &i64, _: bool) -> bool {
        matches!(count, 0 | 1)
    }
}

/// The name of a thread; the main one goes without saying.
pub(crate) struct Thread;

impl Kind<String> for Thread {
    fn print(name: &String, printer: &mut Printer<'_>) {
        name.print(printer);
    }

    fn read(parser: &mut Parser<'_>) -> Result<String> {
        parser.lexer.string()
    }

    fn is_omitted(name: &String, _: bool) -> bool {
        matches!(name.as_str(), "" | "main")
    }
}

impl Value for OptionalCrossProgramPrefetchIndex {
    fn print(&self, printer: &mut Printer<'_>) {
        let OptionalCrossProgramPrefetchIndex::CrossProgramPrefetchIndex(index) = self;
        index.print(printer);
    }

    fn read(parser: &mut Parser<'_>) -> Result<Self> {
        parser.lexer.small_integer().map(OptionalCrossProgramPrefetchIndex::CrossProgramPrefetchIndex)
    }
}

/// `{0,1}`: from the first device to the second.
impl Value for SourceTarget {
    fn print(&self, printer: &mut Printer<'_>) {
        emit!(printer, "{", &self.source, ",", &self.target, "}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<SourceTarget> {
        parser.lexer.expect(b'{', "before a pair of devices")?;
        let source = parser.lexer.integer()?;
        parser.lexer.expect(b',', "between the devices of a pair")?;
        let target = parser.lexer.integer()?;
        parser.lexer.expect(b'}', "after a pair of devices")?;
        Ok(SourceTarget { source, target })
    }
}

/// `{0}: (1, {})`.
impl Value for OutputOperandAliasing {
    const SEPARATOR: &'static str = ", ";

    fn print(&self, printer: &mut Printer<'_>) {
        emit!(printer, &self.output_shape_index, ": (", &self.operand_index, ", ", &self.operand_shape_index, ")");
    }

    fn read(parser: &mut Parser<'_>) -> Result<OutputOperandAliasing> {
        let output_shape_index = Value::read(parser)?;
        parser.lexer.expect(b':', "after the index of an output")?;
        parser.lexer.expect(b'(', "before the operand of an alias")?;
        let operand_index = parser.lexer.integer()?;
        parser.lexer.expect(b',', "after the operand of an alias")?;
        let operand_shape_index = Value::read(parser)?;
        parser.lexer.expect(b')', "after the operand of an alias")?;
        Ok(OutputOperandAliasing { output_shape_index, operand_index, operand_shape_index })
    }
}

/// `{0}: (1, {}, may-alias)`.
impl Value for AliasEntryProto {
    const SEPARATOR: &'static str = ", ";

    fn print(&self, printer: &mut Printer<'_>) {
        let kind = if self.kind == AliasKind::MustAlias as i32 { "must-alias" } else { "may-alias" };
        emit!(printer, &self.output_shape_index, ": (", &self.parameter_number, ", ");
        emit!(printer, &self.parameter_shape_index, ", ", kind, ")");
    }

    fn read(parser: &mut Parser<'_>) -> Result<AliasEntryProto> {
        let output_shape_index = Value::read(parser)?;
        parser.lexer.expect(b':', "after the index of a result")?;
        parser.lexer.expect(b'(', "before the parameter of an alias")?;
        let parameter_number = parser.lexer.integer()?;
        parser.lexer.expect(b',', "after the number of a parameter")?;
        let parameter_shape_index = Value::read(parser)?;
        let mut kind = AliasKind::MayAlias;
        if parser.lexer.eat(b',') {
            let start = parser.lexer.here();
            kind = match parser.lexer.expect_word("may-alias or must-alias")? {
                "may-alias" => AliasKind::MayAlias,
                "must-alias" => AliasKind::MustAlias,
                other => return fault(start, format!("expected may-alias or must-alias, found \"{other}\"")),
            };
        }
        parser.lexer.expect(b')', "after the parameter of an alias")?;
        Ok(AliasEntryProto { output_shape_index, parameter_number, parameter_shape_index, kind: kind.into() })
    }
}

/// `(1, {2})`.
impl Value for BufferDonorEntryProto {
    const SEPARATOR: &'static str = ", ";

    fn print(&self, printer: &mut Printer<'_>) {
        emit!(printer, "(", &self.parameter_number, ", ", &self.parameter_shape_index, ")");
    }

    fn read(parser: &mut Parser<'_>) -> Result<BufferDonorEntryProto> {
        parser.lexer.expect(b'(', "before a parameter")?;
        let parameter_number = parser.lexer.integer()?;
        parser.lexer.expect(b',', "after the number of a parameter")?;
        let parameter_shape_index = Value::read(parser)?;
        parser.lexer.expect(b')', "after a parameter")?;
        Ok(BufferDonorEntryProto { parameter_number, parameter_shape_index })
    }
}
