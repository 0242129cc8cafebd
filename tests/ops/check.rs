//! The checks that every entry of the table passes.

use std::collections::BTreeSet;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use meshloom::autodiff::{Tape, value_and_grad};
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::stablehlo::WriteOptions;
use meshloom::hlo::text::{TextOptions, print};
use meshloom::ir::DType::F64;
use meshloom::ir::{DType, Graph, GraphBuilder, Literal, TensorType, Value};
use meshloom::ops::*;
use meshloom::pjrt::{Client, ProgramFormat};
use prost::Message;

use crate::computer::{By, NOT_INTERPRETED, Program, check_by, emitted, in_chunks, is_interpreted};
use crate::harness::*;
use crate::table::entries;
use crate::{batching, factors, facts, import, text, transforms};
use support::cases::cases;
use support::normal_hlo::normalize;
use support::plugins::{cpu_clients, cpu_wheels, load};
use support::program::test_alone;
use support::quick_compiles;
use support::round_trip::round_trip;

/// Checks all about one op. The interpreter computes; XLA compiles one program, of some of the op's values.
pub fn check_op(entries: &[&'static Entry]) {
    check_types(entries);
    text::check_text(entries);
    import::check_import(entries);
    check_stablehlo(entries);
    check_snapshots(entries);
    check_values(entries);
    factors::check_halves(entries, By::Interpreter);
    facts::check_claims(entries, By::Interpreter);
    batching::check_batches(entries, By::Interpreter);
    check_gradients(entries, 1, By::Interpreter);
    check_gradients(entries, 2, By::Interpreter);
    transforms::check_transposes(entries, By::Interpreter);
    transforms::check_gradients_of_batches(entries, By::Interpreter);
}

// Types.

fn check_types(entries: &[&'static Entry]) {
    for entry in entries {
        for Accept { op, operands, results } in &entry.accepts {
            let found = op.infer(&operands.iter().collect::<Vec<_>>());
            let found = found.unwrap_or_else(|error| panic!("{}: {op:?} refuses {operands:?}: {error}", entry.name));
            assert_eq!(found.as_slice(), results.as_slice(), "{}: {op:?} of {operands:?}", entry.name);
        }
        for Reject { op, operands, message } in &entry.rejects {
            match op.infer(&operands.iter().collect::<Vec<_>>()) {
                Ok(results) => panic!("{}: {op:?} of {operands:?} gives {results:?}", entry.name),
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains(message.as_str()), "{}: {error:?} has no {message:?}", entry.name);
                }
            }
        }
    }
}

// Values.

/// Compares with equal NaNs, and for a tolerance of 0 with the sign of zero.
pub fn compare(what: &str, found: &Literal, expected: &Tensor, tolerance: f64) -> Result<(), String> {
    if *found.ty() != expected.ty {
        return Err(format!("{what}: expected {}, found {}", expected.ty, found.ty()));
    }
    for (index, (found, &expected)) in found.to_f64_vec().into_iter().zip(&expected.values).enumerate() {
        let near = found == expected || (found - expected).abs() <= tolerance * expected.abs().max(1.0);
        let signed = tolerance > 0.0 || found.is_sign_negative() == expected.is_sign_negative();
        if !(near && signed || found.is_nan() && expected.is_nan()) {
            return Err(format!("{what}: element {index} is {found:?} instead of {expected:?}"));
        }
    }
    Ok(())
}

/// Builds a program of many runs, and returns it with the operands of all.
fn values_graph(runs: &[&Run]) -> (Graph, Vec<Literal>) {
    let operands = || runs.iter().flat_map(|run| &run.operands);
    let types: Vec<TensorType> = operands().map(|operand| operand.ty.clone()).collect();
    let graph = graph("values", &types, |builder, inputs| {
        let mut inputs = inputs.iter().copied();
        let mut outputs = Vec::new();
        for run in runs {
            let operands: Vec<Value> = inputs.by_ref().take(run.operands.len()).collect();
            let results = builder.push(run.op.clone(), &operands);
            outputs.extend(results.unwrap_or_else(|error| panic!("{:?}: {error}", run.op)));
        }
        outputs
    });
    (graph, operands().map(Tensor::literal).collect())
}

/// Returns the problems in the results of such a program.
fn wrong_values(by: &str, runs: &[&Run], found: &[Literal]) -> Vec<String> {
    let mut found = found.iter();
    let mut problems = Vec::new();
    for run in runs {
        let types: Vec<_> = run.operands.iter().map(|operand| &operand.ty).collect();
        for expected in &run.expected {
            let found = found.next().expect("as many outputs as results");
            let what = format!("by {by}: {:?} of {types:?}", run.op);
            problems.extend(compare(&what, found, expected, run.tolerance).err());
        }
    }
    problems
}

/// Checks values. The interpreter runs all ops that it knows. XLA runs two for each entry in the small tier, which
/// anchors the interpreter's values op by op.
fn check_values(entries: &[&'static Entry]) {
    let runs = || entries.iter().flat_map(|entry| &entry.runs);
    let mut problems = Vec::new();
    for run in runs().filter(|run| is_interpreted(&run.op)) {
        let (graph, inputs) = values_graph(&[run]);
        problems.extend(wrong_values("the interpreter", &[run], &By::Interpreter.run(&graph, &inputs)));
    }
    let few: Vec<&Run> = entries.iter().flat_map(|entry| cases("ops values", 2, &entry.runs)).collect();
    for few in few.chunks(250) {
        let (graph, inputs) = values_graph(few);
        problems.extend(wrong_values("XLA", few, &By::Xla.run(&graph, &inputs)));
    }
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
}

/// Names the wheel whose plugin a child process runs the values on; empty for the preferred plugin.
const ON_PLUGIN: &str = "MESHLOOM_TEST_CPU";

/// The preferred plugin compiles some of the values with the usual options, and as StableHLO.
#[test]
fn values_are_those_of_the_reference() {
    match env::var(ON_PLUGIN).as_deref() {
        // This client keeps no programs.
        Ok("") => values_on("the preferred plugin", &Client::cpu(1).expect("a CPU client")),
        Ok(_) => cpu_clients().iter().for_each(|(plugin, client)| values_on(plugin, client)),
        Err(_) => values_in_a_process(""),
    }
}

#[test]
fn values_are_the_same_on_every_other_plugin() {
    for wheel in cpu_wheels().skip(1) {
        // A missing wheel is downloaded here, where the progress is seen.
        load(wheel);
        values_in_a_process(wheel.name());
    }
}

/// On a plugin in a process of its own, compiled as they are for everybody.
fn values_in_a_process(plugin: &str) {
    let mut test = test_alone(module_path!(), "values_are_those_of_the_reference");
    quick_compiles::passes_with_the_usual(test.env(ON_PLUGIN, plugin));
}

/// Programs that end the process by a C++ exception of the plugin's compiler: with API 0.81, several of 4-bit integers
/// (gathers, scatters), so it is spared them all.
fn aborts_on(plugin: &str, run: &Run) -> bool {
    let is_narrow = |tensor: &Tensor| matches!(tensor.ty.dtype, DType::S4 | DType::U4);
    plugin == "xla-cpu-pjrt" && run.operands.iter().chain(&run.expected).any(is_narrow)
}

/// Runs one run of each entry as HLO, and one of every second entry as StableHLO; the full tier takes all.
fn values_on(plugin: &str, client: &Client) {
    let entries = entries();
    let runs = || entries.iter().map(|entry| entry.runs.iter().filter(|run| !aborts_on(plugin, run)));
    let as_hlo: Vec<&Run> = runs().flat_map(|runs| cases("ops values by plugins", 1, runs)).collect();
    let as_stablehlo = runs().enumerate().flat_map(|(index, runs)| cases("ops values by plugins", index % 2, runs));
    for (format, runs) in [(ProgramFormat::Hlo, as_hlo), (ProgramFormat::StableHlo, as_stablehlo.collect())] {
        in_chunks(&runs, 250, |runs| {
            let (graph, inputs) = values_graph(runs);
            let found = Program::compile_on(client, &graph, format).run(&inputs);
            let problems = wrong_values(&format!("{plugin} as {format:?}"), runs, &found);
            assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
        });
    }
}

// Gradients.

/// Where a case's active operands lie in the two flat inputs, which hold even and odd operands.
struct Placed<'a> {
    name: &'a str,
    case: &'a Gradient,
    /// For each active operand: which flat input, where it starts, how long it is.
    segments: Vec<(usize, usize, usize)>,
}

fn place<'a>(cases: &[(&'a str, &'a Gradient)]) -> (Vec<Placed<'a>>, [Vec<f64>; 2]) {
    let mut flat = [Vec::new(), Vec::new()];
    let mut segments = |case: &Gradient| {
        let place = |&operand: &usize| {
            let values = &case.operands[operand].values;
            let target = &mut flat[operand % 2];
            target.extend(values);
            (operand % 2, target.len() - values.len(), values.len())
        };
        case.active.iter().map(place).collect()
    };
    let placed = cases.iter().map(|&(name, case)| Placed { name, case, segments: segments(case) }).collect();
    (placed, flat)
}

/// Part of a flat tensor.
fn segment(builder: &mut GraphBuilder, flat: Value, start: usize, length: usize) -> Value {
    push(builder, Slice { ranges: [SliceDim { start, limit: start + length, stride: 1 }].into() }, &[flat])
}

/// A sum of all elements with weights that are the same in every run, and that every floating-point type holds exactly.
fn weighted_sum(builder: &mut GraphBuilder, value: Value, seed: u64) -> Value {
    let dims = builder.ty(value).dims.clone();
    let mut random = Random(seed);
    let weights = Tensor::from_fn(F64, &dims, |_| 0.5 + (random.unit() * 64.0).floor() / 64.0);
    let weights = push(builder, Constant(Box::new(weights.literal())), &[]);
    let product = push(builder, Binary(BinaryKind::Multiply), &[value, weights]);
    push(builder, Reduce { kind: ReduceKind::Sum, axes: (0..dims.len()).collect() }, &[product])
}

fn zero(builder: &mut GraphBuilder) -> Value {
    push(builder, Splat::new(TensorType::scalar(F64), 0.0), &[])
}

/// The sum of all losses, and each.
fn finish_losses(builder: &mut GraphBuilder, losses: Vec<Value>) -> Vec<Value> {
    let rows: Vec<Value> =
        losses.into_iter().map(|loss| push(builder, Reshape { dims: [1].into_iter().collect() }, &[loss])).collect();
    let all = push(builder, Concatenate { axis: 0 }, &rows);
    let total = push(builder, Reduce { kind: ReduceKind::Sum, axes: [0].into_iter().collect() }, &[all]);
    vec![total, all]
}

/// `(flat inputs, other operands) -> (sum of losses, losses)`, a loss being a weighted sum of a case's float results.
fn loss_graph(cases: &[Placed<'_>], types: &[TensorType]) -> Graph {
    graph("losses", types, |builder, inputs| {
        let mut others = inputs[2..].iter().copied();
        let mut losses = Vec::new();
        for Placed { name, case, segments } in cases {
            let mut segments = segments.iter();
            let operand = |(index, tensor): (usize, &Tensor)| {
                if !case.active.contains(&index) {
                    return others.next().expect("as many inputs as operands");
                }
                let &(flat, start, length) = segments.next().expect("a segment for each");
                let value = segment(builder, inputs[flat], start, length);
                push(builder, Reshape { dims: tensor.ty.dims.clone() }, &[value])
            };
            let operands: Vec<Value> = case.operands.iter().enumerate().map(operand).collect();
            let results = builder.push(case.op.clone(), &operands).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut loss = zero(builder);
            for (index, result) in results.into_iter().enumerate() {
                if builder.ty(result).dtype.is_float() {
                    let result = push(builder, Convert(F64), &[result]);
                    let sum = weighted_sum(builder, result, 17 * index as u64);
                    loss = push(builder, Binary(BinaryKind::Add), &[loss, sum]);
                }
            }
            losses.push(loss);
        }
        finish_losses(builder, losses)
    })
}

/// The same of the gradients that `gradients` returns after its two losses.
fn gradient_loss_graph(cases: &[Placed<'_>], types: &[TensorType], gradients: Graph) -> Graph {
    graph("gradient_losses", types, |builder, inputs| {
        let results = builder.push(Call { function: Arc::new(gradients) }, inputs).expect("its own inputs");
        let mut losses = Vec::new();
        for case in cases {
            let mut loss = zero(builder);
            for &(flat, start, length) in &case.segments {
                let part = segment(builder, results[2 + flat], start, length);
                let sum = weighted_sum(builder, part, start as u64);
                loss = push(builder, Binary(BinaryKind::Add), &[loss, sum]);
            }
            losses.push(loss);
        }
        finish_losses(builder, losses)
    })
}

pub fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Compares the gradient of each case's loss with its differences; returns what is wrong.
fn wrong_gradients(
    by: By,
    order: usize,
    losses: &Graph,
    cases: &[Placed<'_>],
    flat: &[Vec<f64>; 2],
    others: &[Literal],
) -> Vec<String> {
    let literal = |values: &Vec<f64>| Literal::from_slice(&[values.len()], values).expect("a vector");
    let inputs: Vec<Literal> = flat.iter().map(literal).chain(others.iter().cloned()).collect();
    let differentiate = |inputs: &[usize]| value_and_grad(losses, inputs).unwrap_or_else(|error| panic!("{error}"));
    let gradients = by.run(&differentiate(&[0, 1]), &inputs);
    let found = [gradients[2].to_f64_vec(), gradients[3].to_f64_vec()];
    let mut problems = Vec::new();
    let program = by.program(losses);
    let element_count = |case: &Placed<'_>| case.segments.iter().map(|segment| segment.2).sum::<usize>();
    let mut differences: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    for element in 0..cases.iter().map(element_count).max().unwrap_or(0) {
        let evaluate = |sign: f64| {
            let mut moved = flat.clone();
            for case in cases {
                let mut element = element;
                for &(target, start, length) in &case.segments {
                    if element < length {
                        moved[target][start + element] += sign * case.case.step;
                        break;
                    }
                    element -= length;
                }
            }
            let moved: Vec<Literal> = moved.iter().map(literal).chain(others.iter().cloned()).collect();
            program.run(&moved)[1].to_f64_vec()
        };
        let (above, below) = (evaluate(1.0), evaluate(-1.0));
        for (index, case) in cases.iter().enumerate().filter(|(_, case)| element < element_count(case)) {
            differences[index].push((above[index] - below[index]) / (2.0 * case.case.step));
        }
    }
    for (case, differences) in cases.iter().zip(differences) {
        let mut differences = differences.into_iter();
        for (&operand, &(target, start, length)) in case.case.active.iter().zip(&case.segments) {
            let found = &found[target][start..start + length];
            let mut expected: Vec<f64> = differences.by_ref().take(length).collect();
            if order == 1 && case.case.expected == Expected::Zero {
                expected.fill(0.0);
            }
            let error = norm(found.iter().zip(&expected).map(|(found, expected)| found - expected));
            // Not `>`, so that a NaN is a problem too.
            let fits = error <= 1e-6 * norm(expected.iter().copied()) + 1e-8;
            if !fits {
                let op = format!("{:?}", case.case.op);
                let op: String = op.chars().take(300).collect();
                problems.push(format!(
                    "{}: derivative {order} in operand {operand} of {op}\n  operands {:?}\n  found {found:?}\n  \
                     instead of {expected:?}",
                    case.name,
                    case.case.operands.iter().map(|operand| &operand.ty).collect::<Vec<_>>()
                ));
            }
        }
    }
    problems
}

/// Checks the derivatives of this order against central differences.
fn check_gradients(entries: &[&'static Entry], order: usize, by: By) {
    let cases: Vec<(&str, &Gradient)> = entries
        .iter()
        .flat_map(|entry| entry.gradients.iter().map(|case| (entry.name.as_str(), case)))
        .filter(|(_, case)| order == 1 || case.second)
        .collect();
    let name = if order == 1 { "ops gradients" } else { "ops second derivatives" };
    check_by(
        by,
        name,
        [20, 40],
        &cases,
        |(_, case)| is_interpreted(&case.op),
        |chunk| {
            let chunk: Vec<(&str, &Gradient)> = chunk.iter().map(|&&case| case).collect();
            let (cases, flat) = place(&chunk);
            let others = cases.iter().flat_map(|Placed { case, .. }| {
                let others = case.operands.iter().enumerate().filter(|(index, _)| !case.active.contains(index));
                others.map(|(_, operand)| operand.literal())
            });
            let others: Vec<Literal> = others.collect();
            let mut types: Vec<TensorType> = flat.iter().map(|flat| TensorType::new(F64, &[flat.len()])).collect();
            types.extend(others.iter().map(|literal| literal.ty().clone()));
            let mut losses = loss_graph(&cases, &types);
            if order == 2 {
                let gradients = value_and_grad(&losses, &[0, 1]).unwrap_or_else(|error| panic!("{error}"));
                losses = gradient_loss_graph(&cases, &types, gradients);
            }
            let problems = wrong_gradients(by, order, &losses, &cases, &flat, &others);
            assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
        },
    );
}

#[test]
fn gradients_by_xla() {
    check_gradients(&entries(), 1, By::Xla);
}

#[test]
fn second_derivatives_by_xla() {
    check_gradients(&entries(), 2, By::Xla);
}

#[test]
fn ops_without_gradient_say_so() {
    for entry in entries() {
        for Refusal { op, operands, active, message } in &entry.refusals {
            let graph = graph("refused", operands, |builder, inputs| {
                let result = push(builder, op.clone(), inputs);
                let axes = (0..builder.ty(result).rank()).collect();
                vec![push(builder, Reduce { kind: ReduceKind::Sum, axes }, &[result])]
            });
            let error = value_and_grad(&graph, &[*active]).map(drop).expect_err("no gradient").to_string();
            assert!(error.contains(message.as_str()), "{}: {error:?} has no {message:?}", entry.name);
        }
    }
}

// Snapshots.

/// `(operands, cotangents of float results) -> cotangents of float operands`.
pub fn vjp_graph(primal: &Graph) -> Graph {
    let cotangents = primal.output_types().filter(|ty| ty.dtype.is_float());
    let types: Vec<TensorType> = primal.input_types().chain(cotangents).cloned().collect();
    graph("vjp", &types, |builder, inputs| {
        let (arguments, cotangents) = inputs.split_at(primal.inputs().len());
        let active: Vec<bool> = primal.input_types().map(|ty| ty.dtype.is_float()).collect();
        let wanted: Vec<bool> = primal.output_types().map(|ty| ty.dtype.is_float()).collect();
        let tape = Tape::record(builder, primal, arguments, &active, &wanted).unwrap_or_else(|error| panic!("{error}"));
        let mut cotangents = cotangents.iter().copied();
        let seeds: Vec<Option<Value>> =
            wanted.iter().map(|&wanted| wanted.then(|| cotangents.next()).flatten()).collect();
        let gradients = tape.pullback(builder, &seeds).unwrap_or_else(|error| panic!("{error}"));
        gradients.into_iter().flatten().collect()
    })
}

/// Whether the module's text says all that the module does.
fn check_reads_back(name: &str, module: &HloModuleProto) {
    let text = print(module, &TextOptions::parseable());
    let read = parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (mut read, mut expected) = (read.hlo_module.expect("a module"), module.clone());
    let again = print(&read, &TextOptions::parseable());
    assert_eq!(again, text, "{name}");
    normalize(&mut read);
    normalize(&mut expected);
    // The fields that an emitted module leaves to its readers are not in its text either.
    for module in [&mut read, &mut expected] {
        module.host_program_shape = None;
        module.computations.iter_mut().for_each(|computation| computation.program_shape = None);
    }
    assert!(read.encode_to_vec() == expected.encode_to_vec(), "{name}: {read:#?}\nis not\n{expected:#?}");
}

/// Each op, and what differentiates it, through StableHLO and back.
fn check_stablehlo(entries: &[&'static Entry]) {
    for entry in entries {
        // HLO text cannot say that a scalar is padded.
        let is_said = |accept: &&Accept| !matches!(accept.op, Op::Pad(_)) || accept.operands[0].rank() > 0;
        for (index, Accept { op, operands, .. }) in entry.accepts.iter().filter(is_said).enumerate() {
            let forward = graph("forward", operands, |builder, inputs| {
                builder.push(op.clone(), inputs).unwrap_or_else(|error| panic!("{error}")).to_vec()
            });
            let backward = (index == 0 && entry.vjp_snapshot).then(|| vjp_graph(&forward));
            for graph in backward.iter().chain([&forward]) {
                let module = emitted(graph).decode().expect("a module");
                round_trip(&module, &WriteOptions::default())
                    .unwrap_or_else(|error| panic!("{}: {op:?} of {operands:?}: {error}", entry.name));
            }
        }
    }
}

/// Returns the module of an entry, and that of its gradient, as names and graphs.
fn snapshots_of(entry: &Entry) -> Vec<(String, Graph)> {
    let Accept { op, operands, .. } = &entry.accepts[0];
    let name = entry.name.replace('-', "_");
    let forward = graph(&name, operands, |builder, inputs| {
        builder.push(op.clone(), inputs).unwrap_or_else(|error| panic!("{error}")).to_vec()
    });
    let mut modules = vec![(name.clone(), forward)];
    if entry.vjp_snapshot {
        modules.push((format!("{name}_vjp"), vjp_graph(&modules[0].1)));
    }
    modules
}

fn check_snapshots(entries: &[&'static Entry]) {
    let _bound = support::snapshots_in("hlo_snapshots/ops");
    for (name, graph) in entries.iter().flat_map(|entry| snapshots_of(entry)) {
        let module = emitted(&graph).decode().expect("a module");
        check_reads_back(&name, &module);
        insta::assert_snapshot!(name.as_str(), print(&module, &TextOptions::canonical()));
    }
}

#[test]
fn modules_are_those_of_the_snapshots() {
    let entries = entries();
    check_snapshots(&entries);
    let names: BTreeSet<String> =
        entries.iter().flat_map(|entry| snapshots_of(entry)).map(|(name, _)| format!("{name}.snap")).collect();
    let folder = support::path("hlo_snapshots/ops");
    for file in std::fs::read_dir(folder).expect("the snapshots") {
        let file = file.expect("a file").file_name().into_string().expect("a name");
        assert!(names.contains(&file) || !file.ends_with(".snap"), "no test writes the snapshot {file}");
    }
}

/// XLA compiles the modules of the snapshots, and the optimized modules read back too.
#[test]
fn modules_of_the_snapshots_are_compiled() {
    let all: Vec<(String, Graph)> = entries().iter().flat_map(|entry| snapshots_of(entry)).collect();
    let few = all.len() / 4;
    in_chunks(&cases("ops snapshots", few, all), 1, |modules| {
        for (name, graph) in modules {
            let Program::Compiled(executable) = Program::compile(graph) else { unreachable!() };
            let optimized = executable.optimized_hlo().expect("a program").decode().expect("a module");
            check_reads_back(name, &optimized);
        }
    });
}

/// Only the listed ops are not interpreted. The tests of the other ops show that the interpreter knows them, with all
/// element types.
#[test]
fn every_op_is_interpreted_but_those_that_are_listed() {
    let mut refused = BTreeSet::new();
    for run in entries().iter().flat_map(|entry| &entry.runs).filter(|run| !is_interpreted(&run.op)) {
        let (graph, inputs) = values_graph(&[run]);
        let found = catch_unwind(AssertUnwindSafe(|| By::Interpreter.run(&graph, &inputs)));
        let panic = found.expect_err(run.op.name());
        let said = panic.downcast_ref::<String>().expect("a message");
        assert!(said.contains("is not interpreted"), "{}: {said}", run.op.name());
        refused.insert(run.op.variant());
    }
    assert_eq!(refused, NOT_INTERPRETED.into());
}
