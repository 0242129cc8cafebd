//! Programs of JAX, imported and partitioned: they compute what they do on one device, and send what is counted here.

use std::collections::BTreeSet;
use std::fs;

use meshloom::analysis::{Amount, Devices, collectives};
use meshloom::compile::{LowerOptions, Lowered, lower_module};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::read::{Limits, read};
use meshloom::import::import;
use meshloom::ir::{DType, Graph, Literal, NodeRef, TensorType};
use meshloom::ops::Op;
use meshloom::partition::Ledger;
use support::cases::{cases, seed};
use support::eight_devices::{compile, relative_error};
use support::interpret::interpret;
use support::random::Random;
use support::spmd::run_local;
use support::{numbers, path};

/// The folder has a file `NAME.stablehlo.txt` of each program, as JAX lowers it.
const FOLDER: &str = "tests/foreign/lowered";

/// The programs, and the bytes that a device sends; at most as many where a branch decides. Programs for one device
/// send none.
const PROGRAMS: [(&str, u64); 15] = [
    ("circular", 13_140),
    ("control", 0),
    ("convolution", 0),
    ("convolution.generic", 0),
    ("embedding", 0),
    ("exchange", 4359),
    ("fsdp_mlp", 10_759),
    ("fsdp_mlp.debug", 10_759),
    ("interleaved", 33799),
    ("local_sgd", 5376),
    ("moe", 70_279),
    ("one_forward_one_backward", 16135),
    ("pipeline", 27_655),
    ("scan_remat", 76_807),
    ("transformer", 211_460),
];

fn module(name: &str) -> HloModuleProto {
    let bytes = fs::read(path(FOLDER).join(format!("{name}.stablehlo.txt"))).expect("a file");
    read(&bytes, &Limits::default()).expect("a module").module
}

fn lowered(name: &str) -> Lowered {
    lower_module(&module(name), &LowerOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Small values for each input. Integers are indices.
fn inputs(types: impl IntoIterator<Item = TensorType>) -> Vec<Literal> {
    let input = |(seed, ty): (usize, TensorType)| {
        let values = numbers(ty.element_count(), seed as u64);
        Literal::from_fn(ty.clone(), |index| if ty.dtype == DType::F32 { values[index] } else { (index % 2) as f64 })
    };
    types.into_iter().enumerate().map(input).collect()
}

fn check_same(name: &str, found: &[Literal], expected: &[Literal]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.ty(), expected.ty(), "{name}: output {number}");
        let error = relative_error(&found.to_f64_vec(), &expected.to_f64_vec());
        assert!(error <= 1e-5, "{name}: output {number} differs by {error}");
    }
}

/// Whether a program, or one that it calls, has manual regions, so that it does not run whole. The results of such
/// programs are checked by tests/oracle/plugin.py.
fn is_manual(graph: &Graph) -> bool {
    let of_node =
        |node: NodeRef<'_>| matches!(node.op(), Op::ManualBorder(_)) || node.op().regions().any(|body| is_manual(body));
    graph.nodes().any(of_node)
}

/// The interpreter runs the imported graph whole, and the partitioned one on all devices. A program for one device is
/// emitted, and can be imported again.
#[test]
fn programs_of_jax_compute_the_same_in_parts() {
    let mut ran = Vec::new();
    for (name, moved) in PROGRAMS {
        let whole = import(&module(name)).expect("a graph").graph;
        let lowered = lowered(name);
        let Some(partitioned) = lowered.program.partitioned() else {
            let again = import(&lowered.module.decode().expect("a module")).expect("a graph").graph;
            assert!(again.input_types().eq(whole.input_types()) && moved == 0, "{name}");
            assert!(again.output_types().eq(whole.output_types()), "{name}");
            continue;
        };
        let ledger = Ledger::of(&partitioned.graph, &partitioned.mesh);
        let found = ledger.moved_bytes().expect("known loops");
        assert!(found == moved || found == Amount::AtMost(moved), "{name}: {found:?}");
        if is_manual(&whole) {
            continue;
        }
        let inputs = inputs(whole.input_types().cloned());
        let found = run_local(&partitioned.graph, &partitioned.mesh, &inputs).expect("whole outputs");
        check_same(name, &found, &interpret(&whole, &inputs));
        ran.push(name);
    }
    assert_eq!(ran, ["fsdp_mlp", "fsdp_mlp.debug", "scan_remat", "transformer"]);
}

/// XLA compiles what is emitted, with the parameters and results of JAX's program.
#[test]
fn xla_runs_a_program_of_jax() {
    const NAME: &str = "fsdp_mlp";
    let whole = import(&module(NAME)).expect("a graph").graph;
    let program = compile(&lowered(NAME)).expect("a program");
    let inputs = inputs(whole.input_types().cloned());
    let arrays = program.put(0, &inputs).expect("arrays");
    let outputs = program.run(&arrays.iter().collect::<Vec<_>>()).expect("results");
    let found: Vec<Literal> = outputs.iter().map(|output| output.get().expect("a literal")).collect();
    check_same(NAME, &found, &interpret(&whole, &inputs));
}

/// The partitioned modules beside the programs are XLA's own.
#[test]
fn no_more_is_sent_than_by_xla() {
    for name in ["fsdp_mlp", "moe", "pipeline", "scan_remat"] {
        let bytes = fs::read(path("tests/foreign").join(format!("{name}.partitioned.txt"))).expect("a file");
        let theirs = read(&bytes, &Limits::default()).expect("a module").module;
        let Amount::Exactly(theirs) = collectives(&theirs, Devices::partitioned(8)).moved_bytes() else {
            panic!("{name}: a loop of XLA's is not known")
        };
        let ours = PROGRAMS.iter().find(|(imported, _)| *imported == name).expect("an imported program").1;
        println!("{name}: {ours} bytes, XLA's partitioner {theirs}");
        assert!(ours <= theirs, "{name}: {ours} bytes, and XLA's partitioner sends {theirs}");
    }
}

/// One byte of the bytecode is another. The reader, the import or the partitioner refuses the program, or it is
/// lowered.
#[test]
fn damaged_programs_are_refused_or_lowered() {
    let bytes = fs::read(path(FOLDER).join("fsdp_mlp.mlirbc")).expect("a file");
    let (mut lowered, mut refused) = (0, 0);
    for number in cases("spmd damaged programs", 200, 0..10_000) {
        let mut random = Random(seed(57) + number);
        let mut damaged = bytes.clone();
        let at = random.below(damaged.len());
        damaged[at] = random.below(256) as u8;
        let Ok(read) = read(&damaged, &Limits::default()) else { continue };
        match lower_module(&read.module, &LowerOptions::default()) {
            Ok(_) => lowered += 1,
            Err(_) => refused += 1,
        }
    }
    println!("{lowered} are lowered and {refused} refused of those that are read");
    assert!(lowered > 0 && refused > 0);
}

/// The folder has no program that is not in the table.
#[test]
fn every_program_is_in_the_table() {
    let files = fs::read_dir(path(FOLDER)).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let files = files.map(|file| file.to_string_lossy().into_owned());
    let found: BTreeSet<String> =
        files.filter_map(|file| Some(file.strip_suffix(".stablehlo.txt")?.to_owned())).collect();
    assert_eq!(found, PROGRAMS.iter().map(|(name, _)| (*name).to_owned()).collect());
}
