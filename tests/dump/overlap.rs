//! `hlo-dump overlap`: the table, JSON, and the trace for Perfetto, of a schedule small enough to work out by hand.
//!
//! On a v5p a permute of `f32[2000]` takes 8000 bytes / 200 GB/s = 40 ns, and `negate` of `f32[13825]` takes 110600
//! bytes / 2765 GB/s = 40 ns.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::dump::command::{Ran, check_refused, run, with_input};

/// 80 ns are sent over `fsdp` beside 40 ns of compute; then five iterations send 40 ns each over `data`, and compute
/// beside it.
const STEP: &str = "HloModule step, is_scheduled=true, num_partitions=4

body {
  t = (s32[], f32[2000], f32[13825]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  p = f32[2000] get-tuple-element(t), index=1
  x = f32[13825] get-tuple-element(t), index=2
  s = (f32[2000], f32[2000]) collective-permute-start(p), channel_id=2, source_target_pairs={{0,2},{2,0},{1,3},{3,1}}
  a = f32[13825] negate(x), metadata={op_name=\"jit(step)/layer/neg\" source_file=\"step.py\" source_line=7}
  d = f32[2000] collective-permute-done(s)
  ROOT r = (s32[], f32[2000], f32[13825]) tuple(i, d, a)
}

condition {
  t = (s32[], f32[2000], f32[13825]) parameter(0)
  ROOT c = pred[] constant(true)
}

ENTRY main {
  p = f32[2000] parameter(0)
  q = f32[4000] parameter(1)
  x = f32[13825] parameter(2)
  zero = s32[] parameter(3)
  start = (f32[4000], f32[4000]) collective-permute-start(q), channel_id=1, source_target_pairs={{0,1},{1,0},{2,3},{3,2}}, metadata={op_name=\"jit(step)/embed/shift\" source_file=\"step.py\" source_line=3}
  b = f32[13825] negate(x)
  done = f32[4000] collective-permute-done(start)
  init = (s32[], f32[2000], f32[13825]) tuple(zero, p, b)
  w = (s32[], f32[2000], f32[13825]) while(init), condition=condition, body=body, backend_config={\"known_trip_count\":{\"n\":\"5\"}}
  ROOT last = f32[13825] get-tuple-element(w), index=2
}
";

const OPTIONS: [&str; 4] = ["--mesh", "data=2,fsdp=2", "--chip", "v5p"];

fn overlap(more: &[&str]) -> Ran {
    let ran = with_input(&[&["overlap", "-"], &OPTIONS[..], more].concat(), STEP.as_bytes());
    assert_eq!(ran.status, 0, "{}", ran.err);
    ran
}

/// Nanoseconds of a number of seconds.
fn nanoseconds(seconds: &Value) -> f64 {
    (seconds.as_f64().expect("seconds") * 1e12).round() / 1e3
}

#[test]
fn what_is_hidden_is_said_by_collective_and_by_axis() {
    let found = overlap(&[]).out;
    let has = |row: &str| {
        let words: Vec<&str> = row.split(' ').collect();
        found.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().ends_with(&words))
    };
    // The rows end with the source; the sums with the part that is hidden.
    for row in [
        "80.0 ns 40.0 ns 40.0 ns 50.0 % negate %b, 40.0 ns step.py:3 jit(step)/embed/shift",
        "fsdp 1 80.0 ns 40.0 ns 40.0 ns 50.0 %",
        "data 1 200 ns 0 s 0 s 100.0 %",
        "all 2 280 ns 40.0 ns 40.0 ns 85.7 %",
    ] {
        assert!(has(row), "{row}\n{found}");
    }
    assert!(found.contains("on v5p, at peak rates: it computes for 240 ns, and waits for 40.0 ns"), "{found}");
    let found = overlap(&["--over", "data"]).out;
    assert!(!found.contains("step.py:3") && found.contains("1 of 2 collectives are selected"), "{found}");
    let found = overlap(&["--json"]).json();
    assert_eq!(found["schema"], "hlo-dump/overlap/1");
    let of = |object: &Value| ["seconds", "exposed_seconds", "waited_seconds"].map(|name| nanoseconds(&object[name]));
    assert_eq!(of(&found["total"]), [280.0, 40.0, 40.0]);
    assert_eq!((nanoseconds(&found["computing_seconds"]), nanoseconds(&found["waiting_seconds"])), (240.0, 40.0));
    assert_eq!((&found["axes"][0]["axes"], of(&found["axes"][0])), (&"fsdp".into(), [80.0, 40.0, 40.0]));
    assert_eq!((&found["axes"][1]["axes"], of(&found["axes"][1])), (&"data".into(), [200.0, 0.0, 0.0]));
    assert!(found["transfers"][0]["synchronous"] == false && found["host_copies"] == Value::Array(Vec::new()));
}

#[test]
fn what_is_not_compiled_is_refused_with_the_way() {
    let unscheduled = STEP.replace("is_scheduled=true, ", "");
    let ran = with_input(&[&["overlap", "-"], &OPTIONS[..]].concat(), unscheduled.as_bytes());
    assert!(ran.status == 2 && ran.err.contains("the module has no schedule") && ran.err.contains("lowered.compile()"));
    check_refused(&["overlap", "tests/foreign/fsdp_mlp.tpu.txt"], "say for which, as --chip v5p");
}

/// The events of a trace by process and lane, in the order of time, those first that contain others.
fn lanes(trace: &Value) -> BTreeMap<(u64, u64), Vec<&Value>> {
    let mut lanes: BTreeMap<(u64, u64), Vec<&Value>> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().expect("events").iter().filter(|event| event["ph"] == "X") {
        let number = |name: &str| event[name].as_u64().expect("a number");
        lanes.entry((number("pid"), number("tid"))).or_default().push(event);
    }
    lanes
}

/// Whole nanoseconds from beginning to end, as Perfetto reads them: it cuts off the rest.
fn stretch(event: &Value) -> (u64, u64) {
    let [start, length] = ["ts", "dur"].map(|name| (event[name].as_f64().expect("a time") * 1000.0) as u64);
    (start, start + length)
}

#[track_caller]
fn check_nested(trace: &Value) {
    for (lane, events) in lanes(trace) {
        let mut around: Vec<u64> = Vec::new();
        let mut last = 0;
        for event in events {
            let (start, end) = stretch(event);
            assert!(start >= last, "{lane:?}: not in the order of time: {event}");
            last = start;
            around.retain(|&it| it > start);
            assert!(around.last().is_none_or(|&it| end <= it), "{lane:?}: ends after what is around it: {event}");
            around.push(end);
        }
    }
}

fn sum(trace: &Value, category: &str) -> f64 {
    let events = trace["traceEvents"].as_array().expect("events").iter();
    let number = |event: &Value, name: &str| event["args"][name].as_f64().unwrap_or(1.0);
    let of = |event: &Value| number(event, "seconds") * number(event, "times") / number(event, "lanes");
    events.filter(|event| event["cat"] == category).map(of).sum()
}

#[test]
fn the_trace_has_the_sums_of_the_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("step.json");
    let path = path.to_str().expect("a path");
    let found = overlap(&["--perfetto", path, "--json"]).json();
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).expect("a trace")).expect("JSON");
    check_nested(&trace);
    let sums = ["compute", "transfer", "wait"].map(|category| nanoseconds(&sum(&trace, category).into()));
    assert_eq!(sums, [240.0, 280.0, 40.0]);
    let names: Vec<&str> = trace["traceEvents"]
        .as_array()
        .expect("events")
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["compute", "waits", "fsdp", "data"]);
    let by_name = |name: &str| lanes(&trace).into_values().flatten().find(|it| it["name"] == name).expect("an event");
    // The loop is as long as its five iterations, and one of them is drawn.
    let (whole, one) = (by_name("w, 5 times"), by_name("body, one of 5"));
    assert_eq!((stretch(whole), stretch(one)), ((80, 280), (80, 120)));
    assert_eq!((&whole["args"]["iterations"], &one["args"]["times"]), (&5.into(), &5.0.into()));
    let inner = by_name("a");
    assert_eq!(
        (&inner["args"]["source"], &inner["args"]["op_name"]),
        (&"step.py:7".into(), &"jit(step)/layer/neg".into())
    );
    assert_eq!((&inner["args"]["shape"], &inner["args"]["bytes"]), (&"f32[13825]".into(), &110_600.into()));
    assert_eq!(stretch(by_name("start (collective-permute over fsdp)")), (0, 80));
    assert_eq!(stretch(by_name("for start")), (40, 80));
    assert_eq!(found["perfetto"]["left_out"]["short"]["events"], 0);
    // A program with branches is drawn with the one that computes least, and the others are counted.
    let branching = ["overlap", "tests/foreign/local_sgd.optimized.txt", "--mesh", "replica=2,fsdp=4", "--chip", "v5p"];
    let ran = run(&[&branching[..], &["--perfetto", path, "--json"]].concat());
    assert_eq!(ran.status, 0, "{}", ran.err);
    let found = ran.json();
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).expect("a trace")).expect("JSON");
    check_nested(&trace);
    let left_out = found["perfetto"]["left_out"]["branches"]["transfer_seconds"].as_f64().expect("seconds");
    assert!(left_out > 0.0, "{found}");
    let of = |name: &str| found[name].as_f64().expect("seconds");
    for (category, expected) in [
        ("compute", of("computing_seconds")),
        ("wait", of("waiting_seconds")),
        ("transfer", found["total"]["seconds"].as_f64().expect("seconds") - left_out),
    ] {
        let sum = sum(&trace, category);
        assert!((sum - expected).abs() <= 1e-9 * expected.max(1e-9), "{category}: {sum} and not {expected}");
    }
}

#[test]
fn a_profile_is_drawn_beside_the_estimate() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("step.json");
    let path = path.to_str().expect("a path");
    let profile = "tests/foreign/profile/scan_remat.cpu.xplane.pb";
    let ran = run(&["overlap", profile, "--chip", "v5p", "--perfetto", path]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(ran.out.contains(" measured"), "{}", ran.out);
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).expect("a trace")).expect("JSON");
    check_nested(&trace);
    let measured = lanes(&trace).into_iter().filter(|((process, _), _)| *process > 1).flat_map(|(_, events)| events);
    let measured: Vec<&Value> = measured.collect();
    assert!(measured.iter().all(|event| event["cat"] == "measured"));
    assert!(measured.iter().any(|event| event["args"]["op_name"].as_str().is_some_and(|it| it.contains("jit("))));
}
