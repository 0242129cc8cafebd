//! `hlo-dump` as its users run it: every command, every form of input, and what is wrong with some of them.

use std::io::Write;
use std::path::PathBuf;

use crate::dump::command::{Ran, check_refused, command, prints, run, with_input};
use meshloom::hlo::PlatformKind;
use meshloom::pjrt::check_present;
use serde_json::Value;

fn foreign(name: &str) -> PathBuf {
    support::path("tests/foreign").join(name)
}

const CONFIG: &str = "examples/configs/default.toml";
const TEXT: &str = "tests/foreign/fsdp_mlp.partitioned.txt";

// The specified JSON.

#[test]
fn collectives_as_specified() {
    let json = run(&["collectives", CONFIG, "--json"]).json();
    assert_eq!(json["schema"], "hlo-dump/collectives/1");
    assert_eq!(json["mesh"], "data=2,fsdp=4");
    let entries = json["collectives"].as_array().expect("a list");
    for entry in entries {
        for field in ["kind", "axes", "group_size", "bytes", "executions", "loop_depth", "name", "source"] {
            assert!(!entry[field].is_null(), "{field} of {entry}");
        }
    }
    let total = |entry: &Value| entry["moved_bytes"].as_u64().unwrap() * entry["executions"].as_u64().unwrap();
    assert_eq!(json["moved_bytes"].as_u64(), Some(entries.iter().map(total).sum()));
    let in_loops = |entry: &&Value| entry["loop_depth"] == 1 && entry["kind"] == "all-gather";
    let gathers: Vec<_> = entries.iter().filter(in_loops).collect();
    assert!(!gathers.is_empty() && gathers.iter().all(|entry| entry["executions"] == 4 && entry["axes"][0] == "fsdp"));
}

#[test]
fn memory_as_specified() {
    let json = run(&["memory", CONFIG, "--json"]).json();
    assert_eq!(json["schema"], "hlo-dump/memory/1");
    let bytes = |field: &str| json[field].as_u64().unwrap_or_else(|| panic!("{field}"));
    assert!(bytes("arguments") > 0 && bytes("outputs") > 0 && bytes("temporaries") > 0);
    assert_eq!(bytes("peak"), bytes("arguments") + bytes("outputs") - bytes("aliased") + bytes("temporaries"));
    assert!(!json["live_at_peak"].as_array().expect("a list").is_empty());
}

/// The implementation of attention follows from the platform and the length, or from the key.
#[test]
fn kernels_of_a_config() {
    let implementations = |settings: &[&str]| {
        let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", *setting]).collect();
        let json = run(&[&["show", CONFIG, "--kernels", "--json"], &settings[..]].concat()).json();
        let rows = json["kernels"].as_array().expect("a list").clone();
        rows.iter().map(|row| (row["implementation"].to_string(), row["how"].to_string())).collect::<Vec<_>>()
    };
    let long = "model.seq=1024";
    let blocks = "blocks of 128 queries and 128 keys, 36 of 64 pairs";
    let blockwise = ("\"blockwise\"".to_owned(), format!("\"{blocks}\""));
    assert_eq!(implementations(&[long]), [blockwise.clone(), blockwise]);
    let plain = ("\"plain\"".to_owned(), "\"\"".to_owned());
    assert_eq!(implementations(&[long, "kernels.attention=plain"]), [plain.clone(), plain]);
    let text = run(&["show", CONFIG, "--kernels", "--set", long]).out;
    assert!(
        text.contains(&format!("attention-gradient (1): blockwise: {blocks}; operands of a device: f32[")),
        "{text}"
    );
}

/// A program that is not compiled has an upper figure of memory, by the platform of the config or of `--chip`; a limit
/// is compared with that figure.
#[test]
fn uncompiled_memory_has_an_upper_figure() {
    let upper = |arguments: &[&str]| run(&[&["memory", CONFIG, "--json"], arguments].concat()).json();
    let json = upper(&[]);
    assert_eq!(json["upper"]["backend"], "cpu");
    let peaks = [&json["peak"], &json["upper"]["peak"]].map(|peak| peak.as_u64().expect("bytes"));
    assert!(peaks[0] < peaks[1], "{peaks:?}");
    assert_eq!(upper(&["--chip", "h100"])["upper"]["backend"], "cuda");
    assert_eq!(upper(&["--chip", "v5e"])["upper"]["backend"], "tpu");
    let text = run(&["memory", CONFIG]).out;
    assert!(text.contains("at most, with the margin for cpu"), "{text}");
    let check = |most: u64| run(&["check", CONFIG, "--max-memory", &most.to_string()]);
    assert_eq!((check(peaks[1]).status, check(peaks[1] - 1).status), (0, 1));
    assert!(check(peaks[0]).out.contains("with the margin for cpu, as it is not compiled"));
    let compiled = run(&["memory", "tests/foreign/xla_dump", "--json"]).json();
    assert!(compiled["upper"].is_null(), "{compiled}");
}

// Forms of input.

#[test]
fn every_form_is_read_from_anywhere() {
    let text = std::fs::read(foreign("fsdp_mlp.partitioned.txt")).unwrap();
    let proto = std::fs::read(foreign("fsdp_mlp.partitioned.pb")).unwrap();
    let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    compressed.write_all(&proto).unwrap();
    let compressed = compressed.finish().unwrap();
    let arguments = ["collectives", "-", "--mesh", "data=2,fsdp=4", "--json"];
    let found = |input: &[u8]| {
        let json = with_input(&arguments, input).json();
        (json["form"].as_str().map(str::to_owned), json["moved_bytes"].clone(), json["executions"].clone())
    };
    let (form, bytes, executions) = found(&text);
    assert_eq!(form.as_deref(), Some("HLO text"));
    for other in [&proto, &compressed] {
        let (form, other_bytes, other_executions) = found(other);
        assert_ne!(form.as_deref(), Some("HLO text"));
        assert_eq!((&other_bytes, &other_executions), (&bytes, &executions));
    }
    let config = std::fs::read(support::path(CONFIG)).unwrap();
    assert_eq!(with_input(&["collectives", "-", "--run-config", "--json"], &config).json()["form"], "run config");
}

#[test]
fn dump_folders_are_found_their_way_in() {
    let compiled = run(&["collectives", "tests/foreign/xla_dump", "--json"]).json();
    assert_eq!((&compiled["stage"], &compiled["mesh"]), (&"compiled".into(), &"data=8".into()));
    let traced = run(&["memory", "tests/foreign/xla_dump", "--stage", "traced", "--json"]).json();
    assert_eq!((&traced["stage"], &traced["memory_form"]), (&"traced".into(), &"uncompiled".into()), "{traced}");
    // The proto beside the text has the compiler's own assignment.
    let assigned = run(&["memory", "tests/foreign/xla_dump", "--json"]).json();
    assert_eq!(assigned["memory_form"], "assignment");
    let shapes: Vec<_> =
        assigned["live_at_peak"].as_array().unwrap().iter().map(|it| it["shape"].as_str().unwrap()).collect();
    assert!(shapes.iter().any(|shape| shape.starts_with("f32[")), "{assigned}");
    for module in ["12", "jit_f", "module_0012.jit_f"] {
        prints(&["show", "tests/foreign/xla_dump", "--module", module]);
    }
    check_refused(&["show", "tests/foreign/xla_dump", "--module", "jit_g"], "there are module_0012.jit_f");
    check_refused(&["show", "tests/foreign/xla_dump", "--stage", "partitioned"], "XLA writes passes with");
    check_refused(&["show", "src"], "no file is named as XLA names its dumps");
}

#[test]
fn what_is_no_hlo_is_told() {
    let refused = |input: &[u8], expected: &str| {
        let ran = with_input(&["show", "-"], input);
        assert_eq!(ran.status, 2);
        assert!(ran.err.contains(expected) && !ran.err.contains("panicked"), "{expected}: {}", ran.err);
    };
    refused(b"", "it is empty");
    refused(b" \n\n", "it is empty");
    refused(b"module @jit_f { }", "expected a function @main");
    refused(b"ML\xefR1234", "MLIR bytecode, byte");
    refused(b"hello world", "it is text, but neither HLO");
    refused(&[0, 1, 2, 0xff, 0xfe, 9, 9], "it is no HLO proto");
    refused(&[0x1f, 0x8b, 8, 0, 1, 2, 3], "compressed by gzip");
    let text = std::fs::read(foreign("fsdp_mlp.partitioned.txt")).unwrap();
    refused(&text[..text.len() / 2], "line ");
    let proto = std::fs::read(foreign("fsdp_mlp.partitioned.pb")).unwrap();
    refused(&proto[..proto.len() / 2], "is it complete?");
    // Two bytes for an instruction that takes a thousand decoded.
    let mut bomb = vec![0x0a, 1, b'm', 0x12, 1, b'e'];
    let instructions = [0x12, 0].repeat(4 << 20);
    let mut computation = vec![0x0a, 1, b'c'];
    computation.extend(instructions);
    bomb.push(0x1a);
    let mut length = computation.len();
    while length >= 128 {
        bomb.push((length % 128) as u8 | 128);
        length /= 128;
    }
    bomb.push(length as u8);
    bomb.extend(computation);
    refused(&bomb, "it is too large");
}

#[test]
fn wrong_use_says_what_to_do() {
    check_refused(&["collectives", "no-such-file"], "cannot open it");
    check_refused(&["collectives", TEXT, "--mesh", "data=3"], "has 3 devices, but there are 8");
    check_refused(&["collectives", TEXT, "--over", "fsdp"], "add --mesh");
    check_refused(&["collectives", TEXT, "--mesh", "data=2,fsdp=4", "--over", "fsd"], "did you mean \"fsdp\"?");
    check_refused(&["collectives", TEXT, "--kind", "gather"], "unknown collective");
    check_refused(&["collectives", TEXT, "--min-bytes", "4 parsecs"], "is not a number of bytes");
    check_refused(&["collectives", TEXT, "--set", "model.layers=1"], "--set is for run configs");
    check_refused(&["collectives", TEXT, "--stage", "sharded"], "--stage sharded is for run configs");
    check_refused(&["collectives", CONFIG, "--mesh", "data=8"], "--set mesh.axes");
    check_refused(&["collectives", CONFIG, "--set", "mesh.axes=data=3"], "has 3 devices, but there are 8");
    check_refused(&["show", CONFIG, "--stage", "shraded"], "did you mean \"sharded\"?");
    check_refused(&["show", TEXT, "--emit", "graph"], "is for run configs");
    check_refused(&["show", TEXT, "--computation", "nothing"], "there is no computation \"nothing\"");
    check_refused(&["cost", TEXT, "--chip", "v9"], "no chip is called \"v9\"");
    check_refused(&["explain", TEXT, "nothing"], "no tensor is called \"nothing\"");
    check_refused(&["explain", CONFIG, "params.layers.attention.wqq"], "did you mean");
    check_refused(&["check", TEXT], "there is nothing to check");
    check_refused(&["check", TEXT, "--deny", "everything"], "--deny everything: expected replication");
    check_refused(&["check", TEXT, "--deny", "all-gather=fsdp"], "add --mesh");
    check_refused(&["compile", TEXT, "--target", "gpu:v5e:2x4"], "is compiled by the tpu plugin");
    check_refused(&["compile", TEXT, "--target", "v5x:2x4"], "did you mean");
    check_refused(&["man", "--json"], "this command prints no table");
    check_refused(&["man", "nothing"], "there is no command \"nothing\"");
    check_refused(&["doctor", "--fetch", "npu"], "unknown platform");
}

// Commands.

#[test]
fn every_stage_of_a_config_is_shown() {
    let mut lengths = Vec::new();
    for stage in ["traced", "differentiated", "transformed", "sharded", "partitioned"] {
        let text = prints(&["show", CONFIG, "--stage", stage]);
        assert!(text.starts_with("HloModule "), "{stage}");
        let collectives = ["all-gather(", "reduce-scatter("].iter().any(|kind| text.contains(kind));
        assert_eq!(collectives, stage == "partitioned", "{stage}");
        assert_eq!(text.contains("sharding={"), matches!(stage, "sharded" | "partitioned"), "{stage}");
        lengths.push(text.lines().count());
    }
    assert!(lengths[0] < lengths[2], "a forward pass is less than a step: {lengths:?}");
    assert!(prints(&["show", CONFIG, "--emit", "graph", "--stage", "traced"]).starts_with("loss("));
}

#[test]
fn the_program_is_shown_in_every_form() {
    let text = prints(&["show", TEXT]);
    let full = prints(&["show", TEXT, "--full"]);
    assert!(full.contains("metadata={") && !text.contains("metadata={"));
    // The full text is the text that XLA printed.
    assert_eq!(full.trim(), std::fs::read_to_string(foreign("fsdp_mlp.partitioned.txt")).unwrap().trim());
    let json = run(&["show", TEXT, "--emit", "json"]).json();
    assert_eq!(json["schema"], "hlo-dump/show/1");
    let entry = json["entry"].as_str().expect("a name");
    let computations = json["computations"].as_array().expect("a list");
    let found = computations.iter().find(|computation| computation["name"] == entry).expect("the entry");
    assert_eq!((&found["executions"], found["instructions"].as_array().map(Vec::len).unwrap() > 10), (&1.into(), true));
    let one = prints(&["show", TEXT, "--full", "--computation", entry]);
    assert!(one.starts_with("ENTRY %") && one.trim_end().ends_with('}'), "{one}");
    assert!(prints(&["show", TEXT, "--emit", "dot"]).starts_with("digraph {"));
    assert!(prints(&["show", TEXT, "--emit", "svg"]).contains("<svg"));
    let stablehlo = prints(&["show", TEXT, "--emit", "stablehlo"]);
    assert!(stablehlo.starts_with("module @jit_fsdp_mlp attributes {mhlo.num_partitions = 8 : i32"), "{stablehlo}");
    assert!(!stablehlo.contains("loc(") && prints(&["show", TEXT, "--emit", "stablehlo", "--full"]).contains("loc("));
    check_refused(&["show", "tests/foreign/fsdp_mlp.optimized.txt", "--emit", "stablehlo"], "no form in StableHLO");
    let folder = tempfile::tempdir().unwrap();
    let artifact = folder.path().join("module.mlirbc");
    let artifact = artifact.to_str().expect("a path");
    prints(&["show", TEXT, "--emit", "artifact", "--output", artifact]);
    let text = folder.path().join("module.mlir");
    let text = text.to_str().expect("a path");
    prints(&["show", TEXT, "--emit", "stablehlo", "--full", "--output", text]);
    // Only names in the module differ: a text may state a reducer that has none in an artifact.
    assert!(prints(&["diff", artifact, text]).contains("they mean the same"));
    let page = prints(&["show", TEXT, "--emit", "html"]);
    assert!(page.starts_with("<!doctype html>") && !page.contains("http://") && !page.contains("https://"));
    let file = folder.path().join("module.pb");
    let file = file.to_str().expect("a path");
    prints(&["show", TEXT, "--emit", "proto", "--output", file]);
    assert_eq!(prints(&["show", file]), prints(&["show", "tests/foreign/fsdp_mlp.partitioned.pb"]));
}

#[test]
fn collectives_are_selected_sorted_and_added_up() {
    let mesh = ["--mesh", "data=2,fsdp=4", "--json"];
    let all = |arguments: &[&str]| {
        let arguments: Vec<&str> = ["collectives", "tests/foreign/scan_remat.optimized.txt"]
            .iter()
            .chain(&mesh)
            .chain(arguments)
            .copied()
            .collect();
        run(&arguments).json()
    };
    let names = |json: &Value| -> Vec<(String, u64)> {
        let entry = |entry: &Value| {
            let bytes = entry["moved_bytes"].as_u64().unwrap() * entry["executions"].as_u64().unwrap();
            (entry["kind"].as_str().unwrap().to_owned(), bytes)
        };
        json["collectives"].as_array().unwrap().iter().map(entry).collect()
    };
    let everything = names(&all(&[]));
    let gathers = names(&all(&["--kind", "all-gather"]));
    assert!(!gathers.is_empty() && gathers.len() < everything.len());
    assert!(gathers.iter().all(|(kind, _)| kind == "all-gather"));
    assert!(names(&all(&["--in-loops"])).len() < everything.len());
    let large = names(&all(&["--min-bytes", "10KiB"]));
    assert!(!large.is_empty() && large.iter().all(|(_, bytes)| *bytes >= 10 << 10));
    let over = names(&all(&["--over", "data"]));
    assert!(!over.is_empty() && over.len() < everything.len());
    let sorted: Vec<u64> = names(&all(&["--by", "total"])).iter().map(|(_, bytes)| *bytes).collect();
    assert!(sorted.windows(2).all(|pair| pair[0] >= pair[1]));
    let groups = all(&["--group", "kind"]);
    let sum: u64 =
        groups["groups"].as_array().unwrap().iter().map(|group| group["moved_bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, everything.iter().map(|(_, bytes)| bytes).sum::<u64>());
    let table = prints(&["collectives", CONFIG]);
    assert!(table.contains("all-gather") && table.contains("fsdp") && !table.contains('\u{1b}'), "{table}");
    assert!(prints(&["collectives", CONFIG, "--color", "always"]).contains('\u{1b}'));
    let exact = prints(&["collectives", CONFIG, "--units", "exact"]);
    assert!(exact.contains("524288") && !exact.contains("KiB"), "{exact}");
}

#[test]
fn limits_are_checked() {
    let check = |arguments: &[&str]| {
        let all: Vec<&str> = ["check", "tests/foreign/scan_remat.optimized.txt", "--mesh", "data=2,fsdp=4"]
            .iter()
            .chain(arguments)
            .copied()
            .collect();
        let ran = run(&all);
        assert!(ran.status <= 1, "{}", ran.err);
        ran.status
    };
    assert_eq!(check(&["--max-collective-bytes", "1GiB", "--max-collectives", "1000", "--max-memory", "1GiB"]), 0);
    assert_eq!(check(&["--max-collective-bytes", "1KiB"]), 1);
    assert_eq!(check(&["--max-collectives", "2"]), 1);
    assert_eq!(check(&["--max-memory", "1KiB"]), 1);
    assert_eq!(check(&["--deny", "collectives-in-loops=fsdp"]), 1);
    assert_eq!(check(&["--deny", "collectives-in-loops"]), 1);
    assert_eq!(check(&["--deny", "all-to-all"]), 0);
    assert_eq!(check(&["--deny", "reduce-scatter=fsdp"]), 0);
    assert_eq!(check(&["--deny", "all-gather=fsdp"]), 1);
    assert_eq!(check(&["--deny", "unknown-trip-counts"]), 0);
    assert_eq!(check(&["--deny", "collectives-across-branches"]), 0);
    let json = run(&["check", CONFIG, "--deny", "replication", "--json"]).json();
    assert_eq!((&json["schema"], &json["passed"]), (&"hlo-dump/check/1".into(), &true.into()));
    let whole =
        ["check", CONFIG, "--set", "rules.preset=decoder", "--set", "mesh.axes=data=8", "--deny", "replication"];
    let ran = run(&whole);
    assert_eq!(ran.status, 1, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("is whole on every device"), "{}", ran.out);
}

#[test]
fn differences_are_those_of_meaning() {
    let diff = |before: &str, after: &str| run(&["diff", before, after, "--exit-code", "--json"]);
    let same = diff("tests/foreign/fsdp_mlp.optimized.txt", "tests/foreign/fsdp_mlp.optimized.pb");
    assert_eq!(same.status, 0, "{}", same.out);
    let changed = diff("examples/configs/default.toml", "examples/configs/fsdp8.toml");
    assert_eq!((changed.status, &changed.json()["same"]), (1, &false.into()));
    let ran = run(&["diff", CONFIG, CONFIG, "--set-after", "model.layers=2", "--json"]).json();
    let collectives = ran["collectives"].as_array().expect("a list");
    let gather = collectives.iter().find(|change| change["kind"] == "all-gather").expect("a change");
    assert_eq!(
        (&gather["before"]["count"], &gather["after"]["count"]),
        (&gather["after"]["count"], &gather["before"]["count"])
    );
    assert!(gather["before"]["executions"].as_u64() > gather["after"]["executions"].as_u64());
}

#[test]
fn origins_are_explained() {
    let text = prints(&["explain", CONFIG, "params.layers.attention.wq"]);
    assert!(text.contains("[_, fsdp, _, _]") && text.contains("embed -> (fsdp,expert) (preset decoder)"), "{text}");
    let line = prints(&["explain", CONFIG, "layers/attention/dot"]);
    assert!(
        line.contains("through layers/") && line.contains("the constraint at crates/nn/src/attention.rs:"),
        "{line}"
    );
    let json = run(&["explain", CONFIG, "params.layers.mlp.gate", "--json"]).json();
    assert_eq!(json["schema"], "hlo-dump/explain/1");
    let stated = prints(&["explain", "tests/foreign/fsdp_mlp.unoptimized.txt", "parameters__down__.1"]);
    assert!(stated.contains("states {devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"), "{stated}");
}

#[test]
fn costs_are_of_chips() {
    let json = run(&["cost", CONFIG, "--chip", "v5p", "--json"]).json();
    assert_eq!((&json["schema"], &json["chip"]), (&"hlo-dump/cost/1".into(), &"v5p".into()));
    assert!(json["total"]["flops"].as_u64() > Some(1_000_000_000));
    assert!(json["roofline"]["overlapped_seconds"].as_f64() <= json["roofline"]["serial_seconds"].as_f64());
    for by in ["loop", "scope", "op", "opcode"] {
        assert!(prints(&["cost", CONFIG, "--chip", "h100", "--by", by]).contains("bound"), "{by}");
    }
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(prints(&["completions", shell]).contains("hlo-dump"), "{shell}");
    }
    assert!(prints(&["man"]).contains(".TH hlo-dump"));
    const NAMES: [&str; 11] = [
        "show",
        "collectives",
        "memory",
        "cost",
        "overlap",
        "explain",
        "partition",
        "advise",
        "diff",
        "report",
        "check",
    ];
    for name in NAMES {
        assert!(prints(&["man", name]).contains(&format!("hlo\\-dump {name}")), "{name}");
        assert!(prints(&[name, "--help"]).contains("Usage: hlo-dump"), "{name}");
    }
    for name in ["plan", "compile", "bisect", "doctor"] {
        assert!(prints(&[name, "--help"]).contains("Usage: meshloom"), "{name}");
    }
}

/// A machine with nothing on it: what is missing, and the command that fixes it.
#[test]
fn the_doctor_says_what_is_missing() {
    let empty = tempfile::tempdir().unwrap();
    let ran = Ran::of(
        command(&["doctor"])
            .env("XDG_CACHE_HOME", empty.path())
            .env("PATH", "/nonexistent")
            .env("MESHLOOM_OFFLINE", "1")
            .env_remove("MESHLOOM_CPU_PLUGIN")
            .env_remove("MESHLOOM_TPU_PLUGIN")
            .env_remove("MESHLOOM_CUDA_PLUGIN")
            .output()
            .unwrap(),
    );
    assert_eq!(ran.status, 0, "{}", ran.err);
    for platform in ["cpu", "tpu", "cuda"] {
        assert!(ran.out.contains(&format!("meshloom doctor --fetch {platform}")), "{}", ran.out);
    }
    assert!(ran.out.contains("MESHLOOM_OFFLINE=1") && ran.out.contains(" MB"), "{}", ran.out);
    let driver = match check_present(PlatformKind::Cuda) {
        Ok(()) => "GPU 0: ",
        Err(_) => "this machine has no NVIDIA driver: ",
    };
    assert!(ran.out.contains(driver), "{}", ran.out);
}

#[test]
fn foreign_modules_are_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("compiled.txt");
    let file = file.to_str().expect("a path");
    let text = prints(&["compile", "tests/foreign/fsdp_mlp.unoptimized.txt", "--target", "cpu:8", "-o", file]);
    assert!(text.contains("compiled for cpu:8") && text.contains("all-gather"), "{text}");
    assert!(prints(&["collectives", file, "--mesh", "data=2,fsdp=4"]).contains("fsdp"));
    // The text that is printed for people is a program too.
    let canonical = prints(&["show", "tests/foreign/fsdp_mlp.unoptimized.txt"]);
    let ran = with_input(&["compile", "-", "--target", "cpu:8", "--mesh", "data=2,fsdp=4"], canonical.as_bytes());
    assert_eq!(ran.status, 0, "{}", ran.err);
    for name in ["moe", "pipeline", "scan_remat"] {
        prints(&["compile", &format!("tests/foreign/{name}.unoptimized.txt"), "--target", "cpu:8"]);
    }
    check_refused(&["compile", "tests/foreign/fsdp_mlp.unoptimized.txt", "--target", "cpu:4"], "is for 8 devices");
    check_refused(&["compile", "tests/foreign/fsdp_mlp.optimized.txt", "--target", "cpu:8"], "is compiled already");
}

/// The CPU plugin keeps what was emitted; what XLA partitions has nothing to compare with.
#[test]
fn what_was_emitted_stands_beside_what_was_compiled() {
    let small = ["--set", "model.layers=1"];
    // A config says what it is compiled for.
    let printed = prints(&[&["compile", CONFIG, "--set", "target.topology=cpu:8"], &small[..]].concat());
    assert!(printed.contains("compiled for cpu:8 (8 devices, "), "{printed}");
    assert!(printed.contains("collectives as emitted, and as compiled"), "{printed}");
    // A config without a name is one if the user says so: its content does not decide what a compiler is told.
    let config = std::fs::read(support::path(CONFIG)).expect("a config");
    let compile = ["compile", "-", "--target", "cpu:8", "--json"];
    let refused = with_input(&compile, &config);
    assert!(refused.status == 2 && refused.err.contains("give --run-config"), "{}", refused.err);
    let json = with_input(&[&compile[..], &["--run-config"], &small].concat(), &config).json();
    assert_eq!((&json["schema"], &json["stage"]), (&"meshloom/compile/1".into(), &"compiled".into()));
    assert_eq!(json["target"], "cpu:8");
    assert!(json["memory"]["temporary"].as_i64() > Some(0));
    let compared = &json["compiled_as_emitted"];
    let all = &compared["all"];
    assert_eq!(all["compiled"]["moved_bytes"], json["moved_bytes"], "{compared}");
    let emitted = run(&[&["collectives", CONFIG, "--json"], &small[..]].concat()).json();
    assert_eq!(all["emitted"]["moved_bytes"], emitted["moved_bytes"], "{compared}");
    let bytes = |rows: &Value, side: &str| -> u64 {
        let rows = rows.as_array().expect("rows");
        rows.iter().map(|row| row[side]["moved_bytes"].as_u64().expect("bytes")).sum()
    };
    for side in ["emitted", "compiled"] {
        for rows in ["by_kind", "by_axes"] {
            assert_eq!(Some(bytes(&compared[rows], side)), all[side]["moved_bytes"].as_u64(), "{rows} {side}");
        }
    }
    let checked = [&["check", CONFIG, "--target", "cpu:8", "--compiled-as-emitted", "1.02"], &small[..]].concat();
    let ran = run(&checked);
    assert_eq!((ran.status, ran.out.contains("pass")), (0, true), "{}{}", ran.out, ran.err);
    let text = "tests/foreign/fsdp_mlp.unoptimized.txt";
    let json = run(&["compile", text, "--target", "cpu:8", "--json"]).json();
    assert!(json["compiled_as_emitted"].is_null(), "{json}");
    let checked = ["check", text, "--allow-unpartitioned", "--target", "cpu:8", "--compiled-as-emitted", "1.02"];
    check_refused(&checked, "XLA partitions this program");
}

const PIPELINE: &[&str] =
    &["plan", "examples/configs/default.toml", "--set", "mesh.axes=stage=2,fsdp=4", "--set", "remat.policy=full"];

#[test]
fn plans_are_compared() {
    let arguments = [PIPELINE, &["--set", "pipeline.repeats=2", "--chip", "v5e"]].concat();
    let printed = prints(&arguments);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].contains("(stage=2,fsdp=4): 4 layers on 2 stages, 4 microbatches"), "{printed}");
    let configured: Vec<&&str> = lines.iter().filter(|line| line.starts_with('*')).collect();
    assert_eq!(configured.len(), 1, "{printed}");
    let words: Vec<&str> = configured[0].split_whitespace().collect();
    assert_eq!(words[..8], ["*", "circular,", "M", "4,", "R", "2,", "bsw", "11.1"], "{printed}");
    assert!(words.contains(&"fits"), "{printed}");
    for plan in ["per-iteration", "gather-once, kept", "bsw-split", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"] {
        assert!(printed.contains(plan), "{plan}: {printed}");
    }
    // The picture of the configured one.
    assert!(lines.contains(&"9 iterations = 8 real + 1 bubble (11.1 %)"), "{printed}");
    assert!(lines.contains(&"stage 1      . 0:0 0:1 0:2 0:3 1:0 1:1 1:2 1:3"), "{printed}");
    assert!(lines.contains(&"weights 1    ~   ~   ~   ~   =   =   =   =   ="), "{printed}");
    // A chip that is too small: a device of half of one.
    let large = [PIPELINE, &["--set", "pipeline.repeats=2", "--set", "model.vocab=50000000", "--chip", "v5e"]].concat();
    assert!(prints(&large).contains("too large"));
}

/// The search finds a plan, says what it passed over, and writes a config that has it.
#[test]
fn plans_are_searched() {
    let folder = tempfile::tempdir().expect("a folder");
    let best = folder.path().join("best.toml").display().to_string();
    let config = "examples/configs/default.toml";
    let search = ["plan", config, "--search", "--target", "h100:1x1x8", "--most", "60"];
    let picture = folder.path().join("plans.svg").display().to_string();
    let json = run(&[&search[..], &["--write", &best, "--svg", &picture, "--json"]].concat()).json();
    assert_eq!((&json["schema"], &json["devices"]), (&"meshloom/plan/1".into(), &8.into()));
    let number = |name: &str| json[name].as_u64().expect("a number");
    assert!(number("lowered") >= 10 && number("considered") > number("lowered"), "{json}");
    let seconds: Vec<f64> = json["plans"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|plan| plan["seconds"].as_f64().expect("a number"))
        .collect();
    assert!(seconds.is_sorted() && seconds[0] > 0.0, "{seconds:?}");
    let written = std::fs::read_to_string(&best).expect("a config");
    let mesh = json["plans"][0]["settings"][0].as_str().expect("a setting").replacen("mesh.axes=", "axes = \"", 1);
    assert!(written.contains(&mesh) && written.contains("topology = \"h100:1x1x8\""), "{mesh}: {written}");
    prints(&["memory", &best]);
    // A point for each plan that is not much slower than the best.
    let picture = std::fs::read_to_string(&picture).expect("a picture");
    let settings = json["plans"][0]["settings"].as_array().expect("a list").iter().map(|it| it.as_str().expect("text"));
    let point = settings.collect::<Vec<_>>().join(" ").replace('"', "&quot;");
    assert!(picture.starts_with("<svg") && picture.contains(&point), "{point}: {picture}");
    let printed = prints(&search);
    for part in [
        "plans by time",
        "as configured",
        "no other is better in both time and memory",
        "=> the best plan: --set mesh.axes=",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

/// The advice is `--write`, and not `--set`, if the config has a part that no `--set` removes.
#[test]
fn a_plan_that_settings_do_not_make_is_written() {
    let config = "examples/configs/pipeline-bsw.toml";
    let printed = prints(&["plan", config, "--search", "--target", "h100:1x1x8", "--most", "20"]);
    assert!(printed.contains("=> --write FILE writes a config with the best plan"), "{printed}");
}

#[test]
fn a_search_needs_hardware() {
    let config = "examples/configs/default.toml";
    let refused =
        |arguments: &[&str], expected: &str| check_refused(&[&["plan", config], arguments].concat(), expected);
    refused(&["--search"], "give it, as by --target h100:1x1x8");
    refused(&["--search", "--target", "cpu:8"], "of cpu is not published");
    refused(&["--target", "h100:1x1x8"], "there is no pipeline to plan");
    refused(&["--search", "--target", "h100:1x1x8", "--network", "0"], "above 0");
}

#[test]
fn plans_as_json() {
    let json = run(&[PIPELINE, &["--set", "pipeline.repeats=2", "--json"]].concat()).json();
    assert_eq!(json["schema"], "meshloom/plan/1");
    assert_eq!((&json["devices"], &json["timeline"]["stages"]), (&8.into(), &2.into()));
    assert_eq!((&json["chip_bytes"], &json["configured"]["seconds"]), (&Value::Null, &Value::Null));
    let plans = json["plans"].as_array().expect("a list");
    let own: Vec<&Value> = plans.iter().filter(|plan| plan["configured"] == true).collect();
    assert_eq!(own.len(), 1);
    assert_eq!((&own[0], &own[0]["counts"]["gathers_forward"]), (&&json["configured"], &2.into()));
    assert!(own[0]["settings"].as_array().expect("a list").contains(&"pipeline.weights=bsw".into()), "{json}");
    // A microbatch of 4 rows, one on each device of fsdp, of 256 tokens, 256 wide: 9 + 8 times there, and as often
    // back.
    let permutes = own[0]["traffic"].as_array().expect("a list").iter().find(|it| it["kind"] == "collective-permute");
    assert_eq!(permutes.expect("permutes")["bytes"], 2 * 17 * 256 * 256 * 4);
    assert_eq!(json["timeline"]["columns"].as_array().expect("a list").len(), 18);
    assert!(own[0]["memory"]["peak"].as_u64() > own[0]["memory"]["temporaries"].as_u64());
    // With the rates of hardware, each has a time.
    let timed = [PIPELINE, &["--set", "pipeline.repeats=2", "--target", "v5e:2x4", "--json"]].concat();
    let json = run(&timed).json();
    assert!(
        json["plans"].as_array().expect("a list").iter().all(|plan| plan["seconds"].as_f64() > Some(0.0)),
        "{json}"
    );
}

const SPLIT: &[&str] = &[
    "plan",
    "examples/configs/default.toml",
    "--set",
    "mesh.axes=data=2,context=4",
    "--set",
    "model.seq=2048",
    "--set",
    "kernels.context_order=striped",
];

/// Each order of tokens with keys gathered and in a ring: what the busiest device computes, and what it sends.
#[test]
fn ways_to_split_a_sequence_are_compared() {
    let printed = prints(SPLIT);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].ends_with("(data=2,context=4): 4 layers"), "{printed}");
    let row = |start: &str| lines.iter().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{printed}"));
    assert!(row("*  keys gather, tokens striped").contains("1.00"), "{printed}");
    for (start, balance) in [("   keys gather, tokens natural", "1.71"), ("   keys ring, tokens two-chunk", "1.00")] {
        assert!(row(start).contains(balance) && row(start).contains("context "), "{printed}");
    }
    let json = run(&[SPLIT, &["--json"]].concat()).json();
    assert_eq!(json["timeline"], Value::Null);
    let ways = json["plans"].as_array().expect("a list");
    let all = |name: &str| ways.iter().map(|way| way[name].clone()).collect::<Vec<_>>();
    let names = ["natural", "two-chunk", "striped"];
    let settings = ["gather", "ring"].map(|keys| {
        names.map(|order| {
            serde_json::json!([format!("kernels.context={keys}"), format!("kernels.context_order={order}")])
        })
    });
    assert_eq!(all("settings"), settings.concat());
    assert_eq!(all("configured"), [false, false, true, false, false, false]);
    // In blocks of 128: 4 of queries see 12 of keys before their own part, and 10 pairs in it.
    assert_eq!(ways[0]["scores"]["busiest"], (4 * 12 + 10) * 128 * 128);
    assert_eq!(ways[1]["scores"]["mean"], f64::from(16 * 17 / 2 * 128 * 128 / 4));
    // A ring sends one part of cotangents more, whatever the order. Where keys are gathered, so are the places that an
    // order gives them, once: numbers of 4 bytes for 8 rows of 2048 tokens; three quarters come from others.
    let sent = |way: &Value| -> u64 {
        let of_context = |it: &&Value| it["axes"] == serde_json::json!(["context"]);
        let traffic = way["traffic"].as_array().expect("a list").iter().filter(of_context);
        traffic.map(|it| it["moved_bytes"].as_u64().expect("a number")).sum()
    };
    assert_eq!((sent(&ways[0]) + 8 * 2048 * 4 * 3 / 4, sent(&ways[3])), (sent(&ways[2]), sent(&ways[5])));
    assert!(sent(&ways[0]) < sent(&ways[3]));
    assert!(all("memory").iter().all(|memory| memory["peak"].as_u64() > Some(0)));
}

/// An order that the length does not allow is named beside the others.
#[test]
fn ways_that_a_sequence_cannot_be_split() {
    let arguments = ["plan", "examples/configs/default.toml", "--set", "mesh.axes=context=8", "--set", "model.seq=24"];
    let ran = run(&arguments);
    assert_eq!(ran.status, 0, "{}", ran.err);
    let refused = "not keys gather, tokens two-chunk: kernels.context_order is \"two-chunk\": model.seq, which is 24, must be a multiple of 16";
    assert!(format!("{}{}", ran.out, ran.err).contains(refused), "{}{}", ran.out, ran.err);
    let json = run(&[&arguments[..], &["--json"]].concat()).json();
    assert_eq!(json["refused"][0]["settings"][1], "kernels.context_order=two-chunk");
    assert_eq!(json["plans"].as_array().map(Vec::len), Some(4));
}

#[test]
fn long_schedules_are_folded() {
    let long =
        [PIPELINE, &["--set", "pipeline.repeats=2", "--set", "train.batch=256", "--set", "pipeline.microbatches=64"]]
            .concat();
    let folded = prints(&long);
    assert!(folded.contains('…') && folded.contains("--schedule shows all"));
    let whole = prints(&[&long[..], &["--schedule"]].concat());
    assert!(!whole.contains('…') && whole.contains("1:63"));
}

#[test]
fn what_cannot_be_planned() {
    let says = |arguments: &[&str], expected: &[&str]| {
        let ran = run(arguments);
        assert_eq!((ran.status, ran.out.as_str()), (2, ""), "{arguments:?}");
        for expected in expected {
            assert!(ran.err.contains(expected), "{arguments:?}: {}", ran.err);
        }
    };
    says(&["plan", "examples/configs/default.toml"], &["no pipeline to plan", "--set mesh.axes=stage=2"]);
    says(PIPELINE, &["needs a section [pipeline]"]);
    says(&[PIPELINE, &["--set", "pipeline.repeats=3"]].concat(), &["model.layers is 4", "2 * 3 * 1 = 6"]);
    says(&[PIPELINE, &["--set", "pipeline.microbatches=3"]].concat(), &["pipeline.microbatches is 3", "use 2 or 4"]);
    says(&[PIPELINE, &["--set", "pipeline.repeats=2", "--chip", "v9"]].concat(), &["no chip is called \"v9\""]);
    says(&["plan", "no/such.toml"], &["cannot read the config"]);
}
