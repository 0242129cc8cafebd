//! Moves between a device's memory and the host's.

use super::index::{Computation, Module, attribute};
use super::size::shape_bytes;
use meshloom_hlo::proto::{HloInstructionProto, ShapeProto};

/// The memory space of the host's memory, in a layout.
pub(crate) const HOST: i64 = 5;

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

/// A copy that a compiled module makes of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostCopy {
    pub(crate) direction: Move,
    pub(crate) bytes: u64,
}

/// Returns the copy to or from the host's memory that an instruction makes or starts: of a whole array, or of a slice
/// that is cut out of an array there or written into it. XLA states the memory in the layouts.
pub(crate) fn copy_of<'a>(
    module: &Module<'a>,
    computation: &Computation<'a>,
    instruction: &'a HloInstructionProto,
) -> Option<HostCopy> {
    match instruction.opcode.as_str() {
        "async-start" => {
            let called = module.callee(instruction, 0)?;
            let root = called.root()?;
            // XLA's GPU compiler starts a fusion of the slice.
            match module.callee(root, 0).filter(|_| root.opcode == "fusion") {
                Some(fused) => copy_of_root(fused, fused.root()?),
                None => copy_of_root(called, root),
            }
        }
        "copy-start" => {
            let from = computation.operand(instruction, 0)?.shape.as_ref()?;
            copy_between(from, instruction.shape.as_ref()?.tuple_shapes.first()?, from)
        }
        "copy" => {
            let from = computation.operand(instruction, 0)?.shape.as_ref()?;
            copy_between(from, instruction.shape.as_ref()?, from)
        }
        _ => None,
    }
}

fn copy_of_root(called: &Computation<'_>, root: &HloInstructionProto) -> Option<HostCopy> {
    let shape_of = |position: usize| called.operand(root, position)?.shape.as_ref();
    let to = root.shape.as_ref()?;
    match root.opcode.as_str() {
        "copy" | "dynamic-slice" | "slice" => copy_between(shape_of(0)?, to, to),
        "dynamic-update-slice" => copy_between(shape_of(1)?, to, shape_of(1)?),
        _ => None,
    }
}

/// Returns a copy from one array to another, if one of them is in the host's memory; `copied` is as large as what is
/// copied.
fn copy_between(from: &ShapeProto, to: &ShapeProto, copied: &ShapeProto) -> Option<HostCopy> {
    let is_on_host = |shape: &ShapeProto| shape.layout.as_ref().is_some_and(|layout| layout.memory_space == HOST);
    let direction = match (is_on_host(from), is_on_host(to)) {
        (false, true) => Move::ToHost,
        (true, false) => Move::ToDevice,
        _ => return None,
    };
    Some(HostCopy { direction, bytes: shape_bytes(copied)? })
}
