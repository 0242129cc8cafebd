//! Information about an instruction besides what it computes: metadata, frontend attributes, statistics, accuracy,
//! original values.

use std::collections::BTreeMap;

use super::Parser;
use super::error::{Result, fault, hint};
use crate::proto::payload::PayloadSource;
use crate::proto::result_accuracy::{Mode, Specs, Tolerance};
use crate::proto::{
    OpMetadata, OriginalArrayProto, OriginalValueElementProto, OriginalValueProto, Payload, ResultAccuracy, Statistic,
    StatisticsViz,
};

const METADATA_FIELDS: &[&str] = &[
    "op_type",
    "op_name",
    "source_file",
    "source_line",
    "source_end_line",
    "source_column",
    "source_end_column",
    "profile_type",
    "deduplicated_name",
    "scheduling_name",
    "stack_frame_id",
    "metadata_payload",
];

impl Parser<'_> {
    /// `{op_name="jit(f)/add" source_line=3}`; commas between the fields are optional.
    pub(super) fn metadata(&mut self) -> Result<OpMetadata> {
        let mut metadata = OpMetadata::default();
        self.lexer.expect(b'{', "before metadata")?;
        while !self.lexer.eat(b'}') {
            self.lexer.eat(b',');
            let start = self.lexer.here();
            match self.lexer.attribute_name()? {
                "op_name" => metadata.op_name = self.lexer.string()?,
                "stack_frame_id" => metadata.stack_frame_id = self.lexer.small_integer()?,
                "op_type" => metadata.op_type = self.lexer.string()?,
                "source_file" => metadata.source_file = self.lexer.string()?,
                "source_line" => metadata.source_line = self.lexer.small_integer()?,
                "source_end_line" => metadata.source_end_line = self.lexer.small_integer()?,
                "source_column" => metadata.source_column = self.lexer.small_integer()?,
                "source_end_column" => metadata.source_end_column = self.lexer.small_integer()?,
                "profile_type" => {
                    let types = self.integers(b'{', b'}')?;
                    metadata.profile_type =
                        types.into_iter().map(|kind| i32::try_from(kind).unwrap_or_default()).collect();
                }
                "deduplicated_name" => metadata.deduplicated_name = self.lexer.string()?,
                "metadata_payload" => {
                    let value = PayloadSource::Value(self.lexer.quoted()?);
                    metadata.metadata_payload = Some(Box::new(Payload { payload_source: Some(value) }));
                }
                "scheduling_name" => metadata.scheduling_name = self.lexer.string()?,
                other => {
                    let near = hint(other, METADATA_FIELDS.iter().copied());
                    return fault(start, format!("metadata has no field \"{other}\"{near}"));
                }
            }
        }
        Ok(metadata)
    }

    /// `{key="value",other={"json":1}}`.
    pub(super) fn frontend_attributes(&mut self) -> Result<BTreeMap<String, String>> {
        let mut map = BTreeMap::new();
        self.list(b'{', b'}', |parser| {
            let key = parser.lexer.attribute_name()?.to_string();
            let value = match parser.lexer.peek() {
                Some(b'{') => parser.lexer.braced()?.to_string(),
                _ => parser.lexer.string()?,
            };
            map.insert(key, value);
            Ok(())
        })?;
        Ok(map)
    }

    /// `{visualizing_index=0,name=0.5}`.
    pub(super) fn statistics(&mut self) -> Result<StatisticsViz> {
        let mut viz = StatisticsViz::default();
        let mut is_first = true;
        self.list(b'{', b'}', |parser| {
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

    /// `{mode=highest}`, `{tolerance={atol=0.5,rtol=0,ulps=2}}`.
    pub(super) fn result_accuracy(&mut self) -> Result<ResultAccuracy> {
        self.lexer.expect(b'{', "before an accuracy")?;
        let start = self.lexer.here();
        let specs = match self.lexer.attribute_name()? {
            "mode" => {
                let start = self.lexer.here();
                let mode = match self.lexer.expect_word("default or highest")? {
                    "default" => Mode::Default,
                    "highest" => Mode::Highest,
                    other => return fault(start, format!("expected default or highest, found \"{other}\"")),
                };
                Specs::Mode(mode.into())
            }
            "tolerance" => {
                let mut tolerance = Tolerance::default();
                self.list(b'{', b'}', |parser| {
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
        self.lexer.expect(b'}', "after an accuracy")?;
        Ok(ResultAccuracy { specs: Some(specs) })
    }

    /// `{({"a"}, {"b" {0}})}`: for each leaf of the instruction's shape the array it was.
    pub(super) fn original_value(&mut self) -> Result<OriginalValueProto> {
        let mut value = OriginalValueProto::default();
        self.lexer.expect(b'{', "before an original value")?;
        if self.lexer.eat(b'[') {
            if !self.lexer.eat_word("synthetic_call") {
                return self.lexer.unexpected("synthetic_call");
            }
            self.lexer.expect(b']', "after synthetic_call")?;
            self.lexer.expect(b'}', "after an original value")?;
            value.is_synthetic_call = true;
            return Ok(value);
        }
        let mut index: Vec<i64> = Vec::new();
        loop {
            match self.lexer.peek() {
                Some(b'(') if index.len() < self.limits.nesting => index.push(0),
                Some(b')') if !index.is_empty() => {
                    index.pop();
                }
                Some(b',') if !index.is_empty() => {
                    if let Some(last) = index.last_mut() {
                        *last += 1;
                    }
                }
                Some(b'{') => {
                    let original_array = self.original_array()?;
                    value.elements.push(OriginalValueElementProto { shape_index: index.clone(), original_array });
                    continue;
                }
                Some(b'}') if index.is_empty() => {
                    self.lexer.eat(b'}');
                    return Ok(value);
                }
                _ => return self.lexer.unexpected("tuples of original arrays"),
            }
            self.lexer.expect(self.lexer.peek_adjacent().unwrap_or(0), "in an original value")?;
        }
    }

    /// `{"name" {0,1}}`; none for `{}`.
    pub(super) fn original_array(&mut self) -> Result<Option<OriginalArrayProto>> {
        self.lexer.expect(b'{', "before an original array")?;
        if self.lexer.eat(b'}') {
            return Ok(None);
        }
        let instruction_name = self.lexer.string()?;
        let shape_index = if self.lexer.peek() == Some(b'{') { self.integers(b'{', b'}')? } else { Vec::new() };
        self.lexer.expect(b'}', "after an original array")?;
        Ok(Some(OriginalArrayProto { instruction_name, shape_index }))
    }
}
