//! The platforms themselves, and train steps for them.

use std::collections::BTreeSet;
use std::time::Duration;

use meshloom::analysis::{Devices, collectives};
use meshloom::compile::LowerOptions;
use meshloom::emit::{GroupFormat, device_groups};
use meshloom::hlo::PlatformKind;
use meshloom::partition::Amount;
use meshloom::passes::{CollectiveLimits, CollectiveMatmul};
use meshloom::pjrt::ahead_of_time::{self, CompiledAhead, Settings, WorkerFailure};
use meshloom::pjrt::*;
use support::ahead_of_time::{described, failure, refusal, topology};
use support::cases::cases;
use support::configs::{NARROW, config};
use support::counts;
use support::pjrt_modules as modules;

use crate::workers::{compile, step};

fn compile_sharded(target: &str, device_count: usize) -> CompiledAhead {
    let module = modules::sharded_dot_over(device_count as i64);
    compile(target, &module, &CompileOptions::partitioned(device_count)).unwrap_or_else(|error| panic!("{error}"))
}

pub fn tpu_topologies_are_described() {
    // Name, devices, kind, coordinates and core of the last one, slice of the last one.
    type Case = (&'static str, usize, &'static str, [i64; 3], i64, Option<i64>);
    let all: [Case; 9] = [
        ("tpu7x:2x2x1:slices=2", 16, "TPU7x", [1, 1, 0], 1, Some(1)),
        ("v2:2x2", 8, "TPU v2", [1, 1, 0], 1, None),
        ("v3:2x2", 8, "TPU v3", [1, 1, 0], 1, None),
        ("v4:4x4x4", 128, "TPU v4", [3, 3, 3], 1, None),
        ("v5e:2x4", 8, "TPU v5 lite", [1, 3, 0], 0, None),
        ("v5p:8x8x8", 512, "TPU v5", [7, 7, 7], 0, None),
        ("v5p:16x16x24", 6144, "TPU v5", [15, 15, 23], 0, None),
        ("v6e:16x16", 256, "TPU v6 lite", [15, 15, 0], 0, None),
        ("tpu7x:2x2x1", 8, "TPU7x", [1, 1, 0], 1, None),
    ];
    for (name, count, kind, coords, core, slice) in cases("ahead topologies of TPUs", 1, all) {
        let devices = described(name).devices;
        let last = devices.last().expect("a device");
        assert_eq!((devices.len(), last.kind.as_str()), (count, kind), "{name}");
        assert_eq!(topology(name).device_count(), count, "{name}, without asking");
        assert_eq!((last.coords(), last.core_on_chip(), last.slice_index()), (Some(&coords[..]), Some(core), slice));
        assert!(last.memory_limit().is_some_and(|bytes| bytes > 8_000_000_000), "{name}: {last:?}");
    }
    // Products are cut up beside collectives by the chip's rates: 459 TF/s, and 4800 Gbit/s over three rings, both
    // ways.
    let platform = described("v5p:2x2x1").platform;
    let operations_per_byte = (459e12_f64 / (4800e9 / 8.0 / 3.0 / 2.0)) as u64;
    let matmul = LowerOptions::default().on(&platform).limits.matmul;
    assert_eq!(matmul, CollectiveMatmul::Auto { operations_per_byte });
    // These collectives are better done in levels: those over a whole slice, and gathers on v5p's SparseCores.
    const MIB: Option<u64> = Some(1 << 20);
    let all: [(_, &[usize], _, _); 9] = [
        ("v5p:2x2x1", &[2, 2], false, MIB),
        ("v5e:2x4", &[2, 4], false, None),
        ("v5e:8x8", &[8, 8], true, None),
        ("v6e:16x16", &[16, 16], true, None),
        ("v5p:2x2x2", &[2, 2, 2], true, MIB),
        ("v5p:4x4x8", &[4, 4, 8], true, MIB),
        ("tpu7x:2x2x2", &[2, 2, 2, 2], false, None),
        ("tpu7x:4x4x4", &[2, 4, 4, 4], true, None),
        ("tpu7x:4x4x4:slices=2", &[2, 4, 4, 4], true, None),
    ];
    for (name, shape, whole, gathers) in cases("ahead levels of slices", 1, all) {
        let described = described(name);
        let expected = (whole || gathers.is_some()).then(|| SliceLevels { shape: shape.to_vec(), whole, gathers });
        assert_eq!(LowerOptions::default().on(&described.platform).levels, expected, "{name}");
    }
}

pub fn topologies_that_are_none_are_refused() {
    counts::started(1);
    let error = refusal(ahead_of_time::describe(&topology("v5e:3x5"), &Settings::default()));
    let PjrtError::Plugin { function, code, message } = error else { panic!("{error}") };
    assert_eq!((&*function, code), ("PJRT_TopologyDescription_Create", ErrorCode::InvalidArgument));
    assert!(message.contains("v5e:3x5"), "{message}");
}

pub fn compiles_for_tpus() {
    let ahead = compile_sharded("v5e:2x4", 8);
    assert_eq!(ahead.device_assignment, [[0, 1, 2, 3, 4, 5, 6, 7]]);
    assert!(ahead.memory_stats().expect("stats").generated_code > 0);
    assert!(ahead.cost_analysis().expect("costs").flops().is_some_and(|flops| flops > 0.0));
    let module = ahead.optimized_hlo().expect("a program").decode().expect("a module");
    let opcodes = || module.computations.iter().flat_map(|computation| &computation.instructions).map(|i| &i.opcode);
    assert!(opcodes().any(|opcode| opcode.starts_with("all-reduce")), "the sum is over all devices");
    assert!(!ahead.serialized().expect("bytes").is_empty());

    // Two slices: the topology has ids of its own, and the program wants an assignment that uses them.
    let ahead = compile_sharded("tpu7x:2x2x1:slices=2", 16);
    let ids: Vec<i32> = (100_000..100_008).chain(200_000..200_008).collect();
    assert_eq!(ahead.device_assignment, std::slice::from_ref(&ids));
    let reversed: Vec<i32> = ids.into_iter().rev().collect();
    let options = CompileOptions { device_assignment: Some(vec![reversed.clone()]), ..CompileOptions::partitioned(16) };
    let ahead = compile("tpu7x:2x2x1:slices=2", &modules::sharded_dot_over(16), &options).expect("compiled");
    assert_eq!(ahead.device_assignment, [reversed]);
}

/// Shardy switched on for a module with GSPMD's annotations is a failed check in libtpu.
pub fn a_failed_check_of_libtpu_ends_the_worker_alone() {
    let options = CompileOptions { use_shardy_partitioner: true, ..CompileOptions::partitioned(8) };
    let (text, failure) = failure(compile("v5e:2x4", &modules::sharded_dot(), &options));
    let WorkerFailure::Died { signal, log, .. } = failure else { panic!("{text}") };
    assert_eq!(signal, 6, "{text}");
    assert!(text.starts_with("compiling \"test\" for v5e:2x4 with /") && text.contains("libtpu.so"), "{text}");
    assert!(log.fatal.is_some(), "{text}");
}

pub fn libtpu_is_killed_at_the_time_limit() {
    counts::started(1);
    let settings = Settings { time_limit: Duration::from_millis(1), ..Settings::default() };
    let options = CompileOptions::partitioned(8);
    let result = ahead_of_time::compile(&topology("v5e:2x4"), &modules::sharded_dot(), &options, &settings);
    assert!(matches!(failure(result).1, WorkerFailure::TimedOut { .. }));
}

pub fn gpu_topologies_are_described() {
    let all = [
        ("h100:1x1x8", 8, "NVIDIA H100 80GB HBM3", "9.0", 84_942_979_072),
        ("a100-40g:1x1x8", 8, "NVIDIA A100-SXM4-40GB", "8.0", 42_331_013_120),
        ("a100:2x4x8", 64, "NVIDIA A100-SXM4-80GB", "8.0", 85_100_068_864),
        ("h200:1x1x1", 1, "NVIDIA H200 141GB HBM3e", "9.0", 151_397_597_184),
        ("b200:1x2x8", 16, "NVIDIA B200", "10.0", 191_514_411_008),
    ];
    for (name, count, kind, capability, memory) in cases("ahead topologies of GPUs", 1, all) {
        let devices = described(name).devices;
        let last = devices.last().expect("a device");
        assert_eq!((devices.len(), last.kind.as_str()), (count, kind), "{name}");
        assert_eq!(topology(name).device_count(), count, "{name}, without asking");
        assert_eq!(last.memory_limit(), Some(memory), "{name}");
        assert_eq!(last.attributes["compute_capability"], NamedValue::Text(capability.into()), "{name}");
    }
}

pub fn compiles_for_gpus() {
    for target in ["a100:1x1x8", "h100:1x1x8", "h200:1x1x8", "b200:1x1x8"] {
        let ahead = compile_sharded(target, 8);
        assert!(ahead.memory_stats().expect("stats").arguments > 0, "{target}");
        let costs = ahead.cost_analysis();
        assert!(matches!(costs, Ok(_) | Err(PjrtError::Unimplemented { .. })), "{costs:?}");
        // The machine code is in there: it was assembled.
        let serialized = ahead.serialized().expect("bytes");
        assert!(serialized.windows(4).any(|bytes| bytes == b"\x7fELF"), "{target}");
    }
}

/// A train step compiles, and updates its state in place.
pub fn train_step(target: &str, axes: &str) {
    let config = config(&[NARROW, &[&format!("target.topology={target}"), &format!("mesh.axes={axes}")]]);
    let step = step(axes, &config);
    let memory = step.compiled.memory_stats().expect("stats");
    assert_eq!(step.compiled.device_assignment[0].len(), step.devices.len());
    // Parameters and optimizer state are updated in place: three times the parameters, split over `fsdp`.
    let state = 3 * 4 * step.parameter_count as i64 / 4;
    assert!(memory.aliased >= state, "{target}: {memory:?}, {state} bytes of state");
    assert!(memory.arguments > memory.aliased && memory.outputs >= memory.aliased, "{target}: {memory:?}");
}

/// Compiles the step that our partitioner makes, for devices that are not there. The plugin may change collectives, but
/// only within the groups that they were written with. Returns the bytes that the compiled program moves, and those of
/// the emitted program.
fn check_groups_survive(target: &str, axes: &str, overrides: &[&str]) -> (Amount, Amount) {
    let (topology, axes) = (format!("target.topology={target}"), format!("mesh.axes={axes}"));
    let config = config(&[NARROW, overrides, &[&topology, &axes, "partition.mode=explicit"]]);
    let step = step(axes, &config);
    let groups_of = |axes: &[String]| {
        let axes: Vec<_> = axes.iter().map(|axis| step.mesh.axis(axis).expect("an axis of the mesh")).collect();
        let mut groups = device_groups(&step.mesh, &axes);
        // Within a group, the order is the plugin's affair.
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_unstable();
        groups
    };
    let ledger = step.lowered.collectives();
    let written: BTreeSet<_> = ledger.iter().expect("a ledger").map(|entry| groups_of(&entry.axes)).collect();
    let module = step.compiled.optimized_hlo().expect("a program").decode().expect("a module");
    let found = collectives(&module, Devices::partitioned(step.devices.len()));
    let read = found.entries.iter().map(|entry| {
        let lists = entry.groups.lists().unwrap_or_else(|| panic!("{target}: {entry:?}"));
        let mut groups: Vec<Vec<usize>> =
            lists.into_iter().map(|list| list.into_iter().map(|device| device as usize).collect()).collect();
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_unstable();
        groups
    });
    let sizes = |groups: &BTreeSet<Vec<Vec<usize>>>| groups.iter().map(|groups| groups[0].len()).collect::<Vec<_>>();
    let read: BTreeSet<_> = read.collect();
    assert!(read == written, "{target}: groups of {:?} were written, of {:?} read", sizes(&written), sizes(&read));
    (found.moved_bytes(), ledger.moved_bytes().expect("a ledger"))
}

pub fn the_explicit_step_compiles_for_512_tpus() {
    // libtpu writes small reduce-scatters as all-reduces, and gathers some weights in `bf16`: it may move more or less.
    check_groups_survive("v5p:8x8x8", "data=8,fsdp=64", &["model.embed=64", "train.batch=512"]);
}

pub fn the_explicit_step_compiles_for_64_gpus() {
    let (compiled, written) =
        check_groups_survive("h100:2x4x8", "data=8,fsdp=8", &["model.embed=64", "train.batch=64"]);
    assert_eq!(compiled, written);
}

/// Eight devices of a chip.
fn target(preset: &ChipOptions) -> String {
    match preset.chip {
        "v5e" | "v6e" => format!("{}:2x4", preset.chip),
        "v5p" => "v5p:2x2x2".to_owned(),
        "tpu7x" => "tpu7x:2x2x1".to_owned(),
        chip => format!("{chip}:1x1x8"),
    }
}

/// The plugin takes every option of its chips. One that it does not know it refuses, with its name.
pub fn presets_are_accepted(platform: &str) {
    let of_platform = || CHIP_OPTIONS.iter().filter(|preset| topology(&target(preset)).platform().name() == platform);
    assert!(of_platform().count() >= 4);
    for preset in of_platform() {
        let target = target(preset);
        let described = described(&target);
        assert_eq!(described.platform.chip_options(), Some(preset), "{target}");
        let mut options = CompileOptions::partitioned(8);
        for option in preset.options() {
            let (name, value) = option.split_once('=').expect("name=value");
            options.debug_options.insert(name.to_owned(), DebugValue::parse(value));
        }
        let compiled = compile(&target, &modules::sharded_dot_over(8), &options);
        compiled.unwrap_or_else(|error| panic!("{target}: {error}"));
        options.debug_options.insert("xla_no_such_option".to_owned(), DebugValue::Bool(true));
        let refused = refusal(compile(&target, &modules::sharded_dot_over(8), &options)).to_string();
        assert!(refused.contains("xla_no_such_option"), "{target}: {refused}");
    }
}

/// A program for a topology is lowered and compiled for the topology's platform, whatever `target.platform` is.
pub fn the_topology_is_the_platform(target: &str) {
    let own = |platform: &str| {
        let keys = [format!("target.topology={target}"), format!("target.platform={platform}")];
        config(&[NARROW, &["model.layers=1", "mesh.axes=data=2,fsdp=-1", &keys[0], &keys[1]]])
    };
    let described = described(target);
    let expected = own("cpu").on_devices(described.devices.len()).expect("it fits");
    let expected =
        expected.resolve().expect("a run").lower(expected.calls(), &described.platform).expect("it lowers").1;
    assert!(described.platform.overlaps_collectives() && described.platform.group_format() != GroupFormat::Lists);
    // On a v5e, which has no SparseCores, transfers stay apart.
    let packed = LowerOptions::default().on(&described.platform).limits.packed_bytes;
    let sparse = ["v5p", "v6e", "tpu7x"].iter().any(|chip| target.starts_with(chip));
    assert_eq!(packed, if sparse { CollectiveLimits::PACKED_BYTES } else { 0 }, "{target}");
    // On GPUs, no products are cut.
    let matmul = LowerOptions::default().on(&described.platform).limits.matmul;
    assert_eq!(matmul == CollectiveMatmul::Off, described.platform.kind() != PlatformKind::Tpu, "{target}");
    for platform in ["cpu", "auto"] {
        let step = step(platform, &own(platform));
        assert!(step.lowered.module.bytes == expected.module.bytes, "{platform}");
    }
    // Options that follow from the chip can be changed, one by one and as a whole.
    let preset = described.platform.chip_options().expect("a preset").options().next().expect("an option");
    let (name, value) = preset.split_once('=').expect("name=value");
    let options = |keys: &[&str]| {
        config(&[&[&format!("target.topology={target}")], keys]).compiler_options(&described.platform).expect("options")
    };
    assert_eq!(options(&[])[name], DebugValue::parse(value));
    assert_eq!(options(&[&format!("target.compiler_options=[\"{name}=7\"]")])[name], DebugValue::Int(7));
    assert!(options(&["target.compiler_preset=false"]).is_empty());
}
