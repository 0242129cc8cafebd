//! Tests of the programs that libtpu compiles for several slices: which transfers go between slices, when, and how many
//! bytes they have. The programs are compiled ahead of time, where the TPU plugin is installed.

use meshloom::analysis::{
    AxisPart, Devices, ModuleCollective, Step, Walk, collectives, slice_count, step_inputs, traffic,
};
use meshloom::compile::Lowered;
use meshloom::hlo::proto::{HloInstructionProto, HloModuleProto};
use meshloom::pjrt::DeviceDescription;
use meshloom::sharding::Mesh;
use meshloom_train::run::Calls;
use support::ahead_of_time::described;
use support::configs::config;

use crate::workers::compile;

const TARGET: &str = "tpu7x:2x2x1:slices=2";
const DEVICES: usize = 16;

const SMALL: &[&str] = &[
    "model.layers=4",
    "model.embed=256",
    "model.heads=4",
    "model.kv_heads=4",
    "model.head_dim=32",
    "model.mlp=256",
    "model.seq=64",
    "train.batch=32",
    "target.topology=tpu7x:2x2x1:slices=2",
];

/// A program, as written and as libtpu compiles it.
struct Compiled {
    mesh: Mesh,
    written: Lowered,
    module: HloModuleProto,
}

impl Compiled {
    fn of(settings: &[&str], calls: Calls) -> Compiled {
        let config = config(&[SMALL, settings]).on_devices(DEVICES).unwrap_or_else(|error| panic!("{error}"));
        let described = described(TARGET);
        let written = config
            .resolve()
            .and_then(|run| run.lower(calls, &described.platform))
            .unwrap_or_else(|error| panic!("{error}"))
            .1;
        let places: Vec<_> = described.devices.iter().map(DeviceDescription::place).collect();
        let options = written.options_on(&places).expect("a place for each device");
        let compiled = compile(TARGET, &written.module.bytes, &options);
        let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
        let module = compiled.optimized_hlo().expect("a program").decode().expect("a module");
        Compiled { mesh: config.mesh().expect("a mesh"), written, module }
    }

    /// The collectives of the compiled program that cross an axis of the mesh.
    fn over(&self, axis: &str) -> Vec<ModuleCollective> {
        let axis = AxisPart::parse(axis, &self.mesh).expect("an axis");
        let found = collectives(&self.module, Devices::partitioned(DEVICES)).along(&self.mesh);
        let crosses = |it: &ModuleCollective| it.crosses(&axis, &self.mesh).expect("known devices");
        found.entries.into_iter().filter(crosses).collect()
    }
}

/// The bytes, without single numbers and vectors, which libtpu pads to some kilobytes.
fn check_bytes(found: Option<u64>, written: Option<u64>, vectors: u64) {
    let (found, written) = (found.expect("a number"), written.expect("a number"));
    assert!((written..=written + vectors * 16_384).contains(&found), "{written} bytes written, {found} sent");
}

pub fn replicas_on_slices_sync_under_the_conditional() {
    let streaming = [
        "mesh.axes=diloco=2,fsdp=8",
        "mesh.dcn=diloco=2",
        "diloco.streaming=true",
        "diloco.sync_period=10",
        "diloco.fragments=5",
    ];
    let compiled = Compiled::of(&streaming, Calls::Single);
    assert_eq!(slice_count(&compiled.module), 2);
    let over = compiled.over("diloco");
    assert!(!over.is_empty());
    assert!(over.iter().all(|it| !it.branches.is_empty() && it.loop_depth == 0), "{over:?}");
    let (mesh, axis) = (&compiled.mesh, AxisPart::parse("diloco", &compiled.mesh).expect("an axis"));
    let by_step = |module: &HloModuleProto| {
        let inputs = step_inputs(module, None);
        assert!(!inputs.is_empty(), "an input counts steps");
        traffic(module, Devices::partitioned(DEVICES), (mesh, &axis), &inputs, 0..22).steps
    };
    for (found, written) in
        by_step(&compiled.module).iter().zip(by_step(&compiled.written.module.decode().expect("a module")))
    {
        assert_eq!(found.moved_bytes.amount().bound(), Some(found.moved_bytes.least), "known");
        let vectors = if written.moved_bytes.least > 0 { 3 } else { 0 };
        check_bytes(found.moved_bytes.most, written.moved_bytes.most, vectors);
    }
}

pub fn slices_exchange_gradients_once() {
    let compiled =
        Compiled::of(&["mesh.axes=replica=2,fsdp=8", "mesh.dcn=replica=2", "train.microbatches=2"], Calls::Single);
    let over = compiled.over("replica");
    assert!(over.iter().all(|it| it.loop_depth == 0 && it.executions == 1), "{over:?}");
    let ledger = compiled.written.collectives().over("replica");
    let found = over.iter().map(|it| it.total_moved_bytes().bound()).sum();
    check_bytes(found, ledger.moved_bytes().expect("a ledger").bound(), 2 * 3 + 3);
}

/// The trip count of each loop between the start of a transfer and the wait for its end, in the compiler's schedule.
fn loops_meanwhile(module: &HloModuleProto, walk: &Walk<'_>, start: Step<'_, '_>) -> Vec<Option<u64>> {
    let attribute =
        |it: &HloInstructionProto| it.frontend_attributes.as_ref()?.map.get("_xla_host_transfer_rendezvous").cloned();
    let all = &start.place.computation.instructions;
    let named = attribute(start.instruction);
    assert!(named.is_some(), "{:?}", start.instruction);
    let receive = all.iter().find(|it| it.opcode == "recv" && attribute(it) == named).expect("a receive");
    let is_end = |it: &&HloInstructionProto| it.opcode == "recv-done" && it.operand_ids.first() == Some(&receive.id);
    let end = all.iter().find(is_end).expect("an end");
    // The order of instructions in a module is not that in which they run.
    let order = &module.schedule.as_ref().expect("a schedule").sequences[&start.place.computation.id].instruction_ids;
    let meanwhile: Vec<i64> =
        order.iter().copied().skip_while(|&id| id != start.instruction.id).take_while(|&id| id != end.id).collect();
    let loops = (0..all.len()).filter(|&at| all[at].opcode == "while" && meanwhile.contains(&all[at].id));
    let body = |position: usize| walk.callees_at(start.place_number, position).next().expect("a body");
    loops.map(|position| walk.trip_count(body(position))).collect()
}

/// A call of a whole period, in which each fragment is used three steps after it is sent: those steps stand between.
pub fn transfers_are_under_way_while_steps_run() {
    let settings = [
        "mesh.axes=diloco=2,fsdp=8",
        "mesh.dcn=diloco=2",
        "diloco.streaming=true",
        "diloco.sync_period=12",
        "diloco.fragments=3",
        "diloco.overlap_steps=3",
    ];
    let compiled = Compiled::of(&settings, Calls::Several(12));
    let walk = Walk::of(&compiled.module);
    let starts = || walk.steps().filter(|step| step.instruction.opcode == "send");
    // One for everything outside the layers; one, in a loop, for the two shares of layers.
    assert_eq!(starts().count(), 2);
    for start in starts() {
        let loops = loops_meanwhile(&compiled.module, &walk, start);
        assert!(loops.contains(&Some(3)), "{}: {loops:?}", start.instruction.name);
    }
}
