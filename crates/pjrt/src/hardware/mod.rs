//! The hardware of this machine, and a client of it.

mod driver;
pub(crate) mod libraries;
pub(crate) mod nvidia;

use std::fs;
use std::path::Path;

pub use driver::{CudaDevice, CudaDriver};
pub use libraries::{FoundLibrary, libraries_of};

use super::client::{Client, ClientOptions};
use super::error::PjrtError;
use super::plugin::Plugin;
use super::search::{FindOptions, named_file, plugin_variable, search};
use meshloom_hlo::PlatformKind;

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
        PlatformKind::Tpu => (!has_tpu()).then(|| "this machine has no TPU among its PCI devices".to_owned()),
    };
    match absent {
        None => Ok(()),
        Some(reason) => Err(PjrtError::NoDevices { platform, reason, variable: plugin_variable(platform.name()) }),
    }
}

/// Google's number among the makers of PCI devices.
const GOOGLE: &str = "0x1ae0";

/// The numbers of Google's PCI devices that are TPUs, as JAX has them. Others are none, such as the network card gVNIC,
/// 0x0042.
const TPUS: [&str; 7] = [
    "0x0027", // v2, v3
    "0x0056", // without a public name
    "0x005e", // v4
    "0x0062", // v5p
    "0x0063", // v5e
    "0x006f", // v6e
    "0x0076", // tpu7x
];

/// Whether a PCI device of this machine is a TPU.
pub(super) fn has_tpu() -> bool {
    has_tpu_below(Path::new("/sys/bus/pci/devices"))
}

/// Whether a PCI device below a folder, where Linux lists them, is a TPU.
pub fn has_tpu_below(devices: &Path) -> bool {
    let devices = fs::read_dir(devices).into_iter().flatten().flatten();
    let is_tpu = |device: &Path| {
        let number = |file: &str| fs::read_to_string(device.join(file)).unwrap_or_default();
        number("vendor").trim() == GOOGLE && TPUS.contains(&number("device").trim())
    };
    devices.into_iter().any(|device| is_tpu(&device.path()))
}
