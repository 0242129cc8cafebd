//! The HLO text printer against XLA's own: modules under `tests/oracle/hlo` and XLA's text of each.
//!
//! `python3 tests/oracle/hlo_text.py --write` makes these files (any Python with jax); `--check` has XLA's parser read
//! what our printer says about many more modules.

use std::fs;
use std::path::{Path, PathBuf};

use meshloom::hlo::proto::{
    HloComputationProto, HloInstructionProto, HloModuleConfigProto, HloModuleProto, HloModuleProtoWithConfig,
    LayoutProto, OpMetadata, PrimitiveType, ShapeProto,
};
use meshloom::hlo::text::{self, TextOptions};
use prost::Message;
use support::cases::cases;

/// The `.pb` files of a folder, in order.
fn modules(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pb"))
        .collect();
    files.sort();
    files
}

fn read(file: &Path) -> HloModuleProto {
    HloModuleProto::decode(fs::read(file).unwrap().as_slice()).unwrap()
}

fn golden_folder() -> PathBuf {
    support::path("tests/oracle/hlo")
}

#[track_caller]
fn check(file: &Path) {
    let expected = fs::read_to_string(file.with_extension("txt")).unwrap();
    let actual = text::print(&read(file), &TextOptions::parseable());
    for (number, (ours, theirs)) in actual.lines().zip(expected.lines()).enumerate() {
        assert_eq!(ours, theirs, "{}:{}", file.display(), number + 1);
    }
    assert_eq!(actual, expected, "{}", file.display());
}

#[test]
fn parseable_text_is_what_xla_prints() {
    let files = modules(&golden_folder());
    assert!(files.len() >= 10, "only {} golden modules", files.len());
    for file in files {
        check(&file);
    }
}

/// Returns pseudo-random numbers (xorshift64), the same ones for the same case.
fn random_numbers(case: u64) -> impl FnMut(usize) -> usize {
    let mut state = (case + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound.max(1) as u64) as usize
    };
    random(1);
    random
}

fn print_both(module: &HloModuleProto) {
    assert!(text::print(module, &TextOptions::parseable()).starts_with("HloModule "));
    assert!(text::print(module, &TextOptions::canonical()).starts_with("HloModule "));
}

/// Returns the numbers of the mutations to try.
fn mutations() -> Vec<u64> {
    cases("hlo printed mutations", 1_500, 0..10_000)
}

/// Any bytes that decode can be printed.
#[test]
fn mutated_bytes_print() {
    let originals: Vec<Vec<u8>> = modules(&golden_folder()).iter().map(|file| fs::read(file).unwrap()).collect();
    let (mut printed, numbers) = (0, mutations());
    for &number in &numbers {
        let mut random = random_numbers(number);
        let mut bytes = originals[random(originals.len())].clone();
        for _ in 0..=random(3) {
            let position = random(bytes.len());
            // Mostly in place, so that the lengths around it stay right and the result decodes.
            match random(16) {
                0 => drop(bytes.remove(position)),
                1 => bytes.insert(position, random(256) as u8),
                2..8 => bytes[position] = random(128) as u8,
                _ => bytes[position] ^= 1 << random(7),
            }
        }
        if let Ok(module) = HloModuleProto::decode(bytes.as_slice()) {
            printed += 1;
            print_both(&module);
        }
    }
    let count = numbers.len();
    assert!(printed > count / 10, "only {printed} of {count} mutated modules decoded");
}

/// Well-formed messages that make no sense print too.
#[test]
fn mutated_fields_print() {
    const NUMBERS: &[i64] = &[i64::MIN, -1, 0, 1, 2, 7, 1 << 20, 1 << 40, i64::MAX];
    let originals: Vec<HloModuleProto> = modules(&golden_folder()).iter().map(|file| read(file)).collect();
    let opcodes: Vec<String> = originals
        .iter()
        .flat_map(|module| &module.computations)
        .flat_map(|computation| &computation.instructions)
        .map(|instruction| instruction.opcode.clone())
        .collect();
    for number in mutations() {
        let mut random = random_numbers(number);
        let mut module = originals[random(originals.len())].clone();
        for _ in 0..=random(4) {
            let index = random(module.computations.len());
            let computation = &mut module.computations[index];
            let index = random(computation.instructions.len());
            let Some(instruction) = computation.instructions.get_mut(index) else { continue };
            let number = NUMBERS[random(NUMBERS.len())];
            let set = |values: &mut Vec<i64>, at: usize| match values.get_mut(at) {
                Some(value) => *value = number,
                None => values.push(number),
            };
            let at = random(3);
            match random(12) {
                0 => instruction.opcode = opcodes[random(opcodes.len())].clone(),
                1 => set(&mut instruction.operand_ids, at),
                2 => set(&mut instruction.called_computation_ids, at),
                3 => instruction.id = number,
                4 => set(&mut instruction.dimensions, at),
                5 => instruction.parameter_number = number,
                6 => computation.root_id = number,
                7 => computation.id = number,
                8 => instruction.shape = None,
                9 => {
                    if let Some(shape) = &mut instruction.shape {
                        set(&mut shape.dimensions, at);
                        shape.element_type = random(40) as i32;
                    }
                }
                10 => {
                    if let Some(shape) = instruction.literal.as_mut().and_then(|literal| literal.shape.as_mut()) {
                        set(&mut shape.dimensions, at);
                        if let Some(layout) = &mut shape.layout {
                            set(&mut layout.minor_to_major, at);
                        }
                    }
                }
                _ => {
                    if let Some(numbers) = &mut instruction.convolution_dimension_numbers {
                        numbers.input_batch_dimension = number;
                        set(&mut numbers.kernel_spatial_dimensions, at);
                    }
                }
            }
        }
        print_both(&module);
    }
}

#[test]
fn configuration_is_in_the_header() {
    let module = HloModuleProtoWithConfig {
        hlo_module: Some(additions(3)),
        config: Some(HloModuleConfigProto {
            num_partitions: 8,
            replica_count: 1,
            allow_spmd_sharding_propagation_to_parameters: vec![true, false],
            allow_spmd_sharding_propagation_to_output: vec![false],
            ..Default::default()
        }),
    };
    let text = text::print_with_config(&module, &TextOptions::parseable());
    let header = text.lines().next().unwrap();
    assert_eq!(
        header,
        "HloModule additions, allow_spmd_sharding_propagation_to_parameters={true,false}, num_partitions=8"
    );
}

/// A module of `count` additions, each of the two values before it.
fn additions(count: i64) -> HloModuleProto {
    let shape = ShapeProto {
        element_type: PrimitiveType::F32.into(),
        dimensions: vec![8, 128],
        layout: Some(Box::new(LayoutProto { minor_to_major: vec![1, 0], ..Default::default() })),
        ..Default::default()
    };
    let instruction = |id: i64| HloInstructionProto {
        name: if id < 2 { format!("x.{id}") } else { format!("add.{id}") },
        opcode: if id < 2 { "parameter" } else { "add" }.to_string(),
        id,
        parameter_number: id,
        shape: Some(shape.clone()),
        operand_ids: if id < 2 { Vec::new() } else { vec![id - 2, id - 1] },
        metadata: Some(Box::new(OpMetadata { op_name: "jit(f)/layer/add".to_string(), ..Default::default() })),
        ..Default::default()
    };
    let computation = HloComputationProto {
        name: "main.7".to_string(),
        id: 7,
        root_id: count - 1,
        instructions: (0..count).map(instruction).collect(),
        ..Default::default()
    };
    HloModuleProto {
        name: "additions".to_string(),
        entry_computation_id: 7,
        computations: vec![computation],
        ..Default::default()
    }
}

#[test]
fn canonical_text_is_short() {
    let mut module = additions(4);
    // An operand that does not exist.
    module.computations[0].instructions[3].operand_ids[0] = 42;
    let expected = "\
HloModule additions

ENTRY %main (x: f32[8,128], x.1: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128] parameter(0)
  %x.1 = f32[8,128] parameter(1)
  %add = f32[8,128] add(%x, %x.1)
  ROOT %add.1 = f32[8,128] add(%MISSING_42, %add)
}

";
    assert_eq!(text::print(&module, &TextOptions::canonical()), expected);
    let with_metadata = text::print(&module, &TextOptions::canonical().with_metadata(true));
    assert!(with_metadata.contains("parameter(1), metadata={op_name=\"jit(f)/layer/add\"}"), "{with_metadata}");
}

#[test]
fn large_modules_print_whole() {
    let text = text::print(&additions(50_000), &TextOptions::parseable());
    assert_eq!(text.lines().count(), 50_005);
}

/// For `hlo_text.py --check`: prints the modules of a folder, each beside itself, in both forms, and encodes them
/// anew.
#[test]
#[ignore = "a tool for tests/oracle/hlo_text.py"]
fn print_folder() {
    let folder = PathBuf::from(std::env::var("MESHLOOM_HLO_FOLDER").unwrap());
    for file in modules(&folder) {
        let module = read(&file);
        fs::write(file.with_extension("encoded"), module.encode_to_vec()).unwrap();
        fs::write(file.with_extension("ours.txt"), text::print(&module, &TextOptions::parseable())).unwrap();
        fs::write(file.with_extension("canonical.txt"), text::print(&module, &TextOptions::canonical())).unwrap();
    }
}
