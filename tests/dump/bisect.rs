//! `meshloom bisect` on defects that were planted: each is found, and the program shrinks to little more than it.

use std::path::Path;

use crate::dump::command::{Ran, check_refused, command};
use meshloom::analysis::shrink::instruction_count;
use meshloom::compile::Pass;
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::HloModuleProto;
use meshloom::ir::{Graph, GraphBuilder, Value};
use meshloom::ops::{Binary, BinaryKind, Op};
use meshloom_cli::internals::{Dimension, bisect};
use support::configs::UNOPTIMIZED;
use support::pjrt_modules as modules;
use support::{plugins, quick_compiles};
use tempfile::TempDir;

fn written(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    path.display().to_string()
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Runs a search in a process without the settings of XLA in the environment of the tests.
fn run(arguments: &[&str]) -> Ran {
    let output = command(arguments).env_remove("XLA_FLAGS").output().expect("hlo-dump starts");
    Ran::of(output)
}

fn read(out: &Path, name: &str) -> String {
    std::fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Searches a module, and gives the summary and the shrunk module.
fn searched(module: &str, more: &[&str]) -> (Ran, String, String) {
    let folder = folder();
    let out = folder.path().join("found");
    let out_text = out.display().to_string();
    // Other plugins may be here or not.
    let only = ["--only", "option", "--only", "xla-pass", "--only", "xla-flag"];
    let ran = run(&[&["bisect", module, "--out", &out_text][..], &only, more].concat());
    assert_eq!(ran.status, 1, "{}{}", ran.out, ran.err);
    let mut names: Vec<String> = std::fs::read_dir(&out)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, ["inputs.safetensors", "module.hlo.txt", "reproduce.py", "summary.md"]);
    (ran, read(&out, "summary.md"), read(&out, "module.hlo.txt"))
}

fn count(text: &str) -> usize {
    instruction_count(&parse(text).unwrap_or_else(|error| panic!("{error}")).hlo_module.expect("a module"))
}

/// A train step so small that it compiles in a moment.
const CONFIG: &str = r#"
[model]
layers = 2
embed = 8
heads = 1
kv_heads = 1
head_dim = 4
mlp = 8
seq = 4
[train]
batch = 2
[mesh]
axes = "data=2"
[target]
devices = 2
compile_cache = ""
"#;

/// A pass that is wrong: it swaps the operands of the first subtraction of two different values.
fn swap_a_subtraction(graph: &Graph) -> Graph {
    let mut builder = GraphBuilder::new("swapped");
    let mut values: Vec<Option<Value>> = vec![None; graph.value_count()];
    let place = |value: Value| graph.values().position(|other| other == value).expect("a value");
    for (&input, info) in graph.inputs().iter().zip(graph.input_info()) {
        values[place(input)] = Some(builder.input(graph.ty(input).clone(), info.clone()));
    }
    let mut is_done = false;
    for node in graph.nodes() {
        let mut operands: Vec<Value> =
            node.operands().iter().map(|&value| values[place(value)].expect("an operand")).collect();
        let is_subtraction = matches!(node.op(), Op::Binary(Binary(BinaryKind::Subtract)));
        if is_subtraction && !is_done && graph.ty(node.operands()[0]).rank() > 0 {
            operands.reverse();
            is_done = true;
        }
        builder.set_origin(node.origin());
        let results = builder.push(node.op().clone(), &operands).expect("the same types");
        for (old, new) in node.results().zip(results) {
            values[place(old)] = Some(new);
        }
    }
    assert!(is_done, "the train step subtracts nothing");
    let outputs = graph.outputs().iter().map(|&value| values[place(value)].expect("an output")).collect();
    builder.finish(outputs, graph.output_info().to_vec())
}

/// The step has one device and one layer, since each try compiles the whole of it. It is shrunk by its outputs
/// alone, by one try for each half. In the full tier, the search makes it that small itself, and shrinks it to the end.
#[test]
fn a_wrong_pass_is_found() {
    // The search treats the XLA flags of its environment as options of the program, but the quick ones are none.
    if !quick_compiles::are_usual(module_path!(), "a_wrong_pass_is_found") {
        return;
    }
    let planted = [Pass::of("swap-a-subtraction", "is wrong", swap_a_subtraction)];
    let scratch = folder();
    let every_case = support::cases::every_case("dump wrong pass");
    let mut words = vec!["--symptom", "differs", "--only", "pass"];
    words.extend(match every_case {
        true => &["--only", "size", "--only", "mesh", "--shrink", "60"][..],
        false => {
            &["--shrink", "2", "--set", "model.layers=1", "--set", "mesh.axes=data=1", "--set", "target.devices=1"]
        }
    });
    if !every_case {
        words.extend(["--set", UNOPTIMIZED]);
    }
    let config = written(&scratch, "config.toml", CONFIG);
    words.push(&config);
    let report =
        bisect(&words, &planted, quick_compiles::worker(scratch.path())).unwrap_or_else(|error| panic!("{error}"));
    let found: Vec<_> = report.culprits.iter().filter(|it| it.dimension == Dimension::Pass).collect();
    assert!(found.iter().any(|it| it.name == "swap-a-subtraction"), "{found:?}");
    for smaller in ["model.layers=1", "mesh.axes=data=1"].into_iter().filter(|_| every_case) {
        assert!(report.overrides.iter().any(|it| it == smaller), "{:?}", report.overrides);
    }
    let shrinking = report.shrinking.expect("it is shrunk");
    // Two modules: in the end each has two parameters and the subtraction, which takes 44 tries.
    let most = if every_case { 6 } else { shrinking.instructions_before - 1 };
    assert!(shrinking.instructions <= most, "{shrinking:?}");
    let case = report.case.expect("a case");
    let has = |module: &HloModuleProto| {
        module.computations.iter().flat_map(|it| &it.instructions).any(|it| it.opcode == "subtract")
    };
    let (module, reference) = case.modules();
    assert!(has(module) && reference.is_some_and(has));
}

#[test]
fn a_right_config_has_nothing_to_find() {
    if !quick_compiles::are_usual(module_path!(), "a_right_config_has_nothing_to_find") {
        return;
    }
    let scratch = folder();
    let config = written(&scratch, "config.toml", CONFIG);
    let words = [&config[..], "--set", "model.layers=1", "--set", UNOPTIMIZED];
    let report = bisect(&words, &[], quick_compiles::worker(scratch.path())).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((report.symptom, report.runs), (None, 2));
}

/// Whether numbers are NaN, in the midst of other things.
const IS_NAN: &str = "HloModule is_nan

ENTRY main {
  x = f32[16] parameter(0)
  y = f32[16] parameter(1)
  sine = f32[16] sine(y)
  sum = f32[16] add(x, sine)
  is_nan = pred[16] compare(sum, sum), direction=NE
  one = f32[] constant(1)
  ones = f32[16] broadcast(one), dimensions={}
  chosen = f32[16] select(is_nan, ones, sine)
  ROOT both = (f32[16], f32[16]) tuple(sine, chosen)
}
";

#[test]
fn a_setting_that_changes_numbers_is_found() {
    let folder = folder();
    let module = written(&folder, "is_nan.txt", IS_NAN);
    let plain = ["--special", "--symptom", "differs", "--plugin", "xla-cpu-pjrt"];
    let fast = ["--option", "xla_cpu_enable_fast_math=true", "--option", "xla_cpu_fast_math_honor_nans=false"];
    let (ran, summary, text) = searched(&module, &[&plain[..], &fast[..]].concat());
    assert!(ran.out.contains("without the option xla_cpu_enable_fast_math=true the symptom is gone"), "{}", ran.out);
    assert!(text.contains("compare") && count(&text) == 2, "{text}");
    insta::assert_snapshot!("setting", summary);
    // Without the setting there is nothing to find.
    let ran = run(&[&["bisect", &module[..]][..], &plain[..]].concat());
    assert_eq!((ran.status, ran.out.contains("nothing to find")), (0, true), "{}{}", ran.out, ran.err);
}

#[test]
fn a_wrong_fold_is_found() {
    let folder = folder();
    let module = written(&folder, "fold.pb", modules::dot_of_transposed_constant());
    let (ran, summary, text) =
        searched(&module, &["--plugin", "xla-cpu-pjrt", "--option", "xla_disable_hlo_passes=none"]);
    assert!(ran.out.contains("without XLA's pass constant_folding the symptom is gone"), "{}", ran.out);
    assert!(text.contains("transpose") && count(&text) == 5, "{text}");
    insta::assert_snapshot!("fold", summary);
}

/// A call that gives no array of dynamic size, which a check of XLA's asks for, in the midst of other things.
const CHECK: &str = "HloModule check

ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  sine = f32[8] sine(x)
  product = f32[8] multiply(sine, y)
  cut = f32[8] custom-call(product), custom_call_target=\"SliceToDynamic\"
  sum = f32[8] add(cut, sine)
  exponential = f32[8] exponential(y)
  ROOT both = (f32[8], f32[8]) tuple(sum, exponential)
}
";

#[test]
fn what_ends_the_process_is_found() {
    let folder = folder();
    let module = written(&folder, "check.txt", CHECK);
    let (ran, summary, text) = searched(&module, &["--plugin", "xla-cpu-pjrt"]);
    assert!(ran.out.contains("symptom: the process ends by signal 6"), "{}", ran.out);
    assert!(text.contains("SliceToDynamic") && count(&text) == 2, "{text}");
    insta::assert_snapshot!("crash", summary);
}

/// Two replicas: one sends and waits, and the other does something else. Computations share names, as in text
/// for people.
const HANG: &str = "HloModule hang, replica_count=2

yes { a = f32[4] parameter(0)  ROOT b = f32[4] collective-permute(a), source_target_pairs={{0,1},{1,0}} }
no { a = f32[4] parameter(0)  ROOT b = f32[4] add(a, a) }

ENTRY main {
  p = f32[4] parameter(0)
  replica = u32[] replica-id()
  zero = u32[] constant(0)
  is_first = pred[] compare(replica, zero), direction=EQ
  square = f32[4] multiply(p, p)
  sent = f32[4] conditional(is_first, square, square), true_computation=yes, false_computation=no
  ROOT sum = f32[4] add(sent, square)
}
";

#[test]
fn what_waits_forever_is_found() {
    let folder = folder();
    let module = written(&folder, "hang.txt", HANG);
    let (ran, summary, text) = searched(&module, &["--symptom", "hang", "--time-limit", "2", "--shrink", "3"]);
    assert!(ran.out.contains("symptom: it is not done after 2 s"), "{}", ran.out);
    assert!(summary.contains("Symptom: it is not done after 2 s."), "{summary}");
    assert!(text.contains("collective-permute") && count(&text) < 12, "{text}");
}

/// A product that is larger than all that goes in and comes out.
const LARGE: &str = "HloModule large

sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }

ENTRY main {
  x = f32[1024] parameter(0)
  y = f32[1024] parameter(1)
  rows = f32[1024,1024] broadcast(x), dimensions={0}
  columns = f32[1024,1024] broadcast(y), dimensions={1}
  product = f32[1024,1024] multiply(rows, columns)
  zero = f32[] constant(0)
  total = f32[1024] reduce(product, zero), dimensions={1}, to_apply=sum
  ROOT both = (f32[1024], f32[1024]) tuple(total, y)
}
";

#[test]
fn what_needs_too_much_memory_is_found() {
    let folder = folder();
    let module = written(&folder, "large.txt", LARGE);
    let limited = ["--plugin", "xla-cpu-pjrt", "--symptom", "memory", "--max-memory"];
    let (ran, _, text) = searched(&module, &[&limited[..], &["1MiB"]].concat());
    assert!(ran.out.contains("symptom: it needs ") && ran.out.contains("the limit is 1048576"), "{}", ran.out);
    assert!(text.contains("broadcast") && count(&text) == 2, "{text}");
    let ran = run(&[&["bisect", &module[..]][..], &limited[..], &["1GiB"]].concat());
    assert_eq!((ran.status, ran.out.contains("nothing to find")), (0, true), "{}{}", ran.out, ran.err);
}

#[test]
fn answers_are_data_too() {
    let folder = folder();
    let module = written(&folder, "check.txt", CHECK);
    let ran = run(&["bisect", &module, "--plugin", "xla-cpu-pjrt", "--shrink", "0", "--json"]);
    assert_eq!(ran.status, 1, "{}", ran.err);
    let json = ran.json();
    assert_eq!((&json["schema"], &json["found"]), (&"meshloom/bisect/1".into(), &true.into()));
    assert_eq!((&json["symptom"]["kind"], &json["symptom"]["signal"]), (&"crash".into(), &6.into()));
    let tried = json["tried"].as_array().expect("a list");
    assert_eq!((&tried[0]["dimension"], &tried[0]["verdict"]), (&"as-given".into(), &"shows".into()));
    assert!(json["runs"].as_u64().is_some_and(|runs| runs as usize >= tried.len().min(3)));
    // Plugins that are here, the one that was tried aside.
    let plugins = tried.iter().filter(|it| it["dimension"] == "plugin").count();
    assert!(plugins < plugins::cpu_wheels().count());
}

#[test]
fn what_cannot_be_searched_is_refused() {
    let folder = folder();
    let tuple = "HloModule t\nENTRY main {\n  ROOT x = (f32[2], f32[2]) parameter(0)\n}\n";
    let module = written(&folder, "tuple.txt", tuple);
    let check = written(&folder, "check.txt", CHECK);
    let cases: [(&[&str], &str); 7] = [
        (&[&module], "parameter 0, %x, is a tuple that cannot be given from here"),
        (&[&check, "--range", "1,0"], "expected two finite numbers, the smaller first"),
        (&[&check, "--time-limit", "0"], "expected more than 0 seconds"),
        (&[&check, "--symptom", "memory"], "needs --max-memory"),
        (&[&check, "--option", "fast"], "expected name=value"),
        (&[&check, "--plugin", "none-such"], "none-such"),
        (&[&check, "--out", &folder.path().display().to_string()], "the folder has files"),
    ];
    for (arguments, expected) in cases {
        check_refused(&[&["bisect"], arguments].concat(), expected);
    }
    check_refused(&["bisect", &check, "--symptom", "crahs"], "crash");
}
