//! `hlo-dump schema`: the schema of each command's JSON, held against what the commands print.

use serde_json::Value;

use crate::dump::command::{check_refused, prints, run};
use crate::dump::json_page;
use crate::dump::validate::validate;

const CONFIG: &str = "examples/configs/default.toml";
const STREAMING: &str = "examples/configs/streaming-diloco.toml";
const TEXT: &str = "tests/foreign/fsdp_mlp.partitioned.txt";
const SCHEDULED: &str = "tests/foreign/pipeline.tpu.txt";
const LOCAL_SGD: &str = "tests/foreign/local_sgd.optimized.txt";
const PROFILE: &str = "tests/foreign/profile/scan_remat.cpu.xplane.pb";
const FOLDER: &str = "tests/foreign/xla_dump";

/// Commands in all forms of their answers.
const RUNS: [&[&str]; 26] = [
    &["show", TEXT],
    &["show", SCHEDULED, "--computation", "main.10_spmd"],
    &["show", CONFIG, "--kernels", "--set", "model.seq=1024"],
    &["collectives", TEXT, "--mesh", "data=2,fsdp=4"],
    &["collectives", SCHEDULED],
    &["collectives", LOCAL_SGD, "--mesh", "diloco=2,fsdp=4"],
    &["collectives", CONFIG, "--group", "kind-axes"],
    &["collectives", CONFIG, "--set", "train.steps_per_call=3"],
    &["traffic", STREAMING],
    &["traffic", LOCAL_SGD, "--mesh", "diloco=2,fsdp=4", "--steps", "3", "--gbps", "1"],
    &["memory", CONFIG],
    &["memory", FOLDER, "--chip", "v5p"],
    &["memory", SCHEDULED],
    &["memory", TEXT, "--remedies"],
    &["overlap", SCHEDULED, "--chip", "v5p"],
    &["cost", TEXT],
    &["cost", SCHEDULED, "--chip", "v5p"],
    &["explain", TEXT, "parameters"],
    &["partition", "tests/foreign/lowered/fsdp_mlp.stablehlo.txt"],
    &["advise", "tests/foreign/lowered/fsdp_mlp.debug.stablehlo.txt", "--against", TEXT],
    &["explain", CONFIG, "params.layers.mlp.gate"],
    &["diff", TEXT, "tests/foreign/moe.partitioned.txt"],
    &["diff", TEXT, TEXT],
    &["lock", LOCAL_SGD],
    &["check", TEXT, "--max-memory", "1KiB", "--deny", "all-gather"],
    &["check", FOLDER, "--max-collectives", "1000"],
];

fn schema_of(command: &str) -> Value {
    serde_json::from_str(&prints(&["schema", command])).expect("JSON")
}

fn of_all() -> Value {
    serde_json::from_str(&prints(&["schema"])).expect("JSON")
}

#[test]
fn every_answer_has_its_schema() {
    let all = of_all();
    let page = tempfile::tempdir().expect("a folder");
    let page = page.path().join("page.html");
    let report = ["report", PROFILE, "-o", page.to_str().expect("a path")];
    for arguments in RUNS.into_iter().chain([&report[..]]) {
        let json = run(&[arguments, &["--json"]].concat()).json();
        let checked = validate(&json, &schema_of(arguments[0])).and_then(|()| validate(&json, &all));
        assert!(checked.is_ok(), "{arguments:?}: {}", checked.unwrap_err());
    }
    let mut seen: Vec<&str> = RUNS.iter().map(|arguments| arguments[0]).chain(["report"]).collect();
    seen.dedup();
    for known in all["oneOf"].as_array().expect("a list") {
        let command = known["$ref"].as_str().and_then(|text| text.strip_prefix("#/$defs/")).expect("a reference");
        assert!(seen.contains(&command), "no run of {command}");
    }
}

/// A wrong answer has no schema: the check above would see it.
#[test]
fn a_wrong_answer_is_seen() {
    let json = run(&["memory", TEXT, "--json"]).json();
    let schema = schema_of("memory");
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut changed = json.clone();
        change(&mut changed);
        validate(&changed, &schema).unwrap_err()
    };
    assert!(changed(&|it| it["peak"] = "much".into()).contains("answer.peak is"));
    assert!(changed(&|it| it["peaks"] = 1.into()).contains("answer.peaks is not in the schema"));
    assert!(changed(&|it| it["memory_form"] = "guessed".into()).contains("guessed"));
    assert!(changed(&|it| it["schema"] = "hlo-dump/cost/1".into()).contains("answer.schema is"));
    assert!(changed(&|it| drop(it.as_object_mut().unwrap().remove("devices"))).contains("answer has no devices"));
}

#[test]
fn every_field_is_described() {
    fn check(schema: &Value, path: &str, wrong: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let text = field["description"].as_str().unwrap_or_default();
            if !text.ends_with('.') || text.contains("[`") || text.contains("None") {
                wrong.push(format!("{path}.{name}: \"{text}\""));
            }
            check(field, &format!("{path}.{name}"), wrong);
        }
        for forms in ["oneOf", "anyOf"] {
            schema[forms].as_array().into_iter().flatten().for_each(|form| check(form, path, wrong));
        }
    }
    let mut wrong = Vec::new();
    for (name, definition) in of_all()["$defs"].as_object().expect("definitions") {
        check(definition, name, &mut wrong);
    }
    assert!(wrong.is_empty(), "not described in a sentence: {}", wrong.join("\n"));
}

#[test]
fn the_page_of_fields_is_what_the_schema_says() {
    let path = support::path("docs/json.md");
    let page = json_page::page(&of_all());
    if std::env::var_os("MESHLOOM_UPDATE").is_some() {
        std::fs::write(&path, &page).expect("the page");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/json.md is not what `hlo-dump schema` says; MESHLOOM_UPDATE=1 writes it");
}

#[test]
fn a_command_without_json_has_no_schema() {
    check_refused(&["schema", "memry"], "there is no schema of \"memry\" (did you mean \"memory\"?)");
    check_refused(&["schema", "man"], "there is no schema of \"man\"");
    check_refused(&["schema", "--json"], "this command prints no table");
}
