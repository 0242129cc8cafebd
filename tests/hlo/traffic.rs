//! Tests of the bytes that cross an axis at each step: of modules written by hand with known answers, and of run
//! configs against their schedule.

use meshloom::analysis::{
    AxisPart, DeviceExecutions, Devices, KnownInput, ModuleCollectives, Walk, collectives, step_inputs, traffic,
};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::read;
use meshloom::partition::{Amount, Bounds};
use meshloom::sharding::Mesh;
use meshloom::trace::Tree;
use meshloom::transform::diloco::{Fragment, Transport};
use meshloom_train::config::RunConfig;
use support::cases::cases;
use support::eight_devices::compile;

// Modules written by hand.

/// Reducers, and one all-reduce of `f32[n]` over pairs of devices 4 apart (the axis `slow` of slow=2,fast=4) for each
/// n: it sends 4 n bytes. `fast_8` is one over groups of 4 neighbours.
fn header() -> String {
    let mut text = "HloModule step, num_partitions=8\n\n%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] \
                    parameter(1)\n  ROOT %sum = f32[] add(%a, %b)\n}\n\n%nothing (x: f32[1024]) -> f32[1024] {\n  ROOT %x = f32[1024] \
                    parameter(0)\n}\n\n"
        .to_owned();
    for (name, size, groups) in [
        ("slow_16", 16, "{{0,4},{1,5},{2,6},{3,7}}"),
        ("slow_32", 32, "{{0,4},{1,5},{2,6},{3,7}}"),
        ("slow_64", 64, "{{0,4},{1,5},{2,6},{3,7}}"),
        ("fast_8", 8, "{{0,1,2,3},{4,5,6,7}}"),
    ] {
        text += &format!(
            "%{name} (x: f32[1024]) -> f32[1024] {{\n  %x.{name} = f32[1024] parameter(0)\n  %part.{name} = f32[{size}] slice(%x.{name}), \
             slice={{[0:{size}]}}\n  %sum.{name} = f32[{size}] all-reduce(%part.{name}), channel_id=1, replica_groups={groups}, \
             use_global_device_ids=true, to_apply=%add\n  %zero.{name} = f32[] constant(0)\n  ROOT %padded.{name} = f32[1024] \
             pad(%sum.{name}, %zero.{name}), padding=0_{}\n}}\n\n",
            1024 - size
        );
    }
    text
}

/// `n mod 2 = 0` asks whether anything is sent, `(n mod 6) / 2` what: the streaming schedule of three fragments and
/// period 6.
const STREAMING: &str = "
%fragment (t: (s32[], f32[1024])) -> f32[1024] {
  %t = (s32[], f32[1024]) parameter(0)
  %which = s32[] get-tuple-element(%t), index=0
  %x = f32[1024] get-tuple-element(%t), index=1
  ROOT %switch = f32[1024] conditional(%which, %x, %x, %x), branch_computations={%slow_16, %slow_32, %slow_64}
}

%keep (t: (s32[], f32[1024])) -> f32[1024] {
  %t = (s32[], f32[1024]) parameter(0)
  ROOT %x = f32[1024] get-tuple-element(%t), index=1
}

ENTRY %main (step: s32[], x: f32[1024]) -> f32[1024] {
  %step = s32[] parameter(0)
  %x = f32[1024] parameter(1)
  %one = s32[] constant(1)
  %two = s32[] constant(2)
  %six = s32[] constant(6)
  %zero = s32[] constant(0)
  %after = s32[] add(%step, %one)
  %rest = s32[] remainder(%after, %two)
  %syncs = pred[] compare(%rest, %zero), direction=EQ
  %in_period = s32[] remainder(%after, %six)
  %which = s32[] divide(%in_period, %two)
  %t = (s32[], f32[1024]) tuple(%which, %x)
  %y = f32[1024] call(%x), to_apply=%fast_8
  ROOT %cond = f32[1024] conditional(%syncs, %t, %t), true_computation=%fragment, false_computation=%keep
}
";

/// Four steps in a loop, which syncs after every second; what it syncs is a fusion's word.
const SEVERAL_STEPS: &str = "
%which (n: s32[]) -> pred[] {
  %n = s32[] parameter(0)
  %two = s32[] constant(2)
  %zero = s32[] constant(0)
  %rest = s32[] remainder(%n, %two)
  ROOT %even = pred[] compare(%rest, %zero), direction=EQ
}

%body (t: (s32[], s32[], f32[1024])) -> (s32[], s32[], f32[1024]) {
  %t = (s32[], s32[], f32[1024]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %step = s32[] get-tuple-element(%t), index=1
  %x = f32[1024] get-tuple-element(%t), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %after = s32[] add(%step, %one)
  %even = pred[] fusion(%after), kind=kLoop, calls=%which
  %y = f32[1024] conditional(%even, %x, %x), true_computation=%slow_64, false_computation=%nothing
  ROOT %out = (s32[], s32[], f32[1024]) tuple(%next, %after, %y)
}

%go_on (t: (s32[], s32[], f32[1024])) -> pred[] {
  %t = (s32[], s32[], f32[1024]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %count = s32[] constant(4)
  ROOT %less = pred[] compare(%i, %count), direction=LT
}

ENTRY %main (step: s32[], x: f32[1024]) -> (s32[], s32[], f32[1024]) {
  %step = s32[] parameter(0)
  %x = f32[1024] parameter(1)
  %zero = s32[] constant(0)
  %t = (s32[], s32[], f32[1024]) tuple(%zero, %step, %x)
  ROOT %loop = (s32[], s32[], f32[1024]) while(%t), condition=%go_on, body=%body
}
";

/// A selector that no counter decides, beside one that it does.
const UNDECIDED: &str = "
ENTRY %main (step: s32[], other: s32[], x: f32[1024]) -> f32[1024] {
  %step = s32[] parameter(0)
  %other = s32[] parameter(1)
  %x = f32[1024] parameter(2)
  %y = f32[1024] conditional(%other, %x, %x), branch_computations={%slow_16, %slow_32}
  ROOT %z = f32[1024] conditional(%step, %y, %y, %y), branch_computations={%slow_64, %nothing, %slow_16}
}
";

/// Three iterations: in each, the device decides whether 64 bytes are sent, and the step which of 0, 128 and 256. At
/// the end, both decide together on 64 more.
const DEVICES_AND_STEPS: &str = "
%body (t: (s32[], s32[], s32[], f32[1024])) -> (s32[], s32[], s32[], f32[1024]) {
  %t = (s32[], s32[], s32[], f32[1024]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %device = s32[] get-tuple-element(%t), index=1
  %step = s32[] get-tuple-element(%t), index=2
  %x = f32[1024] get-tuple-element(%t), index=3
  %one = s32[] constant(1)
  %two = s32[] constant(2)
  %three = s32[] constant(3)
  %next = s32[] add(%i, %one)
  %by_device = s32[] add(%device, %i)
  %whether = s32[] remainder(%by_device, %two)
  %y = f32[1024] conditional(%whether, %x, %x), branch_computations={%slow_16, %nothing}
  %by_step = s32[] add(%step, %i)
  %which = s32[] remainder(%by_step, %three)
  %z = f32[1024] conditional(%which, %y, %y, %y), branch_computations={%nothing, %slow_32, %slow_64}
  ROOT %out = (s32[], s32[], s32[], f32[1024]) tuple(%next, %device, %step, %z)
}

%go_on (t: (s32[], s32[], s32[], f32[1024])) -> pred[] {
  %t = (s32[], s32[], s32[], f32[1024]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %count = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %count), direction=LT
}

ENTRY %main (step: s32[], x: f32[1024]) -> f32[1024] {
  %step = s32[] parameter(0)
  %x = f32[1024] parameter(1)
  %id = u32[] partition-id()
  %device = s32[] convert(%id)
  %zero = s32[] constant(0)
  %t = (s32[], s32[], s32[], f32[1024]) tuple(%zero, %device, %step, %x)
  %loop = (s32[], s32[], s32[], f32[1024]) while(%t), condition=%go_on, body=%body
  %y = f32[1024] get-tuple-element(%loop), index=3
  %both = s32[] add(%step, %device)
  %two = s32[] constant(2)
  %whether = s32[] remainder(%both, %two)
  ROOT %z = f32[1024] conditional(%whether, %y, %y), branch_computations={%slow_16, %nothing}
}
";

fn module(text: &str) -> HloModuleProto {
    let text = header() + text;
    read::read(text.as_bytes(), &read::Limits::default()).unwrap_or_else(|error| panic!("{error}\n{text}")).module
}

struct Known {
    found: ModuleCollectives,
    mesh: Mesh,
    walk_of: HloModuleProto,
}

impl Known {
    fn of(text: &str) -> Known {
        let (walk_of, mesh) = (module(text), Mesh::parse("slow=2,fast=4", 8).expect("a mesh"));
        Known { found: collectives(&walk_of, Devices::partitioned(8)).along(&mesh), mesh, walk_of }
    }

    fn over(&self, axis: &str) -> ModuleCollectives {
        let axis = AxisPart::parse(axis, &self.mesh).expect("an axis");
        let mut found = self.found.clone();
        found.entries.retain(|entry| entry.crosses(&axis, &self.mesh).expect("known devices"));
        found
    }

    fn given(&self, step: i64) -> DeviceExecutions {
        Walk::of(&self.walk_of).given(&[first_input(step)], Devices::partitioned(8))
    }

    /// Bytes over an axis where the first input is 0, 1, ...
    fn by_step(&self, axis: &str, steps: i64) -> Vec<Bounds> {
        let over = self.over(axis);
        let inputs: Vec<_> = (0..steps).map(|step| vec![first_input(step)]).collect();
        let given = Walk::of(&self.walk_of).given_each(&inputs, Devices::partitioned(8));
        assert_eq!(given, (0..steps).map(|step| self.given(step)).collect::<Vec<_>>(), "as one by one");
        given.iter().map(|given| given.moved_bytes(&over.entries)).collect()
    }
}

fn first_input(value: i64) -> KnownInput {
    KnownInput { parameter: 0, element: Vec::new(), value }
}

fn exactly(bytes: u64) -> Bounds {
    Bounds { least: bytes, most: Some(bytes) }
}

#[test]
fn sums_are_of_one_branch_of_each_conditional() {
    let cases = [
        (STREAMING, "slow", (0, 256), 3),
        (STREAMING, "fast", (48, 48), 1),
        (SEVERAL_STEPS, "slow", (0, 4 * 256), 1),
        (UNDECIDED, "slow", (64, 128 + 256), 4),
    ];
    for (text, axis, (least, most), count) in cases {
        let found = Known::of(text).over(axis);
        assert_eq!(found.entries.len(), count, "{axis}{text}");
        assert_eq!(found.moved_bounds(), Bounds { least, most: Some(most) }, "{axis}{text}");
    }
    let found = Known::of(STREAMING).over("slow");
    assert_eq!(found.execution_bounds(), Bounds { least: 0, most: Some(1) });
    assert_eq!(found.executions(), Amount::AtMost(1), "three branches: one runs");
    let within: Vec<_> = found.entries.iter().map(|entry| entry.branches.len()).collect();
    assert_eq!(within, [2, 2, 2], "the switch is in a branch itself");
    let names: Vec<_> = found.conditionals.iter().map(|it| it.branches.join("|")).collect();
    assert_eq!(names, ["true|false", "0|1|2"]);
}

#[test]
fn a_step_takes_its_branch() {
    let streaming = Known::of(STREAMING);
    // After steps 1, 2, ...: fragment 1 at 2, 2 at 4, 0 at 6.
    assert_eq!(streaming.by_step("slow", 8), [0, 128, 0, 256, 0, 64, 0, 128].map(exactly));
    assert_eq!(streaming.by_step("fast", 3), [48; 3].map(exactly), "what is in no branch is always there");
    // Each call runs four steps from the given one: two of them are even.
    assert_eq!(Known::of(SEVERAL_STEPS).by_step("slow", 3), [2 * 256; 3].map(exactly));
    let undecided = Known::of(UNDECIDED).by_step("slow", 4);
    let either = |more: u64| Bounds { least: 64 + more, most: Some(128 + more) };
    // A selector out of range takes the last branch.
    assert_eq!(undecided, [either(256), either(0), either(64), either(64)]);
    // Even devices send 64 bytes twice in the loop, odd ones once, and either one more at the end.
    let even = Bounds { least: 384 + 64, most: Some(384 + 2 * 64 + 64) };
    assert_eq!(Known::of(DEVICES_AND_STEPS).by_step("slow", 4), [even, exactly(384 + 128), even, exactly(384 + 128)]);
}

/// JAX's `shard_map` before compilation: the counter is one of several values that enter a manual region.
#[test]
fn a_step_is_known_in_a_manual_region() {
    let text = "
%region (step: s32[], x: f32[1024]) -> f32[1024] {
  %step = s32[] parameter(0)
  %x = f32[1024] parameter(1)
  %three = s32[] constant(3)
  %rest = s32[] remainder(%step, %three)
  ROOT %y = f32[1024] conditional(%rest, %x, %x, %x), branch_computations={%nothing, %slow_16, %slow_32}
}

ENTRY %main (x: f32[8192], step: s32[]) -> f32[8192] {
  %x = f32[8192] parameter(0)
  %step = s32[] parameter(1)
  %local = (s32[], f32[1024]) custom-call(%step, %x), custom_call_target=\"xla.sdy.GlobalToLocalShape\"
  %local_step = s32[] get-tuple-element(%local), index=0
  %local_x = f32[1024] get-tuple-element(%local), index=1
  %y = f32[1024] call(%local_step, %local_x), to_apply=%region
  ROOT %out = f32[8192] custom-call(%y), custom_call_target=\"xla.sdy.LocalToGlobalShape\"
}
";
    let known = Known::of(text);
    let over = known.over("slow");
    let at = |step| {
        let input = KnownInput { parameter: 1, element: Vec::new(), value: step };
        Walk::of(&known.walk_of).given(&[input], Devices::partitioned(8)).moved_bytes(&over.entries)
    };
    assert_eq!([0, 1, 2, 3, 7].map(at), [0, 64, 128, 0, 64].map(exactly));
}

#[test]
fn without_the_counter_nothing_is_claimed() {
    let known = Known::of(STREAMING);
    let given = Walk::of(&known.walk_of).given(&[], Devices::partitioned(8));
    assert_eq!(given.moved_bytes(&known.found.entries), known.found.moved_bounds());
    let other = Walk::of(&known.walk_of)
        .given(&[KnownInput { parameter: 1, element: Vec::new(), value: 3 }], Devices::partitioned(8));
    assert_eq!(other.moved_bytes(&known.found.entries), known.found.moved_bounds());
}

// Run configs.

/// Every part of a parameter on a device is a multiple of the 64 numbers that share a scale.
const MODEL: &[&str] = &[
    "model.layers=4",
    "model.embed=256",
    "model.heads=4",
    "model.kv_heads=4",
    "model.head_dim=16",
    "model.mlp=64",
    "model.seq=16",
];

fn config(settings: &[&str]) -> RunConfig {
    support::configs::config(&[MODEL, settings])
}

/// Bytes over an axis in each step, and in loops, as a module has them.
fn by_step(config: &RunConfig, module: &HloModuleProto, axis: &str, steps: u64) -> Vec<(Bounds, Bounds)> {
    let mesh = config.mesh().expect("a mesh");
    let axis = AxisPart::parse(axis, &mesh).expect("an axis");
    let devices = Devices::partitioned(mesh.device_count());
    let inputs = step_inputs(module, None);
    assert!(!inputs.is_empty(), "an input counts steps");
    let found = traffic(module, devices, (&mesh, &axis), &inputs, 0..steps);
    found.steps.iter().map(|step| (step.moved_bytes, step.moved_in_loops)).collect()
}

/// Numbers of each fragment on one device, from the shapes of parameters alone: matrices are split over `fsdp`, norms
/// are whole.
fn fragment_sizes(config: &RunConfig, fragments: usize, fsdp: usize) -> Vec<usize> {
    let params = config.train_step().unwrap().state().params;
    let mut sizes = vec![0; fragments];
    for (path, param) in params.paths().into_iter().zip(params.leaves()) {
        let own = param.spec.ty.element_count() / if path.contains("norm") { 1 } else { fsdp };
        match (path.starts_with("layers."), fragments) {
            (_, 1) | (false, _) => sizes[0] += own,
            (true, _) => sizes[1..].iter_mut().for_each(|size| *size += own / (fragments - 1)),
        }
    }
    sizes
}

/// The bytes that a device sends to sync so many numbers between two replicas: an all-reduce between two, or an
/// all-gather of numbers with few bits, with an f32 for each 64.
fn sent_bytes(numbers: usize, transport: Transport) -> u64 {
    let bytes = match transport {
        Transport::F32 => 4 * numbers,
        Transport::Bf16 => 2 * numbers,
        Transport::F8 => numbers + 4 * numbers / 64,
        Transport::Int4 => numbers / 2 + 4 * numbers / 64,
    };
    bytes as u64
}

fn check_schedule(settings: &[&str], fsdp: usize) {
    let config = config(&[&["diloco.sync_period=11"], settings].concat());
    let options = config.diloco_options().expect("replicas");
    let schedule = options.schedule().expect("a schedule");
    let sizes = fragment_sizes(&config, schedule.fragment_count(), fsdp);
    let expected = |step: usize| match schedule.after_step(step).sent {
        None => 0,
        Some(Fragment::Whole) => sent_bytes(sizes[0], options.transport),
        Some(Fragment::Part(number)) => sent_bytes(sizes[number], options.transport),
    };
    // More than two periods.
    let steps = 2 * schedule.period() + 3;
    let lowered = config.lower_train_step().unwrap_or_else(|error| panic!("{settings:?}: {error}")).1;
    let found = by_step(&config, &lowered.module.decode().expect("a module"), "diloco", steps as u64);
    let wanted: Vec<_> = (1..=steps).map(|step| (exactly(expected(step)), exactly(0))).collect();
    assert_eq!(found, wanted, "{settings:?}");
    // The ledger has the same bounds: a step without a sync, and the largest fragment.
    let most = sizes.iter().map(|&size| sent_bytes(size, options.transport)).max();
    let ledger = lowered.collectives().over("diloco");
    assert_eq!(ledger.moved_bounds(), Ok(Bounds { least: 0, most }), "{settings:?}");
    assert_eq!(ledger.outside_conditionals().count(), Ok(0), "{settings:?}");
    assert_eq!(ledger.inside_conditionals().count(), ledger.count(), "{settings:?}");
}

#[test]
fn each_step_sends_the_fragment_of_the_schedule() {
    const MESH: &str = "mesh.axes=diloco=2,fsdp=4";
    let transport = |name: &str| format!("diloco.transport={name}");
    let [bf16, f8, int4] = ["bf16", "f8", "int4"].map(transport);
    let streaming = |fragments: &'static str| vec![MESH, "diloco.streaming=true", fragments];
    let late = |more: &[&str]| {
        let settings = [&streaming("diloco.fragments=5")[..], &["diloco.overlap_steps=3"], more].concat();
        settings.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let owned = |settings: &[&str]| settings.iter().map(|&setting| setting.to_owned()).collect::<Vec<_>>();
    // Each replica is partially sharded itself, and accumulates.
    let within = ["mesh.axes=diloco=2,replica=2,fsdp=2", "train.microbatches=2", "diloco.streaming=true"];
    let all = [
        (owned(&[MESH]), 4),
        (owned(&streaming("diloco.fragments=3")), 4),
        (owned(&streaming("diloco.fragments=5")), 4),
        (late(&[&int4]), 4),
        (late(&[]), 4),
        (owned(&[MESH, &bf16]), 4),
        (late(&[&bf16]), 4),
        (late(&[&f8]), 4),
        (late(&["diloco.overlap_alpha=0.5", "diloco.sequential_layers=true"]), 4),
        (owned(&[MESH, &f8]), 4),
        (owned(&within), 2),
        (owned(&[MESH, &int4]), 4),
    ];
    for (settings, fsdp) in all {
        check_schedule(&settings.iter().map(String::as_str).collect::<Vec<_>>(), fsdp);
    }
}

/// XLA computes the selectors in fusions of its own, and may join collectives, but each step sends the same.
#[test]
fn a_compiled_program_sends_the_same_at_each_step() {
    let all =
        [&["diloco.streaming=true", "diloco.fragments=5", "diloco.overlap_steps=1"], &["diloco.transport=f32"][..]];
    for settings in cases("hlo compiled replicas", 1, all) {
        let config = config(&[&["mesh.axes=diloco=2,fsdp=4", "diloco.sync_period=11"], settings].concat());
        let lowered = config.lower_train_step().expect("it lowers").1;
        let program = compile(&lowered).expect("it compiles");
        let compiled = program.executable().optimized_hlo().expect("a program").decode().expect("a module");
        let written = by_step(&config, &lowered.module.decode().expect("a module"), "diloco", 24);
        assert_eq!(by_step(&config, &compiled, "diloco", 24), written, "{settings:?}");
        assert!(written.iter().any(|(bytes, _)| bytes.least > 0));
    }
}

#[test]
fn what_crosses_replica_does_not_depend_on_microbatches() {
    let sent = |microbatches: usize| {
        let config =
            config(&["mesh.axes=replica=2,fsdp=4", "train.batch=64", &format!("train.microbatches={microbatches}")]);
        let lowered = config.lower_train_step().expect("it lowers").1;
        by_step(&config, &lowered.module.decode().expect("a module"), "replica", 2)
    };
    let once = sent(1);
    let (bytes, in_loops) = once[0];
    assert_eq!((in_loops, once[1].0), (exactly(0), bytes));
    for microbatches in [2, 4, 8] {
        assert_eq!(sent(microbatches), once, "{microbatches} microbatches");
    }
    // A reduce-scatter of each gradient over two, an all-gather of each new parameter; and a few single numbers.
    let numbers: usize = fragment_sizes(&config(&[]), 1, 4)[0];
    let parameters = 2 * 4 * numbers as u64 / 2;
    assert!((parameters..parameters + 64).contains(&bytes.least), "{bytes:?}, {parameters} for parameters");
}
