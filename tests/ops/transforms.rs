//! Tests of how the transforms of an op fit together: tangents against cotangents, and gradients against batches.

use meshloom::autodiff::{Tape, jvp};
use meshloom::batching::{BatchAxis, inline, vmap};
use meshloom::ir::{Graph, GraphBuilder, Literal, TensorType, Value};
use meshloom::ops::*;

use crate::batching::{patterns, single, stacked, varied};
use crate::check::norm;
use crate::computer::{By, check_by, is_interpreted};
use crate::harness::*;
use crate::table::entries;

/// Numbers that every floating-point type holds exactly, products of few of them too.
fn eighths(ty: &TensorType, seed: u64) -> Tensor {
    let mut random = Random(seed);
    Tensor::from_fn(ty.dtype, &ty.dims, |_| (random.unit() * 32.0).floor() / 8.0 - 2.0)
}

fn dot(left: &[Tensor], right: &[Tensor]) -> f64 {
    let pairs = left.iter().zip(right).flat_map(|(left, right)| left.values.iter().zip(&right.values));
    pairs.map(|(left, right)| left * right).sum()
}

fn size(tensors: &[Tensor]) -> f64 {
    norm(tensors.iter().flat_map(|tensor| tensor.values.iter().copied()))
}

/// Takes tensors for a part of a long list of literals.
fn take(literals: &mut &[Literal], count: usize) -> Vec<Tensor> {
    let (own, rest) = literals.split_at(count);
    *literals = rest;
    own.iter().map(|literal| Tensor { ty: literal.ty().clone(), values: literal.to_f64_vec() }).collect()
}

fn take_values<'a>(values: &mut &'a [Value], count: usize) -> &'a [Value] {
    let (own, rest) = values.split_at(count);
    *values = rest;
    own
}

/// A gradient case, with the graph of its op.
struct Case<'a> {
    name: &'a str,
    case: &'a Gradient,
    graph: Graph,
    /// Types of the floating-point results.
    results: Vec<TensorType>,
}

/// Returns the cases in which all operands that can be differentiated are active.
fn cases(entries: &[&'static Entry]) -> Vec<Case<'static>> {
    let of_entry = |entry: &&'static Entry| {
        let cases = entry.gradients.iter().filter(|case| case.second);
        cases.map(|case| with_graph(&entry.name, case))
    };
    entries.iter().flat_map(of_entry).collect()
}

fn with_graph<'a>(name: &'a str, case: &'a Gradient) -> Case<'a> {
    let types: Vec<TensorType> = case.operands.iter().map(|operand| operand.ty.clone()).collect();
    let graph = single(&case.op, &types);
    let results = graph.output_types().filter(|ty| ty.dtype.is_float()).cloned().collect();
    Case { name, case, graph, results }
}

/// Cotangents of the active operands from those of the floating-point results.
fn pull(
    builder: &mut GraphBuilder,
    graph: &Graph,
    operands: &[Value],
    active: &[usize],
    cotangents: &[Value],
) -> Vec<Value> {
    let is_active: Vec<bool> = (0..operands.len()).map(|index| active.contains(&index)).collect();
    let wanted: Vec<bool> = graph.output_types().map(|ty| ty.dtype.is_float()).collect();
    let tape = Tape::record(builder, graph, operands, &is_active, &wanted).unwrap_or_else(|error| panic!("{error}"));
    let mut cotangents = cotangents.iter().copied();
    let seeds: Vec<Option<Value>> = wanted.iter().map(|&wanted| wanted.then(|| cotangents.next()).flatten()).collect();
    let gradients = tape.pullback(builder, &seeds).unwrap_or_else(|error| panic!("{error}"));
    let or_zero = |&index: &usize| {
        gradients[index].unwrap_or_else(|| push(builder, Splat::new(graph.ty(graph.inputs()[index]).clone(), 0.0), &[]))
    };
    active.iter().map(or_zero).collect()
}

/// Ops that take no tangents.
const NO_TANGENTS: [&str; 1] = [
    // Only its reverse mode is written by hand.
    "CustomVjp",
];

/// `<cotangent, jvp(tangent)> = <vjp(cotangent), tangent>`.
pub fn check_transposes(entries: &[&'static Entry], by: By) {
    let cases: Vec<Case<'_>> =
        cases(entries).into_iter().filter(|case| !NO_TANGENTS.contains(&case.case.op.variant())).collect();
    check_by(
        by,
        "ops transposes",
        [20, 40],
        &cases,
        |case| is_interpreted(&case.case.op),
        |chunk| {
            // For each case: operands, tangents of the active ones, cotangents of the results.
            let inputs_of = |case: &Case<'_>| -> [Vec<Tensor>; 3] {
                let active = case.case.active.iter().map(|&index| &case.case.operands[index].ty);
                let tangents = active.zip(1..).map(|(ty, seed)| eighths(ty, seed)).collect();
                let cotangents = case.results.iter().zip(100..).map(|(ty, seed)| eighths(ty, seed)).collect();
                [case.case.operands.clone(), tangents, cotangents]
            };
            let inputs: Vec<Tensor> = chunk.iter().flat_map(|case| inputs_of(case).concat()).collect();
            let types: Vec<TensorType> = inputs.iter().map(|tensor| tensor.ty.clone()).collect();
            let graph = graph("transposes", &types, |builder, mut inputs| {
                let mut outputs = Vec::new();
                for Case { name, case, graph, results } in chunk {
                    let operands = take_values(&mut inputs, case.operands.len());
                    let tangents = take_values(&mut inputs, case.active.len());
                    let cotangents = take_values(&mut inputs, results.len());
                    let mut incoming = vec![None; operands.len()];
                    case.active.iter().zip(tangents).for_each(|(&index, &tangent)| incoming[index] = Some(tangent));
                    let pushed = jvp(builder, graph, operands, &incoming);
                    let (values, outgoing) = pushed.unwrap_or_else(|error| panic!("{name}: {error}"));
                    for (value, tangent) in values.into_iter().zip(outgoing) {
                        if builder.ty(value).dtype.is_float() {
                            let zero = || Splat::new(builder.ty(value).clone(), 0.0);
                            let zero = zero();
                            outputs.push(tangent.unwrap_or_else(|| push(builder, zero, &[])));
                        }
                    }
                    outputs.extend(pull(builder, graph, operands, &case.active, cotangents));
                }
                outputs
            });
            let literals: Vec<Literal> = inputs.iter().map(Tensor::literal).collect();
            let outputs = by.run(&graph, &literals);
            let mut outputs = &outputs[..];
            for case in chunk {
                let [_, tangents, cotangents] = inputs_of(case);
                let pushed = take(&mut outputs, case.results.len());
                let pulled = take(&mut outputs, case.case.active.len());
                let (forward, backward) = (dot(&cotangents, &pushed), dot(&pulled, &tangents));
                let bound = 1e-12 * (size(&cotangents) * size(&pushed) + size(&pulled) * size(&tangents));
                let what = format!("{}: {:?} in {:?}", case.name, case.case.op, case.case.active);
                assert!((forward - backward).abs() <= bound, "{what}: {forward} forwards, {backward} backwards");
            }
        },
    );
}

/// A case with the operands that are batched.
struct BatchedCase<'a> {
    case: &'a Case<'a>,
    pattern: Vec<bool>,
}

/// All operands batched, and the first alone; of an op with regions, in more patterns. For primitives, batching itself
/// has been checked in all of them.
fn batched_cases<'a>(case: &'a Case<'a>) -> impl Iterator<Item = BatchedCase<'a>> {
    let is_region = case.case.op.as_primitive().is_none();
    let keep = move |pattern: &Vec<bool>| {
        let alone = pattern.iter().enumerate().all(|(operand, &batched)| batched == (operand == 0));
        is_region || alone || pattern.iter().all(|&batched| batched)
    };
    let patterns = patterns(case.case.operands.len(), true).into_iter().filter(keep);
    patterns.map(move |pattern| BatchedCase { case, pattern })
}

/// For two examples: the gradient of the batched op is the batch of gradients, and where an operand is the same for
/// both, their sum.
pub fn check_gradients_of_batches(entries: &[&'static Entry], by: By) {
    let all = cases(entries);
    let cases: Vec<BatchedCase<'_>> = all.iter().flat_map(batched_cases).collect();
    check_by(
        by,
        "ops gradients of batches",
        [20, 30],
        &cases,
        |case| is_interpreted(&case.case.case.op),
        |chunk| {
            let inputs_of = |BatchedCase { case, pattern }: &BatchedCase<'_>| -> [Vec<Tensor>; 2] {
                let operand = |(operand, &batched): (&Tensor, &bool)| {
                    if batched { stacked([operand, &varied(operand)]) } else { operand.clone() }
                };
                let cotangent = |(ty, seed): (&TensorType, u64)| stacked([&eighths(ty, seed), &eighths(ty, seed + 1)]);
                let operands = case.case.operands.iter().zip(pattern).map(operand).collect();
                [operands, case.results.iter().zip(100..).map(cotangent).collect()]
            };
            let inputs: Vec<Tensor> = chunk.iter().flat_map(|case| inputs_of(case).concat()).collect();
            let types: Vec<TensorType> = inputs.iter().map(|tensor| tensor.ty.clone()).collect();
            let mut flags = Vec::new();
            let graph = graph("gradients", &types, |builder, mut inputs| {
                let mut outputs = Vec::new();
                for BatchedCase { case: Case { name, case, graph, results }, pattern } in chunk {
                    let operands = take_values(&mut inputs, pattern.len());
                    let cotangents = take_values(&mut inputs, results.len());
                    let (batch, batched) =
                        vmap(graph, pattern, BatchAxis::new(2)).unwrap_or_else(|error| panic!("{name}: {error}"));
                    // A result that both examples share gets the sum of their cotangents.
                    let float = graph.output_types().zip(&batched).filter(|(ty, _)| ty.dtype.is_float());
                    let seeds = float.zip(cotangents).map(|((_, &batched), &ct)| {
                        let sum = Reduce { kind: ReduceKind::Sum, axes: [0].into_iter().collect() };
                        if batched { ct } else { push(builder, sum, &[ct]) }
                    });
                    let seeds: Vec<Value> = seeds.collect();
                    outputs.extend(pull(builder, &batch, operands, &case.active, &seeds));

                    let examples = graph.input_types().chain(results).cloned().collect::<Vec<_>>();
                    let gradients = crate::harness::graph("gradient", &examples, |builder, inputs| {
                        let (operands, cotangents) = inputs.split_at(pattern.len());
                        pull(builder, graph, operands, &case.active, cotangents)
                    });
                    let operands = operands.iter().zip(pattern).map(|(&value, &batched)| Batched { value, batched });
                    let cotangents = cotangents.iter().map(|&value| Batched { value, batched: true });
                    let arguments: Vec<Batched> = operands.chain(cotangents).collect();
                    let results = inline(builder, &gradients, &arguments, BatchAxis::new(2));
                    let results = results.unwrap_or_else(|error| panic!("{name}: {error}"));
                    flags.push(results.iter().map(|result| result.batched).collect::<Vec<bool>>());
                    outputs.extend(results.iter().map(|result| result.value));
                }
                outputs
            });
            let literals: Vec<Literal> = inputs.iter().map(Tensor::literal).collect();
            let outputs = by.run(&graph, &literals);
            let mut outputs = &outputs[..];
            for (BatchedCase { case, pattern }, flags) in chunk.iter().zip(&flags) {
                let active = &case.case.active;
                let (found, batches) = (take(&mut outputs, active.len()), take(&mut outputs, active.len()));
                for (index, &operand) in active.iter().enumerate() {
                    let expected = summed(&batches[index], flags[index], pattern[operand]);
                    let what =
                        format!("{}: operand {operand} of {:?}, batched in {pattern:?}", case.name, case.case.op);
                    assert_eq!(found[index].values.len(), expected.len(), "{what}");
                    let difference =
                        norm(found[index].values.iter().zip(&expected).map(|(found, expected)| found - expected));
                    let fits = difference <= 1e-12 * norm(expected.iter().copied());
                    assert!(fits, "{what}: found {:?} instead of {expected:?}", found[index].values);
                }
            }
        },
    );
}

#[test]
fn transposes_by_xla() {
    check_transposes(&entries(), By::Xla);
}

#[test]
fn gradients_of_batches_by_xla() {
    check_gradients_of_batches(&entries(), By::Xla);
}

/// The gradients of both examples, or their sum for an operand that both share.
fn summed(gradient: &Tensor, batched: bool, operand_batched: bool) -> Vec<f64> {
    let values = &gradient.values;
    let (first, second) = if batched { values.split_at(values.len() / 2) } else { (&values[..], &values[..]) };
    if operand_batched {
        [first, second].concat()
    } else {
        first.iter().zip(second).map(|(first, second)| first + second).collect()
    }
}
