//! The table of ops in `docs/ops.md`, made from the ops themselves.

use std::collections::BTreeSet;
use std::fmt::Write;

use meshloom::autodiff::{Tape, jvp};
use meshloom::batching::{BatchAxis, vmap};
use meshloom::ir::{DType, Graph, GraphBuilder, PortInfo, TensorType, Value};

use crate::batching::single;
use crate::harness::*;
use crate::table::entries;

const HEAD: &str = "\
# Ops

Made by `tests/ops/docs.rs` from the ops themselves; `MESHLOOM_UPDATE=1 cargo test --test ops docs` writes it.

- vjp, jvp, vmap: whether the op has a rule for reverse mode, forward mode and batching; `-` where nothing it takes or
  gives is floating-point.
- sharding: the factor rule of an example, as einsum writes it: a letter for each loop of the op, those without a remark
  parallel, then the others by what splitting them takes: a reduction (`sum`, `max`, ..) of partial results, a
  `permutation` between devices, or `replicated` operands. Ops with regions have data-flow edges instead.
- dtypes: element types of the first operand (of the result for an op without operands) in the tests.

| op | vjp | jvp | vmap | sharding of an example | dtypes |
|---|---|---|---|---|---|
";

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
    for entry in entries() {
        let [vjp, jvp] = derivatives(&entry);
        let (name, batching) = (entry.name.replace('-', "_"), batching(&entry));
        let (sharding, dtypes) = (sharding(&entry), dtypes(&entry));
        writeln!(table, "| {name} | {vjp} | {jvp} | {batching} | {sharding} | {dtypes} |").expect("a string takes all");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/ops.md");
    if std::env::var_os("MESHLOOM_UPDATE").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).expect("the folder");
        std::fs::write(path, &table).expect("the file");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == table, "docs/ops.md is not what the ops say; MESHLOOM_UPDATE=1 writes it");
}
