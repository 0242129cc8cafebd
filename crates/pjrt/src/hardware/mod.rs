//! The hardware of this machine, and a client of it.

mod driver;
mod libraries;
mod nvidia;

use std::fs;

pub use driver::{CudaDevice, CudaDriver};
pub use libraries::{FoundLibrary, libraries_of};

use super::client::{Client, ClientOptions};
use super::error::PjrtError;
use super::platform::PlatformKind;
use super::plugin::Plugin;
use super::search::{FindOptions, named_file, search};

/// What [`Client::open`] does, after the options are checked.
pub(super) fn open(options: &ClientOptions) -> Result<Client, PjrtError> {
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
        PlatformKind::Tpu => (!has_tpu()).then(|| "this machine has no TPU: no PCI device of Google's".to_owned()),
    };
    match absent {
        None => Ok(()),
        Some(reason) => Err(PjrtError::NoDevices { platform, reason, variable: platform.plugin_variable() }),
    }
}

/// Whether a PCI device of this machine is Google's, as TPUs are.
pub(super) fn has_tpu() -> bool {
    const GOOGLE: &str = "0x1ae0";
    let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let vendors = devices.filter_map(|device| fs::read_to_string(device.path().join("vendor")).ok());
    vendors.into_iter().any(|vendor| vendor.trim() == GOOGLE)
}
