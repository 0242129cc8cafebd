//! The HLO text parser: it undoes the printer, reads what XLA's parser reads as it does, and says where a text is
//! wrong.

use std::fs;
use std::path::PathBuf;

use meshloom::hlo::parse::{TextLimits, make_names_unique, parse, parse_bytes, parse_with};
use meshloom::hlo::proto::{HloInstructionProto, HloModuleProto, HloModuleProtoWithConfig, PrimitiveType, ShapeProto};
use meshloom::hlo::read;
use meshloom::hlo::text::{TextOptions, print, print_with_config};
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
