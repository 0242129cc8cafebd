//! Tests of passes over graphs in files: `tests/filetests/*.txt` hold what a pass gets and what it must make of it.
//!
//! ```text
//! pass: algebra, dead-code
//! ====
//! rule: x + -0 = x
//! // A comment.
//!
//! case(%0: f32[8]) {
//!   ...
//! }
//! ----
//! case(%0: f32[8]) {
//!   return %0
//! }
//! ====
//! ...
//! ```
//!
//! A line `====` starts a case. First come `key: value` lines, for which those before the first case are the defaults.
//! After an empty line comes the graph, and after `----` what becomes of it.
//!
//! | key | meaning |
//! |---|---|
//! | `pass` | names of passes, see below |
//! | `rule` | the rule of `passes::algebra_rules` that the case is for |
//! | `hoisted_bytes`, `combined_bytes`, `all_reduce_bytes`, `packed_bytes` | the fields of `passes::CollectiveLimits` |
//! | `matmul` | its field of that name: `on`, or the operations per byte by which it is found where that pays |
//! | `plugin` | `yes`: values are compared on the CPU plugin too |
//! | `collectives` | what is left to communicate, as `summary` puts it |
//! | `moved_bytes` | how many bytes a device sends in all of these |
//! | `batched` | the numbers of the inputs that `vmap` has three examples of |
//! | `fallbacks` | the ops that could not work on parts, where `partition` found any |
//!
//! A pass is one of `compile::PASSES` or `compile::LOCAL_PASSES`; or `hoist`, which is `passes::hoist_invariants`; or
//! `partition`, which shards by the specs of ports and partitions; or `vmap`; or `all`, all that an unsharded graph
//! goes through.
//!
//! For every case it is checked too that the text reads back as the same graph. But for `vmap`, whose values
//! `tests/compiler/vmap.rs` and `tests/ops/batching.rs` compare, it is checked that ports keep their descriptions, that
//! values stay the same in every bit, and, without a mesh, that the passes find nothing more to do.
//!
//! `MESHLOOM_UPDATE=1 cargo test --release --test compiler passes_make` writes what the passes make
//! into the files, though not what is stated under the keys.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshloom::batching::{BatchAxis, vmap};
use meshloom::compile::{LOCAL_PASSES, LowerOptions, PASSES, lower};
use meshloom::ir::{Graph, GraphBuilder, GraphTextOptions, Literal, PortInfo, TensorType, verify};
use meshloom::ops::Call;
use meshloom::partition::{Collective, Ledger, partition};
use meshloom::passes::{CollectiveLimits, CollectiveMatmul, algebra_rules, hoist_invariants};
use meshloom::sharding::{Mesh, propagate_with_sub_axes};
use support::cases::cases;
use support::interpret::{interpret, literal, same_bits};
use support::spmd::run_local;
use support::{eight_devices, inputs_of, local_graph};

/// A case as it is written in its file.
struct Case {
    place: String,
    /// The lines in front of the graph.
    head: String,
    keys: BTreeMap<String, String>,
    before: String,
    after: String,
}

/// A file: what stands in front of its cases, and these.
struct File {
    path: PathBuf,
    head: String,
    cases: Vec<Case>,
}

fn keys(head: &str) -> impl Iterator<Item = (String, String)> {
    let lines = head.lines().filter(|line| !line.starts_with("//"));
    lines.filter_map(|line| line.split_once(": ").map(|(key, value)| (key.to_owned(), value.to_owned())))
}

fn read(path: &Path) -> File {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut parts = text.split("====\n");
    let head = parts.next().unwrap_or_default().to_owned();
    let mut line = head.lines().count() + 1;
    let mut cases = Vec::new();
    for part in parts {
        let place = format!("{}:{line}", path.display());
        line += part.lines().count() + 1;
        let (own, graphs) = part.split_once('\n').filter(|(first, _)| first.is_empty()).map_or_else(
            || part.split_once("\n\n").unwrap_or_else(|| panic!("{place}: no empty line before the graph")),
            |(_, graphs)| ("", graphs),
        );
        let (before, after) = graphs.split_once("----\n").unwrap_or((graphs, ""));
        let keys = keys(&head).chain(keys(own)).collect();
        cases.push(Case { place, head: own.to_owned(), keys, before: before.to_owned(), after: after.to_owned() });
    }
    File { path: path.to_owned(), head, cases }
}

impl File {
    fn text(&self, after: &[String]) -> String {
        let mut text = self.head.clone();
        for (case, after) in self.cases.iter().zip(after) {
            let head = if case.head.is_empty() { String::new() } else { format!("{}\n", case.head) };
            text += &format!("====\n{head}\n{}----\n{after}", case.before);
        }
        text
    }
}

fn files() -> Vec<File> {
    let folder = support::path("tests/filetests");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// The mesh that the text begins with.
fn mesh_of(text: &str) -> Option<Mesh> {
    let axes = text.strip_prefix("mesh \"")?.split_once('"')?.0;
    let axes = axes.split(',').map(|axis| axis.split_once('=').expect("NAME=SIZE"));
    Some(Mesh::new(axes.map(|(name, size)| (name, size.parse().expect("a size")))).expect("a mesh"))
}

fn text_of(graph: &Graph, mesh: Option<&Mesh>) -> String {
    graph.to_text(GraphTextOptions { whole_constants: true, mesh, ..GraphTextOptions::default() })
}

impl Case {
    fn graph(&self, text: &str) -> Graph {
        Graph::from_text(text).unwrap_or_else(|error| panic!("{}: {error}", self.place))
    }

    fn number(&self, key: &str, default: u64) -> u64 {
        self.keys.get(key).map_or(default, |text| text.parse().expect("a number"))
    }

    fn passes(&self) -> &str {
        self.keys.get("pass").unwrap_or_else(|| panic!("{}: no pass", self.place))
    }

    fn is_vmap(&self) -> bool {
        self.passes() == "vmap"
    }

    fn is_partition(&self) -> bool {
        self.passes().contains("partition")
    }

    /// Returns the graph that the passes make, its mesh, and the ops that partitioning could not split.
    fn run(&self, graph: &Graph, mesh: Option<&Mesh>) -> (Graph, Option<Mesh>, String) {
        let default = CollectiveLimits::default();
        let limits = CollectiveLimits {
            combined_bytes: self.number("combined_bytes", default.combined_bytes),
            hoisted_bytes: self.number("hoisted_bytes", default.hoisted_bytes),
            matmul: match self.keys.get("matmul").map(String::as_str) {
                None => default.matmul,
                Some("on") => CollectiveMatmul::On,
                Some(number) => {
                    CollectiveMatmul::Auto { operations_per_byte: number.parse().expect("`on` or a number") }
                }
            },
            packed_bytes: self.number("packed_bytes", default.packed_bytes),
            all_reduce_bytes: self.number("all_reduce_bytes", default.all_reduce_bytes),
        };
        let (mut graph, mut mesh, mut fallbacks) = (graph.clone(), mesh.cloned(), Vec::new());
        for name in self.passes().split(", ") {
            graph = match name {
                "all" => {
                    lower(&graph, &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}")).graph().clone()
                }
                "hoist" => hoist_invariants(&graph),
                "vmap" => {
                    let listed: Vec<&str> = self.keys.get("batched").map_or(vec![], |list| list.split(", ").collect());
                    let inputs = 0..graph.inputs().len();
                    let batched: Vec<bool> = inputs.map(|input| listed.contains(&&*input.to_string())).collect();
                    let result = vmap(&graph, &batched, BatchAxis::new(3));
                    result.unwrap_or_else(|error| panic!("{}: {error}", self.place)).0
                }
                "partition" => {
                    let on = mesh.as_ref().unwrap_or_else(|| panic!("{}: no mesh", self.place));
                    let propagated = propagate_with_sub_axes(&graph, on);
                    let partitioned = partition(&propagated.graph, &propagated.mesh, &propagated.shardings);
                    mesh = Some(propagated.mesh);
                    let partitioned = partitioned.unwrap_or_else(|error| panic!("{}: {error}", self.place));
                    fallbacks = partitioned.fallbacks.iter().map(|fallback| fallback.op.clone()).collect();
                    partitioned.graph
                }
                name => {
                    let pass = PASSES.iter().chain(LOCAL_PASSES).find(|pass| pass.name == name);
                    pass.unwrap_or_else(|| panic!("{}: no pass {name}", self.place)).run(&graph, &limits)
                }
            };
            verify(&graph).unwrap_or_else(|error| panic!("{}: {error}\n{graph}", self.place));
        }
        (graph, mesh, fallbacks.join(", "))
    }
}

/// The kind and axes of each collective, in order; how often it runs if not once, and how many operands if several.
fn summary(graph: &Graph, mesh: &Mesh) -> String {
    let entry = |entry: &Collective| {
        let operands = if entry.operand_count > 1 { format!(" x{}", entry.operand_count) } else { String::new() };
        let times = if entry.executions == 1 { String::new() } else { format!(" {} times", entry.executions) };
        format!("{} {}{operands}{times}", entry.kind, entry.axes.join(","))
    };
    Ledger::of(graph, mesh).iter().expect("no filter").map(entry).collect::<Vec<_>>().join("; ")
}

#[test]
fn passes_make_of_graphs_what_the_files_say() {
    let update = std::env::var_os("MESHLOOM_UPDATE").is_some();
    let (mut wrong, mut broken) = (Vec::new(), Vec::new());
    for file in files() {
        let mut found = Vec::new();
        for case in &file.cases {
            let (before, mesh) = (case.graph(&case.before), mesh_of(&case.before));
            let (after, after_mesh, fallbacks) = case.run(&before, mesh.as_ref());
            found.push(text_of(&after, after_mesh.as_ref()));
            let text = found.last().expect("just pushed");
            if *text != case.after {
                wrong.push(format!("{} ({}) gave\n{text}\ninstead of\n{}", case.place, case.head, case.after));
            }
            assert!(case.graph(text) == after, "{}: read back, this is another graph\n{text}", case.place);
            let mut stated = |key: &str, found: &str| match case.keys.get(key) {
                Some(expected) if expected != found => {
                    broken.push(format!("{}: {key} `{found}`, not `{expected}`", case.place));
                }
                _ => {}
            };
            if let Some(mesh) = &after_mesh {
                let summary = summary(&after, mesh);
                stated("collectives", if summary.is_empty() { "none" } else { &summary });
                let moved = Ledger::of(&after, mesh).moved_bytes().expect("no filter").bound();
                stated("moved_bytes", &moved.map_or("unknown".to_owned(), |bytes| bytes.to_string()));
            }
            if case.is_partition() && case.keys.get("fallbacks").map_or("", String::as_str) != fallbacks {
                broken.push(format!("{}: fallbacks `{fallbacks}`", case.place));
            }
            if mesh.is_none() && !case.is_vmap() {
                assert_eq!(text_of(&case.run(&after, None).0, None), *text, "{}: not idempotent", case.place);
            }
            if !case.is_partition() && !case.is_vmap() {
                assert_eq!(before.input_info(), after.input_info(), "{}", case.place);
                assert_eq!(before.output_info(), after.output_info(), "{}", case.place);
            }
        }
        if update {
            std::fs::write(&file.path, file.text(&found)).expect("the file is written");
        }
    }
    // Statements that a person has written are not updated.
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(update || wrong.is_empty(), "{}\nMESHLOOM_UPDATE=1 updates the files", wrong.join("\n"));
}

/// The special cases of arithmetic for each kind of type; `turn` shifts them, so that pairs of operands differ.
fn numbers(ty: &TensorType, turn: usize) -> Literal {
    const FLOATS: [f64; 8] = [0.0, -0.0, 1.0, -1.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.3];
    const WHOLE: [f64; 8] = [0.0, 1.0, -1.0, f64::MIN, f64::MAX, 7.0, -7.0, 2.0];
    let list = if ty.dtype.is_float() { FLOATS } else { WHOLE };
    // Shifted by an odd number in every round, all pairs meet.
    literal(ty, &mut (0..ty.element_count()).map(|index| list[(index + turn * (1 + index / 8)) % 8]))
}

/// Numbers that are all different, and small enough that sums of many are exact.
fn small_numbers(ty: &TensorType, seed: usize) -> Literal {
    literal(ty, &mut (0..ty.element_count()).map(|index| ((index * 7 + seed * 13) % 64) as f64))
}

/// Whether a graph is too large to be interpreted in a test.
fn is_large(graph: &Graph) -> bool {
    graph.values().any(|value| graph.ty(value).element_count() > 2_000_000)
}

#[test]
fn values_stay_the_same() {
    for case in files().iter().flat_map(|file| &file.cases) {
        let (before, after) = (case.graph(&case.before), case.graph(&case.after));
        let (mesh, after_mesh) = (mesh_of(&case.before), mesh_of(&case.after));
        if is_large(&before) || case.is_vmap() {
            continue;
        }
        match mesh {
            None => {
                for turn in 0..9 {
                    let special =
                        || before.input_types().enumerate().map(|(index, ty)| numbers(ty, turn * index)).collect();
                    let is_f64 = before.input_types().all(|ty| ty.dtype == meshloom::ir::DType::F64);
                    let inputs: Vec<Literal> = if turn == 8 && is_f64 { inputs_of(&before) } else { special() };
                    let (expected, found) = (interpret(&before, &inputs), interpret(&after, &inputs));
                    for (found, expected) in found.iter().zip(&expected) {
                        assert!(same_bits(found, expected), "{}: {found:?}\n{expected:?}", case.place);
                    }
                }
            }
            Some(mesh) => {
                let after_mesh = after_mesh.unwrap_or_else(|| panic!("{}: the result has no mesh", case.place));
                let whole = |(index, (ty, info)): (usize, (&TensorType, &PortInfo))| {
                    let mut ty = ty.clone();
                    if let (Some(spec), false) = (&info.spec, case.is_partition()) {
                        ty.dims.iter_mut().enumerate().for_each(|(dim, size)| *size *= spec.part_count(&mesh, dim));
                    }
                    small_numbers(&ty, index)
                };
                let inputs: Vec<Literal> =
                    before.input_types().zip(before.input_info()).enumerate().map(whole).collect();
                let expected = match case.is_partition() {
                    true => interpret(&before, &inputs),
                    false => {
                        run_local(&before, &mesh, &inputs).unwrap_or_else(|error| panic!("{}: {error}", case.place))
                    }
                };
                let found = run_local(&after, &after_mesh, &inputs);
                let found = found.unwrap_or_else(|error| panic!("{}: {error}", case.place));
                // The numbers are small integers, so that no sum is rounded.
                assert_eq!(found, expected, "{}", case.place);
            }
        }
    }
}

/// All programs that say so, before and after, on the CPU plugin, all in one module each.
#[test]
fn values_stay_the_same_on_the_plugin() {
    let pairs: Vec<(String, Graph, Graph)> = files()
        .iter()
        .flat_map(|file| &file.cases)
        .filter(|case| case.keys.contains_key("plugin"))
        .map(|case| (case.place.clone(), case.graph(&case.before), case.graph(&case.after)))
        .filter(|(_, before, _)| before.output_types().all(|ty| ty.element_count() < 10_000))
        .collect();
    let together = |pick: fn(&(String, Graph, Graph)) -> &Graph| {
        let mut builder = GraphBuilder::new("together");
        let mut arguments = Vec::new();
        for input in pairs.iter().flat_map(|pair| pick(pair).input_types()) {
            arguments.push(builder.input(input.clone(), PortInfo::default()));
        }
        let mut rest = &arguments[..];
        let mut outputs = Vec::new();
        for graph in pairs.iter().map(pick) {
            let (own, others) = rest.split_at(graph.inputs().len());
            rest = others;
            outputs.extend(builder.push(Call { function: Arc::new(graph.clone()) }, own).expect("a call"));
        }
        let info = vec![PortInfo::default(); outputs.len()];
        builder.finish(outputs, info)
    };
    let (before, after) = (together(|pair| &pair.1), together(|pair| &pair.2));
    let (compiled, compiled_after) = (support::compile(&before), support::compile(&after));
    let places: Vec<&String> =
        pairs.iter().flat_map(|(place, before, _)| before.outputs().iter().map(move |_| place)).collect();
    for turn in 0..4 {
        let inputs: Vec<Literal> =
            before.input_types().enumerate().map(|(index, ty)| numbers(ty, turn * (index % 2))).collect();
        let (found, expected) = (compiled_after.run(&inputs), compiled.run(&inputs));
        for ((found, expected), place) in found.iter().zip(&expected).zip(&places) {
            assert!(same_bits(found, expected), "{place}: {found:?}\n{expected:?}");
        }
    }
}

/// Programs of eight devices, before and after, on the CPU plugin.
#[test]
fn values_stay_the_same_on_eight_devices() {
    let client = eight_devices::client();
    let files = files();
    let all = files.iter().flat_map(|file| &file.cases).filter(|case| !case.is_partition());
    let on_eight = all.filter_map(|case| Some((case, mesh_of(&case.before).filter(|mesh| mesh.device_count() == 8)?)));
    for (case, mesh) in cases("compiler file tests on devices", 2, on_eight) {
        let run = |text: &str| local_graph::run(&client, &case.graph(text), &mesh);
        assert_eq!(run(&case.before), run(&case.after), "{}", case.place);
    }
}

#[test]
fn every_algebra_rule_has_a_case() {
    let files = files();
    let tested: BTreeSet<&str> = files
        .iter()
        .flat_map(|file| &file.cases)
        .filter_map(|case| case.keys.get("rule"))
        .map(String::as_str)
        .collect();
    let all: BTreeSet<&str> = algebra_rules().map(|rule| rule.name).collect();
    assert_eq!(tested, all);
}

/// Texts that differ from graphs in a few letters are read or refused, and nothing worse.
#[test]
fn no_text_is_too_broken() {
    let files = files();
    let texts: Vec<&str> = files
        .iter()
        .flat_map(|file| &file.cases)
        .flat_map(|case| [case.before.as_str(), case.after.as_str()])
        .collect();
    let texts: Vec<&str> = texts.into_iter().filter(|text| text.len() < 4000).collect();
    let mut random = support::random::Random(1);
    let mut counts = [0; 2];
    for _ in 0..20_000 {
        let mut letters: Vec<char> = texts[random.below(texts.len())].chars().collect();
        for _ in 0..1 + random.below(3) {
            let at = random.below(letters.len());
            match random.below(5) {
                0 => drop(letters.remove(at)),
                1 => letters.insert(at, letters[random.below(letters.len())]),
                2 => letters[at] = ['0', '9', '%', '@', '"', '{', ']', '-', ',', '\n', 'é', '\\'][random.below(12)],
                3 => {
                    let other = random.below(letters.len());
                    letters.swap(at, other);
                }
                _ => {
                    let other: Vec<char> = texts[random.below(texts.len())].chars().collect();
                    let start = random.below(other.len());
                    letters.splice(at..at, other[start..].iter().take(random.below(40)).copied());
                }
            }
        }
        let text: String = letters.into_iter().collect();
        match Graph::from_text(&text) {
            Ok(graph) => {
                verify(&graph).unwrap_or_else(|error| panic!("{error}\n{text}"));
                counts[0] += 1;
            }
            Err(error) => {
                assert!(error.line <= text.lines().count() + 1 && !error.message.is_empty(), "{error}\n{text}");
                counts[1] += 1;
            }
        }
    }
    assert!(counts[0] > 200 && counts[1] > 10_000, "{counts:?} read and refused");
}

/// Errors name the line and the column.
#[test]
fn errors_name_the_place() {
    let cases: &[(&str, &str)] = &[
        ("", "line 1, column 1: expected a graph: `NAME(INPUTS) { NODES }`, found the end"),
        ("f(%0: f33[2]) { return %0 }", "line 1, column 7: `f33` is no element type"),
        ("f(%0: f32[2]) {\n  return %1\n}", "line 2, column 10: %1 is not defined before it is used"),
        (
            "f(%0: f32[2]) {\n  %1 = sin %0\n}",
            "line 3, column 1: expected attributes, then `:` and the result types, found `}`",
        ),
        ("f(%0: f32[2]) {\n  %1 = sine %0 : f32[3]\n}", "line 2, column 8: sine yields [f32[2]], not [f32[3]]"),
        ("f(%0: f32[2]) {\n  %0 = sine %0 : f32[2]\n}", "line 2, column 3: %0 is defined twice"),
        ("f() {\n  %0 = iota {axs=0} : s32[2]\n}", "line 2, column 8: `iota` needs the attribute `axis`"),
        (
            "f(%0: f32[2]) {\n  %1 = cumulative-sum %0 {axis=0, reversed} : f32[2]\n}",
            "line 2, column 35: `cumulative-sum` has no attribute `reversed` (did you mean \"reverse\"?)",
        ),
        (
            "f() {\n  %0 = constant elided(0x1) : f32[20]\n}",
            "line 2, column 17: the elements of this constant were left out of the text; print the graph with \
             `whole_constants`",
        ),
        ("f() {\n  %0 = constant [300] : s8[1]\n}", "line 2, column 18: `300` is no s8"),
        ("f() {\n  %0 = constant [1, 2] : s8[1]\n}", "line 2, column 17: expected 1 elements, found 2"),
        ("f() {\n  return\n}\n@0 g() {\n  return\n}", "line 4, column 3: nothing uses the body @0"),
        ("f() {\n   = call @0 : \n  return\n}", "line 2, column 11: there is no body @0"),
        (
            "f() {\n   = call @0 : \n  return\n}\n@0 g() {\n   = call @0 : \n  return\n}",
            "line 6, column 11: the body @0 contains itself",
        ),
        (
            "f(%0: f32[2] spec=[data]) {\n  return\n}",
            "line 1, column 20: there is no mesh that could have an axis `data`; begin the text with one: mesh \"data=2\"",
        ),
        (
            "mesh \"data=2\"\nf(%0: f32[2] spec=[date]) {\n  return\n}",
            "line 2, column 20: the mesh \"data=2\" has no axis \"date\" (did you mean \"data\"?)",
        ),
    ];
    let mut wrong = Vec::new();
    for (text, expected) in cases {
        match Graph::from_text(text) {
            Ok(graph) => wrong.push(format!("{text} was read as {graph}")),
            Err(error) if error.to_string().lines().next() == Some(expected) => {}
            Err(error) => wrong.push(format!("{text}\n{error}\ninstead of {expected}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
