//! Differences by meaning: what means nothing is none, and every change that means something is found.

use meshloom::analysis::{Devices, ModuleDiff, collectives, diff};
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::{HloInputOutputAliasProto, HloModuleProto};
use meshloom::sharding::Mesh;

const MODULE: &str = r#"
HloModule step, entry_computation_layout={(f32[8,16]{1,0}, f32[16,4]{1,0})->f32[8,4]{1,0}}, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (carry: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %carry = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = f32[8,4]{1,0} get-tuple-element(%carry), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %reduced = f32[8,4]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, to_apply=%add, metadata={op_name="layer/reduce"}
  %doubled = f32[8,4]{1,0} add(%reduced, %x), metadata={op_name="layer/double"}
  ROOT %out = (s32[], f32[8,4]{1,0}) tuple(%next, %doubled)
}

%condition (carry: (s32[], f32[8,4])) -> pred[] {
  %carry = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %bound = s32[] constant(6)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

ENTRY %main (w: f32[8,16], v: f32[16,4]) -> f32[8,4] {
  %w = f32[8,16]{1,0} parameter(0)
  %v = f32[16,4]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %product = f32[8,4]{1,0} dot(%w, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="layer/dot"}
  %start = (s32[], f32[8,4]{1,0}) tuple(%zero, %product)
  %loop = (s32[], f32[8,4]{1,0}) while(%start), condition=%condition, body=%body
  ROOT %result = f32[8,4]{1,0} get-tuple-element(%loop), index=1
}
"#;

fn module(text: &str) -> HloModuleProto {
    parse(text).unwrap_or_else(|error| panic!("{error}")).hlo_module.expect("a module")
}

fn compare(before: &HloModuleProto, after: &HloModuleProto) -> ModuleDiff {
    let mesh = Mesh::parse("data=2,fsdp=4", 8).expect("a mesh");
    let found = |module: &HloModuleProto| collectives(module, Devices::partitioned(8)).along(&mesh);
    diff((before, &found(before)), (after, &found(after)))
}

/// Returns the differences that arise when one text in the module is replaced by another.
fn changed(from: &str, to: &str) -> ModuleDiff {
    assert!(MODULE.contains(from), "{from}");
    compare(&module(MODULE), &module(&MODULE.replace(from, to)))
}

#[test]
fn what_means_nothing_is_no_difference() {
    let same = |from: &str, to: &str| {
        let found = changed(from, to);
        assert!(found.is_empty() && found.names.is_empty(), "{from} -> {to}: {found:?}");
    };
    same("HloModule step", "HloModule other");
    same("%doubled", "%twice.17");
    same("%body", "%region_3.44");
    same("channel_id=1", "channel_id=9");
    same("replica_groups={{0,1,2,3},{4,5,6,7}}", "replica_groups=[2,4]<=[8]");
    same("replica_groups={{0,1,2,3},{4,5,6,7}}", "replica_groups={{7,6,5,4},{2,0,1,3}}");
    same("f32[8,16]{1,0} parameter(0)", "f32[8,16] parameter(0)");
    same("direction=LT", "direction=LT, type=SIGNED");
    // The order of what does not depend on each other.
    let one = "  %one = s32[] constant(1)\n  %next = s32[] add(%i, %one)\n";
    let moved = MODULE.replace(one, "").replace("  ROOT %out", &format!("{one}  ROOT %out"));
    assert!(compare(&module(MODULE), &module(&moved)).is_empty());
    let mut renumbered = module(MODULE);
    let shift = |ids: &mut Vec<i64>| ids.iter_mut().for_each(|id| *id += 1000);
    for computation in &mut renumbered.computations {
        computation.id += 1000;
        computation.root_id += 1000;
        for instruction in &mut computation.instructions {
            instruction.id += 1000;
            shift(&mut instruction.operand_ids);
            shift(&mut instruction.control_predecessor_ids);
            shift(&mut instruction.called_computation_ids);
        }
    }
    renumbered.entry_computation_id += 1000;
    assert!(compare(&module(MODULE), &renumbered).is_empty());
    // A proto states that nothing is donated, text leaves it out.
    let mut stated = module(MODULE);
    stated.input_output_alias = Some(HloInputOutputAliasProto::default());
    assert!(compare(&module(MODULE), &stated).is_empty());
}

#[test]
fn collectives_that_change() {
    let only = |found: ModuleDiff| {
        assert_eq!(found.collectives.len(), 1, "{found:?}");
        found.collectives[0].clone()
    };
    // One collective over another axis is one gone and one come.
    let over = changed("replica_groups={{0,1,2,3},{4,5,6,7}}", "replica_groups={{0,4},{1,5},{2,6},{3,7}}");
    let axes: Vec<_> = over.collectives.iter().map(|it| (it.axes.as_str(), it.before.count, it.after.count)).collect();
    assert_eq!(axes, [("data", 0, 1), ("fsdp", 1, 0)]);
    // As often as its loop runs.
    let often = only(changed("constant(6)", "constant(7)"));
    assert!(often.before.executions == 6 && often.after.executions == 7);
    assert_eq!((often.before.count, often.after.count), (1, 1));
    // The same with other bytes is one change.
    let wider = only(compare(&module(MODULE), &module(&MODULE.replace("8,4]", "8,2]").replace("16,4]", "16,2]"))));
    assert_eq!((wider.bytes, wider.new_bytes), (Some(128), Some(64)));
}

#[test]
fn operations_that_change() {
    let found = changed(
        "dot(%w, %v), lhs_contracting_dims={1}",
        "dot(%w, %v), lhs_contracting_dims={1}, operand_precision={highest,highest}",
    );
    let dots: Vec<_> =
        found.operations.iter().map(|it| (it.opcode.as_str(), it.before.count, it.after.count)).collect();
    assert_eq!(dots, [("dot", 1, 1)], "the same operation with another attribute: {found:?}");
    assert!(!found.same_wiring);
    let found = changed("add(%reduced, %x)", "multiply(%reduced, %x)");
    let opcodes: Vec<_> = found.operations.iter().map(|it| it.opcode.as_str()).collect();
    assert_eq!(opcodes, ["add", "multiply"]);
    assert!(found.operations.iter().all(|it| it.from.contains("layer/double")));
    let found = changed("constant(1)", "constant(2)");
    assert!(found.operations.iter().any(|it| it.opcode == "constant"), "{found:?}");
}

#[test]
fn wiring_that_changes() {
    let found = changed("add(%reduced, %x)", "add(%x, %x)");
    // The same operations, and one of them is read no more.
    assert!(!found.same_wiring && found.operations.is_empty() && found.collectives.is_empty(), "{found:?}");
    assert!(!found.is_empty());
    let swapped = changed("add(%reduced, %x)", "add(%x, %reduced)");
    assert!(!swapped.same_wiring && swapped.operations.is_empty());
}

#[test]
fn names_that_move() {
    let found = changed("layer/dot", "block/dot");
    assert!(found.is_empty());
    let names: Vec<_> =
        found.names.iter().map(|it| (it.opcode.as_str(), it.before.as_str(), it.after.as_str(), it.count)).collect();
    assert_eq!(names, [("dot", "layer/dot", "block/dot", 1)]);
}

/// Versions of XLA state a total order as a type, as an order or as both, and the order of integers or not.
#[test]
fn orders_of_comparisons_are_stated_in_several_ways() {
    let sorted = |operand: &str, direction: &str, stated: Option<(&str, &str)>| {
        let mut found = module(&format!(
            "HloModule m\nENTRY main {{\n  a = {operand} parameter(0)\n  b = {operand} parameter(1)\n  \
             ROOT c = pred[4] compare(a, b), direction={direction}\n}}\n"
        ));
        let compare = &mut found.computations[0].instructions[2];
        if let Some((of_type, order)) = stated {
            (compare.comparison_type, compare.comparison_order) = (of_type.to_owned(), order.to_owned());
        }
        found
    };
    let float = |stated| sorted("f32[4]", "LT", stated);
    let total = [("TOTALORDER", ""), ("FLOAT", "TOTAL"), ("", "TOTAL"), ("TOTALORDER", "TOTAL")].map(Some);
    let partial = [None, Some(("FLOAT", "")), Some(("", "")), Some(("FLOAT", "PARTIAL"))];
    for (one, other) in total.iter().zip(&partial) {
        assert!(compare(&float(total[0]), &float(*one)).is_empty(), "{one:?}");
        assert!(compare(&float(partial[0]), &float(*other)).is_empty(), "{other:?}");
        assert!(!compare(&float(*one), &float(*other)).is_empty(), "{one:?} {other:?}");
    }
    let integer = |stated| sorted("s32[4]", "LT", stated);
    for stated in [("SIGNED", ""), ("SIGNED", "TOTAL"), ("", "TOTAL")] {
        assert!(compare(&integer(None), &integer(Some(stated))).is_empty(), "{stated:?}");
    }
    assert!(!compare(&integer(None), &sorted("s32[4]", "GT", None)).is_empty());
}
