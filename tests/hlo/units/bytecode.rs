//! Tests of the reader of MLIR bytecode.

use meshloom::hlo::read::{Form, Limits, read as read_any};
use prost::Message;

use crate::hlo::units::stablehlo_read::found;
/// Bytecode that is put together by hand, as MLIR's document of the format describes it.
#[derive(Clone, Default)]
struct Assembled(Vec<u8>);

impl Assembled {
    fn number(mut self, value: usize) -> Assembled {
        match value {
            0..128 => self.0.push((value << 1 | 1) as u8),
            _ => self.0.extend(((value << 2 | 2) as u16).to_le_bytes()),
        }
        self
    }

    fn numbers(self, values: &[usize]) -> Assembled {
        values.iter().fold(self, |bytes, &value| bytes.number(value))
    }

    fn raw(mut self, bytes: &[u8]) -> Assembled {
        self.0.extend(bytes);
        self
    }

    fn section(self, kind: u8, content: Assembled) -> Assembled {
        self.raw(&[kind]).number(content.0.len()).raw(&content.0)
    }
}

fn numbers(values: &[usize]) -> Assembled {
    Assembled::default().numbers(values)
}

/// The addition of a constant as a portable artifact, in the versions of the format before properties.
fn assembled() -> Vec<u8> {
    let strings = [
        "builtin",
        "vhlo",
        "module",
        "func_v1",
        "constant_v1",
        "add_v1",
        "return_v1",
        "sym_name",
        "function_type",
        "value",
        "m",
        "main",
        "step.py",
        "add",
    ];
    let lengths: Vec<usize> = strings.iter().rev().map(|string| string.len() + 1).collect();
    let text: Vec<u8> = strings.iter().flat_map(|string| string.bytes().chain([0])).collect();
    let strings = numbers(&[strings.len()]).numbers(&lengths).raw(&text);
    // Two dialects without versions; the number of ops; the ops of each dialect.
    let dialects = numbers(&[2, 0 << 1, 1 << 1, 5, 0, 1, 2, 1, 4, 3, 4, 5, 6]);
    let elements = [1.0f32, 2.0].map(f32::to_le_bytes).concat();
    let attributes = [
        (0, numbers(&[15])),                                   // 0: the unknown location
        (0, numbers(&[2, 7])),                                 // 1: "sym_name"
        (0, numbers(&[2, 10])),                                // 2: "m"
        (0, numbers(&[1, 1, 1, 2])),                           // 3: {sym_name = "m"}
        (0, numbers(&[2, 8])),                                 // 4: "function_type"
        (1, numbers(&[17, 1])),                                // 5: type 1
        (1, numbers(&[14, 11])),                               // 6: "main"
        (0, numbers(&[1, 2, 4, 5, 1, 6])),                     // 7: {function_type = ..., sym_name = "main"}
        (0, numbers(&[2, 9])),                                 // 8: "value"
        (1, numbers(&[15, 0, elements.len()]).raw(&elements)), // 9: dense<[1.0, 2.0]>
        (0, numbers(&[1, 1, 8, 9])),                           // 10: {value = ...}
        (0, numbers(&[2, 12])),                                // 11: "step.py"
        (0, numbers(&[11, 11, 3, 5])),                         // 12: loc("step.py":3:5)
        (0, numbers(&[2, 13])),                                // 13: "add"
        (0, numbers(&[14, 13, 12])),                           // 14: loc("add"(...))
    ];
    let types = [
        (1, numbers(&[20, 1, 2 << 1, 2])), // 0: tensor<2xf32>
        (1, numbers(&[8, 1, 0, 1, 0])),    // 1: (tensor<2xf32>) -> tensor<2xf32>
        (1, numbers(&[4])),                // 2: f32
    ];
    let (mut sizes, mut content) = (numbers(&[attributes.len(), types.len()]), Assembled::default());
    for (dialect, entry) in attributes.iter().chain(&types) {
        sizes = sizes.numbers(&[*dialect, 1, entry.0.len() << 1 | 1]);
        content = content.raw(&entry.0);
    }
    // An op: its name, what it has, its location, then its attributes, results and operands.
    let block = numbers(&[3 << 1 | 1, 1, 0 << 1])
        .raw(&[0])
        .number(2)
        .raw(&[1 | 2])
        .numbers(&[0, 10, 1, 0])
        .number(3)
        .raw(&[2 | 4])
        .numbers(&[14, 1, 0, 2, 0, 1])
        .number(4)
        .raw(&[4])
        .numbers(&[0, 1, 2]);
    let function = numbers(&[1, 3]).raw(&block.0);
    let function = numbers(&[1 << 1, 1]).raw(&[1 | 16]).numbers(&[0, 7, 1 << 1 | 1]).section(4, function);
    let module = numbers(&[1, 0]).raw(&function.0);
    let operations = numbers(&[1 << 1, 0]).raw(&[1 | 16]).numbers(&[0, 3, 1 << 1 | 1]).section(4, module);
    let file = Assembled(b"ML\xefR".to_vec()).number(4).raw(b"by hand\0").section(0, strings).section(1, dialects);
    file.section(2, content).section(3, sizes).section(4, operations).0
}

/// The frame that `jax.export` puts around bytecode: a flatbuffer, of whose fields only the module is here.
fn exported(module: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // The root at 36; the places of 14 fields; the table, whose field 13 points at the list behind it.
    bytes.extend(36u32.to_le_bytes());
    bytes.extend([32u16, 8].map(u16::to_le_bytes).concat());
    bytes.extend([0; 2 * 13]);
    bytes.extend(4u16.to_le_bytes());
    bytes.extend(32i32.to_le_bytes());
    bytes.extend(4u32.to_le_bytes());
    bytes.extend((module.len() as u32).to_le_bytes());
    bytes.extend(module);
    bytes
}

#[test]
fn bytecode_is_the_module_of_its_text() {
    let text = "module @m {\n\
                func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {\n\
                %cst = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>\n\
                %0 = stablehlo.add %arg0, %cst : tensor<2xf32> loc(\"add\"(\"step.py\":3:5))\n\
                return %0 : tensor<2xf32>\n}\n}";
    let expected = found(text);
    for (form, bytes) in [(Form::Bytecode, assembled()), (Form::Export, exported(&assembled()))] {
        let read = read_any(&bytes, &Limits::default()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(read.form, form);
        assert_eq!(Some(&read.module), expected.hlo_module.as_ref());
        assert_eq!(read.config, expected.config);
    }
}

/// Every file that is cut off, or has a byte of another value, is an error or a module.
#[test]
fn broken_bytecode_is_an_error() {
    let file = assembled();
    for length in 4..file.len() {
        let error = read_any(&file[..length], &Limits::default()).unwrap_err().to_string();
        assert!(error.contains("MLIR bytecode"), "{length}: {error}");
    }
    for at in 0..file.len() {
        for value in [0, 1, 2, 3, 5, 0x7f, 0x80, 0xcb, 0xff] {
            let mut file = file.clone();
            file[at] = value;
            _ = read_any(&file, &Limits::default());
            _ = read_any(&exported(&file), &Limits::default());
        }
    }
    let export = exported(&file);
    (0..60).for_each(|at| {
        for value in [0, 1, 0x7f, 0xff] {
            let mut export = export.clone();
            export[at] = value;
            _ = read_any(&export, &Limits::default());
        }
    });
}

/// Pairs of files `NAME.mlir` and `NAME.mlir.bc`, such as those in JAX's tests of old exports: the module from bytecode
/// is that from text.
#[test]
#[ignore = "needs a folder of pairs in MESHLOOM_BYTECODE_FOLDER"]
fn pairs_of_bytecode_and_text() {
    let folder = std::env::var("MESHLOOM_BYTECODE_FOLDER").expect("a folder");
    let files = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let (mut count, mut different) = (0, Vec::new());
    for path in files.filter(|path| path.extension().is_some_and(|extension| extension == "bc")) {
        let [bytecode, text] = [path.clone(), path.with_extension("")].map(|path| std::fs::read(path).expect("a file"));
        // A text may have been printed without locations.
        let has_locations = text.windows(4).any(|window| window == b"loc(");
        let [one, other] = [bytecode, text].map(|bytes| {
            let mut module = read_any(&bytes, &Limits::default()).ok()?.module;
            if !has_locations {
                module.stack_frame_index = None;
                let all = module.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
                all.for_each(|instruction| instruction.metadata = None);
            }
            // As bytes, for elements may be no numbers, which are equal to nothing.
            Some(module.encode_to_vec())
        });
        count += usize::from(one.is_some() && one == other);
        if one != other {
            different.push(path);
        }
    }
    println!("{count} pairs are the same");
    assert!(different.is_empty(), "{different:#?}");
}
