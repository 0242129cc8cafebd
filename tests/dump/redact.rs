//! Pseudonyms: no name is in anything that a command prints or writes, and every figure is as without.

use std::fs;
use std::path::Path;

use meshloom::hlo::proto::hlo_module_proto::ProfileInfo;
use meshloom::hlo::proto::{
    HloModuleProto, OpMetadata, OriginalValueProto, Payload, ProgramShapeProto, Statistic, StatisticsViz, payload,
};
use prost::Message;
use serde_json::Value;

use crate::dump::command::{Ran, check_refused, prints, run, with_input};

/// A program whose names all have the mark in them: those of its module, computations, instructions, scopes, files,
/// functions, targets, attributes and configurations.
const MARKED: &str = r##"HloModule zebra_step, is_scheduled=true, num_partitions=4, frontend_attributes={xla.sdy.meshes="{zebra_mesh = #sdy.mesh<[\"data\"=4]>}",zebra_attribute="zebra value"}

FileNames
1 "/home/zebra/zebra_model.py"

FunctionNames
1 "zebra_layer.<locals>.zebra"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%zebra_sum (zebra_a: f32[], zebra_b: f32[]) -> f32[] {
  %zebra_a = f32[] parameter(0)
  %zebra_b = f32[] parameter(1)
  ROOT %zebra_add.3 = f32[] add(%zebra_a, %zebra_b)
}

%zebra_body (zebra_state: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %zebra_state = (s32[], f32[8,128]{1,0}) parameter(0)
  %zebra_count = s32[] get-tuple-element(%zebra_state), index=0
  %zebra_one = s32[] constant(1)
  %zebra_next = s32[] add(%zebra_count, %zebra_one)
  %zebra_value = f32[8,128]{1,0} get-tuple-element(%zebra_state), index=1
  %zebra_gather = f32[32,128]{1,0} all-gather(%zebra_value), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(zebra_step)/zebra_layers_0/zebra_gather" stack_frame_id=1}
  %zebra_part = f32[8,128]{1,0} slice(%zebra_gather), slice={[0:8], [0:128]}, metadata={op_name="jit(zebra_step)/zebra_layers_1/zebra_part" source_file="/home/zebra/zebra_other.py" source_line=7}
  %zebra_product = f32[8,128]{1,0} multiply(%zebra_value, %zebra_part), metadata={op_name="jit(zebra_step)/zebra_layers_1/zebra_product" stack_frame_id=1}
  ROOT %zebra_tuple = (s32[], f32[8,128]{1,0}) tuple(%zebra_next, %zebra_product)
}

%zebra_condition (zebra_before: (s32[], f32[8,128])) -> pred[] {
  %zebra_before = (s32[], f32[8,128]{1,0}) parameter(0)
  %zebra_at = s32[] get-tuple-element(%zebra_before), index=0
  %zebra_end = s32[] constant(5)
  ROOT %zebra_less = pred[] compare(%zebra_at, %zebra_end), direction=LT
}

ENTRY %zebra_main (zebra_weights: f32[8,128], zebra_scale: f32[]) -> f32[8,128] {
  %zebra_weights = f32[8,128]{1,0} parameter(0), sharding={devices=[4,1]<=[4] metadata={op_name="zebra_sharding"}}, metadata={op_name="zebra_params['zebra_kernel']"}, frontend_attributes={xla.sdy.sharding="#sdy.sharding<@zebra_mesh, [{\"data\"}, {}]>"}
  %zebra_scale = f32[] parameter(1), metadata={op_name="zebra_scale"}
  %zebra_start = s32[] constant(0)
  %zebra_kernel = f32[8,128]{1,0} custom-call(%zebra_weights), custom_call_target="zebra_target", backend_config={"zebra_key":"zebra \u007aebra","known":[1,2]}
  %zebra_lapack = f32[8,128]{1,0} custom-call(%zebra_kernel), custom_call_target="lapack_zebra", backend_config="zebra = 3"
  %zebra_first = (s32[], f32[8,128]{1,0}) tuple(%zebra_start, %zebra_lapack)
  %zebra_loop.7 = (s32[], f32[8,128]{1,0}) while(%zebra_first), condition=%zebra_condition, body=%zebra_body, backend_config={"known_trip_count":{"n":"5"},"zebra":"zebra"}, metadata={op_name="jit(zebra_step)/zebra_scan"}
  %zebra_last = f32[8,128]{1,0} get-tuple-element(%zebra_loop.7), index=1
  ROOT %zebra_all = f32[8,128]{1,0} all-reduce(%zebra_last), channel_id=2, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%zebra_sum, metadata={op_name="jit(zebra_step)/zebra_loss/zebra_psum" stack_frame_id=1}
}
"##;
const MARK: &str = "zebra";
const STEP: &str = "tests/foreign/fsdp_mlp.optimized.txt";

/// The program as a file below a folder, whose names have the mark too.
fn marked(folder: &Path) -> String {
    let folder = folder.join("zebra_models");
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("zebra_step.txt");
    fs::write(&path, MARKED).expect("a file");
    path.to_str().expect("a path").to_owned()
}

/// Whether bytes have the mark, in letters of any size.
fn has_mark(bytes: &[u8]) -> bool {
    let lower = bytes.to_ascii_lowercase();
    lower.windows(MARK.len()).any(|part| part == MARK.as_bytes())
}

fn check_unmarked(arguments: &[&str], ran: &Ran) {
    let said = format!("{}{}", ran.out, ran.err);
    let line = said.lines().find(|line| has_mark(line.as_bytes()));
    assert_eq!(line, None, "{arguments:?}");
    assert!(!said.contains("panicked"), "{arguments:?}: {said}");
}

/// Each command reads the program and prints all that it knows of it.
const COMMANDS: &[&[&str]] = &[
    &["show", "INPUT"],
    &["show", "INPUT", "--full"],
    &["show", "INPUT", "--emit", "stablehlo"],
    &["show", "INPUT", "--json"],
    &["show", "INPUT", "--emit", "dot"],
    &["show", "INPUT", "--emit", "dot", "--depth", "0"],
    &["show", "INPUT", "--emit", "svg"],
    &["show", "INPUT", "--emit", "html", "--full"],
    &["show", "INPUT", "--computation", "no"],
    &["collectives", "INPUT"],
    &["collectives", "INPUT", "--json"],
    &["collectives", "INPUT", "--group", "scope"],
    &["collectives", "INPUT", "--group", "source", "--json"],
    &["collectives", "INPUT", "--scope", "no"],
    &["traffic", "INPUT", "--over", "data"],
    &["traffic", "INPUT", "--over", "data", "--json"],
    &["memory", "INPUT"],
    &["memory", "INPUT", "--json", "--chip", "v5p"],
    &["cost", "INPUT", "--by", "scope", "--chip", "v5p"],
    &["cost", "INPUT", "--by", "op"],
    &["cost", "INPUT", "--by", "opcode"],
    &["cost", "INPUT", "--json"],
    &["explain", "INPUT", "jit"],
    &["explain", "INPUT", "jit", "--json"],
    &["explain", "INPUT", "no"],
    &["diff", "INPUT", STEP],
    &["diff", "INPUT", "INPUT", "--json"],
    &["lock", "INPUT"],
    &["lock", "INPUT", "--json"],
    &["check", "INPUT", "--max-collectives", "0", "--deny", "unknown-trip-counts", "--deny", "all-gather=data"],
    &["check", "INPUT", "--deny", "collectives-in-loops", "--min-overlap", "1", "--chip", "v5p", "--json"],
    &["check", "INPUT", "--deny", "replication", "--replicated-bytes", "1"],
];

#[test]
fn nothing_printed_or_written_has_a_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = marked(folder.path());
    for redact in ["--redact", "--redact=a key of one's own"] {
        for command in COMMANDS {
            let arguments: Vec<&str> =
                command.iter().map(|&word| if word == "INPUT" { &input } else { word }).collect();
            let arguments = [&arguments[..], &[redact]].concat();
            check_unmarked(&arguments, &run(&arguments));
        }
        for (number, command) in [
            &["report", &input][..],
            &["show", &input, "--emit", "proto"],
            &["show", &input, "--emit", "json"],
            &["lock", &input],
            &["traffic", &input, "--over", "data", "--json", "--svg"],
        ]
        .into_iter()
        .enumerate()
        {
            let path = folder.path().join(format!("written{number}"));
            let path = path.to_str().expect("a path");
            let option = if command.contains(&"--svg") { &[][..] } else { &["--output"] };
            let arguments = [command, option, &[path, redact]].concat();
            let ran = run(&arguments);
            assert_eq!(ran.status, 0, "{arguments:?}: {}", ran.err);
            check_unmarked(&arguments, &ran);
            assert!(!has_mark(&fs::read(path).expect("a file")), "{arguments:?}");
        }
    }
}

/// Some fields are not in a text of HLO, or are left out by its reader.
#[test]
fn no_field_of_a_proto_keeps_a_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("step.pb");
    let path = path.to_str().expect("a path");
    prints(&["show", &marked(folder.path()), "--emit", "proto", "--output", path]);
    let mut module = HloModuleProto::decode(&*fs::read(path).expect("a file")).expect("a module");
    let zebra = || "zebra_proto".to_owned();
    let payload = || Payload { payload_source: Some(payload::PayloadSource::Value(zebra().into_bytes())) };
    module.device_type = zebra();
    module.payloads = vec![zebra().into_bytes()];
    module.profile_info = vec![ProfileInfo { fingerprint: zebra(), ..ProfileInfo::default() }];
    let named = ProgramShapeProto { parameter_names: vec![zebra()], ..ProgramShapeProto::default() };
    module.host_program_shape = Some(named.clone());
    for computation in &mut module.computations {
        computation.execution_thread = zebra();
        computation.program_shape = Some(named.clone());
        for instruction in &mut computation.instructions {
            let metadata = OpMetadata {
                op_type: zebra(),
                deduplicated_name: zebra(),
                scheduling_name: zebra(),
                metadata_payload: Some(payload().into()),
                ..instruction.metadata.as_deref().cloned().unwrap_or_default()
            };
            instruction.metadata = Some(metadata.into());
            instruction.fusion_kind = zebra();
            instruction.statistics_viz = Some(
                StatisticsViz {
                    stat_index_to_visualize: 0,
                    statistics: vec![Statistic { stat_name: zebra(), stat_val: 1.0 }],
                }
                .into(),
            );
            let value = OriginalValueProto { call_hierarchy: Some(zebra()), ..OriginalValueProto::default() };
            instruction.original_value = Some(value.into());
            instruction.outfeed_config = zebra().into_bytes();
            instruction.infeed_config = zebra().into_bytes();
            instruction.comparison_type = zebra();
            instruction.comparison_order = zebra();
            instruction.async_execution_thread = zebra();
            instruction.backend_config_payload = Some(payload().into());
            if instruction.opcode == "custom-call" {
                instruction.backend_config = b"\xffzebra".to_vec();
            }
        }
    }
    fs::write(path, module.encode_to_vec()).expect("a file");
    let redacted = folder.path().join("redacted.pb");
    let redacted = redacted.to_str().expect("a path");
    prints(&["show", path, "--emit", "proto", "--output", redacted, "--redact"]);
    let bytes = fs::read(redacted).expect("a file");
    assert!(!has_mark(&bytes));
    let redacted = HloModuleProto::decode(&*bytes).expect("a module");
    let count = |module: &HloModuleProto| module.computations.iter().map(|it| it.instructions.len()).sum::<usize>();
    assert_eq!(count(&redacted), count(&module));
}

/// Other tests hold the figures to those made elsewhere, this one to those without pseudonyms.
#[test]
fn figures_are_those_of_the_program_with_its_names() {
    fn numbers(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Number(number) => found.push(number.to_string()),
            Value::Array(values) => values.iter().for_each(|value| numbers(value, found)),
            Value::Object(values) => values.values().for_each(|value| numbers(value, found)),
            _ => {}
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let marked = marked(folder.path());
    for (input, mesh) in [
        (marked.as_str(), None),
        ("tests/foreign/fsdp_mlp.gpu.txt", Some("data=2,fsdp=4")),
        ("tests/foreign/moe.optimized.pb", None),
        ("tests/foreign/pipeline.tpu.txt", None),
        ("tests/foreign/scan_remat.tpu.txt", None),
        ("tests/foreign/xla_dump", None),
    ] {
        for command in [&["collectives"][..], &["memory"], &["cost", "--chip", "v5p"], &["show", "--emit", "json"]] {
            let mesh: Vec<&str> = mesh.iter().flat_map(|mesh| ["--mesh", mesh]).collect();
            let arguments = [command, &[input, "--json"], &mesh].concat();
            let arguments: Vec<&str> = if command[0] == "show" { arguments[..4].to_vec() } else { arguments };
            let figures = |redact: &[&str]| {
                let ran = run(&[&arguments[..], redact].concat());
                assert_eq!(ran.status, 0, "{arguments:?} {redact:?}: {}", ran.err);
                let mut found = Vec::new();
                numbers(&ran.json(), &mut found);
                found.sort();
                found
            };
            let named = figures(&[]);
            assert!(!named.is_empty(), "{arguments:?}");
            assert_eq!(figures(&["--redact"]), named, "{arguments:?}");
            assert_eq!(figures(&["--redact=key"]), named, "{arguments:?}");
        }
    }
}

/// Five gathers of 4 KiB over four devices send 3 x 4 KiB each; the gather is in the first of two layers.
#[test]
fn scopes_keep_their_nesting_and_layers_their_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = marked(folder.path());
    let json = run(&["collectives", &input, "--json", "--redact"]).json();
    let gather = &json["collectives"][0];
    assert_eq!((&gather["axes"][0], &gather["moved_bytes"]), (&"data".into(), &12288.into()), "{gather}");
    let scope = gather["op_name"].as_str().expect("a scope");
    let words: Vec<&str> = scope.split('/').collect();
    assert_eq!(words.len(), 3, "{scope}");
    assert!(words[0].starts_with("jit(n") && words[1].starts_with('n') && words[1].ends_with("_0"), "{scope}");
    let text = prints(&["show", &input, "--full", "--redact"]);
    let next = words[1].replace("_0", "_1");
    assert!(text.contains(&format!("{}/{next}/", words[0])), "{text}");
    // Words of compilers stay, and so do shardings.
    assert!(text.contains("known_trip_count") && text.contains("devices=[4,1]<=[4]"), "{text}");
    let mesh = text.lines().next().expect("a line");
    assert!(mesh.contains("#sdy.mesh<") && mesh.contains("data") && mesh.contains("=4"), "{mesh}");
}

#[test]
fn pseudonyms_of_a_key_agree_in_all_programs() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = marked(folder.path());
    let path = folder.path().join("traffic.lock");
    let path = path.to_str().expect("a path");
    let check = |input: &str, redact: &[&str]| run(&[&["check", input, "--lock", path], redact].concat());
    prints(&["lock", &input, "--output", path, "--redact=key"]);
    // Another program, with more names before those of the lock.
    let other = folder.path().join("other.txt");
    let before = "%other (other: f32[]) -> f32[] {\n  ROOT %other = f32[] parameter(0)\n}\n\n%zebra_sum";
    fs::write(&other, MARKED.replacen("%zebra_sum", before, 1)).expect("a file");
    let other = other.to_str().expect("a path");
    assert_eq!(check(other, &["--redact=key"]).status, 0);
    for redact in [&[][..], &["--redact"], &["--redact=another"]] {
        let ran = check(other, redact);
        assert_eq!(ran.status, 2, "{redact:?}: {}", ran.out);
        assert!(ran.err.contains("give --redact=KEY as it was given"), "{}", ran.err);
    }
    // A lock with names is read as one without.
    prints(&["lock", &input, "--output", path]);
    assert_eq!(check(other, &["--redact"]).status, 0);
    fs::write(path, fs::read_to_string(path).expect("a file").replace("\t5\t", "\t4\t")).expect("a file");
    let ran = check(other, &["--redact"]);
    assert_eq!(ran.status, 1, "{}", ran.err);
    check_unmarked(&["check"], &ran);
    // The programs of one command share their names, with or without a key.
    let ran = run(&["diff", &input, &input, "--redact"]);
    assert!(ran.out.contains("they mean the same") && !ran.out.contains("except for names"), "{}", ran.out);
}

#[test]
fn profiles_and_errors_have_no_names_either() {
    const PROFILE: &str = "tests/foreign/profile/scan_remat.cpu.xplane.pb";
    let folder = tempfile::tempdir().expect("a folder");
    let page = |redact: &[&str]| {
        let path = folder.path().join("page.html");
        let ran = run(&[&["report", PROFILE, "--output", path.to_str().expect("a path")], redact].concat());
        assert_eq!(ran.status, 0, "{}", ran.err);
        fs::read_to_string(path).expect("a page")
    };
    let (named, redacted) = (page(&[]), page(&["--redact"]));
    assert!(named.contains("foreign_programs") && !redacted.contains("foreign_programs"));
    // As many instructions are found in the profile.
    let measured = |page: &str| page.matches("measured").count();
    assert_eq!(measured(&redacted), measured(&named));
    let broken = MARKED.replace("multiply(%zebra_value, %zebra_part)", "multiply(%zebra_value, %zebra_other)");
    let ran = with_input(&["collectives", "-", "--redact"], broken.as_bytes());
    assert_eq!(ran.status, 2);
    check_unmarked(&["collectives"], &ran);
    assert!(ran.err.contains("cannot be loaded (line 29, column"), "{}", ran.err);
    check_refused(&["lock", "examples/configs/default.toml", "--redact"], "--redact is for HLO");
    check_refused(&["plan", "examples/configs/default.toml", "--redact"], "--redact is for HLO");
}
