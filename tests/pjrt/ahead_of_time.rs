//! Compiling ahead of time: the worker process, what may become of it, and every platform that can be compiled for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meshloom::ir::{DType, Literal, TensorType};
use meshloom::pjrt::ahead_of_time::{self, CompiledAhead, Settings, WorkerFailure};
use meshloom::pjrt::*;
use meshloom_train::config::RunConfig;
use meshloom_train::run::StepAhead;
use support::ahead_of_time::{failure, refusal, topology};
use support::configs::{NARROW, config};
use support::pjrt_modules as modules;

/// With the worker of this crate, which this test program is not.
fn settings() -> Settings {
    support::program::with_worker()
}

fn compile(target: &str, module: &[u8], options: &CompileOptions) -> Result<CompiledAhead, PjrtError> {
    ahead_of_time::compile(&topology(target), module, options, &settings())
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

    // The program that the worker serialized runs here.
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
        // The script has been waited for. The process that the script started is not a child of this one: it may stay
        // as a zombie, and on a busy machine it takes a moment to get the signal.
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
    assert!(text.contains("its main must call `meshloom_pjrt::worker::run_if_asked()` first"), "{text}");
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
    let output = support::counts::process(support::program::worker()).output().expect("it runs");
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

/// A config as small as it can be.
fn small_step(overrides: &[&str]) -> RunConfig {
    config(&[NARROW, overrides])
}

#[test]
fn a_mesh_that_does_not_fit_is_an_error() {
    let error = StepAhead::compile(&small_step(&["target.topology=cpu:4"]), &settings()).expect_err("8 of 4 devices");
    let text = error.to_string();
    assert!(text.contains("cpu:4 has 4 devices; --set mesh.axes=data=-1 takes all"), "{text}");
    let error = StepAhead::compile(&small_step(&["target.topology=v5:2x4"]), &settings()).expect_err("no such chip");
    assert!(error.to_string().contains("there is no chip \"v5\" (did you mean"), "{error}");
}
