//! The plugin that wraps another: `crates/plugin` around the real CPU plugin. It reads the environment and starts once
//! in a process, so each case has a process of its own.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs, slice};

use meshloom::hlo::parse::parse;
use meshloom::ir::Literal;
use meshloom::pjrt::raw::{self, PJRT_Api};
use meshloom::pjrt::{Array, Client, ClientOptions, CompileOptions, FindOptions, Plugin, ShardLayout};
use meshloom_plugin::{CountOnly, Decision, Format, Mode, Reason, Replacement, Request, Rewrite, Settings, start};
use prost::Message;
use support::cases::every_case;
use support::program::test_alone;

const INNER: &str = "MESHLOOM_PLUGIN_INNER";
const REFUSAL: &str = "it names no mesh to partition it over";

/// The shared object, which Cargo builds with the library that this test links.
fn shared_object() -> PathBuf {
    let own = env::current_exe().expect("own path");
    own.with_file_name("libmeshloom_plugin.so")
}

fn inner() -> PathBuf {
    Plugin::locate("cpu", &FindOptions::default()).expect("the CPU plugin is found or fetched")
}

/// Runs one of the ignored tests below with these variables. Returns its standard error, which is what a person sees.
fn alone(test: &str, variables: &[(&str, &Path)]) -> String {
    let mut command = test_alone(module_path!(), test);
    let output = command.envs(variables.iter().copied()).output().expect("a child process");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{test}: {}{text}", String::from_utf8_lossy(&output.stdout));
    text
}

/// A module that adds a number to each element of its parameter.
fn adds(name: &str, number: u32) -> Vec<u8> {
    let text = format!(
        "HloModule {name}\nENTRY main {{ x = f32[4] parameter(0)  c = f32[] constant({number})\n  \
         y = f32[4] broadcast(c), dimensions={{}}\n  ROOT sum = f32[4] add(x, y) }}"
    );
    parse(&text).expect("it is well-formed").hlo_module.expect("a module").encode_to_vec()
}

fn client(plugin: &Arc<Plugin>) -> Client {
    let options = ClientOptions { device_count: Some(2), ..ClientOptions::default() };
    Client::new(plugin, &options).expect("a client of two devices")
}

/// The result of a module for ones, on this number of devices.
fn first(client: &Client, module: &[u8], devices: usize) -> f32 {
    let program = client.compile(module, &CompileOptions::partitioned(devices)).expect("it compiles");
    let ones = Literal::from_slice(&[4], &[1f32; 4]).expect("four elements");
    let ones = Array::put(client, &ones, &ShardLayout::replicated(&[4], devices)).expect("put");
    let results = program.run(&[&ones], &[ones.spec()]).expect("it runs");
    results[0].get().expect("a value").to_vec::<f32>().expect("floats")[0]
}

#[test]
fn programs_run_through_the_wrapper_and_are_kept() {
    if !every_case("runtime wrapper") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let dump = folder.path().join("dump");
    let said = alone("child_programs", &[(INNER, &inner()), ("MESHLOOM_PLUGIN_DUMP", &dump)]);
    assert_eq!(said.matches(REFUSAL).count(), 1, "{said}");
    assert!(said.contains("meshloom: two for 2 devices: passed on as it is, because"), "{said}");
    let mut names: Vec<OsString> = fs::read_dir(&dump).expect("a dump").map(|it| it.expect("it").file_name()).collect();
    names.sort();
    assert_eq!(names, ["0001", "0002", "0003"], "folders of the dump");
    let expected = [("one", 1, "it runs on one device"), ("two", 2, REFUSAL), ("three", 2, REFUSAL)];
    for (name, (module, devices, reason)) in names.iter().zip(expected) {
        let read = |file: &str| fs::read(dump.join(name).join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(read("program.hlo.pb"), adds(module, 2), "{module}");
        let decision: serde_json::Value = serde_json::from_slice(&read("decision.json")).expect("JSON");
        assert_eq!(decision["module"], module);
        assert_eq!(decision["devices"], devices);
        assert_eq!(decision["decision"], "passed_on");
        assert_eq!(decision["reason"], reason);
        assert_eq!(decision["platform"], "cpu");
        let counts = serde_json::json!({ "add": 1, "broadcast": 1, "constant": 1, "parameter": 1 });
        assert_eq!(decision["instructions"], counts);
        let options = Request::new("hlo", &[], &read("options.pb")).device_count();
        assert_eq!(options, Some(devices));
        let compiled: serde_json::Value = serde_json::from_slice(&read("compiled.json")).expect("JSON");
        assert_eq!(compiled["compiled"], true);
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_programs() {
    let wrapped = Plugin::load(shared_object()).expect("the wrapper loads");
    let client = client(&wrapped);
    for (name, devices) in [("one", 1), ("two", 2), ("three", 2)] {
        assert_eq!(first(&client, &adds(name, 2), devices), 3.0, "{name}");
    }
    let inner = Plugin::load(env::var_os(INNER).expect("set")).expect("the inner plugin loads");
    assert!(!Arc::ptr_eq(&wrapped, &inner), "the table is a copy");
    assert_eq!(wrapped.api_version(), inner.api_version());
}

#[test]
fn off_means_off() {
    if !every_case("runtime wrapper") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let dump = folder.path().join("dump");
    let off: &[(&str, &Path)] =
        &[(INNER, &inner()), ("MESHLOOM_PLUGIN", Path::new("off")), ("MESHLOOM_PLUGIN_DUMP", &dump)];
    let said = alone("child_off", off);
    assert!(!said.contains("meshloom:"), "{said}");
    assert!(!dump.exists());
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_off() {
    let wrapped = Plugin::load(shared_object()).expect("the wrapper loads");
    assert_eq!(first(&client(&wrapped), &adds("two", 2), 2), 3.0);
    let inner = Plugin::load(env::var_os(INNER).expect("set")).expect("the inner plugin loads");
    // Plugins are told apart by their tables.
    assert!(Arc::ptr_eq(&wrapped, &inner), "the table is the inner plugin's own");
}

#[test]
fn the_table_is_the_inner_ones_but_for_two_functions() {
    if !every_case("runtime wrapper") {
        return;
    }
    alone("child_table", &[(INNER, &inner())]);
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_table() {
    let settings = |mode| Settings { inner: env::var_os(INNER).map(PathBuf::from), mode, ..Settings::default() };
    let table = start(settings(Mode::On), Box::new(CountOnly)).expect("it starts");
    // A second start changes nothing.
    assert_eq!(start(settings(Mode::Off), Box::new(CountOnly)).expect("it has started"), table);
    let library = Plugin::load(env::var_os(INNER).expect("set")).expect("the inner plugin loads");
    // SAFETY: the table is from a start that succeeded, and begins with its size, which it has in bytes.
    let (words, version) = unsafe {
        let size = (*table).struct_size;
        (slice::from_raw_parts(table.cast::<usize>(), size / size_of::<usize>()), raw::version(table))
    };
    assert_eq!(version, Some(library.api_version()));
    let places = [std::mem::offset_of!(PJRT_Api, PJRT_Client_Compile), std::mem::offset_of!(PJRT_Api, PJRT_Compile)];
    // The functions of the inner plugin lie in its file, as the table's other functions do.
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let inner = library.path().to_str().expect("text");
    let is_inner = |address: usize| {
        maps.lines().filter(|line| line.ends_with(inner)).any(|line| {
            let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
            let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).expect("a number"));
            (start..end).contains(&address)
        })
    };
    let first = std::mem::offset_of!(PJRT_Api, PJRT_Error_Destroy) / size_of::<usize>();
    let ours: Vec<usize> =
        (first..words.len()).filter(|&at| words[at] != 0 && !is_inner(words[at])).map(|at| at * 8).collect();
    assert_eq!(ours, places);
    assert!(words.len() * 8 >= size_of::<PJRT_Api>(), "this plugin is as new as the bindings");
}

/// Decides by the name of the module.
struct ByName;

impl Rewrite for ByName {
    fn rewrite(&self, request: &Request<'_>) -> Decision {
        let name = meshloom::hlo::proto::HloModuleProto::decode(request.code).expect("a module").name;
        let by = |code: Vec<u8>| {
            Decision::Replaced(Replacement {
                format: Format::Hlo,
                code,
                options: request.options_bytes.to_vec(),
                report: serde_json::json!({ "by": "a test" }),
                summary: None,
            })
        };
        match name.as_str() {
            "replaced" => by(adds("other", 40)),
            "refused" => by(b"no program".to_vec()),
            "panics" => panic!("as the test wants it"),
            _ => Decision::passed_on(Reason::OnlyCounted),
        }
    }
}

#[test]
fn a_replacement_runs_and_one_that_is_refused_does_no_harm() {
    if !every_case("runtime wrapper") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let dump = folder.path().join("dump");
    let said = alone("child_replacements", &[(INNER, &inner()), ("MESHLOOM_PLUGIN_DUMP", &dump)]);
    assert!(said.contains("passed on as it is, because its replacement is refused: "), "{said}");
    assert!(said.contains("because meshloom panicked: as the test wants it; please report this"), "{said}");
    let read = |file: &str| fs::read(dump.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let json = |file: &str| serde_json::from_slice::<serde_json::Value>(&read(file)).expect("JSON");
    assert_eq!(read("0001/program.hlo.pb"), adds("replaced", 2));
    assert_eq!(read("0001/replacement.hlo.pb"), adds("other", 40));
    assert_eq!(json("0001/decision.json")["decision"], "replaced");
    assert_eq!(json("0001/decision.json")["report"]["by"], "a test");
    assert_eq!(json("0001/compiled.json")["replacement_refused"], serde_json::Value::Null);
    assert!(json("0002/compiled.json")["replacement_refused"].is_string());
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_replacements() {
    let from_environment = Settings::from_environment().expect("the settings mean something");
    let table = start(from_environment, Box::new(ByName)).expect("it starts");
    // SAFETY: the table is from a start that succeeded; plugins stay loaded.
    let plugin = unsafe { raw::plugin(Path::new("wrapped"), table) }.expect("it is a plugin");
    let client = client(&plugin);
    for (name, expected) in [("replaced", 41.0), ("refused", 3.0), ("panics", 3.0), ("other", 3.0)] {
        assert_eq!(first(&client, &adds(name, 2), 2), expected, "{name}");
    }
    // Several threads compile at once.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(first(&client, &adds("replaced", 2), 2), 41.0));
        }
    });
}

#[test]
fn what_cannot_be_wrapped_is_said() {
    if !every_case("runtime wrapper") {
        return;
    }
    for (inner, expected) in [
        (
            Path::new(""),
            "meshloom: there is no plugin to wrap; set MESHLOOM_PLUGIN_INNER to the path of a PJRT plugin (.so)",
        ),
        (&shared_object(), "is meshloom's own plugin; set MESHLOOM_PLUGIN_INNER to the one that it is to wrap"),
        (Path::new("/nowhere.so"), "meshloom: cannot load /nowhere.so: "),
    ] {
        let said = alone("child_nothing", &[(INNER, inner)]);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_nothing() {
    let error = Plugin::load(shared_object()).expect_err("there is nothing to wrap").to_string();
    assert!(error.contains("GetPjrtApi returned null; it may have said why on standard error"), "{error}");
}

#[test]
fn variables_are_followed_or_refused() {
    let read = |variables: &[(&str, &str)]| {
        Settings::from_variables(|name| {
            variables.iter().find(|(given, _)| *given == name).map(|(_, value)| value.into())
        })
        .map_err(|error| error.to_string())
    };
    assert_eq!(read(&[]), Ok(Settings::default()));
    assert_eq!(read(&[(INNER, ""), ("MESHLOOM_PLUGIN", ""), ("MESHLOOM_PLUGIN_LOG", "0")]), Ok(Settings::default()));
    let all = [(INNER, "a"), ("MESHLOOM_PLUGIN", "off"), ("MESHLOOM_PLUGIN_LOG", "1"), ("MESHLOOM_PLUGIN_DUMP", "b")];
    let expected = Settings { inner: Some("a".into()), mode: Mode::Off, log: true, dump: Some("b".into()) };
    assert_eq!(read(&all), Ok(expected));
    for (name, value, expected) in [("MESHLOOM_PLUGIN", "of", "on or off"), ("MESHLOOM_PLUGIN_LOG", "yes", "1 or 0")] {
        let message = format!("{name} is {value:?}, expected {expected}; set it to one of them, or unset it");
        assert_eq!(read(&[(name, value)]), Err(message));
    }
}
