//! Modules through StableHLO and back.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, LiteralProto, ShapeProto};
use meshloom::hlo::read::{self, Limits};
use meshloom::hlo::stablehlo::{WriteOptions, write, write_artifact};
use meshloom::hlo::text::{Layouts, TextOptions, print, print_shape};
use prost::Message;
use prost::encoding::{decode_key, decode_varint};

use crate::normal_hlo::normalize_instruction;

/// Writes a module as StableHLO and reads the text: what is read. Its portable artifact is read as the same.
///
/// # Errors
/// The module has no such text, the text is not read, or what is read has another text or computes something else.
pub fn round_trip(module: &HloModuleProto, options: &WriteOptions) -> Result<HloModuleProto, String> {
    let text = write(module, options).map_err(|error| error.to_string())?;
    let found = read::read(text.as_bytes(), &Limits::default()).map_err(|error| format!("{error}\n{text}"))?.module;
    let again = write(&found, options).map_err(|error| format!("{error}\n{text}"))?;
    if let Some((line, (before, after))) = text.lines().zip(again.lines()).enumerate().find(|(_, (a, b))| a != b) {
        return Err(format!("line {}:\n{before}\nis read and written as\n{after}\nin\n{text}", line + 1));
    }
    if again != text {
        return Err(format!("{text}\nis read and written as\n{again}"));
    }
    if meaning(module) != meaning(&found) {
        let hlo = |module: &HloModuleProto| print(module, &TextOptions::canonical());
        return Err(format!("{}\nin StableHLO\n{text}\nis read as\n{}", hlo(module), hlo(&found)));
    }
    // Ops of the dialect above StableHLO are in no artifact.
    if !text.contains("chlo.") {
        let artifact = write_artifact(module, options, None).map_err(|error| error.to_string())?;
        let same = read::read(&artifact, &Limits::default()).map_err(|error| format!("{error}\n{text}"))?.module;
        // An artifact states dictionaries that are empty, and its reader leaves them out; a text may state them too.
        let has_empty = ["backend_config = {}", "composite_attributes = {}"].iter().any(|empty| text.contains(empty));
        if !has_empty && meaning(&same) != meaning(&found) {
            let hlo = print(&same, &TextOptions::canonical());
            return Err(format!("{text}\nis as an artifact\n{hlo}"));
        }
    }
    Ok(found)
}

/// Returns a number for each result of a module, which is the same for modules that compute the same in the same way.
/// Names, the grouping into tuples, layouts, copies, barriers, and instructions that no result needs make no
/// difference.
pub fn meaning(module: &HloModuleProto) -> Vec<u64> {
    // Attributes that a text leaves out are stated as its reader states them.
    let text = print(module, &TextOptions::parseable());
    let module = parse(&text).unwrap_or_else(|error| panic!("{error}")).hlo_module.expect("a module");
    let computations = module.computations.iter().map(|computation| (computation.id, computation)).collect();
    Meaning { computations }.of_any_parameters(module.entry_computation_id)
}

struct Meaning<'m> {
    computations: HashMap<i64, &'m HloComputationProto>,
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn shape_of(instruction: &HloInstructionProto) -> &ShapeProto {
    instruction.shape.as_ref().expect("a shape")
}

/// The arrays in a shape, as text.
fn leaves(shape: &ShapeProto) -> Vec<String> {
    let text = print_shape(shape, Layouts::None);
    if text.starts_with('(') { shape.tuple_shapes.iter().flat_map(leaves).collect() } else { vec![text] }
}

/// Elements of a constant from which on one that is the same for all is a scalar that is broadcast.
const LARGE_SPLAT: usize = 32;

/// The field of a message that has the elements of a constant, and one of them, if they are all the same.
fn splat(literal: &LiteralProto, count: usize) -> Option<(u32, Vec<u8>)> {
    let bytes = LiteralProto { shape: None, ..literal.clone() }.encode_to_vec();
    let mut elements = bytes.as_slice();
    let (field, _) = decode_key(&mut elements).ok()?;
    decode_varint(&mut elements).ok()?;
    let mut each = elements.chunks(elements.len().checked_div(count).filter(|&width| width > 0)?);
    let first = each.next()?;
    each.all(|other| other == first).then(|| (field, first.to_vec()))
}

/// Returns the attributes of an instruction, without its operands and the computations that it calls.
fn attributes(instruction: &HloInstructionProto) -> Vec<u8> {
    let mut own = instruction.clone();
    normalize_instruction(&mut own);
    own.name.clear();
    own.id = 0;
    own.shape = None;
    own.operand_ids.clear();
    own.called_computation_ids.clear();
    own.control_predecessor_ids.clear();
    own.metadata = None;
    if own.opcode == "while" {
        // The backend config of a loop is its trip count, if that is known.
        own.backend_config.clear();
    }
    own.encode_to_vec()
}

impl Meaning<'_> {
    /// The results of a computation for parameters that are nothing but that.
    fn of_any_parameters(&self, id: i64) -> Vec<u64> {
        let mut parameters: Vec<&HloInstructionProto> =
            self.computations[&id].instructions.iter().filter(|it| it.opcode == "parameter").collect();
        parameters.sort_by_key(|parameter| parameter.parameter_number);
        let mut count = 0;
        let mut value = |shape: String| {
            count += 1;
            hash(("parameter", count, shape))
        };
        let values: Vec<Vec<u64>> = parameters
            .into_iter()
            .map(|parameter| leaves(shape_of(parameter)).into_iter().map(&mut value).collect())
            .collect();
        self.of(id, &values)
    }

    /// The results of a computation for values of its parameters.
    fn of(&self, id: i64, parameters: &[Vec<u64>]) -> Vec<u64> {
        let computation = self.computations[&id];
        let mut values: HashMap<i64, (&ShapeProto, Vec<u64>)> = HashMap::new();
        for instruction in &computation.instructions {
            let operands: Vec<Vec<u64>> = instruction.operand_ids.iter().map(|id| values[id].1.clone()).collect();
            let called = &instruction.called_computation_ids;
            let value = match instruction.opcode.as_str() {
                "parameter" => parameters[instruction.parameter_number as usize].clone(),
                "tuple" | "copy" | "opt-barrier" => operands.concat(),
                "get-tuple-element" => {
                    let (parts, at) = (&values[&instruction.operand_ids[0]].0.tuple_shapes, instruction.tuple_index);
                    let before: usize = parts[..at as usize].iter().map(|part| leaves(part).len()).sum();
                    operands[0][before..][..leaves(&parts[at as usize]).len()].to_vec()
                }
                "call" => self.of(called[0], &operands),
                "constant" => self.constant(instruction),
                "conditional" => {
                    let branches = called.iter().zip(&operands[1..]);
                    let branches = branches.map(|(&id, operand)| self.of(id, std::slice::from_ref(operand)));
                    self.results(instruction, &operands[..1], branches.collect())
                }
                _ => {
                    let called = called.iter().map(|&id| self.of_any_parameters(id)).collect();
                    self.results(instruction, &operands, called)
                }
            };
            values.insert(instruction.id, (shape_of(instruction), value));
        }
        values.remove(&computation.root_id).expect("a root").1
    }

    fn constant(&self, instruction: &HloInstructionProto) -> Vec<u64> {
        let shape = shape_of(instruction);
        let count = shape.dimensions.iter().product::<i64>() as usize;
        let one = instruction.literal.as_deref().and_then(|literal| splat(literal, count));
        let one = one.map(|one| vec![hash((one, shape.element_type))]);
        match one {
            Some(one) if shape.dimensions.is_empty() => one,
            Some(one) if count >= LARGE_SPLAT => {
                let (opcode, shape) = ("broadcast".to_owned(), instruction.shape.clone());
                self.results(&HloInstructionProto { opcode, shape, ..Default::default() }, &[one], Vec::new())
            }
            _ => self.results(instruction, &[], Vec::new()),
        }
    }

    fn results(&self, instruction: &HloInstructionProto, operands: &[Vec<u64>], called: Vec<Vec<u64>>) -> Vec<u64> {
        let all = hash((attributes(instruction), operands, called));
        leaves(shape_of(instruction)).into_iter().enumerate().map(|leaf| hash((all, leaf))).collect()
    }
}
