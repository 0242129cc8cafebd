//! Random programs through StableHLO and back: the same text, the same computation, the same results.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use meshloom::autodiff::value_and_grad;
use meshloom::emit::{EmitOptions, ProgramForm, emit};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::stablehlo::WriteOptions;
use meshloom::ir::Graph;
use prost::Message;
use support::cases::cases;
use support::interpret::assert_same_bits;
use support::local_graph::run_changed;
use support::round_trip::round_trip;
use support::{compile_module, eight_devices};

use super::generate::{Kind, Recipe, graph, inputs, recipe};
use super::{check, float_inputs, local_graph, properties, together};

const PROGRAMS: u64 = 300;

fn module(graph: &Graph, options: EmitOptions<'_>) -> Result<HloModuleProto, String> {
    let emitted = emit(graph, options).map_err(|error| error.to_string())?;
    emitted.decode().map_err(|error| error.to_string())
}

fn gradient(recipe: &Recipe) -> Result<Graph, String> {
    let smooth = graph(Kind::Smooth, recipe);
    value_and_grad(&smooth, &float_inputs(&smooth)).map_err(|error| error.to_string())
}

/// A form of the program of one device.
fn form_of(numbers: u64) -> ProgramForm {
    if numbers.is_multiple_of(2) { ProgramForm::Manual } else { ProgramForm::Local }
}

/// 300 programs of any ops, and the gradients of as many, partitioned over meshes.
#[test]
fn modules_are_the_same_after_stablehlo() {
    let counts = RefCell::new(BTreeMap::<String, usize>::new());
    let count = |module: &HloModuleProto| {
        for instruction in module.computations.iter().flat_map(|computation| &computation.instructions) {
            *counts.borrow_mut().entry(instruction.opcode.clone()).or_default() += 1;
        }
    };
    let number = check("compiler stablehlo", 100, PROGRAMS, |recipe, numbers| {
        let drawn = module(&graph(Kind::Any, recipe), EmitOptions::default())?;
        count(&round_trip(&drawn, &WriteOptions::default())?);
        let (local, mesh) = local_graph(&gradient(recipe)?, numbers)?;
        let form = form_of(numbers);
        let emitted = module(&local, EmitOptions { mesh: Some(&mesh), partitioned: true, form, ..Default::default() })?;
        let partitions = mesh.device_count() as u64;
        count(&round_trip(&emitted, &WriteOptions { partitions, ..WriteOptions::default() })?);
        Ok(())
    });
    let control = ["call", "conditional", "while", "opt-barrier"];
    let moved = ["all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter", "partition-id"];
    let products = ["dot", "gather", "scatter", "reduce", "pad", "dynamic-slice", "dynamic-update-slice", "select"];
    let counts = counts.into_inner();
    for opcode in control.iter().chain(&moved).chain(&products) {
        assert!(counts.get(*opcode).is_some_and(|&count| count * 15 >= number), "{opcode}: {counts:?}");
    }
}

/// The CPU plugin gives the same bits for a program and for what is read from its StableHLO. This follows from the test
/// above, so only the full tier checks it.
#[test]
fn results_are_the_same_after_stablehlo() {
    const GROUP: u64 = 25;
    for index in cases("compiler stablehlo results", 0, 0..PROGRAMS / GROUP) {
        let what = format!("group {index}");
        let drawn = |place| graph(Kind::Any, &properties::draw(&recipe(30, 2), GROUP * index + place));
        let all = together(&(0..GROUP).map(drawn).collect::<Vec<_>>());
        let module = module(&all, EmitOptions::default()).expect("a module");
        let back = round_trip(&module, &WriteOptions::default()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let inputs = inputs(Kind::Any, index);
        let [before, after] = [module, back].map(|module| compile_module(&all, &module.encode_to_vec()).run(&inputs));
        assert_same_bits(&what, &after, &before);
    }
}

/// The same on eight devices: gradients, partitioned.
#[test]
fn partitioned_results_are_the_same_after_stablehlo() {
    let seen = Cell::new(0);
    let number = check("compiler stablehlo partitioned results", 0, PROGRAMS, |recipe, numbers| {
        let (local, mesh) = local_graph(&gradient(recipe)?, numbers)?;
        if mesh.device_count() != 8 {
            return Ok(());
        }
        seen.set(seen.get() + 1);
        let back = |bytes: Vec<u8>| {
            let module = HloModuleProto::decode(bytes.as_slice()).expect("a module");
            let found = round_trip(&module, &WriteOptions { partitions: 8, ..WriteOptions::default() });
            found.unwrap_or_else(|error| panic!("{error}")).encode_to_vec()
        };
        let (client, values) = (eight_devices::client(), inputs(Kind::Smooth, numbers));
        let run = |change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
            run_changed(form_of(numbers), &client, &local, &mesh, |_, index| values[index].clone(), change)
        };
        assert_same_bits(&local, &run(&back), &run(&|bytes| bytes));
        Ok(())
    });
    assert!(seen.get() * 10 >= number, "{} programs for eight devices", seen.get());
}
