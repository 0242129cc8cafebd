//! Tests of the answers of `hlo-dump` where not everything is known, or not everything is given.

use crate::dump::command::{check_refused, prints, run, with_input};

const CONFIG: &str = "examples/configs/default.toml";

/// An all-reduce of 4096 bytes over 8 devices, which sends 7168, and another in a loop that ends when its data says so.
const UNKNOWN: &str = "HloModule unknown, num_partitions=8

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

body {
  x = f32[1024]{0} parameter(0)
  ROOT inner = f32[1024]{0} all-reduce(x), channel_id=2, replica_groups={{0,1,2,3,4,5,6,7}}, \
                       use_global_device_ids=true, to_apply=sum
}

condition {
  x = f32[1024]{0} parameter(0)
  c = f32[1]{0} slice(x), slice={[0:1]}
  d = f32[] reshape(c)
  one = f32[] constant(1)
  ROOT less = pred[] compare(d, one), direction=LT
}

ENTRY main {
  p = f32[1024]{0} parameter(0)
  r = f32[1024]{0} all-reduce(p), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=sum
  ROOT w = f32[1024]{0} while(r), body=body, condition=condition
}
";

#[test]
fn what_is_known_of_a_sum_is_said() {
    let ran = |arguments: &[&str]| with_input(arguments, UNKNOWN.as_bytes());
    let table = ran(&["collectives", "-"]).out;
    assert!(table.contains("2 collectives, executed at least once; each device sends >= 7.00 KiB (7,168)"), "{table}");
    assert!(table.contains("? 1 runs in a loop"), "{table}");
    let groups = ran(&["collectives", "-", "--group", "kind"]).out;
    assert!(groups.contains(">= 7.00 KiB (7,168)"), "{groups}");
    let json = ran(&["collectives", "-", "--json"]).json();
    assert_eq!((&json["moved_bytes"], &json["moved_bytes_least"]), (&serde_json::Value::Null, &7168.into()));
    let groups = ran(&["collectives", "-", "--group", "kind", "--json"]).json();
    assert_eq!(groups["groups"][0]["moved_bytes_least"], 7168);
    let traffic = ran(&["traffic", "-", "--mesh", "data=8", "--over", "data"]).out;
    assert!(traffic.contains("every step sends >= 7.00 KiB (7,168)"), "{traffic}");
    // The known bytes alone may exceed the limit.
    let check = |limit| ran(&["check", "-", "--max-collective-bytes", limit]);
    let (within, beyond) = (check("8KiB"), check("7KB"));
    assert_eq!((within.status, beyond.status), (1, 1));
    assert!(within.out.contains("unknown: at least 7.00 KiB (7,168)"), "{}", within.out);
    assert!(beyond.out.contains("at least 7.00 KiB (7,168), which is 168 B too many"), "{}", beyond.out);
}

#[test]
fn tensors_are_found_by_parts_of_their_names() {
    const LOWERED: &str = "tests/foreign/fsdp_mlp.unoptimized.txt";
    for name in ["parameters__up__.1", "parameters['up']", "up", "'up'"] {
        let found = prints(&["explain", LOWERED, name]);
        assert!(found.contains("parameters['up']") && found.contains("states {"), "{name}: {found}");
    }
    // A word before a part of one.
    assert!(!prints(&["explain", LOWERED, "up"]).contains("update"));
    assert!(prints(&["explain", LOWERED, "aramete"]).contains("parameters["));
    check_refused(&["explain", LOWERED, "donw"], "(did you mean \"down\"?)");
}

#[test]
fn a_stage_of_a_dump_is_explained() {
    const FOLDER: &str = "tests/foreign/xla_dump";
    let compiled = prints(&["explain", FOLDER, "x"]);
    let traced = prints(&["explain", FOLDER, "x", "--stage", "traced"]);
    assert!(compiled.contains("(compiled, ") && compiled.contains("partitioned already"), "{compiled}");
    assert!(traced.contains("(traced, ") && !traced.contains("partitioned already"), "{traced}");
    assert!(compiled.contains("f32[8,16]") && traced.contains("f32[64,16]"), "{compiled}{traced}");
    assert_eq!(prints(&["explain", FOLDER, "x", "--stage", "before_optimizations"]), traced);
    assert_eq!(prints(&["explain", FOLDER, "x", "--stage", "cpu_after_optimizations"]), compiled);
    check_refused(&["explain", FOLDER, "x", "--stage", "partitioned"], "--stage partitioned: module_0012.jit_f has no");
    check_refused(&["explain", CONFIG, "wq", "--stage", "traced"], "those of its stage sharded");
    let sharded = prints(&["explain", CONFIG, "state.params.layers.attention.wq", "--stage", "sharded"]);
    assert!(sharded.contains("its axes are [layers embed heads kv]"), "{sharded}");
    assert!(!sharded.contains("[vocab embed]"), "{sharded}");
}

#[test]
fn scopes_select_costs() {
    let of = |more: &[&str]| prints(&[&["cost", "tests/foreign/fsdp_mlp.partitioned.txt"], more].concat());
    let selected = of(&["--scope", "jvp(mlp)"]);
    assert!(selected.contains("in scope jvp(mlp): ") && !selected.contains("outside of loops"), "{selected}");
    let rows = |text: &str| text.lines().take_while(|line| !line.is_empty()).count();
    assert!(rows(&selected) < rows(&of(&["--by", "op"])), "{selected}");
    let entry = run(&["show", "tests/foreign/fsdp_mlp.partitioned.txt", "--json"]).json()["entry"].clone();
    let one =
        ["show", "tests/foreign/fsdp_mlp.partitioned.txt", "--json", "--computation", entry.as_str().expect("a name")];
    assert_eq!(run(&one).json()["computations"].as_array().map(Vec::len), Some(1));
}

#[test]
fn what_is_passed_over_is_said() {
    let text = UNKNOWN.replace("body=body, condition=condition", "body=body, flux={1, 2}, condition=condition");
    let ran = |text: &str| with_input(&["collectives", "-"], text.as_bytes());
    let (plain, newer) = (ran(UNKNOWN), ran(&text));
    assert_eq!((newer.status, &newer.out), (0, &plain.out));
    assert!(newer.err.contains("note: passed over, as not known here: attribute flux of while"), "{}", newer.err);
    assert!(!plain.err.contains("passed over"), "{}", plain.err);
}

/// The text of a newer XLA may have what cannot be read, and the proto beside it be readable.
#[test]
fn a_dump_folder_is_read_by_either_form() {
    let folder = tempfile::tempdir().expect("a folder");
    let from = support::path("tests/foreign/xla_dump");
    const NAME: &str = "module_0012.jit_f.cpu_after_optimizations";
    std::fs::copy(from.join(format!("{NAME}.hlo.pb")), folder.path().join(format!("{NAME}.hlo.pb"))).expect("a copy");
    std::fs::write(folder.path().join(format!("{NAME}.txt")), "HloModule jit_f, flux\n").expect("a file");
    let ran = run(&["collectives", folder.path().to_str().expect("a path")]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(ran.err.contains("note: the proto beside it is read instead"), "{}", ran.err);
}

/// A program that is manual along some axes is not the program of one device, nor one that is not partitioned at all.
#[test]
fn a_program_that_is_manual_in_part_is_not_partitioned() {
    const PART: &str = r#"module @part attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["data"=2, "tensor"=4]>
  func.func public @main(%x: tensor<1024xf32>) -> tensor<1024xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"data"}]>] out_shardings=[<@mesh, [{"data"}]>] manual_axes={"data"} (%a: tensor<512xf32>) {
      %1 = stablehlo.negate %a : tensor<512xf32>
      %2 = stablehlo.custom_call @my_all_reduce(%1) : (tensor<512xf32>) -> tensor<512xf32>
      sdy.return %2 : tensor<512xf32>
    } : (tensor<1024xf32>) -> tensor<1024xf32>
    return %0 : tensor<1024xf32>
  }
}
"#;
    let table = with_input(&["collectives", "-"], PART.as_bytes()).out;
    assert!(table.contains("not partitioned yet along tensor: shapes"), "{table}");
    assert!(
        table.contains("1 custom call may communicate, and what is sent there is not counted: my_all_reduce ("),
        "{table}"
    );
    let checked = with_input(&["check", "-", "--max-collectives", "9"], PART.as_bytes());
    assert!(checked.status == 2 && checked.err.contains("not partitioned yet along tensor"), "{}", checked.err);
    let whole = PART.replace("manual_axes={\"data\"}", "manual_axes={\"data\", \"tensor\"}");
    let table = with_input(&["collectives", "-"], whole.as_bytes()).out;
    assert!(!table.contains("not partitioned"), "{table}");
    // Without locations, a name that is not found may be one of the source's.
    let found = with_input(&["explain", "-", "weights"], PART.as_bytes());
    assert!(found.status == 2 && found.err.contains("debug_info=True"), "{}", found.err);
}

/// A drawing is laid out with bounded effort, or refused; one without lines is drawn.
#[test]
fn drawings_end() {
    let drawn = |text: &str| with_input(&["show", "-", "--emit", "svg", "--computation", "main"], text.as_bytes());
    let lonely = drawn("HloModule m\nENTRY main {\n  ROOT x = f32[4] parameter(0)\n}\n");
    assert!(lonely.out.contains("<svg"), "{}", lonely.err);
    // Each value is read by all that follow: a line over every row.
    let mut text = "HloModule m\nENTRY main {\n  v0 = f32[4] parameter(0)\n".to_owned();
    for nth in 1..=300 {
        let operands: Vec<String> = (0..nth).map(|operand| format!("v{operand}")).collect();
        let root = if nth == 300 { "ROOT " } else { "" };
        text += &format!("  {root}v{nth} = f32[4] custom-call({}), custom_call_target=\"f\"\n", operands.join(", "));
    }
    let refused = drawn(&(text + "}\n"));
    assert!(refused.status == 2 && refused.err.contains("`--emit dot`"), "{}", refused.err);
}
