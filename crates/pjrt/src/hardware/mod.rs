//! The hardware of this machine, and opening a client of it.

mod driver;
pub(crate) mod libraries;
pub(crate) mod nvidia;

pub use driver::{CudaDevice, CudaDriver};
pub use libraries::{FoundLibrary, libraries_of};

use super::client::{Client, ClientOptions};
use super::error::PjrtError;
use super::pci::has_tpu;
use super::plugin::{Plugin, end_on_lost_collectives, keep_nccl_on_this_host};
use super::search::{FindOptions, named_file, plugin_variable, search};
use meshloom_hlo::PlatformKind;

impl Client {
    /// Creates a client of the plugin that [`Plugin::find`] finds for the options' platform. The plugin's other needs
    /// are met too: for CUDA, NVIDIA's libraries are found and loaded, or fetched as pinned wheels. One of several
    /// processes of CUDA has `--xla_gpu_nccl_terminate_on_error=true` added to `XLA_FLAGS`, unless these say otherwise.
    /// A single process of CUDA has `NCCL_SOCKET_IFNAME` set to loopback, unless it is set.
    ///
    /// # Errors
    /// [`PjrtError::NoDevices`] where the machine has no such hardware, before anything is looked for or downloaded;
    /// unless the user names the plugin's file, whose devices these then are. [`PjrtError::MissingLibraries`] if the
    /// plugin makes no client, and is without some of the libraries.
    pub fn open(options: &ClientOptions) -> Result<Client, PjrtError> {
        options.check()?;
        match (options.platform, &options.process) {
            (PlatformKind::Cuda, Some(_)) => end_on_lost_collectives(),
            (PlatformKind::Cuda, None) => keep_nccl_on_this_host(),
            _ => {}
        }
        let platform = options.platform;
        check_present(platform)?;
        let find = FindOptions::default();
        let (plugin, libraries) = search(platform.name(), &find, |path| {
            // The libraries first: the plugin then finds them loaded.
            let libraries = match platform {
                PlatformKind::Cuda => libraries::load(path, &find),
                PlatformKind::Cpu | PlatformKind::Tpu => Vec::new(),
            };
            Ok((Plugin::load(path)?, libraries))
        })?;
        Client::new(&plugin, options).map_err(|source| {
            let missing: Vec<&FoundLibrary> = libraries.iter().filter(|library| library.problem().is_some()).collect();
            if missing.is_empty() {
                return source;
            }
            // Two of a package stand one after the other.
            let mut packages: Vec<_> = missing.iter().map(|library| library.package).collect();
            packages.dedup();
            PjrtError::MissingLibraries {
                plugin: plugin.path().to_owned(),
                missing: missing.iter().map(|library| library.soname).collect::<Vec<_>>().join(", "),
                packages: packages.join(" "),
                source: Box::new(source),
            }
        })
    }

    /// [`Client::open`] for the CPU, with this many virtual devices.
    pub fn cpu(device_count: usize) -> Result<Client, PjrtError> {
        Client::open(&ClientOptions { device_count: Some(device_count), ..ClientOptions::default() })
    }
}

/// Refuses a platform that the machine has no hardware of, unless the user names a plugin, which then knows better.
///
/// # Errors
/// [`PjrtError::NoDevices`].
pub fn check_present(platform: PlatformKind) -> Result<(), PjrtError> {
    if named_file(platform.name()).is_some() {
        return Ok(());
    }
    let absent = match platform {
        PlatformKind::Cpu => None,
        PlatformKind::Cuda => driver::check().err(),
        PlatformKind::Tpu => (!has_tpu()).then(|| "this machine has no TPU among its PCI devices".to_owned()),
    };
    match absent {
        None => Ok(()),
        Some(reason) => Err(PjrtError::NoDevices { platform, reason, variable: plugin_variable(platform.name()) }),
    }
}
