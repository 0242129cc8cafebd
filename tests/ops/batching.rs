//! `vmap` of every op against a loop over the examples, and with gradients.

use std::collections::BTreeSet;

use meshloom::batching::{BatchAxis, inline, vmap};
use meshloom::ir::DType::Pred;
use meshloom::ir::{Graph, GraphBuilder, Literal, NodeRef, TensorType, Value};
use meshloom::ops::*;

use crate::check::compare;
use crate::computer::{By, check_by, is_interpreted};
use crate::factors::canonical;
use crate::harness::*;
use crate::table::entries;

/// Another example of an operand: the same numbers in another order, so that it lies where the op is defined, too.
pub fn varied(tensor: &Tensor) -> Tensor {
    let mut values = tensor.values.clone();
    match values[..] {
        [] => {}
        [value] if tensor.ty.dtype == Pred => values[0] = 1.0 - value,
        [value] if tensor.ty.dtype.is_float() => values[0] = value * 0.75,
        [value] => values[0] = value + 1.0,
        _ => values.rotate_right(1),
    }
    Tensor::new(tensor.ty.dtype, tensor.dims(), &values)
}

/// Returns the choices of operands that are batched: all; with `several`, also each alone, and of three all but each.
pub fn patterns(count: usize, several: bool) -> Vec<Vec<bool>> {
    let all = vec![true; count];
    if !several || count == 1 {
        return vec![all];
    }
    let one = |chosen: usize| move |operand: usize| operand == chosen;
    let alone = (0..count).map(|chosen| (0..count).map(one(chosen)).collect());
    let rest = (0..if count == 3 { 3 } else { 0 }).map(|chosen| (0..count).map(|operand| operand != chosen).collect());
    alone.chain(rest).chain([all]).collect()
}

/// One op, its operands for two examples, and which of them are batched.
struct Case<'a> {
    name: &'a str,
    run: &'a Run,
    examples: [Vec<Tensor>; 2],
    patterns: Vec<Vec<bool>>,
}

/// Chooses cases from the runs of an op: each run whose operands have new sizes, in several patterns; and each run
/// whose operands or results have a new element type.
fn cases(entries: &[&'static Entry]) -> Vec<Case<'static>> {
    let mut known = BTreeSet::new();
    let mut cases = Vec::new();
    for entry in entries.iter().filter(|entry| entry.no_batch.is_none()) {
        for run in entry.runs.iter().filter(|run| !run.operands.is_empty()) {
            let tensors = || run.operands.iter().chain(&run.expected);
            let other_sizes =
                known.insert(format!("{} {:?}", entry.name, tensors().map(Tensor::dims).collect::<Vec<_>>()));
            let mut other_dtypes = false;
            for (index, tensor) in tensors().enumerate() {
                other_dtypes |= known.insert(format!("{} {index} {}", entry.name, tensor.ty.dtype));
            }
            if other_sizes || other_dtypes {
                let examples = [run.operands.clone(), run.operands.iter().map(varied).collect()];
                let patterns = patterns(run.operands.len(), other_sizes);
                cases.push(Case { name: &entry.name, run, examples, patterns });
            }
        }
    }
    cases
}

pub fn stacked(examples: [&Tensor; 2]) -> Tensor {
    let values: Vec<f64> = examples.iter().flat_map(|example| example.values.iter().copied()).collect();
    Tensor::new(examples[0].ty.dtype, &[&[2], examples[0].dims()].concat(), &values)
}

/// The graph of one op.
pub fn single(op: &Op, operands: &[TensorType]) -> Graph {
    graph("single", operands, |builder, inputs| {
        builder.push(op.clone(), inputs).unwrap_or_else(|error| panic!("{error}")).to_vec()
    })
}

/// Whether each result of a batched op is batched, and where its examples must be found.
struct Batch<'a> {
    case: &'a Case<'a>,
    pattern: &'a [bool],
    batched: Vec<bool>,
}

/// Pushes the op over the batch, then over the second example; the first one's results are those of the table.
fn push_pattern<'a>(
    builder: &mut GraphBuilder,
    case: &'a Case<'a>,
    pattern: &'a [bool],
    [first, second, both]: [&[Value]; 3],
) -> (Batch<'a>, Vec<Value>) {
    let types: Vec<TensorType> = case.run.operands.iter().map(|operand| operand.ty.clone()).collect();
    let choose = |index: usize, batched: &[Value]| if pattern[index] { batched[index] } else { first[index] };
    let operand = |index| Batched { value: choose(index, both), batched: pattern[index] };
    let operands: Vec<Batched> = (0..pattern.len()).map(operand).collect();
    let results = inline(builder, &single(&case.run.op, &types), &operands, BatchAxis::new(2));
    let results = results.unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let example: Vec<Value> = (0..pattern.len()).map(|index| choose(index, second)).collect();
    let expected = builder.push(case.run.op.clone(), &example).expect("it has been accepted");
    assert_eq!(results.len(), expected.len(), "{}", case.name);
    let values = results.iter().map(|result| result.value).chain(expected).collect();
    (Batch { case, pattern, batched: results.iter().map(|result| result.batched).collect() }, values)
}

impl Batch<'_> {
    fn check(&self, found: &[Literal], second: &[Literal]) -> Vec<String> {
        let Batch { case, pattern, batched } = self;
        let mut problems = Vec::new();
        for (result, first) in case.run.expected.iter().enumerate() {
            let second = Tensor { ty: second[result].ty().clone(), values: second[result].to_f64_vec() };
            let what = format!("{}: {:?} of {:?} batched in {pattern:?}", case.name, case.run.op, types_of(case));
            if batched[result] {
                let both = stacked([first, &second]);
                problems.extend(compare(&what, &found[result], &both, case.run.tolerance).err());
            } else {
                problems.extend(compare(&what, &found[result], first, case.run.tolerance).err());
                problems.extend(compare(&what, &found[result], &second, case.run.tolerance).err());
            }
        }
        problems
    }
}

#[test]
fn batches_by_xla() {
    check_batches(&entries(), By::Xla);
}

/// Checks that `vmap` is a loop over examples.
pub fn check_batches(entries: &[&'static Entry], by: By) {
    let cases = cases(entries);
    check_by(
        by,
        "ops vmap",
        [40, 60],
        &cases,
        |case| is_interpreted(&case.run.op),
        |chunk| {
            // For each case the first example's operands, the second's, and both stacked.
            let inputs = |case: &&Case<'_>| {
                let [first, second] = &case.examples;
                let both = first.iter().zip(second).map(|(first, second)| stacked([first, second]));
                first.iter().chain(second).cloned().chain(both).collect::<Vec<Tensor>>()
            };
            let inputs: Vec<Tensor> = chunk.iter().flat_map(inputs).collect();
            let types: Vec<TensorType> = inputs.iter().map(|operand| operand.ty.clone()).collect();
            let mut batches = Vec::new();
            let graph = graph("batches", &types, |builder, mut inputs| {
                let mut outputs = Vec::new();
                for case in chunk {
                    let mut next = || {
                        let (own, rest) = inputs.split_at(case.run.operands.len());
                        inputs = rest;
                        own
                    };
                    let operands = [next(), next(), next()];
                    for pattern in &case.patterns {
                        let (batch, values) = push_pattern(builder, case, pattern, operands);
                        batches.push(batch);
                        outputs.extend(values);
                    }
                }
                outputs
            });
            let inputs: Vec<Literal> = inputs.iter().map(Tensor::literal).collect();
            let outputs = by.run(&graph, &inputs);
            let mut outputs = &outputs[..];
            let mut problems = Vec::new();
            for batch in &batches {
                let mut next = || {
                    let (own, rest) = outputs.split_at(batch.batched.len());
                    outputs = rest;
                    own
                };
                problems.extend(batch.check(next(), next()));
            }
            assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
        },
    );
}

fn types_of<'a>(case: &Case<'a>) -> Vec<&'a TensorType> {
    case.run.operands.iter().map(|operand| &operand.ty).collect()
}

/// An op that cannot be batched says so.
#[test]
fn ops_without_batching_rule_say_so() {
    for entry in entries() {
        let Some(message) = entry.no_batch else { continue };
        for Run { op, operands, .. } in &entry.runs {
            let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty.clone()).collect();
            let result = vmap(&single(op, &types), &vec![true; types.len()], BatchAxis::new(2));
            let error = result.map(drop).expect_err("no batching rule").to_string();
            assert!(error.contains(message), "{}: {error:?} has no {message:?}", entry.name);
        }
    }
}

/// Ops whose batch, for some choice of batched operands, is not the op itself with one more parallel factor.
const OTHERWISE: [&str; 7] = [
    // Operands have nothing to do with each other: those without the batch stay without.
    "Barrier",
    // Bounds without dimensions are repeated to all of the operand's once they differ.
    "Clamp",
    // Never: the batch joins the examples, the groups or the features that it has already.
    "Convolution",
    // With one batched operand, the batch does not come out in front.
    "DotGeneral",
    // With positions of their own, a gather and a scatter.
    "DynamicSlice",
    "DynamicUpdateSlice",
    // With values of their own, a choice.
    "Pad",
];

/// The node that a batched op is, if the op itself, repeated operands and constants are all there is.
fn only_node<'g>(graph: &'g Graph, variant: &str) -> Option<NodeRef<'g>> {
    let (same, rest): (Vec<NodeRef<'_>>, Vec<NodeRef<'_>>) =
        graph.nodes().partition(|node| node.op().variant() == variant);
    let [node] = same[..] else { return None };
    let prepares = |node: &NodeRef<'_>| matches!(node.op(), Op::BroadcastInDim(_) | Op::Splat(_));
    let is_all = rest.iter().all(prepares) && node.results().eq(graph.outputs().iter().copied());
    is_all.then_some(node)
}

#[test]
fn the_factor_rule_of_a_batch_is_the_batched_factor_rule() {
    const SIZE: usize = 7;
    let (mut compared, mut otherwise, mut all) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for case in cases(&entries()) {
        let (op, variant, types) = (&case.run.op, case.run.op.variant(), types_of(&case));
        let Some(primitive) = op.as_primitive() else { continue };
        all.insert(variant);
        let results = op.infer(&types).expect("it has been accepted");
        let rule = primitive.factors(&types, &results.iter().collect::<Vec<_>>());
        let single = single(op, &types.iter().map(|&ty| ty.clone()).collect::<Vec<_>>());
        for pattern in &case.patterns {
            let (graph, _) = vmap(&single, pattern, BatchAxis::new(SIZE)).unwrap_or_else(|error| panic!("{error}"));
            let node = only_node(&graph, variant).filter(|node| {
                let grown = |(example, &value): (&&TensorType, &Value)| graph.ty(value).rank() > example.rank() + 1;
                let is_independent = variant == "Barrier" && types.len() > 1;
                !is_independent && !types.iter().zip(node.operands()).any(grown)
            });
            let Some(node) = node else {
                otherwise.insert(variant);
                continue;
            };
            let operands: Vec<&TensorType> = node.operands().iter().map(|&value| graph.ty(value)).collect();
            let results: Vec<&TensorType> = node.results().map(|value| graph.ty(value)).collect();
            let found = node.op().as_primitive().expect("the same op").factors(&operands, &results);
            // The operands that have the batch in the end decide.
            let batched: Vec<bool> =
                types.iter().zip(&operands).map(|(example, ty)| ty.rank() > example.rank()).collect();
            let (found, expected) = (canonical(&found), canonical(&rule.batched(SIZE, &batched)));
            assert_eq!(found, expected, "{}: {op:?} of {types:?} batched in {pattern:?}", case.name);
            compared.insert(variant);
        }
    }
    all.remove("Convolution");
    assert_eq!(compared, all, "every op with operands, but the one that never is, is itself in some pattern");
    assert_eq!(otherwise, OTHERWISE.into_iter().collect());
}
