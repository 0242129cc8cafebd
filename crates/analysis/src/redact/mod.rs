//! Takes names out of modules and profiles, for people whose models are secret.
//!
//! Each word that no compiler writes by itself gets a pseudonym, the same one everywhere: so instructions still belong
//! to their profile, scopes keep their nesting, and the layers of a stack, which differ by a number behind their name,
//! still look alike. Shapes, element types, opcodes, shardings, the names of mesh axes, numbers and the wiring stay,
//! and with them every figure of an analysis.
//!
//! A pseudonym is a number in the order in which names are met, and says nothing of the name; or it is a digest of the
//! name and of a key, and so the same in every program and at every time.

mod words;

use meshloom_hlo::CollectiveConfig;
use meshloom_hlo::proto::{
    BufferAssignmentProto, FrontendAttributes, HloComputationProto, HloInstructionProto, HloModuleConfigProto,
    HloModuleProto, OpMetadata, OpSharding, ProgramShapeProto, StackFrameIndexProto,
};
use meshloom_hlo::xplane::{StatValue, XPlane, XSpace};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::axes::mesh_of;
use super::custom_collectives;
use super::memory::OutOfMemory;

/// The pseudonyms of names.
#[derive(Clone, Debug, Default)]
pub struct Redaction {
    /// The digest of the user's key.
    key: Option<[u8; 32]>,
    pseudonyms: FxHashMap<String, String>,
    /// The names of mesh axes, which stay in shardings.
    axes: FxHashSet<String>,
}

impl Redaction {
    /// Makes pseudonyms by number or, with a key, by digest.
    pub fn new(key: Option<&str>) -> Redaction {
        Redaction { key: key.map(|key| Sha256::digest(key).into()), ..Redaction::default() }
    }

    /// Returns a text with pseudonyms in place of names. Punctuation stays, and so do words of compilers, and the
    /// number at the end of a name.
    pub fn text(&mut self, text: &str) -> String {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || !letter.is_ascii();
        let mut redacted = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find(is_letter) {
            let (before, from) = rest.split_at(start);
            let (word, after) = from.split_at(from.find(|letter| !is_letter(letter)).unwrap_or(from.len()));
            redacted.push_str(before);
            self.push(word, &mut redacted);
            rest = after;
        }
        redacted.push_str(rest);
        redacted
    }

    fn push(&mut self, word: &str, redacted: &mut String) {
        // A hexadecimal number may be the bytes of a text.
        let is_bytes = word.starts_with("0x") || word.starts_with("0X");
        if words::is_known(word) && !is_bytes {
            return redacted.push_str(word);
        }
        let name = if is_bytes { word } else { word.trim_end_matches(|letter: char| letter.is_ascii_digit()) };
        redacted.push_str(self.pseudonym(name));
        if name.len() < word.len() {
            redacted.push('_');
            redacted.push_str(&word[name.len()..]);
        }
    }

    fn pseudonym(&mut self, name: &str) -> &str {
        let (key, number) = (self.key, self.pseudonyms.len() + 1);
        self.pseudonyms.entry(name.to_owned()).or_insert_with(|| match key {
            None => format!("n{number}"),
            Some(key) => {
                // With so many bytes, no two of a million names are alike.
                format!("n{}", digits(&Sha256::new().chain_update(key).chain_update(name).finalize()[..8]))
            }
        })
    }

    fn replace(&mut self, text: &mut String) {
        if !text.is_empty() {
            *text = self.text(text);
        }
    }

    /// Takes the names out of a module.
    pub fn module(&mut self, module: &mut HloModuleProto) {
        self.note_axes(module);
        self.replace(&mut module.name);
        self.replace(&mut module.entry_computation_name);
        self.replace(&mut module.device_type);
        module.host_program_shape.iter_mut().for_each(|shape| self.program_shape(shape));
        module.frontend_attributes.iter_mut().for_each(|attributes| self.attributes(attributes));
        let shardings = module.spmd_output_sharding.iter_mut().chain(&mut module.spmd_parameters_shardings);
        shardings.for_each(sharding);
        // Nothing but debuggers reads these.
        module.payloads.clear();
        module.profile_info.clear();
        module.debug_attributes.clear();
        module.original_value_recovery_table = None;
        if let Some(StackFrameIndexProto { file_names, function_names, .. }) = &mut module.stack_frame_index {
            file_names.iter_mut().chain(function_names).for_each(|name| self.replace(name));
        }
        for HloComputationProto { name, instructions, program_shape, execution_thread, .. } in &mut module.computations
        {
            self.replace(name);
            self.replace(execution_thread);
            program_shape.iter_mut().for_each(|shape| self.program_shape(shape));
            instructions.iter_mut().for_each(|instruction| self.instruction(instruction));
        }
    }

    /// Notes the names of mesh axes that a module states.
    fn note_axes(&mut self, module: &HloModuleProto) {
        let stated = module.frontend_attributes.iter().filter_map(|attributes| attributes.map.get("xla.sdy.meshes"));
        // The names of axes are what is quoted: `{mesh = #sdy.mesh<["data"=2, "fsdp"=4]>}`.
        let quoted = stated.flat_map(|text| text.split('"').skip(1).step_by(2));
        self.axes.extend(quoted.map(|name| name.trim_end_matches('\\').to_owned()));
        let mesh = mesh_of(module);
        self.axes.extend(mesh.iter().flat_map(|mesh| mesh.axes().map(|axis| mesh.name(axis).to_owned())));
    }

    fn instruction(&mut self, instruction: &mut HloInstructionProto) {
        self.backend_config(instruction);
        self.replace(&mut instruction.name);
        self.replace(&mut instruction.opcode);
        self.replace(&mut instruction.fusion_kind);
        self.replace(&mut instruction.comparison_direction);
        instruction.metadata.iter_mut().for_each(|metadata| self.metadata(metadata));
        instruction.sharding.iter_mut().for_each(|it| sharding(it));
        instruction.frontend_attributes.iter_mut().for_each(|attributes| self.attributes(attributes));
        instruction.statistics_viz = None;
        instruction.original_value = None;
        if instruction.details.is_none() {
            return;
        }
        instruction.custom_call_target = self.target(&instruction.custom_call_target);
        self.replace(&mut instruction.comparison_type);
        self.replace(&mut instruction.comparison_order);
        self.replace(&mut instruction.async_execution_thread);
        instruction.outfeed_config.clear();
        instruction.infeed_config.clear();
        instruction.backend_config_payload = None;
        instruction.domain_entry_sharding.iter_mut().for_each(|it| sharding(it));
        instruction.domain_exit_sharding.iter_mut().for_each(|it| sharding(it));
    }

    fn metadata(&mut self, metadata: &mut OpMetadata) {
        let OpMetadata { op_type, op_name, source_file, deduplicated_name, scheduling_name, .. } = metadata;
        for name in [op_type, op_name, source_file, deduplicated_name, scheduling_name] {
            self.replace(name);
        }
        metadata.metadata_payload = None;
    }

    fn program_shape(&mut self, shape: &mut ProgramShapeProto) {
        shape.parameter_names.iter_mut().for_each(|name| self.replace(name));
    }

    fn target(&mut self, target: &str) -> String {
        let (known, rest) = words::target_parts(target, custom_collectives::SILENT);
        format!("{known}{}", self.text(rest))
    }

    fn attributes(&mut self, attributes: &mut FrontendAttributes) {
        let map = std::mem::take(&mut attributes.map);
        attributes.map = map
            .into_iter()
            .map(|(key, value)| match key.starts_with("xla.sdy.") {
                true => (self.text(&key), self.sharding_text(&value)),
                false => (self.text(&key), self.value(&value)),
            })
            .collect();
    }

    /// The text of a sharding, in which the names of mesh axes are quoted.
    fn sharding_text(&mut self, text: &str) -> String {
        let parts = text.split('"').enumerate().map(|(number, part)| {
            let is_axis = number % 2 == 1 && self.axes.contains(part.trim_end_matches('\\'));
            if is_axis { part.to_owned() } else { self.text(part) }
        });
        parts.collect::<Vec<_>>().join("\"")
    }

    fn backend_config(&mut self, instruction: &mut HloInstructionProto) {
        if instruction.backend_config.is_empty() {
            return;
        }
        let mut config = match std::str::from_utf8(&instruction.backend_config) {
            // The devices may be written by their bytes.
            Ok(text) if custom_collectives::is_collective(instruction) => {
                CollectiveConfig::read(text).map_or_else(String::new, |config| self.value(&config.json()))
            }
            Ok(text) => self.value(text),
            Err(_) => String::new(),
        };
        // A name may have one of the words by which a kernel communicates.
        for word in custom_collectives::words_said(instruction) {
            if !config.contains(word) {
                config.push(' ');
                config.push_str(word);
            }
        }
        instruction.backend_config = config.into_bytes();
    }

    /// A value of an attribute or of a configuration: JSON, or any text.
    fn value(&mut self, text: &str) -> String {
        match serde_json::from_str::<Value>(text) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => self.json(value).to_string(),
            _ => self.text(text),
        }
    }

    fn json(&mut self, value: Value) -> Value {
        /// Longer texts are programs, such as the body of a kernel.
        const LONGEST: usize = 256;
        match value {
            Value::String(text) if text.len() > LONGEST => Value::String(self.pseudonym(&text).to_owned()),
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(values) => values.into_iter().map(|value| self.json(value)).collect(),
            Value::Object(map) => map.into_iter().map(|(key, value)| (self.text(&key), self.json(value))).collect(),
            other => other,
        }
    }

    /// Takes the names out of compile settings.
    pub fn config(&mut self, config: &mut HloModuleConfigProto) {
        self.replace(&mut config.device_type);
        config.entry_computation_layout.iter_mut().for_each(|shape| self.program_shape(shape));
        // Nothing but compilers reads these.
        config.debug_options = None;
        config.sharding_config = None;
        config.schedule_config = None;
        config.dot_config.clear();
        config.analysis_allowance_map.clear();
        config.fdo_profile.clear();
    }

    /// Takes the names out of XLA's buffer assignment.
    pub fn buffers(&mut self, buffers: &mut BufferAssignmentProto) {
        let defined = buffers.logical_buffers.iter_mut().filter_map(|buffer| buffer.defined_at.as_mut());
        let aliased = buffers.buffer_aliases.iter_mut().filter_map(|alias| alias.location.as_mut());
        defined.chain(aliased).for_each(|location| self.replace(&mut location.instruction_name));
        for event in buffers.heap_simulator_traces.iter_mut().flat_map(|trace| &mut trace.events) {
            self.replace(&mut event.computation_name);
            self.replace(&mut event.instruction_name);
        }
    }

    /// Takes names out of a message that a program ran out of memory.
    pub fn message(&mut self, message: &mut OutOfMemory) {
        message.module = message.module.as_ref().map(|module| self.text(module));
        for value in &mut message.live {
            for name in [&mut value.name, &mut value.computation, &mut value.op_name] {
                *name = self.text(name);
            }
            value.source = value.source.as_ref().map(|source| self.text(source));
        }
    }

    /// Takes the names out of a profile, and its programs.
    pub fn profile(&mut self, profile: &mut XSpace) {
        profile.hostnames.clear();
        for XPlane { name, lines, event_metadata, stat_metadata, stats } in &mut profile.planes {
            self.replace(name);
            stat_metadata.values_mut().for_each(|metadata| self.replace(&mut metadata.name));
            let of_events = event_metadata.values_mut().map(|metadata| {
                self.replace(&mut metadata.name);
                self.replace(&mut metadata.display_name);
                &mut metadata.stats
            });
            let mut all: Vec<_> = of_events.collect();
            all.push(stats);
            for line in lines {
                self.replace(&mut line.name);
                all.extend(line.events.iter_mut().map(|event| &mut event.stats));
            }
            for stat in all.into_iter().flatten() {
                match &mut stat.value {
                    Some(StatValue::Text(text)) => self.replace(text),
                    Some(StatValue::Bytes(bytes)) => bytes.clear(),
                    _ => {}
                }
            }
        }
    }

    /// Says by which pseudonyms two texts can be compared: those of a key agree everywhere.
    pub fn kind(&self) -> String {
        match self.key {
            None => "by number".to_owned(),
            Some(key) => format!("by key {}", digits(&Sha256::digest(key)[..4])),
        }
    }
}

/// Takes the names out of a sharding, but for those of mesh axes.
fn sharding(sharding: &mut OpSharding) {
    sharding.metadata.clear();
    sharding.named_sharding.iter_mut().for_each(|named| named.metadata.clear());
    sharding.tuple_shardings.iter_mut().for_each(self::sharding);
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
