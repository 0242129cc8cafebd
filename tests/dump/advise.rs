//! `hlo-dump advise`: both partitioners beside each other, and the constraints that were tried.

use meshloom::analysis::{Devices, SlicedWhole, WholeBy, collectives, sliced_wholes};
use meshloom::hlo::mesh::Mesh;
use meshloom::hlo::read::{Limits, read};
use serde_json::Value;

use crate::dump::command::{check_refused, prints, run, with_input};

const LOWERED: &str = "tests/foreign/lowered";
const FOREIGN: &str = "tests/foreign";

fn advice(program: &str, against: &str) -> Value {
    let (program, against) = (format!("{LOWERED}/{program}"), format!("{FOREIGN}/{against}"));
    run(&["advise", &program, "--against", &against, "--json"]).json()
}

/// A program of four devices. Nothing says how its batch is split.
const OPEN: &str = r#"module @open attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2, "tensor"=2]>
  func.func public @main(%arg0: tensor<64x16xf32>, %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tensor"}]>}) -> tensor<64x32xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<64x16xf32>, tensor<16x32xf32>) -> tensor<64x32xf32>
    return %0 : tensor<64x32xf32>
  }
}
"#;

/// A gather, and the same by a sum; each of four devices reads a part.
const WHOLE_THEN_SLICED: &str = r#"HloModule f, num_partitions=4

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  p = f32[2,8] parameter(0)
  id = u32[] partition-id()
  table = s32[4] constant({0, 2, 4, 6})
  row = s32[1] dynamic-slice(table, id), dynamic_slice_sizes={1}
  at = s32[] reshape(row)
  zero = s32[] constant(0)
  gathered = f32[8,8] all-gather(p), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(f)/reshard" source_file="f.py" source_line=7}
  moved = f32[8,8] copy(gathered)
  first = f32[8,2] dynamic-slice(moved, zero, at), dynamic_slice_sizes={8,2}
  nothing = f32[] constant(0)
  zeros = f32[8,8] broadcast(nothing), dimensions={}
  own = f32[8,8] dynamic-update-slice(zeros, p, at, zero)
  whole = f32[8,8] all-reduce(own), channel_id=2, replica_groups=[1,4]<=[4], use_global_device_ids=true, to_apply=add, metadata={op_name="jit(f)/masked" source_file="f.py" source_line=8}
  second = f32[8,2] dynamic-slice(whole, zero, at), dynamic_slice_sizes={8,2}
  sum = f32[8,8] all-reduce(moved), channel_id=3, replica_groups=[1,4]<=[4], use_global_device_ids=true, to_apply=add
  ROOT result = (f32[8,2], f32[8,2], f32[8,8]) tuple(first, second, sum)
}
"#;

fn sliced(text: &str) -> Vec<SlicedWhole> {
    let module = read(text.as_bytes(), &Limits::default()).expect("a module").module;
    let mesh = Mesh::parse("data=4", 4).expect("a mesh");
    sliced_wholes(&module, &collectives(&module, Devices::partitioned(4)).along(&mesh))
}

#[test]
fn both_sides_are_counted() {
    for (program, ours, theirs) in [("fsdp_mlp", 10_759, 15_367), ("scan_remat", 76_807, 99_847)] {
        let found = advice(&format!("{program}.stablehlo.txt"), &format!("{program}.partitioned.txt"));
        assert_eq!(found["all"]["ours"]["moved_bytes"], ours, "{program}");
        assert_eq!(found["all"]["theirs"]["moved_bytes"], theirs, "{program}");
        let sums = found["by_kind"].as_array().expect("a list");
        let sum = |side: &str| sums.iter().map(|it| it[side]["moved_bytes"].as_u64().expect("bytes")).sum::<u64>();
        assert_eq!((sum("ours"), sum("theirs")), (ours, theirs), "{program}");
        assert!(found["peak"].as_u64() < found["peak_theirs"].as_u64(), "{program}: {found}");
        let largest = &found["differences"][0];
        assert_eq!(largest["kind"], "all-reduce", "{program}");
        assert_eq!(largest["ours"]["moved_bytes"], 0, "{program}");
    }
}

/// XLA sums gradients over eight devices and splits them over four, which no later pass mends; those of the other
/// program become reduce-scatters for TPU and GPU.
#[test]
fn sums_that_are_sliced_are_told_apart() {
    let by = |found: &Value| -> Vec<String> {
        let all = found["sliced_wholes"].as_array().expect("a list");
        all.iter().map(|it| it["by"].as_str().expect("text").to_owned()).collect()
    };
    let found = advice("fsdp_mlp.debug.stablehlo.txt", "fsdp_mlp.partitioned.txt");
    assert_eq!(by(&found), ["sum", "sum"]);
    assert_eq!(found["differences"][0]["more_bytes"], 10_752);
    let advice_of_value = &found["advice"][0];
    assert_eq!(advice_of_value["benefit"], "as_ours", "{found}");
    assert_eq!((&advice_of_value["on"], &advice_of_value["stated"]), (&"stated".into(), &"P(None, None)".into()));
    assert_eq!(advice_of_value["spec"], "P('fsdp', None)");
    assert_eq!(advice_of_value["source"], "tests/oracle/foreign_programs.py:22");
    assert_eq!(advice_of_value["after"]["moved_bytes"], 10_759);
    assert_eq!(found["theirs_scattered"], 15_367);
    let found = advice("scan_remat.stablehlo.txt", "scan_remat.partitioned.txt");
    assert_eq!(by(&found), ["scattered_sum"; 2]);
    assert_eq!(found["theirs_scattered"], 76_807);
    // The TPU's compiler keeps the first as they are.
    assert_eq!(by(&advice("fsdp_mlp.stablehlo.txt", "fsdp_mlp.tpu.txt")), ["sum", "sum"]);
}

#[test]
fn a_value_that_is_gathered_and_sliced_is_found() {
    let found = sliced(WHOLE_THEN_SLICED);
    // The gather has another reader, which needs all of it.
    assert_eq!(
        found.iter().map(|it| (it.by, it.op_name.as_str())).collect::<Vec<_>>(),
        [(WholeBy::MaskedSum, "jit(f)/masked")]
    );
    let found = sliced(&WHOLE_THEN_SLICED.replace("all-reduce(moved)", "all-reduce(zeros)"));
    let by: Vec<WholeBy> = found.iter().map(|it| it.by).collect();
    // A sum sends twice as much as a gather.
    assert_eq!(by, [WholeBy::MaskedSum, WholeBy::Gather]);
    let gather = &found[1];
    assert_eq!((gather.whole.as_str(), gather.part.as_str()), ("f32[8,8]", "f32[8,2]"));
    assert_eq!((gather.op_name.as_str(), gather.source.as_deref()), ("jit(f)/reshard", Some("f.py:7")));
    // A place that is the same on each device is a slice like any other.
    assert!(sliced(&WHOLE_THEN_SLICED.replace("zero, at)", "zero, zero)")).is_empty());
}

/// Devices compute the same rows, until the batch is split.
#[test]
fn an_input_that_is_left_open_is_tried() {
    let found = with_input(&["advise", "-", "--json"], OPEN.as_bytes()).json();
    let advice = &found["advice"][0];
    assert_eq!((&advice["on"], &advice["benefit"]), (&"input".into(), &"shared_work".into()), "{found}");
    assert_eq!(advice["spec"], "P('data', None)");
    assert_eq!(
        advice["before"]["operations"].as_u64().expect("a number"),
        2 * advice["after"]["operations"].as_u64().expect("a number")
    );
    assert!(found["against"].is_null());
    let text = with_input(&["advise", "-"], OPEN.as_bytes()).out;
    assert!(text.contains("in_shardings P('data', None)") && text.contains("--against FILE"), "{text}");
    // A constraint that is not tried is not told.
    let none = with_input(&["advise", "-", "--trials", "0"], OPEN.as_bytes()).out;
    assert!(none.contains("0 constraints tried, and none that is worth telling; --trials N tries more"), "{none}");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let (program, partitioned) =
        ("tests/foreign/lowered/fsdp_mlp.stablehlo.txt", "tests/foreign/fsdp_mlp.partitioned.txt");
    let unsharded = OPEN.replace("{\"tensor\"}", "{}");
    let refused = with_input(&["advise", "-"], unsharded.as_bytes());
    assert!(refused.err.contains("no value of the program is split"), "{}", refused.err);
    check_refused(&["advise", partitioned], "give what comes before XLA's partitioner");
    check_refused(&["advise", program, "--against", program], "not partitioned yet");
    check_refused(&["advise", program, "--against", "examples/configs/default.toml"], "a run config is no program");
    check_refused(&["advise", program, "--against", partitioned, "--target", "cpu:8"], "cannot be used with");
    let text = prints(&["advise", program, "--against", partitioned]);
    assert!(text.contains("the program has no scopes"), "{text}");
}
