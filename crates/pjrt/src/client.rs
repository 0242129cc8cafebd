//! A client: a plugin's devices, ready for use.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::api::{Api, Arguments, Owned, slice, string};
use super::compiled::{Compiled, unimplemented};
use super::device::{DeviceDescription, DeviceMemory};
use super::error::PjrtError;
use super::kept::KeptPrograms;
use super::key_values::{Callbacks, KeyValues};
use super::platform::Platform;
use super::plugin::{Plugin, THREADS, threads_for, with_threads};
use super::sys::*;
use super::value::NamedValue;
use meshloom_analysis::collectives_at_once;
use meshloom_hlo::PlatformKind;
use meshloom_hlo::message::counted;

/// The numbers of virtual devices that the CPU plugins take. With other numbers they abort the process.
pub(super) const CPU_DEVICE_COUNTS: std::ops::RangeInclusive<usize> = 1..=1024;

/// The number of devices that they make by themselves.
const DEFAULT_DEVICE_COUNT: usize = 4;

/// How to create a client. An option goes to the plugin only if it is set, and is refused by name where the platform
/// has no such option.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The platform, which is the CPU by default. Everything goes by it, whatever the plugin calls itself.
    pub platform: PlatformKind,
    /// The number of virtual devices of a CPU client, 1 to 1024; by default the plugin decides (4). Other platforms
    /// have the devices they have.
    pub device_count: Option<usize>,
    /// The number of collectives, 1 to 16, that a virtual device of a CPU client may be in at once
    /// ([`collectives_at_once`](meshloom_analysis::collectives_at_once)). The client has threads for this number, and
    /// refuses compiled programs that may need more. With fewer threads, programs are faster. By default there are
    /// threads for 3, and programs are not checked.
    pub collectives_at_once: Option<usize>,
    /// The part of a GPU's memory that the plugin's allocator may take, more than 0 and at most 1.
    pub memory_fraction: Option<f64>,
    /// Whether the plugin's allocator takes that part of a GPU's memory at once.
    pub preallocate: Option<bool>,
    /// The GPUs to use, by the driver's numbers; by default all.
    pub visible_devices: Option<Vec<usize>>,
    /// More options, by the plugin's own names. They go to the plugin unchecked.
    pub platform_options: Vec<(String, NamedValue)>,
    /// The place of this process, if the client is one of several that share their devices.
    pub process: Option<ProcessPlace>,
    /// Whether the client keeps every program that it compiles, and returns it again for the same module and options.
    /// The programs go with the client. Tests set this, as they compile one step many times.
    pub keeps_programs: bool,
}

/// A process among several.
#[derive(Clone, Debug)]
pub struct ProcessPlace {
    /// Its number, from 0 on.
    pub number: usize,
    /// The number of processes.
    pub count: usize,
    /// The store through which the clients of the processes find one another, if the plugin needs one, as that for CUDA
    /// does. It is called from any thread, as long as the client exists.
    pub store: Arc<dyn KeyValues>,
}

/// The options that a field stands for: the field, the plugin's name, and the platforms whose plugins have it.
struct OptionRow(&'static str, &'static str, &'static [PlatformKind]);

const DEVICE_COUNT: OptionRow = OptionRow("device_count", "cpu_device_count", &[PlatformKind::Cpu]);
/// The allowed numbers of collectives that a device of a CPU client is in at once.
const COLLECTIVES_AT_ONCE: std::ops::RangeInclusive<usize> = 1..=16;

/// The number of collectives that a device can be in by default: train steps are in two.
const DEFAULT_COLLECTIVES_AT_ONCE: usize = 3;

const MEMORY_FRACTION: OptionRow = OptionRow("memory_fraction", "memory_fraction", &[PlatformKind::Cuda]);
const PREALLOCATE: OptionRow = OptionRow("preallocate", "preallocate", &[PlatformKind::Cuda]);
const VISIBLE_DEVICES: OptionRow = OptionRow("visible_devices", "visible_devices", &[PlatformKind::Cuda]);

const OPTIONS: [OptionRow; 4] = [DEVICE_COUNT, MEMORY_FRACTION, PREALLOCATE, VISIBLE_DEVICES];

impl ClientOptions {
    /// Options for a platform, with nothing set.
    pub fn of(platform: PlatformKind) -> ClientOptions {
        ClientOptions { platform, ..ClientOptions::default() }
    }

    /// Checks that the platform has the options that are set, and that their values are possible.
    ///
    /// # Errors
    /// [`PjrtError::InvalidOption`] names the first that is not.
    pub fn check(&self) -> Result<(), PjrtError> {
        self.values().map(drop)
    }

    /// The options as the plugin takes them.
    fn values(&self) -> Result<Vec<(String, NamedValue)>, PjrtError> {
        if let Some(count) = self.device_count
            && !CPU_DEVICE_COUNTS.contains(&count)
        {
            let expected = format!("{} to {}", CPU_DEVICE_COUNTS.start(), CPU_DEVICE_COUNTS.end());
            return Err(PjrtError::option(DEVICE_COUNT.0, count, expected));
        }
        if let Some(count) = self.collectives_at_once {
            let (least, most) = (COLLECTIVES_AT_ONCE.start(), COLLECTIVES_AT_ONCE.end());
            let expected = match self.platform {
                PlatformKind::Cpu if COLLECTIVES_AT_ONCE.contains(&count) => None,
                PlatformKind::Cpu => Some(format!("{least} to {most}")),
                other => Some(format!("no value: {other} has no such option, only cpu")),
            };
            if let Some(expected) = expected {
                return Err(PjrtError::option("collectives_at_once", count, expected));
            }
        }
        if let Some(fraction) = self.memory_fraction
            && !(fraction > 0.0 && fraction <= 1.0)
        {
            return Err(PjrtError::option(MEMORY_FRACTION.0, fraction, "more than 0 and at most 1"));
        }
        let ids = |ids: &Vec<usize>| NamedValue::Ints(ids.iter().map(|&id| id as i64).collect());
        let given = [
            (DEVICE_COUNT, self.device_count.map(|count| NamedValue::Int(count as i64))),
            (MEMORY_FRACTION, self.memory_fraction.map(|fraction| NamedValue::Float(fraction as f32))),
            (PREALLOCATE, self.preallocate.map(NamedValue::Bool)),
            (VISIBLE_DEVICES, self.visible_devices.as_ref().map(ids)),
        ];
        let mut values = self.platform_options.clone();
        if let Some((name, value)) = values.iter().find(|(name, _)| OPTIONS.iter().any(|row| row.1 == name)) {
            let field = OPTIONS.iter().find(|row| row.1 == name).map_or("", |row| row.0);
            let expected = format!("`ClientOptions::{field}` instead, which is checked");
            return Err(PjrtError::option(name, value, expected));
        }
        for (OptionRow(field, name, platforms), value) in given {
            let Some(value) = value else { continue };
            if !platforms.contains(&self.platform) {
                let of: Vec<_> = platforms.iter().map(|platform| platform.name()).collect();
                let expected = format!("no value: {} has no such option, only {}", self.platform, of.join(" and "));
                return Err(PjrtError::option(field, value, expected));
            }
            values.push((name.to_owned(), value));
        }
        values.extend(self.process_values()?);
        Ok(values)
    }
}

impl ClientOptions {
    /// The options that tell the plugin of the process. TPUs find them in the environment.
    fn process_values(&self) -> Result<Vec<(String, NamedValue)>, PjrtError> {
        let Some(ProcessPlace { number, count, .. }) = self.process else { return Ok(Vec::new()) };
        if number >= count {
            return Err(PjrtError::option("process", number, format!("a number below that of processes, {count}")));
        }
        let value = |name: &str, number: usize| (name.to_owned(), NamedValue::Int(number as i64));
        Ok(match self.platform {
            PlatformKind::Cuda => vec![value("node_id", number), value("num_nodes", count)],
            // Its clients do not know of each other: programs are told which process this is.
            PlatformKind::Cpu | PlatformKind::Tpu => Vec::new(),
        })
    }
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
pub struct Client(Arc<ClientInner>);

struct ClientInner {
    /// The programs by module and options, if the client keeps them. They go before the client itself: fields are
    /// dropped in order of declaration.
    programs: Option<KeptPrograms>,
    /// Buffers and executables hold the client, so they are gone before it.
    raw: Owned<PJRT_Client>,
    /// The functions that the client calls; they live as long as it does.
    _callbacks: Option<Callbacks>,
    plugin: Arc<Plugin>,
    platform: Platform,
    platform_name: String,
    platform_version: String,
    devices: Vec<Device>,
    process: Option<ProcessPlace>,
    /// The threads that XLA's CPU client has for its devices, if programs are to be checked for more.
    threads: Option<usize>,
}

impl Client {
    /// Creates a client of a plugin.
    pub fn new(plugin: &Arc<Plugin>, options: &ClientOptions) -> Result<Client, PjrtError> {
        let api = plugin.api();
        let values = options.values()?;
        let raw_values: Vec<_> = values.iter().map(|(name, value)| value.to_raw(name)).collect();
        let mut arguments = PJRT_Client_Create_Args {
            create_options: raw_values.as_ptr(),
            num_options: raw_values.len(),
            ..Arguments::new()
        };
        let has_store = options.platform != PlatformKind::Cpu;
        let process = options.process.as_ref().filter(|_| has_store);
        let callbacks = process.map(|process| Callbacks::new(process.store.clone()));
        if let Some(callbacks) = &callbacks {
            callbacks.give(&mut arguments);
        }
        // SAFETY: the options and what they point to outlive the call.
        let create = || unsafe { api.call(arguments) };
        let (created, threads) = match options.platform {
            PlatformKind::Cpu => {
                let count = values.iter().find_map(|(name, value)| match value {
                    NamedValue::Int(count) if name == DEVICE_COUNT.1 => usize::try_from(*count).ok(),
                    _ => None,
                });
                let at_once = options.collectives_at_once.unwrap_or(DEFAULT_COLLECTIVES_AT_ONCE);
                let needed = threads_for(count.unwrap_or(DEFAULT_DEVICE_COUNT), at_once);
                let (created, threads) = with_threads(needed, create);
                (created, options.collectives_at_once.map(|_| threads))
            }
            _ => (create(), None),
        };
        // SAFETY: the client is ours, and owns the strings and devices that it returns.
        unsafe {
            let raw = Owned::new(api, created?.client);
            let client = raw.raw();
            let name = api.call(PJRT_Client_PlatformName_Args { client, ..Arguments::new() })?;
            let version = api.call(PJRT_Client_PlatformVersion_Args { client, ..Arguments::new() })?;
            let devices = api.call(PJRT_Client_Devices_Args { client, ..Arguments::new() })?;
            let devices = slice(devices.devices, devices.num_devices).iter();
            let devices = devices.map(|&device| Device::read(api, device)).collect::<Result<Vec<_>, _>>()?;
            Ok(Client(Arc::new(ClientInner {
                programs: options.keeps_programs.then(KeptPrograms::default),
                raw,
                _callbacks: callbacks,
                plugin: plugin.clone(),
                platform: Platform::new(options.platform, plugin.api_version(), devices.iter().map(|device| &**device)),
                platform_name: string(name.platform_name, name.platform_name_size),
                platform_version: string(version.platform_version, version.platform_version_size),
                devices,
                process: options.process.clone(),
                threads,
            })))
        }
    }

    /// The plugin behind it.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.0.plugin
    }

    /// The programs that the client keeps, if it does.
    pub(super) fn kept_programs(&self) -> Option<&KeptPrograms> {
        self.0.programs.as_ref()
    }

    /// The place of this process, if the client was told that it is one of several.
    pub fn process(&self) -> Option<&ProcessPlace> {
        self.0.process.as_ref()
    }

    /// The platform that programs for this client are compiled for.
    pub fn platform(&self) -> &Platform {
        &self.0.platform
    }

    /// The plugin's name for its platform: `cpu`, `cuda`, `tpu`.
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// The platform's version, in its own words.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// All devices, in the plugin's order. Positions in this list are what the rest of this module calls a device's
    /// index.
    pub fn devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// The counts of the allocator of the device with this index.
    ///
    /// # Errors
    /// [`PjrtError::Unimplemented`] when the plugin does not count (the CPU plugins do not).
    pub fn device_memory(&self, index: usize) -> Result<DeviceMemory, PjrtError> {
        let arguments = PJRT_Device_MemoryStats_Args { device: self.raw_device(index)?, ..Arguments::new() };
        // SAFETY: the device is one of this client.
        let stats = unsafe { self.api().call(arguments) }
            .map_err(|error| unimplemented(self.plugin(), "memory statistics of a device", error))?;
        let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
        Ok(DeviceMemory {
            in_use: bytes(stats.bytes_in_use),
            peak: stats.peak_bytes_in_use_is_set.then(|| bytes(stats.peak_bytes_in_use)),
            limit: stats.bytes_limit_is_set.then(|| bytes(stats.bytes_limit)),
        })
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

    /// Checks that a compiled program cannot leave all devices waiting for each other: XLA's CPU client has a number of
    /// threads, and a device blocks one in each collective that it is in.
    ///
    /// # Errors
    /// [`PjrtError::TooFewThreads`]. A plugin that does not give the compiled module is not checked.
    pub(super) fn check_threads(&self, program: &str, compiled: &Compiled, devices: usize) -> Result<(), PjrtError> {
        const MOST: usize = *COLLECTIVES_AT_ONCE.end();
        let Some(threads) = self.0.threads.filter(|&threads| threads < threads_for(devices, MOST)) else {
            return Ok(());
        };
        let module = match compiled.optimized_hlo() {
            Err(PjrtError::Unimplemented { .. }) => return Ok(()),
            module => module?.decode()?,
        };
        let at_once = collectives_at_once(&module, MOST);
        let needed = threads_for(devices, at_once);
        if needed <= threads {
            return Ok(());
        }
        Err(PjrtError::TooFewThreads { program: program.into(), devices, at_once, threads, needed, variable: THREADS })
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
