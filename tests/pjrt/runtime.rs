//! The plugin boundary: search, clients, programs, buffers and arrays, on the real CPU plugin.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{env, fs, thread};

use meshloom::ir::{DType, Literal, TensorType};
use meshloom::pjrt::*;
use proptest::prelude::*;
use support::cases::cases;
use support::pjrt_modules as modules;
use support::plugins;
use support::program::test_alone;

use super::key_values::InMemory;

pub fn plugin() -> Arc<Plugin> {
    Plugin::find("cpu").expect("the CPU plugin is found or fetched")
}

/// One client of eight devices for all tests: clients are expensive, and sharing one between threads is what it is for.
pub fn client() -> Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    let options = ClientOptions { device_count: Some(8), ..Default::default() };
    CLIENT.get_or_init(|| Client::new(&plugin(), &options).expect("a client of eight devices")).clone()
}

pub fn f32s(dims: &[usize], start: f32) -> Literal {
    let count = dims.iter().product::<usize>();
    let elements: Vec<f32> = (0..count).map(|index| start + index as f32).collect();
    Literal::from_slice(dims, &elements).expect("as many elements as the dims say")
}

pub fn put(literal: &Literal, device_count: usize) -> Array {
    Array::put(&client(), literal, &ShardLayout::replicated(&literal.ty().dims, device_count)).expect("put")
}

/// Returns the error of `result`.
fn error<T: std::fmt::Debug>(result: Result<T, PjrtError>) -> PjrtError {
    result.expect_err("this must fail")
}

/// Runs one of the ignored tests of a module in a process of its own, with these environment variables.
pub fn run_alone(module: &str, test: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let output = test_alone(module, test).envs(variables.iter().copied()).output().expect("a child process");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn handles_are_send_and_sync() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Plugin>();
    check::<Client>();
    check::<Device>();
    check::<Executable>();
    check::<Buffer>();
    check::<Array>();
    check::<CompileCache>();
    check::<PjrtError>();
}

// Plugins.

#[test]
fn plugin_is_loaded_once() {
    let plugin = plugin();
    assert_eq!(plugin.api_version().0, 0);
    assert!(plugin.attributes().contains_key("xla_version"), "{:?}", plugin.attributes());
    assert!(Arc::ptr_eq(&plugin, &Plugin::load(plugin.path()).expect("by path")));
    let options = FindOptions { path: Some(plugin.path().to_owned()), ..Default::default() };
    assert!(Arc::ptr_eq(&plugin, &Plugin::find_with("cpu", &options).expect("explicit")));

    let folder = tempfile::tempdir().expect("a folder");
    let other_name = folder.path().join("other_name.so");
    std::os::unix::fs::symlink(plugin.path(), &other_name).expect("a link");
    assert!(Arc::ptr_eq(&plugin, &Plugin::load(other_name).expect("by a link")));
}

#[test]
fn plugin_from_environment() {
    let path = plugin().path().display().to_string();
    let variables = [("MESHLOOM_CPU_PLUGIN", &*path), ("MESHLOOM_TPU_PLUGIN", "/nowhere/plugin.so")];
    let (ok, text) = run_alone(module_path!(), "child_find", &variables);
    assert!(ok && text.contains(&format!("found {path}")), "{text}");
    assert!(text.contains("/nowhere/plugin.so is not a PJRT plugin: No such file"), "{text}");
    assert!(text.contains("; MESHLOOM_TPU_PLUGIN names it: give a plugin's file (.so), or unset it"), "{text}");
}

#[test]
fn not_found_lists_every_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().display().to_string();
    // An empty PATH has no Python to ask, and an empty variable counts as none.
    let variables =
        [("MESHLOOM_OFFLINE", "1"), ("XDG_CACHE_HOME", &home), ("PATH", &home), ("MESHLOOM_CPU_PLUGIN", "")];
    let (ok, text) = run_alone(module_path!(), "child_find", &variables);
    assert!(ok, "{text}");
    let message = text.split("<<").nth(1).and_then(|rest| rest.split(">>").next()).expect("the child's message");
    insta::assert_snapshot!(message.replace(&home, "HOME"), @r#"
    no PJRT plugin for platform "cpu" found
      environment variable MESHLOOM_CPU_PLUGIN: not set
      cache HOME/meshloom/plugins/lammps-jax-pjrt-cpu-0.11.2/pjrt_c_api_cpu_plugin.so: no such file
      cache HOME/meshloom/plugins/fastatomstruct-xla-cpu-2026.6.23/libpjrt_cpu.so: no such file
      cache HOME/meshloom/plugins/xla-cpu-pjrt-0.0.1/xla_cpu_pjrt.so: no such file
      installed Python packages: cannot run python3: No such file or directory (os error 2)
      download of lammps-jax-pjrt-cpu==0.11.2: forbidden by MESHLOOM_OFFLINE=1
    to fix this, unset MESHLOOM_OFFLINE so that it is downloaded, or run `python3 -m pip install lammps-jax-pjrt-cpu==0.11.2`, or set MESHLOOM_CPU_PLUGIN to the path of a PJRT plugin (.so)
    "#);
}

#[test]
#[ignore = "run by the tests of the environment, in a process of its own"]
fn child_find() {
    let others = env::var_os("MESHLOOM_TPU_PLUGIN").map(|_| "tpu");
    for platform in ["cpu"].into_iter().chain(others) {
        match Plugin::find(platform) {
            Ok(plugin) => println!("found {}", plugin.path().display()),
            Err(error) => println!("<<{error}>>"),
        }
    }
}

#[test]
fn fetching_can_be_forbidden() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = FindOptions {
        allow_fetch: false,
        search_python_packages: false,
        cache_directory: Some(folder.path().into()),
        ..Default::default()
    };
    let PjrtError::NotFound { attempts, fix, .. } = error(Plugin::find_with("tpu", &options)) else {
        panic!("expected that nothing is found")
    };
    let last = attempts.last().expect("attempts");
    assert_eq!((last.place.as_str(), last.reason.as_str()), ("download of libtpu==0.0.51", "forbidden by the caller"));
    assert!(fix.contains("libtpu==0.0.51") && fix.contains("MESHLOOM_TPU_PLUGIN"), "{fix}");
}

#[test]
fn wrong_plugins_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.so");
    fs::write(&text, "not an object").expect("a file");
    let libc = fs::read_to_string("/proc/self/maps").expect("own maps");
    let libc = libc.split_whitespace().find(|word| word.contains("/libc.so") || word.contains("/libc-"));
    let cases: &[(PathBuf, &str)] = &[
        (folder.path().join("absent.so"), "No such file or directory"),
        (folder.path().into(), "not a file"),
        (text, "file too short"),
        (libc.expect("this process has a C library").into(), "it has no function GetPjrtApi"),
    ];
    for (path, reason) in cases {
        let error = error(Plugin::load(path));
        assert!(matches!(error, PjrtError::NotAPlugin { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let unknown = FindOptions { wheel: Some("numpy".into()), ..Default::default() };
    let expected = "unknown wheel \"numpy\", expected lammps-jax-pjrt-cpu, fastatomstruct-xla-cpu, xla-cpu-pjrt";
    assert_eq!(error(Plugin::find_with("cpu", &unknown)).to_string(), expected);
    assert_eq!(error(Plugin::find("abacus")).to_string(), "unknown platform \"abacus\", expected cpu, cuda, tpu");
}

// Clients.

#[test]
fn client_options_are_checked() {
    for count in [0, 1025, usize::MAX] {
        let options = ClientOptions { device_count: Some(count), ..Default::default() };
        let text = error(Client::new(&plugin(), &options)).to_string();
        assert_eq!(text, format!("device_count = {count} is not possible: expected 1 to 1024"));
    }
    let hidden = ("cpu_device_count".to_owned(), NamedValue::Int(-1));
    let options = ClientOptions { platform_options: vec![hidden], ..Default::default() };
    assert!(matches!(error(Client::new(&plugin(), &options)), PjrtError::InvalidOption { .. }));
    let unknown = ("no_such_option".to_owned(), NamedValue::Int(1));
    let options = ClientOptions { platform_options: vec![unknown], ..Default::default() };
    // API 0.115 refuses it, 0.81 and 0.106 let it pass.
    assert!(matches!(Client::new(&plugin(), &options), Ok(_) | Err(PjrtError::Plugin { .. })));
}

#[test]
fn client_describes_its_devices() {
    let client = client();
    assert_eq!(client.platform_name(), "cpu");
    assert_eq!(client.devices().len(), 8);
    assert!(client.devices().iter().all(|device| device.addressable && device.kind == "cpu"), "{:?}", client.devices());
}

// Programs.

#[test]
fn bad_modules_and_options_are_refused() {
    let add = modules::add(&[4]);
    let partitioned = CompileOptions::partitioned;
    let assigned = |ids: &[i32]| CompileOptions { device_assignment: Some(vec![ids.to_vec()]), ..Default::default() };
    let cases: &[(&[u8], CompileOptions, &str)] = &[
        (b"", partitioned(1), "not a valid HLO module: it has no bytes"),
        (b"garbage", partitioned(1), "not a valid HLO module: "),
        (&modules::without_root(), partitioned(1), "has no instruction with its root's id 99"),
        (&add, partitioned(9), "num_replicas * num_partitions = 9 is not possible: expected at most 8 devices"),
        (&add, partitioned(0), "num_partitions = 0 is not possible: expected at least 1"),
        (
            &add,
            CompileOptions { num_partitions: 2, ..Default::default() },
            "use_spmd_partitioning = false is not possible",
        ),
        (&add, assigned(&[0, 1]), "expected 1 replica of 1 device id"),
        (&add, assigned(&[77]), "device_assignment = 77 is not possible: expected ids of the client's devices"),
        (
            &add,
            CompileOptions { allow_propagation_to_parameters: vec![true; 3], ..partitioned(1) },
            "allow_propagation_to_parameters = [true, true, true] is not possible: expected no value, one for all, or one for each of 2",
        ),
    ];
    for (module, options, expected) in cases {
        let text = error(client().compile(module, options)).to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn shardings_that_abort_xla_are_refused() {
    for (sharding, expected) in modules::bad_pair_shardings() {
        let module = modules::sharded_dot_with_result_sharding(sharding);
        let text = error(client().compile(&module, &CompileOptions::partitioned(8))).to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn plugin_errors_come_through() {
    let error_of = |module: &[u8], options: &CompileOptions| error(client().compile(module, options));
    let wrong_type = error_of(&modules::add_with_wrong_result(), &CompileOptions::default());
    let PjrtError::Plugin { function, code, message } = &wrong_type else { panic!("{wrong_type:?}") };
    assert_eq!(function, "PJRT_Client_Compile");
    assert!(matches!(code, ErrorCode::InvalidArgument | ErrorCode::Internal), "{code}");
    assert!(message.contains("f32[4]") || message.contains("shape"), "{message}");

    let debug_options = [("xla_no_such_option".to_owned(), DebugValue::Bool(true))].into();
    let options = CompileOptions { debug_options, ..Default::default() };
    let text = error_of(&modules::add(&[4]), &options).to_string();
    assert!(text.contains("xla_no_such_option"), "{text}");
}

#[test]
fn adds_on_each_device() {
    for device in [0, 5] {
        let id = client().devices()[device].id;
        let options = CompileOptions { device_assignment: Some(vec![vec![id]]), ..Default::default() };
        let executable = client().compile(&modules::add(&[4]), &options).expect("compile");
        assert_eq!(executable.devices(), [device]);
        let layout = ShardLayout::replicated(&[4], 1);
        let put = |start| Array::put_on(&client(), &f32s(&[4], start), &layout, &[device]).expect("put");
        let (left, right) = (put(0.0), put(10.0));
        let sum = executable.run(&[&left, &right], &[left.spec()]).expect("run");
        assert_eq!(sum[0].get().expect("get").to_vec::<f32>().expect("f32"), [10.0, 12.0, 14.0, 16.0]);
        assert_eq!(sum[0].shards()[0].device(), device);
        assert!(sum[0].is_ready().expect("ready"));
    }
}

#[test]
fn outputs_are_row_major_whatever_the_device_layout() {
    let executable =
        client().compile(&modules::column_major_copy(&[2, 3]), &CompileOptions::default()).expect("compile");
    let argument = put(&f32s(&[2, 3], 0.0), 1);
    let outputs = executable.run(&[&argument], &[argument.spec()]).expect("run");
    assert_eq!(outputs[0].get().expect("get"), f32s(&[2, 3], 0.0));
}

#[test]
fn partitioned_over_eight_devices() {
    let executable = client().compile(&modules::sharded_dot(), &CompileOptions::partitioned(8)).expect("compile");
    let ty = |dims: &[usize]| Some(TensorType::new(DType::F32, dims));
    assert_eq!(executable.devices(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(executable.output_types().expect("types"), [ty(&[2, 2]), ty(&[])]);
    assert_eq!(executable.parameters()[0].global_type, ty(&[16, 4]));
    assert_eq!(executable.parameters()[0].local_type, ty(&[2, 4]));
    assert_eq!(executable.parameters()[1].local_type, ty(&[4, 2]));

    let rows = |width: usize| {
        let boxes = (0..8).map(|row| vec![2 * row..2 * row + 2, 0..width]).collect();
        ShardLayout::from_boxes(&[16, width], boxes).expect("boxes")
    };
    let left = Array::put(&client(), &f32s(&[16, 4], 0.0), &rows(4)).expect("put");
    let right = put(&f32s(&[4, 2], 1.0), 8);
    let outputs = [
        ArraySpec { ty: TensorType::new(DType::F32, &[16, 2]), layout: rows(2) },
        ArraySpec { ty: TensorType::scalar(DType::F32), layout: ShardLayout::replicated(&[], 8) },
    ];
    let results = executable.run(&[&left, &right], &outputs).expect("run");
    let product: Vec<f32> = (0..16)
        .flat_map(|row| {
            (0..2).map(move |column| (0..4).map(|k| (row * 4 + k) as f32 * (1 + k * 2 + column) as f32).sum())
        })
        .collect();
    assert_eq!(results[0].get().expect("get").to_vec::<f32>().expect("f32"), product);
    let sum = Literal::scalar((0..64).map(|x| x as f32).sum::<f32>());
    assert!((0..8).all(|device| results[1].shard(device).expect("shard") == sum));

    // Wrong calls name the argument.
    let replicated = put(&f32s(&[16, 4], 0.0), 8);
    let text = error(executable.run(&[&replicated, &right], &outputs)).to_string();
    assert_eq!(text, "argument 0 (\"left\") for device 0: expected f32[2,4], got f32[16,4]");
    let text = error(executable.run(&[&right, &left], &outputs)).to_string();
    assert_eq!(text, "argument 0 (\"left\") as a whole: expected f32[16,4], got f32[4,2]");
    let text = error(executable.run(&[&left], &outputs)).to_string();
    assert_eq!(text, "arguments for device 0: expected 2, got 1");
    let text = error(executable.run(&[&left, &right], &outputs[..1])).to_string();
    assert_eq!(text, "outputs: expected 2, got 1");
    let wrong = [ArraySpec { layout: ShardLayout::replicated(&[16, 2], 8), ..outputs[0].clone() }, outputs[1].clone()];
    let text = error(executable.run(&[&left, &right], &wrong)).to_string();
    assert_eq!(text, "output 0 as stated, on device 0: expected f32[2,2], got f32[16,2]");
    let text = error(executable.run(&[&put(&f32s(&[16, 4], 0.0), 1), &right], &outputs)).to_string();
    assert_eq!(text, "shards of argument 0 (\"left\"): expected 8, got 1");
    let mut lists: Vec<Vec<Buffer>> =
        (0..8).map(|device| vec![left.shards()[device].clone(), right.shards()[device].clone()]).collect();
    lists.swap(0, 1);
    let text = error(executable.execute(&lists, &ExecuteOptions::default())).to_string();
    assert_eq!(text, "argument 0 (\"left\") for device 0 is on device 1, expected device 0; put it there first");
}

#[test]
fn buffers_of_another_client_are_refused() {
    let other = Client::new(&plugin(), &ClientOptions::default()).expect("another client");
    let executable = client().compile(&modules::add(&[4]), &CompileOptions::default()).expect("compile");
    let argument = Array::put(&other, &f32s(&[4], 0.0), &ShardLayout::replicated(&[4], 1)).expect("put");
    let text = error(executable.run(&[&argument, &argument], &[argument.spec()])).to_string();
    assert!(text.contains("is on another client, expected the executable's client"), "{text}");
}

#[test]
fn donated_buffers_are_gone() {
    let executable = client().compile(&modules::donating_add(&[4]), &CompileOptions::default()).expect("compile");
    let stats = executable.memory_stats().expect("stats");
    assert_eq!((stats.arguments, stats.outputs, stats.aliased), (32, 16, 16));
    let run = |left: &Array, right: &Array| executable.run(&[left, right], &[left.spec()]);
    let (first, second) = (put(&f32s(&[4], 0.0), 1), put(&f32s(&[4], 10.0), 1));

    let keep = ExecuteOptions { non_donatable: vec![0], ..Default::default() };
    executable.run_with(&[&first, &second], &[first.spec()], &keep).expect("run without donation");
    assert_eq!(first.get().expect("still there"), f32s(&[4], 0.0));

    let text = error(run(&first, &first)).to_string();
    assert!(text.starts_with("argument 1 (\"right\") and argument 0 (\"left\") are the same buffer"), "{text}");
    assert!(!first.shards()[0].is_donated());

    let sum = run(&first, &second).expect("run");
    assert!(first.shards()[0].is_donated() && !second.shards()[0].is_donated());
    let gone = "(f32[4]) was donated to an earlier execution and is gone";
    for (what, text) in [
        ("argument 0 (\"left\") for device 0", error(run(&first, &second)).to_string()),
        ("argument 1 (\"right\") for device 0", error(run(&second, &first)).to_string()),
        ("shard 0 of the array", error(first.get()).to_string()),
        ("the buffer", error(first.shards()[0].block_until_ready()).to_string()),
    ] {
        assert!(text.starts_with(&format!("{what} {gone}")), "{text}");
    }
    assert!(!second.shards()[0].is_donated(), "a refused call takes nothing");
    let again = run(&sum[0], &second).expect("the output can be donated again");
    assert_eq!(again[0].get().expect("get").to_vec::<f32>().expect("f32"), [20.0, 23.0, 26.0, 29.0]);
    let options = ExecuteOptions { non_donatable: vec![7], ..Default::default() };
    assert!(matches!(
        error(executable.run_with(&[&again[0], &second], &[second.spec()], &options)),
        PjrtError::InvalidOption { .. }
    ));
}

#[test]
fn optimized_program_is_hlo() {
    let executable = client().compile(&modules::add(&[4]), &CompileOptions::default()).expect("compile");
    let program = executable.optimized_hlo().expect("program");
    assert!(["hlo", "hlo_with_config"].contains(&program.format.as_str()), "{}", program.format);
    assert!(!program.bytes.is_empty());
}

/// A property of a program that the plugin does not know is an error that says so, and no other error.
fn check_unimplemented<T: std::fmt::Debug>(what: &str, result: &Result<T, PjrtError>) {
    if let Err(error) = result {
        let PjrtError::Unimplemented { feature, .. } = error else { panic!("{what}: {error}") };
        assert_eq!(feature, what);
        assert!(error.to_string().contains(": unimplemented by the plugin /"), "{error}");
    }
}

/// Every CPU plugin, all in one process and at work at the same time: each keeps its symbols to itself.
#[test]
fn every_cpu_plugin_has_all_of_an_executable() {
    let versions: Vec<i32> = plugins::cpu_plugins().iter().map(|plugin| plugin.api_version().1).collect();
    assert_eq!(versions, [115, 106, 81]);
    thread::scope(|scope| {
        for (_, client) in plugins::cpu_clients() {
            scope.spawn(|| {
                for format in [ProgramFormat::Hlo, ProgramFormat::StableHlo] {
                    check_executable(client, format);
                }
            });
        }
    });
}

fn check_executable(client: &Client, format: ProgramFormat) {
    let plugin = client.plugin();
    let (module, options) = (modules::sharded_dot(), CompileOptions::partitioned(8).with_format(format));
    let executable = client.compile(&module, &options).expect("compile");
    assert_eq!(executable.name(), "test");
    let memory = executable.memory_stats();
    check_unimplemented("memory statistics", &memory);
    assert_eq!(memory.expect("all three have them").arguments, (2 * 4 + 4 * 2) * 4);
    let costs = executable.cost_analysis();
    check_unimplemented("cost analysis", &costs);
    assert_eq!(costs.is_ok(), plugin.api_version().1 == 81, "{plugin:?}");
    assert!(costs.is_err() || costs.is_ok_and(|costs| costs.flops().is_some_and(|flops| flops > 0.0)));
    let optimized = executable.optimized_hlo();
    check_unimplemented("the optimized program", &optimized);
    let optimized = optimized.expect("all three have it").decode().expect("a module");
    let all_reduces = optimized.computations.iter().flat_map(|computation| &computation.instructions);
    assert_eq!(all_reduces.filter(|instruction| instruction.opcode == "all-reduce").count(), 1, "{plugin:?}");
    let serialized = executable.serialize();
    check_unimplemented("serialized programs", &serialized);
    let loaded = client.deserialize(&serialized.expect("all three have it"), &module, &options).expect("loaded");

    let boxes = (0..8).map(|row| vec![2 * row..2 * row + 2, 0..4]).collect();
    let left = Array::put(client, &f32s(&[16, 4], 0.0), &ShardLayout::from_boxes(&[16, 4], boxes).expect("boxes"));
    let right = Array::put(client, &f32s(&[4, 2], 1.0), &ShardLayout::replicated(&[4, 2], 8)).expect("put");
    let left = left.expect("put");
    for program in [&executable, &loaded] {
        let lists: Vec<Vec<Buffer>> =
            (0..8).map(|device| vec![left.shards()[device].clone(), right.shards()[device].clone()]).collect();
        let outputs = program.execute(&lists, &ExecuteOptions::default()).expect("execute");
        let sum = Literal::scalar((0..64).map(|x| x as f32).sum::<f32>());
        assert!(outputs.iter().all(|device| device[1].to_literal().expect("get") == sum), "{plugin:?}");
    }
}

/// The plugin of API 0.81 folds these constants wrong, unless it is told not to fold any.
#[test]
fn constants_are_what_hlo_says() {
    let run = |client: &Client, options: &CompileOptions| {
        let executable = client.compile(&modules::dot_of_transposed_constant(), options).expect("compile");
        let unused = Buffer::from_literal(client, &Literal::scalar(0f32), 0).expect("put");
        let outputs = executable.execute(&[vec![unused]], &ExecuteOptions::default()).expect("execute");
        outputs[0][0].to_literal().expect("get").to_vec::<f32>().expect("f32")
    };
    for (name, client) in plugins::cpu_clients() {
        assert_eq!(run(client, &CompileOptions::default()), [1.0, 6.0, 15.0, 8.0, 20.0, 36.0], "{name}");
        // Should this one become right, `options::FOLDS_RIGHT` is to be lowered.
        let fold = [("xla_disable_hlo_passes".to_owned(), DebugValue::Text("none".into()))].into();
        let folded = run(client, &CompileOptions { debug_options: fold, ..Default::default() });
        let is_right = folded == [1.0, 6.0, 15.0, 8.0, 20.0, 36.0];
        assert_eq!(is_right, client.plugin().api_version().1 != 81, "{name}: {folded:?}");
    }
}

// Time limits.

/// Returns the plugins to test. The small tier has one, since all keep time in the same way, and the programs take
/// seconds.
fn timed_plugins(name: &str) -> Vec<Arc<Plugin>> {
    cases(name, 1, plugins::cpu_wheels()).into_iter().map(plugins::load).collect()
}

/// A program that runs as long as its second argument says, and its arguments.
fn long_program(client: &Client, dims: &[usize], count: f32) -> (Executable, [Array; 2]) {
    let executable = client.compile(&modules::repeated_root(dims), &CompileOptions::default()).expect("compile");
    let put = |value: &Literal| Array::put(client, value, &ShardLayout::replicated(&value.ty().dims, 1)).expect("put");
    (executable, [put(&f32s(dims, 1.0)), put(&Literal::scalar(count))])
}

/// Large enough that no plugin computes it before `execute` returns.
const LARGE: &[usize] = &[8192];

#[test]
fn waiting_has_a_limit_that_names_the_program() {
    for plugin in timed_plugins("pjrt limits of waiting") {
        let options = ClientOptions { device_count: Some(2), ..Default::default() };
        let client = Client::new(&plugin, &options).expect("a client");
        let limit = Duration::from_millis(1);
        let (executable, [value, count]) = long_program(&client, LARGE, 100_000.0);
        let start = || executable.run(&[&value, &count], &[value.spec()]).expect("run").remove(0);
        // Waited for again, and read: nothing is lost by not waiting long enough.
        let result = start();
        let error = error(result.block_until_ready_within(limit));
        let PjrtError::TimedOut { program, device, limit: stated } = &error else { panic!("{error}") };
        assert_eq!((program.as_deref(), *stated), (Some("repeated_root"), limit));
        assert_eq!(*device, client.devices()[0].description);
        let text = "was not done after 0.001 s, the time limit; it still runs";
        assert_eq!(error.to_string(), format!("program \"repeated_root\" on {device} {text}"));
        result.block_until_ready_within(Duration::from_secs(600)).expect("done in the end");
        let fixed_point = result.get().expect("get").to_vec::<f32>().expect("f32");
        assert!(fixed_point.iter().all(|x| (x - 2.0).abs() < 1e-5), "{:?}", &fixed_point[..4]);
        // Given up: program, result and arguments are dropped while it runs.
        assert!(matches!(start().block_until_ready_within(limit), Err(PjrtError::TimedOut { .. })));
        drop((executable, value, count));
        assert_eq!(put_on_both(&client).get().expect("the client works on"), f32s(&[4], 1.0));
    }
}

/// The limit also holds for a program that the plugin thinks cheap and runs at once.
#[test]
fn executing_has_a_limit_that_names_the_program() {
    for plugin in timed_plugins("pjrt limits of executing") {
        for dims in [&[1][..], LARGE] {
            let client = Client::new(&plugin, &ClientOptions::default()).expect("a client");
            let run = |count: f32, limit: Duration| {
                let (executable, [value, count]) = long_program(&client, dims, count);
                let options = ExecuteOptions { time_limit: Some(limit), ..Default::default() };
                executable.run_with(&[&value, &count], &[value.spec()], &options)
            };
            let limit = Duration::from_millis(1);
            let count = if dims == LARGE { 100_000.0 } else { 16_000_000.0 };
            let text = error(run(count, limit)).to_string();
            assert!(text.starts_with("program \"repeated_root\" on ") && text.contains("0.001 s"), "{text}");
            let result = run(100.0, Duration::from_secs(600)).expect("in time");
            assert!(result[0].is_ready().expect("it was waited for"));
        }
    }
}

fn put_on_both(client: &Client) -> Array {
    Array::put(client, &f32s(&[4], 1.0), &ShardLayout::replicated(&[4], 2)).expect("put")
}

// The profiler.

#[test]
fn cpu_plugins_say_that_they_have_no_profiler() {
    for plugin in plugins::cpu_plugins() {
        let error = error(Profiler::start(&plugin, &ProfilerOptions::default()).map(drop));
        let PjrtError::Unimplemented { feature, reason, .. } = &error else { panic!("{error}") };
        assert_eq!((feature.as_str(), reason.as_str()), ("profiler", "it has no profiler extension"));
    }
}

/// The store of a client is dropped with it, so it shows whether the client is there. Programs that the client keeps do
/// not keep it.
#[test]
fn handles_keep_a_client_and_nothing_else_does() {
    let store = Arc::new(InMemory::default());
    let process = ProcessPlace { number: 0, count: 1, store: store.clone() };
    let options = ClientOptions { keeps_programs: true, process: Some(process), ..Default::default() };
    let client = Client::new(&plugin(), &options).expect("a client");
    drop(options);
    let compile = || client.compile(&modules::add(&[4]), &CompileOptions::default()).expect("compile");
    let executable = compile();
    // The second is the kept program, which stays when a handle of it goes.
    drop(compile());
    let argument = Array::put(&client, &f32s(&[4], 1.0), &ShardLayout::replicated(&[4], 1)).expect("put");
    drop(client);
    let outputs = executable.run(&[&argument, &argument], &[argument.spec()]).expect("run");
    drop((executable, argument));
    assert_eq!(outputs[0].get().expect("get").to_vec::<f32>().expect("f32"), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(Arc::strong_count(&store), 2);
    drop(outputs);
    assert_eq!(Arc::strong_count(&store), 1);
}

#[test]
fn many_threads_share_one_executable() {
    let executable = client().compile(&modules::sharded_dot(), &CompileOptions::partitioned(8)).expect("compile");
    let boxes = (0..8).map(|row| vec![2 * row..2 * row + 2, 0..4]).collect();
    let layout = ShardLayout::from_boxes(&[16, 4], boxes).expect("boxes");
    thread::scope(|scope| {
        for number in 0..4 {
            let (executable, layout) = (executable.clone(), layout.clone());
            scope.spawn(move || {
                for round in 0..20 {
                    let start = (number * 100 + round) as f32;
                    let left = Array::put(&client(), &f32s(&[16, 4], start), &layout).expect("put");
                    let right = put(&f32s(&[4, 2], 0.0), 8);
                    let lists: Vec<Vec<Buffer>> =
                        (0..8).map(|d| vec![left.shards()[d].clone(), right.shards()[d].clone()]).collect();
                    let results = executable.execute(&lists, &ExecuteOptions::default()).expect("execute");
                    drop((left, right, lists));
                    let sum = results[3][1].to_literal().expect("get");
                    assert_eq!(sum, Literal::scalar(start * 64.0 + 2016.0));
                }
            });
        }
    });
}

// Arrays.

#[test]
fn layouts_are_checked() {
    let from = |dims: &[usize], boxes| ShardLayout::from_boxes(dims, boxes);
    let one = |range: Range<usize>| vec![range];
    let text = error(from(&[4], vec![vec![]])).to_string();
    assert_eq!(text, "invalid shard layout: the box of device 0 has 0 ranges, expected 1");
    let text = error(from(&[4], vec![one(0..4), one(2..5)])).to_string();
    assert_eq!(text, "invalid shard layout: the box of device 1 has 2..5 in dimension 0, expected a range within 0..4");
    let get = |boxes: Vec<ShardBox>| {
        Array::put(&client(), &f32s(&[4], 0.0), &from(&[4], boxes).expect("boxes")).expect("put").get()
    };
    let text = error(get(vec![one(0..1), one(2..4)])).to_string();
    assert_eq!(text, "invalid shard layout: the shards hold 3 of the 4 elements of the value");
    let text = error(get(vec![one(0..3), one(2..4)])).to_string();
    assert_eq!(text, "invalid shard layout: the boxes of devices 0 and 1 overlap but are not equal");
    let text = error(get(vec![one(0..2), one(1..3)])).to_string();
    assert_eq!(text, "invalid shard layout: the boxes of devices 0 and 1 overlap but are not equal");
    assert_eq!(
        get(vec![one(0..2), one(2..4), one(0..2), one(4..4)]).expect("a copy and an empty box"),
        f32s(&[4], 0.0)
    );

    let nine = ShardLayout::replicated(&[4], 9);
    assert!(matches!(error(Array::put(&client(), &f32s(&[4], 0.0), &nine)), PjrtError::InvalidOption { .. }));
    let wrong = ShardLayout::replicated(&[5], 1);
    let text = error(Array::put(&client(), &f32s(&[4], 0.0), &wrong)).to_string();
    assert_eq!(text, "the value of a shard layout: expected f32[5], got f32[4]");
}

#[test]
fn every_element_type_makes_the_round_trip() {
    for dtype in DType::ALL {
        for dims in [&[][..], &[3], &[0, 2], &[2, 3, 5]] {
            let ty = TensorType::new(dtype, dims);
            let bytes: Vec<u8> = (0..ty.byte_count()).map(|byte| (byte % 2) as u8).collect();
            let literal = Literal::from_bytes(ty, bytes).expect("bytes");
            let array = put(&literal, 2);
            assert_eq!(array.get().expect("get"), literal);
            assert_eq!(array.shard(1).expect("shard"), literal);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Any dims, cut into a grid of at most eight boxes at uneven places, in any order of devices, some boxes twice.
    #[test]
    fn sharded_values_make_the_round_trip(
        dims in prop::collection::vec(0usize..7, 0..4),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..4),
        order in Just((0..8).collect::<Vec<usize>>()).prop_shuffle(),
    ) {
        let mut boxes: Vec<ShardBox> = vec![dims.iter().map(|&size| 0..size).collect()];
        for (dim, place) in cuts {
            if dims.is_empty() || boxes.len() > 4 {
                break;
            }
            let dim = dim.index(dims.len());
            let place = place.index(dims[dim] + 1);
            // Cut every box that spans the place, so that all boxes stay disjoint.
            boxes = boxes.into_iter().flat_map(|shard| {
                let place = place.clamp(shard[dim].start, shard[dim].end);
                let (mut left, mut right) = (shard.clone(), shard);
                left[dim].end = place;
                right[dim].start = place;
                [left, right]
            }).collect();
        }
        let boxes: Vec<ShardBox> = order.iter().map(|&position| boxes[position % boxes.len()].clone()).collect();
        let literal = f32s(&dims, 0.0);
        let layout = ShardLayout::from_boxes(&dims, boxes.clone()).expect("boxes");
        let array = Array::put(&client(), &literal, &layout).expect("put");
        prop_assert_eq!(array.get().expect("get"), literal);
        for (device, shard) in boxes.iter().enumerate() {
            let expected: Vec<f32> = elements_of(&dims, shard).into_iter().map(|index| index as f32).collect();
            prop_assert_eq!(array.shard(device).expect("shard").to_vec::<f32>().expect("f32"), expected);
        }
    }
}

/// The row-major positions of a box's elements, the slow way.
fn elements_of(dims: &[usize], shard: &ShardBox) -> Vec<usize> {
    let mut positions = vec![0];
    for (&size, range) in dims.iter().zip(shard) {
        positions = positions.into_iter().flat_map(|p| range.clone().map(move |index| p * size + index)).collect();
    }
    positions
}
