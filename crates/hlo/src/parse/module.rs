//! The module: its header, the tables of stack frames, its computations, and what follows from all of them.

use std::collections::BTreeMap;

use super::computation::name_apart;
use super::error::{Result, fault};
use super::lexer::Lexer;
use super::shape::is_compatible;
use super::{ATTRIBUTE, Parser, order};
use crate::proto::hlo_schedule_proto::InstructionSequence;
use crate::proto::original_value_recovery_table_proto::Entry;
use crate::proto::{
    HloBufferDonorProto, HloInputOutputAliasProto, HloModuleConfigProto, HloModuleProto, HloModuleProtoWithConfig,
    HloScheduleProto, OriginalValueRecoveryTableProto, ProgramShapeProto, StackFrameIndexProto,
};
use crate::syntax::metadata::Leaf;
use crate::syntax::{Kind, Value};

/// Whether two programs have the same parameters and results, whatever their layouts.
fn is_same_program(one: &ProgramShapeProto, other: &ProgramShapeProto) -> bool {
    let results = one.result.iter().zip(&other.result);
    one.parameters.len() == other.parameters.len()
        && one.parameters.iter().zip(&other.parameters).chain(results).all(|(one, other)| is_compatible(one, other))
}

const HEADER: &str = "is_scheduled replica_count num_partitions input_output_alias buffer_donor \
    alias_passthrough_params entry_computation_layout frontend_attributes \
    allow_spmd_sharding_propagation_to_parameters allow_spmd_sharding_propagation_to_output origin_recovery_table \
    debug_attributes";

/// The header of the module, which is completed once the computations are known.
struct Header {
    module: HloModuleProto,
    config: HloModuleConfigProto,
    is_scheduled: bool,
}

impl Parser<'_> {
    /// The whole text.
    pub(super) fn module(&mut self) -> Result<HloModuleProtoWithConfig> {
        let mut header = Header {
            module: HloModuleProto::default(),
            config: HloModuleConfigProto { replica_count: 1, num_partitions: 1, ..Default::default() },
            is_scheduled: false,
        };
        if self.lexer.eat_word("HloModule") {
            header.module.name = self.lexer.name("the name of the module")?.to_string();
            // People write a colon; XLA takes it for a part of the name.
            self.lexer.eat(b':');
            self.header(&mut header)?;
        } else if !self.is_computation_next() {
            self.single_instruction(&mut header)?;
        }
        let mut entry = None;
        while !(self.lexer.is_at_end() || self.is_quoted && self.lexer.peek() == Some(b'"')) {
            let start = self.lexer.here();
            if self.lexer.eat_word("FileNames") {
                header.module.stack_frame_index = Some(self.stack_frame_index()?);
            } else if self.computation()? && entry.replace(self.computations.len() - 1).is_some() {
                return fault(start, "there are two ENTRY computations");
            }
        }
        if self.computations.is_empty() {
            return self.lexer.unexpected("a computation");
        }
        self.finish(header, entry)
    }

    /// Whether a computation starts here, and not an instruction that stands alone.
    fn is_computation_next(&mut self) -> bool {
        let mut ahead = self.lexer.clone();
        ahead.is_at_end()
            || ahead.eat_word("ENTRY")
            || ahead.name("").is_ok() && matches!(ahead.peek(), Some(b'(' | b'{')) && !self.is_shape_next()
    }

    /// One instruction, alone, with the shapes of its operands: they become the parameters of the entry.
    fn single_instruction(&mut self, header: &mut Header) -> Result<()> {
        let start = self.lexer.here();
        let mut ahead = self.lexer.clone();
        let has_name = ahead.name("").is_ok() && ahead.eat(b'=');
        if !has_name && !self.is_shape_next() {
            return self.lexer.unexpected("HloModule, ENTRY or the name of a computation");
        }
        let mut scope = self.open_scope(0);
        scope.is_single = true;
        if has_name {
            self.instruction(&mut scope)?;
        } else {
            self.right_hand_side(&mut scope, "_", true)?;
        }
        header.module.name = "_".to_string();
        header.is_scheduled = true;
        let root = scope.instructions.len() - 1;
        self.add_computation("_", scope.instructions, root, 0, start).map(|_| ())
    }

    fn header(&mut self, header: &mut Header) -> Result<()> {
        let mut seen: Vec<&str> = Vec::new();
        while self.lexer.eat(b',') {
            let start = self.lexer.here();
            let name = self.lexer.attribute_name()?;
            if seen.contains(&name) {
                return fault(start, format!("attribute {name} is here twice"));
            }
            seen.push(name);
            let Header { module, config, is_scheduled } = header;
            match name {
                "is_scheduled" => *is_scheduled = self.lexer.boolean()?,
                "replica_count" => config.replica_count = self.lexer.integer()?,
                "num_partitions" => {
                    config.num_partitions = self.lexer.integer()?;
                    config.use_spmd_partitioning = config.num_partitions != 1;
                }
                "input_output_alias" => {
                    module.input_output_alias = Some(HloInputOutputAliasProto { entries: Value::read(self)? })
                }
                "buffer_donor" => module.buffer_donor = Some(HloBufferDonorProto { entries: Value::read(self)? }),
                "alias_passthrough_params" => config.alias_passthrough_params = self.lexer.boolean()?,
                "entry_computation_layout" => {
                    self.lexer.expect(b'{', "before the layout of the entry")?;
                    config.entry_computation_layout = Some(self.program_shape()?);
                    self.lexer.expect(b'}', "after the layout of the entry")?;
                }
                "frontend_attributes" => module.frontend_attributes = Value::read(self)?,
                "allow_spmd_sharding_propagation_to_parameters" => {
                    config.allow_spmd_sharding_propagation_to_parameters = self.boolean_or_list()?;
                }
                "allow_spmd_sharding_propagation_to_output" => {
                    config.allow_spmd_sharding_propagation_to_output = self.boolean_or_list()?;
                }
                "debug_attributes" => module.debug_attributes = Value::read(self)?,
                "origin_recovery_table" => module.original_value_recovery_table = Some(self.recovery_table()?),
                other => self.pass_over(start, (ATTRIBUTE, "a module"), other, HEADER.split_ascii_whitespace())?,
            }
        }
        Ok(())
    }

    fn boolean_or_list(&mut self) -> Result<Vec<bool>> {
        if self.lexer.peek() == Some(b'{') { Value::read(self) } else { Ok(vec![self.lexer.boolean()?]) }
    }

    /// `{ {"old"} : {"new"}, "text of a module" ... }`: entries follow each other without a separator.
    fn recovery_table(&mut self) -> Result<OriginalValueRecoveryTableProto> {
        let mut entries = Vec::new();
        self.lexer.expect(b'{', "before a recovery table")?;
        while !self.lexer.eat(b'}') {
            let old_original_array = Some(Leaf::read(self)?.unwrap_or_default());
            self.lexer.expect(b':', "between the arrays of a recovery table")?;
            let new_original_array = Some(Leaf::read(self)?.unwrap_or_default());
            let recovery_module = if self.lexer.eat(b',') { self.nested(Self::recovery_module)? } else { None };
            entries.push(Entry { old_original_array, new_original_array, recovery_module });
        }
        Ok(OriginalValueRecoveryTableProto { entries })
    }

    /// A module between quotes. XLA prints its text unescaped, starting on a line of its own, so strings in it end at
    /// their own quotes. People write it as a string with escapes.
    fn recovery_module(&mut self) -> Result<Option<HloModuleProto>> {
        let start = self.lexer.here();
        if self.lexer.starts_with("\"\n") {
            self.lexer.eat(b'"');
            let mut inner = Parser::new(self.lexer.clone(), self.limits, self.depth);
            inner.is_quoted = true;
            inner.memory = self.memory.clone();
            inner.passed_over = std::mem::take(&mut self.passed_over);
            let module = inner.module()?;
            (self.memory, self.passed_over) = (inner.memory, inner.passed_over);
            self.lexer = inner.lexer;
            self.lexer.expect(b'"', "after the text of a module")?;
            return Ok(module.hlo_module);
        }
        let text = self.lexer.string()?;
        let mut inner = Parser::new(Lexer::new(&text), self.limits, self.depth);
        inner.memory = self.memory.clone();
        inner.passed_over = std::mem::take(&mut self.passed_over);
        match inner.module() {
            Ok(module) => {
                (self.memory, self.passed_over) = (inner.memory, inner.passed_over);
                Ok(module.hlo_module)
            }
            Err(inner) => fault(start, format!("in the module in this string: {}", inner.message)),
        }
    }

    /// The four tables, from after the title of the first.
    fn stack_frame_index(&mut self) -> Result<StackFrameIndexProto> {
        let file_names = self.entries()?;
        self.expect_title("FunctionNames")?;
        let function_names = self.entries()?;
        self.expect_title("FileLocations")?;
        let file_locations = self.entries()?;
        self.expect_title("StackFrames")?;
        Ok(StackFrameIndexProto { file_names, function_names, file_locations, stack_frames: self.entries()? })
    }

    fn expect_title(&mut self, title: &str) -> Result<()> {
        if self.lexer.eat_word(title) { Ok(()) } else { self.lexer.unexpected(title) }
    }

    /// The entries of a table, each after its number.
    fn entries<T: Value>(&mut self) -> Result<Vec<T>> {
        let mut entries = Vec::new();
        while matches!(self.lexer.peek(), Some(b'0'..=b'9')) {
            self.lexer.integer()?;
            entries.push(T::read(self)?);
        }
        Ok(entries)
    }

    /// Sets the fields that the text only implies.
    fn finish(&mut self, header: Header, entry: Option<usize>) -> Result<HloModuleProtoWithConfig> {
        let Header { mut module, mut config, is_scheduled } = header;
        module.computations = std::mem::take(&mut self.computations);
        if !self.unnamed.is_empty() {
            let names = module.computations.iter_mut().map(|computation| &mut computation.name);
            name_apart(names.collect(), &self.unnamed);
        }
        order::keep_order(&mut module.computations, &self.is_hidden);
        // Without a mark the last computation is the entry.
        let is_marked = entry.is_some();
        let entry = entry.unwrap_or(module.computations.len() - 1);
        let computation = &module.computations[entry];
        if let (false, Some(stated), Some(actual)) =
            (is_marked, &config.entry_computation_layout, &computation.program_shape)
            && !is_same_program(stated, actual)
        {
            let what =
                "no computation is marked ENTRY, and the last one has other shapes than entry_computation_layout";
            return fault(self.lexer.here(), what);
        }
        module.entry_computation_id = computation.id;
        module.entry_computation_name = computation.name.clone();
        if module.name.is_empty() {
            module.name = format!("module_{}", computation.name);
        }
        let layout = config.entry_computation_layout.get_or_insert_with(|| {
            let mut shape = computation.program_shape.clone().unwrap_or_default();
            shape.parameter_names = Vec::new();
            shape
        });
        let mut host_program_shape = layout.clone();
        host_program_shape.parameter_names =
            (0..host_program_shape.parameters.len()).map(|number| format!("p{number}")).collect();
        module.host_program_shape = Some(host_program_shape);
        if is_scheduled {
            let scheduled = module.computations.iter().filter(|computation| !computation.is_fusion_computation);
            let sequences: BTreeMap<i64, InstructionSequence> = scheduled
                .map(|computation| {
                    let instruction_ids = computation.instructions.iter().map(|instruction| instruction.id).collect();
                    (computation.id, InstructionSequence { instruction_ids })
                })
                .collect();
            module.schedule = Some(HloScheduleProto { sequences });
        }
        Ok(HloModuleProtoWithConfig { hlo_module: Some(module), config: Some(config) })
    }
}
