//! The HLO text parser: it undoes the printer, reads what XLA's parser reads as it does, and says where a text is
//! wrong.

use std::fs;
use std::path::PathBuf;

use meshloom::hlo::parse::{TextLimits, make_names_unique, parse, parse_bytes, parse_with};
use meshloom::hlo::proto::{HloInstructionProto, HloModuleProto, HloModuleProtoWithConfig, PrimitiveType, ShapeProto};
use meshloom::hlo::read;
use meshloom::hlo::text::{Layouts, TextOptions, print, print_with_config};
use prost::Message;
use support::normal_hlo::normalize;

/// The files under `folder` that end so.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut folders = vec![support::path(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().is_some_and(|path| path.ends_with(ending)) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Parses `text`, prints it, parses that: both modules are the same. Gives the module and its text.
#[track_caller]
fn check_identity(what: &str, text: &str) -> (HloModuleProtoWithConfig, String) {
    let first = parse(text).unwrap_or_else(|error| panic!("{what}: {error}"));
    let printed = print_with_config(&first, &TextOptions::parseable());
    let second = parse(&printed).unwrap_or_else(|error| panic!("{what}, printed: {error}"));
    // As bytes, so that a NaN equals itself.
    assert!(first.encode_to_vec() == second.encode_to_vec(), "{what}: printed and read again it is another module");
    (first, printed)
}

/// Whether the short form of an asynchronous operation reads as another one: `all-gather-start` is an opcode, and also
/// how XLA prints an `async-start` of an `all-gather`. XLA's parser takes it for the former, as ours does.
fn is_ambiguous(module: &HloModuleProto) -> bool {
    let is_root =
        |instruction: &HloInstructionProto| module.computations.iter().any(|other| other.root_id == instruction.id);
    let mut instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let names: Vec<&str> = instructions.clone().filter(|one| is_root(one)).map(|root| root.opcode.as_str()).collect();
    instructions.any(|instruction| instruction.opcode == "async-start")
        && ["all-gather", "all-reduce", "collective-permute", "copy"].iter().any(|opcode| names.contains(opcode))
}

/// Whether the text says what the module does, up to what text does not say.
#[track_caller]
fn check_same(what: &str, parsed: HloModuleProtoWithConfig, mut expected: HloModuleProto) {
    if is_ambiguous(&expected) {
        return;
    }
    let mut found = parsed.hlo_module.unwrap();
    normalize(&mut found);
    normalize(&mut expected);
    let names = |module: &HloModuleProto| -> Vec<String> {
        module.computations.iter().map(|computation| computation.name.clone()).collect()
    };
    assert_eq!(names(&found), names(&expected), "{what}");
    for (ours, theirs) in found.computations.iter_mut().zip(&mut expected.computations) {
        for (ours, theirs) in ours.instructions.iter().zip(&theirs.instructions) {
            let is_same = ours.encode_to_vec() == theirs.encode_to_vec();
            assert!(is_same, "{what}, read from text:\n{ours:#?}\nexpected:\n{theirs:#?}");
        }
        assert_eq!(ours.instructions.len(), theirs.instructions.len(), "{what}: {}", ours.name);
        ours.instructions.clear();
        theirs.instructions.clear();
        assert_eq!(ours, theirs, "{what}");
    }
    found.computations.clear();
    expected.computations.clear();
    assert_eq!(found, expected, "{what}");
}

#[test]
fn snapshots_read_back() {
    let mut count = 0;
    for file in files("hlo_snapshots", ".snap") {
        let snapshot = fs::read_to_string(&file).unwrap();
        let text = snapshot.splitn(3, "---\n").nth(2).unwrap();
        // Others are graphs in our own text form.
        if text.starts_with("HloModule ") {
            count += 1;
            check_identity(&file.display().to_string(), text);
        }
    }
    assert!(count > 150, "only {count} snapshots");
}

/// The foreign texts, but for those that JAX makes of a lowered program: they leave out names that XLA's own have.
fn foreign() -> Vec<PathBuf> {
    let all = files("tests/foreign", ".txt").into_iter();
    all.filter(|file| !file.parent().is_some_and(|folder| folder.ends_with("lowered"))).collect()
}

/// XLA's own texts print again byte for byte, and say what the modules beside them do.
#[test]
fn what_xla_prints_reads_and_prints_the_same() {
    let mut files = files("tests/oracle/hlo", ".txt");
    let golden = files.len();
    files.extend(foreign().into_iter().filter(|file| {
        let name = file.file_name().unwrap().to_str().unwrap();
        // A dump has other texts beside its modules.
        !name.starts_with("module_") || name.ends_with("optimizations.txt")
    }));
    assert!(golden > 30 && files.len() > golden + 10, "{golden} golden texts, {} in all", files.len());
    let mut compared = 0;
    for file in files {
        let name = file.display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let (parsed, printed) = check_identity(&name, &text);
        assert_eq!(printed.trim_end(), text.trim_end(), "{name}");
        let stem = name.strip_suffix(".txt").unwrap();
        let beside = [format!("{stem}.pb"), format!("{stem}.hlo.pb")].into_iter().find_map(|file| fs::read(file).ok());
        // A module for a GPU is stored before its last passes.
        if let Some(bytes) = beside {
            compared += 1;
            check_same(&name, parsed, read::read(&bytes, &read::Limits::default()).unwrap().module);
        }
    }
    assert!(compared > golden, "only {compared} modules");
}

/// Forms that people write and XLA does not print: the module is what XLA's parser makes of them
/// (`tests/oracle/hlo_parse.py`).
#[test]
fn written_forms_read_as_xla_reads_them() {
    let files = files("tests/oracle/hlo_written", ".hlo");
    assert!(files.len() >= 12, "only {} texts", files.len());
    for file in files {
        let name = file.display().to_string();
        let (parsed, _) = check_identity(&name, &fs::read_to_string(&file).unwrap());
        let theirs = fs::read(file.with_extension("pb")).unwrap();
        check_same(&name, parsed, HloModuleProto::decode(theirs.as_slice()).unwrap());
    }
}

#[track_caller]
fn check_error(text: &str, expected: &str) {
    match parse(text) {
        Ok(_) => panic!("it parses:\n{text}"),
        Err(error) => assert_eq!(error.to_string(), expected),
    }
}

/// An entry with one more instruction.
fn entry(line: &str) -> String {
    format!("HloModule m\n\nENTRY e {{\n  x = f32[4] parameter(0)\n{line}\n}}\n")
}

#[test]
fn errors_say_where_and_what() {
    let cases = [
        (
            "  ROOT y = f32[4] negat(x)",
            "line 5, column 19: unknown opcode \"negat\" (did you mean \"negate\"?)
  ROOT y = f32[4] negat(x)
                  ^",
        ),
        (
            "  ROOT y = f32[4] negate(xx)",
            "line 5, column 26: no instruction above is named xx in this computation
  ROOT y = f32[4] negate(xx)
                         ^",
        ),
        (
            "  ROOT y = f32[4] negate(x, x)",
            "line 5, column 25: negate has 1 operand, found 2
  ROOT y = f32[4] negate(x, x)
                        ^",
        ),
        (
            "  ROOT y = f32[4] call(x), toapply=f",
            "line 5, column 28: call has no attribute \"toapply\" (did you mean \"to_apply\"?)
  ROOT y = f32[4] call(x), toapply=f
                           ^",
        ),
        (
            "  ROOT y = f32[] reduce(x, x), to_apply=f",
            "line 5, column 41: no computation above is named f; callees come before their callers
  ROOT y = f32[] reduce(x, x), to_apply=f
                                        ^",
        ),
        (
            "  ROOT y = f32[4] reverse(x)",
            "line 6, column 1: reverse needs the attribute dimensions
}
^",
        ),
        (
            "  ROOT y = f32[4]{0 negate(x)",
            "line 5, column 21: expected '}' at the end of a layout, found \"negate\"
  ROOT y = f32[4]{0 negate(x)
                    ^",
        ),
        (
            "  ROOT y = f23[4] negate(x)",
            "line 5, column 12: unknown opcode \"f23\"
  ROOT y = f23[4] negate(x)
           ^",
        ),
        (
            "  ROOT y = s8[2] constant({1, 200})",
            "line 5, column 31: 200 does not fit a signed integer of 8 bits
  ROOT y = s8[2] constant({1, 200})
                              ^",
        ),
        (
            "  ROOT y = s8[2] constant({1, 2, 3})",
            "line 5, column 34: dimension 0 has size 2, found more
  ROOT y = s8[2] constant({1, 2, 3})
                                 ^",
        ),
        (
            "  y = f32[4] negate(x), sharding={mesh['a'=2], [{'b'}]}",
            "line 5, column 50: the mesh has no axis \"b\"
  y = f32[4] negate(x), sharding={mesh['a'=2], [{'b'}]}
                                                 ^",
        ),
    ];
    for (line, expected) in cases {
        check_error(&entry(line), expected);
    }
    check_error("", "line 1, column 1: expected a computation, found the end of the text\n\n^");
    check_error(
        "{\"not\": \"HLO\"}",
        "line 1, column 1: expected HloModule, ENTRY or the name of a computation, found '{'\n{\"not\": \"HLO\"}\n^",
    );
}

/// A line of a megabyte is shown in part, and so is a name of a megabyte.
#[test]
fn errors_are_short() {
    let operands = "x, ".repeat(300_000);
    let long_line = entry(&format!("  ROOT t = () tuple({operands}y)"));
    let error = parse(&long_line).unwrap_err();
    assert_eq!(error.line, 5);
    assert_eq!(error.column, 21 + 900_000);
    let lines: Vec<&str> = error.excerpt.lines().collect();
    assert!(lines[0].starts_with("...x, x") && lines[0].contains("x, y)") && lines[0].len() < 150, "{error}");
    assert_eq!(lines[1].len(), lines[0].find("y)").unwrap() + 1, "{error}");
    let long_name = entry(&format!("  ROOT t = f32[4] negate({})", "y".repeat(1_000_000)));
    assert!(parse(&long_name).unwrap_err().to_string().len() < 1000);
}

#[test]
fn bytes_that_are_not_utf8_have_a_place() {
    let error = parse_bytes(b"HloModule m\n\nENTRY \xff {", &TextLimits::default()).unwrap_err();
    assert_eq!((error.line, error.column), (3, 7));
    assert!(error.message.contains("0xff is not UTF-8"), "{error}");
}

#[test]
fn elided_constants_take_no_memory() {
    for value in ["{...}", "{1, 2, ...}"] {
        let text = format!("HloModule m\nENTRY e {{ c = f32[1000000,1000000] constant({value}) }}");
        let text = if value == "{...}" { text } else { text.replace("[1000000,1000000]", "[1000000000000]") };
        let (module, _) = check_identity(value, &text);
        assert!(module.encoded_len() < 1000, "{}", module.encoded_len());
    }
    // The elements that a shape claims must be there.
    let error = parse("ENTRY e { c = f32[1000000000] constant({1, 2}) }").unwrap_err();
    assert!(error.message.contains("dimension 0 has size 1000000000, found 2 parts"), "{error}");
}

/// Each of these nests without an end. They stop at the limit, on a stack of two megabytes.
#[test]
fn nesting_is_bounded() {
    let deep = |open: &str, count: usize| open.repeat(count);
    let texts = [
        entry(&format!("  y = {}", deep("(", 100_000))),
        entry(&format!("  y = f32[4] negate({}", deep("negate(", 100_000))),
        entry(&format!("  y = f32[4] call(x), to_apply={}", deep("{ a = f32[] call(), to_apply=", 100_000))),
        entry(&format!("  y = f32[4] negate(x), sharding={}", deep("{", 100_000))),
        entry(&format!("  y = f32[4] negate(x), origin={{{}", deep("(", 100_000))),
        entry(&format!("  y = f32[4]{{0:{}", deep("P(f32[4]{0:", 100_000))),
    ];
    for text in texts {
        let error = parse(&text).unwrap_err();
        assert!(error.line >= 5, "{error}");
    }
    let tuples = |depth: usize| {
        entry(&format!("  y = {}{} custom-call(), custom_call_target=\"a\"", deep("(", depth), deep(")", depth)))
    };
    parse(&tuples(60)).unwrap();
    assert!(parse(&tuples(65)).unwrap_err().message.contains("nested more than 64 levels deep"));
    assert!(parse_with(&tuples(5), &TextLimits { nesting: 4, ..TextLimits::default() }).is_err());
    assert!(parse_with(&tuples(5), &TextLimits { bytes: 20, ..TextLimits::default() }).is_err());
    let constant = entry("  y = f32[3] constant({1, 2, 3})");
    assert!(parse_with(&constant, &TextLimits { literal_elements: 2, ..TextLimits::default() }).is_err());
}

/// A tuple of two tuples of two tuples and so on: its shape is not written, and would not fit anywhere.
#[test]
fn inferred_shapes_are_bounded() {
    let mut text = String::from("ENTRY e {\n  t0 = f32[4] parameter(0)\n");
    for level in 1..100 {
        text += &format!("  t{level} = tuple(t{0}, t{0})\n", level - 1);
    }
    let error = parse(&(text + "}")).unwrap_err();
    assert!(error.message.contains("write the shapes before the opcodes"), "{error}");
}

/// For `hlo_parse.py --check`: reads the texts of a folder, and leaves beside each the module and our text of it.
#[test]
#[ignore = "a tool for tests/oracle/hlo_parse.py"]
fn parse_folder() {
    let folder = PathBuf::from(std::env::var("MESHLOOM_HLO_FOLDER").unwrap());
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "hlo") {
            let parsed = parse(&fs::read_to_string(&file).unwrap()).unwrap_or_else(|error| panic!("{error}"));
            fs::write(file.with_extension("printed"), print_with_config(&parsed, &TextOptions::parseable())).unwrap();
            let mut module = parsed.hlo_module.unwrap();
            make_names_unique(&mut module);
            fs::write(file.with_extension("parsed"), module.encode_to_vec()).unwrap();
        }
    }
}

/// Modules of other compilers through our text of them.
#[test]
fn stored_modules_read_back_from_their_text() {
    for file in files("tests/foreign", ".pb") {
        let Ok(found) = read::read(&fs::read(&file).unwrap(), &read::Limits::default()) else { continue };
        let text = print(&found.module, &TextOptions::parseable());
        let parsed = parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        check_same(&file.display().to_string(), parsed, found.module);
    }
}

/// XLA's compilers end the process at an array without a layout, be it a scalar.
#[test]
fn every_array_that_is_read_has_a_layout() {
    fn check(what: &str, shape: &ShapeProto) {
        let ty = PrimitiveType::try_from(shape.element_type).unwrap();
        let has_none = [PrimitiveType::Tuple, PrimitiveType::Token, PrimitiveType::OpaqueType, PrimitiveType::Buffer];
        assert_eq!(shape.layout.is_none(), has_none.contains(&ty), "{what}: {shape:?}");
        shape.tuple_shapes.iter().for_each(|part| check(what, part));
    }
    let inferred = "HloModule m\n\nENTRY e {\n  p = s32[] parameter(0)\n  q = (f32[], (f32[4], token[])) parameter(1)\n  \
                    c = f32[] constant(1)\n  x = get-tuple-element(q), index=0\n  y = add(x, c)\n  i = partition-id()\n  \
                    ROOT t = tuple(p, y, i)\n}\n";
    let mut texts = vec![("written by hand".to_owned(), inferred.to_owned())];
    for path in foreign() {
        let text = fs::read_to_string(&path).unwrap();
        texts.extend(text.starts_with("HloModule").then(|| (path.display().to_string(), text)));
    }
    let mut scalars = 0;
    for (what, text) in &texts {
        let module = parse(text).unwrap_or_else(|error| panic!("{what}: {error}")).hlo_module.unwrap();
        let programs = module.computations.iter().flat_map(|it| &it.program_shape).chain(&module.host_program_shape);
        programs.flat_map(|it| it.parameters.iter().chain(&it.result)).for_each(|shape| check(what, shape));
        for instruction in module.computations.iter().flat_map(|computation| &computation.instructions) {
            let shape = instruction.shape.as_ref().unwrap();
            check(what, shape);
            scalars += usize::from(shape.dimensions.is_empty() && shape.layout.is_some());
        }
        // A scalar's layout is not written, as it was not before.
        if *what != texts[0].0 {
            let printed = print_with_config(&parse(text).unwrap(), &TextOptions::parseable());
            assert_eq!(printed.trim_end(), text.trim_end(), "{what}");
        }
    }
    assert!(texts.len() > 10 && scalars > 100, "{} {scalars}", texts.len());
}

/// Texts that say the same, in newer short forms and in full.
#[test]
fn elements_of_tuples_stand_as_operands() {
    let module =
        |lines: &str| format!("HloModule m\n\nENTRY e {{\n  p = (f32[4], (s32[], f32[4])) parameter(0)\n{lines}}}\n");
    let printed = |text: &str| print_with_config(&parse(text).unwrap(), &TextOptions::parseable());
    let short = "  a = f32[4] add(%p#0, p#1#1)\n  b = f32[4] add(f32[4]{0} %p#0, a), control-predecessors={a}\n  \
                 ROOT t = (s32[], f32[4]) tuple(p #1 #0, b)\n";
    let full = "  p_0 = f32[4] get-tuple-element(p), index=0\n  p_1 = (s32[], f32[4]) get-tuple-element(p), index=1\n  \
                p_1_1 = f32[4] get-tuple-element(p_1), index=1\n  a = f32[4] add(p_0, p_1_1)\n  \
                b = f32[4] add(p_0, a), control-predecessors={a}\n  \
                p_1_0 = s32[] get-tuple-element(p_1), index=0\n  ROOT t = (s32[], f32[4]) tuple(p_1_0, b)\n";
    assert_eq!(printed(&module(short)), printed(&module(full)));
    // A name that is taken gets a number.
    let taken = module("  p_0 = f32[] constant(1)\n  ROOT n = f32[4] negate(p#0)\n");
    assert!(printed(&taken).contains("%p_0.1 = f32[4]{0} get-tuple-element(%p), index=0"), "{}", printed(&taken));
    for (operand, expected) in [
        ("p#2", "p has no element 2 here: there are 2 in its shape"),
        ("p#0#0", "p has no element 0 here: there are 0 in its shape"),
        ("p#-1", "p has no element -1 here: there are 2 in its shape"),
        ("s32[] p#0", "the shape stated here is not the shape of p"),
        ("q#0", "no instruction above is named q in this computation"),
    ] {
        let error = parse(&module(&format!("  ROOT n = f32[4] negate({operand})\n"))).unwrap_err();
        assert_eq!(error.message, expected, "{operand}");
    }
}

/// Text of XLA of late 2026 prints again unchanged.
#[test]
fn newer_attributes_read_and_print_the_same() {
    let lines = [
        "%c.1 = pred[4]{0} compare(%p, %p), direction=LT, order=TOTAL",
        "%t.1 = (f32[2]{0}, s32[2]{0}) topk(%p), k=2, largest=true, is_stable=true",
        "%b.1 = f32[4]{0} collective-broadcast(%p), channel_id=1, replica_groups={{0,1}}, has_dynamic_root=true",
        "%n.1 = f32[4]{0} negate(%p), sharding={mesh['x'=2,'y'=2], [{'x'}], unreduced=max{'y'}}",
        "%n.2 = f32[4]{0} negate(%p), sharding={mesh['x'=2], unreduced=min}",
        "%u.1 = u32[4]{0} mulhi(%q, %q)",
        "%s.1 = ((f32[4]{0}), f32[4]{0}, u32[]) custom-call-start(%p), custom_call_target=\"f\", \
         output_to_operand_aliasing={{}: (0, {})}, output_to_operand_aliasing={{1}: (0, {})}",
        "%s.2 = ((f32[4]{0}), f32[4]{0}, u32[]) custom-call-update(%s.1), output_to_operand_aliasing={{0}: (0, {0})}",
        "%s.3 = f32[4]{0} custom-call-done(%s.2)",
        "%s.4 = ((f32[4]{0}), f32[4]{0}, u32[]) negate-start(%p), output_to_operand_aliasing={{1}: (0, {})}",
        "%s.5 = f32[4]{0} negate-done(%s.4)",
    ];
    let header = "HloModule m, entry_computation_layout={(f32[4]{0}, u32[4]{0})->f32[4]{0}}, \
                  frontend_attributes={a=\"b\"},\ndebug_attributes={\n  \
                  {\"p\"}:({log_mode=default,callback_id=3,partitioned=true,op_id=1},{}),\n  \
                  {\"q\" {0}}:({log_mode=no_fusion})\n}\n\n";
    let mut text = header.to_owned()
        + "ENTRY %e (p: f32[4], q: u32[4]) -> f32[4] {\n  %p = f32[4]{0} parameter(0)\n  \
                                        %q = u32[4]{0} parameter(1)\n";
    lines.iter().for_each(|line| text += &format!("  {line}\n"));
    text += "  ROOT %r = f32[4]{0} copy(%p)\n}\n";
    let (_, printed) = check_identity("newer attributes", &text);
    assert_eq!(printed.trim_end(), text.trim_end());
}

/// Forms beside those that we print: each line, and how it prints.
#[test]
fn other_forms_read_as_ours() {
    for (line, printed) in [
        ("compare(p, p), direction=EQ, order=PARTIAL", "compare(%p, %p), direction=EQ"),
        ("negate(p), sharding={single_device[device_id=3]}", "negate(%p), sharding={maximal_mesh[device_id=3]}"),
        (
            "negate(p), sharding={unreduced=max}",
            "negate(%p), sharding={unreduced metadata={op_type=\"sdy::reduction_op\" op_name=\"MAX\"}}",
        ),
        (
            "negate(p), sharding={mesh['x'=2,'y'=2], [{}], unreduced=sum{'x'}}",
            "negate(%p), sharding={mesh['x'=2,'y'=2], [{}], unreduced={'x'}}",
        ),
        (
            "custom-call(p), custom_call_target=\"f\", operand_precision={HIGHEST}, api_version=API_VERSION_UNSPECIFIED",
            "custom-call(%p), operand_precision={highest}, custom_call_target=\"f\"",
        ),
        ("topk(p), k=1, largest=false, is_stable=false", "topk(%p), k=1, largest=false"),
        ("constant(2.5)", "constant({...})"),
        ("tanh(p), result_accuracy={mode=HIGHEST}", "tanh(%p), result_accuracy={mode=highest}"),
    ] {
        let text = entry(&format!("  ROOT y = f32[4] {line}")).replace("x = f32[4]", "p = f32[4]");
        let (_, found) = check_identity(line, &text);
        assert!(found.contains(&format!("ROOT %y = f32[4]{{0}} {printed}\n")), "{line}: {found}");
    }
    let one = check_identity("one element", &entry("  ROOT y = bf16[1,1,1] constant(1.5)")).1;
    assert!(one.contains("constant({ { {1.5} } })"), "{one}");
}

/// The shapes that XLA infers where a text leaves them out.
#[test]
fn shapes_that_are_left_out() {
    const CALLED: &str = "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\n\
                          wide {\n  a = f32[] parameter(0)\n  ROOT s = f64[] convert(a)\n}\n\n\
                          step {\n  a = f32[8] parameter(0)\n  b = f32[8] parameter(1)\n  \
                          ROOT t = (f32[8], f32[8]) tuple(a, b)\n}\n\n";
    const PARAMETERS: &str = "  x = f32[4,8] parameter(0)\n  z = f32[] parameter(1)\n  i = s32[3,1] parameter(2)\n  \
                              k = f32[3,6,16] parameter(3)\n  v = f32[8] parameter(4)\n  m = f32[8,6,5] parameter(5)\n";
    for (line, shape) in [
        ("pad(x, z), padding=1_2x0_-1_2", "f32[7,21]"),
        ("reduce(x, z), dimensions={1}, to_apply=sum", "f32[4]"),
        ("reduce(x, x, z, z), dimensions={0}, to_apply=sum", "(f32[8], f32[8])"),
        ("reduce-window(x, z), window={size=1x3 stride=1x2 pad=0_0x1_1}, to_apply=sum", "f32[4,4]"),
        ("map(x), dimensions={0,1}, to_apply=wide", "f64[4,8]"),
        ("topk(x), k=2", "(f32[4,2], s32[4,2])"),
        ("fft(x), fft_type=RFFT, fft_length={8}", "c64[4,5]"),
        (
            "gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}",
            "f32[3,8]",
        ),
        ("convolution(m, k), window={size=3 pad=1_1}, dim_labels=bf0_0io->b0f", "f32[8,5,16]"),
        ("broadcast(z)", "f32[]"),
        ("batch-norm-training(x, v, v), epsilon=0.5, feature_index=1", "(f32[4,8], f32[8], f32[8])"),
        ("batch-norm-inference(x, v, v, v, v), epsilon=0.5, feature_index=1", "f32[4,8]"),
        ("triangular-solve(x, v)", "f32[8]"),
        ("set-dimension-size(v, i), dimensions={0}", "f32[<=8]"),
        ("scan(x, v), dimensions={0}, num_carries=1, to_apply=step", "(f32[4,8], f32[8])"),
        ("mulhi(i, i)", "s32[3,1]"),
        ("imag(x)", "f32[4,8]"),
    ] {
        let text = format!("HloModule m\n\n{CALLED}ENTRY e {{\n{PARAMETERS}  ROOT y = {line}\n}}\n");
        let options = TextOptions { layouts: Layouts::None, ..TextOptions::parseable() };
        let printed = print_with_config(&parse(&text).unwrap_or_else(|error| panic!("{line}: {error}")), &options);
        assert!(printed.contains(&format!("ROOT %y = {shape} ")), "{line}: {printed}");
    }
}

/// An attribute of an XLA that is newer than this reader is noted; one that is nearly known is a mistake.
#[test]
fn unknown_attributes_are_passed_over() {
    let text = "HloModule m, flux={1, {2}, \"}\"}, replica_count=2\n\nENTRY e {\n  p = f32[4] parameter(0), \
                metadata={op_name=\"f\" quark=7 spin=\"x y\" source_line=3}\n  \
                a = f32[4] negate(p), flux=[2,4]<=[8]T(0), quark=(1, 2), sharding={replicated}, spin=half\n  \
                ROOT b = f32[4] negate(a), spin=\"\\\"\", backend_config={\"a\":\"}\"}\n}, spin=up\n";
    let found = read::read(text.as_bytes(), &read::Limits::default()).unwrap();
    assert_eq!(
        found.passed_over.to_string(),
        "attribute flux of a module, attribute flux of negate, attribute quark of negate, attribute spin of a \
         computation, attribute spin of negate (2 times), field quark of metadata, field spin of metadata"
    );
    assert_eq!(found.passed_over.count(), 8);
    assert_eq!(found.config.unwrap().replica_count, 2);
    let [parameter, negated, root] = found.module.computations[0].instructions.as_slice() else { panic!() };
    assert_eq!(parameter.metadata.as_ref().unwrap().source_line, 3);
    assert!(negated.sharding.is_some());
    assert_eq!(root.backend_config, b"{\"a\":\"}\"}");
    for (line, expected) in [
        (
            "  y = f32[4] all-gather(x), dimensions={0}, replica_group={}",
            "all-gather has no attribute \"replica_group\" (did you mean \"replica_groups\"?)",
        ),
        (
            "  y = f32[4] negate(x), metadata={opname=\"f\"}",
            "metadata has no field \"opname\" (did you mean \"op_name\"?)",
        ),
        ("  y = f32[4] negate(x), flux={{1", "no bracket closes this value"),
        ("  y = f32[4] negate(x), flux=", "expected a value, found '}'"),
    ] {
        assert_eq!(parse(&entry(line)).unwrap_err().message, expected, "{line}");
    }
    let many: String = (0..1000).map(|number| format!(", flux_{number}=1")).collect();
    let text = entry(&format!("  y = f32[4] negate(x){many}"));
    let found = read::read(text.as_bytes(), &read::Limits::default()).unwrap().passed_over;
    assert_eq!(found.count(), 1000);
    assert!(found.to_string().ends_with(" and 984 more"), "{found}");
}

/// The reader says of every beginning of a text that more should follow.
#[test]
fn a_text_that_stops_is_called_so() {
    let text = "HloModule m, entry_computation_layout={(f32[4]{0}, s32[2]{0})->f32[4]{0}}\n\n\
                %f (a: f32[4]) -> f32[4] {\n  ROOT %a = f32[4]{0} parameter(0), metadata={op_name=\"a\\tb\"}\n}\n\n\
                ENTRY %e (x: f32[4], i: s32[2]) -> f32[4] {\n  %x = f32[4]{0} parameter(0)\n  \
                %i = s32[2]{0} parameter(1)\n  %c = s32[2]{0} constant({-1, 2})\n  /* c */\n  \
                ROOT %y = f32[4]{0} call(%x), to_apply=%f, sharding={devices=[2]<=[2]}, backend_config={\"a\":1}\n}\n";
    parse(text).unwrap();
    for end in "HloModule ".len()..text.trim_end().len() {
        let error = parse(&text[..end]).map(|_| ()).expect_err(&text[..end]);
        assert!(error.message.contains("the text ends here"), "{error}\n--- of\n{}", &text[..end]);
    }
    // A mistake in the middle, or in a line that is whole, is something else.
    for line in ["  y = f32[4] negat(x)", "  y = f32[4] negate(x), sharding={devices=[2]<=[2}"] {
        let error = parse(&entry(line)).unwrap_err();
        assert!(!error.message.contains("the text ends here"), "{error}");
    }
}

/// Comments of any length, as tests of XLA have them, may stand before HLO; and a computation may stand alone.
#[test]
fn hlo_is_found_by_its_beginning() {
    let read = |text: &str| read::read(text.as_bytes(), &read::Limits::default());
    let body = "  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p)\n}\n";
    let run = "// RUN: tool %s | check %s\n".repeat(400);
    for text in [
        format!("{run}\nHloModule m\n\nENTRY e {{\n{body}"),
        format!("/* {} */ ENTRY e {{\n{body}", "x".repeat(10_000)),
        format!("{run}%e (p: f32[4]) -> f32[4] {{\n{body}"),
        format!("{run}e (p: f32[4]) -> f32[4] {{\n{body}"),
        format!("e.1 {{\n{body}"),
        format!("HloModule m:\n\nENTRY e (p f32[4]) -> f32[4] {{\n{body}"),
    ] {
        let found = read(&text).unwrap_or_else(|error| panic!("{error}\n{}", &text[text.len() - 200..]));
        assert_eq!((found.form, found.module.computations.len()), (read::Form::Text, 1));
    }
    for text in ["words (of prose)", "fn main() {\n}\n", "a {\n  color: red;\n}\n", "// nothing but a comment\n"] {
        assert!(matches!(read(text), Err(read::ReadError::OtherText { .. })), "{text}");
    }
}
