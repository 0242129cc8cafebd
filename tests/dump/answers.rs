//! Tests of the answers of `hlo-dump` where not everything is known, or not everything is given.

use crate::dump::command::{check_refused, prints, run, with_input};
use serde_json::Value;

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

/// The message of a compiler for TPUs about a program that is too large, in a log; amounts by hand.
const TPU_MESSAGE: &str = "\
step 0 is compiled
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 10.00G of 8.00G hbm. \
Exceeded hbm capacity by 2.00G.

Total hbm usage >= 10.50G:
    reserved        512.00M
    program          10.00G
    arguments         2.00G

Output size 2.00G; shares 512.00M with arguments.

  Largest program allocations in hbm:

  1. Size: 3.00G
     Operator: op_name=\"jit(step)/jvp(layers_0)/mlp/dot_general\" source_file=\"model.py\" source_line=7
     Shape: f32[1024,786432]{1,0:T(8,128)}
     Unpadded size: 3.00G
     XLA label: %fusion.1 = f32[1024,786432]{1,0:T(8,128)} fusion(%p.1), kind=kLoop
     Allocation type: HLO temp
     ==========================

  2. Size: 3.00G
     Operator: op_name=\"jit(step)/jvp(layers_1)/mlp/dot_general\" source_file=\"model.py\" source_line=7
     Shape: f32[1024,786432]{1,0:T(8,128)}
     Unpadded size: 3.00G
     XLA label: %fusion.2 = f32[1024,786432]{1,0:T(8,128)} fusion(%p.2), kind=kLoop
     Allocation type: HLO temp
     ==========================

  3. Size: 1.00G
     Operator: op_name=\"jit(step)/transpose(jvp(layers_1))/mlp/reshape\"
     Shape: f32[2097152,1]{1,0:T(8,128)}
     Unpadded size: 8.00M
     Extra memory due to padding: 1016.00M (128.0x expansion)
     XLA label: %copy.3 = f32[2097152,1]{1,0:T(8,128)} copy(%p.3)
     Allocation type: HLO temp
     ==========================

  Largest program allocations in vmem:

  1. Size: 64.0K
     Shape: f32[128,128]{1,0:T(8,128)}
     ==========================
";

/// The same of an allocator, with stamps before the lines.
const GPU_MESSAGE: &str = "\
W1130 10:00:00 bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB (rounded to \
2147483904)requested by op
I1130 10:00:00 bfc_allocator.cc:1100] Limit:                      3221225472
I1130 10:00:00 bfc_allocator.cc:1100] InUse:                      2147483648
E1130 10:00:00 pjrt.cc:1] Execution failed: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    1.00GiB
              constant allocation:         0B
        maybe_live_out allocation:    1.00GiB
     preallocated temp allocation:    2.00GiB
                 total allocation:    3.50GiB
Peak buffers:
\tBuffer 1:
\t\tSize: 1.00GiB
\t\tOperator: op_name=\"jit(f)/layer/dot_general\" source_file=\"f.py\" source_line=3
\t\tXLA Label: custom-call
\t\tShape: f32[1024,262144]
\t\t==========================

\tBuffer 2:
\t\tSize: 512.00MiB
\t\tEntry Parameter Subshape: bf16[1024,262144]
\t\t==========================
";

const GIB: u64 = 1 << 30;

/// Returns the kind, the subject and the bytes of each remedy.
fn remedies(json: &Value) -> Vec<(String, String, u64)> {
    let text = |row: &Value, field: &str| row[field].as_str().expect("text").to_owned();
    let rows = json["remedies"].as_array().expect("a list").iter();
    rows.map(|row| (text(row, "kind"), text(row, "of"), row["saves"].as_u64().expect("bytes"))).collect()
}

#[test]
fn a_message_says_what_was_alive() {
    let json = with_input(&["memory", "-", "--json"], TPU_MESSAGE.as_bytes()).json();
    let message = &json["out_of_memory"];
    assert_eq!((&message["needed"], &json["missing"]), (&(10 * GIB).into(), &(2 * GIB).into()));
    let live: Vec<_> = message["live"].as_array().expect("a list").iter().map(|row| row["name"].clone()).collect();
    assert_eq!(live, ["fusion.1", "fusion.2", "copy.3"]);
    assert_eq!(message["live"][0]["source"], "model.py:7");
    // Two layers of 3 GiB, one computed at a time; outputs that lie in no argument; tiles of 128 columns.
    let kinds = |kind: &str, of: &str, bytes: u64| (kind.to_owned(), of.to_owned(), bytes);
    let expected = [
        kinds("remat", "layers_*", 3 * GIB),
        kinds("remat", "layers_*/mlp", 3 * GIB),
        kinds("donation", "", 3 * GIB / 2),
        kinds("padding", "f32[2097152,1]", 1016 << 20),
    ];
    assert_eq!(remedies(&json), expected);
    let text = with_input(&["memory", "-"], TPU_MESSAGE.as_bytes()).out;
    for said in ["out of memory while compiling", "missing", "compute layers_*/mlp again", "fits"] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn a_message_of_an_allocator() {
    let json = with_input(&["memory", "-", "--json"], GPU_MESSAGE.as_bytes()).json();
    let message = &json["out_of_memory"];
    assert_eq!((&message["ran_out_while"], &message["there_is"]), (&"running".into(), &GIB.into()));
    assert_eq!(message["needed"], 2 * GIB + 256);
    let live = |field: &str| [0, 1].map(|nth| message["live"][nth][field].clone());
    assert_eq!(live("kind"), ["temporary", "argument"]);
    assert_eq!(live("shape"), ["f32[1024,262144]", "bf16[1024,262144]"]);
    // The 4 GiB in all, less the 3.5 of the device: half of the outputs lies in arguments.
    assert_eq!(remedies(&json), [("donation".to_owned(), String::new(), GIB / 2)]);
    // Values in quotes, as in a traceback, are the same.
    let quoted = format!("{GPU_MESSAGE:?}");
    let other = with_input(&["memory", "-", "--json"], quoted.as_bytes()).json();
    assert_eq!(other["out_of_memory"]["live"], message["live"]);
}

#[test]
fn a_message_and_its_program() {
    let short = "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries \
                 (17.50G) exceeds available HBM (15.75G). HLO module: jit_step.";
    let json = with_input(&["memory", "-", "--json"], short.as_bytes()).json();
    assert_eq!(json["out_of_memory"]["module"], "jit_step");
    assert_eq!(json["missing"], 7 * GIB / 4);
    let program = ["memory", "-", "--json", "--program", "tests/foreign/fsdp_mlp.unoptimized.txt"];
    let json = with_input(&program, short.as_bytes()).json();
    assert_eq!(json["out_of_memory"]["needed"], 35 * GIB / 2);
    assert!(json["peak"].as_u64().is_some() && json["remedies"].is_array(), "{json}");
    let other = with_input(&["collectives", "-"], short.as_bytes());
    assert_ne!(other.status, 0);
    assert!(other.err.contains("is read by `hlo-dump memory`"), "{}", other.err);
}
