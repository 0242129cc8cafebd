//! Import: an HLO module becomes a graph with the shardings that it states. It is the inverse of
//! [`emit`](crate::emit).
//!
//! Each op recognizes its own instructions, by a rule beside its emission. This module reads the instructions that
//! hold others together (tuples and their elements, parameters) and those that state a sharding. Bytecode, StableHLO
//! text and exports become HLO modules by `meshloom-hlo`. Nodes keep the scope, which is the path in `op_name`, and the
//! line of the program that the module was made from.

mod error;
mod manual;
mod opaque;
mod shardings;
mod tiles;

use std::sync::Arc;

use meshloom_analysis::trip_count;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::op_sharding::Type;
use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto};
use meshloom_hlo::source::{Sources, op_name, scope};
use meshloom_hlo::{is_tuple, tensor_type};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub use error::{ForeignInstruction, ImportError};

use crate::ir::{Graph, GraphBuilder, Name, Origin, PortInfo, Scope, Spec, TensorType, UserLine, Value, Values};
use crate::ops::{Group, ImportContext, Op, Recognize, Reshard};
pub(crate) use shardings::stated_spec;
use shardings::{Constraints, Stated};

/// How deep computations may call each other. Their nesting is also one of this reader's calls.
const NESTING: usize = 100;

/// The target of the custom call that states the sharding of a result of the program, in Shardy's text alone.
const RESULT_SHARDING: &str = "xla.sdy.FuncResultSharding";

/// The import rules of an opcode: mostly one.
type OpcodeRules = SmallVec<[Recognize; 2]>;

/// A module as a graph.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The program in global shapes. Ports that the module shards have their specs, and each constraint is a
    /// [`Reshard`].
    pub graph: Graph,
    /// The mesh that the specs refer to; `None` for a module of one device.
    pub mesh: Option<Mesh>,
    /// Pairs of (output, input) that share a buffer.
    pub aliases: Vec<(usize, usize)>,
}

/// Reads a module that is not partitioned yet.
///
/// # Errors
/// The module has an instruction that no op recognizes, a type that graphs do not have, or a sharding that is not along
/// the axes of one mesh; or it is no valid module.
pub fn import(module: &HloModuleProto) -> Result<Imported, ImportError> {
    import_with(module, Constraints::of(module)?, 0)
}

/// Reads a module that is the program of one device of a mesh. Its collectives become ops over axes of the mesh; one
/// whose devices do not follow these is not recognized.
pub(crate) fn import_local(module: &HloModuleProto, mesh: &Mesh) -> Result<Imported, ImportError> {
    // All of it is one manual region.
    import_with(module, Constraints::over(module, mesh)?, 1)
}

fn import_with(module: &HloModuleProto, constraints: Constraints, manual: usize) -> Result<Imported, ImportError> {
    let mut rules: FxHashMap<&'static str, OpcodeRules> = FxHashMap::default();
    for (opcodes, rule) in Op::IMPORT_RULES {
        opcodes.iter().for_each(|opcode| rules.entry(opcode).or_default().push(*rule));
    }
    let computations: FxHashMap<i64, &HloComputationProto> =
        module.computations.iter().map(|computation| (computation.id, computation)).collect();
    let Some(&entry) = computations.get(&module.entry_computation_id) else { return Err(ImportError::NoEntry) };
    let importer = Importer {
        rules,
        computations,
        constraints,
        sources: Sources::of(module),
        iterations: trip_count::known(module),
        bodies: FxHashMap::default(),
        open_results: Vec::new(),
        depth: 0,
        manual,
    };
    importer.module(module, entry)
}

struct Importer<'m> {
    rules: FxHashMap<&'static str, OpcodeRules>,
    computations: FxHashMap<i64, &'m HloComputationProto>,
    constraints: Constraints,
    sources: Sources<'m>,
    /// The iterations of loops, by the id of their instructions.
    iterations: FxHashMap<i64, u64>,
    /// The graphs of computations that are called, and whether that is in a manual region.
    bodies: FxHashMap<(i64, bool), Arc<Graph>>,
    /// The results of the program that propagation may split further.
    open_results: Vec<Value>,
    depth: usize,
    /// The number of manual regions around the computation.
    manual: usize,
}

/// The values of an instruction, the arrays of a tuple in a row.
type Known<'m> = (Values, &'m HloInstructionProto);

/// The values of the instructions of one computation.
type InstructionValues<'m> = FxHashMap<i64, Known<'m>>;

impl<'m> Importer<'m> {
    fn module(mut self, module: &'m HloModuleProto, entry: &'m HloComputationProto) -> Result<Imported, ImportError> {
        let (mut graph, root) = self.computation(entry, &module.name, true)?;
        let mut outputs = self.ports(root)?;
        // The caller is told the sharding of a result with open dimensions, and that of one whose parts would differ in
        // size, as a constraint at the root may ask for.
        for (info, output) in outputs.iter_mut().zip(graph.outputs()) {
            let dims = &graph.ty(*output).dims;
            let divides =
                |spec: &Spec| self.constraints.mesh.as_ref().is_none_or(|mesh| spec.local_dims(mesh, dims).is_ok());
            if self.open_results.contains(output) || !info.spec.as_ref().is_none_or(divides) {
                info.spec = None;
            }
        }
        graph.set_output_info(outputs);
        let entries = module.input_output_alias.iter().flat_map(|alias| &alias.entries);
        let is_plain = |index: &[i64]| index.len() <= 1;
        // A parameter or a result that is a tuple within has no number of its own.
        let pair = |entry: &meshloom_hlo::proto::hlo_input_output_alias_proto::AliasEntryProto| {
            let output = usize::try_from(entry.output_shape_index.first().copied().unwrap_or(0)).ok()?;
            let input = usize::try_from(entry.parameter_number).ok()?;
            (is_plain(&entry.output_shape_index) && entry.parameter_shape_index.is_empty()).then_some((output, input))
        };
        let aliases = entries.filter_map(pair).collect();
        Ok(Imported { graph, mesh: self.constraints.mesh, aliases })
    }

    /// The ports of an instruction's arrays, with the specs that it states.
    fn ports(&self, instruction: &'m HloInstructionProto) -> Result<Vec<PortInfo>, ImportError> {
        let types = self.types(instruction)?;
        let stated = self.constraints.stated(instruction, &types).map_err(|why| self.refused(instruction, why))?;
        let port = |stated: Option<Stated>| PortInfo { spec: stated.map(|it| it.spec), ..PortInfo::default() };
        Ok(stated.into_iter().map(port).collect())
    }

    /// The graph of a computation, and its root. Only ports of the entry have specs.
    fn computation(
        &mut self,
        computation: &'m HloComputationProto,
        name: &str,
        is_entry: bool,
    ) -> Result<(Graph, &'m HloInstructionProto), ImportError> {
        let mut builder = GraphBuilder::new(name);
        let mut values = InstructionValues::default();
        let mut parameters: Vec<&HloInstructionProto> =
            computation.instructions.iter().filter(|it| it.opcode == "parameter").collect();
        parameters.sort_by_key(|parameter| parameter.parameter_number);
        for parameter in parameters {
            let types = self.types(parameter)?;
            let infos = if is_entry { self.ports(parameter)? } else { vec![PortInfo::default(); types.len()] };
            let path: Arc<str> = op_name(parameter).into();
            let inputs = types.into_iter().zip(infos);
            let inputs = inputs.map(|(ty, info)| builder.input(ty, PortInfo { path: path.clone(), ..info })).collect();
            values.insert(parameter.id, (inputs, parameter));
        }
        for instruction in computation.instructions.iter().filter(|it| it.opcode != "parameter") {
            builder.set_origin(self.origin(instruction));
            let made = self.instruction(instruction, &mut builder, &values)?;
            let is_result = is_entry && instruction.id == computation.root_id;
            let made = match instruction.opcode.as_str() {
                "tuple" | "get-tuple-element" => made,
                _ => self.constraint(instruction, &mut builder, made, is_result)?,
            };
            values.insert(instruction.id, (made, instruction));
        }
        let root = computation.instructions.iter().find(|it| it.id == computation.root_id);
        let Some((root, (outputs, _))) = root.and_then(|root| Some((root, values.get(&root.id)?))) else {
            return Err(ImportError::NoRoot { computation: computation.name.clone() });
        };
        let outputs = outputs.to_vec();
        let infos = vec![PortInfo::default(); outputs.len()];
        Ok((builder.finish(outputs, infos), root))
    }

    fn instruction(
        &mut self,
        instruction: &'m HloInstructionProto,
        builder: &mut GraphBuilder,
        values: &InstructionValues<'m>,
    ) -> Result<Values, ImportError> {
        let missing = || ImportError::MissingOperand(self.place(instruction));
        let of = |id: &i64| values.get(id).ok_or_else(missing);
        let operands: Vec<&Known<'m>> = instruction.operand_ids.iter().map(of).collect::<Result<_, _>>()?;
        let flat: Values = operands.iter().flat_map(|(values, _)| values.iter().copied()).collect();
        match instruction.opcode.as_str() {
            "tuple" => return Ok(flat),
            "get-tuple-element" => {
                let found = operands.first().and_then(|(values, tuple)| element(values, tuple, instruction));
                return found.ok_or_else(missing);
            }
            // A copy with a sharding is a constraint.
            "copy" => return Ok(flat),
            "custom-call" => match instruction.custom_call_target.as_str() {
                // The caller reads the sharding that they state, as that of any instruction.
                "Sharding" | RESULT_SHARDING | "xla.sdy.PropagationBarrier" => return Ok(flat),
                "xla.sdy.ShardingGroup" => return Ok(Values::new()),
                _ => {
                    if let Some(made) = self.border(instruction, &operands, builder)? {
                        return Ok(made);
                    }
                }
            },
            _ => {}
        }
        let is_region = instruction.opcode == "call" && self.is_manual_region(instruction);
        self.manual += usize::from(is_region);
        let made = self.recognized(instruction, builder, &flat);
        self.manual -= usize::from(is_region);
        made
    }

    /// The values that an op's rule makes of an instruction.
    fn recognized(
        &mut self,
        instruction: &'m HloInstructionProto,
        builder: &mut GraphBuilder,
        flat: &[Value],
    ) -> Result<Values, ImportError> {
        let types = self.types(instruction)?;
        let rules = self.rules.get(instruction.opcode.as_str()).cloned().unwrap_or_default();
        let mut context =
            ImportedInstruction { importer: self, instruction, operands: flat, types: &types, builder, fault: None };
        for rule in rules {
            match rule(&mut context) {
                Ok(Some(made)) => return Ok(made),
                Ok(None) => {}
                Err(error) => return Err(ImportError::Op { place: self.place(instruction), source: error.into() }),
            }
            if let Some(fault) = context.fault.take() {
                return Err(fault);
            }
        }
        self.opaque(instruction, &types, builder, flat)
    }

    /// The results of an instruction with the shardings that the module asks for here. The sharding of a result of the
    /// program is that of a port, unless it has open dimensions.
    fn constraint(
        &mut self,
        instruction: &'m HloInstructionProto,
        builder: &mut GraphBuilder,
        operands: Values,
        is_result: bool,
    ) -> Result<Values, ImportError> {
        let is_result = is_result || instruction.custom_call_target == RESULT_SHARDING;
        if instruction.sharding.is_none() && !is_result {
            return Ok(operands);
        }
        let types = self.types(instruction)?;
        let stated = self.constraints.stated(instruction, &types).map_err(|why| self.refused(instruction, why))?;
        let mut made = Values::new();
        for (operand, stated) in operands.into_iter().zip(stated) {
            let Some(Stated { spec, open, .. }) = stated else {
                made.push(operand);
                continue;
            };
            let is_open = open.contains(&true);
            let says_nothing = spec.is_replicated() && open.iter().all(|&open| open) || is_result && !is_open;
            let value = match says_nothing {
                true => operand,
                false => {
                    let open = (0..spec.rank()).filter(|&dim| open.get(dim) == Some(&true)).collect();
                    let pushed = builder.push1(Reshard { open, ..Reshard::new(spec) }, &[operand]);
                    pushed.map_err(|error| ImportError::Op { place: self.place(instruction), source: error.into() })?
                }
            };
            if is_result && is_open {
                self.open_results.push(value);
            }
            made.push(value);
        }
        Ok(made)
    }

    /// The types of an instruction's arrays.
    fn types(&self, instruction: &'m HloInstructionProto) -> Result<Vec<TensorType>, ImportError> {
        let Some(shape) = &instruction.shape else { return Err(ImportError::Type(self.place(instruction))) };
        let mut types = Vec::new();
        match flatten(shape, &mut types) {
            true => Ok(types),
            false => Err(ImportError::Type(self.place(instruction))),
        }
    }

    fn place(&self, instruction: &'m HloInstructionProto) -> Box<ForeignInstruction> {
        Box::new(ForeignInstruction {
            opcode: match instruction.opcode.as_str() {
                "custom-call" => format!("custom-call {:?}", instruction.custom_call_target),
                opcode => opcode.to_owned(),
            },
            name: instruction.name.clone(),
            op_name: op_name(instruction).to_owned(),
            source: self.sources.line(instruction).map(|line| line.to_string()),
        })
    }

    fn origin(&self, instruction: &'m HloInstructionProto) -> Origin {
        let line =
            self.sources.line(instruction).and_then(|source| Some((source.file, u32::try_from(source.line).ok()?)));
        let place = line.map(|(file, line)| UserLine::Foreign { file: Name::new(file), line });
        Origin { place, scope: scope_of(instruction), ..Origin::default() }
    }

    fn refused(&self, instruction: &'m HloInstructionProto, why: String) -> ImportError {
        ImportError::Sharding { place: self.place(instruction), why }
    }
}

fn scope_of(instruction: &HloInstructionProto) -> Scope {
    scope(instruction).split('/').filter(|name| !name.is_empty()).fold(Scope::ROOT, Scope::child)
}

/// The part of a tuple's arrays that is one of its elements.
fn element(values: &[Value], tuple: &HloInstructionProto, instruction: &HloInstructionProto) -> Option<Values> {
    let index = usize::try_from(instruction.tuple_index).ok()?;
    let tuple = tuple.shape.as_ref()?;
    let own = tuple.tuple_shapes.get(index)?;
    let first = tuple.tuple_shapes.iter().take(index).map(count).sum::<usize>();
    values.get(first..first + count(own)).map(Values::from_slice)
}

/// The number of arrays in a shape.
fn count(shape: &ShapeProto) -> usize {
    if is_tuple(shape) { shape.tuple_shapes.iter().map(count).sum() } else { 1 }
}

/// Appends the types of a shape's arrays; whether graphs have all of them.
fn flatten(shape: &ShapeProto, types: &mut Vec<TensorType>) -> bool {
    if is_tuple(shape) {
        return shape.tuple_shapes.iter().all(|shape| flatten(shape, types));
    }
    let is_static = |ty: &TensorType| !shape.is_dynamic_dimension.contains(&true) && ty.is_addressable();
    tensor_type(shape).filter(is_static).map(|ty| types.push(ty)).is_some()
}

/// An instruction as the rules of ops see it.
struct ImportedInstruction<'c, 'm> {
    importer: &'c mut Importer<'m>,
    instruction: &'m HloInstructionProto,
    operands: &'c [Value],
    types: &'c [TensorType],
    builder: &'c mut GraphBuilder,
    /// The reason why a computation that it calls cannot be imported.
    fault: Option<ImportError>,
}

impl ImportContext for ImportedInstruction<'_, '_> {
    fn instruction(&self) -> &HloInstructionProto {
        self.instruction
    }

    fn operands(&self) -> &[Value] {
        self.operands
    }

    fn result_types(&self) -> &[TensorType] {
        self.types
    }

    fn computation(&self, index: usize) -> Option<&HloComputationProto> {
        let id = self.instruction.called_computation_ids.get(index)?;
        self.importer.computations.get(id).copied()
    }

    fn body(&mut self, index: usize) -> Option<Arc<Graph>> {
        let id = *self.instruction.called_computation_ids.get(index)?;
        let key = (id, self.importer.manual > 0);
        if let Some(body) = self.importer.bodies.get(&key) {
            return Some(body.clone());
        }
        let computation = *self.importer.computations.get(&id)?;
        if self.importer.depth >= NESTING {
            self.fault = Some(ImportError::Nesting(self.importer.place(self.instruction)));
            return None;
        }
        self.importer.depth += 1;
        let imported = self.importer.computation(computation, &computation.name, false);
        self.importer.depth -= 1;
        match imported {
            Ok((graph, _)) => {
                let graph = Arc::new(graph);
                self.importer.bodies.insert(key, graph.clone());
                Some(graph)
            }
            Err(fault) => {
                self.fault = Some(fault);
                None
            }
        }
    }

    fn iterations(&self) -> Option<usize> {
        self.importer.iterations.get(&self.instruction.id).and_then(|&count| usize::try_from(count).ok())
    }

    fn group(&self) -> Option<Group> {
        self.is_between_partitions().then(|| self.importer.constraints.group(self.instruction))?
    }

    fn permutation(&self) -> Option<(Group, Vec<(u32, u32)>)> {
        self.is_between_partitions().then(|| self.importer.constraints.permutation(self.instruction))?
    }

    fn all_devices(&self) -> Option<Group> {
        let mesh = self.importer.constraints.mesh.as_ref().filter(|_| self.is_manual())?;
        Some(Group::new(mesh, &mesh.axes().collect::<Vec<_>>()))
    }

    fn builder(&mut self) -> &mut GraphBuilder {
        self.builder
    }
}

impl ImportedInstruction<'_, '_> {
    /// Whether the instruction is in a manual region.
    fn is_manual(&self) -> bool {
        let sharding = self.instruction.sharding.as_deref();
        self.importer.manual > 0 || sharding.is_some_and(|sharding| sharding.r#type() == Type::Manual)
    }

    /// Whether it is a collective of a manual region. A collective without a channel connects
    /// replicas, and the module has one (`GetCollectiveOpGroupMode`, collective_ops_utils.cc in XLA).
    fn is_between_partitions(&self) -> bool {
        self.is_manual() && self.instruction.channel_id > 0
    }
}
