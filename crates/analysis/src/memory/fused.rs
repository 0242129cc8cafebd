//! The memory that a compiler's fusions save, for a module that has not been compiled yet.

use super::dataflow::Flow;
use crate::fused::computed_in_readers;

/// Removes the memory of values that are computed inside their readers; their operands are then read when the readers
/// run.
pub(super) fn fuse(flow: &mut Flow<'_, '_>) {
    let of_place = |place| computed_in_readers(flow.walk.computation(place), 1);
    let computed: Vec<Vec<bool>> = flow.walk.places().iter().map(of_place).collect();
    for time in (0..flow.schedule.point_count()).rev() {
        let point = flow.schedule.point_at(time);
        let (place, position) = flow.schedule.instruction(point);
        if !computed[place][position] {
            continue;
        }
        let nodes = flow.nodes(point);
        let end = flow.class(nodes.start).end;
        // A value that is passed on as another is that one, and has its memory.
        if flow.instruction(point).opcode != "reshape" {
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
