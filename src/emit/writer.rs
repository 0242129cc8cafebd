//! Writing an `HloModuleProto` instruction by instruction.
//!
//! A module of a large model has tens of thousands of instructions. Each is built in one scratch message and encoded at
//! once into the bytes of its computation, so the module never exists in memory as messages.

use std::fmt::Write;
use std::ops::Range;

use prost::Message;
use prost::encoding::{WireType, encoded_len_varint};
use rustc_hash::FxHashMap;

use meshloom_hlo::proto::{self, HloInstructionProto, LiteralProto, ShapeProto};
use meshloom_hlo::shape;

use crate::ir::{DType, TensorType};
use crate::ops::{ComputationId, InstructionId};

/// A computation being written: its instructions, encoded.
struct Computation {
    id: ComputationId,
    bytes: Vec<u8>,
    parameters: Vec<(EncodedShape, String)>,
}

/// Where an encoded shape lies among those of the module.
pub(super) type EncodedShape = Range<usize>;

/// The origin of an instruction, as its metadata states it.
#[derive(Clone, Copy, Default)]
pub(super) struct Metadata<'a> {
    /// Name of the op it was emitted for.
    pub(super) op_type: &'a str,
    /// Parts of the path of that op, which are joined without separator.
    pub(super) op_name: [&'a str; 3],
    /// Source file and line; 0 for none.
    pub(super) source: (&'a str, u32),
}

/// The fields that every instruction has. They are kept apart from the scratch message, so that its hundred other
/// fields cost little.
#[derive(Default)]
struct Common {
    opcode: String,
    /// The name of the instruction, if it has one of its own; otherwise it is named after opcode and id.
    name: String,
    operands: Vec<InstructionId>,
    shape: EncodedShape,
    metadata: Vec<u8>,
}

/// Writes a module's computations, innermost first.
#[derive(Default)]
pub struct ModuleWriter {
    common: Common,
    scratch: HloInstructionProto,
    /// Encoded shapes, back to back: a module has few different ones.
    shapes: Vec<u8>,
    known_shapes: FxHashMap<TensorType, EncodedShape>,
    open: Vec<Computation>,
    done: Vec<u8>,
    /// The instructions and computations so far. The first of each has the id 1: XLA takes 0 for "not set".
    instructions: InstructionId,
    computations: ComputationId,
    combiners: FxHashMap<(&'static str, DType), ComputationId>,
}

// Field numbers of hlo.proto and xla_data.proto that are written by hand: computations because their contents are
// streamed, and shapes, tables and the fields of every instruction because they are written so often.
const INSTRUCTION_NAME: u32 = 1;
const INSTRUCTION_OPCODE: u32 = 2;
const INSTRUCTION_SHAPE: u32 = 3;
const INSTRUCTION_METADATA: u32 = 7;
const INSTRUCTION_LITERAL: u32 = 8;
const INSTRUCTION_ID: u32 = 35;
const INSTRUCTION_OPERANDS: u32 = 36;
const LITERAL_S32S: u32 = 4;
const SHAPE_ELEMENT_TYPE: u32 = 2;
const SHAPE_TUPLE_SHAPES: u32 = 4;
const METADATA_OP_TYPE: u32 = 1;
const METADATA_OP_NAME: u32 = 2;
const METADATA_SOURCE_FILE: u32 = 3;
const METADATA_SOURCE_LINE: u32 = 4;
const PROGRAM_PARAMETERS: u32 = 1;
const PROGRAM_RESULT: u32 = 2;
const PROGRAM_PARAMETER_NAMES: u32 = 3;
const COMPUTATION_NAME: u32 = 1;
const COMPUTATION_INSTRUCTIONS: u32 = 2;
const COMPUTATION_PROGRAM_SHAPE: u32 = 4;
const COMPUTATION_ID: u32 = 5;
const COMPUTATION_ROOT_ID: u32 = 6;
const MODULE_COMPUTATIONS: u32 = 3;
pub(super) const MODULE_HOST_PROGRAM_SHAPE: u32 = 4;

// prost hands a buffer the bytes of a varint one by one, each as a slice, which costs several calls a byte where buffer
// and caller are in different codegen units. Fields that are written often are therefore written here.

#[inline]
fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_key(field: u32, wire_type: WireType, out: &mut Vec<u8>) {
    put_varint((field << 3 | wire_type as u32).into(), out);
}

pub(super) fn put_bytes(field: u32, bytes: &[u8], out: &mut Vec<u8>) {
    put_key(field, WireType::LengthDelimited, out);
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn put_packed(field: u32, numbers: impl Iterator<Item = u64> + Clone, out: &mut Vec<u8>) {
    put_key(field, WireType::LengthDelimited, out);
    let mut length = 0;
    for number in numbers.clone() {
        length += encoded_len_varint(number);
    }
    put_varint(length as u64, out);
    out.reserve(length);
    for number in numbers {
        put_varint(number, out);
    }
}

fn put_literal(field: u32, mut literal: LiteralProto, out: &mut Vec<u8>) {
    // Tables of positions have thousands of numbers, and these are of this type.
    let numbers = std::mem::take(&mut literal.s32s);
    let numbers = numbers.iter().map(|&number| number as u64);
    let mut table = Vec::new();
    if numbers.len() > 0 {
        put_packed(LITERAL_S32S, numbers, &mut table);
    }
    put_key(field, WireType::LengthDelimited, out);
    put_varint((literal.encoded_len() + table.len()) as u64, out);
    // The buffer grows as needed, so encoding cannot run out of room.
    literal.encode_raw(out);
    out.extend_from_slice(&table);
}

fn put_number(field: u32, number: i64, out: &mut Vec<u8>) {
    put_key(field, WireType::Varint, out);
    put_varint(number as u64, out);
}

impl ModuleWriter {
    pub(super) fn next_id(&self) -> InstructionId {
        self.instructions + 1
    }

    /// Number of instructions written so far.
    pub(super) fn instruction_count(&self) -> usize {
        self.instructions as usize
    }

    /// Opens a computation; instructions go to the innermost open one.
    pub(super) fn open_computation(&mut self) {
        self.computations += 1;
        self.open.push(Computation { id: self.computations, bytes: Vec::new(), parameters: Vec::new() });
    }

    /// Closes the innermost open computation; also returns its program shape, encoded.
    pub(super) fn close_computation(
        &mut self,
        name: &str,
        root: InstructionId,
        result: EncodedShape,
    ) -> (ComputationId, Vec<u8>) {
        let mut program = Vec::new();
        let Some(computation) = self.open.pop() else { return (0, program) };
        for (shape, _) in &computation.parameters {
            put_bytes(PROGRAM_PARAMETERS, &self.shapes[shape.clone()], &mut program);
        }
        put_bytes(PROGRAM_RESULT, &self.shapes[result], &mut program);
        for (_, name) in &computation.parameters {
            put_bytes(PROGRAM_PARAMETER_NAMES, name.as_bytes(), &mut program);
        }
        // Instructions were written with their own keys, so the computation's other fields go around them.
        let mut head = Vec::new();
        put_bytes(COMPUTATION_NAME, format!("{name}.{}", computation.id).as_bytes(), &mut head);
        let mut tail = Vec::new();
        put_bytes(COMPUTATION_PROGRAM_SHAPE, &program, &mut tail);
        put_number(COMPUTATION_ID, computation.id, &mut tail);
        put_number(COMPUTATION_ROOT_ID, root, &mut tail);
        let length = head.len() + computation.bytes.len() + tail.len();
        put_key(MODULE_COMPUTATIONS, WireType::LengthDelimited, &mut self.done);
        put_varint(length as u64, &mut self.done);
        self.done.extend_from_slice(&head);
        self.done.extend_from_slice(&computation.bytes);
        self.done.extend_from_slice(&tail);
        (computation.id, program)
    }

    /// All closed computations, as encoded fields of a module.
    pub(super) fn into_computations(self) -> Vec<u8> {
        self.done
    }

    /// Starts an instruction; its attributes go into the message returned. [`ModuleWriter::commit`] writes it.
    pub(super) fn begin(
        &mut self,
        opcode: &str,
        ty: &TensorType,
        operands: &[InstructionId],
    ) -> &mut HloInstructionProto {
        let shape = self.shape(ty);
        self.begin_any(opcode, shape, operands)
    }

    /// As [`ModuleWriter::begin`], for an instruction whose result is a tuple.
    pub(super) fn begin_tuple<'t>(
        &mut self,
        opcode: &str,
        types: impl IntoIterator<Item = &'t TensorType>,
        operands: &[InstructionId],
    ) -> &mut HloInstructionProto {
        let shape = self.tuple_shape(types);
        self.begin_any(opcode, shape, operands)
    }

    /// One instruction without attributes.
    pub(super) fn instruction(&mut self, opcode: &str, ty: &TensorType, operands: &[InstructionId]) -> InstructionId {
        self.begin(opcode, ty, operands);
        self.commit()
    }

    pub(super) fn compare(&mut self, direction: &str, dtype: DType, operands: [InstructionId; 2]) -> InstructionId {
        let instruction = self.begin("compare", &TensorType::scalar(DType::Pred), &operands);
        instruction.comparison_direction.push_str(direction);
        instruction.comparison_type.push_str(dtype.comparison_type());
        self.commit()
    }

    /// The shape of a dense tensor.
    pub(super) fn shape(&mut self, ty: &TensorType) -> EncodedShape {
        if let Some(known) = self.known_shapes.get(ty) {
            return known.clone();
        }
        let shape = self.put_shape(&shape(ty));
        self.known_shapes.insert(ty.clone(), shape.clone());
        shape
    }

    pub(super) fn tuple_shape<'t>(&mut self, types: impl IntoIterator<Item = &'t TensorType>) -> EncodedShape {
        let parts: Vec<_> = types.into_iter().map(|ty| self.shape(ty)).collect();
        let start = self.shapes.len();
        put_number(SHAPE_ELEMENT_TYPE, proto::PrimitiveType::Tuple as i64, &mut self.shapes);
        for part in parts {
            put_key(SHAPE_TUPLE_SHAPES, WireType::LengthDelimited, &mut self.shapes);
            put_varint(part.len() as u64, &mut self.shapes);
            self.shapes.extend_from_within(part);
        }
        start..self.shapes.len()
    }

    pub(super) fn put_shape(&mut self, shape: &ShapeProto) -> EncodedShape {
        let start = self.shapes.len();
        // The buffer grows as needed, so encoding cannot run out of room.
        shape.encode_raw(&mut self.shapes);
        start..self.shapes.len()
    }

    fn begin_any(&mut self, opcode: &str, shape: EncodedShape, operands: &[InstructionId]) -> &mut HloInstructionProto {
        let common = &mut self.common;
        common.opcode.clear();
        common.opcode.push_str(opcode);
        common.name.clear();
        common.operands.clear();
        common.operands.extend_from_slice(operands);
        common.shape = shape;
        common.metadata.clear();
        self.scratch.clear();
        &mut self.scratch
    }

    pub(super) fn attributes(&mut self) -> &mut HloInstructionProto {
        &mut self.scratch
    }

    /// Gives the instruction begun another shape: one with a layout of its own.
    pub(super) fn set_shape(&mut self, shape: &ShapeProto) {
        self.common.shape = self.put_shape(shape);
    }

    /// Names the instruction begun; unnamed ones are called `opcode.id`.
    pub(super) fn set_name(&mut self, name: &str) {
        self.common.name.clear();
        self.common.name.push_str(name);
    }

    /// States the origin of the instruction begun.
    pub(super) fn set_metadata(&mut self, metadata: Metadata<'_>) {
        let out = &mut self.common.metadata;
        out.clear();
        if !metadata.op_type.is_empty() {
            put_bytes(METADATA_OP_TYPE, metadata.op_type.as_bytes(), out);
        }
        put_key(METADATA_OP_NAME, WireType::LengthDelimited, out);
        put_varint(metadata.op_name.iter().map(|part| part.len() as u64).sum(), out);
        metadata.op_name.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        if metadata.source.1 > 0 {
            put_bytes(METADATA_SOURCE_FILE, metadata.source.0.as_bytes(), out);
            put_number(METADATA_SOURCE_LINE, metadata.source.1.into(), out);
        }
    }

    /// Numbers and writes the instruction begun.
    pub(super) fn commit(&mut self) -> InstructionId {
        self.instructions += 1;
        let id = self.instructions;
        let Common { opcode, name, operands, shape, metadata } = &mut self.common;
        if name.is_empty() {
            name.push_str(opcode);
            // Writing to a string cannot fail.
            let _ = write!(name, ".{id}");
        }
        let Some(computation) = self.open.last_mut() else { return id };
        let out = &mut computation.bytes;
        // The length stands before the instruction but is known only after it. Room is left for it: as many bytes as
        // any length below 2^28 takes.
        const LENGTH_BYTES: usize = 4;
        put_key(COMPUTATION_INSTRUCTIONS, WireType::LengthDelimited, out);
        let length_at = out.len();
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        put_bytes(INSTRUCTION_NAME, name.as_bytes(), out);
        put_bytes(INSTRUCTION_OPCODE, opcode.as_bytes(), out);
        put_bytes(INSTRUCTION_SHAPE, &self.shapes[shape.clone()], out);
        if !metadata.is_empty() {
            put_bytes(INSTRUCTION_METADATA, metadata, out);
        }
        put_number(INSTRUCTION_ID, id, out);
        if !operands.is_empty() {
            put_packed(INSTRUCTION_OPERANDS, operands.iter().map(|&operand| operand as u64), out);
        }
        if let Some(literal) = self.scratch.literal.take() {
            put_literal(INSTRUCTION_LITERAL, *literal, out);
        }
        // The buffer grows as needed, so encoding cannot run out of room.
        self.scratch.encode_raw(out);
        let mut length = out.len() - length_at - LENGTH_BYTES;
        if length >> (7 * LENGTH_BYTES) == 0 {
            for (index, byte) in out[length_at..length_at + LENGTH_BYTES].iter_mut().enumerate() {
                // Every byte but the last says that another follows.
                *byte = (length & 0x7f) as u8 | if index + 1 < LENGTH_BYTES { 0x80 } else { 0 };
                length >>= 7;
            }
        } else {
            // A constant of over 256 MiB: rare enough to move it.
            let mut prefix = Vec::new();
            put_varint(length as u64, &mut prefix);
            out.splice(length_at..length_at + LENGTH_BYTES, prefix);
        }
        id
    }

    /// Starts an instruction of another module, with its own shape. A parameter is added to the innermost open
    /// computation.
    pub(super) fn begin_foreign(
        &mut self,
        opcode: &str,
        shape: &ShapeProto,
        operands: &[InstructionId],
    ) -> &mut HloInstructionProto {
        let shape = self.put_shape(shape);
        if let (Some(computation), "parameter") = (self.open.last_mut(), opcode) {
            computation.parameters.push((shape.clone(), String::new()));
        }
        self.begin_any(opcode, shape, operands)
    }

    /// Adds a parameter to the innermost open computation.
    pub(super) fn parameter(&mut self, ty: &TensorType, name: &str) -> &mut HloInstructionProto {
        let shape = self.shape(ty);
        let number = self.open.last_mut().map_or(0, |computation| {
            computation.parameters.push((shape.clone(), name.to_owned()));
            computation.parameters.len() - 1
        });
        let instruction = self.begin_any("parameter", shape, &[]);
        instruction.parameter_number = number as i64;
        instruction
    }

    /// Adds the only parameter, a tuple, to the innermost open computation.
    pub(super) fn tuple_parameter(&mut self, types: &[&TensorType], name: &str) -> &mut HloInstructionProto {
        let shape = self.tuple_shape(types.iter().copied());
        if let Some(computation) = self.open.last_mut() {
            computation.parameters.push((shape.clone(), name.to_owned()));
        }
        self.begin_any("parameter", shape, &[])
    }

    /// A computation of two scalars by one opcode, as reduce and scatter need; one for each opcode and type.
    pub(super) fn combiner(&mut self, opcode: &'static str, dtype: DType) -> ComputationId {
        let ty = TensorType::scalar(dtype);
        self.scalar_computation(opcode, dtype, |writer, operands| writer.instruction(opcode, &ty, &operands))
    }

    /// A computation of two scalars that returns the second.
    pub(super) fn replacer(&mut self, dtype: DType) -> ComputationId {
        self.scalar_computation("replace", dtype, |_, [_, update]| update)
    }

    /// A computation of two scalars of one type, which is written once; `body` gives its root.
    pub(super) fn scalar_computation(
        &mut self,
        name: &'static str,
        dtype: DType,
        body: impl FnOnce(&mut ModuleWriter, [InstructionId; 2]) -> InstructionId,
    ) -> ComputationId {
        if let Some(&id) = self.combiners.get(&(name, dtype)) {
            return id;
        }
        let ty = TensorType::scalar(dtype);
        self.open_computation();
        let operands = ["lhs", "rhs"].map(|parameter| {
            self.parameter(&ty, parameter);
            self.commit()
        });
        let root = body(self, operands);
        let result = self.shape(&ty);
        let (id, _) = self.close_computation(&format!("{name}_{dtype}"), root, result);
        self.combiners.insert((name, dtype), id);
        id
    }
}
