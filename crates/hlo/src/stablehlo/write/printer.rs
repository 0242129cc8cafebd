//! The walk over a module: values, ops, regions and functions, which go into a [`Sink`].

use std::fmt;
use std::rc::Rc;

use prost::Message;
use rustc_hash::{FxHashMap, FxHashSet};

use super::attributes::{Attributes, dictionary, quoted, symbol};
use super::error::{Fault, Result, WriteError, malformed};
use super::literal::Dense;
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

/// The name of a value: `%5`, `%5#1`, `%arg0`.
#[derive(Clone, Copy)]
pub(super) enum Name {
    Result(usize),
    OneOf(usize, usize),
    Argument(usize),
}

impl Name {
    /// The name of all results of its op together.
    pub(super) fn of_all(self) -> Name {
        match self {
            Name::OneOf(number, _) => Name::Result(number),
            name => name,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Result(number) => write!(formatter, "%{number}"),
            Name::OneOf(number, index) => write!(formatter, "%{number}#{index}"),
            Name::Argument(number) => write!(formatter, "%arg{number}"),
        }
    }
}

/// An array or a token.
#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) name: Name,
    /// Its number among all of the module.
    pub(super) number: u32,
    pub(super) ty: Type,
    /// The constant that it is, if that is a small one.
    constant: Option<Rc<Constant>>,
}

/// A constant, and where it comes from.
struct Constant {
    value: Dense,
    location: String,
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

/// One op.
pub(super) struct Op<'o> {
    pub(super) name: &'o str,
    pub(super) operands: &'o [Leaf],
    pub(super) attributes: Attributes,
    /// Attributes that are not the op's own.
    pub(super) discardable: Attributes,
    pub(super) regions: Vec<Region>,
    pub(super) results: &'o [Type],
    /// Whether it may be written short, as an op with one type for all operands and results.
    is_elementwise: bool,
}

impl<'o> Op<'o> {
    pub(super) fn new(name: &'o str, operands: &'o [Leaf], results: &'o [Type]) -> Op<'o> {
        let (attributes, discardable) = (Vec::new(), Vec::new());
        Op { name, operands, attributes, discardable, regions: Vec::new(), results, is_elementwise: false }
    }

    pub(super) fn elementwise(mut self) -> Op<'o> {
        self.is_elementwise = true;
        self
    }

    pub(super) fn with(mut self, attributes: Attributes) -> Op<'o> {
        self.attributes = attributes;
        self
    }

    /// Adds attributes that are not the op's own.
    pub(super) fn marked(mut self, discardable: Attributes) -> Op<'o> {
        self.discardable = discardable;
        self
    }

    pub(super) fn over(mut self, regions: Vec<Region>) -> Op<'o> {
        self.regions = regions;
        self
    }

    /// The type of all operands and results, if it says all that the name of the op does not.
    pub(super) fn only_type(&self) -> Option<&Type> {
        let mut types = self.operands.iter().map(|leaf| &leaf.ty).chain(self.results);
        let first = types.next()?;
        let is_plain = self.is_elementwise && self.attributes.is_empty() && self.discardable.is_empty();
        (is_plain && types.all(|ty| ty == first)).then_some(first)
    }
}

/// The head of a function.
pub(super) struct Signature {
    pub(super) name: String,
    pub(super) is_public: bool,
    /// Each with its attributes and its location.
    pub(super) arguments: Vec<(Leaf, Attributes, String)>,
    pub(super) results: Vec<(Type, Attributes)>,
}

/// The form of a module that is written, part by part: text or bytecode.
pub(super) trait Sink {
    fn open_module(&mut self, name: &str, attributes: &Attributes) -> Result<()>;
    fn open_function(&mut self, signature: &Signature) -> Result<()>;
    /// Begins an op, whose regions follow.
    fn open(&mut self, op: &Op<'_>, results: &[Leaf]) -> Result<()>;
    /// Begins a region of an op, by its number, with arguments of its own.
    fn open_region(&mut self, number: usize, arguments: Option<&[Leaf]>) -> Result<()>;
    /// Ends a region or a function with its values.
    fn close_region(&mut self, values: &[Leaf], is_function: bool) -> Result<()>;
    fn close(&mut self, op: &Op<'_>, location: &str) -> Result<()>;
    fn constant(&mut self, value: &Dense, result: &Leaf, location: &str) -> Result<()>;
    /// About how many bytes it has so far.
    fn length(&self) -> usize;
}

/// Walks over a module, and writes it into a sink.
pub(super) struct Printer<'a, 's> {
    out: &'s mut dyn Sink,
    pub(super) module: &'a HloModuleProto,
    pub(super) options: &'a WriteOptions,
    computations: FxHashMap<i64, &'a HloComputationProto>,
    pub(super) sources: Sources<'a>,
    /// The symbols of functions, and the computations in the order in which they were first called.
    functions: FxHashMap<i64, String>,
    called: Vec<i64>,
    symbols: FxHashSet<String>,
    /// Numbers of values and arguments given in the function.
    values: usize,
    arguments: usize,
    /// The number of values given in the module.
    all_values: u32,
    depth: usize,
    limit: usize,
}

impl<'a, 's> Printer<'a, 's> {
    pub(super) fn new(module: &'a HloModuleProto, options: &'a WriteOptions, out: &'s mut dyn Sink) -> Self {
        Printer {
            out,
            module,
            options,
            computations: module.computations.iter().map(|computation| (computation.id, computation)).collect(),
            sources: Sources::of(module),
            functions: FxHashMap::default(),
            called: Vec::new(),
            symbols: FxHashSet::from_iter(["main".to_owned()]),
            values: 0,
            arguments: 0,
            all_values: 0,
            depth: 0,
            limit: module.encoded_len().saturating_mul(MAX_RATIO).max(SMALL),
        }
    }

    pub(super) fn module(mut self) -> std::result::Result<(), WriteError> {
        let Some(&entry) = self.computations.get(&self.module.entry_computation_id) else {
            let problem =
                format!("its entry is computation {}, which it does not have", self.module.entry_computation_id);
            return Err(WriteError::MalformedModule { problem });
        };
        let attributes = self.header();
        self.out.open_module(&self.module.name, &attributes)?;
        self.function(entry, None)?;
        let mut written = 0;
        while let Some(&id) = self.called.get(written) {
            written += 1;
            if let (Some(&computation), Some(name)) = (self.computations.get(&id), self.functions.get(&id).cloned()) {
                self.function(computation, Some(&name))?;
            }
        }
        Ok(())
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

    /// The location of an instruction; nothing where none are written.
    pub(super) fn location(&self, instruction: &'a HloInstructionProto) -> String {
        if self.options.metadata { location::of(&self.sources, instruction) } else { String::new() }
    }

    /// A function: the entry, which is called `main`, or a private one.
    fn function(
        &mut self,
        computation: &'a HloComputationProto,
        name: Option<&str>,
    ) -> std::result::Result<(), WriteError> {
        (self.values, self.arguments) = (0, 0);
        let (signature, parameters) = self.signature(computation, name)?;
        self.out.open_function(&signature)?;
        self.body(computation, parameters, true)
    }

    /// The instructions of a computation, and what gives its root to whom it belongs.
    pub(super) fn body(
        &mut self,
        computation: &'a HloComputationProto,
        parameters: Vec<Value>,
        is_function: bool,
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
            if self.out.length() > self.limit {
                return Err(WriteError::Long { limit: self.limit });
            }
        }
        let Some(root) = scope.values.get(&computation.root_id) else {
            let problem = format!("computation {:?} has no root", computation.name);
            return Err(WriteError::MalformedModule { problem });
        };
        self.out.close_region(root, is_function)?;
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
        let guarded = self.op(instruction, Op::new("stablehlo.optimization_barrier", &operands, &results))?;
        Ok(guarded.into_iter().next())
    }

    /// Writes one op; gives its results.
    pub(super) fn op(&mut self, instruction: &'a HloInstructionProto, op: Op<'_>) -> Result<Value> {
        let results = self.results(op.results);
        self.out.open(&op, &results)?;
        for (number, region) in op.regions.iter().enumerate() {
            self.region(number, region)?;
        }
        let location = self.location(instruction);
        self.out.close(&op, &location)?;
        Ok(results)
    }

    /// Writes a constant.
    pub(super) fn constant_op(&mut self, instruction: &'a HloInstructionProto, value: Dense) -> Result<Value> {
        let constant = Constant { value, location: self.location(instruction) };
        let mut leaf = self.repeated(&constant)?;
        if constant.value.is_repeated() {
            leaf.constant = Some(Rc::new(constant));
        }
        Ok(vec![leaf])
    }

    fn repeated(&mut self, constant: &Constant) -> Result<Leaf> {
        let name = Name::Result(self.values);
        self.values += 1;
        let leaf = self.leaf(name, constant.value.ty.clone());
        self.out.constant(&constant.value, &leaf, &constant.location)?;
        Ok(leaf)
    }

    /// Names results.
    fn results(&mut self, types: &[Type]) -> Value {
        let number = self.values;
        self.values += usize::from(!types.is_empty());
        let name = |index: usize| match types.len() {
            1 => Name::Result(number),
            _ => Name::OneOf(number, index),
        };
        types.iter().enumerate().map(|(index, ty)| self.leaf(name(index), ty.clone())).collect()
    }

    fn leaf(&mut self, name: Name, ty: Type) -> Leaf {
        self.all_values += 1;
        Leaf { name, number: self.all_values - 1, ty, constant: None }
    }

    fn region(&mut self, number: usize, region: &Region) -> Result<()> {
        let computation = self.computation(region.computation)?;
        let parameters = match &region.parameters {
            Parameters::Values(values) => {
                self.out.open_region(number, None)?;
                let mut values = values.clone();
                // The reader has small constants that a region uses in the region, as XLA has them.
                for leaf in values.iter_mut().flatten() {
                    if let Some(constant) = leaf.constant.clone() {
                        *leaf = Leaf { constant: leaf.constant.take(), ..self.repeated(&constant)? };
                    }
                }
                values
            }
            Parameters::Arguments => {
                let mut parameters: Vec<Value> = Vec::new();
                for shape in parameter_shapes(computation)? {
                    let types = types::leaves(shape)?;
                    parameters.push(types.into_iter().map(|ty| self.argument(ty)).collect());
                }
                self.out.open_region(number, Some(&parameters.concat()))?;
                parameters
            }
        };
        Ok(self.body(computation, parameters, false)?)
    }

    pub(super) fn argument(&mut self, ty: Type) -> Leaf {
        self.arguments += 1;
        self.leaf(Name::Argument(self.arguments - 1), ty)
    }

    /// The attributes that an instruction of any opcode may have: its sharding and its frontend attributes.
    pub(super) fn common(&self, instruction: &HloInstructionProto) -> Attributes {
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

impl From<Fault> for WriteError {
    /// Converts a fault that belongs to no instruction.
    fn from(fault: Fault) -> WriteError {
        match fault {
            Fault::NoForm(problem) | Fault::NotInArtifact(problem) | Fault::Malformed(problem) => {
                WriteError::MalformedModule { problem }
            }
            Fault::Inside(error) => error,
        }
    }
}
