//! Tests of `hlo-dump traffic`, and of `collectives` and `check` with a slow axis.

use crate::dump::command::{Ran, check_refused, prints, run, with_input};
use serde_json::Value;

const STREAMING: &str = "examples/configs/streaming-diloco.toml";
const VANILLA: &str = "examples/configs/diloco.toml";
const PSDP: &str = "examples/configs/psdp.toml";

/// A module by hand: after each second step one of two values goes over `slow` (of slow=2,fast=4), 64 bytes or 128;
/// every step, 48 over `fast`.
const BY_HAND: &str = "HloModule step, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%small (x: f32[32]) -> f32[32] {
  %x.1 = f32[32] parameter(0)
  %part = f32[16] slice(%x.1), slice={[0:16]}
  %sum.1 = f32[16] all-reduce(%part), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, to_apply=%add
  ROOT %twice = f32[32] concatenate(%sum.1, %sum.1), dimensions={0}
}

%large (x: f32[32]) -> f32[32] {
  %x.2 = f32[32] parameter(0)
  ROOT %sum.2 = f32[32] all-reduce(%x.2), channel_id=2, replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, to_apply=%add
}

%nothing (x: f32[32]) -> f32[32] {
  ROOT %x.3 = f32[32] parameter(0)
}

ENTRY %main (step: s32[], x: f32[32]) -> f32[32] {
  %step = s32[] parameter(0)
  %x = f32[32] parameter(1)
  %eight = f32[8] slice(%x), slice={[0:8]}
  %fast = f32[8] all-reduce(%eight), channel_id=3, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, to_apply=%add
  %four = s32[] constant(4)
  %which = s32[] remainder(%step, %four)
  ROOT %y = f32[32] conditional(%which, %x, %x, %x, %x), branch_computations={%nothing, %small, %nothing, %large}
}
";

fn of_by_hand(arguments: &[&str]) -> Ran {
    let all: Vec<&str> =
        arguments[..1].iter().chain(&["-", "--mesh", "slow=2,fast=4"]).chain(&arguments[1..]).copied().collect();
    with_input(&all, BY_HAND.as_bytes())
}

fn numbers(steps: &Value, field: &str) -> Vec<u64> {
    steps["steps"].as_array().expect("a list").iter().map(|step| step[field].as_u64().expect("a number")).collect()
}

#[test]
fn a_step_sends_what_its_branch_sends() {
    let json = of_by_hand(&["traffic", "--over", "slow", "--steps", "6", "--gbps", "0.001", "--json"]).json();
    assert_eq!((&json["schema"], &json["axis"]), (&"hlo-dump/traffic/1".into(), &"slow".into()));
    let series = &json["series"][0];
    assert_eq!(numbers(series, "step"), [1, 2, 3, 4, 5, 6]);
    assert_eq!(numbers(series, "moved_bytes"), [0, 64, 0, 128, 0, 64]);
    assert_eq!(numbers(series, "moved_bytes_least"), numbers(series, "moved_bytes"));
    assert_eq!(numbers(series, "executions"), [0, 1, 0, 1, 0, 1]);
    // 128 bytes at 1000 bits per millisecond.
    assert_eq!(series["steps"][3]["seconds"].as_f64(), Some(128.0 * 8.0 / 1e6));
    assert_eq!((&series["peak_bytes"], &series["total_bytes"]), (&128.into(), &256.into()));
    let table = of_by_hand(&["traffic", "--over", "slow", "--steps", "4", "--limit", "1"]).out;
    assert!(!table.contains("128 B  "), "one row of four: {table}");
    assert!(table.contains("at most 128 B in a step, 192 B in 4 steps"), "{table}");
    // The branches that run are unknown if no input is known to count.
    let other = of_by_hand(&["traffic", "--over", "slow", "--step-input", "which"]);
    assert!(other.err.contains("--step-input which: no input of whole numbers has this name"), "{}", other.err);
    let unnamed = BY_HAND.replace("%step", "%counter").replace("(step:", "(counter:");
    let ran = with_input(&["traffic", "-", "--mesh", "slow=2,fast=4", "--over", "slow"], unnamed.as_bytes());
    assert!(
        ran.out.contains("0 B to 128 B") && ran.out.contains("--step-input NAME names it"),
        "{}{}",
        ran.out,
        ran.err
    );
}

#[test]
fn collectives_say_in_which_branch() {
    let json = of_by_hand(&["collectives", "--over", "slow", "--steps", "4", "--json"]).json();
    let branches: Vec<_> =
        json["collectives"].as_array().unwrap().iter().map(|it| it["branches"][0]["branch"].clone()).collect();
    assert_eq!(branches, [Value::from(1), 3.into()]);
    for (field, expected) in
        [("moved_bytes", 128), ("moved_bytes_least", 0), ("executions", 1), ("executions_least", 0), ("steps", 4)]
    {
        assert_eq!(json[field].as_u64(), Some(expected), "{field}");
    }
    assert_eq!(json["moved_bytes_per_step"].as_f64(), Some(32.0));
    let conditional = &json["conditionals"][0];
    let of_branches = |field: &str| {
        conditional["branches"].as_array().unwrap().iter().map(|it| it[field].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of_branches("when"), ["0", "1", "2", "3"]);
    assert_eq!(of_branches("moved_bytes"), [0, 64, 0, 128]);
    let table = of_by_hand(&["collectives", "--over", "slow"]).out;
    for text in ["1 of 4", "2 collectives of 3, executed 0 to 1 times; each device sends 0 B to 128 B"] {
        assert!(table.contains(text), "{text}: {table}");
    }
    // An axis, or a part of it.
    for (axis, count) in [("slow", 2), ("fast", 1), ("fast:(1)2", 1), ("fast:(2)2", 1)] {
        let json = of_by_hand(&["collectives", "--over", axis, "--json"]).json();
        assert_eq!(json["collectives"].as_array().map(Vec::len), Some(count), "{axis}");
    }
}

#[test]
fn vanilla_and_streaming_beside_each_other() {
    let file = tempfile::Builder::new().suffix(".svg").tempfile().expect("a file");
    let path = file.path().to_str().expect("a name");
    let forms = "vanilla,streaming,streaming+int4";
    let json = run(&["traffic", STREAMING, "--compare", forms, "--svg", path, "--json"]).json();
    let series = json["series"].as_array().expect("a list");
    let [vanilla, streaming, low_bit] = &series[..] else { unreachable!("three series") };
    for it in series {
        assert_eq!(numbers(it, "step").len(), 20, "one period");
    }
    let sent = |it: &Value| -> Vec<usize> {
        numbers(it, "moved_bytes").iter().enumerate().filter(|(_, bytes)| **bytes > 0).map(|(at, _)| at + 1).collect()
    };
    assert_eq!((sent(vanilla), sent(streaming)), (vec![20], vec![4, 8, 12, 16, 20]));
    let bytes = |it: &Value, field: &str| it[field].as_u64().expect("a number");
    assert_eq!(bytes(vanilla, "total_bytes"), bytes(streaming, "total_bytes"), "the same, at other times");
    assert!(4 * bytes(streaming, "peak_bytes") < bytes(vanilla, "peak_bytes"), "a fourth of the layers");
    assert!(7 * bytes(low_bit, "peak_bytes") < bytes(streaming, "peak_bytes") + 64 * 8);
    assert_eq!(
        (&streaming["steps"][3]["sent"], &streaming["steps"][6]["applied"]),
        (&"fragment 1".into(), &"fragment 1".into())
    );
    assert_eq!(vanilla["steps"][19]["sent"], "all");
    // The bytes spread over the overlap add up to the bytes sent.
    let spread: f64 =
        streaming["steps"].as_array().unwrap().iter().map(|it| it["spread_bytes"].as_f64().unwrap()).sum();
    assert!((spread - bytes(streaming, "total_bytes") as f64).abs() < 1e-3);
    let drawing = std::fs::read_to_string(path).expect("a drawing");
    assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
    // A bar for each step that sends, a mark for each series, and the ground.
    assert_eq!(drawing.matches("<rect").count(), 1 + 3 + (1 + 5 + 5));
    assert_eq!(drawing.matches("stroke-dasharray").count(), 2, "overlap of the two that have it");
}

#[test]
fn the_picture_of_the_docs_is_what_is_drawn() {
    let file = tempfile::Builder::new().suffix(".svg").tempfile().expect("a file");
    prints(&[
        "traffic",
        STREAMING,
        "--compare",
        "vanilla,streaming,streaming+int4",
        "--svg",
        file.path().to_str().expect("a name"),
    ]);
    let drawn = std::fs::read_to_string(file.path()).expect("a drawing");
    assert!(
        drawn == include_str!("../../docs/slow-links.svg"),
        "docs/slow-links.md has the command that draws it again"
    );
}

#[test]
fn microbatches_do_not_matter() {
    let json = run(&["traffic", PSDP, "--compare", "microbatches=1,microbatches=2,microbatches=4", "--json"]).json();
    assert_eq!(json["axis"], "replica");
    let rows: Vec<_> = json["series"].as_array().unwrap().iter().map(|it| it["steps"].clone()).collect();
    assert!(rows.len() == 3 && rows.iter().all(|row| *row == rows[0]), "{rows:?}");
    assert_eq!(rows[0][0]["moved_bytes_in_loops"], 0);
}

/// Steps are steps, however many a call has.
#[test]
fn a_call_of_several_steps_is_looked_at_step_by_step() {
    let by_step = |set: &str| {
        let json = run(&["traffic", STREAMING, "--set", set, "--json"]).json();
        json["series"][0]["steps"].clone()
    };
    assert_eq!(by_step("train.steps_per_call=20"), by_step("train.steps_per_call=1"));
    // A call of a whole period sends all of it, under no condition.
    let whole =
        run(&["collectives", STREAMING, "--set", "train.steps_per_call=20", "--over", "diloco", "--json"]).json();
    let vanilla = run(&["traffic", VANILLA, "--json"]).json();
    assert_eq!(whole["moved_bytes"], vanilla["series"][0]["total_bytes"]);
    assert_eq!((&whole["moved_bytes_least"], &whole["steps"]), (&whole["moved_bytes"], &20.into()));
}

#[test]
fn slow_axes_have_limits() {
    let check = |arguments: &[&str]| {
        let ran = run(&[&["check"], arguments].concat());
        assert!(ran.status <= 1, "{arguments:?}: {}", ran.err);
        ran.status
    };
    assert_eq!(
        check(&[VANILLA, "--max-bytes-over", "diloco=4MiB", "--deny", "collectives-outside-conditionals=diloco"]),
        0
    );
    assert_eq!(check(&[VANILLA, "--max-bytes-over", "diloco=3MiB"]), 1);
    let one_step = [STREAMING, "--set", "train.steps_per_call=1", "--max-bytes-over", "diloco=1MiB"];
    assert_eq!(check(&one_step), 0, "one fragment, not all branches");
    assert_eq!(check(&[STREAMING, "--deny", "collectives-outside-conditionals=fsdp"]), 1);
    assert_eq!(check(&[PSDP, "--max-bytes-over", "replica=4MiB", "--deny", "collectives-in-loops=replica"]), 0);
    assert_eq!(check(&[PSDP, "--max-collectives-over", "replica=20"]), 0);
    assert_eq!(check(&[PSDP, "--max-collectives-over", "replica=2"]), 1);
    assert_eq!(check(&[PSDP, "--deny", "collectives-outside-conditionals=replica"]), 1);
    let by_hand = |arguments: &[&str]| of_by_hand(&[&["check"], arguments].concat()).status;
    assert_eq!(by_hand(&["--max-bytes-over", "slow=128", "--max-collectives-over", "slow=1"]), 0);
    assert_eq!(by_hand(&["--max-bytes-over", "slow=127"]), 1);
}

#[test]
fn mistakes_are_named() {
    check_refused(&["traffic", STREAMING, "--over", "dilco"], "did you mean \"diloco\"?");
    check_refused(&["traffic", STREAMING, "--over", "fsdp:(3)2"], "has no axis \"fsdp:(3)2\"");
    check_refused(&["traffic", STREAMING, "--compare", "steaming"], "\"steaming\" is none of vanilla, streaming");
    check_refused(&["traffic", STREAMING, "--gbps", "0"], "is not a rate above 0");
    check_refused(&["traffic", "examples/configs/fsdp8.toml"], "say which one is slow, as --over data");
    check_refused(&["traffic", "tests/foreign/fsdp_mlp.partitioned.txt"], "the module names no mesh; add --mesh");
    let text = [
        "traffic",
        "tests/foreign/fsdp_mlp.partitioned.txt",
        "--mesh",
        "data=2,fsdp=4",
        "--over",
        "data",
        "--compare",
        "vanilla",
    ];
    check_refused(&text, "--compare changes a run config, and this is HLO text");
    check_refused(&["check", PSDP, "--max-bytes-over", "replica"], "write AXIS=BYTES");
    check_refused(&["check", PSDP, "--max-bytes-over", "replca=1MiB"], "did you mean \"replica\"?");
}

/// A loop is not a branch: no input would decide it.
#[test]
fn a_loop_of_unknown_length_is_named() {
    const TEXT: &str = "
HloModule m, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (x: f32[16]) -> f32[16] {
  %x = f32[16] parameter(0)
  ROOT %y = f32[16] all-reduce(%x), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, to_apply=%add
}

%condition (x: f32[16]) -> pred[] {
  %x = f32[16] parameter(0)
  ROOT %goes_on = pred[] custom-call(%x), custom_call_target=\"any\"
}

ENTRY %main (x: f32[16]) -> f32[16] {
  %x = f32[16] parameter(0)
  ROOT %y = f32[16] while(%x), condition=%condition, body=%body
}
";
    let ran =
        with_input(&["traffic", "-", "--mesh", "slow=2,fast=4", "--over", "slow", "--steps", "3"], TEXT.as_bytes());
    for text in ["1 collective runs in a loop whose trip count is not known", "how much a step sends is not known"] {
        assert!(ran.out.contains(text), "{text}: {}{}", ran.out, ran.err);
    }
    assert!(!ran.out.contains("--step-input"), "{}", ran.out);
}
