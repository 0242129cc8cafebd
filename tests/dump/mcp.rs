//! `hlo-dump mcp`: the commands as tools, over lines of JSON in memory.

use std::path::Path;

use serde_json::{Value, json};

use crate::dump::command::{Ran, with_input};
use crate::dump::validate::validate;

const TEXT: &str = "tests/foreign/fsdp_mlp.partitioned.txt";
const VERSION: &str = "2025-06-18";

fn initialize(version: &str) -> Value {
    json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "tests", "version": "1" }
        }
    })
}

/// Sends lines after the introduction, and returns the answers to all requests.
fn answers(lines: &[String]) -> Vec<Value> {
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let begin = [initialize(VERSION).to_string(), initialized.to_string()];
    let input = begin.iter().chain(lines).map(|line| format!("{line}\n")).collect::<String>();
    let Ran { status, out, err } = with_input(&["mcp"], input.as_bytes());
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn request(id: u64, method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

/// Calls tools, and returns the results in the order of the calls.
fn calls(calls: &[(&str, Value)]) -> Vec<Value> {
    let line = |(id, (name, arguments)): (u64, &(&str, Value))| {
        request(id, "tools/call", json!({ "name": name, "arguments": arguments }))
    };
    let found = answers(&(1..).zip(calls).map(line).collect::<Vec<_>>());
    let result = |id: usize| {
        let answer = found.iter().find(|answer| answer["id"] == id).unwrap_or_else(|| panic!("no {id}: {found:?}"));
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    };
    (1..=calls.len()).map(result).collect()
}

fn call(name: &str, arguments: Value) -> Value {
    calls(&[(name, arguments)]).remove(0)
}

/// Returns the text of an error of a tool.
fn refused(name: &str, arguments: Value) -> String {
    let result = call(name, arguments);
    assert_eq!(result["isError"], true, "{result}");
    result["content"][0]["text"].as_str().expect("a text").to_owned()
}

fn tools() -> Vec<Value> {
    let found = answers(&[request(1, "tools/list", json!({}))]);
    let listed = found.iter().find(|answer| answer["id"] == 1).expect("an answer");
    listed["result"]["tools"].as_array().expect("a list").clone()
}

#[test]
fn versions_are_negotiated() {
    let of = |version: &str| {
        let ran = with_input(&["mcp"], format!("{}\n", initialize(version)).as_bytes());
        let answer: Value = serde_json::from_str(ran.out.lines().next().expect("an answer")).expect("JSON");
        assert_eq!(answer["result"]["serverInfo"]["name"], "hlo-dump", "{answer}");
        answer["result"]["protocolVersion"].as_str().expect("a version").to_owned()
    };
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        assert_eq!(of(version), version);
    }
    // The server offers one that it has.
    assert!(of("1999-01-01").starts_with("202"));
    assert_eq!(with_input(&["mcp"], b"").status, 0);
}

#[test]
fn tools_are_the_commands() {
    let tools = tools();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().expect("a name")).collect();
    for name in ["show", "collectives", "traffic", "memory", "cost", "explain", "diff", "lock", "check"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for name in ["report", "completions", "man", "mcp", "schema"] {
        assert!(!names.contains(&name), "{names:?}");
    }
    for tool in &tools {
        let name = tool["name"].as_str().expect("a name");
        let input = &tool["inputSchema"];
        assert_eq!((&input["type"], &input["additionalProperties"]), (&"object".into(), &false.into()), "{tool}");
        for (property, schema) in input["properties"].as_object().expect("properties") {
            assert!(schema["description"].as_str().is_some_and(|text| !text.is_empty()), "{name}.{property}: {schema}");
            let writes = ["output", "svg", "run_config", "set", "target", "compiled_as_emitted"];
            assert!(!writes.contains(&property.as_str()), "{name} has {property}");
        }
        assert_eq!(tool["outputSchema"].is_object(), name != "show", "{name}");
        assert_eq!(tool["annotations"]["readOnlyHint"], true);
    }
    let of = |name: &str| tools.iter().find(|tool| tool["name"] == name).expect("a tool")["inputSchema"].clone();
    assert_eq!(of("explain")["required"], json!(["path", "tensor"]));
    assert_eq!(of("diff")["required"], json!(["before", "after"]));
    let collectives = of("collectives");
    assert_eq!(collectives["properties"]["in_loops"]["type"], "boolean");
    assert_eq!(collectives["properties"]["over"]["type"], "array");
    assert!(collectives["properties"]["group"]["enum"].as_array().expect("words").contains(&"kind-axes".into()));
}

#[test]
fn answers_have_the_schemas_of_their_tools() {
    let runs = [
        ("collectives", json!({ "path": TEXT, "mesh": "data=2,fsdp=4", "over": ["fsdp"], "limit": 0 })),
        ("collectives", json!({ "path": TEXT, "group": "kind" })),
        ("memory", json!({ "path": TEXT, "chip": "v5p", "min_bytes": "1KiB" })),
        ("cost", json!({ "path": TEXT, "limit": 3 })),
        ("explain", json!({ "path": TEXT, "tensor": "parameters" })),
        ("diff", json!({ "before": TEXT, "after": TEXT })),
        ("lock", json!({ "path": TEXT })),
        ("check", json!({ "path": TEXT, "max_collectives": 1, "deny": ["all-gather", "all-to-all"] })),
    ];
    let tools = tools();
    let results = calls(&runs);
    for ((name, arguments), result) in runs.iter().zip(&results) {
        let schema = &tools.iter().find(|tool| tool["name"] == *name).expect("a tool")["outputSchema"];
        let answer = &result["structuredContent"];
        assert_eq!(result["isError"], false, "{name} {arguments}: {result}");
        validate(answer, schema).unwrap_or_else(|wrong| panic!("{name} {arguments}: {wrong}"));
        let text = result["content"][0]["text"].as_str().expect("a text");
        assert_eq!(serde_json::from_str::<Value>(text).expect("JSON"), *answer);
    }
    // Figures by hand: see tests/foreign/expected.toml.
    let [all, .., check] = results.as_slice() else { panic!("{results:?}") };
    assert_eq!(all["structuredContent"]["mesh"], "data=2,fsdp=4");
    assert_eq!(check["structuredContent"]["passed"], false);
    let cost = &results[3]["structuredContent"];
    assert_eq!(cost["instructions"].as_array().map(Vec::len), Some(3));
    assert!(cost["left_out"]["instructions"].as_u64().is_some_and(|count| count > 3), "{}", cost["left_out"]);
}

#[test]
fn programs_are_shown_as_text() {
    let shown = call("show", json!({ "path": TEXT, "limit": 400 }));
    let text = shown["content"][0]["text"].as_str().expect("a text");
    assert!(text.starts_with("HloModule") && text.contains("more bytes"), "{text}");
    assert!(shown["structuredContent"].is_null());
    let whole = call("show", json!({ "path": TEXT, "limit": 0 }));
    assert!(!whole["content"][0]["text"].as_str().expect("a text").contains("more bytes"));
}

#[test]
fn errors_are_for_readers() {
    let wrong = [
        ("memory", json!({ "path": TEXT, "chip": "v9" }), "no chip is called \"v9\""),
        ("memory", json!({}), "memory needs the argument \"path\""),
        ("memory", json!({ "path": TEXT, "chp": "v5p" }), "memory has no argument \"chp\" (did you mean \"chip\"?)"),
        ("memory", json!({ "path": { "file": TEXT } }), "is neither text nor a number"),
        ("memory", json!({ "path": TEXT, "limit": "all" }), "\"limit\": \"all\" is no whole number"),
        ("collectives", json!({ "path": TEXT, "in_loops": "yes" }), "\"in_loops\": \"yes\" is neither true nor false"),
        ("collectives", json!({ "path": TEXT, "over": ["fsdp"] }), "add --mesh"),
        ("collectives", json!({ "path": TEXT, "group": "--json" }), "invalid value '--json'"),
        ("memry", json!({ "path": TEXT }), "there is no tool \"memry\" (did you mean \"memory\"?)"),
        ("report", json!({ "path": TEXT, "output": "x.html" }), "there is no tool \"report\""),
    ];
    for (name, arguments, expected) in wrong {
        let said = refused(name, arguments.clone());
        assert!(said.contains(expected), "{name} {arguments}: expected \"{expected}\", found: {said}");
    }
}

/// The server answers what it can of what follows a line that is no request, or a request that is wrong.
#[test]
fn nothing_that_is_wrong_ends_the_server() {
    let wrong = [
        "{",
        "[]",
        "null",
        "\u{0}",
        "{\"jsonrpc\":\"2.0\",\"id\":50}",
        "{\"jsonrpc\":\"2.0\",\"id\":51,\"method\":\"no/such\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":52,\"method\":\"tools/call\",\"params\":{\"name\":7}}",
        "{\"jsonrpc\":\"2.0\",\"id\":53,\"method\":\"tools/call\",\"params\":{\"name\":\"memory\",\"arguments\":[]}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/no-such\"}",
    ];
    let last = request(9, "ping", json!({}));
    let found = answers(&wrong.map(str::to_owned).into_iter().chain([last]).collect::<Vec<_>>());
    assert!(found.iter().any(|answer| answer["id"] == 9 && answer["result"].is_object()), "{found:?}");
    assert!(found.iter().any(|answer| answer["id"] == 51 && answer["error"].is_object()), "{found:?}");
    // Before the introduction too.
    let early = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}";
    let input = format!("{{\n{early}\n{}\n{}\n", initialize(VERSION), request(9, "ping", json!({})));
    let ran = with_input(&["mcp"], input.as_bytes());
    assert!(ran.status == 0 && ran.out.contains("\"id\":9"), "{ran:?}");
}

#[test]
fn files_elsewhere_are_not_read() {
    let outside = "reads only files below the folder that it was started in";
    let here = support::path("");
    let absolute = |path: &str| here.join(path).to_str().expect("a path").to_owned();
    assert_eq!(call("memory", json!({ "path": absolute(TEXT) }))["isError"], false);
    // There or not, the answer is the same.
    let elsewhere =
        ["../x.txt", "/etc/passwd", "/no/such/file", "tests/../../x", "/dev/stdin", "/proc/self/environ", "/", ".."];
    for path in elsewhere {
        assert!(refused("memory", json!({ "path": path })).contains(outside), "{path}");
        assert!(refused("diff", json!({ "before": TEXT, "after": path })).contains(outside), "{path}");
        let check = refused("check", json!({ "path": TEXT, "lock": path }));
        assert!(check.contains(outside), "{path}: {check}");
    }
    assert!(refused("memory", json!({ "path": "-" })).contains("`hlo-dump mcp` has the requests"));
    assert!(refused("memory", json!({ "path": "no/such/file" })).contains("cannot open it"));
    let config = json!({ "path": "examples/configs/default.toml" });
    assert!(refused("memory", config).contains("`hlo-dump mcp` reads none"));
    let compiled = json!({ "path": TEXT, "min_overlap": ["0.9"] });
    assert!(refused("check", compiled).contains("`hlo-dump mcp` compiles nothing"));
}

/// A link below the folder leads nowhere else, be it a file or a folder, or a file of a dump folder.
#[test]
fn links_lead_nowhere_else() {
    let below = tempfile::tempdir_in(support::path("target")).expect("a folder");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let text = std::fs::read(support::path(TEXT)).expect("a program");
    let dump = "module_0001.jit_f.before_optimizations.txt";
    std::fs::write(elsewhere.path().join(dump), &text).expect("a file");
    std::fs::create_dir(below.path().join("dumps")).expect("a folder");
    let link = |to: &Path, name: &str| {
        let name = below.path().join(name);
        std::os::unix::fs::symlink(to, &name).expect("a link");
        name.to_str().expect("a path").to_owned()
    };
    let file = link(&elsewhere.path().join(dump), "file.txt");
    let folder = link(elsewhere.path(), "folder");
    link(&elsewhere.path().join(dump), &format!("dumps/{dump}"));
    let dumps = below.path().join("dumps").to_str().expect("a path").to_owned();
    let in_folder = format!("{folder}/{dump}");
    for path in [&file, &folder, &in_folder, &dumps, &format!("{folder}/no_such"), &format!("{folder}/../x")] {
        let said = refused("memory", json!({ "path": path }));
        assert!(said.contains("reads only files below"), "{path}: {said}");
    }
    let within = link(&support::path(TEXT), "within.txt");
    assert_eq!(call("memory", json!({ "path": within }))["isError"], false);
}
