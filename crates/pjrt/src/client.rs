//! A client: a plugin's devices, ready for use.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::api::{Api, Arguments, Owned, slice, string};
use super::device::DeviceDescription;
use super::error::PjrtError;
use super::plugin::Plugin;
use super::sys::*;
use super::value::NamedValue;
use meshloom_hlo::message::counted;

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

/// One device. It can be asked for all that is in its [description](DeviceDescription).
#[derive(Clone, Debug)]
pub struct Device {
    about: DeviceDescription,
    /// Whether this process can use it.
    pub addressable: bool,
    raw: RawDevice,
}

impl Deref for Device {
    type Target = DeviceDescription;

    fn deref(&self) -> &DeviceDescription {
        &self.about
    }
}

impl Device {
    /// # Safety
    /// The device must be one of a live client.
    unsafe fn read(api: Api, device: *mut PJRT_Device) -> Result<Device, PjrtError> {
        // SAFETY: the device is live, and so is its description.
        unsafe {
            let described = api.call(PJRT_Device_GetDescription_Args { device, ..Arguments::new() })?;
            let addressable = api.call(PJRT_Device_IsAddressable_Args { device, ..Arguments::new() })?.is_addressable;
            let about = DeviceDescription::read(api, described.device_description)?;
            Ok(Device { about, addressable, raw: RawDevice(device) })
        }
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
    /// Buffers and executables hold the client, so they are gone before it.
    raw: Owned<PJRT_Client>,
    plugin: Arc<Plugin>,
    platform_name: String,
    platform_version: String,
    devices: Vec<Device>,
}

impl Client {
    /// Creates a client of a plugin.
    pub fn new(plugin: &Arc<Plugin>, options: &ClientOptions) -> Result<Client, PjrtError> {
        let api = plugin.api();
        let mut values = options.platform_options.clone();
        if let Some(count) = options.device_count {
            if !CPU_DEVICE_COUNTS.contains(&count) {
                let expected = format!("{} to {}", CPU_DEVICE_COUNTS.start(), CPU_DEVICE_COUNTS.end());
                return Err(PjrtError::option("device_count", count, expected));
            }
            values.push(("cpu_device_count".into(), NamedValue::Int(count as i64)));
        }
        let count_is_ours = |(name, _): &&(String, NamedValue)| name == "cpu_device_count";
        if let Some((name, value)) = options.platform_options.iter().find(count_is_ours) {
            let expected = "`ClientOptions::device_count` instead, which is checked";
            return Err(PjrtError::option(name, value, expected));
        }
        let raw_values: Vec<_> = values.iter().map(|(name, value)| value.to_raw(name)).collect();
        let arguments = PJRT_Client_Create_Args {
            create_options: raw_values.as_ptr(),
            num_options: raw_values.len(),
            ..Arguments::new()
        };
        // SAFETY: the options and what they point to outlive the call. The client is then ours, and owns the strings
        // and devices that it returns.
        unsafe {
            let raw = Owned::new(api, api.call(arguments)?.client);
            let client = raw.raw();
            let name = api.call(PJRT_Client_PlatformName_Args { client, ..Arguments::new() })?;
            let version = api.call(PJRT_Client_PlatformVersion_Args { client, ..Arguments::new() })?;
            let devices = api.call(PJRT_Client_Devices_Args { client, ..Arguments::new() })?;
            let devices = slice(devices.devices, devices.num_devices).iter();
            Ok(Client(Arc::new(Inner {
                raw,
                plugin: plugin.clone(),
                platform_name: string(name.platform_name, name.platform_name_size),
                platform_version: string(version.platform_version, version.platform_version_size),
                devices: devices.map(|&device| Device::read(api, device)).collect::<Result<_, _>>()?,
            })))
        }
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
        self.0.raw.raw()
    }

    pub(super) fn is_same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The raw device with an index, which must be one that this process can use.
    pub(super) fn raw_device(&self, index: usize) -> Result<*mut PJRT_Device, PjrtError> {
        let device = self.0.devices.get(index).filter(|device| device.addressable);
        device.map(|device| device.raw.0).ok_or_else(|| {
            let count = self.0.devices.len();
            let expected = format!(
                "the index of a device of the client that this process can use, of {}",
                counted(count, "device")
            );
            PjrtError::option("device", index, expected)
        })
    }

    pub(super) fn index_of(&self, raw: *mut PJRT_Device) -> Option<usize> {
        self.0.devices.iter().position(|device| device.raw.0 == raw)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {})", self.0.platform_name, counted(self.0.devices.len(), "device"))
    }
}
