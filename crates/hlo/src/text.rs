//! The HLO text form of a module, as XLA prints it and as XLA's parser reads it.
//!
//! [`TextOptions::parseable`] gives what XLA's own printer gives (byte for byte, for modules that XLA made):
//! everything, to be read back. [`TextOptions::canonical`] is for people and snapshots: the same syntax with less in
//! it, and with names that do not change when an unrelated part of the program does.
//!
//! Printing never fails. Defects of a malformed module show in the text: an id that names nothing prints as
//! `%MISSING_42`, and a literal that does not match its shape as `{...}`. XLA's parser rejects the former.

mod instruction;
mod literal;
mod shape;

use std::collections::BTreeMap;
use std::fmt::Write;

use rustc_hash::{FxHashMap, FxHashSet};

use super::braces::braced_length;
use super::proto::payload::PayloadSource;
use super::proto::{
    HloComputationProto, HloInstructionProto, HloModuleConfigProto, HloModuleProto, HloModuleProtoWithConfig,
    OpSharding, OriginalArrayProto, OriginalValueRecoveryTableProto, Payload, ProgramShapeProto, ShapeProto,
};
use super::sort;
use super::syntax::metadata::Leaf;
use super::syntax::ranges::Thread;
use super::syntax::{Kind, List, Value, emit};

/// The layouts to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layouts {
    /// Every layout that the module has.
    All,
    /// Only the layouts that are not plain row-major.
    NonDefault,
    /// No layout.
    None,
}

/// The names of instructions and computations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// The names of the module.
    Stored,
    /// The stored name without its number, and a number of our own where a name repeats: instructions are counted
    /// in their computation, computations in the module. An edit of one computation leaves the names in the others.
    Renumbered,
}

/// The choice of what to print. Start from [`TextOptions::parseable`] or [`TextOptions::canonical`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// Layouts of instruction shapes; those of the entry computation's signature are in the module header.
    pub layouts: Layouts,
    /// Instruction and computation names.
    pub names: Names,
    /// Operation metadata, original values, metadata of shardings, and the stack frame tables.
    pub metadata: bool,
    /// Constants with more elements print as `{...}`; the parser then reads some other value.
    pub constant_limit: Option<usize>,
    /// Configurations of backends, as chosen by a compiler.
    pub backend_config: bool,
    /// The shape before each operand name.
    pub operand_shapes: bool,
    /// `/*index=5*/` before every fifth element of a list.
    pub index_comments: bool,
    /// The parameters and result of each computation after its name.
    pub signatures: bool,
    /// Asynchronous operations whose computation is one instruction print as that instruction with `-start`, `-update`
    /// and `-done`, and the computation does not print.
    pub async_sugar: bool,
}

impl TextOptions {
    /// Everything, in the way of XLA's printer: the same as `HloPrintOptions()` with `print_large_constants`.
    pub fn parseable() -> Self {
        TextOptions {
            layouts: Layouts::All,
            names: Names::Stored,
            metadata: true,
            constant_limit: None,
            backend_config: true,
            operand_shapes: false,
            index_comments: true,
            signatures: true,
            async_sugar: true,
        }
    }

    /// For reading and snapshots: default layouts, metadata and constants of more than 16 elements left out, names
    /// renumbered. Still syntax that XLA's parser accepts.
    pub fn canonical() -> Self {
        TextOptions {
            layouts: Layouts::NonDefault,
            names: Names::Renumbered,
            metadata: false,
            constant_limit: Some(16),
            index_comments: false,
            ..TextOptions::parseable()
        }
    }

    /// Sets `metadata`.
    pub fn with_metadata(mut self, metadata: bool) -> Self {
        self.metadata = metadata;
        self
    }
}

/// The text of a module.
pub fn print(module: &HloModuleProto, options: &TextOptions) -> String {
    print_module(module, None, options)
}

/// The text of a module with what its configuration adds to the header: replica and partition counts, the entry
/// layout, sharding propagation.
pub fn print_with_config(module: &HloModuleProtoWithConfig, options: &TextOptions) -> String {
    match &module.hlo_module {
        Some(hlo_module) => print_module(hlo_module, module.config.as_ref(), options),
        None => String::new(),
    }
}

/// The text of a shape: `f32[8,16]{1,0}`.
pub fn print_shape(shape: &ShapeProto, layouts: Layouts) -> String {
    print_part(|printer| printer.shape_with(shape, layouts))
}

/// The text of a sharding: `{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}`.
pub fn print_sharding(sharding: &OpSharding) -> String {
    print_part(|printer| sharding.print(printer))
}

/// The text of something that is no module.
fn print_part(print: impl FnOnce(&mut Printer<'_>)) -> String {
    let options = TextOptions { index_comments: false, metadata: false, ..TextOptions::parseable() };
    let module = HloModuleProto::default();
    let index = Index::of(&module, &options);
    let mut printer = Printer { out: String::new(), options: &options, module: index, names: FxHashMap::default() };
    print(&mut printer);
    printer.out
}

fn print_module(module: &HloModuleProto, config: Option<&HloModuleConfigProto>, options: &TextOptions) -> String {
    let instruction_count: usize = module.computations.iter().map(|computation| computation.instructions.len()).sum();
    let mut printer = Printer {
        // A line of optimized HLO with metadata has some 150 bytes.
        out: String::with_capacity(256 + 160 * instruction_count),
        options,
        module: Index::of(module, options),
        names: FxHashMap::default(),
    };
    printer.header(module, config);
    printer.text("\n\n");
    for computation in post_order(module, &printer.module) {
        if printer.options.async_sugar && printer.module.is_sugared(computation) {
            continue;
        }
        printer.computation(module, computation);
        printer.text("\n\n");
    }
    printer.out
}

/// Computations in XLA's order of printing: depth first from those that nothing calls, callees before callers, callees
/// of one computation by the ids of their callers. A cycle of calls, which no valid module has, comes last.
fn post_order<'a>(module: &'a HloModuleProto, index: &Index<'a>) -> Vec<&'a HloComputationProto> {
    let mut called = FxHashSet::default();
    let mut callees: FxHashMap<i64, Vec<&HloComputationProto>> = FxHashMap::default();
    for computation in &module.computations {
        let callers = computation.instructions.iter().filter(|caller| !caller.called_computation_ids.is_empty());
        let mut callers: Vec<_> = callers.collect();
        sort::by_key(&mut callers, |caller| caller.id);
        // Last first: they go onto a stack.
        let ids = callers.iter().rev().flat_map(|caller| caller.called_computation_ids.iter().rev());
        let list: Vec<_> = ids.filter_map(|id| index.computations.get(id).copied()).collect();
        called.extend(list.iter().map(|callee| callee.id));
        callees.insert(computation.id, list);
    }
    let mut order = Vec::with_capacity(module.computations.len());
    let mut entered = FxHashSet::default();
    let mut left = FxHashSet::default();
    let roots = module.computations.iter().filter(|computation| !called.contains(&computation.id));
    let mut stack: Vec<&HloComputationProto> = Vec::new();
    for root in roots.chain(&module.computations) {
        stack.push(root);
        while let Some(&computation) = stack.last() {
            if entered.insert(computation.id) {
                let next = callees.get(&computation.id).into_iter().flatten();
                stack.extend(next.filter(|callee| !entered.contains(&callee.id)));
                continue;
            }
            stack.pop();
            if left.insert(computation.id) {
                order.push(computation);
            }
        }
    }
    order
}

/// Facts of the whole module that are gathered before printing.
pub(crate) struct Index<'a> {
    computations: FxHashMap<i64, &'a HloComputationProto>,
    /// The names of computations, where they are not the stored ones.
    names: FxHashMap<i64, String>,
    /// Computations that an async-start wraps.
    wrapped: FxHashSet<i64>,
    /// The payloads, which the text names by their place.
    payloads: &'a [Vec<u8>],
}

impl<'a> Index<'a> {
    fn of(module: &'a HloModuleProto, options: &TextOptions) -> Self {
        let computations = module.computations.iter().map(|computation| (computation.id, computation)).collect();
        let mut names = FxHashMap::default();
        if options.names == Names::Renumbered {
            let mut counts = FxHashMap::default();
            for computation in &module.computations {
                names.insert(computation.id, renumbered(&computation.name, &mut counts));
            }
        }
        let mut wrapped = FxHashSet::default();
        for computation in &module.computations {
            for instruction in &computation.instructions {
                if instruction.opcode == "async-start" {
                    wrapped.extend(instruction.called_computation_ids.first());
                }
            }
        }
        Index { computations, names, wrapped, payloads: &module.payloads }
    }

    fn name_of(&'a self, computation: &'a HloComputationProto) -> &'a str {
        self.names.get(&computation.id).unwrap_or(&computation.name)
    }

    pub(crate) fn payload<'p>(&'p self, payload: &'p Payload) -> &'p [u8] {
        match &payload.payload_source {
            Some(PayloadSource::Value(value)) => value,
            Some(PayloadSource::Id(id)) => {
                usize::try_from(*id).ok().and_then(|id| self.payloads.get(id)).map_or(&[], Vec::as_slice)
            }
            None => &[],
        }
    }

    /// Whether the computation is one that an async operation's short form stands for.
    fn is_sugared(&self, computation: &HloComputationProto) -> bool {
        self.wrapped.contains(&computation.id) && is_one_instruction(computation)
    }
}

/// Whether the computation is its root and parameters only.
fn is_one_instruction(computation: &HloComputationProto) -> bool {
    let root = computation.root_id;
    computation.instructions.iter().any(|instruction| instruction.id == root)
        && computation
            .instructions
            .iter()
            .all(|instruction| instruction.id == root || instruction.opcode == "parameter")
}

/// `name` without its trailing `.number`s, and with a number of our own from the second time on.
fn renumbered(name: &str, counts: &mut FxHashMap<String, u32>) -> String {
    let mut base = name;
    while let Some((rest, number)) = base.rsplit_once('.')
        && number.bytes().all(|byte| byte.is_ascii_digit())
    {
        base = rest;
    }
    let base = if base.is_empty() { "value" } else { base };
    match counts.get_mut(base) {
        None => {
            counts.insert(base.to_string(), 0);
            base.to_string()
        }
        Some(count) => {
            *count += 1;
            format!("{base}.{count}")
        }
    }
}

/// The text under construction.
pub(crate) struct Printer<'a> {
    pub(crate) out: String,
    pub(crate) options: &'a TextOptions,
    pub(crate) module: Index<'a>,
    /// Instructions of the computation being printed, by id.
    names: FxHashMap<i64, Named<'a>>,
}

/// An instruction and its name.
struct Named<'a> {
    instruction: &'a HloInstructionProto,
    /// The name, or `None` for the stored one.
    name: Option<String>,
}

impl<'a> Printer<'a> {
    pub(crate) fn text(&mut self, text: &str) {
        self.out.push_str(text);
    }

    pub(crate) fn number(&mut self, value: i64) {
        // Most numbers are dimensions and ids below ten.
        if (0..10).contains(&value) {
            self.out.push(char::from(b'0' + value as u8));
        } else {
            let _ = write!(self.out, "{value}");
        }
    }

    pub(crate) fn unsigned(&mut self, value: u64) {
        let _ = write!(self.out, "{value}");
    }

    /// Prints the separator before element `index` of a list whose elements people count.
    pub(crate) fn separator(&mut self, index: usize) {
        if index > 0 {
            self.text(", ");
            if self.options.index_comments && index.is_multiple_of(5) {
                self.text("/*index=");
                self.number(index as i64);
                self.text("*/");
            }
        }
    }

    /// Appends `text` between quotes, escaped as in C.
    pub(crate) fn quoted(&mut self, text: &[u8]) {
        self.text("\"");
        for &byte in text {
            match byte {
                b'\n' => self.text("\\n"),
                b'\r' => self.text("\\r"),
                b'\t' => self.text("\\t"),
                b'"' => self.text("\\\""),
                b'\'' => self.text("\\'"),
                b'\\' => self.text("\\\\"),
                b' '..=b'~' => self.out.push(char::from(byte)),
                _ => {
                    let _ = write!(self.out, "\\{byte:03o}");
                }
            }
        }
        self.text("\"");
    }

    /// Appends a JSON object as it is, anything else quoted: the parser takes both.
    pub(crate) fn json_or_quoted(&mut self, text: &[u8]) {
        match std::str::from_utf8(text) {
            Ok(json) if braced_length(text) == Some(text.len()) => self.text(json),
            _ => self.quoted(text),
        }
    }

    pub(crate) fn shape_index(&mut self, index: &[i64]) {
        emit!(self, "{", &List(index), "}");
    }

    pub(crate) fn computation_name(&mut self, id: i64) {
        match self.module.computations.get(&id) {
            Some(computation) => {
                self.out.push('%');
                let name = self.module.name_of(computation);
                self.out.push_str(name);
            }
            None => {
                let _ = write!(self.out, "%MISSING_{id}");
            }
        }
    }

    pub(crate) fn instruction_name(&mut self, id: i64) {
        match self.names.get(&id) {
            Some(named) => {
                self.out.push('%');
                self.out.push_str(named.name.as_deref().unwrap_or(&named.instruction.name));
            }
            None => {
                let _ = write!(self.out, "%MISSING_{id}");
            }
        }
    }

    fn header(&mut self, module: &HloModuleProto, config: Option<&HloModuleConfigProto>) {
        self.text("HloModule ");
        self.text(&module.name);
        if module.schedule.is_some() {
            self.text(", is_scheduled=true");
        }
        self.aliases(module);
        if config.is_some_and(|config| config.alias_passthrough_params) {
            self.text(", alias_passthrough_params=true");
        }
        let layout =
            config.and_then(|config| config.entry_computation_layout.as_ref()).or(module.host_program_shape.as_ref());
        if let Some(layout) = layout {
            self.text(", entry_computation_layout={");
            self.program_shape(layout);
            self.text("}");
        }
        if let Some(config) = config {
            self.propagation("parameters", &config.allow_spmd_sharding_propagation_to_parameters);
            self.propagation("output", &config.allow_spmd_sharding_propagation_to_output);
            self.count("replica_count", config.replica_count);
            self.count("num_partitions", config.num_partitions);
        }
        if !module.frontend_attributes.is_omitted(true) {
            emit!(self, ", frontend_attributes=", &module.frontend_attributes);
        }
        if self.options.metadata {
            if let Some(table) = module.original_value_recovery_table.as_ref().filter(|table| !table.entries.is_empty())
            {
                self.recovery_table(table);
            }
            self.debug_attributes(module);
            self.stack_frames(module);
        }
    }

    /// Where arrays that were optimized away can be had from, one a line. The modules that compute them stand between
    /// quotes, indented.
    fn recovery_table(&mut self, table: &OriginalValueRecoveryTableProto) {
        let nameless = Some(OriginalArrayProto::default());
        self.text(", origin_recovery_table={\n");
        for entry in &table.entries {
            self.text("  ");
            // Here an array without a name has an empty one.
            for (array, after) in [(&entry.old_original_array, " : "), (&entry.new_original_array, "")] {
                Leaf::print(if array.is_some() { array } else { &nameless }, self);
                self.text(after);
            }
            if let Some(module) = &entry.recovery_module {
                self.text(",\n  \"\n");
                for line in print(module, self.options).lines() {
                    self.text(if line.is_empty() { "" } else { "    " });
                    self.text(line);
                    self.text("\n");
                }
                self.text("\n  \"");
            }
            self.text("\n");
        }
        self.text("}\n");
    }

    /// The arrays that are logged, one a line.
    fn debug_attributes(&mut self, module: &HloModuleProto) {
        let entries = || module.debug_attributes.iter().filter(|entry| !entry.debug_attributes.is_empty());
        if entries().next().is_some() {
            self.text(",\ndebug_attributes={\n  ");
            self.separated(entries(), ",\n  ", |printer, entry| entry.print(printer));
            self.text("\n}");
        }
    }

    fn count(&mut self, name: &str, count: i64) {
        // Unset means 1.
        if !matches!(count, 0 | 1) {
            emit!(self, ", ", name, "=", &count);
        }
    }

    fn propagation(&mut self, what: &str, allowed: &Vec<bool>) {
        if !allowed.is_empty() && allowed != &[false] {
            emit!(self, ", allow_spmd_sharding_propagation_to_", what, "=", allowed);
        }
    }

    fn aliases(&mut self, module: &HloModuleProto) {
        if let Some(aliases) = module.input_output_alias.as_ref().filter(|aliases| !aliases.entries.is_empty()) {
            // XLA keeps them in a tree over the result's shape and prints that in order.
            let mut entries = aliases.entries.clone();
            sort::by(&mut entries, |a, b| a.output_shape_index.cmp(&b.output_shape_index));
            emit!(self, ", input_output_alias={ ", &List(&entries), " }");
        }
        if let Some(donors) = module.buffer_donor.as_ref().filter(|donors| !donors.entries.is_empty()) {
            let mut entries = donors.entries.clone();
            sort::by(&mut entries, |a, b| {
                (a.parameter_number, &a.parameter_shape_index).cmp(&(b.parameter_number, &b.parameter_shape_index))
            });
            emit!(self, ", buffer_donor={ ", &List(&entries), " }");
        }
    }

    fn program_shape(&mut self, shape: &ProgramShapeProto) {
        self.text("(");
        for (index, parameter) in shape.parameters.iter().enumerate() {
            self.separator(index);
            self.shape(parameter);
        }
        self.text(")->");
        self.optional_shape(shape.result.as_ref(), self.options.layouts);
    }

    fn stack_frames(&mut self, module: &HloModuleProto) {
        let Some(index) = module.stack_frame_index.as_ref() else { return };
        if index.stack_frames.is_empty() && index.file_locations.is_empty() && index.file_names.is_empty() {
            return;
        }
        self.table("\n\nFileNames\n", &index.file_names);
        self.table("\nFunctionNames\n", &index.function_names);
        self.table("\nFileLocations\n", &index.file_locations);
        self.table("\nStackFrames\n", &index.stack_frames);
    }

    /// Numbered entries, one a line.
    fn table<T: Value>(&mut self, title: &str, entries: &[T]) {
        self.text(title);
        for (number, entry) in (1i64..).zip(entries) {
            emit!(self, &number, " ", entry, "\n");
        }
    }

    fn computation(&mut self, module: &'a HloModuleProto, computation: &'a HloComputationProto) {
        self.name_instructions(computation);
        if computation.id == module.entry_computation_id {
            self.text("ENTRY ");
        }
        self.computation_name(computation.id);
        self.text(" ");
        if self.options.signatures {
            self.signature(computation);
            self.text(" ");
        }
        self.text("{\n");
        let scheduled = module.schedule.as_ref().and_then(|schedule| schedule.sequences.get(&computation.id));
        let instructions: Vec<&HloInstructionProto> = match scheduled {
            Some(sequence) => {
                let named = |id| self.names.get(id).map(|named| named.instruction);
                sequence.instruction_ids.iter().filter_map(named).collect()
            }
            None => computation.instructions.iter().collect(),
        };
        for instruction in instructions {
            self.line(computation, instruction);
        }
        self.text("}");
        if !Thread::is_omitted(&computation.execution_thread, true) {
            emit!(self, ", execution_thread=", &computation.execution_thread);
        }
    }

    fn name_instructions(&mut self, computation: &'a HloComputationProto) {
        self.names.clear();
        self.names.reserve(computation.instructions.len());
        let mut counts = FxHashMap::default();
        for instruction in &computation.instructions {
            let name = match self.options.names {
                Names::Stored => None,
                Names::Renumbered => Some(renumbered(&instruction.name, &mut counts)),
            };
            self.names.insert(instruction.id, Named { instruction, name });
        }
    }

    /// `(x: f32[2], y: s32[]) -> f32[2]`.
    fn signature(&mut self, computation: &'a HloComputationProto) {
        let mut parameters: BTreeMap<i64, &HloInstructionProto> = BTreeMap::new();
        let mut root = None;
        for instruction in &computation.instructions {
            if instruction.opcode == "parameter" {
                parameters.insert(instruction.parameter_number, instruction);
            }
            if instruction.id == computation.root_id {
                root = Some(instruction);
            }
        }
        self.text("(");
        self.separated(parameters.into_values(), ", ", |printer, instruction| {
            let start = printer.out.len();
            printer.instruction_name(instruction.id);
            // Here alone names come without their sign.
            printer.out.remove(start);
            printer.text(": ");
            printer.optional_shape(instruction.shape.as_ref(), Layouts::None);
        });
        self.text(") -> ");
        self.optional_shape(root.and_then(|root| root.shape.as_ref()), Layouts::None);
    }

    fn line(&mut self, computation: &HloComputationProto, instruction: &'a HloInstructionProto) {
        self.text("  ");
        if instruction.id == computation.root_id {
            self.text("ROOT ");
        }
        self.instruction(instruction);
        self.text("\n");
    }
}
