//! From ops to HLO.

mod asynchronous;
mod body;
mod calls;
mod choice;
mod collectives;
mod dimensions;
mod elementwise;
mod entry;
mod meshes;
mod regions;
mod shardy;
mod transfers;
mod windows;

use std::borrow::Cow;

use body::{Body, Site, Sites};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

use super::super::names;
use super::attribute::{Attribute, Attributes, Value};
use super::location::Frames;
use super::operation::{Operation, Region, of_other_dialect};
use super::parser::Parser;
use crate::parse::{Result, fault, make_names_unique, tuple};
use crate::proto::{
    FrontendAttributes, HloComputationProto, HloInstructionProto, HloModuleProtoWithConfig, ProgramShapeProto,
    ShapeProto,
};
use crate::sort;
use crate::suggest::did_you_mean;
use meshes::Meshes;
pub use meshes::{ShardyText, ShardyValue};

/// How ops of one name become instructions: the places of what they give.
type Rule = fn(&mut Conversion<'_, '_, '_>) -> Result<Sites>;

/// An op that becomes instructions of a computation.
struct Conversion<'r, 'a, 'o> {
    converter: &'r mut Converter<'a, 'o>,
    body: &'r mut Body<'a>,
    operation: &'r Operation<'a>,
}

impl Conversion<'_, '_, '_> {
    /// The computations of the functions in `called_computations = [@f]`.
    fn called_computations(&self) -> Result<Vec<i64>> {
        const NAME: &str = "called_computations";
        let Some(attribute) = self.operation.attributes.get(NAME) else { return Ok(Vec::new()) };
        attribute.list(NAME)?.iter().map(|item| self.converter.called(self.operation, item.symbol(NAME)?)).collect()
    }

    fn operands(&self) -> Result<Sites> {
        self.body.operands(self.operation)
    }

    /// The only operand.
    fn operand(&self) -> Result<Site> {
        match self.operands()?.as_slice() {
            &[operand] => Ok(operand),
            _ => self.operation.fault("expected one operand"),
        }
    }

    /// Adds an instruction with these operands and the only result of the op.
    fn over(&mut self, opcode: &str, operands: &[Site], set: impl FnOnce(&mut HloInstructionProto)) -> Result<Sites> {
        let mut instruction = self.body.instruction(opcode, self.operation.result_type()?.clone(), operands);
        set(&mut instruction);
        Ok(smallvec![self.body.push(instruction)])
    }

    /// Adds an instruction with the operands of the op and its only result.
    fn single(&mut self, opcode: &str, set: impl FnOnce(&mut HloInstructionProto)) -> Result<Sites> {
        self.over(opcode, &self.operands()?, set)
    }

    /// Adds an instruction with all operands and results of the op, which calls computations.
    fn calling(&mut self, opcode: &str, called: Vec<i64>, set: impl FnOnce(&mut HloInstructionProto)) -> Result<Sites> {
        let shapes = self.operation.result_shapes()?;
        let count = shapes.len();
        let mut instruction = self.body.instruction(opcode, one_or_tuple(shapes), &self.operands()?);
        instruction.called_computation_ids = called;
        set(&mut instruction);
        let place = self.body.push(instruction);
        Ok(self.body.results(place, count))
    }

    /// The computation of a region whose arguments are its parameters, such as that of a reduction: its id.
    fn applied(&mut self, region: usize, name: &str) -> Result<i64> {
        self.converter.applied(self.body, self.operation, region, name)
    }
}

/// The shape of one value, or of a tuple of several.
fn one_or_tuple(mut shapes: Vec<ShapeProto>) -> ShapeProto {
    match (shapes.len(), shapes.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            shapes.extend(last);
            tuple(shapes)
        }
    }
}

/// The ops that are more than an opcode and operands, each with its rule.
const RULES: [&[(&str, Rule)]; 9] = [
    elementwise::RULES,
    dimensions::RULES,
    windows::RULES,
    regions::RULES,
    calls::RULES,
    collectives::RULES,
    transfers::RULES,
    asynchronous::RULES,
    shardy::RULES,
];

struct Converter<'a, 'o> {
    parser: Parser<'a>,
    frames: Frames<'o>,
    rules: FxHashMap<&'static str, Rule>,
    computations: Vec<HloComputationProto>,
    /// The names of computations that are taken, and how many were made of each.
    names: FxHashSet<String>,
    numbers: FxHashMap<String, usize>,
    /// The computation of each function that is converted.
    functions: FxHashMap<&'o str, usize>,
    /// The name of each function's computation.
    function_names: FxHashMap<&'o str, String>,
    meshes: Meshes,
    /// The mesh axes that are manual where the conversion is.
    manual: Vec<String>,
}

/// Makes a module of the ops of a text. `function` names the one that is the program, where there are several.
pub(super) fn module<'a>(
    mut parser: Parser<'a>,
    operations: &[Operation<'a>],
    function: Option<&str>,
) -> Result<HloModuleProtoWithConfig> {
    let locations = std::mem::take(&mut parser.locations);
    let converter = Converter {
        frames: Frames::of(&locations, parser.size),
        parser,
        rules: RULES.iter().copied().flatten().copied().collect(),
        computations: Vec::new(),
        names: FxHashSet::default(),
        numbers: FxHashMap::default(),
        functions: FxHashMap::default(),
        function_names: FxHashMap::default(),
        meshes: Meshes::default(),
        manual: Vec::new(),
    };
    converter.module(operations, function)
}

impl<'a, 'o> Converter<'a, 'o> {
    fn module(mut self, operations: &'o [Operation<'a>], function: Option<&str>) -> Result<HloModuleProtoWithConfig> {
        let none = Attributes::default();
        let chosen = choice::choose(operations, function)?;
        let (entry, inner) = (chosen.entry, chosen.scope.operations);
        let attributes = chosen.scope.attributes.unwrap_or(&none);
        let mut functions: FxHashMap<&'o str, &'o Operation<'a>> = FxHashMap::default();
        for operation in inner.iter().filter(|operation| choice::is_function(operation)) {
            // A parameter's shape stands in its instruction, and in the shapes of function and module.
            const COPIES: usize = 4;
            let arguments = operation.regions.iter().flat_map(|region| &region.arguments);
            for argument in arguments.flat_map(|argument| std::iter::repeat_n(argument, COPIES)) {
                self.parser.memory.take_shape(&argument.shape, operation.position)?;
            }
            functions.insert(operation.symbol(&["sym_name"])?, operation);
        }
        for mesh in inner.iter().chain(chosen.around).filter(|operation| operation.name == "sdy.mesh") {
            self.add_mesh(mesh)?;
        }
        // Functions keep their names; those of regions, which are made up, give way.
        for operation in inner.iter().filter(|operation| choice::is_function(operation)) {
            let symbol = operation.symbol(&["sym_name"])?;
            let name = self.unique(symbol);
            self.function_names.insert(symbol, name);
        }
        for name in entry::callees_first(entry, &functions)? {
            let Some(&function) = functions.get(name) else { continue };
            if !std::ptr::eq(function, entry) {
                let id = self.function(function)?;
                self.functions.insert(name, id);
            }
        }
        let mut found = self.entry(entry)?;
        let name = match attributes.get("sym_name") {
            Some(name) => symbol_text(name)?,
            None => entry.symbol(&["sym_name"])?.to_owned(),
        };
        let module = found.hlo_module.get_or_insert_default();
        module.name = identifier(&name);
        if let Some(stated) = attributes.get("mhlo.input_output_alias") {
            let entries = &mut module.input_output_alias.get_or_insert_default().entries;
            entries.extend(self.stated_aliases(stated)?);
            sort::by(entries, |one, other| one.output_shape_index.cmp(&other.output_shape_index));
        }
        module.computations = std::mem::take(&mut self.computations);
        if let Some(entry) = module.computations.last() {
            module.entry_computation_id = entry.id;
            module.entry_computation_name = entry.name.clone();
        }
        make_names_unique(module);
        let mut map = self.frontend_attributes(attributes)?;
        map.map.extend(self.meshes.attribute());
        map.map.extend(entry::layout_modes(entry)?);
        module.frontend_attributes = (!map.map.is_empty()).then_some(map);
        module.stack_frame_index = self.frames.finish();
        let shape = module.computations.last().and_then(|entry| entry.program_shape.clone());
        let mut layout = shape.unwrap_or_default();
        entry::set_layouts(entry, &mut layout)?;
        module.host_program_shape = Some(layout.clone());
        let config = found.config.get_or_insert_default();
        config.entry_computation_layout = Some(ProgramShapeProto { parameter_names: Vec::new(), ..layout });
        let count = |key: &str| attributes.get(key).map(|attribute| attribute.integer(key)).transpose();
        config.replica_count = count("mhlo.num_replicas")?.unwrap_or(1);
        config.num_partitions = count("mhlo.num_partitions")?.unwrap_or(1);
        config.use_spmd_partitioning = config.num_partitions != 1;
        Ok(found)
    }

    /// A function that is called: its id.
    fn function(&mut self, function: &Operation<'a>) -> Result<usize> {
        let mut body = Body::default();
        let region = function.region(0)?;
        for argument in &region.arguments {
            body.metadata = self.frames.metadata(argument.location);
            body.argument(argument);
        }
        let results = self.block(&mut body, region, function)?;
        let root = body.joined(&results);
        let name = self.function_name(function)?;
        Ok(self.add(body, name, root))
    }

    /// The name of a function's computation.
    fn function_name(&self, function: &Operation<'a>) -> Result<String> {
        let symbol = function.symbol(&["sym_name"])?;
        Ok(self.function_names.get(symbol).cloned().unwrap_or_else(|| identifier(symbol)))
    }

    /// Converts the ops of a block: the values that it returns.
    fn block(&mut self, body: &mut Body<'a>, region: &Region<'a>, around: &Operation<'a>) -> Result<Sites> {
        let Some((last, operations)) = region.operations.split_last().filter(|(last, _)| last.is_return()) else {
            return around.fault("expected a region that ends with a return");
        };
        for operation in operations {
            self.operation(body, operation)?;
        }
        body.begin(last, self.frames.metadata(last.location));
        body.check_types(last)?;
        body.operands(last)
    }

    fn operation(&mut self, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<()> {
        body.begin(operation, self.frames.metadata(operation.location));
        body.check_types(operation)?;
        let first = body.instructions.len();
        let name = operation.name.as_ref();
        let (opcode, rule) = (names::opcode(name), self.rules.get(name).copied());
        let mut conversion = Conversion { converter: self, body, operation };
        let places = match (opcode, rule) {
            (Some(opcode), _) => {
                let stated = operation.attributes.get("result_accuracy");
                let accuracy = stated.map(|stated| conversion.converter.accuracy(stated)).transpose()?.flatten();
                conversion.single(opcode, |instruction| {
                    if let Some(accuracy) = accuracy {
                        instruction.result_accuracy = Some(accuracy.into());
                    }
                })?
            }
            (None, Some(rule)) => rule(&mut conversion)?,
            (None, None) => match name.strip_prefix("chlo.broadcast_") {
                Some(op) => elementwise::broadcasting(&mut conversion, op)?,
                None => return self.unknown(operation),
            },
        };
        for instruction in body.instructions.iter().skip(first) {
            self.parser.memory.take(size_of::<HloInstructionProto>(), operation.position)?;
            if let Some(shape) = &instruction.shape {
                self.parser.memory.take_shape(shape, operation.position)?;
            }
        }
        body.check_from(first, operation)?;
        self.annotate(body, operation, first)?;
        body.bind(operation, &places)
    }

    fn unknown<T>(&self, operation: &Operation<'a>) -> Result<T> {
        let (name, written) = (operation.name.as_ref(), operation.written());
        if operation.is_return() {
            return operation.fault("it stands before the end of its region");
        }
        let is_dynamic = ["stablehlo.dynamic_", "stablehlo.real_dynamic_", "shape."];
        if is_dynamic.iter().any(|start| name.starts_with(start)) {
            return operation
                .fault("dynamic shapes have no HLO that can be analysed; lower with arguments of fixed shapes");
        }
        if name.contains("quantize") {
            return operation.fault("quantized types have no HLO; lower the model without quantization");
        }
        if let Some(message) = of_other_dialect(name) {
            return fault(operation.position, message);
        }
        let plain: Vec<String> = names::names().collect();
        let near = did_you_mean(name, plain.iter().map(String::as_str).chain(self.rules.keys().copied()));
        let near = if operation.is_older { near.replace("stablehlo.", "mhlo.") } else { near };
        fault(operation.position, format!("the op {written} is not read{near}"))
    }

    /// A name that no computation has.
    fn unique(&mut self, name: &str) -> String {
        let base = identifier(name);
        let mut unique = base.clone();
        let number = self.numbers.entry(base.clone()).or_default();
        while !self.names.insert(unique.clone()) {
            *number += 1;
            unique = format!("{base}.{number}");
        }
        unique
    }

    /// Adds a computation: its id.
    fn add(&mut self, body: Body<'a>, name: String, root: usize) -> usize {
        let id = self.computations.len();
        self.computations.push(body.finish(name, id, root));
        id
    }

    /// `mhlo.frontend_attributes = {key = "value"}`. A value that is no string is kept as its text.
    fn frontend_attributes(&self, attributes: &Attributes<'a>) -> Result<FrontendAttributes> {
        const NAME: &str = "mhlo.frontend_attributes";
        let Some(attribute) = attributes.get(NAME) else { return Ok(FrontendAttributes::default()) };
        let Value::Dictionary(entries) = &attribute.value else { return attribute.fault(NAME, "{key = \"value\"}") };
        let entry = |(key, value): &(Cow<'a, str>, Attribute<'a>)| (key.clone().into_owned(), self.text_of(value));
        Ok(FrontendAttributes { map: entries.0.iter().map(entry).collect() })
    }

    /// The content of a string, or the text of another attribute.
    fn text_of(&self, attribute: &Attribute<'a>) -> String {
        match &attribute.value {
            Value::String(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => self.parser.lexer.slice(attribute.span).to_owned(),
        }
    }

    /// All attributes of an op as text, `{a = 1 : i64, b = true}`; empty if it has none.
    fn text_of_attributes(&self, operation: &Operation<'a>) -> String {
        let text = |(name, value): &(Cow<'a, str>, Attribute<'a>)| match value.value {
            Value::Unit => name.clone().into_owned(),
            _ => format!("{name} = {}", self.parser.lexer.slice(value.span)),
        };
        let all: Vec<String> = operation.attributes.0.iter().map(text).collect();
        if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(", ")) }
    }

    /// Sets what any op may carry: its sharding, and attributes that are passed on as they are.
    fn annotate(&mut self, body: &mut Body<'a>, operation: &Operation<'a>, first: usize) -> Result<()> {
        let sharding = match (operation.attributes.get("mhlo.sharding"), operation.attributes.get("sdy.sharding")) {
            (Some(attribute), _) => Some((shardy::from_text(attribute)?, None)),
            (None, Some(attribute)) => {
                let (sharding, text) = self.meshes.per_value(&mut self.parser, attribute, &self.manual)?;
                Some((sharding, Some((shardy::SHARDING.to_owned(), text))))
            }
            (None, None) => None,
        };
        let mut map = self.frontend_attributes(&operation.attributes)?;
        if let Some(rule) = operation.attributes.get("sdy.sharding_rule") {
            map.map.insert("xla.sdy.sharding_rule".to_owned(), self.parser.lexer.slice(rule.span).to_owned());
        }
        if sharding.is_none() && map.map.is_empty() {
            return Ok(());
        }
        let instructions = body.instructions.get_mut(first..).unwrap_or_default();
        let Some(instruction) = instructions.iter_mut().rev().find(|it| it.opcode != "get-tuple-element") else {
            return Ok(());
        };
        if let Some((sharding, text)) = sharding {
            instruction.sharding = Some(sharding.into());
            map.map.extend(text);
        }
        if !map.map.is_empty() {
            instruction.frontend_attributes.get_or_insert_default().map.extend(map.map);
        }
        Ok(())
    }
}

/// The name that a symbol or, in the generic form, a string states.
fn symbol_text(attribute: &Attribute<'_>) -> Result<String> {
    match &attribute.value {
        Value::Symbol(name) => Ok(name.clone()),
        _ => attribute.string("sym_name"),
    }
}

/// A name as HLO has it: letters, digits and `_.-`, with a letter first.
fn identifier(name: &str) -> String {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-');
    let mut text: String = name.chars().map(|letter| if is_allowed(letter) { letter } else { '_' }).collect();
    if !text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_') {
        text.insert(0, '_');
    }
    text
}
