//! The PCI devices of this machine: TPUs among them.

use std::fs;
use std::path::Path;

/// Google's number among the makers of PCI devices.
const GOOGLE: &str = "0x1ae0";

/// The numbers of Google's PCI devices that are TPUs, as JAX has them. Other devices of Google are
/// not, such as the network card gVNIC, 0x0042.
const TPUS: [&str; 7] = [
    "0x0027", // v2, v3
    "0x0056", // without a public name
    "0x005e", // v4
    "0x0062", // v5p
    "0x0063", // v5e
    "0x006f", // v6e
    "0x0076", // tpu7x
];

/// Returns whether a PCI device of this machine is a TPU.
pub(super) fn has_tpu() -> bool {
    has_tpu_below(Path::new("/sys/bus/pci/devices"))
}

/// Returns whether a PCI device below a folder, where Linux lists them, is a TPU.
pub fn has_tpu_below(devices: &Path) -> bool {
    let devices = fs::read_dir(devices).into_iter().flatten().flatten();
    let is_tpu = |device: &Path| {
        let number = |file: &str| fs::read_to_string(device.join(file)).unwrap_or_default();
        number("vendor").trim() == GOOGLE && TPUS.contains(&number("device").trim())
    };
    devices.into_iter().any(|device| is_tpu(&device.path()))
}
