//! Writing an `HloModuleProto` instruction by instruction.
//!
//! A module of a large model has tens of thousands of instructions. Each is put together in one scratch message and
//! encoded at once into the bytes of its computation, so that a module never stands in memory as messages.

use std::fmt::Write;

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use rustc_hash::FxHashMap;

use super::proto::{self, HloInstructionProto, ShapeProto};
use crate::ir::{DType, TensorType};

/// Id of an instruction, unique in its module.
pub type InstructionId = i64;

/// Id of a computation, unique in its module.
pub type ComputationId = i64;

/// A computation being written: its instructions, encoded.
struct Computation {
    id: ComputationId,
    bytes: Vec<u8>,
    parameters: Vec<(TensorType, String)>,
    /// Set instead of `parameters` where the only parameter is a tuple, as in a loop.
    tuple_parameter: Option<(ShapeProto, String)>,
}

/// Writes a module's computations, innermost first.
pub struct ModuleWriter {
    scratch: HloInstructionProto,
    open: Vec<Computation>,
    done: Vec<u8>,
    next_instruction: InstructionId,
    next_computation: ComputationId,
    combiners: FxHashMap<(&'static str, DType), ComputationId>,
    instruction_count: usize,
}

// Field numbers of hlo.proto that are written by hand because their contents are streamed.
const COMPUTATION_NAME: u32 = 1;
const COMPUTATION_INSTRUCTIONS: u32 = 2;
const COMPUTATION_PROGRAM_SHAPE: u32 = 4;
const COMPUTATION_ID: u32 = 5;
const COMPUTATION_ROOT_ID: u32 = 6;
pub(super) const MODULE_COMPUTATIONS: u32 = 3;

pub(super) fn put_bytes(field: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn put_message(field: u32, message: &impl Message, out: &mut Vec<u8>) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(message.encoded_len() as u64, out);
    // The buffer grows as needed, so encoding cannot run out of room.
    message.encode_raw(out);
}

fn put_number(field: u32, number: i64, out: &mut Vec<u8>) {
    encode_key(field, WireType::Varint, out);
    encode_varint(number as u64, out);
}

impl ModuleWriter {
    pub(super) fn new() -> ModuleWriter {
        ModuleWriter {
            scratch: HloInstructionProto::default(),
            open: Vec::new(),
            done: Vec::new(),
            // XLA takes 0 for "not set".
            next_instruction: 1,
            next_computation: 1,
            combiners: FxHashMap::default(),
            instruction_count: 0,
        }
    }

    /// The id that the next committed instruction gets.
    pub(super) fn next_id(&self) -> InstructionId {
        self.next_instruction
    }

    /// Number of instructions written so far.
    pub(super) fn instruction_count(&self) -> usize {
        self.instruction_count
    }

    /// Opens a computation; instructions go to the innermost open one.
    pub(super) fn open_computation(&mut self) {
        let id = self.next_computation;
        self.next_computation += 1;
        self.open.push(Computation { id, bytes: Vec::new(), parameters: Vec::new(), tuple_parameter: None });
    }

    /// Closes the innermost open computation.
    pub(super) fn close_computation(
        &mut self,
        name: &str,
        root: InstructionId,
        result: ShapeProto,
    ) -> (ComputationId, proto::ProgramShapeProto) {
        let Some(computation) = self.open.pop() else {
            return (0, proto::ProgramShapeProto::default());
        };
        let parameters = computation.parameters.iter().map(|(ty, name)| (shape(ty), name.clone()));
        let (shapes, names) = parameters.chain(computation.tuple_parameter).unzip();
        let program = proto::ProgramShapeProto { parameters: shapes, parameter_names: names, result: Some(result) };
        // Instructions were written with their own keys, so the computation's other fields go around them.
        let mut head = Vec::new();
        put_bytes(COMPUTATION_NAME, format!("{name}.{}", computation.id).as_bytes(), &mut head);
        let mut tail = Vec::new();
        put_message(COMPUTATION_PROGRAM_SHAPE, &program, &mut tail);
        put_number(COMPUTATION_ID, computation.id, &mut tail);
        put_number(COMPUTATION_ROOT_ID, root, &mut tail);
        let length = head.len() + computation.bytes.len() + tail.len();
        encode_key(MODULE_COMPUTATIONS, WireType::LengthDelimited, &mut self.done);
        encode_varint(length as u64, &mut self.done);
        self.done.extend_from_slice(&head);
        self.done.extend_from_slice(&computation.bytes);
        self.done.extend_from_slice(&tail);
        (computation.id, program)
    }

    /// All closed computations, as encoded fields of a module.
    pub(super) fn into_computations(self) -> Vec<u8> {
        self.done
    }

    /// Starts an instruction in the scratch message. [`ModuleWriter::commit`] writes it.
    pub(super) fn begin(
        &mut self,
        opcode: &str,
        ty: &TensorType,
        operands: &[InstructionId],
    ) -> &mut HloInstructionProto {
        let (element_type, dims) = (element_type(ty.dtype), &ty.dims);
        let instruction = self.begin_any(opcode, operands);
        let shape = instruction.shape.get_or_insert_with(ShapeProto::default);
        shape.element_type = element_type;
        shape.dimensions.extend(dims.iter().map(|&size| size as i64));
        shape.is_dynamic_dimension.extend(dims.iter().map(|_| false));
        let layout = shape.layout.get_or_insert_with(Default::default);
        layout.minor_to_major.extend((0..dims.len() as i64).rev());
        instruction
    }

    /// As [`ModuleWriter::begin`], for an instruction whose result is a tuple.
    pub(super) fn begin_tuple<'t>(
        &mut self,
        opcode: &str,
        types: impl IntoIterator<Item = &'t TensorType>,
        operands: &[InstructionId],
    ) -> &mut HloInstructionProto {
        let result = tuple_shape(types);
        let instruction = self.begin_any(opcode, operands);
        instruction.shape = Some(result);
        instruction
    }

    fn begin_any(&mut self, opcode: &str, operands: &[InstructionId]) -> &mut HloInstructionProto {
        self.reset();
        let instruction = &mut self.scratch;
        instruction.opcode.push_str(opcode);
        instruction.operand_ids.extend_from_slice(operands);
        instruction
    }

    /// Empties the scratch message, keeping what it has allocated for what every instruction has.
    fn reset(&mut self) {
        let mut shape = self.scratch.shape.take();
        let mut metadata = self.scratch.metadata.take();
        self.scratch.clear();
        if let Some(shape) = &mut shape {
            let mut layout = shape.layout.take();
            shape.clear();
            if let Some(layout) = &mut layout {
                layout.clear();
            }
            shape.layout = layout;
        }
        if let Some(metadata) = &mut metadata {
            metadata.clear();
        }
        self.scratch.shape = shape;
        self.scratch.metadata = metadata;
    }

    /// Names, numbers and writes the scratch message.
    pub(super) fn commit(&mut self) -> InstructionId {
        let id = self.next_instruction;
        self.next_instruction += 1;
        self.instruction_count += 1;
        self.scratch.id = id;
        if self.scratch.name.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(self.scratch.name, "{}.{id}", self.scratch.opcode);
        }
        if let Some(computation) = self.open.last_mut() {
            let length = self.scratch.encoded_len();
            computation.bytes.reserve(length + encoded_len_varint(length as u64) + 2);
            encode_key(COMPUTATION_INSTRUCTIONS, WireType::LengthDelimited, &mut computation.bytes);
            encode_varint(length as u64, &mut computation.bytes);
            self.scratch.encode_raw(&mut computation.bytes);
        }
        id
    }

    /// Adds a parameter to the innermost open computation.
    pub(super) fn parameter(&mut self, ty: &TensorType, name: &str) -> &mut HloInstructionProto {
        let number = self.open.last_mut().map_or(0, |computation| {
            computation.parameters.push((ty.clone(), name.to_owned()));
            computation.parameters.len() - 1
        });
        let instruction = self.begin("parameter", ty, &[]);
        instruction.parameter_number = number as i64;
        instruction
    }

    /// Adds the only parameter, a tuple, to the innermost open computation.
    pub(super) fn tuple_parameter(&mut self, types: &[&TensorType], name: &str) -> &mut HloInstructionProto {
        if let Some(computation) = self.open.last_mut() {
            computation.tuple_parameter = Some((tuple_shape(types.iter().copied()), name.to_owned()));
        }
        self.begin_tuple("parameter", types.iter().copied(), &[])
    }

    /// A computation of two scalars by one opcode, as reduce and scatter need; one for each opcode and type.
    pub(super) fn combiner(&mut self, opcode: &'static str, dtype: DType) -> ComputationId {
        if let Some(&id) = self.combiners.get(&(opcode, dtype)) {
            return id;
        }
        let ty = TensorType::scalar(dtype);
        self.open_computation();
        self.parameter(&ty, "lhs");
        let lhs = self.commit();
        self.parameter(&ty, "rhs");
        let rhs = self.commit();
        self.begin(opcode, &ty, &[lhs, rhs]);
        let root = self.commit();
        let (id, _) = self.close_computation(&format!("{opcode}_{dtype}"), root, shape(&ty));
        self.combiners.insert((opcode, dtype), id);
        id
    }
}

/// XLA's number for an element type (`PrimitiveType` in xla_data.proto).
pub fn element_type(dtype: DType) -> i32 {
    use proto::PrimitiveType as P;
    let ty = match dtype {
        DType::Pred => P::Pred,
        DType::S8 => P::S8,
        DType::S16 => P::S16,
        DType::S32 => P::S32,
        DType::S64 => P::S64,
        DType::U8 => P::U8,
        DType::U16 => P::U16,
        DType::U32 => P::U32,
        DType::U64 => P::U64,
        DType::BF16 => P::Bf16,
        DType::F16 => P::F16,
        DType::F32 => P::F32,
        DType::F64 => P::F64,
    };
    ty.into()
}

/// A dense row-major shape.
pub fn shape(ty: &TensorType) -> ShapeProto {
    ShapeProto {
        element_type: element_type(ty.dtype),
        dimensions: ty.dims.iter().map(|&size| size as i64).collect(),
        is_dynamic_dimension: vec![false; ty.rank()],
        layout: Some(
            proto::LayoutProto {
                minor_to_major: (0..ty.rank() as i64).rev().collect(),
                ..proto::LayoutProto::default()
            }
            .into(),
        ),
        ..ShapeProto::default()
    }
}

/// The shape of a tuple of dense tensors.
pub fn tuple_shape<'t>(types: impl IntoIterator<Item = &'t TensorType>) -> ShapeProto {
    ShapeProto {
        element_type: proto::PrimitiveType::Tuple.into(),
        tuple_shapes: types.into_iter().map(shape).collect(),
        ..ShapeProto::default()
    }
}

/// A dense literal.
pub fn literal(ty: &TensorType, bytes: &[u8]) -> proto::LiteralProto {
    let mut literal = proto::LiteralProto { shape: Some(shape(ty)), ..proto::LiteralProto::default() };
    fn each<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.chunks_exact(N).map(|chunk| convert(std::array::from_fn(|index| chunk[index]))).collect()
    }
    match ty.dtype {
        DType::Pred => literal.preds = bytes.iter().map(|&byte| byte != 0).collect(),
        DType::S8 => literal.s8s = bytes.to_vec(),
        DType::U8 => literal.u8s = bytes.to_vec(),
        DType::S16 => literal.s16s = bytes.to_vec(),
        DType::U16 => literal.u16s = bytes.to_vec(),
        DType::BF16 => literal.bf16s = bytes.to_vec(),
        DType::F16 => literal.f16s = bytes.to_vec(),
        DType::S32 => literal.s32s = each(bytes, i32::from_le_bytes),
        DType::U32 => literal.u32s = each(bytes, u32::from_le_bytes),
        DType::S64 => literal.s64s = each(bytes, i64::from_le_bytes),
        DType::U64 => literal.u64s = each(bytes, u64::from_le_bytes),
        DType::F32 => literal.f32s = each(bytes, f32::from_le_bytes),
        DType::F64 => literal.f64s = each(bytes, f64::from_le_bytes),
    }
    literal
}
