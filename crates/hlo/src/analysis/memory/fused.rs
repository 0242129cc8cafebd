//! What a compiler will fuse into its readers, for a module that has not been compiled yet.
//!
//! Elementwise instructions and data movement are computed inside their readers, if all readers are of these kinds or
//! reductions, and if there is one reader or the instruction is cheap to repeat.

use super::dataflow::Flow;
use crate::analysis::cost::is_by_element;

/// Removes the memory of values that are computed inside their readers; their operands are then read when the readers
/// run.
pub(super) fn fuse(flow: &mut Flow<'_, '_>) {
    let mut readers = vec![0u32; flow.schedule.point_count()];
    let mut within = vec![true; flow.schedule.point_count()];
    for point in 0..flow.schedule.point_count() {
        let opcode = flow.instruction(point).opcode.as_str();
        let absorbs = is_by_element(opcode) || moves_elements(opcode) || is_free(opcode) || is_fold(opcode);
        let operands: Vec<usize> = flow.operands(point).flatten().collect();
        for (nth, &operand) in operands.iter().enumerate() {
            // One that reads it twice is one reader.
            readers[operand] += u32::from(operands.len() > 8 || !operands[..nth].contains(&operand));
            within[operand] &= absorbs;
        }
    }
    for place in 0..flow.walk.places().len() {
        if let Some(root) = flow.root(place) {
            within[root] = false;
        }
    }
    for time in (0..flow.schedule.point_count()).rev() {
        let point = flow.schedule.point_at(time);
        let instruction = flow.instruction(point);
        let opcode = instruction.opcode.as_str();
        let fuses = is_by_element(opcode) || moves_elements(opcode);
        let is_computed = is_position(opcode, instruction.operand_ids.len())
            || within[point] && (is_free(opcode) || fuses && readers[point] <= 1);
        if !is_computed {
            continue;
        }
        let nodes = flow.nodes(point);
        let end = flow.class(nodes.start).end;
        // A value that is passed on as another is that one, and has its memory.
        if opcode != "reshape" {
            flow.class(nodes.start).is_virtual = true;
        }
        let operands: Vec<usize> = flow.operands(point).flatten().collect();
        for operand in operands {
            for node in flow.nodes(operand) {
                let class = flow.class(node);
                class.end = class.end.max(end);
            }
        }
    }
}

/// What costs nothing, whoever reads it.
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
