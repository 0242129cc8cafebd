//! A client: a plugin's devices, ready for use.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::api::{Api, Arguments, slice, string};
use super::device::DeviceDescription;
use super::error::PjrtError;
use super::plugin::Plugin;
use super::sys::*;
use super::value::NamedValue;
use meshloom_hlo::mesh::DevicePlace;

/// How many virtual devices the CPU plugins take. Outside of this they abort the process.
pub(super) const CPU_DEVICE_COUNTS: std::ops::RangeInclusive<usize> = 1..=1024;

/// How to create a client.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// Virtual devices of a CPU client, 1 to 1024; by default the plugin decides (4). Other platforms have the devices
    /// they have, and refuse it.
    pub device_count: Option<usize>,
    /// More options, by the plugin's own names (`visible_devices`, `memory_fraction`). They go to the plugin unchecked.
    pub platform_options: Vec<(String, NamedValue)>,
}

/// One device.
#[derive(Clone, Debug)]
pub struct Device {
    /// The plugin's id for it.
    pub id: i32,
    /// Its kind, such as `cpu` or `NVIDIA H100 80GB HBM3`.
    pub kind: String,
    /// The plugin's own description.
    pub description: String,
    /// Whatever else the plugin says of it, by its own names.
    pub attributes: BTreeMap<String, NamedValue>,
    /// Whether this process can use it.
    pub addressable: bool,
    raw: RawDevice,
}

impl Device {
    pub(super) fn to_description(&self) -> DeviceDescription {
        let Device { id, kind, description, attributes, .. } = self.clone();
        DeviceDescription { id, kind, description, attributes }
    }

    /// Where it is, for [`device_order`](meshloom_hlo::mesh::device_order).
    pub fn place(&self) -> DevicePlace {
        self.to_description().place()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RawDevice(*mut PJRT_Device);

// SAFETY: devices belong to the client, are constant, and may be used from any thread.
unsafe impl Send for RawDevice {}
// SAFETY: as above.
unsafe impl Sync for RawDevice {}

/// A plugin's devices, ready for use. Cloning gives another handle; the client goes when the last handle, buffer and
/// executable of it is gone.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    raw: *mut PJRT_Client,
    plugin: Arc<Plugin>,
    platform_name: String,
    platform_version: String,
    devices: Vec<Device>,
}

// SAFETY: PJRT clients may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Client {
    /// Creates a client of a plugin.
    pub fn new(plugin: &Arc<Plugin>, options: &ClientOptions) -> Result<Client, PjrtError> {
        let api = plugin.api();
        let mut values = options.platform_options.clone();
        if let Some(count) = options.device_count {
            if !CPU_DEVICE_COUNTS.contains(&count) {
                return Err(PjrtError::InvalidOption {
                    option: "device_count".into(),
                    value: count.to_string(),
                    expected: format!("{} to {}", CPU_DEVICE_COUNTS.start(), CPU_DEVICE_COUNTS.end()),
                });
            }
            values.push(("cpu_device_count".into(), NamedValue::Int(count as i64)));
        }
        let count_is_ours = |(name, _): &&(String, NamedValue)| name == "cpu_device_count";
        if let Some((name, value)) = options.platform_options.iter().find(count_is_ours) {
            return Err(PjrtError::InvalidOption {
                option: name.clone(),
                value: value.to_string(),
                expected: "`ClientOptions::device_count` instead, which is checked".into(),
            });
        }
        let raw_values: Vec<_> = values.iter().map(|(name, value)| value.to_raw(name)).collect();
        let mut arguments = PJRT_Client_Create_Args {
            create_options: raw_values.as_ptr(),
            num_options: raw_values.len(),
            ..Arguments::new()
        };
        // SAFETY: the options and what they point to outlive the call.
        unsafe { api.call(&mut arguments)? };
        let mut inner = Inner {
            raw: arguments.client,
            plugin: plugin.clone(),
            platform_name: String::new(),
            platform_version: String::new(),
            devices: Vec::new(),
        };
        // SAFETY: the client is live, and from here on `inner` frees it.
        unsafe { inner.describe()? };
        Ok(Client(Arc::new(inner)))
    }

    /// A client of the plugin that [`Plugin::find`] finds for the CPU, with this many virtual devices.
    pub fn cpu(device_count: usize) -> Result<Client, PjrtError> {
        let options = ClientOptions { device_count: Some(device_count), ..ClientOptions::default() };
        Client::new(&Plugin::find("cpu")?, &options)
    }

    /// The plugin behind it.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.0.plugin
    }

    /// `cpu`, `cuda`, `tpu`.
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// What the platform says of its version.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// All devices, in the plugin's order. Positions in this list are what the rest of this module calls a device's
    /// index.
    pub fn devices(&self) -> &[Device] {
        &self.0.devices
    }

    pub(super) fn api(&self) -> Api {
        self.0.plugin.api()
    }

    pub(super) fn raw(&self) -> *mut PJRT_Client {
        self.0.raw
    }

    pub(super) fn is_same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The raw device with an index, which must be one that this process can use.
    pub(super) fn raw_device(&self, index: usize) -> Result<*mut PJRT_Device, PjrtError> {
        let device = self.0.devices.get(index).filter(|device| device.addressable);
        device.map(|device| device.raw.0).ok_or_else(|| PjrtError::InvalidOption {
            option: "device".into(),
            value: index.to_string(),
            expected: format!(
                "the index of one of the client's {} devices that this process can use",
                self.0.devices.len()
            ),
        })
    }

    pub(super) fn index_of(&self, raw: *mut PJRT_Device) -> Option<usize> {
        self.0.devices.iter().position(|device| device.raw.0 == raw)
    }
}

impl Inner {
    /// # Safety
    /// The client must be live.
    unsafe fn describe(&mut self) -> Result<(), PjrtError> {
        let api = self.plugin.api();
        let client = self.raw;
        let mut name = PJRT_Client_PlatformName_Args { client, ..Arguments::new() };
        let mut version = PJRT_Client_PlatformVersion_Args { client, ..Arguments::new() };
        let mut devices = PJRT_Client_Devices_Args { client, ..Arguments::new() };
        // SAFETY: the client is live, and owns the strings and devices it returns.
        unsafe {
            api.call(&mut name)?;
            self.platform_name = string(name.platform_name, name.platform_name_size);
            api.call(&mut version)?;
            self.platform_version = string(version.platform_version, version.platform_version_size);
            api.call(&mut devices)?;
            for &device in slice(devices.devices, devices.num_devices) {
                self.devices.push(describe_device(api, device)?);
            }
        }
        Ok(())
    }
}

/// # Safety
/// The device must be one of a live client.
unsafe fn describe_device(api: Api, device: *mut PJRT_Device) -> Result<Device, PjrtError> {
    let mut description = PJRT_Device_GetDescription_Args { device, ..Arguments::new() };
    let mut addressable = PJRT_Device_IsAddressable_Args { device, ..Arguments::new() };
    // SAFETY: the device is live, its description as well; strings are copied.
    unsafe {
        api.call(&mut description)?;
        api.call(&mut addressable)?;
        let DeviceDescription { id, kind, description, attributes } =
            DeviceDescription::read(api, description.device_description)?;
        Ok(Device {
            id,
            kind,
            description,
            attributes,
            addressable: addressable.is_addressable,
            raw: RawDevice(device),
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let arguments = PJRT_Client_Destroy_Args { client: self.raw, ..Arguments::new() };
        // SAFETY: buffers and executables hold the client, so this is the last use of it.
        unsafe { self.plugin.api().destroy(arguments) };
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {} devices)", self.0.platform_name, self.0.devices.len())
    }
}
