//! Modules with mistakes in them, as text and as bytes. Each is an error, or a module that prints and is analysed.
//! Nothing panics, or takes more memory than the input can ask for.
//!
//! Every run has the same inputs; `MESHLOOM_SEED` draws others. A failure prints its input, and the variables that
//! select it alone. `fuzz/` has the same two targets for cargo-fuzz, which looks for new inputs.

pub mod mutate;

use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use meshloom::analysis::Walk;
use meshloom::analysis::{
    CHIPS, CostOptions, Partitioning, collectives, cost, device_count, diff, memory, mesh_of, scope_graph, shardings,
    trace_sharding,
};
use meshloom::hlo::parse::{TextLimits, parse, parse_bytes};
use meshloom::hlo::proto::{HloModuleConfigProto, HloModuleProto};
use meshloom::hlo::read;
use meshloom::hlo::stablehlo::{self, WriteOptions};
use meshloom::hlo::text::{TextOptions, print};
use meshloom::sharding::Mesh;
use mutate::Random;
use prost::Message;
use support::cases::{cases, seed};

/// The number of mutations of each kind.
const MUTATIONS: usize = 50_000;

/// Bytes that a module may encode to for each byte of its text, at most: a line has 15 bytes or more.
const MAX_GROWTH: usize = 16;

/// Returns the number of the only mutation to run, if one is selected.
fn only() -> Option<usize> {
    const NAME: &str = "MESHLOOM_MUTATION";
    let value = env::var(NAME).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{NAME} must be a number, found {value:?}")))
}

/// Small files that between them have all of the syntax.
fn seeds(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let folder = support::path(folder);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let files = files.iter().filter(|file| file.to_string_lossy().ends_with(ending));
    files.map(|file| fs::read(file).unwrap()).filter(|seed| seed.len() < 8 << 10).collect()
}

/// Runs `check` on mutations of the seeds, on all processors, and says on which input it panicked.
fn for_each_mutation(
    (folder, ending, least): (&str, &str, usize),
    mutate: fn(&mut Random, &[Vec<u8>]) -> Vec<u8>,
    check: fn(&[u8]) -> bool,
) {
    let seeds = seeds(folder, ending);
    assert!(seeds.len() >= least, "only {} seeds", seeds.len());
    let (seed, only) = (seed(1), only());
    let numbers = only.map_or_else(|| cases("hlo mutations", MUTATIONS / 10, 0..MUTATIONS), |only| vec![only]);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let read = AtomicUsize::new(0);
    let run = |worker: usize| {
        for &number in numbers.iter().skip(worker).step_by(workers) {
            let input = mutate(&mut Random::new(seed as usize, number), &seeds);
            match catch_unwind(AssertUnwindSafe(|| check(&input))) {
                Ok(is_module) => read.fetch_add(usize::from(is_module), Relaxed),
                Err(_) => panic!(
                    "MESHLOOM_SEED={seed} MESHLOOM_MUTATION={number} ({ending}) fails on\n{}",
                    input.escape_ascii()
                ),
            };
        }
    };
    thread::scope(|scope| (0..workers).for_each(|worker| drop(scope.spawn(move || run(worker)))));
    let read = read.into_inner();
    // Mutations that all fail at once would show nothing.
    let count = numbers.len();
    assert!(only.is_some() || read > count / 20, "of {count} mutations only {read} are modules");
}

/// Runs the analyses and printers on a module of unknown origin, as programs do.
fn analyse(module: &HloModuleProto, config: Option<&HloModuleConfigProto>) {
    assert!(print(module, &TextOptions::parseable()).starts_with("HloModule "));
    assert!(print(module, &TextOptions::canonical()).starts_with("HloModule "));
    let devices = device_count(module, config);
    Partitioning::of(module, devices);
    let found = collectives(module, devices);
    diff((module, &found), (module, &found));
    let _ = memory(module);
    cost(module, &CostOptions::devices(devices).on(&CHIPS[0]));
    let mesh = mesh_of(module);
    let some = Mesh::parse("data=2,fsdp=4", 8).unwrap();
    let found = found.along(mesh.as_ref().unwrap_or(&some));
    assert!(serde_json::to_string(&found).is_ok());
    shardings(module, mesh.as_ref());
    scope_graph(&Walk::of(module), 3);
    let _ = stablehlo::write(module, &WriteOptions::default());
    let _ = stablehlo::write_artifact(module, &WriteOptions::default(), None);
    let _ = trace_sharding(module, mesh.as_ref(), "x", 4);
}

fn check_text(text: &[u8]) -> bool {
    match parse_bytes(text, &TextLimits::default()) {
        Ok(parsed) => {
            assert!(parsed.encoded_len() <= MAX_GROWTH * text.len() + 1024, "the module is far larger than its text");
            let module = parsed.hlo_module.as_ref().unwrap();
            analyse(module, parsed.config.as_ref());
            true
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(shown.len() < 8 << 10 && shown.ends_with('^'), "{shown}");
            false
        }
    }
}

fn check_stablehlo(text: &[u8]) -> bool {
    match read::read(text, &read::Limits::default()) {
        Ok(found) => {
            assert!(
                found.module.encoded_len() <= MAX_GROWTH * text.len() + 1024,
                "the module is far larger than its text"
            );
            analyse(&found.module, found.config.as_ref());
            true
        }
        Err(error) => {
            assert!(error.to_string().len() < 8 << 10, "{error}");
            false
        }
    }
}

fn check_bytes(bytes: &[u8]) -> bool {
    let _ = read::read(bytes, &read::Limits::default());
    let Ok(module) = HloModuleProto::decode(bytes) else { return false };
    analyse(&module, None);
    // Text that was printed need not parse, for ids may name nothing. Parsing must not do harm.
    let _ = parse(&print(&module, &TextOptions::parseable()));
    true
}

#[test]
fn mutated_text_is_an_error_or_a_module() {
    for_each_mutation(("tests/oracle/hlo", ".txt", 20), mutate::text, check_text);
}

#[test]
fn mutated_bytes_are_an_error_or_a_module() {
    for_each_mutation(("tests/oracle/hlo", ".pb", 20), mutate::bytes, check_bytes);
}

#[test]
fn mutated_stablehlo_is_an_error_or_a_module() {
    for_each_mutation(("tests/foreign/lowered", ".stablehlo.txt", 4), mutate::text, check_stablehlo);
}
