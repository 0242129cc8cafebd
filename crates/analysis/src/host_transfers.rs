//! Moves between a device's memory and the host's.

use super::index::attribute;
use meshloom_hlo::proto::HloInstructionProto;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    ToHost,
    ToDevice,
}

/// Returns the move that an instruction makes, in a module before XLA turns moves into copies: an annotation as JAX and
/// meshloom write it, or XLA's own form of it (`convert_memory_placement_to_internal_annotations.cc`).
pub(crate) fn move_of(instruction: &HloInstructionProto) -> Option<Move> {
    match instruction.custom_call_target.as_str() {
        "MoveToHost" => Some(Move::ToHost),
        "MoveToDevice" => Some(Move::ToDevice),
        "annotate_device_placement" => match attribute(instruction, "_xla_buffer_placement")? {
            "pinned_host" | "unpinned_host" => Some(Move::ToHost),
            "device" => Some(Move::ToDevice),
            _ => None,
        },
        _ => None,
    }
}
