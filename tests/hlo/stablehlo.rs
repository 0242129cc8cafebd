//! Lowered JAX programs, read from StableHLO and from HLO (`tests/oracle/lowered.py`): the analyses find the same in
//! both.
//!
//! JAX folds constants when it makes HLO, and expands some ops. So the numbers of operations differ by what is stated
//! here, and nothing else does.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use meshloom::analysis::{
    CostOptions, DeviceWalk, Devices, ModuleCost, Partitioning, ValueKind, collectives, cost, device_count, memory,
    mesh_of, shardings,
};
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::{HloModuleProto, ShapeProto};
use meshloom::hlo::read::{self, Form, ReadModule};
use meshloom::hlo::stablehlo::WriteOptions;
use meshloom::hlo::text::{Layouts, TextOptions, print, print_shape};
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::pjrt::{Array, CompileOptions, ExecuteOptions, ShardLayout};
use prost::Message;
use support::cases::cases;
use support::eight_devices::client;
use support::round_trip::round_trip;

/// A program.
struct Program {
    name: &'static str,
    /// Operations that StableHLO has and the HLO of JAX has not, since JAX has folded them.
    folded: u64,
    devices: u64,
}

const fn program(name: &'static str, devices: u64, folded: u64) -> Program {
    Program { name, folded, devices }
}

const PROGRAMS: [Program; 13] = [
    program("circular", 8, 17),
    program("control", 1, 19),
    program("convolution", 1, 1152),
    program("embedding", 1, 0),
    program("exchange", 8, 0),
    // A mean divides one number by another.
    program("fsdp_mlp", 8, 1),
    program("interleaved", 8, 1334),
    program("local_sgd", 8, 1),
    program("moe", 8, 0),
    program("one_forward_one_backward", 8, 264),
    program("pipeline", 8, 12),
    program("scan_remat", 8, 1),
    // `erfc`, of the exact GELU, is expanded.
    program("transformer", 8, 0),
];

/// Programs with an op that JAX expands into others.
const EXPANDED: [&str; 1] = ["transformer"];

fn folder() -> PathBuf {
    support::path("tests/foreign/lowered")
}

fn file(name: &str) -> ReadModule {
    let bytes = fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    read::read(&bytes, &read::Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Both forms of a program: from StableHLO, and JAX's HLO.
fn both(program: &Program) -> [HloModuleProto; 2] {
    let lowered = file(&format!("{}.stablehlo.txt", program.name));
    assert_eq!(lowered.form, Form::StableHlo);
    let devices = device_count(&lowered.module, lowered.config.as_ref());
    assert_eq!(devices, Devices { replicas: 1, partitions: program.devices }, "{}", program.name);
    [lowered.module, file(&format!("{}.hlo.txt", program.name)).module]
}

fn each(check: impl Fn(&Program, [&HloModuleProto; 2], Devices)) {
    for program in &PROGRAMS {
        let [lowered, hlo] = both(program);
        check(program, [&lowered, &hlo], Devices { replicas: 1, partitions: program.devices });
    }
}

#[test]
fn every_program_is_checked() {
    let files = fs::read_dir(folder()).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let names: Vec<String> = files.map(|name| name.to_string_lossy().into_owned()).collect();
    let lowered = names.iter().filter_map(|name| name.strip_suffix(".hlo.txt"));
    for name in lowered.clone() {
        assert!(PROGRAMS.iter().any(|program| program.name == name), "{name}");
    }
    assert_eq!(lowered.count(), PROGRAMS.len());
}

/// Kinds, groups, bytes and executions; in the order of the program.
#[test]
fn the_same_collectives() {
    each(|program, modules, devices| {
        let found = modules.map(|module| {
            let entries = collectives(module, devices).entries;
            let row = |entry: meshloom::analysis::ModuleCollective| {
                let groups = entry.groups.lists();
                (entry.kind, groups, entry.pairs, entry.bytes, entry.executions, entry.in_branch, entry.loop_depth)
            };
            let mut rows: Vec<String> = entries.into_iter().map(row).map(|row| format!("{row:?}")).collect();
            // XLA orders branches and functions by itself.
            rows.sort();
            rows
        });
        assert_eq!(found[0], found[1], "{}", program.name);
        let is_for_xla = ["fsdp_mlp", "scan_remat", "transformer"].contains(&program.name);
        assert_eq!(found[0].is_empty(), is_for_xla || program.devices == 1, "{}", program.name);
    });
}

#[test]
fn the_same_operations() {
    each(|program, modules, devices| {
        let [lowered, hlo] = modules.map(|module| cost(module, &CostOptions::devices(devices)));
        let products = |cost: &ModuleCost| -> u64 {
            let found = cost.instructions.iter().filter(|it| ["dot", "convolution"].contains(&it.op.as_str()));
            found.map(|it| it.total.flops).sum()
        };
        assert_eq!(products(&lowered), products(&hlo), "{}", program.name);
        assert_eq!(products(&lowered) > 0, program.name != "control", "{}", program.name);
        assert_eq!(lowered.total.link_bytes, hlo.total.link_bytes, "{}", program.name);
        if EXPANDED.contains(&program.name) {
            assert!(lowered.total.flops < hlo.total.flops, "{}", program.name);
            return;
        }
        assert_eq!(lowered.total.flops, hlo.total.flops + program.folded, "{}", program.name);
        assert_eq!(lowered.total.transcendentals, hlo.total.transcendentals, "{}", program.name);
        assert!(lowered.assumptions.unknown_calls.is_empty(), "{}", program.name);
    });
}

/// Shapes, tiles and Shardy's texts of parameters and results; donated buffers; the mesh.
#[test]
fn the_same_signature() {
    each(|program, modules, devices| {
        let [lowered, hlo] = modules.map(|module| {
            let shape = module.host_program_shape.clone().unwrap_or_default();
            let parameters: Vec<_> = shape.parameters.iter().map(|shape| print_shape(shape, Layouts::All)).collect();
            let result = shape.result.map(|shape| print_shape(&shape, Layouts::None));
            let values = shardings(module, mesh_of(module).as_ref());
            let stated = values.into_iter().filter(|value| value.kind != ValueKind::Annotated);
            // XLA's text does not state its parameters in their order.
            let mut stated: Vec<_> =
                stated.map(|it| format!("{:?}", (it.kind, it.shape, it.sharding, it.axes))).collect();
            stated.sort();
            let entry = module.computations.iter().find(|it| it.id == module.entry_computation_id).expect("an entry");
            let texts = entry.instructions.iter().filter(|it| it.opcode == "parameter");
            let texts: BTreeMap<_, _> = texts.map(|it| (it.parameter_number, it.frontend_attributes.clone())).collect();
            let shared = (module.input_output_alias.clone(), module.buffer_donor.clone());
            let is_pending = Partitioning::of(module, devices).is_pending();
            (parameters, result, stated, texts, shared, mesh_of(module), module.name.clone(), is_pending)
        });
        assert_eq!(lowered, hlo, "{}", program.name);
    });
}

/// The trip count of each loop of a scan is found.
#[test]
fn scans_run_as_often_as_they_are_long() {
    for (name, expected) in [("scan_remat", vec![5, 5]), ("transformer", vec![4, 4]), ("pipeline", vec![9, 9])] {
        let found = file(&format!("{name}.stablehlo.txt"));
        let walk = DeviceWalk::of(&found.module, device_count(&found.module, found.config.as_ref()));
        let is_loop = |place: &&meshloom::analysis::Place<'_>| place.computation.name.starts_with("body");
        let executions = walk.walk().places().iter().filter(is_loop).map(|place| format!("{:?}", place.executions));
        let expected: Vec<String> = expected.iter().map(|count| format!("Exactly({count})")).collect();
        assert_eq!(executions.collect::<Vec<_>>(), expected, "{name}");
    }
}

/// The text of what is read is HLO, and reads back; what other forms of the same program become differs in names only.
#[test]
fn what_is_read_is_hlo() {
    each(|program, [lowered, _], _| {
        let text = print(lowered, &TextOptions::parseable());
        let again =
            parse(&text).unwrap_or_else(|error| panic!("{}: {error}", program.name)).hlo_module.expect("a module");
        assert_eq!(print(&again, &TextOptions::parseable()), text, "{}", program.name);
        assert!(memory(lowered).is_ok(), "{}", program.name);
    });
    let canonical = |name: &str| {
        let text = print(&file(name).module, &TextOptions::canonical());
        // The generic form numbers values otherwise, and names none.
        let shapes = text.lines().filter_map(|line| line.split_once(" = ")).map(|(_, rest)| {
            rest.split(['%', ' ', ',', '(', ')'])
                .filter(|word| word.contains('[') || word.contains('-'))
                .collect::<Vec<_>>()
                .join(" ")
        });
        shapes.collect::<Vec<_>>()
    };
    assert_eq!(canonical("fsdp_mlp.debug.stablehlo.txt"), canonical("fsdp_mlp.stablehlo.txt"));
    assert_eq!(canonical("convolution.generic.stablehlo.txt"), canonical("convolution.stablehlo.txt"));
}

/// Each program, read from StableHLO or from HLO, is written as a text that is read as the same.
#[test]
fn what_is_written_reads_back() {
    for entry in fs::read_dir(folder()).expect("a folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        let ReadModule { module, config, .. } = file(&name);
        let Devices { partitions, replicas } = device_count(&module, config.as_ref());
        for metadata in [false, true] {
            let options = WriteOptions { partitions, replicas, metadata };
            round_trip(&module, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// Bytecode has the operations of the text, and so has a portable artifact where nothing is expanded for it, as the
/// largest of rows are.
#[test]
fn bytecode_has_the_operations_of_its_text() {
    for name in ["control", "embedding", "fsdp_mlp"] {
        let total = |form: &str| {
            let ReadModule { module, config, form: found, .. } = file(&format!("{name}.{form}"));
            assert_eq!(found == Form::Bytecode, form.ends_with("mlirbc"), "{name}.{form}");
            cost(&module, &CostOptions::devices(device_count(&module, config.as_ref()))).total
        };
        let [text, bytecode, artifact] = ["stablehlo.txt", "mlirbc", "artifact.mlirbc"].map(total);
        for found in [&bytecode, &artifact] {
            assert_eq!(found.transcendentals, text.transcendentals, "{name}");
        }
        assert_eq!(bytecode.flops, text.flops, "{name}");
        assert!(artifact.flops == text.flops || name != "fsdp_mlp", "{name}");
    }
}

/// With debug information, ops have their scope and line as in the HLO that JAX makes.
#[test]
fn locations_are_those_of_hlo() {
    let module = file("fsdp_mlp.debug.stablehlo.txt").module;
    let sources = meshloom::hlo::source::Sources::of(&module);
    let dots: Vec<String> = module
        .computations
        .iter()
        .flat_map(|computation| &computation.instructions)
        .filter(|it| it.opcode == "dot")
        .map(|it| {
            let lines: Vec<String> = sources.stack(it).iter().map(|line| format!("{line} {}", line.function)).collect();
            format!("{}: {}", meshloom::hlo::source::op_name(it), lines.join(", "))
        })
        .collect();
    assert_eq!(dots.len(), 5);
    let (file, loss) = ("tests/oracle/foreign_programs.py", "fsdp_mlp.<locals>.loss");
    assert_eq!(
        dots[0],
        format!("jit(fsdp_mlp)/jvp(mlp)/dot_general: {file}:41 {loss}, {file}:194 jit_step.<locals>.step")
    );
}

/// The module, written as HLO text and read again.
fn by_text(module: &HloModuleProto) -> Vec<u8> {
    let text = print(module, &TextOptions::parseable());
    parse(&text).unwrap_or_else(|error| panic!("{error}")).hlo_module.expect("a module").encode_to_vec()
}

/// Inputs of a program, the same every time.
fn inputs(module: &HloModuleProto) -> Vec<Literal> {
    let shape = module.host_program_shape.as_ref().expect("a signature");
    let literal = |(number, shape): (usize, &ShapeProto)| {
        let dims: Vec<usize> = shape.dimensions.iter().map(|&size| size as usize).collect();
        let text = print_shape(shape, Layouts::None);
        let dtype = DType::from_name(text.split('[').next().expect("an element type")).expect("an element type");
        let ty = TensorType::new(dtype, &dims);
        let numbers = support::numbers(ty.element_count(), number as u64 + 1);
        // Enough iterations of the loop to take every branch.
        Literal::from_fn(ty, |at| if dtype.is_float() { numbers[at] - 0.7 } else { (numbers[at] * 8.0).floor() })
    };
    shape.parameters.iter().enumerate().map(literal).collect()
}

/// Both forms of the programs for one device, compiled by the CPU plugin, give the same bits.
#[test]
fn the_same_values() {
    let options = CompileOptions { debug_options: support::unoptimized(), ..CompileOptions::default() };
    let client = client();
    let all = PROGRAMS.iter().filter(|program| program.devices == 1);
    for program in cases("hlo values of JAX programs", 2, all) {
        let found = both(program).map(|module| {
            let compiled = client.compile(&by_text(&module), &options);
            let executable = compiled.unwrap_or_else(|error| panic!("{}: {error}", program.name));
            let types: Vec<TensorType> =
                executable.output_types().expect("types").iter().map(|ty| ty.clone().expect("a type")).collect();
            let put = |literal: &Literal| {
                Array::put(&client, literal, &ShardLayout::replicated(&literal.ty().dims, 1)).expect("put")
            };
            let arguments: Vec<_> = inputs(&module).iter().map(|literal| put(literal).shards()[0].clone()).collect();
            let outputs = executable.execute(&[arguments], &ExecuteOptions::default()).expect("it runs").swap_remove(0);
            let get = |(buffer, ty): (_, &TensorType)| {
                let layout = ShardLayout::replicated(&ty.dims, 1);
                Array::from_shards(ty.clone(), layout, vec![buffer]).expect("an output").get().expect("its value")
            };
            outputs.into_iter().zip(&types).map(get).collect::<Vec<Literal>>()
        });
        assert_eq!(found[0], found[1], "{}", program.name);
    }
}

/// XLA takes Shardy's annotations from what is read: its partitioner finds the collectives that it finds in JAX's HLO.
#[test]
fn shardy_partitions_what_is_read() {
    let options = CompileOptions { debug_options: support::unoptimized(), ..CompileOptions::partitioned(8) };
    let all = PROGRAMS.iter().filter(|program| ["fsdp_mlp", "exchange"].contains(&program.name));
    for program in cases("hlo JAX programs by Shardy", 1, all) {
        let found = both(program).map(|module| {
            let compiled = client().compile(&by_text(&module), &options.clone().with_shardy(true));
            let executable = compiled.unwrap_or_else(|error| panic!("{}: {error}", program.name));
            let optimized = executable.optimized_hlo().expect("the optimized module");
            let module = read::read(&optimized.bytes, &read::Limits::default()).expect("a module").module;
            let entries = collectives(&module, Devices::partitioned(8)).entries;
            let row = |it: &meshloom::analysis::ModuleCollective| {
                format!("{:?}", (it.kind, it.groups.lists(), &it.pairs, it.bytes, it.executions))
            };
            let mut rows: Vec<String> = entries.iter().map(row).collect();
            rows.sort();
            rows
        });
        assert_eq!(found[0], found[1], "{}", program.name);
        assert!(!found[0].is_empty(), "{}", program.name);
    }
}

#[test]
fn the_program_is_main_or_the_one_that_is_asked_for() {
    let f = |name: &str, op: &str| {
        format!(
            "func.func {name}(%x: tensor<f32>) -> tensor<f32> {{ %0 = {op} %x : tensor<f32>\n return %0 : tensor<f32> }}"
        )
    };
    let negate = |name: &str| f(name, "stablehlo.negate");
    let entry = |text: &str, function: Option<&str>| {
        let found = read::read_function(text.as_bytes(), &read::Limits::default(), function);
        found.map(|found| found.module.entry_computation_name).map_err(|error| error.to_string())
    };
    let several = format!("module {{ {} {} {} }}", negate("@f"), negate("private @g"), negate("public @h"));
    assert_eq!(entry(&several, Some("h")), Ok("h".to_owned()));
    assert_eq!(entry(&several, Some("g")), Ok("g".to_owned()));
    let message = entry(&several, None).unwrap_err();
    assert!(message.contains("there is no @main, and 2 functions are public"), "{message}");
    assert!(message.contains("choose one with --function of hlo-dump") && message.contains("@f, @h"), "{message}");
    let message = entry(&several, Some("hh")).unwrap_err();
    assert!(message.contains("there is no function @hh; there are @f, @g, @h"), "{message}");
    assert_eq!(entry(&format!("module {{ {} {} }}", negate("@f"), negate("@main")), None), Ok("main".to_owned()));
    assert_eq!(entry(&format!("module {{ {} {} }}", negate("@f"), negate("private @g")), None), Ok("f".to_owned()));
    // A function without a body is declared only, and other ops beside functions say nothing of the program.
    let declared = format!(
        "module  {{ func.func private @d(tensor<f32> {{a.b = 1 : i32}}) -> tensor<f32>\n \"a.b\"() : () -> ()\n {} }}",
        negate("@f")
    );
    assert_eq!(entry(&declared, None), Ok("f".to_owned()));
    let inside = format!(
        "module @outer {{ sdy.mesh @m = <[\"a\"=2]>\n module @inner attributes {{mhlo.num_partitions = 2 : i32}} {{ {} }} }}",
        negate("@f")
    );
    let found = read::read(inside.as_bytes(), &read::Limits::default()).unwrap();
    assert_eq!((found.config.unwrap().num_partitions, found.module.name.as_str()), (2, "inner"));
    let twice =
        format!("module {{ module @a {{ {} }} module @b {{ {} }} }}", negate("@main"), f("@main", "stablehlo.abs"));
    let message = entry(&twice, None).unwrap_err();
    assert!(message.contains("2 modules have a @main") && message.contains("@a::main, @b::main"), "{message}");
    assert_eq!(entry(&twice, Some("b::main")), Ok("main".to_owned()));
    assert_eq!(entry(&several.replace("func.func", "func"), Some("f")), Ok("f".to_owned()));
    let message = entry("HloModule m\nENTRY e { ROOT x = f32[] parameter(0) }", Some("e")).unwrap_err();
    assert!(message.contains("a function is chosen from StableHLO, and it is HLO text"), "{message}");
}
