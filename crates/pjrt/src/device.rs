//! The description of a device of a client or of a topology.
#![allow(unsafe_code)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::api::{Api, Arguments, slice, string};
use super::error::PjrtError;
use super::sys::*;
use super::value::NamedValue;
use meshloom_hlo::mesh::DevicePlace;

/// A plugin's description of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceDescription {
    /// The plugin's id for it, unique among all devices of all hosts.
    pub id: i32,
    /// Its kind, such as `cpu`, `TPU v5 lite` or `NVIDIA H100 80GB HBM3`.
    pub kind: String,
    /// The plugin's own description.
    pub description: String,
    /// The plugin's other attributes, by its own names; methods read the common ones.
    pub attributes: BTreeMap<String, NamedValue>,
}

/// The counts of a device's allocator, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceMemory {
    /// Allocated now.
    pub in_use: u64,
    /// The most that was allocated at any time since the client was created, if the plugin says.
    pub peak: Option<u64>,
    /// The most that can be allocated, if the plugin says.
    pub limit: Option<u64>,
}

impl DeviceDescription {
    /// Place of its chip in the TPU's torus: x, y, z.
    pub fn coords(&self) -> Option<&[i64]> {
        match self.attributes.get("coords") {
            Some(NamedValue::Ints(coords)) => Some(coords),
            _ => None,
        }
    }

    /// The number of the core on its chip, where each core of a TPU chip is a device.
    pub fn core_on_chip(&self) -> Option<i64> {
        self.int("core_on_chip")
    }

    /// The number of the slice that it belongs to: devices of one slice share the fast network.
    pub fn slice_index(&self) -> Option<i64> {
        self.int("slice_index")
    }

    /// Bytes of memory that programs can use.
    pub fn memory_limit(&self) -> Option<i64> {
        self.int("device_memory_bytes_limit")
    }

    /// Where it is, for [`device_order`](meshloom_hlo::mesh::device_order).
    pub fn place(&self) -> DevicePlace {
        let coords = self.coords().unwrap_or_default();
        match coords {
            // A GPU reports slice, host and position in the host; its `slice_index` is 0 for absent hardware.
            &[slice, host, place] if self.attributes.contains_key("compute_capability") => {
                DevicePlace { id: self.id, slice, coords: [place, host].into_iter().collect() }
            }
            coords => DevicePlace {
                id: self.id,
                slice: self.slice_index().unwrap_or_default(),
                coords: self.core_on_chip().into_iter().chain(coords.iter().copied()).collect(),
            },
        }
    }

    fn int(&self, name: &str) -> Option<i64> {
        match self.attributes.get(name) {
            Some(&NamedValue::Int(value)) => Some(value),
            _ => None,
        }
    }

    /// # Safety
    /// The description must be live.
    pub(super) unsafe fn read(
        api: Api,
        device_description: *mut PJRT_DeviceDescription,
    ) -> Result<DeviceDescription, PjrtError> {
        // SAFETY: the description is live, and owns what it returns, which is copied.
        unsafe {
            let id = api.call(PJRT_DeviceDescription_Id_Args { device_description, ..Arguments::new() })?;
            let kind = api.call(PJRT_DeviceDescription_Kind_Args { device_description, ..Arguments::new() })?;
            let debug = api.call(PJRT_DeviceDescription_DebugString_Args { device_description, ..Arguments::new() })?;
            let attributes =
                api.call(PJRT_DeviceDescription_Attributes_Args { device_description, ..Arguments::new() })?;
            Ok(DeviceDescription {
                id: id.id,
                kind: string(kind.device_kind, kind.device_kind_size),
                description: string(debug.debug_string, debug.debug_string_size),
                attributes: NamedValue::map_from_raw(slice(attributes.attributes, attributes.num_attributes)),
            })
        }
    }
}
