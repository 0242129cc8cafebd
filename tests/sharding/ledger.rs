//! Tests of the ledger of collectives and the memory of a program, against counts by hand and XLA's figures.

use meshloom::Error;
use meshloom::analysis::{Devices, collectives};
use meshloom::compile::{LowerOptions, Lowered, PartitionMode, lower};
use meshloom::emit::{EmitOptions, emit};
use meshloom::ir::{DType, Graph, TensorType};
use meshloom::ops::*;
use meshloom::partition::{Amount, CollectiveKind, Ledger, LedgerError};
use meshloom::sharding::{RuleSets, Rules};
use meshloom::trace::{Function, TensorSpec, scope};
use support::cases::{cases, every_case};
use support::configs::explicit_step;
use support::eight_devices::{client, compile};
use support::local_graph::*;
use support::plugins::cpu_clients;
use support::programs::of_two_operands;

const ROWS: usize = 16;

#[test]
fn several_operands_are_as_many_single_ones() {
    let mesh = mesh("a=2,b=4");
    let (together, apart) = (of_two_operands(&mesh, true), of_two_operands(&mesh, false));
    let plugins = if every_case("sharding plugins") { cpu_clients() } else { &[("the preferred plugin", client())] };
    for (name, client) in plugins {
        assert_eq!(run(client, &together, &mesh), run(client, &apart, &mesh), "{name}");
    }
    let (together, apart) = (Ledger::of(&together, &mesh), Ledger::of(&apart, &mesh));
    assert_eq!((together.count(), apart.count()), (Ok(4), Ok(8)));
    assert_eq!(together.operands_moved().unwrap(), 8);
    assert_eq!(together.bytes(), apart.bytes());
    assert_eq!(together.moved_bytes(), apart.moved_bytes());
}

#[test]
fn what_several_operands_must_have_in_common() {
    let mesh = mesh("a=8");
    let group = group(&mesh, &["a"]);
    let whole = TensorType::new(DType::S32, &[8]);
    let check = |op: Op, operands: &[&TensorType], expected: &str| {
        assert_eq!(op.infer(operands).expect_err(expected).to_string(), expected);
    };
    let dtype = "the element type of operand 1 must be f32, found s32; convert it with `.convert(..)`";
    let none = "expected 1 operand, found 0";
    for op in [
        Op::from(AllGather { group: group.clone(), dim: 0 }),
        AllReduce { group: group.clone(), kind: ReduceKind::Sum }.into(),
        ReduceScatter { group: group.clone(), dim: 0 }.into(),
    ] {
        check(op.clone(), &[&f32s(&[8]), &whole], dtype);
        check(op, &[], none);
    }
    check(
        ReduceScatter { group, dim: 0 }.into(),
        &[&f32s(&[8]), &f32s(&[9])],
        "dimension 0 of size 9 cannot be cut into 8 parts",
    );
}

/// In a scan of 3, a scan of 5: a gather. In a branch: an all-reduce. In a while: a permute. A function with a
/// reduce-scatter is called twice.
fn nested() -> Graph {
    let text = r#"mesh "a=4,b=2"
nested(%0: f32[8], %1: pred[]) {
  %2 = call %0 @0 : f32[4]
  %3 = scan %0 {length=3, carries=1} @1 : f32[8]
  %4 = cond %1, %3 @2 @3 : f32[8]
  %5 = while %4 @4 @5 : f32[8]
  %6 = call %5 @0 : f32[4]
  return %2, %6
}

@0 function(%0: f32[8]) {
  %1 = reduce-scatter %0 {axes=[b] of 2, dim=0} : f32[4]
  return %1
}

@1 outer(%0: f32[8]) {
  %1 = scan %0 {length=5, carries=1} @6 : f32[8]
  return %1
}

@2 first(%0: f32[8]) {
  return %0
}

@3 second(%0: f32[8]) {
  %1 = all-reduce %0 {axes=[b] of 2, add} : f32[8]
  return %1
}

@4 condition(%0: f32[8]) {
  %1 = splat 0 : pred[]
  return %1
}

@5 body(%0: f32[8]) {
  %1 = collective-permute %0 {axes=[b] of 2, pairs=[0->1, 1->0]} : f32[8]
  return %1
}

@6 inner(%0: f32[8]) {
  %1 = all-gather %0 {axes=[a] of 4, dim=0} : f32[32]
  return %0
}
"#;
    Graph::from_text(text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn counts_follow_the_loops() {
    let mesh = mesh("a=4,b=2");
    let ledger = Ledger::of(&nested(), &mesh);
    let gathers = ledger.over("a");
    assert_eq!(gathers.count(), Ok(1));
    assert_eq!(gathers.executions().unwrap(), 15);
    // Each of 4 devices passes on 3 parts of 8 numbers.
    assert_eq!(
        (gathers.bytes().unwrap(), gathers.moved_bytes().unwrap()),
        (Amount::Exactly(15 * 32), Amount::Exactly(15 * 96))
    );
    let reduce = ledger.kind(CollectiveKind::AllReduce);
    assert_eq!((reduce.executions(), reduce.moved_bytes()), (Ok(Amount::AtMost(1)), Ok(Amount::AtMost(32))));
    let permute = ledger.kind(CollectiveKind::CollectivePermute);
    assert_eq!((permute.executions(), permute.bytes()), (Ok(Amount::Unknown), Ok(Amount::Unknown)));
    assert!(permute.executions().unwrap() != 1);
    let scatter = ledger.kind(CollectiveKind::ReduceScatter);
    assert_eq!((scatter.count(), scatter.outside_loops().count()), (Ok(2), Ok(2)));
    assert_eq!(scatter.moved_bytes().unwrap(), 2 * 16);
    assert_eq!(ledger.inside_loops().count(), Ok(2));
    assert_eq!(ledger.iter().unwrap().map(|entry| entry.loop_depth).collect::<Vec<_>>(), [0, 2, 0, 1, 0]);
    // A function is emitted once, at its first call, and its instruction keeps its name.
    let names: Vec<&str> = ledger.iter().unwrap().map(|entry| entry.name.as_str()).collect();
    let expected = ["reduce-scatter.1", "all-gather.2", "all-reduce.3", "collective-permute.4", "reduce-scatter.1"];
    assert_eq!(names, expected);
}

/// Entries have the names of the instructions in the module.
#[test]
fn names_are_the_modules() {
    let mesh = mesh("a=4,b=2");
    let graph = nested();
    let options = EmitOptions { mesh: Some(&mesh), partitioned: true, ..EmitOptions::default() };
    let module = emit(&graph, options).expect("a module").decode().expect("a module");
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let mut emitted: Vec<&str> =
        instructions.filter(|instruction| instruction.channel_id > 0).map(|found| found.name.as_str()).collect();
    let ledger = Ledger::of(&graph, &mesh);
    let mut names: Vec<&str> = ledger.iter().unwrap().map(|entry| entry.name.as_str()).collect();
    emitted.sort_unstable();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, emitted);
}

fn sharded(partition: PartitionMode) -> Lowered {
    let rules: &[(&str, &[&str])] = &[("rows", &["data"])];
    let rules = RuleSets::uniform(Rules::from_pairs(rules).unwrap());
    let spec = TensorSpec::new(DType::F32, [ROWS, 4]).with_axes(&["rows", ""]);
    let function = Function::trace("total", spec, |x| scope("head", || scope("loss", || x.square().sum(..)))).unwrap();
    let mesh = mesh("data=8");
    let options = LowerOptions { sharding: Some((&mesh, &rules)), partition, ..LowerOptions::default() };
    lower(function.graph(), &options).unwrap()
}

#[test]
fn unknown_names_are_errors() {
    let ledger = sharded(PartitionMode::Explicit).collectives();
    assert_eq!(ledger.over("data").count(), Ok(1));
    assert_eq!(ledger.in_scope("loss").count(), Ok(1));
    assert_eq!(ledger.in_scope("head/loss").forward().count(), Ok(1));
    assert_eq!(ledger.in_scope("head").backward().count(), Ok(0));
    assert_eq!(ledger.over_exactly(&["data"]).kind(CollectiveKind::AllReduce).bytes().unwrap(), 4);
    let check = |ledger: &Ledger, expected: &str| {
        assert_eq!(ledger.count().expect_err(expected).to_string(), expected);
        assert_eq!(ledger.inside_loops().over("data").moved_bytes().expect_err(expected).to_string(), expected);
        assert_eq!(ledger.to_string(), expected);
        assert!(serde_json::to_string(ledger).is_err());
    };
    check(&ledger.over("dat"), "the mesh \"data=8\" has no axis \"dat\" (did you mean \"data\"?)");
    check(&ledger.over_any_of(&["data", "fsdp"]), "the mesh \"data=8\" has no axis \"fsdp\"");
    check(&ledger.in_scope("los"), "no node of the program is in a scope \"los\" (did you mean \"loss\"?)");
    let by_xla = sharded(PartitionMode::GSPMD);
    let expected = "XLA partitions this program: what it needs is known once it is compiled; use partition mode \
                    \"explicit\", or read the compiled module";
    check(&by_xla.collectives(), expected);
    assert!(matches!(by_xla.memory(), Err(Error::Ledger(LedgerError::PartitionedByXla))));
}

#[test]
fn the_forms_of_a_ledger() {
    let ledger = sharded(PartitionMode::Explicit).collectives();
    let json = serde_json::to_value(&ledger).unwrap();
    let source = json["collectives"][0]["source"].as_str().expect("a source line").to_owned();
    assert!(source.starts_with("tests/sharding/ledger.rs:"), "{source}");
    let expected = serde_json::json!({
        "schema": 1,
        "collectives": [{
            "kind": "all-reduce", "axes": ["data"], "group_size": 8, "bytes": 4, "executions": 1, "loop_depth": 0,
            "name": "all-reduce.1", "source": source,
        }],
    });
    assert_eq!(json, expected);
    let table = ledger.to_string();
    assert!(table.contains("all-reduce.1") && table.contains(&source), "{table}");
    let mesh = mesh("a=4,b=2");
    let nested = serde_json::to_value(Ledger::of(&nested(), &mesh)).unwrap();
    assert!(nested["collectives"][3]["executions"].is_null());
    assert_eq!(nested["collectives"][1]["executions"], 15);
}

/// The compiled program has its ledger, which says what moves in the module that XLA has made.
#[test]
fn a_program_has_its_ledger() {
    let program = compile(&sharded(PartitionMode::Explicit)).unwrap();
    let ledger = program.collectives();
    let optimized = program.executable().optimized_hlo().unwrap().decode().unwrap();
    let found = collectives(&optimized, Devices::partitioned(8)).along(&mesh("data=8"));
    let [entry] = found.entries.as_slice() else { panic!("{found:?}") };
    assert_eq!((ledger.count(), ledger.bytes()), (Ok(1), Ok(Amount::Exactly(4))));
    assert_eq!(entry.bytes, Some(4));
    assert_eq!(ledger.moved_bytes().unwrap(), found.moved_bytes());
}

/// Arguments and outputs are XLA's to the byte; temporaries are at least 0.7 of XLA's and no more.
#[test]
fn memory_is_about_what_xla_plans() {
    let all = [("data=2,fsdp=4", "full"), ("fsdp=8", "none"), ("data=8", "none")];
    for (mesh, remat) in cases("sharding memory", 1, all) {
        let mesh = format!("mesh.axes=\"{mesh}\"");
        let lowered = explicit_step(&[&mesh, &format!("remat.policy=\"{remat}\"")]);
        let memory = lowered.memory().unwrap();
        let stats = lowered.compile(&client()).unwrap().executable().memory_stats().unwrap();
        let ratio = memory.temporaries as f64 / stats.temporary as f64;
        assert_eq!(memory.arguments, stats.arguments as u64);
        assert_eq!(memory.outputs, stats.outputs as u64);
        assert_eq!(memory.aliased, stats.aliased as u64);
        // XLA fuses, orders and shares buffers in another way: the three ratios are 0.74, 0.88 and 0.87.
        assert!((0.7..=1.0).contains(&ratio), "{mesh} {remat}: {ratio:.2}\n{memory}");
        // The live values make up the peak, but for gaps between buffers and the pointers of tuples: a value that is
        // live again after a pause keeps its place, so a gap may be as large as one of the smaller values.
        let live: u64 = memory.live_at_peak.iter().map(|value| value.bytes).sum();
        assert!(
            (0.985..=1.0).contains(&(live as f64 / memory.peak as f64)),
            "{mesh} {remat}: {live} of {}",
            memory.peak
        );
        // Arguments are called by their paths, other values by their scopes.
        let is_called = |name: &str| memory.live_at_peak.iter().any(|value| value.label().starts_with(name));
        assert!(is_called("state.params.") && is_called("layers/"), "{memory}");
    }
}
