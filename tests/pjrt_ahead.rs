//! Compiling ahead of time: the worker process, what may become of it, and every platform that can be compiled for.

// A test says what it found by panicking.
#![allow(clippy::panic)]

mod pjrt_modules;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meshloom::emit::device_groups;
use meshloom::hlo::analysis::{Devices, collectives};
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::partition::Amount;
use meshloom::pjrt::ahead_of_time::{self, CompiledAhead, Settings, WorkerFailure};
use meshloom::pjrt::*;
use meshloom_train::StepAhead;
use meshloom_train::config::RunConfig;
use pjrt_modules as modules;
use support::plugins::large_plugin;

/// With the worker of this crate, which this test program is not.
fn settings() -> Settings {
    Settings { worker: Some(env!("CARGO_BIN_EXE_meshloom-worker").into()), ..Settings::default() }
}

fn topology(text: &str) -> Topology {
    Topology::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn compile(target: &str, module: &[u8], options: &CompileOptions) -> Result<CompiledAhead, PjrtError> {
    ahead_of_time::compile(&topology(target), module, options, &settings())
}

fn compile_sharded(target: &str, device_count: usize) -> CompiledAhead {
    let module = modules::sharded_dot_over(device_count as i64);
    compile(target, &module, &CompileOptions::partitioned(device_count)).unwrap_or_else(|error| panic!("{error}"))
}

/// What became of the worker.
fn failure<T: std::fmt::Debug>(result: Result<T, PjrtError>) -> (String, WorkerFailure) {
    match result.expect_err("this must fail") {
        error @ PjrtError::Worker { .. } => {
            let text = error.to_string();
            let PjrtError::Worker { failure, .. } = error else { unreachable!() };
            (text, *failure)
        }
        error => panic!("not about the worker: {error}"),
    }
}

/// What the worker or its plugin refused.
fn refusal<T: std::fmt::Debug>(result: Result<T, PjrtError>) -> PjrtError {
    match failure(result) {
        (_, WorkerFailure::Refused(error)) => error,
        (text, _) => panic!("not a refusal: {text}"),
    }
}

// The CPU, which is always there.

#[test]
fn compiles_for_the_cpu() {
    let devices = ahead_of_time::describe(&topology("cpu:8"), &settings()).expect("described").devices;
    assert_eq!(devices.iter().map(|device| device.id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);

    let module = modules::sharded_dot();
    let options = CompileOptions::partitioned(8);
    let ahead = compile("cpu:8", &module, &options).expect("compiled");
    assert_eq!(ahead.program, "test");
    assert_eq!(ahead.device_assignment, [[0, 1, 2, 3, 4, 5, 6, 7]]);
    let client = Client::cpu(8).expect("a client");
    let here = client.compile(&module, &options).expect("compiled here");
    assert_eq!(ahead.memory_stats().expect("stats").arguments, here.memory_stats().expect("stats").arguments);
    assert_eq!(ahead.memory_stats().expect("stats").arguments, (2 * 4 + 4 * 2) * 4);
    assert_eq!(ahead.cost_analysis().is_ok(), here.cost_analysis().is_ok());
    let count = |program: &OptimizedProgram| program.decode().expect("a module").computations.len();
    assert_eq!(count(ahead.optimized_hlo().expect("a program")), count(&here.optimized_hlo().expect("a program")));

    // What the worker serialized runs here.
    let loaded = client.deserialize(ahead.serialized().expect("bytes"), &module, &options).expect("loaded");
    let rows = |width: usize| {
        let boxes = (0..8).map(|row| vec![2 * row..2 * row + 2, 0..width]).collect();
        ShardLayout::from_boxes(&[16, width], boxes).expect("boxes")
    };
    let ones = |dims: &[usize]| Literal::from_slice(dims, &vec![1f32; dims.iter().product()]).expect("ones");
    let left = Array::put(&client, &ones(&[16, 4]), &rows(4)).expect("put");
    let right = Array::put(&client, &ones(&[4, 2]), &ShardLayout::replicated(&[4, 2], 8)).expect("put");
    let outputs = [
        ArraySpec { ty: TensorType::new(DType::F32, &[16, 2]), layout: rows(2) },
        ArraySpec { ty: TensorType::scalar(DType::F32), layout: ShardLayout::replicated(&[], 8) },
    ];
    let results = loaded.run(&[&left, &right], &outputs).expect("run");
    assert_eq!(results[0].get().expect("get").to_vec::<f32>().expect("f32"), [4.0; 32]);
    assert_eq!(results[1].get().expect("get"), Literal::scalar(64f32));
}

#[test]
fn what_can_be_checked_is_checked_before_the_plugin() {
    let module = modules::sharded_dot();
    let here = |options: CompileOptions, expected: &str| {
        let error = compile("cpu:8", &module, &options).expect_err("refused before a worker is started").to_string();
        assert!(error.contains(expected), "{error}");
    };
    here(CompileOptions::partitioned(0), "num_partitions = 0 is not possible: expected at least 1");
    let three = CompileOptions { allow_propagation_to_outputs: vec![true; 3], ..CompileOptions::partitioned(8) };
    here(
        three,
        "allow_propagation_to_outputs = [true, true, true] is not possible: expected no value, one for all, or one for each of 2",
    );
    let infinite = [("xla_some_option".to_owned(), DebugValue::Float(f64::INFINITY))].into();
    let infinite = CompileOptions { debug_options: infinite, ..CompileOptions::partitioned(8) };
    here(infinite, "xla_some_option = inf is not possible: expected a finite number");

    let in_worker = |options: CompileOptions, expected: &str| {
        let error = refusal(compile("cpu:4", &module, &options));
        assert!(matches!(error, PjrtError::InvalidOption { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    in_worker(
        CompileOptions::partitioned(8),
        "num_replicas * num_partitions = 8 is not possible: expected at most 4 devices, which is what cpu:4 has",
    );
    let assigned = |ids: &[i32]| CompileOptions {
        device_assignment: Some(vec![ids.to_vec()]),
        ..CompileOptions::partitioned(ids.len())
    };
    in_worker(
        assigned(&[0, 1, 2, 7]),
        "device_assignment = 7 is not possible: expected ids of cpu:4's devices, [0, 1, 2, 3]",
    );
    in_worker(assigned(&[0, 1, 1, 2]), "device_assignment = 1 is not possible: expected each device once");

    let error = compile("cpu:8", b"garbage", &CompileOptions::default()).expect_err("not a module");
    assert!(matches!(error, PjrtError::InvalidModule { .. }), "{error}");
    let wrong = compile("cpu:1", &modules::add_with_wrong_result(), &CompileOptions::default());
    assert!(matches!(refusal(wrong), PjrtError::Plugin { .. }), "the plugin's own error comes through");
}

// Workers that fail.

/// A worker that is a shell script.
fn script(folder: &Path, text: &str) -> Settings {
    let path = folder.join("worker.sh");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its run bit");
    Settings { worker: Some(path), ..Settings::default() }
}

fn describe_with(settings: &Settings) -> (String, WorkerFailure) {
    failure(ahead_of_time::describe(&topology("cpu:8"), settings))
}

#[test]
fn a_worker_that_dies_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "echo first\necho 'F0000 00:00:00.0 1 partitioner.cc:7] Check failed: a == b' >&2\nkill -ABRT $$";
    let (text, failure) = describe_with(&script(folder.path(), text));
    let WorkerFailure::Died { signal, log, .. } = failure else { panic!("{text}") };
    assert_eq!(signal, 6);
    assert_eq!(log.fatal.as_deref(), Some("F0000 00:00:00.0 1 partitioner.cc:7] Check failed: a == b"));
    assert_eq!(log.last_lines[0], "first");
    assert!(text.starts_with("describing cpu:8 with /"), "{text}");
    for part in [".so: the plugin ended its process by SIGABRT (a failed check)", "it said: F0000", "\n    first"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_worker_that_hangs_is_killed_with_all_it_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let pids = folder.path().join("pids");
    let text = format!("sleep 1000 &\necho $$ $! > {0}.new; mv {0}.new {0}\necho waiting\nwait", pids.display());
    let settings = Settings { time_limit: Duration::from_secs(2), ..script(folder.path(), &text) };
    let (text, failure) = describe_with(&settings);
    let WorkerFailure::TimedOut { limit, log } = failure else { panic!("{text}") };
    assert_eq!((limit, log.last_lines.as_slice()), (settings.time_limit, &["waiting".to_owned()][..]));
    assert!(text.contains("was not done after 2 s, the time limit, and was killed"), "{text}");
    for pid in fs::read_to_string(pids).expect("the script's pids").split_whitespace() {
        // The script has been waited for. What it started is nobody's child here: it may stay as a zombie, and on a busy
        // machine it takes a moment to get the signal.
        let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_gone = |state: &str| state.is_empty() || state.contains(") Z ");
        let gone = (0..100).any(|_| {
            is_gone(&state()) || {
                std::thread::sleep(Duration::from_millis(50));
                false
            }
        });
        assert!(gone, "{pid} still runs: {}", state());
    }
}

#[test]
fn workers_that_are_none_are_told_from_those_that_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let with = |worker: &str| Settings { worker: Some(worker.into()), ..Settings::default() };
    let (text, failure) = describe_with(&with("/bin/true"));
    assert!(matches!(failure, WorkerFailure::NoAnswer { status: Some(0), started: false, .. }), "{text}");
    assert!(text.contains("its main must call `meshloom::pjrt::worker::run_if_asked()` first"), "{text}");
    let (text, failure) = describe_with(&with("/nowhere/worker"));
    assert!(matches!(failure, WorkerFailure::NotStarted { .. }), "{text}");
    assert!(text.contains("the worker /nowhere/worker cannot be started: No such file"), "{text}");
    let garbage = script(folder.path(), "echo garbage > $MESHLOOM_WORKER_FOLDER/answer");
    let (text, failure) = describe_with(&garbage);
    assert!(matches!(failure, WorkerFailure::WrongAnswer { .. }), "{text}");
    if std::env::var_os("MESHLOOM_WORKER").is_none() {
        // This program has not said that it can be its own worker.
        let (text, failure) = describe_with(&Settings::default());
        assert!(matches!(failure, WorkerFailure::NoWorker), "{text}");
    }
}

#[test]
fn the_worker_says_what_it_is_for() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_meshloom-worker")).output().expect("it runs");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("ahead_of_time"));
}

#[test]
fn a_file_that_is_no_plugin_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.so");
    fs::write(&text, "not an object").expect("a file");
    let find = |path: PathBuf| Settings { find: FindOptions { path: Some(path), ..Default::default() }, ..settings() };
    let error = ahead_of_time::describe(&topology("cpu:8"), &find(text)).expect_err("not a plugin");
    assert!(error.to_string().ends_with("text.so is not a PJRT plugin: not a shared object"), "{error}");
    let absent = folder.path().join("absent.so");
    let error = ahead_of_time::describe(&topology("cpu:8"), &find(absent)).expect_err("not there");
    assert!(matches!(error, PjrtError::NotAPlugin { .. }), "{error}");
}

// TPUs.

fn has_tpu_plugin(test: &str) -> bool {
    large_plugin("tpu", test).is_some()
}

#[test]
fn tpu_topologies_are_described() {
    if !has_tpu_plugin("tpu_topologies_are_described") {
        return;
    }
    // Name, devices, kind, coordinates and core of the last one, slice of the last one.
    type Case = (&'static str, usize, &'static str, [i64; 3], i64, Option<i64>);
    let cases: [Case; 9] = [
        ("v2:2x2", 8, "TPU v2", [1, 1, 0], 1, None),
        ("v3:2x2", 8, "TPU v3", [1, 1, 0], 1, None),
        ("v4:4x4x4", 128, "TPU v4", [3, 3, 3], 1, None),
        ("v5e:2x4", 8, "TPU v5 lite", [1, 3, 0], 0, None),
        ("v5p:8x8x8", 512, "TPU v5", [7, 7, 7], 0, None),
        ("v5p:16x16x24", 6144, "TPU v5", [15, 15, 23], 0, None),
        ("v6e:16x16", 256, "TPU v6 lite", [15, 15, 0], 0, None),
        ("tpu7x:2x2x1", 8, "TPU7x", [1, 1, 0], 1, None),
        ("tpu7x:2x2x1:slices=2", 16, "TPU7x", [1, 1, 0], 1, Some(1)),
    ];
    for (name, count, kind, coords, core, slice) in cases {
        let described = ahead_of_time::describe(&topology(name), &settings());
        let devices = described.unwrap_or_else(|error| panic!("{error}")).devices;
        let last = devices.last().expect("a device");
        assert_eq!((devices.len(), last.kind.as_str()), (count, kind), "{name}");
        assert_eq!(topology(name).device_count(), count, "{name}, without asking");
        assert_eq!((last.coords(), last.core_on_chip(), last.slice_index()), (Some(&coords[..]), Some(core), slice));
        assert!(last.memory_limit().is_some_and(|bytes| bytes > 8_000_000_000), "{name}: {last:?}");
    }
    let error = refusal(ahead_of_time::describe(&topology("v5e:3x5"), &settings()));
    let PjrtError::Plugin { function, code, message } = error else { panic!("{error}") };
    assert_eq!((&*function, code), ("PJRT_TopologyDescription_Create", ErrorCode::InvalidArgument));
    assert!(message.contains("v5e:3x5"), "{message}");
}

#[test]
fn compiles_for_tpus() {
    if !has_tpu_plugin("compiles_for_tpus") {
        return;
    }
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
#[test]
fn a_failed_check_of_libtpu_ends_the_worker_alone() {
    if !has_tpu_plugin("a_failed_check_of_libtpu_ends_the_worker_alone") {
        return;
    }
    let options = CompileOptions { use_shardy_partitioner: true, ..CompileOptions::partitioned(8) };
    let (text, failure) = failure(compile("v5e:2x4", &modules::sharded_dot(), &options));
    let WorkerFailure::Died { signal, log, .. } = failure else { panic!("{text}") };
    assert_eq!(signal, 6, "{text}");
    assert!(text.starts_with("compiling \"test\" for v5e:2x4 with /") && text.contains("libtpu.so"), "{text}");
    assert!(log.fatal.is_some(), "{text}");
}

#[test]
fn libtpu_is_killed_at_the_time_limit() {
    if !has_tpu_plugin("libtpu_is_killed_at_the_time_limit") {
        return;
    }
    let settings = Settings { time_limit: Duration::from_millis(1), ..settings() };
    let options = CompileOptions::partitioned(8);
    let result = ahead_of_time::compile(&topology("v5e:2x4"), &modules::sharded_dot(), &options, &settings);
    assert!(matches!(failure(result).1, WorkerFailure::TimedOut { .. }));
}

// GPUs.

fn has_cuda_plugin(test: &str) -> bool {
    large_plugin("cuda", test).is_some()
}

#[test]
fn gpu_topologies_are_described() {
    if !has_cuda_plugin("gpu_topologies_are_described") {
        return;
    }
    let cases = [
        ("a100-40g:1x1x8", 8, "NVIDIA A100-SXM4-40GB", "8.0", 42_331_013_120),
        ("a100:2x4x8", 64, "NVIDIA A100-SXM4-80GB", "8.0", 85_100_068_864),
        ("h100:1x1x8", 8, "NVIDIA H100 80GB HBM3", "9.0", 84_942_979_072),
        ("h200:1x1x1", 1, "NVIDIA H200 141GB HBM3e", "9.0", 151_397_597_184),
        ("b200:1x2x8", 16, "NVIDIA B200", "10.0", 191_514_411_008),
    ];
    for (name, count, kind, capability, memory) in cases {
        let described = ahead_of_time::describe(&topology(name), &settings());
        let devices = described.unwrap_or_else(|error| panic!("{error}")).devices;
        let last = devices.last().expect("a device");
        assert_eq!((devices.len(), last.kind.as_str()), (count, kind), "{name}");
        assert_eq!(topology(name).device_count(), count, "{name}, without asking");
        assert_eq!(last.memory_limit(), Some(memory), "{name}");
        assert_eq!(last.attributes["compute_capability"], NamedValue::Text(capability.into()), "{name}");
    }
}

#[test]
fn compiles_for_gpus() {
    if !has_cuda_plugin("compiles_for_gpus") {
        return;
    }
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

// The train step.

/// A config as small as it can be.
fn small_step(overrides: &[&str]) -> RunConfig {
    let small = ["model.layers=2", "model.embed=32", "model.heads=4", "model.kv_heads=4", "model.head_dim=8"];
    let more = ["model.mlp=64", "model.seq=32"];
    let overrides: Vec<String> = small.iter().chain(&more).chain(overrides).map(|&text| text.to_owned()).collect();
    RunConfig::from_overrides(&overrides).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_train_step_compiles_for_every_platform() {
    let cases = [
        ("cpu", "cpu:8", "data=2,fsdp=4"),
        ("tpu", "v5e:2x4", "data=2,fsdp=4"),
        ("tpu", "tpu7x:2x2x1:slices=2", "data=4,fsdp=4"),
        ("cuda", "h100:1x1x8", "data=2,fsdp=-1"),
    ];
    for (platform, target, axes) in cases {
        let test = format!("the_train_step_compiles_for_every_platform ({target})");
        if platform != "cpu" && large_plugin(platform, &test).is_none() {
            continue;
        }
        let config = small_step(&[&format!("target.topology={target}"), &format!("mesh.axes={axes}")]);
        let step = StepAhead::compile(&config, &settings()).unwrap_or_else(|error| panic!("{error}"));
        let memory = step.compiled.memory_stats().expect("stats");
        assert_eq!(step.compiled.device_assignment[0].len(), step.devices.len());
        // Parameters and optimizer state are updated in place: three times the parameters, split over `fsdp`.
        let state = 3 * 4 * step.parameter_count as i64 / 4;
        assert!(memory.aliased >= state, "{target}: {memory:?}, {state} bytes of state");
        assert!(memory.arguments > memory.aliased && memory.outputs >= memory.aliased, "{target}: {memory:?}");
    }
}

#[test]
fn a_mesh_that_does_not_fit_is_an_error() {
    let error = StepAhead::compile(&small_step(&["target.topology=cpu:4"]), &settings()).expect_err("8 of 4 devices");
    let text = error.to_string();
    assert!(text.contains("cpu:4 has 4 devices; --set mesh.axes=data=-1 takes all"), "{text}");
    let error = StepAhead::compile(&small_step(&["target.topology=v5:2x4"]), &settings()).expect_err("no such chip");
    assert!(error.to_string().contains("there is no chip \"v5\" (did you mean"), "{error}");
}

/// The step that our partitioner makes, for devices that are not there. Whatever the plugin does with collectives, it does it
/// within the groups that they were written with. Returned: the bytes moved by the compiled program, and by what was written.
fn check_groups_survive(target: &str, axes: &str, overrides: &[&str]) -> (Amount, Amount) {
    let (topology, axes) = (format!("target.topology={target}"), format!("mesh.axes={axes}"));
    let all: Vec<&str> = overrides.iter().copied().chain([&*topology, &*axes, "partition.mode=explicit"]).collect();
    let step = StepAhead::compile(&small_step(&all), &settings()).unwrap_or_else(|error| panic!("{error}"));
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

#[test]
fn the_explicit_step_compiles_for_512_tpus() {
    if has_tpu_plugin("the_explicit_step_compiles_for_512_tpus") {
        // libtpu writes small reduce-scatters as all-reduces, and gathers some weights in `bf16`: it may move more or less.
        check_groups_survive("v5p:8x8x8", "data=8,fsdp=64", &["model.embed=64", "train.batch=512"]);
    }
}

#[test]
fn the_explicit_step_compiles_for_64_gpus() {
    if has_cuda_plugin("the_explicit_step_compiles_for_64_gpus") {
        let (compiled, written) =
            check_groups_survive("h100:2x4x8", "data=8,fsdp=8", &["model.embed=64", "train.batch=64"]);
        assert_eq!(compiled, written);
    }
}
