//! Pipelines whose stages branch, compiled for hardware: branches stay, and nothing waits across them.

use meshloom::analysis::{DeviceWalk, Devices, Together, Via, Walk, collectives};
use meshloom::hlo::proto::{HloModuleProto, ShapeProto};
use meshloom::partition::Amount;
use support::configs::config;

use crate::workers::step;

const SEQ: u64 = 128;
const MLP: u64 = 512;
/// Rows of a microbatch.
const ROWS: u64 = 4;

/// The largest copy in a branch, in bytes of `f32`. Copies within a fusion are computed, not kept: libtpu retiles a
/// buffer there, and then reads or writes one slot of it.
fn largest_copy(walk: &Walk<'_>) -> u64 {
    let elements = |shape: &ShapeProto| shape.dimensions.iter().product::<i64>() as u64 * 4;
    let bytes = |shape: &ShapeProto| shape.tuple_shapes.iter().chain([shape]).map(elements).max().unwrap_or(0);
    let is_copy = |opcode: &str| matches!(opcode, "copy" | "copy-start");
    let inside = walk.steps().filter(|step| !step.place.branches.is_empty() && !step.place.fused);
    let copies = inside.filter(|step| is_copy(&step.instruction.opcode));
    copies.filter_map(|step| step.instruction.shape.as_ref().map(bytes)).max().unwrap_or(0)
}

/// Checks every schedule whose stages branch: the plugin compiles it, conditionals stay in the loop over ticks, every
/// collective runs a known number of times with all devices of its group, and no branch copies more than a slot.
pub fn stages_branch(target: &str) {
    // Eight layers: with the number of those that an item goes through on a stage.
    let schedules = [("1f1b", 1, 2), ("interleaved", 2, 1), ("zb-h1", 1, 2), ("zb-v", 2, 1), ("auto", 2, 1)];
    for (schedule, chunks, layers) in schedules {
        let settings = [
            format!("target.topology={target}"),
            format!("model.seq={SEQ}"),
            format!("model.mlp={MLP}"),
            format!("train.batch={}", 8 * ROWS),
            format!("pipeline.schedule={schedule}"),
            format!("pipeline.chunks={chunks}"),
            format!("pipeline.layers_per_stage={layers}"),
            "pipeline.repeats=1".to_owned(),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let shape = [
            "mesh.axes=stage=4,tensor=2",
            "model.layers=8",
            "model.embed=128",
            "pipeline.microbatches=8",
            "pipeline.remat=none",
        ];
        let config = config(&[&settings, &shape]);
        let step = step(schedule, &config);
        let devices = Devices::partitioned(step.devices.len());
        let module: HloModuleProto = step.compiled.optimized_hlo().expect("a program").decode().expect("a module");
        let walk = DeviceWalk::of(&module, devices);
        let walk = walk.walk();
        let branches = walk.places().iter().filter(|place| {
            place.loop_depth > 0 && place.caller.is_some_and(|caller| matches!(caller.via, Via::Branch(_)))
        });
        // Forwards and backwards, two branches each.
        assert!(branches.clone().count() >= 4, "{target}, {schedule}: {} branches", branches.count());
        let found = collectives(&module, devices);
        for entry in &found.entries {
            assert_eq!(found.together(entry), Together::Yes, "{target}, {schedule}: {entry:?}");
        }
        let emitted = step.lowered.module.decode().expect("our own module");
        let (emitted, compiled) = (collectives(&emitted, devices).moved_bytes(), found.moved_bytes());
        let bytes = |amount: Amount| match amount {
            Amount::Exactly(bytes) => bytes,
            other => panic!("{target}, {schedule}: {other} bytes are sent"),
        };
        let (emitted, compiled) = (bytes(emitted), bytes(compiled));
        // The bytes of an item that one device keeps: the widest activations are split over `tensor`.
        let slot = layers * ROWS * SEQ * MLP / 2 * 4;
        let copied = largest_copy(walk);
        println!("{target}, {schedule}: {compiled} of {emitted} bytes, copies of {copied} bytes, slots of {slot}");
        assert!(copied <= slot, "{target}, {schedule}: a branch copies {copied} bytes, and a slot has {slot}");
        assert!(100 * compiled <= 102 * emitted, "{target}, {schedule}: {compiled} bytes are sent, not {emitted}");
    }
}
