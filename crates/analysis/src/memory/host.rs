//! The values of an uncompiled module that lie in the host's memory.
//!
//! A compiled module states them in layouts. An uncompiled one has only moves, and XLA places the values between them
//! (`host_offloader.cc`): a moved value, the buffers that it is written into as a slice, and the slices that are cut
//! out of those.

use super::dataflow::Flow;
use crate::host_transfers::{HOST, Move, move_of};

/// Takes values on the host out of the device's memory.
pub(super) fn take_out(flow: &mut Flow<'_, '_>) {
    let points: Vec<usize> = (0..flow.schedule.point_count()).map(|time| flow.schedule.point_at(time)).collect();
    let is_moved = |flow: &Flow<'_, '_>, point: usize| move_of(flow.instruction(point)) == Some(Move::ToHost);
    if !points.iter().any(|&point| is_moved(flow, point)) {
        return;
    }
    // A loop's buffer is known to be on the host only where the body writes into it, after the instruction that reads
    // it.
    loop {
        let mut changed = false;
        for &point in &points {
            let opcode = flow.instruction(point).opcode.as_str();
            let is_update = opcode == "dynamic-update-slice";
            // The operand that it takes over, or cuts something out of.
            let source = match opcode {
                "dynamic-update-slice" => flow.operand(point, 1),
                "dynamic-slice" | "slice" | "reshape" | "bitcast" | "copy" => flow.operand(point, 0),
                _ => None,
            };
            let is_on_host = |flow: &mut Flow<'_, '_>, point: usize| {
                let node = flow.nodes(point).start;
                flow.class(node).is_on_host
            };
            let found = is_moved(flow, point)
                || source.is_some_and(|source| is_on_host(flow, source))
                || is_update && is_on_host(flow, point);
            if !found {
                continue;
            }
            // The buffer that is updated lies where the result does.
            let buffer = flow.operand(point, 0).filter(|_| is_update);
            for point in [Some(point), buffer].into_iter().flatten() {
                let node = flow.nodes(point).start;
                let class = flow.class(node);
                if !class.is_on_host {
                    class.elsewhere = Some((HOST, class.bytes));
                    (class.is_on_host, class.bytes, changed) = (true, 0, true);
                }
            }
        }
        if !changed {
            return;
        }
    }
}
