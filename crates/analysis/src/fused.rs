//! The values that a compiler will fuse into their readers, for a module that has not been compiled yet.
//!
//! Elementwise instructions and data movement are computed inside their readers, if all readers are of these kinds or
//! reductions, and if there is one reader or the instruction is cheap to repeat. An instruction that is not cheap is
//! computed in one kernel with all its readers where none of them needs another: XLA's multi-output fusion
//! (`multi_output_fusion.cc`).

use super::cost::is_by_element;
use super::index::Computation;
use meshloom_hlo::opcode;
use meshloom_hlo::proto::HloInstructionProto;

/// Returns for each instruction of a computation whether it is computed inside its readers, so that its value is never
/// in memory. Arithmetic is repeated for at most `most_readers` readers.
pub(super) fn computed_in_readers(computation: &Computation<'_>, most_readers: u32) -> Vec<bool> {
    let instructions = computation.instructions();
    let mut readers = vec![0u32; instructions.len()];
    let mut within = vec![true; instructions.len()];
    for reader in instructions {
        let opcode = reader.opcode.as_str();
        let absorbs = is_by_element(opcode) || moves_elements(opcode) || is_free(opcode) || is_fold(opcode);
        let operands: Vec<usize> = computation.operand_positions(reader).collect();
        for (nth, &operand) in operands.iter().enumerate() {
            // An instruction that reads it twice is one reader.
            readers[operand] += u32::from(operands.len() > 8 || !operands[..nth].contains(&operand));
            within[operand] &= absorbs;
        }
    }
    if let Some(root) = computation.position(computation.proto().root_id) {
        within[root] = false;
    }
    // Compilers do not compute an exponential twice.
    let most = |opcode: &str| if opcode::is_transcendental(opcode) { 1 } else { most_readers };
    let is_computed = |(position, instruction): (usize, &HloInstructionProto)| {
        let opcode = instruction.opcode.as_str();
        let fuses = is_by_element(opcode) || moves_elements(opcode);
        is_position(opcode, instruction.operand_ids.len())
            || within[position] && (is_free(opcode) || fuses && readers[position] <= most(opcode))
    };
    instructions.iter().enumerate().map(is_computed).collect()
}

/// Returns for each instruction of a computation whether it is computed in one kernel with all its readers, which has
/// their results as its own. It is false for those that are [computed inside](computed_in_readers) their readers
/// anyway.
pub(super) fn computed_with_readers(computation: &Computation<'_>, is_inside: &[bool]) -> Vec<bool> {
    let instructions = computation.instructions();
    let readers = computation.readers();
    let root = computation.position(computation.proto().root_id);
    let dimensions = |position: usize| instructions[position].shape.as_ref().map(|shape| &shape.dimensions);
    let joins = |position: usize, reader: usize| {
        let opcode = instructions[reader].opcode.as_str();
        is_fold(opcode) || is_by_element(opcode) && dimensions(reader) == dimensions(position)
    };
    // Whether one of the readers needs another, by way of the instructions between them.
    let depend = |readers: &[usize]| {
        let (Some(&first), Some(&last)) = (readers.first(), readers.last()) else { return false };
        let mut needs = vec![false; last - first + 1];
        (first..=last).any(|position| {
            let mut operands = computation.operand_positions(&instructions[position]);
            let needed = operands.any(|operand| operand >= first && needs[operand - first]);
            let is_reader = readers.contains(&position);
            needs[position - first] = needed || is_reader;
            needed && is_reader
        })
    };
    let is_computed = |(position, readers): (usize, &Vec<usize>)| {
        is_by_element(&instructions[position].opcode)
            && !is_inside[position]
            && Some(position) != root
            && readers.len() > 1
            && readers.iter().all(|&reader| joins(position, reader))
            && !depend(readers)
    };
    readers.iter().enumerate().map(is_computed).collect()
}

/// Whether an instruction costs nothing, whichever instruction reads it.
fn is_position(opcode: &str, operands: usize) -> bool {
    matches!(opcode, "iota" | "partition-id" | "replica-id") || opcode == "broadcast" && operands == 0
}

fn is_free(opcode: &str) -> bool {
    matches!(opcode, "reshape" | "broadcast" | "iota" | "constant" | "partition-id" | "replica-id")
}

fn moves_elements(opcode: &str) -> bool {
    matches!(opcode, "concatenate" | "dynamic-slice" | "gather" | "pad" | "reverse" | "slice" | "transpose")
}

fn is_fold(opcode: &str) -> bool {
    opcode == "reduce"
}
