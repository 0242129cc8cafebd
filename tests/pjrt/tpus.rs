//! TPUs, which are found among the PCI devices.

use std::fs;

use meshloom::pjrt::internals::has_tpu_below;

#[test]
fn a_network_card_of_googles_is_no_tpu() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(!has_tpu_below(&folder.path().join("absent")));
    let add = |place: &str, vendor: &str, device: &str| {
        let place = folder.path().join(place);
        fs::create_dir(&place).expect("create");
        fs::write(place.join("vendor"), format!("{vendor}\n")).expect("write");
        fs::write(place.join("device"), format!("{device}\n")).expect("write");
    };
    // gVNIC; a device of another maker with a TPU's number.
    add("0000:00:04.0", "0x1ae0", "0x0042");
    add("0000:00:05.0", "0x10de", "0x0063");
    assert!(!has_tpu_below(folder.path()));
    add("0000:00:06.0", "0x1ae0", "0x0063");
    assert!(has_tpu_below(folder.path()));
}
