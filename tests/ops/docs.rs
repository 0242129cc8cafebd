//! The table of ops in `docs/ops.md`, made from the ops themselves.

use std::collections::BTreeSet;
use std::fmt::Write;

use meshloom::autodiff::{Tape, jvp};
use meshloom::batching::{BatchAxis, vmap};
use meshloom::ir::{DType, Graph, GraphBuilder, PortInfo, TensorType, Value};
use meshloom::ops::{FactorKind, FactorRule, Op, ReduceKind};

use crate::batching::single;
use crate::harness::*;
use crate::table::entries;

const HEAD: &str = "\
# Ops

`tests/ops/docs.rs` makes this page from the ops themselves; `MESHLOOM_UPDATE=1 cargo test --release --test ops docs` writes it.

- vjp, jvp, vmap: whether the op has a rule for reverse mode, forward mode and batching; `-` if it has no floating-point
  operand or result.
- sharding: the factor rule of an example in einsum notation, with a letter for each loop of the op. Loops without a
  remark are parallel; the end of this page explains the others. Ops with regions have data-flow edges instead.
- dtypes: the element types of the first operand (of the result, for an op without operands) in the tests.

| op | vjp | jvp | vmap | sharding of an example | dtypes |
|---|---|---|---|---|---|
";

/// The work that it takes to split each kind of loop, in the words of the table.
const SPLITTING: [(&str, &str); 6] = [
    ("sum", "Each device adds up its part. The result is unreduced until something needs the sum."),
    (
        "reduction",
        "Each device combines its part by max, min, product, and, or; the results are combined at once, by an all-reduce.",
    ),
    (
        "permutation",
        "Each device computes its part of the result. It receives pieces of other parts by collective-permutes, or by an all-gather if that sends less.",
    ),
    ("gathered", "Parts are joined on every device: the op is about the whole, as a query sees all keys."),
    (
        "indexed",
        "Positions are shifted into the device's own part. Positions elsewhere give zero or are dropped. If the loop is absent from the result, the result is unreduced; otherwise it is split like the operand.",
    ),
    (
        "replicated",
        "Every device needs the whole dimension. An operand that is split along it is gathered, which is reported as a fallback or refused.",
    ),
];

const TAIL: &str = "
## What splitting takes

This table says how a loop that is not parallel is split. [partitioning.md](partitioning.md) says how the loops to split are chosen.

| loop | split over devices |
|---|---|
";

const LOOPS: &str = "
These ops have such a loop in one of the tests' examples. Attributes and sizes decide the kind, so an op may occur more than once.

";

/// The row of [`SPLITTING`] that a kind belongs to; none for what is parallel.
fn splitting(kind: FactorKind) -> Option<&'static str> {
    match kind {
        FactorKind::Parallel => None,
        FactorKind::Reduction(ReduceKind::Sum) => Some("sum"),
        FactorKind::Reduction(_) => Some("reduction"),
        FactorKind::Permutation => Some("permutation"),
        FactorKind::Indexed => Some("indexed"),
        FactorKind::Replicated => Some("replicated"),
        FactorKind::Gathered => Some("gathered"),
    }
}

/// The factor rules of the op's examples.
fn rules(entry: &Entry) -> Vec<FactorRule> {
    let types = |tensors: &[Tensor]| tensors.iter().map(|tensor| tensor.ty.clone()).collect::<Vec<_>>();
    let accepts = entry.accepts.iter().map(|accept| (&accept.op, accept.operands.clone(), accept.results.clone()));
    let runs = entry.runs.iter().map(|run| (&run.op, types(&run.operands), types(&run.expected)));
    let rule = |(op, operands, results): (&Op, Vec<TensorType>, Vec<TensorType>)| {
        let primitive = op.as_primitive()?;
        Some(primitive.factors(&operands.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>()))
    };
    accepts.chain(runs).filter_map(rule).collect()
}

/// Whether any example of the op has a loop of that row that an operand runs over.
fn has_loop(entry: &Entry, row: &str) -> bool {
    rules(entry).iter().any(|rule| {
        let mut factors = rule.operands.iter().flatten().flatten().map(|&factor| rule.factors[factor as usize]);
        factors.any(|factor| factor.size > 1 && splitting(factor.kind) == Some(row))
    })
}

fn title(entry: &Entry) -> String {
    entry.name.replace('-', "_")
}

fn mark<T, E>(result: Result<T, E>) -> &'static str {
    if result.is_ok() { "yes" } else { "no" }
}

/// The first signature with floating-point operands and results: what can be differentiated.
fn differentiable(entry: &Entry) -> Option<Graph> {
    let signatures = entry.accepts.iter().map(|accept| (&accept.op, accept.operands.clone()));
    let types = |operands: &[Tensor]| operands.iter().map(|operand| operand.ty.clone()).collect();
    let runs = entry.runs.iter().map(|run| (&run.op, types(&run.operands)));
    let refusals = entry.refusals.iter().map(|refusal| (&refusal.op, refusal.operands.clone()));
    let graphs = signatures.chain(runs).chain(refusals).map(|(op, operands)| single(op, &operands));
    let mut graphs = graphs.filter(|graph| {
        let is_float = |ty: &TensorType| ty.dtype.is_float();
        graph.input_types().any(is_float) && graph.output_types().any(is_float)
    });
    graphs.next()
}

/// Whether gradients flow back through the op, and tangents forwards.
fn derivatives(entry: &Entry) -> [&'static str; 2] {
    let Some(example) = differentiable(entry) else { return ["-"; 2] };
    let mut builder = GraphBuilder::new("derivatives");
    let inputs = |builder: &mut GraphBuilder, types: Vec<TensorType>| -> Vec<Value> {
        types.into_iter().map(|ty| builder.input(ty, PortInfo::default())).collect()
    };
    let (types, results): (Vec<_>, Vec<_>) =
        (example.input_types().cloned().collect(), example.output_types().cloned().collect());
    let is_float = |types: &[TensorType]| types.iter().map(|ty| ty.dtype.is_float()).collect::<Vec<bool>>();
    let (active, wanted) = (is_float(&types), is_float(&results));
    let some = |values: &[Value], flags: &[bool]| -> Vec<Option<Value>> {
        values.iter().zip(flags).map(|(&value, &flag)| flag.then_some(value)).collect()
    };
    let (operands, tangents) = (inputs(&mut builder, types.clone()), inputs(&mut builder, types));
    let cotangents = inputs(&mut builder, results);
    let pulled = Tape::record(&mut builder, &example, &operands, &active, &wanted)
        .and_then(|tape| tape.pullback(&mut builder, &some(&cotangents, &wanted)));
    let pushed = jvp(&mut builder, &example, &operands, &some(&tangents, &active));
    [mark(pulled), mark(pushed)]
}

fn batching(entry: &Entry) -> &'static str {
    let Accept { op, operands, .. } = &entry.accepts[0];
    if operands.is_empty() {
        // The same for all examples.
        return "yes";
    }
    mark(vmap(&single(op, operands), &vec![true; operands.len()], BatchAxis::new(2)))
}

fn sharding(entry: &Entry) -> String {
    let Accept { op, operands, results } = &entry.accepts[0];
    let Some(primitive) = op.as_primitive() else { return "by region".to_owned() };
    let rule = primitive.factors(&operands.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>());
    format!("`{rule}`")
}

fn dtypes(entry: &Entry) -> String {
    let accepted = entry.accepts.iter().filter_map(|accept| accept.operands.first().or(accept.results.first()));
    let run = entry.runs.iter().filter_map(|run| run.operands.first().or(run.expected.first()));
    let found: BTreeSet<DType> = accepted.chain(run.map(|tensor| &tensor.ty)).map(|ty| ty.dtype).collect();
    if found.len() == DType::ALL.len() {
        return "all".to_owned();
    }
    found.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_table_of_ops_is_up_to_date() {
    let mut table = HEAD.to_owned();
    let entries = entries();
    for entry in &entries {
        let [vjp, jvp] = derivatives(entry);
        let (name, batching) = (title(entry), batching(entry));
        let (sharding, dtypes) = (sharding(entry), dtypes(entry));
        writeln!(table, "| {name} | {vjp} | {jvp} | {batching} | {sharding} | {dtypes} |").expect("a string takes all");
    }
    table.push_str(TAIL);
    for (row, meaning) in SPLITTING {
        writeln!(table, "| {row} | {meaning} |").expect("a string takes all");
    }
    table.push_str(LOOPS);
    for (row, _) in SPLITTING {
        let ops: Vec<String> = entries.iter().filter(|entry| has_loop(entry, row)).map(|entry| title(entry)).collect();
        writeln!(table, "- {row}: {}", ops.join(", ")).expect("a string takes all");
    }
    let path = support::path("docs/ops.md");
    if std::env::var_os("MESHLOOM_UPDATE").is_some() {
        std::fs::create_dir_all(support::path("docs")).expect("the folder");
        std::fs::write(&path, &table).expect("the file");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == table, "docs/ops.md is not what the ops say; MESHLOOM_UPDATE=1 writes it");
}
