//! Options that cannot be are refused by name, before a plugin sees them: it might end the process.
//!
//! Every field of the options is listed here: one that is new does not compile until it has its cases.

use std::sync::Arc;
use std::time::Duration;

use meshloom::compile::{LowerOptions, PartitionMode, Pass, lower, lower_as_traced};
use meshloom::emit::{GroupFormat, ProgramForm};
use meshloom::hlo::PlatformKind;
use meshloom::ir::{DType, Graph};
use meshloom::kernels::Kernels;
use meshloom::passes::CollectiveMatmul;
use meshloom::pjrt::{
    Client, ClientOptions, CompileOptions, DebugValue, ErrorCode, KeyValueFailure, KeyValues, NamedValue, Platform,
    ProcessPlace, SliceLevels, Span,
};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, TensorSpec};
use support::eight_devices::client;
use support::pjrt_modules as modules;
use support::plugins::{cpu_clients, cpu_plugins};

/// Options, and a part of the refusal; none where they are possible, or for the plugin to judge.
type Cases<O> = Vec<(O, Option<&'static str>)>;

/// Two inputs and three outputs; one output has a type of its own.
fn program() -> Graph {
    let spec = || TensorSpec::new(DType::F32, [8, 4]).with_axes(&["batch", ""]);
    let function = Function::trace("f", (spec(), spec()), |(a, b)| (a + b, a * b, a.sum(..)));
    Graph::clone(function.expect("it traces").graph())
}

/// A pass of the caller's.
static OWN: [Pass; 1] = [Pass::of("own", "it changes nothing", Graph::clone)];

fn lower_cases<'a>(sharding: (&'a Mesh, &'a RuleSets)) -> Cases<LowerOptions<'a>> {
    let default = LowerOptions::default;
    // Without `..`: a new field is an error here.
    let LowerOptions {
        sharding: _,
        aliases: _,
        without: _,
        limits: _,
        partition: _,
        form: _,
        deny_replication: _,
        groups: _,
        overlap_collectives: _,
        exact_ports: _,
        skip_verifier: _,
        omit_metadata: _,
        host_memory: _,
        levels: _,
        kernels: _,
        processes: _,
        further: _,
    } = default();
    let aliases = |aliases: &[(usize, usize)]| LowerOptions { aliases: aliases.to_vec(), ..default() };
    let over_mesh = |options: LowerOptions<'a>| LowerOptions { sharding: Some(sharding), ..options };
    let mut cases: Cases<LowerOptions<'a>> = vec![
        (aliases(&[(0, 0), (1, 1)]), None),
        (aliases(&[(7, 0)]), Some("`LowerOptions::aliases` has (7, 0)")),
        (aliases(&[(0, 2)]), Some("the program has 2 inputs and 3 outputs")),
        (aliases(&[(usize::MAX, usize::MAX)]), Some("`LowerOptions::aliases`")),
        (aliases(&[(2, 0)]), Some("the output is f32[], the input f32[8,4]")),
        (aliases(&[(0, 0), (0, 0)]), Some("(0, 0) is given already")),
        (aliases(&[(0, 0), (1, 0)]), Some("(0, 0) is given already")),
        (aliases(&[(0, 0), (0, 1)]), Some("(0, 0) is given already")),
        (LowerOptions { kernels: Kernels::plain(), ..default() }, None),
        (LowerOptions { without: &["algebra"], ..default() }, None),
        (
            LowerOptions { without: &["algebr"], ..default() },
            Some("there is no pass `algebr` (did you mean \"algebra\"?)"),
        ),
        (LowerOptions { further: &OWN, ..default() }, None),
        (LowerOptions { further: &OWN, without: &["own"], ..default() }, None),
        (LowerOptions { without: &["own"], ..default() }, Some("there is no pass `own`")),
    ];
    for bytes in [0, 1, u64::MAX] {
        let mut options = over_mesh(default());
        (options.limits.combined_bytes, options.limits.hoisted_bytes) = (bytes, bytes);
        (options.limits.packed_bytes, options.limits.all_reduce_bytes) = (bytes, bytes);
        cases.push((options, None));
    }
    // Slices that are none, or that the mesh is not made of, are not followed.
    for shape in [&[][..], &[0], &[1], &[8, 0], &[2, 2, 2], &[2, 4], &[3], &[16], &[usize::MAX, usize::MAX]] {
        for gathers in [None, Some(0), Some(u64::MAX)] {
            let levels = Some(SliceLevels { shape: shape.to_vec(), whole: true, gathers });
            cases.push((over_mesh(LowerOptions { levels, ..default() }), None));
        }
    }
    for options in [default(), over_mesh(default())] {
        cases.push((LowerOptions { form: ProgramForm::Local, ..options }, None));
    }
    for partition in [PartitionMode::Explicit, PartitionMode::GSPMD, PartitionMode::SHARDY] {
        cases.push((over_mesh(LowerOptions { partition, ..default() }), None));
        cases.push((LowerOptions { partition, ..default() }, None));
    }
    let switches: [fn(&mut LowerOptions<'a>); 5] = [
        |options| options.deny_replication = true,
        |options| options.overlap_collectives = true,
        |options| options.skip_verifier = true,
        |options| options.omit_metadata = true,
        |options| options.host_memory = true,
    ];
    for switch in switches {
        for mut options in [default(), over_mesh(default())] {
            switch(&mut options);
            cases.push((options, None));
        }
    }
    cases
}

fn refuse(found: Result<(), String>, expected: Option<&str>, what: &str) {
    match (found, expected) {
        (Ok(()), None) => {}
        (Err(error), Some(expected)) => assert!(error.contains(expected), "{what}: {error}"),
        (found, expected) => panic!("{what}: {found:?} instead of {expected:?}"),
    }
}

#[test]
fn a_mesh_lies_in_processes() {
    let mesh = Mesh::parse("data=8", 8).expect("a mesh");
    let rules = RuleSets::uniform(Rules::from_pairs(&[("batch", &["data"])]).expect("rules"));
    let refused = |processes: usize, partition: PartitionMode| {
        let options = LowerOptions { sharding: Some((&mesh, &rules)), processes, partition, ..LowerOptions::default() };
        lower(&program(), &options).map(drop).map_err(|error| error.to_string())
    };
    let explicit = PartitionMode::Explicit;
    assert_eq!(refused(4, explicit), Ok(()));
    let error = refused(7, explicit).expect_err("8 devices");
    assert!(error.contains("cannot lie in 7 processes"), "{error}");
    let error = refused(2, PartitionMode::GSPMD).expect_err("XLA knows one process");
    assert!(error.contains("XLA's partitioner makes no program of 2 processes"), "{error}");
}

/// Options that `lower` takes give a program that a plugin takes.
#[test]
fn lower_options() {
    let mesh = Mesh::parse("data=8", 8).expect("a mesh");
    let rules = RuleSets::uniform(Rules::from_pairs(&[("batch", &["data"])]).expect("rules"));
    let (graph, client) = (program(), client());
    for (options, expected) in lower_cases((&mesh, &rules)) {
        let what = format!("{options:?}");
        let lowered = lower(&graph, &options).and_then(|lowered| lowered.compile(&client).map(drop));
        refuse(lowered.map_err(|error| error.to_string()), expected, &what);
        // As traced, there is no mesh.
        let expected =
            expected.or(options.sharding.map(|_| "`lower_as_traced` does not follow `LowerOptions::sharding`"));
        let lowered = lower_as_traced(&graph, &options).and_then(|lowered| lowered.compile(&client).map(drop));
        refuse(lowered.map_err(|error| error.to_string()), expected, &what);
    }
}

/// A form of device groups that a plugin does not read is named: it would skip them.
#[test]
fn groups_that_the_plugin_does_not_read() {
    let mesh = Mesh::parse("data=8", 8).expect("a mesh");
    let rules = RuleSets::uniform(Rules::from_pairs(&[("batch", &["data"])]).expect("rules"));
    for (name, client) in cpu_clients() {
        let chosen = GroupFormat::read_by(client.plugin().api_version());
        for groups in [GroupFormat::Lists, GroupFormat::IotaInList, GroupFormat::Iota] {
            let options = LowerOptions { groups, sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
            let program = lower(&program(), &options).expect("it lowers").compile(client);
            let expected = (groups != GroupFormat::Lists && groups != chosen).then_some("`GroupFormat::read_by`");
            refuse(program.map(drop).map_err(|error| error.to_string()), expected, &format!("{name} {groups:?}"));
        }
    }
}

/// A store that is never asked: clients of CPUs do not look for one another.
#[derive(Debug)]
struct NoStore;

impl KeyValues for NoStore {
    fn put(&self, key: &str, _: &[u8]) -> Result<(), KeyValueFailure> {
        self.try_get(key).map(drop)
    }

    fn get(&self, key: &str, _: Duration) -> Result<Vec<u8>, KeyValueFailure> {
        self.try_get(key)
    }

    fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueFailure> {
        Err(KeyValueFailure { code: ErrorCode::Internal, message: format!("{key} is asked for") })
    }
}

/// The options of a client. A CPU plugin of API 0.115 or later refuses an option that it does not know. If it is taken
/// for CUDA's, its error thus shows that the options that are set are sent, and no others.
fn client_cases() -> Cases<ClientOptions> {
    // Without `..`: a new field is an error here.
    let ClientOptions {
        platform: _,
        device_count: _,
        collectives_at_once: _,
        memory_fraction: _,
        preallocate: _,
        visible_devices: _,
        platform_options: _,
        process: _,
        // The plugin does not get this option.
        keeps_programs: _,
    } = ClientOptions::default();
    type Setting = (fn(&mut ClientOptions), &'static str, PlatformKind);
    let settings: [Setting; 5] = [
        (|options| options.device_count = Some(2), "device_count", PlatformKind::Cpu),
        (|options| options.collectives_at_once = Some(2), "collectives_at_once", PlatformKind::Cpu),
        (|options| options.memory_fraction = Some(0.5), "memory_fraction", PlatformKind::Cuda),
        (|options| options.preallocate = Some(false), "preallocate", PlatformKind::Cuda),
        (|options| options.visible_devices = Some(vec![0, 1]), "visible_devices", PlatformKind::Cuda),
    ];
    let mut cases: Cases<ClientOptions> = Vec::new();
    for platform in PlatformKind::ALL {
        cases.push((ClientOptions::of(platform), None));
        for (set, name, owner) in settings {
            let mut options = ClientOptions::of(platform);
            set(&mut options);
            let expected = match (platform == owner, owner) {
                (true, PlatformKind::Cpu) => None,
                // The stand-in says so: it was sent.
                (true, _) => Some(name),
                (false, PlatformKind::Cpu) => Some("has no such option, only cpu"),
                (false, _) => Some("has no such option, only cuda"),
            };
            cases.push((options, expected));
        }
    }
    let cuda = || ClientOptions::of(PlatformKind::Cuda);
    for fraction in [0.0, -0.5, 1.5, f64::NAN] {
        let options = ClientOptions { memory_fraction: Some(fraction), ..cuda() };
        cases.push((options, Some("is not possible: expected more than 0 and at most 1")));
    }
    for count in [0, 17] {
        let options = ClientOptions { collectives_at_once: Some(count), ..ClientOptions::default() };
        cases.push((options, Some("is not possible: expected 1 to 16")));
    }
    let hidden = |name: &str| vec![(name.to_owned(), NamedValue::Int(1))];
    cases.push((
        ClientOptions { platform_options: hidden("preallocate"), ..cuda() },
        Some("`ClientOptions::preallocate`"),
    ));
    cases.push((ClientOptions { platform_options: hidden("no_such_option"), ..cuda() }, Some("no_such_option")));
    let process = |number, count| Some(ProcessPlace { number, count, store: Arc::new(NoStore) });
    for platform in PlatformKind::ALL {
        // The stand-in knows `process_id`, and names one of `node_id` and `num_nodes`, which are for CUDA's. The plugin
        // for TPUs finds them in the environment.
        let expected =
            (platform == PlatformKind::Cuda).then_some("Unexpected option name passed to PJRT_Client_Create: n");
        cases.push((ClientOptions { process: process(1, 2), ..ClientOptions::of(platform) }, expected));
        for (number, count) in [(2, 2), (0, 0)] {
            let options = ClientOptions { process: process(number, count), ..ClientOptions::of(platform) };
            cases.push((options, Some("is not possible: expected a number below that of processes")));
        }
    }
    cases
}

#[test]
fn client_options() {
    let plugin = cpu_plugins().into_iter().find(|plugin| plugin.api_version() >= (0, 115)).expect("a strict plugin");
    for (options, expected) in client_cases() {
        let client = Client::new(&plugin, &options);
        if let Ok(client) = &client {
            assert_eq!(client.platform().kind(), options.platform);
            assert_eq!(client.devices().len(), options.device_count.unwrap_or(4), "{options:?}");
        }
        refuse(client.map(drop).map_err(|error| error.to_string()), expected, &format!("{options:?}"));
    }
}

/// A program is lowered for the platform that the client was opened for, by any name that the plugin gives itself.
#[test]
fn a_program_is_lowered_for_the_clients_platform() {
    let plugin = cpu_plugins().remove(0);
    for kind in PlatformKind::ALL {
        let client = Client::new(&plugin, &ClientOptions::of(kind)).expect("a client");
        assert_eq!((client.platform_name(), client.platform().device_kind()), ("cpu", Some("cpu")));
        let options = LowerOptions::default().on(client.platform());
        let is_accelerator = kind != PlatformKind::Cpu;
        assert_eq!(options.overlap_collectives, is_accelerator, "{kind}");
        assert_eq!(options.host_memory, is_accelerator, "{kind}");
        // A processor hides any number of transfers behind a loop.
        assert_eq!(options.limits.packed_bytes, 0, "{kind}");
        assert_eq!(options.groups, GroupFormat::read_by(plugin.api_version()), "{kind}");
        assert_eq!(client.platform().chip_options(), None, "a processor is no chip that has one");
        // Without a plugin, only what all of them read.
        let any = LowerOptions::default().on(&Platform::of_any_plugin(kind));
        assert_eq!((any.groups, any.overlap_collectives), (GroupFormat::Lists, is_accelerator), "{kind}");
        // The speed of an unknown chip decides nothing.
        let matmul = [&options, &any].map(|options| options.limits.matmul);
        assert_eq!(matmul, [CollectiveMatmul::Off; 2], "{kind}");
    }
}

fn compile_cases() -> Cases<CompileOptions> {
    let default = CompileOptions::default;
    // Without `..`: a new field is an error here.
    let CompileOptions {
        num_replicas: _,
        num_partitions: _,
        use_spmd_partitioning: _,
        format: _,
        use_shardy_partitioner: _,
        device_assignment: _,
        span: _,
        allow_propagation_to_parameters: _,
        allow_propagation_to_outputs: _,
        debug_options: _,
    } = default();
    let replicas = |num_replicas| CompileOptions { num_replicas, ..default() };
    let partitions = CompileOptions::partitioned;
    let assigned = |device_assignment: &[&[i32]], options| CompileOptions {
        device_assignment: Some(device_assignment.iter().map(|ids| ids.to_vec()).collect()),
        ..options
    };
    let parameters =
        |list: &[bool], options| CompileOptions { allow_propagation_to_parameters: list.to_vec(), ..options };
    let outputs = |list: &[bool], options| CompileOptions { allow_propagation_to_outputs: list.to_vec(), ..options };
    let debug = |name: &str, value| CompileOptions { debug_options: [(name.to_owned(), value)].into(), ..default() };
    let shardy = |options| CompileOptions { use_shardy_partitioner: true, ..options };
    vec![
        (replicas(2), None),
        (replicas(0), Some("num_replicas = 0 is not possible")),
        (replicas(9), Some("num_replicas * num_partitions = 9 is not possible")),
        (replicas(usize::MAX), Some("num_replicas * num_partitions")),
        (partitions(2), None),
        (CompileOptions { span: Span::Each(2), ..partitions(2) }, None),
        (partitions(0), Some("num_partitions = 0 is not possible")),
        (partitions(9), Some("num_replicas * num_partitions = 9 is not possible")),
        (CompileOptions { num_replicas: usize::MAX, ..partitions(usize::MAX) }, Some("num_replicas * num_partitions")),
        (CompileOptions { use_spmd_partitioning: true, ..default() }, None),
        (CompileOptions { use_spmd_partitioning: false, ..partitions(2) }, Some("use_spmd_partitioning = false")),
        (shardy(partitions(2)), None),
        (shardy(default()), None),
        (assigned(&[&[3]], default()), None),
        (assigned(&[&[3, 1]], partitions(2)), None),
        (assigned(&[], default()), Some("device_assignment = [] is not possible: expected 1 replica of 1 device id")),
        (assigned(&[&[]], default()), Some("device_assignment")),
        (assigned(&[&[0, 1]], default()), Some("device_assignment")),
        (assigned(&[&[0], &[1]], default()), Some("device_assignment")),
        (assigned(&[&[0, 0]], partitions(2)), Some("device_assignment")),
        (assigned(&[&[-1]], default()), Some("device_assignment = -1 is not possible")),
        (assigned(&[&[77]], default()), Some("device_assignment = 77 is not possible")),
        (parameters(&[true], partitions(2)), None),
        (parameters(&[true, false], partitions(2)), None),
        (parameters(&[true; 3], partitions(2)), Some("allow_propagation_to_parameters")),
        (outputs(&[true], partitions(2)), None),
        (outputs(&[true; 2], partitions(2)), Some("allow_propagation_to_outputs")),
        (debug("xla_cpu_enable_fast_math", DebugValue::Bool(true)), None),
        (debug("xla_no_such_option", DebugValue::Bool(true)), Some("xla_no_such_option")),
        (debug("", DebugValue::Bool(true)), Some("debug_options")),
        (debug("xla_cpu_enable_fast_math", DebugValue::Text("perhaps".into())), Some("xla_cpu_enable_fast_math")),
        (debug("xla_cpu_enable_fast_math", DebugValue::Float(f64::NAN)), Some("xla_cpu_enable_fast_math = NaN")),
        (debug("xla_backend_optimization_level", DebugValue::Int(i64::MAX)), Some("xla_backend_optimization_level")),
        (debug("xla_cpu_enable_fast_math", DebugValue::Int(7)), Some("xla_cpu_enable_fast_math")),
    ]
}

#[test]
fn compile_options() {
    let (client, module): (Client, Vec<u8>) = (client(), modules::add(&[4]));
    for (options, expected) in compile_cases() {
        let compiled = client.compile(&module, &options).map(drop).map_err(|error| error.to_string());
        refuse(compiled, expected, &format!("{options:?}"));
    }
}

/// Aliases of a module from elsewhere: XLA ends the process over these.
#[test]
fn aliases_of_a_module() {
    type Alias<'a> = (&'a [i64], i64);
    let cases: &[(&[Alias<'_>], Option<&str>)] = &[
        (&[(&[], 0)], None),
        (&[(&[7], 0)], Some("has no such output or parameter")),
        (&[(&[-1], 0)], Some("has no such output or parameter")),
        (&[(&[], 9)], Some("has 2 parameters")),
        (&[(&[], -1)], Some("has 2 parameters")),
        (&[(&[], 0), (&[], 1)], Some("shares it with another already")),
        (&[(&[], 1), (&[], 1)], Some("shares it with another already")),
    ];
    for (aliases, expected) in cases {
        let module = modules::add_with_aliases(&[4], aliases);
        let compiled = client().compile(&module, &CompileOptions::default()).map(drop);
        refuse(compiled.map_err(|error| error.to_string()), *expected, &format!("{aliases:?}"));
    }
}
