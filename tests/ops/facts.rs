//! Facts held against what the ops do.

use meshloom::ir::{DType, Literal, TensorType, Value};
use meshloom::ops::*;

use crate::computer::{By, check_by, is_interpreted};
use crate::factors::rules;
use crate::harness::*;
use crate::table::entries;

#[test]
fn elementwise_ops_have_every_dimension_in_parallel() {
    let entries = entries();
    for (name, run, rule) in rules(&entries) {
        if run.op.facts().class == Class::Elementwise {
            let types = |tensors: &[Tensor]| tensors.iter().map(|tensor| tensor.ty.clone()).collect::<Vec<_>>();
            let (operands, results) = (types(&run.operands), types(&run.expected));
            let refs = |types| Vec::<&TensorType>::from_iter(types);
            assert_eq!(rule, FactorRule::pointwise(&refs(&operands), &refs(&results)), "{name}");
            assert_eq!(results.len(), 1, "{name}");
        }
    }
}

#[test]
fn picked_elements_are_those_of_operands() {
    let entries = entries();
    for (entry, run) in entries.iter().flat_map(|entry| entry.runs.iter().map(move |run| (entry, run))) {
        let facts = run.op.facts();
        let Some(picked) = facts.picks else { continue };
        let picked = picked.of(run.operands.len());
        let source: Vec<u64> =
            picked.iter().flat_map(|&index| &run.operands[index].values).map(|value| value.to_bits()).collect();
        for value in run.expected.iter().flat_map(|result| &result.values) {
            let found = value.is_nan() || source.contains(&value.to_bits());
            assert!(found, "{}: {value} is in no operand of {picked:?}", entry.name);
        }
    }
}

#[test]
fn ops_in_place_give_what_they_take_first() {
    let entries = entries();
    for run in entries.iter().flat_map(|entry| &entry.runs).filter(|run| run.op.facts().is_in_place) {
        assert_eq!(run.operands[0].ty, run.expected[0].ty, "{:?}", run.op);
    }
}

/// A run with other numbers for its floating-point operands, and what its results must be.
struct Claim<'a> {
    what: String,
    run: &'a Run,
    /// One list of operands for each execution.
    operands: Vec<Vec<Tensor>>,
    expected: Expected,
}

enum Expected {
    /// The results of the last execution are the sums of those of the first two.
    Sum,
    /// The result with this number is zero.
    Zero(usize),
}

/// Numbers from 1 to 5 that are sums of few powers of two.
fn numbers(tensor: &Tensor, seed: u64) -> Tensor {
    let mut random = Random(seed);
    Tensor::from_fn(tensor.ty.dtype, tensor.dims(), |_| 1.0 + (random.unit() * 32.0).floor() / 8.0)
}

fn claims<'a>(name: &str, run: &'a Run) -> Vec<Claim<'a>> {
    let facts = run.op.facts();
    let is_float = |tensor: &Tensor| tensor.ty.dtype.is_float();
    let base: Vec<Tensor> = run.operands.iter().map(|x| if is_float(x) { numbers(x, 1) } else { x.clone() }).collect();
    let floats: Vec<usize> = (0..base.len()).filter(|&index| is_float(&base[index])).collect();
    let count = base.len();
    let changed = |which: &[usize], change: &dyn Fn(&Tensor) -> Tensor| -> Vec<Tensor> {
        let new = |(index, x): (usize, &Tensor)| if which.contains(&index) { change(x) } else { x.clone() };
        base.iter().enumerate().map(new).collect()
    };
    let mut claims = Vec::new();
    // Linearity.
    let groups: Vec<Vec<usize>> = match facts.linear {
        Linear::No => Vec::new(),
        Linear::OfFloats(_) if !run.expected.iter().all(is_float) => Vec::new(),
        Linear::Together(which) | Linear::OfFloats(which) => vec![which.of(count).to_vec()],
        Linear::Each(which) => which.of(count).iter().map(|&index| vec![index]).collect(),
    };
    for group in groups.into_iter().filter(|group| group.iter().all(|index| floats.contains(index))) {
        let second = changed(&group, &|x| numbers(x, 2));
        let mut sum = base.clone();
        for &index in &group {
            let both = sum[index].values.iter_mut().zip(&second[index].values);
            both.for_each(|(value, other)| *value += other);
        }
        let what = format!("{name}: linear in {group:?}");
        claims.push(Claim { what, run, operands: vec![base.clone(), second, sum], expected: Expected::Sum });
    }
    // Zeros. All operands are zero at once too, except for a quotient, which is NaN if all are zero.
    let all = (floats.len() > 1 && !matches!(facts.linear, Linear::OfFloats(_))).then(|| floats.clone());
    let groups = floats.iter().map(|&index| vec![index]).chain(all);
    for group in groups {
        let zeros: Vec<bool> = (0..count).map(|index| group.contains(&index)).collect();
        for (result, expected) in run.expected.iter().enumerate() {
            if is_float(expected) && facts.is_zero(result, &zeros) {
                let operands = changed(&group, &|x| Tensor::from_fn(x.ty.dtype, x.dims(), |_| 0.0));
                let what = format!("{name}: result {result} is zero where operands {group:?} are");
                claims.push(Claim { what, run, operands: vec![operands], expected: Expected::Zero(result) });
            }
        }
    }
    claims
}

#[test]
fn claims_by_xla() {
    let entries = entries();
    let claims = all_claims(&entries);
    assert!(claims.len() > 100, "{} claims", claims.len());
    check_claims(&entries, By::Xla);
}

fn all_claims(entries: &[&'static Entry]) -> Vec<Claim<'static>> {
    let is_exact = |x: &Tensor| !x.ty.dtype.is_float() || matches!(x.ty.dtype, DType::F32 | DType::F64);
    rules(entries)
        .into_iter()
        .filter(|(_, run, _)| run.operands.iter().chain(&run.expected).all(is_exact))
        .flat_map(|(name, run, _)| claims(name, run))
        .collect()
}

/// Checks that ops are linear, and zero, where their facts say so.
pub fn check_claims(entries: &[&'static Entry], by: By) {
    check_by(
        by,
        "ops claims",
        [20, 40],
        &all_claims(entries),
        |claim| is_interpreted(&claim.run.op),
        |claims| {
            let operands: Vec<&Tensor> = claims.iter().flat_map(|claim| claim.operands.iter().flatten()).collect();
            let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty.clone()).collect();
            let graph = graph("claims", &types, |builder, mut inputs| {
                let mut outputs: Vec<Value> = Vec::new();
                for (claim, operands) in claims.iter().flat_map(|claim| claim.operands.iter().map(move |x| (claim, x)))
                {
                    let (own, rest) = inputs.split_at(operands.len());
                    inputs = rest;
                    outputs.extend(builder.push(claim.run.op.clone(), own).expect("it has been accepted"));
                }
                outputs
            });
            let inputs: Vec<Literal> = operands.iter().map(|operand| operand.literal()).collect();
            let found = by.run(&graph, &inputs);
            let mut found = found.iter().map(Literal::to_f64_vec);
            for claim in claims {
                let mut execution = || -> Vec<Vec<f64>> { found.by_ref().take(claim.run.expected.len()).collect() };
                let executions: Vec<Vec<Vec<f64>>> = claim.operands.iter().map(|_| execution()).collect();
                match claim.expected {
                    Expected::Zero(result) => {
                        assert!(
                            executions[0][result].iter().all(|&value| value == 0.0),
                            "{}: {executions:?}",
                            claim.what
                        );
                    }
                    Expected::Sum => {
                        let [first, second, sum] = [0, 1, 2].map(|index| executions[index].iter().flatten());
                        for ((first, second), sum) in first.zip(second).zip(sum) {
                            let error = (first + second - sum).abs();
                            assert!(
                                error <= 1e-5 * sum.abs().max(1.0),
                                "{}: {first} + {second} is not {sum}",
                                claim.what
                            );
                        }
                    }
                }
            }
        },
    );
}
