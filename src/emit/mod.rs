//! Emission: a graph becomes a serialized `HloModuleProto`.
//!
//! Instructions are numbered in the order they are written and named `opcode.number`, so the same graph always gives
//! the same bytes. Regions become computations (`control.rs`).
//!
//! A graph whose inputs and outputs carry specs becomes an annotated SPMD program. Annotations in one of the dialects
//! of [`Annotation`] stand on parameters, on the root, and on a `Sharding` custom call for each reshard. XLA's
//! partitioner propagates them.
//!
//! The program of one device is emitted in one of the forms of [`ProgramForm`].

mod collective;
mod control;
mod crossing;
mod foreign;
mod form;
mod node;
mod sharding;
mod writer;

pub use collective::device_groups;
pub use form::ProgramForm;
pub(crate) use form::needs_local_form;
pub use meshloom_hlo::GroupFormat;
pub use sharding::{Annotation, op_sharding};

use std::sync::Arc;

use prost::Message;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::{self, HloInstructionProto};
use meshloom_hlo::{literal_proto, number_bytes};

use self::sharding::{manual, result_attribute};
use self::writer::{EncodedShape, MODULE_HOST_PROGRAM_SHAPE, Metadata, ModuleWriter, put_bytes};
use crate::ir::{DType, Graph, InternalError, NodeRef, Origin, Phase, PortInfo, Scope, Spec, TensorType};
use crate::ops::{ComputationId, InstructionId, RegionKind};

/// The inputs of emission besides the graph.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmitOptions<'a> {
    /// The mesh that specs refer to; `None` emits a program for one device and leaves specs out.
    pub mesh: Option<&'a Mesh>,
    /// Pairs of (output, input) that share a buffer: the input is donated.
    pub aliases: &'a [(usize, usize)],
    /// Leaves out source lines and scope paths.
    pub omit_metadata: bool,
    /// Whether the graph is already the program of one device: its shapes are local and its collectives explicit, and
    /// the specs of its ports say how the whole is put together from the parts.
    pub partitioned: bool,
    /// The form in which the program of one device says that it is one.
    pub form: ProgramForm,
    /// How collectives name their devices.
    pub groups: GroupFormat,
    /// Whether the plugin may run independent collectives in any order, or at once.
    pub overlap_collectives: bool,
    /// The dialect in which a graph that is not partitioned says how values are sharded.
    pub annotation: Annotation,
    /// Whether the plugin has a host memory into which values can be moved. Without it, they stay where they are.
    pub host_memory: bool,
    /// Processes between which collectives go by custom calls, as
    /// [`LowerOptions::processes`](crate::compile::LowerOptions::processes) has it; 0 and 1: none.
    pub processes: usize,
}

/// A serialized module.
#[derive(Clone, Debug)]
pub struct EmittedModule {
    /// The bytes of an `HloModuleProto`.
    pub bytes: Vec<u8>,
    /// Number of instructions in all computations.
    pub instruction_count: usize,
    /// Whether the last parameter of the module is the number of the device in the mesh: `u32` `[1]` on each.
    pub takes_place: bool,
}

impl EmittedModule {
    /// Decodes the bytes into messages.
    ///
    /// # Errors
    /// The bytes are no longer what was emitted.
    pub fn decode(&self) -> Result<proto::HloModuleProto, InternalError> {
        let decoded = proto::HloModuleProto::decode(self.bytes.as_slice());
        decoded.map_err(|error| InternalError::new("bytes of a module", format_args!("a module, found {error}")))
    }
}

type Ids = SmallVec<[InstructionId; 4]>;

/// The id that stands for no instruction; XLA takes it for "not set", too.
const UNSET: InstructionId = 0;

#[derive(Default)]
struct Emitter<'o> {
    writer: ModuleWriter,
    options: EmitOptions<'o>,
    /// Channels given to collectives so far.
    channels: i64,
    /// For each open computation, the number of the device, where a parameter gives it: a scalar `u32`.
    places: Vec<Option<InstructionId>>,
    /// For each open computation, its last instruction that communicates.
    last_collective: Vec<Option<InstructionId>>,
    communicating: FxHashSet<ComputationId>,
    /// Paths of scopes, with a slash at the end unless empty.
    paths: FxHashMap<Scope, String>,
    /// Emitted functions; the graphs are held so that their addresses are not used again.
    functions: FxHashMap<*const Graph, (Arc<Graph>, ComputationId)>,
    /// Computations that rules have asked for, by name.
    named_computations: FxHashMap<String, ComputationId>,
    /// Scalar constants of each open computation.
    constants: Vec<FxHashMap<(DType, u64), InstructionId>>,
    origin: Origin,
    op_name: &'static str,
    /// The phase of the region op whose body is being written.
    phase: Phase,
    defect: Option<InternalError>,
}

/// Writes `graph` as a module.
///
/// # Errors
/// An op's rule does not emit each of its results, which is a defect.
pub fn emit(graph: &Graph, options: EmitOptions<'_>) -> Result<EmittedModule, InternalError> {
    let options = EmitOptions {
        mesh: options.mesh.filter(|mesh| mesh.device_count() > 1),
        // A manual region is entered by tiles.
        annotation: if options.partitioned { Annotation::Tiles } else { options.annotation },
        processes: if options.partitioned { options.processes } else { 1 },
        ..options
    };
    Emitter { options, ..Emitter::default() }.module(graph)
}

impl<'o> Emitter<'o> {
    fn module(mut self, graph: &Graph) -> Result<EmittedModule, InternalError> {
        let name = sanitize(graph.name());
        self.open();
        let mut inputs = self.parameters(graph);
        let takes_place = self.uses_place(graph);
        if takes_place {
            self.place_parameter();
        }
        if self.enters_region() {
            for ((input, &value), info) in inputs.iter_mut().zip(graph.inputs()).zip(graph.input_info()) {
                *input = self.enter(*input, graph.ty(value), info);
            }
        }
        let outputs = self.body(graph, &inputs);
        let (root, result) = self.results(graph, outputs);
        let (entry, program) = self.close(&name, root, result);
        let alias = |&(output, input): &(usize, usize)| proto::hlo_input_output_alias_proto::AliasEntryProto {
            output_shape_index: vec![output as i64],
            parameter_number: input as i64,
            parameter_shape_index: Vec::new(),
            // A hint rather than a demand: a plugin may copy where its layout forbids sharing.
            kind: proto::Kind::MayAlias.into(),
        };
        let aliases: Vec<_> = self.options.aliases.iter().map(alias).collect();
        let header = proto::HloModuleProto {
            entry_computation_name: format!("{name}.{entry}"),
            name,
            entry_computation_id: entry,
            frontend_attributes: self.module_attributes(),
            input_output_alias: (!aliases.is_empty()).then_some(proto::HloInputOutputAliasProto { entries: aliases }),
            ..proto::HloModuleProto::default()
        };
        let instruction_count = self.writer.instruction_count();
        let mut bytes = header.encode_to_vec();
        put_bytes(MODULE_HOST_PROGRAM_SHAPE, &program, &mut bytes);
        bytes.extend(self.writer.into_computations());
        match self.defect {
            Some(defect) => Err(defect),
            None => Ok(EmittedModule { bytes, instruction_count, takes_place }),
        }
    }

    /// The mesh by which ports are annotated: that of a program whose ports are whole values.
    fn annotated(&self) -> Option<&'o Mesh> {
        self.options.mesh.filter(|_| !self.is_local())
    }

    /// Writes the parameters of the entry.
    fn parameters(&mut self, graph: &Graph) -> Vec<InstructionId> {
        let mesh = self.annotated();
        let mut inputs = Vec::with_capacity(graph.inputs().len());
        for (&input, info) in graph.inputs().iter().zip(graph.input_info()) {
            let ty = &self.whole(graph.ty(input), info);
            let instruction = self.writer.parameter(ty, &info.path);
            if let Some(mesh) = mesh {
                self.options.annotation.write_parameter(mesh, &spec_of(info, ty), instruction);
            }
            if !info.path.is_empty() {
                let name = format!("{}.{}", sanitize(&info.path), self.writer.next_id());
                self.writer.set_name(&name);
                self.writer.set_metadata(Metadata { op_name: [&info.path, "", ""], ..Metadata::default() });
            }
            inputs.push(self.writer.commit());
        }
        inputs
    }

    /// Writes the root of the entry; returns it with its shape.
    fn results(&mut self, graph: &Graph, mut outputs: Ids) -> (InstructionId, EncodedShape) {
        let types = graph.output_types().zip(graph.output_info()).map(|(ty, info)| self.whole(ty, info));
        let types: Vec<TensorType> = types.collect();
        if self.enters_region() {
            self.origin = Origin::default();
            self.op_name = "leave";
            for ((output, ty), info) in outputs.iter_mut().zip(graph.output_types()).zip(graph.output_info()) {
                *output = self.leave(*output, ty, info);
            }
        }
        let annotation = self.options.annotation;
        if annotation == Annotation::ShardyAttributes {
            for ((output, ty), info) in outputs.iter_mut().zip(&types).zip(graph.output_info()) {
                *output = self.state_result(*output, ty, info);
            }
        }
        let mesh = self.annotated();
        let root = self.writer.begin_tuple("tuple", &types, &outputs);
        if let Some(mesh) = mesh {
            let element = |(ty, info): (&TensorType, &PortInfo)| annotation.sharding(mesh, &spec_of(info, ty));
            let sharding = proto::OpSharding {
                r#type: proto::op_sharding::Type::Tuple.into(),
                tuple_shardings: graph.output_types().zip(graph.output_info()).map(element).collect(),
                ..proto::OpSharding::default()
            };
            root.sharding = Some(sharding.into());
        }
        (self.writer.commit(), self.writer.tuple_shape(&types))
    }

    /// The type of a port as the caller sees it: that of the whole value.
    fn whole(&self, ty: &TensorType, info: &PortInfo) -> TensorType {
        let mut ty = ty.clone();
        if let (true, Some(mesh), Some(spec)) = (self.enters_region(), self.options.mesh, &info.spec) {
            ty.dims.iter_mut().enumerate().for_each(|(dim, size)| *size *= spec.part_count(mesh, dim));
        }
        ty
    }

    /// Goes from a whole value to this device's part of it, into the region that XLA's partitioner leaves alone.
    fn enter(&mut self, whole: InstructionId, local: &TensorType, info: &PortInfo) -> InstructionId {
        let Some(tiled) = self.tiled(local, info) else { return whole };
        let whole = self.placed("Sharding", &self.whole(local, info), whole, tiled);
        self.placed("SPMDFullToShardShape", local, whole, manual())
    }

    /// Goes from this device's part to the whole value.
    fn leave(&mut self, part: InstructionId, local: &TensorType, info: &PortInfo) -> InstructionId {
        let Some(tiled) = self.tiled(local, info) else { return part };
        let part = self.placed("Sharding", local, part, manual());
        self.placed("SPMDShardToFullShape", &self.whole(local, info), part, tiled)
    }

    /// Emits Shardy's statement of how an output is sharded, which Shardy moves to the output itself (XLA:
    /// `sdy_round_trip/import_shardy_attrs.cc`).
    fn state_result(&mut self, value: InstructionId, ty: &TensorType, info: &PortInfo) -> InstructionId {
        let Some(mesh) = self.options.mesh else { return value };
        let attributes = result_attribute(mesh, &spec_of(info, ty));
        let instruction = self.writer.begin("custom-call", ty, &[value]);
        instruction.custom_call_target.push_str("xla.sdy.FuncResultSharding");
        instruction.custom_call_has_side_effect = true;
        instruction.frontend_attributes = Some(attributes);
        self.writer.commit()
    }

    fn tiled(&self, local: &TensorType, info: &PortInfo) -> Option<proto::OpSharding> {
        self.options.mesh.map(|mesh| op_sharding(mesh, &spec_of(info, local)))
    }

    fn placed(
        &mut self,
        target: &str,
        ty: &TensorType,
        operand: InstructionId,
        sharding: proto::OpSharding,
    ) -> InstructionId {
        let instruction = self.writer.begin("custom-call", ty, &[operand]);
        instruction.custom_call_target.push_str(target);
        instruction.sharding = Some(sharding.into());
        self.writer.commit()
    }

    fn open(&mut self) {
        self.writer.open_computation();
        self.constants.push(FxHashMap::default());
        self.places.push(None);
        self.last_collective.push(None);
    }

    fn close(&mut self, name: &str, root: InstructionId, result: EncodedShape) -> (ComputationId, Vec<u8>) {
        self.constants.pop();
        self.places.pop();
        let communicates = self.last_collective.pop().flatten().is_some();
        let closed = self.writer.close_computation(name, root, result);
        if communicates {
            self.communicating.insert(closed.0);
        }
        closed
    }

    /// Makes the instruction begun, which communicates, wait for the last one before it that does.
    ///
    /// Devices that take collectives in different orders each block a thread of XLA's CPU runtime for each collective
    /// that they are in, and wait forever when no thread is left. The runtime takes them in the order of the schedule,
    /// except for those in loops and branches: one more of these may run at a time, and the CPU client of
    /// `meshloom-pjrt` has the threads for that.
    pub(super) fn in_order(&mut self) {
        let id = self.writer.next_id();
        let Some(last) = self.last_collective.last_mut() else {
            self.defect.get_or_insert(InternalError::new(self.op_name, "an open computation to communicate in"));
            return;
        };
        let before = last.replace(id);
        if !self.options.overlap_collectives {
            self.writer.attributes().control_predecessor_ids.extend(before);
        }
    }

    /// As [`Emitter::in_order`], for an instruction that communicates if one of these computations does.
    pub(super) fn in_order_if(&mut self, computations: &[ComputationId]) {
        if computations.iter().any(|computation| self.communicating.contains(computation)) {
            self.in_order();
        }
    }

    /// Writes the nodes of `graph` into the open computation; returns the instructions of its outputs.
    fn body(&mut self, graph: &Graph, inputs: &[InstructionId]) -> Ids {
        let mut ids: Vec<InstructionId> = vec![UNSET; graph.value_count()];
        for (&input, &id) in graph.inputs().iter().zip(inputs) {
            ids[input.index()] = id;
        }
        for node in graph.nodes() {
            let operands: Ids = node.operands().iter().map(|value| ids[value.index()]).collect();
            let results = self.node(graph, node, &operands);
            if results.len() != node.results().len() || results.contains(&UNSET) {
                let error = InternalError::new(node.op().name(), "an instruction for each of its results");
                self.defect.get_or_insert(error.at(node.origin()));
            }
            for (value, id) in node.results().zip(results) {
                ids[value.index()] = id;
            }
        }
        graph.outputs().iter().map(|output| ids[output.index()]).collect()
    }

    fn node(&mut self, graph: &Graph, node: NodeRef<'_>, operands: &[InstructionId]) -> Ids {
        self.origin = node.origin().inside(self.phase);
        self.op_name = node.op().name();
        match node.op().region_kind() {
            Some(RegionKind::Call(call)) => self.call(call, operands),
            Some(RegionKind::Checkpoint(checkpoint)) => self.region(&checkpoint.body, operands),
            Some(RegionKind::Cond(cond)) => self.cond(graph, node, cond, operands),
            Some(RegionKind::CustomVjp(custom)) => self.region(&custom.primal, operands),
            Some(RegionKind::Scan(scan)) => self.scan(graph, node, scan, operands),
            Some(RegionKind::While(op)) => self.while_loop(op, operands),
            None => match node.op().as_primitive() {
                Some(primitive) => self.primitive(graph, node, primitive, operands),
                None => Ids::new(),
            },
        }
    }

    fn elements<'t>(&mut self, tuple: InstructionId, types: impl IntoIterator<Item = &'t TensorType>) -> Ids {
        types.into_iter().enumerate().map(|(index, ty)| self.element(tuple, index, ty)).collect()
    }

    fn element(&mut self, tuple: InstructionId, index: usize, ty: &TensorType) -> InstructionId {
        self.begin("get-tuple-element", ty, &[tuple]).tuple_index = index as i64;
        self.writer.commit()
    }

    fn begin(&mut self, opcode: &str, ty: &TensorType, operands: &[InstructionId]) -> &mut HloInstructionProto {
        self.writer.begin(opcode, ty, operands);
        self.describe();
        self.writer.attributes()
    }

    /// One instruction without attributes.
    fn instruction(&mut self, opcode: &str, ty: &TensorType, operands: &[InstructionId]) -> InstructionId {
        self.begin(opcode, ty, operands);
        self.writer.commit()
    }

    fn tuple(&mut self, types: &[&TensorType], values: &[InstructionId]) -> InstructionId {
        self.begin_tuple("tuple", types.iter().copied(), values);
        self.writer.commit()
    }

    /// Closes the innermost open computation with a tuple of values of these types for its result.
    fn close_with(&mut self, name: &str, types: &[&TensorType], values: &[InstructionId]) -> ComputationId {
        let root = self.tuple(types, values);
        let result = self.writer.tuple_shape(types.iter().copied());
        self.close(name, root, result).0
    }

    fn begin_tuple<'t>(
        &mut self,
        opcode: &str,
        types: impl IntoIterator<Item = &'t TensorType>,
        operands: &[InstructionId],
    ) -> &mut HloInstructionProto {
        self.writer.begin_tuple(opcode, types, operands);
        self.describe();
        self.writer.attributes()
    }

    /// States the origin of the instruction begun.
    fn describe(&mut self) {
        if self.options.omit_metadata {
            return;
        }
        let phase = self.origin.phase.prefix();
        let path = self.paths.entry(self.origin.scope).or_insert_with_key(|scope| match scope.path() {
            path if path.is_empty() => path,
            path => path + "/",
        });
        let place = self.origin.place.map(|place| (place.file(), place.line()));
        let source = place.as_ref().map_or(("", 0), |(file, line)| (&**file, *line));
        self.writer.set_metadata(Metadata { op_type: self.op_name, op_name: [phase, path, self.op_name], source });
    }

    /// A scalar constant of the open computation, written once.
    fn scalar_constant(&mut self, dtype: DType, bytes: &[u8]) -> InstructionId {
        let mut key = [0; 8];
        key[..bytes.len()].copy_from_slice(bytes);
        let key = (dtype, u64::from_le_bytes(key));
        if let Some(&id) = self.constants.last().and_then(|constants| constants.get(&key)) {
            return id;
        }
        let ty = TensorType::scalar(dtype);
        self.writer.begin("constant", &ty, &[]).literal = Some(literal_proto(&ty, bytes).into());
        let id = self.writer.commit();
        if let Some(constants) = self.constants.last_mut() {
            constants.insert(key, id);
        }
        id
    }

    fn number(&mut self, dtype: DType, number: f64) -> InstructionId {
        self.scalar_constant(dtype, &number_bytes(dtype, number)[..dtype.byte_count()])
    }

    /// The computation of a variadic reduce over (value, position): the better value, or the lower position of equals.
    fn arg_reduce_combiner(&mut self, better: &str, dtype: DType) -> ComputationId {
        let (value, index) = (TensorType::scalar(dtype), TensorType::scalar(DType::S32));
        let flag = TensorType::scalar(DType::Pred);
        self.open();
        let types = [(&value, "best"), (&index, "best_index"), (&value, "next"), (&index, "next_index")];
        let [best, best_index, next, next_index] = types.map(|(ty, name)| {
            self.writer.parameter(ty, name);
            self.writer.commit()
        });
        let writer = &mut self.writer;
        let better = writer.compare(better, dtype, [best, next]);
        // Only NaN differs from itself; it counts as extreme, as in a plain max or min.
        let is_nan = writer.compare("NE", dtype, [best, best]);
        let keep = writer.instruction("or", &flag, &[better, is_nan]);
        let equal = writer.compare("EQ", dtype, [best, next]);
        let earlier = writer.compare("LT", DType::S32, [best_index, next_index]);
        let tie = writer.instruction("and", &flag, &[equal, earlier]);
        let keep_index = writer.instruction("or", &flag, &[keep, tie]);
        let chosen = writer.instruction("select", &value, &[keep, best, next]);
        let chosen_index = writer.instruction("select", &index, &[keep_index, best_index, next_index]);
        self.writer.begin_tuple("tuple", [&value, &index], &[chosen, chosen_index]);
        let root = self.writer.commit();
        let result = self.writer.tuple_shape([&value, &index]);
        self.close("arg_reduce", root, result).0
    }
}

/// The sharding of a port's value: whole on every device, unless the port says otherwise.
fn spec_of(info: &PortInfo, ty: &TensorType) -> Spec {
    info.spec.clone().unwrap_or_else(|| Spec::replicated(ty.rank()))
}

/// A name that HLO text takes for an identifier.
fn sanitize(name: &str) -> String {
    let mut clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    if !clean.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        clean.insert(0, '_');
    }
    clean
}
