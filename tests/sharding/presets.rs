//! Tests of each preset on a decoder: the spec of every parameter and of every value with axis names, on eight devices.

use meshloom::compile::{LowerOptions, Lowered, PartitionMode, lower};
use meshloom::sharding::{Mesh, Role, RowKind, Rule, RuleSets, Rules, ShardingRow, ShardingTable};
use meshloom_train::run::aliases;
use support::cases::cases;
use support::configs::{DECODER, config};

const OF_EIGHT_HEADS: &[&str] = &["model.heads=8", "model.kv_heads=8", "train.batch=16"];

/// The train step on a mesh; a mesh with stages is that of a pipeline.
fn lowered(mesh: &str, rules: &RuleSets, overrides: &[&str]) -> Lowered {
    let axes = format!("mesh.axes={mesh}");
    let pipeline = [axes.as_str(), "pipeline.repeats=1", "pipeline.microbatches=2"];
    let pipeline = if mesh.contains("stage") { &pipeline[..] } else { &[] };
    let config = config(&[DECODER, OF_EIGHT_HEADS, overrides, pipeline]);
    let function = config.train_step().unwrap().trace().expect("it traces");
    let mesh = Mesh::parse(mesh, 8).expect("a mesh");
    let options = LowerOptions {
        sharding: Some((&mesh, rules)),
        aliases: aliases(&function),
        partition: PartitionMode::GSPMD,
        ..LowerOptions::default()
    };
    lower(function.graph(), &options).unwrap_or_else(|error| panic!("{mesh}: {error}"))
}

fn preset(name: &str) -> RuleSets {
    RuleSets::uniform(Rules::preset(name, true).expect("a preset"))
}

fn table(mesh: &str, rules: &RuleSets) -> ShardingTable {
    lowered(mesh, rules, &[]).sharded().expect("a table").table.clone()
}

fn inputs(table: &ShardingTable, role: Role) -> impl Iterator<Item = &ShardingRow> {
    table.rows.iter().filter(move |row| row.role == role && matches!(row.kind, RowKind::Input { .. }))
}

/// The table, without what is alike everywhere: moments are split as their parameters, and lines move.
fn check(name: &str, mesh: &str, rules: &str) {
    let table = table(mesh, &preset(rules));
    let spec = |path: &str| &table.rows.iter().find(|row| row.name() == path).expect("a row").spec;
    for row in inputs(&table, Role::Optimizer) {
        let param = row.name().replace("optimizer.first", "params").replace("optimizer.second", "params");
        assert_eq!(&row.spec, spec(&param), "{mesh}: {param}");
    }
    let lines: Vec<String> =
        table.to_string().lines().filter(|line| !line.contains(".optimizer.")).map(shorter).collect();
    let _bound = support::snapshots_in("tests/snapshots");
    insta::assert_snapshot!(format!("presets__{name}"), lines.join("\n"));
}

/// A line of the table without the columns whose width depends on line numbers.
fn shorter(line: &str) -> String {
    let cells: Vec<&str> = line.split('|').collect();
    let [_, tensor, ty, axes, spec, bytes, source, ..] = cells.as_slice() else { return line.to_owned() };
    let file = source.trim().rsplit('/').next().unwrap_or_default();
    let file = file.split(':').next().unwrap_or_default();
    format!("|{tensor}|{ty}|{axes}|{spec}|{bytes}| {file}").trim_end().to_owned()
}

#[test]
fn data() {
    check("data", "data=8", "decoder");
}

#[test]
fn fsdp() {
    check("fsdp", "fsdp=8", "decoder");
}

#[test]
fn tensor() {
    check("tensor", "tensor=8", "decoder");
}

#[test]
fn tensor_all_reduce() {
    check("tensor-all-reduce", "tensor=8", "decoder-all-reduce");
}

#[test]
fn context() {
    check("context", "context=8", "decoder");
}

#[test]
fn expert() {
    check("expert", "expert=8", "decoder");
}

#[test]
fn stage() {
    check("stage", "stage=2,data=2,fsdp=2", "decoder");
}

#[test]
fn data_fsdp_tensor() {
    check("data-fsdp-tensor", "data=2,fsdp=2,tensor=2", "decoder");
}

#[test]
fn fsdp_context_tensor() {
    check("fsdp-context-tensor", "fsdp=2,context=2,tensor=2", "decoder");
}

/// All meshes over eight devices of the preset's axes but that of stages, in one order of the axes.
fn meshes() -> Vec<String> {
    const AXES: [&str; 5] = ["data", "fsdp", "expert", "context", "tensor"];
    let mut meshes: Vec<String> = AXES.iter().map(|axis| format!("{axis}=8")).collect();
    for (at, a) in AXES.iter().enumerate() {
        for (next, b) in AXES.iter().enumerate().filter(|(next, _)| *next != at) {
            meshes.push(format!("{a}=4,{b}=2"));
            let third = AXES.iter().skip(next + 1).filter(|_| at < next);
            meshes.extend(third.map(|c| format!("{a}=2,{b}=2,{c}=2")));
        }
    }
    meshes
}

/// On every mesh of the preset's axes all rules fit and nothing that has a place to be split is left whole.
#[test]
fn combinations() {
    let meshes = meshes();
    assert_eq!(meshes.len(), 5 + 20 + 10);
    let rules = preset("decoder");
    for mesh in &cases("sharding presets", 12, meshes) {
        let table = table(mesh, &rules);
        let used = |row: &ShardingRow| -> usize { row.spec.used_axes().map(|axis| table.mesh.size(axis)).product() };
        let size = |names: &[&str]| -> usize {
            names.iter().filter_map(|name| table.mesh.axis(name)).map(|axis| table.mesh.size(axis)).product()
        };
        for row in &table.rows {
            let has = |name: &str| row.axes.iter().any(|axis| axis.text() == name);
            let mut expected = 1;
            if has("activation_batch") {
                expected *= size(&["data", "fsdp", "expert"]);
            }
            if has("activation_length") || has("activation_norm_length") {
                expected *= size(&["context"]);
            }
            if has("embed") {
                expected *= size(&["fsdp", "expert"]);
            }
            let tensor = ["heads", "kv_heads", "mlp", "vocab"];
            let is_tensor = |name: &&str| has(name) || has(&format!("activation_{name}"));
            if tensor.iter().any(is_tensor) || has("activation_norm_length") {
                expected *= size(&["tensor"]);
            }
            assert_eq!(used(row), expected, "{mesh}: {} {}", row.name(), row.spec.display(&table.mesh));
        }
    }
}

/// Layers that are not scanned, and a tied embedding, are named as well.
#[test]
fn other_decoders() {
    for overrides in
        [["model.scan_layers=false", "model.tied_embeddings=true"], ["remat.policy=full", "model.dropout=0.1"]]
    {
        let lowered = lowered("fsdp=2,context=2,tensor=2", &preset("decoder"), &overrides);
        let table = lowered.sharded().expect("a table").table.clone();
        let params = inputs(&table, Role::Params).filter(|row| !row.axes.is_empty());
        assert!(params.filter(|row| row.spec.is_replicated()).all(|row| row.name().contains("norm")));
        assert!(table.rows.iter().any(|row| matches!(row.kind, RowKind::Named(_))));
    }
}

/// Parameters, computation and optimizer state have rules of their own: here parameters are whole in between, moments
/// are split over everything.
#[test]
fn roles() {
    let own = |name: &str, axes: &[&str]| Rule {
        name: name.to_owned(),
        axes: axes.iter().map(|&axis| axis.to_owned()).collect(),
        origin: "test".to_owned(),
        published: false,
    };
    let mut rules = preset("decoder");
    rules.params = rules.params.with_first(vec![own("embed", &[])]).expect("rules");
    rules.optimizer = rules.optimizer.with_first(vec![own("embed", &["data", "fsdp"])]).expect("rules");
    let lowered = lowered("data=2,fsdp=4", &rules, &[]);
    let table = lowered.sharded().expect("a table").table.clone();
    let text = |path: &str| {
        let row = table.rows.iter().find(|row| row.name() == path).expect("a row");
        format!("{} {}", row.spec.display(&table.mesh), table.origin(row))
    };
    assert_eq!(text("state.params.layers.mlp.up"), "[_, _, _] preset decoder; test");
    assert_eq!(text("state.optimizer.first.layers.mlp.up"), "[_, (data,fsdp), _] preset decoder; test");
    assert_eq!(text("state.params.layers.mlp_norm"), "[_, _] preset decoder");
    // The new state has the specs of the state that it replaces.
    let (graph, mut outputs) = (&lowered.graph(), 0);
    for (output, input) in
        graph.output_info().iter().zip(graph.input_info()).take_while(|(_, input)| !input.path.starts_with("batch"))
    {
        assert_eq!((&output.path, &output.spec), (&input.path, &input.spec));
        outputs += 1;
    }
    assert_eq!(outputs, 3 * 12 + 1);
    let params = table.input_bytes_per_device(Role::Params);
    assert!(table.input_bytes_per_device(Role::Optimizer) < params / 2, "two moments of an eighth each, and the norms");
}

/// The example in the docs is the printed text, except for the line numbers.
#[test]
fn the_table_in_the_docs() {
    let page = include_str!("../../docs/sharding.md");
    let config = config(&[&["mesh.axes=fsdp=2,context=2,tensor=2"]]);
    let printed = config.resolve().expect("a run").debug_sharding().expect("it lowers").expect("a table").to_string();
    let cells = |line: &str| -> Vec<String> {
        let cells =
            line.split('|').skip(1).take(7).map(|cell| cell.trim().split(':').next().unwrap_or_default().to_owned());
        cells.collect()
    };
    let printed: Vec<Vec<String>> = printed.lines().map(cells).collect();
    let shown = page.lines().skip_while(|line| !line.starts_with("mesh ")).take_while(|line| !line.starts_with("```"));
    let shown: Vec<&str> = shown.filter(|line| !line.starts_with("|--")).collect();
    assert!(shown.len() > 12, "{shown:?}");
    for line in shown {
        assert!(printed.contains(&cells(line)), "{line}");
    }
}
