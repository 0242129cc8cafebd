//! What fills memory.

use meshloom_hlo::analysis::memory::{BufferKind, MemoryForm};
use meshloom_hlo::analysis::{Chip, LiveBuffer as Found};

use crate::input::Loaded;
use crate::report::{Curve, LiveBuffer};

/// The curve, and what it takes for granted. A module whose memory cannot be computed has none, and the note says why.
pub fn curve(loaded: &Loaded, chip: &Chip) -> (Option<Curve>, Option<String>) {
    let memory = match crate::memory::of(loaded) {
        Ok(memory) => memory,
        Err(error) => return (None, Some(format!("Memory is not shown: {error}."))),
    };
    let note = match memory.form {
        MemoryForm::Assignment => None,
        MemoryForm::Scheduled => Some("Memory is estimated from the schedule of the module."),
        MemoryForm::Unscheduled => {
            Some("Memory is estimated: the module has no schedule, and its order stands for one.")
        }
        MemoryForm::Uncompiled => {
            Some("Memory is estimated: the module is not compiled, and what will be fused is guessed.")
        }
    };
    let live: Vec<u64> = memory.curve.iter().map(|point| point.bytes).collect();
    let peak_position = (0..live.len()).max_by_key(|&at| (live[at], std::cmp::Reverse(at))).unwrap_or(0);
    let curve = Curve {
        names: memory.curve.iter().map(|point| point.instruction.clone()).collect(),
        steps: memory.curve.last().map_or(0, |point| point.position),
        live,
        resident: memory.arguments.saturating_add(memory.outputs).saturating_sub(memory.aliased),
        peak: memory.peak,
        peak_position,
        limit: chip.device_memory().map(|bytes| (bytes, chip.name.to_owned())),
        buffers: memory.live_at_peak.iter().map(buffer).collect(),
    };
    (Some(curve), note.map(str::to_owned))
}

fn buffer(found: &Found) -> LiveBuffer {
    let kind = match found.kind {
        BufferKind::Argument => "argument",
        BufferKind::Output => "output",
        BufferKind::Temporary => "temporary",
    };
    let is_path = found.kind == BufferKind::Argument && !found.op_name.is_empty();
    LiveBuffer {
        name: if is_path { found.op_name.clone() } else { found.name.clone() },
        kind: kind.to_owned(),
        bytes: found.bytes,
        shape: found.shape.clone(),
        source: found.source.clone().unwrap_or_else(|| found.op_name.clone()),
    }
}
