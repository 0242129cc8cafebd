//! Information about an instruction besides what it computes: metadata, frontend attributes, statistics, accuracy,
//! original values.

use std::collections::{BTreeMap, BTreeSet};

use super::{Kind, Value, emit, record};
use crate::parse::{Parser, Result, fault};
use crate::proto::debug_attributes_proto::DebugLogModeProto;
use crate::proto::payload::PayloadSource;
use crate::proto::result_accuracy::{Mode, Specs, Tolerance};
use crate::proto::stack_frame_index_proto::{FileLocation, StackFrame};
use crate::proto::{
    DebugAttributeTableEntryProto, DebugAttributesProto, FrontendAttributes, OpMetadata, OriginalArrayProto,
    OriginalValueElementProto, OriginalValueProto, Payload, ResultAccuracy, Statistic, StatisticsViz,
};
use crate::text::Printer;

/// How deep the tuples of an original value may nest; as deep as protobuf readers let shapes nest.
const MAX_NESTING: usize = 100;

record!(
    OpMetadata, " ", true, "metadata",
    {
        op_type,
        op_name,
        source_file,
        source_line,
        source_end_line,
        source_column,
        source_end_column,
        profile_type,
        deduplicated_name,
        scheduling_name,
        stack_frame_id,
        metadata_payload,
    },
    |metadata| metadata.op_type.is_empty()
        && metadata.op_name.is_empty()
        && metadata.source_file.is_empty()
        && metadata.scheduling_name.is_empty()
        && metadata.stack_frame_id == 0
        && metadata.metadata_payload.is_none()
);

impl Value for Payload {
    fn print(&self, printer: &mut Printer<'_>) {
        let bytes = printer.module.payload(self).to_vec();
        bytes.print(printer);
    }

    fn read(parser: &mut Parser<'_>) -> Result<Payload> {
        Ok(Payload { payload_source: Some(PayloadSource::Value(parser.lexer.quoted()?)) })
    }
}

record!(
    FileLocation, " ", false, "an entry of this table",
    { file_name_id, function_name_id, line, end_line, column, end_column }
);

record!(
    StackFrame, " ", false, "an entry of this table",
    { file_location_id, parent_frame_id: ParentFrame }
);

record!(
    DebugAttributesProto, ",", true, "the attributes of an array that is logged",
    { log_mode: DebugLogModeProto, callback_id: UnlessZero, partitioned, op_id: UnlessZero, operands_sharding: Loose }
);

/// A number that says nothing if it is zero.
struct UnlessZero;

impl Kind<i64> for UnlessZero {
    fn print(number: &i64, printer: &mut Printer<'_>) {
        printer.number(*number);
    }

    fn read(parser: &mut Parser<'_>) -> Result<i64> {
        parser.lexer.integer()
    }

    fn is_omitted(number: &i64, is_optional: bool) -> bool {
        is_optional && *number == 0
    }
}

/// A string in quotes or in braces, like a sharding.
struct Loose;

impl Kind<String> for Loose {
    fn print(text: &String, printer: &mut Printer<'_>) {
        printer.json_or_quoted(text.as_bytes());
    }

    fn read(parser: &mut Parser<'_>) -> Result<String> {
        match parser.lexer.peek() {
            Some(b'{') => Ok(parser.lexer.braced()?.to_string()),
            _ => parser.lexer.string(),
        }
    }

    fn is_omitted(text: &String, is_optional: bool) -> bool {
        text.is_omitted(is_optional)
    }
}

/// `{"name" {0}}:({log_mode=default},{op_id=1})`; without the parentheses if it is one.
impl Value for DebugAttributeTableEntryProto {
    fn print(&self, printer: &mut Printer<'_>) {
        Leaf::print(&self.original_array, printer);
        printer.text(":(");
        printer.separated(&self.debug_attributes, ",", |printer, attributes| attributes.print(printer));
        printer.text(")");
    }

    fn read(parser: &mut Parser<'_>) -> Result<DebugAttributeTableEntryProto> {
        let original_array = Leaf::read(parser)?;
        parser.lexer.expect(b':', "after an array that is logged")?;
        let debug_attributes = match parser.lexer.peek() {
            Some(b'(') => parser.items(b'(', b')')?,
            _ => vec![DebugAttributesProto::read(parser)?],
        };
        Ok(DebugAttributeTableEntryProto { original_array, debug_attributes })
    }
}

/// XLA numbers parents one higher in its text than in its protos, and reads them back so.
struct ParentFrame;

impl Kind<i32> for ParentFrame {
    fn print(id: &i32, printer: &mut Printer<'_>) {
        printer.number(i64::from(*id) + 1);
    }

    fn read(parser: &mut Parser<'_>) -> Result<i32> {
        Ok(parser.lexer.small_integer()?.saturating_sub(1))
    }
}

/// `{key="value",other={"json":1}}`.
impl Value for FrontendAttributes {
    fn print(&self, printer: &mut Printer<'_>) {
        printer.text("{");
        printer.separated(&self.map, ",", |printer, (key, value)| {
            emit!(printer, key.as_str(), "=");
            Loose::print(value, printer);
        });
        printer.text("}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<FrontendAttributes> {
        let mut map = BTreeMap::new();
        parser.list(b'{', b'}', |parser| {
            let key = parser.lexer.attribute_name()?.to_string();
            map.insert(key, Loose::read(parser)?);
            Ok(())
        })?;
        Ok(FrontendAttributes { map })
    }

    fn is_omitted(&self, _: bool) -> bool {
        self.map.is_empty()
    }
}

/// `{visualizing_index=0,name=0.5}`.
impl Value for StatisticsViz {
    fn print(&self, printer: &mut Printer<'_>) {
        emit!(printer, "{visualizing_index=", &self.stat_index_to_visualize);
        for statistic in &self.statistics {
            emit!(printer, ",", statistic.stat_name.as_str(), "=", &statistic.stat_val);
        }
        printer.text("}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<StatisticsViz> {
        let mut viz = StatisticsViz::default();
        let mut is_first = true;
        parser.list(b'{', b'}', |parser| {
            let name = parser.lexer.attribute_name()?;
            if std::mem::take(&mut is_first) {
                viz.stat_index_to_visualize = parser.lexer.integer()?;
            } else {
                viz.statistics.push(Statistic { stat_name: name.to_string(), stat_val: parser.number()? });
            }
            Ok(())
        })?;
        Ok(viz)
    }

    fn is_omitted(&self, _: bool) -> bool {
        self.statistics.is_empty()
    }
}

/// `{mode=highest}`, `{tolerance={atol=0.5,rtol=0,ulps=2}}`.
impl Value for ResultAccuracy {
    fn print(&self, printer: &mut Printer<'_>) {
        match &self.specs {
            Some(Specs::Tolerance(Tolerance { atol, rtol, ulps })) => {
                emit!(printer, "{tolerance={atol=", atol, ",rtol=", rtol, ",ulps=", ulps, "}}");
            }
            _ => printer.text("{mode=highest}"),
        }
    }

    fn read(parser: &mut Parser<'_>) -> Result<ResultAccuracy> {
        parser.lexer.expect(b'{', "before an accuracy")?;
        let start = parser.lexer.here();
        let specs = match parser.lexer.attribute_name()? {
            "mode" => {
                let start = parser.lexer.here();
                let mode = match parser.lexer.expect_word("default or highest")?.to_ascii_lowercase().as_str() {
                    "default" => Mode::Default,
                    "highest" => Mode::Highest,
                    other => return fault(start, format!("expected default or highest, found \"{other}\"")),
                };
                Specs::Mode(mode.into())
            }
            "tolerance" => {
                let mut tolerance = Tolerance::default();
                parser.list(b'{', b'}', |parser| {
                    let start = parser.lexer.here();
                    match parser.lexer.attribute_name()? {
                        "atol" => tolerance.atol = parser.number()?,
                        "rtol" => tolerance.rtol = parser.number()?,
                        // XLA reads it as a real number and keeps the whole part.
                        "ulps" => tolerance.ulps = parser.number()? as i64,
                        other => {
                            return fault(start, format!("a tolerance has atol, rtol and ulps, found \"{other}\""));
                        }
                    }
                    Ok(())
                })?;
                Specs::Tolerance(tolerance)
            }
            other => return fault(start, format!("an accuracy has mode or tolerance, found \"{other}\"")),
        };
        parser.lexer.expect(b'}', "after an accuracy")?;
        Ok(ResultAccuracy { specs: Some(specs) })
    }

    /// Accuracy is the default unless it is the highest or within a tolerance.
    fn is_omitted(&self, _: bool) -> bool {
        match &self.specs {
            Some(Specs::Mode(mode)) => *mode != Mode::Highest as i32,
            Some(Specs::Tolerance(_)) => false,
            None => true,
        }
    }
}

/// `{({"a"}, {"b" {0}})}`: for each leaf of the instruction's shape the array it was.
impl Value for OriginalValueProto {
    fn print(&self, printer: &mut Printer<'_>) {
        printer.text("{");
        if self.is_synthetic_call {
            printer.text("[synthetic_call]");
        } else {
            print_node(printer, &self.elements, &mut Vec::new());
        }
        printer.text("}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<OriginalValueProto> {
        let mut value = OriginalValueProto::default();
        parser.lexer.expect(b'{', "before an original value")?;
        if parser.lexer.eat(b'[') {
            if !parser.lexer.eat_word("synthetic_call") {
                return parser.lexer.unexpected("synthetic_call");
            }
            parser.lexer.expect(b']', "after synthetic_call")?;
            parser.lexer.expect(b'}', "after an original value")?;
            value.is_synthetic_call = true;
            return Ok(value);
        }
        let mut index: Vec<i64> = Vec::new();
        loop {
            match parser.lexer.peek() {
                Some(b'(') if index.len() < parser.limits.nesting => index.push(0),
                Some(b')') if !index.is_empty() => {
                    index.pop();
                }
                Some(b',') if !index.is_empty() => {
                    if let Some(last) = index.last_mut() {
                        *last += 1;
                    }
                }
                Some(b'{') => {
                    let original_array = Leaf::read(parser)?;
                    value.elements.push(OriginalValueElementProto { shape_index: index.clone(), original_array });
                    continue;
                }
                Some(b'}') if index.is_empty() => {
                    parser.lexer.eat(b'}');
                    return Ok(value);
                }
                _ => return parser.lexer.unexpected("tuples of original arrays"),
            }
            parser.lexer.expect(parser.lexer.peek_adjacent().unwrap_or(0), "in an original value")?;
        }
    }
}

/// Prints the node at `index` of the tree whose leaves and inner nodes `elements` lists by their index.
fn print_node(printer: &mut Printer<'_>, elements: &[OriginalValueElementProto], index: &mut Vec<i64>) {
    let depth = index.len();
    let children: BTreeSet<i64> = elements
        .iter()
        .filter(|element| element.shape_index.starts_with(index))
        .filter_map(|element| element.shape_index.get(depth).copied())
        .collect();
    if !children.is_empty() && depth < MAX_NESTING {
        printer.text("(");
        printer.separated(children, ", ", |printer, child| {
            index.push(child);
            print_node(printer, elements, index);
            index.pop();
        });
        printer.text(")");
        return;
    }
    let leaf = elements.iter().find(|element| element.shape_index == *index);
    Leaf::print(leaf.map_or(&None, |leaf| &leaf.original_array), printer);
}

/// `{"name" {0,1}}`; `{}` for none.
pub(crate) struct Leaf;

impl Kind<Option<OriginalArrayProto>> for Leaf {
    fn print(array: &Option<OriginalArrayProto>, printer: &mut Printer<'_>) {
        printer.text("{");
        if let Some(array) = array {
            array.instruction_name.print(printer);
            if !array.shape_index.is_empty() {
                emit!(printer, " ", &array.shape_index);
            }
        }
        printer.text("}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<Option<OriginalArrayProto>> {
        parser.lexer.expect(b'{', "before an original array")?;
        if parser.lexer.eat(b'}') {
            return Ok(None);
        }
        let instruction_name = parser.lexer.string()?;
        let shape_index = if parser.lexer.peek() == Some(b'{') { Value::read(parser)? } else { Vec::new() };
        parser.lexer.expect(b'}', "after an original array")?;
        Ok(Some(OriginalArrayProto { instruction_name, shape_index }))
    }
}
