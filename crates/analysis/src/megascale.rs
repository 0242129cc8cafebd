//! Transfers between TPU slices.
//!
//! A compiler for several slices makes one program for the devices of a slice. A collective across slices becomes a
//! send to the host and a receive from it, and the host's runtime (`xla_megascale_runtime`) performs it. Attributes
//! describe the collective: `_xla_megascale_transfer_type="REDUCE_SCATTER"`, and `_xla_megascale_target="{1,2}x{0:7}"`,
//! which means slices 1 and 2 with devices 0 to 7 of each. The attributes are those that libtpu 0.0.51 was seen to
//! write; they are undocumented.
//!
//! Devices are counted slice by slice, as in a mesh whose major axis is the one across slices.

use super::communication::{Communication, communication};
use super::custom_collectives::communication_of_call;
use super::index::attribute;
use meshloom_hlo::CollectiveKind;
use meshloom_hlo::device_groups::DeviceGroups;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto};

/// A collective across slices, at the send that starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceTransfer {
    /// The collective that the runtime performs.
    pub kind: CollectiveKind,
    /// The number of slices that take part: the first ones; `None` if the target is not understood.
    pub slices: Option<u64>,
    /// The number of devices of a slice.
    pub devices: Option<u64>,
}

impl SliceTransfer {
    /// Returns the transfer of a send or receive, if it is one half of a transfer between slices.
    pub fn of(instruction: &HloInstructionProto) -> Option<SliceTransfer> {
        let kind = match attribute(instruction, "_xla_megascale_transfer_type")? {
            "ALL_GATHER" => CollectiveKind::AllGather,
            "ALL_REDUCE" => CollectiveKind::AllReduce,
            "ALL_TO_ALL" => CollectiveKind::AllToAll,
            "REDUCE_SCATTER" => CollectiveKind::ReduceScatter,
            _ => return None,
        };
        let target = attribute(instruction, "_xla_megascale_target").and_then(target);
        Some(SliceTransfer {
            kind,
            slices: target.map(|(slices, _)| slices),
            devices: target.map(|(_, devices)| devices),
        })
    }

    /// Returns the groups: the same device of all slices.
    pub(super) fn groups(self) -> (DeviceGroups, Option<u64>) {
        match (self.slices, self.devices) {
            (Some(slices), Some(devices)) => {
                let dims = vec![slices, devices];
                (DeviceGroups::Iota { group_size: slices, dims, permutation: vec![1, 0] }, Some(slices))
            }
            _ => (DeviceGroups::Unreadable, None),
        }
    }
}

/// Returns the communication of an instruction, and whether it is the first of two halves. It is like
/// [`communication`], but in a transfer between slices the send is the collective, and the receive its second half; and
/// a custom call may be a collective.
pub fn communication_of(instruction: &HloInstructionProto) -> Option<(Communication, bool)> {
    match (instruction.opcode.as_str(), SliceTransfer::of(instruction)) {
        ("send", Some(transfer)) => Some((Communication::Collective(transfer.kind), true)),
        ("recv", Some(_)) => None,
        ("custom-call", _) => communication_of_call(instruction),
        (opcode, _) => communication(opcode),
    }
}

/// Returns the number of slices that a module of one slice sends to, with its own; 1 for a program of one slice.
pub fn slice_count(module: &HloModuleProto) -> u64 {
    slices_of(module.computations.iter().flat_map(|computation| &computation.instructions))
}

/// Returns the same number for a module's instructions.
pub(super) fn slices_of<'a>(instructions: impl Iterator<Item = &'a HloInstructionProto>) -> u64 {
    instructions.filter_map(|it| SliceTransfer::of(it)?.slices).max().unwrap_or(1)
}

/// Reads `{1,2,3,4}x{0:255}`: 4 slices of 256 devices. It must list all slices from 1, and all devices from 0;
/// otherwise it is not understood.
fn target(text: &str) -> Option<(u64, u64)> {
    let inside = |text: &str| Some(text.strip_prefix('{')?.strip_suffix('}')?.to_owned());
    let (slices, devices) = text.split_once('x')?;
    let (slices, devices) = (inside(slices)?, inside(devices)?);
    let slices: Vec<u64> = slices.split(',').map(|slice| slice.parse().ok()).collect::<Option<_>>()?;
    let in_order = (1..).zip(&slices).all(|(expected, &slice)| slice == expected);
    let last: u64 = match devices.split_once(':') {
        Some(("0", last)) => last.parse().ok()?,
        Some(_) => return None,
        None => (devices == "0").then_some(0)?,
    };
    (in_order && !slices.is_empty()).then_some((slices.len() as u64, last.checked_add(1)?))
}
