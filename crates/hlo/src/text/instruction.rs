//! One instruction: name, shape, opcode, operands, and the attributes that any opcode may have.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Named, Printer, is_one_instruction, number};
use crate::proto::result_accuracy::{Mode, Specs};
use crate::proto::{
    HloInstructionProto, OpMetadata, OriginalArrayProto, OriginalValueElementProto, OriginalValueProto, PrimitiveType,
    StatisticsViz,
};

/// How far an async operation may be from its start: real chains have two or three links.
const MAX_ASYNC_CHAIN: usize = 4096;

/// How deep the tuples of an original value may nest; as deep as protobuf readers let shapes nest.
const MAX_NESTING: usize = 100;

/// What an async operation stands for: the one instruction of the computation that it wraps.
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
        if instruction.opcode == "async-start" {
            if !matches!(instruction.async_execution_thread.as_str(), "" | "main") {
                self.text(", async_execution_thread=");
                self.quoted(instruction.async_execution_thread.as_bytes());
            }
            match sugared {
                Some(wrapped) if !wrapped.opcode.starts_with("async-") => {
                    self.attributes(wrapped);
                    self.called_computations(wrapped);
                    let outer = instruction.frontend_attributes.as_ref();
                    // Those of the start stand for both.
                    let is_bare = outer.is_none_or(|attributes| attributes.map.is_empty());
                    self.common_attributes(wrapped, is_bare);
                }
                _ => {}
            }
        } else {
            self.attributes(instruction);
        }
        if sugared.is_none() {
            self.called_computations(instruction);
        }
        self.common_attributes(instruction, true);
        if self.options.metadata {
            if let Some(value) = instruction.original_value.as_deref() {
                self.text(", origin={");
                self.original_value(value);
                self.text("}");
            }
            if let Some(metadata) = instruction.metadata.as_deref().filter(|metadata| has_metadata(metadata)) {
                self.text(", metadata={");
                self.metadata_fields(metadata);
                self.text("}");
            }
        }
        let backend_config = match &instruction.backend_config_payload {
            Some(payload) if instruction.backend_config.is_empty() => self.module.payload(payload),
            _ => &instruction.backend_config,
        };
        if self.options.backend_config && !backend_config.is_empty() {
            self.text(", backend_config=");
            self.json_or_quoted(backend_config);
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

    /// Starts an attribute.
    pub(super) fn attribute(&mut self, name: &str) {
        self.text(", ");
        self.text(name);
        self.text("=");
    }

    fn called_computations(&mut self, instruction: &HloInstructionProto) {
        let called = instruction.called_computation_ids.as_slice();
        let predicated = instruction.opcode == "conditional" && self.is_predicated(instruction);
        let mut named = |name: &str, index: usize| {
            if let Some(&id) = called.get(index) {
                self.attribute(name);
                self.computation_name(id);
            }
        };
        match instruction.opcode.as_str() {
            "while" => {
                named("condition", 1);
                named("body", 0);
            }
            "select-and-scatter" => {
                named("select", 0);
                named("scatter", 1);
            }
            "conditional" if predicated => {
                named("true_computation", 0);
                named("false_computation", 1);
            }
            "conditional" => self.computation_list("branch_computations", called),
            "call" | "map" | "reduce-window" | "reduce" | "all-reduce" | "reduce-scatter" | "all-reduce-start"
            | "scatter" | "sort" | "scan" => {
                named("to_apply", 0);
                if instruction.opcode == "call" && instruction.is_composite {
                    self.text(", is_composite=true");
                }
            }
            "custom-call" => {
                if !called.is_empty() {
                    self.computation_list("called_computations", called);
                }
            }
            "async-update" | "async-done" => {}
            _ if called.is_empty() => {}
            _ => {
                self.attribute("calls");
                for (index, &id) in called.iter().enumerate() {
                    if index > 0 {
                        self.text(", ");
                    }
                    self.computation_name(id);
                }
            }
        }
    }

    fn computation_list(&mut self, name: &str, called: &[i64]) {
        self.attribute(name);
        self.text("{");
        for (index, &id) in called.iter().enumerate() {
            if index > 0 {
                self.text(", ");
            }
            self.computation_name(id);
        }
        self.text("}");
    }

    /// Whether a conditional chooses by a truth value rather than by an index.
    fn is_predicated(&self, instruction: &HloInstructionProto) -> bool {
        self.operand(instruction, 0)
            .and_then(|operand| operand.shape.as_ref())
            .is_some_and(|shape| shape.element_type == PrimitiveType::Pred as i32)
    }

    pub(super) fn operand(&self, instruction: &HloInstructionProto, index: usize) -> Option<&'a HloInstructionProto> {
        let Named { instruction, .. } = self.names.get(instruction.operand_ids.get(index)?)?;
        Some(instruction)
    }

    fn common_attributes(&mut self, instruction: &HloInstructionProto, with_frontend_attributes: bool) {
        if let Some(sharding) = instruction.sharding.as_deref() {
            self.attribute("sharding");
            self.sharding(sharding);
        }
        let frontend_attributes = instruction.frontend_attributes.as_ref().filter(|_| with_frontend_attributes);
        if let Some(attributes) = frontend_attributes.filter(|attributes| !attributes.map.is_empty()) {
            self.attribute("frontend_attributes");
            self.frontend_attributes(&attributes.map);
        }
        if !instruction.control_predecessor_ids.is_empty() {
            self.attribute("control-predecessors");
            self.text("{");
            for (index, &id) in instruction.control_predecessor_ids.iter().enumerate() {
                if index > 0 {
                    self.text(", ");
                }
                self.instruction_name(id);
            }
            self.text("}");
        }
        if let Some(statistics) = instruction.statistics_viz.as_deref().filter(|viz| !viz.statistics.is_empty()) {
            self.statistics(statistics);
        }
        match instruction.result_accuracy.as_deref().and_then(|accuracy| accuracy.specs.as_ref()) {
            Some(Specs::Mode(mode)) if *mode == Mode::Highest as i32 => {
                self.text(", result_accuracy={mode=highest}");
            }
            Some(Specs::Tolerance(tolerance)) => {
                self.text(", result_accuracy={tolerance={atol=");
                number::write_short(&mut self.out, tolerance.atol);
                self.text(",rtol=");
                number::write_short(&mut self.out, tolerance.rtol);
                self.text(",ulps=");
                self.number(tolerance.ulps);
                self.text("}}");
            }
            _ => {}
        }
    }

    fn statistics(&mut self, viz: &StatisticsViz) {
        self.text(", statistics={visualizing_index=");
        self.number(viz.stat_index_to_visualize);
        for statistic in &viz.statistics {
            self.text(",");
            self.text(&statistic.stat_name);
            self.text("=");
            number::write_short(&mut self.out, statistic.stat_val);
        }
        self.text("}");
    }

    /// `{key="value",other={"json":1}}`.
    pub(super) fn frontend_attributes(&mut self, attributes: &BTreeMap<String, String>) {
        self.text("{");
        for (index, (key, value)) in attributes.iter().enumerate() {
            if index > 0 {
                self.text(",");
            }
            self.text(key);
            self.text("=");
            self.json_or_quoted(value.as_bytes());
        }
        self.text("}");
    }

    /// The fields of a metadata attribute, without its braces.
    pub(super) fn metadata_fields(&mut self, metadata: &OpMetadata) {
        let start = self.out.len();
        let separate = |printer: &mut Self| {
            if printer.out.len() > start {
                printer.text(" ");
            }
        };
        for (name, value) in
            [("op_type", &metadata.op_type), ("op_name", &metadata.op_name), ("source_file", &metadata.source_file)]
        {
            if !value.is_empty() {
                separate(self);
                self.text(name);
                self.text("=");
                self.quoted(value.as_bytes());
            }
        }
        for (name, value) in [
            ("source_line", metadata.source_line),
            ("source_end_line", metadata.source_end_line),
            ("source_column", metadata.source_column),
            ("source_end_column", metadata.source_end_column),
        ] {
            if value != 0 {
                separate(self);
                let _ = write!(self.out, "{name}={value}");
            }
        }
        if !metadata.profile_type.is_empty() {
            separate(self);
            self.text("profile_type={");
            self.numbers(&metadata.profile_type, ",");
            self.text("}");
        }
        for (name, value) in
            [("deduplicated_name", &metadata.deduplicated_name), ("scheduling_name", &metadata.scheduling_name)]
        {
            if !value.is_empty() {
                separate(self);
                self.text(name);
                self.text("=");
                self.quoted(value.as_bytes());
            }
        }
        if metadata.stack_frame_id != 0 {
            separate(self);
            let _ = write!(self.out, "stack_frame_id={}", metadata.stack_frame_id);
        }
        if let Some(payload) = &metadata.metadata_payload {
            separate(self);
            self.text("metadata_payload=");
            let bytes = self.module.payload(payload);
            self.quoted(bytes);
        }
    }

    fn original_value(&mut self, value: &OriginalValueProto) {
        if value.is_synthetic_call {
            self.text("[synthetic_call]");
            return;
        }
        self.original_value_node(&value.elements, &mut Vec::new());
    }

    /// The node at `index` of the tree whose leaves and inner nodes `elements` lists by their index.
    fn original_value_node(&mut self, elements: &[OriginalValueElementProto], index: &mut Vec<i64>) {
        let depth = index.len();
        let children: std::collections::BTreeSet<i64> = elements
            .iter()
            .filter(|element| element.shape_index.starts_with(index))
            .filter_map(|element| element.shape_index.get(depth).copied())
            .collect();
        if !children.is_empty() && depth < MAX_NESTING {
            self.text("(");
            for (position, child) in children.into_iter().enumerate() {
                if position > 0 {
                    self.text(", ");
                }
                index.push(child);
                self.original_value_node(elements, index);
                index.pop();
            }
            self.text(")");
            return;
        }
        let leaf = elements.iter().find(|element| element.shape_index == *index);
        self.original_array(leaf.and_then(|leaf| leaf.original_array.as_ref()));
    }

    /// `{"name" {0,1}}`.
    pub(super) fn original_array(&mut self, array: Option<&OriginalArrayProto>) {
        self.text("{");
        if let Some(array) = array {
            self.quoted(array.instruction_name.as_bytes());
            if !array.shape_index.is_empty() {
                self.text(" ");
                self.shape_index(&array.shape_index);
            }
        }
        self.text("}");
    }
}

fn has_metadata(metadata: &OpMetadata) -> bool {
    !metadata.op_type.is_empty()
        || !metadata.op_name.is_empty()
        || !metadata.source_file.is_empty()
        || !metadata.scheduling_name.is_empty()
        || metadata.stack_frame_id != 0
        || metadata.metadata_payload.is_some()
}
