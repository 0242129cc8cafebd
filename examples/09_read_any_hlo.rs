//! Reads HLO that meshloom did not make, and asserts on it: what `hlo-dump` prints, as data.
//!
//! ```text
//! cargo run --release --example 09_read_any_hlo
//! ```
//!
//! The module is a JAX program (layers scanned, rematerialized, FSDP over four of eight devices), as XLA compiled it
//! for a TPU v5e.

use meshloom::analysis::{Chip, CostOptions, collectives, cost, device_count, memory};
use meshloom::hlo::message::counted;
use meshloom::hlo::read::{Limits, read};
use meshloom::partition::CollectiveKind;
use meshloom::sharding::Mesh;

fn main() -> anyhow::Result<()> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/foreign/scan_remat.tpu.txt");
    let found = read(&std::fs::read(file)?, &Limits::default())?;
    let devices = device_count(&found.module, found.config.as_ref());
    println!("{}: {} of {} devices", found.module.name, found.form.name(), devices.partitions);

    // Replica groups are numbers; over a mesh they are axes.
    let mesh = Mesh::parse("data=2,fsdp=4", 8)?;
    let moved = collectives(&found.module, devices).along(&mesh);
    for entry in &moved.entries {
        let axes: Vec<_> = entry.axes.iter().flatten().map(ToString::to_string).collect();
        let (kind, source) = (entry.kind.name(), entry.source.as_deref().unwrap_or("the compiler"));
        println!("  {kind:<18} over {:<9} {}, by {source}", axes.join(","), counted(entry.executions, "time"));
    }
    // Each of five layers gathers its two weights on the way forward, and again on the way back.
    let gathers: Vec<_> = moved.kind(CollectiveKind::AllGather).collect();
    assert!(gathers.iter().all(|gather| gather.executions == 5 && gather.loop_depth == 1));
    assert_eq!(gathers.len(), 4);

    let memory = memory(&found.module)?;
    println!("memory of a device: {} bytes, most of it {}", memory.peak, memory.live_at_peak[0].name);
    let cost = cost(&found.module, &CostOptions::devices(devices).on(Chip::parse("v5e")?));
    assert!(cost.assumptions.loops_counted_once.is_empty());
    let trips: Vec<_> = cost.loops.iter().flat_map(|each| each.trip_count).map(|trips| trips.to_string()).collect();
    println!("operations: {}, in loops that run {} times", cost.total.flops, trips.join(" and "));
    Ok(())
}
