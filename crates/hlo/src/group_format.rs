//! The forms in which a module names the devices of a collective's groups.

use crate::proto::HloInstructionProto;

/// A version of the PJRT C API, major and minor: it tells which schema a plugin reads modules by.
pub type ApiVersion = (i32, i32);

/// The form in which a module names the devices of a group. The two compact forms are each read by plugins of one
/// generation alone, and skipped by the others as an unknown field: such a plugin takes the group to be all devices. So
/// the form goes by the plugin's API version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupFormat {
    /// Every device is listed: understood by all, of the mesh's size.
    #[default]
    Lists,
    /// A transposed iota in `collective_device_list` (API 0.81).
    IotaInList,
    /// A transposed iota in `iota_collective_device_list` (API 0.106 and later).
    Iota,
}

impl GroupFormat {
    /// All of them, the most compact first.
    pub const ALL: [GroupFormat; 3] = [GroupFormat::Iota, GroupFormat::IotaInList, GroupFormat::Lists];

    /// Whether plugins of an API version are known to read it. Between the tested versions it is unknown when one
    /// compact form replaced the other, and nothing is known of a version 1.
    pub const fn is_read_by(self, version: ApiVersion) -> bool {
        match self {
            GroupFormat::Lists => true,
            GroupFormat::IotaInList => matches!(version, (0, 81)),
            GroupFormat::Iota => matches!(version, (0, 106..)),
        }
    }

    /// The most compact form that plugins of an API version are known to read.
    pub fn read_by(version: ApiVersion) -> GroupFormat {
        GroupFormat::ALL.into_iter().find(|format| format.is_read_by(version)).unwrap_or_default()
    }

    /// The form that an instruction has its groups in; lists also where it has none.
    pub fn of(instruction: &HloInstructionProto) -> GroupFormat {
        let list = instruction.collective_device_list.as_ref();
        if instruction.iota_collective_device_list.is_some() {
            GroupFormat::Iota
        } else if list.is_some_and(|list| list.iota_replica_group_list.is_some()) {
            GroupFormat::IotaInList
        } else {
            GroupFormat::Lists
        }
    }

    /// The field of an instruction that it is in.
    pub const fn field(self) -> &'static str {
        match self {
            GroupFormat::Lists => "replica_groups",
            GroupFormat::IotaInList => "collective_device_list",
            GroupFormat::Iota => "iota_collective_device_list",
        }
    }
}
