//! Tests of how much communication compiled schedules hide.

use meshloom::analysis::{Chip, CostOptions, Devices, collectives, overlap};
use meshloom::partition::Amount;
use support::configs::config;

use crate::workers::step;

/// The chip's options have transfers run beside compute, and every byte that is sent is on the time line.
pub fn transfers_run_beside_compute() {
    let config =
        config(&[&["target.topology=v5p:2x2x2", "mesh.axes=data=2,fsdp=4", "model.layers=2", "model.seq=128"]]);
    let step = step("two layers", &config);
    let module = step.compiled.optimized_hlo().expect("a program").decode().expect("a module");
    let (devices, chip) = (Devices::partitioned(step.devices.len()), Chip::parse("v5p").expect("a chip"));
    let options = CostOptions::devices(devices).on(chip);
    let found = overlap(&module, Some(&step.mesh), &options).unwrap_or_else(|error| panic!("{error}"));
    let Amount::Exactly(bytes) = collectives(&module, devices).moved_bytes() else { panic!("a known number of bytes") };
    // One ring of a v5p has a third of its 4800 Gbit/s.
    let seconds = bytes as f64 / 200e9;
    assert!((found.total.seconds - seconds).abs() <= 1e-6 * seconds, "{} and {seconds} s", found.total.seconds);
    assert!(found.transfers.iter().any(|it| !it.synchronous && it.hidden.share() > Some(0.1)), "{found:#?}");
    assert!(found.transfers.iter().filter(|it| it.synchronous).all(|it| it.hidden.share() < Some(1e-6)), "{found:#?}");
    // A device that waits, waits for one transfer at a time.
    let waiting = found.waiting_seconds;
    assert!((found.total.waited_seconds - waiting).abs() <= 1e-6 * waiting, "{found:#?}");
    assert!(waiting <= found.total.exposed_seconds * (1.0 + 1e-6), "{found:#?}");
}
