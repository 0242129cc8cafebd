//! The text under construction: values, ops, regions and functions.

use std::rc::Rc;

use prost::Message;
use rustc_hash::{FxHashMap, FxHashSet};

use super::attributes::{Attributes, dictionary, quoted, symbol};
use super::error::{Fault, Result, WriteError, malformed};
use super::types::{self, Type};
use super::{WriteOptions, location};
use crate::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto};
use crate::sort;
use crate::source::Sources;

/// Regions inside of regions, and function bodies that are written from within. Each level takes some of the stack.
const MAX_DEPTH: usize = 64;

/// The size that a module may take as text, as a multiple of its size as a proto, beside [`SMALL`].
const MAX_RATIO: usize = 64;

/// Bytes that any text may have.
const SMALL: usize = 64 << 20;

/// An array or a token.
#[derive(Clone)]
pub(super) struct Leaf {
    /// `%5`, `%5#1`, `%arg0`.
    pub(super) name: Rc<str>,
    pub(super) ty: Type,
    /// The text after the name of a small constant, to the end of the line.
    pub(super) constant: Option<Rc<str>>,
}

/// The arrays and tokens that an instruction returns, in order; the elements of a tuple follow one another.
pub(super) type Value = Vec<Leaf>;

/// The values that stand for the parameters of a computation in a region.
pub(super) enum Parameters {
    /// Arguments of the region, of the types of the parameters.
    Arguments,
    /// Values from outside.
    Values(Vec<Value>),
}

/// A computation as a region of an op.
pub(super) struct Region {
    pub(super) computation: i64,
    pub(super) parameters: Parameters,
}

/// A computation in the course of being written.
pub(super) struct Scope<'a> {
    instructions: FxHashMap<i64, &'a HloInstructionProto>,
    values: FxHashMap<i64, Value>,
    /// Stands for the first array of the first operand of the instruction that is being written.
    first: Option<Leaf>,
}

/// One op: the text before and after its regions.
pub(super) struct Op<'o> {
    pub(super) name: &'o str,
    pub(super) operands: &'o [Leaf],
    pub(super) attributes: Attributes,
    pub(super) regions: Vec<Region>,
    pub(super) results: &'o [Type],
    /// Whether it may be written short, as an op with one type for all operands and results.
    is_elementwise: bool,
}

impl<'o> Op<'o> {
    pub(super) fn new(name: &'o str, operands: &'o [Leaf], results: &'o [Type]) -> Op<'o> {
        Op { name, operands, attributes: Vec::new(), regions: Vec::new(), results, is_elementwise: false }
    }

    pub(super) fn elementwise(mut self) -> Op<'o> {
        self.is_elementwise = true;
        self
    }

    pub(super) fn with(mut self, attributes: Attributes) -> Op<'o> {
        self.attributes = attributes;
        self
    }

    pub(super) fn over(mut self, regions: Vec<Region>) -> Op<'o> {
        self.regions = regions;
        self
    }
}

pub(super) struct Printer<'a> {
    pub(super) out: String,
    pub(super) module: &'a HloModuleProto,
    pub(super) options: &'a WriteOptions,
    computations: FxHashMap<i64, &'a HloComputationProto>,
    sources: Sources<'a>,
    /// The symbols of functions, and the computations in the order in which they were first called.
    functions: FxHashMap<i64, String>,
    called: Vec<i64>,
    symbols: FxHashSet<String>,
    /// Numbers of values and arguments given in the function.
    values: usize,
    pub(super) arguments: usize,
    indent: usize,
    depth: usize,
    limit: usize,
}

impl<'a> Printer<'a> {
    pub(super) fn new(module: &'a HloModuleProto, options: &'a WriteOptions) -> Printer<'a> {
        Printer {
            out: String::new(),
            module,
            options,
            computations: module.computations.iter().map(|computation| (computation.id, computation)).collect(),
            sources: Sources::of(module),
            functions: FxHashMap::default(),
            called: Vec::new(),
            symbols: FxHashSet::from_iter(["main".to_owned()]),
            values: 0,
            arguments: 0,
            indent: 0,
            depth: 0,
            limit: module.encoded_len().saturating_mul(MAX_RATIO).max(SMALL),
        }
    }

    pub(super) fn module(mut self) -> std::result::Result<String, WriteError> {
        let Some(&entry) = self.computations.get(&self.module.entry_computation_id) else {
            let problem =
                format!("its entry is computation {}, which it does not have", self.module.entry_computation_id);
            return Err(WriteError::MalformedModule { problem });
        };
        self.header();
        self.function(entry, None)?;
        let mut written = 0;
        while let Some(&id) = self.called.get(written) {
            written += 1;
            if let (Some(&computation), Some(name)) = (self.computations.get(&id), self.functions.get(&id).cloned()) {
                self.function(computation, Some(&name))?;
            }
        }
        self.out.push_str("}\n");
        Ok(self.out)
    }

    pub(super) fn computation(&self, id: i64) -> Result<&'a HloComputationProto> {
        match self.computations.get(&id) {
            Some(computation) => Ok(computation),
            None => malformed(format!("it calls computation {id}, which the module does not have")),
        }
    }

    /// The symbol of the function that a computation becomes.
    pub(super) fn function_symbol(&mut self, id: i64) -> Result<String> {
        let computation = self.computation(id)?;
        if let Some(name) = self.functions.get(&id) {
            return Ok(symbol(name));
        }
        let base = if computation.name.is_empty() { "function" } else { &computation.name };
        let mut name = base.to_owned();
        let mut number = 0;
        while !self.symbols.insert(name.clone()) {
            number += 1;
            name = format!("{base}_{number}");
        }
        self.called.push(id);
        self.functions.insert(id, name.clone());
        Ok(symbol(&name))
    }

    pub(super) fn start_line(&mut self) {
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
    }

    /// Ends a line that says what an instruction does.
    fn end_line(&mut self, instruction: &'a HloInstructionProto) {
        if self.options.metadata {
            self.out.push(' ');
            self.out.push_str(&location::of(&self.sources, instruction));
        }
        self.out.push('\n');
    }

    /// A function: the entry, which is called `main`, or a private one.
    fn function(
        &mut self,
        computation: &'a HloComputationProto,
        name: Option<&str>,
    ) -> std::result::Result<(), WriteError> {
        (self.values, self.arguments) = (0, 0);
        self.indent = 1;
        let parameters = self.signature(computation, name)?;
        self.indent = 2;
        self.body(computation, parameters, "return")?;
        self.indent = 1;
        self.start_line();
        self.out.push_str("}\n");
        Ok(())
    }

    /// The instructions of a computation, and what gives its root to whom it belongs.
    pub(super) fn body(
        &mut self,
        computation: &'a HloComputationProto,
        parameters: Vec<Value>,
        terminator: &str,
    ) -> std::result::Result<(), WriteError> {
        if self.depth >= MAX_DEPTH {
            return Err(WriteError::Deep { computation: computation.name.clone(), limit: MAX_DEPTH });
        }
        self.depth += 1;
        let instructions = computation.instructions.iter().map(|instruction| (instruction.id, instruction)).collect();
        let mut scope = Scope { instructions, values: FxHashMap::default(), first: None };
        for instruction in &computation.instructions {
            let value = match instruction.opcode.as_str() {
                "parameter" => parameter(&parameters, instruction),
                _ => self.instruction(&mut scope, instruction),
            };
            let value = value.map_err(|fault| fault.at(computation, instruction))?;
            scope.values.insert(instruction.id, value);
            if self.out.len() > self.limit {
                return Err(WriteError::Long { limit: self.limit });
            }
        }
        let Some(root) = scope.values.get(&computation.root_id) else {
            let problem = format!("computation {:?} has no root", computation.name);
            return Err(WriteError::MalformedModule { problem });
        };
        self.start_line();
        let (names, types) = (names(root), root.iter().map(|leaf| leaf.ty.clone()).collect::<Vec<_>>());
        self.out.push_str(terminator);
        if !types.is_empty() {
            self.out.push_str(&format!(" {names} : {}", types.join(", ")));
        }
        self.out.push('\n');
        self.depth -= 1;
        Ok(())
    }

    /// Writes an instruction that waits for others, and has what it waits for as one more operand's reason.
    fn instruction(&mut self, scope: &mut Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        scope.first = self.ordered(scope, instruction)?;
        self.operation(scope, instruction)
    }

    /// The value that replaces the first array of the first operand of an instruction that waits for others: that array
    /// behind a barrier, together with a result of each of the others. StableHLO has no control predecessors.
    fn ordered(&mut self, scope: &mut Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Option<Leaf>> {
        scope.first = None;
        if instruction.control_predecessor_ids.is_empty() {
            return Ok(None);
        }
        let operand = match instruction.operand_ids.is_empty() {
            true => None,
            false => scope.operand(instruction, 0)?.into_iter().next(),
        };
        let Some(operand) = operand else {
            return super::error::no_form(
                "it waits for a control predecessor and has no operand that could; remove the predecessor",
            );
        };
        let mut operands = vec![operand];
        for id in &instruction.control_predecessor_ids {
            match scope.values.get(id) {
                Some(value) => operands.extend(value.first().cloned()),
                None => return malformed(format!("it waits for instruction {id}, which does not come before it")),
            }
        }
        let results: Vec<Type> = operands.iter().map(|leaf| leaf.ty.clone()).collect();
        let guarded = self.op(instruction, Op::new("stablehlo.optimization_barrier", &operands, &results), &[])?;
        Ok(guarded.into_iter().next())
    }

    /// Writes one op; gives its results. `discardable` are attributes that are not the op's own.
    pub(super) fn op(
        &mut self,
        instruction: &'a HloInstructionProto,
        op: Op<'_>,
        discardable: &[(&str, String)],
    ) -> Result<Value> {
        self.start_line();
        let results = self.results(op.results);
        let operands = names(op.operands);
        let mut types = op.operands.iter().map(|leaf| &leaf.ty).chain(op.results);
        let first = types.next();
        let is_plain = op.is_elementwise && op.attributes.is_empty() && discardable.is_empty();
        if is_plain && types.all(|ty| Some(ty) == first) {
            self.out.push_str(&format!("{} {operands} : {}", op.name, op.results[0]));
            self.end_line(instruction);
            return Ok(results);
        }
        self.out.push_str(&format!("\"{}\"({operands})", op.name));
        if !op.attributes.is_empty() {
            self.out.push_str(&format!(" <{}>", braced(&op.attributes)));
        }
        for (index, region) in op.regions.iter().enumerate() {
            self.out.push_str(if index == 0 { " ({\n" } else { ", {\n" });
            self.region(region)?;
            self.start_line();
            self.out.push('}');
        }
        if !op.regions.is_empty() {
            self.out.push(')');
        }
        if !discardable.is_empty() {
            self.out.push_str(&format!(" {}", braced(discardable)));
        }
        let operand_types: Vec<Type> = op.operands.iter().map(|leaf| leaf.ty.clone()).collect();
        self.out.push_str(&format!(" : ({}) -> {}", operand_types.join(", "), result_types(op.results)));
        self.end_line(instruction);
        Ok(results)
    }

    /// A line that is not a generic op: `text` after the names of the results.
    pub(super) fn line(&mut self, instruction: &'a HloInstructionProto, text: &str, results: &[Type]) -> Value {
        self.start_line();
        let results = self.results(results);
        self.out.push_str(text);
        self.end_line(instruction);
        results
    }

    /// Names results, and writes the names.
    fn results(&mut self, types: &[Type]) -> Value {
        let number = self.values;
        let name = |index: usize| match types.len() {
            1 => format!("%{number}"),
            _ => format!("%{number}#{index}"),
        };
        let results = types.iter().enumerate().map(|(index, ty)| Leaf {
            name: name(index).into(),
            ty: ty.clone(),
            constant: None,
        });
        let results: Value = results.collect();
        match types.len() {
            0 => return results,
            1 => self.out.push_str(&format!("%{number} = ")),
            count => self.out.push_str(&format!("%{number}:{count} = ")),
        }
        self.values += 1;
        results
    }

    fn region(&mut self, region: &Region) -> Result<()> {
        let computation = self.computation(region.computation)?;
        let parameters = match &region.parameters {
            Parameters::Values(values) => {
                self.indent += 1;
                let mut values = values.clone();
                values.iter_mut().flatten().for_each(|leaf| self.repeat(leaf));
                self.indent -= 1;
                values
            }
            Parameters::Arguments => {
                let mut parameters = Vec::new();
                for shape in parameter_shapes(computation)? {
                    let types = types::leaves(shape)?;
                    parameters.push(types.into_iter().map(|ty| self.argument(ty)).collect());
                }
                let arguments: Vec<String> =
                    parameters.iter().flatten().map(|leaf: &Leaf| format!("{}: {}", leaf.name, leaf.ty)).collect();
                self.start_line();
                self.out.push_str(&format!("^bb0({}):\n", arguments.join(", ")));
                parameters
            }
        };
        self.indent += 1;
        self.body(computation, parameters, "stablehlo.return")?;
        self.indent -= 1;
        Ok(())
    }

    /// Writes a small constant again. The reader has those that a region uses in the region, as XLA has them.
    fn repeat(&mut self, leaf: &mut Leaf) {
        let Some(text) = leaf.constant.clone() else { return };
        self.start_line();
        let repeated = self.results(std::slice::from_ref(&leaf.ty));
        self.out.push_str(&text);
        leaf.name = repeated.into_iter().map(|leaf| leaf.name).next().unwrap_or_else(|| leaf.name.clone());
    }

    pub(super) fn argument(&mut self, ty: Type) -> Leaf {
        let number = self.arguments;
        self.arguments += 1;
        Leaf { name: format!("%arg{number}").into(), ty, constant: None }
    }

    /// The attributes that an instruction of any opcode may have: its sharding and its frontend attributes.
    pub(super) fn common(&self, instruction: &HloInstructionProto) -> Vec<(&'static str, String)> {
        let mut attributes = Vec::new();
        if let Some(sharding) = &instruction.sharding {
            let text = crate::text::print_sharding(sharding);
            attributes.push(("mhlo.sharding", quoted(text.as_bytes())));
        }
        if let Some(frontend) = instruction.frontend_attributes.as_ref().filter(|frontend| !frontend.map.is_empty()) {
            attributes.push(("mhlo.frontend_attributes", dictionary(&frontend.map)));
        }
        attributes
    }
}

impl<'a> Scope<'a> {
    /// The value of an operand.
    pub(super) fn operand(&self, instruction: &HloInstructionProto, index: usize) -> Result<Value> {
        let Some(id) = instruction.operand_ids.get(index) else {
            return malformed(format!("operand {index} is expected, {} are found", instruction.operand_ids.len()));
        };
        let Some(value) = self.values.get(id) else {
            return malformed(format!("its operand {id} does not come before it in the computation"));
        };
        let mut value = value.clone();
        if let (0, Some(first), Some(leaf)) = (index, &self.first, value.first_mut()) {
            *leaf = first.clone();
        }
        Ok(value)
    }

    /// The values of all operands, one after the other.
    pub(super) fn operands(&self, instruction: &HloInstructionProto) -> Result<Value> {
        let mut operands = Vec::with_capacity(instruction.operand_ids.len());
        for index in 0..instruction.operand_ids.len() {
            operands.extend(self.operand(instruction, index)?);
        }
        Ok(operands)
    }

    /// The shape of an operand.
    pub(super) fn operand_shape(&self, instruction: &HloInstructionProto, index: usize) -> Result<&'a ShapeProto> {
        let operand = instruction.operand_ids.get(index).and_then(|id| self.instructions.get(id));
        match operand {
            Some(operand) => shape_of(operand),
            None => malformed(format!("operand {index} is expected, there is none in the computation")),
        }
    }
}

pub(super) fn shape_of(instruction: &HloInstructionProto) -> Result<&ShapeProto> {
    match &instruction.shape {
        Some(shape) => Ok(shape),
        None => malformed("it has no shape"),
    }
}

fn parameter(parameters: &[Value], instruction: &HloInstructionProto) -> Result<Value> {
    let number = instruction.parameter_number;
    match usize::try_from(number).ok().and_then(|number| parameters.get(number)) {
        Some(value) => Ok(value.clone()),
        None => malformed(format!("it is parameter {number} of {}", parameters.len())),
    }
}

/// The shapes of the parameters of a computation, in order.
pub(super) fn parameter_shapes(computation: &HloComputationProto) -> Result<Vec<&ShapeProto>> {
    let parameters = parameters(computation)?;
    parameters.into_iter().map(shape_of).collect()
}

/// The parameters of a computation, in order.
pub(super) fn parameters(computation: &HloComputationProto) -> Result<Vec<&HloInstructionProto>> {
    let is_parameter = |instruction: &&HloInstructionProto| instruction.opcode == "parameter";
    let mut found: Vec<&HloInstructionProto> = computation.instructions.iter().filter(is_parameter).collect();
    sort::by_key(&mut found, |parameter| parameter.parameter_number);
    let mut numbers = found.iter().map(|parameter| parameter.parameter_number);
    if !(0..found.len() as i64).all(|number| numbers.next() == Some(number)) {
        return malformed(format!("computation {:?} lacks one of its parameters", computation.name));
    }
    Ok(found)
}

/// `%1, %2`.
pub(super) fn names(leaves: &[Leaf]) -> String {
    let names: Vec<&str> = leaves.iter().map(|leaf| &*leaf.name).collect();
    names.join(", ")
}

/// One type, or several in brackets.
pub(super) fn result_types(types: &[Type]) -> String {
    match types {
        [one] => one.to_string(),
        several => format!("({})", several.join(", ")),
    }
}

/// `{name = value, flag}`: an attribute without value is a flag.
fn braced(attributes: &[(&str, String)]) -> String {
    let attribute = |(name, value): &(&str, String)| match value.as_str() {
        "" => (*name).to_owned(),
        value => format!("{name} = {value}"),
    };
    let attributes: Vec<String> = attributes.iter().map(attribute).collect();
    format!("{{{}}}", attributes.join(", "))
}

impl From<Fault> for WriteError {
    /// Converts a fault that belongs to no instruction.
    fn from(fault: Fault) -> WriteError {
        match fault {
            Fault::NoForm(problem) | Fault::Malformed(problem) => WriteError::MalformedModule { problem },
            Fault::Inside(error) => error,
        }
    }
}
