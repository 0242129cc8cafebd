//! Factor rules: their sizes, and what each parallel and reduction factor claims, by running the op on halves.

use std::collections::BTreeSet;

use meshloom::ir::{Literal, TensorType, Value};
use meshloom::ops::*;

use crate::check::compare;
use crate::computer::{By, check_by, is_interpreted};
use crate::harness::*;
use crate::table::entries;

/// The rule with its factors in the order in which dimensions run over them, and without tensors that have no
/// dimensions.
pub fn canonical(rule: &FactorRule) -> FactorRule {
    let mut order: Vec<FactorIndex> = Vec::new();
    let mut renumber = |tensors: &[TensorFactors]| -> Vec<TensorFactors> {
        let mut number = |&factor: &FactorIndex| {
            let known = order.iter().position(|&other| other == factor);
            known.unwrap_or_else(|| {
                order.push(factor);
                order.len() - 1
            }) as FactorIndex
        };
        let tensors = tensors.iter().filter(|dims| !dims.is_empty());
        tensors.map(|dims| dims.iter().map(|dim| dim.iter().map(&mut number).collect()).collect()).collect()
    };
    let (operands, results) = (renumber(&rule.operands), renumber(&rule.results));
    let factors = order.iter().map(|&factor| rule.factors[factor as usize]).collect();
    FactorRule {
        factors,
        operands: operands.into(),
        results: results.into(),
        initial: rule.initial,
        separate: rule.separate,
    }
}

fn rule_of(run: &Run) -> Option<FactorRule> {
    let operands: Vec<&TensorType> = run.operands.iter().map(|operand| &operand.ty).collect();
    let results: Vec<&TensorType> = run.expected.iter().map(|result| &result.ty).collect();
    Some(run.op.as_primitive()?.factors(&operands, &results))
}

/// A run of each op and sizes, with the rule: the element type plays no part in it.
pub fn rules(entries: &[&'static Entry]) -> Vec<(&'static str, &'static Run, FactorRule)> {
    let mut known = BTreeSet::new();
    let mut rules = Vec::new();
    for (entry, run) in entries.iter().flat_map(|entry| entry.runs.iter().map(move |run| (entry, run))) {
        let Some(rule) = rule_of(run) else { continue };
        let sizes: Vec<&[usize]> = run.operands.iter().chain(&run.expected).map(Tensor::dims).collect();
        if known.insert(format!("{} {sizes:?} {rule}", entry.name)) {
            rules.push((entry.name.as_str(), run, rule));
        }
    }
    rules
}

#[test]
fn sizes_of_factors_multiply_to_the_dimensions() {
    let entries = entries();
    for (name, run, rule) in rules(&entries) {
        let check = |what: &str, tensors: &[Tensor], factors: &[TensorFactors]| {
            assert_eq!(tensors.len(), factors.len(), "{name}: {rule} has every {what}");
            for (tensor, factors) in tensors.iter().zip(factors) {
                for (dim, (factors, &size)) in factors.iter().zip(tensor.dims()).enumerate() {
                    let own = || factors.iter().map(|&factor| rule.factors[factor as usize]);
                    let product: usize = own().map(|factor| factor.size).product();
                    let permutes = own().any(|factor| factor.kind == FactorKind::Permutation);
                    let fits = if permutes { product > 0 && size % product == 0 } else { product == size };
                    assert!(fits, "{name}: the factors of dimension {dim} of a {what}, of size {size}, in {rule}");
                }
                // A dimension may do without factors only if it has one element, as a product of none says.
            }
        };
        check("operand", &run.operands, &rule.operands);
        check("result", &run.expected, &rule.results);
        for index in 0..rule.factors.len() as FactorIndex {
            let runs_over = |tensor: &TensorFactors| tensor.iter().flatten().filter(|&&factor| factor == index).count();
            let counts: Vec<usize> = rule.operands.iter().chain(&rule.results).map(runs_over).collect();
            assert!(counts.iter().all(|&count| count <= 1), "{name}: {rule} has a factor twice in one tensor");
            assert!(counts.contains(&1), "{name}: {rule} has a factor that nothing runs over");
        }
    }
}

/// Positions of a tensor's elements along one factor, which must be the tensor's: for each element, its place within
/// the factor, and its position in a tensor that has only one iteration of it.
fn half_of(
    tensor: &Tensor,
    dims: &TensorFactors,
    rule: &FactorRule,
    factor: FactorIndex,
    kept: std::ops::Range<usize>,
) -> (Vec<usize>, Vec<usize>) {
    let mut sizes = tensor.dims().to_vec();
    let mut positions = Vec::new();
    for (dim, factors) in dims.iter().enumerate() {
        if factors.contains(&factor) {
            sizes[dim] = sizes[dim] / rule.factors[factor as usize].size * kept.len();
        }
    }
    for (position, index) in indices(tensor.dims()).iter().enumerate() {
        let inside = index.iter().zip(dims).all(|(&index, factors)| {
            let mut rest = index;
            // Minor to major.
            factors.iter().rev().all(|&own| {
                let size = rule.factors[own as usize].size;
                let digit = rest % size;
                rest /= size;
                own != factor || kept.contains(&digit)
            })
        });
        if inside {
            positions.push(position);
        }
    }
    (sizes, positions)
}

/// Whether queries are cut: their places are then no longer their indices.
fn parts_of_queries(parts: &[Tensor], operands: &[Tensor]) -> bool {
    parts[5].dims().last() != operands[5].dims().last()
}

/// The op as it must be to take and give parts: attributes that carry sizes are those of the parts.
fn localized(op: &Op, operands: &[Tensor], parts: &[Tensor], results: &[Vec<usize>]) -> Op {
    let resized = |dim: usize| operands[0].dims()[dim] != parts[0].dims()[dim];
    match op.clone() {
        Op::Attention(op) if parts_of_queries(parts, operands) => Attention(op.0.of_parts()).into(),
        Op::AttentionGradient(op) if parts_of_queries(parts, operands) => AttentionGradient(op.0.of_parts()).into(),
        Op::BroadcastInDim(op) => BroadcastInDim { dims: results[0][..].into(), ..op }.into(),
        Op::Convolution(mut op) => {
            op.feature_groups = parts[0].dims()[1] / parts[1].dims()[1].max(1);
            op.into()
        }
        Op::DynamicSlice(_) => DynamicSlice { sizes: results[0][..].into() }.into(),
        Op::Gather(mut op) => {
            // Batch dimensions are cut too, but the slice keeps one of each.
            for (dim, size) in op.slice_sizes.iter_mut().enumerate().filter(|(dim, size)| resized(*dim) && **size > 1) {
                *size = parts[0].dims()[dim];
            }
            op.into()
        }
        Op::Iota(op) => Iota { ty: TensorType::new(op.ty.dtype, &results[0]), ..op }.into(),
        Op::Reshape(_) => Reshape { dims: results[0][..].into() }.into(),
        Op::Slice(mut op) => {
            for dim in (0..op.ranges.len()).filter(|&dim| resized(dim)) {
                op.ranges[dim].limit = parts[0].dims()[dim];
            }
            op.into()
        }
        Op::Splat(op) => Splat::new(TensorType::new(op.ty.dtype, &results[0]), op.number()).into(),
        op => op,
    }
}

/// A run of one op cut in two along a factor.
struct Cut<'a> {
    name: &'a str,
    run: &'a Run,
    rule: FactorRule,
    factor: FactorIndex,
    /// For each half: the op, its operands, and for each result which elements of the whole it should be.
    halves: [(Op, Vec<Tensor>, Vec<Vec<usize>>); 2],
}

impl<'a> Cut<'a> {
    fn new(name: &'a str, run: &'a Run, rule: &FactorRule, factor: FactorIndex) -> Cut<'a> {
        let size = rule.factors[factor as usize].size;
        let half = |kept: std::ops::Range<usize>| {
            let is_first = kept.start == 0;
            let mut parts = Vec::new();
            for (index, (operand, dims)) in run.operands.iter().zip(&rule.operands).enumerate() {
                let (sizes, positions) = half_of(operand, dims, rule, factor, kept.clone());
                let mut values: Vec<f64> = positions.iter().map(|&position| operand.values[position]).collect();
                if let (FactorKind::Reduction(kind), false) = (rule.factors[factor as usize].kind, is_first)
                    && rule.initial == Some(index)
                {
                    values.fill(identity(kind));
                }
                parts.push(Tensor::new(operand.ty.dtype, &sizes, &values));
            }
            let results: Vec<(Vec<usize>, Vec<usize>)> = run
                .expected
                .iter()
                .zip(&rule.results)
                .map(|(result, dims)| half_of(result, dims, rule, factor, kept.clone()))
                .collect();
            let (sizes, positions): (Vec<_>, Vec<_>) = results.into_iter().unzip();
            (localized(&run.op, &run.operands, &parts, &sizes), parts, positions)
        };
        let halves = [half(0..size / 2), half(size / 2..size)];
        Cut { name, run, rule: rule.clone(), factor, halves }
    }

    /// Puts the results of the halves together; says what does not fit.
    fn check(&self, found: &[Vec<Literal>; 2]) -> Result<(), String> {
        let Cut { name, run, rule, factor, .. } = self;
        for (result, expected) in run.expected.iter().enumerate() {
            let what = format!("{name}: {:?} with {rule}, cut along factor {factor}", run.op);
            let halves = [found[0][result].to_f64_vec(), found[1][result].to_f64_vec()];
            let mut whole: Vec<Option<f64>> = vec![None; expected.values.len()];
            for (half, values) in halves.iter().enumerate() {
                let positions = &self.halves[half].2[result];
                if positions.len() != values.len() {
                    return Err(format!(
                        "{what}: half {half} has {} elements instead of {}",
                        values.len(),
                        positions.len()
                    ));
                }
                for (&position, &value) in positions.iter().zip(values) {
                    whole[position] = Some(match (whole[position], rule.factors[*factor as usize].kind) {
                        (None, _) => value,
                        (Some(first), FactorKind::Reduction(kind)) => combine(kind, first, value),
                        // A result without the factor is the same on every device.
                        (Some(first), _) if first == value || first.is_nan() && value.is_nan() => value,
                        (Some(first), _) => return Err(format!("{what}: the halves have {first} and {value}")),
                    });
                }
            }
            let Some(whole) = whole.into_iter().collect::<Option<Vec<f64>>>() else {
                return Err(format!("{what}: the halves do not make the whole"));
            };
            let whole = Tensor::new(expected.ty.dtype, expected.dims(), &whole).literal();
            compare(&what, &whole, expected, run.tolerance)?;
        }
        Ok(())
    }
}

fn combine(kind: ReduceKind, left: f64, right: f64) -> f64 {
    match kind {
        ReduceKind::And => (left as i64 & right as i64) as f64,
        ReduceKind::Max => left.max(right),
        ReduceKind::Min => left.min(right),
        ReduceKind::Or => (left as i64 | right as i64) as f64,
        ReduceKind::Prod => left * right,
        ReduceKind::Sum => left + right,
    }
}

/// The element that changes nothing; infinite bounds become the type's own.
fn identity(kind: ReduceKind) -> f64 {
    match kind {
        ReduceKind::And | ReduceKind::Min => f64::INFINITY,
        ReduceKind::Max => f64::NEG_INFINITY,
        ReduceKind::Or | ReduceKind::Sum => 0.0,
        ReduceKind::Prod => 1.0,
    }
}

/// Ops none of whose factors is cut here, and why.
const UNCUT: [&str; 2] = [
    // Its elements are written down; there is nothing to compute in parts.
    "Constant",
    // Nothing is known of its target.
    "CustomCall",
];

/// Cuts every run of an op along each factor of its rule that allows it.
fn cuts(entries: &[&'static Entry]) -> Vec<Cut<'static>> {
    let mut cuts = Vec::new();
    for (name, run, rule) in rules(entries) {
        for (index, factor) in (0..).zip(&rule.factors) {
            if matches!(factor.kind, FactorKind::Parallel | FactorKind::Reduction(_)) && factor.size >= 2 {
                cuts.push(Cut::new(name, run, &rule, index));
            }
        }
    }
    cuts
}

#[test]
fn halves_by_xla() {
    let entries = entries();
    let all: BTreeSet<&str> = rules(&entries).iter().map(|(_, run, _)| run.op.variant()).collect();
    let cut: BTreeSet<&str> = cuts(&entries).iter().map(|cut| cut.run.op.variant()).collect();
    assert!(all.difference(&cut).eq(&UNCUT), "{:?}", all.difference(&cut));
    check_halves(&entries, By::Xla);
}

/// Checks that an op on halves gives the halves of its results.
pub fn check_halves(entries: &[&'static Entry], by: By) {
    let cuts = cuts(entries);
    check_by(
        by,
        "ops halves",
        [40, 60],
        &cuts,
        |cut| is_interpreted(&cut.run.op),
        |chunk| {
            let parts: Vec<&Tensor> = chunk.iter().flat_map(|cut| cut.halves.iter().flat_map(|half| &half.1)).collect();
            let types: Vec<TensorType> = parts.iter().map(|part| part.ty.clone()).collect();
            let graph = graph("halves", &types, |builder, mut inputs| {
                let mut outputs: Vec<Value> = Vec::new();
                for (cut, (op, parts, _)) in chunk.iter().flat_map(|cut| cut.halves.iter().map(move |half| (cut, half)))
                {
                    let (operands, rest) = inputs.split_at(parts.len());
                    inputs = rest;
                    let results = builder.push(op.clone(), operands);
                    let refused =
                        |error| panic!("{}: with {}, cut along factor {}: {error}", cut.name, cut.rule, cut.factor);
                    outputs.extend(results.unwrap_or_else(refused));
                }
                outputs
            });
            let inputs: Vec<Literal> = parts.iter().map(|part| part.literal()).collect();
            let mut outputs = by.run(&graph, &inputs).into_iter();
            let mut problems = Vec::new();
            for cut in chunk {
                let mut half = || outputs.by_ref().take(cut.run.expected.len()).collect::<Vec<Literal>>();
                problems.extend(cut.check(&[half(), half()]).err());
            }
            assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
        },
    );
}
